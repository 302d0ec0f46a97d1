//! Arguments that are whole numbers.

use pyo3::prelude::*;

use crate::arrays::{ID, TOKENS};
use crate::errors::whole;

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
