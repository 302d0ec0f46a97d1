//! `Link`: the writing half towards one receiver.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use splitcore_transport::{ConnectOptions, Link as Core, connect as core_connect};

use super::errors::{closed, handshake, transfer};
use super::keys::{Completion, Grant, TransferKey};
use super::layout::KvLayout;
use super::plan::{TransferPlan, ranges};
use super::pool::Pool;
use super::receive::peer;
use super::{backend, endpoint, incarnation_or_new, layer_number, seconds, sliced};
use crate::errors::{nanoseconds, whole};

/// One sender's connection to one receiver.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Link {
    incarnation: u64,
    backend: String,
    /// None once it is closed.
    core: Mutex<Option<Arc<dyn Core>>>,
}

/// Connects a pool to a receiver.
///
/// # Errors
/// No backend, no connection, no answer in time; a field that does not agree.
#[pyfunction]
#[pyo3(signature = (pool, endpoint, *, model, incarnation = None, backend = None, within_s = 5.0,
    checksums = None, connections = None, stall_limit_s = 10.0))]
#[allow(clippy::too_many_arguments, reason = "keywords in Python")]
pub(crate) fn connect(
    py: Python<'_>,
    pool: &Bound<'_, Pool>,
    endpoint: &str,
    model: String,
    incarnation: Option<&Bound<'_, PyAny>>,
    backend: Option<&str>,
    within_s: f64,
    checksums: Option<bool>,
    connections: Option<&Bound<'_, PyAny>>,
    stall_limit_s: f64,
) -> PyResult<Link> {
    let chosen = super::choose_backend(py, pool, endpoint, false, backend)?;
    let to = self::endpoint(py, endpoint)?;
    let me = incarnation_or_new(py, incarnation)?;
    let mut options = ConnectOptions::new(model);
    options.backend = self::backend(py, Some(&chosen))?;
    options.checksums = checksums;
    options.within = Duration::from_nanos(nanoseconds(py, "within_s", within_s)?);
    options.stall_limit = Duration::from_nanos(nanoseconds(py, "stall_limit_s", stall_limit_s)?);
    if let Some(connections) = connections {
        options.connections = whole(connections, "connections", "1 to 2^16 - 1")?;
    }
    let pool = pool.get().pool.clone();
    let link = py.detach(|| core_connect(&pool, me, &to, &options)).map_err(|error| handshake(py, &error))?;
    Ok(Link { incarnation: me.0, backend: chosen, core: Mutex::new(Some(link)) })
}

impl Link {
    /// Calls the link without holding it: others may call or close it meanwhile.
    fn with<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&dyn Core) -> T + Send) -> PyResult<T> {
        let held = self.core.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let link = held.ok_or_else(|| closed(py, "link"))?;
        // The last hold joins a thread when it goes, so it goes in there.
        Ok(py.detach(move || call(&*link)))
    }

    fn tried<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn Core) -> Result<T, splitcore_transport::TransferError> + Send,
    ) -> PyResult<T> {
        self.with(py, call)?.map_err(|error| transfer(py, &error))
    }
}

#[pymethods]
impl Link {
    #[getter]
    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    #[getter]
    fn backend(&self) -> &str {
        &self.backend
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.core.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// What is known of the receiver.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.with(py, |link| peer(link.peer()))
    }

    /// The receiver's layout and its blocks.
    #[getter]
    fn remote(&self, py: Python<'_>) -> PyResult<(KvLayout, u32)> {
        self.with(py, |link| (KvLayout(link.remote().layout), link.remote().blocks))
    }

    fn begin(&self, py: Python<'_>, grant: &Bound<'_, Grant>) -> PyResult<()> {
        let grant = &grant.get().0;
        self.tried(py, |link| link.begin(grant))
    }

    /// Lets what is put from now on be copied after what a stream of the device was given so far.
    fn after(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        self.tried(py, |link| link.after(stream))
    }

    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
        ranges: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, layer) = (key.get().0, layer_number(layer)?);
        let ranges = self::ranges(py, ranges)?;
        self.tried(py, |link| link.put(key, layer, &ranges))
    }

    fn put_plan(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
        plan: &Bound<'_, TransferPlan>,
    ) -> PyResult<()> {
        let (key, layer) = (key.get().0, layer_number(layer)?);
        let plan = &plan.get().plan;
        self.tried(py, |link| link.put(key, layer, &plan.layer(layer).collect::<Vec<_>>()))
    }

    fn publish(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, layer) = (key.get().0, layer_number(layer)?);
        let tokens = whole(tokens, "tokens", "0 to 2^32 - 1")?;
        self.tried(py, |link| link.publish(key, layer, tokens))
    }

    fn stop(&self, py: Python<'_>, key: &Bound<'_, TransferKey>) -> PyResult<()> {
        let key = key.get().0;
        self.with(py, |link| link.stop(key))
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Vec<Completion>> {
        let ended = self.with(py, |link| {
            let mut ended = Vec::new();
            link.poll(&mut ended);
            ended
        })?;
        Ok(ended.into_iter().map(|completion| Completion::new(py, completion)).collect())
    }

    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let within = seconds(py, "timeout_s", timeout_s)?;
        let held = self.core.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let link = held.ok_or_else(|| closed(py, "link"))?;
        let woken = sliced(py, within, |slice| link.wait(slice).then_some(()));
        super::drop_detached(link);
        Ok(woken?.is_some())
    }

    fn close(&self) {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner).take();
        super::drop_detached(core);
    }

    fn __repr__(&self) -> String {
        let state = if self.is_closed() { "closed" } else { "open" };
        format!("Link({state}, backend='{}', incarnation={})", self.backend, self.incarnation)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}
