//! A transfer: its name, what was granted for it, and the half that writes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, KvRange, PoolShape};
use splitcore_secret::Token;

use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::word::Generation;

/// Names one transfer: a place in the receiver's table, and which of the transfers that used it. A retry has another
/// generation, so whatever is late of the old one is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TransferKey {
    /// For whom; the transport only carries it.
    pub request: RequestId,
    /// The receiver's slot.
    pub slot: u32,
    /// The slot's generation.
    #[serde(with = "number")]
    pub generation: Generation,
}

/// A generation is its number; one out of range is refused.
mod number {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::word::Generation;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(generation: &Generation, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(generation.get())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Generation, D::Error> {
        let number = u32::deserialize(from)?;
        Generation::new(number).ok_or_else(|| {
            D::Error::custom(format!("generation {number}, expected 1 to {}", Generation::LAST.get()))
        })
    }
}

impl fmt::Display for TransferKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}, slot {}, generation {}", self.request.0, self.slot, self.generation.get())
    }
}

/// The receiver's leave to write: it travels to the writer by the scheduler's own messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The transfer.
    pub key: TransferKey,
    /// Whose blocks.
    pub receiver: Incarnation,
    /// The receiver's blocks, in position order.
    pub blocks: Vec<BlockId>,
    /// Bytes that this writer puts in each layer.
    pub layer_bytes: u64,
    /// Shows that its bearer has this leave: the rest of it can be guessed.
    pub token: Token,
}

/// What is known of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// It has not connected yet.
    Absent,
    /// Connected, and as far as is known alive.
    Connected,
    /// The connection broke; it may still write, since nobody has seen it die.
    Silent,
    /// It is gone, and writes no more.
    Lost,
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "absent",
            Self::Connected => "connected",
            Self::Silent => "silent",
            Self::Lost => "lost",
        })
    }
}

/// The one end of a transfer at its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// Every byte of every layer has been read here, and every layer is published. The blocks may go once the
    /// destination says that it has landed.
    LocalDone(TransferKey),
    /// It was stopped, by either side, and nothing is written any more.
    Fenced(TransferKey),
    /// It failed, and nothing is written any more.
    Failed(TransferKey, TransferError),
}

impl Completion {
    /// Which transfer ended.
    pub fn key(&self) -> TransferKey {
        match self {
            Self::LocalDone(key) | Self::Fenced(key) | Self::Failed(key, _) => *key,
        }
    }
}

/// Wakes somebody, and does nothing else: it is called with locks held.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The writing half: one sender's connection to one receiver, whatever carries the bytes.
///
/// No call waits for the peer. Shared memory copies in the caller's thread, the others queue; source blocks must stay
/// as they are until the transfer's [`Completion`]. Each transfer that was begun comes to exactly one.
pub trait Link: Send + Sync {
    /// Begins a transfer under a grant of this peer.
    ///
    /// # Errors
    /// The peer is gone, the grant is another incarnation's, or the key is in use.
    fn begin(&self, grant: &Grant) -> Result<(), TransferError>;

    /// Lets everything that is put from now on be copied after the work that `stream`, a stream of the source pool's
    /// device, has been given so far. Memory of the host knows no streams.
    ///
    /// # Errors
    /// The pools are not on devices; the device fails.
    fn after(&self, stream: u64) -> Result<(), TransferError> {
        let reason = "this link copies memory of the host, which has no streams".to_owned();
        Err(TransferError::Device { what: format!("waiting for stream {stream:#x}"), reason })
    }

    /// Puts ranges of one layer; a layer may be put in several calls.
    ///
    /// # Errors
    /// A range outside either pool or the grant, empty, or overlapping what is put for the layer already; more bytes
    /// than the layer has; a layer published already; a peer known to be gone. Nothing of the call is then written, and the transfer
    /// goes on.
    fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError>;

    /// Makes a layer of `tokens` tokens visible to the receiver, after every byte put for it.
    ///
    /// # Errors
    /// Fewer bytes put than the layer has; published already; stopped by the receiver; a peer known to be gone.
    fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError>;

    /// Stops a transfer: [`Completion::Fenced`] follows, unless it has ended or ends otherwise. One that was never begun
    /// has no end; its receiver may be told all the same.
    fn stop(&self, key: TransferKey);

    /// Appends the transfers that have ended since the last call. O(those).
    fn poll(&self, ended: &mut Vec<Completion>);

    /// Sleeps until there is something to [`poll`](Self::poll), at most `within`; says whether there is.
    fn wait(&self, within: Duration) -> bool;

    /// Calls this from here on whenever there is something to [`poll`](Self::poll), and when the receiver is lost, so
    /// that one thread can sleep for many links. What was so before is for the caller to look at. Only the first call
    /// of this counts.
    fn on_end(&self, wake: Wake);

    /// What is known of the receiver: [`PeerState::Connected`] or [`PeerState::Lost`].
    fn peer(&self) -> PeerState;

    /// The receiver's pool.
    fn remote(&self) -> &PoolShape;
}
