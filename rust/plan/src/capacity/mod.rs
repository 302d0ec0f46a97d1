//! The highest rate at which a cluster keeps its objectives.
//!
//! For each seed the rate is bracketed by doubling and then halved; what is told is the mean over seeds and its
//! interval. A workload of a seed at another rate has the same requests closer together, so that rates differ by load
//! and not by luck.

mod bracket;
mod search;

use serde::{Deserialize, Serialize};
use splitcore_sim::Options;

use crate::probe::Finding;
use crate::slo::SloSet;
use crate::stats::Interval;
pub use search::CapacitySearch;

/// What to search for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacitySpec {
    /// The cluster, traffic and rules; `rate` and `seed` are the search's to set (`seed` is the first).
    pub options: Options,
    /// What must hold.
    pub slo: SloSet,
    /// Workloads drawn, at least 1: seeds `options.seed`, and on. A file that is replayed as it is counts once.
    pub seeds: u32,
    /// Relative width at which the bisection ends.
    pub resolution: f64,
    /// Only multiples of this rate are tried, in requests a second; then `resolution` counts for nothing.
    pub step_rps: Option<f64>,
}

/// One seed's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeedCapacity {
    /// Of the workload.
    pub seed: u64,
    /// The highest rate found to hold; 0 if none did.
    pub max_rate: f64,
    /// The lowest rate above it found not to hold; null if every rate tried did.
    pub failing_rate: Option<f64>,
    /// What was not met there.
    pub failing: Vec<Finding>,
    /// Cost-model look-ups outside what was profiled, at `max_rate`.
    pub out_of_range_lookups: u64,
}

/// An objective that ends the rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failing {
    /// Traffic class.
    pub class: String,
    /// As [`Finding::objective`].
    pub objective: String,
    /// Its limit.
    pub limit: f64,
    /// Seeds whose failing rate misses it.
    pub seeds: u32,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// Mean over seeds, requests a second.
    pub max_rate: f64,
    /// The 95 % interval of that mean over seeds (Student's t); none for one seed.
    pub ci: Option<Interval>,
    /// What fails just above, most seeds first.
    pub failing: Vec<Failing>,
    /// GPUs of the cluster.
    pub gpus: u64,
    /// `max_rate` for each GPU: goodput, for objectives that are an attainment.
    pub max_rate_per_gpu: f64,
    /// Seed by seed.
    pub seeds: Vec<SeedCapacity>,
    /// Name of the set of objectives.
    pub slo: String,
    /// Runs made or taken from the cache.
    pub probes: u64,
    /// What a reader should know of how the answer came about, each a sentence.
    pub notes: Vec<String>,
}
