//! One connection of a sender: its queue, and the thread that empties it.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::frame::{Crc, DESCRIPTOR, DESCRIPTORS_MAX, Descriptor, HEAD, Head, Kind, Refusal, TOKEN};
use super::send::{QUEUE_MAX, Route, Shared, lock};
use crate::error::TransferError;
use crate::ledger::Sealed;
use crate::sockets::{Flag, ready};
use crate::transfer::{Completion, TransferKey};

/// Bytes that are made ready ahead of the socket: their checksum is made while they are near.
const CHUNK: usize = 512 << 10;

/// Bytes of one frame's payload, at most: a stop waits for the rest of a frame.
pub(super) const FRAME: u32 = 4 << 20;

/// Slices of one call.
const SLICES: usize = 256;

/// Calls between two looks at what the receiver says, while the socket takes everything.
const LOOK_EVERY: u32 = 8;

/// A range of the source pool, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) from: u64,
    pub(super) to: Descriptor,
}

/// What is queued.
pub(super) enum Job {
    Put { route: Arc<Route>, layer: u16, pieces: Vec<Piece> },
    Publish { route: Arc<Route>, layer: u16, tokens: u32, sealed: Sealed },
}

/// A transfer that is to end once what was begun of it is out.
pub(super) struct Ending {
    pub(super) completion: Completion,
    /// The transfer, where the receiver is to know.
    pub(super) tell: Option<Arc<Route>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    endings: VecDeque<Ending>,
    closing: bool,
    /// The thread sleeps, and is to be woken.
    asleep: bool,
}

/// A connection, as callers see it.
pub(super) struct Lane {
    pub(super) stream: TcpStream,
    queue: Mutex<Queue>,
    wake: Flag,
}

impl Lane {
    pub(super) fn new(stream: TcpStream) -> std::io::Result<Self> {
        Ok(Self { stream, queue: Mutex::default(), wake: Flag::new()? })
    }

    /// Queues what `job` makes, in the order in which it makes it.
    pub(super) fn push(
        &self,
        job: impl FnOnce() -> Result<Option<Job>, TransferError>,
    ) -> Result<(), TransferError> {
        let mut queue = lock(&self.queue);
        let queued = queue.jobs.len();
        if queued >= QUEUE_MAX {
            return Err(TransferError::Busy { queued, limit: QUEUE_MAX });
        }
        let Some(job) = job()? else { return Ok(()) };
        queue.jobs.push_back(job);
        if std::mem::take(&mut queue.asleep) {
            drop(queue);
            self.wake.raise();
        }
        Ok(())
    }

    pub(super) fn push_ending(&self, ending: Ending) {
        lock(&self.queue).endings.push_back(ending);
        self.wake.raise();
    }

    pub(super) fn close(&self) {
        lock(&self.queue).closing = true;
        self.wake.raise();
    }
}

/// Bytes to send, in order; what follows from it once they are out.
struct Segment {
    bytes: Bytes,
    then: Option<Completion>,
}

enum Bytes {
    Own(Vec<u8>),
    Pool { from: u64, len: usize },
}

impl Bytes {
    fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Pool { len, .. } => *len,
        }
    }
}

/// A put that is being sent, frame by frame.
struct Putting {
    route: Arc<Route>,
    layer: u16,
    pieces: Vec<Piece>,
    /// The piece that comes next, and how much of it is made ready.
    at: usize,
    done: u32,
    /// The first piece that is not in the frame that was begun.
    frame_end: usize,
    crc: Crc,
}

/// Why a connection ends.
enum Over {
    Closing,
    Lost,
    Stalled(Duration),
    Protocol(String),
}

/// The thread of a connection.
pub(super) struct Driver {
    shared: Arc<Shared>,
    lane: usize,
    base: *const u8,
    outbox: VecDeque<Segment>,
    /// Bytes in the outbox that are not out.
    ready: usize,
    /// Bytes of its first segment that are.
    sent: usize,
    putting: Option<Putting>,
    inbox: Vec<u8>,
    moved: Instant,
}

