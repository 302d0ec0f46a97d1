//! What the lock-free parts stand on: atomics, fences, shared cells, the futex and the deadline, named once.
//!
//! `word.rs` and `ring.rs` take these from `crate::sync` and from nowhere else. So the loom models can include the
//! very same files and put a `sync` of their own beside them, whose threads loom schedules in every order that
//! matters. What those models need changed is changed there; nothing here knows of them.

use std::mem::size_of;
use std::time::{Duration, Instant};

use rustix::thread::futex;

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

// What lies in shared memory has one layout, in every process and build. Checked here and not beside the types,
// since loom's atomics have other sizes.
const _: () = assert!(size_of::<FutexWord>() == 4 && size_of::<AtomicU64>() == 8);
const _: () =
    assert!(size_of::<crate::word::LayerCell>() == 64 && align_of::<crate::word::LayerCell>() == 64);
const _: () = assert!(size_of::<crate::word::Doorbell>() == 8 && size_of::<crate::word::DirtyWord>() == 8);

/// A word that threads of several processes may sleep on until it changes.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct FutexWord(AtomicU32);

impl FutexWord {
    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }

    pub(crate) fn compare_exchange(
        &self,
        seen: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        self.0.compare_exchange(seen, new, success, failure)
    }

    /// Sleeps while the word is `seen`, at most `left` (`None`: no limit). It may come back for no reason at all, so
    /// the caller looks again; a word that has changed already, a signal and a time that is up all end it.
    pub(crate) fn wait(&self, seen: u32, left: Option<Duration>) {
        let timeout = left.map(|left| futex::Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        // Shared, not private: the one who wakes may have the page at another address.
        let end = futex::wait(&self.0, futex::Flags::empty(), seen, timeout.as_ref());
        debug_assert!(
            matches!(
                end,
                Ok(())
                    | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT)
            ),
            "a futex cannot wait: {end:?}"
        );
    }

    /// Wakes everyone who sleeps on the word.
    pub(crate) fn wake_all(&self) {
        // The kernel reads the number as signed.
        let end = futex::wake(&self.0, futex::Flags::empty(), i32::MAX.cast_unsigned());
        debug_assert!(end.is_ok(), "a futex cannot wake: {end:?}");
    }
}

/// When a wait is over, by the monotonic clock.
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `within` from now; never, if the clock cannot say so much.
    pub(crate) fn after(within: Duration) -> Self {
        Self(Instant::now().checked_add(within))
    }

    /// The time left (within: `None` for no limit), or `None` when it is up.
    #[expect(clippy::option_option, reason = "two questions: is it up, and is there a limit")]
    pub(crate) fn left(&self) -> Option<Option<Duration>> {
        let Some(at) = self.0 else { return Some(None) };
        let left = at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(Some(left))
    }
}

/// A cell that one thread at a time may use, by a rule of its owner; with loom's interface.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
