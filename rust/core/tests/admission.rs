//! Who is admitted: the limits of a class now and ahead, the share kept free, and the line of those who wait.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use proptest::prelude::*;
use splitcore_core::cluster::Cluster;
use splitcore_core::config::{Admission, ClusterConfig, Level, MachineConfig, PolicyKind};
use splitcore_core::cost::{CostKnot, CostPoints, CostTable};
use splitcore_core::error::{Applied, EventError, Rejection};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Role, Slo};
use splitcore_core::id::{MachineId, RequestId};
use splitcore_core::leg::{Notice, Report};
use splitcore_core::time::Time;

const PAIR: [Role; 2] = [Role::Prompt, Role::Token];

/// A prompt token takes 10 ns in passes of 1000, a decode pass 100 ns a request, and 1 ns for 4 tokens of context.
fn costs() -> CostTable {
    let knots = |points: [(u32, u64); 2]| points.map(|(at, ns)| CostKnot { at, ns }).to_vec();
    CostTable::new(CostPoints {
        prefill: knots([(0, 0), (1000, 10_000)]),
        decode: knots([(0, 0), (10, 1000)]),
        context_ns_per_1024_tokens: 256,
        pass_tokens_max: 1000,
    })
    .unwrap()
}

fn join(index: u32, role: Role, costs: Option<CostTable>) -> ClusterEvent {
    let machine = id(index);
    ClusterEvent::Join(Join {
        machine,
        role,
        kv_capacity_tokens: 100_000,
        speed_weight: 1,
        link: None,
        costs,
    })
}

fn with(admission: Admission, roles: &[Role]) -> Head {
    let config = ClusterConfig { admission, prompt_pending_tokens_max: 1 << 40, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[]);
    for (index, &role) in roles.iter().enumerate() {
        head.act(&join(index as u32, role, Some(costs())));
    }
    head
}

fn limit(head: &mut Head, ttft_ns: u64, tbt_ns: u64) {
    head.act(&ClusterEvent::SetSlo { class: 0, slo: Some(Slo { ttft_ns, tbt_ns }) });
}

/// Why the arrival would be turned away; the request is not placed.
fn refusal(head: &Head, arrival: &Arrival) -> Option<Rejection> {
    head.cluster.dry_run(arrival).unwrap().err()
}

fn at(head: &Head, prompt_tokens: u32) -> Option<Rejection> {
    refusal(head, &Arrival::new(1 << 40, prompt_tokens, 10))
}

/// A request that decodes on machine 1, its prompt computed on machine 0.
fn decode(head: &mut Head, request: u64, prompt_tokens: u32) {
    head.place(request, prompt_tokens, 1000);
    head.prefill_done(0, request);
    head.notice(1, Notice::Landed { key: key(request) });
}

#[test]
fn the_first_token_is_expected_after_the_prompts_that_wait() {
    for admission in [Admission::Early, Admission::Predicted] {
        let mut head = with(admission, &PAIR);
        limit(&mut head, 10_000, u64::MAX);
        assert_eq!(at(&head, 1000), None, "equal to the limit");
        assert_eq!(at(&head, 1001), Some(Rejection::TtftSlo));
        head.place(1, 600, 10);
        assert_eq!((at(&head, 400), at(&head, 401)), (None, Some(Rejection::TtftSlo)));
        head.prefill_done(0, 1);
        assert_eq!(at(&head, 1000), None, "what is computed waits no more");
        // Prompts of 600 fill a pass of 1000 each; one of 400 goes with the last, one of 401 takes a pass alone.
        limit(&mut head, 16_000, u64::MAX);
        head.place(2, 600, 10);
        head.place(3, 600, 10);
        assert_eq!((at(&head, 400), at(&head, 401)), (None, Some(Rejection::TtftSlo)));
        limit(&mut head, 16_010, u64::MAX);
        assert_eq!((at(&head, 401), at(&head, 402)), (None, Some(Rejection::TtftSlo)));
    }
}

