//! Machines whose KV transfers fail: each destination is asked once, then the request runs where its prompt was; and a
//! machine that goes on failing is set aside.

use splitcore_core::config::{ClusterConfig, Level, PolicyKind, SECOND_NS};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Fault, Outcome, Role};
use splitcore_core::id::LegKey;
use splitcore_core::leg::Notice;
use splitcore_core::placement::Placement;

use crate::kit::*;

const SPLIT: [PolicyKind; 4] =
    [PolicyKind::Splitwise, PolicyKind::LeastRequests, PolicyKind::RoundRobin, PolicyKind::PowerOfTwo];

fn pools(prompt: usize, token: usize) -> Vec<Role> {
    [vec![Role::Prompt; prompt], vec![Role::Token; token]].concat()
}

/// Runs one request; a transfer between two machines fails where `fails` says so. Returns the destinations that were
/// asked, and how it ended up.
fn run(head: &mut Head, request: u64, fails: impl Fn(u32, u32) -> bool) -> (Vec<u32>, Option<Placement>) {
    let mut actions = head.arrive(Arrival::new(request, 100, 10));
    let mut asked = Vec::new();
    let mut placed = None;
    for _ in 0..20 {
        placed = placement(&actions).or(placed);
        let Some(attempt) = head.cluster.attempt(key(request).request) else { return (asked, None) };
        let live = LegKey { attempt, ..key(request) };
        let prompt = placed.unwrap().prompt().unwrap().index;
        let Some(&to) = reserved_at(&actions).last() else { break };
        asked.push(to);
        head.notice(prompt, Notice::PrefillDone { key: live, sampled: true });
        if !fails(prompt, to) {
            head.notice(to, Notice::Reserved { key: live });
            head.notice(to, Notice::Landed { key: live });
            break;
        }
        actions = head.notice(prompt, Notice::TransferFailed { key: live });
    }
    (asked, placed)
}

/// It ends where it is, and the machines let go.
fn finish(head: &mut Head, request: u64) {
    head.act(&ClusterEvent::Cancel { request: key(request).request });
}

#[test]
fn each_destination_is_asked_once_and_then_the_source_decodes() {
    for policy in SPLIT {
        let config = ClusterConfig {
            policy,
            attempts_max: 100,
            transfer_failures_max: 100,
            ..ClusterConfig::default()
        };
        let mut head = Head::new(config, &pools(1, 4));
        let (mut asked, placed) = run(&mut head, 1, |_, _| true);
        asked.sort_unstable();
        assert_eq!(asked, [1, 2, 3, 4], "{policy:?}");
        let placed = placed.unwrap();
        assert_eq!((pair(&placed), placed.legs[1]), ((0, 0), None), "{policy:?}");
        assert_eq!(head.cluster.attempt(key(1).request).unwrap().0, 2);
    }
}

#[test]
fn the_last_try_takes_no_transfer() {
    for (attempts_max, asked_of) in [(2, 1), (4, 3)] {
        let config = ClusterConfig { attempts_max, ..ClusterConfig::default() };
        let mut head = Head::new(config, &pools(1, 8));
        let (asked, placed) = run(&mut head, 1, |_, _| true);
        assert_eq!((asked.len(), pair(&placed.unwrap())), (asked_of, (0, 0)), "{attempts_max}");
    }
    let mut head = Head::new(ClusterConfig { attempts_max: 1, ..ClusterConfig::default() }, &pools(1, 8));
    assert!(run(&mut head, 1, |_, _| true).1.is_none(), "one fault is one too many");
}

/// Of so many requests on four prompt and four token machines, how many go on somewhere; and which machines were aside.
fn go_on(policy: PolicyKind, fails: impl Fn(u32, u32) -> bool + Copy) -> (usize, Vec<u32>) {
    let mut head = Head::new(ClusterConfig { policy, ..ClusterConfig::default() }, &pools(4, 4));
    let mut aside = Vec::new();
    let mut done = 0;
    for request in 0..300 {
        done += usize::from(run(&mut head, request, fails).1.is_some());
        finish(&mut head, request);
        for machine in 0..8 {
            if head.cluster.load(machine).unwrap().aside_until.is_some() && !aside.contains(&machine) {
                aside.push(machine);
            }
        }
    }
    (done, aside)
}

