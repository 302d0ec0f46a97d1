//! Who was turned away and why, and how many were served within the limits that arrivals are held against.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rows::{RequestRow, TbtRule};

/// Limits in nanoseconds that a request keeps if it lies at or below them; `None`: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdmissionLimits {
    /// On the time to the first token.
    pub ttft_ns: Option<u64>,
    /// On the mean time between tokens.
    pub tbt_ns: Option<u64>,
}

/// Admission in numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct AdmissionReport {
    /// What arrivals were held against: `bounds`, `early` or `predicted`.
    pub rule: String,
    /// Limit on the time to the first token.
    pub slo_ttft_s: Option<f64>,
    /// Limit on the time between tokens.
    pub slo_tbt_s: Option<f64>,
    /// Share of submitted requests that finished and kept both limits; null without limits or requests.
    pub attainment: Option<f64>,
    /// Arrivals turned away, by reason; reasons that did not occur are left out.
    pub rejected: BTreeMap<&'static str, u64>,
}

impl AdmissionReport {
    /// Counts rows against the limits of their classes, which `class_of` tells by their place.
    pub fn new(
        rule: &str,
        limits: &[AdmissionLimits],
        class_of: impl Fn(usize) -> usize,
        rows: &[RequestRow],
        rejected: BTreeMap<&'static str, u64>,
    ) -> Self {
        let seconds = |limit: Option<u64>| limit.map(|ns| ns as f64 / 1e9);
        let keeps = |&(at, row): &(usize, &RequestRow)| limits[class_of(at)].are_kept_by(row);
        let kept = || rows.iter().enumerate().filter(keeps).count() as f64;
        let is_measured =
            limits.iter().any(|limits| *limits != AdmissionLimits::default()) && !rows.is_empty();
        // Of several classes each has its own, which the report of the classes tells.
        let limits = if let [limits] = limits { *limits } else { AdmissionLimits::default() };
        Self {
            rule: rule.to_string(),
            slo_ttft_s: seconds(limits.ttft_ns),
            slo_tbt_s: seconds(limits.tbt_ns),
            attainment: is_measured.then(|| kept() / rows.len() as f64),
            rejected,
        }
    }
}

impl AdmissionLimits {
    /// Whether a request finished within the limits; one of a single token has no time between tokens.
    pub fn are_kept_by(&self, row: &RequestRow) -> bool {
        let ttft = self.ttft_ns.is_none_or(|limit| row.ttft_metric_ns() <= limit as f64);
        let tbt_ns = row.tbt_metric_ns(TbtRule::MeanGap).unwrap_or(0.0);
        row.finished() && ttft && self.tbt_ns.is_none_or(|limit| tbt_ns <= limit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    const ROW: RequestRow = RequestRow {
        request_id: 1,
        arrival_ns: 0,
        prompt_tokens: 100,
        output_tokens: 5,
        ttft_ns: 200,
        e2e_ns: 600,
        tbt_max_ns: 150,
        prompt_machine: 0,
        token_machine: 1,
        attempts: 1,
        outcome: Outcome::Finished,
    };

    fn limits(ttft_ns: Option<u64>, tbt_ns: Option<u64>) -> AdmissionLimits {
        AdmissionLimits { ttft_ns, tbt_ns }
    }

    #[test]
    fn limits_are_kept_up_to_the_nanosecond() {
        let kept = |ttft_ns, tbt_ns| limits(ttft_ns, tbt_ns).are_kept_by(&ROW);
        assert_eq!((kept(Some(200), None), kept(Some(199), None)), (true, false));
        assert_eq!((kept(None, Some(100)), kept(None, Some(99))), (true, false));
        assert!(!limits(None, None).are_kept_by(&RequestRow { outcome: Outcome::Rejected, ..ROW }));
        let single = RequestRow { output_tokens: 1, e2e_ns: 200, ..ROW };
        assert!(limits(None, Some(1)).are_kept_by(&single));
    }

    #[test]
    fn attainment_is_over_all_submitted() {
        let rows = [ROW, RequestRow { outcome: Outcome::Rejected, ..ROW }];
        let report = |limits| AdmissionReport::new("early", &[limits], |_| 0, &rows, BTreeMap::new());
        assert_eq!(report(limits(Some(200), Some(100))).attainment, Some(0.5));
        assert_eq!(report(limits(None, None)).attainment, None);
        assert_eq!(
            AdmissionReport::new("early", &[limits(Some(1), None)], |_| 0, &[], BTreeMap::new()).attainment,
            None
        );
    }
}
