//! The sender's half.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use splitcore_core::kv::{KvRange, PoolShape};

use crate::board::Board;
use crate::connect::ConnectOptions;
use crate::error::{HandshakeError, TransferError};
use crate::handshake::{Endpoint, Hello};
use crate::ledger::Ledger;
use crate::local::{Call, Message, Sending, call};
use crate::memory::Mapping;
use crate::pool::Pool;
use crate::transfer::{Completion, Grant, Link, PeerState, TransferKey, Wake};
use crate::word::{CellState, LayerSeal, Unpublishable};

/// Bytes that are copied under one hold of the gate: how long a stop may have to wait.
const PIECE: usize = 1 << 20;

/// A sender's connection by shared memory.
pub(super) struct ShmLink {
    shared: Arc<Shared>,
    /// The receiver's, as they are here; gone before the goodbye.
    mapped: Option<Mapped>,
    call: Call,
}

struct Mapped {
    pool: Mapping,
    board: Board,
    /// The receiver's pool is the sender's own, so that copies may overlap.
    is_own: bool,
}

/// What the connection's thread has too.
struct Shared {
    ledger: Ledger,
    /// Shared by whoever copies, for a piece at a time; taken alone to end transfers. So a transfer that has ended is
    /// not written by a copy that began before.
    gate: RwLock<()>,
    /// Layers that are being put, once for each call: the books have their bytes before memory has.
    putting: Mutex<Vec<(TransferKey, u16)>>,
}

/// A call of [`Link::put`], as long as it runs.
struct Putting<'a> {
    shared: &'a Shared,
    layer: (TransferKey, u16),
}

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        let mut putting = self.shared.putting();
        if let Some(at) = putting.iter().position(|layer| *layer == self.layer) {
            putting.swap_remove(at);
        }
    }
}