#[test]
fn decodes_ride_along_with_prompts() {
    let mut head = with(Admission::Early, &[Role::Mixed]);
    head.place(1, 100, 10);
    head.prefill_done(0, 1);
    // 1000 for the prompt, and in the one pass 100 + 101 / 4 for the decode less the 100 of any pass.
    limit(&mut head, 1025, u64::MAX);
    assert_eq!(at(&head, 100), None);
    limit(&mut head, 1024, u64::MAX);
    assert_eq!(at(&head, 100), Some(Rejection::TtftSlo));
}

#[test]
fn early_counts_what_decodes_now_and_predicted_what_will() {
    for (admission, booked) in [(Admission::Early, 0), (Admission::Predicted, 2)] {
        let mut head = with(admission, &PAIR);
        // Two prompts that will be computed before the next one.
        head.place(1, 40, 10);
        head.place(2, 40, 10);
        let expected_ns = 100 * (booked + 1) + (40 * booked + 40 + 1) / 4;
        limit(&mut head, u64::MAX, expected_ns);
        assert_eq!(at(&head, 40), None, "{admission:?}");
        limit(&mut head, u64::MAX, expected_ns - 1);
        assert_eq!(at(&head, 40), Some(Rejection::TbtSlo), "{admission:?}");
    }
}

#[test]
fn a_transfer_is_over_ahead_and_not_yet_now() {
    let mut early = with(Admission::Early, &PAIR);
    limit(&mut early, u64::MAX, 150);
    early.place(1, 40, 10);
    early.prefill_done(0, 1);
    let mut predicted = with(Admission::Predicted, &PAIR);
    limit(&mut predicted, u64::MAX, 150);
    predicted.place(1, 40, 10);
    predicted.prefill_done(0, 1);
    assert_eq!((at(&early, 40), at(&predicted, 40)), (None, Some(Rejection::TbtSlo)));
    early.notice(1, Notice::Landed { key: key(1) });
    assert_eq!(at(&early, 40), Some(Rejection::TbtSlo));
}

#[test]
fn a_whole_request_decodes_once_its_prompt_is_computed() {
    let mut head = with(Admission::Early, &[Role::Mixed]);
    limit(&mut head, u64::MAX, 150);
    head.place(1, 40, 10);
    assert_eq!(at(&head, 40), None);
    head.prefill_done(0, 1);
    assert_eq!(at(&head, 40), Some(Rejection::TbtSlo));
    head.notice(0, Notice::Evicted { key: key(1), tokens: 41 });
    assert_eq!(at(&head, 40), None, "the evicted does not decode now");
}

#[test]
fn decodes_are_expected_to_end_at_the_mean_rate() {
    let mut head = with(Admission::Predicted, &PAIR);
    // One request of 100 output tokens has finished, and four decode.
    decode(&mut head, 1, 40);
    head.notice(1, Notice::Finished { key: key(1), tokens: 100 });
    for request in 2..6 {
        decode(&mut head, request, 10);
    }
    // Their pass is 400 and 4 * (10 + 100 / 2) / 4 for contexts: a decode lasts 46,000. The prompt of 1000 takes
    // 10,000, so 36/46 of each is left: 3.1 are four, of context 187.
    let expected_ns = 500 + (187 + 1001) / 4;
    limit(&mut head, u64::MAX, expected_ns);
    assert_eq!(at(&head, 1000), None);
    limit(&mut head, u64::MAX, expected_ns - 1);
    assert_eq!(at(&head, 1000), Some(Rejection::TbtSlo));
    // A queue as long as a decode lasts, and all have ended.
    limit(&mut head, u64::MAX, 100 + 4601 / 4);
    assert_eq!(at(&head, 4600), None);
    limit(&mut head, u64::MAX, 100 + 4601 / 4 - 1);
    assert_eq!(at(&head, 4600), Some(Rejection::TbtSlo));
}

