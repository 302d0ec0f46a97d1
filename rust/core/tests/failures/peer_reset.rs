//! The session between the two machines of the handoff breaks; both live on.

use splitcore_core::event::MachineAction;
use splitcore_core::leg::{Inbound, Peer};

use crate::failures::Failure;
use crate::scenes::scenes;

#[test]
fn a_destination_says_again_where_it_stands() {
    for mut scene in scenes(Failure::PeerReset, "peer_reset::a_destination_says_again_where_it_stands") {
        let (before, blocks, key) = (scene.books(), scene.blocks(), scene.key);
        let message = match scene.state().unwrap().inbound {
            Inbound::Ready => Peer::Landed { key },
            Inbound::Draining => Peer::Abort { key },
            _ => Peer::Grant { key, blocks: blocks.unwrap() },
        };
        scene.strike(Failure::PeerReset);
        let to = scene.rig.id(scene.peer.unwrap());
        let said = scene.rig.said.iter().filter(|(at, _)| *at == scene.at).map(|(_, action)| *action);
        let about_it = |action: &MachineAction| match *action {
            MachineAction::Peer { message: Peer::Landed { key: of } | Peer::Abort { key: of }, .. }
            | MachineAction::Peer { message: Peer::Grant { key: of, .. }, .. } => of == key,
            _ => false,
        };
        let said: Vec<MachineAction> = said.filter(about_it).collect();
        assert_eq!(said, [MachineAction::Peer { to, message }]);
        assert_eq!((scene.books(), scene.blocks()), (before, blocks));
        scene.heal();
        assert_eq!(scene.rig.cluster.counters().faults, before.faults);
    }
}

#[test]
fn a_source_hears_again_what_it_missed() {
    for mut scene in scenes(Failure::PeerReset, "peer_reset::a_source_hears_again_what_it_missed") {
        let (before, blocks) = (scene.books(), scene.blocks());
        scene.strike(Failure::PeerReset);
        assert_eq!(scene.rig.said.iter().filter(|(at, _)| *at == scene.at).count(), 0);
        assert_eq!((scene.books(), scene.blocks()), (before, blocks));
        scene.heal();
        let after = scene.rig.cluster.counters();
        assert_eq!(
            (after.faults, after.resent, after.relieved),
            (before.faults, before.resent, before.relieved)
        );
    }
}
