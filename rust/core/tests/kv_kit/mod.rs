//! KV pools as real bytes, and the copy between two machines element by element, written from the definitions of the
//! layouts alone: nothing in here asks the library where anything lies.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests: what is missing fails them")]

use splitcore_core::kv::{
    Arrangement, BlockId, BlockSet, Dtype, KvLayout, KvRange, Planes, PoolShape, RANGE_BYTES_MAX, RangeError,
    Shard, TokenOrder, TransferPlan, Values, plan_transfer, senders,
};
use std::ops::Range;

/// What the destination's memory holds before anything is written.
pub(crate) const CANARY: u8 = 0xee;

pub(crate) const ORDERS: [TokenOrder; 2] = [TokenOrder::Nhd, TokenOrder::Hnd];
pub(crate) const PLANES: [Planes; 2] = [Planes::Together, Planes::Apart];
pub(crate) const ARRANGEMENTS: [Arrangement; 2] = [Arrangement::LayerFirst, Arrangement::BlockFirst];
pub(crate) const DTYPES: [Dtype; 6] =
    [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8e4m3, Dtype::F8e5m2, Dtype::I8];

/// Two layers of two heads, in blocks of four tokens: what tests start from.
pub(crate) fn layout() -> KvLayout {
    KvLayout {
        layers: 2,
        values: Values::Heads { heads: 2, head_dim: 3 },
        dtype: Dtype::F16,
        block_tokens: 4,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    }
}

pub(crate) fn ids(blocks: impl IntoIterator<Item = u32>) -> Vec<BlockId> {
    blocks.into_iter().map(BlockId).collect()
}

/// The place of an index in an array, outermost dimension first: pairs of index and size.
fn index(dimensions: &[(usize, usize)]) -> usize {
    dimensions.iter().fold(0, |place, &(at, of)| {
        assert!(at < of, "{at} of {of}");
        place * of + at
    })
}

/// Heads of the model, planes and bytes of a row.
fn sizes(layout: &KvLayout) -> (usize, usize, usize) {
    let width = match layout.dtype {
        Dtype::F32 => 4,
        Dtype::F16 | Dtype::Bf16 => 2,
        Dtype::F8e4m3 | Dtype::F8e5m2 | Dtype::I8 => 1,
    };
    match layout.values {
        Values::Heads { heads, head_dim } => (heads.into(), 2, usize::from(head_dim) * width),
        Values::Latent { dim } => (1, 1, usize::from(dim) * width),
    }
}

/// The model's heads on a rank: dealt out in order, or one head to as many ranks as there are for each.
pub(crate) fn heads_of(layout: &KvLayout) -> Vec<usize> {
    let (heads, ..) = sizes(layout);
    let (rank, size) = (usize::from(layout.shard.rank), usize::from(layout.shard.size));
    (0..heads)
        .filter(
            |head| if heads >= size { head / (heads / size) == rank } else { rank / (size / heads) == *head },
        )
        .collect()
}

/// One byte of one element.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Element {
    pub(crate) layer: usize,
    pub(crate) plane: usize,
    pub(crate) block: usize,
    pub(crate) token: usize,
    /// Among the heads of the rank.
    pub(crate) head: usize,
    pub(crate) byte: usize,
}

/// Where it lies in the pool.
pub(crate) fn place(pool: &PoolShape, at: Element) -> usize {
    let layout = &pool.layout;
    let (_, planes, row) = sizes(layout);
    let layer = (at.layer, usize::from(layout.layers));
    let plane = (at.plane, planes);
    let block = (at.block, pool.blocks as usize);
    let token = (at.token, usize::from(layout.block_tokens));
    let head = (at.head, heads_of(layout).len());
    let (slow, fast) = match layout.order {
        TokenOrder::Nhd => (token, head),
        TokenOrder::Hnd => (head, token),
    };
    let outer = match (layout.arrangement, layout.planes) {
        (Arrangement::LayerFirst, Planes::Together) => [layer, block, plane],
        (Arrangement::LayerFirst, Planes::Apart) => [layer, plane, block],
        (Arrangement::BlockFirst, _) => [block, layer, plane],
    };
    index(&[outer[0], outer[1], outer[2], slow, fast, (at.byte, row)])
}