#[test]
fn prompts_behind_the_arrival_do_not_count_ahead() {
    let mut head = with(Admission::Predicted, &[Role::Prompt, Role::Prompt, Role::Token]);
    // The long prompt on machine 0 is computed after the next one on machine 1.
    head.place(1, 5000, 10);
    limit(&mut head, u64::MAX, 100 + 101 / 4);
    assert_eq!(at(&head, 100), None);
    // One that waits longer than that meets it.
    limit(&mut head, u64::MAX, 100 + 5001 / 4);
    assert_eq!(at(&head, 5000), Some(Rejection::TbtSlo));
}

#[test]
fn the_mean_output_follows_what_the_caller_was_given() {
    let config =
        ClusterConfig { admission: Admission::Predicted, level: Level::External, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[]);
    head.act(&join(0, Role::Mixed, Some(costs())));
    head.place(1, 10, 100);
    assert!(head.fact(Notice::PrefillDone { key: key(1), sampled: true }).is_yes());
    assert!(head.fact(Notice::Progress { key: key(1), tokens: 50 }).is_yes());
    assert!(head.fact(Notice::Finished { key: key(1), tokens: 0 }).is_yes());
    head.place(2, 10, 100);
    assert!(head.fact(Notice::PrefillDone { key: key(2), sampled: true }).is_yes());
    // Of the second nothing is delivered: half of the mean of 50 is its context beside its prompt.
    limit(&mut head, u64::MAX, 200 + (10 + 25 + 11) / 4);
    assert_eq!(at(&head, 10), None);
    limit(&mut head, u64::MAX, 200 + (10 + 25 + 11) / 4 - 1);
    assert_eq!(at(&head, 10), Some(Rejection::TbtSlo));
    // What is delivered is known.
    assert!(head.fact(Notice::Progress { key: key(2), tokens: 90 }).is_yes());
    limit(&mut head, u64::MAX, 200 + (10 + 90 + 11) / 4 - 1);
    assert_eq!(at(&head, 10), Some(Rejection::TbtSlo));
}

#[test]
fn without_limits_or_tables_nobody_is_turned_away() {
    let mut head = with(Admission::Predicted, &PAIR);
    assert_eq!(at(&head, 5000), None);
    limit(&mut head, 1, 1);
    assert_eq!(at(&head, 5000), Some(Rejection::TtftSlo));
    let other = Arrival { class: 1, ..Arrival::new(1 << 40, 5000, 10) };
    assert_eq!(refusal(&head, &other), None, "limits are of one class");
    head.act(&ClusterEvent::SetSlo { class: 0, slo: None });
    assert_eq!(at(&head, 5000), None);
    let config = ClusterConfig { admission: Admission::Predicted, ..ClusterConfig::default() };
    let mut blind = Head::new(config, &PAIR);
    limit(&mut blind, 1, 1);
    assert_eq!(at(&blind, 5000), None);
    // By default limits are told and not looked at.
    let mut bounds = with(Admission::Bounds, &PAIR);
    limit(&mut bounds, 1, 1);
    assert_eq!(at(&bounds, 5000), None);
}

#[test]
fn a_machine_that_joins_again_brings_its_own_table() {
    let mut head = with(Admission::Early, &[Role::Mixed]);
    limit(&mut head, 999, u64::MAX);
    assert_eq!(at(&head, 100), Some(Rejection::TtftSlo));
    let mut points = costs().points().clone();
    points.prefill[1].ns = 5000;
    let (machine, role) = (MachineId { index: 0, incarnation: 2 }, Role::Mixed);
    let faster = Some(CostTable::new(points).unwrap());
    head.act(&ClusterEvent::Join(Join {
        machine,
        role,
        kv_capacity_tokens: 100_000,
        speed_weight: 1,
        link: None,
        costs: faster,
    }));
    assert_eq!(at(&head, 100), None);
}

