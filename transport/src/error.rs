//! What can go wrong, each with what was found and what was expected.

use std::time::Duration;

use rustix::io::Errno;
use splitcore_core::kv::{BlockId, LayoutError, RangeError};

use crate::handshake::Incarnation;
use crate::transfer::{PeerState, TransferKey};

/// Memory that cannot be had, or is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Nothing was asked for.
    #[error("a pool of 0 bytes; at least one block is needed")]
    Empty,
    /// Less than the pool takes.
    #[error("{found} bytes of memory for a pool of {wanted}")]
    TooShort {
        /// What is there.
        found: u64,
        /// What it takes.
        wanted: u64,
    },
    /// A peer's memory that the peer could still shrink.
    #[error("the shared memory is not sealed against shrinking")]
    NotSealed,
    /// A peer's memory that is not its board.
    #[error("the shared memory is not the board of that peer")]
    NotABoard,
    /// A layout that no pool can have.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The system refused.
    #[error("{what} of {len} bytes: {errno}")]
    System {
        /// Which call.
        what: &'static str,
        /// For how many bytes.
        len: usize,
        /// Its answer.
        errno: Errno,
    },
    /// Memory of a device that cannot be shared the way it must be.
    #[error("{0}")]
    Device(String),
}

/// Two sides that cannot work together, or a peer that says nothing sensible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A field that must agree does not.
    #[error("{field}: {ours} here, {theirs} there")]
    Mismatch {
        /// Which.
        field: String,
        /// Ours.
        ours: String,
        /// Theirs.
        theirs: String,
    },
    /// No backend that both have, or not the one that was forced.
    #[error("no transport for this pair: {0}")]
    NoBackend(String),
    /// The peer refused, and said why.
    #[error("refused by the peer: {0}")]
    Refused(String),
    /// The peer's message is not one.
    #[error("not a handshake: {0}")]
    Malformed(String),
    /// The peer did not answer in time.
    #[error("no answer to the handshake within {0:?}")]
    Timeout(Duration),
    /// The connection could not be made, or broke.
    #[error("{what}: {reason}")]
    Io {
        /// Which step.
        what: String,
        /// Why.
        reason: String,
    },
    /// Memory of either side.
    #[error("{0}")]
    Memory(#[from] MemoryError),
}

/// Why a transfer, or one call of it, failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// A layer did not come in time.
    #[error("{key}, layer {layer}: nothing within {waited:?}, peer {peer}")]
    Timeout {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
        /// How long.
        waited: Duration,
        /// What is known of the writer.
        peer: PeerState,
    },
    /// The transfer was given up before the layer came.
    #[error("{key}, layer {layer}: stopped, peer {peer}")]
    Stopped {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
        /// What is known of the writer.
        peer: PeerState,
    },
    /// The other side is gone.
    #[error("{key}: peer {peer} is gone")]
    PeerLost {
        /// Which transfer.
        key: TransferKey,
        /// Which peer.
        peer: Incarnation,
    },
    /// The other side lives and takes nothing.
    #[error("{key}: peer {peer} took nothing for {waited:?}")]
    Stalled {
        /// Which transfer.
        key: TransferKey,
        /// Which peer.
        peer: Incarnation,
        /// How long.
        waited: Duration,
    },
    /// No such transfer: never granted, of an older generation, or over.
    #[error("{key} is not open here")]
    Unknown {
        /// Which.
        key: TransferKey,
    },
    /// A layer that the model does not have.
    #[error("{key}: layer {layer} of a model of {layers}")]
    NoSuchLayer {
        /// Which transfer.
        key: TransferKey,
        /// Which.
        layer: u16,
        /// How many there are.
        layers: u16,
    },
    /// A layer that is published already.
    #[error("{key}, layer {layer}: published already")]
    Published {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
    },
    /// A range that may not be written.
    #[error("{key}, layer {layer}: {range}")]
    Refused {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
        /// What is wrong with it.
        range: RangeError,
    },
    /// A grant that names a block more than once.
    #[error("{key}: block {block:?} is granted twice; each block of a request is there once", block = block.0)]
    GrantedTwice {
        /// Which transfer.
        key: TransferKey,
        /// Which block.
        block: BlockId,
    },
    /// Two ranges of one call that write the same bytes.
    #[error("{key}, layer {layer}: block {block:?} is written twice at offset {offset}", block = block.0)]
    Overlap {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
        /// Where the second begins.
        block: BlockId,
        /// Its offset.
        offset: u32,
    },
    /// Bytes to send that are not in the pool.
    #[error("{bytes} bytes at offset {offset} of block {block:?} lie outside the source pool", block = block.0)]
    OutsideSource {
        /// The block.
        block: BlockId,
        /// The offset in it.
        offset: u32,
        /// How many.
        bytes: u32,
    },
    /// More or fewer bytes than a layer has.
    #[error("{key}, layer {layer}: {bytes} bytes of {expected}")]
    Incomplete {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
        /// What was put.
        bytes: u64,
        /// What the layer has.
        expected: u64,
    },
    /// A layer that another thread is still putting.
    #[error("{key}, layer {layer}: a put of it is still running")]
    StillPut {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
    },
    /// The bytes that arrived are not those that were sent.
    #[error("{key}, layer {layer}: checksum {found:08x}, {expected:08x} was sent")]
    Corrupt {
        /// Which transfer.
        key: TransferKey,
        /// Which layer.
        layer: u16,
        /// Of what arrived.
        found: u32,
        /// Of what was sent.
        expected: u32,
    },
    /// Blocks that may still be written, or are still awaited.
    #[error("{key} is still being written: stop it and wait until it is fenced")]
    NotFenced {
        /// Which.
        key: TransferKey,
    },
    /// Every slot is taken.
    #[error("all {slots} slots are taken")]
    NoSlot {
        /// How many there are.
        slots: u32,
    },
    /// Too much is queued for a peer.
    #[error("{queued} puts are queued for this peer, at most {limit}")]
    Busy {
        /// How many are.
        queued: usize,
        /// The bound.
        limit: usize,
    },
    /// The receiver refused it.
    #[error("{key}: refused by the receiver: {reason}")]
    Denied {
        /// Which transfer.
        key: TransferKey,
        /// What it said.
        reason: String,
    },
    /// A frame that is none, or breaks a rule; the connection is closed.
    #[error("broken protocol: {0}")]
    Protocol(String),
    /// The system refused.
    #[error("{what}: {reason}")]
    Io {
        /// Which step.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// The device refused.
    #[error("{what}: {reason}")]
    Device {
        /// Which call.
        what: String,
        /// Its answer.
        reason: String,
    },
}
