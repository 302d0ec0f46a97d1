//! KV between the movers of two machines, by shared memory and by TCP: each byte in its place, one end each, no slot
//! left in use, and a process that dies.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod killed;
mod kit;
mod random;

use std::net::TcpListener;
use std::time::Duration;

use splitcore_core::kv::BlockId;
use splitcore_transport::{Backend, Endpoint};
use splitcore_wire::message::{GrantBody, PeerAddress};
use splitcore_worker::mover::{MoverError, MoverEvent};

use kit::{BOTH, LAYERS, Machine, key, options};

fn pair(backend: Backend) -> (Machine, Machine) {
    (Machine::start(0, options(backend)), Machine::start(1, options(backend)))
}

/// Both are free, and have told nothing that nobody has asked for.
fn over(source: Machine, destination: Machine) {
    source.until_free();
    destination.until_free();
    let gone = source.address.machine;
    assert_eq!(source.finish(), []);
    // The first to end is lost to the other, which may have seen it.
    let mut told = destination.finish();
    told.retain(|event| *event != MoverEvent::PeerLost { machine: gone });
    assert_eq!(told, []);
}

#[test]
fn legs_that_are_put_after_their_pass_are_there_byte_by_byte() {
    for backend in BOTH {
        let (mut source, mut destination) = pair(backend);
        let mut legs = Vec::new();
        for request in 0..8_u32 {
            // Blocks that are not full, and of other sizes here and there.
            let (key, tokens) = (key(request.into()), 1 + 3 * request);
            let from = source.table(request * 2 % 3, tokens);
            let to = destination.table(request * 7, tokens);
            source.fill_all(&from, tokens, request.into());
            destination.grant(key, &mut source, &to, tokens);
            let to_machine = destination.address.machine;
            source.mover.put(key, to_machine, &from, tokens);
            source.done(key);
            legs.push((key, to, tokens, request));
        }
        assert_eq!(destination.mover.slots_in_use(), 8);
        for (key, to, tokens, request) in legs {
            destination.until_landed(key);
            destination.verify(&to, tokens, request.into());
            destination.mover.close(key);
            source.mover.close(key);
        }
        over(source, destination);
    }
}

#[test]
fn a_leg_follows_its_layers_and_each_is_whole_when_it_is_told_of() {
    for backend in BOTH {
        let (mut source, mut destination) = pair(backend);
        let (key, tokens) = (key(1), 27);
        let (from, to) = (source.table(1, tokens), destination.table(3, tokens));
        destination.grant(key, &mut source, &to, tokens);
        let mut follow = source.mover.follow(key, destination.address.machine, &from, tokens);
        let mut landed = 0;
        for layer in 0..LAYERS {
            source.fill(&from, layer, tokens, 9);
            std::thread::scope(|scope| {
                scope.spawn(|| follow.put_layer(layer));
            });
            while landed <= layer {
                let event = destination.until("a layer", |event| matches!(event, MoverEvent::Landed { .. }));
                let MoverEvent::Landed { layers, of, .. } = event else { unreachable!() };
                assert!(of == LAYERS && (landed + 1..=layer + 1).contains(&layers), "{layers} of {of}");
                landed = layers;
            }
            assert_eq!(destination.wrong(&to, layer, tokens, 9), None);
        }
        follow.put_layer(0);
        drop(follow);
        source.done(key);
        destination.mover.close(key);
        over(source, destination);
    }
}

#[test]
fn machines_hand_over_to_each_other_and_each_knows_its_legs() {
    for backend in BOTH {
        let (mut one, mut other) = pair(backend);
        let (there, back, tokens) = (key(1), key(2), 16);
        let (here_from, here_to) = (one.table(0, tokens), one.table(20, tokens));
        let (there_from, there_to) = (other.table(0, tokens), other.table(20, tokens));
        one.fill_all(&here_from, tokens, 1);
        other.fill_all(&there_from, tokens, 2);
        other.grant(there, &mut one, &there_to, tokens);
        one.grant(back, &mut other, &here_to, tokens);
        one.mover.put(there, other.address.machine, &here_from, tokens);
        other.mover.put(back, one.address.machine, &there_from, tokens);
        one.done(there);
        other.done(back);
        other.until_landed(there);
        one.until_landed(back);
        other.verify(&there_to, tokens, 1);
        one.verify(&here_to, tokens, 2);
        one.mover.close(back);
        other.mover.close(there);
        over(one, other);
    }
}

