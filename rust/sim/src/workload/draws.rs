//! Random draws that are the same on every platform: PCG for the bits, `libm` for the functions.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// Tells the seed of faults from that of the workload.
const FAULTS: u64 = 0x6661_756c_7473;

/// Separate streams of one seed, so that arrivals at another rate leave the sizes as they were.
pub(super) struct Streams {
    pub(super) arrivals: Draws,
    pub(super) sizes: Draws,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        let mut root = Pcg64::seed_from_u64(seed);
        Self { arrivals: Draws::fork(&mut root), sizes: Draws::fork(&mut root) }
    }
}

/// One stream of random numbers.
pub(crate) struct Draws {
    bits: Pcg64,
    /// The polar method makes normals in pairs; the second waits here.
    spare_normal: Option<f64>,
}

impl Draws {
    /// Streams of their own for the faults of each machine: they leave the workload of the seed as it is.
    pub(crate) fn for_faults(seed: u64, machines: usize) -> Vec<Self> {
        let mut root = Pcg64::seed_from_u64(seed ^ FAULTS);
        (0..machines).map(|_| Self::fork(&mut root)).collect()
    }

    /// Takes state and increment from `root`: PCG streams that share a state are correlated.
    fn fork(root: &mut Pcg64) -> Self {
        Self { bits: Pcg64::from_rng(root), spare_normal: None }
    }

    /// Uniform in [0, 1), from 53 bits.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.bits.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in 0..len.
    pub(super) fn index(&mut self, len: usize) -> usize {
        ((self.uniform() * len as f64) as usize).min(len - 1)
    }

    /// Exponential with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.uniform())
    }

    /// Standard normal, by the polar method.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare_normal.take() {
            return spare;
        }
        loop {
            let x = 2.0 * self.uniform() - 1.0;
            let y = 2.0 * self.uniform() - 1.0;
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let scale = libm::sqrt(-2.0 * libm::log(square) / square);
                self.spare_normal = Some(y * scale);
                return x * scale;
            }
        }
    }

    /// Gamma with this shape and scale 1 (Marsaglia and Tsang, 2000).
    pub(super) fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            // The method needs a shape of at least 1; gamma(a) = gamma(a + 1) * U^(1/a) reaches the others.
            let boost = libm::pow(1.0 - self.uniform(), 1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let scale = shape - 1.0 / 3.0;
        let slope = 1.0 / libm::sqrt(9.0 * scale);
        loop {
            let normal = self.normal();
            let root = 1.0 + slope * normal;
            if root <= 0.0 {
                continue;
            }
            let cube = root * root * root;
            let log_u = libm::log(1.0 - self.uniform());
            if log_u < 0.5 * normal * normal + scale * (1.0 - cube + libm::log(cube)) {
                return scale * cube;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(draws: impl Iterator<Item = f64>) -> (f64, f64) {
        let values: Vec<f64> = draws.collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n)
    }

    fn assert_near(got: f64, want: f64, within: f64) {
        assert!((got - want).abs() <= within, "{got} is not within {within} of {want}");
    }

    #[test]
    fn uniforms_fill_the_half_open_unit_interval() {
        let mut draws = Streams::new(3).sizes;
        let values: Vec<f64> = (0..100_000).map(|_| draws.uniform()).collect();
        assert!(values.iter().all(|u| (0.0..1.0).contains(u)));
        let (mean, variance) = moments(values.into_iter());
        assert_near(mean, 0.5, 0.003);
        assert_near(variance, 1.0 / 12.0, 0.001);
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let mut draws = Streams::new(4).sizes;
        let (mean, variance) = moments((0..200_000).map(|_| draws.normal()));
        assert_near(mean, 0.0, 0.01);
        assert_near(variance, 1.0, 0.01);
    }

    #[test]
    fn gammas_have_mean_and_variance_equal_to_the_shape() {
        for shape in [0.0625, 0.5, 1.0, 4.0, 100.0] {
            let mut draws = Streams::new(5).sizes;
            let (mean, variance) = moments((0..400_000).map(|_| draws.gamma(shape)));
            assert_near(mean / shape, 1.0, 0.02);
            assert_near(variance / shape, 1.0, 0.05);
        }
    }

    #[test]
    fn exponentials_have_mean_and_variance_one() {
        let mut draws = Streams::new(6).arrivals;
        let (mean, variance) = moments((0..400_000).map(|_| draws.exponential()));
        assert_near(mean, 1.0, 0.005);
        assert_near(variance, 1.0, 0.02);
    }

    #[test]
    fn the_two_streams_are_not_correlated() {
        let Streams { mut arrivals, mut sizes } = Streams::new(7);
        let (product, _) =
            moments((0..100_000).map(|_| (arrivals.uniform() - 0.5) * (sizes.uniform() - 0.5)));
        assert_near(product * 12.0, 0.0, 0.01);
    }

    #[test]
    fn an_index_stays_inside() {
        let mut draws = Streams::new(8).sizes;
        let mut seen = [0_u32; 3];
        (0..3_000).for_each(|_| seen[draws.index(3)] += 1);
        assert!(seen.iter().all(|&count| count > 900), "{seen:?}");
    }
}
