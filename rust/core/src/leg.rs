//! The life of a leg: its three states, which triples are legal, and the messages about it.
//!
//! A machine runs a leg, the Cluster watches it. The three states are separate because they overlap: with
//! layer-wise transfer a leg is prefilling and sending at once, and with reservation at arrival the second leg has
//! blocks before the first has run.
//!
//! ```text
//! compute   waiting -> queued -> prefilling -> held -> done          (a leg that hands over)
//!                                prefilling -> decoding -> done      (the last leg)
//!                      evicted <- decoding      evicted -> prefilling
//! inbound   none | reserved -> receiving -> ready          any -> draining   (aborted, a writer may still write)
//! outbound  none -> sending -> released                    sending -> draining
//! ```

use crate::id::{AssignmentSeq, LegKey, MachineId, Order};
use crate::placement::{Mode, Upto};

/// What a leg computes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Compute {
    /// For its KV to arrive.
    Waiting,
    /// For a place in a batch, as a prompt.
    Queued,
    /// Its prompt tokens are in the running pass.
    Prefilling,
    /// Done computing; keeps its blocks until the next leg has them.
    Held,
    /// One token a pass.
    Decoding,
    /// Lost its blocks to an older request; queued to be recomputed here.
    Evicted,
    /// Nothing more to compute.
    Done,
}

/// What comes in for a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Inbound {
    /// Nothing is expected.
    None,
    /// Asked for, not answered (seen by the Cluster only: a machine answers at once).
    Reserving,
    /// Blocks are set aside; nothing has landed.
    Reserved,
    /// Some layers have landed.
    Receiving,
    /// All layers have landed.
    Ready,
    /// Aborted while a writer may still write: the blocks are quarantined.
    Draining,
}

/// What goes out of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Outbound {
    /// Nothing yet.
    None,
    /// The transport reads its blocks.
    Sending,
    /// Aborted while the transport may still read.
    Draining,
    /// The next leg has everything.
    Released,
}

/// The triple.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LegState {
    /// What it computes.
    pub compute: Compute,
    /// What comes in.
    pub inbound: Inbound,
    /// What goes out.
    pub outbound: Outbound,
}

impl LegState {
    /// A leg that starts from nothing.
    pub const QUEUED: Self =
        Self { compute: Compute::Queued, inbound: Inbound::None, outbound: Outbound::None };
    /// A leg whose KV will arrive.
    pub const RESERVED: Self =
        Self { compute: Compute::Waiting, inbound: Inbound::Reserved, outbound: Outbound::None };

    /// Whether a machine may hold a leg in this state. The list is the specification; every change of state is
    /// asserted against it.
    pub fn is_legal(self) -> bool {
        use {Compute as C, Inbound as I, Outbound as O};
        match (self.compute, self.inbound, self.outbound) {
            // A first leg: nothing came in. It sends while it prefills or holds.
            (C::Queued | C::Prefilling | C::Held | C::Decoding | C::Evicted, I::None, O::None)
            | (C::Prefilling | C::Held, I::None, O::Sending | O::Draining)
            // The last layer can be across before the engine has said that the pass is over.
            | (C::Prefilling, I::None, O::Released)
            | (C::Done, I::None, O::Draining)
            // A later leg: its KV arrives, then it computes as any other.
            | (C::Waiting, I::Reserved | I::Receiving | I::Ready | I::Draining, O::None)
            | (C::Queued | C::Prefilling | C::Decoding | C::Evicted, I::Ready, O::None) => true,
            (C::Waiting | C::Queued | C::Prefilling | C::Held | C::Decoding | C::Evicted | C::Done, _, _) => false,
        }
    }
}

