//! What must hold whatever comes: plain functions, for fuzzers and for the tests that feed them at random.
//!
//! [`stream`] takes any bytes as the program of a hostile sender: frames with sound checksums, so that the checks behind
//! them are reached, raw bytes between them, and stops by the receiver.

use std::io::IoSliceMut;
use std::sync::Arc;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{
    Arrangement, BlockId, BlockSet, Dtype, KvLayout, Planes, PoolShape, Shard, TokenOrder, Values,
    plan_transfer,
};
use splitcore_secret::Token;

use super::frame::{Crc, Descriptor, Head, Kind, Refusal};
use super::intake::{Intake, Step};
use crate::handshake::Incarnation;
use crate::landing::{Landing, Writer};
use crate::memory::Mapping;
use crate::pool::Pool;
use crate::transfer::{Grant, TransferKey};
use crate::word::{CellState, Generation};

const US: Incarnation = Incarnation(1);
const OTHER: Incarnation = Incarnation(2);
const LAYERS: u16 = 2;
const BLOCKS: u32 = 10;
const GUARD: usize = 512;
const CANARY: u8 = 0xa5;

/// Bytes to make things of; zeros where they have run out.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u32 {
        u32::from(self.short()) | u32::from(self.short()) << 16
    }

    /// Mostly small, sometimes anything.
    fn number(&mut self, below: u32) -> u32 {
        if self.byte().is_multiple_of(16) { self.word() } else { u32::from(self.short()) % below.max(1) }
    }
}

/// A landing over memory with canaries on both sides, which are in every block too.
struct World {
    memory: Arc<Mapping>,
    landing: Landing,
    shape: PoolShape,
    ours: TransferKey,
    others: TransferKey,
    /// Of our grant.
    token: Token,
}

struct Nobody;

impl Writer for Nobody {
    fn writes_here(&self) -> bool {
        true
    }
    fn stop(&self, _: TransferKey) {}
    fn close(&self) {}
}

const GRANTED: [u32; 3] = [2, 3, 6];

impl World {
    fn new(arrangement: Arrangement) -> Option<Self> {
        let layout = KvLayout {
            layers: LAYERS,
            values: Values::Heads { heads: 1, head_dim: 4 },
            dtype: Dtype::F16,
            block_tokens: 4,
            order: TokenOrder::Nhd,
            planes: Planes::Together,
            arrangement,
            shard: Shard::WHOLE,
        };
        let shape = PoolShape { layout, blocks: BLOCKS };
        let len = shape.bytes() as usize;
        let memory = Arc::new(Mapping::create("fuzz", len + 2 * GUARD).ok()?);
        // SAFETY: all of the memory, which nobody else has yet.
        unsafe { memory.base().write_bytes(CANARY, memory.len()) };
        // SAFETY: inside the mapping.
        let base = unsafe { memory.base().add(GUARD) };
        // SAFETY: the pool keeps the mapping.
        let pool = unsafe { Pool::borrowed(shape, base, len, Box::new(memory.clone())) }.ok()?;
        let landing = Landing::new(Arc::new(pool), Incarnation(9), 4).ok()?;
        let layer_bytes = u64::from(layout.layer_block_bytes());
        let open = |who, request, blocks: &[u32]| {
            let blocks: Vec<BlockId> = blocks.iter().copied().map(BlockId).collect();
            let bytes = layer_bytes * blocks.len() as u64;
            landing.open(who, RequestId(request), blocks, bytes).ok()
        };
        let Grant { key: ours, token, .. } = open(US, 5, &GRANTED)?;
        let others = open(OTHER, 6, &[0, 7])?.key;
        landing.joined(US, Arc::new(Nobody)).ok()?;
        Some(Self { landing: landing.clone(), memory, shape, ours, others, token })
    }

    fn memory(&self) -> &[u8] {
        // SAFETY: all of the mapping; the stream that writes it waits meanwhile.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr(), self.memory.len()) }
    }

