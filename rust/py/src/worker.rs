//! `Worker`: one machine of the live service, whose engine is in Python.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyList;
use splitcore_core::config::MachineConfig;
use splitcore_core::id::LegKey;
use splitcore_wire::address::Address;
use splitcore_wire::auth::Secret;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::message::Sampling;
use splitcore_wire::session::Limits;
use splitcore_wire::tls::{Tls, TlsError};
use splitcore_worker::mover::{Follow, MoverOptions};
use splitcore_worker::{
    End, Log, ModelBounds, Pass as CorePass, TransferListen, Worker as Core, WorkerError, WorkerOptions,
    incarnation_now,
};

use crate::errors::{self, SplitcoreError, config};
use crate::transfer::{Pool, backend, drop_detached, seconds, sliced};

/// A pass is looked for as long as there is none to run.
const FOREVER: Duration = Duration::from_secs(1 << 40);

/// Between two tries to connect, from and to.
const BACKOFF_NS: (u64, u64) = (100_000_000, 2_000_000_000);

/// One machine of the live service.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Worker {
    /// None once it is closed.
    core: Mutex<Option<Arc<Core>>>,
    peer: String,
}

/// One forward pass: what is in it, and the transfers that follow its layers.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Pass {
    #[pyo3(get)]
    number: u64,
    #[pyo3(get)]
    spans: Py<PyList>,
    keys: Vec<LegKey>,
    /// By span.
    follows: Mutex<Vec<Vec<Follow>>>,
}

type How = Option<(f64, f64, u64)>;

fn sampling(sampling: Option<Sampling>) -> How {
    sampling.map(|Sampling { temperature, top_p, seed }| (temperature, top_p, seed))
}

impl Pass {
    fn new(py: Python<'_>, pass: CorePass) -> PyResult<Self> {
        let (mut keys, mut follows) = (Vec::new(), Vec::new());
        let spans = PyList::empty(py);
        for span in pass.spans {
            let how = sampling(span.sampling);
            let follows_any = !span.follows.is_empty();
            spans.append((span.tokens, span.start, span.blocks, how, span.output, follows_any))?;
            keys.push(span.key);
            follows.push(span.follows);
        }
        Ok(Self { number: pass.number, spans: spans.unbind(), keys, follows: Mutex::new(follows) })
    }

    fn follows(&self) -> std::sync::MutexGuard<'_, Vec<Vec<Follow>>> {
        self.follows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Pass {
    /// A layer of a span is in its blocks: the transfers that follow it send the layer.
    fn put_layer(&self, py: Python<'_>, span: usize, layer: u16) -> PyResult<()> {
        let spans = self.keys.len();
        if span >= spans {
            return Err(config(py, "span", &format!("below {spans}"), span));
        }
        py.detach(|| {
            // None are there any more once the pass is done.
            let mut all = self.follows();
            all.get_mut(span).into_iter().flatten().for_each(|follow| follow.put_layer(layer));
        });
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("Pass({}, {} spans)", self.number, self.keys.len())
    }
}

impl Worker {
    fn core(&self) -> PyResult<Arc<Core>> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner).clone();
        core.ok_or_else(|| SplitcoreError::new_err("the worker is closed"))
    }

    fn end(&self, py: Python<'_>, end: impl FnOnce(&Core) -> End + Send) -> (&'static str, String) {
        let Ok(core) = self.core() else { return ("stopped", String::new()) };
        told(py.detach(|| end(&core)))
    }
}

fn told(end: End) -> (&'static str, String) {
    match end {
        End::Stopped => ("stopped", String::new()),
        End::GivenUp(reason) => ("given-up", reason),
        End::Refused(reason) => ("refused", reason),
        End::Failed(reason) => ("failed", reason),
    }
}

fn address(py: Python<'_>, option: &str, given: &str) -> PyResult<Address> {
    given.parse().map_err(|_| config(py, option, "host:port or unix:/path", given))
}

