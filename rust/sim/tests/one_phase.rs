//! One phase of a cluster alone: what is left out costs nothing and changes nothing else.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{TempFile, run, with_machines};
use splitcore_sim::cost::{CostKind, CostModel, Profile};
use splitcore_sim::machines::{Hardware, MachineKind, Model};
use splitcore_sim::report::RequestRow;
use splitcore_sim::{Options, Scenario, simulate};

fn only(phase: &str, options: Options) -> Options {
    Options { only: Some(phase.into()), ..options }
}

fn conversation(machines: &'static str) -> Options {
    let duration_s = Some(30.0);
    Options { rate: Some(4.0), duration_s, check: true, ..with_machines(Unsplit(machines)) }
}

#[test]
fn prefill_alone_is_the_run_whose_requests_end_with_their_first_token() {
    let report = run(&only("prefill", conversation("2xdgx-h100")));
    assert!(report.rows.iter().all(|row| row.finished() && row.output_tokens == 1));
    assert_eq!(report.summary.transfer.count, 0);
    let whole = run(&conversation("2xdgx-h100"));
    let prompts = |rows: &[_]| rows.iter().map(|row: &RequestRow| row.prompt_tokens).collect();
    let (alone, both): (Vec<u32>, Vec<u32>) = (prompts(&report.rows), prompts(&whole.rows));
    assert_eq!(alone, both);
}

#[test]
fn decode_alone_has_nothing_but_decode_passes() {
    let trace = TempFile::trace("decode-alone", &[(0.0, 1000, 5)]);
    let options = Options { trace: trace.path(), check: true, ..with_machines(Unsplit("1xdgx-h100")) };
    let report = run(&only("decode", options));
    let cost = CostModel::new(
        CostKind::Measured,
        &Profile::builtin(),
        Model::Bloom176b,
        &MachineKind::whole(Hardware::H100),
    );
    let cost = cost.unwrap();
    let passes_ns: u64 = (1..5).map(|made| cost.decode_ns(1, 1000 + made)).sum();
    let row = &report.rows[0];
    assert!(row.ttft_ns <= 10, "{}", row.ttft_ns);
    assert!((row.e2e_ns - row.ttft_ns).abs_diff(passes_ns) <= 10, "{} {passes_ns}", row.e2e_ns);
    let names: Vec<_> = report.summary.machines.iter().map(|machine| machine.name.as_str()).collect();
    assert_eq!(names, ["t0", "source"]);
}

#[test]
fn decode_alone_never_decodes_at_the_source() {
    let report = run(&only("decode", conversation("2xdgx-h100")));
    assert!(report.rows.iter().all(RequestRow::finished));
    assert!(report.rows.iter().filter(|row| row.output_tokens > 1).all(|row| row.token_machine < 2));
    assert_eq!((report.summary.pools.to_mixed, report.summary.machines[2].decode_tokens), (0, 0));
}

#[test]
fn gpus_count_what_is_there() {
    let gpus = |options: &Options| Scenario::new(options).unwrap().gpus();
    assert_eq!(gpus(&conversation("2xdgx-h100:pp2")), 32);
    assert_eq!(gpus(&only("decode", conversation("2xdgx-h100"))), 16, "the source is not there");
    let opt =
        Options { model: "opt-66b".into(), costs: "distserve".into(), ..conversation("3xdgx-a100:tp4:pp2") };
    assert_eq!(gpus(&opt), 24);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let told = |options: &Options| simulate(options, &mut |_, _| true).unwrap_err().to_string();
    let split = Options { rate: Some(1.0), ..with_machines(Split("1xdgx-h100", "1xdgx-h100")) };
    assert_eq!(told(&only("decode", split)), "only: expected an unsplit cluster beside it, got pools");
    let other = only("both", conversation("1xdgx-h100"));
    assert_eq!(told(&other), "only: expected prefill or decode, got `both`");
    let faults = Options { faults: Some("mtbf=10".into()), ..only("prefill", conversation("1xdgx-h100")) };
    assert_eq!(told(&faults), "only: expected no faults beside it, got faults");
}
