//! Sessions that begin again: what may not have arrived is said again, once, and nothing else.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use splitcore_core::cluster::MachineState;
use splitcore_core::config::{ClusterConfig, MachineConfig};
use splitcore_core::error::Applied;
use splitcore_core::event::{
    Arrival, Claim, ClusterAction, ClusterEvent, Held, Join, MachineAction, MachineEvent, Registration, Role,
};
use splitcore_core::id::{AssignmentSeq, LegKey, Order, RequestId};
use splitcore_core::leg::{Command, Compute, LegState, Notice, Peer, Work};
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
        assert!(told.contains(&(0, Command::Compute { key, order, work })), "{seen} seen: {told:?}");
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
    assert_eq!(kept, [expected(1, 1), expected(0, 2), expected(1, 3)], "two copies of each");
    let here =
        |request: u64, attempt, held| claim(key_at(request, attempt), request - 1, whole(20_000), held);
    let all = vec![here(1, 1, Held::Kept), here(2, 2, Held::Kept), here(3, 1, Held::Kept)];
    assert!(commands(&back(&mut head, 0, 9, all)).is_empty());
    let told = commands(&back(&mut head, 0, 9, vec![here(2, 2, Held::Kept)]));
    assert_eq!(told, [expected(0, 1), expected(0, 3)]);
    // A leg of the attempt is not the request.
    let all = vec![here(1, 2, HERE), here(2, 2, Held::Kept), here(3, 2, Held::Kept)];
    let told = commands(&back(&mut head, 0, 9, all));
    assert_eq!(told, [expected(0, 1), (0, Command::Abort { key: key_at(1, 2) })]);
}

/// A source that sends when its request ends: its first token was the last. It is here until the transport stops.
fn ended_while_sending(bench: &mut Bench, request: u64) {
    bench.grant(id(1), request);
    bench.compute(99, whole(1));
    bench.compute(request, source(2));
    bench.send(request, id(1), Mode::LayerWise);
    bench.pass(&[99]);
    bench.pass(&[request]);
    bench.command(Command::Release { key: key(99) });
}

#[test]
fn an_end_is_kept_unless_the_request_itself_is() {
    for (kept, expected) in [(None, vec![1]), (Some(2), vec![1, 2]), (Some(1), vec![1])] {
        let mut bench = Bench::new(100);
        bench.compute(1, whole(4));
        if let Some(request) = kept {
            bench.command(Command::Keep { key: key(request), order: Order(request), work: whole(4) });
        }
        bench.pass(&[1]);
        let claims = bench.machine.claims();
        assert_eq!(claims.iter().map(|claim| claim.key.request.0).collect::<Vec<_>>(), expected);
        let held =
            |claim: &Claim| if kept == Some(claim.key.request.0) { Held::Kept } else { Held::Finished };
        assert!(claims.iter().all(|claim| claim.held == held(claim)), "{claims:?}");
        for request in expected {
            assert_eq!(bench.machine.claims()[0].key, key(request));
            bench.command(Command::Release { key: key(request) });
        }
        assert_eq!(bench.machine.kept(), 0);
        // What was kept leaves no trace: the end of the next is kept, too.
        bench.compute(5, whole(4));
        bench.pass(&[5]);
        assert_eq!(bench.machine.kept(), 1);
    }
}

