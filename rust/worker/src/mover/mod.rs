//! What the driver of a Machine needs of the transport, and nothing more: leave to write is given and taken, KV is put,
//! and facts come back as [`MoverEvent`]s.
//!
//! A leg is either what comes to this machine or what goes from it, so that its key says which.

use std::sync::Arc;
use std::time::Duration;

use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::BlockId;
use splitcore_transport::{ConnectOptions, HandshakeError, ListenOptions, Pool, TransferError};
use splitcore_wire::message::{GrantBody, PeerAddress};

/// How a machine moves KV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoverOptions {
    /// How others reach it, and how many transfers may come at once (`slots`).
    pub listen: ListenOptions,
    /// How it reaches others: the backend, if it is forced, how long connecting may take (`within`), and how long
    /// another machine may take nothing (`stall_limit`).
    pub connect: ConnectOptions,
    /// How long a stopped transfer may take to end before its connection is closed. Above `stall_limit`.
    pub stop_limit: Duration,
    /// How long a machine whose connection has broken may take to show that it is there.
    pub probe_limit: Duration,
}

impl MoverOptions {
    /// For machines that serve this model.
    pub fn new(model: impl Into<String>) -> Self {
        let model = model.into();
        Self {
            listen: ListenOptions::new(model.clone()),
            connect: ConnectOptions::new(model),
            stop_limit: Duration::from_secs(15),
            probe_limit: Duration::from_secs(2),
        }
    }
}

/// Why the mover cannot do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum MoverError {
    /// The `transfer` of an address, or of a grant, says nothing.
    #[error("a transfer text that cannot be read: {0}")]
    Text(String),
    /// There is nobody to receive.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Blocks cannot be granted.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// There is no thread.
    #[error("no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoverEvent {
    /// The first `layers` of `of` layers of a leg are here.
    Landed {
        /// Which leg.
        key: LegKey,
        /// How many.
        layers: u16,
        /// Of how many.
        of: u16,
    },
    /// Everything of a leg has been read here.
    LocalDone {
        /// Which leg.
        key: LegKey,
    },
    /// What goes from here has failed, and nothing is read or written for it any more.
    Failed {
        /// Which leg.
        key: LegKey,
    },
    /// What [`Mover::stop`] or [`Mover::abort`] has stopped is not read or written any more. Of a leg that was to come
    /// here that is what an `AbortAck` says as well, by the transport's own knowledge: the machine may hear it as one.
    Fenced {
        /// Which leg.
        key: LegKey,
    },
    /// The process of another machine is dead. Told once of each.
    PeerLost {
        /// Which machine.
        machine: MachineId,
    },
}

/// Moves the KV of one machine's legs.
#[derive(Debug)]
pub struct Mover {}

/// A transfer that follows the layers of a pass. Dropped before all layers were put, it has failed.
#[derive(Debug)]
pub struct Follow {}

impl Follow {
    /// A layer's KV is in its blocks: it is sent while the next layer is computed. What goes wrong ends the transfer,
    /// and the driver hears of it.
    pub fn put_layer(&mut self, layer: u16) {
        let _ = layer;
    }
}

impl Mover {
    /// Begins to receive. `tell` is called on any thread, that of the caller too, with locks held: it must neither
    /// wait nor call the mover.
    ///
    /// # Errors
    /// There are no sockets, no memory or no threads.
    pub fn start(
        pool: Arc<Pool>,
        options: MoverOptions,
        tell: impl Fn(MoverEvent) + Send + Sync + 'static,
    ) -> Result<Self, MoverError> {
        let _ = (pool, options, tell);
        unimplemented!()
    }

    /// How others reach it: the `transfer` of this machine's [`PeerAddress`].
    pub fn transfer(&self) -> &str {
        unimplemented!()
    }

    /// As the destination: lets `source` write the first `tokens` positions of a leg into `blocks`. Gives the
    /// transport's part of the grant. Asked again for a leg that is open, it gives the same again, and a new one where
    /// the transfer has failed meanwhile.
    ///
    /// # Errors
    /// The source's address cannot be read; every slot is taken; the blocks are not the pool's.
    pub fn open(
        &mut self,
        key: LegKey,
        source: &PeerAddress,
        blocks: &[BlockId],
        tokens: u32,
    ) -> Result<String, MoverError> {
        let _ = (key, source, blocks, tokens);
        unimplemented!()
    }

    /// The machine has no such leg any more, or has taken what landed: all of it is forgotten, and its slot is free as
    /// soon as nobody writes. As the source: to be called when a leg has left, and when there is none for a grant.
    pub fn close(&mut self, key: LegKey) {
        let _ = key;
    }

    /// As the destination: stops what is to come. [`MoverEvent::Fenced`] follows, always, and frees the slot.
    pub fn abort(&mut self, key: LegKey) {
        let _ = key;
    }

    /// As the source: `to` lets a leg be written there.
    pub fn granted(&mut self, key: LegKey, to: &PeerAddress, body: &GrantBody) {
        let _ = (key, to, body);
    }

    /// As the source: sends the first `tokens` positions of a leg, all layers of it, after those asked for before. One
    /// end follows.
    pub fn put(&mut self, key: LegKey, to: MachineId, blocks: &[BlockId], tokens: u32) {
        let _ = (key, to, blocks, tokens);
    }

    /// As the source: sends the layers of a leg as they are computed. One end follows.
    pub fn follow(&mut self, key: LegKey, to: MachineId, blocks: &[BlockId], tokens: u32) -> Follow {
        let _ = (key, to, blocks, tokens);
        unimplemented!()
    }

    /// As the source: stops a transfer. [`MoverEvent::Fenced`] follows, also where it was done; if it has failed or
    /// fails, that is its end.
    pub fn stop(&mut self, key: LegKey) {
        let _ = key;
    }
}