/// The offset of an element within its block, as everybody numbers them.
pub(crate) fn offset(layout: &KvLayout, at: Element) -> usize {
    let pool = PoolShape {
        layout: KvLayout { arrangement: Arrangement::BlockFirst, planes: Planes::Together, ..*layout },
        blocks: 1,
    };
    place(&pool, Element { block: 0, ..at })
}

/// Every byte of a pool.
pub(crate) fn elements(pool: &PoolShape) -> impl Iterator<Item = Element> + use<> {
    let layout = pool.layout;
    let (_, planes, row) = sizes(&layout);
    let counts = [
        layout.layers.into(),
        planes,
        pool.blocks as usize,
        layout.block_tokens.into(),
        heads_of(&layout).len(),
        row,
    ];
    (0..counts.iter().product()).map(move |mut number: usize| {
        let mut next = |of: usize| {
            let at = number % of;
            number /= of;
            at
        };
        let [layer, plane, block, token, head, byte] = counts.map(&mut next);
        Element { layer, plane, block, token, head, byte }
    })
}

/// The pool's bytes by block and offset, so that tests can look up where a range begins.
pub(crate) struct Atlas {
    block_bytes: usize,
    places: Vec<usize>,
    /// Layer and block of each place.
    pub(crate) owners: Vec<(u16, BlockId)>,
}

impl Atlas {
    pub(crate) fn of(pool: &PoolShape) -> Self {
        let bytes = elements(pool).count();
        let block_bytes = if pool.blocks == 0 { 0 } else { bytes / pool.blocks as usize };
        let mut atlas = Self { block_bytes, places: vec![0; bytes], owners: vec![(0, BlockId(0)); bytes] };
        for at in elements(pool) {
            let place = place(pool, at);
            atlas.places[at.block * block_bytes + offset(&pool.layout, at)] = place;
            atlas.owners[place] = (at.layer as u16, BlockId(at.block as u32));
        }
        atlas
    }

    pub(crate) fn place(&self, block: BlockId, offset: u32) -> Option<usize> {
        let within = (offset as usize) < self.block_bytes;
        let at = block.0 as usize * self.block_bytes + offset as usize;
        self.places.get(at).copied().filter(|_| within)
    }
}

/// One rank: its pool, its blocks, its memory.
pub(crate) struct Rank {
    pub(crate) pool: PoolShape,
    pub(crate) table: Vec<BlockId>,
    pub(crate) atlas: Atlas,
}

impl Rank {
    pub(crate) fn new(layout: KvLayout, blocks: u32, table: Vec<BlockId>) -> Self {
        let pool = PoolShape { layout, blocks };
        Self { pool, table, atlas: Atlas::of(&pool) }
    }

    /// Writes what `value` says to where each of these positions lies.
    fn fill(&self, memory: &mut [u8], positions: Range<u32>, value: impl Fn(u32, usize, Element) -> u8) {
        let layout = &self.pool.layout;
        let heads = heads_of(layout);
        let (_, planes, row) = sizes(layout);
        for position in positions {
            let (entry, token) = (position as usize / usize::from(layout.block_tokens), position as usize);
            let (block, token) = (self.table[entry].0 as usize, token % usize::from(layout.block_tokens));
            for layer in 0..layout.layers.into() {
                for plane in 0..planes {
                    for (head, &of_model) in heads.iter().enumerate() {
                        for byte in 0..row {
                            let at = Element { layer, plane, block, token, head, byte };
                            memory[place(&self.pool, at)] = value(position, of_model, at);
                        }
                    }
                }
            }
        }
    }

    /// A source's memory: KV of its positions, and rubbish elsewhere.
    pub(crate) fn source_memory(&self, tokens: u32) -> Vec<u8> {
        let mut memory: Vec<u8> = (0..self.atlas.owners.len()).map(|place| mix(&[place, 77])).collect();
        self.fill(&mut memory, 0..tokens, kv);
        memory
    }

