//! Transfer plans, and who sends what.

use std::ops::Range;

use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use splitcore_core::kv::{self, BlockId, KvRange, TransferPlan as Core};

use super::errors;
use super::layout::{KvLayout, shape};
use crate::arrays::whole_numbers;
use crate::errors::{config, whole};

const POSITION: &str = "0 to 2^32 - 1";

/// What one source rank copies to one destination rank.
#[pyclass(frozen, eq, module = "splitcore._native")]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TransferPlan {
    pub(super) plan: Core,
    tokens: Range<u32>,
}

/// Rows `[from block, from offset, to block, to offset, bytes]`, read-only.
fn rows(py: Python<'_>, ranges: impl ExactSizeIterator<Item = KvRange>) -> Py<PyArray2<u32>> {
    let mut table = Array2::zeros((ranges.len(), 5));
    for (mut row, range) in table.rows_mut().into_iter().zip(ranges) {
        let fields = [range.from.0, range.from_offset, range.to.0, range.to_offset, range.bytes];
        for (cell, field) in row.iter_mut().zip(fields) {
            *cell = field;
        }
    }
    let array = table.into_pyarray(py);
    array.readwrite().make_nonwriteable();
    array.unbind()
}

/// The ranges of such rows.
pub(super) fn ranges(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Vec<KvRange>> {
    let expected = "an array of uint32 with 5 columns";
    let table: PyReadonlyArray2<'_, u32> = given.extract().map_err(|_| {
        config(py, "ranges", expected, given.get_type().name().map_or(String::new(), |name| name.to_string()))
    })?;
    let table = table.as_array();
    if table.ncols() != 5 {
        return Err(config(py, "ranges", expected, format_args!("{} columns", table.ncols())));
    }
    let range = |row: numpy::ndarray::ArrayView1<'_, u32>| KvRange {
        from: BlockId(row[0]),
        from_offset: row[1],
        to: BlockId(row[2]),
        to_offset: row[3],
        bytes: row[4],
    };
    Ok(table.rows().into_iter().map(range).collect())
}

/// Block ids out of an array or sequence.
pub(super) fn block_table(given: &Bound<'_, PyAny>, option: &'static str) -> PyResult<Vec<BlockId>> {
    let ids: Vec<u32> = whole_numbers(given, option, POSITION)?;
    Ok(ids.into_iter().map(BlockId).collect())
}

/// Positions from a number of tokens, or from a pair of first and end.
fn positions(given: &Bound<'_, PyAny>) -> PyResult<Range<u32>> {
    if let Ok((start, end)) = given.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() {
        return Ok(whole(&start, "tokens", POSITION)?..whole(&end, "tokens", POSITION)?);
    }
    Ok(0..whole(given, "tokens", POSITION)?)
}

/// What the rank of `source` copies to the rank of `dest`.
///
/// # Errors
/// What is wrong with the layouts, the tables or the positions.
#[pyfunction]
#[pyo3(signature = (*, source, source_blocks, source_table, dest, dest_blocks, dest_table, tokens))]
#[allow(clippy::too_many_arguments, reason = "keywords in Python")]
pub(crate) fn plan_transfer(
    py: Python<'_>,
    source: &Bound<'_, KvLayout>,
    source_blocks: &Bound<'_, PyAny>,
    source_table: &Bound<'_, PyAny>,
    dest: &Bound<'_, KvLayout>,
    dest_blocks: &Bound<'_, PyAny>,
    dest_table: &Bound<'_, PyAny>,
    tokens: &Bound<'_, PyAny>,
) -> PyResult<TransferPlan> {
    let from = shape(source.get(), source_blocks, "source_blocks")?;
    let to = shape(dest.get(), dest_blocks, "dest_blocks")?;
    let from_table = block_table(source_table, "source_table")?;
    let to_table = block_table(dest_table, "dest_table")?;
    let tokens = positions(tokens)?;
    let plan = py.detach(|| kv::plan_transfer(&from, &from_table, &to, &to_table, tokens.clone()));
    plan.map(|plan| TransferPlan { plan, tokens }).map_err(|error| errors::plan(py, &error))
}

/// The source ranks that send anything to the rank of `dest`.
///
/// # Errors
/// Layouts that do not fit.
#[pyfunction]
pub(crate) fn senders(
    py: Python<'_>,
    source: &Bound<'_, KvLayout>,
    dest: &Bound<'_, KvLayout>,
) -> PyResult<Vec<u16>> {
    kv::senders(&source.get().0, &dest.get().0).map_err(|error| errors::plan(py, &error))
}

#[pymethods]
impl TransferPlan {
    #[getter]
    fn layers(&self) -> u16 {
        self.plan.layers()
    }

    /// How many positions it covers.
    #[getter]
    fn tokens(&self) -> u32 {
        self.tokens.end - self.tokens.start
    }

    /// The first position and the one after the last.
    #[getter]
    fn span(&self) -> (u32, u32) {
        (self.tokens.start, self.tokens.end)
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    #[getter]
    fn layer_bytes(&self) -> u64 {
        self.plan.layer_bytes()
    }

    #[getter]
    fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    fn ranges(&self, layer: &Bound<'_, PyAny>) -> PyResult<Py<PyArray2<u32>>> {
        let number = super::layer_number(layer)?;
        let layers = self.plan.layers();
        if number >= layers {
            return Err(config(layer.py(), "layer", &format!("less than {layers}"), number));
        }
        Ok(rows(layer.py(), self.plan.layer(number)))
    }

    fn whole(&self, py: Python<'_>) -> Py<PyArray2<u32>> {
        let ranges = py.detach(|| self.plan.whole());
        rows(py, ranges.into_iter())
    }

    fn __repr__(&self) -> String {
        format!(
            "TransferPlan(tokens={}, layers={}, layer_bytes={}, ranges={})",
            self.tokens(),
            self.plan.layers(),
            self.plan.layer_bytes(),
            self.plan.layer(0).len()
        )
    }
}
