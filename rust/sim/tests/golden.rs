//! Whole runs against the public simulator's results for the same traces (`docs/validation.md`).
//!
//! `cargo test -p splitcore-sim --test golden -- --nocapture` prints the tables.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use std::collections::BTreeMap;

use common::Machines::{Split, Unsplit};
use common::{Machines, as_published, assert_near, data, off, run};
use splitcore_sim::report::{Percentiles, RequestRecord};
use splitcore_sim::{Options, Report};

/// Of one request in seconds: TTFT and E2E.
type Times = (f64, f64);

/// The published times of a golden run by request.
fn published(name: &str) -> Option<BTreeMap<u64, Times>> {
    let text = std::fs::read_to_string(data(&format!("golden/{name}/per_request.csv"))?).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| header.iter().position(|&column| column == name).unwrap();
    let (id, ttft, e2e) = (column("request_ids"), column("ttft_times"), column("response_times"));
    let row = |line: &str| {
        let cells: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        (cells[id] as u64, (cells[ttft], cells[e2e]))
    };
    Some(lines.map(row).collect())
}

/// A golden run of ours beside the published one.
struct Golden {
    name: &'static str,
    ours: Report,
    theirs: BTreeMap<u64, Times>,
}

impl Golden {
    fn new(name: &'static str, machines: Machines, trace: &str) -> Option<Self> {
        let trace = data(trace)?;
        Self::of(name, &as_published(machines, trace.to_str().unwrap()))
    }

    fn of(name: &'static str, options: &Options) -> Option<Self> {
        let theirs = published(name)?;
        let ours = run(options);
        assert_eq!(ours.requests.len(), theirs.len());
        Some(Self { name, ours, theirs })
    }

    /// Two prompt machines and one token machine at 10 requests a second.
    fn overloaded(mixed_return: &str, ties: &str, delay_s: f64) -> Option<Self> {
        let trace = data("rr_conv_10_60s.csv")?;
        let published = as_published(Split("2xdgx-h100", "1xdgx-a100"), trace.to_str().unwrap());
        let mixed_return = mixed_return.to_string();
        let options = Options { mixed_return, ties: ties.into(), message_delay_s: delay_s, ..published };
        Self::of("s_ha_2_1_overload", &options)
    }

    /// Largest difference of any request in TTFT and in E2E.
    fn differences_max(&self) -> Times {
        self.ours.requests.iter().fold((0.0, 0.0), |max, request| {
            let (ttft, e2e) = self.theirs[&request.request_id];
            (f64::max(max.0, (request.ttft_s - ttft).abs()), f64::max(max.1, (request.e2e_s - e2e).abs()))
        })
    }

    /// Requests whose TTFT and whose E2E differ by more than a microsecond.
    fn apart(&self) -> (usize, usize) {
        let count = |differs: &dyn Fn(&RequestRecord, Times) -> bool| {
            let requests = self.ours.requests.iter();
            requests.filter(|request| differs(request, self.theirs[&request.request_id])).count()
        };
        (
            count(&|request, (ttft, _)| (request.ttft_s - ttft).abs() > 1e-6),
            count(&|request, (_, e2e)| (request.e2e_s - e2e).abs() > 1e-6),
        )
    }

    /// Percentiles of TTFT and E2E: ours and theirs.
    fn percentiles(&self) -> [[Percentiles; 2]; 2] {
        let of = |values: Vec<f64>| Percentiles::of(&mut values.clone());
        [
            [
                of(self.ours.requests.iter().map(|request| request.ttft_s).collect()),
                of(self.theirs.values().map(|times| times.0).collect()),
            ],
            [
                of(self.ours.requests.iter().map(|request| request.e2e_s).collect()),
                of(self.theirs.values().map(|times| times.1).collect()),
            ],
        ]
    }

