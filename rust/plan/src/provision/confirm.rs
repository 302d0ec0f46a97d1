//! What the chosen cluster can do: its highest rate, and what is left of it when a machine is lost.

use splitcore_sim::Options;

use super::answer::{Chosen, Spare};
use super::binding::missed;
use super::space::{Pools, Space};
use super::spec::ProvisionSpec;
use crate::capacity::CapacitySearch;
use crate::probe::{Probe, Verdict};
use crate::search::Search;

/// Clusters run to the end with every seed, so that what they miss is known.
#[derive(Debug, Clone)]
pub(super) struct WholeRuns {
    pub(super) pools: Vec<Pools>,
    rate: f64,
    seeds: usize,
    verdicts: Vec<Verdict>,
}

impl WholeRuns {
    pub(super) fn new(pools: Vec<Pools>, rate: f64, seeds: usize) -> Self {
        Self { pools, rate, seeds, verdicts: Vec::new() }
    }

    /// All of them; none once they are made.
    pub(super) fn ask(&self, space: &Space, spec: &ProvisionSpec) -> Vec<Probe> {
        if !self.verdicts.is_empty() {
            return Vec::new();
        }
        let seeds = |&pools: &Pools| (0..self.seeds).map(move |seed| (pools, seed));
        let runs = self.pools.iter().flat_map(seeds);
        runs.map(|(pools, seed)| probe(space, spec, pools, self.rate, seed, true)).collect()
    }

    pub(super) fn tell(&mut self, verdicts: &[Verdict]) {
        self.verdicts = verdicts.to_vec();
    }

    /// Each cluster's verdicts, seed by seed; none before they are made.
    pub(super) fn verdicts(&self) -> Vec<&[Verdict]> {
        self.verdicts.chunks(self.seeds).collect()
    }

    pub(super) fn left(&self) -> u64 {
        if self.verdicts.is_empty() { (self.pools.len() * self.seeds) as u64 } else { 0 }
    }
}

/// The run of a cluster at a rate.
pub(super) fn probe(
    space: &Space,
    spec: &ProvisionSpec,
    pools: Pools,
    rate: f64,
    seed: usize,
    whole: bool,
) -> Probe {
    let options = Options {
        rate: Some(rate),
        seed: spec.options.seed.wrapping_add(seed as u64),
        ..space.options(&spec.options, pools)
    };
    Probe { options, slo: spec.slo.clone(), whole }
}

/// The chosen cluster's own searches, all in the same rounds.
#[derive(Debug, Clone)]
pub(super) struct Confirm {
    pools: Pools,
    capacity: CapacitySearch,
    /// Machines lost, and whether any of the pool is left.
    lost: Vec<(&'static str, bool)>,
    /// The clusters with one machine lost, where any is left.
    spare: WholeRuns,
    /// Probes last asked for by the capacity search.
    asked: usize,
}

impl Confirm {
    pub(super) fn new(pools: Pools, rate: f64, seeds: usize, capacity: CapacitySearch) -> Self {
        let without = |prompt: u32, token: u32| Pools {
            prompt: pools.prompt - prompt,
            token: pools.token - token,
            ..pools
        };
        let (lost, left) = if pools.token == 0 {
            (vec![("unsplit", pools.prompt > 1)], vec![without(1, 0)])
        } else {
            let lost = vec![("prompt", pools.prompt > 1), ("token", pools.token > 1)];
            (lost, vec![without(1, 0), without(0, 1)])
        };
        let left = left.into_iter().zip(&lost).filter(|(_, (_, is_any_left))| *is_any_left);
        let left = left.map(|(pools, _)| pools).collect();
        Self { pools, capacity, spare: WholeRuns::new(left, rate, seeds), lost, asked: 0 }
    }

    pub(super) fn ask(&mut self, space: &Space, spec: &ProvisionSpec) -> Vec<Probe> {
        let mut probes = self.capacity.ask();
        self.asked = probes.len();
        probes.extend(self.spare.ask(space, spec));
        probes
    }

    pub(super) fn tell(&mut self, verdicts: &[Verdict]) {
        let (capacity, spare) = verdicts.split_at(self.asked);
        if !capacity.is_empty() {
            self.capacity.tell(capacity);
        }
        if !spare.is_empty() {
            self.spare.tell(spare);
        }
    }

    pub(super) fn left(&self) -> u64 {
        let capacity = self.capacity.progress();
        capacity.expected.saturating_sub(capacity.done) + self.spare.left()
    }

    pub(super) fn found(&self, space: &Space, rate_asked: Option<f64>) -> Chosen {
        let mut verdicts = self.spare.verdicts().into_iter();
        let mut spare = Vec::new();
        for &(lost, is_any_left) in &self.lost {
            let verdicts = if is_any_left { verdicts.next() } else { None };
            spare.push(Spare {
                lost: lost.into(),
                holds: verdicts.is_some_and(|verdicts| verdicts.iter().all(|verdict| verdict.met)),
                failing: verdicts.map(missed).unwrap_or_default(),
            });
        }
        let capacity = self.capacity.found();
        let margin = rate_asked.map(|rate| capacity.max_rate / rate - 1.0);
        Chosen { candidate: space.candidate(self.pools), capacity, margin, spare }
    }
}
