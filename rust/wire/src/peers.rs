//! Sessions between workers, over sockets: a thread with a runtime of its own listens for the machines that this one
//! writes to, and dials those that write to it.

use std::io;

use splitcore_core::id::MachineId;
use splitcore_core::leg::Peer;

use crate::address::Address;
use crate::backoff::Backoff;
use crate::message::{GrantBody, PeerAddress, Tokens};
use crate::session::{CloseReason, PeerIdentity, Settings};

/// Where a worker takes peer connections, and on which terms.
#[derive(Debug, Clone)]
pub struct PeersOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: Address,
    /// What it asks of others; `layout` and `model` are not used here.
    pub settings: Settings,
    /// Waits between two dials of the same machine.
    pub backoff: Backoff,
}

/// What has happened between this machine and others.
#[derive(Debug, Clone, PartialEq)]
pub enum PeersEvent {
    /// A session is open, and what was on its way in one before it is lost: the machine hears `PeerReset`.
    Open {
        /// With whom.
        machine: MachineId,
        /// Where that is reached; of those who dialled.
        address: Option<PeerAddress>,
    },
    /// A later incarnation lives where this machine was: it is gone, and the machine hears `PeerLost`. It is not dialled
    /// any more.
    Replaced {
        /// Who is gone.
        machine: MachineId,
    },
    /// For the machine.
    Message {
        /// Who speaks.
        from: MachineId,
        /// What.
        message: Peer,
        /// With a `Grant`.
        grant: Option<GrantBody>,
    },
    /// Output tokens that the source of a leg has drawn.
    Tokens {
        /// Who speaks.
        from: MachineId,
        /// The tokens.
        tokens: Tokens,
    },
    /// A session that this machine dialled is over, or there was none to be had; it is dialled again. For logs: the
    /// machine hears of the next session.
    Lost {
        /// With whom.
        machine: MachineId,
        /// Why.
        reason: CloseReason,
        /// How long until it is dialled again.
        retry_ns: u64,
    },
}

/// A worker's sessions with other workers. Dropped, it ends all of them.
#[derive(Debug)]
pub struct Peers {}

impl Peers {
    /// Begins to listen. Nobody is let in before [`begin`](Self::begin). Gives the address with the port that it got.
    ///
    /// # Errors
    /// The address cannot be had, or there is no thread.
    pub fn bind(options: PeersOptions) -> io::Result<(Self, Address)> {
        let _ = options;
        unimplemented!()
    }

    /// From here on it is known which machine this is. `tell` is called on a thread of this, and must not wait for
    /// one that waits for this. A second call does nothing.
    pub fn begin(&self, identity: PeerIdentity, tell: impl Fn(PeersEvent) + Send + 'static) {
        let _ = (identity, tell);
    }

    /// Says something to the source of a leg: dials it if there is no session, and until there is one, it waits.
    /// What waits when a session breaks is dropped: the machine says it again after the `PeerReset` of the next one.
    /// That is dialled whether or not there is more to say, until [`gone`](Self::gone).
    pub fn say(&self, to: &PeerAddress, message: Peer, grant: Option<GrantBody>) {
        let _ = (to, message, grant);
    }

    /// Answers the destination of a leg, on the session that it dialled. Without one it is dropped: that machine says
    /// again what is to be answered.
    pub fn answer(&self, to: MachineId, message: Peer) {
        let _ = (to, message);
    }

    /// Gives the destination of a leg output tokens, on the session that it dialled; as [`answer`](Self::answer).
    pub fn tokens(&self, to: MachineId, tokens: Tokens) {
        let _ = (to, tokens);
    }

    /// The machine has heard `PeerLost`: it is not dialled any more, and a session with it ends.
    pub fn gone(&self, machine: MachineId) {
        let _ = machine;
    }
}
