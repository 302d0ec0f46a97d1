//! The ring between two threads: order, full, empty, round the end, asleep, and dropped.

#![allow(clippy::unwrap_used, reason = "a thread that panicked fails the test")]

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;
use splitcore_transport_loom::ring::ring;
use splitcore_transport_loom::{Ends, Fault, explore, explore_bounded, slept};

const FOR_EVER: Duration = Duration::MAX;

/// Three values through one slot: the producer finds it full, and the index goes round.
fn through_one_slot() {
    let (mut producer, mut consumer) = ring(1);
    let writer = thread::spawn(move || {
        for mut value in 0..3 {
            while let Err(back) = producer.push(value) {
                value = back;
                thread::yield_now();
            }
        }
    });
    let mut taken = Vec::new();
    while consumer.wait(FOR_EVER) {
        taken.extend(consumer.pop());
    }
    assert_eq!(taken, [0, 1, 2]);
    assert!(consumer.is_finished());
    writer.join().unwrap();
}

#[test]
fn values_come_out_whole_and_in_order_round_the_end() {
    explore_bounded(Fault::None, 3, through_one_slot);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_relaxed_tail_hands_over_a_slot_half_written() {
    explore_bounded(Fault::WordRelease, 3, through_one_slot);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_tail_that_is_not_acquired_is_no_better() {
    explore_bounded(Fault::WordAcquire, 3, through_one_slot);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_relaxed_head_lets_a_slot_be_overwritten_while_it_is_read() {
    explore_bounded(Fault::HeadRelease, 3, through_one_slot);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_head_that_is_not_acquired_is_no_better() {
    explore_bounded(Fault::HeadAcquire, 3, through_one_slot);
}

/// Without retries: what is refused comes back, and what is taken is what was not refused. How many were refused.
fn more_than_fits() -> usize {
    let (mut producer, mut consumer) = ring(2);
    let writer = thread::spawn(move || {
        let mut refused = Vec::new();
        for value in 0..3 {
            refused.extend(producer.push(value).err());
        }
        refused
    });
    let mut taken = Vec::new();
    taken.extend(consumer.pop());
    let refused = writer.join().unwrap();
    taken.extend(std::iter::from_fn(|| consumer.pop()));
    let all = if refused.is_empty() { vec![0, 1, 2] } else { vec![0, 1] };
    assert_eq!(taken, all);
    assert!(refused.is_empty() || refused == [2]);
    assert!(consumer.is_finished());
    refused.len()
}

#[test]
fn a_full_ring_gives_the_value_back() {
    let ends = Ends::none();
    let met = ends.clone();
    explore(Fault::None, move || met.met(more_than_fits()));
    assert_eq!(ends.all(), [0, 1]);
}

fn a_consumer_asleep() {
    let (mut producer, mut consumer) = ring(2);
    let writer = thread::spawn(move || assert_eq!(producer.push(5), Ok(())));
    assert!(consumer.wait(FOR_EVER));
    assert_eq!(consumer.pop(), Some(5));
    assert!(!consumer.wait(FOR_EVER), "the producer goes without a word more");
    writer.join().unwrap();
}

#[test]
fn a_push_and_the_end_wake_the_consumer() {
    let ends = Ends::none();
    let met = ends.clone();
    explore_bounded(Fault::None, 4, move || {
        a_consumer_asleep();
        met.met(slept());
    });
    assert_eq!(ends.all(), [false, true]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_without_the_fence_the_consumer_sleeps_on() {
    explore(Fault::Fence, a_consumer_asleep);
}

/// Loom reports an `Arc` that is never dropped, and one that is dropped twice.
#[test]
fn what_is_left_is_dropped_once_whoever_goes_last() {
    explore(Fault::None, || {
        let (mut producer, mut consumer) = ring(2);
        let value = Arc::new(());
        let left = value.clone();
        let writer = thread::spawn(move || {
            assert!(producer.push(left.clone()).is_ok());
            assert!(producer.push(left).is_ok());
        });
        drop(consumer.pop());
        drop(consumer);
        writer.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    });
}
