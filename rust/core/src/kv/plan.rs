//! Which bytes move where: from the blocks of one layout to those of another.
//!
//! A plan is for one source rank and one destination rank. It is cut block by block as the destination's memory has them: a row of
//! one head, one token, one plane is the least that is contiguous on both sides in every pair of layouts, and whatever
//! continues the bytes before it on both sides becomes one range with them.

use std::fmt;
use std::ops::Range;

use super::cut::{Cut, Half, Order};
use super::ranks::heads_sent;
use super::runs::{KvRange, Runs, Spot};
use super::{Arrangement, BlockId, KvLayout, LayoutError, Mismatch, PoolShape};

/// One end of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where the bytes are read.
    Source,
    /// Where they are written.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanError {
    /// A layout that no pool can have.
    Layout {
        /// Whose.
        side: Side,
        /// What is wrong with it.
        error: LayoutError,
    },
    /// The layouts do not agree where they must; the source is `here`.
    Incompatible(Mismatch),
    /// The positions are none.
    EmptySpan {
        /// First position.
        start: u32,
        /// One past the last.
        end: u32,
    },
    /// A table ends before the positions do.
    TableTooShort {
        /// Whose.
        side: Side,
        /// Blocks it has.
        blocks: u32,
        /// Blocks that the positions need, from position 0.
        needed: u32,
    },
    /// A table names a block that its pool does not have.
    OutsidePool {
        /// Whose.
        side: Side,
        /// The largest that it names.
        block: BlockId,
        /// Blocks of the pool.
        blocks: u32,
    },
    /// The destination's table names a block twice: one would overwrite the other.
    Repeated {
        /// The first such block.
        block: BlockId,
    },
    /// A layer would have more ranges than any transfer should.
    TooManyRanges {
        /// How many are possible.
        limit: u32,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout { side, error } => write!(f, "{side} layout: {error}"),
            Self::Incompatible(mismatch) => mismatch.fmt(f),
            Self::EmptySpan { start, end } => write!(f, "no positions in {start}..{end}"),
            Self::TableTooShort { side, blocks, needed } => {
                write!(f, "{side} table has {blocks} blocks, the positions need {needed}")
            }
            Self::OutsidePool { side, block, blocks } => {
                write!(f, "{side} block {} is outside its pool of {blocks} blocks", block.0)
            }
            Self::Repeated { block } => {
                write!(f, "destination block {} is in the table more than once", block.0)
            }
            Self::TooManyRanges { limit } => write!(f, "more than {limit} ranges a layer"),
        }
    }
}

impl std::error::Error for PlanError {}

impl From<Mismatch> for PlanError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Incompatible(mismatch)
    }
}

/// What one source rank copies to one destination rank. No byte of the destination is in two ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferPlan {
    source: PoolShape,
    destination: PoolShape,
    /// Of layer 0, block by block as the destination's memory has them. Every layer has the same, further on.
    ranges: Vec<KvRange>,
    layer_bytes: u64,
}

impl TransferPlan {
    /// Layers of the model.
    pub fn layers(&self) -> u16 {
        self.source.layout.layers
    }

    /// The ranges of a layer, block by block as the destination's memory has them; none past the last layer. Each lies
    /// in that layer on both sides, and no two of them could be one.
    pub fn layer(&self, layer: u16) -> impl ExactSizeIterator<Item = KvRange> + '_ {
        let ranges = if layer < self.layers() { &self.ranges[..] } else { &[] };
        ranges.iter().map(move |&range| self.in_layer(range, layer))
    }

    /// A range of layer 0, in another.
    fn in_layer(&self, range: KvRange, layer: u16) -> KvRange {
        let further = |pool: &PoolShape| u32::from(layer) * pool.layout.layer_block_bytes();
        KvRange {
            from_offset: range.from_offset + further(&self.source),
            to_offset: range.to_offset + further(&self.destination),
            ..range
        }
    }

    /// Bytes of a layer.
    pub fn layer_bytes(&self) -> u64 {
        self.layer_bytes
    }

    /// Bytes of all layers.
    pub fn bytes(&self) -> u64 {
        self.layer_bytes * u64::from(self.layers())
    }

    /// Whether this source rank sends nothing to this destination rank.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges of all layers, block by block as the destination's memory has them: those of [`TransferPlan::layer`] one after
    /// the other where a pool has its layers apart, and merged where both have those of a block together.
    /// O(layers x ranges), and O(ranges) where whole blocks move.
    pub fn whole(&self) -> Vec<KvRange> {
        let mut runs = Runs::new(&self.source, &self.destination);
        if self.destination.layout.arrangement == Arrangement::LayerFirst {
            for layer in 0..self.layers() {
                self.push_layer(&mut runs, &self.ranges, layer);
            }
            return runs.finish();
        }
        for block in self.ranges.chunk_by(|one, other| one.to == other.to) {
            if let [range] = block
                && self.is_whole(range)
            {
                self.push(&mut runs, *range, u64::from(range.bytes) * u64::from(self.layers()));
            } else {
                for layer in 0..self.layers() {
                    self.push_layer(&mut runs, block, layer);
                }
            }
        }
        runs.finish()
    }

    /// Whether a range of layer 0 goes on into the other layers on both sides.
    fn is_whole(&self, range: &KvRange) -> bool {
        [&self.source, &self.destination].into_iter().all(|pool| {
            let layout = &pool.layout;
            layout.arrangement == Arrangement::BlockFirst && range.bytes == layout.layer_block_bytes()
        })
    }

    fn push_layer(&self, runs: &mut Runs<'_>, ranges: &[KvRange], layer: u16) {
        for &range in ranges {
            self.push(runs, self.in_layer(range, layer), range.bytes.into());
        }
    }

    fn push(&self, runs: &mut Runs<'_>, range: KvRange, bytes: u64) {
        let spot = |pool: &PoolShape, block, offset| {
            pool.locate(block, offset).map(|place| Spot { block, offset, place })
        };
        let from = spot(&self.source, range.from, range.from_offset);
        let to = spot(&self.destination, range.to, range.to_offset);
        if let (Some(from), Some(to)) = (from, to) {
            runs.push(from, to, bytes);
        }
    }
}

