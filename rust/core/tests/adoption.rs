//! What a Cluster makes of the claims that machines register with: requests, bookings, and what is still to come.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use splitcore_core::config::ClusterConfig;
use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{Arrival, Claim, ClusterAction, ClusterEvent, Held, Join, Registration, Role};
use splitcore_core::id::{Epoch, LegKey, MachineId, Order};
use splitcore_core::leg::{Command, Compute, Inbound, LegState, Notice, Work};
use splitcore_core::placement::{Mode, Upto};

const GRACE_NS: u64 = 100;

/// The second Cluster of its service, in its grace time.
fn head() -> Head {
    Head::new(ClusterConfig { epoch: Epoch(2), grace_ns: GRACE_NS, ..ClusterConfig::default() }, &[])
}

fn registration(machine: MachineId, epoch: u32, claims: Vec<Claim>) -> ClusterEvent {
    let (kv_capacity_tokens, speed_weight, link, costs) = (10_000, 1, None, None);
    let join = Join { machine, role: Role::Mixed, kv_capacity_tokens, speed_weight, link, costs };
    ClusterEvent::Register(Registration { join, epoch: Epoch(epoch), report: report(1), claims })
}

fn register(head: &mut Head, index: u32, claims: Vec<Claim>) -> Vec<(u32, Command)> {
    commands(&head.act(&registration(id(index), 1, claims)))
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
    for (resumed_tokens, expected_prompt) in [(7, 17), (16, 17), (17, 18)] {
        let mut head = head();
        let mut kept = whole(17);
        kept.terms.resumed_tokens = resumed_tokens;
        assert!(register(&mut head, 0, vec![claim(key_at(1, 2), kept, Held::Kept)]).is_empty());
        let actions = head.tick_at(GRACE_NS);
        let placed = works(&commands(&actions));
        let (_, key, order, work) = placed[0];
        // A machine that registers late may have the attempt of the name it was kept under.
        assert_eq!((key, order), (key_at(1, 3), Order(5)));
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
        let work = Work { upto: Upto::Position(upto), ..source(10) };
        register(&mut head, 0, vec![claim(key(1), work, leg(Compute::Held, Inbound::None))]);
        register(&mut head, 1, Vec::new());
        let told = commands(&head.tick_at(GRACE_NS));
        let (to, of, _, rest) = works(&told)[0];
        assert_eq!((to, of, rest.start, rest.upto, rest.prompt_tokens), (1, key(1), upto, Upto::End, 10));
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
    assert_eq!((works(&told)[0].1, head.cluster.counters().faults), (key_at(1, 2), 1));
}

#[test]
fn a_destination_that_has_everything_needs_no_source() {
    let mut head = head();
    register(&mut head, 0, vec![claim(key(1), destination(10), leg(Compute::Decoding, Inbound::Ready))]);
    assert!(commands(&head.tick_at(GRACE_NS)).is_empty());
    head.notice(0, Notice::Finished { key: key(1), tokens: 3 });
    assert_eq!(head.cluster.counters().finished, 1);
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
fn what_is_claimed_twice_is_kept_once() {
    let kept = |attempt| claim(key_at(1, attempt), whole(10), Held::Kept);
    let mut head = head();
    assert!(register(&mut head, 0, vec![kept(1)]).is_empty());
    assert_eq!(register(&mut head, 1, vec![kept(1)]), [(1, Command::Release { key: key(1) })]);
    // A leg is better than either.
    let running = claim(key(1), whole(10), leg(Compute::Decoding, Inbound::None));
    let told = register(&mut head, 2, vec![running]);
    assert!(told.contains(&(0, Command::Release { key: key(1) })), "{told:?}");
    assert_eq!(register(&mut head, 3, vec![kept(1)]), [(3, Command::Release { key: key(1) })]);
    assert_eq!(head.cluster.parked_requests(), 0);
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
    let tell =
        |head: &mut Head, incarnation, epoch| head.handle(&registration(at(incarnation), epoch, vec![])).0;
    assert_eq!(tell(&mut head, 2, 3), Err(EventError::StaleCluster(at(2))));
    assert_eq!(tell(&mut head, 2, 2), Ok(Applied::Yes));
    assert_eq!(tell(&mut head, 2, 2), Ok(Applied::Yes), "back in session");
    assert_eq!(tell(&mut head, 1, 2), Err(EventError::MachineTaken(at(1))));
    assert_eq!(tell(&mut head, 3, 1), Ok(Applied::Yes));
    head.act(&ClusterEvent::Lose { machine: at(3) });
    assert_eq!(tell(&mut head, 3, 2), Err(EventError::MachineTaken(at(3))));
    let (applied, actions) = head.handle(&registration(at(4), 2, vec![]));
    assert_eq!(applied, Ok(Applied::Yes));
    assert_eq!(actions[0], ClusterAction::Registered { to: at(4), epoch: Epoch(2) });
}
