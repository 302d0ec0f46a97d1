//! Frames in and out of one connection of a runtime, and how long each may take. What they say is the session's.

use std::io;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::Instant;

use crate::codec::{Decoder, FrameError, encode};
use crate::session::{CloseReason, Limits};

/// Bytes of one read.
pub(crate) const READ_BYTES: usize = 16 << 10;
/// Bytes that are taken from the queue before those before them are written.
const PENDING_BYTES: usize = 256 << 10;
/// How long a connection that has been closed may take to read why.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// What is on its way on one connection.
pub(crate) struct Pipe {
    decoder: Decoder,
    within_since: Option<Instant>,
    /// To be written, and how much of it has been.
    pending: Vec<u8>,
    written: usize,
    wrote_at: Instant,
    /// Whether the stream may keep what it has been given until it is flushed, and whether it does.
    keeps: bool,
    unflushed: bool,
    limits: Limits,
}

/// Writes some of these bytes; without any, flushes. Dropped, it has done neither.
pub(crate) async fn put<S: AsyncWrite>(writer: &mut WriteHalf<S>, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await }
}

impl Pipe {
    /// Nothing yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            decoder: Decoder::new(),
            within_since: None,
            pending: Vec::new(),
            written: 0,
            wrote_at: Instant::now(),
            keeps: false,
            unflushed: false,
            limits,
        }
    }

    /// The stream is one that must be flushed.
    pub(crate) fn keeps(&mut self) {
        self.keeps = true;
    }

    fn frame_limit(&self) -> Duration {
        Duration::from_nanos(self.limits.frame_limit_ns)
    }

    /// Takes a message to be written.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn push<M: Serialize>(&mut self, message: &M) -> Result<(), FrameError> {
        let frame = encode(message, self.limits.frame_bytes_max)?;
        if self.pending.is_empty() {
            self.wrote_at = Instant::now();
        }
        self.pending.extend_from_slice(&frame);
        Ok(())
    }

    /// What is to be written now.
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.pending[self.written..]
    }

    /// Whether anything is, or has yet to be flushed: then [`put`].
    pub(crate) fn writes(&self) -> bool {
        !self.pending.is_empty() || self.unflushed
    }

    /// Whether more may be taken to be written.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < PENDING_BYTES
    }

    /// So many bytes have been written; none: all has been flushed.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.unflushed = self.keeps && bytes > 0;
        self.written += bytes;
        if self.written == self.pending.len() {
            self.pending.clear();
            self.written = 0;
        }
        self.wrote_at = Instant::now();
    }

    /// Bytes have been read; `take` has the messages of them and says whether there were any.
    pub(crate) fn read(&mut self, bytes: &[u8], take: impl FnOnce(&mut Decoder) -> bool) {
        self.decoder.push(bytes);
        let since = if take(&mut self.decoder) { None } else { self.within_since };
        self.within_since = self.decoder.is_within_frame().then(|| since.unwrap_or_else(Instant::now));
    }

    /// Bytes that have been read and are part of no message yet, with what is set aside for them.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.decoder.held_bytes()
    }

    /// When a frame takes too long, if one is under way.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let writes = self.writes().then_some(self.wrote_at);
        [self.within_since, writes].into_iter().flatten().min().map(|since| since + self.frame_limit())
    }

    /// Why the connection is to end, if a frame has taken too long.
    pub(crate) fn stalled(&self) -> Option<CloseReason> {
        let late = self.deadline().is_some_and(|deadline| Instant::now() >= deadline);
        late.then_some(CloseReason::Stalled { limit_ns: self.limits.frame_limit_ns })
    }

    /// Gives the other side a moment to read why it is over. What it still sends is read, lest the system throw away
    /// what it has yet to read.
    pub(crate) async fn part<S: AsyncRead + AsyncWrite>(
        &mut self,
        reader: &mut ReadHalf<S>,
        writer: &mut WriteHalf<S>,
    ) {
        let pending = self.pending.split_off(self.written);
        let farewell = async {
            writer.write_all(&pending).await?;
            writer.shutdown().await?;
            let mut bytes = [0; 1024];
            while reader.read(&mut bytes).await? > 0 {}
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(LINGER, farewell).await;
    }
}