// SAFETY: the pointer is to the source pool, which the ledger keeps and any thread may read.
unsafe impl Send for Driver {}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, lane: usize) -> Self {
        let base =
            shared.ledger.pool().host_base().map_or(std::ptr::null(), |base| base.as_ptr().cast_const());
        Self {
            shared,
            lane,
            base,
            outbox: VecDeque::new(),
            ready: 0,
            sent: 0,
            putting: None,
            inbox: Vec::new(),
            moved: Instant::now(),
        }
    }

    fn lane(&self) -> &Lane {
        &self.shared.lanes[self.lane]
    }

    pub(super) fn run(&mut self) {
        let over = loop {
            match self.turn() {
                Ok(()) => {}
                Err(over) => break over,
            }
        };
        let shared = self.shared.clone();
        let peer = shared.ledger.receiver();
        match over {
            Over::Closing => self.part(),
            Over::Lost => shared.lose(|key| TransferError::PeerLost { key, peer }),
            Over::Stalled(waited) => shared.lose(|key| TransferError::Stalled { key, peer, waited }),
            Over::Protocol(reason) => shared.lose(|_| TransferError::Protocol(reason.clone())),
        }
    }

    fn turn(&mut self) -> Result<(), Over> {
        for _ in 0..LOOK_EVERY {
            let idle = self.fill()?;
            if idle {
                self.listen()?;
                return self.sleep(None);
            }
            if !self.send()? {
                self.listen()?;
                let limit = self.shared.stall_limit;
                let left = limit.saturating_sub(self.moved.elapsed());
                if left.is_zero() {
                    return Err(Over::Stalled(limit));
                }
                return self.sleep(Some(left));
            }
        }
        self.listen()
    }

    /// Makes bytes ready, as many as are sent at once; true if there are none and nothing to do.
    fn fill(&mut self) -> Result<bool, Over> {
        loop {
            while self.outbox.front().is_some_and(|segment| segment.bytes.len() == 0) {
                self.settle();
            }
            if self.ready >= CHUNK || self.outbox.len() >= SLICES {
                return Ok(false);
            }
            let amid = self.putting.take_if(|putting| putting.at != putting.frame_end);
            if let Some(putting) = amid {
                self.payload(putting);
            } else if !self.next()? {
                return Ok(self.outbox.is_empty());
            }
        }
    }

    /// Between frames: begins the next one; false if there is none.
    fn next(&mut self) -> Result<bool, Over> {
        let shared = self.shared.clone();
        let mut queue = lock(&shared.lanes[self.lane].queue);
        if queue.closing {
            return if self.outbox.is_empty() { Err(Over::Closing) } else { Ok(false) };
        }
        if let Some(ending) = queue.endings.pop_front() {
            drop(queue);
            self.ending(ending);
            return Ok(true);
        }
        if let Some(putting) = self.putting.take() {
            drop(queue);
            self.frame(putting);
            return Ok(true);
        }
        let Some(job) = queue.jobs.pop_front() else {
            queue.asleep = self.outbox.is_empty();
            return Ok(false);
        };
        drop(queue);
        match job {
            Job::Put { route, layer, pieces } => {
                let crc = lock(&route.crcs).get(&layer).copied().unwrap_or(Crc::NEW);
                self.frame(Putting { route, layer, pieces, at: 0, done: 0, frame_end: 0, crc });
            }
            Job::Publish { route, layer, tokens, sealed } => {
                if !route.stopped.load(Ordering::Acquire) {
                    self.publish(&route, layer, tokens, sealed);
                }
            }
        }
        Ok(true)
    }

    fn push(&mut self, bytes: Bytes, then: Option<Completion>) {
        self.ready += bytes.len();
        self.outbox.push_back(Segment { bytes, then });
    }

    fn ending(&mut self, ending: Ending) {
        let mut frame = Vec::new();
        if let Some(route) = &ending.tell {
            route.show(&mut frame);
            Head::new(Kind::Drop, Some(ending.completion.key())).encode(&[], &mut frame);
        }
        self.push(Bytes::Own(frame), Some(ending.completion));
    }

    fn publish(&mut self, route: &Route, layer: u16, tokens: u32, sealed: Sealed) {
        let crc = lock(&route.crcs).remove(&layer).unwrap_or(Crc::NEW);
        let crc32c = self.shared.checksums.then(|| crc.value());
        let head =
            Head { layer, tokens, bytes: sealed.bytes, crc32c, ..Head::new(Kind::Publish, Some(route.key)) };
        let mut frame = Vec::with_capacity(2 * HEAD + TOKEN);
        route.show(&mut frame);
        head.encode(&[], &mut frame);
        self.push(Bytes::Own(frame), sealed.last.then_some(Completion::LocalDone(route.key)));
    }

    /// Begins the next frame of a put, unless it is over or its transfer stopped.
    fn frame(&mut self, mut putting: Putting) {
        let at = putting.at;
        if at == putting.pieces.len() || putting.route.stopped.load(Ordering::Acquire) {
            lock(&putting.route.crcs).insert(putting.layer, putting.crc);
            return;
        }
        putting.frame_end = frame_end(&putting.pieces, at);
        let descriptors: Vec<Descriptor> =
            putting.pieces[at..putting.frame_end].iter().map(|piece| piece.to).collect();
        let mut frame = Vec::with_capacity(2 * HEAD + TOKEN + descriptors.len() * DESCRIPTOR);
        putting.route.show(&mut frame);
        Head::encode_put(putting.route.key, putting.layer, &descriptors, &mut frame);
        self.push(Bytes::Own(frame), None);
        self.putting = Some(putting);
    }

    /// Makes the next bytes of a frame's payload ready. A frame that was begun is finished, though its transfer be
    /// stopped.
    fn payload(&mut self, mut putting: Putting) {
        let piece = putting.pieces[putting.at];
        let from = piece.from + u64::from(putting.done);
        let len = (piece.to.bytes - putting.done).min((CHUNK - self.ready) as u32);
        if self.shared.checksums {
            // SAFETY: the ledger found the piece inside the pool, whose owner leaves it as it is until the transfer
            // has ended.
            putting.crc.update(unsafe { slice(self.base, from, len as usize) });
        }
        self.push(Bytes::Pool { from, len: len as usize }, None);
        putting.done += len;
        if putting.done == piece.to.bytes {
            putting.at += 1;
            putting.done = 0;
        }
        self.putting = Some(putting);
    }

    /// Sends what is ready; false if the socket takes no more.
    fn send(&mut self) -> Result<bool, Over> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut skip = self.sent;
        let mut count = 0;
        for (slot, segment) in slices.iter_mut().zip(&self.outbox) {
            *slot = IoSlice::new(match &segment.bytes {
                Bytes::Own(bytes) => &bytes[skip..],
                // SAFETY: as in `proceed`.
                Bytes::Pool { from, len } => unsafe { slice(self.base, from + skip as u64, len - skip) },
            });
            skip = 0;
            count += 1;
        }
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let out = match sendmsg(&self.lane().stream, &slices[..count], &mut control, flags) {
            Ok(out) => out,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => 0,
            Err(_) => {
                // It may have said why before it closed.
                self.listen()?;
                return Err(Over::Lost);
            }
        };
        if out > 0 {
            self.moved = Instant::now();
        }
        self.ready -= out;
        self.sent += out;
        while self.outbox.front().is_some_and(|segment| segment.bytes.len() <= self.sent) {
            self.settle();
        }
        Ok(true)
    }

    /// The first segment is out.
    fn settle(&mut self) {
        let Some(segment) = self.outbox.pop_front() else { return };
        self.sent -= segment.bytes.len();
        if let Some(completion) = segment.then {
            self.shared.end(completion);
        }
    }

    /// Hears what the receiver says, as far as it is there.
    fn listen(&mut self) -> Result<(), Over> {
        let mut buffer = [0; 4096];
        loop {
            match (&self.lane().stream).read(&mut buffer) {
                Ok(0) => return Err(Over::Lost),
                Ok(count) => self.inbox.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Over::Lost),
            }
            let mut at = 0;
            while let Some(length) = self.hear(at)? {
                at += length;
            }
            self.inbox.drain(..at);
        }
    }

    /// Obeys one answer; its length, or `None` where it is not whole.
    fn hear(&self, at: usize) -> Result<Option<usize>, Over> {
        let broken = |malformed: super::frame::Malformed| Over::Protocol(malformed.to_string());
        let Some((bytes, rest)) = self.inbox[at..].split_first_chunk::<HEAD>() else { return Ok(None) };
        let head = Head::decode(bytes).map_err(broken)?;
        let Some(tail) = rest.get(..head.tail_len()) else { return Ok(None) };
        Head::check(bytes, tail).map_err(broken)?;
        let text = || String::from_utf8_lossy(tail).into_owned();
        let completion = match (head.kind, head.key) {
            (Kind::Nack(Refusal::Protocol), _) => return Err(Over::Protocol(text())),
            (Kind::Nack(refusal), Some(key)) => refused(key, refusal, &head, text),
            _ => return Err(Over::Protocol("a frame that only a sender sends".to_owned())),
        };
        self.shared.wind_up(completion, false);
        Ok(Some(HEAD + tail.len()))
    }

    fn sleep(&mut self, within: Option<Duration>) -> Result<(), Over> {
        let lane = self.lane();
        let watched = [(lane.stream.as_fd(), within.is_some()), (lane.wake.as_fd(), false)];
        let [_, woken] = ready(watched, within).map_err(|_| Over::Lost)?;
        if woken {
            lane.wake.lower();
        }
        lock(&lane.queue).asleep = false;
        if within.is_none() {
            self.moved = Instant::now();
        }
        Ok(())
    }

    /// Says goodbye, and waits until the receiver has read everything and closes.
    fn part(&mut self) {
        let mut bye = Vec::new();
        Head::new(Kind::Bye, None).encode(&[], &mut bye);
        self.push(Bytes::Own(bye), None);
        let until = Instant::now() + self.shared.stall_limit;
        let shared = self.shared.clone();
        let stream = &shared.lanes[self.lane].stream;
        let mut scratch = [0; 4096];
        let mut said = false;
        loop {
            if !said && matches!(self.send(), Ok(true)) && self.outbox.is_empty() {
                said = true;
                let _ = stream.shutdown(Shutdown::Write);
            }
            let left = until.saturating_duration_since(Instant::now());
            let waits = match (&mut &*stream).read(&mut scratch) {
                Ok(count) => count > 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready([(stream.as_fd(), !said)], Some(left)).is_ok()
                }
                Err(_) => false,
            };
            if !waits || left.is_zero() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// The piece after the last of a frame that begins at `at`.
fn frame_end(pieces: &[Piece], at: usize) -> usize {
    let mut bytes = 0;
    let fits = |piece: &&Piece| {
        bytes += piece.to.bytes;
        bytes <= FRAME
    };
    at + pieces[at..].iter().take(DESCRIPTORS_MAX).take_while(fits).count()
}

/// What a refusal comes to.
fn refused(key: TransferKey, refusal: Refusal, head: &Head, text: impl FnOnce() -> String) -> Completion {
    let error = match refusal {
        Refusal::Stopped => return Completion::Fenced(key),
        Refusal::Unknown => TransferError::Unknown { key },
        Refusal::Corrupt => TransferError::Corrupt {
            key,
            layer: head.layer,
            found: head.tokens,
            expected: head.crc32c.unwrap_or(0),
        },
        Refusal::Denied | Refusal::Protocol => TransferError::Denied { key, reason: text() },
    };
    Completion::Failed(key, error)
}

/// Bytes of the source pool.
///
/// # Safety
/// They are inside the pool that begins at `base`, and nobody writes them meanwhile.
unsafe fn slice<'a>(base: *const u8, from: u64, len: usize) -> &'a [u8] {
    // SAFETY: by the contract above.
    unsafe { std::slice::from_raw_parts(base.add(from as usize), len) }
}
