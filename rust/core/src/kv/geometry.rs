//! The sizes of a pool, worked out once for many look-ups. Nothing else knows how a pool is arranged.

use super::{Arrangement, BlockId, Planes, PoolShape};

/// How far apart things are in a pool, in bytes of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    /// Of the pool.
    pub(super) bytes: u64,
    pub(super) blocks: u32,
    /// What a block has in all, in a layer, and of K or V in a layer.
    pub(super) block_bytes: u32,
    pub(super) layer_bytes: u32,
    pub(super) plane_bytes: u32,
    /// From one block, layer or plane to the next.
    pub(super) to_block: u64,
    pub(super) to_layer: u64,
    pub(super) to_plane: u64,
}

impl PoolShape {
    pub(super) fn geometry(&self) -> Geometry {
        let layout = &self.layout;
        let plane_bytes = layout.plane_block_bytes();
        let layer_bytes = plane_bytes * layout.plane_count();
        let block_bytes = layer_bytes * u32::from(layout.layers);
        let blocks = u64::from(self.blocks);
        let (plane, layer) = (u64::from(plane_bytes), u64::from(layer_bytes));
        let (to_block, to_layer, to_plane) = match (layout.arrangement, layout.planes) {
            (Arrangement::BlockFirst, _) => (block_bytes.into(), layer, plane),
            (Arrangement::LayerFirst, Planes::Together) => (layer, layer * blocks, plane),
            (Arrangement::LayerFirst, Planes::Apart) => (plane, layer * blocks, plane * blocks),
        };
        // Fits, since both factors are below 2^32.
        let bytes = blocks * u64::from(block_bytes);
        Geometry {
            bytes,
            blocks: self.blocks,
            block_bytes,
            layer_bytes,
            plane_bytes,
            to_block,
            to_layer,
            to_plane,
        }
    }
}

impl Geometry {
    /// Where a byte of a block lies.
    pub(super) fn locate(&self, block: BlockId, offset: u32) -> Option<u64> {
        if block.0 >= self.blocks || offset >= self.block_bytes {
            return None;
        }
        let (layer, within) = (offset / self.layer_bytes, offset % self.layer_bytes);
        let (plane, rest) = (within / self.plane_bytes, within % self.plane_bytes);
        let start = u64::from(block.0) * self.to_block + u64::from(layer) * self.to_layer;
        Some(start + u64::from(plane) * self.to_plane + u64::from(rest))
    }

    /// The block and the offset in it of a byte of the pool.
    pub(super) fn block_at(&self, place: u64) -> Option<(BlockId, u32)> {
        if place >= self.bytes {
            return None;
        }
        let (block, offset) = if self.to_layer == self.layer_bytes.into() {
            // All of a block lies together, as it does in any pool of one block.
            (place / u64::from(self.block_bytes), place % u64::from(self.block_bytes))
        } else {
            let (layer, within) = (place / self.to_layer, place % self.to_layer);
            let first = layer * u64::from(self.layer_bytes);
            if self.to_block == self.layer_bytes.into() {
                (within / self.to_block, first + within % self.to_block)
            } else {
                let (plane, within) = (within / self.to_plane, within % self.to_plane);
                (within / self.to_block, first + plane * self.to_block + within % self.to_block)
            }
        };
        Some((BlockId(block as u32), offset as u32))
    }
}
