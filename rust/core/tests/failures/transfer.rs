//! The transport gives a transfer up, or neither goes on nor gives it up.

use splitcore_core::cluster::MachineState;
use splitcore_core::config::SECOND_NS;
use splitcore_core::leg::{Command, Compute, Inbound, Outbound};

use crate::failures::Failure;
use crate::rig::{Link, TRANSFER_LIMIT_NS};
use crate::scenes::{Books, Scene, scenes};

fn failed(test: &str) -> Vec<Scene> {
    scenes(Failure::TransferFailed, test)
}

fn stalled(test: &str) -> Vec<Scene> {
    scenes(Failure::TransferStalled, test)
}

/// Blocks of a reservation are set aside long before the bytes are on their way.
fn begin_transfer(scene: &mut Scene) {
    if scene.rig.transfers.is_empty() {
        scene.rig.tick(0);
        scene.rig.pass(0);
        scene.rig.settle();
    }
    assert_eq!(scene.rig.transfers.len(), 1);
}

fn stall(scene: &mut Scene) {
    scene.rig.transfers[0].stalled = true;
}

fn free(scene: &Scene, at: u32) -> bool {
    let pool = scene.rig.machine(at).pool();
    pool.free() == pool.total()
}

#[test]
fn a_failed_transfer_goes_elsewhere() {
    for mut scene in failed("transfer::a_failed_transfer_goes_elsewhere") {
        let (before, blocks) = (scene.books(), scene.blocks());
        scene.strike(Failure::TransferFailed);
        assert_eq!(scene.state().unwrap().outbound, Outbound::None);
        scene.rig.settle();
        assert_eq!(scene.books(), Books { faults: before.faults + 1, resent: before.resent + 1, ..before });
        assert_eq!(scene.blocks(), blocks);
        assert!(free(&scene, 2), "the destination has freed its own");
        assert_eq!(scene.told(|command| matches!(command, Command::Reserve { .. })), [3]);
        scene.heal();
    }
}

#[test]
fn failing_ends_a_stop() {
    for mut scene in failed("transfer::failing_ends_a_stop") {
        let (before, blocks) = (scene.books(), scene.blocks());
        scene.strike(Failure::TransferFailed);
        scene.rig.settle();
        assert_eq!((scene.books(), scene.blocks()), (before, blocks));
        assert!(free(&scene, 2), "the destination has freed its own");
        let now: Vec<u32> = scene.rig.transfers.iter().map(|transfer| transfer.put.to.index).collect();
        assert_eq!(now, [3]);
        scene.heal();
    }
}

#[test]
fn failing_lets_go_of_a_closing_leg() {
    for mut scene in failed("transfer::failing_lets_go_of_a_closing_leg") {
        let (before, in_pass) = (scene.books(), scene.state().unwrap().compute == Compute::Prefilling);
        scene.strike(Failure::TransferFailed);
        assert_eq!(scene.is_here(), in_pass);
        if in_pass {
            scene.rig.pass(scene.at);
            assert!(!scene.is_here());
        }
        scene.rig.settle();
        assert!(!scene.is_given_up());
        assert_eq!(scene.books(), before);
        scene.heal();
    }
}

#[test]
fn a_destination_of_a_failed_transfer_is_given_up() {
    for mut scene in failed("transfer::a_destination_of_a_failed_transfer_is_given_up") {
        begin_transfer(&mut scene);
        let (before, blocks) = (scene.books(), scene.blocks());
        scene.rig.held.insert(Link::Peer(0, scene.at));
        scene.strike(Failure::TransferFailed);
        scene.rig.settle();
        assert_eq!(scene.state().unwrap().inbound, Inbound::Draining);
        assert_eq!(Some(scene.rig.machine(scene.at).pool().quarantined()), blocks);
        scene.rig.held.clear();
        scene.rig.settle();
        assert!(free(&scene, scene.at));
        assert_eq!(scene.books(), Books { faults: before.faults + 1, resent: before.resent + 1, ..before });
        scene.heal();
    }
}