#[test]
fn a_transfer_is_stopped_in_its_midst_on_both_sides_and_another_may_take_its_place() {
    for backend in BOTH {
        let (mut source, mut destination) = pair(backend);
        let (key, tokens) = (key(1), 20);
        let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
        for round in 0..3 {
            destination.grant(key, &mut source, &to, tokens);
            let mut follow = source.mover.follow(key, destination.address.machine, &from, tokens);
            for layer in 0..2 {
                source.fill(&from, layer, tokens, round);
                follow.put_layer(layer);
            }
            source.mover.stop(key);
            source.fenced(key);
            follow.put_layer(2);
            destination.mover.abort(key);
            destination.fenced(key);
            assert_eq!(destination.mover.slots_in_use(), 0, "what is fenced is free");
        }
        source.fill_all(&from, tokens, 7);
        destination.grant(key, &mut source, &to, tokens);
        source.mover.put(key, destination.address.machine, &from, tokens);
        source.done(key);
        destination.until_landed(key);
        destination.verify(&to, tokens, 7);
        // After it is done, who stops it is told so as well.
        source.mover.stop(key);
        source.fenced(key);
        source.mover.stop(key);
        destination.mover.abort(key);
        destination.fenced(key);
        destination.mover.abort(key);
        destination.fenced(key);
        over(source, destination);
    }
}

#[test]
fn what_the_destination_gives_up_fails_at_its_source() {
    for backend in BOTH {
        let (mut source, mut destination) = pair(backend);
        let (first, second, tokens) = (key(1), key(2), 20);
        let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
        source.fill_all(&from, tokens, 1);
        destination.grant(first, &mut source, &to, tokens);
        let mut follow = source.mover.follow(first, destination.address.machine, &from, tokens);
        follow.put_layer(0);
        destination.mover.abort(first);
        source.failed(first);
        destination.fenced(first);
        drop(follow);
        // Closed without a word: no slot stays in use, though nothing is told.
        destination.grant(second, &mut source, &to, tokens);
        destination.mover.close(second);
        source.mover.put(second, destination.address.machine, &from, tokens);
        // What is on its way by a stream when it is refused was read here all the same.
        let end = source.end(second);
        let read = backend == Backend::Tcp && matches!(end, MoverEvent::LocalDone { .. });
        assert!(read || matches!(end, MoverEvent::Failed { .. }), "{end:?}");
        over(source, destination);
    }
}

#[test]
fn a_pass_that_does_not_compute_all_layers_fails_what_follows_it() {
    for backend in BOTH {
        let (mut source, mut destination) = pair(backend);
        let tokens = 20;
        let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
        for layers in [0, 1, LAYERS - 1] {
            let key = key(layers.into());
            destination.grant(key, &mut source, &to, tokens);
            let mut follow = source.mover.follow(key, destination.address.machine, &from, tokens);
            for layer in 0..layers {
                source.fill(&from, layer, tokens, 1);
                follow.put_layer(layer);
            }
            drop(follow);
            assert_eq!(source.failed(key), format!("{} layers were not computed", LAYERS - layers));
            // Its failure is an answer to a stop as well.
            source.mover.stop(key);
            destination.mover.abort(key);
            destination.fenced(key);
        }
        over(source, destination);
    }
}

