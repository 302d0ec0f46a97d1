//! What holds for every run: no oracle, no dependence on process or threads, everything given back at the end.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{Machines, TempFile, assert_near, run, with_machines};
use proptest::prelude::*;
use splitcore_core::machine::BatchPlan;
use splitcore_sim::report::{Outcome, Summary};
use splitcore_sim::workload::{Sampling, Source, WorkloadSpec};
use splitcore_sim::{Observer, Options, Report, simulate_observed};

/// Everything that happens, tokens counted and ends apart.
#[derive(Debug, Default)]
struct Log {
    words: Vec<[u64; 3]>,
    passes: Vec<(u64, u32, BatchPlan)>,
    /// Tokens by request and time.
    tokens: Vec<Vec<u64>>,
    ends: Vec<Vec<(u64, Outcome)>>,
}

impl Log {
    fn of(requests: usize) -> Self {
        Self { tokens: vec![Vec::new(); requests], ends: vec![Vec::new(); requests], ..Self::default() }
    }

    fn before(&self, time_ns: u64) -> &[[u64; 3]] {
        &self.words[..self.words.partition_point(|words| words[0] < time_ns)]
    }

    fn passes_before(&self, time_ns: u64) -> &[(u64, u32, BatchPlan)] {
        &self.passes[..self.passes.partition_point(|pass| pass.0 < time_ns)]
    }
}

impl Observer for Log {
    fn logged(&mut self, words: [u64; 3]) {
        self.words.push(words);
    }

    fn pass_started(&mut self, now_ns: u64, machine: u32, _: u64, plan: &BatchPlan) {
        self.passes.push((now_ns, machine, plan.clone()));
    }

    fn pass_ended(&mut self, now_ns: u64, _: u32, plan: &BatchPlan) {
        let sampled = plan.prefills.iter().filter(|prefill| prefill.samples).map(|prefill| prefill.key);
        for key in sampled.chain(plan.decodes.iter().copied()) {
            self.tokens[key.request.0 as usize].push(now_ns);
        }
    }

    fn ended(&mut self, now_ns: u64, request: u64, outcome: Outcome) {
        self.ends[request as usize].push((now_ns, outcome));
    }
}

/// (arrival in milliseconds, prompt, output)
type Row = (u64, u32, u32);

fn trace(name: &str, rows: &[Row]) -> TempFile {
    let rows: Vec<_> = rows.iter().map(|&(ms, prompt, output)| (ms as f64 / 1e3, prompt, output)).collect();
    TempFile::trace(name, &rows)
}

fn watch(options: &Options, requests: usize) -> (Report, Log) {
    let mut log = Log::of(requests);
    // These runs are small: one that goes on for long is stuck, and the watchdog's patience is longer than a test's.
    let mut calls = 0;
    let mut control = |_, _| {
        calls += 1;
        calls < 8
    };
    let report = simulate_observed(options, &mut control, &mut log).unwrap();
    (report, log)
}

/// Rows of conversation lengths.
fn conversation(rate: f64, requests: usize, seed: u64) -> Vec<Row> {
    let spec = WorkloadSpec {
        source: Source::AzureConv,
        rate_rps: Some(rate),
        requests: Some(requests),
        sampling: Sampling::Joint,
        seed,
        ..WorkloadSpec::default()
    };
    let requests = spec.build().unwrap().requests;
    requests.iter().map(|r| (r.arrival_ns / 1_000_000, r.prompt_tokens, r.output_tokens)).collect()
}

