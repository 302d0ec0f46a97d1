//! One row for each request: what all metrics are made from.

use serde::Serialize;

/// Stands for "no value" in the times of a [`RequestRow`].
pub const NO_TIME_NS: u64 = u64::MAX;

/// How a request ended.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All its tokens were made.
    Finished = 0,
    /// It was never placed.
    Rejected = 1,
    /// It was given up after too many attempts.
    Failed = 2,
    /// Its caller stopped it.
    Cancelled = 3,
    /// The run ended first.
    Unfinished = 4,
}

impl Outcome {
    /// As written to files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unfinished => "unfinished",
        }
    }
}

/// What became of one request. Times count from its arrival.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRow {
    /// Its id.
    pub request_id: u64,
    /// When it arrived.
    pub arrival_ns: u64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Tokens it asks for (the first comes from the prefill).
    pub output_tokens: u32,
    /// To its first token; [`NO_TIME_NS`] if there was none.
    pub ttft_ns: u64,
    /// To its last token; [`NO_TIME_NS`] if it did not finish.
    pub e2e_ns: u64,
    /// Its longest gap between two tokens; [`NO_TIME_NS`] if there was none.
    pub tbt_max_ns: u64,
    /// Index of the machine of its last prefill; -1 if there was none.
    pub prompt_machine: i32,
    /// Index of the machine that decoded last; -1 if there was none.
    pub token_machine: i32,
    /// How often it was placed.
    pub attempts: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// How the time between tokens of one request is averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TbtRule {
    /// (E2E - TTFT) / (N - 1): the mean of its gaps.
    MeanGap,
    /// (E2E - TTFT) / N, as the public simulator has it; low by one Nth.
    AsPublished,
}

impl RequestRow {
    /// True if all its tokens were made.
    pub fn finished(&self) -> bool {
        self.outcome == Outcome::Finished
    }

    /// Time to the first token as metrics count it: infinite unless the request finished.
    pub fn ttft_metric_ns(&self) -> f64 {
        self.metric(self.ttft_ns)
    }

    /// Time to the last token as metrics count it: infinite unless the request finished.
    pub fn e2e_metric_ns(&self) -> f64 {
        self.metric(self.e2e_ns)
    }

    /// Mean time between tokens as metrics count it: infinite unless the request finished, and `None` for a request
    /// of one token, which has none, finished or not.
    pub fn tbt_metric_ns(&self, rule: TbtRule) -> Option<f64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|&gaps| gaps > 0)?;
        let parts = match rule {
            TbtRule::MeanGap => gaps,
            TbtRule::AsPublished => self.output_tokens,
        };
        if !self.has_all_times() {
            return Some(f64::INFINITY);
        }
        Some(self.e2e_ns.saturating_sub(self.ttft_ns) as f64 / f64::from(parts))
    }

    fn has_all_times(&self) -> bool {
        self.finished() && self.ttft_ns != NO_TIME_NS && self.e2e_ns != NO_TIME_NS
    }

    fn metric(&self, time_ns: u64) -> f64 {
        if self.has_all_times() { time_ns as f64 } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_row_is_one_cache_line() {
        assert_eq!(size_of::<RequestRow>(), 64);
    }

    #[test]
    fn tbt_divides_by_gaps_or_as_published() {
        assert_eq!(ROW.tbt_metric_ns(TbtRule::MeanGap), Some(100.0));
        assert_eq!(ROW.tbt_metric_ns(TbtRule::AsPublished), Some(80.0));
    }

    #[test]
    fn one_token_has_no_tbt_whatever_became_of_it() {
        for outcome in [Outcome::Finished, Outcome::Rejected] {
            for rule in [TbtRule::MeanGap, TbtRule::AsPublished] {
                let row = RequestRow { output_tokens: 1, e2e_ns: 200, outcome, ..ROW };
                assert_eq!(row.tbt_metric_ns(rule), None);
            }
        }
    }

    #[test]
    fn what_did_not_finish_counts_as_infinite() {
        for outcome in [Outcome::Rejected, Outcome::Failed, Outcome::Cancelled, Outcome::Unfinished] {
            let row = RequestRow { e2e_ns: NO_TIME_NS, outcome, ..ROW };
            assert_eq!(row.ttft_metric_ns(), f64::INFINITY, "even with a first token: {}", outcome.name());
            assert_eq!(row.e2e_metric_ns(), f64::INFINITY);
            assert_eq!(row.tbt_metric_ns(TbtRule::MeanGap), Some(f64::INFINITY));
        }
    }
}