    fn layer(&self, layer: u16) -> Vec<u8> {
        let each = self.shape.layout.layer_block_bytes();
        let place = |&block: &u32| self.shape.locate(BlockId(block), u32::from(layer) * each);
        let starts = GRANTED.iter().filter_map(place);
        starts.flat_map(|start| &self.memory()[GUARD + start as usize..][..each as usize]).copied().collect()
    }

    fn is_published(&self, layer: u16) -> bool {
        let key = self.ours;
        matches!(self.landing.board().peek(key.slot, key.generation, layer), CellState::Published(_))
    }

    /// Nothing outside the granted blocks has changed.
    fn assert_bounds(&self) {
        for (place, &byte) in self.memory().iter().enumerate() {
            let inside = place.checked_sub(GUARD).and_then(|place| self.shape.block_at(place as u64));
            let granted = inside.is_some_and(|(block, _)| GRANTED.contains(&block.0));
            assert!(granted || byte == CANARY, "byte {place} was written");
        }
        let foreign = self.landing.board().peek(self.others.slot, self.others.generation, 0);
        assert!(matches!(foreign, CellState::Pending), "another writer's layer was touched");
    }
}

/// What a hostile sender sends, and what happens meanwhile.
enum Act {
    Bytes(Vec<u8>),
    Stop,
}

fn key(source: &mut Source<'_>, world: &World) -> TransferKey {
    match source.byte() % 8 {
        0 => world.others,
        1 => TransferKey { slot: source.word(), ..world.ours },
        2 => {
            let generation = Generation::new(source.word()).unwrap_or(Generation::LAST);
            TransferKey { generation, ..world.ours }
        }
        3 => TransferKey { request: RequestId(source.word().into()), ..world.ours },
        _ => world.ours,
    }
}

fn act(source: &mut Source<'_>, world: &World, crcs: &mut [Crc; LAYERS as usize]) -> Act {
    let mut bytes = Vec::new();
    match source.byte() % 10 {
        0 => return Act::Stop,
        1 => Head::new(Kind::Drop, Some(key(source, world))).encode(&[], &mut bytes),
        2 => {
            let kind = if source.byte() < 64 { Kind::Bye } else { Kind::Nack(Refusal::Unknown) };
            Head::new(kind, Some(world.ours).filter(|_| kind != Kind::Bye)).encode(&[], &mut bytes);
        }
        3 if source.byte() < 64 => {
            let token = if source.byte() < 128 { world.token } else { Token::new([source.byte(); 16]) };
            Head::encode_show(key(source, world), &token, &mut bytes);
        }
        3 => bytes.extend((0..source.byte()).map(|_| source.byte())),
        4 | 5 => {
            let layer = source.number(LAYERS.into()) as u16;
            let crc = crcs.get(usize::from(layer)).map_or(0, |crc| crc.value());
            let crc32c = if source.byte() < 32 { source.word() } else { crc };
            let layer_bytes = u64::from(world.shape.layout.layer_block_bytes()) * GRANTED.len() as u64;
            let length = if source.byte() < 32 { source.word().into() } else { layer_bytes };
            let head = Head {
                layer,
                tokens: source.word(),
                bytes: length,
                crc32c: Some(crc32c),
                ..Head::new(Kind::Publish, Some(key(source, world)))
            };
            head.encode(&[], &mut bytes);
        }
        6 => {
            // A whole layer, as an honest sender puts it.
            let layer = u32::from(source.byte()) % u32::from(LAYERS);
            let each = world.shape.layout.layer_block_bytes();
            let whole = |&block: &u32| Descriptor { block, offset: layer * each, bytes: each };
            put(
                source,
                world.ours,
                layer as u16,
                &GRANTED.iter().map(whole).collect::<Vec<_>>(),
                &mut bytes,
                crcs,
            );
        }
        _ => {
            let layer = source.number(LAYERS.into()) as u16;
            let each = world.shape.layout.layer_block_bytes();
            let descriptors: Vec<Descriptor> = (0..=source.byte() % 4)
                .map(|_| Descriptor {
                    block: if source.byte() < 160 {
                        2 + u32::from(source.byte() % 2)
                    } else {
                        source.number(BLOCKS)
                    },
                    offset: source.number(2 * each),
                    bytes: source.number(each),
                })
                .collect();
            let key = key(source, world);
            put(source, key, layer, &descriptors, &mut bytes, crcs);
        }
    }
    if source.byte() < 16 && !bytes.is_empty() {
        let at = usize::from(source.short()) % bytes.len();
        bytes[at] ^= source.byte() | 1;
    }
    Act::Bytes(bytes)
}

