//! What of the transport this process has open: threads, descriptors and mappings.

use std::fs;

/// Counts, to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) threads: usize,
    pub(crate) sockets: usize,
    pub(crate) memfds: usize,
    /// Flags and death watches.
    pub(crate) anonymous: usize,
    pub(crate) mappings: usize,
}

impl Open {
    /// Waits until what is open is what was open.
    #[track_caller]
    pub(crate) fn is_again(self, when: &str) {
        let end = std::time::Instant::now() + super::BOUND;
        while Self::now() != self {
            assert!(
                std::time::Instant::now() < end,
                "{when}: {:?} is open, expected {self:?}, waited {:?}",
                Self::now(),
                super::BOUND
            );
            std::thread::yield_now();
        }
    }

    /// As it is when so many threads of the transport have begun: a thread has its name a little after it was made.
    #[track_caller]
    pub(crate) fn once(threads: usize) -> Self {
        let end = std::time::Instant::now() + super::BOUND;
        loop {
            let now = Self::now();
            if now.threads == threads {
                return now;
            }
            assert!(std::time::Instant::now() < end, "{now:?} is open, expected {threads} threads");
            std::thread::yield_now();
        }
    }

    /// As it is now.
    pub(crate) fn now() -> Self {
        let links: Vec<String> = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .map(|target| target.display().to_string())
            .collect();
        let count =
            |marks: &[&str]| links.iter().filter(|link| marks.iter().any(|mark| link.contains(mark))).count();
        let threads = fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("comm")).ok())
            .filter(|name| name.starts_with("kv-"))
            .count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            threads,
            sockets: count(&["socket:"]),
            memfds: count(&["memfd:splitcore"]),
            anonymous: count(&["[eventfd", "[pidfd"]),
            mappings: maps.lines().filter(|line| line.contains("memfd:splitcore")).count(),
        }
    }
}
