//! What the shipped files take from `crate::sync`, over loom, with the faults of [`Fault`].

use std::ops::Deref;
use std::time::Duration;

use loom::sync::{Condvar, Mutex};

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use std::sync::atomic::Ordering;

use crate::{FAULT, Fault, SLEPT, WOKE};

/// An order without its releasing or its acquiring half.
fn weakened(order: Ordering, release: Fault, acquire: Fault) -> Ordering {
    match order {
        Ordering::Release if FAULT.get() == release => Ordering::Relaxed,
        Ordering::Acquire if FAULT.get() == acquire => Ordering::Relaxed,
        Ordering::AcqRel if FAULT.get() == release => Ordering::Acquire,
        Ordering::AcqRel if FAULT.get() == acquire => Ordering::Release,
        order => order,
    }
}

fn word_order(order: Ordering) -> Ordering {
    weakened(order, Fault::WordRelease, Fault::WordAcquire)
}

fn index_order(order: Ordering) -> Ordering {
    weakened(order, Fault::HeadRelease, Fault::HeadAcquire)
}

/// A model that failed takes no more steps: loom would panic in a drop, and abort before the test can say why.
fn failed() -> bool {
    std::thread::panicking()
}

/// Loom's, which finds what is dropped twice or never; left alone once the model has failed.
pub(crate) struct Arc<T>(Option<loom::sync::Arc<T>>);

impl<T> Arc<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(loom::sync::Arc::new(value)))
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only a drop takes it")
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        if failed() {
            std::mem::forget(self.0.take());
        }
    }
}

pub(crate) fn fence(order: Ordering) {
    if FAULT.get() != Fault::Fence && !failed() {
        loom::sync::atomic::fence(order);
    }
}

/// Makes loom try every order of the accesses to one atomic.
///
/// Loom remembers only the last access to an atomic, so a thread that loads before it writes hides that its write
/// races with another thread's earlier load, and orders are left out (loom #166, #392); the words do little else.
/// Two writes are never hidden, so every access takes a turn first: a relaxed write, which synchronises nothing.
/// What a load may return stays as it is.
#[derive(Debug, Default)]
struct Turn(loom::sync::atomic::AtomicU32);

impl Turn {
    fn take(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts of waiters, always relaxed, and the ring's head.
#[derive(Debug, Default)]
pub(crate) struct AtomicU32 {
    value: loom::sync::atomic::AtomicU32,
    turn: Turn,
}

impl AtomicU32 {
    pub(crate) fn load(&self, order: Ordering) -> u32 {
        if failed() {
            return 0;
        }
        self.turn.take();
        self.value.load(index_order(order))
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        if failed() {
            return;
        }
        self.turn.take();
        self.value.store(value, index_order(order));
    }

    pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.turn.take();
        self.value.fetch_add(value, order)
    }

    pub(crate) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.turn.take();
        self.value.fetch_sub(value, order)
    }
}

/// Parts of seals, and marks.
#[derive(Debug, Default)]
pub(crate) struct AtomicU64 {
    value: loom::sync::atomic::AtomicU64,
    turn: Turn,
}

impl AtomicU64 {
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.turn.take();
        self.value.load(order)
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.turn.take();
        self.value.swap(value, order)
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.turn.take();
        self.value.fetch_or(value, order)
    }

    pub(crate) fn compare_exchange(
        &self,
        seen: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.turn.take();
        self.value.compare_exchange(seen, new, success, failure)
    }
}

/// A word and what the kernel keeps for it: a queue of sleepers, and its lock.
#[derive(Debug, Default)]
pub(crate) struct FutexWord {
    word: loom::sync::atomic::AtomicU32,
    turn: Turn,
    queue: Mutex<()>,
    sleepers: Condvar,
}

impl FutexWord {
    pub(crate) fn load(&self, order: Ordering) -> u32 {
        if failed() {
            return 0;
        }
        self.turn.take();
        self.word.load(word_order(order))
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        if failed() {
            return;
        }
        self.turn.take();
        self.word.store(value, word_order(order));
    }

    pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.turn.take();
        self.word.fetch_add(value, word_order(order))
    }

    pub(crate) fn compare_exchange(
        &self,
        seen: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        self.turn.take();
        if FAULT.get() == Fault::Exchange {
            let now = self.word.load(Ordering::Acquire);
            if now != seen {
                return Err(now);
            }
            self.turn.take();
            self.word.store(new, Ordering::Release);
            return Ok(seen);
        }
        self.word.compare_exchange(seen, new, word_order(success), word_order(failure))
    }

    /// Sleeps if the word is `seen`, which is compared under the lock; never times out.
    pub(crate) fn wait(&self, seen: u32, _left: Option<Duration>) {
        let Ok(queue) = self.queue.lock() else { return };
        self.turn.take();
        if self.word.load(Ordering::Relaxed) == seen {
            SLEPT.set(true);
            drop(self.sleepers.wait(queue));
        }
    }

    pub(crate) fn wake_all(&self) {
        WOKE.set(true);
        let queue = self.queue.lock();
        if FAULT.get() == Fault::WakeOne {
            self.sleepers.notify_one();
        } else {
            self.sleepers.notify_all();
        }
        drop(queue);
    }
}

/// No time passes in a model: a wait of no time is over at once, and any other never.
pub(crate) struct Deadline {
    over: bool,
}

impl Deadline {
    pub(crate) fn after(within: Duration) -> Self {
        Self { over: within.is_zero() }
    }

    #[expect(clippy::option_option, reason = "as the one that is shipped")]
    pub(crate) fn left(&self) -> Option<Option<Duration>> {
        (!self.over).then_some(None)
    }
}
