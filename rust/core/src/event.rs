//! What goes into the two state machines and what comes out.

use crate::cost::CostTable;
use crate::error::{EventError, Rejection};
use crate::id::{AssignmentSeq, Epoch, LegKey, MachineId, Order, RequestId};
use crate::leg::{Command, LegState, Notice, Peer, Report, Work};
use crate::placement::{Mode, Placement, Side};

/// A machine's home pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Role {
    /// Prefills.
    Prompt,
    /// Decodes.
    Token,
    /// Does both.
    Mixed,
}

/// A request that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Arrival {
    /// Unique among live requests.
    pub request: RequestId,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Cap on output tokens, at least 1. Used to refuse what can never fit, for nothing else.
    pub max_new_tokens: u32,
    /// Class of the service objective: parked work turns away new arrivals of its own class only.
    #[cfg_attr(feature = "serde", serde(default))]
    pub class: u32,
    /// Higher goes first among the parked of all classes.
    #[cfg_attr(feature = "serde", serde(default))]
    pub priority: i32,
    /// Whether the request may go on elsewhere after a fault.
    #[cfg_attr(feature = "serde", serde(default = "yes"))]
    pub resumable: bool,
    /// Index of the machine that must decode it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub pin_token: Option<u32>,
}

#[cfg(feature = "serde")]
fn yes() -> bool {
    true
}

impl Arrival {
    /// KV tokens at most when it ends.
    pub(crate) fn total_tokens_max(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.max_new_tokens)
    }

    /// A plain request.
    pub fn new(request: u64, prompt_tokens: u32, max_new_tokens: u32) -> Self {
        Self {
            request: RequestId(request),
            prompt_tokens,
            max_new_tokens,
            class: 0,
            priority: 0,
            resumable: true,
            pin_token: None,
        }
    }
}

/// A machine's network card as the transfer rule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Link {
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// What layer-wise transfer costs beyond prefill at any size.
    pub fixed_cost_ns: u64,
}

/// A machine that joins.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Join {
    /// The next free index, or a known index with a higher incarnation.
    pub machine: MachineId,
    /// Home pool.
    pub role: Role,
    /// KV tokens it can hold.
    pub kv_capacity_tokens: u64,
    /// Load is divided by this before machines are compared; 1 where all are alike.
    pub speed_weight: u32,
    /// Its network card, if known.
    pub link: Option<Link>,
    /// What its passes cost, if known: nothing is predicted of a machine without.
    #[cfg_attr(feature = "serde", serde(default))]
    pub costs: Option<CostTable>,
}

impl Join {
    /// Whether it can be given anything.
    pub(crate) fn check(&self) -> Result<(), EventError> {
        let is_empty = self.kv_capacity_tokens == 0 || self.speed_weight == 0;
        if is_empty { Err(EventError::EmptyMachine(self.machine)) } else { Ok(()) }
    }
}

/// The limits of a class of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Slo {
    /// From arrival to the first token, at most.
    pub ttft_ns: u64,
    /// Between two tokens, at most.
    pub tbt_ns: u64,
}

/// What a machine still has of a request when it registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Held {
    /// A leg in this state, which goes on unless the Cluster says otherwise.
    Leg {
        /// Where it stands.
        state: LegState,
        /// How its KV comes or goes, if the other machine is known.
        mode: Option<Mode>,
    },
    /// A leg that was aborted and waits for a writer or reader to let go.
    Closing,
    /// The engine has ended it; the word may have been lost.
    Finished,
    /// The request alone: as the Cluster asked, or because its KV went on to another machine.
    Kept,
}

/// One request in a [`Registration`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Claim {
    /// Which attempt of which request.
    pub key: LegKey,
    /// Its place in line.
    pub order: Order,
    /// What it computes here, and all that a new Cluster needs to know of the request.
    pub work: Work,
    /// What is here.
    pub held: Held,
}

/// How a session between a machine and a Cluster begins: with everything the machine holds. It says the same as often
/// as it is asked, so a registration may come twice.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Registration {
    /// Who it is and what it can do.
    pub join: Join,
    /// The newest Cluster it has spoken to: an older one must not take it.
    pub epoch: Epoch,
    /// What it holds in numbers, and the last assignment it has had from that Cluster.
    pub report: Report,
    /// What it holds, by key.
    pub claims: Vec<Claim>,
}

