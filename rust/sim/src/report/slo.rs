//! The service-level objectives: nine limits on slowdowns, and the share of requests that attain them.
//!
//! A slowdown is a request's time over that of the same request alone on an idle reference machine.

use serde::Serialize;

use super::quantiles::{Percentiles, finite};
use super::rows::{RequestRow, TbtRule};

/// Times of a request alone on the idle reference machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// To its first token.
    pub ttft_ns: u64,
    /// Between two tokens.
    pub tbt_ns: u64,
    /// To its last token.
    pub e2e_ns: u64,
}

/// Limits on one request's slowdowns, to be attained jointly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RequestLimits {
    /// On TTFT.
    pub ttft: f64,
    /// On the mean TBT.
    pub tbt: f64,
    /// On E2E.
    pub e2e: f64,
}

/// Limits on the slowdowns. All are strict: a slowdown equal to its limit misses it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SloLimits {
    /// On percentiles of the TTFT slowdown.
    pub ttft: Percentiles,
    /// On percentiles of the TBT slowdown.
    pub tbt: Percentiles,
    /// On percentiles of the E2E slowdown.
    pub e2e: Percentiles,
    /// On each request, for attainment.
    pub attainment: RequestLimits,
}

impl Default for SloLimits {
    /// Those of the Splitwise paper, Table VI; attainment by its P99 column.
    fn default() -> Self {
        Self {
            ttft: Percentiles { p50: 2.0, p90: 3.0, p99: 6.0 },
            tbt: Percentiles { p50: 1.25, p90: 1.5, p99: 5.0 },
            e2e: Percentiles { p50: 1.25, p90: 1.5, p99: 5.0 },
            attainment: RequestLimits { ttft: 6.0, tbt: 5.0, e2e: 5.0 },
        }
    }
}

/// Percentiles of the three slowdowns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slowdowns {
    /// Of TTFT.
    pub ttft: Percentiles,
    /// Of the mean TBT, over requests of two tokens or more.
    pub tbt: Percentiles,
    /// Of E2E.
    pub e2e: Percentiles,
}

/// How a run stands against its objectives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SloReport {
    /// True if all nine percentiles keep their limits. A run without requests meets nothing.
    pub met: bool,
    /// The nine percentiles.
    pub slowdown: Slowdowns,
    /// Their limits.
    pub limits: SloLimits,
    /// Share of submitted requests that keep all three limits on one request; null without requests.
    #[serde(serialize_with = "finite")]
    pub attainment: f64,
}

impl SloReport {
    /// Compares all submitted requests with the idle reference, a function of prompt and output tokens.
    pub fn of(
        rows: &[RequestRow],
        rule: TbtRule,
        limits: SloLimits,
        reference: &dyn Fn(u32, u32) -> Reference,
    ) -> Self {
        let mut ttft = Vec::with_capacity(rows.len());
        let mut tbt = Vec::with_capacity(rows.len());
        let mut e2e = Vec::with_capacity(rows.len());
        let mut attained = 0_u64;
        for row in rows {
            let idle = reference(row.prompt_tokens, row.output_tokens);
            let first = slowdown(row.ttft_metric_ns(), idle.ttft_ns);
            let between = row.tbt_metric_ns(rule).map(|tbt_ns| slowdown(tbt_ns, idle.tbt_ns));
            let last = slowdown(row.e2e_metric_ns(), idle.e2e_ns);
            ttft.push(first);
            tbt.extend(between);
            e2e.push(last);
            let each = limits.attainment;
            let kept = first < each.ttft && between.is_none_or(|ratio| ratio < each.tbt) && last < each.e2e;
            attained += u64::from(kept);
        }
        let slowdown = Slowdowns {
            ttft: Percentiles::of(&mut ttft),
            tbt: Percentiles::of(&mut tbt),
            e2e: Percentiles::of(&mut e2e),
        };
        let met = !rows.is_empty()
            && keeps(slowdown.ttft, limits.ttft)
            && keeps(slowdown.tbt, limits.tbt)
            && keeps(slowdown.e2e, limits.e2e);
        Self { met, slowdown, limits, attainment: attained as f64 / rows.len() as f64 }
    }
}

/// A time over that of the idle reference.
pub fn slowdown(time_ns: f64, idle_ns: u64) -> f64 {
    // A reference that takes no time is nonsense; no slowdown keeps a limit against it.
    if idle_ns == 0 { f64::INFINITY } else { time_ns / idle_ns as f64 }
}

/// True if each percentile lies below its limit. A set without values (NaN) breaks none.
fn keeps(found: Percentiles, limits: Percentiles) -> bool {
    let pairs = [(found.p50, limits.p50), (found.p90, limits.p90), (found.p99, limits.p99)];
    pairs.into_iter().all(|(found, limit)| found.is_nan() || found < limit)
}
