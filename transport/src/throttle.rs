//! A link that is slower than the one it stands on, so that transfers beside compute can be shown on one machine.
//!
//! Bytes go to the inner link when a wire of the given rate would have carried them, so layers arrive one by one as
//! they would. What the inner link takes on top of that is not hidden.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use splitcore_core::kv::{KvRange, PoolShape};

use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::ledger::Ledger;
use crate::pool::Pool;
use crate::transfer::{Completion, Grant, Link, PeerState, TransferKey, Wake};

/// A wire that is to be imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// What it carries, of all transfers together.
    pub bytes_per_second: NonZeroU64,
    /// From when a byte was carried to when it arrives.
    pub latency: Duration,
}

/// Pieces that may wait for the wire.
const QUEUED_MAX: usize = 1 << 16;
/// A piece is what the wire carries in this time, so that puts of any size flow evenly.
const PIECE: Duration = Duration::from_millis(1);
/// Pieces are not smaller than this, however slow the wire.
const PIECE_MIN: u64 = 64 << 10;
/// How soon a piece that the inner link was too busy for is offered again.
const RETRY: Duration = Duration::from_millis(1);

impl Wire {
    /// How long it takes for so many bytes.
    fn carries(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX))
    }

    fn piece(&self) -> u64 {
        let bytes = u128::from(self.bytes_per_second.get()) * PIECE.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(PIECE_MIN, u64::from(u32::MAX))
    }
}

/// What waits for the wire.
#[derive(Debug)]
enum What {
    Put(u16, Vec<KvRange>),
    Publish(u16, u32),
}

#[derive(Debug)]
struct Piece {
    key: TransferKey,
    what: What,
    bytes: u64,
    queued: Duration,
    carried: Duration,
}

/// The pieces in their order, and when each is through. Times are since the link was made.
#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// When the wire is free of what has left the queue.
    free: Duration,
    /// Why the inner link refused a piece of a transfer whose end has not come yet.
    refused: BTreeMap<(u32, u32), TransferError>,
    closing: bool,
}

impl Queue {
    fn push(&mut self, wire: &Wire, now: Duration, key: TransferKey, what: What, bytes: u64) {
        let before = self.pieces.back().map_or(self.free, |piece| piece.carried);
        let carried = before.max(now).saturating_add(wire.carries(bytes));
        self.pieces.push_back(Piece { key, what, bytes, queued: now, carried });
    }

    fn pop(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop_front()?;
        self.free = piece.carried;
        Some(piece)
    }

    /// Forgets a transfer; what is behind it moves up.
    fn remove(&mut self, wire: &Wire, key: TransferKey) {
        let before = self.pieces.len();
        self.pieces.retain(|piece| piece.key != key);
        if self.pieces.len() == before {
            return;
        }
        let mut free = self.free;
        for piece in &mut self.pieces {
            piece.carried = free.max(piece.queued).saturating_add(wire.carries(piece.bytes));
            free = piece.carried;
        }
    }
}