impl Shared {
    fn putting(&self) -> MutexGuard<'_, Vec<(TransferKey, u16)>> {
        self.putting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: TransferKey, layer: u16) -> Putting<'_> {
        self.putting().push((key, layer));
        Putting { shared: self, layer: (key, layer) }
    }

    fn copying(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ending(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a transfer once no copy runs.
    fn end(&self, completion: Completion) -> bool {
        let _alone = self.ending();
        self.ledger.end(completion)
    }
}

impl Sending for Shared {
    fn fence(&self, key: TransferKey) -> bool {
        self.end(Completion::Fenced(key));
        true
    }

    fn lose(&self) {
        let _alone = self.ending();
        let peer = self.ledger.receiver();
        self.ledger.lose(|key| TransferError::PeerLost { key, peer });
    }
}

impl ShmLink {
    pub(super) fn connect(
        pool: &Arc<Pool>,
        to: &Endpoint,
        hello: &Hello,
        options: &ConnectOptions,
    ) -> Result<Self, HandshakeError> {
        if pool.host_base().is_none() {
            return Err(HandshakeError::NoBackend("the sender's pool is not in its memory".to_owned()));
        }
        // In this order, so that what fails is unmapped before the goodbye.
        let (mut call, welcome, [theirs, board]) = call::<2>(to, hello, options)?;
        let mapped = Mapped {
            is_own: pool.mapping().is_some_and(|ours| ours.is_of(&theirs)),
            pool: Mapping::open(theirs, welcome.shape.bytes() as usize)?,
            board: Board::open(board, welcome.slots, welcome.shape.layout.layers, welcome.incarnation)?,
        };
        mapped.pool.prefault();
        let ledger = Ledger::new(pool.clone(), welcome.shape, welcome.incarnation);
        let shared = Arc::new(Shared { ledger, gate: RwLock::new(()), putting: Mutex::default() });
        call.attend(shared.clone())?;
        Ok(Self { shared, mapped: Some(mapped), call })
    }

    fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Why a transfer is no longer open: it was stopped, or ended with its receiver.
    fn stopped(&self, key: TransferKey, layer: u16) -> TransferError {
        match self.ledger().peer() {
            PeerState::Lost => TransferError::PeerLost { key, peer: self.ledger().receiver() },
            peer => TransferError::Stopped { key, layer, peer },
        }
    }

    /// What the board refuses, the receiver has ended: so it is ended here, and who asks for more is told.
    fn refused(&self, key: TransferKey, layer: u16, why: Unpublishable) -> TransferError {
        if why == Unpublishable::Twice {
            return TransferError::Published { key, layer };
        }
        self.shared.end(Completion::Fenced(key));
        self.stopped(key, layer)
    }
}

impl Mapped {
    /// Copies a piece of a range.
    fn copy(&self, pool: &Pool, from: u64, to: u64, bytes: usize) {
        let Some(source) = pool.host_base() else { return };
        let destination = if self.is_own { source } else { self.pool.base() };
        // SAFETY: the ledger has checked both ranges against the shapes of the two pools, and the mappings are at
        // least as long as those say. One memory is addressed by one mapping, so overlapping bytes are seen to be.
        unsafe {
            let source = source.add(from as usize);
            destination.add(to as usize).copy_from(source, bytes);
        }
    }
}

impl Link for ShmLink {
    fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        self.ledger().begin(grant)
    }

    fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError> {
        let Some(mapped) = &self.mapped else { return Err(TransferError::Unknown { key }) };
        let (ledger, pool) = (self.ledger(), self.ledger().pool());
        // Before anything is booked: a grant may be older than what the receiver has done since.
        if ledger.is_open(key) && layer < mapped.board.layers() {
            match mapped.board.peek(key.slot, key.generation, layer) {
                CellState::Pending => {}
                CellState::Published(_) => return Err(TransferError::Published { key, layer }),
                CellState::Closed => return Err(self.refused(key, layer, Unpublishable::Closed)),
            }
        }
        let _putting = self.shared.put(key, layer);
        let copies = ledger.put(key, layer, ranges)?;
        let (mut hold, mut left) = (None, 0);
        for copy in copies {
            let (mut done, bytes) = (0, copy.bytes as usize);
            while done < bytes {
                if left == 0 {
                    drop(hold.take());
                    hold = Some(self.shared.copying());
                    if !ledger.is_open(key) {
                        return Err(self.stopped(key, layer));
                    }
                    left = PIECE;
                }
                let piece = left.min(bytes - done);
                mapped.copy(pool, copy.from + done as u64, copy.to + done as u64, piece);
                done += piece;
                left -= piece;
            }
        }
        Ok(())
    }

    fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError> {
        let Some(mapped) = &self.mapped else { return Err(TransferError::Unknown { key }) };
        let hold = self.shared.copying();
        let sealed = {
            // Held until the books have it: a put that begins in between books all bytes before it has copied one.
            let putting = self.shared.putting();
            if putting.contains(&(key, layer)) {
                return Err(TransferError::StillPut { key, layer });
            }
            self.ledger().publish(key, layer)?
        };
        let seal = LayerSeal { tokens, bytes: sealed.bytes, crc32c: None };
        let published = mapped.board.publish(key.slot, key.generation, layer, seal);
        if published.is_ok() && sealed.last {
            self.ledger().end(Completion::LocalDone(key));
        }
        drop(hold);
        published.map_err(|why| self.refused(key, layer, why))
    }

    fn stop(&self, key: TransferKey) {
        self.shared.end(Completion::Fenced(key));
        self.call.line().send(Message::GivenUp(key));
    }

    fn poll(&self, ended: &mut Vec<Completion>) {
        self.ledger().poll(ended);
    }

    fn wait(&self, within: Duration) -> bool {
        self.ledger().wait(within)
    }

    fn on_end(&self, wake: Wake) {
        self.ledger().on_end(wake);
    }

    fn peer(&self) -> PeerState {
        self.ledger().peer()
    }

    fn remote(&self) -> &PoolShape {
        self.ledger().remote()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.call.leave();
        self.mapped = None;
    }
}