/// What a request brought along. With the numbers of its [`Work`] a machine can tell a new Cluster all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Terms {
    /// Output tokens that earlier attempts gave to the client; they stand at the end of this attempt's prompt.
    pub resumed_tokens: u32,
    /// Class of the service objective.
    pub class: u32,
    /// Higher goes first where requests wait.
    pub priority: i32,
    /// Place in every line that it waits in: when it was accepted, in nanoseconds of a clock that the Clusters of one
    /// service hand on, less what its priority is worth. The least goes first, and of equal ones the least order.
    pub line: i64,
    /// Whether it may go on elsewhere after a fault.
    pub resumable: bool,
    /// Index of the machine that must decode it.
    pub pin_token: Option<u32>,
}

impl Terms {
    /// Nanoseconds that a [`line`](Self::line) is from zero at most, either way: 146 years.
    pub(crate) const LINE_MAX: i64 = 1 << 62;
}

impl Default for Terms {
    fn default() -> Self {
        Self { resumed_tokens: 0, class: 0, priority: 0, line: 0, resumable: true, pin_token: None }
    }
}

/// What a leg has to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Work {
    /// Tokens of the whole prompt, positions 0 to L.
    pub prompt_tokens: u32,
    /// First position of this leg.
    pub start: u32,
    /// Where it ends.
    pub upto: Upto,
    /// Cap on output tokens, for the engine. It decides nothing here.
    pub max_new_tokens: u32,
    /// What else a machine must know to give the request back to a new Cluster.
    #[cfg_attr(feature = "serde", serde(default))]
    pub terms: Terms,
}

impl Work {
    /// Prompt tokens this leg prefills.
    pub fn prefill_tokens(&self) -> u32 {
        match self.upto {
            Upto::Position(upto) => upto.min(self.prompt_tokens).saturating_sub(self.start),
            Upto::End => self.prompt_tokens.saturating_sub(self.start),
        }
    }

    /// Whether another leg follows.
    pub fn hands_over(&self) -> bool {
        matches!(self.upto, Upto::Position(_))
    }

    /// Whether this leg runs position L-1, and so samples the first output token.
    pub fn samples_first(&self) -> bool {
        self.start < self.prompt_tokens
            && match self.upto {
                Upto::Position(upto) => upto >= self.prompt_tokens,
                Upto::End => true,
            }
    }

    /// KV tokens the leg needs to begin with: what it computes before it hands over, or the prompt and the first
    /// decode pass's token.
    pub fn kv_tokens(&self) -> u32 {
        match self.upto {
            Upto::Position(upto) => upto,
            Upto::End => self.prompt_tokens.saturating_add(1),
        }
    }
}

/// What the Cluster tells a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "type", rename_all = "snake_case"))]
pub enum Command {
    /// Set blocks aside for a leg whose earlier KV comes from `source`, and grant it.
    Reserve {
        /// Which leg.
        key: LegKey,
        /// Its place in line.
        order: Order,
        /// What it computes once its KV is here.
        work: Work,
        /// Who will write.
        source: MachineId,
        /// Whether it may compute as soon as everything has landed, without a `Start`.
        #[cfg_attr(feature = "serde", serde(default))]
        start: bool,
    },
    /// Run a leg that starts from nothing.
    Compute {
        /// Which leg.
        key: LegKey,
        /// Its place in line.
        order: Order,
        /// What it computes.
        work: Work,
    },
    /// Hand the leg's KV to `to` once `to` grants it. A second `Send` names another destination.
    Send {
        /// Which leg.
        key: LegKey,
        /// The next leg's machine.
        to: MachineId,
        /// How, unless the grant comes too late for it.
        mode: Mode,
    },
    /// The reserved leg may compute as soon as everything has landed.
    Start {
        /// Which leg.
        key: LegKey,
    },
    /// Give the leg up; answered by [`Notice::Released`] when its blocks are free.
    Abort {
        /// Which leg.
        key: LegKey,
    },
    /// Keep a request (not its KV) until [`Command::Release`], so that it outlives the Cluster even where the machine
    /// that runs it does not.
    Keep {
        /// Of which attempt.
        key: LegKey,
        /// Its place in line.
        order: Order,
        /// The request.
        work: Work,
    },
    /// The request has ended or is kept elsewhere: forget it. A machine that has handed a leg over keeps it until then
    /// unasked.
    Release {
        /// Of which attempt.
        key: LegKey,
    },
    /// After a registration: the leg goes on. Say again where it stands; answered by [`Notice::Gone`] if it is here
    /// no more.
    Confirm {
        /// Which leg.
        key: LegKey,
        /// Output tokens of the request that the client has; those after them are given again.
        delivered: u32,
    },
}

