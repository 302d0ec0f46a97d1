//! The ends of a handoff, as the machine and the Cluster tell them apart.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use splitcore_core::config::{ClusterConfig, MachineConfig, SECOND_NS};
use splitcore_core::event::{ClusterAction, ClusterEvent, MachineAction, MachineEvent, Role};
use splitcore_core::id::{AssignmentSeq, Epoch, MachineId};
use splitcore_core::leg::{Command, Notice, Peer};
use splitcore_core::placement::Mode;
use splitcore_core::time::Time;

const TRIO: [Role; 3] = [Role::Prompt, Role::Token, Role::Token];

fn is_released(notices: &[Notice]) -> bool {
    notices.iter().any(|notice| matches!(notice, Notice::Released { .. }))
}

#[test]
fn a_decode_that_no_pass_runs_is_aborted_at_once() {
    let config =
        MachineConfig { blocks: 100, block_tokens: 1, batch_requests_max: 1, ..MachineConfig::default() };
    let mut bench = Bench::with(config);
    bench.compute(1, whole(4));
    bench.compute(2, whole(4));
    bench.pass(&[]);
    while bench.decodes().is_empty() {
        bench.pass(&[]);
    }
    let (runs, sits_out) = if bench.decodes() == [1] { (1, 2) } else { (2, 1) };
    assert!(is_released(&notices(&bench.abort(sits_out))), "{sits_out} sits the pass out");
    assert!(!is_released(&notices(&bench.abort(runs))), "the engine is at it");
    assert!(is_released(&notices(&bench.pass(&[]))));
    assert!(bench.machine.is_idle());
}

#[test]
fn a_decode_between_passes_is_aborted_at_once() {
    let mut bench = Bench::new(100);
    bench.reserve(1, destination(4), id(1));
    let mut actions = Vec::new();
    let landed = MachineEvent::LayersLanded { key: key(1), layers: 1, of: 1 };
    let _ = bench.machine.handle(Time::ZERO, &landed, &mut actions).unwrap();
    assert_eq!((bench.machine.is_running(), bench.machine.queue_lengths()), (false, (0, 1)));
    let (epoch, seq, command) = (Epoch(1), AssignmentSeq(9), Command::Abort { key: key(1) });
    let _ = bench
        .machine
        .handle(Time::ZERO, &MachineEvent::Command { epoch, seq, command }, &mut actions)
        .unwrap();
    assert!(is_released(&notices(&actions)), "{actions:?}");
    assert!(bench.machine.is_idle());
    bench.machine.check().unwrap();
}

/// Requests whose transfers begin.
fn puts(actions: &[MachineAction]) -> Vec<u64> {
    let put = |action: &MachineAction| match action {
        MachineAction::Put(put) => Some(put.key.request.0),
        _ => None,
    };
    actions.iter().filter_map(put).collect()
}

/// The source says that it has let go, and who has the KV; or, asked later, that it has no such leg any more.
fn handed_over(head: &mut Head, to: Option<MachineId>) -> Vec<ClusterAction> {
    let key = key(1);
    head.notice(
        0,
        if to.is_some() { Notice::Released { key, to, report: report(9) } } else { Notice::Gone { key } },
    )
}

#[test]
fn kv_that_went_where_it_was_sent_is_waited_for() {
    for to in [None, Some(id(1))] {
        let mut head = Head::new(ClusterConfig::default(), &TRIO);
        assert_eq!(pair(&head.place(1, 10, 10)), (0, 1));
        head.prefill_done(0, 1);
        assert!(placement(&handed_over(&mut head, to)).is_none());
        head.notice(1, Notice::Landed { key: key(1) });
        head.notice(1, Notice::Finished { key: key(1), tokens: 10 });
        let counters = head.cluster.counters();
        assert_eq!((counters.finished, counters.placed), (1, 1));
    }
}

#[test]
fn kv_that_went_elsewhere_is_made_again() {
    let mut head = Head::new(ClusterConfig::default(), &TRIO);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    let again = placement(&handed_over(&mut head, Some(id(2)))).expect("a new attempt");
    assert_eq!((again.attempt.0, head.cluster.counters().faults), (2, 0));
}

#[test]
fn kv_that_went_to_nobody_known_is_made_again() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Prompt, Role::Token]);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.refused(1, key(1), 9);
    let again = placement(&handed_over(&mut head, None)).expect("a new attempt");
    let counters = head.cluster.counters();
    assert_eq!((again.attempt.0, counters.refused, counters.faults), (2, 1, 0));
}

#[test]
fn the_next_transfer_starts_when_one_has_landed() {
    let config =
        MachineConfig { blocks: 100, block_tokens: 1, sends_max: Some(1), ..MachineConfig::default() };
    let mut bench = Bench::with(config);
    for request in [1, 2] {
        bench.grant(id(1), request);
        bench.compute(request, source(4));
        bench.send(request, id(1), Mode::Serialized);
    }
    assert_eq!(puts(&bench.pass(&[])), [1]);
    assert!(puts(&bench.pass(&[])).is_empty());
    // The word of the destination is faster than that of the own transport.
    assert_eq!(puts(&bench.peer(id(1), Peer::Landed { key: key(1) })), [2]);
}

#[test]
fn a_destination_that_has_lost_what_had_landed_costs_the_attempt() {
    let mut head = Head::new(ClusterConfig::default(), &TRIO);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    // The source has not been heard of, and may have let go.
    head.notice(1, Notice::Landed { key: key(1) });
    let again = placement(&head.notice(1, Notice::Gone { key: key(1) })).expect("a new attempt");
    let counters = head.cluster.counters();
    assert_eq!((again.attempt.0, counters.faults, counters.resent), (2, 1, 0));
}

