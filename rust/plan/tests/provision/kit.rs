//! Designs, prices and clusters that are easy to tell apart, and a driver without a simulator.

use splitcore_plan::provision::{
    Candidate, Design, Goal, Limits, Price, Provision, ProvisionSearch, ProvisionSpec,
};
use splitcore_plan::slo::{ClassSlo, Limit, Metric, SloSet};
use splitcore_plan::{Finding, Probe, Search, Verdict};
use splitcore_sim::Options;
use splitcore_sim::workload::TrafficClass;

/// A cluster by its design's index and its pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pools {
    pub(crate) design: usize,
    pub(crate) prompt: u32,
    pub(crate) token: u32,
}

const NAMES: [&str; 3] = ["split", "whole", "capped"];

pub(crate) fn price(cost_per_hour: f64, power_w: f64, rack_units: f64) -> Price {
    Price { cost_per_hour, power_w, rack_units }
}

/// Two split designs, and an unsplit one between them.
pub(crate) fn design(index: usize, prompt_price: Price, token_price: Price) -> Design {
    let (prompt, token, unsplit) = [
        (Some("dgx-h100"), Some("dgx-a100"), None),
        (None, None, Some("dgx-h100")),
        (Some("dgx-a100"), Some("dgx-h100-cap"), None),
    ][index];
    let machines = |kind: Option<&str>| kind.map(str::to_owned);
    Design {
        name: NAMES[index].into(),
        prompt: machines(prompt),
        token: machines(token),
        unsplit: machines(unsplit),
        prompt_price,
        token_price,
    }
}

pub(crate) fn spec(
    goal: Goal,
    rate_rps: Option<f64>,
    designs: Vec<Design>,
    machines_max: u32,
) -> ProvisionSpec {
    let traffic = TrafficClass { name: "all".into(), trace: None, share: 1.0, ..TrafficClass::default() };
    // Verdicts are made up: it only has to be there.
    let limit = Limit { metric: Metric::TtftSlowdown, percentile: 90.0, below: 3.0 };
    ProvisionSpec {
        options: Options { duration_s: Some(100.0), seed: 7, ..Options::default() },
        slo: SloSet {
            name: "made up".into(),
            classes: vec![ClassSlo { traffic, limits: vec![limit], attainments: Vec::new() }],
        },
        designs,
        goal,
        limits: Limits::default(),
        rate_rps,
        seeds: 1,
        machines_max,
        machines_step: 1,
        resolution: 0.01,
        whole_map: false,
    }
}

pub(crate) fn pools_of(probe: &Probe) -> Pools {
    let group = |machines: &Option<String>| {
        let machines = machines.as_deref()?;
        let (count, kind) = machines.split_once('x').unwrap();
        Some((count.parse().unwrap(), kind.to_owned()))
    };
    let Options { prompt, token, unsplit, .. } = &probe.options;
    match (group(prompt), group(token), group(unsplit)) {
        (Some((prompt, kind)), Some((token, _)), None) => {
            Pools { design: if kind == "dgx-h100" { 0 } else { 2 }, prompt, token }
        }
        (None, None, Some((machines, _))) => Pools { design: 1, prompt: machines, token: 0 },
        _ => panic!("{:?}", probe.options),
    }
}

/// A run that keeps its objectives, or misses one of its two: the first with even seeds, the second with odd ones.
pub(crate) fn verdict(probe: &Probe, met: bool) -> Verdict {
    let finding = |objective: &str, limit: f64, bad: f64, is_missed: bool| Finding {
        class: "all".into(),
        objective: objective.into(),
        limit,
        found: probe.whole.then_some(if is_missed { bad } else { limit }),
        met: (probe.whole || is_missed).then_some(!is_missed),
    };
    let is_odd = probe.options.seed % 2 == 1;
    Verdict {
        met,
        findings: vec![
            finding("attainment", 0.9, 0.8, !met && !is_odd),
            finding("ttft_slowdown p90", 3.0, 3.4, !met && is_odd),
        ],
        requests: 100,
        completed: 100,
        events: 1000,
        cut_short: !met && !probe.whole,
        out_of_range_lookups: 0,
    }
}

