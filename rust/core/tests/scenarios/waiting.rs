//! Who waits goes first, who cannot go bars nobody, and who can never go comes to an end.

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, Level, PolicyKind, SECOND_NS};
use splitcore_core::error::Rejection;
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Outcome, Registration, Role};
use splitcore_core::id::{Epoch, MachineId, RequestId};
use splitcore_core::leg::{Notice, Report};
use splitcore_core::placement::{Placement, Seat};
use splitcore_core::time::Time;

use crate::kit::*;

fn with(policy: PolicyKind) -> ClusterConfig {
    ClusterConfig { policy, ..ClusterConfig::default() }
}

fn rejected(actions: &[ClusterAction]) -> Option<Rejection> {
    actions.iter().find_map(|action| match action {
        ClusterAction::Rejected { reason, .. } => Some(*reason),
        _ => None,
    })
}

fn ended(actions: &[ClusterAction]) -> Vec<(u64, Outcome)> {
    let ended = |action: &ClusterAction| match *action {
        ClusterAction::Ended { request, outcome } => Some((request.0, outcome)),
        _ => None,
    };
    actions.iter().filter_map(ended).collect()
}

fn full(seq: u64, kv_tokens: u64) -> Report {
    Report { kv_tokens, ..report(seq) }
}

/// The first-come placement of a request that fits a machine of 1,000 only, on three machines of which two are small.
fn stranded(config: ClusterConfig) -> Head {
    let mut head = Head::with_capacity(config, &[Role::Prompt, Role::Token], 100);
    head.join(id(2), Role::Mixed, 1_000);
    head.place(1, 500, 100);
    head.act(&ClusterEvent::Lose { machine: id(2) });
    assert_eq!(head.cluster.parked_requests(), 1);
    head
}

#[test]
fn parked_work_that_no_machine_can_hold_turns_nobody_away() {
    for (policy, name) in PolicyKind::ALL {
        for level in [Level::Managed, Level::External] {
            let mut head = stranded(ClusterConfig { level, ..with(policy) });
            assert!(placement(&head.arrive(Arrival::new(2, 50, 10))).is_some(), "{name} {level:?}");
            head.now_ns = 59 * SECOND_NS;
            assert!(placement(&head.arrive(Arrival::new(3, 50, 10))).is_some(), "{name} {level:?}");
        }
    }
}

#[test]
fn parked_work_that_no_machine_can_hold_ends_at_its_limit_unless_one_comes() {
    for policy in PolicyKind::ALL {
        let mut head = stranded(with(policy.0));
        assert!(ended(&head.tick_at(60 * SECOND_NS - 1)).is_empty());
        assert_eq!(ended(&head.tick_at(60 * SECOND_NS)), [(1, Outcome::Unplaceable)]);
        assert_eq!((head.cluster.parked_requests(), head.cluster.counters().failed), (0, 1));

        let mut head = stranded(with(policy.0));
        head.now_ns = 59 * SECOND_NS;
        let came = head.join(MachineId { index: 2, incarnation: 2 }, Role::Mixed, 600);
        assert!(placement(&came).is_some(), "{}", policy.1);
        assert!(ended(&head.tick_at(600 * SECOND_NS)).is_empty());
    }
}

#[test]
fn a_machine_that_may_be_back_is_waited_for_as_long_as_it_may() {
    let config = ClusterConfig { rejoin_limit_ns: 100 * SECOND_NS, ..ClusterConfig::default() };
    let mut head = Head::with_capacity(config, &[Role::Mixed, Role::Mixed], 1_000);
    head.join(id(2), Role::Mixed, 100);
    for request in 1..=2 {
        head.place(request, 500, 100);
    }
    head.act(&ClusterEvent::Disconnect { machine: id(1) });
    head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!(head.cluster.parked_requests(), 1);
    // One that is away could hold it.
    assert!(ended(&head.tick_at(90 * SECOND_NS)).is_empty());
    // From here on none is known.
    head.tick_at(100 * SECOND_NS);
    assert!(ended(&head.tick_at(160 * SECOND_NS - 1)).is_empty());
    assert_eq!(ended(&head.tick_at(160 * SECOND_NS)).len(), 2);
}

