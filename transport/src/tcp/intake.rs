//! The receiver's end of a stream, whatever the bytes come from: it reads frames, and writes the pool where they may.
//!
//! Nothing here trusts the sender. Of a transfer nothing is taken before its token was shown on the same stream. A head is sound before its payload is read; every descriptor is admitted before
//! the first byte goes to the pool; and each read into the pool is made under the transfer's hold, with its layer
//! still unpublished. That no byte of a layer is left out follows from the count of its bytes, since a sender's books
//! refuse ranges that overlap, and the CRC is over the bytes in the order in which they were sent.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, IoSliceMut};
use std::ops::Range;
use std::ptr::NonNull;

use splitcore_core::kv::BlockId;
use splitcore_secret::Token;

use super::frame::{Crc, Descriptor, HEAD, Head, Kind, Malformed, Refusal, TAIL_MAX};
use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::landing::{Landing, Writing};
use crate::transfer::TransferKey;
use crate::word::LayerSeal;

/// Bytes that are read on the way to a head; those of a payload among them are copied, so they are few.
const STAGE: usize = 8 << 10;
const _: () = assert!(STAGE >= HEAD + TAIL_MAX, "a frame's head and tail fit in the stage");

/// Bytes read into the pool at once: they are still near when their checksum is made, and a stop waits no longer.
pub(super) const CHUNK: usize = 512 << 10;

/// Ranges read into at once.
const RANGES: usize = 256;

/// Bytes of a payload that nobody wants, read at once.
const SCRATCH: usize = 64 << 10;

/// Where bytes come from: fills slices in order, says how many bytes there were; 0 is the end.
pub(super) type Recv<'a> = &'a mut dyn FnMut(&mut [IoSliceMut<'_>]) -> std::io::Result<usize>;

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// There may be more to do.
    Goes,
    /// No byte is there now.
    Waits,
}

/// Why a stream is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Over {
    /// The sender closed it, between frames, after its bye.
    Bye,
    /// It broke, or the sender closed it without a word.
    Broke,
    /// The sender broke a rule.
    Protocol(String),
}

impl From<Malformed> for Over {
    fn from(malformed: Malformed) -> Self {
        Self::Protocol(malformed.to_string())
    }
}

/// What has come of a layer that is not published.
#[derive(Debug, Clone, Copy)]
struct Partial {
    bytes: u64,
    crc: Crc,
}

/// A put's payload on its way in.
#[derive(Debug, Clone, Copy)]
struct Payload {
    key: TransferKey,
    layer: u16,
    /// The range that is being filled.
    at: usize,
    /// Bytes of it that are.
    filled: u64,
    /// Bytes of the payload that are still to come.
    left: u64,
    partial: Partial,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Head,
    Payload(Payload),
    /// Bytes of a payload that nobody wants.
    Drain(u64),
}

/// See the [module](self).
pub(super) struct Intake<'a> {
    landing: &'a Landing,
    base: NonNull<u8>,
    writer: Incarnation,
    checksums: bool,
    stage: Vec<u8>,
    /// What of the stage has not been looked at.
    staged: Range<usize>,
    state: State,
    descriptors: Vec<Descriptor>,
    /// Where they lie in the pool.
    ranges: Vec<Range<u64>>,
    /// By slot: layers of the transfer that was there last.
    layers: HashMap<u32, (TransferKey, BTreeMap<u16, Partial>)>,
    /// By slot: the transfer whose token was shown on this stream last.
    shown: HashMap<u32, TransferKey>,
    scratch: Vec<u8>,
    bye: bool,
    /// Frames for the sender.
    pub(super) answers: Vec<u8>,
}

impl<'a> Intake<'a> {
    /// A stream of `writer` into the pool of `landing`, which is not a device's.
    pub(super) fn new(landing: &'a Landing, writer: Incarnation, checksums: bool) -> Option<Self> {
        Some(Self {
            landing,
            base: landing.pool().host_base()?,
            writer,
            checksums,
            stage: vec![0; STAGE],
            staged: 0..0,
            state: State::Head,
            descriptors: Vec::new(),
            ranges: Vec::new(),
            layers: HashMap::new(),
            shown: HashMap::new(),
            scratch: vec![0; SCRATCH],
            bye: false,
            answers: Vec::new(),
        })
    }

    /// Whether the sender owes the rest of a frame.
    pub(super) fn is_amid(&self) -> bool {
        !matches!(self.state, State::Head) || !self.staged.is_empty()
    }

    /// Bytes of a payload that are sure to come, if anything does.
    pub(super) fn due(&self) -> u64 {
        match self.state {
            State::Head => 0,
            State::Payload(Payload { left, .. }) | State::Drain(left) => left,
        }
    }