    /// A destination's memory when it has these positions, and how often each byte was written.
    pub(crate) fn wanted(&self, positions: &Range<u32>) -> (Vec<u8>, Vec<u8>) {
        let mut memory = vec![CANARY; self.atlas.owners.len()];
        let mut writes = vec![0; memory.len()];
        self.fill(&mut memory, positions.clone(), kv);
        self.fill(&mut writes, positions.clone(), |_, _, _| 1);
        (memory, writes)
    }
}

/// The KV of a model: a byte of each element.
fn kv(position: u32, head: usize, at: Element) -> u8 {
    mix(&[at.layer, at.plane, position as usize, head, at.byte])
}

fn mix(words: &[usize]) -> u8 {
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &word| {
        (hash ^ word as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    });
    (hash ^ (hash >> 32)).to_le_bytes()[1]
}

/// A destination's memory and the writes to it.
pub(crate) struct Written {
    pub(crate) memory: Vec<u8>,
    pub(crate) writes: Vec<u8>,
}

impl Written {
    pub(crate) fn new(rank: &Rank) -> Self {
        let bytes = rank.atlas.owners.len();
        Self { memory: vec![CANARY; bytes], writes: vec![0; bytes] }
    }

    pub(crate) fn copy(&mut self, range: &KvRange, from: &Rank, source: &[u8], to: &Rank) {
        let read = from.atlas.place(range.from, range.from_offset).unwrap();
        let write = to.atlas.place(range.to, range.to_offset).unwrap();
        let bytes = range.bytes as usize;
        assert!(bytes > 0, "{range:?}");
        self.memory[write..write + bytes].copy_from_slice(&source[read..read + bytes]);
        for count in &mut self.writes[write..write + bytes] {
            *count += 1;
        }
    }
}

/// The ranks of a machine, each with a table of its own.
pub(crate) fn machine(
    layout: KvLayout,
    tokens: u32,
    blocks: u32,
    table: &dyn Fn(u16, u32) -> Vec<BlockId>,
) -> Vec<Rank> {
    let size = layout.shard.size;
    let needed = tokens.div_ceil(layout.block_tokens.into());
    (0..size)
        .map(|rank| {
            let layout = KvLayout { shard: Shard { rank, size }, ..layout };
            Rank::new(layout, blocks, table(rank, needed))
        })
        .collect()
}

pub(crate) fn plan(from: &Rank, to: &Rank, positions: &Range<u32>) -> TransferPlan {
    plan_transfer(&from.pool, &from.table, &to.pool, &to.table, positions.clone())
        .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", from.pool, to.pool))
}

/// Runs every pair's plan on real bytes and compares with the copy element by element; checks all that plans promise.
/// Returns the ranges of layer 0 of all of them.
pub(crate) fn check(sources: &[Rank], destinations: &[Rank], positions: &Range<u32>) -> usize {
    let memories: Vec<Vec<u8>> = sources.iter().map(|rank| rank.source_memory(positions.end)).collect();
    let mut ranges = 0;
    for to in destinations {
        let (mut by_layer, mut at_once) = (Written::new(to), Written::new(to));
        let mut sent_by = Vec::new();
        for (from, memory) in sources.iter().zip(&memories) {
            let plan = plan(from, to, positions);
            let mut bytes = 0;
            for layer in 0..plan.layers() {
                let layer_ranges: Vec<KvRange> = plan.layer(layer).collect();
                assert_eq!(
                    layer_ranges.iter().map(|range| u64::from(range.bytes)).sum::<u64>(),
                    plan.layer_bytes()
                );
                for range in &layer_ranges {
                    by_layer.copy(range, from, memory, to);
                }
                assert_merged(&layer_ranges, from, to);
                assert_admitted(&layer_ranges, Some(layer), to, positions);
                bytes += plan.layer_bytes();
                ranges += if layer == 0 { layer_ranges.len() } else { 0 };
            }
            let whole = plan.whole();
            for range in &whole {
                at_once.copy(range, from, memory, to);
            }
            assert_merged(&whole, from, to);
            assert_admitted(&whole, None, to, positions);
            assert_eq!(plan.bytes(), bytes);
            assert_eq!(plan.is_empty(), bytes == 0);
            assert_eq!(plan.layer(plan.layers()).len(), 0);
            if !plan.is_empty() {
                sent_by.push(from.pool.layout.shard.rank);
            }
        }
        let (memory, writes) = to.wanted(positions);
        let about = || format!("{:?}\nto {:?}\n{positions:?}", sources[0].pool, to.pool);
        assert!(by_layer.writes == writes && at_once.writes == writes, "each byte once: {}", about());
        assert!(by_layer.memory == memory && at_once.memory == memory, "each in its place: {}", about());
        assert_eq!(
            senders(&sources[0].pool.layout, &to.pool.layout).as_deref(),
            Ok(&sent_by[..]),
            "{}",
            about()
        );
    }
    ranges
}

