//! What a Cluster makes of the claims that machines register with: requests, bookings, and what is still to come.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use splitcore_core::config::ClusterConfig;
use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{Arrival, Claim, ClusterAction, ClusterEvent, Held, Join, Registration, Role};
use splitcore_core::id::{Epoch, LegKey, MachineId, Order};
use splitcore_core::leg::{Command, Compute, Inbound, LegState, Notice, Outbound, Work};
use splitcore_core::placement::{Mode, Reserve, Upto};
use splitcore_core::time::Time;

const GRACE_NS: u64 = 100;

/// The second Cluster of its service, in its grace time.
fn head() -> Head {
    Head::new(ClusterConfig { epoch: Epoch(2), grace_ns: GRACE_NS, ..ClusterConfig::default() }, &[])
}

fn registration(machine: MachineId, role: Role, epoch: u32, claims: Vec<Claim>) -> ClusterEvent {
    let (kv_capacity_tokens, speed_weight, link, costs) = (10_000, 1, None, None);
    let join = Join { machine, role, kv_capacity_tokens, speed_weight, link, costs };
    ClusterEvent::Register(Registration { join, epoch: Epoch(epoch), report: report(1), claims })
}

fn register_as(head: &mut Head, index: u32, role: Role, claims: Vec<Claim>) -> Vec<(u32, Command)> {
    commands(&head.act(&registration(id(index), role, 1, claims)))
}

fn register(head: &mut Head, index: u32, claims: Vec<Claim>) -> Vec<(u32, Command)> {
    register_as(head, index, Role::Mixed, claims)
}

fn claim(key: LegKey, work: Work, held: Held) -> Claim {
    Claim { key, order: Order(5), work, held }
}

fn leg(compute: Compute, inbound: Inbound) -> Held {
    Held::Leg { state: LegState { compute, inbound, ..LegState::QUEUED }, mode: None }
}

fn works(commands: &[(u32, Command)]) -> Vec<(u32, LegKey, Order, Work)> {
    let work = |&(to, command): &(u32, Command)| match command {
        Command::Compute { key, order, work } | Command::Reserve { key, order, work, .. } => {
            Some((to, key, order, work))
        }
        _ => None,
    };
    commands.iter().filter_map(work).collect()
}

#[test]
fn a_claimed_leg_is_booked_as_far_as_it_is() {
    let last = Work { start: 9, ..destination(10) };
    let cases = [
        (source(10), leg(Compute::Queued, Inbound::None), (10, 10)),
        (source(10), leg(Compute::Prefilling, Inbound::None), (10, 10)),
        (source(10), leg(Compute::Held, Inbound::None), (0, 0)),
        (whole(10), leg(Compute::Queued, Inbound::None), (10, 11)),
        (whole(10), leg(Compute::Decoding, Inbound::None), (0, 1)),
        (whole(10), Held::Finished, (0, 1)),
        (destination(10), leg(Compute::Waiting, Inbound::Reserved), (0, 1)),
        (destination(10), leg(Compute::Decoding, Inbound::Ready), (0, 1)),
        (last, leg(Compute::Waiting, Inbound::Reserved), (1, 2)),
        (last, leg(Compute::Decoding, Inbound::Ready), (0, 1)),
    ];
    for (work, held, expected) in cases {
        let mut head = head();
        let told = register(&mut head, 0, vec![claim(key(1), work, held)]);
        assert!(told.contains(&(0, Command::Confirm { key: key(1), delivered: 0 })), "{told:?}");
        let load = head.cluster.load(0).unwrap();
        assert_eq!((load.prompt_pending_tokens, load.booked), expected, "{work:?} {held:?}");
        assert_eq!((load.legs, head.cluster.counters().adopted), (1, 1));
        // It is given up, and nothing is left on the books.
        head.act(&ClusterEvent::Cancel { request: key(1).request });
        assert_eq!(head.cluster.load(0).unwrap().booked, 0);
    }
}

