//! Machines that crash: no token lost or given twice, nothing left on any book, and what it costs.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::clients::{Clients, Row, Seen, faults, finished, machines, met, modes, watch, workload};
use common::{run, with_machines};
use proptest::prelude::*;
use splitcore_sim::report::{FaultReport, Outcome};
use splitcore_sim::{Options, Report, SimError, simulate, simulate_observed};

const FIFTY: [Row; 50] = [(0, 200, 400); 50];

#[test]
fn a_token_machine_killed_in_the_middle_of_fifty_decodes_loses_no_token() {
    let machines = Split("2xdgx-h100", "2xdgx-h100");
    let (report, runs) = watch(machines, &FIFTY, "kill=t0@10,repair=5", Options::default());
    let FaultReport { resume, restart } = faults(&report);
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (50, 50));
    assert_eq!((resume.crashes, restart.crashes), (1, 1));
    assert_eq!((resume.resumed, resume.restarted, resume.failed), (25, 0, 0), "half of them decode there");
    assert_eq!((restart.resumed, restart.restarted, restart.failed), (0, 25, 0));
    // The same passes ran until the crash, so the same tokens were lost, and all are computed again.
    assert_eq!(resume.lost_tokens, restart.lost_tokens);
    let given: Vec<u64> = (0..50).map(|id| runs[0].given_before(id, 10_000_000_000)).collect();
    let lost: u64 = (0..50).filter(|&id| report.rows[id].attempts == 2).map(|id| 200 + given[id] - 1).sum();
    assert_eq!(resume.lost_tokens, lost);
    assert!(resume.extra_time_s < 0.5 * restart.extra_time_s, "{resume:?} {restart:?}");
    assert!(resume.lost_work_s < restart.lost_work_s, "{resume:?} {restart:?}");
}

/// One request alone on one machine that crashes in the pass of its eleventh token.
#[test]
fn what_one_crash_costs_one_request_is_what_a_calculation_says() {
    let rows = [(0, 1000, 20)];
    let machines = Unsplit("1xdgx-h100");
    let (_, before) = watch(machines, &rows, "kill=m0@100", Options::default());
    let times: Vec<u64> = before[0].tokens[0].iter().map(|token| token.0).collect();
    let (prefill_ns, crash_ns) = (times[0], times[9] + 1_000_000);
    let faults_at = format!("kill=m0@{}.{:09},repair=2", crash_ns / 1_000_000_000, crash_ns % 1_000_000_000);
    let (report, after) = watch(machines, &rows, &faults_at, Options::default());
    let FaultReport { resume, restart } = faults(&report);
    assert_eq!((resume.resumed, restart.restarted), (1, 1));
    assert_eq!((resume.lost_tokens, restart.lost_tokens), (1009, 1009), "all but the last token's");
    let back_ns = crash_ns + 2_000_000_000;
    let next_ns = |run: &Seen| run.tokens[0][10].0;
    // Resumed: one prefill of 1,010 tokens gives the eleventh token.
    let resumed_ns = next_ns(&after[0]);
    assert!(resumed_ns - back_ns > prefill_ns && resumed_ns - back_ns < prefill_ns * 102 / 100);
    assert_eq!(resume.extra_time_s, (resumed_ns - crash_ns) as f64 / 1e9);
    let redone_ns = (u128::from(resumed_ns - back_ns) * 1009 / 1010) as u64;
    assert_eq!(resume.lost_work_s, (1_000_000 + redone_ns) as f64 / 1e9);
    // From scratch: everything up to the tenth token takes as long as it did, and the eleventh is new.
    let eleventh_ns = times[10];
    assert_eq!(next_ns(&after[1]), back_ns + eleventh_ns);
    assert_eq!(restart.extra_time_s, (back_ns + eleventh_ns - crash_ns) as f64 / 1e9);
    assert_eq!(restart.lost_work_s, (1_000_000 + times[9]) as f64 / 1e9);
    assert_eq!(report.rows[0].tbt_max_ns, resumed_ns - times[9]);
}

/// A prompt machine dies while it prefills one prompt with others in its queue.
#[test]
fn a_prompt_machine_killed_with_prompts_running_and_queued_loses_none() {
    let rows = [(0, 2000, 5); 12];
    let machines = Split("2xdgx-h100", "1xdgx-h100");
    let (report, runs) = watch(machines, &rows, "kill=p0@0.3,repair=1", Options::default());
    let FaultReport { resume, .. } = faults(&report);
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (12, 12));
    let [first] = runs[0].crashes()[..] else { panic!() };
    assert_eq!(first.0, 300_000_000);
    assert_eq!((resume.resumed, resume.restarted), (0, 3), "the first of four has handed over");
    assert_eq!(resume.lost_tokens, 0);
    let prefill_s = report.rows[1].ttft_ns as f64 / 1e9;
    assert!(
        (resume.lost_work_s - (0.3 - prefill_s)).abs() < 1e-9,
        "the prefill that ran is thrown away: {resume:?}"
    );
    assert_eq!(report.summary.requests.completed, 12);
}

