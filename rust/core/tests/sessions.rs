//! A machine whose session broke is back: what did not arrive is said again, once, and nothing else.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use splitcore_core::config::ClusterConfig;
use splitcore_core::error::Applied;
use splitcore_core::event::{Arrival, Claim, ClusterAction, ClusterEvent, Held, Join, Registration, Role};
use splitcore_core::id::{AssignmentSeq, LegKey, Order, RequestId};
use splitcore_core::leg::{Command, LegState, Notice, Work};
use splitcore_core::placement::Mode;

const HERE: Held = Held::Leg { state: LegState::QUEUED, mode: None };

/// A machine is without its session for a moment. `seen` is the last of our assignments that it has.
fn back(head: &mut Head, machine: u32, seen: u64, claims: Vec<Claim>) -> Vec<ClusterAction> {
    head.act(&ClusterEvent::Disconnect { machine: id(machine) });
    let (speed_weight, link, costs) = (1, None, None);
    let role = head.cluster.load(machine).unwrap().home;
    let join = Join { machine: id(machine), role, kv_capacity_tokens: 10_000, speed_weight, link, costs };
    let epoch = head.cluster.epoch();
    head.act(&ClusterEvent::Register(Registration { join, epoch, report: report(seen), claims }))
}

fn claim(key: LegKey, order: u64, work: Work, held: Held) -> Claim {
    Claim { key, order: Order(order), work, held }
}

#[test]
fn where_the_kv_goes_is_said_before_the_leg_says_what_it_misses_only_if_it_was_lost() {
    let send = Command::Send { key: key(1), to: id(1), mode: Mode::Serialized };
    let confirm = Command::Confirm { key: key(1), delivered: 0 };
    for (seen, expected) in [(1, [send, confirm]), (2, [confirm, send]), (3, [confirm, send])] {
        let mut head = Head::new(ClusterConfig::default(), &[Role::Prompt, Role::Token]);
        let placed = commands(&head.arrive(Arrival::new(1, 10, 10)));
        assert_eq!(placed.last(), Some(&(0, send)), "its second assignment");
        // A third, which is about something else.
        head.place(2, 10, 10);
        let claims = vec![claim(key(1), 0, source(10), HERE), claim(key(2), 1, source(10), HERE)];
        let told = commands(&back(&mut head, 0, seen, claims));
        let about_it = |&(_, command): &(u32, Command)| [send, confirm].contains(&command).then_some(command);
        let about_it: Vec<Command> = told.iter().filter_map(about_it).collect();
        assert_eq!(about_it, expected, "{seen} seen: {told:?}");
    }
}

#[test]
fn a_leg_that_is_missing_has_not_arrived_or_is_gone() {
    for (seen, attempt, faults) in [(0, 1, 0), (1, 2, 1)] {
        let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
        head.place(1, 10, 10);
        let told = commands(&back(&mut head, 0, seen, Vec::new()));
        let (key, order, work) = (key_at(1, attempt), Order(0), Work { max_new_tokens: 10, ..whole(10) });
        assert_eq!(told.last(), Some(&(0, Command::Compute { key, order, work })), "{seen} seen: {told:?}");
        assert_eq!(head.cluster.counters().faults, faults);
        let load = head.cluster.load(0).unwrap();
        assert_eq!((load.booked, load.kv_tokens, load.legs), (11, 11, 1));
    }
}

#[test]
fn an_abort_that_is_said_again_is_answered_by_what_comes_after_it() {
    for held in [HERE, Held::Closing] {
        let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
        head.place(1, 10, 10);
        head.act(&ClusterEvent::Cancel { request: RequestId(1) });
        head.act(&ClusterEvent::Drain { machine: id(0) });
        let told = back(&mut head, 0, 2, vec![claim(key(1), 0, whole(10), held)]);
        let again = Command::Abort { key: key(1) };
        let abort = |action: &ClusterAction| match *action {
            ClusterAction::Command { seq, command, .. } if command == again => Some(seq),
            _ => None,
        };
        assert_eq!(told.iter().filter_map(abort).collect::<Vec<_>>(), [AssignmentSeq(3)], "{told:?}");
        let answer = |seq| {
            let notice = Notice::Released { key: key(1), to: None, report: report(seq) };
            ClusterEvent::Notice { from: id(0), notice }
        };
        assert_eq!(head.handle(&answer(2)), (Ok(Applied::Late), Vec::new()), "to the first, which was lost");
        let drained = vec![ClusterAction::Drained { machine: id(0) }];
        assert_eq!(head.handle(&answer(3)), (Ok(Applied::Yes), drained));
    }
}

#[test]
fn a_request_is_to_be_kept_again_where_the_word_of_it_was_lost() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed, Role::Mixed]);
    head.join(id(2), Role::Mixed, 100_000);
    for request in 1..=3 {
        head.place(request, 20_000, 10);
    }
    let kept = commands(&head.act(&ClusterEvent::Lose { machine: id(2) }));
    let expected = |to: u32, request: u64| {
        let work = Work { max_new_tokens: 10, ..whole(20_000) };
        (to, Command::Keep { key: key_at(request, 2), order: Order(request - 1), work })
    };
    assert_eq!(kept, [expected(0, 1), expected(0, 2), expected(0, 3)]);
    let here = |request: u64, held| claim(key_at(request, 2), request - 1, whole(20_000), held);
    // Nothing is missing on a machine that was to keep nothing.
    assert!(commands(&back(&mut head, 1, 0, Vec::new())).is_empty());
    let all = (1..=3).map(|request| here(request, Held::Kept)).collect();
    assert!(commands(&back(&mut head, 0, 9, all)).is_empty());
    let told = commands(&back(&mut head, 0, 9, vec![here(2, Held::Kept)]));
    assert_eq!(told, [expected(0, 1), expected(0, 3)]);
    // A leg of the attempt is not the request.
    let told =
        commands(&back(&mut head, 0, 9, vec![here(1, HERE), here(2, Held::Kept), here(3, Held::Kept)]));
    assert_eq!(told, [expected(0, 1), (0, Command::Abort { key: key_at(1, 2) })]);
}
