//! The receiving half: which blocks may be written by whom, what has landed, and when a block is safe again.
//!
//! Every backend publishes on the same board, so waiting is the same whatever carries the bytes. A transfer opens in
//! a slot and ends in one of two ways, after which [`Landing::release`] frees the slot:
//!
//! ```text
//!            every layer published                    release
//!   open ------------------------------> landed ------------------> free
//!     |  stop, writer lost, corrupt                                   ^
//!     +-----------------------> stopping ----------> fenced ----------+
//!                               blocks in quarantine   the writer has acknowledged, has died, or
//!                                                      never wrote but through this process
//! ```

mod slots;
mod writers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, BlockSet, RangeError};
use splitcore_secret::Token;

use crate::board::Board;
use crate::error::{MemoryError, TransferError};
use crate::handshake::Incarnation;
use crate::pool::Pool;
use crate::transfer::{Grant, PeerState, TransferKey};
use crate::word::{CellState, LayerSeal, Unpublishable};

use slots::{Open, Phase, Slot};
use writers::Writers;

pub use slots::Writing;
pub use writers::Writer;

/// What the receiving side has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// The first `layers` of `of` layers are here.
    Layers {
        /// Of which transfer.
        key: TransferKey,
        /// How many, from layer 0 without a gap.
        layers: u16,
        /// Of how many.
        of: u16,
    },
    /// What is missing of a transfer will not come.
    Failed(TransferKey, TransferError),
    /// Nothing is written any more for a transfer that was stopped or failed: its blocks may be reused.
    Fenced(TransferKey),
}

/// A machine's receiving half. Clones are handles to the same.
#[derive(Clone)]
pub struct Landing {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Arc<Pool>,
    owner: Incarnation,
    board: Board,
    slots: Vec<Mutex<Slot>>,
    /// One for each slot: that it has settled, failed or been fenced.
    settling: Vec<Condvar>,
    /// First in, first out: a slot rests as long as it can.
    free: Mutex<VecDeque<u32>>,
    writers: Mutex<Writers>,
    /// A writer has left.
    departed: Condvar,
    arrivals: Mutex<VecDeque<Arrival>>,
    rings_seen: AtomicU32,
}

/// A panic while a lock was held leaves plain data whose every step is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landing").field("owner", &self.inner.owner).field("pool", &self.inner.pool).finish()
    }
}