/// Requests that end after some time are given other lengths, longer and shorter ones but none that ends before; up to
/// then nothing may change.
#[test]
fn the_scheduler_does_not_know_when_a_request_will_end() {
    let pools = |prompt, token| with_machines(Split(prompt, token));
    let cases = [
        ("splitwise", pools("2xdgx-h100", "1xdgx-a100"), 10.0),
        ("jsq", with_machines(Unsplit("3xdgx-h100")), 8.0),
        ("least-requests", pools("3xdgx-h100", "2xdgx-h100"), 10.0),
        ("power-of-two", pools("3xdgx-h100", "2xdgx-h100"), 10.0),
        ("round-robin", pools("3xdgx-h100", "2xdgx-h100"), 10.0),
    ];
    for (policy, machines, rate) in cases {
        let rows = conversation(rate, 250, 5);
        let options = |trace: &TempFile| Options {
            trace: trace.path(),
            policy: Some(policy.into()),
            ..machines.clone()
        };
        let original = trace(&format!("oracle-{policy}"), &rows);
        let (report, log) = watch(&options(&original), rows.len());
        for time_s in [3, 10, 20] {
            let time_ns = time_s * 1_000_000_000;
            let changed_row = |(id, &(ms, prompt, output)): (usize, &Row)| {
                let ended = report.rows[id].arrival_ns + report.rows[id].e2e_ns < time_ns;
                // It ends no earlier than one token after those it has by then.
                let so_far = log.tokens[id].partition_point(|&at| at < time_ns) as u32;
                let other = so_far + 1 + (id as u32 * 37) % 300;
                (ms, prompt, if ended { output } else { other })
            };
            let changed: Vec<Row> = rows.iter().enumerate().map(changed_row).collect();
            let count = rows.iter().zip(&changed).filter(|(before, after)| before != after).count();
            assert!(count > 50, "{policy}: only {count} changed");
            let changed = trace(&format!("oracle-{policy}-{time_s}"), &changed);
            let (_, other) = watch(&options(&changed), rows.len());
            assert!(log.before(time_ns).len() > 200);
            assert!(
                log.before(time_ns) == other.before(time_ns),
                "{policy}: an event before {time_s} s changed"
            );
            assert!(log.passes_before(time_ns) == other.passes_before(time_ns), "{policy}: a pass changed");
            assert!(log.words != other.words, "{policy}: later on something does change");
        }
    }
}

fn digest_options(seed: u64, ties: &str) -> Options {
    Options {
        rate: Some(40.0),
        duration_s: Some(20.0),
        seed,
        ties: ties.into(),
        ..with_machines(Split("10xdgx-h100", "8xdgx-a100"))
    }
}

fn digest(seed: u64, ties: &str) -> String {
    run(&digest_options(seed, ties)).summary.digest
}

/// Set in the child process only.
const CHILD: &str = "SPLITCORE_DIGEST_CHILD";

/// Runs alone in a process of its own, started by the next test; does nothing otherwise.
#[test]
fn child_prints_its_digest() {
    if std::env::var_os(CHILD).is_some() {
        eprintln!("digest={}", digest(3, "first"));
    }
}

#[test]
fn another_process_gives_the_same_digest() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_prints_its_digest", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8(child.stderr).unwrap();
    let line = text.lines().find_map(|line| line.split_once("digest=")).map(|(_, digest)| digest.to_string());
    assert_eq!(line, Some(digest(3, "first")));
}

#[test]
fn two_runs_at_once_give_the_digests_they_give_alone() {
    let alone = [1, 2].map(|seed| digest(seed, "first"));
    assert_ne!(alone[0], alone[1], "the seed matters");
    let together = std::thread::scope(|scope| {
        [1, 2].map(|seed| scope.spawn(move || digest(seed, "first"))).map(|run| run.join().unwrap())
    });
    assert_eq!(alone, together);
}

/// Equal machines tie at once, so the rule shows in the course of the run; its results hardly move.
#[test]
fn the_tie_rule_changes_the_course_and_not_the_results() {
    let runs = ["first", "last"].map(|ties| run(&digest_options(1, ties)).summary);
    assert_ne!(runs[0].digest, runs[1].digest);
    let medians = |run: &Summary| [run.ttft_s.p50, run.tpot_s.p50, run.e2e_s.p50];
    for (last, first) in medians(&runs[1]).into_iter().zip(medians(&runs[0])) {
        assert_near("median", last, first, 0.02);
    }
}

