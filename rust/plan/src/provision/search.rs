//! The course of a search: the best clusters, then what the best can do, or else why there is none.

use splitcore_sim::SimError;

use super::answer::{Candidate, Cell, Provision};
use super::binding::WhyNot;
use super::cheapest::{Care, Cheapest};
use super::confirm::{Confirm, WholeRuns, probe};
use super::fastest::{Fastest, Rates};
use super::judged::{Inquiry, Judged, Question};
use super::space::{Grid, Pools, Space};
use super::spec::{Goal, ProvisionSpec};
use crate::capacity::CapacitySearch;
use crate::capacity::CapacitySpec;
use crate::probe::{Probe, Verdict};
use crate::search::{Progress, Search};

/// Arrivals that a workload has at the lowest rate tried, on average: fewer say nothing.
const ARRIVALS_MIN: f64 = 10.0;
/// Arrivals end after this many seconds unless said.
const DURATION_DEFAULT_S: f64 = 300.0;

#[derive(Debug, Clone)]
enum Stage {
    /// Looking for the best.
    Cheapest(Cheapest),
    Fastest(Fastest),
    /// There is a best.
    Confirm(Box<Confirm>),
    /// There is none.
    WhyNot(Box<WhyNot>),
    /// Objectives bind: which, at the largest clusters.
    Hopeless(Box<WhyNot>, WholeRuns),
}

/// What is known of the best once the first stage is over.
#[derive(Debug, Clone, Default)]
struct Bests {
    designs: Vec<Option<Candidate>>,
    design_rates: Vec<Option<f64>>,
    frontier: Vec<Candidate>,
    map: Vec<Cell>,
}

/// Searches pool sizes.
#[derive(Debug, Clone)]
pub struct ProvisionSearch {
    spec: ProvisionSpec,
    space: Space,
    /// Workloads that differ.
    seeds: u32,
    judged: Judged,
    /// Questions being answered: all seeds before `seed` have held.
    open: Vec<Question>,
    seed: u32,
    stage: Stage,
    bests: Bests,
    probes: u64,
}

impl ProvisionSearch {
    /// Checks everything, each design's options with its smallest and its largest cluster included.
    ///
    /// # Errors
    /// Bad options; a goal without what it needs; a design that is none; a number out of range.
    pub fn new(spec: &ProvisionSpec) -> Result<Self, SimError> {
        spec.check()?;
        let space = Space::new(spec);
        let mut seeds = spec.seeds;
        for design in 0..spec.designs.len() {
            let is_split = spec.designs[design].is_split();
            for size in [1, spec.machines_max] {
                let pools = Pools { design, prompt: size, token: if is_split { size } else { 0 } };
                // A file replayed as it is counts once, however many seeds there are.
                seeds = seeds.min(capacity_search(&space, spec, pools)?.found().seeds.len() as u32);
            }
        }
        let grids = space.grids(&spec.limits, spec.machines_max);
        let stage = if let (Goal::MinCost | Goal::MinPower | Goal::MinSpace, Some(rate)) =
            (spec.goal, spec.rate_rps)
        {
            let care = if spec.whole_map { Care::All } else { Care::Band };
            Stage::Cheapest(Cheapest::new(&space, spec.goal, rate, care, grids))
        } else {
            let floor_rps = match spec.options.requests {
                Some(_) => 1e-3,
                None => ARRIVALS_MIN / spec.options.duration_s.unwrap_or(DURATION_DEFAULT_S),
            };
            let rates = Rates::new(spec.rate_rps, floor_rps, spec.resolution);
            Stage::Fastest(Fastest::new(&space, rates, grids.iter().map(Grid::outermost).collect()))
        };
        Ok(Self {
            spec: spec.clone(),
            space,
            seeds,
            judged: Judged::default(),
            open: Vec::new(),
            seed: 0,
            stage,
            bests: Bests::default(),
            probes: 0,
        })
    }

    /// The answer. Before the search is over: what is known so far.
    pub fn found(&self) -> Provision {
        let Bests { designs, design_rates, frontier, map } = self.bests.clone();
        let best = match &self.stage {
            Stage::Confirm(confirm) => Some(confirm.found(&self.space, self.spec.rate_rps)),
            _ => None,
        };
        let binding = match &self.stage {
            Stage::WhyNot(why) => why.bindings(&self.judged),
            Stage::Hopeless(why, largest) => {
                let objectives = why.objectives(&largest.pools, &largest.verdicts());
                // Before the last runs are made.
                if objectives.is_empty() { why.bindings(&self.judged) } else { objectives }
            }
            _ => Vec::new(),
        };
        Provision { best, designs, design_rates, frontier, map, binding, probes: self.probes }
    }

    /// What the stage wants to know next; none if it is over, or asks by itself.
    fn questions(&mut self) -> Vec<Question> {
        match &mut self.stage {
            Stage::Cheapest(cheapest) => cheapest.next(&self.judged),
            Stage::Fastest(fastest) => fastest.next(&self.judged),
            Stage::WhyNot(why) => why.next(&self.judged),
            Stage::Confirm(_) | Stage::Hopeless(..) => Vec::new(),
        }
    }