#[test]
fn an_arrival_behind_parked_work_hears_why_nothing_can_take_it() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    head.arrive(Arrival { class: 7, ..Arrival::new(1, 500, 10) });
    head.act(&ClusterEvent::Lose { machine: id(0) });
    let of_class = |class, request| Arrival { class, ..Arrival::new(request, 10, 10) };
    assert_eq!(rejected(&head.arrive(of_class(7, 2))), Some(Rejection::Overloaded));
    assert_eq!(rejected(&head.arrive(of_class(0, 3))), Some(Rejection::NoMachine));
}

/// One prompt machine and `tokens` token machines of 1,000 tokens, where the second leg of request 1 was refused.
fn refused(policy: PolicyKind, tokens: usize, prompt_tokens: u32) -> Head {
    let roles: Vec<Role> = [Role::Prompt].into_iter().chain(vec![Role::Token; tokens]).collect();
    let mut head = Head::with_capacity(with(policy), &roles, 1_000);
    head.place(1, prompt_tokens, 10);
    for machine in 1..=tokens as u32 {
        // Everything is full by the time that it is asked.
        for other in 1..=tokens as u32 {
            head.notice(other, Notice::Report(full(1, 900)));
        }
        head.notice(machine, Notice::Refused { key: key(1), report: full(2, 900) });
    }
    assert_eq!(head.cluster.unreserved_legs(), 1, "{policy:?}");
    head
}

fn seat(placement: &Placement) -> Seat {
    placement.legs[1].unwrap().machine
}

#[test]
fn a_leg_that_waits_goes_before_new_reservations() {
    for policy in
        [PolicyKind::Splitwise, PolicyKind::LeastRequests, PolicyKind::RoundRobin, PolicyKind::PowerOfTwo]
    {
        let mut head = refused(policy, 1, 200);
        // There is room for this one, and the leg that waits would be passed for ever.
        let second = head.place(2, 10, 10);
        assert_eq!(seat(&second), Seat::Later, "{policy:?}");
        let actions = head.notice(1, Notice::Report(full(2, 700)));
        let reserved: Vec<u64> = reserves(&actions);
        assert_eq!(reserved, [1, 2], "{policy:?}");
        assert_eq!(head.cluster.unreserved_legs(), 0);
        assert!(matches!(seat(&head.place(3, 10, 10)), Seat::Fixed(_)));
    }
}

#[test]
fn a_leg_that_waits_keeps_back_only_those_behind_it_in_line() {
    let step_ns = ClusterConfig::default().priority_ageing_ns.unwrap();
    for (priority, at_ns, waits) in [(0, 1, true), (1, step_ns - 1, false), (1, step_ns, true), (-1, 0, true)]
    {
        let mut head = refused(PolicyKind::Splitwise, 1, 200);
        head.now_ns = at_ns;
        // There is room for it.
        let placed = head.arrive(Arrival { priority, ..Arrival::new(2, 10, 10) });
        let expected = if waits { Seat::Later } else { Seat::Fixed(id(1)) };
        assert_eq!(seat(&placement(&placed).unwrap()), expected, "{priority} at {at_ns}");
        let reserved = reserves(&head.notice(1, Notice::Report(full(2, 700))));
        assert_eq!(reserved, if waits { vec![1, 2] } else { vec![1] });
    }
}

fn reserves(actions: &[ClusterAction]) -> Vec<u64> {
    use splitcore_core::leg::Command;
    let of = |(_, command)| match command {
        Command::Reserve { key, .. } => Some(key.request.0),
        _ => None,
    };
    commands(actions).into_iter().filter_map(of).collect()
}

#[test]
fn a_leg_bars_only_the_machines_that_it_may_use() {
    for policy in [PolicyKind::Splitwise, PolicyKind::LeastRequests] {
        let mut head = Head::with_capacity(with(policy), &[Role::Prompt, Role::Token, Role::Token], 1_000);
        let pinned = Arrival { pin_token: Some(1), ..Arrival::new(1, 200, 10) };
        head.arrive(pinned);
        head.notice(1, Notice::Refused { key: key(1), report: full(1, 990) });
        assert_eq!(head.cluster.unreserved_legs(), 1);
        for request in 2..6 {
            assert_eq!(seat(&head.place(request, 100, 10)), Seat::Fixed(id(2)), "{policy:?}");
        }
    }
}

