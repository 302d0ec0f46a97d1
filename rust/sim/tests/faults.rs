//! Machines that crash: no token lost or given twice, nothing left on any book, and what it costs.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{Machines, TempFile, run, with_machines};
use proptest::prelude::*;
use splitcore_core::machine::BatchPlan;
use splitcore_sim::report::{FaultReport, Outcome, RecoveryReport};
use splitcore_sim::{Observer, Options, Recovery, Report, SimError, simulate, simulate_observed};

/// (arrival in milliseconds, prompt, output)
type Row = (u64, u32, u32);

/// What clients see in one run.
#[derive(Debug)]
struct Seen {
    recovery: Recovery,
    /// Tokens given, by request: when, and how many are to come.
    tokens: Vec<Vec<(u64, u32)>>,
    ends: Vec<Vec<Outcome>>,
    /// Prefills of further attempts that sample: the tokens up to there, and those the client has as the pass starts.
    resumed: Vec<(usize, u32, u32)>,
    words: Vec<[u64; 3]>,
}

#[derive(Debug, Default)]
struct Clients {
    requests: usize,
    runs: Vec<Seen>,
}

impl Clients {
    fn now(&mut self) -> &mut Seen {
        self.runs.last_mut().unwrap()
    }
}

impl Observer for Clients {
    fn run_started(&mut self, recovery: Recovery) {
        let count = self.requests;
        let (tokens, ends) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        self.runs.push(Seen { recovery, tokens, ends, resumed: Vec::new(), words: Vec::new() });
    }

    fn logged(&mut self, words: [u64; 3]) {
        self.now().words.push(words);
    }

    fn pass_started(&mut self, _: u64, _: u32, _: u64, plan: &BatchPlan) {
        let now = self.now();
        for prefill in plan.prefills.iter().filter(|prefill| prefill.samples && prefill.key.attempt.0 > 1) {
            let request = prefill.key.request.0 as usize;
            let given = now.tokens[request].len() as u32;
            now.resumed.push((request, prefill.start + prefill.tokens, given));
        }
    }

    fn token(&mut self, now_ns: u64, request: u64, left: u32) {
        self.now().tokens[request as usize].push((now_ns, left));
    }

    fn ended(&mut self, _: u64, request: u64, outcome: Outcome) {
        self.now().ends[request as usize].push(outcome);
    }
}

impl Seen {
    /// When machines crashed and which.
    fn crashes(&self) -> Vec<(u64, u64)> {
        let crashed = self.words.iter().filter(|words| words[1] >> 32 == 11);
        crashed.map(|words| (words[0], words[1] & 0xffff_ffff)).collect()
    }

    /// Every request ends once; one that has finished has got each of its tokens once and in order.
    #[track_caller]
    fn assert_whole(&self, rows: &[Row]) {
        let recovery = self.recovery;
        for (id, ((tokens, ends), row)) in self.tokens.iter().zip(&self.ends).zip(rows).enumerate() {
            assert_eq!(ends.len(), 1, "{recovery:?}: request {id} ended as {ends:?}");
            let left: Vec<u32> = tokens.iter().map(|&(_, left)| left).collect();
            let expected: Vec<u32> = (0..row.2).rev().take(left.len()).collect();
            assert_eq!(left, expected, "{recovery:?}: request {id}: tokens lost or given twice");
            assert!(tokens.is_sorted_by(|one, next| one.0 < next.0), "one token a pass");
            assert_eq!(ends[0] == Outcome::Finished, left.len() == row.2 as usize, "request {id}");
        }
    }

    /// Tokens a request had before a time.
    fn given_before(&self, request: usize, time_ns: u64) -> u64 {
        self.tokens[request].iter().filter(|token| token.0 < time_ns).count() as u64
    }
}

/// Both runs of a plan, with all invariants recounted after every event and all books empty at the end.
#[track_caller]
fn watch(machines: Machines, rows: &[Row], faults: &str, options: Options) -> (Report, Vec<Seen>) {
    let timed: Vec<_> = rows.iter().map(|&(ms, prompt, output)| (ms as f64 / 1e3, prompt, output)).collect();
    let file = TempFile::trace(&format!("faults-{}", std::thread::current().name().unwrap()), &timed);
    let Options { prompt, token, unsplit, .. } = with_machines(machines);
    let options = Options {
        prompt,
        token,
        unsplit,
        trace: file.path(),
        faults: Some(faults.into()),
        check: true,
        ..options
    };
    watch_options(&options, rows)
}

