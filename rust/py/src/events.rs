//! Events in and actions out as plain dicts, and the snapshots of both state machines.

use pyo3::prelude::*;
use pyo3::types::PyList;
use pythonize::{depythonize, pythonize};
use serde::Serialize;
use serde::de::DeserializeOwned;
use splitcore_core::error::{Applied, EventError as CoreEventError};
use splitcore_core::machine::Machine as CoreMachine;

use crate::calls::State;
use crate::errors::{self, EventError};

/// Reads events before the lock is taken. One that is malformed becomes an error in its place.
pub(crate) fn read<E: DeserializeOwned>(events: &Bound<'_, PyAny>) -> PyResult<Vec<Result<E, String>>> {
    let one = |event: Bound<'_, PyAny>| depythonize(&event).map_err(|error| error.to_string());
    events.try_iter()?.map(|event| event.map(one)).collect()
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
}

impl<A: Serialize> Outcome<A> {
    /// Applies events in order; one that fails changes nothing and the next goes on.
    pub(crate) fn of<E>(
        events: Vec<Result<E, String>>,
        actions: Vec<A>,
        mut handle: impl FnMut(&E, &mut Vec<A>) -> Result<Applied, CoreEventError>,
    ) -> Self {
        let mut outcome = Self { actions, errors: Vec::new(), late: 0 };
        for (index, event) in events.into_iter().enumerate() {
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

    pub(crate) fn into_handled(self, py: Python<'_>) -> PyResult<Handled> {
        let actions =
            self.actions.iter().map(|action| pythonize(py, action)).collect::<Result<Vec<_>, _>>()?;
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

/// The whole state of a `Cluster` or a `Machine` at one moment.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Snapshot(pub(crate) Whole);

/// Whose state.
pub(crate) enum Whole {
    Cluster(Box<State>),
    Machine(Box<CoreMachine>),
}
