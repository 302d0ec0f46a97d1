//! What can go wrong around a leg, in which states it can, and what is then done.
//!
//! A failure hits the legs that are in its way at the moment it begins, as their machines hold them: all legs of a
//! machine that is lost, paused, drained, or whose session breaks; all legs of the other machines whose handoff such a
//! machine (or such a session between two machines) has a part in; the legs at both ends of a transfer; all legs of a
//! request that its client gives up; every leg there is when the Cluster dies.

#[path = "failures/table.rs"]
mod table;

pub use table::{Cell, Handling, Part, cell, legal, name};

/// A failure as one leg meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// Its machine dies, with everything on it.
    MachineLost,
    /// The other machine of its handoff dies.
    PeerLost,
    /// The transport gives its transfer up (an error, or a checksum that does not match).
    TransferFailed,
    /// Its transfer stands still.
    TransferStalled,
    /// The client gives the request up.
    Cancel,
    /// The session between its machine and the Cluster breaks; the machine comes back in time.
    SessionLost,
    /// The session breaks and the machine comes back too late: it counts as lost, and starts anew.
    Expired,
    /// The session with the other machine of its handoff breaks; both live on.
    PeerReset,
    /// Its machine stands still for a while.
    Paused,
    /// The Cluster dies; a new one is built from what machines register.
    ClusterRestart,
    /// Its machine is to take no more work.
    Drain,
}

impl Failure {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::MachineLost,
        Self::PeerLost,
        Self::TransferFailed,
        Self::TransferStalled,
        Self::Cancel,
        Self::SessionLost,
        Self::Expired,
        Self::PeerReset,
        Self::Paused,
        Self::ClusterRestart,
        Self::Drain,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MachineLost => "machine lost",
            Self::PeerLost => "peer lost",
            Self::TransferFailed => "transfer failed",
            Self::TransferStalled => "transfer stalled",
            Self::Cancel => "cancel",
            Self::SessionLost => "session lost",
            Self::Expired => "expired",
            Self::PeerReset => "peer reset",
            Self::Paused => "paused",
            Self::ClusterRestart => "Cluster restart",
            Self::Drain => "drain",
        }
    }

    /// What happens, in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::MachineLost => {
                "The machine of the leg dies with everything on it, and the Cluster hears of it (`Lose`, \
                 or its next incarnation registers)."
            }
            Self::PeerLost => {
                "The machine at the other end of the leg's handoff dies. Its machine hears `PeerLost`, \
                 the Cluster `Lose`, in either order."
            }
            Self::TransferFailed => {
                "The transport gives the leg's transfer up: an error, or a checksum that does not match. \
                 From then on it writes nothing."
            }
            Self::TransferStalled => {
                "The leg's transfer neither goes on nor fails. Nobody tells: only the clock does."
            }
            Self::Cancel => "The client gives the request up.",
            Self::SessionLost => {
                "The session between the leg's machine and the Cluster breaks; what was on its way is \
                 lost. The machine is back within `rejoin_limit_ns`."
            }
            Self::Expired => {
                "The same, but the machine is not back in time. It counts as lost, and its driver throws \
                 its state away."
            }
            Self::PeerReset => {
                "The session between the two machines of the handoff breaks; what was on its way is lost. \
                 Both live on and open another."
            }
            Self::Paused => {
                "The machine stands still for a while: no message, no pass, no clock. Its sessions hold."
            }
            Self::ClusterRestart => {
                "The Cluster dies with all it knew. A new one starts, and the machines register within \
                 `grace_ns`."
            }
            Self::Drain => "The machine is to take no more work.",
        }
    }
}
