//! Means with intervals.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The mean, and the interval that covers the true one with 95 % if the values are normal; none for fewer than two.
pub fn mean_with_interval(values: &[f64]) -> (f64, Option<Interval>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, None);
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half =
        StudentsT::new(0.0, 1.0, n - 1.0).map_or(f64::NAN, |t| t.inverse_cdf(0.975) * (variance / n).sqrt());
    (mean, Some(Interval { low: mean - half, high: mean + half }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worked_by_hand() {
        // t(0.975; 4) = 2.776445, s = 1.581139, n = 5.
        let (mean, interval) = mean_with_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        let Interval { low, high } = interval.unwrap();
        assert!((mean - 3.0).abs() < 1e-12);
        assert!((high - low - 2.0 * 1.963_243).abs() < 1e-5, "{low} {high}");
        assert_eq!(mean_with_interval(&[7.0]), (7.0, None));
        assert_eq!(mean_with_interval(&[2.0, 2.0]), (2.0, Some(Interval { low: 2.0, high: 2.0 })));
    }
}
