//! One of two processes is killed.

use std::time::Duration;

use splitcore_core::id::MachineId;
use splitcore_transport::Backend;
use splitcore_wire::auth::Key;
use splitcore_wire::message::{GrantBody, PeerAddress};
use splitcore_worker::mover::MoverEvent;

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
    PeerAddress { machine, peer: String::new(), transfer: words["transfer"].clone(), key: Key::default() }
}

/// A child is machine 1. It says how it is reached, then either grants leg 1, or is granted leg 2 and puts some layers.
#[test]
fn the_other_process_does_as_it_is_told() {
    if !kit::is_child() {
        return;
    }
    let Some(begin) = kit::told() else { return };
    let mut machine = Machine::with_blocks(1, options(backend_of(&begin)), begin["blocks"].parse().unwrap());
    let parent = PeerAddress {
        machine: MachineId { index: 0, incarnation: 1 },
        peer: String::new(),
        transfer: begin["transfer"].clone(),
        key: Key::default(),
    };
    let tokens = begin["tokens"].parse().unwrap();
    let grant = machine.mover.open(key(1), &parent, &machine.table(0, tokens), tokens).unwrap();
    let table = machine.table(0, TOKENS);
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

/// It grants so many tokens.
fn other(backend: Backend, here: &Machine, tokens: u32) -> (Other, PeerAddress, String) {
    let mut other = Other::start();
    let name = if backend == Backend::Shm { "shm" } else { "tcp" };
    let (blocks, tokens) = ((64 + tokens / 2).to_string(), tokens.to_string());
    other.say(&words(&[
        ("backend", name),
        ("transfer", &here.address.transfer),
        ("blocks", &blocks),
        ("tokens", &tokens),
    ]));
    let said = other.hear();
    let (address, grant) = (there(&said), said["grant"].clone());
    (other, address, grant)
}

#[test]
fn a_destination_that_is_killed_fails_what_goes_there_once_and_is_lost() {
    for backend in BOTH {
        for layers in [0, 1, LAYERS - 1] {
            let mut source = Machine::start(0, options(backend));
            let (mut other, address, transfer) = other(backend, &source, TOKENS);
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
        for layers in [0, 1, LAYERS - 1, LAYERS] {
            let mut destination = Machine::start(0, options(backend));
            let (mut other, address, _) = other(backend, &destination, TOKENS);
            let table = destination.table(0, TOKENS);
            let grant = destination.mover.open(key(2), &address, &table, TOKENS).unwrap();
            // One more, so that there is something to miss also where all of the first has landed.
            let rest = destination.table(30, TOKENS);
            destination.mover.open(key(3), &address, &rest, TOKENS).unwrap();
            other.say(&words(&[("grant", &grant), ("layers", &layers.to_string())]));
            other.hear();
            // So that it is connected, and dies in the midst of it.
            if layers > 0 {
                destination.until(
                    "the layers",
                    |event| matches!(event, MoverEvent::Landed { layers: landed, .. } if *landed == layers),
                );
            }
            other.kill();
            if layers == 0 {
                // Nobody here may ever have seen it.
                destination.mover.doubt(&address);
            }
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

#[test]
fn a_stop_ends_though_the_destination_stands_still_and_the_connection_is_closed_for_it() {
    const MANY: u32 = 40_000;
    let mut options = options(Backend::Tcp);
    options.connect.stall_limit = Duration::from_secs(1);
    options.stop_limit = Duration::from_millis(100);
    options.probe_limit = Duration::from_millis(100);
    let mut source = Machine::with_blocks(0, options, MANY / 2);
    let (mut other, address, transfer) = other(Backend::Tcp, &source, MANY);
    let table = source.table(0, MANY);
    let body = GrantBody { blocks: vec![], transfer };
    source.mover.granted(key(1), &address, &body);
    let mut follow = source.mover.follow(key(1), address.machine, &table, MANY);
    follow.put_layer(0);
    other.stop();
    // More than any socket takes.
    for layer in 1..LAYERS {
        follow.put_layer(layer);
    }
    source.mover.stop(key(1));
    let end = source.end(key(1));
    assert!(matches!(end, MoverEvent::Fenced { .. } | MoverEvent::Failed { .. }), "{end:?}");
    // It is not dead, and so not lost, before it is.
    source.mover.granted(key(2), &address, &body);
    other.kill();
    source.mover.doubt(&address);
    source.lost(address.machine);
    assert_eq!(source.finish(), []);
}