#[test]
fn a_limit_of_zero_is_an_error_and_a_rejection_books_nothing() {
    let mut head = with(Admission::Predicted, &PAIR);
    for slo in [Slo { ttft_ns: 0, tbt_ns: 1 }, Slo { ttft_ns: 1, tbt_ns: 0 }] {
        let event = ClusterEvent::SetSlo { class: 3, slo: Some(slo) };
        assert_eq!(head.handle(&event).0, Err(EventError::EmptySlo { class: 3 }));
    }
    let smallest = ClusterEvent::SetSlo { class: 0, slo: Some(Slo { ttft_ns: 1, tbt_ns: 1 }) };
    assert_eq!(head.handle(&smallest).0, Ok(Applied::Yes));
    let before: Vec<_> = (0..2).map(|machine| head.cluster.load(machine)).collect();
    let rejected = ClusterAction::Rejected { request: RequestId(1), reason: Rejection::TtftSlo };
    assert_eq!(head.arrive(Arrival::new(1, 10, 10)), [rejected]);
    assert_eq!((0..2).map(|machine| head.cluster.load(machine)).collect::<Vec<_>>(), before);
    assert_eq!((head.cluster.live_requests(), head.cluster.counters().rejected), (0, 1));
}

#[test]
fn arrivals_leave_a_share_of_the_slots_free_and_recovery_may_take_it() {
    let config =
        ClusterConfig { requests_max: 10, recovery_headroom_permille: 200, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Mixed; 2]);
    for request in 0..8 {
        head.place(request, 10, 10);
    }
    assert_eq!(at(&head, 10), Some(Rejection::Headroom));
    head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!((head.cluster.live_requests(), head.cluster.parked_requests()), (8, 0));
    head.notice(1, Notice::Finished { key: key(1), tokens: 1 });
    assert_eq!(at(&head, 10), None);
}

#[test]
fn arrivals_leave_a_share_of_the_kv_tokens_free_and_recovery_may_take_it() {
    let config = ClusterConfig { recovery_headroom_permille: 250, ..ClusterConfig::default() };
    let mut head = Head::with_capacity(config, &PAIR, 1000);
    // A split request books its prompt and one on both sides, of 2000 in all.
    assert_eq!((at(&head, 749), at(&head, 750)), (None, Some(Rejection::Headroom)));
    // Of one side alone it is less.
    let mut whole = Head::with_capacity(config, &[Role::Mixed], 1000);
    assert_eq!((at(&whole, 749), at(&whole, 750)), (None, Some(Rejection::Headroom)));
    whole.join(id(1), Role::Mixed, 1000);
    whole.place(1, 700, 10);
    whole.place(2, 700, 10);
    assert_eq!((at(&whole, 97), at(&whole, 98)), (None, Some(Rejection::Headroom)));
    // Reports count as they come; what a machine that drains has is no longer there to be taken.
    let (kv_tokens, seq) = (800, report(1).seq);
    whole.notice(0, Notice::Report(Report { kv_tokens, seq, ..Report::default() }));
    assert_eq!(at(&whole, 1), Some(Rejection::Headroom));
    whole.act(&ClusterEvent::Drain { machine: id(0) });
    assert_eq!((at(&whole, 48), at(&whole, 49)), (None, Some(Rejection::Headroom)));
    // Machine 1 is lost: its request goes where there is room, headroom or not, and waits if there is none.
    whole.join(id(2), Role::Mixed, 1000);
    whole.place(3, 40, 10);
    whole.act(&ClusterEvent::Lose { machine: id(1) });
    assert_eq!(whole.cluster.load(2).unwrap().kv_tokens, 701 + 41);
    head.place(1, 700, 10);
}

