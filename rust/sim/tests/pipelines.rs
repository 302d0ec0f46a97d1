//! Machines with pipeline stages: passes overlap, and what that gives can be worked out by hand.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{TempFile, assert_near, run, with_machines};
use splitcore_sim::cost::{CostKind, CostModel, Pass, Profile};
use splitcore_sim::machines::{Hardware, MachineKind, MachineType, Model};
use splitcore_sim::report::Outcome;
use splitcore_sim::{Options, Report};

fn cost() -> CostModel {
    let machine = MachineKind::new(Hardware::H100, 8, 2);
    CostModel::new(CostKind::Measured, &Profile::builtin(), Model::Bloom176b, &machine).unwrap()
}

/// One machine of two stages, prompts that fill a pass, one token each; `load` prompts arrive in the time of a prefill.
/// Returns the time on one stage.
fn queue(name: &str, load: f64, requests: usize, arrivals: &str) -> (u64, Report) {
    let prefill_ns = cost().prefill_ns(2048);
    let sizes = TempFile::trace(name, &[(0.0, 2048, 1)]);
    let report = run(&Options {
        trace: sizes.path(),
        arrivals: Some(arrivals.into()),
        rate: Some(load / prefill_ns as f64 * 1e9),
        requests: Some(requests),
        seed: 7,
        ..with_machines(Unsplit("1xdgx-h100:pp2"))
    });
    let pass = Pass { prompts: 1, prompt_tokens: 2048, ..Pass::default() };
    (cost().pass_ns(&pass).stage_ns, report)
}

/// A prompt starts when the one before has left the first stage: start = max(arrival, start before + D / 2).
#[test]
fn prompts_follow_one_another_half_a_pass_apart_to_the_nanosecond() {
    for (name, load, arrivals) in
        [("pipe-low", 0.6, "poisson"), ("pipe-high", 1.9, "poisson"), ("pipe-bursty", 1.4, "bursty")]
    {
        let (stage_ns, report) = queue(name, load, 5_000, arrivals);
        let (mut start_ns, mut waited) = (0, 0);
        for (index, row) in report.rows.iter().enumerate() {
            let free_ns = if index == 0 { 0 } else { start_ns + stage_ns };
            start_ns = row.arrival_ns.max(free_ns);
            waited += u32::from(start_ns > row.arrival_ns);
            assert_eq!(row.ttft_ns, start_ns - row.arrival_ns + 2 * stage_ns, "{name}, request {index}");
        }
        assert!(waited > 1_000, "{name}: only {waited} waited");
    }
}

/// M/D/1 with half the time of service, and the whole pass until the token is out: D + R D^2 / (4 (2 - R D)).
#[test]
fn the_mean_is_that_of_a_queue_with_pipelined_service() {
    for load in [0.5, 1.0] {
        let (stage_ns, report) = queue("pipe-md1", load, 100_000, "poisson");
        let prefill_s = 2.0 * stage_ns as f64 / 1e9;
        let expected_s = prefill_s * (1.0 + load / (4.0 * (2.0 - load)));
        let mean_s = report.summary.ttft_s.mean;
        eprintln!("| pipelined M/D/1, load {load} | {mean_s:.6} s | {expected_s:.6} s |");
        assert_near("mean TTFT", mean_s, expected_s, 0.02);
        assert_near("utilisation", report.summary.machines[0].utilisation, load / 2.0, 0.01);
    }
}

/// Sixteen that decode on two stages make tokens as two half batches, each in the time of its own pass.
#[test]
fn decodes_run_as_two_half_batches_interleaved() {
    let (prompt, output) = (64_u32, 400_u32);
    let trace = TempFile::trace("pipe-decode", &[(0.0, prompt, output); 16]);
    let tpot_s = |machines| {
        let report = run(&Options { trace: trace.path(), check: true, ..with_machines(Unsplit(machines)) });
        let gap_s = |ns: u64| ns as f64 / 1e9 / f64::from(output - 1);
        let each = report.rows.iter().map(|row| gap_s(row.e2e_ns - row.ttft_ns));
        each.sum::<f64>() / 16.0
    };
    let pass_ns = |after: u32| cost().decode_ns(8, u64::from(8 * (prompt + after)));
    let expected_s = (1..output).map(pass_ns).sum::<u64>() as f64 / 1e9 / f64::from(output - 1);
    let (two_stages, two_machines) = (tpot_s("1xdgx-h100:pp2"), tpot_s("2xdgx-h100"));
    eprintln!("| TPOT of 16 decodes on 2 stages | {two_stages:.6} s | {expected_s:.6} s |");
    assert_near("two stages", two_stages, expected_s, 0.01);
    assert_near("two machines", two_machines, expected_s, 0.01);
    assert!(two_stages < 0.999 * tpot_s("1xdgx-h100"), "half a batch is no faster");
}

