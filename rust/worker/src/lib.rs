//! One machine of the live service: its sessions, its scheduler and its KV transfers, around an engine that only runs passes.
//!
//! ```text
//!   daemon <== link ==\                       /== next_pass ==> engine
//!                      driver (the Machine)
//!   others <== peers ==/          |           \<== pass_done ==
//!                               mover <=== layers of a pass ==/
//! ```
//!
//! One thread has the [`splitcore_core::machine::Machine`] and does nothing that waits; everything else tells it what
//! happens by one channel.

#![forbid(unsafe_code)]

mod contexts;
mod doors;
mod driver;
mod inbox;
mod log;
pub mod mover;
mod options;
mod pass;
mod stats;

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use splitcore_core::config::{ConfigError, MachineConfig};
use splitcore_core::id::{Epoch, LegKey};
use splitcore_transport::Pool;
use splitcore_wire::address::Address;
use splitcore_wire::auth::Key;
use splitcore_wire::link::{LinkOptions, WorkerLink};
use splitcore_wire::peers::{Peers, PeersOptions};
use splitcore_wire::session::{Identity, Settings};

pub use doors::TransferListen;
pub use inbox::End;
pub use log::Log;
pub use options::{ModelBounds, WorkerOptions, incarnation_now};
pub use pass::{Pass, Span};
pub use stats::Stats;

use doors::{Doors, need_host, on_the_way_to};
use driver::Driver;
use inbox::{Board, Inbox, Input};
use mover::{Mover, MoverError};

/// Why a worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// An option is outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// KV can neither come nor go.
    #[error("{0}")]
    Mover(#[from] MoverError),
    /// It cannot listen for other workers.
    #[error("peer address {address}: {error}")]
    Peers {
        /// Where.
        address: String,
        /// Why not.
        error: io::Error,
    },
    /// Others cannot be told where this worker is.
    #[error(
        "no way to the daemon at {daemon}, so that it is not known where other workers would reach this one: {error}"
    )]
    Host {
        /// The daemon.
        daemon: String,
        /// Why not.
        error: io::Error,
    },
    /// The system has no randomness to give.
    #[error("random key: {0}")]
    Random(io::Error),
    /// There is no thread to be had.
    #[error("thread: {0}")]
    Thread(io::Error),
}

/// A machine at work. Dropped, it ends: what it holds the daemon places elsewhere.
#[derive(Debug)]
pub struct Worker {
    inbox: Inbox,
    board: Arc<Board>,
    peer: Address,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts to listen, and to look for its daemon, which may come later.
    ///
    /// # Errors
    /// An option that is none, an address that is not to be had, no memory or no thread.
    pub fn start(options: WorkerOptions, pool: Arc<Pool>) -> Result<Self, WorkerError> {
        let shape = *pool.shape();
        let machine = MachineConfig {
            blocks: shape.blocks,
            block_tokens: u32::from(shape.layout.block_tokens),
            pipeline_stages: 1,
            receives_max: Some(
                options.machine.receives_max.unwrap_or(u32::MAX).min(options.mover.listen.slots),
            ),
            ..options.machine
        };
        machine.validate()?;
        let (sender, inputs) = channel();
        let inbox = Inbox::new(sender, options.limits.queue_frames_max);
        let to = inbox.clone();
        let doors = Self::doors(&options)?;
        let mut moves = options.mover.clone();
        moves.listen.tcp = doors.transfers;
        moves.host = Some(doors.host);
        moves.listen.secret.clone_from(&options.secret);
        moves.connect.secret.clone_from(&options.secret);
        let mover = Mover::start(pool, moves, move |event| to.put(Input::Mover(event)))?;
        let settings =
            Settings { secret: options.secret.clone(), limits: options.limits, ..Settings::default() };
        let listen = PeersOptions {
            listen: doors.peers.clone(),
            settings: settings.clone(),
            backoff: options.backoff,
        };
        let (peers, peer) = Peers::bind(listen)
            .map_err(|error| WorkerError::Peers { address: doors.peers.to_string(), error })?;
        let peer = doors.told(&peer);
        let identity = Identity {
            name: options.name.clone(),
            index: None,
            incarnation: options.incarnation,
            epoch: Epoch(0),
            model: options.model.clone(),
            layout: shape.layout,
            blocks: shape.blocks,
            context: Some(options.bounds.context),
            peer: peer.to_string(),
            transfer: mover.transfer().to_owned(),
            key: Key::random().map_err(WorkerError::Random)?,
        };
        let to = inbox.clone();
        let link = LinkOptions {
            address: options.connect.clone(),
            tls: options.tls.clone(),
            identity: identity.clone(),
            settings,
            backoff: options.backoff,
        };
        let link = WorkerLink::start_telling(link, move |event| to.put_link(event));
        let link = link.map_err(WorkerError::Thread)?;
        let board = Arc::<Board>::default();
        let options = WorkerOptions { machine, ..options };
        let driver = Driver { options, identity, inputs, inbox: inbox.clone(), board: board.clone() };
        let thread = std::thread::Builder::new().name("splitcore-driver".to_owned());
        let thread = thread.spawn(move || driver.run(&link, peers, mover)).map_err(WorkerError::Thread)?;
        Ok(Self { inbox, board, peer, thread: Some(thread) })
    }

    /// What it opens, and says to people of that.
    fn doors(options: &WorkerOptions) -> Result<Doors, WorkerError> {
        let WorkerOptions { connect, peer_listen, transfer_listen, mover, .. } = options;
        let host = on_the_way_to(connect);
        let host = match host {
            Ok(host) => host,
            Err(error) if need_host(peer_listen.as_ref(), *transfer_listen) => {
                return Err(WorkerError::Host { daemon: connect.to_string(), error });
            }
            // The daemon may be known later, and what others are told is known already.
            Err(_) => Ipv4Addr::LOCALHOST.into(),
        };
        let doors = Doors::new(host, peer_listen.as_ref(), *transfer_listen, mover.connect.backend);
        let is_kept = options.secret.is_some() || options.tls.is_some();
        doors.warnings(is_kept).iter().for_each(|warning| options.log.line(&format!("warning: {warning}")));
        Ok(doors)
    }

    /// The next pass to run, if one comes within this time. `None` at once when the worker has ended.
    pub fn next_pass(&self, within: Duration) -> Option<Pass> {
        self.board.take(within)
    }

    /// The engine has run a pass, and drawn these tokens.
    pub fn pass_done(&self, number: u64, drawn: &[(LegKey, u32)]) {
        self.inbox.put(Input::Done { pass: number, drawn: drawn.to_vec() });
    }

    /// Asks its daemon to have what is here go on elsewhere. It goes on running passes, and ends when it holds nothing any
    /// more; at once where there is no daemon.
    pub fn leave(&self) {
        self.inbox.put(Input::Leave);
    }

    /// Ends it, and waits until its daemon has been told so.
    pub fn stop(&self) -> End {
        self.finish(End::Stopped)
    }

    /// Ends it because the engine cannot go on, as [`stop`](Self::stop). The daemon is told why.
    pub fn fail(&self, reason: &str) -> End {
        self.finish(End::Failed(reason.to_owned()))
    }

    fn finish(&self, end: End) -> End {
        self.inbox.put(Input::End(end));
        self.board.wait_end()
    }

    /// Why it has ended, if it has.
    pub fn ended(&self) -> Option<End> {
        self.board.ended()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.board.stats()
    }

    /// Where it takes other workers.
    pub fn peer_address(&self) -> &Address {
        &self.peer
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inbox.put(Input::End(End::Stopped));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