/// What happens to a [`crate::cluster::Cluster`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "type", rename_all = "snake_case"))]
pub enum ClusterEvent {
    /// A request arrives.
    Arrive(Arrival),
    /// The client gives a request up.
    Cancel {
        /// Which.
        request: RequestId,
    },
    /// A machine joins its home pool. A higher incarnation replaces the lower, which is lost at once.
    Join(Join),
    /// A machine begins a session: the first, one after a lost session, or one after a restart of the Cluster.
    Register(Registration),
    /// The session with a machine ended. It gets no work; not back within `rejoin_limit_ns`, it is lost.
    Disconnect {
        /// Which.
        machine: MachineId,
    },
    /// A machine takes no new work.
    Drain {
        /// Which.
        machine: MachineId,
    },
    /// A machine takes new work again; takes a [`ClusterEvent::Drain`] back.
    Undrain {
        /// Which.
        machine: MachineId,
    },
    /// A machine is to be stopped: it takes no new work, and what it has goes on elsewhere at once. It may go with
    /// [`ClusterAction::Drained`], and is lost with the end of its session.
    Leave {
        /// Which.
        machine: MachineId,
    },
    /// A machine is gone. What it held is placed again.
    Lose {
        /// Which.
        machine: MachineId,
    },
    /// A machine says something.
    Notice {
        /// Who.
        from: MachineId,
        /// What.
        notice: Notice,
    },
    /// `External`: the embedder says something about a request, wherever it runs.
    Fact(#[cfg_attr(feature = "serde", serde(with = "fact"))] Notice),
    /// A class has these limits from here on; `None`: no longer any. Arrivals are held against them where
    /// [`crate::config::Admission`] says so.
    SetSlo {
        /// Which class.
        class: u32,
        /// Its limits.
        slo: Option<Slo>,
    },
    /// `External`: these requests are still wanted.
    Renew {
        /// Which.
        request: RequestId,
    },
    /// A deadline has come.
    Tick,
}

/// A fact and its notice each have a `type`, so the notice lies one level deeper.
#[cfg(feature = "serde")]
mod fact {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::leg::Notice;

    #[derive(Serialize, Deserialize)]
    struct Fact {
        notice: Notice,
    }

