//! Pools on CUDA devices, with plain copies, so that no other CUDA library is needed to use one.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use splitcore_transport::{DeviceStream, DeviceView, MemoryError, cuda_devices as devices, cuda_pool};

use super::errors;
use super::layout::{KvLayout, shape};
use super::pool::Pool;
use crate::errors::whole;

/// How many CUDA devices this process sees.
#[pyfunction]
pub(crate) fn cuda_devices(py: Python<'_>) -> PyResult<i32> {
    py.detach(devices).map_err(|error| errors::memory(py, &error))
}

/// A pool in new memory of a CUDA device.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct CudaPool {
    pool: Py<Pool>,
    view: DeviceView,
}

#[pymethods]
impl CudaPool {
    #[new]
    #[pyo3(signature = (layout, blocks, ordinal = None))]
    fn new(
        py: Python<'_>,
        layout: &Bound<'_, KvLayout>,
        blocks: &Bound<'_, PyAny>,
        ordinal: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let shape = shape(layout.get(), blocks, "blocks")?;
        let ordinal = ordinal.map_or(Ok(0), |ordinal| whole(ordinal, "ordinal", "0 to 2^31 - 1"))?;
        let pool = py.detach(|| cuda_pool(shape, ordinal)).map_err(|error| errors::memory(py, &error))?;
        let none = || errors::memory(py, &MemoryError::Device("the pool is not on a CUDA device".to_owned()));
        let view = DeviceView::of(&pool).ok_or_else(none)?;
        Ok(Self { pool: Py::new(py, Pool { pool: Arc::new(pool) })?, view })
    }

    /// The pool, for receivers and links.
    #[getter]
    fn pool(&self, py: Python<'_>) -> Py<Pool> {
        self.pool.clone_ref(py)
    }

    /// Where it begins on the device.
    #[getter]
    fn device_ptr(&self) -> u64 {
        self.view.pointer()
    }

    /// The device's number in this process.
    #[getter]
    fn ordinal(&self) -> i32 {
        self.view.ordinal()
    }

    /// The device's name in every process.
    #[getter]
    fn device(&self) -> String {
        self.view.device()
    }

    /// The device and its driver, in words.
    #[getter]
    fn description(&self) -> String {
        self.view.describe()
    }

    /// Its bytes, for libraries that take arrays of a device.
    #[getter(__cuda_array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.pool.get().pool.bytes(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.view.pointer(), false))?;
        interface.set_item("strides", py.None())?;
        // Transfers order themselves by events of their own: there is no stream to wait for.
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    /// Copies bytes out of the pool; it waits for no stream.
    fn read<'py>(&self, py: Python<'py>, offset: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, size, |bytes| {
            py.detach(|| self.view.read(offset, bytes)).map_err(|error| errors::memory(py, &error))
        })
    }

    /// Copies bytes into the pool, and returns when they are there.
    fn write(&self, py: Python<'_>, offset: u64, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.view.write(offset, data)).map_err(|error| errors::memory(py, &error))
    }

    /// A new stream on the device.
    fn stream(&self, py: Python<'_>) -> PyResult<CudaStream> {
        self.view.stream().map(CudaStream).map_err(|error| errors::memory(py, &error))
    }

    fn __repr__(&self) -> String {
        let pool = &self.pool.get().pool;
        format!("CudaPool({}, {} blocks, {} bytes)", self.view.device(), pool.shape().blocks, pool.bytes())
    }
}

/// A stream of work on a pool's device.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct CudaStream(DeviceStream);

#[pymethods]
impl CudaStream {
    /// Its `CUstream`.
    #[getter]
    fn raw(&self) -> u64 {
        self.0.raw()
    }

    /// Queues a copy within the pool.
    fn copy(&self, py: Python<'_>, source: u64, target: u64, size: u64) -> PyResult<()> {
        py.detach(|| self.0.copy(source, target, size)).map_err(|error| errors::memory(py, &error))
    }

    /// Sleeps until all that was queued is done.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.synchronize()).map_err(|error| errors::memory(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("CudaStream({:#x})", self.0.raw())
    }
}
