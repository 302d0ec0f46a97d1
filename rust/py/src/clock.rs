//! The clock of an object whose caller gives no time.

use std::time::Instant;

use splitcore_core::time::Time;

/// Monotonic time since an object was made. Read inside the lock, so that calls see it in their own order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
    origin_time: Time,
}

impl Clock {
    /// Starts at `time`: zero for a new object, the snapshot's for a restored one.
    pub(crate) fn starting_at(time: Time) -> Self {
        Self { origin: Instant::now(), origin_time: time }
    }

    /// The caller's time, else the clock's.
    pub(crate) fn read(&self, given_ns: Option<u64>) -> Time {
        given_ns
            .map_or_else(|| self.origin_time.after(self.origin.elapsed().as_nanos() as u64), Time::from_ns)
    }
}
