//! A language model of a few lines: the next token follows from all tokens before it, as they are read from the KV pool. So
//! bytes that are lost, torn or another's show in what clients get.

use std::sync::Arc;

use splitcore_core::id::LegKey;
use splitcore_core::kv::{Arrangement, BlockId, Dtype, KvLayout, Planes, Shard, TokenOrder, Values};
use splitcore_transport::Pool;
use splitcore_worker::{Pass, Span};

pub(crate) const LAYERS: u16 = 3;
pub(crate) const VOCABULARY: u32 = 50;
/// Ends an output.
pub(crate) const STOP: u32 = 7;
/// A row of K or V: position, token, and what says whose they are.
const ROW_BYTES: usize = 16;

pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The token after these.
pub(crate) fn next_token(seed: u64, tokens: &[u32]) -> u32 {
    let word = tokens.iter().fold(seed, |word, &token| mix(word.wrapping_add(u64::from(token) + 1)));
    (mix(word) % u64::from(VOCABULARY)) as u32
}

/// What a client gets.
pub(crate) fn output(seed: u64, prompt: &[u32], cap: u32) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + cap as usize && !tokens[prompt.len()..].contains(&STOP) {
        tokens.push(next_token(seed, &tokens));
    }
    tokens.split_off(prompt.len())
}

/// Machines differ in everything in which they may.
pub(crate) fn layout(index: u32) -> KvLayout {
    KvLayout {
        layers: LAYERS,
        values: Values::Heads { heads: 1, head_dim: 4 },
        dtype: Dtype::F32,
        block_tokens: if index.is_multiple_of(2) { 16 } else { 12 },
        order: TokenOrder::Nhd,
        planes: if index < 2 { Planes::Together } else { Planes::Apart },
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    }
}

/// A model over a pool.
pub(crate) struct Model {
    pool: Arc<Pool>,
}

impl Model {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self { pool }
    }

    /// Runs a pass layer by layer, and puts each layer as soon as it is whole.
    pub(crate) fn run(&self, pass: Pass) -> Vec<(LegKey, u32)> {
        self.run_telling(pass, |_, _| {})
    }

    /// The same, and `before` hears of each layer before it is computed.
    pub(crate) fn run_telling(&self, mut pass: Pass, before: impl Fn(&Pass, u16)) -> Vec<(LegKey, u32)> {
        for layer in 0..LAYERS {
            before(&pass, layer);
            for span in &mut pass.spans {
                for (position, &token) in (span.start..).zip(&span.tokens) {
                    self.write(&span.blocks, layer, position, token);
                }
                span.follows.iter_mut().for_each(|follow| follow.put_layer(layer));
            }
        }
        let drawn = pass.spans.iter().filter_map(|span| Some((span.key, self.draw(span)?)));
        drawn.collect()
    }

    fn draw(&self, span: &Span) -> Option<u32> {
        let sampling = span.sampling?;
        let end = span.start + span.tokens.len() as u32;
        let tokens: Vec<u32> = (0..end).map(|position| self.read(&span.blocks, 0, position)).collect();
        for layer in 1..LAYERS {
            for (position, &token) in (0..).zip(&tokens) {
                assert_eq!(self.read(&span.blocks, layer, position), token, "{:?} at {position}", span.key);
            }
        }
        Some(next_token(sampling.seed, &tokens))
    }

    fn place(&self, blocks: &[u32], layer: u16, position: u32, plane: u32) -> *mut u8 {
        let shape = self.pool.shape();
        let (layout, size) = (shape.layout, u32::from(shape.layout.block_tokens));
        let offset = u32::from(layer) * layout.layer_block_bytes()
            + plane * layout.plane_block_bytes()
            + position % size * ROW_BYTES as u32;
        let place = shape.locate(BlockId(blocks[(position / size) as usize]), offset).unwrap();
        // SAFETY: the place is inside the pool.
        unsafe { self.pool.host_base().unwrap().as_ptr().add(place as usize) }
    }

    fn row(layer: u16, position: u32, token: u32, plane: u32) -> [u8; ROW_BYTES] {
        let mut row = [0; ROW_BYTES];
        let check =
            mix(u64::from(token) << 32 | u64::from(position) << 8 | u64::from(layer) << 1 | u64::from(plane));
        row[..4].copy_from_slice(&token.to_le_bytes());
        row[4..8].copy_from_slice(&position.to_le_bytes());
        row[8..].copy_from_slice(&check.to_le_bytes());
        row
    }

    fn write(&self, blocks: &[u32], layer: u16, position: u32, token: u32) {
        for plane in 0..2 {
            let row = Self::row(layer, position, token, plane);
            let place = self.place(blocks, layer, position, plane);
            // SAFETY: the row is inside the pool, and its block is this request's, which no transfer touches there.
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), place, ROW_BYTES) };
        }
    }

    fn read(&self, blocks: &[u32], layer: u16, position: u32) -> u32 {
        let mut token = 0;
        for plane in 0..2 {
            let (mut row, place) = ([0; ROW_BYTES], self.place(blocks, layer, position, plane));
            // SAFETY: as above; what is read has been written by a pass before, or has landed.
            unsafe { std::ptr::copy_nonoverlapping(place, row.as_mut_ptr(), ROW_BYTES) };
            token = u32::from_le_bytes([row[0], row[1], row[2], row[3]]);
            assert_eq!(row, Self::row(layer, position, token, plane), "layer {layer} at {position}");
        }
        token
    }
}
