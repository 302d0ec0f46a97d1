//! Every request is known to two machines, as far as there are two: one may be lost together with the Cluster.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use splitcore_core::config::{ClusterConfig, Ties};
use splitcore_core::event::{Arrival, Claim, ClusterEvent, Held, Role};
use splitcore_core::id::{MachineId, Order, RequestId};
use splitcore_core::leg::{Command, Notice, Peer};
use splitcore_core::placement::{Mode, Reserve};

const PAIR: [Role; 2] = [Role::Prompt, Role::Token];
const TRIO: [Role; 3] = [Role::Prompt, Role::Token, Role::Token];

fn known_to(head: &Head, request: u64) -> Vec<u32> {
    head.cluster.known_to(RequestId(request)).iter().map(|machine| machine.index).collect()
}

/// Who was told to keep a request, and who to forget it.
fn kept_and_released(told: &[(u32, Command)]) -> (Vec<u32>, Vec<u32>) {
    let to =
        |wanted: fn(&Command) -> bool| told.iter().filter(|(_, it)| wanted(it)).map(|&(to, _)| to).collect();
    (to(|it| matches!(it, Command::Keep { .. })), to(|it| matches!(it, Command::Release { .. })))
}

#[test]
fn a_handoff_is_known_to_both_machines_until_it_ends() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    assert_eq!(kept_and_released(&commands(&head.arrive(Arrival::new(1, 10, 10)))), (vec![], vec![]));
    assert_eq!(known_to(&head, 1), [0, 1]);
    head.prefill_done(0, 1);
    head.notice(1, Notice::Landed { key: key(1) });
    let told = head.notice(0, Notice::Released { key: key(1), to: Some(id(1)), report: report(2) });
    assert_eq!(commands(&told), [], "the source keeps the request of its own accord");
    assert_eq!(known_to(&head, 1), [1, 0]);
    let told = commands(&head.notice(1, Notice::Finished { key: key(1), tokens: 10 }));
    assert_eq!(kept_and_released(&told), (vec![], vec![1, 0]));
}

/// A machine whose leg is on its way to another one.
fn sending() -> Bench {
    let mut bench = Bench::new(100);
    bench.compute(1, source(4));
    bench.send(1, id(1), Mode::Serialized);
    bench.pass(&[]);
    bench.grant(id(1), 1);
    bench
}

#[test]
fn a_machine_that_has_handed_over_keeps_the_request_until_it_is_released() {
    let mut bench = sending();
    bench.peer(id(1), Peer::Landed { key: key(1) });
    let kept = |claim: &Claim| (claim.key, claim.work.prompt_tokens, claim.held);
    assert_eq!(bench.machine.claims().iter().map(kept).collect::<Vec<_>>(), [(key(1), 4, Held::Kept)]);
    assert!(bench.machine.is_idle() && bench.machine.pool().free() == 100, "it costs no blocks");
    // The Cluster may have missed where the KV is.
    let said = notices(&bench.command(Command::Confirm { key: key(1), delivered: 0 }));
    assert!(matches!(said[..], [Notice::Released { to: Some(MachineId { index: 1, .. }), .. }]), "{said:?}");
    bench.command(Command::Release { key: key(1) });
    assert_eq!(bench.machine.kept(), 0);
}

#[test]
fn what_was_handed_over_is_forgotten_where_the_cluster_gives_it_up() {
    let mut bench = sending();
    bench.peer(id(1), Peer::Landed { key: key(1) });
    assert_eq!(bench.machine.kept(), 1);
    bench.abort(1);
    assert_eq!(bench.machine.kept(), 0);
}

#[test]
fn what_the_cluster_has_asked_to_keep_outlives_the_leg_that_it_gives_up_meanwhile() {
    let mut bench = sending();
    bench.command(Command::Keep { key: key(1), order: Order(1), work: whole(4) });
    bench.peer(id(1), Peer::Landed { key: key(1) });
    bench.abort(1);
    assert_eq!(bench.machine.claims().iter().map(|claim| claim.held).collect::<Vec<_>>(), [Held::Kept]);
}

#[test]
fn a_request_that_runs_on_one_machine_is_kept_by_another() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed; 3]);
    let told = commands(&head.arrive(Arrival::new(1, 10, 10)));
    let [(on, Command::Compute { .. }), (keeper, Command::Keep { .. })] = told[..] else {
        panic!("{told:?}")
    };
    assert_ne!(on, keeper);
    assert_eq!(known_to(&head, 1), [on, keeper]);
    // Its keeper is lost: the third machine keeps it.
    let third = 3 - on - keeper;
    let told = commands(&head.act(&ClusterEvent::Lose { machine: id(keeper) }));
    assert_eq!(kept_and_released(&told), (vec![third], vec![]));
    let told = commands(&head.notice(on, Notice::Finished { key: key(1), tokens: 1 }));
    assert_eq!(kept_and_released(&told), (vec![], vec![on, third]));
}

