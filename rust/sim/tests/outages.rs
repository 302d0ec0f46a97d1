//! The Cluster's state dies and is rebuilt from what machines register: no request, no token and no block is lost.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::clients::{Row, Seen, faults, finished, machines, met, modes, watch, workload};
use proptest::prelude::*;
use splitcore_sim::Options;
use splitcore_sim::report::{FaultReport, Outcome};

const FIFTY: [Row; 50] = [(0, 200, 400); 50];
const SECOND_NS: u64 = 1_000_000_000;

/// When each token was given, by request.
fn times(run: &Seen) -> Vec<Vec<u64>> {
    run.tokens.iter().map(|tokens| tokens.iter().map(|token| token.0).collect()).collect()
}

#[test]
fn fifty_decodes_go_on_without_a_cluster_and_under_the_next() {
    let machines = || Split("2xdgx-h100", "2xdgx-h100");
    let (_, calm) = watch(machines(), &FIFTY, "kill=cluster@900", Options::default());
    let (report, runs) = watch(machines(), &FIFTY, "kill=cluster@10,restart=3,grace=2", Options::default());
    let FaultReport { resume, restart } = faults(&report);
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (50, 50));
    assert_eq!((resume.cluster_restarts, resume.adopted, resume.resubmitted), (1, 50, 0));
    assert_eq!((met(&resume), resume.lost_tokens, resume.lost_work_s), (0, 0, 0.0), "none restarts");
    assert!(report.rows.iter().all(|row| row.attempts == 1));
    assert_eq!(times(&runs[0]), times(&calm[0]), "every token comes when it would have come");
    assert_eq!((restart.cluster_restarts, restart.adopted, restart.resubmitted), (1, 0, 50));
    assert_eq!((restart.resumed, restart.restarted, restart.failed), (0, 50, 0));
    let given: u64 = (0..50).map(|id| runs[1].given_before(id, 10 * SECOND_NS)).sum();
    assert_eq!(restart.lost_tokens, 50 * 199 + given, "all that was computed");
    // One pass, beside the restart and everything up to here again.
    assert!(resume.extra_time_s < 0.1, "{resume:?}");
    assert!(restart.extra_time_s > 3.0 + 5.0, "{restart:?}");
    let ends_ns = |run: &Seen| run.tokens.iter().map(|tokens| tokens.last().unwrap().0).max().unwrap();
    assert!(ends_ns(&runs[0]) + 3 * SECOND_NS < ends_ns(&runs[1]));
}

/// A machine dies with the Cluster: what it held is resumed, the rest is where it was.
#[test]
fn a_machine_that_dies_while_there_is_no_cluster_costs_only_what_it_held() {
    let machines = || Split("2xdgx-h100", "2xdgx-h100");
    // Back before the Cluster, within its grace time, and after it.
    for repair in ["0.5", "2.5", "10"] {
        let plan = format!("kill=cluster@10,kill=t0@10.5,restart=2,grace=2,repair={repair}");
        let (report, runs) = watch(machines(), &FIFTY, &plan, Options::default());
        let FaultReport { resume, restart } = faults(&report);
        assert_eq!((finished(&runs[0]), finished(&runs[1])), (50, 50));
        assert_eq!((resume.crashes, resume.cluster_restarts), (1, 1), "{repair}");
        assert_eq!(
            (resume.adopted, resume.resubmitted),
            (50, 0),
            "half of them from the record at their source"
        );
        assert_eq!((resume.resumed, resume.restarted, resume.failed), (25, 0, 0), "{repair}");
        let lost: u64 = (0..50).map(|id| 200 + runs[0].given_before(id, 10_500_000_000) - 1).sum::<u64>() / 2;
        assert_eq!(resume.lost_tokens, lost, "{repair}");
        assert!(resume.extra_time_s < restart.extra_time_s, "{resume:?} {restart:?}");
        assert_eq!((restart.restarted, restart.crashes), (50, 1));
    }
}

/// A machine that dies in the grace time, before or after it has registered.
#[test]
fn a_machine_that_dies_in_the_grace_time_costs_only_what_it_held() {
    let rows = FIFTY;
    for at in ["12.1", "12.3", "13.5"] {
        let plan = format!("kill=cluster@10,kill=t1@{at},restart=2,grace=2,repair=5");
        let slow = Options { message_delay_s: 0.2, ..Options::default() };
        let (report, runs) = watch(Split("2xdgx-h100", "2xdgx-h100"), &rows, &plan, slow);
        let FaultReport { resume, .. } = faults(&report);
        assert_eq!((finished(&runs[0]), finished(&runs[1])), (50, 50));
        assert_eq!((resume.resumed, resume.restarted), (25, 0), "{at}: {resume:?}");
        assert_eq!(resume.adopted + resume.resubmitted, 50, "{at}: {resume:?}");
        let at_ns = (at.parse::<f64>().unwrap() * 1e9) as u64;
        let met = (0..50).filter(|&id| report.rows[id].token_machine == 2 || report.rows[id].attempts > 1);
        assert!(met.count() >= 25);
        let lost: u64 = (0..50).map(|id| 200 + runs[0].given_before(id, at_ns) - 1).sum::<u64>() / 2;
        assert_eq!(resume.lost_tokens, lost, "{at}");
    }
}

