//! The batch plan: what one forward pass does, as plain data for the engine.

use crate::event::Put;
use crate::id::LegKey;

/// A prompt (or a part of one, or an evicted request's tokens) to prefill in this pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Prefill {
    /// Which leg.
    pub key: LegKey,
    /// First position computed.
    pub start: u32,
    /// How many positions.
    pub tokens: u32,
    /// Whether the pass samples an output token for it.
    pub samples: bool,
    /// No business of an engine's: see [`whole`].
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) slot: u32,
}

/// One forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchPlan {
    /// Its number, from 1.
    pub pass: u64,
    /// Prompts, first come first.
    pub prefills: Vec<Prefill>,
    /// Requests that decode one token each, oldest first.
    pub decodes: Vec<LegKey>,
    /// Grows whenever `decodes` differs from the pass before: an engine need look only then.
    pub decodes_version: u64,
    /// Layer-wise transfers that follow this pass's layers.
    pub puts: Vec<Put>,
    /// Prompt tokens of all prefills.
    pub prompt_tokens: u32,
    /// Prompt and output tokens so far of all decodes.
    pub context_tokens: u64,
    /// The largest of them.
    pub context_tokens_max: u32,
}

impl BatchPlan {
    /// Whether the pass would do nothing.
    pub fn is_empty(&self) -> bool {
        self.prefills.is_empty() && self.decodes.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.prefills.clear();
        self.puts.clear();
        self.prompt_tokens = 0;
        self.context_tokens = 0;
        self.context_tokens_max = 0;
    }
}

/// Plans in a snapshot of their machine, which needs the slots as well.
#[cfg(feature = "serde")]
pub(crate) mod whole {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::BatchPlan;

    pub(in crate::machine) fn serialize<S: Serializer>(
        plan: &BatchPlan,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (plan, slots(plan)).serialize(serializer)
    }

    pub(in crate::machine) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BatchPlan, D::Error> {
        Deserialize::deserialize(deserializer).map(join)
    }

    fn slots(plan: &BatchPlan) -> Vec<u32> {
        plan.prefills.iter().map(|prefill| prefill.slot).collect()
    }

    fn join((mut plan, slots): (BatchPlan, Vec<u32>)) -> BatchPlan {
        for (prefill, slot) in plan.prefills.iter_mut().zip(slots) {
            prefill.slot = slot;
        }
        plan
    }

    /// Several of them.
    pub(in crate::machine) mod all {
        use std::collections::VecDeque;

        use super::{BatchPlan, Deserialize, Deserializer, Serializer, join, slots};

        pub(in crate::machine) fn serialize<S: Serializer>(
            plans: &VecDeque<BatchPlan>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(plans.iter().map(|plan| (plan, slots(plan))))
        }

        pub(in crate::machine) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<VecDeque<BatchPlan>, D::Error> {
            Ok(Vec::deserialize(deserializer)?.into_iter().map(join).collect())
        }
    }
}
