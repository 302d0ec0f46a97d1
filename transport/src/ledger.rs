//! The sender's books of one connection: what may be put, what has been, and the one end of each transfer.
//!
//! Every backend asks here first, so all refuse the same things with the same words.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use splitcore_core::kv::{BlockSet, KvRange, PoolShape};

use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::pool::Pool;
use crate::ring::{Consumer, Producer, ring};
use crate::transfer::{Completion, Grant, PeerState, TransferKey, Wake};
use crate::word::Doorbell;

/// Transfers that may be begun, or ended and not yet polled, at once.
pub(crate) const TRANSFERS_MAX: usize = 1 << 14;

/// A range, as places in the two pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    /// First byte in the source's pool.
    pub from: u64,
    /// First byte in the destination's.
    pub to: u64,
    /// How many.
    pub bytes: u32,
}

/// See the [module](self).
pub(crate) struct Ledger {
    pool: Arc<Pool>,
    remote: PoolShape,
    receiver: Incarnation,
    books: Mutex<Books>,
    ended: Mutex<Consumer<Completion>>,
    /// Rung at each end. Sleeping on the ring itself would take hold of it, and `poll` waits for nobody.
    bell: Doorbell,
    /// Called at each ring.
    wake: OnceLock<Wake>,
}

struct Books {
    transfers: HashMap<TransferKey, Outgoing>,
    /// Ended and not yet polled.
    unpolled: usize,
    lost: bool,
    ends: Producer<Completion>,
}

struct Outgoing {
    granted: BlockSet,
    layer_bytes: u64,
    put: Vec<u64>,
    /// Where the bytes of layers that are put in several calls lie so far: ascending, none touching the next.
    covered: BTreeMap<u16, Vec<Range<u64>>>,
    published: Vec<bool>,
    unpublished: u16,
}

/// What publishing a layer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// Bytes of the layer.
    pub bytes: u64,
    /// Whether it was the last layer of the transfer.
    pub last: bool,
}

