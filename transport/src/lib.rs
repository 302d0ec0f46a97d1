//! Moves the KV cache of a leg from one machine's blocks to another's, by a plan, and decides nothing.
//!
//! The scheduler core asks (`Put`, `StopPut`) and hears facts (`LayersLanded`, `LocalDone`, `TransferFailed`,
//! `Fenced`, `PeerLost`); this crate is what lies between: [`Transport`] is the writing half, [`Landing`] the reading
//! half. There is no backend yet. The simulator's links answer the same requests, so a run without bytes behaves as
//! a run with them will.
//!
//! # Rules for every backend
//!
//! - **Push.** The destination sets blocks aside and grants them; only then does the source write.
//! - **Layer by layer.** A layer is published after every byte of it is in place, never before; a half-written layer
//!   is never seen. Layers are all-or-nothing.
//! - **One end.** Every transfer that was started comes to exactly one [`Completion`], failure and stop included.
//! - **Fencing.** After [`Transport::stop`] blocks stay untouchable until [`Completion::Fenced`]: over TCP when the
//!   connection's epoch closes, over shared memory and CUDA IPC when the writer acknowledges or dies.
//! - **Bounds.** A plan names blocks and offsets, not addresses, so the receiver checks every range.
//! - **No hidden timeouts.** Deadlines are arguments, and an error says what was waited for.

pub mod ring;
mod sync;
pub mod word;

use std::fmt;
use std::time::Duration;

use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::BlockId;

pub use word::LayerSeal;

/// One contiguous run of bytes, from a block here to a block there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Source block.
    pub from: BlockId,
    /// First byte within it.
    pub from_offset_bytes: u32,
    /// Destination block.
    pub to: BlockId,
    /// First byte within it.
    pub to_offset_bytes: u32,
    /// How many bytes.
    pub bytes: u32,
}

/// Why a transfer ended without all its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferError {
    /// The other machine is gone.
    PeerLost(MachineId),
    /// A range lies outside the blocks that were granted.
    OutOfBounds {
        /// Which leg.
        key: LegKey,
        /// The range.
        range: Range,
    },
    /// A layer did not come in time.
    Timeout {
        /// Which leg.
        key: LegKey,
        /// The layer that was waited for.
        layer: u16,
        /// For how long.
        waited: Duration,
    },
    /// A layer's bytes are not those that were sent.
    Corrupt {
        /// Which leg.
        key: LegKey,
        /// The layer.
        layer: u16,
    },
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerLost(machine) => write!(f, "machine {} is gone", machine.index),
            Self::OutOfBounds { key, range } => write!(
                f,
                "request {}: {} bytes at offset {} of block {} lie outside the grant",
                key.request.0, range.bytes, range.to_offset_bytes, range.to.0
            ),
            Self::Timeout { key, layer, waited } => {
                write!(f, "request {}: layer {layer} did not land within {waited:?}", key.request.0)
            }
            Self::Corrupt { key, layer } => write!(f, "request {}: layer {layer} is corrupt", key.request.0),
        }
    }
}

impl std::error::Error for TransferError {}

/// The one end of a transfer at its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// Every byte has been read here; the blocks may go once the destination says that it has landed.
    LocalDone(LegKey),
    /// It was stopped, and nothing is written any more.
    Fenced(LegKey),
    /// It failed, and nothing is written any more.
    Failed(LegKey, TransferError),
}

/// The writing half, at the source. No call blocks.
pub trait Transport {
    /// Queues the ranges of one layer. They may be split, batched and merged.
    ///
    /// # Errors
    /// A range out of bounds, or a peer known to be gone; nothing of this call is then written.
    fn put(&mut self, key: LegKey, to: MachineId, layer: u16, ranges: &[Range]) -> Result<(), TransferError>;

    /// Makes a layer visible at the destination, after every range put for it.
    ///
    /// # Errors
    /// A peer known to be gone.
    fn publish(&mut self, key: LegKey, layer: u16, seal: LayerSeal) -> Result<(), TransferError>;

    /// Stops a transfer, known or not; [`Completion::Fenced`] follows.
    fn stop(&mut self, key: LegKey);

    /// Appends the transfers that have ended since the last call.
    fn poll(&mut self, ended: &mut Vec<Completion>);
}

/// The reading half, at the destination.
pub trait Landing {
    /// Blocks until a layer is visible, at most `within`.
    ///
    /// # Errors
    /// Its failure, or [`TransferError::Timeout`].
    fn wait(&mut self, key: LegKey, layer: u16, within: Duration) -> Result<LayerSeal, TransferError>;

    /// The leg's blocks will be reused: a late publish for it is ignored from now on.
    fn release(&mut self, key: LegKey);
}
