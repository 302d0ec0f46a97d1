//! The ring between real threads, and against a queue of the standard library.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use splitcore_transport::ring::ring;

const LONG: Duration = Duration::from_secs(20);

proptest! {
    #[test]
    fn a_ring_is_a_queue_that_refuses_when_full(capacity in 0_usize..9, pushes in vec(any::<bool>(), 0..100)) {
        let (mut producer, mut consumer) = ring(capacity);
        prop_assert_eq!(producer.capacity(), capacity.next_power_of_two());
        let mut queue = VecDeque::new();
        for (value, push) in pushes.into_iter().enumerate() {
            prop_assert_eq!(consumer.wait(Duration::ZERO), !queue.is_empty());
            if !push {
                prop_assert_eq!(consumer.pop(), queue.pop_front());
            } else if queue.len() < producer.capacity() {
                prop_assert_eq!(producer.push(value), Ok(()));
                queue.push_back(value);
            } else {
                prop_assert_eq!(producer.push(value), Err(value));
            }
            prop_assert!(!consumer.is_finished());
        }
        drop(producer);
        prop_assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<VecDeque<_>>(), queue);
        prop_assert!(consumer.is_finished() && !consumer.wait(LONG));
    }

    #[test]
    fn what_is_left_is_dropped_whichever_end_goes_first(pushes in 0..9, pops in 0..9, producer_first: bool) {
        let (mut producer, mut consumer) = ring(8);
        let value = Arc::new(());
        for _ in 0..pushes {
            let _refused = producer.push(value.clone());
        }
        for _ in 0..pops {
            drop(consumer.pop());
        }
        prop_assert_eq!(Arc::strong_count(&value), 1 + usize::try_from(8.min(pushes) - pops).unwrap_or(0));
        if producer_first {
            drop(producer);
            drop(consumer);
        } else {
            drop(consumer);
            drop(producer);
        }
        prop_assert_eq!(Arc::strong_count(&value), 1);
    }
}

#[test]
fn values_pass_in_order_to_a_consumer_that_sleeps() {
    const VALUES: u32 = 20_000;
    let (mut producer, mut consumer) = ring(8);
    thread::scope(|scope| {
        scope.spawn(move || {
            for value in 0..VALUES {
                let mut value = Box::new(value);
                while let Err(back) = producer.push(value) {
                    value = back;
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while consumer.wait(LONG) {
            while let Some(value) = consumer.pop() {
                assert_eq!(*value, next);
                next += 1;
            }
        }
        assert_eq!(next, VALUES);
        assert!(consumer.is_finished());
    });
}
