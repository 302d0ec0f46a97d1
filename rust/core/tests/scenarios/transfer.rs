//! Rows T, as far as they are about the state of a transfer; moving the bytes is the transport's.

use crate::kit::*;
use crate::site::{Site, tokens};
use splitcore_core::config::{ClusterConfig, MachineConfig};
use splitcore_core::error::Applied;
use splitcore_core::event::{Arrival, ClusterEvent, MachineAction, MachineEvent, Outcome, Put, Role};
use splitcore_core::id::{AssignmentSeq, LegKey, Order};
use splitcore_core::leg::{Command, Compute, Inbound, Notice, Peer};
use splitcore_core::machine::Machine;
use splitcore_core::placement::Mode;
use splitcore_core::time::Time;

const SECOND_NS: u64 = 1_000_000_000;

/// A prompt and two token machines; transfers end when told.
fn site() -> Site {
    // The machines have no limit of their own, so that the Cluster's is seen.
    let config = MachineConfig { transfer_limit_ns: None, ..tokens(100) };
    let machines = [Role::Prompt, Role::Token, Role::Token].map(|role| (role, config));
    let mut site = Site::new(ClusterConfig::default(), &machines);
    site.instant = false;
    site
}

/// The rest without trouble; every request ends well.
fn ends_well(site: &mut Site, requests: usize) {
    site.instant = true;
    site.finish();
    site.assert_empty();
    assert_eq!(site.ended.len(), requests);
    assert!(site.ended.values().all(|&outcome| outcome == Outcome::Finished), "{:?}", site.ended);
}

#[test]
fn t1_a_transfer_that_stands_still_is_taken_back_and_never_both_lands_and_fences() {
    // When the peer wakes up: before the source has been told to stop, before the fence, never.
    for wakes in ["before the stop", "before the fence", "never"] {
        let mut site = site();
        site.arrive(1, 10, 5);
        site.round();
        assert_eq!(site.transfers.len(), 1);
        site.advance(29 * SECOND_NS);
        assert_eq!(site.cluster.counters().relieved, 0, "{wakes}: there is still time");
        // The deadline, told to the Cluster alone: its words to the machines are on their way.
        site.now_ns = 60 * SECOND_NS;
        site.tell_cluster(&ClusterEvent::Tick);
        assert_eq!((site.cluster.counters().relieved, site.cluster.counters().faults), (1, 0));
        let first = key(1);
        let inbound = |site: &Site| site.machine(1).leg(first).map(|(state, _)| state.inbound);
        if wakes == "before the stop" {
            site.land(0);
            assert_eq!(inbound(&site), Some(Inbound::Ready), "landed, and so it is not fenced");
        }
        site.settle();
        match wakes {
            "before the stop" => assert!(site.transfers.is_empty() && inbound(&site).is_none()),
            "before the fence" => {
                assert_eq!(inbound(&site), Some(Inbound::Draining));
                let (before, tokens) = (site.machine(1).counters().late, site.machine(1).report());
                site.tell_machine(id(1), &MachineEvent::LayersLanded { key: first, layers: 1, of: 1 });
                assert_eq!((site.machine(1).counters().late, site.machine(1).report()), (before + 1, tokens));
                site.fence(0);
            }
            _ => site.fence(0),
        }
        site.settle();
        assert!((0..3).all(|machine| site.machine(machine).leg(first).is_none()), "{wakes}");
        ends_well(&mut site, 1);
        assert_eq!(site.placed.len(), 2, "{wakes}: as one leg, on its second attempt");
    }
}

/// A source whose only transfer is on its way.
fn sending() -> Bench {
    let mut bench = Bench::new(20);
    bench.compute(1, source(4));
    bench.send(1, id(1), Mode::Serialized);
    bench.grant(id(1), 1);
    let actions = bench.pass(&[]);
    assert!(actions.iter().any(|action| matches!(action, MachineAction::Put(_))));
    bench
}

