//! `Receiver`: the receiving half of a pool.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use splitcore_core::id::RequestId;
use splitcore_transport::{
    Backend, Landing, LayerSeal as CoreSeal, ListenOptions, PeerState, Receiver as Core, Token, TransferError,
};
use splitcore_wire::hex::Hex;

use super::errors::{closed, handshake, transfer};
use super::keys::{Arrival, Grant, LayerSeal, TransferKey};
use super::outside::WriterStops;
use super::plan::block_table;
use super::pool::Pool;
use super::{incarnation, incarnation_or_new, layer_number, seconds, sliced};
use crate::arrays::ID;
use crate::errors::{config, nanoseconds, whole};

/// A machine's receiving half.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Receiver {
    landing: Landing,
    endpoint: String,
    /// None once it is closed.
    core: Mutex<Option<Arc<Core>>>,
}

pub(super) fn peer(state: PeerState) -> &'static str {
    match state {
        PeerState::Absent => "absent",
        PeerState::Connected => "connected",
        PeerState::Silent => "silent",
        PeerState::Lost => "lost",
    }
}

/// A timeout of the last of many short waits, as one of the whole wait.
fn waited(error: TransferError, within: std::time::Duration) -> TransferError {
    match error {
        TransferError::Timeout { key, layer, peer, .. } => {
            TransferError::Timeout { key, layer, waited: within, peer }
        }
        other => other,
    }
}

impl Receiver {
    fn core(&self) -> MutexGuard<'_, Option<Arc<Core>>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.core().clone().ok_or_else(|| closed(py, "receiver"))
    }
}

