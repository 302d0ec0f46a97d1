//! A bounded queue from one thread to another one of the same process, without locks.
//!
//! Both ends keep the other's index as they saw it last and look again only when that says full or empty, so that
//! in a steady flow an end seldom touches the other's cache line. Every call but [`Consumer::wait`] is O(1) and
//! never blocks.
//!
//! This file names nothing but `crate::sync`, `crate::word` and the standard library: the loom models include it
//! as it is, but for its tests.

use std::mem::MaybeUninit;
use std::time::Duration;

use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};
use crate::word::WaitWord;

/// Set in the tail when the producer is gone; the rest of the word counts modulo 2^31.
const GONE: u32 = 1 << 31;

/// The most that a ring can hold.
pub const CAPACITY_MAX: usize = 1 << 30;

/// Keeps the ends' indices off each other's cache lines, which are fetched in pairs.
#[repr(align(128))]
struct Line<T>(T);

struct Shared<T> {
    /// How many were taken. Only the consumer writes it.
    head: Line<AtomicU32>,
    /// How many were put in. Only the producer writes it, and the consumer can sleep on it.
    tail: Line<WaitWord>,
    /// A power of two. Those from `head` to `tail` hold a value; the consumer owns them, the producer the others.
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is used by one end at a time, which the indices hand over; so values move between the threads, but
// are never shared by them.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, index: u32) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // The last of both ends drops, so the indices stand still, and dropping the Arc made them visible.
        let mut head = self.head.0.load(Ordering::Relaxed);
        let tail = self.tail.0.load(Ordering::Relaxed) & !GONE;
        while head != tail {
            // SAFETY: between head and tail every slot holds a value, and nobody else is left.
            self.slot(head).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = after(head);
        }
    }
}

fn after(index: u32) -> u32 {
    index.wrapping_add(1) & !GONE
}

/// The end that puts in.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: u32,
    /// Seen last; the true one may be further.
    head: u32,
}

/// The end that takes out.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: u32,
    /// Seen last, with `GONE`; the true one may be further.
    tail: u32,
}

/// A ring that holds at least `capacity` values: the next power of two.
///
/// # Panics
/// If that is more than [`CAPACITY_MAX`].
pub fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    ring_from(capacity, 0)
}

/// A ring whose indices start elsewhere, where the end of their range is near.
fn ring_from<T>(capacity: usize, index: u32) -> (Producer<T>, Consumer<T>) {
    assert!(capacity <= CAPACITY_MAX, "a ring holds {CAPACITY_MAX} at most, not {capacity}");
    let slots = (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Shared { head: Line(AtomicU32::default()), tail: Line(WaitWord::default()), slots };
    shared.head.0.store(index, Ordering::Relaxed);
    shared.tail.0.store(index, Ordering::Relaxed);
    let shared = Arc::new(shared);
    (
        Producer { shared: shared.clone(), tail: index, head: index },
        Consumer { shared, head: index, tail: index },
    )
}

impl<T> Producer<T> {
    /// How many values the ring holds.
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Puts a value in, and wakes the consumer if it sleeps.
    ///
    /// # Errors
    /// The value, if the ring is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.is_full() {
            self.head = self.shared.head.0.load(Ordering::Acquire);
            if self.is_full() {
                return Err(value);
            }
        }
        // SAFETY: the slot at the tail is the producer's, as the ring is not full, and holds no value.
        self.shared.slot(self.tail).with_mut(|slot| unsafe {
            (*slot).write(value);
        });
        self.tail = after(self.tail);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        self.shared.tail.0.notify();
        Ok(())
    }

    fn is_full(&self) -> bool {
        (self.tail.wrapping_sub(self.head) & !GONE) as usize == self.shared.slots.len()
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.shared.tail.0.store(self.tail | GONE, Ordering::Release);
        self.shared.tail.0.notify();
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest value out, if there is one.
    pub fn pop(&mut self) -> Option<T> {
        if !self.has_more() {
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
            if !self.has_more() {
                return None;
            }
        }
        // SAFETY: the slot at the head is the consumer's, as the ring is not empty, and holds a value, which is read
        // once: the head moves on below.
        let value = self.shared.slot(self.head).with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.head = after(self.head);
        self.shared.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Waits until there is a value to take, at most `within`. False when the time is up, or at once when the ring is
    /// empty and the producer gone.
    pub fn wait(&mut self, within: Duration) -> bool {
        if !self.has_more() {
            let head = self.head;
            self.tail = self.shared.tail.0.wait_until(within, |tail| tail != head);
        }
        self.has_more()
    }

    /// Whether the producer is gone and everything it put in was taken.
    pub fn is_finished(&mut self) -> bool {
        if self.tail & GONE == 0 {
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
        }
        self.tail == self.head | GONE
    }

    fn has_more(&self) -> bool {
        self.tail & !GONE != self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_goes_on_where_its_indices_start_again() {
        for left in 0..5 {
            let (mut producer, mut consumer) = ring_from(4, GONE - 1 - left);
            for round in 0..4 {
                assert!(!consumer.wait(Duration::ZERO));
                for value in 0..4 {
                    assert_eq!(producer.push(4 * round + value), Ok(()));
                }
                assert_eq!(producer.push(99), Err(99), "it holds four");
                for value in 0..4 {
                    assert!(consumer.wait(Duration::ZERO));
                    assert_eq!(consumer.pop(), Some(4 * round + value));
                }
                assert_eq!(consumer.pop(), None);
                assert!(!consumer.is_finished());
            }
            assert_eq!(producer.push(16), Ok(()));
            drop(producer);
            assert!(!consumer.is_finished(), "one is left");
            assert_eq!(consumer.pop(), Some(16));
            assert!(consumer.is_finished());
        }
    }
}