/// The transfer takes seconds: the source dies in it, or the destination.
#[test]
fn either_end_of_a_transfer_may_die_in_it() {
    let rows = [(0, 1000, 30)];
    let slow = |transfer: &str| Options {
        link_bandwidth: Some(2e9),
        transfer: transfer.into(),
        ..Options::default()
    };
    for transfer in ["serialized", "layer-wise"] {
        // What the source has is sent again once there is a machine for it; what it had is computed again.
        for (killed, lost) in [("p0", true), ("t0", false)] {
            let plan = format!("kill={killed}@1,repair=1");
            let machines = Split("1xdgx-h100", "1xdgx-h100");
            let (report, runs) = watch(machines, &rows, &plan, slow(transfer));
            let FaultReport { resume, restart } = faults(&report);
            assert_eq!(runs[0].given_before(0, 1_000_000_000), 1, "the first token comes with the prefill");
            assert_eq!(
                (resume.resumed, restart.restarted),
                (u64::from(lost), u64::from(lost)),
                "{transfer} {killed}"
            );
            assert_eq!(resume.lost_tokens, if lost { 1000 } else { 0 }, "{transfer} {killed}");
            assert_eq!(report.summary.transfer.count, u64::from(!lost), "{transfer} {killed}");
            assert_eq!((finished(&runs[0]), finished(&runs[1])), (1, 1));
        }
    }
}

/// The destination dies while the source prefills: the pass goes on, and its KV waits for the next machine.
#[test]
fn a_prefill_whose_destination_dies_meanwhile_is_not_for_nothing() {
    let rows = [(0, 2000, 5)];
    let machines = Split("1xdgx-h100", "1xdgx-h100");
    let (calm, _) = watch(machines, &rows, "kill=t0@100", Options::default());
    let (report, runs) = watch(machines, &rows, "kill=t0@0.1", Options::default());
    let (prefill_ns, ttft_ns) = (calm.rows[0].ttft_ns, report.rows[0].ttft_ns);
    assert_eq!((ttft_ns, runs[1].tokens[0][0].0), (prefill_ns, prefill_ns));
    let resume = faults(&report).resume;
    assert_eq!((resume.restarted, resume.lost_tokens, resume.lost_work_s), (0, 0, 0.0));
    assert!(report.rows[0].e2e_ns > 30_000_000_000, "the machine was away for its repair");
}

/// With slow messages the Cluster gives an attempt up that decodes already, since it has not heard of the landing. What
/// such an attempt makes until it is aborted goes nowhere, though others join and leave its batch meanwhile.
#[test]
fn an_attempt_that_was_given_up_makes_no_tokens_while_its_abort_is_on_its_way() {
    let rows: Vec<Row> = (0..60).map(|id| (id * 40, 200, 60)).collect();
    let slow = Options { message_delay_s: 0.25, ..Options::default() };
    let (report, runs) = watch(Split("2xdgx-h100", "1xdgx-h100"), &rows, "kill=p0@1.5,repair=1", slow);
    let resumed = faults(&report).resume.resumed;
    assert!(resumed >= 3, "{resumed} were met after their first token");
    let (resumes, restarts) = (&runs[0].resumed, &runs[1].resumed);
    assert!(resumes.iter().filter(|resume| resume.2 > 0).count() as u64 >= resumed);
    assert!(resumes.iter().all(|&(_, tokens, given)| tokens == 200 + given), "{resumes:?}");
    assert!(restarts.iter().all(|&(_, tokens, _)| tokens == 200), "{restarts:?}");
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (60, 60));
}

/// A source that dies after its KV has landed costs nothing.
#[test]
fn a_source_that_has_handed_over_may_die() {
    let rows = [(0, 500, 200)];
    let (report, _) = watch(Split("1xdgx-h100", "1xdgx-h100"), &rows, "kill=p0@2", Options::default());
    let FaultReport { resume, restart } = faults(&report);
    assert_eq!((resume.crashes, met(&resume), met(&restart), resume.lost_tokens), (1, 0, 0, 0));
    assert!(resume.lost_work_s == 0.0 && resume.extra_time_s.is_nan());
    assert_eq!(report.rows[0].attempts, 1);
}

#[test]
fn all_token_machines_may_die_at_once_and_come_back() {
    let rows: Vec<Row> = (0..40_u32).map(|id| (u64::from(id) * 100, 300 + 10 * id, 100)).collect();
    let machines = Split("2xdgx-h100", "2xdgx-h100");
    let (_, runs) = watch(machines, &rows, "kill=t0@2,kill=t1@2,repair=3", Options::default());
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (40, 40));
}

