//! Stands in for `crate::capacity::CapacitySearch` on this branch; goes when that is merged.

use splitcore_sim::{Options, SimError};

use crate::capacity::{Capacity, CapacitySpec, SeedCapacity};
use crate::probe::{Probe, Verdict};
use crate::search::{Progress, Search};

#[derive(Debug, Clone)]
pub(super) struct CapacitySearch {
    spec: CapacitySpec,
    holds: f64,
    fails: Option<f64>,
    rate: f64,
    probes: u64,
}

impl CapacitySearch {
    #[allow(clippy::unnecessary_wraps, reason = "as the real one")]
    pub(super) fn new(spec: &CapacitySpec) -> Result<Self, SimError> {
        Ok(Self { spec: spec.clone(), holds: 0.0, fails: None, rate: 16.0, probes: 0 })
    }

    pub(super) fn found(&self) -> Capacity {
        let seed = |seed: u32| SeedCapacity {
            seed: self.spec.options.seed + u64::from(seed),
            max_rate: self.holds,
            failing_rate: self.fails.unwrap_or(0.0),
            failing: Vec::new(),
        };
        Capacity {
            max_rate: self.holds,
            ci: None,
            failing: Vec::new(),
            max_rate_per_gpu: 0.0,
            seeds: (0..self.spec.seeds).map(seed).collect(),
            slo: self.spec.slo.name.clone(),
            probes: self.probes,
        }
    }
}

impl Search for CapacitySearch {
    fn ask(&mut self) -> Vec<Probe> {
        self.rate = match self.fails {
            None if self.holds > 1e6 => return Vec::new(),
            None => (2.0 * self.holds).max(16.0),
            Some(fails) if fails <= self.holds * (1.0 + self.spec.resolution) || fails < 0.01 => {
                return Vec::new();
            }
            Some(fails) => f64::midpoint(self.holds, fails),
        };
        let options = Options { rate: Some(self.rate), ..self.spec.options.clone() };
        vec![Probe { options, slo: self.spec.slo.clone(), whole: false }]
    }

    fn tell(&mut self, verdicts: &[Verdict]) {
        self.probes += 1;
        if verdicts[0].met {
            self.holds = self.rate;
        } else {
            self.fails = Some(self.rate);
        }
    }

    fn progress(&self) -> Progress {
        Progress { done: self.probes, expected: self.probes + 1 }
    }
}
