//! The order in which things happen: by time, and at equal times in the order they were pushed.
//!
//! A fixed order at equal times is what makes a run reproducible: identical machines tie all the time.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// A queue of events ordered by (time, order of pushing).
///
/// It has two lanes. What is pushed for the current time goes to a plain first-in, first-out lane, since it
/// comes after everything the heap holds for that time (pushed earlier) and before everything else. Messages
/// without delay, about half of all events, never touch the heap.
#[derive(Debug, Clone)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    now_lane: VecDeque<E>,
    now_ns: u64,
    sequence: u64,
}

/// An event in the heap with its place in the order.
#[derive(Debug, Clone)]
struct Entry<E> {
    time_ns: u64,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    /// Time above, sequence below: one comparison instead of two branches.
    fn key(&self) -> u128 {
        (u128::from(self.time_ns) << 64) | u128::from(self.sequence)
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed, because std's heap gives the largest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> EventQueue<E> {
    /// An empty queue at time 0.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty queue with room for `events` future events.
    pub fn with_capacity(events: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(events), now_lane: VecDeque::new(), now_ns: 0, sequence: 0 }
    }

    /// Adds an event.
    ///
    /// # Panics
    /// If `time_ns` lies before the time of the last event popped.
    pub fn push(&mut self, time_ns: u64, event: E) {
        if time_ns == self.now_ns {
            self.now_lane.push_back(event);
            return;
        }
        assert!(time_ns > self.now_ns, "event pushed for {time_ns} ns, but it is {} ns already", self.now_ns);
        self.heap.push(Entry { time_ns, sequence: self.sequence, event });
        self.sequence += 1;
    }

    /// Takes the next event and moves the clock to its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        if !self.now_lane.is_empty() && self.heap.peek().is_none_or(|next| next.time_ns > self.now_ns) {
            return self.now_lane.pop_front().map(|event| (self.now_ns, event));
        }
        let next = self.heap.pop()?;
        self.now_ns = next.time_ns;
        Some((next.time_ns, next.event))
    }

    /// Keeps only some events, in their order. O(events).
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.heap.retain(|entry| keep(&entry.event));
        self.now_lane.retain(keep);
    }

    /// Moves the clock on without an event, to a time that no event precedes.
    ///
    /// # Panics
    /// If an event lies before `time_ns`, or the clock is later.
    pub fn move_to(&mut self, time_ns: u64) {
        let next_ns = self.peek_time().unwrap_or(u64::MAX);
        assert!(self.now_ns <= time_ns && time_ns <= next_ns, "the clock cannot move to {time_ns} ns");
        self.now_ns = time_ns;
    }

    /// Time of the next event.
    pub fn peek_time(&self) -> Option<u64> {
        if self.now_lane.is_empty() {
            return self.heap.peek().map(|next| next.time_ns);
        }
        Some(self.now_ns)
    }

    /// Time of the last event popped; 0 before the first.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Events waiting.
    pub fn len(&self) -> usize {
        self.heap.len() + self.now_lane.len()
    }

    /// True if no event waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.now_lane.is_empty()
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_times_come_out_in_push_order() {
        let mut queue = EventQueue::new();
        for (time_ns, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (0, 'd'), (3, 'e')] {
            queue.push(time_ns, name);
        }
        assert_eq!(queue.len(), 5);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(0, 'd'), (3, 'b'), (3, 'e'), (5, 'a'), (5, 'c')]);
        assert!(queue.is_empty());
        assert_eq!(queue.now_ns(), 5);
    }

    #[test]
    fn pushed_now_comes_after_what_waits_for_now() {
        let mut queue = EventQueue::new();
        queue.push(7, "first");
        queue.push(7, "second");
        queue.push(8, "later");
        assert_eq!(queue.pop(), Some((7, "first")));
        queue.push(7, "third");
        assert_eq!(queue.peek_time(), Some(7));
        assert_eq!(queue.pop(), Some((7, "second")));
        queue.push(7, "fourth");
        assert_eq!(queue.pop(), Some((7, "third")));
        assert_eq!(queue.pop(), Some((7, "fourth")));
        assert_eq!(queue.peek_time(), Some(8));
        assert_eq!(queue.pop(), Some((8, "later")));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.peek_time(), None);
    }

    #[test]
    #[should_panic(expected = "event pushed for 4 ns, but it is 5 ns already")]
    fn the_past_is_refused() {
        let mut queue = EventQueue::new();
        queue.push(5, ());
        queue.pop();
        queue.push(4, ());
    }

    #[test]
    fn what_is_kept_stays_in_order() {
        let mut queue = EventQueue::new();
        for (time_ns, number) in [(0, 1), (5, 2), (3, 3), (5, 4), (0, 6), (5, 7), (3, 8)] {
            queue.push(time_ns, number);
        }
        queue.retain(|number| *number % 2 == 0);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(0, 6), (3, 8), (5, 2), (5, 4)]);
    }

    proptest! {
        /// Against a list searched for the least (time, push order): any mix of pushes and pops.
        #[test]
        fn same_order_as_a_sorted_list(steps in prop::collection::vec((0_u64..4, 0_u8..3), 0..400)) {
            let mut queue = EventQueue::new();
            let mut model: Vec<(u64, usize)> = Vec::new();
            for (index, &(delay_ns, kind)) in steps.iter().enumerate() {
                if kind < 2 {
                    let time_ns = queue.now_ns() + delay_ns;
                    queue.push(time_ns, index);
                    model.push((time_ns, index));
                } else {
                    let least = model.iter().copied().min();
                    prop_assert_eq!(queue.peek_time(), least.map(|(time_ns, _)| time_ns));
                    prop_assert_eq!(queue.pop(), least);
                    model.retain(|entry| Some(*entry) != least);
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            model.sort_unstable();
            let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            prop_assert_eq!(rest, model);
        }
    }
}
