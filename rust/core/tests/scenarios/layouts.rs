//! Rows K and T that are about where KV lies: block sizes, addresses within blocks, and what is sent of them.

use crate::kv_kit::*;
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, PlanError, Planes, PoolShape, TokenOrder, TransferPlan, Values,
    plan_transfer,
};
use std::ops::Range;

/// A model of four layers and eight heads, in blocks of so many tokens.
fn blocks_of(block_tokens: u16) -> KvLayout {
    KvLayout {
        layers: 4,
        values: Values::Heads { heads: 8, head_dim: 8 },
        dtype: Dtype::Bf16,
        block_tokens,
        order: TokenOrder::Hnd,
        planes: Planes::Apart,
        ..layout()
    }
}

/// Bytes of a token in all layers, K and V.
const TOKEN_BYTES: u64 = 4 * 2 * 8 * 8 * 2;

/// Moves positions between machines of two block sizes, on real bytes, with tables in any order.
fn regroup(from: KvLayout, to: KvLayout, positions: &Range<u32>) {
    let end = positions.end;
    let tables = |style: u8, layout: KvLayout| {
        let blocks = layout.blocks_for(end) + 3;
        machine(layout, end, blocks, &move |rank, needed| table(style, 5 + u64::from(rank), needed, blocks))
    };
    for style in 0..4 {
        check(&tables(style, from), &tables(style + 1, to), positions);
    }
}

#[test]
fn k8_a_thousand_tokens_regroup_between_blocks_of_any_two_sizes() {
    for (one, other) in [(16, 64), (16, 128), (64, 128), (16, 48), (48, 64)] {
        for order in ORDERS {
            let small = KvLayout {
                values: Values::Heads { heads: 2, head_dim: 1 },
                layers: 1,
                order,
                ..blocks_of(one)
            };
            let large = KvLayout { block_tokens: other, ..small };
            regroup(small, large, &(0..1000));
            regroup(large, small, &(0..1000));
        }
    }
}

#[test]
fn k8_what_does_not_fit_together_is_named_with_both_numbers_at_the_handshake() {
    let here = blocks_of(16);
    // Block sizes never are an obstacle.
    assert_eq!(here.mismatch(&blocks_of(100)), None);
    let there = KvLayout { values: Values::Heads { heads: 4, head_dim: 16 }, ..blocks_of(64) };
    let mismatch = here.mismatch(&there).unwrap();
    assert_eq!(mismatch.to_string(), "layouts differ: heads 8 here, 4 there; head_dim 8 here, 16 there");
    let pool = |layout| PoolShape { layout, blocks: 1 };
    let table = [BlockId(0)];
    let refused = plan_transfer(&pool(here), &table, &pool(there), &table, 0..1);
    assert_eq!(refused, Err(PlanError::Incompatible(mismatch)));
}

#[test]
fn k10_a_block_of_the_kernel_and_a_block_of_the_scheduler_are_one_place() {
    // The same bytes as logical blocks of 128 tokens and as kernel blocks of 16: latent attention, blocks in a row.
    let latent = KvLayout { values: Values::Latent { dim: 24 }, ..blocks_of(128) };
    let logical = PoolShape { layout: latent, blocks: 6 };
    let kernel = PoolShape { layout: KvLayout { block_tokens: 16, ..latent }, blocks: 48 };
    assert_eq!(logical.bytes(), kernel.bytes());
    let row = latent.row_bytes();
    for token in 0..6 * 128 {
        let one = logical.locate(BlockId(token / 128), token % 128 * row);
        assert_eq!(one, kernel.locate(BlockId(token / 16), token % 16 * row));
        assert_eq!(one, Some(u64::from(token * row)));
    }
    // What was written by the one is read by the other: each block is eight in a row.
    let table = ids([4, 1, 2]);
    let kernel_table = ids([4, 1, 2].into_iter().flat_map(|block| block * 8..block * 8 + 8));
    let plan = plan_transfer(&logical, &table, &kernel, &kernel_table, 0..300).unwrap();
    for range in plan.layer(3) {
        assert_eq!(logical.locate(range.from, range.from_offset), kernel.locate(range.to, range.to_offset));
    }
}

