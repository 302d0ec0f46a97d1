//! One of two processes is killed.

use splitcore_core::id::MachineId;
use splitcore_transport::Backend;
use splitcore_wire::message::{GrantBody, PeerAddress};

use crate::kit::{self, BOTH, LAYERS, Machine, Other, Words, key, options};

const TOKENS: u32 = 24;

fn words(pairs: &[(&str, &str)]) -> Words {
    pairs.iter().map(|&(word, value)| (word.to_owned(), value.to_owned())).collect()
}

fn backend_of(words: &Words) -> Backend {
    if words["backend"] == "shm" { Backend::Shm } else { Backend::Tcp }
}

fn there(words: &Words) -> PeerAddress {
    let machine = MachineId { index: 1, incarnation: 1 };
    PeerAddress { machine, peer: String::new(), transfer: words["transfer"].clone() }
}

/// A child is machine 1. It says how it is reached, then either grants leg 1, or is granted leg 2 and puts some layers.
#[test]
fn the_other_process_does_as_it_is_told() {
    if !kit::is_child() {
        return;
    }
    let Some(begin) = kit::told() else { return };
    let mut machine = Machine::start(1, options(backend_of(&begin)));
    let parent = PeerAddress {
        machine: MachineId { index: 0, incarnation: 1 },
        peer: String::new(),
        transfer: begin["transfer"].clone(),
    };
    let table = machine.table(0, TOKENS);
    let grant = machine.mover.open(key(1), &parent, &table, TOKENS).unwrap();
    kit::tell(&words(&[("transfer", machine.mover.transfer()), ("grant", &grant)]));
    while let Some(told) = kit::told() {
        let body = GrantBody { blocks: vec![], transfer: told["grant"].clone() };
        machine.mover.granted(key(2), &parent, &body);
        let mut follow = machine.mover.follow(key(2), parent.machine, &table, TOKENS);
        let layers: u16 = told["layers"].parse().unwrap();
        for layer in 0..layers {
            machine.fill(&table, layer, TOKENS, 2);
            follow.put_layer(layer);
        }
        if layers == LAYERS {
            machine.done(key(2));
        }
        kit::tell(&words(&[("put", "")]));
        // It is killed with it.
        std::mem::forget(follow);
    }
}

fn other(backend: Backend, here: &Machine) -> (Other, PeerAddress, String) {
    let mut other = Other::start();
    let name = if backend == Backend::Shm { "shm" } else { "tcp" };
    other.say(&words(&[("backend", name), ("transfer", &here.address.transfer)]));
    let said = other.hear();
    let (address, grant) = (there(&said), said["grant"].clone());
    (other, address, grant)
}

#[test]
fn a_destination_that_is_killed_fails_what_goes_there_once_and_is_lost() {
    for backend in BOTH {
        for layers in [0, 1, LAYERS - 1] {
            let mut source = Machine::start(0, options(backend));
            let (mut other, address, transfer) = other(backend, &source);
            let table = source.table(0, TOKENS);
            source.mover.granted(key(1), &address, &GrantBody { blocks: vec![], transfer });
            let mut follow = source.mover.follow(key(1), address.machine, &table, TOKENS);
            for layer in 0..layers {
                source.fill(&table, layer, TOKENS, 1);
                follow.put_layer(layer);
            }
            other.kill();
            // It may be seen to be dead before the pass goes on, or by it.
            for layer in layers..LAYERS - 1 {
                follow.put_layer(layer);
            }
            source.failed(key(1));
            source.lost(address.machine);
            drop(follow);
            source.mover.stop(key(1));
            assert_eq!(source.finish(), [], "{backend} after {layers} layers");
        }
    }
}

#[test]
fn a_source_that_is_killed_is_lost_and_its_blocks_are_free_again() {
    for backend in BOTH {
        for layers in [1, LAYERS - 1, LAYERS] {
            let mut destination = Machine::start(0, options(backend));
            let (mut other, address, _) = other(backend, &destination);
            let table = destination.table(0, TOKENS);
            let grant = destination.mover.open(key(2), &address, &table, TOKENS).unwrap();
            // One more, so that there is something to miss also where all of the first has landed.
            let rest = destination.table(30, TOKENS);
            destination.mover.open(key(3), &address, &rest, TOKENS).unwrap();
            other.say(&words(&[("grant", &grant), ("layers", &layers.to_string())]));
            other.hear();
            if layers == LAYERS {
                destination.until_landed(key(2));
            }
            other.kill();
            destination.lost(address.machine);
            for key in [key(2), key(3)] {
                destination.mover.abort(key);
                destination.fenced(key);
            }
            if layers == LAYERS {
                destination.verify(&table, TOKENS, 2);
            }
            assert_eq!(destination.mover.slots_in_use(), 0);
            assert_eq!(destination.finish(), [], "{backend} after {layers} layers");
        }
    }
}
