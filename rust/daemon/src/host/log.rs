//! What happened without a call of its own, numbered and kept for those who ask.

use std::collections::VecDeque;

use super::{Failure, Placed};

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A parked request, or one of a lost machine, has machines.
    Placed(Box<Placed>),
    /// An accepted request waits for room.
    Parked {
        /// Which.
        request: u64,
    },
    /// Its lease ran out.
    Expired {
        /// Which.
        request: u64,
    },
    /// It will not run.
    Failed {
        /// Which.
        request: u64,
        /// Why.
        failure: Failure,
    },
    /// A draining machine holds nothing any more.
    Drained {
        /// Its name.
        machine: String,
    },
}

/// Kept events from a number on.
#[derive(Debug, Clone)]
pub struct Since {
    /// Each with its number.
    pub events: Vec<(u64, Kind)>,
    /// Where to go on.
    pub next: u64,
    /// How many of those asked for are no longer kept.
    pub missed: u64,
}

/// The last events.
#[derive(Debug)]
pub(crate) struct Log {
    kept: VecDeque<Kind>,
    /// Number of the next event.
    next: u64,
    most: usize,
}

impl Log {
    pub(crate) fn new(most: usize) -> Self {
        Self { kept: VecDeque::new(), next: 0, most }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn push(&mut self, kind: Kind) {
        if self.kept.len() == self.most {
            self.kept.pop_front();
        }
        self.kept.push_back(kind);
        self.next += 1;
    }

    /// At most `most` events from number `since` on.
    pub(crate) fn since(&self, since: u64, most: usize) -> Since {
        let oldest = self.next - self.kept.len() as u64;
        // A number of an earlier run of the service is beyond ours: all that we have is new to the caller.
        let (from, missed) = if since > self.next { (oldest, oldest) } else { (since.max(oldest), 0) };
        let missed = missed.max(oldest.saturating_sub(since));
        let skip = (from - oldest) as usize;
        let found = self.kept.iter().skip(skip).take(most).cloned();
        let events: Vec<_> = (from..).zip(found).collect();
        let next = from + events.len() as u64;
        Since { events, next, missed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_late_is_told_how_much_is_gone() {
        let mut log = Log::new(3);
        for request in 0..5 {
            log.push(Kind::Parked { request });
        }
        let Since { events, next, missed } = log.since(1, 10);
        assert_eq!((events.len(), events[0].0, next, missed), (3, 2, 5, 1));
        let Since { events, next, missed } = log.since(4, 10);
        assert_eq!((events.len(), events[0].0, next, missed), (1, 4, 5, 0));
        let Since { events, next, missed } = log.since(2, 1);
        assert_eq!((events.len(), next, missed), (1, 3, 0));
    }

    #[test]
    fn a_number_of_another_run_starts_over() {
        let mut log = Log::new(3);
        log.push(Kind::Parked { request: 1 });
        let Since { events, next, missed } = log.since(900, 10);
        assert_eq!((events.len(), next, missed), (1, 1, 0));
    }
}
