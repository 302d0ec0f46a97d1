//! The Python class `Cluster`: arguments in, one lock, objects out.

use std::sync::{Mutex, PoisonError};

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyString;
use pythonize::pythonize;
use splitcore_core::cluster::Cluster as Core;
use splitcore_core::config::ClusterConfig;
use splitcore_core::cost::CostTable;
use splitcore_core::event::{Arrival, Join, Link, Role, Slo};
use splitcore_core::id::{Epoch, MachineId};

use crate::arrays::{ID, LoadRow, arrivals, read_only, whole_numbers};
use crate::calls::{Fact, State};
use crate::clock::Clock;
use crate::errors::{self, Fault, SplitcoreError};
use crate::events::{self, Handled, Outcome, Snapshot, Whole};
use crate::numbers::{max_new_tokens, output_tokens, prompt_tokens, request_id};
use crate::placement::{Named, PlacedMany, Placement, Polled, Recovery};
use crate::plain;
use crate::watched::watched;

/// From this many requests on, `place_many` lets other Python threads run.
const DETACHED_FROM: usize = 1000;
/// From this many on, it also hears of Ctrl-C: what is shorter ends before one would notice.
const WATCHED_FROM: usize = 16_384;

/// Chooses machines for requests and keeps the books. Safe to share between threads.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Cluster {
    state: Mutex<State>,
}

impl Cluster {
    /// Runs `call` inside the lock; errors become exceptions after it.
    fn with<T>(&self, py: Python<'_>, call: impl FnOnce(&mut State) -> Result<T, Fault>) -> PyResult<T> {
        let done = match self.state.lock_py_attached(py) {
            Ok(mut state) => call(&mut state),
            Err(_) => Err(Fault::Stopped),
        };
        done.map_err(|fault| fault.into_err(py))
    }

    /// As `with`, and lets other Python threads run meanwhile.
    fn with_detached<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut State) -> Result<T, Fault> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| match self.state.lock() {
            Ok(mut state) => call(&mut state),
            Err(_) => Err(Fault::Stopped),
        });
        done.map_err(|fault| fault.into_err(py))
    }

    /// As `with_detached`, on a thread of its own, while this one hears of Ctrl-C: `call` asks whether to go on. Returns
    /// what it did, and what stopped it.
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

    fn tell(
        &self,
        py: Python<'_>,
        fact: Fact,
        request: u64,
        attempt: Option<u32>,
        now_ns: Option<u64>,
    ) -> PyResult<bool> {
        self.with(py, |state| state.fact(fact, request, attempt, now_ns))
    }
}