/// Whom to trust to be the daemon, if with TLS.
fn tls(py: Python<'_>, ca: Option<&Path>, name: Option<&str>, connect: &Address) -> PyResult<Option<Tls>> {
    let Some(ca) = ca else {
        let alone = name.map(|_| config(py, "tls_name", "a tls_ca with it", "none"));
        return alone.map_or(Ok(None), Err);
    };
    let wrong = |error: TlsError| match error {
        TlsError::Unix(_) => config(py, "tls_ca", "a connect that is host:port", connect),
        TlsError::Name(got) => {
            let of = if name.is_some() { "tls_name" } else { "connect" };
            config(py, of, "a host's name or address", got)
        }
        error => config(py, "tls_ca", "a file of certificates in PEM", error),
    };
    Tls::new(ca, name, connect).map(Some).map_err(wrong)
}

fn bounds(context: Option<u32>, vocabulary: Option<u32>) -> ModelBounds {
    let any = ModelBounds::default();
    ModelBounds { context: context.unwrap_or(any.context), vocabulary: vocabulary.unwrap_or(any.vocabulary) }
}

/// How KV is moved.
fn mover(py: Python<'_>, model: String, by: Option<&str>) -> PyResult<MoverOptions> {
    let mut mover = MoverOptions::new(model);
    mover.connect.backend = backend(py, by)?;
    Ok(mover)
}

/// Where KV is taken by TCP.
fn transfers(py: Python<'_>, given: Option<&str>) -> PyResult<TransferListen> {
    match given {
        None => Ok(TransferListen::AsNeeded),
        Some("none") => Ok(TransferListen::Nowhere),
        Some(given) => match given.parse() {
            Ok(address) => Ok(TransferListen::At(address)),
            Err(_) => Err(config(py, "transfer_listen", "IP:PORT or none", given)),
        },
    }
}

