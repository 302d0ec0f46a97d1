//! The machine stands still for a while.

use splitcore_core::config::SECOND_NS;
use splitcore_core::leg::{Compute, Outbound};

use crate::failures::Failure;
use crate::rig::TRANSFER_LIMIT_NS;
use crate::scenes::scenes;

#[test]
fn a_leg_goes_on_when_its_machine_does() {
    for scene in scenes(Failure::Paused, "paused::a_leg_goes_on_when_its_machine_does") {
        for steps in [0, 2, 5, 10] {
            let mut scene = scene.clone();
            let (before, state, blocks) = (scene.books(), scene.state(), scene.blocks());
            scene.strike(Failure::Paused);
            scene.rig.steps(steps);
            assert_eq!(scene.blocks(), blocks);
            assert_eq!(scene.state().map(|state| state.compute), state.map(|state| state.compute));
            scene.heal();
            assert_eq!(scene.rig.cluster.counters().faults, before.faults);
        }
    }
}

#[test]
fn a_transfer_that_landed_while_its_source_stood_still_counts() {
    for mut scene in scenes(Failure::Paused, "paused::a_leg_goes_on_when_its_machine_does") {
        let state = scene.state().unwrap();
        if (state.compute, state.outbound) != (Compute::Held, Outbound::Sending) {
            continue;
        }
        scene.rig.paused.insert(0);
        scene.rig.layer(scene.key);
        scene.rig.layer(scene.key);
        scene.rig.settle();
        scene.rig.wait_ns(TRANSFER_LIMIT_NS + SECOND_NS);
        scene.rig.paused.clear();
        // Its clock comes before the word that all has landed.
        scene.rig.tick(0);
        assert_eq!(scene.rig.machine(0).counters().stalled, 1);
        scene.heal();
        assert_eq!((scene.rig.cluster.counters().faults, scene.rig.placed.len()), (0, 1));
    }
}
