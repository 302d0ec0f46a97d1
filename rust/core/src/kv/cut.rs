//! Cuts a transfer into runs: rectangles of tokens by heads, block by block in the order of the destination's memory.

use std::ops::Range;

use super::geometry::Geometry;
use super::runs::{Runs, Spot};
use super::{BlockId, PlanError, PoolShape, TokenOrder};

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

    fn len(&self) -> u32 {
        match self {
            Self::Table(blocks) => *blocks,
            Self::Sorted(keys) => keys.len() as u32,
        }
    }

    /// Which entry comes at a turn.
    fn entry(&self, turn: u32) -> u32 {
        match self {
            Self::Table(_) => turn,
            Self::Sorted(keys) => keys[turn as usize] as u32,
        }
    }
}

/// How one side finds a row.
pub(super) struct Half<'a> {
    table: &'a [BlockId],
    geometry: Geometry,
    block_tokens: u32,
    /// Bytes from a token to the next, and from a head to the next.
    token: u32,
    head: u32,
    /// Offset of the first head that moves.
    first: u32,
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
        let first = u32::from(first_head - here.start) * head;
        Self { table, geometry: pool.geometry(), block_tokens, token, head, first }
    }

    /// Whether the planes of a block do not lie side by side.
    fn is_apart(&self) -> bool {
        self.geometry.to_plane != self.geometry.plane_bytes.into()
    }

    fn block(&self, entry: u32) -> BlockId {
        self.table[entry as usize]
    }

    /// The first row that moves of a token of a block.
    fn spot(&self, entry: u32, token: u32, plane: u32) -> Spot {
        let (block, geometry) = (self.block(entry), &self.geometry);
        let rest = self.first + token * self.token;
        let start = u64::from(block.0) * geometry.to_block + u64::from(plane) * geometry.to_plane;
        Spot { block, offset: plane * geometry.plane_bytes + rest, place: start + u64::from(rest) }
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
    pub(super) fn all(&self, runs: &mut Runs<'_>, order: &Order, first: u32) -> Result<(), PlanError> {
        if self.to.is_apart() {
            (0..self.planes).try_for_each(|plane| self.pass(runs, order, first, plane..plane + 1))
        } else if !self.from.is_apart() || !self.is_straight() {
            self.pass(runs, order, first, 0..self.planes)
        } else {
            // K and V are apart at the source only: neither blocks nor planes go on.
            (0..order.len()).try_for_each(|turn| self.block(runs, first + order.entry(turn), 0..self.planes))
        }
    }

    /// Whether a full block needs no cutting: both sides have the same rows in the same places.
    fn is_straight(&self) -> bool {
        let (_, _, bytes) = self.rows(self.to.block_tokens);
        let is_plane = |half: &Half<'_>| half.geometry.plane_bytes == bytes;
        self.from.block_tokens == self.to.block_tokens && is_plane(&self.from) && is_plane(&self.to)
    }

    /// These planes of every block; where there are several, they lie side by side wherever blocks are straight.
    fn pass(
        &self,
        runs: &mut Runs<'_>,
        order: &Order,
        first: u32,
        planes: Range<u32>,
    ) -> Result<(), PlanError> {
        let straight = self.is_straight();
        let unit = u64::from(self.to.geometry.plane_bytes) * planes.len() as u64;
        let in_a_row = [&self.from, &self.to].iter().all(|half| half.geometry.to_block == unit);
        let mut turn = 0;
        while turn < order.len() {
            let entry = first + order.entry(turn);
            if !straight || !self.is_full(entry) {
                self.block(runs, entry, planes.clone())?;
                turn += 1;
                continue;
            }
            let (from, to) = (self.from.spot(entry, 0, planes.start), self.to.spot(entry, 0, planes.start));
            let mut blocks = 1;
            while in_a_row && turn + blocks < order.len() {
                let entry = first + order.entry(turn + blocks);
                let goes_on = self.from.block(entry).0 == from.block.0 + blocks
                    && self.to.block(entry).0 == to.block.0 + blocks
                    && self.is_full(entry);
                if !goes_on {
                    break;
                }
                blocks += 1;
            }
            runs.push(from, to, unit * u64::from(blocks));
            runs.check()?;
            turn += blocks;
        }
        Ok(())
    }

    /// Whether all tokens of a destination block move.
    fn is_full(&self, entry: u32) -> bool {
        let start = entry * self.to.block_tokens;
        start >= self.positions.start && self.positions.end - start >= self.to.block_tokens
    }

    /// What one destination block gets.
    fn block(&self, runs: &mut Runs<'_>, entry: u32, mut planes: Range<u32>) -> Result<(), PlanError> {
        planes.try_for_each(|plane| self.plane_of_block(runs, entry, plane))
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

    /// So many tokens of all heads that move, as rows of so many bytes: what is contiguous on both sides is one row.
    fn rows(&self, tokens: u32) -> (Dimension, Dimension, u32) {
        let across = Dimension { count: tokens, from: self.from.token, to: self.to.token };
        let down = Dimension { count: self.heads, from: self.from.head, to: self.to.head };
        let (inner, outer) = if across.to <= down.to { (across, down) } else { (down, across) };
        let (inner, bytes) = inner.joined(self.row_bytes);
        // Where the inner rows stay apart, the outer ones lie further apart still at the destination.
        let (outer, bytes) = outer.joined(bytes);
        (inner, outer, bytes)
    }

    /// Those rows, from one block to another.
    fn rectangle(&self, runs: &mut Runs<'_>, from: Spot, to: Spot, tokens: u32) -> Result<(), PlanError> {
        let (inner, outer, bytes) = self.rows(tokens);
        for row in 0..outer.count {
            let (from, to) = (from.after(row * outer.from), to.after(row * outer.to));
            for row in 0..inner.count {
                runs.push(from.after(row * inner.from), to.after(row * inner.to), bytes.into());
            }
            runs.check()?;
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
        if self.from == bytes && self.to == bytes {
            (Self { count: 1, ..self }, bytes * self.count)
        } else {
            (self, bytes)
        }
    }
}
