//! What clients see in runs with faults, and random such runs.

use proptest::prelude::*;
use splitcore_core::machine::BatchPlan;
use splitcore_sim::report::{FaultReport, Outcome, RecoveryReport};
use splitcore_sim::{Observer, Options, Recovery, Report, simulate_observed};

use super::Machines::{self, Split, Unsplit};
use super::{TempFile, with_machines};

/// (arrival in milliseconds, prompt, output)
pub type Row = (u64, u32, u32);

/// What clients see in one run.
#[derive(Debug)]
pub struct Seen {
    pub recovery: Recovery,
    /// Tokens given, by request: when, and how many are to come.
    pub tokens: Vec<Vec<(u64, u32)>>,
    pub ends: Vec<Vec<Outcome>>,
    /// Prefills of further attempts that sample: the tokens up to there, and those the client has as the pass starts.
    pub resumed: Vec<(usize, u32, u32)>,
    pub words: Vec<[u64; 3]>,
}

#[derive(Debug, Default)]
pub struct Clients {
    pub requests: usize,
    pub runs: Vec<Seen>,
}

impl Clients {
    pub fn now(&mut self) -> &mut Seen {
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
    pub fn crashes(&self) -> Vec<(u64, u64)> {
        let crashed = self.words.iter().filter(|words| words[1] >> 32 == 11);
        crashed.map(|words| (words[0], words[1] & 0xffff_ffff)).collect()
    }

    /// Every request ends once; one that has finished has got each of its tokens once and in order.
    #[track_caller]
    pub fn assert_whole(&self, rows: &[Row]) {
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
    pub fn given_before(&self, request: usize, time_ns: u64) -> u64 {
        self.tokens[request].iter().filter(|token| token.0 < time_ns).count() as u64
    }
}

/// Both runs of a plan, with all invariants recounted after every event and all books empty at the end.
#[track_caller]
pub fn watch(machines: Machines, rows: &[Row], faults: &str, options: Options) -> (Report, Vec<Seen>) {
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
pub fn watch_options(options: &Options, rows: &[Row]) -> (Report, Vec<Seen>) {
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

pub fn faults(report: &Report) -> FaultReport {
    report.summary.faults.unwrap()
}

pub fn finished(run: &Seen) -> usize {
    run.ends.iter().filter(|ends| ends[..] == [Outcome::Finished]).count()
}

pub fn met(report: &RecoveryReport) -> u64 {
    report.resumed + report.restarted + report.failed
}

pub fn machines() -> impl Strategy<Value = (Machines, Vec<&'static str>)> {
    prop::sample::select(vec![
        (Unsplit("1xdgx-h100"), vec!["m0"]),
        (Unsplit("3xdgx-a100"), vec!["m0", "m1", "m2"]),
        (Split("1xdgx-h100", "1xdgx-a100"), vec!["p0", "t0"]),
        (Split("3xdgx-h100", "2xdgx-h100-cap"), vec!["p0", "p1", "p2", "t0", "t1"]),
    ])
}

pub fn modes() -> impl Strategy<Value = Options> {
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

pub fn workload() -> impl Strategy<Value = Vec<Row>> {
    let sizes = prop_oneof![4 => (1_u32..3_000, 1_u32..80), 1 => (2_000_u32..30_000, 1_u32..150)];
    prop::collection::vec((0_u64..6_000, sizes), 1..40).prop_map(|mut requests| {
        requests.sort_unstable_by_key(|request| request.0);
        requests.into_iter().map(|(ms, (prompt, output))| (ms, prompt, output)).collect()
    })
}
