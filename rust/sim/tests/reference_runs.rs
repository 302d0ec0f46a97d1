//! Whole runs of the `measured` cost model against an independent model of the same rules, and the Mooncake traces
//! against their count of requests that fit nowhere (`docs/validation.md`).
//!
//! `cargo test -p splitcore-sim --test reference_runs -- --nocapture` prints the table.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{Machines, assert_near, data, run, with_machines};
use splitcore_sim::Options;
use splitcore_sim::report::{Outcome, Summary};

const HA: Machines = Split("25xdgx-h100", "26xdgx-a100");
const BASELINE: Machines = Unsplit("40xdgx-h100");

/// Built-in conversation lengths, 300 s, memory without limit; prints the row of the table.
fn conversation(name: &str, machines: Machines, rate: f64, seed: u64) -> Summary {
    let options = Options { rate: Some(rate), seed, kv_limit: false, ..with_machines(machines) };
    let summary = run(&options).summary;
    print_row(&format!("{name}, {rate} a second, seed {seed}"), &summary);
    summary
}

fn print_row(name: &str, summary: &Summary) {
    let tbt = summary.slo.slowdown.tbt;
    let (tpot_ms, verdict) = (1e3 * summary.tpot_s.p50, if summary.slo.met { "pass" } else { "fail" });
    eprintln!(
        "| {name} | {tpot_ms:.1} ms | {:.3} / {:.3} | {verdict} ({} missed) |",
        tbt.p50,
        tbt.p90,
        missed(summary)
    );
}

/// How many of the nine objectives are missed.
fn missed(summary: &Summary) -> usize {
    let (found, limits) = (summary.slo.slowdown, summary.slo.limits);
    let pairs = [(found.ttft, limits.ttft), (found.tbt, limits.tbt), (found.e2e, limits.e2e)];
    let each = pairs.iter().flat_map(|(found, limits)| {
        [found.p50 >= limits.p50, found.p90 >= limits.p90, found.p99 >= limits.p99]
    });
    each.filter(|&missed| missed).count()
}

#[track_caller]
fn assert_slowdowns(summary: &Summary, tpot_s: f64, p50: f64, p90: f64, within: f64) {
    let tbt = summary.slo.slowdown.tbt;
    assert_near("TPOT p50", summary.tpot_s.p50, tpot_s, within);
    assert_near("TBT slowdown p50", tbt.p50, p50, within);
    assert_near("TBT slowdown p90", tbt.p90, p90, within);
}

/// The reference is one seed, two others gave 104 and 112 ms: the mean of a few of ours is compared.
#[test]
fn split_at_70_is_too_slow_between_tokens() {
    let runs: Vec<Summary> = (0..4).map(|seed| conversation("HA 25P/26T", HA, 70.0, seed)).collect();
    let mean = |of: &dyn Fn(&Summary) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    assert_near("TPOT p50", mean(&|run| run.tpot_s.p50), 0.106, 0.03);
    assert_near("TBT slowdown p50", mean(&|run| run.slo.slowdown.tbt.p50), 2.17, 0.03);
    assert_near("TBT slowdown p90", mean(&|run| run.slo.slowdown.tbt.p90), 2.29, 0.03);
    assert!(runs.iter().all(|run| missed(run) == 4));
}

#[test]
fn split_passes_at_30_and_fails_at_40() {
    let at_30 = conversation("HA 25P/26T", HA, 30.0, 0);
    assert_near("TPOT p50", at_30.tpot_s.p50, 0.060, 0.03);
    assert_near("TBT slowdown p50", at_30.slo.slowdown.tbt.p50, 1.23, 0.03);
    assert!(at_30.slo.met);
    let at_40 = conversation("HA 25P/26T", HA, 40.0, 0);
    assert_near("TPOT p50", at_40.tpot_s.p50, 0.065, 0.03);
    assert_near("TBT slowdown p50", at_40.slo.slowdown.tbt.p50, 1.33, 0.03);
    assert!(!at_40.slo.met);
}

#[test]
fn baseline_passes_at_70_and_fails_at_80() {
    let at_70 = conversation("Baseline-H100 x40", BASELINE, 70.0, 0);
    assert_slowdowns(&at_70, 0.058, 1.19, 1.39, 0.03);
    assert!(at_70.slo.met);
    let at_80 = conversation("Baseline-H100 x40", BASELINE, 80.0, 0);
    assert_slowdowns(&at_80, 0.063, 1.29, 1.55, 0.03);
    assert!(!at_80.slo.met);
}

/// The same file went through the independent model, so no seed is between them.
#[test]
fn split_at_70_from_the_published_trace() {
    let Some(trace) = data("rr_conv_70_300s.csv") else { return };
    let trace = trace.to_str().unwrap().to_string();
    let summary = run(&Options { trace, kv_limit: false, ..with_machines(HA) }).summary;
    print_row("HA 25P/26T, rr_conv_70_300s.csv", &summary);
    assert_slowdowns(&summary, 0.116, 2.36, 2.57, 0.03);
}

/// What exceeds the memory of the largest machine is rejected one by one, and nothing else is.
#[test]
fn mooncake_requests_that_fit_nowhere_are_rejected_one_by_one() {
    const FILES: [&str; 2] = ["mooncake_conversation_trace.jsonl", "mooncake_synthetic_trace.jsonl"];
    for (costs, capacity_tokens, rejected) in [("measured", 83_380, 146), ("splitwise-sim", 89_234, 120)] {
        let mut all = 0;
        for file in FILES {
            let Some(trace) = data(file) else { return };
            let trace = trace.to_str().unwrap().to_string();
            let machines = with_machines(Unsplit("100xdgx-h100"));
            let report = run(&Options { trace, costs: costs.into(), ..machines });
            for request in &report.rows {
                // Machines hold whole blocks of 16 tokens.
                let fits = request.prompt_tokens + request.output_tokens <= capacity_tokens / 16 * 16;
                let expected = if fits { Outcome::Finished } else { Outcome::Rejected };
                assert_eq!(request.outcome, expected, "{file}: {request:?}");
            }
            let counts = report.summary.requests;
            eprintln!("| {file}, {costs} | {} requests | {} rejected |", counts.submitted, counts.rejected);
            assert_eq!(counts.completed + counts.rejected, counts.submitted);
            all += counts.rejected;
        }
        assert_eq!(all, rejected, "{costs}");
    }
}
