//! What a machine waits for ends at its limit, neither before nor after, and is counted.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use splitcore_core::config::MachineConfig;
use splitcore_core::error::Applied;
use splitcore_core::event::{Held, MachineAction, MachineEvent};
use splitcore_core::id::{AssignmentSeq, Epoch, Order};
use splitcore_core::kv::{BlockPool, BlockTable};
use splitcore_core::leg::{Command, Notice, Peer};
use splitcore_core::placement::Mode;
use splitcore_core::time::Time;

const LIMIT_NS: u64 = 100;

/// Ten blocks of one token, and every wait as long.
fn bench() -> Bench {
    Bench::with(MachineConfig {
        blocks: 10,
        block_tokens: 1,
        transfer_limit_ns: Some(LIMIT_NS),
        park_limit_ns: LIMIT_NS,
        orphan_limit_ns: Some(LIMIT_NS),
        quarantine_limit_permille: 400,
        ..MachineConfig::default()
    })
}

fn tick_at(bench: &mut Bench, now_ns: u64) -> Vec<MachineAction> {
    bench.now_ns = now_ns;
    bench.act(&MachineEvent::Tick)
}

fn due_ns(bench: &Bench) -> Option<u64> {
    bench.machine.next_deadline().map(Time::as_ns)
}

/// A source that sends, from this time on.
fn send_at(bench: &mut Bench, request: u64, now_ns: u64) {
    bench.now_ns = now_ns;
    bench.grant(id(1), request);
    bench.compute(request, source(2));
    bench.send(request, id(1), Mode::Serialized);
    let actions = bench.pass(&[]);
    assert!(actions.iter().any(|action| matches!(action, MachineAction::Put(_))), "{actions:?}");
}

#[test]
fn a_machine_without_a_cluster_drops_what_it_holds_at_the_limit() {
    let mut bench = bench();
    bench.reserve(1, destination(4), id(1));
    bench.command(Command::Keep { key: key(2), order: Order(2), work: whole(4) });
    tick_at(&mut bench, 50);
    bench.act(&MachineEvent::ClusterLost);
    tick_at(&mut bench, 60);
    bench.act(&MachineEvent::ClusterLost);
    assert_eq!(due_ns(&bench), Some(150), "from the first word of it");
    assert!(peers(&tick_at(&mut bench, 149)).is_empty());
    assert_eq!(bench.machine.kept(), 1);
    assert_eq!(peers(&tick_at(&mut bench, 150)), [(id(1), Peer::Abort { key: key(1) })]);
    let held: Vec<Held> = bench.machine.claims().iter().map(|claim| claim.held).collect();
    assert_eq!(held, [Held::Closing]);
    assert_eq!(due_ns(&bench), Some(250), "while its writer has not let go");
    bench.peer(id(1), Peer::AbortAck { key: key(1) });
    assert_eq!((due_ns(&bench), bench.machine.pool().free()), (None, 10));
    // What is kept without a leg is held as well.
    bench.act(&MachineEvent::Registered { epoch: Epoch(1) });
    bench.command(Command::Keep { key: key(3), order: Order(3), work: whole(4) });
    bench.act(&MachineEvent::ClusterLost);
    assert_eq!(due_ns(&bench), Some(250));
    tick_at(&mut bench, 250);
    assert_eq!((bench.machine.kept(), due_ns(&bench)), (0, None));
}

#[test]
fn a_machine_that_was_not_dropped_goes_on_with_a_cluster() {
    let mut bench = bench();
    bench.reserve(1, destination(4), id(1));
    bench.act(&MachineEvent::ClusterLost);
    bench.now_ns = 99;
    let said = notices(&bench.act(&MachineEvent::Registered { epoch: Epoch(1) }));
    assert!(matches!(said[..], [Notice::Report(_)]), "{said:?}");
    assert!(tick_at(&mut bench, 100).is_empty());
    assert_eq!(bench.machine.claims().len(), 1);
}

#[test]
fn a_transfer_is_stopped_at_its_limit_and_given_back_at_the_next() {
    let mut bench = bench();
    send_at(&mut bench, 1, 10);
    assert_eq!(due_ns(&bench), Some(110));
    assert!(tick_at(&mut bench, 109).is_empty());
    let stopped = tick_at(&mut bench, 110);
    assert!(stopped.contains(&MachineAction::StopPut { key: key(1) }));
    assert_eq!(notices(&stopped), [Notice::TransferFailed { key: key(1) }]);
    assert!(tick_at(&mut bench, 209).is_empty());
    assert_eq!(notices(&tick_at(&mut bench, 210)), [Notice::Relief { key: key(1) }]);
    let counters = bench.machine.counters();
    assert_eq!((counters.stalled, counters.relieved), (1, 1));
    // The transport gives it up after all: told of already.
    assert!(notices(&bench.act(&MachineEvent::TransferFailed { key: key(1) })).is_empty());
    assert!(tick_at(&mut bench, 310).is_empty());
}

#[test]
fn each_transfer_has_its_own_limit() {
    for first_ends_first in [true, false] {
        let mut bench = bench();
        for (request, at_ns) in [(1, 10), (2, 20), (3, 30)] {
            send_at(&mut bench, request, at_ns);
        }
        let (ends, due) = if first_ends_first { ([1, 2], 130) } else { ([2, 1], 130) };
        bench.act(&MachineEvent::TransferFailed { key: key(ends[0]) });
        assert_eq!(due_ns(&bench), Some(if first_ends_first { 120 } else { 110 }));
        bench.act(&MachineEvent::TransferFailed { key: key(ends[1]) });
        assert_eq!(due_ns(&bench), Some(due));
        assert_eq!(notices(&tick_at(&mut bench, due)), [Notice::TransferFailed { key: key(3) }]);
        assert_eq!(bench.machine.counters().stalled, 1);
    }
}

