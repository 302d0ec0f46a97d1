//! The search over rates, all seeds side by side.

use splitcore_sim::workload::Source;
use splitcore_sim::{Options, SimError};

use super::bracket::{Bracket, Rates};
use super::{Capacity, CapacitySpec, Failing, SeedCapacity};
use crate::judge::scenario;
use crate::probe::{Finding, Probe, Verdict};
use crate::search::{Progress, Search};
use crate::stats::{Interval, mean_with_interval};

/// Where the search begins.
const START_RPS: f64 = 16.0;
/// Arrivals that a workload has at the lowest rate tried, on average: fewer say nothing.
const ARRIVALS_MIN: f64 = 10.0;
/// Arrivals end after this many seconds unless said.
const DURATION_DEFAULT_S: f64 = 300.0;
const RESOLUTION: std::ops::RangeInclusive<f64> = 1e-4..=1.0;
const SEEDS_MAX: u32 = 10_000;

/// Searches the highest rate of one cluster.
#[derive(Debug, Clone)]
pub struct CapacitySearch {
    spec: CapacitySpec,
    gpus: u64,
    notes: Vec<String>,
    seeds: Vec<Seed>,
    /// What was asked last: seeds by index, and rates.
    asked: Vec<(usize, f64)>,
    probes: u64,
}

#[derive(Debug, Clone)]
struct Seed {
    bracket: Bracket,
    /// What fails at the rate that does, once it has been run to its end.
    failing: Option<Vec<Finding>>,
    /// At the rate that holds.
    out_of_range_lookups: u64,
}

impl CapacitySearch {
    /// Checks everything, as far as the first run's options.
    ///
    /// # Errors
    /// Bad options; no seeds, a resolution or a step out of range.
    pub fn new(spec: &CapacitySpec) -> Result<Self, SimError> {
        let spec = CapacitySpec { seeds: distinct_seeds(spec)?, ..spec.clone() };
        let rates = match spec.step_rps {
            None if RESOLUTION.contains(&spec.resolution) => Rates::Any { resolution: spec.resolution },
            None => {
                let expected = format!("{} to {}", RESOLUTION.start(), RESOLUTION.end());
                return Err(SimError::config("resolution", expected, spec.resolution));
            }
            Some(step_rps) if step_rps > 0.0 && step_rps <= 1e6 => Rates::Multiples { step_rps },
            Some(step_rps) => {
                return Err(SimError::config("step", "requests per second above 0, up to 1e6", step_rps));
            }
        };
        if let Some(rate) = spec.options.rate {
            return Err(SimError::config("rate", "none, as the rate is what is searched for", rate));
        }
        let floor_rps = match spec.options.requests {
            Some(_) => 1e-3,
            None => ARRIVALS_MIN / spec.options.duration_s.unwrap_or(DURATION_DEFAULT_S),
        };
        let bracket = Bracket::new(rates, START_RPS, floor_rps);
        let seed = Seed { bracket, failing: None, out_of_range_lookups: 0 };
        let mut search = Self {
            gpus: 0,
            notes: Vec::new(),
            seeds: vec![seed; spec.seeds as usize],
            asked: Vec::new(),
            probes: 0,
            spec,
        };
        let first = scenario(&search.probe(0, START_RPS, false))?;
        search.gpus = first.gpus();
        for seed in &mut search.seeds {
            seed.bracket = seed.bracket.clone().of_gpus(search.gpus);
        }
        search.notes = first.notes().to_vec();
        Ok(search)
    }