#[test]
fn a_kept_request_goes_on_after_the_tokens_that_the_client_has() {
    for (resumed_tokens, expected_prompt) in [(7, 17), (16, 17)] {
        let mut head = head();
        let mut kept = whole(17);
        kept.terms.resumed_tokens = resumed_tokens;
        assert!(register(&mut head, 0, vec![claim(key_at(1, 2), kept, Held::Kept)]).is_empty());
        let actions = head.tick_at(GRACE_NS);
        let placed = works(&commands(&actions));
        let (_, key, order, work) = placed[0];
        // A machine that registers late may have a later attempt than the one it was kept under.
        assert_eq!((key, order), (key_at(1, 1001), Order(5)));
        assert_eq!((work.prompt_tokens, work.max_new_tokens), (expected_prompt, 100));
        assert_eq!((work.terms.resumed_tokens, work.start, work.upto), (resumed_tokens, 0, Upto::End));
        // Who arrives now comes after it.
        let later = works(&commands(&head.arrive(Arrival::new(2, 4, 4))));
        assert_eq!(later[0].2, Order(6));
    }
}

#[test]
fn a_source_without_its_destination_gets_one() {
    for (upto, booked) in [(10, (0, 1)), (9, (1, 2))] {
        let mut head = head();
        let mut work = Work { upto: Upto::Position(upto), ..source(10) };
        work.terms.resumed_tokens = 3;
        register(&mut head, 0, vec![claim(key(1), work, leg(Compute::Held, Inbound::None))]);
        register(&mut head, 1, Vec::new());
        let told = commands(&head.tick_at(GRACE_NS));
        let (to, of, _, rest) = works(&told)[0];
        assert_eq!((to, of, rest.start, rest.upto), (1, key(1), upto, Upto::End));
        assert_eq!((rest.prompt_tokens, rest.terms.resumed_tokens), (10, 3));
        let send = Command::Send { key: key(1), to: id(1), mode: Mode::Serialized };
        assert!(told.contains(&(0, send)), "{told:?}");
        let load = head.cluster.load(1).unwrap();
        assert_eq!((load.prompt_pending_tokens, load.booked), booked);
        assert_eq!(head.cluster.counters().faults, 0);
    }
}

#[test]
fn a_destination_without_its_source_is_placed_again() {
    let mut head = head();
    register(&mut head, 0, vec![claim(key(1), destination(10), leg(Compute::Waiting, Inbound::Reserved))]);
    let told = commands(&head.tick_at(GRACE_NS));
    assert!(told.contains(&(0, Command::Abort { key: key(1) })));
    assert_eq!((works(&told)[0].1, head.cluster.counters().faults), (key_at(1, 1001), 1));
}

#[test]
fn a_leg_that_has_everything_needs_no_other() {
    let cases = [
        (destination(10), leg(Compute::Decoding, Inbound::Ready)),
        (destination(10), Held::Finished),
        (whole(10), leg(Compute::Decoding, Inbound::None)),
        (whole(10), Held::Finished),
    ];
    for (work, held) in cases {
        let mut head = head();
        register(&mut head, 0, vec![claim(key(1), work, held)]);
        register(&mut head, 1, Vec::new());
        let told = commands(&head.tick_at(GRACE_NS));
        assert!(matches!(told[..], [(1, Command::Keep { .. })]), "a copy of the request: {told:?}");
        head.notice(0, Notice::Finished { key: key(1), tokens: 3 });
        assert_eq!(head.cluster.counters().finished, 1);
    }
}

