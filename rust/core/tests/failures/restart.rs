//! The Cluster dies, and the next one learns from the machines what there is.

use splitcore_core::cluster::MachineState;
use splitcore_core::error::Rejection;
use splitcore_core::event::Arrival;
use splitcore_core::leg::{Compute, Inbound, LegState, Outbound};

use crate::failures::Failure;
use crate::scenes::{leg_in, scenes};
use crate::strike::GRACE_NS;

#[test]
fn a_leg_goes_on_under_the_next_cluster() {
    for scene in scenes(Failure::ClusterRestart, "restart::a_leg_goes_on_under_the_next_cluster") {
        for steps in [0, 2, 5, 10] {
            let mut scene = scene.clone();
            let before = scene.books().attempt;
            scene.rig.restart(GRACE_NS);
            let turned_away = scene.rig.cluster.dry_run(&Arrival::new(99, 1, 1)).unwrap();
            assert_eq!(turned_away, Err(Rejection::Recovering));
            scene.rig.steps(steps);
            (0..4).for_each(|at| scene.rig.register_if_up(at));
            if steps == 0 {
                assert_eq!(scene.books().attempt, before);
                assert_eq!(scene.rig.cluster.counters().adopted, scene.rig.client.len() as u64);
            }
            scene.rig.settle();
            scene.heal();
            assert_eq!((scene.rig.cluster.counters().faults, scene.rig.given_again), (0, 0));
        }
    }
}

#[test]
fn a_leg_given_up_closes_under_the_next_cluster() {
    for scene in scenes(Failure::ClusterRestart, "restart::a_leg_given_up_closes_under_the_next_cluster") {
        let mut scene = scene;
        let before = scene.books().attempt;
        scene.strike(Failure::ClusterRestart);
        scene.rig.settle();
        assert!(scene.is_here() && scene.is_given_up());
        assert_eq!(scene.books().attempt, before);
        scene.let_go();
        assert!(!scene.is_here() && !scene.is_given_up());
        scene.heal();
        assert_eq!(scene.rig.given_again, 0);
    }
}

#[test]
fn a_leg_whose_machine_alone_comes_back_is_completed() {
    for mut scene in scenes(Failure::ClusterRestart, "restart::a_leg_goes_on_under_the_next_cluster") {
        scene.rig.restart(GRACE_NS);
        scene.rig.register(scene.at).unwrap();
        scene.rig.settle();
        for at in (0..4).filter(|&at| at != scene.at) {
            let machine = scene.rig.id(at);
            scene.rig.kill(at);
            scene.rig.tell_peers_lost(machine);
            scene.rig.boot(at);
        }
        scene.rig.settle();
        assert!(scene.attempt().is_some());
        scene.heal();
    }
}

#[test]
fn reports_count_from_the_new_cluster_on() {
    let state = LegState { compute: Compute::Held, outbound: Outbound::Sending, ..LegState::QUEUED };
    let mut scene = leg_in(state);
    scene.strike(Failure::ClusterRestart);
    scene.rig.settle();
    assert!(scene.rig.cluster.load(0).unwrap().kv_tokens > 0);
    scene.rig.run();
    scene.rig.wait_ns(2 * scene.rig.machine(0).config().report_interval_ns);
    assert_eq!(scene.rig.cluster.load(0).unwrap().kv_tokens, 0);
    scene.heal();
}

#[test]
fn a_machine_over_its_quarantine_limit_registers_outside_its_pool() {
    let state = LegState { inbound: Inbound::Draining, ..LegState::RESERVED };
    let mut scene = leg_in(state);
    scene.strike(Failure::ClusterRestart);
    assert_eq!(scene.rig.cluster.load(2).unwrap().state, MachineState::Quarantined);
    scene.heal();
}
