//! Moving KV: layouts, plans, and the two ends of a transfer. They convert and wait; `splitcore_transport` decides.

mod cuda;
mod errors;
mod keys;
mod layout;
mod outside;
mod plan;
mod pool;
mod receive;
mod send;

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use splitcore_transport::{Endpoint, Incarnation, Offer, backends_of, boot_id, choose};

pub(crate) use cuda::{CudaPool, CudaStream, cuda_devices};
pub(crate) use keys::{Arrival, Completion, Grant, LayerSeal, TransferKey};
pub(crate) use layout::KvLayout;
pub(crate) use outside::{Books, WriterStops};
pub(crate) use plan::{TransferPlan, plan_transfer, senders};
pub(crate) use pool::Pool;
pub(crate) use receive::Receiver;
pub(crate) use send::{Link, connect};

use crate::errors::{config, nanoseconds_or_none, whole};
use errors::handshake;

/// How long a wait may go without looking for Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);
const INCARNATION: &str = "1 to 2^63 - 1";
const LAYER: &str = "0 to 2^16 - 1";

/// Waits in slices, and looks for Ctrl-C between them; `wait` answers `None` when its time was up.
pub(crate) fn sliced<T: Send>(
    py: Python<'_>,
    within: Duration,
    wait: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    let start = Instant::now();
    loop {
        let left = within.saturating_sub(start.elapsed());
        let slice = left.min(SLICE);
        if let Some(done) = py.detach(|| wait(slice)) {
            return Ok(Some(done));
        }
        if left <= SLICE {
            return Ok(None);
        }
        py.check_signals()?;
    }
}

/// A time to wait; zero looks once.
pub(crate) fn seconds(py: Python<'_>, option: &str, given: f64) -> PyResult<Duration> {
    nanoseconds_or_none(py, option, given).map(Duration::from_nanos)
}

fn layer_number(value: &Bound<'_, PyAny>) -> PyResult<u16> {
    whole(value, "layer", LAYER)
}

fn incarnation(value: &Bound<'_, PyAny>, option: &'static str) -> PyResult<Incarnation> {
    let number: u64 = whole(value, option, INCARNATION)?;
    if number == 0 || number >> 63 != 0 {
        return Err(config(value.py(), option, INCARNATION, number));
    }
    Ok(Incarnation(number))
}

/// The incarnation that was given, else a new one.
fn incarnation_or_new(py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<Incarnation> {
    match given {
        Some(value) => incarnation(value, "incarnation"),
        None => Incarnation::random().map_err(|error| handshake(py, &error)),
    }
}

fn endpoint(py: Python<'_>, text: &str) -> PyResult<Endpoint> {
    serde_json::from_str(text).map_err(|error| config(py, "endpoint", "what a receiver exports", error))
}

pub(crate) fn backend(py: Python<'_>, given: Option<&str>) -> PyResult<Option<splitcore_transport::Backend>> {
    let expected = "'cuda-ipc', 'shm', 'nixl' or 'tcp'";
    given.map(|name| crate::errors::word(py, "backend", name, expected)).transpose()
}

/// Lets go of what joins threads when it goes: they may want the interpreter, so it is not held meanwhile.
pub(crate) fn drop_detached<T: Send>(last: T) {
    let mut last = Some(last);
    // Without an interpreter, at its end, there is nobody to wait for; `last` is then dropped as it is.
    let _ = Python::try_attach(|py| {
        let last = last.take();
        py.detach(|| drop(last));
    });
}

/// A number for one life of a sender or receiver.
///
/// # Errors
/// The system gives no randomness.
#[pyfunction]
pub(crate) fn new_incarnation(py: Python<'_>) -> PyResult<u64> {
    Incarnation::random().map(|life| life.0).map_err(|error| handshake(py, &error))
}

/// Which backend a pool's owner would use towards a receiver.
///
/// # Errors
/// There is none.
#[pyfunction]
#[pyo3(name = "choose_backend", signature = (pool, endpoint, *, nixl = false, backend = None))]
pub(crate) fn choose_backend(
    py: Python<'_>,
    pool: &Bound<'_, Pool>,
    endpoint: &str,
    nixl: bool,
    backend: Option<&str>,
) -> PyResult<String> {
    let to = self::endpoint(py, endpoint)?;
    let forced = self::backend(py, backend)?;
    let host = boot_id().map_err(|error| handshake(py, &error))?;
    let mut backends = backends_of(&pool.get().pool);
    if nixl && pool.get().pool.host_base().is_some() {
        backends.push(splitcore_transport::Backend::Nixl);
    }
    let chosen = choose(&Offer { host, backends }, &to, forced);
    chosen.map(|backend| backend.to_string()).map_err(|error| handshake(py, &error))
}
