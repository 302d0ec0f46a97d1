//! The Python class `Machine`.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use pythonize::pythonize;
use splitcore_core::config::MachineConfig;
use splitcore_core::event::MachineEvent;
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::machine::Machine as Core;
use splitcore_core::time::Time;

use crate::clock::Clock;
use crate::errors::{self, Fault, SplitcoreError};
use crate::events::{self, Handled, Outcome, Snapshot, Whole};
use crate::watched::watched;

struct State {
    core: Core,
    clock: Clock,
}

/// Batches the requests of one machine and keeps its KV blocks. Safe to share between threads.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Machine {
    state: Mutex<State>,
}

impl Machine {
    /// Runs `call` inside the lock; errors become exceptions after it.
    fn with<T>(&self, py: Python<'_>, call: impl FnOnce(&mut State) -> Result<T, Fault>) -> PyResult<T> {
        let done = match self.state.lock_py_attached(py) {
            Ok(mut state) => call(&mut state),
            Err(_) => Err(Fault::Stopped),
        };
        done.map_err(|fault| fault.into_err(py))
    }

    /// As `with`, on a thread of its own, while this one hears of Ctrl-C: `call` asks whether to go on. Returns what it did,
    /// and what stopped it.
    fn with_watched<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut State, &dyn Fn(u64, u64) -> bool) -> Result<T, Fault> + Send,
    ) -> PyResult<(T, Option<PyErr>)> {
        let (done, stopped) = py.detach(|| {
            watched(None, |go_on| match self.state.lock() {
                Ok(mut state) => call(&mut state, &go_on),
                Err(_) => Err(Fault::Stopped),
            })
        });
        let done = done.unwrap_or(Err(Fault::Stopped)).map_err(|fault| fault.into_err(py))?;
        Ok((done, stopped))
    }
}

