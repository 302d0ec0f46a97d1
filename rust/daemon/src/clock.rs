//! The clock of the service.

use std::time::{Duration, Instant};

use splitcore_core::time::Time;

/// Monotonic time since the service was made. Read inside the lock, so that events see it in their own order.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Now.
    pub fn now(&self) -> Time {
        Time::from_ns(self.0.elapsed().as_nanos() as u64)
    }

    /// The instant of a time; far ahead where it cannot be told.
    pub fn instant(&self, time: Time) -> Instant {
        let since = Duration::from_nanos(time.as_ns());
        self.0.checked_add(since).unwrap_or_else(|| self.0 + Duration::from_secs(1 << 31))
    }
}
