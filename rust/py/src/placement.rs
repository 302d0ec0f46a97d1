//! What `place` answers.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use splitcore_core::placement::{self as core, Mode, Step, Upto};

/// The names that a placement tells, taken inside the lock. Cloning one counts a reference and allocates nothing.
pub(crate) struct Named {
    prompt: Py<PyString>,
    token: Py<PyString>,
    runner_up: Option<Py<PyString>>,
}

impl Named {
    /// Looks the machines of a placement up in the names by index.
    pub(crate) fn new(py: Python<'_>, placement: &core::Placement, names: &[Py<PyString>]) -> Option<Self> {
        let name = |index: u32| names.get(index as usize).map(|name| name.clone_ref(py));
        let prompt = name(placement.prompt()?.index)?;
        let token = placement.token().and_then(|token| name(token.index));
        let runner_up = placement.why.runner_up.and_then(|(index, _)| name(index));
        Some(Self { token: token.unwrap_or_else(|| prompt.clone_ref(py)), prompt, runner_up })
    }
}

/// Where a request runs.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Placement {
    placement: core::Placement,
    named: Named,
}

impl Placement {
    pub(crate) fn new(placement: core::Placement, named: Named) -> Self {
        Self { placement, named }
    }
}

#[pymethods]
impl Placement {
    /// The id that was given to `Cluster.place`.
    #[getter]
    fn request_id(&self) -> u64 {
        self.placement.request.0
    }

    /// The machine that prefills.
    #[getter]
    fn prompt(&self, py: Python<'_>) -> Py<PyString> {
        self.named.prompt.clone_ref(py)
    }

    /// The machine that decodes.
    #[getter]
    fn token(&self, py: Python<'_>) -> Py<PyString> {
        self.named.token.clone_ref(py)
    }

    /// How the KV cache moves, or None on one machine.
    #[getter]
    fn transfer(&self) -> Option<&'static str> {
        self.placement.transfer().map(|mode| match mode {
            Mode::Serialized => "serialized",
            Mode::LayerWise => "layer-wise",
        })
    }

    /// From 1; grows each time the request is placed again.
    #[getter]
    fn attempt(&self) -> u32 {
        self.placement.attempt.0
    }

    /// How the placement was found.
    #[getter]
    fn why(&self, py: Python<'_>) -> Why {
        Why {
            why: self.placement.why,
            runner_up: self.named.runner_up.as_ref().map(|name| name.clone_ref(py)),
        }
    }

    /// One or two.
    #[getter]
    fn legs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let split = self.placement.legs().count() == 2;
        let legs = self.placement.legs().enumerate().map(|(at, leg)| {
            let machine = if at == 0 { &self.named.prompt } else { &self.named.token };
            let upto = match leg.upto {
                Upto::Position(upto) => Some(upto),
                Upto::End => None,
            };
            Leg {
                machine: leg.machine.id().map(|_| machine.clone_ref(py)),
                start: leg.start,
                upto,
                kv: (split && at == 1).then(|| self.named.prompt.clone_ref(py)),
            }
        });
        PyTuple::new(py, legs.collect::<Vec<_>>())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Named { prompt, token, .. } = &self.named;
        let transfer = shown(self.transfer().map(|mode| format!("'{mode}'")));
        format!(
            "Placement(request_id={}, prompt='{}', token='{}', transfer={transfer}, attempt={})",
            self.request_id(),
            prompt.bind(py),
            token.bind(py),
            self.attempt()
        )
    }
}

/// A name or a number as Python shows it, None included.
fn shown<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "None".to_owned(), |value| value.to_string())
}

/// A name in quotes, or None.
fn quoted(py: Python<'_>, name: Option<&Py<PyString>>) -> String {
    shown(name.map(|name| format!("'{}'", name.bind(py))))
}

/// The part of a request that one machine computes.
#[pyclass(frozen, get_all, module = "splitcore._native")]
pub(crate) struct Leg {
    /// Its name, or None while it is to be chosen later.
    machine: Option<Py<PyString>>,
    /// The first position.
    start: u32,
    /// The position after the last one; None is the end of the output.
    upto: Option<u32>,
    /// Where the KV of earlier positions comes from.
    kv: Option<Py<PyString>>,
}

