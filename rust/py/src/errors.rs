//! The exceptions, their fields, and one exhaustive match for each error type of the crates below.

use pyo3::exceptions::{PyException, PyKeyboardInterrupt, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{BoundObject, PyTypeInfo, create_exception};
use pythonize::depythonize;
use splitcore_core::config::ConfigError as CoreConfigError;
use splitcore_core::error::{EventError as CoreEventError, Rejection};
use splitcore_sim::SimError;

create_exception!(
    splitcore._native,
    SplitcoreError,
    PyException,
    "Every error that splitcore raises on purpose."
);
create_exception!(splitcore._native, ConfigError, SplitcoreError, "An option is out of range.");
create_exception!(splitcore._native, InputError, SplitcoreError, "A field of an input file is bad.");
create_exception!(splitcore._native, RejectedError, SplitcoreError, "An arrival was not accepted.");
create_exception!(splitcore._native, UnknownIdError, SplitcoreError, "There is no such machine or request.");
create_exception!(splitcore._native, DuplicateRequestError, SplitcoreError, "A request of this id is live.");
create_exception!(
    splitcore._native,
    DuplicateMachineError,
    SplitcoreError,
    "A machine of this name is present."
);
create_exception!(splitcore._native, EventError, SplitcoreError, "An event cannot be applied.");
create_exception!(
    splitcore._native,
    SimulationStuckError,
    SplitcoreError,
    "Events go on but the run does not."
);

create_exception!(
    splitcore._native,
    CallInterrupted,
    PyKeyboardInterrupt,
    "Ctrl-C in the middle of a long call; it carries what was done."
);
create_exception!(splitcore._native, TransferError, SplitcoreError, "KV cannot be moved, or was not.");
create_exception!(splitcore._native, HandshakeError, SplitcoreError, "A sender and a receiver do not fit.");

/// Why a call could not be answered. Told apart inside the lock, made an exception outside of it.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The core refused an event.
    Event(CoreEventError),
    /// The core refused an arrival that lacks a token on one side.
    Empty { option: &'static str },
    /// The core turned an arrival away.
    Rejected { reason: Rejection, request: u64 },
    /// No machine has the name.
    UnknownMachine(String),
    /// No leg of the request is here.
    UnknownRequest(u64),
    /// A machine of the name is present.
    DuplicateMachine(String),
    /// An id occurs twice in one batch.
    DuplicateRequest(u64),
    /// A recount found something else than the books.
    Unsound(String),
    /// A panic left the state half changed.
    Stopped,
}

impl From<CoreEventError> for Fault {
    fn from(error: CoreEventError) -> Self {
        Self::Event(error)
    }
}

impl Fault {
    pub(crate) fn into_err(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Event(error) => event(py, error),
            Self::Empty { option } => config(py, option, "at least 1", "0"),
            Self::Rejected { reason, request } => {
                let text = format!("request {request} is rejected: {}", reason.name());
                let fields = Fields::new(py).with("reason", reason.name()).with("request_id", request);
                fields.raise::<RejectedError>(text)
            }
            Self::UnknownMachine(name) => {
                let text = format!("no machine has the name {name}");
                Fields::new(py).with("kind", "machine").with("id", name).raise::<UnknownIdError>(text)
            }
            Self::UnknownRequest(id) => {
                let text = format!("request {id} is not here");
                Fields::new(py).with("kind", "request").with("id", id).raise::<UnknownIdError>(text)
            }
            Self::DuplicateMachine(name) => {
                let text = format!("machine {name} is present");
                Fields::new(py).with("machine", name).raise::<DuplicateMachineError>(text)
            }
            Self::DuplicateRequest(id) => {
                let text = format!("request {id} occurs twice");
                Fields::new(py).with("request_id", id).raise::<DuplicateRequestError>(text)
            }
            Self::Unsound(fault) => SplitcoreError::new_err(format!("the books are wrong: {fault}")),
            Self::Stopped => SplitcoreError::new_err(
                "scheduler stopped after an internal error: restore a snapshot or make a new object",
            ),
        }
    }
}

/// Attributes of an exception to be.
pub(crate) struct Fields<'py> {
    py: Python<'py>,
    named: Vec<(&'static str, PyResult<Py<PyAny>>)>,
}

impl<'py> Fields<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self { py, named: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl IntoPyObject<'py>) -> Self {
        let value = value.into_pyobject(self.py).map_err(Into::into);
        self.named.push((name, value.map(|value| value.into_any().unbind())));
        self
    }

    /// The exception with its fields; a field that cannot be set is the error instead.
    pub(crate) fn raise<E: PyTypeInfo>(self, text: String) -> PyErr {
        let error = PyErr::from_type(self.py.get_type::<E>(), (text,));
        let value = error.value(self.py);
        for (name, field) in self.named {
            if let Err(other) = field.and_then(|field| value.setattr(name, field)) {
                return other;
            }
        }
        error
    }
}

/// An option out of range.
pub(crate) fn config(py: Python<'_>, option: &str, expected: &str, got: impl std::fmt::Display) -> PyErr {
    let got = got.to_string();
    let text = format!("{option}: expected {expected}, got {got}");
    let fields = Fields::new(py).with("option", option).with("expected", expected).with("got", got);
    fields.raise::<ConfigError>(text)
}

/// The core's names of options and the names they have in Python.
const RENAMED: [(&str, &str); 2] = [("blocks", "kv_blocks"), ("lease_ns", "lease_s")];