#[test]
fn a_machine_says_where_a_leg_stands_when_that_is_confirmed() {
    let mut bench = Bench::new(100);
    let confirmed = |bench: &mut Bench, request| {
        let actions = bench.command(Command::Confirm { key: key(request), delivered: 7 });
        let resent = actions.first() == Some(&MachineAction::Resend { key: key(request), delivered: 7 });
        (resent, notices(&actions))
    };
    let gone = |request| (false, vec![Notice::Gone { key: key(request) }]);
    let done = |request, sampled| Notice::PrefillDone { key: key(request), sampled };

    assert_eq!(confirmed(&mut bench, 1), gone(1), "never heard of");
    ended_while_sending(&mut bench, 1);
    let ended = Notice::Finished { key: key(1), tokens: 1 };
    assert_eq!(confirmed(&mut bench, 1), (true, vec![ended]));
    bench.command(Command::Release { key: key(1) });
    assert_eq!(confirmed(&mut bench, 1), gone(1), "the end is known, and the transport reads on");
    assert!(bench.machine.leg(key(1)).is_some());

    bench.reserve(2, destination(4), id(1));
    assert_eq!(confirmed(&mut bench, 2), (true, vec![Notice::Reserved { key: key(2) }]));
    bench.landed(2);
    assert_eq!(confirmed(&mut bench, 2), (true, vec![Notice::Landed { key: key(2) }, done(2, false)]));
    bench.abort(2);
    bench.pass(&[]);

    bench.compute(3, source(4));
    assert_eq!(confirmed(&mut bench, 3), (true, vec![]), "its prompt is not computed");
    bench.pass(&[]);
    assert_eq!(confirmed(&mut bench, 3), (true, vec![done(3, true)]));
    bench.send(3, id(1), Mode::Serialized);
    bench.grant(id(1), 3);
    assert_eq!(confirmed(&mut bench, 3), (true, vec![done(3, true)]), "sending");
    bench.act(&MachineEvent::TransferFailed { key: key(3) });
    assert_eq!(confirmed(&mut bench, 3), (true, vec![done(3, true), Notice::TransferFailed { key: key(3) }]));

    bench.compute(4, whole(4));
    bench.abort(4);
    assert!(bench.machine.leg(key(4)).is_some(), "until the pass ends");
    assert_eq!(confirmed(&mut bench, 4), gone(4), "being dropped");
}

#[test]
fn a_destination_says_again_to_its_source_what_that_may_have_missed() {
    let mut bench = Bench::with(MachineConfig {
        blocks: 100,
        block_tokens: 1,
        receives_max: Some(4),
        ..MachineConfig::default()
    });
    // Of another source, landed, partly landed, given up, granted, of a lost source, and not granted yet.
    bench.reserve(1, destination(1), id(2));
    bench.reserve(2, destination(1), id(1));
    bench.landed(2);
    bench.reserve(3, destination(2), id(1));
    bench.act(&MachineEvent::LayersLanded { key: key(3), layers: 1, of: 2 });
    bench.reserve(4, destination(3), id(1));
    bench.abort(4);
    bench.reserve(5, destination(4), id(1));
    bench.reserve(6, destination(5), id(1));
    let again = peers(&bench.act(&MachineEvent::PeerReset { machine: id(1) }));
    let expected = [
        Peer::Landed { key: key(2) },
        Peer::Grant { key: key(3), blocks: 3 },
        Peer::Abort { key: key(4) },
        Peer::Grant { key: key(5), blocks: 5 },
    ];
    assert_eq!(again, expected.map(|message| (id(1), message)));
    bench.act(&MachineEvent::PeerLost { machine: id(1) });
    assert!(peers(&bench.act(&MachineEvent::PeerReset { machine: id(1) })).is_empty(), "it is lost");
}

/// The session of a machine breaks, and the time comes at which its streams go on elsewhere.
fn hedge(head: &mut Head, machine: u32) -> Vec<(u32, Command)> {
    head.act(&ClusterEvent::Disconnect { machine: id(machine) });
    assert!(commands(&head.tick_at(head.now_ns + HEDGE_NS - 1)).is_empty(), "too early");
    commands(&head.tick_at(head.now_ns + 1))
}

const HEDGE_NS: u64 = 1_000_000;

fn hedging(attempts_max: u32) -> ClusterConfig {
    ClusterConfig { hedge_after_ns: Some(HEDGE_NS), attempts_max, ..ClusterConfig::default() }
}

/// A machine is back, with these claims.
fn again(head: &mut Head, machine: u32, seen: u64, claims: Vec<Claim>) -> Vec<(u32, Command)> {
    let (speed_weight, link, costs) = (1, None, None);
    let role = head.cluster.load(machine).unwrap().home;
    let join = Join { machine: id(machine), role, kv_capacity_tokens: 10_000, speed_weight, link, costs };
    let epoch = head.cluster.epoch();
    commands(&head.act(&ClusterEvent::Register(Registration { join, epoch, report: report(seen), claims })))
}