    /// Prints the comparison and asserts that all percentiles are near: of TTFT, and of E2E.
    fn assert_near(&self, ttft_within: f64, e2e_within: f64) {
        for (what, [ours, theirs], within) in ["TTFT", "E2E"]
            .into_iter()
            .zip(self.percentiles())
            .zip([ttft_within, e2e_within])
            .map(|((a, b), c)| (a, b, c))
        {
            print_row(self.name, what, ours, theirs);
            assert_percentiles(&format!("{} {what}", self.name), ours, theirs, within);
        }
        let (ttft, e2e) = self.differences_max();
        let apart = self.apart();
        let name = self.name;
        eprintln!(
            "| {name} | largest difference of a request | TTFT {ttft:.9} s | E2E {e2e:.9} s | {apart:?} |"
        );
    }
}

fn three(percentiles: Percentiles) -> [f64; 3] {
    [percentiles.p50, percentiles.p90, percentiles.p99]
}

fn print_row(name: &str, what: &str, ours: Percentiles, theirs: Percentiles) {
    let cells = three(ours)
        .into_iter()
        .zip(three(theirs))
        .map(|(ours, theirs)| format!("{ours:.5} / {theirs:.5} ({:+.3} %)", 100.0 * off(ours, theirs)));
    eprintln!("| {name} | {what} | {} |", cells.collect::<Vec<_>>().join(" | "));
}

#[track_caller]
fn assert_percentiles(what: &str, ours: Percentiles, theirs: Percentiles, within: f64) {
    for ((percent, ours), theirs) in [50, 90, 99].into_iter().zip(three(ours)).zip(three(theirs)) {
        assert_near(&format!("{what} p{percent}"), ours, theirs, within);
    }
}

#[test]
fn tiny_runs_agree_request_by_request() {
    for (name, machines) in
        [("tiny_baseline_h1", Unsplit("1xdgx-h100")), ("tiny_ha_1_1", Split("1xdgx-h100", "1xdgx-a100"))]
    {
        let Some(golden) = Golden::new(name, machines, "test_trace.csv") else { return };
        let (ttft, e2e) = golden.differences_max();
        eprintln!("| {name} | largest difference of a request | TTFT {ttft:.9} s | E2E {e2e:.9} s |");
        assert!(ttft < 1e-6 && e2e < 1e-6, "{name}: TTFT {ttft} s, E2E {e2e} s");
    }
}

#[test]
fn unsplit_runs_agree_request_by_request_and_in_percentiles() {
    for (name, machines, trace) in [
        ("s_baseline_h6", "6xdgx-h100", "rr_conv_10_60s.csv"),
        ("s_code_baseline_h4", "4xdgx-h100", "rr_code_10_60s.csv"),
    ] {
        let Some(golden) = Golden::new(name, Unsplit(machines), trace) else { return };
        golden.assert_near(0.005, 0.005);
        if name == "s_baseline_h6" {
            assert_eq!(golden.apart(), (0, 0), "every request agrees");
        }
    }
}

#[test]
fn split_runs_agree_in_percentiles() {
    for (name, prompt, token) in
        [("s_hh_4_2", "4xdgx-h100", "2xdgx-h100"), ("s_aa_5_3", "5xdgx-a100", "3xdgx-a100")]
    {
        let Some(golden) = Golden::new(name, Split(prompt, token), "rr_conv_10_60s.csv") else { return };
        golden.assert_near(0.005, 0.01);
        assert_eq!(golden.apart().0, 0, "every TTFT agrees: the prompt sides are the same");
    }
}

/// The two runs of 300 s at 70 requests a second; published as percentiles only.
#[test]
fn runs_at_70_requests_a_second_agree_in_percentiles() {
    let of = |p50, p90, p99| Percentiles { p50, p90, p99 };
    for (name, machines, ttft, e2e) in [
        ("base 70", Unsplit("40xdgx-h100"), of(0.16529, 0.39214, 0.68502), of(6.28302, 20.56036, 28.73590)),
        (
            "HA 70",
            Split("25xdgx-h100", "26xdgx-a100"),
            of(0.13211, 0.36826, 0.65779),
            of(6.31172, 20.34544, 28.94685),
        ),
    ] {
        let Some(trace) = data("rr_conv_70_300s.csv") else { return };
        let summary = run(&as_published(machines, trace.to_str().unwrap())).summary;
        for (what, ours, theirs) in [("TTFT", summary.ttft_s, ttft), ("E2E", summary.e2e_s, e2e)] {
            let ours = of(ours.p50, ours.p90, ours.p99);
            print_row(name, what, ours, theirs);
            assert_percentiles(&format!("{name} {what}"), ours, theirs, 0.005);
        }
        assert!(summary.slo.met, "{name} keeps all nine objectives");
        assert_eq!(summary.pools.to_mixed, 0);
        eprintln!("| {name} | last end | {:.3} s |", summary.duration_s);
    }
}

