//! Mean, percentiles and maximum of a set of values, some of which may be infinite.

use serde::{Serialize, Serializer};

/// Three percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    #[serde(serialize_with = "finite")]
    pub p50: f64,
    /// The 90th percentile.
    #[serde(serialize_with = "finite")]
    pub p90: f64,
    /// The 99th percentile.
    #[serde(serialize_with = "finite")]
    pub p99: f64,
}

/// Mean, percentiles and maximum, all over the same set: one infinite value makes mean and maximum infinite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// The mean.
    #[serde(serialize_with = "finite")]
    pub mean: f64,
    /// The median.
    #[serde(serialize_with = "finite")]
    pub p50: f64,
    /// The 90th percentile.
    #[serde(serialize_with = "finite")]
    pub p90: f64,
    /// The 99th percentile.
    #[serde(serialize_with = "finite")]
    pub p99: f64,
    /// The maximum.
    #[serde(serialize_with = "finite")]
    pub max: f64,
}

impl Quantiles {
    /// Of `values`, which it reorders; all NaN (null in JSON) if there are none.
    ///
    /// The values must not be NaN.
    pub fn of(values: &mut [f64]) -> Self {
        if values.is_empty() {
            return Self { mean: f64::NAN, p50: f64::NAN, p90: f64::NAN, p99: f64::NAN, max: f64::NAN };
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let Percentiles { p50, p90, p99 } = Percentiles::of(values);
        Self { mean, p50, p90, p99, max }
    }
}

impl Percentiles {
    /// Of `values`, which it reorders; all NaN (null in JSON) if there are none.
    ///
    /// The values must not be NaN.
    pub fn of(values: &mut [f64]) -> Self {
        debug_assert!(values.iter().all(|value| !value.is_nan()), "a value is NaN");
        if values.is_empty() {
            return Self { p50: f64::NAN, p90: f64::NAN, p99: f64::NAN };
        }
        // From the highest down, each within the front part that the one before has set apart.
        let (p99, front) = percentile(values, values.len(), 99);
        let (p90, front) = percentile(values, front, 90);
        let (p50, _) = percentile(values, front, 50);
        Self { p50, p90, p99 }
    }
}

/// A percentile of all values, given that the `front` smallest come first, and the front part that holds all that
/// lower percentiles need.
///
/// Linear between the two values around rank percent * (n - 1) / 100, worked out in integers so that a whole rank
/// does not touch its neighbour. An infinite neighbour makes the result infinite.
fn percentile(values: &mut [f64], front: usize, percent: usize) -> (f64, usize) {
    let scaled = percent * (values.len() - 1);
    let (rank, rest) = (scaled / 100, scaled % 100);
    let (_, low, above) = values[..front].select_nth_unstable_by(rank, f64::total_cmp);
    let low = *low;
    let mut least = 0;
    for (index, value) in above.iter().enumerate() {
        if *value < above[least] {
            least = index;
        }
    }
    let Some(&high) = above.get(least) else { return (low, rank + 1) };
    above.swap(0, least);
    (between(low, high, rest as f64 / 100.0), rank + 2)
}

/// The point at `share` (below 1) of the way, measured from the nearer end as numpy does. Never below `low`; infinite if
/// it touches an infinity.
pub fn between(low: f64, high: f64, share: f64) -> f64 {
    if share == 0.0 || low == high {
        low
    } else if high.is_infinite() {
        high
    } else if share < 0.5 {
        low + (high - low) * share
    } else {
        high - (high - low) * (1.0 - share)
    }
}

/// Writes a number, or null if it is not finite: JSON has neither infinity nor NaN, and Python's would differ.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(super) fn finite<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Some(*value).filter(|value| value.is_finite()).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INF: f64 = f64::INFINITY;

    #[test]
    fn between_ranks_it_is_linear() {
        // numpy.percentile([1, 2, 4, 8, 16], [50, 90, 99]) = 4, 12.8, 15.68
        let quantiles = Quantiles::of(&mut [8.0, 1.0, 16.0, 4.0, 2.0]);
        assert_eq!((quantiles.p50, quantiles.mean, quantiles.max), (4.0, 6.2, 16.0));
        assert!((quantiles.p90 - 12.8).abs() < 1e-12);
        assert!((quantiles.p99 - 15.68).abs() < 1e-12);
        let two = Percentiles::of(&mut [3.0, 1.0]);
        assert_eq!((two.p50, two.p90), (2.0, 2.8));
        let one = Quantiles::of(&mut [7.0]);
        assert_eq!((one.mean, one.p50, one.p90, one.p99, one.max), (7.0, 7.0, 7.0, 7.0, 7.0));
    }

    #[test]
    fn an_infinity_touched_is_an_infinity() {
        // Ranks 5, 9, 9.9 of 0..=10: the last two values are infinite.
        let mut values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, INF, INF];
        let quantiles = Quantiles::of(&mut values);
        assert_eq!((quantiles.p50, quantiles.p90, quantiles.p99), (5.0, INF, INF));
        assert_eq!((quantiles.mean, quantiles.max), (INF, INF));
        // A whole rank does not touch its neighbour.
        let mut values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, INF];
        let percentiles = Percentiles::of(&mut values);
        assert_eq!((percentiles.p90, percentiles.p99), (9.0, INF));
        let mut values: Vec<f64> =
            (0..=100).map(|value| if value == 100 { INF } else { f64::from(value) }).collect();
        assert_eq!(Percentiles::of(&mut values).p99, 99.0);
        let all = Quantiles::of(&mut [INF, INF, INF]);
        assert_eq!((all.p50, all.mean), (INF, INF));
    }

    #[test]
    fn what_is_not_finite_is_null() {
        let json = |quantiles| serde_json::to_string(&quantiles).unwrap();
        let nulls = r#"{"mean":null,"p50":null,"p90":null,"p99":null,"max":null}"#;
        assert_eq!(json(Quantiles::of(&mut [])), nulls);
        assert_eq!(json(Quantiles::of(&mut [INF])), nulls);
        let partly = r#"{"mean":null,"p50":2.0,"p90":null,"p99":null,"max":null}"#;
        assert_eq!(json(Quantiles::of(&mut [1.0, 2.0, INF])), partly);
    }

    proptest! {
        /// Selection gives what sorting gives.
        #[test]
        fn same_as_sorting(mut values in prop::collection::vec(prop_oneof![0.0..9.0, Just(3.0), Just(INF)], 1..300)) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let at = |percent: usize| {
                let scaled = percent * (sorted.len() - 1);
                let high = sorted[(scaled / 100 + 1).min(sorted.len() - 1)];
                between(sorted[scaled / 100], high, (scaled % 100) as f64 / 100.0)
            };
            let found = Percentiles::of(&mut values);
            prop_assert_eq!((found.p50, found.p90, found.p99), (at(50), at(90), at(99)));
        }
    }
}
