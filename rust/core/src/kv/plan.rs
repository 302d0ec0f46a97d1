//! Which bytes move where: from the blocks of one layout to those of another.

use super::BlockId;

/// Bytes that are contiguous on both sides: they begin at an offset of a block (numbered as in [`super::layout`]) and
/// run on in memory, into the next block where they are longer than what is left of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvRange {
    /// Source block.
    pub from: BlockId,
    /// First byte within it.
    pub from_offset: u32,
    /// Destination block.
    pub to: BlockId,
    /// First byte within it.
    pub to_offset: u32,
    /// How many bytes; at least 1.
    pub bytes: u32,
}
