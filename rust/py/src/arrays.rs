//! Arrays in and out: structured rows without a copy, whole numbers without a silent wrap.

use std::mem::offset_of;

use numpy::{
    Element, PyArray1, PyArrayDescr, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use splitcore_core::cluster::{MachineLoad, MachineState};
use splitcore_core::event::{Arrival, Role};

use crate::errors::{config, whole};

pub(crate) const ID: &str = "0 to 2^64 - 1";
pub(crate) const TOKENS: &str = "1 to 2^32 - 1";

/// A field of a row: its name, its numpy format and where it lies.
pub(crate) type Field = (&'static str, &'static str, usize);

/// One row of `Cluster.loads`. Its padding is a field of its own, so that every byte is written.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoadRow {
    prompt_pending_tokens: u64,
    booked_load: u64,
    kv_tokens: u64,
    kv_capacity_tokens: u64,
    machine: u32,
    incarnation: u32,
    requests: u32,
    role: u8,
    pool: u8,
    state: u8,
    padding: u8,
}

impl LoadRow {
    const FIELDS: [Field; 10] = [
        ("machine", "u4", offset_of!(Self, machine)),
        ("incarnation", "u4", offset_of!(Self, incarnation)),
        ("role", "u1", offset_of!(Self, role)),
        ("pool", "u1", offset_of!(Self, pool)),
        ("state", "u1", offset_of!(Self, state)),
        ("prompt_pending_tokens", "u8", offset_of!(Self, prompt_pending_tokens)),
        ("requests", "u4", offset_of!(Self, requests)),
        ("booked_load", "u8", offset_of!(Self, booked_load)),
        ("kv_tokens", "u8", offset_of!(Self, kv_tokens)),
        ("kv_capacity_tokens", "u8", offset_of!(Self, kv_capacity_tokens)),
    ];

    pub(crate) fn new(load: &MachineLoad) -> Self {
        let role = |role| match role {
            Role::Prompt => 0,
            Role::Token => 1,
            Role::Mixed => 2,
        };
        Self {
            prompt_pending_tokens: load.prompt_pending_tokens,
            booked_load: load.booked,
            kv_tokens: load.kv_tokens,
            kv_capacity_tokens: load.kv_capacity_tokens,
            machine: load.machine.index,
            incarnation: load.machine.incarnation,
            requests: load.legs,
            role: role(load.home),
            pool: role(load.pool),
            state: match load.state {
                MachineState::Up => 0,
                MachineState::Draining => 1,
                MachineState::Lost => 2,
                MachineState::Away => 3,
                MachineState::Quarantined => 4,
            },
            padding: 0,
        }
    }
}

// SAFETY: the descriptor has the size of the row and each field lies in it where `repr(C)` puts it with the format
// of its Rust type, so every byte numpy reads is an initialised integer; the row holds no Python object.
unsafe impl Element for LoadRow {
    const IS_COPY: bool = true;

    fn get_dtype(py: Python<'_>) -> Bound<'_, PyArrayDescr> {
        static DESCRIPTOR: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
        row_descriptor::<Self>(py, &DESCRIPTOR, &Self::FIELDS)
    }

    fn clone_ref(&self, _py: Python<'_>) -> Self {
        *self
    }
}

/// The descriptor of a row, made once. Panics when numpy does not take it, as a wrong one would be unsound.
pub(crate) fn row_descriptor<'py, T>(
    py: Python<'py>,
    made: &'static PyOnceLock<Py<PyArrayDescr>>,
    fields: &[Field],
) -> Bound<'py, PyArrayDescr> {
    let make = || -> PyResult<_> {
        let spec = PyDict::new(py);
        spec.set_item("names", fields.iter().map(|field| field.0).collect::<Vec<_>>())?;
        spec.set_item("formats", fields.iter().map(|field| field.1).collect::<Vec<_>>())?;
        spec.set_item("offsets", fields.iter().map(|field| field.2).collect::<Vec<_>>())?;
        spec.set_item("itemsize", size_of::<T>())?;
        PyArrayDescr::new(py, spec).map(Bound::unbind)
    };
    match made.get_or_try_init(py, make) {
        Ok(descriptor) => descriptor.bind(py).clone(),
        Err(error) => panic!("numpy rejects the layout of a row: {error}"),
    }
}

