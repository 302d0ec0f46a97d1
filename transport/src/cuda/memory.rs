//! Pools in a device's memory.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use splitcore_core::kv::PoolShape;

use super::driver::{Driver, Fault, Handle, Stream};
use super::gpu::{self, Gpu};
use super::handles::Imports;
use crate::error::MemoryError;
use crate::handshake::Incarnation;
use crate::pool::Pool;

/// Allocations are whole pages of the device: the driver packs smaller ones together, and shares the whole page.
const PAGE: u64 = 2 << 20;

/// A device as this process has it: its driver, and what is open on it of other processes.
pub(crate) struct Device {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) imports: Arc<Imports>,
}

impl Device {
    /// A device behind a driver.
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        let imports = Imports::new(driver.clone());
        Arc::new(Self { driver, imports })
    }

    /// The device of an ordinal: one for all pools on it, since it has one context.
    ///
    /// # Errors
    /// There is no driver or no such device.
    pub(crate) fn of_ordinal(ordinal: i32) -> Result<Arc<Self>, MemoryError> {
        static DEVICES: OnceLock<Mutex<HashMap<i32, Weak<Device>>>> = OnceLock::new();
        let mut devices = DEVICES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let gpu = Gpu::new(ordinal, this_process()?).map_err(MemoryError::Device)?;
        let device = Self::new(Arc::new(gpu));
        devices.insert(ordinal, Arc::downgrade(&device));
        Ok(device)
    }
}

/// A number for this process. Its id would not do: two containers can have the same.
fn this_process() -> Result<u64, MemoryError> {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    if let Some(&process) = PROCESS.get() {
        return Ok(process);
    }
    let drawn = Incarnation::random().map_err(|error| MemoryError::Device(error.to_string()))?;
    Ok(*PROCESS.get_or_init(|| drawn.0))
}

/// A pool's memory on a device. It is freed when the last who holds it lets go, and a receiver holds it for each
/// sender that has it open.
pub(crate) struct DeviceMemory {
    pub(crate) device: Arc<Device>,
    /// Where its allocation begins, which is what the handle names.
    base: u64,
    /// Where the pool begins.
    pointer: u64,
    handle: Handle,
    owner: Owner,
}

enum Owner {
    /// Allocated here, freed here.
    Transport,
    /// The caller's.
    Caller { _keep: Box<dyn Send + Sync> },
}

impl From<Fault> for MemoryError {
    fn from(fault: Fault) -> Self {
        Self::Device(fault.to_string())
    }
}

impl DeviceMemory {
    fn allocate(device: Arc<Device>, bytes: u64) -> Result<Self, MemoryError> {
        let base = device.driver.allocate(bytes.next_multiple_of(PAGE))?;
        let handle = device.driver.export(base).inspect_err(|_| drop(device.driver.free(base)))?;
        Ok(Self { device, base, pointer: base, handle, owner: Owner::Transport })
    }

    fn adopt(
        device: Arc<Device>,
        pointer: u64,
        len: u64,
        keep: Box<dyn Send + Sync>,
    ) -> Result<Self, MemoryError> {
        let found = device.driver.allocation(pointer)?;
        let ordinal = device.driver.ordinal();
        if found.ordinal != ordinal {
            return Err(MemoryError::Device(format!(
                "the memory lies on device {}, not on {ordinal}",
                found.ordinal
            )));
        }
        if !found.shareable {
            return Err(MemoryError::Device(
                "this device memory cannot be shared with another process by CUDA IPC: it comes from \
                 expandable_segments:True of PyTorch, from a cudaMallocAsync pool or from another allocator of \
                 virtual memory; let the transport allocate the pool, or allocate it with cudaMalloc"
                    .to_owned(),
            ));
        }
        let within = (found.base + found.len).saturating_sub(pointer);
        if within < len {
            return Err(MemoryError::TooShort { found: within, wanted: len });
        }
        let handle = device.driver.export(found.base)?;
        Ok(Self { device, base: found.base, pointer, handle, owner: Owner::Caller { _keep: keep } })
    }

    /// Where the pool begins.
    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }

    /// The allocation's name for other processes, and where in it the pool begins.
    pub(crate) fn exported(&self) -> (Handle, u64) {
        (self.handle, self.pointer - self.base)
    }

    /// Its driver.
    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.device.driver
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        match self.owner {
            // There is nobody to tell of a failure.
            Owner::Transport => drop(self.device.driver.free(self.base)),
            Owner::Caller { .. } => {}
        }
    }
}

/// What a pool on a device is made of.
pub(crate) fn memory_of(pool: &Pool) -> Option<Arc<DeviceMemory>> {
    pool.device_base().and_then(|(_, keep)| keep.clone().downcast().ok())
}

/// A pool in new memory of a device behind a driver.
///
/// # Errors
/// As [`cuda_pool`].
pub(crate) fn pool_on(device: Arc<Device>, shape: PoolShape) -> Result<Pool, MemoryError> {
    shape.layout.check()?;
    if shape.blocks == 0 {
        return Err(MemoryError::Empty);
    }
    let memory = DeviceMemory::allocate(device, shape.bytes())?;
    let pointer = memory.pointer();
    Pool::device(shape, pointer, shape.bytes(), Arc::new(memory))
}