#[test]
fn a_prompt_shorter_than_the_split_runs_where_it_decodes() {
    for (policy, name) in PolicyKind::ALL {
        let config = ClusterConfig { policy, split_from_tokens: 64, ..ClusterConfig::default() };
        let mut head = Head::new(config, &[Role::Prompt, Role::Token, Role::Token]);
        let short = head.place(1, 63, 10);
        assert_eq!(short.legs().count(), 1, "{name}");
        let on = pair(&short).0;
        assert!(
            policy == PolicyKind::Jsq || head.cluster.load(on).unwrap().home == Role::Token,
            "{name}: {on}"
        );
        assert_eq!(short.why.prompt_step, short.why.token_step);
        let split = head.place(2, 64, 10);
        assert_eq!(split.legs().count(), if policy == PolicyKind::Jsq { 1 } else { 2 }, "{name}");
    }
}

#[test]
fn a_short_prompt_that_comes_back_longer_is_split() {
    let config = ClusterConfig { split_from_tokens: 64, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Prompt, Role::Token, Role::Token]);
    let on = pair(&head.place(1, 63, 10)).0;
    head.prefill_done(on, 1);
    head.notice(on, Notice::Progress { key: key(1), tokens: 1 });
    let actions = head.act(&ClusterEvent::Lose { machine: id(on) });
    assert_eq!(placement(&actions).unwrap().legs().count(), 2);
}

#[test]
fn options_are_checked_at_their_edges() {
    let wrong = |change: fn(&mut ClusterConfig)| {
        let mut config = ClusterConfig::default();
        change(&mut config);
        Cluster::new(config).err().map(|error| error.to_string())
    };
    assert_eq!(wrong(|config| config.recovery_headroom_permille = 999), None);
    let expected = "recovery_headroom_permille: expected 0 to 999, got 1000";
    assert_eq!(wrong(|config| config.recovery_headroom_permille = 1000).unwrap(), expected);
    assert_eq!(wrong(|config| config.priority_ageing_ns = Some(1)), None);
    assert_eq!(wrong(|config| config.priority_ageing_ns = None), None);
    let expected = "priority_ageing_ns: expected at least 1, got 0";
    assert_eq!(wrong(|config| config.priority_ageing_ns = Some(0)).unwrap(), expected);
    assert_eq!(wrong(|config| config.split_from_tokens = u32::MAX), None);
    let names = [Rejection::Headroom, Rejection::TtftSlo, Rejection::TbtSlo].map(Rejection::name);
    assert_eq!(names, ["headroom", "ttft_slo", "tbt_slo"]);
}

/// Accepts requests at these times with these priorities, and returns in which order their machine computes them. Those
/// that are parked when that is lost are placed in the same order.
fn line(ageing_ns: Option<u64>, accepted: &[(u64, i32)]) -> Vec<usize> {
    let config = ClusterConfig { priority_ageing_ns: ageing_ns, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Mixed]);
    let mut machine =
        Bench::with(MachineConfig { blocks: 1000, batch_requests_max: 1, ..MachineConfig::default() });
    let running = u64::MAX;
    machine.compute(running, whole(1));
    for (request, &(at_ns, priority)) in accepted.iter().enumerate() {
        head.now_ns = at_ns;
        let actions = head.arrive(Arrival { priority, ..Arrival::new(request as u64, 1, 1) });
        for (_, command) in commands(&actions) {
            machine.command(command);
        }
    }
    let mut computed = Vec::new();
    machine.pass(&[running]);
    while machine.machine.is_running() {
        let runs = machine.prefills();
        computed.extend(runs.iter().map(|&request| request as usize));
        machine.pass(&runs);
    }
    head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!(head.cluster.parked_requests(), accepted.len());
    let placed = head.join(id(1), Role::Mixed, 10_000).into_iter().filter_map(|action| match action {
        ClusterAction::Placed(placement) => Some(placement.request.0 as usize),
        _ => None,
    });
    let placed: Vec<usize> = placed.collect();
    assert_eq!(computed, placed, "a machine's line and the line of the parked");
    placed
}

