//! What was found.

use serde::{Deserialize, Serialize};

use super::spec::Price;
use crate::capacity::Capacity;
use crate::probe::Finding;

/// A cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Name of the design.
    pub design: String,
    /// Prompt machines, or all of an unsplit cluster.
    pub prompt: u32,
    /// Token machines; 0 of an unsplit cluster.
    pub token: u32,
    /// Of the whole cluster.
    pub total: Price,
}

/// Whether a cluster of a map holds the rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The cluster.
    pub candidate: Candidate,
    /// Whether it holds; null where no run was made because others already told.
    pub judged: Option<bool>,
    /// Whether it holds, by its own runs or by the rule that a larger cluster holds what a smaller one does.
    pub holds: bool,
}

/// What is left when a machine is lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spare {
    /// `prompt`, `token` or `unsplit`.
    pub lost: String,
    /// Whether the rest still holds the rate; false if no machine of the pool is left.
    pub holds: bool,
    /// What is missed first, if it does not.
    pub failing: Vec<Finding>,
}

/// The chosen cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// It.
    pub candidate: Candidate,
    /// Its highest rate.
    pub capacity: Capacity,
    /// `capacity.max_rate` over the rate asked for, less one; null without one.
    pub margin: Option<f64>,
    /// With one machine of each pool lost, at the rate asked for or else at its highest.
    pub spare: Vec<Spare>,
}

/// Why nothing was found: what one would have to give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// `cost_per_hour`, `power_w`, `rack_units`, `machines_max` or `slo`.
    pub constraint: String,
    /// The limit; of `slo` that of the objective.
    pub limit: f64,
    /// What the best cluster would need with this limit lifted, the others kept; null if even that does not help.
    pub needed: Option<f64>,
    /// In words.
    pub text: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provision {
    /// The best cluster; null if none keeps objectives and limits.
    pub best: Option<Chosen>,
    /// The best of each design, in the order of the designs; null where a design has none.
    pub designs: Vec<Option<Candidate>>,
    /// The highest rate of each design's best, [`Goal::MaxThroughput`](super::Goal::MaxThroughput) only; else empty.
    pub design_rates: Vec<Option<f64>>,
    /// Clusters that hold the rate such that none that does takes less of everything, by cost.
    pub frontier: Vec<Candidate>,
    /// Every pair of pool sizes that was judged or follows from one, by design, prompt and token machines. Empty for
    /// [`Goal::MaxThroughput`](super::Goal::MaxThroughput).
    pub map: Vec<Cell>,
    /// Why there is no best.
    pub binding: Vec<Binding>,
    /// Runs made or taken from the cache.
    pub probes: u64,
}
