//! Arguments of the calls of a `Cluster`, each read with an error of its own.

use pyo3::prelude::*;
use pythonize::depythonize;
use splitcore_core::cost::CostTable;

use crate::arrays::{ID, TOKENS};
use crate::errors::{self, whole};

pub(crate) fn request_id(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(value, "request_id", ID)
}

pub(crate) fn prompt_tokens(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole(value, "prompt_tokens", TOKENS)
}

pub(crate) fn max_new_tokens(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole(value, "max_new_tokens", TOKENS)
}

pub(crate) fn output_tokens(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole(value, "tokens", "0 to 2^32 - 1")
}

pub(crate) fn cost_table(given: &Bound<'_, PyAny>) -> PyResult<CostTable> {
    depythonize(given)
        .map_err(|error| errors::config(given.py(), "costs", "a table as schema.CostTable", &error))
}