    pub(super) fn serialize<S: Serializer>(notice: &Notice, serializer: S) -> Result<S::Ok, S::Error> {
        Fact { notice: *notice }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Notice, D::Error> {
        Fact::deserialize(deserializer).map(|fact| fact.notice)
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Outcome {
    /// The engine said so.
    Finished,
    /// The client gave it up.
    Cancelled,
    /// It met `attempts_max` faults.
    AttemptsMax,
    /// A fault met a request that may not go on elsewhere.
    NotResumable,
    /// Its lease ran out.
    Expired,
    /// It waited `unplaceable_limit_ns` while no machine known could hold it.
    Unplaceable,
}

/// What has cost a request its placement, or the machine of its second leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Fault {
    /// Its KV did not get across.
    Transfer {
        /// The machine of the prompt side.
        from: MachineId,
        /// The machine of the token side.
        to: MachineId,
    },
    /// A machine that ran one side of it is lost.
    Lost {
        /// Which side.
        side: Side,
        /// Which machine.
        machine: MachineId,
    },
    /// A machine does not have the leg that it should have.
    Gone {
        /// Which side.
        side: Side,
        /// Which machine.
        machine: MachineId,
    },
    /// After a restart, the machine that had the prompt side has not registered.
    Unregistered,
}

/// What a [`crate::cluster::Cluster`] wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "type", rename_all = "snake_case"))]
pub enum ClusterAction {
    /// A request has (new) machines.
    Placed(Placement),
    /// An arrival is turned away.
    Rejected {
        /// Which.
        request: RequestId,
        /// Why.
        reason: Rejection,
    },
    /// An accepted request waits for room.
    Parked {
        /// Which.
        request: RequestId,
    },
    /// `Managed`: tell a machine.
    Command {
        /// Whom.
        to: MachineId,
        /// The number its reports will name.
        seq: AssignmentSeq,
        /// What.
        command: Command,
    },
    /// `Managed`: the machine's registration is taken in, and its session begins. The commands that follow say which
    /// legs go on.
    Registered {
        /// Whom.
        to: MachineId,
        /// By whom.
        epoch: Epoch,
    },
    /// A fault has met a request. What is done about it follows: another machine, another attempt, a wait, or the end.
    Faulted {
        /// Which.
        request: RequestId,
        /// What it was.
        fault: Fault,
    },
    /// No pair is made with a machine for `aside_ns`: its transfers have failed too often in a row.
    SetAside {
        /// Which.
        machine: MachineId,
    },
    /// A request is over.
    Ended {
        /// Which.
        request: RequestId,
        /// How.
        outcome: Outcome,
    },
    /// A machine changed pools.
    Moved {
        /// Which.
        machine: MachineId,
        /// Where to.
        pool: Role,
    },
    /// A draining machine holds nothing any more.
    Drained {
        /// Which.
        machine: MachineId,
    },
}

/// What happens to a [`crate::machine::Machine`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "type", rename_all = "snake_case"))]
pub enum MachineEvent {
    /// The Cluster says something.
    Command {
        /// Which Cluster.
        #[cfg_attr(feature = "serde", serde(default))]
        epoch: Epoch,
        /// The assignment's number, named by later reports.
        seq: AssignmentSeq,
        /// What.
        command: Command,
    },
    /// The session with the Cluster ended: notices go nowhere until [`MachineEvent::Registered`].
    ClusterLost,
    /// A Cluster has taken our registration in.
    Registered {
        /// Which.
        epoch: Epoch,
    },
    /// Another machine says something.
    Peer {
        /// Who.
        from: MachineId,
        /// What.
        message: Peer,
    },
    /// The session with another machine broke and a new one is open: what was on its way is lost.
    PeerReset {
        /// Which.
        machine: MachineId,
    },
    /// The first stage of the engine is free: another pass may start beside those in flight. An engine of one stage
    /// need not say so.
    StageFree {
        /// The pass that has left it.
        pass: u64,
    },
    /// The engine finished the running pass; of several, the oldest.
    IterationDone {
        /// Its number.
        pass: u64,
        /// The legs whose request ended in it: the only way the core learns of an end.
        ended: Vec<LegKey>,
    },
    /// Transport: some layers of a leg are here.
    LayersLanded {
        /// Which leg.
        key: LegKey,
        /// How many so far.
        layers: u16,
        /// Of how many.
        of: u16,
    },
    /// Transport: everything of a leg has been read here.
    LocalDone {
        /// Which leg.
        key: LegKey,
    },
    /// Transport: a leg's transfer failed for good; nothing more will be written.
    TransferFailed {
        /// Which leg.
        key: LegKey,
    },
    /// Transport: a stopped transfer writes no more.
    Fenced {
        /// Which leg.
        key: LegKey,
    },
    /// The session with another machine ended for good: it writes no more.
    PeerLost {
        /// Which.
        machine: MachineId,
    },
    /// A deadline has come.
    Tick,
}

/// What a [`crate::machine::Machine`] wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "type", rename_all = "snake_case"))]
pub enum MachineAction {
    /// Tell the Cluster.
    Notify {
        /// What.
        notice: Notice,
    },
    /// Tell another machine.
    Peer {
        /// Whom.
        to: MachineId,
        /// What.
        message: Peer,
    },
    /// Engine: run the pass that [`crate::machine::Machine::plan`] describes.
    Run {
        /// Its number.
        pass: u64,
    },
    /// Transport: move a leg's KV now.
    Put(Put),
    /// Give the output tokens of a request after these to the Cluster once more.
    Resend {
        /// Of which leg.
        key: LegKey,
        /// Tokens the client has.
        delivered: u32,
    },
    /// Transport: stop moving, and say `Fenced` when nothing is written any more.
    StopPut {
        /// Which leg.
        key: LegKey,
    },
}

/// A transfer to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Put {
    /// Which leg.
    pub key: LegKey,
    /// Its request's place in line.
    pub order: Order,
    /// Where to.
    pub to: MachineId,
    /// KV tokens to move.
    pub tokens: u32,
    /// Layer-wise puts come with the pass whose layers they follow.
    pub mode: Mode,
}
