//! The machine at the other end of the leg's handoff is gone.

use splitcore_core::leg::{Command, Compute, Inbound, Outbound};

use crate::failures::Failure;
use crate::scenes::{Books, Scene, scenes};

/// The Cluster hears of the loss before the machines, and after.
fn lost(test: &str) -> impl Iterator<Item = (Scene, bool)> {
    scenes(Failure::PeerLost, test).into_iter().flat_map(|scene| [(scene.clone(), true), (scene, false)])
}

fn lose_peer(scene: &mut Scene, cluster_first: bool) {
    scene.rig.lose(scene.peer.unwrap(), cluster_first);
}

#[test]
fn a_source_sends_elsewhere() {
    for (mut scene, cluster_first) in lost("peer_lost::a_source_sends_elsewhere") {
        let (before, blocks) = (scene.books(), scene.blocks());
        lose_peer(&mut scene, cluster_first);
        assert_eq!(scene.books(), Books { faults: before.faults + 1, resent: before.resent + 1, ..before });
        assert_eq!(scene.blocks(), blocks);
        assert_eq!(scene.told(|command| matches!(command, Command::Reserve { .. })), [3]);
        assert_eq!(scene.told(|command| matches!(command, Command::Send { to, .. } if to.index == 3)), [0]);
        let nothing_is_on_its_way = scene.rig.transfers.iter().all(|transfer| transfer.put.to.index == 3);
        assert!(nothing_is_on_its_way);
        scene.heal();
    }
}

#[test]
fn a_stopping_transfer_is_over() {
    for (mut scene, cluster_first) in lost("peer_lost::a_stopping_transfer_is_over") {
        let (before, blocks) = (scene.books(), scene.blocks());
        lose_peer(&mut scene, cluster_first);
        scene.rig.settle();
        assert_eq!((scene.books(), scene.blocks()), (before, blocks));
        let now: Vec<u32> = scene.rig.transfers.iter().map(|transfer| transfer.put.to.index).collect();
        assert_eq!((now, scene.state().unwrap().outbound), (vec![3], Outbound::Sending));
        scene.heal();
    }
}

#[test]
fn nobody_reads_a_closing_leg_any_more() {
    for (mut scene, cluster_first) in lost("peer_lost::nobody_reads_a_closing_leg_any_more") {
        let (before, in_pass) = (scene.books(), scene.state().unwrap().compute == Compute::Prefilling);
        lose_peer(&mut scene, cluster_first);
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
fn kv_handed_to_a_lost_machine_costs_the_attempt() {
    for (mut scene, cluster_first) in lost("peer_lost::kv_handed_to_a_lost_machine_costs_the_attempt") {
        let (before, blocks) = (scene.books(), scene.blocks());
        let client = scene.rig.client[&scene.request()];
        lose_peer(&mut scene, cluster_first);
        scene.rig.settle();
        assert_eq!(scene.books(), Books { attempt: 2, faults: before.faults + 1, ..before });
        assert_eq!((scene.resumed(), scene.blocks()), (Some(client), blocks));
        scene.rig.pass(scene.at);
        assert!(!scene.is_here());
        scene.heal();
    }
}

#[test]
fn a_destination_whose_source_is_lost_is_given_up() {
    for (mut scene, cluster_first) in lost("peer_lost::a_destination_whose_source_is_lost_is_given_up") {
        let (before, blocks) = (scene.books(), scene.blocks());
        let source = scene.rig.id(scene.peer.unwrap());
        scene.rig.kill(source.index);
        if cluster_first {
            let event = splitcore_core::event::ClusterEvent::Lose { machine: source };
            scene.rig.tell_cluster(&event).unwrap();
            scene.rig.settle();
            assert_eq!(scene.state().unwrap().inbound, Inbound::Draining, "who knows that nobody writes?");
            assert_eq!(Some(scene.rig.machine(scene.at).pool().quarantined()), blocks);
            scene.rig.tell_peers_lost(source);
        } else {
            scene.rig.tell_peers_lost(source);
            assert_eq!(scene.blocks(), blocks);
            let event = splitcore_core::event::ClusterEvent::Lose { machine: source };
            scene.rig.tell_cluster(&event).unwrap();
            scene.rig.settle();
        }
        assert!(!scene.is_here());
        assert_eq!(scene.books(), Books { attempt: 2, faults: before.faults + 1, ..before });
        scene.heal();
    }
}

#[test]
fn what_has_landed_needs_no_source() {
    for (mut scene, cluster_first) in lost("peer_lost::what_has_landed_needs_no_source") {
        let (before, blocks) = (scene.books(), scene.blocks());
        lose_peer(&mut scene, cluster_first);
        scene.rig.settle();
        assert_eq!((scene.books(), scene.blocks()), (before, blocks));
        scene.heal();
        assert_eq!(scene.rig.cluster.counters().faults, before.faults);
    }
}

#[test]
fn a_lost_writer_ends_the_quarantine() {
    for (mut scene, cluster_first) in lost("peer_lost::a_lost_writer_ends_the_quarantine") {
        assert!(scene.rig.machine(scene.at).pool().quarantined() > 0);
        lose_peer(&mut scene, cluster_first);
        assert!(!scene.is_here());
        assert_eq!(scene.rig.machine(scene.at).pool().quarantined(), 0);
        scene.heal();
    }
}
