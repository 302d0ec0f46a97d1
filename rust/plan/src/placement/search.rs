//! The course of both algorithms: goodput of every way to cut, the choice, and what all instances come to together.

use splitcore_sim::machines::Model;
use splitcore_sim::{Options, SimError};

use super::{Affinity, Parallelism, Placed, PlacementSpec, Tried, high, low};
use crate::capacity::{CapacitySearch, CapacitySpec};
use crate::probe::{Probe, Verdict};
use crate::search::{Progress, Search, SideBySide};
use crate::slo::SloSet;

/// Nodes and GPUs at most: more is a typing error.
const NODES_MAX: u32 = 64;
const GPUS_PER_NODE_MAX: u32 = 64;

/// One way to cut, and the run that shows what it is worth.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) prefill: Option<Parallelism>,
    pub(super) decode: Option<Parallelism>,
    pub(super) spec: CapacitySpec,
}

impl Way {
    fn gpus(&self) -> u32 {
        self.prefill.map_or(0, Parallelism::gpus) + self.decode.map_or(0, Parallelism::gpus)
    }
}

/// What is replicated to the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instances {
    pub(super) prefill: Parallelism,
    pub(super) prefill_count: u32,
    pub(super) decode: Parallelism,
    pub(super) decode_count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Goodputs are being found.
    Cutting,
    /// They are known; without instances, no way to cut keeps the objectives at any rate.
    Chosen(Option<Instances>),
}

/// Searches a placement.
#[derive(Debug, Clone)]
pub struct PlacementSearch {
    spec: PlacementSpec,
    ways: Vec<Way>,
    goodputs: SideBySide<CapacitySearch>,
    ruled_out: Vec<String>,
    stage: Stage,
    /// Verdicts on all instances together, seed by seed.
    together: Option<Vec<Verdict>>,
    probes: u64,
}

impl PlacementSearch {
    /// Checks everything and lists the ways to cut.
    ///
    /// # Errors
    /// Bad options; a number out of range; a model that no way of cutting fits.
    pub fn new(spec: &PlacementSpec) -> Result<Self, SimError> {
        check(spec)?;
        let layers = Model::parse(&spec.options.model)?.layers();
        let mut ways = match spec.affinity {
            Affinity::High => high::ways(spec),
            Affinity::Low => low::ways(spec),
        };
        // Stages are equal.
        let is_even = |cut: Option<Parallelism>| cut.is_none_or(|cut| layers.is_multiple_of(cut.pp));
        ways.retain(|way| is_even(way.prefill) && is_even(way.decode));
        let (mut kept, mut searches, mut ruled_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut reason = None;
        for way in ways {
            match CapacitySearch::new(&way.spec) {
                Ok(search) => {
                    kept.push(way);
                    searches.push(search);
                }
                // The model does not fit, or nobody has timed it so.
                Err(error @ SimError::Config { option: "model", .. }) => {
                    let text = format!("{}: {error}", told(&way));
                    reason = Some(error);
                    ruled_out.push(text);
                }
                Err(error) => return Err(error),
            }
        }
        let has = |side: fn(&Way) -> bool| kept.iter().any(side);
        if !(has(|way| way.prefill.is_some()) && has(|way| way.decode.is_some())) {
            let none =
                || SimError::config("nodes_max", "room for a prefill and a decode instance", spec.nodes_max);
            return Err(reason.unwrap_or_else(none));
        }
        Ok(Self {
            spec: spec.clone(),
            ways: kept,
            goodputs: SideBySide::new(searches),
            ruled_out,
            stage: Stage::Cutting,
            together: None,
            probes: 0,
        })
    }

    /// The answer. Before the search is over: what is known so far.
    pub fn found(&self) -> Placed {
        let instances = self.chosen();
        let together = self.together.as_deref().unwrap_or_default();
        Placed {
            prefill: instances.map(|all| all.prefill),
            prefill_instances: instances.map_or(0, |all| all.prefill_count),
            decode: instances.map(|all| all.decode),
            decode_instances: instances.map_or(0, |all| all.decode_count),
            gpus: instances.map_or(0, Instances::gpus),
            holds: !together.is_empty() && together.iter().all(|verdict| verdict.met),
            findings: together.iter().flat_map(|verdict| verdict.findings.clone()).collect(),
            tried: self.tried(),
            ruled_out: self.ruled_out.clone(),
            probes: self.probes,
        }
    }

    fn chosen(&self) -> Option<Instances> {
        if let Stage::Chosen(instances) = self.stage { instances } else { None }
    }

    fn tried(&self) -> Vec<Tried> {
        let pairs = self.ways.iter().zip(self.goodputs.searches());
        let tried = pairs.map(|(way, search)| {
            let capacity = search.found();
            Tried {
                prefill: way.prefill,
                decode: way.decode,
                goodput_rps: capacity.max_rate,
                goodput_rps_per_gpu: capacity.max_rate / f64::from(way.gpus()),
                failing: capacity.failing.into_iter().map(|failing| failing.objective).collect(),
            }
        });
        tried.collect()
    }

    /// Every instance at the rate, each seed run to its end. Pairs that share no link are as one pair at its part of the
    /// rate, so of them one is run.
    fn all_together(&self, instances: Instances) -> Vec<Probe> {
        let Instances { prefill, prefill_count, decode, decode_count } = instances;
        let (prefills, decodes, rate, bandwidth) = match self.spec.affinity {
            Affinity::High => {
                (prefill_count, decode_count, self.spec.rate_rps, self.spec.options.link_bandwidth)
            }
            Affinity::Low => {
                let rate = self.spec.rate_rps / f64::from(prefill_count);
                (1, 1, rate, Some(self.spec.node_bandwidth_bytes_per_s))
            }
        };
        let machine = &self.spec.machine;
        let options = Options {
            prompt: Some(machines(prefills, machine, prefill)),
            token: Some(machines(decodes, machine, decode)),
            rate: Some(rate),
            link_bandwidth: bandwidth,
            ..base(&self.spec.options)
        };
        let seeds = 0..u64::from(self.spec.seeds);
        let probe = |seed| Probe {
            options: Options { seed: options.seed.wrapping_add(seed), ..options.clone() },
            slo: self.spec.slo.clone(),
            whole: true,
        };
        seeds.map(probe).collect()
    }
}

impl Search for PlacementSearch {
    fn ask(&mut self) -> Vec<Probe> {
        if self.stage == Stage::Cutting {
            let probes = self.goodputs.ask();
            if !probes.is_empty() {
                return probes;
            }
            let tried = self.tried();
            self.stage = Stage::Chosen(match self.spec.affinity {
                Affinity::High => high::choose(&tried, self.spec.rate_rps),
                Affinity::Low => low::choose(&tried, self.spec.rate_rps),
            });
        }
        match (self.chosen(), &self.together) {
            (Some(instances), None) => self.all_together(instances),
            _ => Vec::new(),
        }
    }