/// With the only machine away accepted requests wait; what arrives meanwhile finds no machine.
#[test]
fn with_no_machine_left_accepted_requests_wait() {
    let rows: Vec<Row> = (0..8).map(|id| (id * 500, 300, 100)).collect();
    let (report, runs) = watch(Unsplit("1xdgx-h100"), &rows, "kill=m0@1.7,repair=60", Options::default());
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (4, 4));
    assert_eq!((report.summary.requests.rejected, report.summary.requests.failed), (4, 0));
    assert!(report.rows[..4].iter().all(|row| row.e2e_ns > 60_000_000_000));
}

#[test]
fn a_request_that_meets_four_faults_fails() {
    let plan = "kill=m0@1,kill=m0@4,kill=m0@7,kill=m0@10,repair=1";
    let rows = [(0, 500, 1000), (11_500, 500, 20)];
    let (report, runs) = watch(Unsplit("1xdgx-h100"), &rows, plan, Options::default());
    let FaultReport { resume, restart } = faults(&report);
    assert_eq!((resume.resumed, resume.failed), (3, 1));
    assert_eq!((restart.restarted, restart.failed), (3, 1));
    assert_eq!(report.summary.requests.failed, 1);
    assert_eq!(report.rows[0].outcome, Outcome::Failed);
    assert!(report.rows[0].ttft_metric_ns().is_infinite());
    assert_eq!(resume.attainment, 0.5);
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (1, 1));
}

/// A machine that is down cannot crash again.
#[test]
fn a_kill_during_a_repair_does_nothing() {
    let rows = [(0, 500, 100)];
    let plan = "kill=m0@1,kill=m0@3,repair=5";
    let (report, _) = watch(Unsplit("1xdgx-h100"), &rows, plan, Options::default());
    assert_eq!(faults(&report).resume.crashes, 1);
}

fn under_mtbf(seed: u64) -> Options {
    Options {
        rate: Some(8.0),
        duration_s: Some(60.0),
        seed,
        faults: Some("mtbf=60,repair=5".into()),
        check: true,
        ..with_machines(Split("3xdgx-h100", "3xdgx-a100"))
    }
}

#[test]
fn the_same_seed_gives_the_same_faults_and_the_same_course() {
    let (one, other) = (run(&under_mtbf(1)), run(&under_mtbf(1)));
    assert_eq!(one.summary.digest, other.summary.digest);
    assert_eq!(one.summary.faults, other.summary.faults);
    assert!(faults(&one).resume.crashes > 5, "{:?}", one.summary.faults);
    assert!(
        one.summary.machines.iter().all(|machine| machine.utilisation <= 1.0),
        "a pass cut short is not busy"
    );
    assert_ne!(run(&under_mtbf(2)).summary.digest, one.summary.digest);
    let calm = run(&Options { faults: None, ..under_mtbf(1) });
    assert!(calm.summary.faults.is_none());
    let arrivals = |report: &Report| {
        report
            .rows
            .iter()
            .map(|row| (row.arrival_ns, row.prompt_tokens, row.output_tokens))
            .collect::<Vec<_>>()
    };
    assert_eq!(arrivals(&calm), arrivals(&one), "faults leave the workload as it is");
}

/// Up to the first crash a run is the one without faults.
#[test]
fn nothing_changes_before_the_first_crash() {
    let rows: Vec<Row> = (0..60_u32).map(|id| (u64::from(id) * 50, 200 + 31 * id, 80)).collect();
    let machines = Split("2xdgx-h100", "2xdgx-a100");
    let (_, late) = watch(machines, &rows, "kill=t0@900", Options::default());
    let (_, early) = watch(machines, &rows, "kill=t0@2", Options::default());
    let before =
        |run: &Seen| run.words.iter().copied().filter(|words| words[0] < 2_000_000_000).collect::<Vec<_>>();
    assert!(before(&late[0]).len() > 500);
    assert_eq!(before(&late[0]), before(&early[0]));
    assert_eq!(before(&late[0]), before(&early[1]));
    assert!(late[0].crashes().is_empty(), "the run was over by then");
}