#[test]
fn a_source_and_its_destination_find_each_other_in_either_order() {
    let held = claim(key(1), source(10), leg(Compute::Held, Inbound::None));
    let reserved = claim(key(1), destination(10), leg(Compute::Waiting, Inbound::Reserved));
    let confirm = Command::Confirm { key: key(1), delivered: 0 };
    let (from, to) = ([(0, confirm)], [(1, confirm), (1, Command::Start { key: key(1) })]);
    let send = [(0, Command::Send { key: key(1), to: id(1), mode: Mode::Serialized })];

    let mut source_first = head();
    assert_eq!(register(&mut source_first, 0, vec![held]), from);
    assert_eq!(register(&mut source_first, 1, vec![reserved]), [&to[..], &send].concat());
    let mut destination_first = head();
    assert_eq!(register(&mut destination_first, 1, vec![reserved]), to);
    assert_eq!(register(&mut destination_first, 0, vec![held]), [&from[..], &send].concat());
}

/// A token machine that is lent for a prompt goes home after it, unless it has another prompt: whether it does.
fn goes_home(head: &mut Head, machine: u32) -> bool {
    head.place(9, 10, 10);
    assert_eq!(head.cluster.load(machine).unwrap().pool, Role::Mixed);
    head.prefill_done(machine, 9);
    head.cluster.load(machine).unwrap().pool == Role::Token
}

#[test]
fn an_adopted_leg_keeps_its_machine_from_going_home_while_it_prefills() {
    let last = Work { start: 9, ..destination(10) };
    let cases = [
        (destination(10), leg(Compute::Waiting, Inbound::Reserved), true),
        (last, leg(Compute::Waiting, Inbound::Reserved), false),
        (last, leg(Compute::Decoding, Inbound::Ready), true),
        (whole(10), leg(Compute::Queued, Inbound::None), false),
        (whole(10), leg(Compute::Decoding, Inbound::None), true),
    ];
    for (work, held, home) in cases {
        let mut head = head();
        // So that nothing of it is missing when the grace time ends.
        let before = Work { upto: Upto::Position(work.start), ..source(10) };
        let source = claim(key(1), before, leg(Compute::Held, Inbound::None));
        register_as(&mut head, 1, Role::Prompt, if work.start > 0 { vec![source] } else { Vec::new() });
        register_as(&mut head, 0, Role::Token, vec![claim(key(1), work, held)]);
        head.tick_at(GRACE_NS);
        head.act(&ClusterEvent::Drain { machine: id(1) });
        assert_eq!(goes_home(&mut head, 0), home, "{work:?} {held:?}");
    }
    for (upto, home) in [(10, true), (9, false)] {
        let mut head = head();
        let work = Work { upto: Upto::Position(upto), ..source(10) };
        register_as(&mut head, 1, Role::Prompt, vec![claim(key(1), work, leg(Compute::Held, Inbound::None))]);
        register_as(&mut head, 0, Role::Token, Vec::new());
        assert_eq!(reserved_at(&head.tick_at(GRACE_NS)), [0]);
        head.act(&ClusterEvent::Drain { machine: id(1) });
        assert_eq!(goes_home(&mut head, 0), home, "cut at {upto}");
    }
}

#[test]
fn an_adopted_source_asks_for_its_destination_once_when_that_is_asked_for_late() {
    for (compute, at_opening) in [(Compute::Queued, false), (Compute::Held, true)] {
        let config = ClusterConfig { reserve: Reserve::AtSourceDone, ..*head().cluster.config() };
        let mut head = Head::new(config, &[]);
        register(&mut head, 0, vec![claim(key(1), source(10), leg(compute, Inbound::None))]);
        register(&mut head, 1, Vec::new());
        let asked = [reserved_at(&head.tick_at(GRACE_NS)), reserved_at(&head.prefill_done(0, 1))];
        assert_eq!(asked, if at_opening { [vec![1], vec![]] } else { [vec![], vec![1]] }, "{compute:?}");
    }
}