    /// A transfer was stopped here.
    pub(super) fn stopped(&mut self, key: TransferKey) {
        self.forget(key);
        Head::new(Kind::Nack(Refusal::Stopped), Some(key)).encode(&[], &mut self.answers);
    }

    /// Reads at most once.
    ///
    /// # Errors
    /// The stream is over.
    pub(super) fn step(&mut self, recv: Recv<'_>) -> Result<Step, Over> {
        match self.state {
            State::Head => self.head(recv),
            State::Payload(payload) => self.payload(payload, recv),
            State::Drain(left) => self.drain(left, recv),
        }
    }

    fn read(&self, recv: Recv<'_>, into: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Over> {
        match recv(into) {
            Ok(0) if self.bye && !self.is_amid() => Err(Over::Bye),
            Ok(0) => Err(Over::Broke),
            Ok(count) => Ok(Some(count)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(_) => Err(Over::Broke),
        }
    }

    fn head(&mut self, recv: Recv<'_>) -> Result<Step, Over> {
        let staged = &self.stage[self.staged.clone()];
        if let Some((bytes, rest)) = staged.split_first_chunk::<HEAD>() {
            let head = Head::decode(bytes)?;
            if let Some(tail) = rest.get(..head.tail_len()) {
                Head::check(bytes, tail)?;
                if head.kind == Kind::Put {
                    head.descriptors(tail, &mut self.descriptors)?;
                }
                let token = tail.try_into().ok().filter(|_| head.kind == Kind::Show).map(Token::new);
                self.staged.start += HEAD + head.tail_len();
                return self.frame(&head, token).map(|()| Step::Goes);
            }
        }
        self.stage.copy_within(self.staged.clone(), 0);
        self.staged = 0..self.staged.len();
        let mut stage = std::mem::take(&mut self.stage);
        let read = self.read(recv, &mut [IoSliceMut::new(&mut stage[self.staged.end..])]);
        self.stage = stage;
        let Some(count) = read? else { return Ok(Step::Waits) };
        self.staged.end += count;
        Ok(Step::Goes)
    }

    fn frame(&mut self, head: &Head, token: Option<Token>) -> Result<(), Over> {
        if self.bye {
            return Err(Over::Protocol("a frame after the last".to_owned()));
        }
        match (head.kind, head.key) {
            (Kind::Show, Some(key)) => self.show(key, token),
            (Kind::Put | Kind::Publish | Kind::Drop, Some(key))
                if self.shown.get(&key.slot) != Some(&key) =>
            {
                // Whoever has no grant is told what one is whose transfer is over.
                let payload = if head.kind == Kind::Put { head.bytes } else { 0 };
                self.turn_away(key, &TransferError::Unknown { key }, payload)
            }
            (Kind::Put, Some(key)) => self.put(key, head),
            (Kind::Publish, Some(key)) => self.publish(key, head),
            (Kind::Drop, Some(key)) => {
                self.dropped(key);
                Ok(())
            }
            (Kind::Bye, _) => {
                self.bye = true;
                Ok(())
            }
            _ => Err(Over::Protocol("a frame that only a receiver sends".to_owned())),
        }
    }

    /// The sender shows that it has a grant: from here on its frames about it are taken.
    fn show(&mut self, key: TransferKey, token: Option<Token>) -> Result<(), Over> {
        if !token.is_some_and(|token| self.landing.shows(self.writer, key, &token)) {
            return self.turn_away(key, &TransferError::Unknown { key }, 0);
        }
        self.shown.insert(key.slot, key);
        Ok(())
    }

    fn put(&mut self, key: TransferKey, head: &Head) -> Result<(), Over> {
        let landing = self.landing;
        let admitted = landing.writing(self.writer, key).and_then(|writing| self.admit(&writing, key, head));
        match admitted {
            Ok(partial) => {
                let payload = Payload { key, layer: head.layer, at: 0, filled: 0, left: head.bytes, partial };
                self.state = State::Payload(payload);
                Ok(())
            }
            Err(error) => self.turn_away(key, &error, head.bytes),
        }
    }

    /// Whether every range of a put may be written; what has come of its layer before.
    fn admit(
        &mut self,
        writing: &Writing<'_>,
        key: TransferKey,
        head: &Head,
    ) -> Result<Partial, TransferError> {
        let layer = head.layer;
        self.ranges.clear();
        for each in &self.descriptors {
            self.ranges.push(writing.admit(layer, BlockId(each.block), each.offset, each.bytes)?);
        }
        let partial = self.partial(key, layer);
        let (bytes, expected) = (partial.bytes + head.bytes, writing.layer_bytes()?);
        if bytes > expected {
            return Err(TransferError::Incomplete { key, layer, bytes, expected });
        }
        Ok(partial)
    }

    /// A frame that may not be: of a transfer that is over, its payload is for nobody; else the stream is.
    fn turn_away(&mut self, key: TransferKey, error: &TransferError, payload: u64) -> Result<(), Over> {
        let refusal = match error {
            TransferError::Stopped { .. } => Refusal::Stopped,
            TransferError::Unknown { .. } => Refusal::Unknown,
            _ => return Err(Over::Protocol(error.to_string())),
        };
        self.forget(key);
        // Each time: the sender may have begun it after it was told the last time.
        Head::new(Kind::Nack(refusal), Some(key)).encode(&[], &mut self.answers);
        self.state = if payload == 0 { State::Head } else { State::Drain(payload) };
        Ok(())
    }

    fn payload(&mut self, mut payload: Payload, recv: Recv<'_>) -> Result<Step, Over> {
        let (landing, key, layer) = (self.landing, payload.key, payload.layer);
        let first = self.descriptors[payload.at];
        let writing = landing.writing(self.writer, key).and_then(|writing| {
            // The layer may have been published by another stream of the same writer.
            writing.admit(layer, BlockId(first.block), first.offset, 1).map(|_| writing)
        });
        let writing = match writing {
            Ok(writing) => writing,
            Err(error) => return self.turn_away(key, &error, payload.left).map(|()| Step::Goes),
        };
        let took = self.fill(&mut payload, recv);
        drop(writing);
        let goes = took?;
        self.state = if payload.left == 0 {
            self.keep(key, layer, payload.partial);
            State::Head
        } else {
            State::Payload(payload)
        };
        Ok(goes)
    }

    /// Fills a part of the payload, from the stage or else by one read. Called under the transfer's hold.
    fn fill(&mut self, payload: &mut Payload, recv: Recv<'_>) -> Result<Step, Over> {
        let limit = if self.staged.is_empty() { CHUNK } else { self.staged.len() };
        let mut targets: [Range<u64>; RANGES] = [const { 0..0 }; RANGES];
        let (mut count, mut total) = (0, 0);
        let mut filled = payload.filled;
        for range in self.ranges[payload.at..].iter().take(RANGES) {
            let start = range.start + filled;
            let end = range.end.min(start + (limit - total) as u64);
            filled = 0;
            if start == end {
                break;
            }
            targets[count] = start..end;
            count += 1;
            total += (end - start) as usize;
        }
        let targets = &targets[..count];
        let took = if self.staged.is_empty() {
            let Some(took) = self.receive(targets, total as u64 == payload.left, recv)? else {
                return Ok(Step::Waits);
            };
            let beyond = took.saturating_sub(total);
            self.staged = 0..beyond;
            took - beyond
        } else {
            self.unstage(targets);
            total
        };
        self.took(payload, targets, took);
        Ok(Step::Goes)
    }

    /// One read into the pool and, where the payload ends, beyond it into the stage.
    fn receive(
        &mut self,
        targets: &[Range<u64>],
        is_end: bool,
        recv: Recv<'_>,
    ) -> Result<Option<usize>, Over> {
        let mut stage = std::mem::take(&mut self.stage);
        let mut slices = Vec::with_capacity(targets.len() + 1);
        for target in targets {
            // SAFETY: admitted, so inside the pool and this writer's to write; under the hold that the caller has, no
            // other thread writes it, and nobody reads a layer that is not published.
            slices.push(IoSliceMut::new(unsafe { slice(self.base, target) }));
        }
        if is_end {
            slices.push(IoSliceMut::new(&mut stage));
        }
        let read = self.read(recv, &mut slices);
        drop(slices);
        self.stage = stage;
        read
    }

    /// Moves bytes of a payload that came with its head; they are exactly those of `targets`.
    fn unstage(&mut self, targets: &[Range<u64>]) {
        for target in targets {
            let len = (target.end - target.start) as usize;
            let from = self.staged.start;
            // SAFETY: as in `receive`.
            unsafe { slice(self.base, target) }.copy_from_slice(&self.stage[from..from + len]);
            self.staged.start += len;
        }
    }

    /// Books `took` bytes that went to the first of `targets`.
    fn took(&self, payload: &mut Payload, targets: &[Range<u64>], took: usize) {
        let mut rest = took as u64;
        payload.left -= rest;
        payload.partial.bytes += rest;
        for target in targets {
            if rest == 0 {
                break;
            }
            let part = target.start..target.end.min(target.start + rest);
            if self.checksums {
                // SAFETY: as in `receive`.
                payload.partial.crc.update(unsafe { slice(self.base, &part) });
            }
            let len = part.end - part.start;
            rest -= len;
            payload.filled += len;
            let range = &self.ranges[payload.at];
            if payload.filled == range.end - range.start {
                payload.at += 1;
                payload.filled = 0;
            }
        }
    }

    fn drain(&mut self, left: u64, recv: Recv<'_>) -> Result<Step, Over> {
        let took = if self.staged.is_empty() {
            let mut scratch = std::mem::take(&mut self.scratch);
            let want = scratch.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.read(recv, &mut [IoSliceMut::new(&mut scratch[..want])]);
            self.scratch = scratch;
            let Some(count) = read? else { return Ok(Step::Waits) };
            count as u64
        } else {
            let count = left.min(self.staged.len() as u64);
            self.staged.start += count as usize;
            count
        };
        self.state = if took == left { State::Head } else { State::Drain(left - took) };
        Ok(Step::Goes)
    }

    fn publish(&mut self, key: TransferKey, head: &Head) -> Result<(), Over> {
        let layer = head.layer;
        if head.crc32c.is_some() != self.checksums {
            let expected = if self.checksums { "with" } else { "without" };
            return Err(Over::Protocol(format!("{key}, layer {layer}: expected {expected} a checksum")));
        }
        // Those that are not this writer's, or are over, are told so and not by what came of them.
        if let Err(error) = self.landing.writing(self.writer, key).map(drop) {
            return self.turn_away(key, &error, 0);
        }
        let partial = self.partial(key, layer);
        if let Some((_, layers)) = self.layers.get_mut(&key.slot).filter(|(of, _)| *of == key) {
            layers.remove(&layer);
        }
        let (found, expected) = (partial.crc.value(), head.crc32c);
        if let Some(expected) = expected.filter(|&expected| expected != found && partial.bytes == head.bytes)
        {
            self.fail(key, &TransferError::Corrupt { key, layer, found, expected });
            return Ok(());
        }
        // What was counted here, not what the sender says.
        let (bytes, tokens) = (partial.bytes, head.tokens);
        let seal = LayerSeal { tokens, bytes, crc32c: head.crc32c };
        match self.landing.publish(self.writer, key, layer, seal) {
            Ok(()) => Ok(()),
            Err(error @ TransferError::Incomplete { .. }) => {
                self.fail(key, &error);
                Ok(())
            }
            Err(error) => self.turn_away(key, &error, 0),
        }
    }

    /// Ends a transfer whose bytes are not right, at both sides.
    fn fail(&mut self, key: TransferKey, error: &TransferError) {
        self.forget(key);
        self.landing.fail(key, error.clone());
        let mut head = Head::new(Kind::Nack(Refusal::Denied), Some(key));
        let text = error.to_string();
        if let TransferError::Corrupt { layer, found, expected, .. } = *error {
            head = Head { layer, tokens: found, crc32c: Some(expected), ..head };
            head.kind = Kind::Nack(Refusal::Corrupt);
        }
        head.encode_nack(&text, &mut self.answers);
    }

    /// The sender gives a transfer up: whoever waits for it learns at once.
    fn dropped(&mut self, key: TransferKey) {
        self.forget(key);
        let landing = self.landing;
        if landing.writing(self.writer, key).is_err() {
            return;
        }
        let layer = landing.landed(key).unwrap_or(0);
        if layer < landing.board().layers() {
            let peer = landing.writer_state(self.writer);
            landing.fail(key, TransferError::Stopped { key, layer, peer });
        }
    }

    fn partial(&self, key: TransferKey, layer: u16) -> Partial {
        let layers = self.layers.get(&key.slot).filter(|(of, _)| *of == key).map(|(_, layers)| layers);
        layers.and_then(|layers| layers.get(&layer)).copied().unwrap_or(Partial { bytes: 0, crc: Crc::NEW })
    }

    fn keep(&mut self, key: TransferKey, layer: u16, partial: Partial) {
        let of_slot = self.layers.entry(key.slot).or_insert((key, BTreeMap::new()));
        if of_slot.0 != key {
            *of_slot = (key, BTreeMap::new());
        }
        of_slot.1.insert(layer, partial);
    }

    fn forget(&mut self, key: TransferKey) {
        if self.layers.get(&key.slot).is_some_and(|(of, _)| *of == key) {
            self.layers.remove(&key.slot);
        }
    }
}

/// The bytes of a range of the pool.
///
/// # Safety
/// The range is inside the pool that begins at `base`, and nobody else touches it meanwhile.
unsafe fn slice<'a>(base: NonNull<u8>, range: &Range<u64>) -> &'a mut [u8] {
    // SAFETY: by the contract above.
    unsafe {
        std::slice::from_raw_parts_mut(
            base.as_ptr().add(range.start as usize),
            (range.end - range.start) as usize,
        )
    }
}
