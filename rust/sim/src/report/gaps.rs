//! The gaps between the tokens of a request, all requests together.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::quantiles::finite;

/// Significant decimal digits of the percentiles.
const DIGITS: u8 = 3;

/// Every inter-token gap of a run: percentiles to three digits, count, mean and worst exact.
#[derive(Debug, Clone)]
pub struct GapHistogram {
    histogram: Histogram<u64>,
    count: u64,
    total_ns: u128,
    max_ns: u64,
}

/// The gaps in seconds; null in JSON where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GapQuantiles {
    /// How many gaps.
    pub count: u64,
    /// Their mean.
    #[serde(serialize_with = "finite")]
    pub mean: f64,
    /// Half are at most this long.
    #[serde(serialize_with = "finite")]
    pub p50: f64,
    /// Nine of ten are at most this long.
    #[serde(serialize_with = "finite")]
    pub p90: f64,
    /// Ninety-nine of a hundred are at most this long.
    #[serde(serialize_with = "finite")]
    pub p99: f64,
    /// The worst.
    #[serde(serialize_with = "finite")]
    pub max: f64,
}

impl GapHistogram {
    /// Without gaps.
    pub fn new() -> Self {
        let histogram = Histogram::new(DIGITS).expect("three digits are supported");
        Self { histogram, count: 0, total_ns: 0, max_ns: 0 }
    }

    /// Enters one gap.
    pub fn record(&mut self, gap_ns: u64) {
        self.record_n(gap_ns, 1);
    }

    /// Enters `count` gaps of one length, as the decodes of one pass have.
    pub fn record_n(&mut self, gap_ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.histogram
            .record_n(gap_ns, count)
            .expect("it grows by itself, up to the largest number there is");
        self.count += count;
        self.total_ns += u128::from(gap_ns) * u128::from(count);
        self.max_ns = self.max_ns.max(gap_ns);
    }

    /// How many gaps were entered.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What the gaps look like.
    pub fn quantiles(&self) -> GapQuantiles {
        if self.count == 0 {
            let none = f64::NAN;
            return GapQuantiles { count: 0, mean: none, p50: none, p90: none, p99: none, max: none };
        }
        // A cell of the histogram answers with its upper edge, which may lie above the worst.
        let at = |share: f64| self.histogram.value_at_quantile(share).min(self.max_ns) as f64 / 1e9;
        GapQuantiles {
            count: self.count,
            mean: self.total_ns as f64 / self.count as f64 / 1e9,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: self.max_ns as f64 / 1e9,
        }
    }
}

impl Default for GapHistogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_mean_and_count_are_exact() {
        let mut gaps = GapHistogram::new();
        gaps.record_n(40_000_000, 98);
        gaps.record(1_234_567_891);
        gaps.record(60_000_000);
        gaps.record_n(9, 0);
        let quantiles = gaps.quantiles();
        assert_eq!((gaps.count(), quantiles.count), (100, 100));
        assert_eq!(quantiles.max, 1.234_567_891);
        assert!((quantiles.mean - 0.052_145_678_91).abs() < 1e-15);
        assert!((quantiles.p50 / 0.04 - 1.0).abs() < 1e-3);
        assert!((quantiles.p90 / 0.04 - 1.0).abs() < 1e-3);
        assert!((quantiles.p99 / 0.06 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn percentiles_hold_three_digits_over_nine_decades() {
        for exponent in 0..10 {
            let gap_ns = 1_234 * 10_u64.pow(exponent);
            let mut gaps = GapHistogram::new();
            gaps.record_n(gap_ns, 5);
            gaps.record(u64::MAX);
            let found = gaps.quantiles().p50 * 1e9;
            assert!((found / gap_ns as f64 - 1.0).abs() < 1e-3, "{found} for {gap_ns}");
        }
    }

    #[test]
    fn a_percentile_never_exceeds_the_worst() {
        let mut gaps = GapHistogram::new();
        gaps.record(1_000_000_001);
        let quantiles = gaps.quantiles();
        assert_eq!(quantiles.p50, 1.000_000_001);
        assert_eq!(quantiles.p99, quantiles.max);
    }

    #[test]
    fn no_gap_gives_nulls() {
        let json = serde_json::to_string(&GapHistogram::new().quantiles()).unwrap();
        assert_eq!(json, r#"{"count":0,"mean":null,"p50":null,"p90":null,"p99":null,"max":null}"#);
    }
}
