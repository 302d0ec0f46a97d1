//! Transfers to plan: blocks of a model with eight KV heads, in order or from all over the pool.

use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, Planes, PoolShape, Shard, TokenOrder, TransferPlan, Values,
    plan_transfer,
};

use crate::draws::Draws;

/// Blocks of 16 tokens of a model with eight KV heads and a hundred thousand blocks.
pub const LAYOUT: KvLayout = KvLayout {
    layers: 80,
    values: Values::Heads { heads: 8, head_dim: 128 },
    dtype: Dtype::Bf16,
    block_tokens: 16,
    order: TokenOrder::Hnd,
    planes: Planes::Apart,
    arrangement: Arrangement::LayerFirst,
    shard: Shard::WHOLE,
};
/// Blocks of either pool.
pub const POOL_BLOCKS: u32 = 100_000;

/// A transfer that is planned again and again.
pub struct Transfer {
    pools: [PoolShape; 2],
    tables: [Vec<BlockId>; 2],
    tokens: u32,
}

impl Transfer {
    /// A transfer of `tokens` tokens between these layouts and tables.
    pub fn new(layouts: [KvLayout; 2], tables: [Vec<BlockId>; 2], tokens: u32) -> Self {
        Self { pools: layouts.map(|layout| PoolShape { layout, blocks: POOL_BLOCKS }), tables, tokens }
    }

    /// Plans it.
    ///
    /// # Panics
    /// If there is no plan: these transfers have one.
    pub fn plan(&self) -> TransferPlan {
        let [source, destination] = &self.pools;
        plan_transfer(source, &self.tables[0], destination, &self.tables[1], 0..self.tokens)
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Blocks that follow each other.
pub fn in_order(blocks: u32) -> Vec<BlockId> {
    (7..blocks + 7).map(BlockId).collect()
}

/// Blocks from all over the pool, each once.
pub fn scattered(blocks: u32, seed: u64) -> Vec<BlockId> {
    let mut all: Vec<BlockId> = (0..POOL_BLOCKS).map(BlockId).collect();
    let mut draws = Draws::new(seed);
    for at in 0..blocks {
        all.swap(at as usize, draws.between(at, POOL_BLOCKS - 1) as usize);
    }
    all.truncate(blocks as usize);
    all
}
