//! What the driver of a Machine needs of the transport, and nothing more: leave to write is given and taken, KV is put,
//! and facts come back as [`MoverEvent`]s.
//!
//! ```text
//! driver's thread    open, close, abort | granted, put, follow, stop       none of them waits
//! engine's thread    Follow::put_layer                                     copies, where the backend copies here
//! kv-put             puts after their pass, one after the other            copies, where the backend copies here
//! kv-watch           sleeps for all connections; tells what has happened
//! kv-connect, ..     one for each connection that is made, closed or doubted, as long as that takes
//! ```
//!
//! A leg is either what comes to this machine or what goes from it, so that its key says which. Layouts are whole: one
//! machine has all heads of its model.

mod books;
mod incoming;
mod links;
mod outgoing;
mod watch;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::BlockId;
use splitcore_transport::{
    ConnectOptions, Endpoint, HandshakeError, Incarnation, ListenOptions, Pool, Receiver, TransferError,
};
use splitcore_wire::message::{GrantBody, PeerAddress};

use books::Shared;

pub use outgoing::Follow;

/// How a machine moves KV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoverOptions {
    /// How others reach it, and how many transfers may come at once (`slots`).
    pub listen: ListenOptions,
    /// How it reaches others: the backend, if it is forced, how long connecting may take (`within`), and how long
    /// another machine may take nothing (`stall_limit`).
    pub connect: ConnectOptions,
    /// What others are told where it listens at all addresses of this host.
    pub host: Option<IpAddr>,
    /// How long a stopped transfer may take to end before its connection is closed. Above `stall_limit`.
    pub stop_limit: Duration,
    /// How long a machine whose connection has broken may take to show that it is gone.
    pub probe_limit: Duration,
}

impl MoverOptions {
    /// For machines that serve this model.
    pub fn new(model: impl Into<String>) -> Self {
        let model = model.into();
        Self {
            listen: ListenOptions::new(model.clone()),
            connect: ConnectOptions::new(model),
            host: None,
            stop_limit: Duration::from_secs(15),
            probe_limit: Duration::from_secs(2),
        }
    }
}

/// Why the mover cannot do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum MoverError {
    /// The `transfer` of an address says nothing.
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

/// What has happened. `transfer` numbers what was opened or put: see [`Mover::is_current`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoverEvent {
    /// The first `layers` of `of` layers of a leg are here.
    Landed {
        /// Which leg.
        key: LegKey,
        /// Of which transfer.
        transfer: u64,
        /// How many.
        layers: u16,
        /// Of how many.
        of: u16,
    },
    /// Everything of a leg has been read here.
    LocalDone {
        /// Which leg.
        key: LegKey,
        /// Of which transfer.
        transfer: u64,
    },
    /// What goes from here has failed, and nothing is read or written for it any more.
    Failed {
        /// Which leg.
        key: LegKey,
        /// Of which transfer.
        transfer: u64,
        /// Why, for people.
        reason: String,
    },
    /// What [`Mover::stop`] or [`Mover::abort`] has stopped is not read or written any more. Of a leg that was to come
    /// here that is what an `AbortAck` says as well, by the transport's own knowledge: the machine may hear it as one.
    Fenced {
        /// Which leg.
        key: LegKey,
        /// Of which transfer.
        transfer: u64,
    },
    /// The process of another machine is dead. Told once of each.
    PeerLost {
        /// Which machine.
        machine: MachineId,
    },
}

impl MoverEvent {
    fn transfer(&self) -> Option<(LegKey, u64)> {
        match *self {
            Self::Landed { key, transfer, .. }
            | Self::LocalDone { key, transfer }
            | Self::Failed { key, transfer, .. }
            | Self::Fenced { key, transfer } => Some((key, transfer)),
            Self::PeerLost { .. } => None,
        }
    }
}

/// The `transfer` of a [`PeerAddress`].
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct TransferText {
    endpoint: Endpoint,
}

fn endpoint_of(address: &PeerAddress) -> Result<Endpoint, String> {
    serde_json::from_str::<TransferText>(&address.transfer)
        .map(|text| text.endpoint)
        .map_err(|error| error.to_string())
}

