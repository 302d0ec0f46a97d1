//! `Pool`: registered memory of KV blocks, its own or borrowed.

use std::ptr::NonNull;
use std::sync::Arc;

use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use splitcore_transport::Pool as Core;

use super::errors;
use super::layout::{KvLayout, axes, shape};
use crate::errors::config;

/// A registered pool of KV blocks.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Pool {
    pub(crate) pool: Arc<Core>,
}

#[pymethods]
impl Pool {
    /// A pool in shared memory of its own, zeroed and prefaulted.
    #[staticmethod]
    fn shared(py: Python<'_>, layout: &Bound<'_, KvLayout>, blocks: &Bound<'_, PyAny>) -> PyResult<Self> {
        let shape = shape(layout.get(), blocks, "blocks")?;
        let pool = py.detach(|| Core::shared(shape)).map_err(|error| errors::memory(py, &error))?;
        Ok(Self { pool: Arc::new(pool) })
    }

    /// A pool in writable contiguous memory of the caller's, which is held as long as the pool.
    #[staticmethod]
    fn borrowed(
        py: Python<'_>,
        layout: &Bound<'_, KvLayout>,
        blocks: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let shape = shape(layout.get(), blocks, "blocks")?;
        // Held by a view of ours: its owner can neither free nor resize the memory, and a view may be let go of on
        // any thread.
        let view = PyMemoryView::from(buffer)?;
        let seen = PyUntypedBuffer::get(&view)?;
        if seen.readonly() || !seen.is_c_contiguous() {
            let got = if seen.readonly() { "a read-only one" } else { "one with gaps" };
            return Err(config(py, "buffer", "a writable contiguous buffer", got));
        }
        let base = NonNull::new(seen.buf_ptr().cast::<u8>())
            .ok_or_else(|| config(py, "buffer", "memory", "none"))?;
        let (bytes, keep) = (seen.len_bytes(), view.unbind());
        // SAFETY: the buffer is writable and contiguous, of that many bytes, and exported until the view is dropped.
        let pool = unsafe { Core::borrowed(shape, base, bytes, Box::new(keep)) };
        pool.map(|pool| Self { pool: Arc::new(pool) }).map_err(|error| errors::memory(py, &error))
    }

    #[getter]
    fn layout(&self) -> KvLayout {
        KvLayout(self.pool.shape().layout)
    }

    #[getter]
    fn blocks(&self) -> u32 {
        self.pool.shape().blocks
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.pool.bytes()
    }

    /// Where it begins in this process.
    #[getter]
    fn address(&self) -> Option<usize> {
        self.pool.host_base().map(|base| base.as_ptr() as usize)
    }

    /// Whether other processes of this host can map it.
    #[getter]
    fn is_shared(&self) -> bool {
        self.pool.mapping().is_some()
    }

    /// Length and stride in bytes of each axis.
    #[getter]
    fn axes(&self) -> ([u64; 6], [u64; 6]) {
        axes(self.pool.shape())
    }

    /// Every byte, as a writable array that is the pool's memory and keeps it.
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let pool = &slf.get().pool;
        let base = pool
            .host_base()
            .ok_or_else(|| config(slf.py(), "pool", "memory of this process", "a device's"))?;
        // SAFETY: the pool has that many bytes, never moves, and lives as long as the array, whose base it is. Nothing
        // in Rust holds references into it: transfers write it by its address.
        let array = unsafe {
            let view = ArrayView1::from_shape_ptr(pool.bytes() as usize, base.as_ptr());
            PyArray1::borrow_from_array(&view, slf.clone().into_any())
        };
        Ok(array)
    }

    fn __repr__(&self) -> String {
        let kind = if self.is_shared() { "shared" } else { "borrowed" };
        format!("Pool({kind}, {} blocks, {} bytes)", self.blocks(), self.bytes())
    }
}
