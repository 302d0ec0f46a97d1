//! Whether a range may be written: what a receiver asks of everything that comes from outside.

use std::fmt;
use std::ops::Range;

use super::{Arrangement, BlockId, PoolShape};

/// The blocks that a transfer may touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockSet {
    /// Ascending, without repeats.
    blocks: Vec<BlockId>,
}

/// Why a range is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeError {
    /// It has no bytes.
    Empty,
    /// It begins outside the pool's blocks, or ends outside them.
    OutsidePool {
        /// The block that it begins in.
        block: BlockId,
        /// The offset in it.
        offset: u32,
        /// Its bytes.
        bytes: u32,
    },
    /// It touches a block that was not granted.
    NotGranted {
        /// Which.
        block: BlockId,
    },
    /// It leaves its layer.
    OutsideLayer {
        /// The layer that was named.
        layer: u16,
        /// The one it touches.
        touches: u16,
    },
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a range of 0 bytes"),
            Self::OutsidePool { block, offset, bytes } => {
                write!(f, "{bytes} bytes at offset {offset} of block {} lie outside the pool", block.0)
            }
            Self::NotGranted { block } => write!(f, "block {} was not granted", block.0),
            Self::OutsideLayer { layer, touches } => {
                write!(f, "a range of layer {layer} touches layer {touches}")
            }
        }
    }
}

impl std::error::Error for RangeError {}

impl BlockSet {
    /// A set of these blocks, in any order.
    pub fn new(mut blocks: Vec<BlockId>) -> Self {
        blocks.sort_unstable();
        blocks.dedup();
        Self { blocks }
    }

    /// Whether a block is in it. O(log n).
    pub fn contains(&self, block: BlockId) -> bool {
        self.blocks.binary_search(&block).is_ok()
    }

    /// The blocks, ascending.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// The first of `count` blocks from `first` on that is not in it. O(log n) where all are.
    fn first_missing(&self, first: u64, count: u64) -> Option<BlockId> {
        let from = self.blocks.partition_point(|block| u64::from(block.0) < first);
        let run = &self.blocks[from..];
        let is = |at: u64| run.get(at as usize).is_some_and(|block| u64::from(block.0) == first + at);
        // Ascending without repeats: where the last one stands in its place, all before it do.
        if is(count - 1) {
            return None;
        }
        (0..count).find(|&at| !is(at)).map(|at| BlockId((first + at) as u32))
    }
}

impl PoolShape {
    /// Where a range of one layer lies in the pool, if every block that it touches is in `granted`. `offset` is
    /// numbered as in [`super::layout`] and so contains the layer. O(log of the blocks granted) a plane.
    ///
    /// # Errors
    /// What is wrong with it, at its first byte that is.
    pub fn admit(
        &self,
        granted: &BlockSet,
        layer: u16,
        block: BlockId,
        offset: u32,
        bytes: u32,
    ) -> Result<Range<u64>, RangeError> {
        self.admit_in(granted, Some(layer), block, offset, bytes)
    }

    /// As [`PoolShape::admit`] for a range that may touch any layer: one of [`super::TransferPlan::whole`]. O(log of
    /// the blocks granted) a plane and layer.
    ///
    /// # Errors
    /// What is wrong with it, at its first byte that is.
    pub fn admit_whole(
        &self,
        granted: &BlockSet,
        block: BlockId,
        offset: u32,
        bytes: u32,
    ) -> Result<Range<u64>, RangeError> {
        self.admit_in(granted, None, block, offset, bytes)
    }

    fn admit_in(
        &self,
        granted: &BlockSet,
        layer: Option<u16>,
        block: BlockId,
        offset: u32,
        bytes: u32,
    ) -> Result<Range<u64>, RangeError> {
        if bytes == 0 {
            return Err(RangeError::Empty);
        }
        let outside = RangeError::OutsidePool { block, offset, bytes };
        let geometry = self.geometry();
        let start = geometry.locate(block, offset).ok_or(outside)?;
        // The sum does not overflow: a pool ends at least 2^32 bytes before 2^64.
        let end = start + u64::from(bytes);
        if end > geometry.bytes {
            return Err(outside);
        }
        let by_layer = self.layout.arrangement == Arrangement::BlockFirst && layer.is_some();
        let (mut at, mut block, mut offset) = (start, block, offset);
        loop {
            let touches = (offset / geometry.layer_bytes) as u16;
            if let Some(layer) = layer.filter(|&layer| layer != touches) {
                return Err(RangeError::OutsideLayer { layer, touches });
            }
            // Units follow each other by the ids of their blocks, up to the last one; where other layers lie between,
            // there is one.
            let (unit, ids) = if by_layer {
                (u64::from(geometry.layer_bytes), 1)
            } else {
                (geometry.to_block, u64::from(self.blocks - block.0))
            };
            let begin = at - u64::from(offset % unit as u32);
            let until = end.min(begin + unit * ids);
            let count = if until - begin <= unit { 1 } else { (until - begin).div_ceil(unit) };
            if let Some(block) = granted.first_missing(block.0.into(), count) {
                return Err(RangeError::NotGranted { block });
            }
            at = until;
            if at == end {
                return Ok(start..end);
            }
            (block, offset) = geometry.block_at(at).ok_or(outside)?;
        }
    }
}