#[test]
fn failing_ends_the_quarantine() {
    for mut scene in failed("transfer::failing_ends_the_quarantine") {
        let before = scene.books();
        scene.strike(Failure::TransferFailed);
        scene.rig.settle();
        assert!(free(&scene, scene.at));
        assert_eq!(scene.books(), before);
        scene.heal();
    }
}

#[test]
fn a_stalled_transfer_is_stopped_and_then_routed_around() {
    for mut scene in stalled("transfer::a_stalled_transfer_is_stopped_and_then_routed_around") {
        let (before, blocks) = (scene.books(), scene.blocks());
        stall(&mut scene);
        if scene.state().unwrap().compute == Compute::Prefilling {
            scene.rig.wait_ns(2 * TRANSFER_LIMIT_NS);
            assert_eq!(scene.state().unwrap().outbound, Outbound::Sending, "it can end only after the pass");
            scene.rig.pass(scene.at);
        }
        scene.rig.wait_ns(TRANSFER_LIMIT_NS - 1);
        assert_eq!(scene.books(), before);
        scene.rig.wait_ns(1);
        let sent = Books { faults: before.faults + 1, resent: before.resent + 1, ..before };
        assert_eq!((scene.books(), scene.blocks()), (sent, blocks));
        assert_eq!(scene.state().unwrap().outbound, Outbound::Draining);
        assert!(scene.rig.machine(2).pool().quarantined() > 0, "the destination keeps its own from use");
        scene.rig.wait_ns(TRANSFER_LIMIT_NS);
        let taken_back = Books { attempt: 2, relieved: before.relieved + 1, ..sent };
        assert_eq!((scene.books(), scene.blocks()), (taken_back, blocks));
        assert_eq!(scene.state().unwrap().compute, Compute::Done);
        scene.heal();
    }
}

#[test]
fn a_stop_that_does_not_come_is_routed_around() {
    for mut scene in stalled("transfer::a_stop_that_does_not_come_is_routed_around") {
        let (before, blocks) = (scene.books(), scene.blocks());
        stall(&mut scene);
        scene.rig.wait_ns(TRANSFER_LIMIT_NS);
        let taken_back = Books { attempt: 2, relieved: before.relieved + 1, ..before };
        assert_eq!((scene.books(), scene.blocks()), (taken_back, blocks));
        scene.let_go();
        assert!(!scene.is_here());
        scene.heal();
    }
}

#[test]
fn a_destination_of_a_stalled_transfer_is_given_up() {
    for mut scene in stalled("transfer::a_destination_of_a_stalled_transfer_is_given_up") {
        begin_transfer(&mut scene);
        let (before, blocks) = (scene.books(), scene.blocks());
        stall(&mut scene);
        scene.rig.wait_ns(TRANSFER_LIMIT_NS);
        assert_eq!(scene.books(), Books { faults: before.faults + 1, resent: before.resent + 1, ..before });
        assert_eq!(scene.state().unwrap().inbound, Inbound::Draining);
        assert_eq!(Some(scene.rig.machine(scene.at).pool().quarantined()), blocks);
        scene.let_go();
        assert!(free(&scene, scene.at));
        scene.heal();
    }
}

#[test]
fn no_clock_frees_what_the_transport_may_touch() {
    for mut scene in stalled("transfer::no_clock_frees_what_the_transport_may_touch") {
        let (before, blocks) = (scene.state(), scene.blocks());
        stall(&mut scene);
        scene.rig.wait_ns(500 * SECOND_NS);
        assert_eq!((scene.state(), scene.blocks()), (before, blocks));
        if scene.at == 2 {
            assert!(scene.rig.machine(2).report().over_quarantine);
            assert_eq!(scene.rig.cluster.load(2).unwrap().state, MachineState::Quarantined);
        }
        scene.let_go();
        assert!(!scene.is_here());
        scene.heal();
    }
}