/// What arrives without a Cluster waits at the gateway, and its client waits for it from its arrival on.
#[test]
fn arrivals_wait_for_the_end_of_the_grace_time() {
    let rows: Vec<Row> = (0..40).map(|id| (id * 100, 300, 20)).collect();
    let plan = "kill=cluster@1.05,restart=0.5,grace=0.7";
    let (report, runs) = watch(Split("1xdgx-h100", "1xdgx-h100"), &rows, plan, Options::default());
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (40, 40));
    let opens_ns = 2_250_000_000;
    for row in &report.rows {
        let waits = (1_050_000_000..opens_ns).contains(&row.arrival_ns);
        assert_eq!(row.arrival_ns + row.ttft_ns > opens_ns, waits || row.arrival_ns > opens_ns, "{row:?}");
    }
    assert_eq!(report.summary.requests.rejected, 0);
    assert_eq!(report.summary.admission.rejected.values().sum::<u64>(), 0);
}

/// Its Compute and its Reserve are on their way when the Cluster dies, so no machine knows it.
#[test]
fn a_request_that_no_machine_had_heard_of_is_submitted_again() {
    let rows = [(0, 300, 200), (990, 300, 20)];
    let slow = Options { message_delay_s: 0.05, ..Options::default() };
    let (report, runs) = watch(Split("1xdgx-h100", "1xdgx-h100"), &rows, "kill=cluster@1", slow);
    let resume = faults(&report).resume;
    assert_eq!((resume.adopted, resume.resubmitted, resume.restarted), (1, 1, 1));
    assert_eq!((finished(&runs[0]), report.rows[1].attempts), (2, 2));
    assert!(report.rows[1].ttft_ns > 2 * SECOND_NS);
}

/// The transfer takes seconds; it goes on without a Cluster.
#[test]
fn a_handoff_goes_on_without_a_cluster() {
    let rows = [(0, 1000, 30)];
    for transfer in ["serialized", "layer-wise"] {
        let options =
            || Options { link_bandwidth: Some(2e9), transfer: transfer.into(), ..Options::default() };
        let machines = || Split("1xdgx-h100", "1xdgx-h100");
        let (_, calm) = watch(machines(), &rows, "kill=cluster@900", options());
        let (report, runs) = watch(machines(), &rows, "kill=cluster@1,restart=9,grace=0.001", options());
        assert_eq!(times(&runs[0]), times(&calm[0]), "{transfer}");
        assert_eq!((faults(&report).resume.adopted, report.rows[0].attempts), (0, 1), "it ended before");
    }
}

/// A Cluster may die in its grace time, too, or soon after it.
#[test]
fn one_cluster_after_the_other_may_die() {
    let machines = || Split("2xdgx-h100", "2xdgx-h100");
    let (_, calm) = watch(machines(), &FIFTY, "kill=cluster@900", Options::default());
    let plan = "kill=cluster@10,kill=cluster@10.5,kill=cluster@11.5,kill=cluster@15,restart=1,grace=1";
    let (report, runs) = watch(machines(), &FIFTY, plan, Options::default());
    let FaultReport { resume, restart } = faults(&report);
    assert_eq!(resume.cluster_restarts, 3, "without a Cluster there is none to kill");
    assert_eq!((resume.adopted, resume.resubmitted, met(&resume)), (150, 0, 0));
    assert_eq!(times(&runs[0]), times(&calm[0]));
    assert_eq!((restart.cluster_restarts, restart.restarted), (3, 150));
}

/// The Cluster dies with the words on their way that a later attempt takes over: the earlier one is all there is, and its
/// tokens go nowhere any more.
#[test]
fn an_attempt_that_was_given_up_before_the_cluster_died_is_taken_back() {
    let rows: Vec<Row> = (0..60).map(|id| (id * 40, 200, 60)).collect();
    let slow = Options { message_delay_s: 0.25, ..Options::default() };
    let plan = "kill=p0@1.5,kill=cluster@1.6,repair=1";
    let (report, runs) = watch(Split("2xdgx-h100", "1xdgx-h100"), &rows, plan, slow);
    let resume = faults(&report).resume;
    assert!(resume.resumed >= 3, "{resume:?} were met after their first token");
    assert!(report.rows.iter().all(|row| row.e2e_ns < 15 * SECOND_NS), "not when its machine is full");
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (60, 60));
}