#[test]
fn waiting_outweighs_priority_to_the_nanosecond() {
    assert_eq!(line(Some(100), &[(0, 0), (99, 1)]), [1, 0]);
    assert_eq!(line(Some(100), &[(0, 0), (100, 1)]), [0, 1], "equal: the earlier goes first");
    assert_eq!(line(None, &[(0, 0), (u64::MAX, 1)]), [1, 0]);
    assert_eq!(line(Some(u64::MAX), &[(0, i32::MIN), (u64::MAX, i32::MAX)]), [1, 0]);
    // Ten seconds by default.
    let default_ns = ClusterConfig::default().priority_ageing_ns;
    assert_eq!(line(default_ns, &[(0, 0), (9_999_999_999, 1), (10_000_000_000, 1)]), [1, 0, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A naive model: again and again, of all that wait, the one whose priority plus one step for each ageing time
    /// waited is highest goes next; equals by arrival.
    #[test]
    fn the_line_is_the_naive_one(
        steps in prop::collection::vec((0_u64..50, -3_i32..4), 1..40),
        ageing_ns in prop::option::of(1_u64..60),
    ) {
        let mut now_ns = 0;
        let accepted: Vec<(u64, i32)> =
            steps.iter().map(|&(step, priority)| { now_ns += step; (now_ns, priority) }).collect();
        let score = |&(at_ns, priority): &(u64, i32)| match ageing_ns {
            Some(ageing_ns) => i128::from(priority) * i128::from(ageing_ns) + i128::from(now_ns - at_ns),
            None => i128::from(priority),
        };
        let mut naive: Vec<usize> = Vec::new();
        while naive.len() < accepted.len() {
            let rest = (0..accepted.len()).rev().filter(|at| !naive.contains(at));
            naive.push(rest.max_by_key(|&at| score(&accepted[at])).unwrap());
        }
        prop_assert_eq!(line(ageing_ns, &accepted), naive);
    }

    /// A steady stream of higher priority passes a request for so long and no longer.
    #[test]
    fn nobody_waits_for_ever(
        behind in 1_usize..20,
        ageing_ns in 1_u64..100,
        every_ns in 1_u64..50,
        step in 1_i32..4,
    ) {
        let mut accepted = vec![(0, 0)];
        accepted.extend((1..=behind as u64).map(|turn| (turn * every_ns, step)));
        let passed = line(Some(ageing_ns), &accepted).iter().position(|&at| at == 0).unwrap() as u64;
        let bound_ns = ageing_ns * step as u64;
        prop_assert_eq!(passed, (bound_ns - 1).div_euclid(every_ns).min(behind as u64));
        // Without ageing all of them pass it.
        prop_assert_eq!(line(None, &accepted).iter().position(|&at| at == 0).unwrap(), behind);
    }

    /// What a rejected arrival leaves is its count; and what is predicted from a restored state is the same.
    #[test]
    fn a_rejection_changes_nothing_else(prompts in prop::collection::vec(1_u32..400, 1..30), tbt_ns in 100_u64..900) {
        let mut head = with(Admission::Predicted, &[Role::Prompt, Role::Token, Role::Token]);
        limit(&mut head, 4000, tbt_ns);
        for (request, prompt_tokens) in prompts.into_iter().enumerate() {
            let before = head.cluster.clone();
            let actions = head.arrive(Arrival::new(request as u64, prompt_tokens, 10));
            let mut same = before.clone();
            let mut again = Vec::new();
            let event = ClusterEvent::Arrive(Arrival::new(request as u64, prompt_tokens, 10));
            let _ = same.handle(Time::ZERO, &event, &mut again).unwrap();
            prop_assert_eq!(&again, &actions);
            if let [ClusterAction::Rejected { reason, .. }] = actions[..] {
                prop_assert!(matches!(reason, Rejection::TtftSlo | Rejection::TbtSlo));
                let counted = format!("rejected: {}", before.counters().rejected);
                let after = format!("rejected: {}", head.cluster.counters().rejected);
                prop_assert_eq!(format!("{before:?}").replace(&counted, &after), format!("{:?}", head.cluster));
            }
        }
    }
}
