//! How to cut a model over GPUs, for each phase: DistServe's two placement algorithms (OSDI'24, section 4).
//!
//! Where the network between nodes is fast, the phases are searched apart (high affinity, Algorithm 1): each phase alone
//! is simulated for every tensor- and pipeline-parallel size, the size with the highest goodput for each GPU wins, and
//! instances of both are replicated to the rate. Where it is slow, the stages of a prefill and a decode instance are
//! paired so that stage k of both lies in one node and the KV moves between matching layers inside it (low affinity,
//! Algorithm 2): pairs are simulated together.
//!
//! The published simulator moves the KV in no time and keeps no account of its memory; here both cost what they cost, and
//! objectives are attained jointly, as the paper defines them.

mod high;
mod low;
mod search;

use serde::{Deserialize, Serialize};
use splitcore_sim::Options;

use crate::probe::Finding;
use crate::slo::SloSet;
pub use search::PlacementSearch;

/// How near nodes are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// KV moves fast between any two nodes.
    High,
    /// KV moves fast within a node only.
    Low,
}

/// What to search for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementSpec {
    /// Model, traffic and rules; machines, `rate` and `seed` are the search's to set.
    pub options: Options,
    /// What must hold. A phase alone is held against what it can answer for: TTFT, or the time between tokens.
    pub slo: SloSet,
    /// Which algorithm.
    pub affinity: Affinity,
    /// Of every node, as `dgx-a100`.
    pub machine: String,
    /// Nodes one instance may span.
    pub nodes_max: u32,
    /// GPUs in a node.
    pub gpus_per_node: u32,
    /// Between GPUs of one node, for low affinity.
    pub node_bandwidth_bytes_per_s: f64,
    /// Requests a second to hold.
    pub rate_rps: f64,
    /// Workloads drawn.
    pub seeds: u32,
    /// Of rates.
    pub resolution: f64,
}

/// How an instance is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Parallelism {
    /// Tensor parallel size.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
}

impl Parallelism {
    /// GPUs of an instance.
    pub fn gpus(self) -> u32 {
        self.tp * self.pp
    }
}

/// What one way to cut came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Of the prefill instance; null where only decode was simulated.
    pub prefill: Option<Parallelism>,
    /// Of the decode instance; null where only prefill was simulated.
    pub decode: Option<Parallelism>,
    /// Highest rate that keeps the objectives, mean over seeds.
    pub goodput_rps: f64,
    /// The same for each GPU.
    pub goodput_rps_per_gpu: f64,
    /// What fails just above, most seeds first.
    pub failing: Vec<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// How prefill instances are cut; null if no way keeps the objectives at any rate.
    pub prefill: Option<Parallelism>,
    /// How many there are.
    pub prefill_instances: u32,
    /// How decode instances are cut.
    pub decode: Option<Parallelism>,
    /// How many there are.
    pub decode_instances: u32,
    /// GPUs of all instances.
    pub gpus: u32,
    /// Whether all instances together keep all objectives at the rate, with every seed. The algorithms do not ask this.
    pub holds: bool,
    /// What came of each objective there, seed after seed.
    pub findings: Vec<Finding>,
    /// Every way to cut that was tried, in the order tried.
    pub tried: Vec<Tried>,
    /// Ways to cut that the model or the catalogue rules out, and why.
    pub ruled_out: Vec<String>,
    /// Runs made or taken from the cache.
    pub probes: u64,
}