/// A request decodes on machine 0, its client has three tokens, and the session breaks: its next attempt is on machine 1.
fn hedged(attempts_max: u32) -> Head {
    let mut head = Head::new(hedging(attempts_max), &[Role::Mixed, Role::Mixed]);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(0, Notice::Progress { key: key(1), tokens: 3 });
    let told = hedge(&mut head, 0);
    let next = told.iter().find_map(|&(to, command)| match command {
        Command::Compute { key, work, .. } => Some((to, key, work.prompt_tokens, work.terms.resumed_tokens)),
        _ => None,
    });
    assert_eq!(next, Some((1, key_at(1, 2), 13, 3)), "{told:?}");
    head
}

const DECODES: Held =
    Held::Leg { state: LegState { compute: Compute::Decoding, ..LegState::QUEUED }, mode: None };

#[test]
fn a_stream_goes_on_soon_after_its_session_broke_and_its_machine_takes_it_up_again_if_it_is_ahead() {
    let mut head = hedged(4);
    let told =
        again(&mut head, 0, 9, vec![claim(key(1), 0, Work { max_new_tokens: 10, ..whole(10) }, DECODES)]);
    let abort = (1, Command::Abort { key: key_at(1, 2) });
    let confirm = (0, Command::Confirm { key: key(1), delivered: 3 });
    assert!(told.contains(&abort) && told.contains(&confirm), "{told:?}");
    assert_eq!(head.cluster.attempt(RequestId(1)).unwrap().0, 1);
    assert_eq!((head.cluster.load(0).unwrap().legs, head.cluster.load(1).unwrap().legs), (1, 0));
    // It goes on as if nothing had been; what the other may still say is late.
    let late = Notice::PrefillDone { key: key_at(1, 2), sampled: true };
    assert_eq!(head.handle(&ClusterEvent::Notice { from: id(1), notice: late }).0, Ok(Applied::Late));
    head.notice(0, Notice::Progress { key: key(1), tokens: 1 });
    // The name of the attempt that was given up is not given again.
    head.released(1, key_at(1, 2), 99);
    let told = hedge(&mut head, 0);
    assert!(
        told.iter()
            .any(|(to, command)| *to == 1
                && matches!(command, Command::Compute { key, .. } if key.attempt.0 == 3)),
        "{told:?}"
    );
    assert_eq!(head.cluster.counters().faults, 0, "a lost session is no fault");
}

#[test]
fn a_leg_is_given_up_where_the_next_attempt_is_ahead() {
    let own = |held| vec![claim(key(1), 0, Work { max_new_tokens: 10, ..whole(10) }, held)];
    let queued = Held::Leg { state: LegState::QUEUED, mode: None };
    let evicted = Held::Leg { state: LegState { compute: Compute::Evicted, ..LegState::QUEUED }, mode: None };
    // Whether the next attempt has its prompt, and the client a token of it; what the machine has; whether that wins.
    let cases = [
        (false, false, DECODES, true),
        (false, false, queued, true),
        (true, false, DECODES, true),
        (true, false, queued, false),
        (true, false, evicted, false),
        (true, true, DECODES, false),
        (false, false, Held::Closing, false),
    ];
    for (prefilled, given, held, wins) in cases {
        let mut head = hedged(4);
        if prefilled {
            head.notice(1, Notice::PrefillDone { key: key_at(1, 2), sampled: true });
        }
        if given {
            head.notice(1, Notice::Progress { key: key_at(1, 2), tokens: 1 });
        }
        let told = again(&mut head, 0, 9, own(held));
        let loser = if wins {
            (1, Command::Abort { key: key_at(1, 2) })
        } else {
            (0, Command::Abort { key: key(1) })
        };
        assert!(told.contains(&loser), "{prefilled} {given} {held:?}: {told:?}");
        assert_eq!(head.cluster.attempt(RequestId(1)).unwrap().0, if wins { 1 } else { 2 });
    }
}

