//! Requests in seconds, one flat record each: what Python sees as a structured array.

use super::rows::{NO_TIME_NS, RequestRow, TbtRule};

/// A [`RequestRow`] in seconds. Infinite where the request did not finish, NaN where there is no such value.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestRecord {
    /// Its id.
    pub request_id: u64,
    /// When it arrived.
    pub arrival_s: f64,
    /// To its first token.
    pub ttft_s: f64,
    /// Mean time between tokens, (E2E - TTFT) / (N - 1).
    pub tbt_mean_s: f64,
    /// Longest gap between two tokens.
    pub tbt_max_s: f64,
    /// To its last token.
    pub e2e_s: f64,
    /// TTFT over that of an idle reference machine.
    pub ttft_slowdown: f64,
    /// TBT, by the cost model's rule, over that of an idle reference machine.
    pub tbt_slowdown: f64,
    /// E2E over that of an idle reference machine.
    pub e2e_slowdown: f64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Tokens it asks for.
    pub output_tokens: u32,
    /// Index of the machine of its last prefill; -1 if none.
    pub prompt_machine: i32,
    /// Index of the machine that decoded last; -1 if none.
    pub token_machine: i32,
    /// How often it was placed.
    pub attempts: u32,
    /// [`super::Outcome`] as a number.
    pub outcome: u32,
}

impl RequestRecord {
    /// A row and its idle reference in seconds.
    pub fn new(row: &RequestRow, rule: TbtRule, idle: super::Reference) -> Self {
        let longest = if row.tbt_max_ns == NO_TIME_NS { f64::NAN } else { row.tbt_max_ns as f64 };
        let tbt = |rule| row.tbt_metric_ns(rule).unwrap_or(f64::NAN);
        Self {
            request_id: row.request_id,
            arrival_s: row.arrival_ns as f64 / 1e9,
            ttft_s: row.ttft_metric_ns() / 1e9,
            tbt_mean_s: tbt(TbtRule::MeanGap) / 1e9,
            tbt_max_s: longest / 1e9,
            e2e_s: row.e2e_metric_ns() / 1e9,
            ttft_slowdown: row.ttft_metric_ns() / idle.ttft_ns as f64,
            tbt_slowdown: tbt(rule) / idle.tbt_ns as f64,
            e2e_slowdown: row.e2e_metric_ns() / idle.e2e_ns as f64,
            prompt_tokens: row.prompt_tokens,
            output_tokens: row.output_tokens,
            prompt_machine: row.prompt_machine,
            token_machine: row.token_machine,
            attempts: row.attempts,
            outcome: row.outcome as u32,
        }
    }
}
