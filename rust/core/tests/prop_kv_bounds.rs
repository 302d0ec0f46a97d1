//! Where bytes lie in a pool, and which ranges a receiver takes, against the whole pool written out byte by byte.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kv_kit;

use kv_kit::*;
use proptest::prelude::*;
use splitcore_core::kv::{BlockId, BlockSet, Dtype, KvLayout, PoolShape, RangeError, Shard, Values};
use std::ops::Range;

/// Small pools of every arrangement.
fn a_pool() -> impl Strategy<Value = PoolShape> {
    let arranged =
        (prop::sample::select(&ORDERS), prop::sample::select(&PLANES), prop::sample::select(&ARRANGEMENTS));
    let values = prop_oneof![
        (1_u16..4, 1_u16..3).prop_map(|(heads, head_dim)| Values::Heads { heads, head_dim }),
        (1_u16..4).prop_map(|dim| Values::Latent { dim }),
    ];
    (arranged, values, 1_u16..4, 1_u16..4, 0_u32..7, prop::sample::select(&[Dtype::I8, Dtype::F16])).prop_map(
        |((order, planes, arrangement), values, layers, block_tokens, blocks, dtype)| {
            let shard = Shard::WHOLE;
            let layout = KvLayout { layers, values, dtype, block_tokens, order, planes, arrangement, shard };
            PoolShape { layout, blocks }
        },
    )
}

/// What `admit` has to say, by looking at each byte.
fn judged(
    atlas: &Atlas,
    granted: &[BlockId],
    layer: Option<u16>,
    (block, offset, bytes): (BlockId, u32, u32),
) -> Result<Range<u64>, RangeError> {
    let outside = RangeError::OutsidePool { block, offset, bytes };
    let start = atlas.place(block, offset);
    let (false, Some(start)) = (bytes == 0, start) else {
        return Err(if bytes == 0 { RangeError::Empty } else { outside });
    };
    let end = start + bytes as usize;
    for &(touches, block) in atlas.owners.get(start..end).ok_or(outside)? {
        if let Some(layer) = layer.filter(|&layer| layer != touches) {
            return Err(RangeError::OutsideLayer { layer, touches });
        }
        if !granted.contains(&block) {
            return Err(RangeError::NotGranted { block });
        }
    }
    Ok(start as u64..end as u64)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_has_its_place_and_is_found_again(pool in a_pool()) {
        let atlas = Atlas::of(&pool);
        prop_assert_eq!(pool.bytes(), atlas.owners.len() as u64);
        for at in elements(&pool) {
            let (block, offset) = (BlockId(at.block as u32), offset(&pool.layout, at) as u32);
            let place = place(&pool, at) as u64;
            prop_assert_eq!(pool.locate(block, offset), Some(place));
            prop_assert_eq!(pool.block_at(place), Some((block, offset)));
        }
        prop_assert_eq!(pool.locate(BlockId(pool.blocks), 0), None);
        prop_assert_eq!(pool.locate(BlockId(0), pool.layout.block_bytes()), None);
        prop_assert_eq!(pool.block_at(pool.bytes()), None);
    }

    #[test]
    fn a_range_is_taken_where_each_of_its_bytes_may_be_written(
        pool in a_pool(),
        granted in prop_oneof![
            1 => prop::collection::vec(0_u32..9, 0..9),
            1 => Just((0..9).collect::<Vec<u32>>()),
            1 => (0_u32..9).prop_map(|without| (0..9).filter(|&block| block != without).collect()),
        ],
        ranges in prop::collection::vec((0_u16..4, 0_u32..8, 0_u32..40, prop_oneof![0_u32..12, 0_u32..300]), 1..40),
    ) {
        let atlas = Atlas::of(&pool);
        let granted = ids(granted);
        let set = BlockSet::new(granted.clone());
        for (layer, block, offset, bytes) in ranges {
            let block = BlockId(block);
            let range = (block, offset, bytes);
            let admitted = pool.admit(&set, layer, block, offset, bytes);
            prop_assert_eq!(admitted, judged(&atlas, &granted, Some(layer), range), "{:?} {:?}", pool, range);
            let whole = pool.admit_whole(&set, block, offset, bytes);
            prop_assert_eq!(whole, judged(&atlas, &granted, None, range), "{:?} {:?}", pool, range);
        }
    }
}

#[test]
fn the_largest_pool_that_can_be_is_counted_without_overflow() {
    let values = Values::Heads { heads: 1, head_dim: 1 };
    for (planes, arrangement) in
        PLANES.into_iter().flat_map(|planes| ARRANGEMENTS.map(|order| (planes, order)))
    {
        // 2 x 32,767 x 65,535 bytes: just below 4 GiB.
        let layout = KvLayout {
            layers: 32_767,
            values,
            dtype: Dtype::I8,
            block_tokens: u16::MAX,
            planes,
            arrangement,
            ..layout()
        };
        assert_eq!(layout.check(), Ok(()));
        let pool = PoolShape { layout, blocks: u32::MAX };
        let (block, offset) = (BlockId(u32::MAX - 1), layout.block_bytes() - 1);
        assert_eq!(pool.locate(block, offset), Some(pool.bytes() - 1));
        assert_eq!(pool.block_at(pool.bytes() - 1), Some((block, offset)));
        let granted = BlockSet::new(vec![block]);
        let last = layout.layers - 1;
        assert_eq!(pool.admit(&granted, last, block, offset, 1), Ok(pool.bytes() - 1..pool.bytes()));
        for bytes in [2, u32::MAX] {
            let outside = RangeError::OutsidePool { block, offset, bytes };
            assert_eq!(pool.admit(&granted, last, block, offset, bytes), Err(outside));
            assert_eq!(pool.admit_whole(&granted, block, offset, bytes), Err(outside));
        }
        // Every number from outside is refused and nothing else.
        let wild = pool.admit(&granted, u16::MAX, BlockId(u32::MAX), u32::MAX, u32::MAX);
        let outside = RangeError::OutsidePool { block: BlockId(u32::MAX), offset: u32::MAX, bytes: u32::MAX };
        assert_eq!(wild, Err(outside));
    }
}
