//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// A log could not be begun.
#[derive(Debug, thiserror::Error)]
#[error("{}: the log cannot be begun: {source}", .path.display())]
pub struct CreateError {
    /// The folder or file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl CreateError {
    /// Whether there is no room for it; whoever is recorded can well do without.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// Why a log ended before its recorder did. What it was about goes on without.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The disk took nothing more.
    #[error("{}: cannot be written: {what}", .path.display())]
    Disk {
        /// The segment.
        path: PathBuf,
        /// What the system said.
        what: String,
    },
    /// The disk was too slow.
    #[error("{}: {queued} bytes wait for the disk, and none was written in {waited_ms} ms", .path.display())]
    Slow {
        /// The log's folder.
        path: PathBuf,
        /// Bytes that wait.
        queued: usize,
        /// How long the driver has waited for it.
        waited_ms: u64,
    },
    /// What was to be written has no form.
    #[error("{}: cannot be encoded: {what}", .path.display())]
    Encode {
        /// The log's folder.
        path: PathBuf,
        /// What the encoder said.
        what: String,
    },
}

/// A log that cannot be read, or is not what was written.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file or folder could not be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is nothing to replay.
    #[error("{}: expected folders with logs in them (<run>-<event>.log), found none", .path.display())]
    NoLogs {
        /// The folder.
        path: PathBuf,
    },
    /// The name of a file is not one that a recorder gives.
    #[error("{}: expected a name like 0001-00000000000000000000.log", .path.display())]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// Bytes are not those that were written.
    #[error("{} at byte {offset}: expected {expected}, got {got}", .path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What was to be there.
        expected: String,
        /// What is there.
        got: String,
    },
    /// Events are missing between two segments.
    #[error("{}: expected the segment of event {expected}, got that of event {got}", .path.display())]
    Gap {
        /// The later segment.
        path: PathBuf,
        /// The event after the last one before it.
        expected: u64,
        /// Its first.
        got: u64,
    },
}