#[test]
fn what_is_adopted_has_waited_since_the_restart() {
    for (step_ns, expected) in [(400, [1, 2, 3]), (600, [3, 1, 2])] {
        let config = ClusterConfig { priority_ageing_ns: Some(step_ns), ..*head().cluster.config() };
        let mut head = Head::new(config, &[]);
        for (request, now_ns) in [(1, 1000), (2, 1050)] {
            head.now_ns = now_ns;
            let kept = Claim { order: Order(request), ..claim(key(request), whole(20_000), Held::Kept) };
            register(&mut head, request as u32 - 1, vec![kept]);
        }
        head.tick_at(1000 + GRACE_NS);
        // One step ahead of them, and 500 ns behind.
        head.now_ns = 1500;
        head.arrive(Arrival { class: 1, priority: 1, ..Arrival::new(3, 10, 10) });
        head.act(&ClusterEvent::Lose { machine: id(0) });
        head.act(&ClusterEvent::Lose { machine: id(1) });
        let actions = head.join(id(2), Role::Mixed, 1_000_000);
        let placed: Vec<u64> = works(&commands(&actions)).iter().map(|one| one.1.request.0).collect();
        assert_eq!(placed, expected, "a step of {step_ns} ns");
    }
}

#[test]
fn handoffs_are_looked_over_first_one_limit_after_the_first_claim() {
    let mut head = head();
    for (request, now_ns) in [(1, 1000), (2, 1050)] {
        head.now_ns = now_ns;
        let running = claim(key(request), whole(10), leg(Compute::Decoding, Inbound::None));
        register(&mut head, request as u32 - 1, vec![running]);
    }
    head.tick_at(1000 + GRACE_NS);
    let due_ns = 1000 + head.cluster.config().park_limit_ns;
    assert_eq!(head.cluster.next_deadline(), Some(Time::from_ns(due_ns)));
}

#[test]
fn of_two_destinations_the_one_with_the_kv_stays() {
    let (waits, has) = (leg(Compute::Waiting, Inbound::Reserved), leg(Compute::Decoding, Inbound::Ready));
    for (first, second, given_up) in [(waits, has, 0), (has, waits, 1), (waits, waits, 1), (has, has, 1)] {
        let mut head = head();
        register(&mut head, 0, vec![claim(key(1), destination(10), first)]);
        let told = register(&mut head, 1, vec![claim(key(1), destination(10), second)]);
        let aborted: Vec<u32> = told
            .iter()
            .filter(|(_, command)| matches!(command, Command::Abort { .. }))
            .map(|one| one.0)
            .collect();
        assert_eq!(aborted, [given_up], "{first:?} {second:?}");
    }
}

#[test]
fn of_two_attempts_the_later_stays() {
    let queued = leg(Compute::Queued, Inbound::None);
    for (first, second, given_up) in [(1, 2, (0, 1)), (2, 1, (1, 1))] {
        let mut head = head();
        register(&mut head, 0, vec![claim(key_at(1, first), whole(10), queued)]);
        let told = register(&mut head, 1, vec![claim(key_at(1, second), whole(10), queued)]);
        let (to, attempt) = given_up;
        assert!(told.contains(&(to, Command::Abort { key: key_at(1, attempt) })), "{told:?}");
        assert_eq!(head.cluster.attempt(key(1).request).unwrap().0, 2);
        assert_eq!(head.cluster.counters().adopted, 1);
    }
}

#[test]
fn a_record_of_an_earlier_attempt_is_one_of_the_request() {
    let queued = leg(Compute::Queued, Inbound::None);
    let (release, abort) = (Some(Command::Release { key: key(1) }), Some(Command::Abort { key: key(1) }));
    let cases = [
        (Held::Kept, Held::Kept, 5, None),
        (Held::Kept, Held::Finished, 5, None),
        (Held::Kept, Held::Kept, 4, release),
        (Held::Kept, Held::Finished, 4, release),
        (Held::Kept, queued, 5, abort),
        (Held::Kept, Held::Closing, 5, abort),
        (queued, Held::Kept, 5, None),
        (queued, Held::Finished, 5, release),
        (queued, Held::Kept, 4, release),
        (queued, queued, 5, abort),
    ];
    for (later, earlier, order, expected) in cases {
        let mut head = head();
        register(&mut head, 0, vec![claim(key_at(1, 2), whole(10), later)]);
        let earlier = Claim { order: Order(order), ..claim(key(1), whole(10), earlier) };
        let told = register(&mut head, 1, vec![earlier]);
        let expected: Vec<_> = expected.map(|command| (1, command)).into_iter().collect();
        assert_eq!(told, expected, "{later:?} {earlier:?}");
    }
}