#[test]
fn one_bad_sender_and_two_bad_receivers_fail_nobody_and_are_set_aside() {
    for policy in SPLIT {
        assert_eq!(go_on(policy, |from, _| from == 0), (300, vec![0]), "{policy:?}");
        let (done, mut aside) = go_on(policy, |_, to| to == 4 || to == 5);
        aside.sort_unstable();
        assert_eq!((done, aside), (300, vec![4, 5]), "{policy:?}");
        assert_eq!(go_on(policy, |_, _| true).0, 300, "{policy:?}: nothing gets across");
    }
}

#[test]
fn a_machine_set_aside_is_tried_again_after_a_while_and_the_state_tells() {
    let config =
        ClusterConfig { transfer_failures_max: 2, aside_ns: 10 * SECOND_NS, ..ClusterConfig::default() };
    let mut head = Head::new(config, &pools(2, 2));
    let bad = |_, to| to == 2;
    for request in 0..4 {
        run(&mut head, request, bad);
        finish(&mut head, request);
    }
    let until = head.cluster.load(2).unwrap().aside_until.unwrap();
    assert_eq!(until.as_ns(), 10 * SECOND_NS);
    assert_eq!((head.cluster.next_deadline(), head.cluster.counters().set_aside), (Some(until), 1));
    assert_eq!(run(&mut head, 4, bad).0, [3], "no pair is made with it");
    head.tick_at(10 * SECOND_NS);
    assert_eq!(head.cluster.load(2).unwrap().aside_until, None);
    // One failure more, and it is aside again; one that gets across, and it starts anew.
    let (asked, _) = run(&mut head, 5, bad);
    assert_eq!(asked, [2, 3]);
    assert_eq!(head.cluster.load(2).unwrap().aside_until.unwrap().as_ns(), 20 * SECOND_NS);
    head.tick_at(20 * SECOND_NS);
    finish(&mut head, 5);
    assert_eq!(run(&mut head, 6, |_, _| false).0, [2]);
    finish(&mut head, 6);
    run(&mut head, 7, bad);
    assert_eq!(head.cluster.load(2).unwrap().aside_until, None);
}

#[test]
fn a_fault_names_the_side_and_the_machine_before_the_request_ends() {
    let mut head = Head::new(ClusterConfig { attempts_max: 1, ..ClusterConfig::default() }, &pools(1, 1));
    head.place(1, 100, 10);
    head.prefill_done(0, 1);
    let request = key(1).request;
    let fault = Fault::Transfer { from: id(0), to: id(1) };
    let outcome = Outcome::AttemptsMax;
    let actions = head.notice(0, Notice::TransferFailed { key: key(1) });
    let told: Vec<_> = actions
        .iter()
        .filter(|action| matches!(action, ClusterAction::Faulted { .. } | ClusterAction::Ended { .. }))
        .collect();
    let expected = [ClusterAction::Faulted { request, fault }, ClusterAction::Ended { request, outcome }];
    assert_eq!(told, expected.iter().collect::<Vec<_>>());
}

#[test]
fn an_embedders_request_is_not_sent_to_the_same_machine_twice() {
    for policy in SPLIT {
        let config = ClusterConfig { policy, level: Level::External, ..ClusterConfig::default() };
        let mut head = Head::new(config, &pools(1, 3));
        let mut asked = vec![pair(&head.place(1, 100, 10)).1];
        for attempt in 1..3 {
            let failed = ClusterEvent::Fact(Notice::TransferFailed { key: key_at(1, attempt) });
            asked.push(pair(&placement(&head.act(&failed)).unwrap()).1);
        }
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), 3, "{policy:?}: {asked:?}");
    }
}