/// No two ranges touch on both sides, wherever they stand in the plan.
fn assert_merged(ranges: &[KvRange], from: &Rank, to: &Rank) {
    let mut spots: Vec<[usize; 3]> = ranges
        .iter()
        .map(|range| {
            let write = to.atlas.place(range.to, range.to_offset).unwrap();
            [write, from.atlas.place(range.from, range.from_offset).unwrap(), range.bytes as usize]
        })
        .collect();
    spots.sort_unstable();
    for pair in spots.windows(2) {
        let [write, read, bytes] = pair[0];
        let touch = write + bytes == pair[1][0] && read + bytes == pair[1][1];
        assert!(!touch || bytes == RANGE_BYTES_MAX as usize, "{pair:?} in {:?} {:?}", from.pool, to.pool);
    }
}

/// A receiver that granted the blocks takes every range, and one that left one of its blocks out does not.
fn assert_admitted(ranges: &[KvRange], layer: Option<u16>, to: &Rank, positions: &Range<u32>) {
    let tokens = u32::from(to.pool.layout.block_tokens);
    let needed = &to.table[(positions.start / tokens) as usize..positions.end.div_ceil(tokens) as usize];
    let admit = |granted: &BlockSet, range: &KvRange| match layer {
        Some(layer) => to.pool.admit(granted, layer, range.to, range.to_offset, range.bytes),
        None => to.pool.admit_whole(granted, range.to, range.to_offset, range.bytes),
    };
    let all = BlockSet::new(needed.to_vec());
    for (number, range) in ranges.iter().enumerate() {
        let start = to.atlas.place(range.to, range.to_offset).unwrap();
        let end = start + range.bytes as usize;
        assert_eq!(admit(&all, range), Ok(start as u64..end as u64));
        let mut touched: Vec<BlockId> = to.atlas.owners[start..end].iter().map(|owner| owner.1).collect();
        touched.sort_unstable();
        touched.dedup();
        let block = touched[number % touched.len()];
        let others = needed.iter().copied().filter(|&other| other != block).collect();
        assert_eq!(admit(&BlockSet::new(others), range), Err(RangeError::NotGranted { block }));
    }
}

/// So many distinct blocks of a pool, in one of the ways tables come about.
pub(crate) fn table(style: u8, seed: u64, needed: u32, blocks: u32) -> Vec<BlockId> {
    let mut all: Vec<u32> = (0..blocks).collect();
    let spare = blocks - needed;
    match style % 4 {
        0 => all.rotate_left((seed % (u64::from(spare) + 1)) as usize),
        1 => all.reverse(),
        2 => shuffle(&mut all, seed),
        // Runs of two and three, as a pool in use gives them.
        _ => {
            let mut runs: Vec<Vec<u32>> = all.chunks(2 + seed as usize % 2).map(<[u32]>::to_vec).collect();
            shuffle(&mut runs, seed);
            all = runs.concat();
        }
    }
    ids(all.into_iter().take(needed as usize))
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for at in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(at, ((state >> 33) % (at as u64 + 1)) as usize);
    }
}
