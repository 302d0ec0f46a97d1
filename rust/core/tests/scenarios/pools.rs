//! Which machine of unequal ones, and of equal ones.

use splitcore_core::cluster::MachineState;
use splitcore_core::config::{ClusterConfig, Level, PolicyKind, Ties};
use splitcore_core::error::Rejection;
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Role};
use splitcore_core::id::AssignmentSeq;
use splitcore_core::leg::{Command, Notice, Report};
use splitcore_core::placement::Step;
use splitcore_core::time::Time;

use crate::kit::*;

const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Splitwise, PolicyKind::LeastRequests, PolicyKind::RoundRobin, PolicyKind::PowerOfTwo];

fn unequal(config: ClusterConfig, machines: &[(Role, u64)]) -> Head {
    let mut head = Head::new(config, &[]);
    for (index, &(role, capacity)) in machines.iter().enumerate() {
        head.join(id(index as u32), role, capacity);
    }
    head
}

fn with(policy: PolicyKind) -> ClusterConfig {
    ClusterConfig { policy, ..ClusterConfig::default() }
}

#[test]
fn a_pool_is_over_only_when_each_machine_that_can_hold_the_request_is() {
    let machines = [(Role::Prompt, 320_000), (Role::Token, 1_600), (Role::Token, 320_000)];
    for policy in POLICIES {
        let mut head = unequal(with(policy), &machines);
        for request in 0..3 {
            let placed = head.place(request, 3_000, 100);
            assert_eq!(pair(&placed), (0, 2), "{policy:?}");
            assert_eq!((placed.why.prompt_step, placed.why.token_step), (Step::Own, Step::Own));
            head.prefill_done(0, request);
        }
        assert_eq!(head.cluster.counters().to_mixed, 0);
    }
    // The same for the prompt side.
    let prompts = [(Role::Prompt, 960), (Role::Prompt, 96_000), (Role::Token, 96_000)];
    for policy in POLICIES {
        let mut head = unequal(with(policy), &prompts);
        assert_eq!(pair(&head.place(1, 2_000, 100)), (1, 2), "{policy:?}");
        assert_eq!(head.cluster.counters().to_mixed, 0);
    }
}

#[test]
fn a_machine_that_is_borrowed_can_hold_what_it_is_borrowed_for() {
    let machines = [(Role::Prompt, 100), (Role::Token, 200), (Role::Token, 10_000)];
    let mut head = unequal(with(PolicyKind::Splitwise), &machines);
    let placed = head.place(1, 500, 10);
    assert_eq!(pair(&placed), (2, 2));
}

#[test]
fn every_policy_places_where_any_machine_can_hold_the_request() {
    for policy in PolicyKind::ALL.map(|(policy, _)| policy) {
        for role in [Role::Prompt, Role::Token, Role::Mixed] {
            let machines = [(Role::Prompt, 100), (Role::Token, 100), (role, 1_000), (Role::Mixed, 100)];
            let mut head = unequal(with(policy), &machines);
            for request in 0..8 {
                let placed = head.place(request, 500, 100);
                assert_eq!(pair(&placed).1, 2, "{policy:?} {role:?}");
            }
            let actions = head.arrive(Arrival::new(9, 500, 501));
            let too_large =
                matches!(actions[..], [ClusterAction::Rejected { reason: Rejection::TooLarge, .. }]);
            assert!(too_large, "{policy:?}: {actions:?}");
            // One that may be back could hold it.
            head.act(&ClusterEvent::Disconnect { machine: id(2) });
            let actions = head.arrive(Arrival::new(9, 500, 100));
            let none_now =
                matches!(actions[..], [ClusterAction::Rejected { reason: Rejection::NoMachine, .. }]);
            assert!(none_now, "{policy:?}: {actions:?}");
        }
    }
}

#[test]
fn a_pinned_machine_that_can_never_hold_the_request_says_so_whether_it_is_up_or_not() {
    let mut head = unequal(ClusterConfig::default(), &[(Role::Prompt, 1_000), (Role::Token, 100)]);
    let pinned = Arrival { pin_token: Some(1), ..Arrival::new(1, 200, 10) };
    for _ in 0..2 {
        let actions = head.arrive(pinned);
        assert!(matches!(actions[..], [ClusterAction::Rejected { reason: Rejection::TooLarge, .. }]));
        let _ = head.handle(&ClusterEvent::Disconnect { machine: id(1) });
    }
}

#[test]
fn power_of_two_takes_idle_machines_equally_often() {
    for seed in [0, 1, 2, 7, 42] {
        for split in [false, true] {
            let roles: Vec<Role> = if split {
                [vec![Role::Prompt; 1], vec![Role::Token; 8]].concat()
            } else {
                vec![Role::Mixed; 8]
            };
            let mut head = Head::new(ClusterConfig { seed, ..with(PolicyKind::PowerOfTwo) }, &roles);
            let mut taken = vec![0_u32; roles.len()];
            for request in 0..800 {
                taken[pair(&head.place(request, 100, 10)).1 as usize] += 1;
                head.act(&ClusterEvent::Fact(Notice::Finished { key: key(request), tokens: 1 }));
            }
            let taken = &taken[roles.len() - 8..];
            let chi: f64 = taken.iter().map(|&n| (f64::from(n) - 100.0).powi(2) / 100.0).sum();
            // One in a hundred draws of eight equal shares lies above 18.5; the seeds are fixed.
            assert!(chi < 18.5, "seed {seed}: {taken:?}, {chi}");
        }
    }
}