/// A pool in memory that lies on a device already.
///
/// # Errors
/// As [`cuda_adopt`].
pub(crate) fn pool_at(
    device: Arc<Device>,
    shape: PoolShape,
    pointer: u64,
    len: u64,
    keep: Box<dyn Send + Sync>,
) -> Result<Pool, MemoryError> {
    shape.layout.check()?;
    let memory = DeviceMemory::adopt(device, pointer, len, keep)?;
    Pool::device(shape, pointer, len, Arc::new(memory))
}

/// A pool in new memory of the device `ordinal`, all zero, which other processes can open.
///
/// # Errors
/// There is no driver, no such device or not so much memory; an impossible layout.
pub fn cuda_pool(shape: PoolShape, ordinal: i32) -> Result<Pool, MemoryError> {
    pool_on(Device::of_ordinal(ordinal)?, shape)
}

/// A pool in memory of the device `ordinal` that the caller has: a tensor's, say. `keep` holds it as long as the pool
/// lives, or longer where a sender has it open.
///
/// # Errors
/// There is no driver or no such device; it lies elsewhere, is too short, or comes from an allocator whose memory CUDA
/// IPC cannot share.
///
/// # Safety
/// `pointer` must be valid for reads and writes of `len` bytes on the device as long as `keep` lives.
pub unsafe fn cuda_adopt(
    shape: PoolShape,
    ordinal: i32,
    pointer: u64,
    len: u64,
    keep: Box<dyn Send + Sync>,
) -> Result<Pool, MemoryError> {
    pool_at(Device::of_ordinal(ordinal)?, shape, pointer, len, keep)
}

/// How many devices this process sees.
///
/// # Errors
/// `no CUDA driver: ...` or `no CUDA device: ...`.
pub fn cuda_devices() -> Result<i32, MemoryError> {
    gpu::count().map_err(MemoryError::Device)
}

/// A pool's place on its device, and plain copies from and to it: enough to use one without another CUDA library.
#[derive(Clone)]
pub struct DeviceView {
    memory: Arc<DeviceMemory>,
    bytes: u64,
}

impl std::fmt::Debug for DeviceView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceView")
            .field("pointer", &self.pointer())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl DeviceView {
    /// Of a pool; `None` unless it lies on a CUDA device.
    pub fn of(pool: &Pool) -> Option<Self> {
        memory_of(pool).map(|memory| Self { memory, bytes: pool.bytes() })
    }

    /// Where it begins on the device.
    pub fn pointer(&self) -> u64 {
        self.memory.pointer()
    }

    /// The device's number in this process.
    pub fn ordinal(&self) -> i32 {
        self.memory.driver().ordinal()
    }

    /// The device's name in every process: `GPU-` and its UUID.
    pub fn device(&self) -> String {
        self.memory.driver().name()
    }

    /// The device and its driver, in words.
    pub fn describe(&self) -> String {
        self.memory.driver().describe()
    }

    fn place(&self, offset: u64, bytes: u64) -> Result<u64, MemoryError> {
        let Range { start, end } = offset..offset.saturating_add(bytes);
        if end > self.bytes {
            return Err(MemoryError::TooShort { found: self.bytes, wanted: end });
        }
        Ok(self.pointer() + start)
    }

    /// Copies bytes into the pool, and returns when they are there.
    ///
    /// # Errors
    /// They do not all lie inside, or the device fails.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let to = self.place(offset, bytes.len() as u64)?;
        Ok(self.memory.driver().write(to, bytes)?)
    }

    /// Copies bytes out of the pool. It waits for no stream.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.place(offset, bytes.len() as u64)?;
        Ok(self.memory.driver().read(from, bytes)?)
    }

    /// A new stream on the device.
    ///
    /// # Errors
    /// The device has none.
    pub fn stream(&self) -> Result<DeviceStream, MemoryError> {
        Ok(DeviceStream { raw: self.memory.driver().stream()?, view: self.clone() })
    }
}

/// A stream of work on a pool's device.
#[derive(Debug)]
pub struct DeviceStream {
    raw: Stream,
    view: DeviceView,
}

impl DeviceStream {
    /// Its `CUstream`, for calls that take one.
    pub fn raw(&self) -> u64 {
        self.raw.0
    }

    /// Queues a copy within the pool; the two ranges may not overlap.
    ///
    /// # Errors
    /// A range does not lie inside, or the device fails.
    pub fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), MemoryError> {
        let (source, target) = (self.view.place(from, bytes)?, self.view.place(to, bytes)?);
        Ok(self.view.memory.driver().copy(target, source, bytes, self.raw)?)
    }

    /// Sleeps until all that was queued is done.
    ///
    /// # Errors
    /// The device fails.
    pub fn synchronize(&self) -> Result<(), MemoryError> {
        Ok(self.view.memory.driver().drain(self.raw)?)
    }
}

impl Drop for DeviceStream {
    fn drop(&mut self) {
        // What is queued still runs; there is nobody to tell of a failure.
        let _ = self.view.memory.driver().end_stream(self.raw);
    }
}