    /// The answer. Before the search is over: what is known so far.
    pub fn found(&self) -> Capacity {
        let rates: Vec<f64> = self.seeds.iter().map(|seed| seed.bracket.holds()).collect();
        let (max_rate, ci) = mean_with_interval(&rates);
        // No rate is below zero.
        let ci = ci.map(|Interval { low, high }| Interval { low: low.max(0.0), high });
        let seed_capacity = |(at, seed): (usize, &Seed)| SeedCapacity {
            seed: self.seed(at),
            max_rate: seed.bracket.holds(),
            failing_rate: seed.bracket.fails(),
            failing: seed.failing.clone().unwrap_or_default(),
            out_of_range_lookups: seed.out_of_range_lookups,
        };
        Capacity {
            max_rate,
            ci,
            failing: self.failing(),
            gpus: self.gpus,
            max_rate_per_gpu: max_rate / self.gpus as f64,
            seeds: self.seeds.iter().enumerate().map(seed_capacity).collect(),
            slo: self.spec.slo.name.clone(),
            probes: self.probes,
            notes: self.notes(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let highest =
            self.seeds.iter().filter(|seed| seed.bracket.is_without_end()).map(|seed| seed.bracket.holds());
        let without_end = highest.reduce(f64::max).map(|rate_rps| {
            let per_gpu = rate_rps / self.gpus as f64;
            format!(
                "the objectives are kept at every rate up to {rate_rps}/s, {per_gpu:.0}/s for each GPU, and none beyond is \
                 tried: they do not bind, and the highest rate is not known"
            )
        });
        self.notes.iter().cloned().chain(without_end).collect()
    }

    fn failing(&self) -> Vec<Failing> {
        let mut all: Vec<Failing> = Vec::new();
        for finding in self.seeds.iter().filter_map(|seed| seed.failing.as_ref()).flatten() {
            let is_it =
                |known: &&mut Failing| known.class == finding.class && known.objective == finding.objective;
            if let Some(known) = all.iter_mut().find(is_it) {
                known.seeds += 1;
            } else {
                let Finding { class, objective, limit, .. } = finding.clone();
                all.push(Failing { class, objective, limit, seeds: 1 });
            }
        }
        // Stable: what ties stays in the order of the objectives.
        all.sort_by_key(|failing| std::cmp::Reverse(failing.seeds));
        all
    }

    fn seed(&self, at: usize) -> u64 {
        self.spec.options.seed.wrapping_add(at as u64)
    }

    fn probe(&self, at: usize, rate: f64, whole: bool) -> Probe {
        let options = Options { rate: Some(rate), seed: self.seed(at), ..self.spec.options.clone() };
        Probe { options, slo: self.spec.slo.clone(), whole }
    }
}

impl Search for CapacitySearch {
    fn ask(&mut self) -> Vec<Probe> {
        let next = |(at, seed): (usize, &Seed)| match (seed.bracket.next(), seed.bracket.fails()) {
            (Some(rate), _) => Some((at, rate, false)),
            // Where an objective is lost the run ends, and the others are not known.
            (None, Some(fails)) if seed.failing.is_none() => Some((at, fails, true)),
            _ => None,
        };
        let asked: Vec<(usize, f64, bool)> = self.seeds.iter().enumerate().filter_map(next).collect();
        self.asked = asked.iter().map(|&(at, rate, _)| (at, rate)).collect();
        asked.into_iter().map(|(at, rate, whole)| self.probe(at, rate, whole)).collect()
    }

    fn tell(&mut self, verdicts: &[Verdict]) {
        for ((at, rate), verdict) in std::mem::take(&mut self.asked).into_iter().zip(verdicts) {
            self.probes += 1;
            let seed = &mut self.seeds[at];
            if seed.bracket.next() == Some(rate) {
                seed.bracket.tell(rate, verdict.met);
                if verdict.met {
                    seed.out_of_range_lookups = verdict.out_of_range_lookups;
                }
            } else {
                let failing = verdict.findings.iter().filter(|finding| finding.met == Some(false));
                seed.failing = Some(failing.cloned().collect());
            }
        }
    }

    fn progress(&self) -> Progress {
        let left = |seed: &Seed| seed.bracket.left() + u64::from(seed.failing.is_none());
        Progress { done: self.probes, expected: self.probes + self.seeds.iter().map(left).sum::<u64>() }
    }
}

/// Seeds that draw anything: a file replayed as it is, is one sample however often it is taken.
fn distinct_seeds(spec: &CapacitySpec) -> Result<u32, SimError> {
    if !(1..=SEEDS_MAX).contains(&spec.seeds) {
        return Err(SimError::config("seeds", format!("1 to {SEEDS_MAX}"), spec.seeds));
    }
    let own = spec.slo.classes.iter().map(|class| class.traffic.trace.as_ref());
    let is_replayed = |trace: Option<&String>| {
        let trace = trace.unwrap_or(&spec.options.trace);
        matches!(Source::from(trace.as_str()), Source::File(_))
            && spec.options.arrivals.as_deref().is_none_or(|arrivals| arrivals == "trace")
    };
    Ok(if own.clone().all(is_replayed) { 1 } else { spec.seeds })
}