fn put(
    source: &mut Source<'_>,
    key: TransferKey,
    layer: u16,
    descriptors: &[Descriptor],
    bytes: &mut Vec<u8>,
    crcs: &mut [Crc; LAYERS as usize],
) {
    Head::encode_put(key, layer, descriptors, bytes);
    let sum: u64 = descriptors.iter().map(|descriptor| u64::from(descriptor.bytes)).sum();
    // Sometimes less than was promised.
    let sum = if source.byte() < 16 { sum / 2 } else { sum };
    let from = bytes.len();
    let seed = source.byte();
    bytes.extend((0..sum.min(4096)).map(|at| (at as u8).wrapping_mul(31) ^ seed));
    if let Some(crc) = crcs.get_mut(usize::from(layer)) {
        crc.update(&bytes[from..]);
    }
}

/// Feeds a receiver's end of a stream with what `data` tells a hostile sender to send, in the portions it tells. How
/// many layers came to be published.
///
/// # Panics
/// A byte outside the granted blocks, or of what was published or stopped, was written; or the stream does not end.
pub fn stream(data: &[u8]) -> usize {
    let mut source = Source(data);
    let arrangement =
        if source.byte().is_multiple_of(2) { Arrangement::LayerFirst } else { Arrangement::BlockFirst };
    let Some(world) = World::new(arrangement) else { return 0 };
    let Some(mut intake) = Intake::new(&world.landing, US, true) else { return 0 };
    // Else nothing of it is taken, and no more is to be seen.
    let mut shown = Vec::new();
    Head::encode_show(world.ours, &world.token, &mut shown);
    feed(&mut intake, &shown, shown.len());
    let mut crcs = [Crc::NEW; LAYERS as usize];
    let mut published: [Option<Vec<u8>>; LAYERS as usize] = [const { None }; LAYERS as usize];
    let mut stopped: Option<Vec<u8>> = None;
    while !source.0.is_empty() {
        match act(&mut source, &world, &mut crcs) {
            Act::Stop => {
                if world.landing.stop(world.ours).is_ok() && stopped.is_none() {
                    stopped = Some(world.memory().to_vec());
                }
            }
            Act::Bytes(bytes) => {
                let portion = 1 + usize::from(source.byte()) * 8;
                if !feed(&mut intake, &bytes, portion) {
                    break;
                }
            }
        }
        for (layer, before) in published.iter_mut().enumerate() {
            if before.is_none() && world.is_published(layer as u16) {
                *before = Some(world.layer(layer as u16));
            }
        }
    }
    world.assert_bounds();
    for (layer, before) in published.iter().enumerate() {
        assert!(
            before.as_ref().is_none_or(|before| *before == world.layer(layer as u16)),
            "published, then written"
        );
    }
    assert!(stopped.is_none_or(|before| before == world.memory()), "stopped, then written");
    published.iter().flatten().count()
}