#[test]
fn a_short_prompt_goes_where_an_unsplit_one_would() {
    for policy in POLICIES {
        let config = ClusterConfig { split_from_tokens: 100, ..with(policy) };
        let mut head = Head::new(config, &[Role::Mixed; 2]);
        let unsplit = Head::new(with(PolicyKind::Jsq), &[Role::Mixed; 2]);
        let mut twin = unsplit;
        // The one with many tokens of KV has no prompt to compute.
        for head in [&mut head, &mut twin] {
            head.arrive(Arrival { pin_token: Some(0), ..Arrival::new(1, 50, 10) });
            head.prefill_done(0, 1);
            head.notice(0, Notice::Report(Report { kv_tokens: 5_000, ..report(9) }));
            head.arrive(Arrival { pin_token: Some(1), ..Arrival::new(2, 50, 10) });
        }
        let expected = pair(&twin.place(3, 99, 10));
        assert_eq!((expected, pair(&head.place(3, 99, 10))), ((0, 0), (0, 0)), "{policy:?}");
    }
}

#[test]
fn a_request_of_one_output_token_reserves_and_sends_nothing() {
    for policy in POLICIES {
        let mut head = Head::new(with(policy), &[Role::Prompt, Role::Token]);
        let actions = head.arrive(Arrival::new(1, 100, 1));
        let placed = placement(&actions).unwrap();
        assert_eq!((pair(&placed), placed.transfer()), ((0, 0), None), "{policy:?}");
        let moves = |command: &Command| matches!(command, Command::Reserve { .. } | Command::Send { .. });
        assert!(!commands(&actions).iter().any(|(_, command)| moves(command)), "{actions:?}");
        assert_eq!(head.cluster.load(1).unwrap().kv_tokens, 0);
        // Two tokens are decoded.
        assert_eq!(pair(&head.place(2, 100, 2)), (0, 1));
    }
}

#[test]
fn equally_loaded_machines_are_taken_in_turn_unless_told_otherwise() {
    let chosen = |ties: Ties, policy: PolicyKind, roles: &[Role]| {
        let mut head = Head::new(ClusterConfig { ties, ..with(policy) }, roles);
        let one = |request| {
            let placed = pair(&head.place(request, 100, 10));
            // Idle again before the next one comes.
            head.act(&ClusterEvent::Fact(Notice::Finished { key: key(request), tokens: 1 }));
            placed
        };
        (0..6).map(one).collect::<Vec<_>>()
    };
    assert_eq!(ClusterConfig::default().ties, Ties::Turn);
    let roles = [Role::Prompt, Role::Prompt, Role::Prompt, Role::Token, Role::Token];
    for policy in [PolicyKind::Splitwise, PolicyKind::LeastRequests] {
        let turn = chosen(Ties::Turn, policy, &roles);
        assert_eq!(turn, [(0, 3), (1, 4), (2, 3), (0, 4), (1, 3), (2, 4)], "{policy:?}");
        assert_eq!(chosen(Ties::First, policy, &roles), [(0, 3); 6], "{policy:?}");
        assert_eq!(chosen(Ties::Last, policy, &roles), [(2, 4); 6], "{policy:?}");
    }
    let whole: Vec<u32> =
        chosen(Ties::Turn, PolicyKind::Jsq, &[Role::Mixed; 3]).iter().map(|pair| pair.0).collect();
    assert_eq!(whole, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_turn_is_part_of_the_state_and_a_refused_event_leaves_it() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed; 3]);
    head.place(1, 100, 10);
    head.act(&ClusterEvent::Cancel { request: key(1).request });
    let mut twin = head.clone();
    assert!(twin.handle(&ClusterEvent::Arrive(Arrival::new(2, 0, 10))).0.is_err());
    twin.arrive(Arrival::new(3, 100_000, 10));
    assert_eq!(
        head.cluster.dry_run(&Arrival::new(4, 100, 10)),
        twin.cluster.dry_run(&Arrival::new(4, 100, 10))
    );
    for head in [&mut head, &mut twin] {
        assert_eq!(pair(&head.place(4, 100, 10)), (1, 1));
    }
}

#[test]
fn a_report_is_believed_for_a_while_and_then_our_own_books_count() {
    let limit = ClusterConfig::default().report_limit_ns;
    let config = ClusterConfig { level: Level::External, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Prompt, Role::Token, Role::Token]);
    head.now_ns = 5;
    let full = Report { kv_tokens: 10_000, free_blocks: 0, ..report(0) };
    head.notice(1, Notice::Report(full));
    let closed = Report { over_quarantine: true, ..report(0) };
    head.notice(2, Notice::Report(closed));
    let states = |head: &Head| [1, 2].map(|at| head.cluster.load(at).unwrap().state);
    assert_eq!(states(&head), [MachineState::Up, MachineState::Quarantined]);
    assert_eq!(head.cluster.load(1).unwrap().reported_at, Some(Time::from_ns(5)));
    let token = |head: &mut Head, request| {
        let token = pair(&head.place(request, 100, 10)).1;
        head.act(&ClusterEvent::Cancel { request: key(request).request });
        token
    };
    assert_eq!(token(&mut head, 1), 0, "whole: no token machine takes it");
    assert_eq!(head.cluster.next_deadline(), Some(Time::from_ns(5 + limit)));
    head.now_ns = 6;
    head.notice(2, Notice::Report(closed));
    head.tick_at(5 + limit);
    assert_eq!((head.cluster.load(1).unwrap().reported_at, token(&mut head, 2)), (None, 1));
    assert_eq!(states(&head), [MachineState::Up, MachineState::Quarantined], "one has reported since");
    head.tick_at(6 + limit);
    assert_eq!(states(&head), [MachineState::Up; 2]);
    // A report counts again as soon as there is one.
    head.notice(1, Notice::Report(Report { seq: AssignmentSeq(9), ..full }));
    assert_eq!(head.cluster.load(1).unwrap().kv_tokens, 10_000);
}
