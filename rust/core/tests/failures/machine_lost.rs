//! The machine of the leg is gone; or counts as gone, which comes to the same.

use splitcore_core::event::Outcome;
use splitcore_core::leg::{Command, LegState};
use splitcore_core::placement::Placement;

use crate::failures::Failure;
use crate::scenes::{Books, Scene, key, land, layer_wise, leg_in, scenes};

/// The Cluster hears of the loss before the machines, and after.
fn lost(test: &str) -> impl Iterator<Item = (Scene, bool)> {
    scenes(Failure::MachineLost, test).into_iter().flat_map(|scene| [(scene.clone(), true), (scene, false)])
}

pub(crate) fn given_up_is_no_loss(mut scene: Scene, lose: impl FnOnce(&mut Scene)) {
    let before = scene.books();
    assert!(scene.is_given_up());
    let on = scene.rig.placed.last().and_then(Placement::prompt).unwrap().index;
    lose(&mut scene);
    // Where the next attempt was on the very machine, that one is lost with it.
    let next_is_lost = before.attempt > scene.key.attempt.0 && on == scene.at;
    assert_eq!(scene.books().faults, before.faults + u64::from(next_is_lost));
    assert!(!scene.is_given_up(), "awaited of a machine that is gone");
    scene.heal();
}

pub(crate) fn handed_over_is_no_loss(mut scene: Scene, lose: impl FnOnce(&mut Scene)) {
    let before = scene.books();
    lose(&mut scene);
    assert_eq!(scene.books(), before);
    // But for what was asked, of which another machine is to have a copy.
    assert_eq!(scene.told(|command| !matches!(command, Command::Keep { .. })), []);
    assert_eq!(scene.told(|command| matches!(command, Command::Keep { .. })).len(), 1);
    scene.heal();
}

pub(crate) fn destination_is_replaced(mut scene: Scene, lose: impl FnOnce(&mut Scene)) {
    let before = scene.books();
    let blocks = scene.rig.leg(0, scene.key).map(|(_, blocks)| blocks);
    lose(&mut scene);
    let expected = Books { faults: before.faults + 1, resent: before.resent + 1, ..before };
    assert_eq!(scene.books(), expected);
    assert_eq!(scene.rig.leg(0, scene.key).map(|(_, blocks)| blocks), blocks, "the source keeps its blocks");
    assert_eq!(scene.told(|command| matches!(command, Command::Reserve { .. })), [3]);
    assert_eq!(scene.told(|command| matches!(command, Command::Send { to, .. } if to.index == 3)), [0]);
    assert_eq!(scene.told(|command| matches!(command, Command::Compute { .. })), []);
    scene.heal();
}

pub(crate) fn only_kv_lost(mut scene: Scene, lose: impl FnOnce(&mut Scene)) {
    let before = scene.books();
    let others = scene.rig.cluster.live_requests() as u64 - 1;
    let client = scene.rig.client[&scene.request()];
    lose(&mut scene);
    scene.rig.settle();
    let after = scene.books();
    assert_eq!((after.attempt, after.resent, after.relieved), (2, before.resent, before.relieved));
    assert!((1..=1 + others).contains(&(after.faults - before.faults)), "{before:?} {after:?}");
    assert_eq!(scene.resumed(), Some(client), "what the client has is part of the prompt");
    assert_eq!(scene.peer.and_then(|peer| scene.rig.leg(peer, scene.key)), None, "the other end is freed");
    scene.heal();
}

#[test]
fn a_leg_given_up_is_no_loss() {
    for (scene, cluster_first) in lost("machine_lost::a_leg_given_up_is_no_loss") {
        given_up_is_no_loss(scene, |scene| scene.rig.lose(scene.at, cluster_first));
    }
}

#[test]
fn a_source_that_has_handed_over_is_no_loss() {
    for (scene, cluster_first) in lost("machine_lost::a_source_that_has_handed_over_is_no_loss") {
        handed_over_is_no_loss(scene, |scene| scene.rig.lose(scene.at, cluster_first));
    }
}

#[test]
fn a_source_lost_before_the_cluster_hears_of_the_landing_costs_the_attempt() {
    let mut rig = layer_wise();
    land(&mut rig);
    let mut scene = Scene { rig, at: 0, key: key(1), peer: Some(2) };
    scene.rig.lose(0, true);
    assert_eq!((scene.books().attempt, scene.books().faults), (2, 1));
    scene.heal();
}

#[test]
fn a_destination_without_its_kv_is_replaced() {
    for (scene, cluster_first) in lost("machine_lost::a_destination_without_its_kv_is_replaced") {
        destination_is_replaced(scene, |scene| scene.rig.lose(scene.at, cluster_first));
    }
}

#[test]
fn the_only_kv_lost_costs_the_attempt() {
    for (scene, cluster_first) in lost("machine_lost::the_only_kv_lost_costs_the_attempt") {
        only_kv_lost(scene, |scene| scene.rig.lose(scene.at, cluster_first));
    }
}

#[test]
fn a_fault_too_many_ends_the_request() {
    let mut scene = leg_in(LegState::QUEUED);
    for fault in 1..=4 {
        let on = scene.rig.placed.last().and_then(Placement::prompt).unwrap().index;
        assert_eq!((scene.books().faults, scene.rig.ended.len()), (fault - 1, 0));
        scene.rig.now_ns += 1;
        scene.rig.lose(on, true);
        scene.rig.settle();
        scene.rig.boot(on);
        scene.rig.settle();
    }
    assert_eq!(scene.rig.ended[&1], Outcome::AttemptsMax);
    scene.heal();
}