#[test]
fn a_grant_that_is_said_again_is_the_same_until_its_transfer_has_failed() {
    let (mut source, mut destination) = pair(Backend::Tcp);
    let (key, tokens) = (key(1), 20);
    let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
    let grant = destination.grant(key, &mut source, &to, tokens);
    assert_eq!(destination.grant(key, &mut source, &to, tokens), grant);
    assert_eq!(destination.mover.slots_in_use(), 1);
    let follow = source.mover.follow(key, destination.address.machine, &from, tokens);
    drop(follow);
    source.failed(key);
    // The failure is on its way; until it is here, the grant is the same.
    let mut follow = source.mover.follow(key, destination.address.machine, &from, tokens);
    follow.put_layer(0);
    assert!(source.failed(key).contains("granted nothing"));
    drop(follow);
    destination.mover.abort(key);
    destination.fenced(key);
    assert_ne!(destination.grant(key, &mut source, &to, tokens), grant);
    source.fill_all(&from, tokens, 3);
    source.mover.put(key, destination.address.machine, &from, tokens);
    source.done(key);
    destination.until_landed(key);
    destination.verify(&to, tokens, 3);
    destination.mover.close(key);
    over(source, destination);
}

#[test]
fn without_a_grant_that_can_be_used_a_put_fails_and_says_why() {
    let (mut source, mut destination) = pair(Backend::Tcp);
    let (of, tokens) = (key(1), 8);
    let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
    let put = |source: &mut Machine, to: &PeerAddress| {
        source.mover.put(of, to.machine, &from, tokens);
        source.failed(of)
    };
    assert_eq!(put(&mut source, &destination.address), "machine 1 has granted nothing");
    let body = |transfer: &str| GrantBody { blocks: vec![], transfer: transfer.to_owned() };
    source.mover.granted(of, &destination.address, &body("{}"));
    assert!(put(&mut source, &destination.address).starts_with("a grant that cannot be read: "));
    let nowhere = PeerAddress { transfer: String::new(), ..destination.address.clone() };
    source.mover.granted(of, &nowhere, &body("{}"));
    assert!(put(&mut source, &destination.address).starts_with("a grant that cannot be read: "));
    assert!(matches!(destination.mover.open(of, &nowhere, &to, tokens), Err(MoverError::Text(_))));
    destination.grant(of, &mut source, &to, tokens);
    let third = PeerAddress { machine: source.address.machine, ..destination.address.clone() };
    assert_eq!(put(&mut source, &third), "the grant is of machine 1, not of 0");
    // Too few tokens, and blocks that no pool has.
    destination.grant(of, &mut source, &to, tokens);
    source.mover.put(of, destination.address.machine, &from, tokens - 1);
    assert!(source.failed(of).contains("bytes of"));
    assert!(destination.mover.open(key(2), &source.address, &[BlockId(999)], 1).is_err());
    assert!(destination.mover.open(key(2), &source.address, &to, 0).is_err());
    destination.mover.close(of);
    over(source, destination);
}

/// A machine whose socket is there and says nothing.
fn deaf(like: &Machine) -> (PeerAddress, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut text: serde_json::Value = serde_json::from_str(&like.address.transfer).unwrap();
    let mut endpoint: Endpoint = serde_json::from_value(text["endpoint"].clone()).unwrap();
    (endpoint.unix, endpoint.tcp) = (None, Some(listener.local_addr().unwrap()));
    text["endpoint"] = serde_json::to_value(endpoint).unwrap();
    (PeerAddress { transfer: text.to_string(), ..like.address.clone() }, listener)
}

#[test]
fn a_stop_reaches_a_transfer_that_is_still_connecting() {
    let mut options = options(Backend::Tcp);
    options.connect.within = kit::WAIT * 10;
    let mut source = Machine::start(0, options);
    let mut destination = Machine::start(1, kit::options(Backend::Tcp));
    let (address, _listener) = deaf(&destination);
    let tokens = 8;
    let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
    for (request, layers) in [(1, None), (2, Some(0)), (3, Some(LAYERS))] {
        let key = key(request);
        let transfer = destination.mover.open(key, &source.address, &to, tokens).unwrap();
        source.mover.granted(key, &address, &GrantBody { blocks: vec![], transfer });
        let follow = layers.map(|layers| {
            let mut follow = source.mover.follow(key, address.machine, &from, tokens);
            (0..layers).for_each(|layer| follow.put_layer(layer));
            follow
        });
        if follow.is_none() {
            source.mover.put(key, address.machine, &from, tokens);
        }
        // The bound of the test is below that of connecting.
        source.mover.stop(key);
        source.fenced(key);
        drop(follow);
        destination.mover.close(key);
    }
    over(source, destination);
}

