//! What a backend in Python needs of the native side: the sender's books, and what a writer is to be told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyArray2;
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use splitcore_core::kv::PoolShape;
use splitcore_transport::outside::{self, Booked};
use splitcore_transport::{
    Backend, Completion as CoreCompletion, Incarnation, TransferError, TransferKey as CoreKey, Writer,
};

use super::errors::{handshake, transfer};
use super::keys::{Completion, Grant, TransferKey};
use super::layout::{KvLayout, shape};
use super::plan::{TransferPlan, ranges};
use super::pool::Pool;
use super::receive::peer;
use super::{endpoint, incarnation, layer_number};
use crate::errors::config;

#[derive(Default)]
struct Told {
    stops: Mutex<Vec<CoreKey>>,
    closed: AtomicBool,
}

impl Writer for Told {
    fn writes_here(&self) -> bool {
        false
    }

    fn stop(&self, key: CoreKey) {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner).push(key);
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// What a writer outside this process is to be told.
#[pyclass(frozen, module = "splitcore._native")]
#[derive(Default)]
pub(crate) struct WriterStops(Arc<Told>);

impl WriterStops {
    pub(super) fn handle(&self) -> Arc<dyn Writer> {
        self.0.clone()
    }
}

#[pymethods]
impl WriterStops {
    /// The transfers that it is to stop, since the last call.
    fn take(&self) -> Vec<TransferKey> {
        let mut stops = self.0.stops.lock().unwrap_or_else(PoisonError::into_inner);
        stops.drain(..).map(TransferKey).collect()
    }

    /// Whether its connection is to end.
    #[getter]
    fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Relaxed)
    }
}

/// The sender's books of one connection.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Books {
    ledger: outside::Books,
    hello: String,
    remote: PoolShape,
    receiver: Incarnation,
}

/// Rows `[place in the source's pool, place in the destination's, bytes]`.
fn rows(py: Python<'_>, copies: &[Booked]) -> Py<PyArray2<u64>> {
    let mut table = Array2::zeros((copies.len(), 3));
    for (mut row, &(from, to, bytes)) in table.rows_mut().into_iter().zip(copies) {
        row[0] = from;
        row[1] = to;
        row[2] = u64::from(bytes);
    }
    let array = table.into_pyarray(py);
    array.readwrite().make_nonwriteable();
    array.unbind()
}

#[pymethods]
impl Books {
    #[new]
    #[pyo3(signature = (pool, endpoint, *, model, incarnation, layout, blocks))]
    fn new(
        py: Python<'_>,
        pool: &Bound<'_, Pool>,
        endpoint: &str,
        model: &str,
        incarnation: &Bound<'_, PyAny>,
        layout: &Bound<'_, KvLayout>,
        blocks: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let to = self::endpoint(py, endpoint)?;
        let me = self::incarnation(incarnation, "incarnation")?;
        let remote = shape(layout.get(), blocks, "blocks")?;
        let pool = &pool.get().pool;
        let hello =
            outside::hello(pool, me, &to, Backend::Nixl, model).map_err(|error| handshake(py, &error))?;
        let books = outside::Books::new(pool.clone(), remote, to.incarnation);
        let books = books.map_err(|error| handshake(py, &error))?;
        Ok(Self { ledger: books, hello, remote, receiver: to.incarnation })
    }

    /// The first message to the receiver.
    #[getter]
    fn hello(&self) -> &str {
        &self.hello
    }

    #[getter]
    fn remote(&self) -> (KvLayout, u32) {
        (KvLayout(self.remote.layout), self.remote.blocks)
    }

    #[getter]
    fn peer(&self) -> &'static str {
        peer(self.ledger.peer())
    }

    fn begin(&self, py: Python<'_>, grant: &Bound<'_, Grant>) -> PyResult<()> {
        self.ledger.begin(&grant.get().0).map_err(|error| transfer(py, &error))
    }

    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
        ranges: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyArray2<u64>>> {
        let (key, layer) = (key.get().0, layer_number(layer)?);
        let given = match ranges.cast::<TransferPlan>() {
            Ok(plan) => plan.get().plan.layer(layer).collect(),
            Err(_) => self::ranges(py, ranges)?,
        };
        let copies = py.detach(|| self.ledger.put(key, layer, &given));
        copies.map(|copies| rows(py, &copies)).map_err(|error| transfer(py, &error))
    }

    fn publish(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, bool)> {
        let (key, layer) = (key.get().0, layer_number(layer)?);
        self.ledger.publish(key, layer).map_err(|error| transfer(py, &error))
    }

    /// Ends a transfer; says whether it was open.
    #[pyo3(signature = (key, kind, reason = "", waited_s = 0.0))]
    fn end(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        kind: &str,
        reason: &str,
        waited_s: f64,
    ) -> PyResult<bool> {
        let key = key.get().0;
        let completion = match kind {
            "local-done" => CoreCompletion::LocalDone(key),
            "fenced" => CoreCompletion::Fenced(key),
            "denied" => CoreCompletion::Failed(key, TransferError::Denied { key, reason: reason.to_owned() }),
            "failed" => {
                let what = "writing by NIXL".to_owned();
                CoreCompletion::Failed(key, TransferError::Device { what, reason: reason.to_owned() })
            }
            "stalled" => {
                let waited = super::seconds(py, "waited_s", waited_s)?;
                CoreCompletion::Failed(key, TransferError::Stalled { key, peer: self.receiver, waited })
            }
            _ => {
                let expected = "'local-done', 'fenced', 'denied', 'failed' or 'stalled'";
                return Err(config(py, "kind", expected, kind));
            }
        };
        Ok(self.ledger.end(completion))
    }

    fn lose(&self) {
        self.ledger.lose();
    }

    fn poll(&self, py: Python<'_>) -> Vec<Completion> {
        let mut ended = Vec::new();
        self.ledger.poll(&mut ended);
        ended.into_iter().map(|completion| Completion::new(py, completion)).collect()
    }
}