#[test]
fn k10_every_offset_of_a_block_has_one_place_and_every_place_one_offset() {
    for (planes, arrangement) in
        PLANES.into_iter().flat_map(|planes| ARRANGEMENTS.map(|arrangement| (planes, arrangement)))
    {
        let pool = PoolShape { layout: KvLayout { planes, arrangement, ..blocks_of(16) }, blocks: 3 };
        let mut seen = vec![false; pool.bytes() as usize];
        for block in ids(0..3) {
            for offset in 0..pool.layout.block_bytes() {
                let place = pool.locate(block, offset).unwrap();
                assert!(!std::mem::replace(&mut seen[place as usize], true), "{place} twice");
                assert_eq!(pool.block_at(place), Some((block, offset)));
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}

/// A plan between two pools of a hundred blocks, both of them used in order.
fn in_order(from: KvLayout, to: KvLayout, positions: Range<u32>) -> TransferPlan {
    let pools = [from, to].map(|layout| PoolShape { layout, blocks: 100 });
    let table = ids(0..100);
    plan_transfer(&pools[0], &table, &pools[1], &table, positions).unwrap()
}

#[test]
fn k11_a_plan_moves_the_valid_tokens_of_a_partial_last_block() {
    for tokens in [1392, 1592, 6 * 16 + 1, 16, 15, 1] {
        for order in ORDERS {
            let to = KvLayout { order, ..blocks_of(16) };
            let plan = in_order(blocks_of(16), to, 0..tokens);
            assert_eq!(plan.bytes(), u64::from(tokens) * TOKEN_BYTES);
            let moved: u64 = plan.whole().iter().map(|range| u64::from(range.bytes)).sum();
            assert_eq!(moved, u64::from(tokens) * TOKEN_BYTES);
        }
    }
    // The rest of the last block stays as it was, byte by byte.
    for positions in [0..97, 0..33, 90..97] {
        let one = KvLayout { values: Values::Heads { heads: 2, head_dim: 1 }, ..blocks_of(16) };
        regroup(one, KvLayout { block_tokens: 32, order: TokenOrder::Nhd, ..one }, &positions);
        regroup(one, one, &positions);
    }
}

#[test]
fn t14_what_is_contiguous_on_both_sides_is_one_range() {
    let apart = blocks_of(16);
    let together = KvLayout { planes: Planes::Together, ..apart };
    let by_block = KvLayout { arrangement: Arrangement::BlockFirst, ..apart };
    assert_eq!(in_order(apart, apart, 0..1600).layer(2).len(), 1, "a full pool: V begins where K ends");
    assert_eq!(in_order(apart, apart, 0..1584).layer(2).len(), 2, "K and V");
    assert_eq!(in_order(together, together, 0..1600).layer(2).len(), 1);
    assert_eq!(in_order(apart, together, 0..1600).layer(2).len(), 200, "K and V of each block");
    assert_eq!(in_order(by_block, by_block, 0..1600).layer(2).len(), 100);
    assert_eq!(in_order(by_block, by_block, 0..1600).whole().len(), 1, "blocks with all their layers");
    assert_eq!(
        in_order(by_block, by_block, 0..1590).whole().len(),
        4 * 2 * 8,
        "and each head of the partial last one, the first of them joined"
    );
    // Fragments on either side cut, and only where they are: ids of both sides must go on.
    let pool = PoolShape { layout: together, blocks: 100 };
    let ranges = |from: &[u32], to: &[u32]| {
        let tables = [from, to].map(|table| ids(table.iter().copied()));
        let tokens = from.len() as u32 * 16;
        plan_transfer(&pool, &tables[0], &pool, &tables[1], 0..tokens).unwrap().layer(0).len()
    };
    assert_eq!(ranges(&[10, 11, 12, 13], &[50, 51, 70, 71]), 2);
    assert_eq!(ranges(&[10, 11, 13, 14], &[50, 51, 52, 53]), 2);
    assert_eq!(ranges(&[10, 11, 12, 13], &[50, 52, 54, 56]), 4);
    // Freed blocks come back in any order: what lies in a row on both sides is found in any of them.
    assert_eq!(ranges(&[13, 12, 11, 10], &[53, 52, 51, 50]), 1);
    assert_eq!(ranges(&[12, 10, 13, 11], &[52, 50, 53, 51]), 1);
}

#[test]
fn t14_what_the_destination_has_is_not_sent_again() {
    for (held, tokens) in [(16, 1000), (160, 1000), (999, 1000), (33, 100)] {
        let plan = in_order(blocks_of(16), blocks_of(16), held..tokens);
        assert_eq!(plan.bytes(), u64::from(tokens - held) * TOKEN_BYTES);
        let touched = plan.layer(0).flat_map(|range| [range.to.0, range.from.0]).min();
        assert_eq!(touched, Some(held / 16), "tables begin at position 0, ranges after the prefix");
        let one = KvLayout { values: Values::Heads { heads: 2, head_dim: 1 }, layers: 1, ..blocks_of(16) };
        regroup(one, KvLayout { block_tokens: 64, ..one }, &(held..tokens));
    }
}