/// The run lives in the mixed pool, where ours goes home earlier, knows no output length and hears of the end of a
/// decode at the next report. With the public simulator's rule for going home the tail as a whole comes nearer, and
/// that of E2E by far; the one of TTFT, six requests beyond the p99, does not.
#[test]
fn the_overloaded_run_agrees_in_medians_and_its_tail_hangs_on_the_return_rule() {
    let Some(drained) = Golden::overloaded("drained", "first", 0.0) else { return };
    let [ttft, e2e] = drained.percentiles();
    print_row("overload, drained", "TTFT", ttft[0], ttft[1]);
    print_row("overload, drained", "E2E", e2e[0], e2e[1]);
    assert_near("TTFT p50", ttft[0].p50, ttft[1].p50, 0.05);
    assert_near("E2E p50", e2e[0].p50, e2e[1].p50, 0.05);
    let Some(idle) = Golden::overloaded("idle", "first", 0.0) else { return };
    let [ttft, e2e] = idle.percentiles();
    print_row("overload, idle", "TTFT", ttft[0], ttft[1]);
    print_row("overload, idle", "E2E", e2e[0], e2e[1]);
    let moves = |golden: &Golden| golden.ours.summary.pools.to_mixed;
    assert_eq!(moves(&idle), 3, "as often as in the public simulator");
    assert!(moves(&drained) > 3);
    assert_tail_nearer(&idle, &drained);
}

/// The first run's tail is nearer to the published one than the second's: E2E alone, and both together.
#[track_caller]
fn assert_tail_nearer(nearer: &Golden, other: &Golden) {
    let p99_off =
        |golden: &Golden| golden.percentiles().map(|[ours, theirs]| off(ours.p99, theirs.p99).abs());
    let ([ttft, e2e], [ttft_other, e2e_other]) = (p99_off(nearer), p99_off(other));
    assert!(e2e < e2e_other, "E2E p99 is off by {e2e} and by {e2e_other}");
    assert!(
        ttft + e2e < ttft_other + e2e_other,
        "p99s are off by {ttft} + {e2e}, {ttft_other} + {e2e_other}"
    );
}

/// How much the overloaded run moves when something that should not matter does: message delays that are small against
/// every pass, and the tie rule. The spread bounds what a comparison of its tail can mean.
#[test]
fn the_overloaded_run_spreads_under_small_changes() {
    let delays_s = [1e-6, 1e-5, 1e-4, 3e-4, 5e-4, 7e-4, 1e-3, 2e-3, 3e-3];
    let changes = delays_s.map(|delay_s| ("first", delay_s));
    for (ties, delay_s) in [("first", 0.0), ("last", 0.0)].into_iter().chain(changes) {
        let overloaded = |mixed_return| {
            let run = Golden::overloaded(mixed_return, ties, delay_s)?;
            let deviations = run.percentiles().map(|[ours, theirs]| {
                let pairs = three(ours).into_iter().zip(three(theirs));
                pairs.map(|(o, t)| format!("{:+.1}", 100.0 * off(o, t))).collect::<Vec<_>>().join(" | ")
            });
            let moves = run.ours.summary.pools.to_mixed;
            let delay_us = delay_s * 1e6;
            eprintln!(
                "| {mixed_return} | {ties} | {delay_us} | {} | {} | {moves} |",
                deviations[0], deviations[1]
            );
            Some(run)
        };
        let (Some(drained), Some(idle)) = (overloaded("drained"), overloaded("idle")) else { return };
        for run in [&drained, &idle] {
            let [ttft, e2e] = run.percentiles();
            assert_near("TTFT p50", ttft[0].p50, ttft[1].p50, 0.10);
            assert_near("E2E p50", e2e[0].p50, e2e[1].p50, 0.10);
        }
        assert_tail_nearer(&idle, &drained);
    }
}