/// Checks what must hold at the end of any run; returns the report.
fn assert_whole(options: &Options, rows: &[Row]) -> Report {
    let (report, log) = watch(options, rows.len());
    // One DGX, or two of them: all machines of a run are alike.
    let is_double =
        [&options.unsplit, &options.prompt].into_iter().flatten().any(|text| text.contains("pp2"));
    let kv_tokens = if is_double { 254_576 } else { 83_380 };
    let capacity = kv_tokens / 16 * 16;
    for (row, (tokens, ends)) in report.rows.iter().zip(log.tokens.iter().zip(&log.ends)) {
        let id = row.request_id;
        assert_eq!(ends.len(), 1, "request {id} ended as {ends:?}");
        assert_eq!(ends[0].1, row.outcome);
        if row.prompt_tokens + row.output_tokens > capacity && options.kv_limit {
            assert_eq!(row.outcome, Outcome::Rejected, "request {id}");
            assert!(tokens.is_empty());
            continue;
        }
        if row.outcome == Outcome::Rejected {
            assert!(options.max_in_flight.is_some(), "request {id} was rejected");
            continue;
        }
        assert_eq!(row.outcome, Outcome::Finished, "request {id}");
        assert_eq!(row.arrival_ns + row.e2e_ns, *tokens.last().unwrap());
        if row.attempts == 1 {
            assert_eq!(tokens.len(), row.output_tokens as usize, "request {id}: no token lost, none doubled");
            assert_eq!(row.arrival_ns + row.ttft_ns, tokens[0]);
            assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "request {id}: one token a pass");
        }
        assert!(row.ttft_ns <= row.e2e_ns);
    }
    let summary = &report.summary;
    let finished = report.rows.iter().filter(|row| row.finished());
    let prompts: u64 = finished.map(|row| u64::from(row.prompt_tokens)).sum();
    let computed: u64 = summary.machines.iter().map(|machine| machine.prompt_tokens).sum();
    assert!(computed >= prompts, "every prompt token is computed");
    let again = summary.evictions > 0 || report.rows.iter().any(|row| row.attempts > 1);
    assert!(computed == prompts || again, "only evictions and further attempts compute them again");
    for machine in &summary.machines {
        assert!(machine.utilisation <= 1.0, "{machine:?}");
        assert!(!options.kv_limit || machine.peak_kv_tokens <= u64::from(kv_tokens), "{machine:?}");
    }
    report
}

/// What waits in the queue has no memory yet.
#[test]
fn peak_kv_is_what_has_blocks_not_what_waits() {
    let rows = [(0, 50_000, 2), (0, 50_000, 2)];
    let file = trace("peak", &rows);
    let options = Options { trace: file.path(), ..with_machines(Unsplit("1xdgx-h100")) };
    assert_eq!(run(&options).summary.machines[0].peak_kv_tokens, 50_016);
}

/// A prefill of more than `park_limit` (30 s) is work, not a stuck handoff: its machine says that it runs.
#[test]
fn a_request_that_prefills_longer_than_the_park_limit_is_left_alone() {
    let rows = [(0, 60_000, 3)];
    let file = trace("long-prefill", &rows);
    let options = Options { check: true, ..with_machines(Split("1xdgx-a100", "2xdgx-h100")) };
    let (report, log) = watch(&Options { trace: file.path(), ..options }, rows.len());
    let row = report.rows[0];
    assert_eq!((row.attempts, row.outcome, log.ends[0].len()), (1, Outcome::Finished, 1));
    assert_eq!(row.arrival_ns + row.e2e_ns, *log.tokens[0].last().unwrap());
}

/// Twelve bursts of long conversations on one token machine: its memory runs out.
fn tight() -> Vec<Row> {
    (0..72)
        .map(|id: u64| (id / 6 * 200, 1500 + (id as u32 * 131) % 3000, 150 + (id as u32 * 53) % 250))
        .collect()
}

