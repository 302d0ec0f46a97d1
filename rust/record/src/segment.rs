//! One file of a log, read frame by frame.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::error::ReplayError;
use crate::format::{FRAME_BYTES, Kind, START_BYTES, VERSION, crc32c, start};

/// A file and how far it has been read.
pub(crate) struct Segment {
    path: PathBuf,
    bytes: Vec<u8>,
    at: usize,
}

/// A frame whose sums are right.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    /// Where it begins.
    pub(crate) offset: usize,
    payload: &'a [u8],
}

impl Segment {
    /// Reads a file, without looking into it. What is no file may have no end: a device, or a pipe.
    pub(crate) fn read(path: &Path) -> Result<Self, ReplayError> {
        let read = || {
            if !fs::metadata(path)?.is_file() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "expected a file, got something else",
                ));
            }
            fs::read(path)
        };
        let bytes = read().map_err(|source| ReplayError::Read { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), bytes, at: 0 })
    }

    /// The next frame; `None` where the file stops, be it within a frame.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, ReplayError> {
        if self.at == 0 && !self.begins()? {
            return Ok(None);
        }
        let offset = self.at;
        let Some(head) = self.bytes.get(offset..offset + FRAME_BYTES) else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (code, length, payload_sum, head_sum) = (head[0], word(4) as usize, word(8), word(12));
        let got = crc32c(&head[..12]);
        if got != head_sum {
            let expected = format!("a frame head with CRC32C {head_sum:08x}");
            return Err(self.damaged(offset, expected, format!("one with {got:08x}")));
        }
        let Some(kind) = Kind::of(code) else {
            return Err(self.damaged(offset, "a frame of kind 1 to 4".to_owned(), format!("kind {code}")));
        };
        let from = offset + FRAME_BYTES;
        let Some(payload) = self.bytes.get(from..from.saturating_add(length)) else { return Ok(None) };
        let got = crc32c(payload);
        if got != payload_sum {
            let expected = format!("{length} bytes of {} with CRC32C {payload_sum:08x}", kind.name());
            return Err(self.damaged(from, expected, format!("bytes with {got:08x}")));
        }
        self.at = from + length;
        Ok(Some(Frame { kind, offset, payload: &self.bytes[from..self.at] }))
    }

    /// Whether it begins as a segment does; false where it stops before.
    fn begins(&mut self) -> Result<bool, ReplayError> {
        let start = start();
        let here = &self.bytes[..self.bytes.len().min(START_BYTES)];
        if let Some(at) = here.iter().zip(start).position(|(&here, expected)| here != expected) {
            let expected = format!("the start of a log of version {VERSION}");
            return Err(self.damaged(at, expected, format!("byte {:02x}", here[at])));
        }
        self.at = START_BYTES;
        Ok(self.bytes.len() >= START_BYTES)
    }

    /// What a frame holds, which must be of this kind.
    pub(crate) fn decode<T: DeserializeOwned>(
        path: &Path,
        frame: Frame<'_>,
        kind: Kind,
    ) -> Result<T, ReplayError> {
        let damaged = |got| ReplayError::Damaged {
            path: path.to_owned(),
            offset: frame.offset as u64,
            expected: format!("a {} as this version writes it", kind.name()),
            got,
        };
        if frame.kind != kind {
            return Err(damaged(format!("a {}", frame.kind.name())));
        }
        let mut decoder = rmp_serde::Deserializer::from_read_ref(frame.payload);
        T::deserialize(&mut decoder).map_err(|error| damaged(error.to_string()))
    }

    pub(crate) fn damaged(&self, offset: usize, expected: String, got: String) -> ReplayError {
        ReplayError::Damaged { path: self.path.clone(), offset: offset as u64, expected, got }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes after the last frame read.
    pub(crate) fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }
}