pub(crate) fn core_config(py: Python<'_>, error: &CoreConfigError) -> PyErr {
    let renamed = RENAMED.iter().find(|(core, _)| *core == error.option);
    config(py, renamed.map_or(error.option, |(_, ours)| ours), error.expected, error.got)
}

/// What the core says of an event that it cannot apply.
pub(crate) fn event(py: Python<'_>, error: CoreEventError) -> PyErr {
    let text = error.to_string();
    match error {
        CoreEventError::DuplicateRequest(id) => {
            Fields::new(py).with("request_id", id.0).raise::<DuplicateRequestError>(text)
        }
        CoreEventError::UnknownMachine(index) => {
            Fields::new(py).with("kind", "machine").with("id", index).raise::<UnknownIdError>(text)
        }
        CoreEventError::EmptyRequest(_)
        | CoreEventError::MachineTaken(_)
        | CoreEventError::StaleCluster(_)
        | CoreEventError::EmptyMachine(_)
        | CoreEventError::BadClaim { .. }
        | CoreEventError::BadReport { .. }
        | CoreEventError::EmptySlo { .. }
        | CoreEventError::DuplicateLeg(_)
        | CoreEventError::NotInPass(_)
        | CoreEventError::NotRunning { .. }
        | CoreEventError::TooLarge { .. }
        | CoreEventError::Unsupported(_) => EventError::new_err(text),
    }
}

/// What the simulator says of a run.
pub(crate) fn sim(py: Python<'_>, error: SimError) -> PyErr {
    let text = error.to_string();
    match error {
        SimError::Input { file, line, field, expected, got } => Fields::new(py)
            .with("file", file)
            .with("line", line)
            .with("field", field)
            .with("expected", expected)
            .with("got", got)
            .raise::<InputError>(text),
        SimError::Config { option, expected, got } => Fields::new(py)
            .with("option", option)
            .with("expected", expected)
            .with("got", got)
            .raise::<ConfigError>(text),
        SimError::Stuck { request, .. } => {
            Fields::new(py).with("request_id", request).raise::<SimulationStuckError>(text)
        }
        SimError::Io { .. } | SimError::Internal { .. } => SplitcoreError::new_err(text),
        SimError::Interrupted => PyKeyboardInterrupt::new_err(()),
    }
}

/// What stopped a call before its end, with what was done until then: `done` of so many, and the `result` of those.
///
/// Ctrl-C becomes [`CallInterrupted`]. What else a signal's handler raised stays what it is and gets the two attributes.
pub(crate) fn interrupted<'py>(
    stopped: PyErr,
    py: Python<'py>,
    what: &str,
    (done, of): (usize, Option<usize>),
    result: impl IntoPyObject<'py>,
) -> PyErr {
    if stopped.get_type(py).is(py.get_type::<PyKeyboardInterrupt>()) {
        let of = of.map_or(String::new(), |of| format!(" of {of}"));
        let text = format!("{done}{of} {what}; `result` has what came of them");
        return Fields::new(py).with("done", done).with("result", result).raise::<CallInterrupted>(text);
    }
    let result = result.into_pyobject(py).map_err(Into::into).map(BoundObject::into_any);
    let set = result.and_then(|result| {
        stopped.value(py).setattr("done", done)?;
        stopped.value(py).setattr("result", result.into_bound())
    });
    set.err().unwrap_or(stopped)
}

/// A whole number of a call's argument: one that does not fit its type is an option out of range.
pub(crate) fn whole<'py, T>(
    value: &Bound<'py, PyAny>,
    option: &'static str,
    expected: &'static str,
) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    value.extract::<T>().map_err(|error| {
        let py = value.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            config(py, option, expected, value)
        } else if error.is_instance_of::<PyTypeError>(py) {
            PyTypeError::new_err(format!("argument '{option}': {}", error.value(py)))
        } else {
            error
        }
    })
}

/// A word of a fixed set.
pub(crate) fn word<T: serde::de::DeserializeOwned>(
    py: Python<'_>,
    option: &str,
    given: &str,
    expected: &str,
) -> PyResult<T> {
    depythonize(PyString::new(py, given).as_any()).map_err(|_| config(py, option, expected, given))
}

/// A share in thousandths.
pub(crate) fn permille(py: Python<'_>, option: &str, share: f64, least: f64, most: f64) -> PyResult<u32> {
    if (least..=most).contains(&share) {
        Ok((share * 1000.0).round() as u32)
    } else {
        Err(config(py, option, &format!("{least} to {most}"), share))
    }
}

/// As `nanoseconds`, and zero is in range.
pub(crate) fn nanoseconds_or_none(py: Python<'_>, option: &str, seconds: f64) -> PyResult<u64> {
    if seconds == 0.0 {
        return Ok(0);
    }
    nanoseconds(py, option, seconds).map_err(|_| config(py, option, "0 seconds or more", seconds))
}

/// Seconds in whole nanoseconds; zero and what a `u64` cannot hold are out of range.
pub(crate) fn nanoseconds(py: Python<'_>, option: &str, seconds: f64) -> PyResult<u64> {
    let whole_ns = (seconds * 1e9).round();
    if (1.0..1.8e19).contains(&whole_ns) {
        Ok(whole_ns as u64)
    } else {
        Err(config(py, option, "more than 0 seconds", seconds))
    }
}
