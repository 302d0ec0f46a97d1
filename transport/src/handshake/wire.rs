//! Handshake messages on a socket: eight bytes of mark, four of length, JSON.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Hello, Welcome};
use crate::error::HandshakeError;
use crate::sync::Deadline;

const MARK: [u8; 8] = *b"splitkv\n";

/// What goes over a socket before the transfers do.
pub(crate) trait Message {
    /// Bytes of its JSON, at most: so many are set aside for whoever says it.
    const BYTES_MAX: u32;
}

impl Message for Hello {
    /// A model's name may be long.
    const BYTES_MAX: u32 = 64 << 10;
}

impl Message for Answer {
    /// Event handles of a device are the most that goes in one.
    const BYTES_MAX: u32 = 4 << 20;
}

/// What a receiver says to a hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Come in.
    Welcome(Box<Welcome>),
    /// What does not fit.
    Refused(String),
}

/// A stream whose reads and writes can be bounded.
pub(crate) trait Bounded: Read + Write {
    /// Bounds the next reads and writes.
    ///
    /// # Errors
    /// The socket's.
    fn bound(&self, within: Option<Duration>) -> std::io::Result<()>;
}

impl Bounded for TcpStream {
    fn bound(&self, within: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(within)?;
        self.set_write_timeout(within)
    }
}

impl Bounded for UnixStream {
    fn bound(&self, within: Option<Duration>) -> std::io::Result<()> {
        self.set_read_timeout(within)?;
        self.set_write_timeout(within)
    }
}

/// Sends a message. A peer that takes it byte by byte has no more time than one that takes nothing.
///
/// # Errors
/// The socket's, the time is up, or it is longer than the peer would take.
pub(crate) fn send<M: Message + Serialize>(
    stream: &mut impl Bounded,
    message: &M,
    within: Duration,
) -> Result<(), HandshakeError> {
    let body = serde_json::to_vec(message).map_err(|error| HandshakeError::Malformed(error.to_string()))?;
    let length = body.len() as u64;
    if length > u64::from(M::BYTES_MAX) {
        return Err(too_long(length, M::BYTES_MAX));
    }
    let mut frame = Vec::with_capacity(MARK.len() + 4 + body.len());
    frame.extend_from_slice(&MARK);
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&body);
    let until = Deadline::after(within);
    let mut rest = frame.as_slice();
    while !rest.is_empty() {
        rest = &rest[step(stream, &until, within, |stream| stream.write(rest))?..];
    }
    Ok(())
}

/// Receives a message. A peer that sends byte by byte has no more time than one that sends nothing.
///
/// # Errors
/// The socket's, the time is up, or it is no message.
pub(crate) fn receive<M: Message + DeserializeOwned>(
    stream: &mut impl Bounded,
    within: Duration,
) -> Result<M, HandshakeError> {
    let until = Deadline::after(within);
    let mut head = [0_u8; MARK.len() + 4];
    fill(stream, &mut head, &until, within)?;
    if head[..MARK.len()] != MARK {
        return Err(HandshakeError::Malformed("the first bytes are another protocol's".to_owned()));
    }
    let mut length = [0_u8; 4];
    length.copy_from_slice(&head[MARK.len()..]);
    let length = u32::from_le_bytes(length);
    if length > M::BYTES_MAX {
        return Err(too_long(length.into(), M::BYTES_MAX));
    }
    let mut body = Vec::new();
    // Grown as it comes, so that a length is no reason to allocate.
    while body.len() < length as usize {
        let from = body.len();
        body.resize(length.min(from as u32 + (64 << 10)) as usize, 0);
        fill(stream, &mut body[from..], &until, within)?;
    }
    serde_json::from_slice(&body).map_err(|error| HandshakeError::Malformed(error.to_string()))
}

fn too_long(length: u64, limit: u32) -> HandshakeError {
    HandshakeError::Malformed(format!("a message of {length} bytes, at most {limit} are taken"))
}

fn fill<S: Bounded>(
    stream: &mut S,
    mut rest: &mut [u8],
    until: &Deadline,
    within: Duration,
) -> Result<(), HandshakeError> {
    while !rest.is_empty() {
        let count = step(stream, until, within, |stream| stream.read(rest))?;
        rest = &mut rest[count..];
    }
    Ok(())
}

/// Reads or writes some bytes in the time that is left; at least one.
fn step<S: Bounded>(
    stream: &mut S,
    until: &Deadline,
    within: Duration,
    mut some: impl FnMut(&mut S) -> std::io::Result<usize>,
) -> Result<usize, HandshakeError> {
    loop {
        let left = until.left().ok_or(HandshakeError::Timeout(within))?;
        match stream.bound(left).and_then(|()| some(stream)) {
            Ok(0) => {
                return Err(HandshakeError::Io {
                    what: "handshake".to_owned(),
                    reason: "the peer closed the connection".to_owned(),
                });
            }
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(fault(&error, within)),
        }
    }
}

fn fault(error: &std::io::Error, within: Duration) -> HandshakeError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => HandshakeError::Timeout(within),
        _ => HandshakeError::Io { what: "handshake".to_owned(), reason: error.to_string() },
    }
}
