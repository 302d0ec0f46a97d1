//! Transfers over real sockets on loopback.

#![allow(clippy::unwrap_used, reason = "tests")]

mod ends;
mod fuzzed;
#[path = "../common/handshake.rs"]
mod handshake;
mod hostile;
mod kit;

use kit::*;
use proptest::prelude::*;
use splitcore_core::kv::{BlockId, KvRange};
use splitcore_transport::{Completion, ConnectOptions, Grant};

#[test]
fn every_byte_of_every_layer_arrives_and_nothing_else_is_touched() {
    let pair = pair(shape(3, 8, 64 << 10));
    let landing = pair.receiver.landing().clone();
    let blocks = [6, 1, 4];
    let grant = open(&landing, 1, &blocks);
    send_all(&pair, &grant, &blocks);
    wait_all(&landing, grant.key);
    assert_eq!(ended(&*pair.link, 1), [Completion::LocalDone(grant.key)]);
    assert_arrived(&pair, &blocks);
    for block in [0, 2, 3, 5, 7] {
        assert!(block_bytes(&pair.to, 1, block).iter().all(|&byte| byte == 0), "block {block} was written");
    }
    landing.release(grant.key).unwrap();
    assert_eq!(landing.in_use(), 0);
}

#[test]
fn ten_thousand_queued_transfers_all_end_and_all_arrive() {
    let shape = shape(1, 8, 64);
    let receiver = listen_with(shape, |options| options.slots = 10_000);
    let from = filled(shape);
    let link = splitcore_transport::connect(&from, SENDER, receiver.endpoint(), &options()).unwrap();
    let landing = receiver.landing().clone();
    let grants: Vec<Grant> =
        (0..10_000).map(|request| open(&landing, request, &[(request % 8) as u32])).collect();
    for grant in &grants {
        link.begin(grant).unwrap();
        link.put(grant.key, 0, &ranges(&shape, 0, &[grant.blocks[0].0])).unwrap();
        link.publish(grant.key, 0, 1).unwrap();
    }
    let mut ends: Vec<_> = ended(&*link, 10_000).iter().map(Completion::key).collect();
    ends.dedup();
    assert_eq!(ends, grants.iter().map(|grant| grant.key).collect::<Vec<_>>(), "one after the other, once");
    for grant in &grants {
        wait_all(&landing, grant.key);
        landing.release(grant.key).unwrap();
    }
    assert_eq!(landing.in_use(), 0);
}

#[test]
fn a_range_that_is_longer_than_a_frame_arrives_whole() {
    let shape = shape(2, 256, 64 << 10);
    let pair = pair(shape);
    let landing = pair.receiver.landing().clone();
    let blocks: Vec<u32> = (3..253).collect();
    let grant = open(&landing, 1, &blocks);
    pair.link.begin(&grant).unwrap();
    for layer in 0..2 {
        let offset = layer * (64 << 10);
        let bytes = 250 * (64 << 10);
        let (from, to) = (BlockId(1), BlockId(3));
        let range = KvRange { from, from_offset: offset, to, to_offset: offset, bytes };
        pair.link.put(grant.key, layer as u16, &[range]).unwrap();
        pair.link.publish(grant.key, layer as u16, 1).unwrap();
    }
    wait_all(&landing, grant.key);
    for layer in 0..2 {
        for block in 0..250 {
            let (there, here) =
                (block_bytes(&pair.to, layer, block + 3), block_bytes(&pair.from, layer, block + 1));
            assert!(there == here, "layer {layer}, block {block}");
        }
    }
}

/// Cuts of the layers' bytes, and the order in which the pieces are put.
fn pieces() -> impl Strategy<Value = Vec<(u16, u32, u32)>> {
    let cut = (1_u32..200, 1_u32..3000);
    proptest::collection::vec(cut, 1..4).prop_flat_map(|steps| {
        let mut pieces = Vec::new();
        for layer in 0..2 {
            let (mut at, mut turn) = (0, 0);
            while at < 2 * 32_768 {
                let (small, large) = steps[turn % steps.len()];
                let step = if turn % 3 == 0 { large } else { small };
                // A piece lies in one block.
                let bytes = step.min(2 * 32_768 - at).min(32_768 - at % 32_768);
                pieces.push((layer, at, bytes));
                at += bytes;
                turn += 1;
            }
        }
        Just(pieces).prop_shuffle()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(10)))]

    #[test]
    fn layers_in_any_pieces_and_any_order_arrive(
        pieces in pieces(),
        batch in 1_usize..700,
        connections in 1_u16..4,
        checksums: bool,
    ) {
        let shape = shape(2, 4, 32_768);
        let options = ConnectOptions { connections, checksums: Some(checksums), ..options() };
        let pair = pair_with(shape, &options);
        let landing = pair.receiver.landing().clone();
        let (first, second) = (open(&landing, 1, &[3, 0]), open(&landing, 2, &[1, 2]));
        for grant in [&first, &second] {
            pair.link.begin(grant).unwrap();
        }
        for some in pieces.chunks(batch) {
            for (grant, from) in [(&first, [0, 3]), (&second, [2, 1])] {
                for layer in 0..2 {
                    let ranges: Vec<KvRange> = some
                        .iter()
                        .filter(|piece| piece.0 == layer)
                        .map(|&(layer, at, bytes)| {
                            let (block, offset) = ((at / 32_768) as usize, at % 32_768 + u32::from(layer) * 32_768);
                            let (from, to) = (BlockId(from[block]), grant.blocks[block]);
                            KvRange { from, from_offset: offset, to, to_offset: offset, bytes }
                        })
                        .collect();
                    pair.link.put(grant.key, layer, &ranges).unwrap();
                }
            }
        }
        for grant in [&first, &second] {
            for layer in [1, 0] {
                pair.link.publish(grant.key, layer, 5).unwrap();
                let seal = landing.wait_layer(grant.key, layer, LONG).unwrap();
                prop_assert_eq!((seal.tokens, seal.bytes, seal.crc32c.is_some()), (5, 65_536, checksums));
            }
        }
        ended(&*pair.link, 2);
        assert_arrived(&pair, &[3, 0]);
        assert_arrived(&pair, &[1, 2]);
    }
}