impl Landing {
    /// A receiving half over `pool` for `slots` transfers at once.
    ///
    /// # Errors
    /// No memory for the board.
    pub fn new(pool: Arc<Pool>, owner: Incarnation, slots: u32) -> Result<Self, MemoryError> {
        let board = Board::create(slots, pool.shape().layout.layers, owner)?;
        let inner = Inner {
            pool,
            owner,
            board,
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            settling: (0..slots).map(|_| Condvar::new()).collect(),
            free: Mutex::new((0..slots).collect()),
            writers: Mutex::default(),
            departed: Condvar::new(),
            arrivals: Mutex::default(),
            rings_seen: AtomicU32::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    /// Which life of this process it belongs to.
    pub fn owner(&self) -> Incarnation {
        self.inner.owner
    }

    /// The board, for backends.
    pub fn board(&self) -> &Board {
        &self.inner.board
    }

    /// Lets `writer` write `blocks`, `layer_bytes` of them in each layer, and says so in a [`Grant`] to be sent to it.
    ///
    /// # Errors
    /// Every slot is taken; a block is not in the pool, is there twice, or there is none; no bytes, or more than the blocks
    /// hold.
    pub fn open(
        &self,
        writer: Incarnation,
        request: RequestId,
        blocks: Vec<BlockId>,
        layer_bytes: u64,
    ) -> Result<Grant, TransferError> {
        let inner = &self.inner;
        let granted = BlockSet::new(blocks.clone());
        let token = Token::random()
            .map_err(|error| TransferError::Io { what: "random token", reason: error.to_string() })?;
        let slot =
            lock(&inner.free).pop_front().ok_or(TransferError::NoSlot { slots: inner.board.slots() })?;
        let mut place = lock(&inner.slots[slot as usize]);
        let generation = place.next_generation();
        let key = TransferKey { request, slot, generation };
        if let Err(error) = inner.check_grant(key, &blocks, &granted, layer_bytes) {
            drop(place);
            lock(&inner.free).push_front(slot);
            return Err(error);
        }
        place.generation = Some(generation);
        let settled = inner.pool.device_base().is_none();
        place.open = Some(Open::new(key, writer, token, granted, layer_bytes, settled));
        drop(place);
        Ok(Grant { key, receiver: inner.owner, blocks, layer_bytes, token })
    }

    /// Sleeps until a layer is here, at most `within`.
    ///
    /// # Errors
    /// The time is up; it was stopped; its writer is gone; its bytes were wrong; it is not open.
    pub fn wait_layer(
        &self,
        key: TransferKey,
        layer: u16,
        within: Duration,
    ) -> Result<LayerSeal, TransferError> {
        let inner = &self.inner;
        let writer = inner.with_open(key, |open| open.writer)?;
        let layers = inner.board.layers();
        if layer >= layers {
            return Err(TransferError::NoSuchLayer { key, layer, layers });
        }
        match inner.board.wait(key.slot, key.generation, layer, within) {
            CellState::Published(seal) => Ok(seal),
            CellState::Pending => {
                Err(TransferError::Timeout { key, layer, waited: within, peer: self.writer_state(writer) })
            }
            CellState::Closed => {
                let failure = inner.with_open(key, |open| open.failure.clone()).ok().flatten();
                let peer = self.writer_state(writer);
                Err(failure.unwrap_or(TransferError::Stopped { key, layer, peer }))
            }
        }
    }

    /// How many layers are here, from layer 0 without a gap.
    ///
    /// # Errors
    /// It is not open.
    pub fn landed(&self, key: TransferKey) -> Result<u16, TransferError> {
        self.inner.with_open(key, |_| ())?;
        Ok(self.inner.landed(key))
    }

    /// Gives a transfer up: what has not landed never will. [`Arrival::Fenced`] follows, at once where only this
    /// process writes, else when the writer has acknowledged or died; until then its blocks must not be reused.
    ///
    /// # Errors
    /// It is not open.
    pub fn stop(&self, key: TransferKey) -> Result<(), TransferError> {
        self.end(key, None)
    }

    /// Frees the slot of a transfer that has landed or is fenced. What is late for it is refused from now on.
    ///
    /// # Errors
    /// It may still be written, which over a device's pool is so until [`settled`](Self::settled); it is not open.
    pub fn release(&self, key: TransferKey) -> Result<(), TransferError> {
        let inner = &self.inner;
        let mut place = inner.place(key)?;
        let open = place.of(key)?;
        let landed = open.phase == Phase::Open && open.settled && inner.landed(key) == inner.board.layers();
        if !landed && open.phase != Phase::Fenced {
            return Err(TransferError::NotFenced { key });
        }
        place.open = None;
        drop(place);
        lock(&inner.free).push_back(key.slot);
        Ok(())
    }

    /// Sleeps until every byte of a transfer is in place, at most `within`. Over host memory that is so as soon as its
    /// layers are here; over a device's, copies may be under way when their layer is published, and a writer that
    /// dies then leaves them undone. So whoever has used layers of a device's pool asks here before trusting what
    /// came of them.
    ///
    /// # Errors
    /// The time is up; it was stopped or failed; its writer is gone; it is not open.
    pub fn settled(&self, key: TransferKey, within: Duration) -> Result<(), TransferError> {
        let inner = &self.inner;
        let until = Instant::now() + within;
        let layers = inner.board.layers();
        // A writer says that it has settled after it has published every layer.
        if inner.pool.device_base().is_none() {
            let left = || until.saturating_duration_since(Instant::now());
            return (0..layers).try_for_each(|layer| self.wait_layer(key, layer, left()).map(drop));
        }
        let layer = layers - 1;
        let mut place = inner.place(key)?;
        loop {
            let open = place.of(key)?;
            let (writer, failure) = (open.writer, open.failure.clone());
            if open.settled {
                return Ok(());
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            let stopped = open.phase != Phase::Open;
            let left = until.saturating_duration_since(Instant::now());
            if stopped || left.is_zero() {
                // In this order everywhere: writers, then a slot.
                drop(place);
                let peer = self.writer_state(writer);
                return Err(if stopped {
                    TransferError::Stopped { key, layer, peer }
                } else {
                    TransferError::Timeout { key, layer, waited: within, peer }
                });
            }
            let waited = inner.settling[key.slot as usize].wait_timeout(place, left);
            place = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Transfers that are open, landed, stopping or fenced: slots that are not free.
    pub fn in_use(&self) -> u32 {
        self.inner.board.slots() - lock(&self.inner.free).len() as u32
    }

    /// Appends what has happened since the last call. O(slots that changed).
    pub fn poll(&self, arrivals: &mut Vec<Arrival>) {
        let inner = &self.inner;
        inner.rings_seen.store(inner.board.rings(), Ordering::Relaxed);
        // Taken first and given last: a slot's layers are looked at after its fence was told, so none come behind it.
        let told = std::mem::take(&mut *lock(&inner.arrivals));
        inner.board.take_changed(|slot| arrivals.extend(inner.progress(slot)));
        arrivals.extend(told);
    }

    /// Wakes whoever sleeps in [`wait`](Self::wait), as if something had happened: who has more to look at sleeps there
    /// for all of it.
    pub fn wake(&self) {
        self.inner.board.ring();
    }

    /// Sleeps until something happens that [`poll`](Self::poll) has not seen, at most `within`; says whether it did.
    pub fn wait(&self, within: Duration) -> bool {
        let seen = self.inner.rings_seen.load(Ordering::Relaxed);
        self.inner.board.wait_change(seen, within) != seen
    }
}

impl Inner {
    /// Whether blocks can be granted as they are asked for.
    fn check_grant(
        &self,
        key: TransferKey,
        blocks: &[BlockId],
        granted: &BlockSet,
        layer_bytes: u64,
    ) -> Result<(), TransferError> {
        if granted.blocks().len() < blocks.len() {
            let mut seen = BTreeSet::new();
            if let Some(&block) = blocks.iter().find(|block| !seen.insert(block.0)) {
                return Err(TransferError::GrantedTwice { key, block });
            }
        }
        let unusable = self.unusable(granted, layer_bytes);
        unusable.map_or(Ok(()), |range| Err(TransferError::Refused { key, layer: 0, range }))
    }

    fn unusable(&self, granted: &BlockSet, layer_bytes: u64) -> Option<RangeError> {
        let blocks = granted.blocks();
        if blocks.is_empty() || layer_bytes == 0 {
            return Some(RangeError::Empty);
        }
        let shape = self.pool.shape();
        if let Some(&block) = blocks.iter().find(|block| block.0 >= shape.blocks) {
            return Some(RangeError::OutsidePool { block, offset: 0, bytes: 0 });
        }
        let (room, block) =
            (blocks.len() as u64 * u64::from(shape.layout.layer_block_bytes()), blocks.last()?);
        let bytes = u32::try_from(layer_bytes).unwrap_or(u32::MAX);
        (layer_bytes > room).then_some(RangeError::OutsidePool { block: *block, offset: 0, bytes })
    }

    fn place(&self, key: TransferKey) -> Result<MutexGuard<'_, Slot>, TransferError> {
        self.slots.get(key.slot as usize).map(lock).ok_or(TransferError::Unknown { key })
    }

    fn with_open<T>(&self, key: TransferKey, read: impl FnOnce(&Open) -> T) -> Result<T, TransferError> {
        self.place(key)?.of(key).map(read)
    }

    fn landed(&self, key: TransferKey) -> u16 {
        let is_here = |&layer: &u16| {
            matches!(self.board.peek(key.slot, key.generation, layer), CellState::Published(_))
        };
        (0..self.board.layers()).take_while(is_here).count() as u16
    }

    /// What is new of a slot's layers.
    fn progress(&self, slot: u32) -> Option<Arrival> {
        let mut place = lock(self.slots.get(slot as usize)?);
        let open = place.open.as_mut()?;
        let layers = self.landed(open.key);
        let is_new = layers > open.told;
        open.told = layers;
        is_new.then_some(Arrival::Layers { key: open.key, layers, of: self.board.layers() })
    }

    fn tell(&self, arrival: Arrival) {
        if let Arrival::Failed(key, _) | Arrival::Fenced(key) = &arrival {
            self.settling[key.slot as usize].notify_all();
        }
        lock(&self.arrivals).push_back(arrival);
        self.board.ring();
    }
}

/// For backends.
impl Landing {
    /// Makes a layer visible, after every byte of it.
    ///
    /// # Errors
    /// It is not open to this writer, is closed or published, or has other bytes than were agreed.
    pub fn publish(
        &self,
        writer: Incarnation,
        key: TransferKey,
        layer: u16,
        seal: LayerSeal,
    ) -> Result<(), TransferError> {
        self.writing(writer, key)?.publish(layer, seal)
    }

    /// Whether a writer has this transfer's token: it may be over for it, but it is its own. For writers that come by a
    /// stream. Who has mapped the memory is let in or not, and no token would keep it from a block.
    pub fn shows(&self, writer: Incarnation, key: TransferKey, token: &Token) -> bool {
        self.inner.with_open(key, |open| open.writer == writer && open.token == *token).unwrap_or(false)
    }

    /// A hold on a transfer for writing its blocks from this process: while it lives, the transfer is neither stopped
    /// nor released, and other calls about it wait, so the thread that has it must make none.
    ///
    /// # Errors
    /// It is not open to this writer, or has been stopped.
    pub fn writing(&self, writer: Incarnation, key: TransferKey) -> Result<Writing<'_>, TransferError> {
        let place = self.inner.place(key)?;
        Writing::new(&self.inner, place, writer, key)
    }

    /// Fails a transfer whose bytes or frames were wrong: as [`stop`](Self::stop), with a reason.
    pub fn fail(&self, key: TransferKey, error: TransferError) {
        // Whoever fails what is over has nothing to add.
        let _ = self.end(key, Some(error));
    }

    /// The writer says that it writes no more for a stopped transfer.
    pub fn fenced(&self, writer: Incarnation, key: TransferKey) {
        let Ok(mut place) = self.inner.place(key) else { return };
        let Ok(open) = place.of_mut(key) else { return };
        if open.writer == writer && open.phase == Phase::Stopping {
            open.phase = Phase::Fenced;
            drop(place);
            self.inner.tell(Arrival::Fenced(key));
        }
    }

    /// Whether every layer of a transfer is here, and every byte of it in place.
    pub(crate) fn is_whole(&self, key: TransferKey) -> bool {
        let settled = self.inner.with_open(key, |open| open.settled);
        settled == Ok(true) && self.inner.landed(key) == self.inner.board.layers()
    }

    /// The writer says that every byte of a transfer is in place.
    pub fn settle(&self, writer: Incarnation, key: TransferKey) {
        let Ok(mut place) = self.inner.place(key) else { return };
        let Ok(open) = place.of_mut(key) else { return };
        if open.writer == writer {
            open.settled = true;
            self.inner.settling[key.slot as usize].notify_all();
            // For a driver that only polls, and could not release it before.
            self.inner.board.ring();
        }
    }

    fn end(&self, key: TransferKey, error: Option<TransferError>) -> Result<(), TransferError> {
        let inner = &self.inner;
        // In this order everywhere: writers, then a slot.
        let writers = lock(&inner.writers);
        let mut place = inner.place(key)?;
        let open = place.of_mut(key)?;
        if open.phase != Phase::Open {
            return Ok(());
        }
        let writer = open.writer;
        // A transfer that has landed whole is not written any more, whoever its writer is.
        let landed = inner.board.close(key.slot, key.generation) == 0 && open.settled;
        if landed && error.is_some() {
            // Every layer has been checked and seen; what comes after that makes none of them wrong.
            return Ok(());
        }
        open.failure.clone_from(&error);
        open.phase = if landed || writers.is_fenced(writer) { Phase::Fenced } else { Phase::Stopping };
        let fenced = open.phase == Phase::Fenced;
        drop(place);
        if let Some(error) = error {
            inner.tell(Arrival::Failed(key, error));
        }
        if fenced {
            inner.tell(Arrival::Fenced(key));
        }
        let handle = writers.handle(writer);
        drop(writers);
        // Outside the locks: the handle writes to a socket.
        if let Some(handle) = handle {
            handle.stop(key);
        }
        Ok(())
    }
}

/// Layers that a board refuses, as errors of a transfer.
pub(crate) fn unpublishable(
    key: TransferKey,
    layer: u16,
    peer: PeerState,
    why: Unpublishable,
) -> TransferError {
    match why {
        Unpublishable::Closed => TransferError::Stopped { key, layer, peer },
        Unpublishable::Twice => TransferError::Published { key, layer },
        Unpublishable::Stale => TransferError::Unknown { key },
    }
}
