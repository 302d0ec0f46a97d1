//! Service-level objectives as a user states them, for one or several classes of traffic.

use serde::{Deserialize, Serialize};
use splitcore_sim::workload::TrafficClass;

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Seconds to the first token.
    TtftS,
    /// Seconds between tokens, averaged over a request: (E2E - TTFT) / (N - 1).
    TpotS,
    /// Seconds to the last token.
    E2eS,
    /// TTFT over that of the same request alone on the idle reference machine.
    TtftSlowdown,
    /// Mean time between tokens over that of the idle reference, by the cost model's rule.
    TbtSlowdown,
    /// E2E over that of the idle reference.
    E2eSlowdown,
}

/// A percentile that must stay below a limit, over all submitted requests of a class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Of what.
    pub metric: Metric,
    /// Above 0, below 100.
    pub percentile: f64,
    /// Strict: equal misses it.
    pub below: f64,
}

/// A share of requests that must keep several limits at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attainment {
    /// From 0 to 1; reached by equality.
    pub share: f64,
    /// Strict limits on one request; a request of one token has no time between tokens to keep.
    pub limits: Vec<(Metric, f64)>,
}

/// The objectives of one class of traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassSlo {
    /// Its traffic.
    pub traffic: TrafficClass,
    /// Percentiles to keep.
    pub limits: Vec<Limit>,
    /// Joint attainments to reach.
    pub attainments: Vec<Attainment>,
}

/// A set of objectives: all must hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SloSet {
    /// For reports: its built-in name, or its file without the folder.
    pub name: String,
    /// At least one; one without a trace of its own is all the traffic there is.
    pub classes: Vec<ClassSlo>,
}
