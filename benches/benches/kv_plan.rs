//! Transfer plans by the shape of the transfer: blocks a second where blocks stay whole, ranges a second where they
//! are cut.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use splitcore_benches::moving::{LAYOUT, POOL_BLOCKS, Transfer, in_order, scattered};
use splitcore_core::kv::{Arrangement, BlockId, BlockSet, KvLayout, Planes, PoolShape, Shard, TokenOrder};

fn whole_blocks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan blocks");
    for blocks in [64, 4096, 65_536] {
        group.throughput(Throughput::Elements(blocks.into()));
        let mut measure = |name, layout, tables| {
            let transfer = Transfer::new([layout; 2], tables, blocks * 16);
            group.bench_function(BenchmarkId::new(name, blocks), |bencher| bencher.iter(|| transfer.plan()));
        };
        let rows = || [in_order(blocks), in_order(blocks)];
        measure("in order", LAYOUT, rows());
        measure("in order, K and V together", KvLayout { planes: Planes::Together, ..LAYOUT }, rows());
        measure("scattered", LAYOUT, [scattered(blocks, 1), scattered(blocks, 2)]);
    }
    group.finish();
}

fn cut_blocks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan ranges");
    let mut measure = |name, from: KvLayout, to: KvLayout| {
        let blocks = |layout: &KvLayout| in_order(16_384 / u32::from(layout.block_tokens));
        let transfer = Transfer::new([from, to], [blocks(&from), blocks(&to)], 16_384);
        group.throughput(Throughput::Elements(transfer.plan().layer(0).len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| transfer.plan()));
    };
    let half = Shard { rank: 1, size: 2 };
    let nhd = KvLayout { order: TokenOrder::Nhd, ..LAYOUT };
    measure("heads split", LAYOUT, KvLayout { shard: half, ..LAYOUT });
    measure("heads split, by token", nhd, KvLayout { shard: half, ..nhd });
    measure("blocks of 16 to 64", LAYOUT, KvLayout { block_tokens: 64, ..LAYOUT });
    measure("heads turned", nhd, LAYOUT);
    group.finish();
}

fn whole_plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all layers");
    let mut measure = |name, layout| {
        let tables = [scattered(1024, 1), scattered(1024, 2)];
        let plan = Transfer::new([layout; 2], tables, 16_384).plan();
        group.throughput(Throughput::Elements(plan.whole().len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| plan.whole()));
    };
    measure("layers apart", LAYOUT);
    measure("layers of a block together", KvLayout { arrangement: Arrangement::BlockFirst, ..LAYOUT });
    group.finish();
}

fn admitted(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admit");
    let pool = PoolShape { layout: LAYOUT, blocks: POOL_BLOCKS };
    for blocks in [1_u32, 4096] {
        let granted = BlockSet::new(in_order(4096));
        let bytes = blocks * LAYOUT.plane_block_bytes();
        group.bench_function(BenchmarkId::from_parameter(blocks), |bencher| {
            bencher.iter(|| pool.admit(&granted, 0, black_box(BlockId(7)), 0, bytes));
        });
    }
    group.finish();
}

criterion_group!(benches, whole_blocks, cut_blocks, whole_plans, admitted);
criterion_main!(benches);
