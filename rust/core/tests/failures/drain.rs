//! The machine is to take no more work: what it has it brings to its end.

use splitcore_core::event::Arrival;

use crate::failures::Failure;
use crate::scenes::scenes;

#[test]
fn a_leg_on_a_draining_machine_goes_on_to_its_end() {
    for mut scene in scenes(Failure::Drain, "drain::a_leg_on_a_draining_machine_goes_on_to_its_end") {
        let (before, state, blocks) = (scene.books(), scene.state(), scene.blocks());
        scene.strike(Failure::Drain);
        assert_eq!((scene.books(), scene.state(), scene.blocks()), (before, state, blocks));
        assert!(!scene.rig.is_drained(scene.at));
        for request in 100..110 {
            let placement = scene.rig.cluster.dry_run(&Arrival::new(request, 1, 1)).unwrap().unwrap();
            let on = [placement.prompt(), placement.token()].map(|machine| machine.unwrap().index);
            assert!(!on.contains(&scene.at));
        }
        scene.rig.free_transfers();
        scene.rig.run();
        scene.rig.wait_ns(2 * scene.rig.machine(scene.at).config().report_interval_ns);
        assert!(scene.rig.is_drained(scene.at));
        let after = scene.rig.cluster.counters();
        assert_eq!((after.faults, after.relieved), (before.faults, before.relieved));
        scene.heal();
    }
}
