//! Ranges, and how those that touch on both sides become one.

use super::geometry::Geometry;
use super::{BlockId, PlanError};

/// Bytes of the longest range of a plan.
pub const RANGE_BYTES_MAX: u32 = 1 << 30;

/// Ranges of the largest plan, a layer: a million tokens of eight heads that all must be turned.
const RANGES_MAX: u32 = 1 << 24;

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
    /// How many bytes; at least 1, at most [`RANGE_BYTES_MAX`].
    pub bytes: u32,
}

/// A byte of a pool, by its block and by its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) block: BlockId,
    pub(super) offset: u32,
    pub(super) place: u64,
}

impl Spot {
    /// So many bytes further in the same plane of the same block.
    pub(super) fn after(self, bytes: u32) -> Self {
        Self { offset: self.offset + bytes, place: self.place + u64::from(bytes), ..self }
    }

    /// The same byte of another layer, where this is one of the first.
    pub(super) fn in_layer(self, pool: &Geometry, layer: u16) -> Self {
        Self {
            offset: self.offset + u32::from(layer) * pool.layer_bytes,
            place: self.place + u64::from(layer) * pool.to_layer,
            ..self
        }
    }
}

/// A range that may be longer than one of a plan.
#[derive(Debug, Clone, Copy)]
struct Run {
    from: Spot,
    to: Spot,
    bytes: u64,
}

/// Collects ranges. What comes in the order of the destination's memory merges as far as anything can.
#[derive(Debug)]
pub(super) struct Runs<'a> {
    source: &'a Geometry,
    destination: &'a Geometry,
    open: Option<Run>,
    ranges: Vec<KvRange>,
}

impl<'a> Runs<'a> {
    pub(super) fn new(source: &'a Geometry, destination: &'a Geometry) -> Self {
        Self { source, destination, open: None, ranges: Vec::new() }
    }

    /// Whether a layer may have as many as there are by now.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        // One more is open.
        if self.ranges.len() < RANGES_MAX as usize {
            Ok(())
        } else {
            Err(PlanError::TooManyRanges { limit: RANGES_MAX })
        }
    }

    /// Adds bytes that are contiguous on both sides.
    pub(super) fn push(&mut self, from: Spot, to: Spot, bytes: u64) {
        if let Some(open) = &mut self.open {
            if open.from.place + open.bytes == from.place && open.to.place + open.bytes == to.place {
                open.bytes += bytes;
                return;
            }
            self.close();
        }
        self.open = Some(Run { from, to, bytes });
    }

    /// Cuts the open run into ranges.
    fn close(&mut self) {
        let Some(run) = self.open.take() else { return };
        let at = |pool: &Geometry, start: Spot, done: u64| {
            if done == 0 { Some((start.block, start.offset)) } else { pool.block_at(start.place + done) }
        };
        let mut done = 0;
        while let (Some((from, from_offset)), Some((to, to_offset))) =
            (at(self.source, run.from, done), at(self.destination, run.to, done))
        {
            let bytes = (run.bytes - done).min(RANGE_BYTES_MAX.into());
            self.ranges.push(KvRange { from, from_offset, to, to_offset, bytes: bytes as u32 });
            done += bytes;
            if done == run.bytes {
                break;
            }
        }
    }

    /// The ranges, in the order they came in.
    pub(super) fn finish(mut self) -> Vec<KvRange> {
        self.close();
        self.ranges
    }
}