#[test]
fn t2_every_transfer_comes_to_one_end_and_is_told_once() {
    let ends = [
        ("landed", MachineEvent::Peer { from: id(1), message: Peer::Landed { key: key(1) } }),
        ("failed", MachineEvent::TransferFailed { key: key(1) }),
        ("fenced", MachineEvent::Fenced { key: key(1) }),
    ];
    let ended = |notice: &&Notice| matches!(notice, Notice::Released { .. } | Notice::TransferFailed { .. });
    for aborted in [false, true] {
        for (first, event) in &ends {
            let mut bench = sending();
            let mut told = Vec::new();
            if aborted {
                told.extend(notices(&bench.abort(1)));
                assert!(told.is_empty(), "it still reads");
            }
            told.extend(notices(&bench.act(event)));
            // Whatever the transport says after that.
            for (_, more) in &ends {
                told.extend(notices(&bench.act(more)));
            }
            // A failure of the source's own leaves it what it holds, and another destination can have it.
            let released = told.iter().filter(|notice| matches!(notice, Notice::Released { .. })).count();
            let failed = told.iter().filter(|notice| matches!(notice, Notice::TransferFailed { .. })).count();
            assert_eq!(failed, usize::from(*first == "failed" && !aborted), "{first}, {aborted}: {told:?}");
            assert_eq!(released, 1, "{first}, {aborted}: {told:?}");
            assert!(told.iter().filter(ended).count() <= 2 && bench.machine.is_idle());
        }
    }
}

#[test]
fn t2_a_post_that_fails_frees_the_receiver_and_the_request_goes_on() {
    let mut site = site();
    site.arrive(1, 10, 5);
    site.round();
    assert_eq!(site.machine(1).pool().held(), 11);
    site.fail(0);
    // Word of the failure goes over the Cluster; the destination is told to let go, and asks the source.
    site.settle();
    assert!(site.machine(1).leg(key(1)).is_none(), "it waits for nothing that never comes");
    assert_eq!(site.cluster.counters().faults, 1);
    ends_well(&mut site, 1);
}

#[test]
fn t3_a_handshake_that_fails_costs_that_request_and_nobody_else() {
    let mut site = site();
    for request in 1..4 {
        site.submit(Arrival::new(request, 10, 5), 5);
    }
    let strict = Arrival { resumable: false, ..Arrival::new(4, 10, 5) };
    site.submit(strict, 5);
    site.settle();
    site.round();
    site.round();
    for refused in [2, 4] {
        let at = site.transfers.iter().position(|transfer| transfer.key == key(refused)).unwrap();
        site.fail(at);
    }
    site.settle();
    let attempts = |request| site.cluster.attempt(splitcore_core::id::RequestId(request)).map(|at| at.0);
    // The source has the KV still: it is sent again, also for who may not resume elsewhere.
    assert_eq!([1, 2, 3, 4].map(attempts), [Some(1); 4]);
    assert_eq!(site.cluster.counters().resent, 2);
    site.instant = true;
    site.finish();
    site.assert_empty();
    assert!((1..5).all(|request| site.ended[&request] == Outcome::Finished));
}

