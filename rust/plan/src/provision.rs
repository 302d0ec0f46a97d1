//! Which pools of which machines: the cheapest that hold a rate, or the fastest within limits.

use serde::{Deserialize, Serialize};
use splitcore_sim::Options;

use crate::capacity::Capacity;
use crate::probe::Finding;
use crate::slo::SloSet;

/// What one machine takes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// $ an hour.
    pub cost_per_hour: f64,
    /// Provisioned watts.
    pub power_w: f64,
    /// Rack units.
    pub rack_units: f64,
}

/// A kind of cluster whose pool sizes are to be found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// For reports, as `splitwise-hh`.
    pub name: String,
    /// Prompt machines, as `dgx-h100`. An unsplit design has `unsplit` and neither of the others.
    pub prompt: Option<String>,
    /// Token machines.
    pub token: Option<String>,
    /// Machines that serve whole requests.
    pub unsplit: Option<String>,
    /// What one prompt machine, or one unsplit machine, takes.
    pub prompt_price: Price,
    /// What one token machine takes; of no account without one.
    pub token_price: Price,
}

/// What is wanted most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Least $ an hour at the rate asked for.
    MinCost,
    /// Least watts.
    MinPower,
    /// Fewest rack units.
    MinSpace,
    /// Highest rate within the limits.
    MaxThroughput,
}

/// Limits on the whole cluster; none where absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// $ an hour.
    pub cost_per_hour: Option<f64>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Rack units.
    pub rack_units: Option<f64>,
}

/// What to search for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvisionSpec {
    /// Traffic and rules; machines, `rate` and `seed` are the search's to set (`seed` is the first).
    pub options: Options,
    /// What must hold.
    pub slo: SloSet,
    /// At least one.
    pub designs: Vec<Design>,
    /// What is wanted most.
    pub goal: Goal,
    /// What it may take.
    pub limits: Limits,
    /// Requests a second to hold. Needed but for [`Goal::MaxThroughput`], where it is the least to reach.
    pub rate_rps: Option<f64>,
    /// Workloads drawn; a cluster holds a rate if it does with each.
    pub seeds: u32,
    /// Largest pool tried.
    pub machines_max: u32,
    /// Pool sizes tried are multiples of this.
    pub machines_step: u32,
    /// Of rates.
    pub resolution: f64,
    /// Whether to judge every pair of pool sizes of the grid instead of leaving out what larger and smaller ones
    /// already tell.
    pub whole_map: bool,
}

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
    /// The highest rate of each design's best, [`Goal::MaxThroughput`] only; else empty.
    pub design_rates: Vec<Option<f64>>,
    /// Clusters that hold the rate such that none that does takes less of everything, by cost.
    pub frontier: Vec<Candidate>,
    /// Every pair of pool sizes that was judged or follows from one, by design, prompt and token machines. Empty for
    /// [`Goal::MaxThroughput`].
    pub map: Vec<Cell>,
    /// Why there is no best.
    pub binding: Vec<Binding>,
    /// Runs made or taken from the cache.
    pub probes: u64,
}
