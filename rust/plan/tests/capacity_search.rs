//! The search over rates, told verdicts made up from a known capacity.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

use splitcore_plan::capacity::{Capacity, CapacitySearch, CapacitySpec};
use splitcore_plan::slo::{ClassSlo, Limit, Metric, SloSet};
use splitcore_plan::{Finding, Probe, Search, Verdict};
use splitcore_sim::Options;
use splitcore_sim::workload::TrafficClass;

fn spec() -> CapacitySpec {
    let traffic = TrafficClass { name: "all".into(), trace: None, share: 1.0, ..TrafficClass::default() };
    let limit = Limit { metric: Metric::TtftS, percentile: 90.0, below: 2.0 };
    CapacitySpec {
        options: Options {
            unsplit: Some("2xdgx-h100".into()),
            duration_s: Some(120.0),
            seed: 7,
            ..Options::default()
        },
        slo: SloSet {
            name: "made up".into(),
            classes: vec![ClassSlo { traffic, limits: vec![limit], attainments: Vec::new() }],
        },
        seeds: 3,
        resolution: 0.01,
        step_rps: None,
    }
}

/// A run that holds up to a rate, and above it misses TTFT, with odd seeds TBT too.
fn verdict(probe: &Probe, capacity: f64) -> Verdict {
    let met = probe.options.rate.unwrap() <= capacity;
    let finding = |objective: &str, is_missed: bool| Finding {
        class: "all".into(),
        objective: objective.into(),
        limit: 2.0,
        found: probe.whole.then_some(if is_missed { 2.5 } else { 1.0 }),
        met: (probe.whole || is_missed).then_some(!is_missed),
    };
    Verdict {
        met,
        findings: vec![
            finding("ttft_slowdown p90", !met),
            finding("tbt_slowdown p50", !met && probe.options.seed % 2 == 1),
        ],
        requests: 100,
        completed: 100,
        events: 1000,
        cut_short: !met && !probe.whole,
        out_of_range_lookups: 0,
    }
}

fn run(spec: &CapacitySpec, capacity: impl Fn(u64) -> f64) -> (Capacity, Vec<Vec<Probe>>) {
    let mut search = CapacitySearch::new(spec).unwrap();
    let mut rounds = Vec::new();
    loop {
        let probes = search.ask();
        if probes.is_empty() {
            return (search.found(), rounds);
        }
        let verdicts: Vec<Verdict> =
            probes.iter().map(|probe| verdict(probe, capacity(probe.options.seed))).collect();
        search.tell(&verdicts);
        rounds.push(probes);
        let progress = search.progress();
        assert!(progress.done <= progress.expected, "{progress:?}");
    }
}

#[test]
fn mean_interval_and_what_fails_come_from_the_seeds() {
    let (found, _) = run(&spec(), |seed| 100.0 + seed as f64);
    assert_eq!(found.seeds.iter().map(|seed| seed.seed).collect::<Vec<_>>(), [7, 8, 9]);
    for seed in &found.seeds {
        let capacity = 100.0 + seed.seed as f64;
        let fails = seed.failing_rate.unwrap();
        assert!(seed.max_rate <= capacity && capacity < fails && fails <= 1.01 * seed.max_rate);
    }
    let interval = found.ci.unwrap();
    assert!(interval.low < found.max_rate && found.max_rate < interval.high);
    let failing: Vec<_> = found.failing.iter().map(|f| (f.objective.as_str(), f.seeds)).collect();
    assert_eq!(failing, [("ttft_slowdown p90", 3), ("tbt_slowdown p50", 2)]);
    assert_eq!((found.gpus, found.max_rate_per_gpu), (16, found.max_rate / 16.0));
}

#[test]
fn on_a_grid_only_multiples_are_tried() {
    let spec = CapacitySpec { step_rps: Some(10.0), ..spec() };
    let (found, rounds) = run(&spec, |_| 119.9);
    let tried = rounds.iter().flatten().map(|probe| probe.options.rate.unwrap());
    assert!(tried.clone().all(|rate| rate % 10.0 == 0.0), "{:?}", tried.collect::<Vec<_>>());
    assert_eq!((found.max_rate, found.seeds[0].failing_rate), (110.0, Some(120.0)));
}

#[test]
fn seeds_are_searched_side_by_side() {
    let (_, rounds) = run(&spec(), |_| 80.0);
    assert!(rounds.iter().all(|round| round.len() == 3), "all the same, so all at once");
    let last = rounds.last().unwrap();
    assert!(
        last.iter().all(|probe| probe.whole),
        "the failing rate is run to its end to name all that fails"
    );
}

#[test]
fn a_cluster_that_holds_nothing_has_no_rate() {
    let (found, _) = run(&spec(), |_| 0.0);
    assert_eq!(found.max_rate, 0.0);
    assert_eq!(found.failing[0].seeds, 3);
}

#[test]
fn a_replayed_file_is_one_sample() {
    let file = std::env::temp_dir().join(format!("splitcore-capacity-{}.csv", std::process::id()));
    std::fs::write(
        &file,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,10,5\n2023-11-16 18:00:01.0,10,5\n",
    )
    .unwrap();
    let replay = Options { trace: file.to_string_lossy().into_owned(), ..spec().options };
    let (found, _) = run(&CapacitySpec { options: replay.clone(), ..spec() }, |_| 50.0);
    assert_eq!((found.seeds.len(), found.ci), (1, None));
    let drawn = Options { arrivals: Some("poisson".into()), ..replay };
    let (found, _) = run(&CapacitySpec { options: drawn, ..spec() }, |_| 50.0);
    assert_eq!(found.seeds.len(), 3);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn bad_specs_are_refused() {
    let told = |spec: &CapacitySpec| CapacitySearch::new(spec).unwrap_err().to_string();
    let with = |options: Options| CapacitySpec { options, ..spec() };
    assert!(told(&CapacitySpec { seeds: 0, ..spec() }).starts_with("seeds: expected 1 to"));
    assert!(
        told(&CapacitySpec { resolution: 0.0, ..spec() }).starts_with("resolution: expected 0.0001 to 1")
    );
    assert!(told(&CapacitySpec { resolution: f64::NAN, ..spec() }).starts_with("resolution:"));
    assert!(told(&CapacitySpec { step_rps: Some(-1.0), ..spec() }).starts_with("step: expected"));
    assert!(told(&with(Options { rate: Some(3.0), ..spec().options })).starts_with("rate: expected none"));
    assert!(told(&with(Options { unsplit: None, ..spec().options })).starts_with("prompt: expected"));
}
