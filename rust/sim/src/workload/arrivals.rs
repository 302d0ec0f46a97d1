//! When requests arrive: generated gaps, and a trace's own times stretched to a rate.

use super::draws::Draws;
use super::{ARRIVAL_MAX_NS, REQUESTS_MAX, TraceRequest};
use crate::SimError;

const NS_PER_S: f64 = 1e9;

/// Distribution of the gap between two arrivals, with mean `mean_s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Gaps {
    Exponential { mean_s: f64 },
    Gamma { shape: f64, scale_s: f64 },
}

impl Gaps {
    /// Memoryless arrivals.
    pub(super) fn poisson(rate_rps: f64) -> Self {
        Self::Exponential { mean_s: 1.0 / rate_rps }
    }

    /// Gaps whose standard deviation is `cv` means.
    pub(super) fn bursty(rate_rps: f64, cv: f64) -> Self {
        let square = cv * cv;
        Self::Gamma { shape: 1.0 / square, scale_s: square / rate_rps }
    }

    fn draw_s(self, draws: &mut Draws) -> f64 {
        match self {
            Self::Exponential { mean_s } => draws.exponential() * mean_s,
            Self::Gamma { shape, scale_s } => draws.gamma(shape) * scale_s,
        }
    }
}

/// Arrival times before `end_ns`, `count_max` of them at most.
///
/// The sum stays in seconds, so that each time is rounded to nanoseconds once.
pub(super) fn generate(
    gaps: Gaps,
    end_ns: Option<u64>,
    count_max: Option<usize>,
    draws: &mut Draws,
) -> Result<Vec<u64>, SimError> {
    let mut arrivals_ns = Vec::new();
    let mut now_s = 0.0;
    while count_max.is_none_or(|max| arrivals_ns.len() < max) {
        now_s += gaps.draw_s(draws);
        // A float beyond u64 saturates, so the two checks below see it.
        let now_ns = (now_s * NS_PER_S).round() as u64;
        if end_ns.is_some_and(|end| now_ns >= end) {
            break;
        }
        if now_ns > ARRIVAL_MAX_NS {
            return Err(SimError::config("rate", "arrivals within 146 years", "a later one"));
        }
        if arrivals_ns.len() == REQUESTS_MAX {
            return Err(SimError::config("rate", format!("at most {REQUESTS_MAX} requests"), "more"));
        }
        arrivals_ns.push(now_ns);
    }
    Ok(arrivals_ns)
}

/// Stretches all times by one factor, so that (n-1)/(last - first) is `rate_rps`. The first is 0.
///
/// The new span is exact to the nanosecond; integer arithmetic keeps equal times equal and the order as it was.
pub(super) fn rescale(requests: &mut [TraceRequest], rate_rps: f64) -> Result<(), SimError> {
    let refuse = |expected: &str| SimError::config("rate", expected, rate_rps);
    let (Some(first), Some(last)) = (requests.first(), requests.last()) else { return Ok(()) };
    let span_ns = last.arrival_ns - first.arrival_ns;
    if span_ns == 0 {
        return Err(refuse("no rate for a trace whose requests all arrive at one time"));
    }
    let new_span_ns = ((requests.len() - 1) as f64 * NS_PER_S / rate_rps).round();
    if !(1.0..=ARRIVAL_MAX_NS as f64).contains(&new_span_ns) {
        return Err(refuse("a rate that spreads the trace over 1 ns to 146 years"));
    }
    let (old, new) = (u128::from(span_ns), new_span_ns as u128);
    let stretch = |ns: u64| (u128::from(ns) * new + old / 2) / old;
    for request in requests {
        request.arrival_ns = stretch(request.arrival_ns) as u64;
    }
    Ok(())
}