struct Shared {
    inner: Arc<dyn Link>,
    /// Checks what the inner link will check, since it is asked only later.
    books: Ledger,
    wire: Wire,
    began: Instant,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A link no faster than its wire. Dropped, it stops what is queued and joins its thread.
pub struct Throttle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Throttle {
    /// A link to `receiver` that sends from `pool` over `inner`, as slowly as `wire`. Nobody else may use `inner`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn new(
        inner: Arc<dyn Link>,
        pool: Arc<Pool>,
        receiver: Incarnation,
        wire: Wire,
    ) -> std::io::Result<Self> {
        let books = Ledger::new(pool, *inner.remote(), receiver);
        let shared = Arc::new(Shared {
            inner,
            books,
            wire,
            began: Instant::now(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let carrier = shared.clone();
        let thread =
            std::thread::Builder::new().name("kv-throttle".to_owned()).spawn(move || carrier.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self, key: TransferKey) -> Result<(), TransferError> {
        match self.inner.peer() {
            PeerState::Lost => Err(TransferError::PeerLost { key, peer: self.books.receiver() }),
            PeerState::Absent | PeerState::Connected | PeerState::Silent => Ok(()),
        }
    }

    /// The thread: offers each piece to the inner link once it is through.
    fn run(&self) {
        let mut queue = self.queue();
        while !queue.closing {
            let now = self.began.elapsed();
            let due = queue.pieces.front().map(|piece| piece.carried.saturating_add(self.wire.latency));
            match due {
                Some(due) if due <= now => {
                    let Some(piece) = queue.pop() else { continue };
                    drop(queue);
                    let busy = self.offer(piece);
                    queue = self.queue();
                    if let Some(piece) = busy {
                        queue = self.sleep(queue, Some(RETRY));
                        // Unless it was stopped meanwhile, it is next again.
                        if self.books.is_open(piece.key) {
                            queue.pieces.push_front(piece);
                        }
                    }
                }
                Some(due) => queue = self.sleep(queue, Some(due.saturating_sub(now))),
                None => queue = self.sleep(queue, None),
            }
        }
    }

    fn sleep<'a>(&self, queue: MutexGuard<'a, Queue>, within: Option<Duration>) -> MutexGuard<'a, Queue> {
        match within {
            Some(within) => {
                self.changed.wait_timeout(queue, within).unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Gives a piece back that the inner link is too busy for.
    fn offer(&self, piece: Piece) -> Option<Piece> {
        let done = match &piece.what {
            What::Put(layer, ranges) => self.inner.put(piece.key, *layer, ranges),
            What::Publish(layer, tokens) => self.inner.publish(piece.key, *layer, *tokens),
        };
        match done {
            Err(TransferError::Busy { .. }) => Some(piece),
            // Taken; or it has ended there, and its completion says how.
            Ok(())
            | Err(
                TransferError::Unknown { .. }
                | TransferError::Stopped { .. }
                | TransferError::PeerLost { .. },
            ) => None,
            Err(error) => {
                let mut queue = self.queue();
                queue.remove(&self.wire, piece.key);
                if self.books.is_open(piece.key) {
                    queue.refused.entry(name(piece.key)).or_insert(error);
                }
                drop(queue);
                self.inner.stop(piece.key);
                None
            }
        }
    }
}

/// Cuts ranges into pieces of `limit` bytes, which the wire carries one after the other.
fn cut(limit: u64, source: &PoolShape, target: &PoolShape, ranges: &[KvRange]) -> Vec<(Vec<KvRange>, u64)> {
    let mut pieces = Vec::new();
    let (mut piece, mut size) = (Vec::new(), 0);
    for range in ranges {
        let mut rest = Some(*range);
        while let Some(range) = rest.take() {
            let (first, second) = split(source, target, range, limit - size);
            size += u64::from(first.bytes);
            piece.push(first);
            rest = second;
            if size >= limit {
                pieces.push((std::mem::take(&mut piece), std::mem::take(&mut size)));
            }
        }
    }
    if !piece.is_empty() {
        pieces.push((piece, size));
    }
    pieces
}

fn name(key: TransferKey) -> (u32, u32) {
    (key.slot, key.generation.get())
}

/// The first `most` bytes of a range, and the rest of it, which begins where it lies in memory.
fn split(source: &PoolShape, target: &PoolShape, range: KvRange, most: u64) -> (KvRange, Option<KvRange>) {
    if u64::from(range.bytes) <= most {
        return (range, None);
    }
    let ahead = |shape: &PoolShape, block, offset| {
        shape.locate(block, offset).and_then(|place| shape.block_at(place + most))
    };
    let from = ahead(source, range.from, range.from_offset);
    let to = ahead(target, range.to, range.to_offset);
    let (Some((from, from_offset)), Some((to, to_offset))) = (from, to) else { return (range, None) };
    let bytes = range.bytes - most as u32;
    (KvRange { bytes: most as u32, ..range }, Some(KvRange { from, from_offset, to, to_offset, bytes }))
}

impl Link for Throttle {
    fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        let shared = &self.shared;
        shared.inner.begin(grant)?;
        shared.books.begin(grant).inspect_err(|_| shared.inner.stop(grant.key))
    }

    fn after(&self, stream: u64) -> Result<(), TransferError> {
        self.shared.inner.after(stream)
    }

    fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError> {
        let shared = &self.shared;
        shared.lost(key)?;
        let mut queue = shared.queue();
        if queue.pieces.len() >= QUEUED_MAX {
            return Err(TransferError::Busy { queued: queue.pieces.len(), limit: QUEUED_MAX });
        }
        shared.books.put(key, layer, ranges)?;
        let now = shared.began.elapsed();
        let (source, target) = (shared.books.pool().shape(), shared.books.remote());
        for (piece, bytes) in cut(shared.wire.piece(), source, target, ranges) {
            queue.push(&shared.wire, now, key, What::Put(layer, piece), bytes);
        }
        drop(queue);
        shared.changed.notify_one();
        Ok(())
    }

    fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError> {
        let shared = &self.shared;
        shared.lost(key)?;
        let mut queue = shared.queue();
        shared.books.publish(key, layer)?;
        queue.push(&shared.wire, shared.began.elapsed(), key, What::Publish(layer, tokens), 0);
        drop(queue);
        shared.changed.notify_one();
        Ok(())
    }

    fn stop(&self, key: TransferKey) {
        self.shared.queue().remove(&self.shared.wire, key);
        self.shared.changed.notify_one();
        self.shared.inner.stop(key);
    }

    fn poll(&self, ended: &mut Vec<Completion>) {
        let shared = &self.shared;
        let mut inner = Vec::new();
        shared.inner.poll(&mut inner);
        for end in inner {
            let key = end.key();
            let mut queue = shared.queue();
            queue.remove(&shared.wire, key);
            let end = match (end, queue.refused.remove(&name(key))) {
                (Completion::Fenced(key), Some(error)) => Completion::Failed(key, error),
                (end, _) => end,
            };
            shared.books.end(end);
        }
        shared.books.poll(ended);
    }

    fn wait(&self, within: Duration) -> bool {
        self.shared.inner.wait(within)
    }

    fn on_end(&self, wake: Wake) {
        self.shared.inner.on_end(wake);
    }

    fn peer(&self) -> PeerState {
        self.shared.inner.peer()
    }

    fn remote(&self) -> &PoolShape {
        self.shared.inner.remote()
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.shared.queue().closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let pieces = std::mem::take(&mut self.shared.queue().pieces);
        for piece in pieces {
            self.shared.inner.stop(piece.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::kit::{key, shape};
    use splitcore_core::kv::{Arrangement, BlockId, Planes};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_wire_is_never_faster_than_it_is_and_idles_only_when_nothing_waits(
            calls in proptest::collection::vec((0..5_u64, 0..3_u64, 1..4000_u64), 1..60),
            rate in 1..2000_u64,
            stopped in proptest::option::of(0..3_u64),
        ) {
            let wire = Wire {
                bytes_per_second: NonZeroU64::new(rate).ok_or(TestCaseError::fail("no rate"))?,
                latency: Duration::ZERO,
            };
            let (mut queue, mut now) = (Queue::default(), Duration::ZERO);
            for (wait, of, bytes) in calls {
                now += Duration::from_secs(wait);
                queue.push(&wire, now, key(of, of as u32, 1), What::Publish(0, 1), bytes);
            }
            if let Some(of) = stopped {
                queue.remove(&wire, key(of, of as u32, 1));
                prop_assert!(queue.pieces.iter().all(|piece| piece.key.slot != of as u32));
            }
            let mut free = Duration::ZERO;
            while let Some(piece) = queue.pop() {
                // Not before the one before it and not before it was asked for, and no later than that.
                prop_assert_eq!(piece.carried, free.max(piece.queued) + wire.carries(piece.bytes));
                free = piece.carried;
            }
        }

        #[test]
        fn pieces_are_the_bytes_of_the_whole_in_their_order(
            limit in 1..200_u64,
            first_at in 0..64_u32,
            bytes in 1..100_u32,
            apart in any::<bool>(),
        ) {
            let arranged = |arrangement, planes| {
                let mut shape = shape(2, 8);
                (shape.layout.arrangement, shape.layout.planes) = (arrangement, planes);
                shape
            };
            let planes = if apart { Planes::Apart } else { Planes::Together };
            let source = arranged(Arrangement::LayerFirst, planes);
            let target = arranged(Arrangement::BlockFirst, Planes::Together);
            let range = KvRange {
                from: BlockId(1),
                from_offset: first_at % 16,
                to: BlockId(2),
                to_offset: first_at,
                bytes,
            };
            let places = |range: &KvRange| {
                let from = source.locate(range.from, range.from_offset).unwrap();
                let to = target.locate(range.to, range.to_offset).unwrap();
                (0..u64::from(range.bytes)).map(move |byte| (from + byte, to + byte))
            };
            let ranges = [range, KvRange { to: BlockId(5), ..range }];
            let pieces = cut(limit, &source, &target, &ranges);
            for (piece, size) in &pieces {
                prop_assert_eq!(*size, piece.iter().map(|range| u64::from(range.bytes)).sum::<u64>());
                prop_assert!(*size <= limit, "{} bytes", size);
            }
            let cut: Vec<_> = pieces.iter().flat_map(|(piece, _)| piece).flat_map(places).collect();
            prop_assert_eq!(cut, ranges.iter().flat_map(places).collect::<Vec<_>>());
        }
    }
}
