//! What can go wrong with an event. An expected outcome (a rejection, a late event) is not an error.

use std::fmt;

use crate::id::{LegKey, MachineId, RequestId};

/// An event that cannot be applied. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventError {
    /// A live request has this id.
    DuplicateRequest(RequestId),
    /// A request without prompt or without room for output.
    EmptyRequest(RequestId),
    /// No machine has this index.
    UnknownMachine(u32),
    /// The index is taken by this or a later incarnation, or leaves a gap.
    MachineTaken(MachineId),
    /// The machine has spoken to a newer Cluster than this one.
    StaleCluster(MachineId),
    /// A machine without blocks, or with speed zero.
    EmptyMachine(MachineId),
    /// A machine registers with a claim that cannot be true, for itself or beside others.
    BadClaim {
        /// Which machine.
        machine: MachineId,
        /// Of which leg.
        key: LegKey,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A machine reports more KV tokens than there can be.
    BadReport {
        /// Which machine.
        machine: MachineId,
        /// How many.
        kv_tokens: u64,
    },
    /// A class with a limit of zero.
    EmptySlo {
        /// Which class.
        class: u32,
    },
    /// The machine already holds a leg of this attempt.
    DuplicateLeg(LegKey),
    /// The engine ended a leg that is not in the pass.
    NotInPass(LegKey),
    /// The engine finished a pass that is not running, or not the oldest, or says of such a one where it is.
    NotRunning {
        /// The pass it named.
        pass: u64,
    },
    /// The leg can never fit here.
    TooLarge {
        /// Which leg.
        key: LegKey,
        /// KV tokens it needs.
        tokens: u32,
        /// KV tokens the machine has.
        capacity_tokens: u64,
    },
    /// A placement shape this version does not run.
    Unsupported(&'static str),
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateRequest(id) => write!(f, "request {} is already live", id.0),
            Self::EmptyRequest(id) => {
                write!(f, "request {}: expected at least one prompt token and one output token", id.0)
            }
            Self::UnknownMachine(index) => write!(f, "no live machine has index {index}"),
            Self::MachineTaken(id) => write!(
                f,
                "machine index {} with incarnation {} does not follow what is known there",
                id.index, id.incarnation
            ),
            Self::StaleCluster(id) => {
                write!(f, "machine {} has registered with a newer Cluster than this one", id.index)
            }
            Self::EmptyMachine(id) => {
                write!(f, "machine {}: expected a KV capacity and a speed weight above zero", id.index)
            }
            Self::BadClaim { machine, key, why } => write!(
                f,
                "machine {} claims request {} attempt {}: {why}",
                machine.index, key.request.0, key.attempt.0
            ),
            Self::BadReport { machine, kv_tokens } => {
                write!(f, "machine {} reports {kv_tokens} KV tokens, more than there can be", machine.index)
            }
            Self::EmptySlo { class } => {
                write!(f, "class {class}: expected limits above zero")
            }
            Self::DuplicateLeg(key) => {
                write!(f, "request {} attempt {} already has a leg here", key.request.0, key.attempt.0)
            }
            Self::NotInPass(key) => {
                write!(f, "request {} attempt {} is not in the running pass", key.request.0, key.attempt.0)
            }
            Self::NotRunning { pass } => write!(f, "pass {pass} is not running"),
            Self::TooLarge { key, tokens, capacity_tokens } => write!(
                f,
                "request {} needs {tokens} KV tokens, the machine has {capacity_tokens}",
                key.request.0
            ),
            Self::Unsupported(shape) => write!(f, "unsupported placement shape: {shape}"),
        }
    }
}

impl std::error::Error for EventError {}

/// Why an arrival was turned away. Only arrivals are: an accepted request keeps its place to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Rejection {
    /// `requests_max` are live.
    RequestsMax,
    /// Prompt and `max_new_tokens` exceed the largest machine.
    TooLarge,
    /// No machine is up.
    NoMachine,
    /// Accepted requests of its class wait for room.
    Overloaded,
    /// The pinned token machine is not up.
    PinUnavailable,
    /// The Cluster has restarted and hears from its machines first.
    Recovering,
    /// Only the share kept for work that comes back after faults is left.
    Headroom,
    /// Its first token would come after its class's limit.
    TtftSlo,
    /// Its tokens would come further apart than its class's limit.
    TbtSlo,
}

impl Rejection {
    /// The reason as callers match on it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestsMax => "requests_max",
            Self::TooLarge => "too_large",
            Self::NoMachine => "no_machine",
            Self::Overloaded => "overloaded",
            Self::PinUnavailable => "pin_unavailable",
            Self::Recovering => "recovering",
            Self::Headroom => "headroom",
            Self::TtftSlo => "ttft_slo",
            Self::TbtSlo => "tbt_slo",
        }
    }
}

/// Whether an event changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Applied {
    /// It was about something live.
    Yes,
    /// It came too late, and was counted.
    Late,
}

impl Applied {
    /// True unless the event was late.
    pub fn is_yes(self) -> bool {
        self == Self::Yes
    }
}