#[pymethods]
impl Machine {
    #[new]
    #[pyo3(signature = (
        *,
        kv_blocks,
        block_tokens = 16,
        machine = 0,
        incarnation = 1,
        batch_tokens_max = 2048,
        batch_requests_max = 512,
        prefill_chunk_tokens = None,
        pipeline_stages = 1,
        sit_out_max = 4,
        evictions_max = 4,
        report_interval_s = 1.0,
        handoff_floor_blocks = None,
        quarantine_limit = 0.1,
        transfer_limit_s = 20.0,
        park_limit_s = 30.0,
        orphan_limit_s = 120.0,
        sends_max = None,
        receives_max = None,
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        kv_blocks: u32,
        block_tokens: u32,
        machine: u32,
        incarnation: u32,
        batch_tokens_max: u32,
        batch_requests_max: u32,
        prefill_chunk_tokens: Option<u32>,
        pipeline_stages: u32,
        sit_out_max: u32,
        evictions_max: u32,
        report_interval_s: f64,
        handoff_floor_blocks: Option<u32>,
        quarantine_limit: f64,
        transfer_limit_s: Option<f64>,
        park_limit_s: f64,
        orphan_limit_s: Option<f64>,
        sends_max: Option<u32>,
        receives_max: Option<u32>,
    ) -> PyResult<Self> {
        let seconds = |option, given| errors::nanoseconds(py, option, given);
        let config = MachineConfig {
            blocks: kv_blocks,
            block_tokens,
            batch_tokens_max,
            batch_requests_max,
            prefill_chunk_tokens,
            pipeline_stages,
            sit_out_max,
            evictions_max,
            report_interval_ns: seconds("report_interval_s", report_interval_s)?,
            handoff_floor_blocks,
            quarantine_limit_permille: errors::permille(py, "quarantine_limit", quarantine_limit, 0.0, 1.0)?,
            transfer_limit_ns: transfer_limit_s
                .map(|given| seconds("transfer_limit_s", given))
                .transpose()?,
            park_limit_ns: seconds("park_limit_s", park_limit_s)?,
            orphan_limit_ns: orphan_limit_s.map(|given| seconds("orphan_limit_s", given)).transpose()?,
            sends_max,
            receives_max,
        };
        let id = MachineId { index: machine, incarnation };
        let core = Core::new(id, config).map_err(|error| errors::core_config(py, &error))?;
        Ok(Self { state: Mutex::new(State { core, clock: Clock::starting_at(Time::ZERO) }) })
    }

    /// Apply events in order; one that fails changes nothing and the next goes on.
    #[pyo3(signature = (events, *, now_ns = None))]
    fn handle(&self, py: Python<'_>, events: &Bound<'_, PyAny>, now_ns: Option<u64>) -> PyResult<Handled> {
        let events = events::read(events)?;
        let count = events.len();
        let apply = |state: &mut State, go_on: &dyn Fn(u64, u64) -> bool| {
            let now = state.clock.read(now_ns);
            let core = &mut state.core;
            let mut outcome =
                Outcome::of(events, Vec::new(), go_on, |event, actions| core.handle(now, event, actions));
            // Last, so that what arrives in one call runs in one pass.
            if core.next_deadline().is_some_and(|due| due <= now.max(core.now())) {
                let _ = core.handle(now, &MachineEvent::Tick, outcome.actions_mut())?;
            }
            Ok(outcome)
        };
        let (outcome, stopped) = if count < events::WATCHED_FROM {
            (self.with(py, |state| apply(state, &|_, _| true))?, None)
        } else {
            self.with_watched(py, apply)?
        };
        outcome.into_answer(py, stopped)
    }

    /// Tell when the next timeout is due, in nanoseconds, or None.
    fn next_deadline_ns(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |state| Ok(state.core.next_deadline().map(Time::as_ns)))
    }

    /// Read the batch of the pass that started last.
    fn plan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let plan = self.with(py, |state| Ok(state.core.plan().clone()))?;
        Ok(pythonize(py, &plan)?)
    }

    /// Read the KV blocks of a request's leg, in position order.
    #[pyo3(signature = (request_id, attempt = 1))]
    fn blocks(&self, py: Python<'_>, request_id: u64, attempt: u32) -> PyResult<Vec<u32>> {
        let key = LegKey { request: RequestId(request_id), attempt: Attempt(attempt) };
        self.with(py, |state| {
            let (_, table) = state.core.leg(key).ok_or(Fault::UnknownRequest(request_id))?;
            Ok(table.blocks().iter().map(|block| block.0).collect())
        })
    }

    /// Read all it holds, as a registration carries it.
    fn claims<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let claims = self.with(py, |state| Ok(state.core.claims()))?;
        Ok(pythonize(py, &claims)?)
    }

    /// The newest cluster it has spoken to.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |state| Ok(state.core.epoch().0))
    }

    /// Read what a report would say now.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = self.with(py, |state| Ok(state.core.report()))?;
        Ok(pythonize(py, &report)?)
    }

    /// Read queue lengths and block counts.
    fn loads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.with(py, |state| {
            let (core, pool) = (&state.core, state.core.pool());
            let (queued, decoding) = core.queue_lengths();
            Ok([
                ("queued", queued as u64),
                ("decoding", decoding as u64),
                ("legs", u64::from(core.report().legs)),
                ("kv_tokens", core.report().kv_tokens),
                ("running", u64::from(core.is_running())),
                ("free_blocks", u64::from(pool.free())),
                ("held_blocks", u64::from(pool.held())),
                ("cached_blocks", u64::from(pool.cached())),
                ("quarantined_blocks", u64::from(pool.quarantined())),
                ("total_blocks", u64::from(pool.total())),
            ])
        })?;
        let loads = PyDict::new(py);
        for (name, count) in counts {
            loads.set_item(name, count)?;
        }
        Ok(loads)
    }

    /// Read the counters, each by its name; they only grow.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let counters = self.with(py, |state| Ok(state.core.counters()))?;
        Ok(pythonize(py, &counters)?)
    }

    /// Recount everything and compare with the books.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |state| state.core.check().map_err(|fault| Fault::Unsound(fault.0)))
    }

    /// Copy the whole state.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        self.with(py, |state| Ok(Snapshot(Whole::Machine(Box::new(state.core.clone())))))
    }

    /// Take a copied state back; the same calls then give the same results.
    fn restore(&self, py: Python<'_>, snapshot: &Bound<'_, Snapshot>) -> PyResult<()> {
        let Whole::Machine(saved) = &snapshot.get().0 else {
            return Err(SplitcoreError::new_err("the snapshot is a cluster's, not a machine's"));
        };
        // Nothing half changed is left, so a stopped machine goes on.
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        state.core.clone_from(saved);
        state.clock = Clock::starting_at(state.core.now());
        self.state.clear_poison();
        Ok(())
    }
}
