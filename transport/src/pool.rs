//! The memory of a machine's KV blocks, registered: what transfers read here and write there.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use splitcore_core::kv::{BlockId, PoolShape};

use crate::error::{MemoryError, TransferError};
use crate::memory::Mapping;

/// Where a pool's bytes are.
enum Memory {
    /// A memfd of ours: other processes may map it.
    Shared(Arc<Mapping>),
    /// Memory of the caller's, kept by what is beside it: only this process can write it.
    Borrowed { base: NonNull<u8>, _keep: Box<dyn Send + Sync> },
    /// Memory of a device; the address is the device's.
    Device { base: u64, keep: Arc<dyn std::any::Any + Send + Sync> },
}

/// A registered pool of KV blocks.
pub struct Pool {
    shape: PoolShape,
    memory: Memory,
}

// SAFETY: the pool is plain memory. Blocks are written by one transfer at a time (the grant says which) and read by
// the owner after the layer is published, which orders the two.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.memory {
            Memory::Shared(_) => "shared",
            Memory::Borrowed { .. } => "borrowed",
            Memory::Device { .. } => "device",
        };
        f.debug_struct("Pool").field("shape", &self.shape).field("memory", &kind).finish()
    }
}

impl Pool {
    /// A pool in shared memory of its own, prefaulted: what one machine on a host wants.
    ///
    /// # Errors
    /// An impossible layout, or no memory.
    pub fn shared(shape: PoolShape) -> Result<Self, MemoryError> {
        shape.layout.check()?;
        let mapping = Mapping::create("splitcore-kv", shape.bytes() as usize)?;
        Ok(Self { shape, memory: Memory::Shared(Arc::new(mapping)) })
    }

    /// A pool in memory that the caller has: a tensor's, say. `keep` holds it as long as the pool lives.
    ///
    /// # Errors
    /// An impossible layout, or too few bytes.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes as long as `keep` lives.
    pub unsafe fn borrowed(
        shape: PoolShape,
        base: NonNull<u8>,
        len: usize,
        keep: Box<dyn Send + Sync>,
    ) -> Result<Self, MemoryError> {
        shape.layout.check()?;
        if shape.blocks == 0 {
            return Err(MemoryError::Empty);
        }
        if (len as u64) < shape.bytes() {
            return Err(MemoryError::TooShort { found: len as u64, wanted: shape.bytes() });
        }
        Ok(Self { shape, memory: Memory::Borrowed { base, _keep: keep } })
    }

    /// A pool in a device's memory. `keep` holds it, and is what the device's backend asks for.
    ///
    /// # Errors
    /// An impossible layout, or too few bytes.
    pub fn device(
        shape: PoolShape,
        base: u64,
        len: u64,
        keep: Arc<dyn std::any::Any + Send + Sync>,
    ) -> Result<Self, MemoryError> {
        shape.layout.check()?;
        if shape.blocks == 0 {
            return Err(MemoryError::Empty);
        }
        if len < shape.bytes() {
            return Err(MemoryError::TooShort { found: len, wanted: shape.bytes() });
        }
        Ok(Self { shape, memory: Memory::Device { base, keep } })
    }

    /// Its layout and its blocks.
    pub fn shape(&self) -> &PoolShape {
        &self.shape
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.bytes()
    }

    /// The mapping, where it is shared.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.memory {
            Memory::Shared(mapping) => Some(mapping),
            Memory::Borrowed { .. } | Memory::Device { .. } => None,
        }
    }

    /// Where it begins in this process' memory, unless it is a device's.
    pub fn host_base(&self) -> Option<NonNull<u8>> {
        match &self.memory {
            Memory::Shared(mapping) => Some(mapping.base()),
            Memory::Borrowed { base, .. } => Some(*base),
            Memory::Device { .. } => None,
        }
    }

    /// Where it begins on its device, and what keeps it there.
    pub fn device_base(&self) -> Option<(u64, &Arc<dyn std::any::Any + Send + Sync>)> {
        match &self.memory {
            Memory::Device { base, keep } => Some((*base, keep)),
            Memory::Shared(_) | Memory::Borrowed { .. } => None,
        }
    }

    /// Where bytes to send lie in the pool.
    ///
    /// # Errors
    /// They are none, or not all inside.
    pub fn span(&self, block: BlockId, offset: u32, bytes: u32) -> Result<Range<u64>, TransferError> {
        let outside = TransferError::OutsideSource { block, offset, bytes };
        if bytes == 0 {
            return Err(outside);
        }
        let start = self.shape.locate(block, offset).ok_or_else(|| outside.clone())?;
        let end = start + u64::from(bytes);
        if end > self.bytes() { Err(outside) } else { Ok(start..end) }
    }
}
