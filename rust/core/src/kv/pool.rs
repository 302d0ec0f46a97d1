//! The block pool. It knows counts and ids; what a block holds is the engine's business.
//!
//! Invariant: free + held + cached + quarantined = total, and no block is in two places. The counts are kept here,
//! the ids of held blocks live in the owners' [`BlockTable`]s, and [`crate::check`] recounts both.

use std::fmt;

/// Index of a block, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct BlockId(pub u32);

/// The blocks of one leg, in position order: position p lies in block `p / block_tokens`. Append-only while the leg
/// lives, so a transfer plan cut from it stays true.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct BlockTable {
    blocks: Vec<BlockId>,
}

impl BlockTable {
    /// The blocks in position order.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// Fewer blocks are free than were asked for; none was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfBlocks {
    /// Asked for.
    pub wanted: u32,
    /// Free.
    pub free: u32,
}

impl fmt::Display for OutOfBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks wanted, {} free", self.wanted, self.free)
    }
}

impl std::error::Error for OutOfBlocks {}

/// The blocks of one machine.
///
/// Freed blocks are reused first, last freed first and in the order their table had, since what was touched last is
/// still near; then come blocks that were never used, in ascending order. Allocation and release are O(blocks moved);
/// a new pool is O(1).
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockPool {
    total: u32,
    /// Blocks from here on were never used.
    fresh: u32,
    /// Used and freed, a stack.
    freed: Vec<BlockId>,
    quarantined: u32,
}

impl BlockPool {
    /// A pool of `total` free blocks.
    pub fn new(total: u32) -> Self {
        Self { total, fresh: 0, freed: Vec::new(), quarantined: 0 }
    }

    /// Every block there is.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that can be allocated.
    pub fn free(&self) -> u32 {
        self.total - self.fresh + self.freed.len() as u32
    }

    /// Blocks in tables whose owner computes or waits.
    pub fn held(&self) -> u32 {
        self.total - self.free() - self.quarantined
    }

    /// Blocks kept for later prompts with the same prefix: none yet.
    pub fn cached(&self) -> u32 {
        0
    }

    /// Blocks in tables of aborted legs that a writer may still write.
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// Appends `count` blocks to `table`, all or none.
    ///
    /// # Errors
    /// [`OutOfBlocks`] when fewer are free; nothing has changed.
    pub fn allocate(&mut self, count: u32, table: &mut BlockTable) -> Result<(), OutOfBlocks> {
        if count > self.free() {
            return Err(OutOfBlocks { wanted: count, free: self.free() });
        }
        let reused = count.min(self.freed.len() as u32);
        let from = self.freed.len() - reused as usize;
        table.blocks.extend(self.freed[from..].iter().rev());
        self.freed.truncate(from);
        let untouched = self.fresh..self.fresh + count - reused;
        self.fresh = untouched.end;
        table.blocks.extend(untouched.map(BlockId));
        Ok(())
    }

    /// Takes every block of `table` back.
    pub fn release(&mut self, table: &mut BlockTable) {
        // Reversed, so that the next table gets them in the same order.
        self.freed.extend(table.blocks.iter().rev());
        table.blocks.clear();
        debug_assert!(self.freed.len() as u32 <= self.fresh, "more blocks freed than were ever allocated");
    }

    /// Counts the blocks of `table` as quarantined: no longer held, not yet free.
    pub fn quarantine(&mut self, table: &BlockTable) {
        self.quarantined += table.len();
    }

    /// Takes the blocks of a quarantined `table` back.
    pub fn release_quarantined(&mut self, table: &mut BlockTable) {
        assert!(self.quarantined >= table.len(), "a table leaves quarantine that never entered it");
        self.quarantined -= table.len();
        self.release(table);
    }

    /// The ids that are free though used before; the rest of the free blocks were never used. For recounts.
    pub(crate) fn freed(&self) -> &[BlockId] {
        &self.freed
    }

    /// The first id that was never used. For recounts.
    pub(crate) fn fresh(&self) -> u32 {
        self.fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_is_all_or_nothing() {
        let mut pool = BlockPool::new(4);
        let mut table = BlockTable::default();
        pool.allocate(3, &mut table).unwrap();
        assert_eq!(pool.allocate(2, &mut table), Err(OutOfBlocks { wanted: 2, free: 1 }));
        assert_eq!((pool.free(), pool.held(), table.len()), (1, 3, 3));
    }

    #[test]
    fn a_freed_table_is_handed_out_again_in_the_same_order() {
        let mut pool = BlockPool::new(3);
        let mut table = BlockTable::default();
        pool.allocate(3, &mut table).unwrap();
        let before = table.blocks().to_vec();
        pool.release(&mut table);
        pool.allocate(3, &mut table).unwrap();
        assert_eq!(table.blocks(), before);
    }

    #[test]
    fn quarantined_blocks_are_neither_held_nor_free() {
        let mut pool = BlockPool::new(4);
        let mut table = BlockTable::default();
        pool.allocate(3, &mut table).unwrap();
        pool.quarantine(&table);
        assert_eq!((pool.free(), pool.held(), pool.quarantined()), (1, 0, 3));
        pool.release_quarantined(&mut table);
        assert_eq!((pool.free(), pool.held(), pool.quarantined()), (4, 0, 0));
    }
}
