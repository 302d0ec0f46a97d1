//! Frames: a length of four bytes, least significant first, and as many bytes of `MessagePack`.
//!
//! Nothing is set aside for a length that has not come true: the buffer grows with the bytes that are there.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::text::plain;

/// Bytes before the message.
pub const HEADER_BYTES: usize = 4;

/// Maps and arrays within one another, at most. The deepest message has 7.
const DEPTH_MAX: usize = 24;

/// Memory that is kept for the next frame: that of a long one is given back.
const KEPT_BYTES: usize = 64 << 10;

/// Bytes that are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than allowed, now.
    #[error("a frame of {bytes} bytes; frame_bytes_max is {limit}")]
    TooLong {
        /// Bytes it has or claims.
        bytes: u64,
        /// Bytes allowed.
        limit: u32,
    },
    /// No message in it.
    #[error("a frame of 0 bytes")]
    Empty,
    /// Not `MessagePack`, or not a message that this side takes.
    #[error("a frame that cannot be read: {0}")]
    Malformed(String),
    /// More than the message.
    #[error("a frame with {bytes} bytes after its message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

/// The frame of a message.
///
/// # Errors
/// [`FrameError::TooLong`]; nothing else can go wrong with messages of this crate.
pub fn encode<M: Serialize>(message: &M, limit: u32) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER_BYTES];
    let mut serializer = rmp_serde::Serializer::new(&mut frame).with_struct_map();
    message.serialize(&mut serializer).map_err(|error| FrameError::Malformed(error.to_string()))?;
    let bytes = frame.len() - HEADER_BYTES;
    match u32::try_from(bytes) {
        Ok(length) if length <= limit => {
            frame[..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
            Ok(frame)
        }
        _ => Err(FrameError::TooLong { bytes: bytes as u64, limit }),
    }
}

/// The message in the body of a frame.
///
/// # Errors
/// It is not one, or not alone.
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    if body.is_empty() {
        return Err(FrameError::Empty);
    }
    let mut rest = body;
    let mut deserializer = rmp_serde::Deserializer::new(&mut rest);
    deserializer.set_max_depth(DEPTH_MAX);
    let message = M::deserialize(&mut deserializer);
    // It may quote what a stranger wrote.
    let message = message.map_err(|error| FrameError::Malformed(plain(&error.to_string())))?;
    if rest.is_empty() { Ok(message) } else { Err(FrameError::Trailing { bytes: rest.len() }) }
}

/// Takes bytes as they come and gives messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    read: usize,
}

impl Decoder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// More bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.read > 0 && self.read >= self.buffer.len() / 2 {
            self.buffer.drain(..self.read);
            self.read = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that it has memory for.
    pub fn held_bytes(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    /// Whether part of a frame is here.
    pub fn is_within_frame(&self) -> bool {
        self.buffer.len() > self.read
    }

    /// The next message, if all of it is here. After an error there is no next: nobody knows where it would begin.
    ///
    /// # Errors
    /// The bytes are no frame.
    pub fn next<M: DeserializeOwned>(&mut self, limit: u32) -> Result<Option<M>, FrameError> {
        let here = &self.buffer[self.read..];
        let Some((header, rest)) = here.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*header);
        if length > limit {
            return Err(FrameError::TooLong { bytes: u64::from(length), limit });
        }
        let Some(body) = rest.get(..length as usize) else { return Ok(None) };
        let message = decode(body)?;
        self.read += HEADER_BYTES + length as usize;
        if self.read == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            self.read = 0;
        }
        Ok(Some(message))
    }
}
