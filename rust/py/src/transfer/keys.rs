//! Plain values of a transfer: its name, its grant, and what is told of it.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use splitcore_core::id::RequestId;
use splitcore_transport as core;
use splitcore_transport::Generation;
use splitcore_wire::hex::Hex;

use super::errors;
use crate::arrays::{ID, read_only};
use crate::errors::{config, whole};

const GENERATION: &str = "1 to 2^31 - 1";
pub(super) const SLOT: &str = "0 to 2^32 - 1";

/// Names one transfer.
#[pyclass(frozen, eq, hash, module = "splitcore._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TransferKey(pub(super) core::TransferKey);

#[pymethods]
impl TransferKey {
    #[new]
    #[pyo3(signature = (request, slot, generation))]
    fn new(
        request: &Bound<'_, PyAny>,
        slot: &Bound<'_, PyAny>,
        generation: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let number: u32 = whole(generation, "generation", GENERATION)?;
        let generation = Generation::new(number)
            .ok_or_else(|| config(generation.py(), "generation", GENERATION, number))?;
        let request = RequestId(whole(request, "request", ID)?);
        Ok(Self(core::TransferKey { request, slot: whole(slot, "slot", SLOT)?, generation }))
    }

    #[getter]
    fn request(&self) -> u64 {
        self.0.request.0
    }

    #[getter]
    fn slot(&self) -> u32 {
        self.0.slot
    }

    #[getter]
    fn generation(&self) -> u32 {
        self.0.generation.get()
    }

    fn __getnewargs__(&self) -> (u64, u32, u32) {
        (self.request(), self.slot(), self.generation())
    }

    fn __repr__(&self) -> String {
        format!("TransferKey({}, {}, {})", self.request(), self.slot(), self.generation())
    }
}

/// A receiver's leave to write.
#[pyclass(frozen, eq, module = "splitcore._native")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant(pub(super) core::Grant);

#[pymethods]
impl Grant {
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        serde_json::from_str(text)
            .map(Self)
            .map_err(|error| config(py, "grant", "what a receiver gave", error))
    }

    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.0)
            .map_err(|error| crate::errors::SplitcoreError::new_err(error.to_string()))
    }

    #[getter]
    fn key(&self) -> TransferKey {
        TransferKey(self.0.key)
    }

    #[getter]
    fn receiver(&self) -> u64 {
        self.0.receiver.0
    }

    #[getter]
    fn blocks(&self, py: Python<'_>) -> Py<PyArray1<u32>> {
        read_only(py, self.0.blocks.iter().map(|block| block.0).collect())
    }

    #[getter]
    fn layer_bytes(&self) -> u64 {
        self.0.layer_bytes
    }

    /// For backends in Python, whose messages show it.
    #[getter]
    fn token(&self) -> String {
        Hex(*self.0.token.bytes()).to_string()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let text = slf.get().to_json()?;
        Ok((slf.get_type().getattr("from_json")?, PyTuple::new(slf.py(), [text])?))
    }

    fn __repr__(&self) -> String {
        let (blocks, bytes) = (self.0.blocks.len(), self.0.layer_bytes);
        format!("Grant({}, {blocks} blocks, {bytes} bytes a layer)", self.key().__repr__())
    }
}

/// What a finished layer says of itself.
#[pyclass(frozen, eq, get_all, module = "splitcore._native")]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LayerSeal {
    tokens: u32,
    bytes: u64,
    crc32c: Option<u32>,
}

impl From<core::LayerSeal> for LayerSeal {
    fn from(seal: core::LayerSeal) -> Self {
        Self { tokens: seal.tokens, bytes: seal.bytes, crc32c: seal.crc32c }
    }
}

#[pymethods]
impl LayerSeal {
    fn __repr__(&self) -> String {
        let sum = self.crc32c.map_or("None".to_owned(), |sum| format!("0x{sum:08x}"));
        format!("LayerSeal(tokens={}, bytes={}, crc32c={sum})", self.tokens, self.bytes)
    }
}

/// What a receiving side has to tell.
#[pyclass(frozen, get_all, module = "splitcore._native")]
pub(crate) struct Arrival {
    kind: &'static str,
    key: TransferKey,
    layers: Option<u16>,
    of: Option<u16>,
    error: Option<Py<PyAny>>,
}

impl Arrival {
    pub(super) fn new(py: Python<'_>, arrival: core::Arrival) -> Self {
        let plain = |kind, key| Self { kind, key: TransferKey(key), layers: None, of: None, error: None };
        match arrival {
            core::Arrival::Layers { key, layers, of } => {
                Self { layers: Some(layers), of: Some(of), ..plain("layers", key) }
            }
            core::Arrival::Failed(key, error) => {
                let error = errors::transfer(py, &error).into_value(py).into_any();
                Self { error: Some(error), ..plain("failed", key) }
            }
            core::Arrival::Fenced(key) => plain("fenced", key),
        }
    }
}

#[pymethods]
impl Arrival {
    fn __repr__(&self) -> String {
        let layers = match (self.layers, self.of) {
            (Some(layers), Some(of)) => format!(", {layers} of {of} layers"),
            _ => String::new(),
        };
        format!("Arrival('{}', {}{layers})", self.kind, self.key.__repr__())
    }
}

/// The one end of a transfer at its source.
#[pyclass(frozen, get_all, module = "splitcore._native")]
pub(crate) struct Completion {
    kind: &'static str,
    key: TransferKey,
    error: Option<Py<PyAny>>,
}

impl Completion {
    pub(super) fn new(py: Python<'_>, completion: core::Completion) -> Self {
        let key = TransferKey(completion.key());
        match completion {
            core::Completion::LocalDone(_) => Self { kind: "local-done", key, error: None },
            core::Completion::Fenced(_) => Self { kind: "fenced", key, error: None },
            core::Completion::Failed(_, error) => {
                let error = errors::transfer(py, &error).into_value(py).into_any();
                Self { kind: "failed", key, error: Some(error) }
            }
        }
    }
}

#[pymethods]
impl Completion {
    fn __repr__(&self) -> String {
        format!("Completion('{}', {})", self.kind, self.key.__repr__())
    }
}
