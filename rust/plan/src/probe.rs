//! One simulated run and what it is held against.

use serde::{Deserialize, Serialize};
use splitcore_sim::Options;

use crate::slo::SloSet;

/// A run to judge. Plain data: it can be sent to another process and names its result in a cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The run. Its traffic classes are those of `slo`.
    pub options: Options,
    /// What it must keep.
    pub slo: SloSet,
    /// Whether to run to the end although an objective is lost already: then every value is known.
    pub whole: bool,
}

impl Probe {
    /// Its canonical JSON: equal probes have equal keys.
    pub(crate) fn key(&self) -> String {
        // Strings, numbers and lists of them: nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What came of one objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Its traffic class.
    pub class: String,
    /// Its name, as `ttft_slowdown p90` or `attainment`.
    pub objective: String,
    /// The limit: to stay below, or of an attainment to reach.
    pub limit: f64,
    /// What was found; null where it is infinite, or not known as the run was cut short.
    pub found: Option<f64>,
    /// Whether it was kept; null where that is not known as the run was cut short.
    pub met: Option<bool>,
}

/// What came of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether every objective was kept.
    pub met: bool,
    /// Every objective, in the order of the set. A run cut short has at least one that was not met.
    pub findings: Vec<Finding>,
    /// Requests submitted.
    pub requests: u64,
    /// Those that finished before the run ended or was cut short.
    pub completed: u64,
    /// Events simulated.
    pub events: u64,
    /// Whether the run ended as soon as an objective was lost for certain.
    pub cut_short: bool,
    /// Cost-model look-ups outside what was profiled.
    pub out_of_range_lookups: u64,
}