/// A request alone gains nothing from stages.
#[test]
fn a_request_alone_takes_as_long_as_on_one_stage() {
    let trace = TempFile::trace("pipe-alone", &[(0.0, 1000, 50)]);
    let e2e_ns =
        |machines| run(&Options { trace: trace.path(), ..with_machines(Unsplit(machines)) }).rows[0].e2e_ns;
    let (one, three) = (e2e_ns("1xdgx-h100"), e2e_ns("1xdgx-h100:pp3"));
    assert!(one.abs_diff(three) < 50 * 3, "{one} on one stage, {three} on three");
}

/// Crashes take away all passes in flight; everything ends all the same, and no machine is busier than it can be.
#[test]
fn machines_with_stages_crash_and_come_back() {
    for kill in ["", ",kill=cluster@5"] {
        let report = run(&Options {
            trace: "azure-conv".into(),
            rate: Some(4.0),
            duration_s: Some(12.0),
            faults: Some(format!("kill=p0@2,kill=t1@4,kill=t0@8,repair=2{kill}")),
            check: true,
            ..with_machines(Split("2xdgx-h100:pp2", "2xdgx-h100:pp3"))
        });
        let faults = report.summary.faults.unwrap();
        assert_eq!((faults.resume.crashes, faults.restart.crashes), (3, 3));
        assert!(report.rows.iter().all(|row| row.outcome == Outcome::Finished), "{kill}");
        for machine in &report.summary.machines {
            assert!((0.0..=1.0).contains(&machine.utilisation), "{}", machine.utilisation);
        }
    }
}

/// DistServe, section 3.1: two GPUs as one that is K times as fast (tensor parallel) or as two stages (pipeline
/// parallel). Tensor parallel gives the earlier first token at low load, pipelines at high load; the loads at which
/// they change places follow from the means of M/D/1.
#[test]
fn pipelines_overtake_tensor_parallelism_where_the_means_of_the_queues_cross() {
    let crossings =
        [(1.2, 0.434), (1.3, 0.611), (1.5, 0.936), (1.6, 1.095), (1.7, 1.257), (1.8, 1.429), (1.9, 1.626)];
    let prefill_s = cost().prefill_ns(2048) as f64 / 1e9;
    let trace = TempFile::trace("crossing", &[(0.0, 2048, 1)]);
    for (speedup, crossing) in crossings {
        let faster = MachineType {
            prefill_factor: 1.0 / speedup,
            ..MachineType::named_like("faster", Hardware::H100)
        };
        let mean_s = |machines, load: f64| {
            let report = run(&Options {
                trace: trace.path(),
                arrivals: Some("poisson".into()),
                rate: Some(load / prefill_s),
                requests: Some(100_000),
                machine_types: vec![faster.clone()],
                ..with_machines(Unsplit(machines))
            });
            report.summary.ttft_s.mean
        };
        let tensor = |load: f64| mean_s("1xfaster", load);
        let stages = |load: f64| mean_s("1xdgx-h100:pp2", load);
        let (low, high) = (0.94 * crossing, 1.06 * crossing);
        assert!(tensor(low) < stages(low), "K = {speedup}, load {low}");
        assert!(stages(high) < tensor(high), "K = {speedup}, load {high}");
        let (u, k) = (crossing, speedup);
        let expected_s = prefill_s * (1.0 / k + u / (2.0 * k * (k - u)));
        assert_near("tensor parallel", tensor(u), expected_s, 0.05);
        assert_near("pipeline", stages(u), prefill_s * (1.0 + u / (4.0 * (2.0 - u))), 0.05);
    }
}