impl Ledger {
    /// Books of a connection from `pool` to a receiver.
    pub(crate) fn new(pool: Arc<Pool>, remote: PoolShape, receiver: Incarnation) -> Self {
        let (ends, ended) = ring(TRANSFERS_MAX);
        let books = Books { transfers: HashMap::new(), unpolled: 0, lost: false, ends };
        Self {
            pool,
            remote,
            receiver,
            books: Mutex::new(books),
            ended: Mutex::new(ended),
            bell: Doorbell::default(),
            wake: OnceLock::new(),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sender's pool.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The receiver's pool.
    pub(crate) fn remote(&self) -> &PoolShape {
        &self.remote
    }

    /// Which receiver.
    pub(crate) fn receiver(&self) -> Incarnation {
        self.receiver
    }

    /// Opens the books of a transfer.
    ///
    /// # Errors
    /// The peer is gone; the grant is another incarnation's; the key is in use; too many are open.
    pub(crate) fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        let key = grant.key;
        let mut books = self.books();
        if books.lost {
            return Err(TransferError::PeerLost { key, peer: self.receiver });
        }
        if grant.receiver != self.receiver || books.transfers.contains_key(&key) {
            return Err(TransferError::Unknown { key });
        }
        let outstanding = books.transfers.len() + books.unpolled;
        if outstanding >= TRANSFERS_MAX {
            return Err(TransferError::Busy { queued: outstanding, limit: TRANSFERS_MAX });
        }
        let layers = self.remote.layout.layers;
        let outgoing = Outgoing {
            granted: BlockSet::new(grant.blocks.clone()),
            layer_bytes: grant.layer_bytes,
            put: vec![0; usize::from(layers)],
            covered: BTreeMap::new(),
            published: vec![false; usize::from(layers)],
            unpublished: layers,
        };
        books.transfers.insert(key, outgoing);
        Ok(())
    }

    /// Books the ranges of one put, or none of them; gives what is to be copied.
    ///
    /// # Errors
    /// As [`crate::Link::put`].
    pub(crate) fn put(
        &self,
        key: TransferKey,
        layer: u16,
        ranges: &[KvRange],
    ) -> Result<Vec<Copy>, TransferError> {
        let mut books = self.books();
        if books.lost {
            return Err(TransferError::PeerLost { key, peer: self.receiver });
        }
        let outgoing = books.transfers.get_mut(&key).ok_or(TransferError::Unknown { key })?;
        let at = outgoing.unpublished_layer(key, layer)?;
        let mut copies = Vec::with_capacity(ranges.len());
        let mut bytes = outgoing.put[at];
        for range in ranges {
            let to = self.destination(outgoing, key, layer, range)?;
            let from = self.pool.span(range.from, range.from_offset, range.bytes)?;
            copies.push(Copy { from: from.start, to: to.start, bytes: range.bytes });
            bytes += u64::from(range.bytes);
        }
        if bytes > outgoing.layer_bytes {
            return Err(TransferError::Incomplete { key, layer, bytes, expected: outgoing.layer_bytes });
        }
        let covered = outgoing.covered.get(&layer).map_or(&[][..], Vec::as_slice);
        let covered = cover(covered, &copies).map_err(|second| {
            let range = &ranges[second];
            TransferError::Overlap { key, layer, block: range.to, offset: range.to_offset }
        })?;
        outgoing.put[at] = bytes;
        // A layer that is whole has no place left, so only those in between are remembered.
        if bytes < outgoing.layer_bytes {
            outgoing.covered.insert(layer, covered);
        } else {
            outgoing.covered.remove(&layer);
        }
        Ok(copies)
    }

    fn destination(
        &self,
        outgoing: &Outgoing,
        key: TransferKey,
        layer: u16,
        range: &KvRange,
    ) -> Result<Range<u64>, TransferError> {
        self.remote
            .admit(&outgoing.granted, layer, range.to, range.to_offset, range.bytes)
            .map_err(|range| TransferError::Refused { key, layer, range })
    }

    /// Books a layer as published. The transfer's end is not booked by this.
    ///
    /// # Errors
    /// As [`crate::Link::publish`].
    pub(crate) fn publish(&self, key: TransferKey, layer: u16) -> Result<Sealed, TransferError> {
        let mut books = self.books();
        if books.lost {
            return Err(TransferError::PeerLost { key, peer: self.receiver });
        }
        let outgoing = books.transfers.get_mut(&key).ok_or(TransferError::Unknown { key })?;
        let at = outgoing.unpublished_layer(key, layer)?;
        let (bytes, expected) = (outgoing.put[at], outgoing.layer_bytes);
        if bytes != expected {
            return Err(TransferError::Incomplete { key, layer, bytes, expected });
        }
        outgoing.published[at] = true;
        outgoing.unpublished -= 1;
        Ok(Sealed { bytes, last: outgoing.unpublished == 0 })
    }

    /// Whether a transfer is open.
    pub(crate) fn is_open(&self, key: TransferKey) -> bool {
        self.books().transfers.contains_key(&key)
    }

    /// Ends a transfer, once: says whether it was open.
    pub(crate) fn end(&self, completion: Completion) -> bool {
        let mut books = self.books();
        let open = books.transfers.remove(&completion.key()).is_some();
        if open {
            books.finish(completion);
            drop(books);
            self.ring();
        }
        open
    }

    /// The peer is gone: every open transfer ends, and none can be begun.
    pub(crate) fn lose(&self, mut why: impl FnMut(TransferKey) -> TransferError) {
        let mut books = self.books();
        books.lost = true;
        let mut keys: Vec<TransferKey> = books.transfers.drain().map(|(key, _)| key).collect();
        keys.sort_unstable_by_key(|key| (key.slot, key.generation.get()));
        for key in keys {
            books.finish(Completion::Failed(key, why(key)));
        }
        drop(books);
        self.ring();
    }

    fn ring(&self) {
        self.bell.ring();
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Calls this at each end from here on; see [`crate::Link::on_end`].
    pub(crate) fn on_end(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }

    /// What is known of the receiver.
    pub(crate) fn peer(&self) -> PeerState {
        if self.books().lost { PeerState::Lost } else { PeerState::Connected }
    }

    /// Appends the ends since the last call. O(those).
    pub(crate) fn poll(&self, ended: &mut Vec<Completion>) {
        let before = ended.len();
        let mut ring = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(completion) = ring.pop() {
            ended.push(completion);
        }
        drop(ring);
        self.books().unpolled -= ended.len() - before;
    }

    /// Sleeps until there is an end to poll, at most `within`; says whether there is.
    pub(crate) fn wait(&self, within: Duration) -> bool {
        let until = Instant::now().checked_add(within);
        loop {
            let rings = self.bell.count();
            if self.has_ended() {
                return true;
            }
            // A ring may be of an end that was polled before it rang: then there is still time left to wait.
            let left = until.map_or(within, |until| until.saturating_duration_since(Instant::now()));
            if self.bell.wait(rings, left) == rings {
                return false;
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).wait(Duration::ZERO)
    }
}

impl Books {
    fn finish(&mut self, completion: Completion) {
        self.unpolled += 1;
        // `begin` keeps a place in the ring for the end of every transfer.
        let full = self.ends.push(completion).is_err();
        debug_assert!(!full, "the end of a transfer has no place");
    }
}

impl Outgoing {
    fn unpublished_layer(&self, key: TransferKey, layer: u16) -> Result<usize, TransferError> {
        match self.published.get(usize::from(layer)) {
            None => Err(TransferError::NoSuchLayer { key, layer, layers: self.published.len() as u16 }),
            Some(true) => Err(TransferError::Published { key, layer }),
            Some(false) => Ok(usize::from(layer)),
        }
    }
}

/// What is covered once these are copied, or the index of a copy that writes what is covered or what another writes.
/// Plans ascend, where one pass is enough.
fn cover(covered: &[Range<u64>], copies: &[Copy]) -> Result<Vec<Range<u64>>, usize> {
    let mut order: Vec<usize> = (0..copies.len()).collect();
    if !copies.is_sorted_by_key(|copy| copy.to) {
        order.sort_by_key(|&index| copies[index].to);
    }
    let mut union: Vec<Range<u64>> = Vec::with_capacity(covered.len() + 1);
    let mut old = covered.iter().cloned().peekable();
    for index in order {
        let new = copies[index].to..copies[index].to + u64::from(copies[index].bytes);
        while let Some(earlier) = old.next_if(|old| old.start < new.start) {
            append(&mut union, earlier);
        }
        let meets_next = old.peek().is_some_and(|old| old.start < new.end);
        if meets_next || union.last().is_some_and(|last| last.end > new.start) {
            return Err(index);
        }
        append(&mut union, new);
    }
    for later in old {
        append(&mut union, later);
    }
    Ok(union)
}

/// Appends a range that begins where the last ends, or later.
fn append(union: &mut Vec<Range<u64>>, next: Range<u64>) {
    match union.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => union.push(next),
    }
}