#[pymethods]
impl Leg {
    fn __repr__(&self, py: Python<'_>) -> String {
        let (machine, kv) = (quoted(py, self.machine.as_ref()), quoted(py, self.kv.as_ref()));
        format!("Leg(machine={machine}, start={}, upto={}, kv={kv})", self.start, shown(self.upto))
    }
}

/// How a placement was found.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Why {
    why: core::Why,
    runner_up: Option<Py<PyString>>,
}

fn step(step: Step) -> &'static str {
    match step {
        Step::Own => "own",
        Step::Mixed => "mixed",
        Step::Opposite => "opposite",
        Step::LeastOfAll => "least-of-all",
        Step::Pinned => "pinned",
    }
}

#[pymethods]
impl Why {
    /// The pool that gave the prompt machine.
    #[getter]
    fn prompt_step(&self) -> &'static str {
        step(self.why.prompt_step)
    }

    /// The pool that gave the token machine.
    #[getter]
    fn token_step(&self) -> &'static str {
        step(self.why.token_step)
    }

    /// Load of the prompt machine before this request.
    #[getter]
    fn prompt_load(&self) -> u64 {
        self.why.prompt_load
    }

    /// Load of the token machine before this request.
    #[getter]
    fn token_load(&self) -> u64 {
        self.why.token_load
    }

    /// The machine that would have been next for the prompt.
    #[getter]
    fn runner_up(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.runner_up.as_ref().map(|name| name.clone_ref(py))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "Why(prompt_step='{}', token_step='{}', prompt_load={}, token_load={}, runner_up={})",
            self.prompt_step(),
            self.token_step(),
            self.prompt_load(),
            self.token_load(),
            quoted(py, self.runner_up.as_ref())
        )
    }
}

/// The placements of one `Cluster.place_many` call.
#[pyclass(frozen, get_all, module = "splitcore._native")]
pub(crate) struct PlacedMany {
    /// Rows of `Cluster.loads`; -1 where rejected.
    pub(crate) prompt: Py<PyArray1<i64>>,
    /// Rows of `Cluster.loads`; -1 where rejected.
    pub(crate) token: Py<PyArray1<i64>>,
    /// Attempts; 0 where rejected.
    pub(crate) attempt: Py<PyArray1<u32>>,
}

#[pymethods]
impl PlacedMany {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let attempts = self.attempt.bind(py).try_readonly()?;
        let attempts = attempts.as_slice()?;
        let placed = attempts.iter().filter(|&&attempt| attempt > 0).count();
        Ok(format!("<PlacedMany: {placed} placed, {} rejected>", attempts.len() - placed))
    }
}

/// What became of the requests of a lost machine.
#[pyclass(frozen, get_all, module = "splitcore._native")]
pub(crate) struct Recovery {
    /// Ids that run elsewhere now.
    pub(crate) placed: Vec<u64>,
    /// Ids that wait for a machine.
    pub(crate) parked: Vec<u64>,
    /// Ids that ended.
    pub(crate) failed: Vec<u64>,
}

#[pymethods]
impl Recovery {
    fn __repr__(&self) -> String {
        let Self { placed, parked, failed } = self;
        format!("Recovery(placed={placed:?}, parked={parked:?}, failed={failed:?})")
    }
}

/// What has happened without a call of its own.
#[pyclass(frozen, get_all, module = "splitcore._native")]
pub(crate) struct Polled {
    /// Of parked requests and of those of lost machines.
    pub(crate) placements: Vec<Py<Placement>>,
    /// Ids whose lease ran out.
    pub(crate) expired: Vec<u64>,
    /// Ids that no machine could hold for too long.
    pub(crate) unplaceable: Vec<u64>,
}

#[pymethods]
impl Polled {
    fn __repr__(&self, py: Python<'_>) -> String {
        let placements: Vec<String> =
            self.placements.iter().map(|placement| placement.get().__repr__(py)).collect();
        let (placements, expired, unplaceable) = (placements.join(", "), &self.expired, &self.unplaceable);
        format!("Polled(placements=[{placements}], expired={expired:?}, unplaceable={unplaceable:?})")
    }
}