#[test]
fn the_transfer_of_a_leg_that_is_over_is_nobodys_to_take_back() {
    for aborted in [true, false] {
        let mut bench = bench();
        bench.grant(id(1), 1);
        bench.compute(2, whole(1));
        bench.compute(1, source(2));
        bench.send(1, id(1), Mode::LayerWise);
        bench.pass(&[2]);
        assert_eq!(bench.machine.plan().puts.len(), 1);
        if aborted {
            bench.pass(&[]);
            bench.abort(1);
        } else {
            bench.pass(&[1]);
        }
        assert!(bench.machine.leg(key(1)).is_some(), "the transport has not let go");
        assert!(tick_at(&mut bench, LIMIT_NS).is_empty());
        assert!(tick_at(&mut bench, 2 * LIMIT_NS).is_empty());
    }
}

#[test]
fn each_wait_ends_at_its_own_limit_however_late_the_tick_comes() {
    // Two transfers from 10 and 20 on, work without room from 30, and no Cluster from 40.
    let waiting = || {
        let mut bench = bench();
        send_at(&mut bench, 1, 10);
        send_at(&mut bench, 2, 20);
        bench.now_ns = 30;
        bench.compute(3, whole(8));
        bench
    };
    let said = [
        Notice::TransferFailed { key: key(1) },
        Notice::TransferFailed { key: key(2) },
        Notice::Relief { key: key(3) },
    ];
    for (now_ns, ended) in [(110, 1), (120, 2), (129, 2), (130, 3), (200, 3)] {
        assert_eq!(notices(&tick_at(&mut waiting(), now_ns)), said[..ended], "at {now_ns}");
    }
    for (now_ns, left) in [(110, 3), (139, 3), (140, 2), (200, 2)] {
        let mut bench = waiting();
        bench.now_ns = 40;
        bench.act(&MachineEvent::ClusterLost);
        tick_at(&mut bench, now_ns);
        // The transport reads on.
        assert_eq!(bench.machine.leg_keys().count(), left, "at {now_ns}");
    }
}

#[test]
fn work_without_room_is_given_back_at_the_limit_the_oldest_first() {
    let mut bench = bench();
    bench.reserve(1, destination(8), id(1));
    bench.now_ns = 10;
    bench.compute(3, whole(4));
    bench.compute(2, whole(4));
    assert_eq!(due_ns(&bench), Some(110));
    assert!(tick_at(&mut bench, 109).is_empty());
    assert_eq!(notices(&tick_at(&mut bench, 110)), [Notice::Relief { key: key(2) }]);
    assert_eq!(due_ns(&bench), Some(210));
    assert_eq!(notices(&tick_at(&mut bench, 210)), [Notice::Relief { key: key(2) }]);
    bench.abort(2);
    bench.abort(3);
    assert_eq!(bench.machine.counters().relieved, 2);
    assert!(tick_at(&mut bench, 310).is_empty());
}

#[test]
fn more_than_its_share_in_quarantine_is_too_much() {
    let mut bench = bench();
    for request in 1..=3 {
        bench.reserve(request, destination(1), id(1));
        bench.abort(request);
        let report = bench.machine.report();
        assert_eq!((report.quarantined_blocks, report.over_quarantine), (2 * request as u32, request > 2));
    }
}

#[test]
fn a_reservation_may_take_the_last_block_and_no_more() {
    let mut bench = bench();
    assert!(matches!(
        bench.reserve(1, destination(9), id(1))[0],
        MachineAction::Notify { notice: Notice::Reserved { .. } }
    ));
    let said = notices(&bench.reserve(2, destination(1), id(1)));
    let Notice::Refused { key, report } = said[0] else { panic!("{said:?}") };
    // Its reservation was the third command, and the report knows of it.
    assert_eq!((key.request.0, report.seq, bench.machine.counters().refused), (2, AssignmentSeq(3), 1));
}

#[test]
fn commands_of_a_cluster_that_was_replaced_are_counted() {
    let mut bench = bench();
    let abort = |epoch, seq| MachineEvent::Command {
        epoch: Epoch(epoch),
        seq: AssignmentSeq(seq),
        command: Command::Abort { key: key(1) },
    };
    bench.act(&abort(2, 7));
    assert_eq!((bench.machine.epoch(), bench.machine.report().seq), (Epoch(2), AssignmentSeq(7)));
    let late = (Ok(Applied::Late), Vec::new());
    assert_eq!(bench.handle(&abort(1, 9)), late);
    assert_eq!(bench.handle(&MachineEvent::Registered { epoch: Epoch(1) }), late);
    assert_eq!((bench.machine.counters().stale, bench.machine.report().seq), (2, AssignmentSeq(7)));
    bench.act(&MachineEvent::Registered { epoch: Epoch(2) });
    assert_eq!(bench.machine.report().seq, AssignmentSeq(7), "the same Cluster counts on");
    bench.act(&MachineEvent::Registered { epoch: Epoch(3) });
    assert_eq!(bench.machine.report().seq, AssignmentSeq(0), "another counts anew");
}

#[test]
fn a_pool_says_what_is_missing() {
    let (mut pool, mut table) = (BlockPool::new(3), BlockTable::default());
    assert!(table.is_empty());
    pool.allocate(2, &mut table).unwrap();
    assert!(!table.is_empty());
    let error = pool.allocate(2, &mut table).unwrap_err();
    assert_eq!(error.to_string(), "2 blocks wanted, 1 free");
}