#[test]
fn tight_memory_evicts_and_refuses_and_loses_nothing() {
    let rows = tight();
    let file = trace("tight", &rows);
    let (mut evictions, mut recomputed) = (0, 0);
    for (policy, machines) in [
        ("splitwise", Split("2xdgx-h100", "1xdgx-h100")),
        ("least-requests", Split("2xdgx-h100", "1xdgx-h100")),
        ("jsq", Unsplit("1xdgx-h100")),
    ] {
        let options = Options {
            trace: file.path(),
            policy: Some(policy.into()),
            check: true,
            ..with_machines(machines)
        };
        let summary = assert_whole(&options, &rows).summary;
        evictions += summary.evictions;
        let computed: u64 = summary.machines.iter().map(|machine| machine.prompt_tokens).sum();
        recomputed += computed - rows.iter().map(|row| u64::from(row.1)).sum::<u64>();
    }
    assert!(evictions > 3 && recomputed > 5_000, "{evictions} evictions, {recomputed} tokens");
}

fn machines() -> impl Strategy<Value = Options> {
    let pools = |prompt: &'static str, token: &'static str, mixed: &'static str| {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_string());
        Options { prompt: some(prompt), token: some(token), mixed: some(mixed), ..Options::default() }
    };
    let unsplit = |machines: &'static str| with_machines(Machines::Unsplit(machines));
    prop::sample::select(vec![
        unsplit("1xdgx-h100"),
        unsplit("3xdgx-a100"),
        pools("1xdgx-h100", "1xdgx-a100", ""),
        pools("3xdgx-h100", "2xdgx-h100-cap", ""),
        pools("2xdgx-h100", "1xdgx-a100", "1xdgx-a100"),
        pools("1xdgx-a100", "", "2xdgx-h100"),
        pools("", "1xdgx-a100", "2xdgx-h100"),
        pools("", "", "2xdgx-h100"),
        unsplit("1xdgx-h100:pp2"),
        pools("1xdgx-h100:pp2", "1xdgx-a100:pp2", ""),
    ])
}

fn options() -> impl Strategy<Value = Options> {
    let policies = ["splitwise", "jsq", "least-requests", "round-robin", "power-of-two"];
    let names =
        |names: &[&str]| prop::sample::select(names.iter().map(ToString::to_string).collect::<Vec<_>>());
    let modes = (
        prop::option::of(names(&policies)),
        names(&["auto", "serialized", "layer-wise"]),
        names(&["at-arrival", "at-source-done"]),
        names(&["at-prompt", "before-last"]),
        names(&["drained", "idle"]),
        names(&["first", "last"]),
    );
    let numbers = (
        any::<bool>(),
        prop::sample::select(vec![0.0, 1e-4, 3e-3, 0.25]),
        prop::bool::weighted(0.8),
        prop::option::weighted(0.2, 3_u32..20),
        0_u64..100,
    );
    (machines(), modes, numbers).prop_map(|(machines, modes, numbers)| {
        let (policy, transfer, reserve, cut, mixed_return, ties) = modes;
        let (contention, message_delay_s, kv_limit, max_in_flight, seed) = numbers;
        Options {
            policy,
            transfer,
            reserve,
            cut,
            mixed_return,
            ties,
            contention,
            message_delay_s,
            kv_limit,
            max_in_flight,
            seed,
            check: true,
            ..machines
        }
    })
}

/// Bursts of up to eight at once, with sizes from one token to more than any machine holds.
fn workload() -> impl Strategy<Value = Vec<Row>> {
    let sizes = prop_oneof![
        6 => (1_u32..4_000, 1_u32..60),
        3 => (2_000_u32..30_000, 1_u32..200),
        1 => (30_000_u32..90_000, 1_u32..40),
    ];
    let burst = (0_u64..1_500, prop::collection::vec(sizes, 1..8));
    prop::collection::vec(burst, 1..8).prop_map(|bursts| {
        let mut at_ms = 0;
        let mut rows = Vec::new();
        for (gap_ms, sizes) in bursts {
            at_ms += gap_ms;
            rows.extend(sizes.into_iter().map(|(prompt, output)| (at_ms, prompt, output)));
        }
        rows
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(6), max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the options: every request ends once with all its tokens, every invariant holds after every event, and
    /// at the end every book is empty and every block free (`check` sees to both).
    #[test]
    fn whole_runs_are_whole(options in options(), rows in workload()) {
        let file = trace("whole", &rows);
        assert_whole(&Options { trace: file.path(), ..options }, &rows);
    }
}
