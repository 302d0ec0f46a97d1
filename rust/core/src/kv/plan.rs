//! Which bytes move where: from the blocks of one layout to those of another.
//!
//! A plan is for one source rank and one destination rank. It is cut block by block as the destination's memory has them: a row of
//! one head, one token, one plane is the least that is contiguous on both sides in every pair of layouts, and whatever
//! continues the bytes before it on both sides becomes one range with them.

use std::fmt;
use std::ops::Range;

use super::cut::{Cut, Half, Order};
use super::geometry::Geometry;
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

    /// The ranges of all layers, block by block as the destination's memory has them: those of [`TransferPlan::layer`]
    /// one after the other where a pool has its layers apart, and merged where both have those of a block together.
    /// O(layers x ranges).
    pub fn whole(&self) -> Vec<KvRange> {
        let (source, destination) = (self.source.geometry(), self.destination.geometry());
        let spot = |pool: &Geometry, block, offset| {
            pool.locate(block, offset).map(|place| Spot { block, offset, place })
        };
        let firsts: Vec<(Spot, Spot, u32)> = self
            .ranges
            .iter()
            .filter_map(|range| {
                let from = spot(&source, range.from, range.from_offset)?;
                Some((from, spot(&destination, range.to, range.to_offset)?, range.bytes))
            })
            .collect();
        let mut runs = Runs::new(&source, &destination);
        let mut push_layer = |ranges: &[(Spot, Spot, u32)], layer| {
            for &(from, to, bytes) in ranges {
                runs.push(from.in_layer(&source, layer), to.in_layer(&destination, layer), bytes.into());
            }
        };
        if self.destination.layout.arrangement == Arrangement::LayerFirst {
            (0..self.layers()).for_each(|layer| push_layer(&firsts, layer));
        } else {
            for block in firsts.chunk_by(|one, other| one.1.block == other.1.block) {
                (0..self.layers()).for_each(|layer| push_layer(block, layer));
            }
        }
        runs.finish()
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
    let (row_bytes, planes) = (source.layout.row_bytes(), source.layout.plane_count());
    let layer_bytes = positions.len() as u64 * heads.len() as u64 * u64::from(row_bytes) * u64::from(planes);
    let (source_geometry, destination_geometry) = (source.geometry(), destination.geometry());
    let mut runs = Runs::new(&source_geometry, &destination_geometry);
    if !heads.is_empty() {
        let cut = Cut {
            from: Half::new(source, source_table, heads.start),
            to: Half::new(destination, destination_table, heads.start),
            row_bytes,
            heads: heads.len() as u32,
            planes,
            positions,
        };
        cut.all(&mut runs, &order, written.start as u32)?;
    }
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