#[test]
fn a_leg_beside_the_record_of_its_request_parks_nothing() {
    let mut head = head();
    let running = claim(key(1), whole(10), leg(Compute::Decoding, Inbound::None));
    let told = register(&mut head, 0, vec![claim(key(1), whole(10), Held::Kept), running]);
    let confirm = Command::Confirm { key: key(1), delivered: 0 };
    assert_eq!(told, [(0, confirm), (0, Command::Release { key: key(1) })]);
    assert_eq!(head.cluster.counters().parked, 0);
}

#[test]
fn what_is_claimed_three_times_is_kept_twice() {
    let kept = |attempt| claim(key_at(1, attempt), whole(10), Held::Kept);
    let release = Command::Release { key: key(1) };
    let mut head = head();
    assert!(register(&mut head, 0, vec![kept(1)]).is_empty());
    assert!(register(&mut head, 1, vec![kept(1)]).is_empty());
    assert_eq!(register(&mut head, 2, vec![kept(1)]), [(0, release)]);
    // Beside a leg they stay: its machine may be lost together with the Cluster. On the leg's own they say nothing.
    let running = claim(key(1), whole(10), leg(Compute::Decoding, Inbound::None));
    let confirm = Command::Confirm { key: key(1), delivered: 0 };
    assert_eq!(register(&mut head, 3, vec![running, kept(1)]), [(3, confirm), (3, release)]);
    assert_eq!(head.cluster.parked_requests(), 0);
    let ended = commands(&head.notice(3, Notice::Finished { key: key(1), tokens: 1 }));
    assert_eq!(ended, [(3, release), (1, release), (2, release)]);
}

#[test]
fn what_is_claimed_too_late_is_dismissed() {
    let mut head = head();
    register(&mut head, 0, Vec::new());
    head.tick_at(GRACE_NS);
    let running = claim(key(1), whole(10), leg(Compute::Decoding, Inbound::None));
    assert_eq!(register(&mut head, 1, vec![running]), [(1, Command::Abort { key: key(1) })]);
    let ended = claim(key(2), whole(10), Held::Finished);
    assert_eq!(register(&mut head, 2, vec![ended]), [(2, Command::Release { key: key(2) })]);
    assert_eq!((head.cluster.live_requests(), head.cluster.counters().adopted), (0, 0));
}

#[test]
fn a_machine_registers_with_the_newest_cluster_as_itself_or_its_next_incarnation() {
    let at = |incarnation| MachineId { index: 0, incarnation };
    let mut head = head();
    let tell = |head: &mut Head, incarnation, epoch| {
        head.handle(&registration(at(incarnation), Role::Mixed, epoch, vec![])).0
    };
    assert_eq!(tell(&mut head, 2, 3), Err(EventError::StaleCluster(at(2))));
    assert_eq!(tell(&mut head, 2, 2), Ok(Applied::Yes));
    assert_eq!(tell(&mut head, 2, 2), Ok(Applied::Yes), "back in session");
    assert_eq!(tell(&mut head, 1, 2), Err(EventError::MachineTaken(at(1))));
    assert_eq!(tell(&mut head, 3, 1), Ok(Applied::Yes));
    head.act(&ClusterEvent::Lose { machine: at(3) });
    assert_eq!(tell(&mut head, 3, 2), Err(EventError::MachineTaken(at(3))));
    let (applied, actions) = head.handle(&registration(at(4), Role::Mixed, 2, vec![]));
    assert_eq!(applied, Ok(Applied::Yes));
    assert_eq!(actions[0], ClusterAction::Registered { to: at(4), epoch: Epoch(2) });
}