/// Whether the stream goes on.
fn feed(intake: &mut Intake<'_>, mut bytes: &[u8], portion: usize) -> bool {
    // Every step takes a byte, ends a frame, or waits for more.
    for _ in 0..4 * bytes.len() + 64 {
        let mut recv = |into: &mut [IoSliceMut<'_>]| {
            if bytes.is_empty() {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            let mut took = 0;
            for slice in into {
                let count = slice.len().min(bytes.len()).min(portion - took);
                slice[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                took += count;
            }
            Ok(took)
        };
        match intake.step(&mut recv) {
            Ok(Step::Goes) => {}
            Ok(Step::Waits) => return true,
            Err(_) => return false,
        }
    }
    panic!("the stream goes on and on");
}

fn layout(source: &mut Source<'_>) -> KvLayout {
    let number = |source: &mut Source<'_>, below: u32| source.number(below) as u16;
    let values = if source.byte() < 200 {
        Values::Heads { heads: number(source, 9), head_dim: number(source, 9) }
    } else {
        Values::Latent { dim: number(source, 33) }
    };
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8e4m3, Dtype::F8e5m2, Dtype::I8];
    let bits = source.byte();
    KvLayout {
        layers: number(source, 5),
        values,
        dtype: dtypes[usize::from(source.byte()) % dtypes.len()],
        block_tokens: number(source, 9),
        order: if bits & 1 == 0 { TokenOrder::Nhd } else { TokenOrder::Hnd },
        planes: if bits & 2 == 0 { Planes::Together } else { Planes::Apart },
        arrangement: if bits & 4 == 0 { Arrangement::LayerFirst } else { Arrangement::BlockFirst },
        shard: Shard { rank: number(source, 3), size: number(source, 5) },
    }
}

/// Makes two pools of what `data` says, a plan between them, and ranges that nobody planned. How
/// many ranges were planned or admitted.
///
/// # Panics
/// A range that is admitted or planned touches what it may not, or a plan is not what it says.
pub fn plans(data: &[u8]) -> usize {
    let mut source = Source(data);
    let from = layout(&mut source);
    let mut to = layout(&mut source);
    if source.byte() < 224 {
        (to.layers, to.values, to.dtype) = (from.layers, from.values, from.dtype);
    }
    let [from, to] = [from, to].map(|layout| PoolShape { layout, blocks: source.number(64) });
    let table = |source: &mut Source<'_>, pool: &PoolShape| -> Vec<BlockId> {
        (0..source.byte() % 24).map(|_| BlockId(source.number(pool.blocks))).collect()
    };
    let (sends, takes) = (table(&mut source, &from), table(&mut source, &to));
    let start = source.number(64);
    let positions = start..start.saturating_add(source.number(128));
    let mut count = 0;
    if let Ok(plan) = plan_transfer(&from, &sends, &to, &takes, positions) {
        let (read, written) = (BlockSet::new(sends), BlockSet::new(takes.clone()));
        for layer in 0..plan.layers().min(8) {
            let mut bytes = 0;
            for range in plan.layer(layer) {
                let there = to.admit(&written, layer, range.to, range.to_offset, range.bytes);
                let here = from.admit(&read, layer, range.from, range.from_offset, range.bytes);
                assert!(there.is_ok() && here.is_ok(), "planned and not admitted: {range:?}");
                bytes += u64::from(range.bytes);
                count += 1;
            }
            assert_eq!(bytes, plan.layer_bytes(), "layer {layer}");
        }
    }
    if to.layout.check().is_err() {
        return count;
    }
    let granted = BlockSet::new(takes);
    for _ in 0..8 {
        let layer = source.number(to.layout.layers.into()) as u16;
        let (block, offset) = (BlockId(source.number(to.blocks)), source.number(to.layout.block_bytes()));
        let bytes = source.number(to.layout.layer_block_bytes().saturating_mul(2));
        if bytes > 1 << 20 {
            continue;
        }
        let Ok(places) = to.admit(&granted, layer, block, offset, bytes) else { continue };
        count += 1;
        assert!(places.end <= to.bytes() && places.end - places.start == u64::from(bytes));
        for place in places {
            let (block, offset) = to.block_at(place).unwrap_or((BlockId(u32::MAX), 0));
            assert!(granted.contains(block) && offset / to.layout.layer_block_bytes() == u32::from(layer));
        }
    }
    count
}