#[pymethods]
impl Cluster {
    #[new]
    #[pyo3(signature = (
        *,
        policy = "splitwise",
        level = "external",
        prompt_pending_tokens_max = 8192,
        kv_fill_max = 0.95,
        mixed_return = "drained",
        mixed_hold_s = 0.0,
        reserve = "at-arrival",
        cut = "at-prompt",
        transfer = "auto",
        kv_bytes_per_token = None,
        split_from_tokens = 0,
        ties = "first",
        requests_max = 1_000_000,
        admission = "bounds",
        recovery_headroom = 0.0,
        priority_ageing_s = 10.0,
        attempts_max = 4,
        transfer_failures_max = 3,
        aside_s = 30.0,
        retry_interval_s = 1.0,
        park_limit_s = 30.0,
        unplaceable_limit_s = 60.0,
        report_limit_s = 30.0,
        rejoin_limit_s = 5.0,
        hedge_after_s = 0.5,
        lease_s = None,
        epoch = 1,
        grace_s = 0.0,
        seed = 0,
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        policy: &str,
        level: &str,
        prompt_pending_tokens_max: u64,
        kv_fill_max: f64,
        mixed_return: &str,
        mixed_hold_s: f64,
        reserve: &str,
        cut: &str,
        transfer: &str,
        kv_bytes_per_token: Option<u64>,
        split_from_tokens: u32,
        ties: &str,
        requests_max: u32,
        admission: &str,
        recovery_headroom: f64,
        priority_ageing_s: Option<f64>,
        attempts_max: u32,
        transfer_failures_max: u32,
        aside_s: f64,
        retry_interval_s: f64,
        park_limit_s: f64,
        unplaceable_limit_s: f64,
        report_limit_s: f64,
        rejoin_limit_s: f64,
        hedge_after_s: Option<f64>,
        lease_s: Option<f64>,
        epoch: u32,
        grace_s: f64,
        seed: u64,
    ) -> PyResult<Self> {
        let share = |option, given, least, most| errors::permille(py, option, given, least, most);
        let seconds = |option, given| errors::nanoseconds(py, option, given);
        let policies = "splitwise, jsq, least-requests, round-robin or power-of-two";
        let config = ClusterConfig {
            level: errors::word(py, "level", level, "external or managed")?,
            policy: errors::word(py, "policy", policy, policies)?,
            prompt_pending_tokens_max,
            kv_fill_max_permille: share("kv_fill_max", kv_fill_max, 0.001, 1.0)?,
            mixed_return: errors::word(py, "mixed_return", mixed_return, "drained or idle")?,
            mixed_hold_ns: errors::nanoseconds_or_none(py, "mixed_hold_s", mixed_hold_s)?,
            reserve: errors::word(py, "reserve", reserve, "at-arrival or at-source-done")?,
            cut: errors::word(py, "cut", cut, "at-prompt or before-last")?,
            transfer: errors::word(py, "transfer", transfer, "auto, serialized or layer-wise")?,
            kv_bytes_per_token,
            split_from_tokens,
            ties: errors::word(py, "ties", ties, "turn, first or last")?,
            requests_max,
            admission: errors::word(py, "admission", admission, "bounds, early or predicted")?,
            recovery_headroom_permille: share("recovery_headroom", recovery_headroom, 0.0, 0.999)?,
            priority_ageing_ns: priority_ageing_s
                .map(|given| seconds("priority_ageing_s", given))
                .transpose()?,
            attempts_max,
            transfer_failures_max,
            aside_ns: seconds("aside_s", aside_s)?,
            retry_interval_ns: seconds("retry_interval_s", retry_interval_s)?,
            park_limit_ns: seconds("park_limit_s", park_limit_s)?,
            unplaceable_limit_ns: seconds("unplaceable_limit_s", unplaceable_limit_s)?,
            report_limit_ns: seconds("report_limit_s", report_limit_s)?,
            rejoin_limit_ns: seconds("rejoin_limit_s", rejoin_limit_s)?,
            hedge_after_ns: hedge_after_s.map(|given| seconds("hedge_after_s", given)).transpose()?,
            lease_ns: lease_s.map(|given| seconds("lease_s", given)).transpose()?,
            epoch: Epoch(epoch),
            grace_ns: errors::nanoseconds_or_none(py, "grace_s", grace_s)?,
            seed,
            ..ClusterConfig::default()
        };
        let core = Core::new(config).map_err(|error| errors::core_config(py, &error))?;
        Ok(Self { state: Mutex::new(State::new(core)) })
    }

    /// Add a machine; it can be given requests at once.
    #[pyo3(signature = (
        name,
        *,
        role,
        kv_blocks,
        block_tokens = 16,
        speed_weight = 1,
        link_bandwidth = None,
        transfer_fixed_cost_s = 0.005,
        costs = None,
        now_ns = None,
    ))]
    #[allow(clippy::too_many_arguments)]
    fn add_machine(
        &self,
        py: Python<'_>,
        name: &str,
        role: &str,
        kv_blocks: u32,
        block_tokens: u32,
        speed_weight: u32,
        link_bandwidth: Option<f64>,
        transfer_fixed_cost_s: f64,
        costs: Option<Bound<'_, PyAny>>,
        now_ns: Option<u64>,
    ) -> PyResult<u32> {
        if name.is_empty() {
            return Err(errors::config(py, "name", "a name of at least one character", "''"));
        }
        let role: Role = errors::word(py, "role", role, "prompt, token or mixed")?;
        let counts =
            [("kv_blocks", kv_blocks), ("block_tokens", block_tokens), ("speed_weight", speed_weight)];
        if let Some((option, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
            return Err(errors::config(py, option, "at least 1", 0));
        }
        let fixed_cost_ns = errors::nanoseconds(py, "transfer_fixed_cost_s", transfer_fixed_cost_s)?;
        let link = match link_bandwidth {
            Some(rate) if !(rate >= 1.0 && rate.is_finite()) => {
                return Err(errors::config(py, "link_bandwidth", "at least 1 byte per second", rate));
            }
            rate => rate.map(|rate| Link { bytes_per_s: rate as u64, fixed_cost_ns }),
        };
        let join = Join {
            // Which index and incarnation it has is known inside the lock.
            machine: MachineId { index: 0, incarnation: 0 },
            role,
            kv_capacity_tokens: u64::from(kv_blocks) * u64::from(block_tokens),
            speed_weight,
            link,
            costs: costs.as_ref().map(cost_table).transpose()?,
        };
        let shown = PyString::intern(py, name).unbind();
        self.with(py, |state| state.add_machine(name, shown, join, now_ns))
    }

    /// Give the machine no more requests; those it has go on.
    #[pyo3(signature = (name, now_ns = None))]
    fn drain_machine(&self, py: Python<'_>, name: &str, now_ns: Option<u64>) -> PyResult<()> {
        self.with(py, |state| state.drain_machine(name, now_ns))
    }

    /// Give the machine requests again: takes a drain back.
    #[pyo3(signature = (name, now_ns = None))]
    fn undrain_machine(&self, py: Python<'_>, name: &str, now_ns: Option<u64>) -> PyResult<()> {
        self.with(py, |state| state.undrain_machine(name, now_ns))
    }

    /// Take the machine out and place its requests again.
    #[pyo3(signature = (name, now_ns = None))]
    fn lose_machine(&self, py: Python<'_>, name: &str, now_ns: Option<u64>) -> PyResult<Recovery> {
        let recovered = self.with(py, |state| state.lose_machine(name, now_ns))?;
        Ok(Recovery { placed: recovered.placed, parked: recovered.parked, failed: recovered.failed })
    }

    /// Set the limits of a class of requests, or take them away.
    #[pyo3(signature = (slo_class, *, ttft_s = None, tbt_s = None, now_ns = None))]
    fn set_slo(
        &self,
        py: Python<'_>,
        slo_class: u32,
        ttft_s: Option<f64>,
        tbt_s: Option<f64>,
        now_ns: Option<u64>,
    ) -> PyResult<()> {
        let limit = |option, given: Option<f64>| {
            given.map_or(Ok(u64::MAX), |seconds| errors::nanoseconds(py, option, seconds))
        };
        let slo = Slo { ttft_ns: limit("ttft_s", ttft_s)?, tbt_ns: limit("tbt_s", tbt_s)? };
        let slo = (ttft_s.is_some() || tbt_s.is_some()).then_some(slo);
        self.with(py, |state| state.set_slo(slo_class, slo, now_ns))
    }

    /// Choose the machines of a new request and book its load.
    #[pyo3(signature = (
        request_id,
        prompt_tokens,
        max_new_tokens,
        *,
        priority = 0,
        slo_class = None,
        resumable = true,
        session = None,
        pin_token = None,
        prefix_hashes = None,
        dry_run = false,
        now_ns = None,
    ))]
    #[allow(clippy::too_many_arguments)]
    fn place(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = request_id)] request_id: u64,
        #[pyo3(from_py_with = prompt_tokens)] prompt_tokens: u32,
        #[pyo3(from_py_with = max_new_tokens)] max_new_tokens: u32,
        priority: i32,
        slo_class: Option<u32>,
        resumable: bool,
        session: Option<&str>,
        pin_token: Option<&str>,
        prefix_hashes: Option<Bound<'_, PyAny>>,
        dry_run: bool,
        now_ns: Option<u64>,
    ) -> PyResult<Placement> {
        // No policy looks at these two yet.
        let _ = (session, prefix_hashes);
        let arrival = Arrival {
            class: slo_class.unwrap_or(0),
            priority,
            resumable,
            ..Arrival::new(request_id, prompt_tokens, max_new_tokens)
        };
        let (placement, named) = self.with(py, |state| {
            let placement = state.place(arrival, pin_token, dry_run, now_ns)?;
            Ok((placement, Named::new(py, &placement, state.names.by_index())))
        })?;
        named.map(|named| Placement::new(placement, named)).ok_or_else(unnamed)
    }

    /// Place requests in order, as the same `place` calls would.
    #[pyo3(signature = (request_ids, prompt_tokens, max_new_tokens = None, *, now_ns = None))]
    fn place_many(
        &self,
        py: Python<'_>,
        request_ids: &Bound<'_, PyAny>,
        prompt_tokens: &Bound<'_, PyAny>,
        max_new_tokens: Option<&Bound<'_, PyAny>>,
        now_ns: Option<u64>,
    ) -> PyResult<PlacedMany> {
        let arrivals = arrivals(py, request_ids, prompt_tokens, max_new_tokens)?;
        let all = |_, _| true;
        let (rows, stopped) = if arrivals.len() < DETACHED_FROM {
            (self.with(py, |state| state.place_many(&arrivals, now_ns, &all))?, None)
        } else if arrivals.len() < WATCHED_FROM {
            (self.with_detached(py, |state| state.place_many(&arrivals, now_ns, &all))?, None)
        } else {
            self.with_watched(py, |state, go_on| state.place_many(&arrivals, now_ns, go_on))?
        };
        let done = rows.attempt.len();
        let placed = PlacedMany {
            prompt: read_only(py, rows.prompt),
            token: read_only(py, rows.token),
            attempt: read_only(py, rows.attempt),
        };
        match stopped {
            None => Ok(placed),
            Some(stopped) => {
                let counts = (done, Some(arrivals.len()));
                Err(errors::interrupted(stopped, py, "requests are placed or rejected", counts, placed))
            }
        }
    }

    /// Tell that the prompt is computed and the first token is there.
    #[pyo3(signature = (request_id, *, attempt = None, now_ns = None))]
    fn prefill_done(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = request_id)] request_id: u64,
        attempt: Option<u32>,
        now_ns: Option<u64>,
    ) -> PyResult<bool> {
        self.tell(py, Fact::PrefillDone, request_id, attempt, now_ns)
    }

    /// Tell how many output tokens there are.
    #[pyo3(signature = (request_id, tokens, *, attempt = None, now_ns = None))]
    fn progress(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = request_id)] request_id: u64,
        #[pyo3(from_py_with = output_tokens)] tokens: u32,
        attempt: Option<u32>,
        now_ns: Option<u64>,
    ) -> PyResult<bool> {
        self.tell(py, Fact::Progress(tokens), request_id, attempt, now_ns)
    }

    /// Tell that the output has ended.
    #[pyo3(signature = (request_id, *, attempt = None, now_ns = None))]
    fn finish(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = request_id)] request_id: u64,
        attempt: Option<u32>,
        now_ns: Option<u64>,
    ) -> PyResult<bool> {
        self.tell(py, Fact::Finish, request_id, attempt, now_ns)
    }

    /// End a request before its output does.
    #[pyo3(signature = (request_id, *, attempt = None, now_ns = None))]
    fn cancel(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = request_id)] request_id: u64,
        attempt: Option<u32>,
        now_ns: Option<u64>,
    ) -> PyResult<bool> {
        self.tell(py, Fact::Cancel, request_id, attempt, now_ns)
    }

    /// Tell that the prompt machine has freed its KV blocks.
    #[pyo3(signature = (request_id, *, attempt = None, now_ns = None))]
    fn source_released(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = request_id)] request_id: u64,
        attempt: Option<u32>,
        now_ns: Option<u64>,
    ) -> PyResult<bool> {
        self.tell(py, Fact::SourceReleased, request_id, attempt, now_ns)
    }

    /// Collect what has happened since the last call.
    #[pyo3(signature = (now_ns = None))]
    fn poll(&self, py: Python<'_>, now_ns: Option<u64>) -> PyResult<Polled> {
        let (placements, expired, unplaceable) = self.with(py, |state| {
            let (placements, ended) = state.poll(now_ns)?;
            let names = state.names.by_index();
            let named =
                placements.into_iter().map(|placement| (placement, Named::new(py, &placement, names)));
            Ok((named.collect::<Vec<_>>(), ended.expired.into(), ended.unplaceable.into()))
        })?;
        let placements = placements
            .into_iter()
            .map(|(placement, named)| Py::new(py, Placement::new(placement, named.ok_or_else(unnamed)?)));
        Ok(Polled { placements: placements.collect::<PyResult<_>>()?, expired, unplaceable })
    }

    /// Extend the leases of requests.
    #[pyo3(signature = (request_ids, now_ns = None))]
    fn renew(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>, now_ns: Option<u64>) -> PyResult<usize> {
        let ids: Vec<u64> = whole_numbers(request_ids, "request_ids", ID)?;
        self.with(py, |state| state.renew(&ids, now_ns))
    }

    /// Which cluster of its service it is.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |state| Ok(state.core.epoch().0))
    }

    /// Whether it still hears from its machines after a restart.
    #[getter]
    fn is_recovering(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |state| Ok(state.core.is_recovering()))
    }

    /// Read the books of all machines.
    fn loads(&self, py: Python<'_>) -> PyResult<Py<PyArray1<LoadRow>>> {
        let rows = self.with(py, |state| {
            let loads = (0..state.core.machines_len()).filter_map(|index| state.core.load(index));
            Ok(loads.map(|load| LoadRow::new(&load)).collect())
        })?;
        Ok(read_only(py, rows))
    }

    /// List the names of the machines, in the order of `loads`.
    fn machine_names(&self, py: Python<'_>) -> PyResult<Vec<Py<PyString>>> {
        self.with(py, |state| Ok(state.names.by_index().iter().map(|name| name.clone_ref(py)).collect()))
    }

    /// Recount everything and compare with the books.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with_detached(py, |state| state.core.check().map_err(|fault| Fault::Unsound(fault.0)))
    }

    /// Read the counters, each by its name; they only grow.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let counters = self.with(py, |state| Ok(state.core.counters()))?;
        Ok(pythonize(py, &counters)?)
    }

    /// Copy the whole state.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        self.with(py, |state| Ok(Snapshot(Whole::Cluster(Box::new(state.clone_ref(py))))))
    }

    /// Take a copied state back; the same calls then give the same results.
    fn restore(&self, py: Python<'_>, snapshot: &Bound<'_, Snapshot>) -> PyResult<()> {
        let Whole::Cluster(saved) = &snapshot.get().0 else {
            return Err(SplitcoreError::new_err("the snapshot is a machine's, not a cluster's"));
        };
        let restored = saved.clone_ref(py);
        // Nothing half changed is left, so a stopped cluster goes on.
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *state, restored);
        state.clock = Clock::starting_at(state.core.now());
        self.state.clear_poison();
        drop(state);
        drop(old);
        Ok(())
    }

    /// Apply events in order; one that fails changes nothing and the next goes on.
    #[pyo3(signature = (events, *, now_ns = None))]
    fn handle(&self, py: Python<'_>, events: &Bound<'_, PyAny>, now_ns: Option<u64>) -> PyResult<Handled> {
        let events = events::read(events)?;
        let count = events.len();
        let apply = |state: &mut State, go_on: &dyn Fn(u64, u64) -> bool| {
            let (now, actions) = state.begin_events(now_ns)?;
            let core = &mut state.core;
            let outcome =
                Outcome::of(events, actions, go_on, |event, actions| core.handle(now, event, actions));
            // Within the lock, so that nobody is given a machine without a name.
            Python::attach(|py| state.names.fill(py, state.core.machines_len()));
            Ok(outcome)
        };
        let (outcome, stopped) = if count < events::WATCHED_FROM {
            (self.with(py, |state| apply(state, &|_, _| true))?, None)
        } else {
            self.with_watched(py, apply)?
        };
        outcome.into_answer(py, stopped)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |state| {
            let config = state.core.config();
            Ok(format!(
                "<Cluster: {}, {} machines, {} live requests, epoch {}>",
                config.policy.name(),
                state.core.machines_len(),
                state.core.live_requests(),
                state.core.epoch().0
            ))
        })
    }

    /// Tell when the next timeout is due, in nanoseconds, or None.
    fn next_deadline_ns(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |state| Ok(state.core.next_deadline().map(splitcore_core::time::Time::as_ns)))
    }
}

fn unnamed() -> PyErr {
    SplitcoreError::new_err("a machine of the placement has no name")
}

fn cost_table(given: &Bound<'_, PyAny>) -> PyResult<CostTable> {
    plain::read_all(given)?
        .map_err(|error| errors::config(given.py(), "costs", "a table as schema.CostTable", &error))
}
