//! Cuts a transfer into runs: rectangles of tokens by heads, block by block in the order of the destination's memory.

use std::ops::Range;

use super::layout::Strides;
use super::runs::{Runs, Spot};
use super::{Arrangement, BlockId, PlanError, Planes, PoolShape, TokenOrder};

/// Ranges of the largest plan, a layer: a million tokens of eight heads that all must be turned.
const RANGES_MAX: usize = 1 << 24;

/// The order in which the blocks of a table lie in memory.
pub(super) enum Order {
    /// That of the table, of so many.
    Table(u32),
    /// Block ids, and below them, in the low half, where they stand in the table.
    Sorted(Vec<u64>),
}

impl Order {
    pub(super) fn of(blocks: &[BlockId]) -> Result<Self, PlanError> {
        if blocks.is_sorted_by(|one, next| one < next) {
            return Ok(Self::Table(blocks.len() as u32));
        }
        let mut keys: Vec<u64> =
            blocks.iter().zip(0..).map(|(block, at): (_, u64)| u64::from(block.0) << 32 | at).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] >> 32 == pair[1] >> 32) {
            Some(pair) => Err(PlanError::Repeated { block: BlockId((pair[0] >> 32) as u32) }),
            None => Ok(Self::Sorted(keys)),
        }
    }

    fn for_each(&self, mut visit: impl FnMut(u32) -> Result<(), PlanError>) -> Result<(), PlanError> {
        match self {
            Self::Table(blocks) => (0..*blocks).try_for_each(visit),
            Self::Sorted(keys) => keys.iter().try_for_each(|&key| visit(key as u32)),
        }
    }
}

/// How one side finds a row.
pub(super) struct Half<'a> {
    table: &'a [BlockId],
    strides: Strides,
    block_tokens: u32,
    plane_bytes: u32,
    /// Bytes from a token to the next, and from a head to the next.
    token: u32,
    head: u32,
    /// Offset of the first head that moves.
    first: u32,
    /// Whether the planes of a block do not lie side by side.
    apart: bool,
}

impl<'a> Half<'a> {
    pub(super) fn new(pool: &PoolShape, table: &'a [BlockId], first_head: u16) -> Self {
        let layout = &pool.layout;
        let (row, block_tokens) = (layout.row_bytes(), u32::from(layout.block_tokens));
        let here = layout.heads_here();
        let (token, head) = match layout.order {
            TokenOrder::Nhd => (here.len() as u32 * row, row),
            TokenOrder::Hnd => (row, block_tokens * row),
        };
        Self {
            table,
            strides: pool.strides(),
            block_tokens,
            plane_bytes: layout.plane_block_bytes(),
            token,
            head,
            first: u32::from(first_head - here.start) * head,
            apart: layout.planes == Planes::Apart && layout.arrangement == Arrangement::LayerFirst,
        }
    }

    /// The first row that moves of a token of a block.
    fn spot(&self, entry: u32, token: u32, plane: u32) -> Spot {
        let block = self.table[entry as usize];
        let rest = self.first + token * self.token;
        let start = u64::from(block.0) * self.strides.block + u64::from(plane) * self.strides.plane;
        Spot { block, offset: plane * self.plane_bytes + rest, place: start + u64::from(rest) }
    }
}

/// A transfer from one rank to another.
pub(super) struct Cut<'a> {
    pub(super) from: Half<'a>,
    pub(super) to: Half<'a>,
    pub(super) row_bytes: u32,
    pub(super) heads: u32,
    pub(super) planes: u32,
    pub(super) positions: Range<u32>,
}

impl Cut<'_> {
    /// Pushes all of layer 0. `order` is that of the destination's entries from `first` on.
    pub(super) fn all(&self, runs: &mut Runs<'_>, order: &Order, first: usize) -> Result<(), PlanError> {
        let first = first as u32;
        if self.to.apart {
            (0..self.planes)
                .try_for_each(|plane| order.for_each(|entry| self.plane_of_block(runs, first + entry, plane)))
        } else {
            order.for_each(|entry| {
                (0..self.planes).try_for_each(|plane| self.plane_of_block(runs, first + entry, plane))
            })
        }
    }

    /// What one plane of one destination block gets.
    fn plane_of_block(&self, runs: &mut Runs<'_>, entry: u32, plane: u32) -> Result<(), PlanError> {
        // The entry is one that the positions need, so that it begins below 2^32; where it ends need not.
        let start = entry * self.to.block_tokens;
        let end = start.saturating_add(self.to.block_tokens).min(self.positions.end);
        let mut position = start.max(self.positions.start);
        let mut source = position / self.from.block_tokens;
        let mut token = position % self.from.block_tokens;
        while position < end {
            let tokens = (end - position).min(self.from.block_tokens - token);
            let from = self.from.spot(source, token, plane);
            let to = self.to.spot(entry, position - start, plane);
            self.rectangle(runs, from, to, tokens)?;
            position += tokens;
            (source, token) = (source + 1, 0);
        }
        Ok(())
    }

    /// So many tokens of all heads that move, from one block to another.
    fn rectangle(&self, runs: &mut Runs<'_>, from: Spot, to: Spot, tokens: u32) -> Result<(), PlanError> {
        let across = Dimension { count: tokens, from: self.from.token, to: self.to.token };
        let down = Dimension { count: self.heads, from: self.from.head, to: self.to.head };
        let (inner, outer) = if across.to <= down.to { (across, down) } else { (down, across) };
        // What is contiguous on both sides is a longer row.
        let (inner, bytes) = inner.joined(self.row_bytes);
        let (outer, bytes) = if inner.count == 1 { outer.joined(bytes) } else { (outer, bytes) };
        for row in 0..outer.count {
            let (from, to) = (from.after(row * outer.from), to.after(row * outer.to));
            for row in 0..inner.count {
                runs.push(from.after(row * inner.from), to.after(row * inner.to), bytes.into());
            }
            if runs.closed() >= RANGES_MAX {
                return Err(PlanError::TooManyRanges { limit: RANGES_MAX as u32 });
            }
        }
        Ok(())
    }
}

/// Tokens or heads of a rectangle.
#[derive(Clone, Copy)]
struct Dimension {
    count: u32,
    /// Bytes from one to the next at the source.
    from: u32,
    /// And at the destination.
    to: u32,
}

impl Dimension {
    /// Rows of so many bytes, joined into one where they touch on both sides.
    fn joined(self, bytes: u32) -> (Self, u32) {
        if self.count > 1 && self.from == bytes && self.to == bytes {
            (Self { count: 1, ..self }, bytes * self.count)
        } else {
            (self, bytes)
        }
    }
}
