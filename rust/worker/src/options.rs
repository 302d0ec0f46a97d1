//! What a worker is told when it starts.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use splitcore_core::config::MachineConfig;
use splitcore_core::event::Role;
use splitcore_wire::address::Address;
use splitcore_wire::auth::Secret;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::session::Limits;
use splitcore_wire::tls::Tls;

use crate::doors::TransferListen;
use crate::log::Log;
use crate::mover::MoverOptions;

/// Where incarnations are counted from: 2026-01-01.
const EPOCH_S: u64 = 1_767_225_600;

/// What an engine can run. A request past it is ended in its first pass, without a token, instead of failing the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelBounds {
    /// Positions that the model knows.
    pub context: u32,
    /// Token ids are below this.
    pub vocabulary: u32,
}

impl Default for ModelBounds {
    fn default() -> Self {
        Self { context: u32::MAX, vocabulary: u32::MAX }
    }
}

/// Options of a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Where its daemon takes workers.
    pub connect: Address,
    /// With TLS, and then whom to trust to be the daemon.
    pub tls: Option<Tls>,
    /// What people call it; unique among the workers of a daemon.
    pub name: String,
    /// Its home pool.
    pub role: Role,
    /// The model, as the daemon names it.
    pub model: String,
    /// What an engine of it can run.
    pub bounds: ModelBounds,
    /// What daemon and workers share, if anything.
    pub secret: Option<Secret>,
    /// Where it takes other workers; `None`: on loopback if the daemon is there, else at this host's address on the way to
    /// the daemon.
    pub peer_listen: Option<Address>,
    /// Where it takes KV by TCP. Takes the place of what `mover` says of it.
    pub transfer_listen: TransferListen,
    /// How it moves KV.
    pub mover: MoverOptions,
    /// Its scheduler. `blocks` and `block_tokens` are the pool's, and passes are run one at a time.
    pub machine: MachineConfig,
    /// Bounds of its connections.
    pub limits: Limits,
    /// Waits between tries to connect, to the daemon and to workers.
    pub backoff: Backoff,
    /// Which life of the name it is: higher with each start.
    pub incarnation: u32,
    /// Where it writes down what its scheduler hears and does.
    pub event_log: Option<PathBuf>,
    /// Segments of it that are kept, the newest; `None`: all.
    pub event_log_keep: Option<u32>,
    /// Where it tells people what happens.
    pub log: Log,
}

/// The incarnation of a worker that starts now: tenths of a second since 2026.
pub fn incarnation_now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let tenths = since.as_millis() / 100;
    u32::try_from(tenths.saturating_sub(u128::from(EPOCH_S) * 10)).unwrap_or(u32::MAX).max(1)
}
