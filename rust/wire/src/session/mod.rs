//! Sessions as state machines without IO: what may be said when, who is let in, and when silence is too long.
//!
//! Time is an argument, and so are nonces. A session answers with [`Step`]s; whoever drives it writes what it sends,
//! hands on its events, and drops the connection when it closes. Closed, it stays so and answers nothing.

mod daemon;
mod peer;
mod worker;

use splitcore_core::id::{AssignmentSeq, Epoch, LegKey};
use splitcore_core::kv::KvLayout;
use splitcore_core::time::Time;

pub use daemon::{DaemonEvent, DaemonSession};
pub use peer::{PeerEvent, PeerIdentity, PeerSession};
pub use worker::{Identity, WorkerEvent, WorkerSession};

use crate::auth::Secret;
use crate::codec::FrameError;
use crate::message::{DescriptorError, Hello, Refusal};
use crate::text::{is_plain, plain};

const SECOND_NS: u64 = 1_000_000_000;

/// Every bound of a connection, under the one name that errors and documentation use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a frame before `Welcome`.
    pub handshake_bytes_max: u32,
    /// Bytes of a frame from `Welcome` on.
    pub frame_bytes_max: u32,
    /// From the connection to `Welcome`.
    pub handshake_limit_ns: u64,
    /// From `Welcome` to `Registered`.
    pub register_limit_ns: u64,
    /// Requests that a worker may describe before it registers.
    pub claims_max: u32,
    /// Time between two `Ping`s.
    pub ping_interval_ns: u64,
    /// A side that has said nothing for this long counts as gone.
    pub silence_limit_ns: u64,
    /// From the first byte of a frame to the last, and for writing what is to be sent.
    pub frame_limit_ns: u64,
    /// Frames that wait to be written to one connection, or to be taken from one.
    pub queue_frames_max: u32,
    /// Connections at a time.
    pub connections_max: u32,
    /// Bytes of all connections together that have come and wait for the rest of their frame, or of their registration.
    pub held_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_bytes_max: 16 << 10,
            frame_bytes_max: 16 << 20,
            handshake_limit_ns: 5 * SECOND_NS,
            register_limit_ns: 30 * SECOND_NS,
            claims_max: 1 << 16,
            ping_interval_ns: SECOND_NS,
            silence_limit_ns: 5 * SECOND_NS,
            frame_limit_ns: 10 * SECOND_NS,
            queue_frames_max: 4096,
            connections_max: 16_384,
            held_bytes_max: 512 << 20,
        }
    }
}

/// What a side asks of whoever connects.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What both must know, if anything.
    pub secret: Option<Secret>,
    /// The model that is served; `None`: any.
    pub model: Option<String>,
    /// Positions that the model of a worker must take at least. For daemons.
    pub context: u32,
    /// Which Cluster speaks. For daemons.
    pub epoch: Epoch,
    /// The bounds.
    pub limits: Limits,
}

/// Why a connection ends.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CloseReason {
    /// The bytes are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message that does not come now.
    #[error("{message} while {state}")]
    Unexpected {
        /// Which.
        message: &'static str,
        /// What was to come.
        state: &'static str,
    },
    /// We do not let the other side in.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The other side does not let us in.
    #[error("refused by the other side: {0}")]
    RefusedThere(Refusal),
    /// The handshake takes too long.
    #[error("no end of the handshake within handshake_limit ({} ms)", .limit_ns / 1_000_000)]
    Handshake {
        /// `handshake_limit_ns`.
        limit_ns: u64,
    },
    /// The registration takes too long.
    #[error("no end of the registration within register_limit ({} ms)", .limit_ns / 1_000_000)]
    Registration {
        /// `register_limit_ns`.
        limit_ns: u64,
    },
    /// The other side has said nothing for too long.
    #[error("nothing heard within silence_limit ({} ms)", .limit_ns / 1_000_000)]
    Silence {
        /// `silence_limit_ns`.
        limit_ns: u64,
    },
    /// A frame began and did not end, or could not be written.
    #[error("a frame took longer than frame_limit ({} ms)", .limit_ns / 1_000_000)]
    Stalled {
        /// `frame_limit_ns`.
        limit_ns: u64,
    },
    /// The other side does not read what it is sent.
    #[error("more than queue_frames_max ({frames}) frames wait to be read")]
    Slow {
        /// `queue_frames_max`.
        frames: u32,
    },
    /// The other side is a Cluster that has been replaced.
    #[error("epoch {theirs} there, and epoch {ours} has been heard of")]
    StaleEpoch {
        /// The newest heard of.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// Commands come in order, and this one does not.
    #[error("command {got} after command {last}")]
    Sequence {
        /// The last one.
        last: u64,
        /// This one.
        got: u64,
    },
    /// A `Pong` for a `Ping` that has not been sent.
    #[error("pong {number}, and the last ping was {last}")]
    Pong {
        /// What it says.
        number: u64,
        /// The last `Ping`.
        last: u64,
    },
    /// Something that goes with a message is not there, or goes with another.
    #[error("{message}: {what}")]
    Incomplete {
        /// Which message.
        message: &'static str,
        /// What.
        what: &'static str,
    },
    /// A claim without a description, or one that contradicts it.
    #[error("request {} attempt {}: {what}", .key.request.0, .key.attempt.0)]
    Claim {
        /// Whose.
        key: LegKey,
        /// What.
        what: ClaimError,
    },
    /// More than `claims_max`.
    #[error("more than claims_max ({limit}) requests described")]
    Claims {
        /// `claims_max`.
        limit: u32,
    },
    /// All connections together have sent more than is kept.
    #[error(
        "more than held_bytes_max ({limit}) bytes of all connections wait for the rest of their frames or registrations"
    )]
    Held {
        /// `held_bytes_max`.
        limit: u64,
    },
    /// The other side has ended it.
    #[error("closed by the other side: {}", plain(.0))]
    ClosedThere(String),
    /// We have ended it.
    #[error("{0}")]
    Closed(String),
    /// The connection broke.
    #[error("connection lost: {0}")]
    Io(String),
}

