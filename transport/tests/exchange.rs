//! Blocks scattered over one pool arrive in blocks scattered over another one, each byte of them.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::sync::Arc;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, KvRange};
use splitcore_transport::{Arrival, Backend, Completion, Grant, Incarnation, Pool, TransferError};

use common::{
    BOUND, all_blocks, connect_by, destination_shape, ends, fenced, fill, open, plan, receiver, scattered,
    send_layer, small_shape, source_shape, until, untouched, verify,
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

/// Source and destination are one memory, mapped twice: bytes that overlap come out as if they had been read first.
#[test]
fn a_pool_may_send_to_itself() {
    let shape = small_shape(4);
    let receiver = receiver(shape, 1);
    let pool = receiver.landing().pool();
    let me = Incarnation::random().unwrap();
    let link = connect_by(Backend::Shm, pool, me, receiver.endpoint());
    let block = BlockId(1);
    let shift = 520;
    let bytes = shape.layout.layer_block_bytes() - shift;
    let base = pool.host_base().unwrap();
    let read = |offset: u32, bytes: u32| -> Vec<u8> {
        let at = shape.locate(block, offset).unwrap() as usize;
        // SAFETY: the range lies in the pool, and nobody writes it now.
        unsafe { std::slice::from_raw_parts(base.add(at).as_ptr(), bytes as usize).to_vec() }
    };
    fill(pool, &[block], 3);
    for (from_offset, to_offset) in [(0, shift), (shift, 0)] {
        let before = read(from_offset, bytes);
        let grant = receiver.landing().open(me, RequestId(1), vec![block], u64::from(bytes)).unwrap();
        link.begin(&grant).unwrap();
        link.put(grant.key, 0, &[KvRange { from: block, from_offset, to: block, to_offset, bytes }]).unwrap();
        link.publish(grant.key, 0, 16).unwrap();
        receiver.landing().wait_layer(grant.key, 0, BOUND).unwrap();
        assert!(read(to_offset, bytes) == before, "from {from_offset} to {to_offset}");
        link.stop(grant.key);
        assert_eq!(ends(&*link, &[grant.key]), [Completion::Fenced(grant.key)]);
        fenced(receiver.landing(), grant.key);
        receiver.landing().release(grant.key).unwrap();
    }
}

/// One thread puts, another publishes as soon as it may: that is not before the last byte is there.
#[test]
fn a_layer_that_is_still_being_put_is_not_published() {
    let (from, to) = (source_shape(32 * MIB), destination_shape(32 * MIB));
    let pool = Arc::new(Pool::shared(from).unwrap());
    let receiver = receiver(to, 1);
    let landing = receiver.landing();
    let me = Incarnation::random().unwrap();
    let link = connect_by(Backend::Shm, &pool, me, receiver.endpoint());
    let table = all_blocks(&from);
    let plan = plan(&from, &table, &to, &table);
    let ranges: Vec<_> = plan.layer(0).collect();
    for seed in 0..20 {
        fill(&pool, &table, seed);
        let grant = open(&receiver, me, seed, &table);
        link.begin(&grant).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| link.put(grant.key, 0, &ranges).unwrap());
            until("the layer may be published", || match link.publish(grant.key, 0, 16) {
                Ok(()) => true,
                Err(TransferError::Incomplete { bytes: 0, .. } | TransferError::StillPut { .. }) => false,
                Err(error) => panic!("{error}"),
            });
            verify(landing.pool(), &table, 0, seed).unwrap();
        });
        link.stop(grant.key);
        assert_eq!(ends(&*link, &[grant.key]), [Completion::Fenced(grant.key)]);
        fenced(landing, grant.key);
        landing.release(grant.key).unwrap();
    }
}