#[pymethods]
impl Receiver {
    #[new]
    #[pyo3(signature = (pool, *, model, incarnation = None, slots = None, folder = None, local = true,
        tcp = None, handshake_within_s = 5.0, connections_max = None, stall_limit_s = 10.0))]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        pool: &Bound<'_, Pool>,
        model: String,
        incarnation: Option<&Bound<'_, PyAny>>,
        slots: Option<&Bound<'_, PyAny>>,
        folder: Option<PathBuf>,
        local: bool,
        tcp: Option<&str>,
        handshake_within_s: f64,
        connections_max: Option<&Bound<'_, PyAny>>,
        stall_limit_s: f64,
    ) -> PyResult<Self> {
        let me = incarnation_or_new(py, incarnation)?;
        let address = |text: &str| {
            let expected = "an address and a port, such as '127.0.0.1:0'";
            text.parse::<SocketAddr>().map_err(|_| config(py, "tcp", expected, text))
        };
        let mut options = ListenOptions::new(model);
        options.tcp = tcp.map(address).transpose()?;
        options.folder = folder;
        options.local = local;
        if let Some(slots) = slots {
            options.slots = whole(slots, "slots", "1 to 2^16")?;
        }
        if !(1..=1 << 16).contains(&options.slots) {
            return Err(config(py, "slots", "1 to 2^16", options.slots));
        }
        if let Some(most) = connections_max {
            options.connections_max = whole(most, "connections_max", "0 to 2^64 - 1")?;
        }
        let span = |option, seconds| nanoseconds(py, option, seconds).map(std::time::Duration::from_nanos);
        options.handshake_within = span("handshake_within_s", handshake_within_s)?;
        options.stall_limit = span("stall_limit_s", stall_limit_s)?;
        let pool = pool.get().pool.clone();
        let core = py.detach(|| Core::listen(pool, me, options)).map_err(|error| handshake(py, &error))?;
        let endpoint = serde_json::to_string(core.endpoint())
            .map_err(|error| crate::errors::SplitcoreError::new_err(error.to_string()))?;
        Ok(Self { landing: core.landing().clone(), endpoint, core: Mutex::new(Some(Arc::new(core))) })
    }

    /// How it is reached, as JSON.
    #[getter]
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    #[getter]
    fn incarnation(&self) -> u64 {
        self.landing.owner().0
    }

    #[getter]
    fn in_use(&self) -> u32 {
        self.landing.in_use()
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.core().is_none()
    }

    #[pyo3(signature = (*, writer, request, blocks, layer_bytes))]
    fn open(
        &self,
        py: Python<'_>,
        writer: &Bound<'_, PyAny>,
        request: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        layer_bytes: &Bound<'_, PyAny>,
    ) -> PyResult<Grant> {
        let writer = incarnation(writer, "writer")?;
        let request = RequestId(whole(request, "request", ID)?);
        let layer_bytes = whole(layer_bytes, "layer_bytes", "1 to 2^64 - 1")?;
        let blocks = block_table(blocks, "blocks")?;
        self.open_core(py)?;
        let grant = py.detach(|| self.landing.open(writer, request, blocks, layer_bytes));
        grant.map(Grant).map_err(|error| transfer(py, &error))
    }

    fn wait_layer(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
        timeout_s: f64,
    ) -> PyResult<LayerSeal> {
        let (key, layer) = (key.get().0, layer_number(layer)?);
        let within = seconds(py, "timeout_s", timeout_s)?;
        let done = sliced(py, within, |slice| match self.landing.wait_layer(key, layer, slice) {
            Err(TransferError::Timeout { .. }) => None,
            done => Some(done),
        })?;
        let done = done.unwrap_or_else(|| {
            // Once more without waiting: it tells what is known of the peer, and a layer that came just now counts.
            let nothing = std::time::Duration::ZERO;
            self.landing.wait_layer(key, layer, nothing).map_err(|error| waited(error, within))
        });
        done.map(LayerSeal::from).map_err(|error| transfer(py, &error))
    }

    /// Waits until every byte of a transfer is in place.
    fn settled(&self, py: Python<'_>, key: &Bound<'_, TransferKey>, timeout_s: f64) -> PyResult<()> {
        let (key, within) = (key.get().0, seconds(py, "timeout_s", timeout_s)?);
        let done = sliced(py, within, |slice| match self.landing.settled(key, slice) {
            Err(TransferError::Timeout { .. }) => None,
            done => Some(done),
        })?;
        // Once more without waiting: it tells what is known of the peer.
        let done = done.unwrap_or_else(|| self.landing.settled(key, std::time::Duration::ZERO));
        done.map_err(|error| transfer(py, &waited(error, within)))
    }

    /// Lets a stream of the device go on only when a published layer is in place.
    fn hold_stream(
        &self,
        py: Python<'_>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
        stream: u64,
    ) -> PyResult<LayerSeal> {
        let (key, layer, core) = (key.get().0, layer_number(layer)?, self.open_core(py)?);
        let held = py.detach(|| {
            let reason = "the receiver's pool is not on a CUDA device".to_owned();
            let none = || TransferError::Device { what: "waiting on a stream".to_owned(), reason };
            let layers = core.layers().ok_or_else(none);
            let held = layers.and_then(|layers| {
                layers.wait_layer_on_stream(key, layer, stream, std::time::Duration::ZERO)
            });
            drop(core);
            held
        });
        held.map(LayerSeal::from).map_err(|error| transfer(py, &error))
    }

    fn landed(&self, py: Python<'_>, key: &Bound<'_, TransferKey>) -> PyResult<u16> {
        let key = key.get().0;
        py.detach(|| self.landing.landed(key)).map_err(|error| transfer(py, &error))
    }

    fn stop(&self, py: Python<'_>, key: &Bound<'_, TransferKey>) -> PyResult<()> {
        let key = key.get().0;
        py.detach(|| self.landing.stop(key)).map_err(|error| transfer(py, &error))
    }

    fn release(&self, py: Python<'_>, key: &Bound<'_, TransferKey>) -> PyResult<()> {
        let key = key.get().0;
        py.detach(|| self.landing.release(key)).map_err(|error| transfer(py, &error))
    }

    fn poll(&self, py: Python<'_>) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        py.detach(|| self.landing.poll(&mut arrivals));
        arrivals.into_iter().map(|arrival| Arrival::new(py, arrival)).collect()
    }

    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let within = seconds(py, "timeout_s", timeout_s)?;
        let woken = sliced(py, within, |slice| self.landing.wait(slice).then_some(()))?;
        Ok(woken.is_some())
    }

    fn writer_state(&self, writer: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        Ok(peer(self.landing.writer_state(incarnation(writer, "writer")?)))
    }

    fn close(&self, py: Python<'_>) {
        let core = self.core().take();
        py.detach(|| drop(core));
    }

    /// Checks the first message of a sender that comes by NIXL; says who it is.
    fn greeted(&self, py: Python<'_>, hello: &str) -> PyResult<u64> {
        let core = self.open_core(py)?;
        let writer = py.detach(|| {
            let writer = core.greeted(hello, Backend::Nixl);
            drop(core);
            writer
        });
        writer.map(|writer| writer.0).map_err(|error| handshake(py, &error))
    }

    /// Lets a writer in that writes from outside this process; gives what it is to be told.
    fn joined(&self, py: Python<'_>, writer: &Bound<'_, PyAny>) -> PyResult<WriterStops> {
        let writer = incarnation(writer, "writer")?;
        let stops = WriterStops::default();
        let handle = stops.handle();
        let joined = py.detach(|| self.landing.joined(writer, handle));
        joined.map(|()| stops).map_err(|error| handshake(py, &error))
    }

    /// Whether this writer has a transfer's grant, and may write it now.
    fn admits(
        &self,
        py: Python<'_>,
        writer: &Bound<'_, PyAny>,
        key: &Bound<'_, TransferKey>,
        token: &str,
    ) -> PyResult<bool> {
        let (writer, key) = (incarnation(writer, "writer")?, key.get().0);
        let shows =
            |token| self.landing.shows(writer, key, &token) && self.landing.writing(writer, key).is_ok();
        Ok(py.detach(|| Hex::parse(token).map(|hex| Token::new(hex.0)).is_some_and(shows)))
    }

    fn left(&self, py: Python<'_>, writer: &Bound<'_, PyAny>, gone: bool) -> PyResult<()> {
        let writer = incarnation(writer, "writer")?;
        py.detach(|| self.landing.left(writer, gone));
        Ok(())
    }

    #[pyo3(signature = (writer, key, layer, *, tokens, size))]
    fn publish(
        &self,
        py: Python<'_>,
        writer: &Bound<'_, PyAny>,
        key: &Bound<'_, TransferKey>,
        layer: &Bound<'_, PyAny>,
        tokens: u32,
        size: u64,
    ) -> PyResult<()> {
        let (writer, key, layer) = (incarnation(writer, "writer")?, key.get().0, layer_number(layer)?);
        let seal = CoreSeal { tokens, bytes: size, crc32c: None };
        py.detach(|| self.landing.publish(writer, key, layer, seal)).map_err(|error| transfer(py, &error))
    }

    fn fenced(
        &self,
        py: Python<'_>,
        writer: &Bound<'_, PyAny>,
        key: &Bound<'_, TransferKey>,
    ) -> PyResult<()> {
        let (writer, key) = (incarnation(writer, "writer")?, key.get().0);
        py.detach(|| self.landing.fenced(writer, key));
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = if self.is_closed() { "closed" } else { "open" };
        format!("Receiver({state}, incarnation={}, in_use={})", self.incarnation(), self.in_use())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let core = self.core().take();
        super::drop_detached(core);
    }
}