/// What is wrong with what is said of a claim.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ClaimError {
    /// A new Cluster would not know what it is.
    #[error("not described, and this Cluster has not met it")]
    Unknown,
    /// Two descriptions.
    #[error("described twice")]
    Twice,
    /// No such claim.
    #[error("described and not claimed")]
    Unclaimed,
    /// It contradicts its work.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
}

/// What a session wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<M, E> {
    /// Write this.
    Send(M),
    /// This has happened.
    Event(E),
    /// Drop the connection, after what was to be sent.
    Close(CloseReason),
}

/// When the other side was last heard, and the heartbeat of the side that sends it.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    heard_at: Time,
    pinged_at: Time,
    /// The last `Ping`.
    number: u64,
    interval_ns: u64,
    limit_ns: u64,
}

impl Pulse {
    fn new(now: Time, interval_ns: u64, limit_ns: u64) -> Self {
        Self { heard_at: now, pinged_at: now, number: 0, interval_ns, limit_ns }
    }

    fn silence_at(&self) -> Time {
        self.heard_at.after(self.limit_ns)
    }

    fn ping_at(&self) -> Time {
        self.pinged_at.after(self.interval_ns)
    }

    fn check(&self, now: Time) -> Result<(), CloseReason> {
        if now >= self.silence_at() {
            return Err(CloseReason::Silence { limit_ns: self.limit_ns });
        }
        Ok(())
    }

    /// The number of the `Ping` that is due.
    fn ping(&mut self, now: Time) -> Option<u64> {
        (now >= self.ping_at()).then(|| {
            self.pinged_at = now;
            self.number += 1;
            self.number
        })
    }

    fn pong(&self, number: u64) -> Result<(), CloseReason> {
        if number == 0 || number > self.number {
            return Err(CloseReason::Pong { number, last: self.number });
        }
        Ok(())
    }
}

/// Texts of a `Hello`: bytes at most.
pub(crate) const NAME_BYTES_MAX: usize = 256;
pub(crate) const MODEL_BYTES_MAX: usize = 256;
pub(crate) const PEER_BYTES_MAX: usize = 512;
pub(crate) const TRANSFER_BYTES_MAX: usize = 4096;

/// What of the texts of a `Hello` cannot stand in a log or is too long to be kept.
fn text_refusal(hello: &Hello) -> Option<Refusal> {
    let texts = [
        ("name", &hello.name, NAME_BYTES_MAX),
        ("model", &hello.model, MODEL_BYTES_MAX),
        ("peer", &hello.peer, PEER_BYTES_MAX),
        ("transfer", &hello.transfer, TRANSFER_BYTES_MAX),
    ];
    let wrong = |text: &str, most: usize| text.len() > most || !text.chars().all(is_plain);
    let (field, text, most) = texts.into_iter().find(|&(_, text, most)| wrong(text, most))?;
    let expected = format!("at most {most} bytes without control characters");
    let got = format!("'{}' of {} bytes", plain(text), text.len());
    Some(Refusal::new(field, expected, got).permanently())
}

/// What of another layout keeps KV from moving between the two.
pub(crate) fn layout_refusal(ours: &KvLayout, theirs: &KvLayout) -> Option<Refusal> {
    if let Err(error) = theirs.check() {
        return Some(Refusal::new("layout", "a layout that a pool can have", error));
    }
    let mismatch = ours.mismatch(theirs)?;
    let field = mismatch.fields().first().copied().unwrap_or("values");
    Some(Refusal::new(&format!("layout.{field}"), layout_field(ours, field), layout_field(theirs, field)))
}

fn layout_field(layout: &KvLayout, field: &str) -> String {
    use splitcore_core::kv::Values;
    match (field, layout.values) {
        ("layers", _) => layout.layers.to_string(),
        ("dtype", _) => layout.dtype.name().to_owned(),
        ("heads", Values::Heads { heads, .. }) => heads.to_string(),
        ("head_dim", Values::Heads { head_dim, .. }) => head_dim.to_string(),
        ("latent dim", Values::Latent { dim }) => dim.to_string(),
        (_, Values::Heads { .. }) => "heads".to_owned(),
        (_, Values::Latent { .. }) => "latent".to_owned(),
    }
}

/// Commands of one session are numbered upwards.
fn check_sequence(last: AssignmentSeq, got: AssignmentSeq) -> Result<(), CloseReason> {
    if got <= last {
        return Err(CloseReason::Sequence { last: last.0, got: got.0 });
    }
    Ok(())
}
