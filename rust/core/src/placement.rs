//! One placement for every mode: the positions of a request are cut into legs.
//!
//! Positions count the prompt from 0 to L, then the output. Whoever runs position L-1 samples the first output
//! token. Unsplit is one leg; Splitwise cuts at L; Microserving cuts before the last prompt token. Further shapes
//! have room in the types and are answered [`crate::error::EventError::Unsupported`].

use crate::id::{Attempt, MachineId, RequestId};

/// Where a leg ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Upto {
    /// Before this position.
    Position(u32),
    /// With the end of the request, which only the engine knows.
    End,
}

/// Which machine runs a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Seat {
    /// This one.
    Fixed(MachineId),
    /// Chosen when room is found: the leg waits unreserved, its predecessor computes and holds.
    Later,
}

/// How the KV cache moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Mode {
    /// One flow that starts when prefill ends.
    Serialized,
    /// Layer by layer during prefill.
    LayerWise,
}

/// When the destination sets blocks aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Reserve {
    /// With the placement, so that layers can flow during prefill.
    AtArrival,
    /// When the source has finished its leg: blocks stand idle for less time, nothing overlaps.
    AtSourceDone,
}

/// Where a leg's earlier KV comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Kv {
    /// It starts at position 0.
    None,
    /// Pushed by the machine of the leg before.
    From {
        /// How the bytes move.
        mode: Mode,
        /// When room is made for them.
        reserve: Reserve,
    },
}

/// A run of positions on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Leg {
    /// Who computes it.
    pub machine: Seat,
    /// First position.
    pub start: u32,
    /// Where it ends.
    pub upto: Upto,
    /// Where the positions before `start` come from.
    pub kv: Kv,
}

/// Which half of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Side {
    /// Prefill.
    Prompt,
    /// Decode.
    Token,
}

/// Which pool a side was found in, in the order of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Step {
    /// The side's own pool.
    Own,
    /// The mixed pool.
    Mixed,
    /// The other side's pool; the machine moved to mixed.
    Opposite,
    /// Every pool was over its limit: the least booked machine of all, as one leg.
    LeastOfAll,
    /// The caller named the machine.
    Pinned,
}

/// Why a placement is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Why {
    /// Where the prompt side was found.
    pub prompt_step: Step,
    /// Where the token side was found.
    pub token_step: Step,
    /// Load of the prompt machine before this placement, in the policy's unit for that side.
    pub prompt_load: u64,
    /// Load of the token machine before this placement.
    pub token_load: u64,
    /// The next best prompt machine of the pool it was found in, and its load.
    pub runner_up: Option<(u32, u64)>,
}

/// Where a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Placement {
    /// Whose.
    pub request: RequestId,
    /// Which try this is, from 1.
    pub attempt: Attempt,
    /// One or two legs, in position order.
    pub legs: [Option<Leg>; 2],
    /// How it was chosen.
    pub why: Why,
}

impl Placement {
    /// The legs there are.
    pub fn legs(&self) -> impl Iterator<Item = &Leg> {
        self.legs.iter().flatten()
    }

    /// The machine that prefills.
    pub fn prompt(&self) -> Option<MachineId> {
        self.legs[0].and_then(|leg| leg.machine.id())
    }

    /// The machine that decodes; `None` while it is to be chosen later.
    pub fn token(&self) -> Option<MachineId> {
        self.legs[1].or(self.legs[0]).and_then(|leg| leg.machine.id())
    }

    /// How the KV cache moves, if it does.
    pub fn transfer(&self) -> Option<Mode> {
        match self.legs[1]?.kv {
            Kv::From { mode, .. } => Some(mode),
            Kv::None => None,
        }
    }
}

impl Seat {
    /// The machine, if it is known.
    pub fn id(self) -> Option<MachineId> {
        match self {
            Self::Fixed(machine) => Some(machine),
            Self::Later => None,
        }
    }
}