/// Requests parked in a grace time are kept by the first machine. Its successor dies too, with some of them placed and
/// the word that nobody need keep them on its way.
#[test]
fn a_request_that_is_kept_on_one_machine_goes_on_where_it_runs() {
    let slow = Options { message_delay_s: 0.2, ..Options::default() };
    let plan = "kill=cluster@10,kill=m2@11.5,kill=cluster@13.4,restart=1,grace=2,repair=1";
    let (report, runs) = watch(Unsplit("3xdgx-h100"), &FIFTY, plan, slow);
    let resume = faults(&report).resume;
    assert_eq!((resume.cluster_restarts, resume.adopted, resume.resubmitted), (2, 100, 0), "{resume:?}");
    assert_eq!((resume.resumed, resume.restarted), (16, 0), "{resume:?}");
    let placed: Vec<u32> = report.rows.iter().map(|row| row.attempts).collect();
    assert!(placed.iter().all(|times| [1, 2].contains(times)), "{placed:?}");
    assert_eq!((finished(&runs[0]), finished(&runs[1])), (50, 50));
}

/// All machines are away when the grace time ends: what was accepted is not turned away.
#[test]
fn accepted_requests_wait_for_machines_too() {
    let rows: Vec<Row> = (0..10).map(|id| (id * 100, 300, 200)).collect();
    let plan = "kill=cluster@1,kill=m0@1.5,repair=60";
    let (report, runs) = watch(Unsplit("1xdgx-h100"), &rows, plan, Options::default());
    let resume = faults(&report).resume;
    assert_eq!((resume.adopted, resume.resubmitted, finished(&runs[0])), (0, 10, 10));
    assert!(report.rows.iter().all(|row| row.e2e_ns > 60 * SECOND_NS));
}

/// After two minutes without a Cluster machines drop what they hold; the gateway still has its clients.
#[test]
fn machines_wait_for_a_cluster_only_so_long() {
    let rows = [(0, 300, 5000), (0, 300, 500)];
    let plan = "kill=cluster@10,restart=130";
    let (report, runs) = watch(Unsplit("1xdgx-h100"), &rows, plan, Options::default());
    let resume = faults(&report).resume;
    assert_eq!((resume.adopted, resume.resubmitted, resume.resumed, resume.restarted), (0, 1, 1, 0));
    assert!(runs[0].given_before(0, 131 * SECOND_NS) > 2000 && finished(&runs[0]) == 2);
    let (_, before) = runs[0].tokens[0].split_at(runs[0].given_before(0, 131 * SECOND_NS) as usize);
    assert!(before[0].0 > 141 * SECOND_NS, "they stop at 130 s and go on after the grace time");
}

#[test]
fn limits_hold_under_the_next_cluster() {
    let rows: Vec<Row> = (0..400).map(|id| (id * 25, 1500, 50)).collect();
    let options = || Options { admission: "early".into(), slo_ttft_s: Some(1.0), ..Options::default() };
    let (report, runs) =
        watch(Unsplit("1xdgx-h100"), &rows, "kill=cluster@2,restart=0.1,grace=0.1", options());
    let late = (120..400).filter(|&id| runs[0].ends[id] == [Outcome::Rejected]).count();
    assert!(late > 50, "{late} of those that came after the restart: {:?}", report.summary.admission);
}

fn plan(names: Vec<&'static str>) -> impl Strategy<Value = String> {
    let kills = prop::collection::vec((prop::sample::select(names), 0_u32..8_000), 0..5);
    let outages = prop::collection::vec(0_u32..8_000, 1..4);
    let mtbf = prop::option::of(prop::sample::select(vec!["0.5", "3", "20"]));
    let repair = prop::sample::select(vec!["0.001", "0.4", "3"]);
    let restart = prop::sample::select(vec!["0.001", "0.3", "2"]);
    let grace = prop::sample::select(vec!["0.25", "0.26", "1"]);
    (kills, outages, mtbf, (repair, restart, grace)).prop_map(
        |(kills, outages, mtbf, (repair, restart, grace))| {
            let all = kills.into_iter().chain(outages.into_iter().map(|ms| ("cluster", ms)));
            let kills = all.map(|(name, ms)| format!("kill={name}@{}", f64::from(ms) / 1e3));
            let mtbf = mtbf.map(|mtbf| format!("mtbf={mtbf}"));
            let spans = format!("repair={repair},restart={restart},grace={grace}");
            kills.chain(mtbf).chain([spans]).collect::<Vec<_>>().join(",")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever crashes when, the Cluster among it: every request ends once, its client gets each token once and in
    /// order, every invariant holds after every event, and at the end every book is empty, every block free and nothing
    /// kept (`check` sees to these).
    #[test]
    fn whatever_dies_no_token_is_lost_and_no_book_stays_open(
        (machines, plan) in machines().prop_flat_map(|(machines, names)| (Just(machines), plan(names))),
        options in modes(),
        rows in workload(),
    ) {
        let (report, runs) = watch(machines, &rows, &plan, options);
        let FaultReport { resume, restart } = faults(&report);
        prop_assert_eq!((restart.resumed, restart.adopted), (0, 0));
        for (each, run) in [(resume, &runs[0]), (restart, &runs[1])] {
            let failed = run.ends.iter().filter(|ends| ends[..] == [Outcome::Failed]).count() as u64;
            prop_assert_eq!(each.failed, failed);
            prop_assert!(each.resubmitted <= each.resumed + each.restarted);
            prop_assert!(each.lost_work_s >= 0.0);
        }
    }
}
