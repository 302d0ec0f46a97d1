//! A slot, and the hold on it that a backend writes under.

use std::ops::Range;
use std::sync::MutexGuard;

use splitcore_core::kv::{BlockId, BlockSet};
use splitcore_secret::Token;

use super::{Inner, unpublishable};
use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::transfer::{PeerState, TransferKey};
use crate::word::{CellState, Generation, LayerSeal};

/// A place for one transfer at a time.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Of the last transfer here.
    pub(super) generation: Option<Generation>,
    pub(super) open: Option<Open>,
}

/// Where a transfer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It may be written.
    Open,
    /// It may not be written any more, but its writer has not said that it knows.
    Stopping,
    /// It is not written any more.
    Fenced,
}

/// A transfer in its slot.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) key: TransferKey,
    pub(super) writer: Incarnation,
    pub(super) token: Token,
    pub(super) granted: BlockSet,
    pub(super) layer_bytes: u64,
    pub(super) phase: Phase,
    /// Whether what is published is in place. A device's copies may still be under way when their layer is published.
    pub(super) settled: bool,
    /// Layers that [`super::Landing::poll`] has told of.
    pub(super) told: u16,
    /// Why it will not land.
    pub(super) failure: Option<TransferError>,
}

impl Open {
    pub(super) fn new(
        key: TransferKey,
        writer: Incarnation,
        token: Token,
        granted: BlockSet,
        layer_bytes: u64,
        settled: bool,
    ) -> Self {
        Self { key, writer, token, granted, layer_bytes, phase: Phase::Open, settled, told: 0, failure: None }
    }
}

impl Slot {
    pub(super) fn next_generation(&self) -> Generation {
        self.generation.map_or(Generation::FIRST, Generation::next)
    }

    pub(super) fn of(&self, key: TransferKey) -> Result<&Open, TransferError> {
        self.open.as_ref().filter(|open| open.key == key).ok_or(TransferError::Unknown { key })
    }

    pub(super) fn of_mut(&mut self, key: TransferKey) -> Result<&mut Open, TransferError> {
        self.open.as_mut().filter(|open| open.key == key).ok_or(TransferError::Unknown { key })
    }
}

/// A hold on an open transfer: see [`super::Landing::writing`].
pub struct Writing<'a> {
    inner: &'a Inner,
    place: MutexGuard<'a, Slot>,
    key: TransferKey,
}

impl<'a> Writing<'a> {
    pub(super) fn new(
        inner: &'a Inner,
        place: MutexGuard<'a, Slot>,
        writer: Incarnation,
        key: TransferKey,
    ) -> Result<Self, TransferError> {
        let open = place.of(key)?;
        if open.writer != writer {
            return Err(TransferError::Unknown { key });
        }
        if open.phase != Phase::Open {
            return Err(TransferError::Stopped { key, layer: open.told, peer: PeerState::Connected });
        }
        Ok(Self { inner, place, key })
    }

    fn open(&self) -> Result<&Open, TransferError> {
        self.place.of(self.key)
    }

    /// Where a range of a layer that is not yet published lies in the pool.
    ///
    /// # Errors
    /// It may not be written.
    pub fn admit(
        &self,
        layer: u16,
        block: BlockId,
        offset: u32,
        bytes: u32,
    ) -> Result<Range<u64>, TransferError> {
        let key = self.key;
        let layers = self.inner.board.layers();
        if layer >= layers {
            return Err(TransferError::NoSuchLayer { key, layer, layers });
        }
        match self.inner.board.peek(key.slot, key.generation, layer) {
            CellState::Pending => {}
            CellState::Published(_) => return Err(TransferError::Published { key, layer }),
            CellState::Closed => {
                return Err(TransferError::Stopped { key, layer, peer: PeerState::Connected });
            }
        }
        let shape = self.inner.pool.shape();
        shape
            .admit(&self.open()?.granted, layer, block, offset, bytes)
            .map_err(|range| TransferError::Refused { key, layer, range })
    }

    /// Bytes that each layer has.
    ///
    /// # Errors
    /// The transfer is over.
    pub fn layer_bytes(&self) -> Result<u64, TransferError> {
        Ok(self.open()?.layer_bytes)
    }

    /// Makes a layer visible.
    ///
    /// # Errors
    /// It has other bytes than were agreed, or is closed or published.
    pub fn publish(&self, layer: u16, seal: LayerSeal) -> Result<(), TransferError> {
        let key = self.key;
        let layers = self.inner.board.layers();
        if layer >= layers {
            return Err(TransferError::NoSuchLayer { key, layer, layers });
        }
        let expected = self.open()?.layer_bytes;
        if seal.bytes != expected {
            return Err(TransferError::Incomplete { key, layer, bytes: seal.bytes, expected });
        }
        self.inner
            .board
            .publish(key.slot, key.generation, layer, seal)
            .map_err(|why| unpublishable(key, layer, PeerState::Connected, why))
    }
}
