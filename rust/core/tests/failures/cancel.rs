//! The client gives the request up: it is over at once; the blocks follow when nobody touches them.

use splitcore_core::event::Outcome;
use splitcore_core::leg::{Compute, Inbound};

use crate::failures::Failure;
use crate::rig::Link;
use crate::scenes::{Scene, scenes};

fn cancelled(test: &str, hold: bool) -> Vec<Scene> {
    let cancel = |mut scene: Scene| {
        let (request, live) = (scene.request(), scene.rig.cluster.live_requests());
        if hold {
            scene.rig.held.insert(Link::Peer(0, scene.at));
        }
        scene.strike(Failure::Cancel);
        assert_eq!(scene.rig.ended[&request], Outcome::Cancelled);
        assert_eq!(scene.rig.cluster.live_requests(), live - 1);
        scene
    };
    scenes(Failure::Cancel, test).into_iter().map(cancel).collect()
}

#[test]
fn what_nobody_touches_is_freed_at_once() {
    for mut scene in cancelled("cancel::what_nobody_touches_is_freed_at_once", false) {
        scene.rig.settle();
        assert!(!scene.is_here());
        scene.heal();
    }
}

#[test]
fn what_is_in_a_pass_is_freed_with_its_end() {
    for mut scene in cancelled("cancel::what_is_in_a_pass_is_freed_with_its_end", false) {
        let blocks = scene.blocks();
        scene.rig.settle();
        assert_eq!(scene.blocks(), blocks);
        scene.rig.pass(scene.at);
        assert!(!scene.is_here());
        scene.heal();
    }
}

#[test]
fn what_is_read_is_freed_when_the_reader_lets_go() {
    for mut scene in cancelled("cancel::what_is_read_is_freed_when_the_reader_lets_go", false) {
        let blocks = scene.blocks();
        scene.rig.settle();
        assert_eq!(scene.blocks(), blocks);
        scene.rig.free_transfers();
        scene.rig.fence(scene.key);
        assert_eq!(scene.is_here(), scene.state().is_some_and(|state| state.compute == Compute::Prefilling));
        scene.let_fenced_pass();
        assert!(!scene.is_here());
        scene.heal();
    }
}

#[test]
fn what_may_be_written_is_freed_when_the_writer_says_so() {
    for mut scene in cancelled("cancel::what_may_be_written_is_freed_when_the_writer_says_so", true) {
        let blocks = scene.blocks();
        scene.rig.settle();
        assert_eq!((scene.state().unwrap().inbound, scene.blocks()), (Inbound::Draining, blocks));
        assert_eq!(Some(scene.rig.machine(scene.at).pool().quarantined()), blocks);
        scene.rig.held.clear();
        scene.rig.settle();
        scene.let_go();
        assert!(!scene.is_here());
        scene.heal();
    }
}
