//! The names of machines. The core knows indices only.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use splitcore_core::cost::{CostKnot, CostPoints, CostTable};
use splitcore_core::event::Role;

/// A machine as its users know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Where its engine listens.
    pub url: Option<String>,
}

fn block_tokens() -> u32 {
    16
}

fn one() -> u32 {
    1
}

fn fixed_cost() -> f64 {
    0.005
}

/// What a machine says when it joins.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Its name, unique among machines that are here.
    pub name: String,
    /// Where its engine listens; given out with every placement.
    #[serde(default)]
    pub url: Option<String>,
    /// Its home pool.
    pub role: Role,
    /// KV blocks it has.
    pub kv_blocks: u32,
    /// Tokens in a block.
    #[serde(default = "block_tokens")]
    pub block_tokens: u32,
    /// Load is divided by this before machines are compared.
    #[serde(default = "one")]
    pub speed_weight: u32,
    /// Bytes a second of its network card.
    #[serde(default)]
    pub link_bytes_per_s: Option<u64>,
    /// What a layer-wise transfer costs beyond prefill.
    #[serde(default = "fixed_cost")]
    pub transfer_fixed_cost_s: f64,
    /// What its passes cost.
    #[serde(default, deserialize_with = "costs")]
    pub costs: Option<CostTable>,
}

/// A table of costs as a body has it. The core's own passes over fields that it does not know, as the worker protocol
/// does; in a body they are mistakes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Costs {
    prefill: Vec<Knot>,
    decode: Vec<Knot>,
    context_ns_per_1024_tokens: u64,
    pass_tokens_max: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knot {
    at: u32,
    ns: u64,
}

fn costs<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CostTable>, D::Error> {
    let Some(costs) = Option::<Costs>::deserialize(from)? else { return Ok(None) };
    let knots = |list: Vec<Knot>| list.into_iter().map(|Knot { at, ns }| CostKnot { at, ns }).collect();
    let points = CostPoints {
        prefill: knots(costs.prefill),
        decode: knots(costs.decode),
        context_ns_per_1024_tokens: costs.context_ns_per_1024_tokens,
        pass_tokens_max: costs.pass_tokens_max,
    };
    CostTable::new(points).map(Some).map_err(D::Error::custom)
}

/// Names by index, and back.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    by_index: Vec<Entry>,
    index_of: HashMap<String, u32>,
}

/// A machine and what it last said of work that this service has not placed.
#[derive(Debug)]
struct Entry {
    machine: Arc<Machine>,
    foreign_kv_tokens: u64,
}

impl Directory {
    pub(crate) fn at(&self, index: u32) -> Option<&Arc<Machine>> {
        self.by_index.get(index as usize).map(|entry| &entry.machine)
    }

    pub(crate) fn index(&self, name: &str) -> Option<u32> {
        self.index_of.get(name).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_index.len()
    }

    /// Names the machine at an index. Workers of an earlier service keep their places, so some may be empty.
    pub(crate) fn set(&mut self, index: u32, machine: Machine) {
        while self.by_index.len() <= index as usize {
            self.by_index.push(Entry { machine: Arc::default(), foreign_kv_tokens: 0 });
        }
        self.index_of.insert(machine.name.clone(), index);
        self.by_index[index as usize] = Entry { machine: Arc::new(machine), foreign_kv_tokens: 0 };
    }

    pub(crate) fn foreign_kv_tokens(&self, index: u32) -> u64 {
        self.by_index.get(index as usize).map_or(0, |entry| entry.foreign_kv_tokens)
    }

    pub(crate) fn set_foreign_kv_tokens(&mut self, index: u32, tokens: u64) {
        if let Some(entry) = self.by_index.get_mut(index as usize) {
            entry.foreign_kv_tokens = tokens;
        }
    }
}