#[test]
fn a_prompt_that_fills_a_machine_is_given_an_empty_one() {
    // 960 tokens are more than 95 % of 1,000.
    for policy in [PolicyKind::LeastRequests, PolicyKind::RoundRobin] {
        let mut head = refused(policy, 1, 960);
        assert!(reserves(&head.notice(1, Notice::Report(full(2, 10)))).is_empty());
        assert_eq!(reserves(&head.notice(1, Notice::Report(full(2, 0)))), [1], "{policy:?}");
    }
}

#[test]
fn a_machine_that_comes_back_smaller_is_given_what_it_can_hold() {
    for pin_token in [None, Some(0)] {
        let mut head = Head::with_capacity(ClusterConfig::default(), &[Role::Mixed], 2_000);
        head.arrive(Arrival { pin_token, ..Arrival::new(1, 500, 400) });
        let smaller = MachineId { index: 0, incarnation: 2 };
        assert!(placement(&head.join(smaller, Role::Mixed, 640)).is_none());
        assert_eq!(head.cluster.parked_requests(), 1);
        let came = placement(&head.join(id(1), Role::Mixed, 900)).unwrap();
        assert_eq!(pair(&came), (1, 1));
    }
}

#[test]
fn a_session_that_begins_again_with_less_is_believed() {
    for pin_token in [None, Some(0)] {
        let mut head = Head::with_capacity(ClusterConfig::default(), &[Role::Mixed], 2_000);
        head.act(&ClusterEvent::Disconnect { machine: id(0) });
        let join = Join {
            machine: id(0),
            role: Role::Mixed,
            kv_capacity_tokens: 640,
            speed_weight: 1,
            link: None,
            costs: None,
        };
        let report = Report { free_blocks: 40, ..Report::default() };
        let registration = Registration { join, epoch: Epoch(1), report, claims: Vec::new() };
        head.act(&ClusterEvent::Register(registration));
        assert_eq!(head.cluster.load(0).unwrap().kv_capacity_tokens, 640);
        let large = Arrival { pin_token, ..Arrival::new(1, 500, 400) };
        assert_eq!(rejected(&head.arrive(large)), Some(Rejection::TooLarge));
    }
}

#[test]
fn what_was_on_its_way_to_a_machine_that_now_holds_less_goes_elsewhere() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &[Role::Mixed, Role::Mixed], 2_000);
    let placed = head.place(1, 500, 400);
    let (at, _) = pair(&placed);
    head.act(&ClusterEvent::Disconnect { machine: id(at) });
    let join = Join {
        machine: id(at),
        role: Role::Mixed,
        kv_capacity_tokens: 640,
        speed_weight: 1,
        link: None,
        costs: None,
    };
    // The session broke before the command arrived.
    let registration = Registration { join, epoch: Epoch(1), report: Report::default(), claims: Vec::new() };
    let actions = head.act(&ClusterEvent::Register(registration));
    let again = placement(&actions).unwrap();
    assert_eq!(pair(&again), (1 - at, 1 - at), "{actions:?}");
    assert_eq!(head.cluster.counters().faults, 0);
}

/// The parked are looked over when machines change, not with each report: this would not end.
#[test]
fn reports_do_not_look_over_the_parked() {
    const MANY: u64 = 20_000;
    let mut cluster = Cluster::new(ClusterConfig::default()).unwrap();
    let mut actions = Vec::new();
    let mut act = |cluster: &mut Cluster, event: &ClusterEvent| {
        actions.clear();
        let _ = cluster.handle(Time::ZERO, event, &mut actions).unwrap();
    };
    let join = |index, kv_capacity_tokens| {
        ClusterEvent::Join(Join {
            machine: id(index),
            role: Role::Mixed,
            kv_capacity_tokens,
            speed_weight: 1,
            link: None,
            costs: None,
        })
    };
    act(&mut cluster, &join(0, 10_000_000));
    act(&mut cluster, &join(1, 100));
    for request in 0..MANY {
        act(&mut cluster, &ClusterEvent::Arrive(Arrival::new(request, 150, 10)));
    }
    act(&mut cluster, &ClusterEvent::Lose { machine: id(0) });
    assert_eq!(cluster.parked_requests() as u64, MANY);
    for _ in 0..MANY {
        act(&mut cluster, &ClusterEvent::Notice { from: id(1), notice: Notice::Report(report(0)) });
        act(&mut cluster, &ClusterEvent::Cancel { request: RequestId(MANY) });
    }
    assert_eq!(cluster.parked_requests() as u64, MANY);
}