pub(crate) struct Searched {
    pub(crate) found: Provision,
    pub(crate) probes: Vec<Probe>,
    pub(crate) rounds: usize,
}

/// Searches where `holds` tells what a cluster does at a rate with a seed.
pub(crate) fn search(spec: &ProvisionSpec, holds: impl Fn(Pools, f64, u64) -> bool) -> Searched {
    let mut search = ProvisionSearch::new(spec).unwrap();
    let (mut all, mut rounds) = (Vec::new(), 0);
    loop {
        let probes = search.ask();
        if probes.is_empty() {
            let found = search.found();
            assert_eq!(found.probes, all.len() as u64);
            assert!(search.ask().is_empty());
            return Searched { found, probes: all, rounds };
        }
        assert_eq!(search.ask(), probes, "asked twice, it asks the same");
        let judge = |probe: &Probe| {
            verdict(probe, holds(pools_of(probe), probe.options.rate.unwrap(), probe.options.seed))
        };
        search.tell(&probes.iter().map(judge).collect::<Vec<_>>());
        let progress = search.progress();
        assert!(progress.done <= progress.expected, "{progress:?}");
        all.extend(probes);
        rounds += 1;
        assert!(rounds < 2000, "no end");
    }
}

/// What a cluster takes: cost, power, rack units.
pub(crate) fn totals(spec: &ProvisionSpec, pools: Pools) -> [f64; 3] {
    let design = spec.designs.iter().find(|design| design.name == NAMES[pools.design]).unwrap();
    let (prompt, token) = (f64::from(pools.prompt), f64::from(pools.token));
    let (by_prompt, by_token) = (design.prompt_price, design.token_price);
    [
        by_prompt.cost_per_hour * prompt + by_token.cost_per_hour * token,
        by_prompt.power_w * prompt + by_token.power_w * token,
        by_prompt.rack_units * prompt + by_token.rack_units * token,
    ]
}

/// Every cluster within the limits, by design, prompt and token machines.
pub(crate) fn within(spec: &ProvisionSpec) -> Vec<Pools> {
    let Limits { cost_per_hour, power_w, rack_units } = spec.limits;
    let mut all = Vec::new();
    for design in &spec.designs {
        let index = NAMES.iter().position(|name| *name == design.name).unwrap();
        let sizes = || (1..=spec.machines_max).filter(|size| size % spec.machines_step == 0);
        for prompt in sizes() {
            let tokens: Vec<u32> = if index == 1 { vec![0] } else { sizes().collect() };
            all.extend(tokens.into_iter().map(|token| Pools { design: index, prompt, token }));
        }
    }
    let kept = |pools: &Pools| {
        let limits = [cost_per_hour, power_w, rack_units];
        limits.iter().zip(totals(spec, *pools)).all(|(limit, total)| limit.is_none_or(|limit| total <= limit))
    };
    all.retain(kept);
    all
}

/// The best of some clusters by the order as it is written down.
pub(crate) fn best(spec: &ProvisionSpec, among: impl Iterator<Item = Pools>) -> Option<Pools> {
    let key = |pools: &Pools| {
        let [cost, power, space] = totals(spec, *pools);
        let order = match spec.goal {
            Goal::MinCost | Goal::MaxThroughput => [cost, power, space],
            Goal::MinPower => [power, cost, space],
            Goal::MinSpace => [space, cost, power],
        };
        let position = spec.designs.iter().position(|design| design.name == NAMES[pools.design]).unwrap();
        // Prices of these tests are whole numbers.
        (order.map(|total| total as u64), pools.prompt + pools.token, position, pools.prompt)
    };
    among.min_by_key(key)
}

pub(crate) fn pools(candidate: &Candidate) -> Pools {
    let design = NAMES.iter().position(|name| *name == candidate.design).unwrap();
    Pools { design, prompt: candidate.prompt, token: candidate.token }
}
