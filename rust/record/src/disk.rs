//! What a recorder asks of a file system: little enough to be played by a test that wants a full one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

/// Files that are made once and written at their end.
pub(crate) trait Disk: Send + 'static {
    /// Makes a folder, with those above it, unless it is there. What it makes is for its owner only: a log has names,
    /// counts and times of requests.
    fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    /// Makes a file that is not there, for its owner only.
    fn create(&mut self, path: &Path) -> io::Result<File>;

    /// Writes all of `bytes` at `offset`.
    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Drops what lies behind `length`.
    fn truncate(&mut self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }

    /// Deletes a file.
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// The system's.
pub(crate) struct System;

impl Disk for System {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    }

    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }
}