#[test]
fn a_machine_that_does_not_come_back_was_a_fault_and_the_last_one_waits_for_that() {
    let mut head = hedged(3);
    head.tick_at(head.now_ns + 2 * head.cluster.config().rejoin_limit_ns);
    assert_eq!((head.cluster.counters().faults, head.cluster.live_requests()), (1, 1));
    head.join(id(2), Role::Mixed, 10_000);
    // With the second fault of three the request goes on once more; with the third it ends, but not before.
    head.act(&ClusterEvent::Lose { machine: id(1) });
    assert_eq!(head.cluster.counters().faults, 2);
    head.join(id(3), Role::Mixed, 10_000);
    assert!(hedge(&mut head, 2).is_empty());
    head.tick_at(head.now_ns + 2 * head.cluster.config().rejoin_limit_ns);
    assert_eq!((head.cluster.counters().failed, head.cluster.live_requests()), (1, 0));
}

#[test]
fn what_cannot_go_on_elsewhere_waits_for_its_machine() {
    for arrival in [
        Arrival { resumable: false, ..Arrival::new(1, 10, 10) },
        Arrival { pin_token: Some(0), ..Arrival::new(1, 10, 10) },
    ] {
        let mut head = Head::new(hedging(4), &[Role::Mixed, Role::Mixed]);
        head.arrive(arrival);
        assert!(hedge(&mut head, 0).is_empty());
    }
    // Nor where there is no other machine: it is tried again until there is one.
    let mut head = Head::new(hedging(4), &[Role::Mixed]);
    head.place(1, 10, 10);
    assert!(hedge(&mut head, 0).is_empty());
    head.join(id(1), Role::Mixed, 10_000);
    let told = commands(&head.tick_at(head.now_ns + head.cluster.config().retry_interval_ns));
    assert!(matches!(told[..], [(1, Command::Compute { .. }), ..]), "{told:?}");
}

#[test]
fn a_machine_that_leaves_hands_its_work_over_and_is_gone_with_its_session() {
    let mut head = Head::new(hedging(4), &[Role::Mixed, Role::Mixed]);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(0, Notice::Progress { key: key(1), tokens: 3 });
    let actions = head.act(&ClusterEvent::Leave { machine: id(0) });
    let told = commands(&actions);
    assert!(told.contains(&(0, Command::Abort { key: key(1) })), "{told:?}");
    let next = Command::Compute {
        key: key_at(1, 2),
        order: Order(0),
        work: {
            let mut work = Work { max_new_tokens: 7, ..whole(13) };
            work.terms.resumed_tokens = 3;
            work
        },
    };
    assert!(told.contains(&(1, next)), "{told:?}");
    assert_eq!(head.handle(&ClusterEvent::Leave { machine: id(0) }).0, Ok(Applied::Late), "said twice");
    assert_eq!(head.handle(&ClusterEvent::Undrain { machine: id(0) }).0, Ok(Applied::Late), "it goes");
    let drained = head.released(0, key(1), 99);
    assert!(drained.contains(&ClusterAction::Drained { machine: id(0) }), "{drained:?}");
    // No limit runs: it is gone at once.
    head.act(&ClusterEvent::Disconnect { machine: id(0) });
    assert_eq!(head.cluster.load(0).unwrap().state, MachineState::Lost);
    assert_eq!(head.cluster.counters().faults, 0);
}

#[test]
fn a_drain_that_is_taken_back_brings_work_again() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    let undrain = ClusterEvent::Undrain { machine: id(0) };
    assert_eq!(head.handle(&undrain).0, Ok(Applied::Late), "it is not draining");
    let drained = vec![ClusterAction::Drained { machine: id(0) }];
    assert_eq!(head.act(&ClusterEvent::Drain { machine: id(0) }), drained);
    assert_eq!(head.act(&undrain), Vec::new());
    head.place(1, 10, 10);
    // Drained again, it says so again.
    head.act(&ClusterEvent::Drain { machine: id(0) });
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    assert_eq!(head.released(0, key(1), 99), drained);
}