#[test]
fn a_source_that_drops_the_only_kv_costs_the_attempt() {
    let mut head = Head::new(ClusterConfig::default(), &TRIO);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    let again = placement(&head.released(0, key(1), 9)).expect("a new attempt");
    assert_eq!((again.attempt.0, head.cluster.counters().faults), (2, 1));
}

#[test]
fn a_source_that_drops_kv_that_has_landed_costs_nothing() {
    let mut head = Head::new(ClusterConfig::default(), &TRIO);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(1, Notice::Landed { key: key(1) });
    assert!(placement(&head.released(0, key(1), 9)).is_none());
    assert_eq!((head.cluster.counters().faults, head.cluster.load(0).unwrap().legs), (0, 0));
}

/// A prompt in its pass whose layers have all landed at machine 1.
fn handed_in_its_pass() -> Bench {
    let mut bench = Bench::new(100);
    bench.compute(9, whole(1));
    bench.grant(id(1), 1);
    bench.compute(1, source(4));
    bench.send(1, id(1), Mode::LayerWise);
    bench.pass(&[9]);
    assert_eq!(bench.machine.plan().puts.len(), 1);
    bench.peer(id(1), Peer::Landed { key: key(1) });
    bench
}

#[test]
fn kv_that_has_landed_is_sent_again_only_to_another() {
    let mut bench = handed_in_its_pass();
    bench.send(1, id(1), Mode::LayerWise);
    let said = notices(&bench.pass(&[]));
    let to_it = |notice: &Notice| matches!(*notice, Notice::Released { to, .. } if to == Some(id(1)));
    assert!(said.iter().any(to_it), "{said:?}");
    // The first is gone, and the pass still runs.
    let mut bench = handed_in_its_pass();
    bench.act(&MachineEvent::PeerLost { machine: id(1) });
    bench.send(1, id(2), Mode::Serialized);
    bench.grant(id(2), 1);
    let actions = bench.pass(&[]);
    let put = |action: &MachineAction| matches!(action, MachineAction::Put(put) if put.to == id(2));
    assert!(actions.iter().any(put), "{actions:?}");
    assert!(!is_released(&notices(&actions)));
}

#[test]
fn a_long_answer_is_no_handoff_that_does_not_go_on() {
    let mut head = Head::new(ClusterConfig::default(), &TRIO);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(1, Notice::Landed { key: key(1) });
    handed_over(&mut head, Some(id(1)));
    assert!(head.tick_at(1_000 * SECOND_NS).is_empty());
    assert_eq!((head.cluster.counters().relieved, head.cluster.live_requests()), (0, 1));
}

#[test]
fn a_lost_machine_takes_its_grants_along_and_no_other() {
    let mut bench = Bench::new(100);
    for request in [1, 2] {
        bench.grant(id(request as u32), request);
    }
    bench.act(&MachineEvent::PeerLost { machine: id(1) });
    for request in [1, 2] {
        bench.compute(request, source(4));
        bench.send(request, id(request as u32), Mode::Serialized);
    }
    let mut actions = bench.pass(&[]);
    actions.extend(bench.pass(&[]));
    assert_eq!(puts(&actions), [2]);
}

#[test]
fn a_handoff_whose_source_goes_on_with_others_is_not_taken_back() {
    let config = ClusterConfig { park_limit_ns: 100, ..ClusterConfig::default() };
    let mut head = Head::new(config, &TRIO);
    for request in [1, 2] {
        let (_, to) = pair(&head.place(request, 10, 10));
        head.notice(to, Notice::Reserved { key: key(request) });
    }
    head.prefill_done(0, 1);
    head.now_ns = 99;
    head.prefill_done(0, 2);
    assert!(placement(&head.tick_at(100)).is_none());
    assert_eq!(head.cluster.counters().relieved, 0);
    head.tick_at(200);
    assert_eq!(head.cluster.counters().relieved, 2);
}

#[test]
fn a_request_that_is_placed_again_is_kept_where_it_was() {
    for (away, kept_at) in [(None, 0), (Some(0), 1)] {
        let mut head = Head::new(ClusterConfig::default(), &TRIO);
        head.place(1, 10, 10);
        if let Some(at) = away {
            head.act(&ClusterEvent::Disconnect { machine: id(at) });
        }
        let told = commands(&head.notice(1, Notice::Relief { key: key(1) }));
        let keeps: Vec<_> =
            told.iter().filter(|(_, command)| matches!(command, Command::Keep { .. })).collect();
        assert!(
            matches!(keeps[..], [(to, Command::Keep { key, .. })] if *to == kept_at && key.request.0 == 1),
            "{told:?}"
        );
    }
}

#[test]
fn the_next_reservation_is_granted_when_an_aborted_one_is_gone() {
    let config =
        MachineConfig { blocks: 100, block_tokens: 1, receives_max: Some(1), ..MachineConfig::default() };
    let mut bench = Bench::with(config);
    bench.reserve(1, destination(4), id(1));
    assert!(peers(&bench.reserve(2, destination(4), id(2))).is_empty());
    bench.abort(1);
    let told = peers(&bench.peer(id(1), Peer::AbortAck { key: key(1) }));
    assert!(
        matches!(told[..], [(to, Peer::Grant { key, .. })] if (to, key) == (id(2), kit::key(2))),
        "{told:?}"
    );
}
