//! Whether a range may be written: what a receiver asks of everything that comes from outside.

use std::fmt;
use std::ops::Range;

use super::{BlockId, PoolShape};

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
}

impl PoolShape {
    /// Where a range of one layer lies in the pool, if every block that it touches is in `granted`.
    /// O(blocks that it touches x log of those granted).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn admit(
        &self,
        granted: &BlockSet,
        layer: u16,
        block: BlockId,
        offset: u32,
        bytes: u32,
    ) -> Result<Range<u64>, RangeError> {
        if bytes == 0 {
            return Err(RangeError::Empty);
        }
        let outside = RangeError::OutsidePool { block, offset, bytes };
        let start = self.locate(block, offset).ok_or(outside)?;
        let end = start + u64::from(bytes);
        if end > self.bytes() {
            return Err(outside);
        }
        let page_bytes = u64::from(self.page_bytes());
        for page in start / page_bytes..=(end - 1) / page_bytes {
            let (touches, block) = self.owner(page);
            if touches != layer {
                return Err(RangeError::OutsideLayer { layer, touches });
            }
            if !granted.contains(block) {
                return Err(RangeError::NotGranted { block });
            }
        }
        Ok(start..end)
    }
}