/// Machines register with these claims, one after the other, and the last of them is refused for this reason.
fn refused(known: &[Vec<Claim>], claims: Vec<Claim>) -> &'static str {
    let mut head = head();
    for (index, claims) in known.iter().enumerate() {
        register(&mut head, index as u32, claims.clone());
    }
    let before = format!("{:?}", head.cluster);
    let (result, actions) = head.handle(&registration(id(known.len() as u32), Role::Mixed, 1, claims));
    assert_eq!((actions, format!("{:?}", head.cluster)), (Vec::new(), before), "{result:?} changes nothing");
    match result {
        Err(EventError::BadClaim { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_registration_that_contradicts_itself_is_refused_whole() {
    let held = leg(Compute::Held, Inbound::None);
    let (queued, decoding) = (leg(Compute::Queued, Inbound::None), leg(Compute::Decoding, Inbound::None));
    let waiting = leg(Compute::Waiting, Inbound::Reserved);
    let of = |key, work, held| claim(key, work, held);
    let resumed = |work: Work, resumed_tokens| {
        let mut work = work;
        work.terms.resumed_tokens = resumed_tokens;
        work
    };
    let sending = Held::Leg {
        state: LegState { compute: Compute::Held, outbound: Outbound::Sending, ..LegState::QUEUED },
        mode: None,
    };
    let far = Claim { order: Order(u64::MAX), ..of(key(1), whole(10), queued) };
    let cases = [
        ("it is claimed twice", vec![of(key(1), source(10), held), of(key(1), destination(10), waiting)]),
        ("it is claimed twice", vec![of(key(1), whole(10), decoding), of(key(1), whole(10), Held::Finished)]),
        ("it is claimed twice", vec![of(key(1), whole(10), Held::Kept), of(key(1), whole(10), Held::Kept)]),
        ("legs of two attempts", vec![of(key(1), whole(10), queued), of(key_at(1, 2), whole(10), queued)]),
        (
            "other numbers or terms",
            vec![of(key(1), whole(10), queued), of(key_at(1, 2), whole(11), Held::Kept)],
        ),
        ("its attempt", vec![of(key_at(1, 0), whole(10), queued)]),
        ("its attempt", vec![of(key_at(1, u32::MAX), whole(10), queued)]),
        ("its place in line", vec![far]),
        ("no prompt token", vec![of(key(1), whole(0), queued)]),
        ("no prompt token", vec![of(key(1), Work { max_new_tokens: 0, ..whole(10) }, queued)]),
        ("as many as its prompt", vec![of(key(1), resumed(whole(10), 10), queued)]),
        ("do not fit", vec![of(key(1), resumed(Work { max_new_tokens: u32::MAX, ..whole(10) }, 1), queued)]),
        ("starts behind its prompt", vec![of(key(1), Work { start: 11, ..whole(10) }, waiting)]),
        ("is the last one", vec![of(key(1), Work { start: 5, ..source(10) }, waiting)]),
        ("ends outside", vec![of(key(1), Work { upto: Upto::Position(11), ..whole(10) }, queued)]),
        ("ends outside", vec![of(key(1), Work { upto: Upto::Position(0), ..whole(10) }, queued)]),
        ("in this state", vec![of(key(1), whole(10), leg(Compute::Decoding, Inbound::Reserving))]),
        ("starts anew", vec![of(key(1), destination(10), queued)]),
        ("starts anew", vec![of(key(1), whole(10), leg(Compute::Decoding, Inbound::Ready))]),
        ("is closing", vec![of(key(1), destination(10), leg(Compute::Waiting, Inbound::Draining))]),
        ("no other leg follows", vec![of(key(1), whole(10), sending)]),
        ("another leg follows", vec![of(key(1), source(10), decoding)]),
        ("its first position", vec![of(key(1), destination(10), Held::Kept)]),
    ];
    for (expected, claims) in cases {
        let why = refused(&[], claims.clone());
        assert!(why.contains(expected), "{claims:?}: {why}");
    }
}

#[test]
fn a_registration_that_contradicts_another_is_refused_whole() {
    let held = leg(Compute::Held, Inbound::None);
    let (queued, decoding) = (leg(Compute::Queued, Inbound::None), leg(Compute::Decoding, Inbound::Ready));
    let cases = [
        ("the first leg", claim(key(1), source(10), held), claim(key(1), source(10), held)),
        ("does not start where", claim(key(1), source(10), held), claim(key(1), destination(9), decoding)),
        ("does not start where", claim(key(1), whole(10), queued), claim(key(1), destination(10), decoding)),
        ("does not end where", claim(key(1), destination(10), decoding), claim(key(1), whole(10), queued)),
        ("another cut", claim(key(1), destination(10), decoding), claim(key(1), destination(9), decoding)),
        ("other numbers", claim(key(1), whole(10), queued), claim(key_at(1, 2), whole(11), Held::Kept)),
    ];
    for (expected, known, other) in cases {
        // Numbers of its own belong to a destination that starts earlier: the prompt is the same.
        let other =
            Claim { work: Work { prompt_tokens: other.work.prompt_tokens.max(10), ..other.work }, ..other };
        let why = refused(&[vec![known]], vec![other]);
        assert!(why.contains(expected), "{known:?}, {other:?}: {why}");
    }
}

#[test]
fn what_an_honest_machine_may_not_know_yet_is_dismissed_and_no_contradiction() {
    let queued = leg(Compute::Queued, Inbound::None);
    let mut head = head();
    register(&mut head, 0, vec![claim(key_at(1, 2), whole(10), Held::Kept)]);
    // It runs an attempt that is over.
    let told = register(&mut head, 1, vec![claim(key(1), whole(10), queued)]);
    assert_eq!(told, [(1, Command::Abort { key: key(1) })]);
    // The name has come again: the request that had it before is over.
    let again = Claim { order: Order(7), ..claim(key(1), whole(30), queued) };
    let told = register(&mut head, 2, vec![again]);
    let confirm = Command::Confirm { key: key(1), delivered: 0 };
    assert_eq!(told, [(0, Command::Release { key: key_at(1, 2) }), (2, confirm)]);
    let told = register(&mut head, 3, vec![claim(key_at(1, 3), whole(10), Held::Kept)]);
    assert_eq!(told, [(3, Command::Release { key: key_at(1, 3) })]);
    assert_eq!(head.cluster.live_requests(), 1);
}

#[test]
fn a_machine_that_is_lost_keeps_its_place_from_no_other_incarnation() {
    let at = |incarnation| MachineId { index: 0, incarnation };
    let mut head = head();
    head.act(&registration(at(u32::MAX), Role::Mixed, 1, Vec::new()));
    let honest = registration(at(5), Role::Mixed, 1, Vec::new());
    assert_eq!(
        head.handle(&honest).0,
        Err(EventError::MachineTaken(at(5))),
        "one of a higher number is there"
    );
    head.act(&ClusterEvent::Disconnect { machine: at(u32::MAX) });
    head.tick_at(2 * head.cluster.config().rejoin_limit_ns);
    let back = registration(at(u32::MAX), Role::Mixed, 1, Vec::new());
    assert_eq!(head.handle(&back).0, Err(EventError::MachineTaken(at(u32::MAX))), "too late");
    head.act(&honest);
    assert_eq!(head.cluster.load(0).unwrap().machine, at(5));
}
