//! The thread's half of a recorder: files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::disk::Disk;
use crate::error::{CreateError, Ended};
use crate::folder::{escape, runs, segment_name};
use crate::format::{End, Head, Kind, append, start};
use crate::{Recorded, ReplayError};

/// Bytes that an end may take, for which the last records go where there is no other room.
const END_ROOM: u64 = 1024;

/// One run of a log, at its last segment.
pub(crate) struct Writer<D> {
    disk: D,
    folder: PathBuf,
    name: String,
    run: u32,
    keep: Option<u32>,
    file: File,
    path: PathBuf,
    /// Bytes in the file.
    length: u64,
    /// Two ends of records, the earlier at least [`END_ROOM`] behind the later, unless the segment is shorter.
    marks: (u64, u64),
    /// Earlier segments that are still there, oldest first.
    older: VecDeque<PathBuf>,
}

impl<D: Disk> Writer<D> {
    /// Begins the next run under a name.
    pub(crate) fn create<M: Recorded>(
        mut disk: D,
        dir: &Path,
        name: &str,
        keep: Option<u32>,
        machine: &M,
    ) -> Result<Self, CreateError> {
        let folder = dir.join(escape(name));
        let failed = |path: &Path, source| CreateError { path: path.to_owned(), source };
        disk.create_folder(&folder).map_err(|source| failed(&folder, source))?;
        let known = runs(&folder).map_err(|error| match error {
            ReplayError::Read { path, source } => CreateError { path, source },
            other => failed(&folder, io::Error::new(io::ErrorKind::InvalidData, other.to_string())),
        })?;
        let mut run = known.last_key_value().map_or(0, |(&run, _)| run);
        loop {
            let last = || io::Error::other("the last possible run is there already");
            run = run.checked_add(1).ok_or_else(|| failed(&folder, last()))?;
            let path = folder.join(segment_name(run, 0));
            match begin(&mut disk, &path, name, run, 0, machine) {
                Ok((file, length)) => {
                    let (folder, older) = (folder.clone(), VecDeque::new());
                    let name = name.to_owned();
                    let marks = (length, length);
                    return Ok(Self { disk, folder, name, run, keep, file, path, length, marks, older });
                }
                // Another process has begun one at the same time.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
    }

    /// Appends records.
    pub(crate) fn write(&mut self, records: &[u8]) -> Result<(), Ended> {
        let written = self.disk.write(&self.file, records, self.length);
        written.map_err(|error| self.failed(&error))?;
        self.length += records.len() as u64;
        if self.length - self.marks.1 >= END_ROOM {
            self.marks = (self.marks.1, self.length);
        }
        Ok(())
    }

    /// Begins the next segment.
    pub(crate) fn turn<M: Recorded>(&mut self, first: u64, machine: &M) -> Result<(), Ended> {
        let path = self.folder.join(segment_name(self.run, first));
        let begun = begin(&mut self.disk, &path, &self.name, self.run, first, machine);
        let (file, length) =
            begun.map_err(|error| Ended::Disk { path: path.clone(), what: error.to_string() })?;
        self.older.push_back(std::mem::replace(&mut self.path, path));
        (self.file, self.length, self.marks) = (file, length, (length, length));
        while self.keep.is_some_and(|keep| self.older.len() >= keep.max(1) as usize) {
            // One that is gone already, or stays, hurts nobody.
            let _ = self.older.pop_front().map(|old| self.disk.remove(&old));
        }
        Ok(())
    }

    /// Says in the file that nothing follows, and why. Half of what could not be written goes, which makes room; where
    /// that is not enough, some of the last records go as well.
    pub(crate) fn end(&mut self, early: Option<&Ended>) -> Result<(), Ended> {
        let mut frame = Vec::new();
        let end = End { early: early.map(ToString::to_string) };
        append(&mut frame, Kind::End, &end)
            .map_err(|what| Ended::Encode { path: self.path.clone(), what })?;
        let lengths = [Some(self.length), early.map(|_| self.marks.0)];
        let mut failed = None;
        for length in lengths.into_iter().flatten() {
            let cut = self.disk.truncate(&self.file, length);
            let Err(error) = cut.and_then(|()| self.disk.write(&self.file, &frame, length)) else {
                return Ok(());
            };
            // A log that just stops can be read as well, one that stops within a frame, too.
            let _ = self.disk.truncate(&self.file, length);
            failed.get_or_insert(error);
        }
        failed.map_or(Ok(()), |error| Err(self.failed(&error)))
    }

    fn failed(&self, error: &io::Error) -> Ended {
        Ended::Disk { path: self.path.clone(), what: error.to_string() }
    }
}

/// Makes a segment's file, with its head and the state. One that cannot be written whole is not left behind.
fn begin<M: Recorded>(
    disk: &mut impl Disk,
    path: &Path,
    name: &str,
    run: u32,
    first: u64,
    machine: &M,
) -> io::Result<(File, u64)> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let head = Head {
        what: M::WHAT,
        name: name.to_owned(),
        run,
        first,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
    };
    let mut bytes = start().to_vec();
    append(&mut bytes, Kind::Head, &head)
        .and_then(|()| append(&mut bytes, Kind::Snapshot, machine))
        .map_err(io::Error::other)?;
    let file = disk.create(path)?;
    match disk.write(&file, &bytes, 0) {
        Ok(()) => Ok((file, bytes.len() as u64)),
        Err(error) => {
            let _ = disk.remove(path);
            Err(error)
        }
    }
}
