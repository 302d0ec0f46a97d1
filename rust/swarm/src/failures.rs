//! What can go wrong around a leg, and in which states it can.

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
}