/// A read-only array that owns what was a `Vec`, without a copy.
pub(crate) fn read_only<T: Element>(py: Python<'_>, rows: Vec<T>) -> Py<PyArray1<T>> {
    let array = PyArray1::from_vec(py, rows);
    array.readwrite().make_nonwriteable();
    array.unbind()
}

/// Copies whole numbers out of an array or sequence. One that does not fit is an error that names its place.
pub(crate) fn whole_numbers<T>(
    given: &Bound<'_, PyAny>,
    option: &'static str,
    expected: &'static str,
) -> PyResult<Vec<T>>
where
    T: TryFrom<u64> + for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>,
{
    let py = given.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let at = |index: usize, value: &dyn std::fmt::Display| {
        config(py, option, expected, format_args!("{value} at index {index}"))
    };
    let array = numpy.call_method1(intern!(py, "asarray"), (given,))?;
    let untyped = array.cast::<PyUntypedArray>()?;
    if untyped.ndim() != 1 {
        return Err(config(py, option, "one dimension", untyped.ndim()));
    }
    match untyped.dtype().kind() {
        b'u' => {
            let words = array.call_method1(intern!(py, "astype"), (intern!(py, "uint64"),))?;
            let words = words.cast::<PyArray1<u64>>()?.readonly();
            let fit = |(index, &word): (usize, &u64)| T::try_from(word).map_err(|_| at(index, &word));
            words.as_array().iter().enumerate().map(fit).collect()
        }
        b'i' => {
            let words = array.call_method1(intern!(py, "astype"), (intern!(py, "int64"),))?;
            let words = words.cast::<PyArray1<i64>>()?.readonly();
            let fit = |(index, &word): (usize, &i64)| {
                let unsigned = u64::try_from(word).ok().and_then(|word| T::try_from(word).ok());
                unsigned.ok_or_else(|| at(index, &word))
            };
            words.as_array().iter().enumerate().map(fit).collect()
        }
        // Python integers beyond 64 bits, or no integers at all: one by one.
        _ => given
            .try_iter()?
            .enumerate()
            .map(|(index, item)| {
                let item = item?;
                whole::<T>(&item, option, expected).map_err(|_| at(index, &item))
            })
            .collect(),
    }
}

/// The arrivals of a batch; numbers that no arrival can have are errors that name their place.
pub(crate) fn arrivals(
    py: Python<'_>,
    request_ids: &Bound<'_, PyAny>,
    prompt_tokens: &Bound<'_, PyAny>,
    max_new_tokens: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Arrival>> {
    let ids: Vec<u64> = whole_numbers(request_ids, "request_ids", ID)?;
    let tokens = |given: &Bound<'_, PyAny>, option| -> PyResult<Vec<u32>> {
        let counts: Vec<u32> = whole_numbers(given, option, TOKENS)?;
        if counts.len() != ids.len() {
            let expected = format!("as many as request_ids, {}", ids.len());
            return Err(config(py, option, &expected, counts.len()));
        }
        match counts.iter().position(|&count| count == 0) {
            Some(index) => Err(config(py, option, TOKENS, format_args!("0 at index {index}"))),
            None => Ok(counts),
        }
    };
    let prompts = tokens(prompt_tokens, "prompt_tokens")?;
    let caps = max_new_tokens.map(|caps| tokens(caps, "max_new_tokens")).transpose()?;
    let cap = |index: usize| caps.as_ref().map_or(1, |caps| caps[index]);
    let all = ids.iter().zip(&prompts).enumerate();
    Ok(all.map(|(index, (&id, &prompt))| Arrival::new(id, prompt, cap(index))).collect())
}
