//! Blocks scattered over one pool arrive in blocks scattered over another one, each byte of them.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::sync::Arc;

use splitcore_core::kv::BlockId;
use splitcore_transport::{Arrival, Backend, Completion, Grant, Incarnation, Pool};

use common::{
    BOUND, all_blocks, connect_by, destination_shape, ends, fill, open, plan, receiver, scattered,
    send_layer, small_shape, source_shape, untouched, verify,
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

/// All are begun before the first is sent; each is one block.
fn queued(backend: Backend) {
    const TRANSFERS: usize = 10_000;
    let mut state = 0x10_000;
    let shape = small_shape(TRANSFERS as u32);
    let pool = Arc::new(Pool::shared(shape).unwrap());
    let receiver = receiver(shape, TRANSFERS as u32);
    let landing = receiver.landing();
    let me = Incarnation::random().unwrap();
    let link = connect_by(backend, &pool, me, receiver.endpoint());
    let from = scattered(&shape, TRANSFERS, &mut state);
    let to = scattered(&shape, TRANSFERS, &mut state);
    fill(&pool, &from, 11);
    let grants: Vec<_> =
        to.iter().zip(0..).map(|(to, request)| open(&receiver, me, request, &[*to])).collect();
    for grant in &grants {
        link.begin(grant).unwrap();
    }
    let sending = |(grant, from): (&Grant, &BlockId)| {
        let plan = plan(&shape, &[*from], &shape, &grant.blocks);
        for layer in 0..plan.layers() {
            send_layer(&*link, grant.key, &plan, layer, 512).unwrap();
        }
    };
    grants.iter().zip(&from).for_each(sending);
    let keys: Vec<_> = grants.iter().map(|grant| grant.key).collect();
    let done: Vec<_> = keys.iter().copied().map(Completion::LocalDone).collect();
    assert!(ends(&*link, &keys) == done, "not in the order in which they were sent");
    for layer in 0..shape.layout.layers {
        for key in &keys {
            landing.wait_layer(*key, layer, BOUND).unwrap();
        }
        verify(landing.pool(), &to, layer, 11).unwrap();
    }
    let mut arrivals = Vec::new();
    landing.poll(&mut arrivals);
    let whole = arrivals.iter().filter(|arrival| matches!(arrival, Arrival::Layers { layers: 2, of: 2, .. }));
    assert_eq!(whole.count(), TRANSFERS);
    for key in keys {
        landing.release(key).unwrap();
    }
    assert_eq!(landing.in_use(), 0);
}

#[test]
fn ten_thousand_queued_transfers_end_in_order_over_shm() {
    queued(Backend::Shm);
}

#[test]
fn tcp_moves_256_mib_of_scattered_blocks_and_every_byte_arrives() {
    exchange(Backend::Tcp);
}

#[test]
fn ten_thousand_queued_transfers_end_in_order_over_tcp() {
    queued(Backend::Tcp);
}
