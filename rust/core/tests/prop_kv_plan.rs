//! Transfer plans on real bytes, against a copy element by element; every bad input by the name of its error.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kv_kit;

use kv_kit::*;
use proptest::prelude::*;
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, KvRange, LayoutError, PlanError, Planes, PoolShape,
    RANGE_BYTES_MAX, Shard, Side, TokenOrder, Values, plan_transfer, senders,
};
use std::ops::Range;

/// Every pair of ways to arrange a pool.
fn arranged() -> impl Iterator<Item = (TokenOrder, Planes, Arrangement)> + Clone {
    ORDERS.into_iter().flat_map(|order| {
        PLANES.into_iter().flat_map(move |planes| {
            ARRANGEMENTS.into_iter().map(move |arrangement| (order, planes, arrangement))
        })
    })
}

/// KV heads of a model, and the tensor-parallel sizes of the two sides; no heads is latent attention.
fn shared_out() -> Vec<(u16, u16, u16)> {
    let mut all = Vec::new();
    for heads in [0, 1, 2, 4] {
        for from in [1, 2, 4] {
            all.extend([1, 2, 4].map(|to| (heads, from, to)));
        }
    }
    all
}

fn values(heads: u16, dim: u16) -> Values {
    if heads == 0 { Values::Latent { dim } } else { Values::Heads { heads, head_dim: dim } }
}

#[test]
fn every_small_transfer_is_the_copy_element_by_element() {
    let sides = || arranged().flat_map(|from| arranged().map(move |to| (from, to)));
    let mut number = 0;
    for ((from, to), (heads, from_size, to_size)) in
        sides().flat_map(|side| shared_out().into_iter().map(move |ranks| (side, ranks)))
    {
        for (from_tokens, to_tokens) in [(1, 1), (2, 2), (1, 3), (4, 2), (2, 4), (3, 2)] {
            // What is left of the cross product goes round.
            number += 1;
            let seed = number as u64;
            let layers = 1 + (seed % 3) as u16;
            let positions = [0..5, 2..7, 0..4, 3..4][(number + number / 6) % 4].clone();
            let base = KvLayout {
                layers,
                values: values(heads, 1 + (seed % 2) as u16),
                dtype: Dtype::I8,
                ..layout()
            };
            let side = |(order, planes, arrangement), block_tokens, size| KvLayout {
                order,
                planes,
                arrangement,
                block_tokens,
                shard: Shard { rank: 0, size },
                ..base
            };
            let (blocks, end) = (8, positions.end);
            let tables = |rank: u16, needed| table((number / 3 % 4) as u8 + rank as u8, seed, needed, blocks);
            let others =
                |rank: u16, needed| table((number / 7 % 4) as u8 + rank as u8, seed * 5, needed, blocks);
            let sources = machine(side(from, from_tokens, from_size), end, blocks, &tables);
            let destinations = machine(side(to, to_tokens, to_size), end, blocks, &others);
            check(&sources, &destinations, &positions);
        }
    }
    assert!(number > 10_000, "only {number}");
}

/// A machine's layout without what both sides share, and how its blocks lie about.
fn a_side() -> impl Strategy<Value = (KvLayout, u8, u64, u32)> {
    let arranged =
        (prop::sample::select(&ORDERS), prop::sample::select(&PLANES), prop::sample::select(&ARRANGEMENTS));
    let tokens = prop_oneof![3 => 1_u16..10, 1 => Just(16), 1 => Just(64)];
    let size = prop::sample::select(&[1_u16, 2, 3, 4, 6, 8]);
    (arranged, tokens, size, any::<u8>(), any::<u64>(), 0_u32..4).prop_map(
        |((order, planes, arrangement), block_tokens, size, style, seed, spare)| {
            let shard = Shard { rank: 0, size };
            (KvLayout { block_tokens, order, planes, arrangement, shard, ..layout() }, style, seed, spare)
        },
    )
}

fn build(side: (KvLayout, u8, u64, u32), model: &KvLayout, end: u32) -> Vec<kv_kit::Rank> {
    let (layout, style, seed, spare) = side;
    let KvLayout { layers, values, dtype, .. } = *model;
    let layout = KvLayout { layers, values, dtype, ..layout };
    let blocks = end.div_ceil(layout.block_tokens.into()) + spare;
    let tables = |rank: u16, needed| table(style, seed.wrapping_add(rank.into()), needed, blocks);
    machine(layout, end, blocks, &tables)
}