#[track_caller]
fn watch_options(options: &Options, rows: &[Row]) -> (Report, Vec<Seen>) {
    let mut clients = Clients { requests: rows.len(), ..Clients::default() };
    let report = simulate_observed(options, &mut |_, _| true, &mut clients).unwrap();
    let runs = clients.runs;
    assert_eq!(
        runs.iter().map(|run| run.recovery).collect::<Vec<_>>(),
        [Recovery::Resume, Recovery::Restart]
    );
    assert_eq!(runs[0].crashes().len() as u64, faults(&report).resume.crashes);
    assert_eq!(runs[1].crashes().len() as u64, faults(&report).restart.crashes);
    for run in &runs {
        run.assert_whole(rows);
    }
    (report, runs)
}

fn faults(report: &Report) -> FaultReport {
    report.summary.faults.unwrap()
}

fn finished(run: &Seen) -> usize {
    run.ends.iter().filter(|ends| ends[..] == [Outcome::Finished]).count()
}

fn met(report: &RecoveryReport) -> u64 {
    report.resumed + report.restarted + report.failed
}

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
    let parts = "mtbf=SECONDS, repair=SECONDS or kill=NAME@SECONDS";
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
        ("mtbf=1,mtbf=2", "mtbf and repair once each", "`mtbf=2`"),
        ("repair=5", "mtbf=SECONDS or kill=NAME@SECONDS beside the repair time", "`repair=5`"),
        ("kill=t0", "kill=NAME@SECONDS", "`kill=t0`"),
        ("kill=t0@", "seconds from 0 to 1e9 after the @", "`kill=t0@`"),
        ("kill=t0@-1", "seconds from 0 to 1e9 after the @", "`kill=t0@-1`"),
        ("kill=t0@1,kill=t9@2", "a machine of the run, p0 to t1, before the @", "`kill=t9@2`"),
        ("kill=cluster@1", "a machine of the run, p0 to t1, before the @", "`kill=cluster@1`"),
    ] {
        let machines = with_machines(Split("1xdgx-h100", "2xdgx-h100"));
        let options = Options { rate: Some(1.0), faults: Some(plan.into()), ..machines };
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

fn machines() -> impl Strategy<Value = (Machines, Vec<&'static str>)> {
    prop::sample::select(vec![
        (Unsplit("1xdgx-h100"), vec!["m0"]),
        (Unsplit("3xdgx-a100"), vec!["m0", "m1", "m2"]),
        (Split("1xdgx-h100", "1xdgx-a100"), vec!["p0", "t0"]),
        (Split("3xdgx-h100", "2xdgx-h100-cap"), vec!["p0", "p1", "p2", "t0", "t1"]),
    ])
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

fn modes() -> impl Strategy<Value = Options> {
    let names =
        |names: &[&str]| prop::sample::select(names.iter().map(ToString::to_string).collect::<Vec<_>>());
    (
        prop::option::of(names(&["splitwise", "jsq", "least-requests", "round-robin", "power-of-two"])),
        names(&["auto", "serialized", "layer-wise"]),
        names(&["at-arrival", "at-source-done"]),
        names(&["at-prompt", "before-last"]),
        prop::sample::select(vec![0.0, 1e-4, 3e-3, 0.25]),
        prop::option::of(Just(2e9)),
        0_u64..100,
    )
        .prop_map(|(policy, transfer, reserve, cut, message_delay_s, link_bandwidth, seed)| Options {
            policy,
            transfer,
            reserve,
            cut,
            message_delay_s,
            link_bandwidth,
            seed,
            ..Options::default()
        })
}

fn workload() -> impl Strategy<Value = Vec<Row>> {
    let sizes = prop_oneof![4 => (1_u32..3_000, 1_u32..80), 1 => (2_000_u32..30_000, 1_u32..150)];
    prop::collection::vec((0_u64..6_000, sizes), 1..40).prop_map(|mut requests| {
        requests.sort_unstable_by_key(|request| request.0);
        requests.into_iter().map(|(ms, (prompt, output))| (ms, prompt, output)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

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