/// What the rank of `source` copies to the rank of `destination` so that the latter's share of these token positions
/// is in its blocks.
///
/// Both tables are in position order and begin at position 0, whatever the positions: position p of a side lies in
/// block `table[p / block_tokens]`, at token `p % block_tokens` of it. A destination that has the first k tokens gets
/// `k..n`. Only the positions named are touched, so of a partial block only its valid tokens.
///
/// Block sizes, orders, planes, arrangements and tensor-parallel sizes of the two sides may differ in any way. Where a
/// head is on several source ranks, exactly one of them sends it to a destination rank, by the rule of
/// [`super::senders`]; the plans of the others are empty.
///
/// O(blocks) where both sides have the same block size, heads and order, and the destination's blocks ascend; times
/// their logarithm where they do not. Where heads must be picked out or turned, O(tokens) or O(tokens x heads) ranges.
///
/// # Errors
/// What is wrong with the layouts, the positions or the tables; the latter only as far as the positions need them.
pub fn plan_transfer(
    source: &PoolShape,
    source_table: &[BlockId],
    destination: &PoolShape,
    destination_table: &[BlockId],
    positions: Range<u32>,
) -> Result<TransferPlan, PlanError> {
    check_pair(&source.layout, &destination.layout)?;
    if positions.is_empty() {
        return Err(PlanError::EmptySpan { start: positions.start, end: positions.end });
    }
    needed(source, source_table, Side::Source, &positions)?;
    let written = needed(destination, destination_table, Side::Destination, &positions)?;
    let order = Order::of(&destination_table[written.clone()])?;
    let heads = heads_sent(&source.layout, &destination.layout);
    let tokens = positions.len() as u64;
    let row_bytes = source.layout.row_bytes();
    let mut runs = Runs::new(source, destination);
    if !heads.is_empty() {
        let cut = Cut {
            from: Half::new(source, source_table, heads.start),
            to: Half::new(destination, destination_table, heads.start),
            row_bytes,
            heads: heads.len() as u32,
            planes: source.layout.plane_count(),
            positions,
        };
        cut.all(&mut runs, &order, written.start)?;
    }
    let layer_bytes =
        tokens * heads.len() as u64 * u64::from(row_bytes) * u64::from(source.layout.plane_count());
    Ok(TransferPlan { source: *source, destination: *destination, ranges: runs.finish(), layer_bytes })
}

/// Both layouts are possible, and agree where they must.
pub(super) fn check_pair(source: &KvLayout, destination: &KvLayout) -> Result<(), PlanError> {
    source.check().map_err(|error| PlanError::Layout { side: Side::Source, error })?;
    destination.check().map_err(|error| PlanError::Layout { side: Side::Destination, error })?;
    source.mismatch(destination).map_or(Ok(()), |mismatch| Err(mismatch.into()))
}

/// The entries of a table that the positions need, if they are there and in the pool.
fn needed(
    pool: &PoolShape,
    table: &[BlockId],
    side: Side,
    positions: &Range<u32>,
) -> Result<Range<usize>, PlanError> {
    let needed = pool.layout.blocks_for(positions.end);
    let entries = (positions.start / u32::from(pool.layout.block_tokens)) as usize..needed as usize;
    let Some(blocks) = table.get(entries.clone()) else {
        return Err(PlanError::TableTooShort { side, blocks: table.len() as u32, needed });
    };
    match blocks.iter().max() {
        Some(&block) if block.0 >= pool.blocks => {
            Err(PlanError::OutsidePool { side, block, blocks: pool.blocks })
        }
        _ => Ok(entries),
    }
}