/// What a machine holds, told with every release and every report interval. Absolute, never a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// The last assignment this includes.
    pub seq: AssignmentSeq,
    /// KV tokens held or promised to the legs assigned so far.
    pub kv_tokens: u64,
    /// Blocks nobody holds.
    pub free_blocks: u32,
    /// Legs here.
    pub legs: u32,
    /// Whether a pass is running: a long one is no silence.
    #[cfg_attr(feature = "serde", serde(default))]
    pub running: bool,
    /// Blocks of aborted legs that a silent writer may still write.
    #[cfg_attr(feature = "serde", serde(default))]
    pub quarantined_blocks: u32,
    /// Whether those are more than `quarantine_limit` allows: it wants no new work.
    #[cfg_attr(feature = "serde", serde(default))]
    pub over_quarantine: bool,
}

/// What a machine (or an embedder) tells the Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "type", rename_all = "snake_case"))]
pub enum Notice {
    /// Blocks are set aside.
    Reserved {
        /// For which leg.
        key: LegKey,
    },
    /// There is no room for the leg.
    Refused {
        /// Which leg.
        key: LegKey,
        /// What the machine holds instead.
        report: Report,
    },
    /// The prompt tokens of a leg are computed.
    PrefillDone {
        /// Which leg.
        key: LegKey,
        /// Whether it sampled an output token.
        sampled: bool,
    },
    /// The source has nothing left to read: its half of the transfer is done.
    Sent {
        /// Which leg.
        key: LegKey,
    },
    /// All layers are at the destination.
    Landed {
        /// Which leg.
        key: LegKey,
    },
    /// Output tokens given to the client; sent by whoever gives them.
    Progress {
        /// Of which attempt.
        key: LegKey,
        /// How many more.
        tokens: u32,
    },
    /// The leg lost its blocks and will be recomputed where it is.
    Evicted {
        /// Which leg.
        key: LegKey,
        /// Tokens to recompute: prompt and output so far.
        tokens: u32,
    },
    /// The engine says that the request has ended; the blocks are free.
    Finished {
        /// Which leg.
        key: LegKey,
        /// Output tokens of this attempt.
        tokens: u32,
    },
    /// A leg that handed over or was aborted has freed its blocks.
    Released {
        /// Which leg.
        key: LegKey,
        /// Who has its KV now, if it handed over.
        #[cfg_attr(feature = "serde", serde(default))]
        to: Option<MachineId>,
        /// What the machine holds now.
        report: Report,
    },
    /// The transport gave up on a leg's transfer, or it stood still too long. The leg keeps its KV.
    TransferFailed {
        /// Which leg.
        key: LegKey,
    },
    /// The leg has not been able to go on here for too long: the Cluster is to take it back.
    Relief {
        /// Which leg.
        key: LegKey,
    },
    /// A leg that was to be confirmed is not here.
    Gone {
        /// Which leg.
        key: LegKey,
    },
    /// What the machine holds, by the clock.
    Report(Report),
}

/// What the machines of two adjacent legs tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "type", rename_all = "snake_case"))]
pub enum Peer {
    /// Destination to source: write into the blocks set aside for this leg.
    Grant {
        /// Which leg.
        key: LegKey,
        /// Blocks set aside.
        blocks: u32,
    },
    /// Destination to source: everything is here, free yours.
    Landed {
        /// Which leg.
        key: LegKey,
    },
    /// Destination to source: stop writing.
    Abort {
        /// Which leg.
        key: LegKey,
    },
    /// Source to destination: nothing will be written any more.
    AbortAck {
        /// Which leg.
        key: LegKey,
    },
}
