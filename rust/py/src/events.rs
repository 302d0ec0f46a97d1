//! Events in and actions out as plain dicts, and the snapshots of both state machines.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyList;
use pythonize::pythonize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use splitcore_core::error::{Applied, EventError as CoreEventError};
use splitcore_core::machine::Machine as CoreMachine;

use crate::calls::State;
use crate::errors::{self, EventError};
use crate::plain;

/// Events are read and answers made with Python's lock; this often others get it.
const EVENTS_PER_BREATH: usize = 256;
/// From this many events on, they are applied on a thread of its own, and Ctrl-C is heard meanwhile.
pub(crate) const WATCHED_FROM: usize = 4096;
/// Events between two looks whether to stop.
const EVENTS_PER_LOOK: usize = 256;

/// Lets other threads of Python run.
fn breathe(py: Python<'_>, at: usize) {
    if at % EVENTS_PER_BREATH == EVENTS_PER_BREATH - 1 {
        py.detach(|| ());
    }
}

/// Reads events before the lock is taken. One that is malformed becomes an error in its place. Ctrl-C ends the reading:
/// nothing has been applied then.
pub(crate) fn read<E: DeserializeOwned + Serialize>(
    events: &Bound<'_, PyAny>,
) -> PyResult<Vec<Result<E, String>>> {
    let py = events.py();
    let mut all = Vec::new();
    for (at, event) in events.try_iter()?.enumerate() {
        let look = if at % EVENTS_PER_BREATH == 0 { py.check_signals() } else { Ok(()) };
        match look.and(event) {
            Ok(event) => all.push(plain::read_all(&event)?),
            // An iterator of the caller's own may be where it is heard.
            Err(stopped) if stopped.is_instance_of::<PyKeyboardInterrupt>(py) => {
                let result = Handled::nothing(py);
                return Err(errors::interrupted(stopped, py, "events are applied", (0, None), result));
            }
            Err(error) => return Err(error),
        }
        breathe(py, at);
    }
    Ok(all)
}

enum Refusal {
    Malformed(String),
    Core(CoreEventError),
}

/// What came of a list of events.
pub(crate) struct Outcome<A> {
    actions: Vec<A>,
    errors: Vec<(usize, Refusal)>,
    late: u64,
    /// Events that have been applied or refused, and all of them.
    done: (usize, usize),
}

impl<A: Serialize> Outcome<A> {
    /// Applies events in order; one that fails changes nothing and the next goes on. `go_on` is asked now and then.
    pub(crate) fn of<E>(
        events: Vec<Result<E, String>>,
        actions: Vec<A>,
        go_on: &dyn Fn(u64, u64) -> bool,
        mut handle: impl FnMut(&E, &mut Vec<A>) -> Result<Applied, CoreEventError>,
    ) -> Self {
        let all = events.len();
        let mut outcome = Self { actions, errors: Vec::new(), late: 0, done: (all, all) };
        for (index, event) in events.into_iter().enumerate() {
            if index % EVENTS_PER_LOOK == EVENTS_PER_LOOK - 1 && !go_on(index as u64, all as u64) {
                outcome.done.0 = index;
                break;
            }
            let applied = match event {
                Ok(event) => handle(&event, &mut outcome.actions).map_err(Refusal::Core),
                Err(text) => Err(Refusal::Malformed(text)),
            };
            match applied {
                Ok(applied) => outcome.late += u64::from(!applied.is_yes()),
                Err(refusal) => outcome.errors.push((index, refusal)),
            }
        }
        outcome
    }

    /// For what follows the events.
    pub(crate) fn actions_mut(&mut self) -> &mut Vec<A> {
        &mut self.actions
    }

    /// The answer; or, if the call was stopped, the error that carries it.
    pub(crate) fn into_answer(self, py: Python<'_>, stopped: Option<PyErr>) -> PyResult<Handled> {
        let (done, all) = self.done;
        let handled = self.into_handled(py)?;
        // Raised after the call, it would take the answer away.
        match stopped.or_else(|| py.check_signals().err()) {
            None => Ok(handled),
            Some(stopped) => {
                Err(errors::interrupted(stopped, py, "events are applied", (done, Some(all)), handled))
            }
        }
    }

    fn into_handled(self, py: Python<'_>) -> PyResult<Handled> {
        let shown = |(at, action): (usize, &A)| {
            breathe(py, at);
            pythonize(py, action)
        };
        let actions = self.actions.iter().enumerate().map(shown).collect::<Result<Vec<_>, _>>()?;
        let errors = self.errors.into_iter().map(|(index, refusal)| {
            let error = match refusal {
                Refusal::Malformed(text) => EventError::new_err(format!("event {index}: {text}")),
                Refusal::Core(error) => errors::event(py, error),
            };
            (index, error.into_value(py))
        });
        Ok(Handled {
            actions: PyList::new(py, actions)?.unbind(),
            errors: PyList::new(py, errors.collect::<Vec<_>>())?.unbind(),
            late: self.late,
        })
    }
}

/// The result of one `Cluster.handle` or `Machine.handle` call.
#[pyclass(frozen, get_all, module = "splitcore._native")]
pub(crate) struct Handled {
    /// What the driver is to do, in order.
    actions: Py<PyList>,
    /// Index and error of each event that could not be applied.
    errors: Py<PyList>,
    /// Events whose attempt was not the live one.
    late: u64,
}

impl Handled {
    /// Of no events.
    fn nothing(py: Python<'_>) -> Self {
        Self { actions: PyList::empty(py).unbind(), errors: PyList::empty(py).unbind(), late: 0 }
    }
}

#[pymethods]
impl Handled {
    fn __repr__(&self, py: Python<'_>) -> String {
        let (actions, errors) = (self.actions.bind(py).len(), self.errors.bind(py).len());
        format!("<Handled: {actions} actions, {errors} errors, {} late>", self.late)
    }
}

/// The whole state of a `Cluster` or a `Machine` at one moment.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Snapshot(pub(crate) Whole);

/// Whose state.
pub(crate) enum Whole {
    Cluster(Box<State>),
    Machine(Box<CoreMachine>),
}
