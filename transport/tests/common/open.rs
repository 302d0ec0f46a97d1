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