#[test]
fn bad_plans_are_told_before_anything_runs() {
    let seconds = "seconds from 0.001 to 1e9";
    let parts = "mtbf=SECONDS, repair=SECONDS, kill=NAME@SECONDS, restart=SECONDS or grace=SECONDS";
    for (plan, expected, got) in [
        ("", parts, "``"),
        ("mtbf", parts, "`mtbf`"),
        ("mtbf=60,", parts, "``"),
        ("mtbf=60;repair=5", seconds, "`mtbf=60;repair=5`"),
        ("often=1", parts, "`often=1`"),
        ("mtbf=0", seconds, "`mtbf=0`"),
        ("mtbf=-1", seconds, "`mtbf=-1`"),
        ("mtbf=nan", seconds, "`mtbf=nan`"),
        ("mtbf=inf", seconds, "`mtbf=inf`"),
        ("mtbf=1,repair=0", seconds, "`repair=0`"),
        ("mtbf=1,mtbf=2", "mtbf, repair, restart and grace once each", "`mtbf=2`"),
        ("repair=5", "mtbf=SECONDS or kill=NAME@SECONDS beside the repair time", "`repair=5`"),
        ("kill=t0", "kill=NAME@SECONDS", "`kill=t0`"),
        ("kill=t0@", "seconds from 0 to 1e9 after the @", "`kill=t0@`"),
        ("kill=t0@-1", "seconds from 0 to 1e9 after the @", "`kill=t0@-1`"),
        ("kill=t0@1,kill=t9@2", "cluster or a machine of the run, p0 to t1, before the @", "`kill=t9@2`"),
        ("kill=Cluster@1", "cluster or a machine of the run, p0 to t1, before the @", "`kill=Cluster@1`"),
        ("kill=cluster@1,grace=0", seconds, "`grace=0`"),
        ("kill=cluster@1,restart=1,restart=1", "mtbf, repair, restart and grace once each", "`restart=1`"),
        ("kill=t0@1,grace=2", "kill=cluster@SECONDS beside restart and grace", "`kill=t0@1,grace=2`"),
        ("kill=cluster@1,grace=0.2", "grace of at least the message delay, 0.25 s", "`grace=0.2`"),
    ] {
        let machines = with_machines(Split("1xdgx-h100", "2xdgx-h100"));
        let options =
            Options { rate: Some(1.0), faults: Some(plan.into()), message_delay_s: 0.25, ..machines };
        let mut clients = Clients::default();
        let error = simulate_observed(&options, &mut |_, _| true, &mut clients).err();
        let SimError::Config { option, expected: told, got: found } = error.unwrap() else {
            panic!("{plan}")
        };
        assert_eq!((option, told.as_str(), found.as_str()), ("faults", expected, got), "{plan}");
        assert!(clients.runs.is_empty(), "nothing ran");
    }
}

#[test]
fn progress_counts_both_runs() {
    let options = Options {
        rate: Some(70.0),
        requests: Some(8_000),
        faults: Some("kill=m0@5".into()),
        ..with_machines(Unsplit("40xdgx-h100"))
    };
    let mut calls = Vec::new();
    simulate(&options, &mut |ended, total| {
        calls.push((ended, total));
        true
    })
    .unwrap();
    assert!(calls.iter().all(|&(ended, total)| total == 16_000 && ended <= total));
    assert!(calls.is_sorted() && calls.last().unwrap().0 > 8_000, "{calls:?}");
}

fn plan(names: Vec<&'static str>) -> impl Strategy<Value = String> {
    let kills = prop::collection::vec((prop::sample::select(names), 0_u32..8_000), 1..6);
    let mtbf = prop::option::of(prop::sample::select(vec!["0.5", "3", "20"]));
    let repair = prop::sample::select(vec!["0.001", "0.4", "3"]);
    (kills, mtbf, repair).prop_map(|(kills, mtbf, repair)| {
        let kills = kills.iter().map(|(name, ms)| format!("kill={name}@{}", f64::from(*ms) / 1e3));
        let mtbf = mtbf.map(|mtbf| format!("mtbf={mtbf}"));
        kills.chain(mtbf).chain([format!("repair={repair}")]).collect::<Vec<_>>().join(",")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever crashes when: every request ends once, its client gets each token once and in order, every invariant
    /// holds after every event, and at the end every book is empty and every block free (`check` sees to both).
    #[test]
    fn whatever_crashes_no_token_is_lost_and_no_book_stays_open(
        (machines, plan) in machines().prop_flat_map(|(machines, names)| (Just(machines), plan(names))),
        options in modes(),
        rows in workload(),
    ) {
        let (report, runs) = watch(machines, &rows, &plan, options);
        let FaultReport { resume, restart } = faults(&report);
        prop_assert_eq!(restart.resumed, 0);
        for (each, run) in [(resume, &runs[0]), (restart, &runs[1])] {
            let failed = run.ends.iter().filter(|ends| ends[..] == [Outcome::Failed]).count() as u64;
            prop_assert_eq!(each.failed, failed);
            prop_assert!(each.lost_work_s >= 0.0 && (met(&each) == 0 || each.crashes > 0));
        }
    }
}
