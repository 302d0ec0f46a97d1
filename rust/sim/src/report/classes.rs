//! What became of each class of traffic.

use serde::Serialize;

use super::admission::AdmissionLimits;
use super::quantiles::Quantiles;
use super::rows::{RequestRow, TbtRule};
use super::summary::{RequestCounts, in_seconds};

/// One class of traffic in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassReport {
    /// As in the options.
    pub name: String,
    /// Of its requests.
    pub priority: i32,
    /// What its arrivals are held against, in seconds to the first token.
    pub slo_ttft_s: Option<f64>,
    /// Likewise in seconds between tokens.
    pub slo_tbt_s: Option<f64>,
    /// Share of its requests that finished and kept both limits; null without limits or requests.
    pub attainment: Option<f64>,
    /// How many ended how.
    pub requests: RequestCounts,
    /// Time to first token.
    pub ttft_s: Quantiles,
    /// (E2E - TTFT) / (N - 1).
    pub tpot_s: Quantiles,
    /// Time to last token.
    pub e2e_s: Quantiles,
}

impl ClassReport {
    /// Counts the rows of a class.
    pub fn new(name: &str, priority: i32, limits: AdmissionLimits, rows: &[RequestRow]) -> Self {
        let seconds = |limit: Option<u64>| limit.map(|ns| ns as f64 / 1e9);
        let kept = rows.iter().filter(|row| limits.are_kept_by(row)).count() as f64;
        let is_measured = limits != AdmissionLimits::default() && !rows.is_empty();
        Self {
            name: name.to_owned(),
            priority,
            slo_ttft_s: seconds(limits.ttft_ns),
            slo_tbt_s: seconds(limits.tbt_ns),
            attainment: is_measured.then(|| kept / rows.len() as f64),
            requests: RequestCounts::of(rows),
            ttft_s: in_seconds(rows.iter().map(RequestRow::ttft_metric_ns)),
            tpot_s: in_seconds(rows.iter().filter_map(|row| row.tbt_metric_ns(TbtRule::MeanGap))),
            e2e_s: in_seconds(rows.iter().map(RequestRow::e2e_metric_ns)),
        }
    }
}