fn fits(side: &KvLayout, values: Values) -> bool {
    KvLayout { values, ..*side }.check().is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_transfer_is_the_copy_element_by_element(
        (from, to, values) in (a_side(), a_side(), 0_u16..9, 1_u16..5)
            .prop_map(|(from, to, heads, dim)| (from, to, values(heads, dim)))
            .prop_filter("heads can be shared out", |(from, to, values)| fits(&from.0, *values) && fits(&to.0, *values)),
        layers in 1_u16..4,
        dtype in prop::sample::select(&DTYPES),
        start in 0_u32..40,
        tokens in 1_u32..50,
    ) {
        let positions = start..start + tokens;
        let model = KvLayout { layers, values, dtype, ..layout() };
        check(&build(from, &model, positions.end), &build(to, &model, positions.end), &positions);
    }

    /// Whatever comes in, the answer is a plan or an error.
    #[test]
    fn no_input_makes_it_panic(
        layouts in (wild_layout(), wild_layout(), any::<bool>()),
        blocks in [wild(), wild()],
        tables in [prop::collection::vec(wild(), 0..5), prop::collection::vec(wild(), 0..5)],
        positions in [wild(), wild()],
    ) {
        let (from, to, alike) = layouts;
        let KvLayout { layers, values, dtype, .. } = from;
        let to = if alike { KvLayout { layers, values, dtype, ..to } } else { to };
        let [source, destination] =
            [(from, blocks[0]), (to, blocks[1])].map(|(layout, blocks)| PoolShape { layout, blocks });
        let [from_table, to_table] = tables.map(ids);
        let result = plan_transfer(&source, &from_table, &destination, &to_table, positions[0]..positions[1]);
        let ranks = senders(&from, &to);
        prop_assert!(result.is_err() || ranks.is_ok());
        match result {
            Ok(plan) => {
                let sum: u64 = plan.layer(0).map(|range| u64::from(range.bytes)).sum();
                prop_assert_eq!(sum, plan.layer_bytes());
                prop_assert!(plan.bytes() <= destination.bytes());
                prop_assert_eq!(plan.is_empty(), !ranks.unwrap().contains(&from.shard.rank));
                let last = plan.layers() - 1;
                let granted = splitcore_core::kv::BlockSet::new(to_table);
                for range in plan.layer(last).take(1000) {
                    let admitted = destination.admit(&granted, last, range.to, range.to_offset, range.bytes);
                    prop_assert!(admitted.is_ok(), "{:?}", admitted);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// Small numbers, edges and anything.
fn wild() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0_u32..5, 1 => Just(u32::MAX), 1 => any::<u32>(), 2 => Just(70_000)]
}

fn wild_layout() -> impl Strategy<Value = KvLayout> {
    let small = || prop_oneof![1 => Just(0_u16), 12 => 1_u16..5, 2 => any::<u16>(), 1 => Just(u16::MAX)];
    let arranged =
        (prop::sample::select(&ORDERS), prop::sample::select(&PLANES), prop::sample::select(&ARRANGEMENTS));
    (
        small(),
        small(),
        small(),
        small(),
        small(),
        small(),
        prop::sample::select(&DTYPES),
        any::<bool>(),
        arranged,
    )
        .prop_map(
            |(layers, heads, dim, block_tokens, rank, size, dtype, latent, (order, planes, arrangement))| {
                let values =
                    if latent { Values::Latent { dim } } else { Values::Heads { heads, head_dim: dim } };
                let shard =
                    Shard { rank: if rank < 5 { rank.min(size.saturating_sub(1)) } else { rank }, size };
                KvLayout { layers, values, dtype, block_tokens, order, planes, arrangement, shard }
            },
        )
}

/// A plan from blocks in order to blocks in order, in a pool that is just large enough.
fn straight(from: KvLayout, to: KvLayout, positions: Range<u32>) -> Result<Vec<KvRange>, PlanError> {
    let pool = |layout: KvLayout| PoolShape { layout, blocks: layout.blocks_for(positions.end) };
    let table = |pool: &PoolShape| ids(0..pool.blocks);
    let (source, destination) = (pool(from), pool(to));
    let plan =
        plan_transfer(&source, &table(&source), &destination, &table(&destination), positions.clone())?;
    Ok(plan.layer(0).collect())
}

#[test]
fn the_longest_range_has_a_gibibyte() {
    // 5.5 MiB a block and layer, 1024 blocks: 5.5 GiB in a row, and the cuts fall within blocks.
    let large = KvLayout {
        layers: 3,
        values: Values::Heads { heads: 11, head_dim: 128 },
        block_tokens: 1024,
        ..layout()
    };
    let ranges = straight(large, large, 0..1024 * 1024).unwrap();
    let bytes: Vec<u32> = ranges.iter().map(|range| range.bytes).collect();
    assert_eq!(bytes, [1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 29]);
    assert_eq!(RANGE_BYTES_MAX, 1 << 30);
    let pool = PoolShape { layout: large, blocks: 1024 };
    for (number, range) in ranges.iter().enumerate() {
        assert_eq!(pool.locate(range.to, range.to_offset), Some((number as u64) << 30));
        assert_eq!((range.from, range.from_offset), (range.to, range.to_offset));
    }
    let table = ids(0..1024);
    let plan = plan_transfer(&pool, &table, &pool, &table, 0..1024 * 1024).unwrap();
    assert_eq!(plan.whole().len(), 17, "16.5 GiB of three layers in a row");
}

#[test]
fn a_plan_of_a_million_blocks_in_order_is_one_range() {
    let ranges = straight(
        KvLayout { dtype: Dtype::I8, ..layout() },
        KvLayout { dtype: Dtype::I8, ..layout() },
        0..4_000_000,
    );
    assert_eq!(ranges.unwrap().len(), 1);
}

#[test]
fn what_must_agree_is_named_with_both_values() {
    let here = KvLayout { layers: 30, dtype: Dtype::Bf16, ..layout() };
    let there =
        KvLayout { layers: 32, dtype: Dtype::F16, values: Values::Heads { heads: 4, head_dim: 5 }, ..here };
    let mismatch = here.mismatch(&there).unwrap();
    assert_eq!(mismatch.fields(), ["layers", "heads", "head_dim", "dtype"]);
    assert_eq!(
        mismatch.to_string(),
        "layouts differ: layers 30 here, 32 there; heads 2 here, 4 there; head_dim 3 here, 5 there; dtype bf16 here, \
         f16 there"
    );
    assert_eq!(straight(here, there, 0..1), Err(PlanError::Incompatible(mismatch)));
    assert_eq!(senders(&here, &there), Err(PlanError::Incompatible(mismatch)));
    // One is enough.
    let fields = |other: KvLayout| here.mismatch(&other).map(|mismatch| mismatch.fields());
    assert_eq!(fields(KvLayout { layers: 31, ..here }), Some(vec!["layers"]));
    assert_eq!(fields(KvLayout { dtype: Dtype::F16, ..here }), Some(vec!["dtype"]));
    assert_eq!(fields(KvLayout { values: values(2, 4), ..here }), Some(vec!["head_dim"]));
    assert_eq!(fields(KvLayout { values: values(4, 3), ..here }), Some(vec!["heads"]));
    let latent = KvLayout { values: Values::Latent { dim: 8 }, ..here };
    assert_eq!(
        here.mismatch(&latent).unwrap().to_string(),
        "layouts differ: values heads here, latent there"
    );
    let longer = KvLayout { values: Values::Latent { dim: 9 }, ..here };
    assert_eq!(latent.mismatch(&longer).unwrap().to_string(), "layouts differ: latent dim 8 here, 9 there");
    // All the rest may differ.
    let other = KvLayout {
        block_tokens: 7,
        order: TokenOrder::Hnd,
        planes: Planes::Apart,
        arrangement: Arrangement::BlockFirst,
        shard: Shard { rank: 1, size: 2 },
        ..here
    };
    assert_eq!(here.mismatch(&other), None);
}

#[test]
fn a_layout_that_no_pool_can_have_is_refused_with_its_side() {
    let zero = KvLayout { block_tokens: 0, ..layout() };
    let pool = PoolShape { layout: layout(), blocks: 1 };
    let bad = PoolShape { layout: zero, blocks: 1 };
    let error = LayoutError::Zero("block_tokens");
    for (source, destination, side) in [(bad, pool, Side::Source), (pool, bad, Side::Destination)] {
        let result = plan_transfer(&source, &ids([0]), &destination, &ids([0]), 0..1);
        assert_eq!(result, Err(PlanError::Layout { side, error }));
        assert_eq!(senders(&source.layout, &destination.layout), Err(PlanError::Layout { side, error }));
    }
    let message = PlanError::Layout { side: Side::Source, error }.to_string();
    assert_eq!(message, "source layout: block_tokens is 0, and must be at least 1");
    // More bytes than 64 bits can count are too many as well.
    let huge = KvLayout {
        layers: u16::MAX,
        values: Values::Heads { heads: u16::MAX, head_dim: u16::MAX },
        dtype: Dtype::F32,
        block_tokens: u16::MAX,
        ..layout()
    };
    assert_eq!(huge.check(), Err(LayoutError::BlockTooLarge { bytes: u64::MAX }));
}

/// Tables of layouts in blocks of four and three tokens, for positions 5..11: entries 1..3 and 1..4.
fn refused(from: &[u32], to: &[u32], positions: Range<u32>) -> Option<PlanError> {
    let source = PoolShape { layout: layout(), blocks: 10 };
    let destination = PoolShape { layout: KvLayout { block_tokens: 3, ..layout() }, blocks: 20 };
    let tables = [from, to].map(|table| ids(table.iter().copied()));
    plan_transfer(&source, &tables[0], &destination, &tables[1], positions).err()
}

#[test]
fn bad_tables_and_positions_are_refused_by_name() {
    let (from, to): (&[u32], &[u32]) = (&[0, 1, 2], &[0, 1, 2, 3]);
    assert_eq!(refused(from, to, 5..11), None);
    for (start, end) in [(5, 5), (7, 5), (0, 0)] {
        assert_eq!(refused(from, to, start..end), Some(PlanError::EmptySpan { start, end }));
    }
    let short = |side, blocks, needed| Some(PlanError::TableTooShort { side, blocks, needed });
    assert_eq!(refused(&[0, 1], to, 5..11), short(Side::Source, 2, 3));
    assert_eq!(refused(from, &[0, 1, 2], 5..11), short(Side::Destination, 3, 4));
    assert_eq!(refused(&[], to, 0..u32::MAX), short(Side::Source, 0, 1 << 30));
    let outside = |side, block, blocks| Some(PlanError::OutsidePool { side, block: BlockId(block), blocks });
    assert_eq!(refused(&[0, 1, 10], to, 5..11), outside(Side::Source, 10, 10));
    assert_eq!(refused(from, &[0, u32::MAX, 2, 3], 5..11), outside(Side::Destination, u32::MAX, 20));
    let repeated = Some(PlanError::Repeated { block: BlockId(7) });
    assert_eq!(refused(from, &[0, 7, 2, 7], 5..11), repeated);
    assert_eq!(refused(from, &[0, 7, 7, 8], 5..11), repeated);
    // Entries that the positions do not need may be anything.
    assert_eq!(refused(&[99, 1, 2, 99], &[99, 7, 2, 3, 7, 99], 5..11), None);
    assert_eq!(refused(from, &[7, 7, 2, 3], 5..11), None);
}

#[test]
fn errors_say_the_value_and_the_limit() {
    let tell = |from: &[u32], to: &[u32]| refused(from, to, 5..11).unwrap().to_string();
    assert_eq!(tell(&[0], &[0]), "source table has 1 blocks, the positions need 3");
    assert_eq!(tell(&[0, 1, 10], &[0, 1, 2, 3]), "source block 10 is outside its pool of 10 blocks");
    assert_eq!(tell(&[0, 1, 2], &[0, 4, 4, 3]), "destination block 4 is in the table more than once");
    assert_eq!(refused(&[], &[], 3..3).unwrap().to_string(), "no positions in 3..3");
}

#[test]
fn a_plan_of_too_many_ranges_is_refused() {
    let rows = KvLayout {
        layers: 1,
        values: Values::Heads { heads: 4096, head_dim: 1 },
        dtype: Dtype::I8,
        ..layout()
    };
    let from = KvLayout { block_tokens: 8192, ..rows };
    let result = straight(from, KvLayout { order: TokenOrder::Hnd, ..from }, 0..8192);
    assert_eq!(result, Err(PlanError::TooManyRanges { limit: 1 << 24 }));
    assert_eq!(result.unwrap_err().to_string(), "more than 16777216 ranges a layer");
    let half = straight(from, KvLayout { order: TokenOrder::Hnd, ..from }, 0..2048).unwrap();
    assert_eq!(half.len(), 1 << 24);
}

#[test]
fn a_head_on_several_ranks_is_sent_evenly() {
    for (heads, from, to) in
        [(1, 8, 8), (2, 8, 4), (2, 4, 8), (1, 6, 4), (1, 4, 6), (8, 16, 64), (0, 8, 4), (0, 4, 8)]
    {
        let side =
            |rank, size| KvLayout { values: values(heads, 1), shard: Shard { rank, size }, ..layout() };
        let mut sends = vec![0; usize::from(from)];
        for rank in 0..to {
            let ranks = senders(&side(0, from), &side(rank, to)).unwrap();
            assert_eq!(ranks.len(), 1, "{heads} heads, {from} to {to}");
            // What vLLM's connectors read from.
            assert_eq!(u32::from(ranks[0]), u32::from(rank) * u32::from(from) / u32::from(to));
            sends[usize::from(ranks[0])] += 1;
        }
        let (least, most) = (sends.iter().min().unwrap(), sends.iter().max().unwrap());
        assert!(most - least <= 1, "{sends:?}");
    }
    // Fewer destination ranks than heads: each takes all its heads, from the first rank that has each.
    let side = |size| KvLayout { values: values(4, 1), shard: Shard { rank: 0, size }, ..layout() };
    assert_eq!(senders(&side(8), &side(2)), Ok(vec![0, 2]));
    assert_eq!(senders(&side(2), &side(1)), Ok(vec![0, 1]));
    assert_eq!(senders(&side(2), &side(4)), Ok(vec![0]));
}