#[test]
fn who_cannot_be_reached_fails_what_waits_and_is_lost_only_when_nobody_is_there() {
    let mut options = options(Backend::Tcp);
    options.connect.within = Duration::from_millis(200);
    options.probe_limit = Duration::from_millis(200);
    let mut source = Machine::start(0, options);
    let mut destination = Machine::start(1, kit::options(Backend::Tcp));
    let (address, listener) = deaf(&destination);
    let tokens = 8;
    let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
    let mut put = |source: &mut Machine, request| {
        let key = key(request);
        let transfer = destination.mover.open(key, &source.address, &to, tokens).unwrap();
        source.mover.granted(key, &address, &GrantBody { blocks: vec![], transfer });
        source.mover.put(key, address.machine, &from, tokens);
        let reason = source.failed(key);
        destination.mover.close(key);
        reason
    };
    for request in 0..2 {
        assert!(put(&mut source, request).starts_with("no connection: no answer to the handshake"));
    }
    drop(listener);
    put(&mut source, 2);
    source.lost(address.machine);
    assert_eq!(put(&mut source, 3), "machine 1 is gone");
    over(source, destination);
}

#[test]
fn who_is_dead_is_lost_although_another_listens_where_it_was() {
    let at = |port| {
        let mut options = kit::options(Backend::Tcp);
        options.listen.local = false;
        options.listen.tcp = Some(([127, 0, 0, 1], port).into());
        options
    };
    let mut source = Machine::start(0, kit::options(Backend::Tcp));
    let before = Machine::start(1, at(0));
    let address = before.address.clone();
    let text: serde_json::Value = serde_json::from_str(&address.transfer).unwrap();
    let port = text["endpoint"]["tcp"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap();
    source.mover.doubt(&address);
    assert_eq!(before.finish(), []);
    let after = Machine::start(1, at(port));
    source.mover.doubt(&address);
    source.lost(address.machine);
    source.mover.doubt(&after.address);
    assert_eq!(after.finish(), []);
    assert_eq!(source.finish(), []);
}

#[test]
fn a_machine_whose_mover_ends_is_lost_to_others_and_fails_what_goes_there() {
    for backend in BOTH {
        let (mut source, mut destination) = pair(backend);
        let (key, tokens) = (key(1), 20);
        let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
        destination.grant(key, &mut source, &to, tokens);
        let mut follow = source.mover.follow(key, destination.address.machine, &from, tokens);
        follow.put_layer(0);
        let machine = destination.address.machine;
        assert_eq!(destination.finish(), []);
        source.failed(key);
        source.lost(machine);
        drop(follow);
        source.until_free();
        assert_eq!(source.finish(), []);
    }
}

#[test]
fn events_of_a_transfer_whose_place_another_has_taken_are_told_apart() {
    let (mut source, mut destination) = pair(Backend::Shm);
    let (key, tokens) = (key(1), 20);
    let (from, to) = (source.table(0, tokens), destination.table(0, tokens));
    source.fill_all(&from, tokens, 5);
    destination.grant(key, &mut source, &to, tokens);
    let follow = source.mover.follow(key, destination.address.machine, &from, tokens);
    drop(follow);
    let first = source.end(key);
    assert!(source.mover.is_current(&first));
    destination.mover.close(key);
    destination.grant(key, &mut source, &to, tokens);
    source.mover.put(key, destination.address.machine, &from, tokens);
    assert!(!source.mover.is_current(&first), "it is about what was there before");
    let second = source.end(key);
    assert!(matches!(second, MoverEvent::LocalDone { .. }) && source.mover.is_current(&second));
    source.mover.close(key);
    assert!(!source.mover.is_current(&second), "the leg is gone");
    destination.until_landed(key);
    destination.mover.close(key);
    over(source, destination);
}
