//! What is published about splitting, found again by whole searches.
#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

use splitcore_plan::placement::{Affinity, Parallelism, Placed, PlacementSearch, PlacementSpec};
use splitcore_plan::slo::{Attainment, ClassSlo, Metric, SloSet};
use splitcore_plan::{Drive, Probe, Search, drive, judge};
use splitcore_sim::Options;
use splitcore_sim::workload::TrafficClass;

fn jointly(share: f64, ttft_s: f64, tpot_s: f64) -> SloSet {
    let traffic = TrafficClass { name: "all".into(), trace: None, share: 1.0, ..TrafficClass::default() };
    let limits = vec![(Metric::TtftS, ttft_s), (Metric::TpotS, tpot_s)];
    let attainments = vec![Attainment { share, limits }];
    SloSet { name: "joint".into(), classes: vec![ClassSlo { traffic, limits: Vec::new(), attainments }] }
}

fn driven<S: Search>(mut search: S) -> S {
    drive(&mut search, &Drive { jobs: 2, cache: None, control: &|_| true }).unwrap();
    search
}

/// TaiChi, section 2: with a tight limit between tokens machines that do one thing are better, with a tight limit on
/// the first token machines that do both. Its model and limits; long prompts and short outputs as there, but not its
/// trace, and eight machines at a rate near what they can do. Machines keep their roles, as there.
#[test]
fn which_of_split_and_unsplit_is_better_hangs_on_which_limit_is_tight() {
    let base = Options {
        model: "llama2-70b".into(),
        trace: "azure-code".into(),
        rate: Some(24.0),
        duration_s: Some(200.0),
        ..Options::default()
    };
    let unsplit = Options { unsplit: Some("8xdgx-h100:tp4".into()), ..base.clone() };
    let split = Options {
        prompt: Some("5xdgx-h100:tp4".into()),
        token: Some("3xdgx-h100:tp4".into()),
        policy: Some("least-requests".into()),
        ..base
    };
    let attained = |options: &Options, ttft_s, tpot_s| {
        let probe = Probe { options: options.clone(), slo: jointly(0.9, ttft_s, tpot_s), whole: true };
        judge(&probe).unwrap().findings[0].found.unwrap()
    };
    let both = |ttft_s, tpot_s| (attained(&unsplit, ttft_s, tpot_s), attained(&split, ttft_s, tpot_s));
    let (unsplit_share, split_share) = both(16.0, 0.060);
    eprintln!("| TTFT 16 s, TPOT 60 ms | {unsplit_share:.2} unsplit | {split_share:.2} split |");
    assert!(split_share > 2.0 * unsplit_share, "{unsplit_share} {split_share}");
    let (unsplit_share, split_share) = both(5.0, 0.250);
    eprintln!("| TTFT 5 s, TPOT 250 ms | {unsplit_share:.2} unsplit | {split_share:.2} split |");
    assert!(unsplit_share > 2.0 * split_share, "{unsplit_share} {split_share}");
}

fn placed(affinity: Affinity) -> Placed {
    let spec = PlacementSpec {
        options: Options {
            model: "opt-13b".into(),
            costs: "distserve".into(),
            duration_s: Some(60.0),
            ..Options::default()
        },
        slo: jointly(0.9, 0.25, 0.1),
        affinity,
        machine: "dgx-a100".into(),
        nodes_max: 1,
        gpus_per_node: 4,
        node_bandwidth_bytes_per_s: 600e9,
        rate_rps: 10.0,
        seeds: 1,
        resolution: 0.1,
    };
    driven(PlacementSearch::new(&spec).unwrap()).found()
}

#[test]
fn high_affinity_sizes_the_phases_apart() {
    let placed = placed(Affinity::High);
    let of = |cut: fn(&splitcore_plan::placement::Tried) -> Option<Parallelism>| {
        placed.tried.iter().filter(move |way| cut(way).is_some())
    };
    // Every (tp, pp) of four GPUs that has been timed, once for each phase.
    assert_eq!(of(|way| way.prefill).count(), of(|way| way.decode).count());
    let best = of(|way| way.prefill).map(|way| way.goodput_rps_per_gpu).fold(0.0, f64::max);
    let chosen = of(|way| way.prefill).find(|way| way.prefill == placed.prefill).unwrap();
    assert_eq!(chosen.goodput_rps_per_gpu, best);
    let count = (10.0 / chosen.goodput_rps).ceil() as u32;
    assert_eq!(placed.prefill_instances, count.max(1));
    let gpus = |cut: Option<Parallelism>, count| cut.unwrap().gpus() * count;
    let all = gpus(placed.prefill, placed.prefill_instances) + gpus(placed.decode, placed.decode_instances);
    assert_eq!(placed.gpus, all);
    assert_eq!(placed.findings.len(), 1, "all instances together are held to the objective, with each seed");
}

#[test]
fn low_affinity_keeps_a_pair_within_its_nodes() {
    let placed = placed(Affinity::Low);
    assert!(placed.tried.iter().all(|way| way.prefill.unwrap().gpus() + way.decode.unwrap().gpus() <= 4));
    assert_eq!(placed.prefill_instances, placed.decode_instances);
    assert!(placed.holds, "{placed:?}");
}