fn raised(py: Python<'_>, error: WorkerError) -> PyErr {
    match error {
        WorkerError::Config(error) => errors::core_config(py, &error),
        error => SplitcoreError::new_err(error.to_string()),
    }
}

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (
        pool,
        *,
        connect,
        name,
        role,
        model,
        context = None,
        vocabulary = None,
        secret = None,
        tls_ca = None,
        tls_name = None,
        peer_listen = None,
        transfer_listen = None,
        backend = None,
        batch_tokens_max = 2048,
        batch_requests_max = 512,
        prefill_chunk_tokens = None,
        report_interval_s = 1.0,
        transfer_limit_s = 20.0,
        park_limit_s = 30.0,
        orphan_limit_s = 120.0,
        event_log = None,
        event_log_keep = None,
        incarnation = None,
    ))]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        pool: &Bound<'_, Pool>,
        connect: &str,
        name: String,
        role: &str,
        model: String,
        context: Option<u32>,
        vocabulary: Option<u32>,
        secret: Option<Vec<u8>>,
        tls_ca: Option<std::path::PathBuf>,
        tls_name: Option<&str>,
        peer_listen: Option<&str>,
        transfer_listen: Option<&str>,
        backend: Option<&str>,
        batch_tokens_max: u32,
        batch_requests_max: u32,
        prefill_chunk_tokens: Option<u32>,
        report_interval_s: f64,
        transfer_limit_s: f64,
        park_limit_s: f64,
        orphan_limit_s: f64,
        event_log: Option<std::path::PathBuf>,
        event_log_keep: Option<u32>,
        incarnation: Option<u32>,
    ) -> PyResult<Self> {
        let ns = |option, given| errors::nanoseconds(py, option, given);
        if event_log_keep == Some(0) {
            return Err(config(py, "event_log_keep", "at least 1", 0));
        }
        if name.is_empty() {
            return Err(config(py, "name", "a name", "an empty one"));
        }
        let machine = MachineConfig {
            batch_tokens_max,
            batch_requests_max,
            prefill_chunk_tokens,
            report_interval_ns: ns("report_interval_s", report_interval_s)?,
            transfer_limit_ns: Some(ns("transfer_limit_s", transfer_limit_s)?),
            park_limit_ns: ns("park_limit_s", park_limit_s)?,
            orphan_limit_ns: Some(ns("orphan_limit_s", orphan_limit_s)?),
            ..MachineConfig::default()
        };
        let incarnation = incarnation.unwrap_or_else(incarnation_now);
        let connect = address(py, "connect", connect)?;
        let options = WorkerOptions {
            tls: tls(py, tls_ca.as_deref(), tls_name, &connect)?,
            connect,
            backoff: Backoff::new(BACKOFF_NS.0, BACKOFF_NS.1, u64::from(incarnation)),
            name,
            role: errors::word(py, "role", role, "'prompt', 'token' or 'mixed'")?,
            bounds: bounds(context, vocabulary),
            secret: secret.map(|bytes| Secret::new(&bytes)),
            peer_listen: peer_listen.map(|given| address(py, "peer_listen", given)).transpose()?,
            transfer_listen: transfers(py, transfer_listen)?,
            mover: mover(py, model.clone(), backend)?,
            model,
            machine,
            limits: Limits::default(),
            incarnation,
            event_log,
            event_log_keep,
            log: Log::default(),
        };
        let pool = pool.get().pool.clone();
        let core = py.detach(|| Core::start(options, pool)).map_err(|error| raised(py, error))?;
        let peer = core.peer_address().to_string();
        Ok(Self { core: Mutex::new(Some(Arc::new(core))), peer })
    }

    /// Where it takes other workers.
    #[getter]
    fn peer_address(&self) -> &str {
        &self.peer
    }

    /// The next pass, if one comes in time and it has not ended.
    #[pyo3(signature = (timeout_s = None))]
    fn next_pass(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Option<Pass>> {
        let within = timeout_s.map_or(Ok(FOREVER), |given| seconds(py, "timeout_s", given))?;
        let core = self.core()?;
        let next = sliced(py, within, |slice| match core.next_pass(slice) {
            Some(pass) => Some(Some(pass)),
            None => core.ended().map(|_| None),
        });
        drop_detached(core);
        next?.flatten().map(|pass| Pass::new(py, pass)).transpose()
    }

    /// A pass has run, and these tokens were drawn, by span. Transfers that lack a layer have failed.
    fn pass_done(&self, py: Python<'_>, done: &Bound<'_, Pass>, tokens: Vec<(usize, u32)>) -> PyResult<()> {
        let (core, pass) = (self.core()?, done.get());
        let spans = pass.keys.len();
        if let Some(&(span, _)) = tokens.iter().find(|(span, _)| *span >= spans) {
            return Err(config(py, "tokens", &format!("spans below {spans}"), span));
        }
        let drawn: Vec<_> = tokens.into_iter().map(|(span, token)| (pass.keys[span], token)).collect();
        let follows = std::mem::take(&mut *pass.follows());
        py.detach(move || {
            drop(follows);
            core.pass_done(pass.number, &drawn);
        });
        Ok(())
    }

    /// Has what is here go on elsewhere, by its daemon. It ends when it holds nothing any more.
    fn leave(&self) {
        // One that is closed has left.
        if let Ok(core) = self.core() {
            core.leave();
        }
    }

    /// Ends it, and waits until its daemon has been told.
    fn stop(&self, py: Python<'_>) -> (&'static str, String) {
        self.end(py, Core::stop)
    }

    /// Ends it because its engine cannot go on.
    fn fail(&self, py: Python<'_>, reason: &str) -> (&'static str, String) {
        self.end(py, |core| core.fail(reason))
    }

    /// How and why it has ended, if it has.
    #[getter]
    fn ended(&self) -> Option<(&'static str, String)> {
        self.core().map_or_else(|_| Some(("stopped", String::new())), |core| core.ended().map(told))
    }

    /// What it has done so far, by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyDict>> {
        let stats = self.core()?.stats();
        let told = pyo3::types::PyDict::new(py);
        told.set_item("passes", stats.passes)?;
        told.set_item("prefill_tokens", stats.prefill_tokens)?;
        told.set_item("decode_tokens", stats.decode_tokens)?;
        told.set_item("decode_batch_mean", stats.decode_batch_mean())?;
        told.set_item("transfers", stats.transfers)?;
        told.set_item("transfers_failed", stats.transfers_failed)?;
        told.set_item("exposed_s", stats.exposed_ns as f64 / 1e9)?;
        told.set_item("exposed_max_s", stats.exposed_max_ns as f64 / 1e9)?;
        told.set_item("sessions", stats.sessions)?;
        Ok(told)
    }

    /// Ends it, if it has not, and gives back its sockets and threads.
    fn close(&self) {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop_detached(core);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
    }
}