#[test]
fn what_only_one_machine_can_know_the_next_one_to_come_keeps() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    head.place(1, 10, 10);
    assert_eq!(known_to(&head, 1), [0]);
    let told = commands(&head.join(id(1), Role::Mixed, 10_000));
    assert_eq!(kept_and_released(&told), (vec![1], vec![]));
}

#[test]
fn a_source_whose_destination_is_named_later_is_not_alone_meanwhile() {
    let config = ClusterConfig { reserve: Reserve::AtSourceDone, ..ClusterConfig::default() };
    let mut head = Head::new(config, &PAIR);
    head.place(1, 10, 10);
    assert_eq!(known_to(&head, 1), [0, 1]);
    assert_eq!(kept_and_released(&commands(&head.prefill_done(0, 1))), (vec![], vec![]), "it may refuse");
    let told = commands(&head.notice(1, Notice::Reserved { key: key(1) }));
    assert_eq!(kept_and_released(&told), (vec![], vec![1]), "its leg says as much");
}

/// Found by `events_in_any_order_keep_the_books_and_the_rules`: its record was released for a leg it does not have.
#[test]
fn what_a_machine_says_of_a_leg_it_was_not_told_of_is_late() {
    let config = ClusterConfig { reserve: Reserve::AtSourceDone, ..ClusterConfig::default() };
    for notice in [
        Notice::Reserved { key: key(1) },
        Notice::Refused { key: key(1), report: report(1) },
        Notice::Landed { key: key(1) },
        Notice::Finished { key: key(1), tokens: 10 },
        Notice::Gone { key: key(1) },
    ] {
        let mut head = Head::new(config, &PAIR);
        head.place(1, 10, 10);
        let late = head.cluster.counters().late;
        assert_eq!(commands(&head.notice(1, notice)), [], "{notice:?}");
        assert_eq!(head.cluster.counters().late, late + 1, "{notice:?}");
        assert_eq!(known_to(&head, 1), [0, 1], "{notice:?}");
        head.cluster.check().unwrap();
    }
}

#[test]
fn a_destination_that_refuses_still_keeps_the_request() {
    let config = ClusterConfig { reserve: Reserve::AtSourceDone, ..ClusterConfig::default() };
    let mut head = Head::new(config, &PAIR);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    let told = commands(&head.refused(1, key(1), 2));
    assert_eq!(kept_and_released(&told), (vec![], vec![]));
    assert_eq!(known_to(&head, 1), [0, 1]);
}

#[test]
fn a_lost_destination_leaves_its_source_not_alone() {
    let mut head = Head::new(ClusterConfig::default(), &TRIO);
    head.place(1, 10, 10);
    let lost = known_to(&head, 1)[1];
    head.act(&ClusterEvent::Lose { machine: id(lost) });
    assert_eq!(known_to(&head, 1), [0, 3 - lost]);
}

#[test]
fn copies_are_spread_over_the_machines() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed; 4]);
    let mut keepers: Vec<u32> = (1..=8)
        .map(|request| {
            head.place(request, 10, 10);
            known_to(&head, request)[1]
        })
        .collect();
    keepers.sort_unstable();
    keepers.dedup();
    assert_eq!(keepers, [0, 1, 2, 3]);
}

#[test]
fn a_source_that_has_the_leg_no_more_is_asked_to_keep_the_request() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(1, Notice::Landed { key: key(1) });
    let told = commands(&head.notice(0, Notice::Gone { key: key(1) }));
    assert_eq!(kept_and_released(&told), (vec![0], vec![]), "of its own accord it keeps nothing");
    assert_eq!(known_to(&head, 1), [1, 0]);
}

#[test]
fn a_leg_given_up_is_kept_by_whoever_keeps_it_already() {
    let mut head =
        Head::new(ClusterConfig { ties: Ties::First, ..ClusterConfig::default() }, &[Role::Mixed; 3]);
    head.place(1, 10, 10);
    let [on, keeper] = known_to(&head, 1)[..] else { panic!("two machines know it") };
    let told = commands(&head.notice(on, Notice::Relief { key: key(1) }));
    assert!(!kept_and_released(&told).0.contains(&on), "{keeper} keeps it: {told:?}");
}