    fn tell(&mut self, verdicts: &[Verdict]) {
        self.probes += verdicts.len() as u64;
        if self.stage == Stage::Cutting {
            self.goodputs.tell(verdicts);
        } else {
            self.together = Some(verdicts.to_vec());
        }
    }

    fn progress(&self) -> Progress {
        let goodputs = self.goodputs.progress();
        let last = u64::from(self.spec.seeds);
        Progress { done: self.probes, expected: goodputs.expected + last }
    }
}

impl Instances {
    fn gpus(self) -> u32 {
        self.prefill_count * self.prefill.gpus() + self.decode_count * self.decode.gpus()
    }
}

fn check(spec: &PlacementSpec) -> Result<(), SimError> {
    let ranges =
        [("nodes_max", spec.nodes_max, NODES_MAX), ("gpus_per_node", spec.gpus_per_node, GPUS_PER_NODE_MAX)];
    if let Some((option, got, most)) = ranges.into_iter().find(|(_, got, most)| !(1..=*most).contains(got)) {
        return Err(SimError::config(option, format!("1 to {most}"), got));
    }
    if spec.affinity == Affinity::High {
        let is_bare = |slo: &SloSet| {
            slo.classes.iter().any(|class| class.limits.is_empty() && class.attainments.is_empty())
        };
        if is_bare(&high::of_phase(&spec.slo, true)) || is_bare(&high::of_phase(&spec.slo, false)) {
            let expected = "limits on TTFT and on the time between tokens, one for each phase";
            return Err(SimError::config("slo", expected, format!("`{}`", spec.slo.name)));
        }
    }
    let above_0 = |value: f64| value > 0.0 && value < f64::INFINITY;
    if !above_0(spec.rate_rps) {
        return Err(SimError::config("rate", "requests per second above 0", spec.rate_rps));
    }
    if !above_0(spec.node_bandwidth_bytes_per_s) {
        let got = spec.node_bandwidth_bytes_per_s;
        return Err(SimError::config("node_bandwidth", "bytes per second above 0", got));
    }
    Ok(())
}

/// What every run has in common: requests go to the least loaded instance of their phase and to no other.
pub(super) fn base(options: &Options) -> Options {
    let policy = options.policy.clone().unwrap_or_else(|| "least-requests".into());
    Options { policy: Some(policy), ..options.clone() }
}

/// As `4xdgx-a100:tp2:pp2`.
pub(super) fn machines(count: u32, machine: &str, cut: Parallelism) -> String {
    let Parallelism { tp, pp } = cut;
    if pp == 1 { format!("{count}x{machine}:tp{tp}") } else { format!("{count}x{machine}:tp{tp}:pp{pp}") }
}

/// Tensor-parallel sizes within a node.
pub(super) fn tensor_sizes(gpus_per_node: u32) -> impl Iterator<Item = u32> {
    [1, 2, 4, 8].into_iter().filter(move |&tp| tp <= gpus_per_node)
}

/// How many of `goodput_rps` make `rate_rps`.
pub(super) fn replicas(rate_rps: f64, goodput_rps: f64) -> u32 {
    (rate_rps / goodput_rps).ceil().max(1.0) as u32
}

fn told(way: &Way) -> String {
    let side = |name: &str, cut: Option<Parallelism>| {
        cut.map(|Parallelism { tp, pp }| format!("{name} tp{tp} pp{pp}"))
    };
    let sides = [side("prefill", way.prefill), side("decode", way.decode)];
    sides.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
