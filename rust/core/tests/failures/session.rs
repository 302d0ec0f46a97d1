//! The session between the leg's machine and the Cluster breaks: the machine comes back in time, or too late.

use splitcore_core::cluster::MachineState;
use splitcore_core::event::MachineEvent;
use splitcore_core::leg::{Command, Compute, LegState, Outbound};

use crate::failures::Failure;
use crate::machine_lost::{
    destination_is_replaced, given_up_is_no_loss, handed_over_is_no_loss, only_kv_lost,
};
use crate::rig::Link;
use crate::scenes::{leg_in, scenes};

#[test]
fn a_leg_goes_on_through_a_lost_session() {
    for scene in scenes(Failure::SessionLost, "session::a_leg_goes_on_through_a_lost_session") {
        // Nothing happens meanwhile, a little, or a lot.
        for steps in [0, 1, 3, 6, 12] {
            let mut scene = scene.clone();
            let before = scene.books();
            scene.rig.break_session(scene.at);
            let load = scene.rig.cluster.load(scene.at).unwrap();
            assert_eq!(load.state, MachineState::Away);
            scene.rig.steps(steps);
            assert_eq!(scene.told(|_| true).iter().filter(|&&to| to == scene.at).count(), 0);
            scene.rig.register(scene.at).unwrap();
            if scene.is_here() {
                let confirm = |command: &Command| matches!(command, Command::Confirm { .. });
                assert!(scene.told(confirm).contains(&scene.at));
            }
            scene.rig.settle();
            if scene.attempt().is_some() {
                assert_eq!(scene.books(), before);
            }
            scene.heal();
            let after = scene.rig.cluster.counters();
            assert_eq!((after.faults, after.relieved), (before.faults, before.relieved));
        }
    }
}

#[test]
fn a_leg_given_up_closes_with_the_next_session() {
    for scene in scenes(Failure::SessionLost, "session::a_leg_given_up_closes_with_the_next_session") {
        let mut meanwhile = scene.clone();
        meanwhile.rig.break_session(scene.at);
        meanwhile.let_go();
        assert!(!meanwhile.is_here() && meanwhile.is_given_up());
        meanwhile.rig.register(scene.at).unwrap();
        assert!(!meanwhile.is_given_up());
        meanwhile.heal();

        let mut later = scene;
        later.rig.break_session(later.at);
        later.rig.register(later.at).unwrap();
        later.rig.settle();
        assert!(later.is_here() && later.is_given_up());
        later.let_go();
        assert!(!later.is_here() && !later.is_given_up());
        later.heal();
    }
}

#[test]
fn a_leg_that_lets_go_between_its_claim_and_the_answer_closes() {
    let state = LegState { compute: Compute::Done, outbound: Outbound::Draining, ..LegState::QUEUED };
    let mut scene = leg_in(state);
    scene.rig.break_session(0);
    scene.rig.register(0).unwrap();
    // It is registered, and does not know it yet: what it says now goes nowhere.
    scene.rig.fence(scene.key);
    assert!(!scene.is_here() && scene.is_given_up());
    scene.rig.settle();
    assert!(!scene.is_given_up());
    scene.heal();
}

#[test]
fn a_session_begins_with_a_report() {
    let mut scene = leg_in(LegState::QUEUED);
    scene.rig.break_session(0);
    scene.rig.register(0).unwrap();
    // What it reports before it hears of its session is lost, and must not count as told.
    scene.rig.tick(0);
    scene.rig.pass(0);
    let held = scene.rig.machine(0).report().kv_tokens;
    scene.rig.settle();
    assert_eq!(scene.rig.cluster.load(0).unwrap().kv_tokens, held);
    scene.heal();
}

#[test]
fn a_leg_given_up_expires_unnoticed() {
    for scene in scenes(Failure::Expired, "session::a_leg_given_up_expires_unnoticed") {
        given_up_is_no_loss(scene, |scene| scene.rig.expire(scene.at));
    }
}

#[test]
fn a_source_that_has_handed_over_may_expire() {
    for scene in scenes(Failure::Expired, "session::a_source_that_has_handed_over_may_expire") {
        handed_over_is_no_loss(scene, |scene| scene.rig.expire(scene.at));
    }
}

#[test]
fn an_expired_destination_is_replaced() {
    for scene in scenes(Failure::Expired, "session::an_expired_destination_is_replaced") {
        destination_is_replaced(scene, |scene| {
            scene.rig.paused.insert(0);
            scene.rig.expire(scene.at);
            scene.rig.paused.clear();
        });
    }
}

#[test]
fn an_expired_machine_with_the_only_kv_costs_the_attempt() {
    for scene in scenes(Failure::Expired, "session::an_expired_machine_with_the_only_kv_costs_the_attempt") {
        only_kv_lost(scene, |scene| scene.rig.expire(scene.at));
    }
}

#[test]
fn a_machine_back_in_time_is_not_lost() {
    let mut scene = leg_in(LegState::QUEUED);
    scene.rig.break_session(0);
    scene.rig.paused.insert(0);
    scene.rig.wait_ns(scene.rig.cluster.config().rejoin_limit_ns - 1);
    scene.rig.paused.clear();
    assert_eq!(scene.rig.register(0), Ok(()));
    scene.rig.wait_ns(1);
    // Its request has gone on elsewhere meanwhile, and is ahead there.
    assert_eq!((scene.books().attempt, scene.books().faults), (2, 0));
    scene.heal();
}

#[test]
fn a_machine_without_a_cluster_for_too_long_drops_what_it_has() {
    let mut scene = leg_in(LegState { compute: Compute::Held, ..LegState::QUEUED });
    scene.rig.tell(0, &MachineEvent::ClusterLost);
    let limit_ns = scene.rig.machine(0).config().orphan_limit_ns.unwrap();
    scene.rig.wait_machine_ns(0, limit_ns - 1);
    assert!(scene.is_here());
    scene.rig.wait_machine_ns(0, 1);
    assert!(!scene.is_here());
}

#[test]
fn a_failure_that_the_cluster_has_heard_of_is_not_told_for_the_next_destination() {
    let state = LegState { compute: Compute::Held, outbound: Outbound::Sending, ..LegState::QUEUED };
    let mut scene = leg_in(state);
    scene.rig.fail(scene.key);
    scene.rig.held.insert(Link::Down(0));
    scene.rig.settle();
    let (before, named) = (scene.books(), scene.told(|command| matches!(command, Command::Send { .. })));
    assert_eq!((before.faults, before.resent, named), (1, 1, vec![0]));
    // The word which destination is the next one is lost.
    scene.rig.break_session(0);
    scene.rig.held.clear();
    scene.rig.register(0).unwrap();
    scene.rig.settle();
    assert_eq!(scene.books(), before);
    scene.heal();
    assert_eq!(scene.rig.cluster.counters().faults, 1);
}

#[test]
fn a_failure_that_the_cluster_has_not_heard_of_is_told_again() {
    let state = LegState { compute: Compute::Held, outbound: Outbound::Sending, ..LegState::QUEUED };
    let mut scene = leg_in(state);
    scene.rig.fail(scene.key);
    scene.rig.break_session(0);
    scene.rig.register(0).unwrap();
    scene.rig.settle();
    assert_eq!((scene.books().faults, scene.books().resent), (1, 1));
    scene.heal();
}