#[test]
fn t10_ten_thousand_transfers_in_line_go_one_by_one_and_nothing_polls() {
    let config = MachineConfig { sends_max: Some(1), ..tokens(1_000_000) };
    let mut machine = Machine::new(id(0), config).unwrap();
    let mut handle = |event: &MachineEvent| {
        let mut actions = Vec::new();
        assert_eq!(machine.handle(Time::ZERO, event, &mut actions), Ok(Applied::Yes), "{event:?}");
        actions
    };
    let command = |seq, command| MachineEvent::Command {
        epoch: splitcore_core::id::Epoch(1),
        seq: AssignmentSeq(seq),
        command,
    };
    for request in 0..10_000 {
        let (key, order, work) = (key(request), Order(request), source(2));
        handle(&command(2 * request, Command::Compute { key, order, work }));
        handle(&command(2 * request + 1, Command::Send { key, to: id(1), mode: Mode::Serialized }));
        handle(&MachineEvent::Peer { from: id(1), message: Peer::Grant { key, blocks: 1 } });
    }
    let mut started: Vec<LegKey> = Vec::new();
    let mut keep = |actions: &[MachineAction]| {
        let put = |action: &MachineAction| match *action {
            MachineAction::Put(Put { key, .. }) => Some(key),
            _ => None,
        };
        started.extend(actions.iter().filter_map(put));
        (started.last().copied(), started.len() as u64)
    };
    keep(&handle(&MachineEvent::Tick));
    for pass in 1..21 {
        keep(&handle(&MachineEvent::IterationDone { pass, ended: vec![] }));
    }
    // Each that is through brings on the next: as much to do for the last as for the first.
    for request in 0..10_000 {
        let (last, count) = keep(&[]);
        assert_eq!((last, count), (Some(key(request)), request + 1));
        let actions = handle(&MachineEvent::LocalDone { key: key(request) });
        assert!(actions.len() <= 2, "{actions:?}");
        keep(&actions);
        keep(&handle(&MachineEvent::Peer { from: id(1), message: Peer::Landed { key: key(request) } }));
    }
    assert!(machine.is_idle());
    assert_eq!(machine.next_deadline(), None, "nothing is due");
}

#[test]
fn t12_nothing_decodes_on_what_has_not_arrived_whole() {
    let mut bench = Bench::new(20);
    bench.reserve(1, destination(4), id(1));
    // It works on another meanwhile.
    bench.compute(2, whole(2));
    for layers in 1..3 {
        bench.act(&MachineEvent::LayersLanded { key: key(1), layers, of: 3 });
        bench.pass(&[]);
        assert_eq!(bench.decodes(), [2], "{layers} of 3 layers");
    }
    // The network card fails; the Cluster, told by the source, takes the leg back.
    bench.abort(1);
    bench.pass(&[]);
    bench.peer(id(1), Peer::AbortAck { key: key(1) });
    bench.act(&MachineEvent::LayersLanded { key: key(1), layers: 3, of: 3 });
    bench.pass(&[]);
    assert_eq!((bench.decodes(), bench.machine.leg(key(1))), (vec![2], None));
    // From end to end: the client has the source's token and none from the machine that was sent garbage.
    let mut site = site();
    site.arrive(1, 10, 5);
    site.round();
    site.fail(0);
    site.settle();
    assert_eq!(site.cluster.delivered(splitcore_core::id::RequestId(1)), Some(1));
    assert!(site.machine(1).plan().decodes.is_empty());
    ends_well(&mut site, 1);
}

#[test]
fn t13_a_cancel_during_the_wait_for_an_acknowledgement_ends_that_request_alone() {
    let mut site = site();
    for request in 1..4 {
        site.submit(Arrival { pin_token: Some(1), ..Arrival::new(request, 10, 5) }, 5);
    }
    site.settle();
    site.round();
    site.round();
    assert_eq!(site.transfers.len(), 3);
    site.cancel(1);
    site.settle();
    // Request 1 waits for its writer. Cancelled again, by a caller that does not know: nothing.
    assert_eq!(site.machine(1).leg(key(1)).unwrap().0.inbound, Inbound::Draining);
    site.cancel(1);
    site.settle();
    // The others land and decode beside it.
    for request in 2..4 {
        let at = site.transfers.iter().position(|transfer| transfer.key == key(request)).unwrap();
        site.land(at);
        site.settle();
        assert_eq!(site.machine(1).leg(key(request)).unwrap().0.compute, Compute::Decoding);
    }
    site.round();
    assert_eq!(site.machine(1).pool().quarantined(), 11);
    site.fence(0);
    site.settle();
    assert_eq!(site.machine(1).pool().quarantined(), 0);
    site.finish();
    site.assert_empty();
    let expected = [(1, Outcome::Cancelled), (2, Outcome::Finished), (3, Outcome::Finished)];
    assert_eq!(site.ended.into_iter().collect::<Vec<_>>(), expected);
}
