//! The bytes of a segment.

use rmp_serde::encode::write_named;
use serde::{Deserialize, Serialize};
use splitcore_core::error::{Applied, EventError};
use splitcore_core::time::Time;

use crate::What;

const MAGIC: [u8; 8] = *b"splitlog";
/// Of the frames and of what is in them, all but the snapshot and the messages, which are the core's.
pub(crate) const VERSION: u32 = 1;
/// Before the first frame.
pub(crate) const START_BYTES: usize = MAGIC.len() + 4;
/// Before a frame's payload.
pub(crate) const FRAME_BYTES: usize = 16;

/// How a file begins.
pub(crate) fn start() -> [u8; START_BYTES] {
    let mut start = [0; START_BYTES];
    start[..MAGIC.len()].copy_from_slice(&MAGIC);
    start[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    start
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A [`Head`].
    Head = 1,
    /// The state.
    Snapshot = 2,
    /// An event and what came of it.
    Record = 3,
    /// An [`End`].
    End = 4,
}

impl Kind {
    pub(crate) fn of(code: u8) -> Option<Self> {
        [Self::Head, Self::Snapshot, Self::Record, Self::End].into_iter().find(|&kind| kind as u8 == code)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Snapshot => "snapshot",
            Self::Record => "record",
            Self::End => "end",
        }
    }
}

/// Whose log it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) what: What,
    pub(crate) name: String,
    pub(crate) run: u32,
    /// Number of the segment's first event.
    pub(crate) first: u64,
    /// The version that wrote it.
    pub(crate) version: String,
    /// When it was begun by the clock on the wall, for people.
    pub(crate) unix_ms: u64,
}

/// Why nothing follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// `None`: its recorder was dropped, and all is there.
    pub(crate) early: Option<String>,
}

/// What an event answered. Errors are kept as their text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Applied,
    Late,
    Refused(String),
}

impl Answer {
    pub(crate) fn new(result: &Result<Applied, EventError>) -> Self {
        match result {
            Ok(Applied::Yes) => Self::Applied,
            Ok(Applied::Late) => Self::Late,
            Err(error) => Self::Refused(error.to_string()),
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Applied => "applied",
            Self::Late => "late",
            Self::Refused(why) => why,
        }
    }
}

/// A record, to be written.
#[derive(Serialize)]
pub(crate) struct Written<'a, E, A> {
    pub(crate) now: Time,
    pub(crate) event: &'a E,
    pub(crate) answer: Answer,
    pub(crate) actions: &'a [A],
}

/// A record, read.
#[derive(Deserialize)]
pub(crate) struct Read<E, A> {
    pub(crate) now: Time,
    pub(crate) event: E,
    pub(crate) answer: Answer,
    pub(crate) actions: Vec<A>,
}

/// The check sum of frames.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Appends a frame. On an error the buffer is as it was.
pub(crate) fn append(buffer: &mut Vec<u8>, kind: Kind, value: &impl Serialize) -> Result<(), String> {
    let at = buffer.len();
    buffer.extend_from_slice(&[0; FRAME_BYTES]);
    let encoded = write_named(buffer, value).map_err(|error| error.to_string());
    let length = buffer.len() - at - FRAME_BYTES;
    let length =
        encoded.and_then(|()| u32::try_from(length).map_err(|_| format!("{length} bytes in a frame")));
    match length {
        Ok(length) => {
            let payload = crc32c(&buffer[at + FRAME_BYTES..]);
            let head = &mut buffer[at..at + FRAME_BYTES];
            head[0] = kind as u8;
            head[4..8].copy_from_slice(&length.to_le_bytes());
            head[8..12].copy_from_slice(&payload.to_le_bytes());
            let check = crc32c(&head[..12]);
            head[12..].copy_from_slice(&check.to_le_bytes());
            Ok(())
        }
        Err(why) => {
            buffer.truncate(at);
            Err(why)
        }
    }
}