/// Moves the KV of one machine's legs. Dropped, it ends all transfers and tells nothing more.
pub struct Mover {
    shared: Arc<Shared>,
    transfer: String,
    threads: Vec<JoinHandle<()>>,
    /// Gone last: until then what is stopped can be fenced.
    _receiver: Receiver,
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mover").field("transfer", &self.transfer).finish_non_exhaustive()
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
        let me = Incarnation::random()?;
        let receiver = Receiver::listen(Arc::clone(&pool), me, options.listen.clone())?;
        let mut endpoint = receiver.endpoint().clone();
        if let (Some(at), Some(host)) = (&mut endpoint.tcp, options.host)
            && at.ip().is_unspecified()
        {
            at.set_ip(host);
        }
        let text = TransferText { endpoint };
        let transfer = serde_json::to_string(&text).map_err(|error| MoverError::Text(error.to_string()))?;
        let shared = Arc::new(Shared::new(pool, me, options, receiver.landing().clone(), Box::new(tell)));
        let mut mover = Self { shared, transfer, threads: Vec::new(), _receiver: receiver };
        for (name, run) in [("kv-put", outgoing::run as fn(&Arc<Shared>)), ("kv-watch", watch::run)] {
            let shared = Arc::clone(&mover.shared);
            let thread = std::thread::Builder::new().name(name.to_owned());
            mover.threads.push(thread.spawn(move || run(&shared))?);
        }
        Ok(mover)
    }

    /// How others reach it: the `transfer` of this machine's [`PeerAddress`].
    pub fn transfer(&self) -> &str {
        &self.transfer
    }

    /// Whether an event is about what its leg has now. False for one that was on its way while another transfer of the
    /// same leg took its place, and for one of a leg that was closed: the machine must not hear it.
    pub fn is_current(&self, event: &MoverEvent) -> bool {
        event
            .transfer()
            .is_none_or(|(key, transfer)| self.shared.books().current.get(&key) == Some(&transfer))
    }

    /// Transfers that hold one of the `slots`: those that may come, have come and were not closed, or may still be
    /// written.
    pub fn slots_in_use(&self) -> u32 {
        self.shared.landing.in_use()
    }

    /// As the destination: lets `source` write the first `tokens` positions of a leg into `blocks`. Gives the
    /// transport's part of the grant. Asked again for a leg that is open, it gives the same again, and a new one where
    /// the transfer has failed meanwhile.
    ///
    /// # Errors
    /// The source's address cannot be read; every slot is taken; the blocks are not the pool's, or may still be written
    /// by a transfer that has failed.
    pub fn open(
        &mut self,
        key: LegKey,
        source: &PeerAddress,
        blocks: &[BlockId],
        tokens: u32,
    ) -> Result<String, MoverError> {
        self.shared.open(key, source, blocks, tokens)
    }

    /// The machine has no such leg any more, or has taken what landed: all of it is forgotten, and its slot is free as
    /// soon as nobody writes. As the source: to be called when a leg has left, and when there is none for a grant.
    pub fn close(&mut self, key: LegKey) {
        self.shared.close(key);
    }

    /// As the destination: stops what is to come. [`MoverEvent::Fenced`] follows, always, and the slot is free then.
    pub fn abort(&mut self, key: LegKey) {
        self.shared.abort(key);
    }

    /// As the source: `to` lets a leg be written there. The connection is made, so that it is there when it is needed.
    pub fn granted(&mut self, key: LegKey, to: &PeerAddress, body: &GrantBody) {
        self.shared.granted(key, to, body);
    }

    /// As the source: sends the first `tokens` positions of a leg, all layers of it, after those asked for before. One
    /// end follows, unless the leg is put again or closed before.
    pub fn put(&mut self, key: LegKey, to: MachineId, blocks: &[BlockId], tokens: u32) {
        self.shared.put(key, to, blocks, tokens);
    }

    /// As the source: sends the layers of a leg as they are computed. One end follows, as of [`put`](Self::put).
    pub fn follow(&mut self, key: LegKey, to: MachineId, blocks: &[BlockId], tokens: u32) -> Follow {
        self.shared.follow(key, to, blocks, tokens)
    }

    /// There is reason to think that a machine is gone: its session has broken, say. If its process is dead,
    /// [`MoverEvent::PeerLost`] follows; of one that has never been connected it is known no other way.
    pub fn doubt(&mut self, machine: &PeerAddress) {
        self.shared.doubted(machine);
    }

    /// As the source: stops a transfer. [`MoverEvent::Fenced`] follows, also where it was done; if it has failed or
    /// fails, that is its end.
    pub fn stop(&mut self, key: LegKey) {
        self.shared.stop(key);
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let links = self.shared.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        drop(links);
    }
}
