//! Blocks scattered over one pool arrive in blocks scattered over another one, each byte of them.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::sync::Arc;

use splitcore_transport::{Arrival, Backend, Completion, Incarnation, Pool};

use common::{
    BOUND, all_blocks, connect_by, destination_shape, ends, fill, open, plan, receiver, scattered,
    send_layer, source_shape, untouched, verify,
};

const MIB: u64 = 1 << 20;

fn exchange(backend: Backend) {
    let mut state = 0x5eed;
    let from = source_shape(256 * MIB);
    let to = destination_shape(288 * MIB);
    let pool = Arc::new(Pool::shared(from).unwrap());
    let receiver = receiver(to, 4);
    let landing = receiver.landing();
    let me = Incarnation::random().unwrap();
    let link = connect_by(backend, &pool, me, receiver.endpoint());

    let source = scattered(&from, from.blocks as usize, &mut state);
    let destination = scattered(&to, from.blocks as usize, &mut state);
    fill(&pool, &source, 7);
    let grant = open(&receiver, me, 1, &destination);
    let plan = plan(&from, &source, &to, &destination);
    assert_eq!(plan.bytes(), 256 * MIB);
    link.begin(&grant).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for layer in 0..plan.layers() {
                send_layer(&*link, grant.key, &plan, layer, 512).unwrap();
            }
        });
        for layer in 0..plan.layers() {
            let seal = landing.wait_layer(grant.key, layer, BOUND).unwrap();
            assert_eq!((seal.tokens, seal.bytes), (16, plan.layer_bytes()));
            verify(landing.pool(), &destination, layer, 7).unwrap();
        }
    });
    assert_eq!(ends(&*link, &[grant.key]), [Completion::LocalDone(grant.key)]);
    let mut arrivals = Vec::new();
    landing.poll(&mut arrivals);
    assert_eq!(arrivals.last(), Some(&Arrival::Layers { key: grant.key, layers: 4, of: 4 }));
    landing.release(grant.key).unwrap();
    assert_eq!(landing.in_use(), 0);
    let others: Vec<_> = all_blocks(&to).into_iter().filter(|block| !destination.contains(block)).collect();
    assert!(!others.is_empty());
    untouched(landing.pool(), &others);
}

#[test]
fn shm_moves_256_mib_of_scattered_blocks_and_every_byte_arrives() {
    exchange(Backend::Shm);
}