    /// Goes on to the next stage; false if there is none.
    fn advance(&mut self) -> bool {
        let next = match &self.stage {
            Stage::Cheapest(cheapest) => {
                let bests = cheapest.bests(&self.judged);
                let candidate = |pools: Option<Pools>| pools.map(|pools| self.space.candidate(pools));
                self.bests = Bests {
                    designs: bests.into_iter().map(candidate).collect(),
                    design_rates: Vec::new(),
                    frontier: cheapest.frontier(&self.judged),
                    map: cheapest.map(&self.judged),
                };
                let rate = self.spec.rate_rps.unwrap_or_default();
                self.confirm_or_tell(cheapest.best_of_all(&self.judged), rate)
            }
            Stage::Fastest(fastest) => {
                let bests = fastest.bests();
                let candidate =
                    |best: &Option<(Pools, f64)>| best.map(|(pools, _)| self.space.candidate(pools));
                self.bests = Bests {
                    designs: bests.iter().map(candidate).collect(),
                    design_rates: bests.iter().map(|best| best.map(|(_, rate)| rate)).collect(),
                    ..Bests::default()
                };
                let (best, highest) = fastest.best_of_all().unzip();
                let rate = self.spec.rate_rps.or(highest).unwrap_or_else(|| fastest.lowest_tried());
                self.confirm_or_tell(best, rate)
            }
            Stage::WhyNot(why) => {
                let Some(largest) = why.hopeless(&self.judged) else { return false };
                let rate = why.rate();
                Stage::Hopeless(why.clone(), WholeRuns::new(largest, rate, self.seeds as usize))
            }
            Stage::Confirm(_) | Stage::Hopeless(..) => return false,
        };
        self.stage = next;
        true
    }

    fn confirm_or_tell(&self, best: Option<Pools>, rate: f64) -> Stage {
        let confirm = |pools: Pools| {
            let capacity = capacity_search(&self.space, &self.spec, pools).ok()?;
            Some(Confirm::new(pools, rate, self.seeds as usize, capacity))
        };
        // Options that were checked with fewer machines and with more are fine.
        match best.and_then(confirm) {
            Some(confirm) => Stage::Confirm(Box::new(confirm)),
            None => Stage::WhyNot(Box::new(WhyNot::new(&self.space, &self.spec, rate))),
        }
    }
}

impl Search for ProvisionSearch {
    fn ask(&mut self) -> Vec<Probe> {
        while self.open.is_empty() {
            match &mut self.stage {
                Stage::Confirm(confirm) => return confirm.ask(&self.space, &self.spec),
                Stage::Hopeless(_, largest) => return largest.ask(&self.space, &self.spec),
                Stage::Cheapest(_) | Stage::Fastest(_) | Stage::WhyNot(_) => {}
            }
            self.seed = 0;
            self.open = self.questions();
            if self.open.is_empty() && !self.advance() {
                return Vec::new();
            }
        }
        let run = |question: &Question| {
            let seed = self.seed as usize;
            probe(&self.space, &self.spec, question.pools, question.rate(), seed, false)
        };
        self.open.iter().map(run).collect()
    }

    fn tell(&mut self, verdicts: &[Verdict]) {
        self.probes += verdicts.len() as u64;
        if self.open.is_empty() {
            match &mut self.stage {
                Stage::Confirm(confirm) => confirm.tell(verdicts),
                Stage::Hopeless(_, largest) => largest.tell(verdicts),
                Stage::Cheapest(_) | Stage::Fastest(_) | Stage::WhyNot(_) => {}
            }
            return;
        }
        self.seed += 1;
        let is_last = self.seed == self.seeds;
        let mut open = Vec::new();
        for (question, verdict) in std::mem::take(&mut self.open).into_iter().zip(verdicts) {
            if verdict.met && !is_last {
                open.push(question);
            } else {
                self.judged.insert(question, verdict.met);
            }
        }
        self.open = open;
    }

    fn progress(&self) -> Progress {
        let seeds = u64::from(self.seeds);
        let left = match &self.stage {
            Stage::Cheapest(cheapest) => cheapest.left() * seeds,
            Stage::Fastest(fastest) => fastest.left() * seeds,
            Stage::WhyNot(why) => why.left() * seeds,
            Stage::Confirm(confirm) => confirm.left(),
            Stage::Hopeless(_, largest) => largest.left(),
        };
        Progress { done: self.probes, expected: self.probes + left.max(self.open.len() as u64) }
    }
}

fn capacity_search(space: &Space, spec: &ProvisionSpec, pools: Pools) -> Result<CapacitySearch, SimError> {
    CapacitySearch::new(&CapacitySpec {
        options: space.options(&spec.options, pools),
        slo: spec.slo.clone(),
        seeds: spec.seeds,
        resolution: spec.resolution,
        step_rps: None,
    })
}
