//! Benchmarks of the transports: the sending process, and the receiving one.

use std::io::{stdin, stdout};
use std::process::Command;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pythonize::{depythonize, pythonize};
use splitcore_transport_bench::{BenchError, Plan, measure, receive};

use crate::errors::SplitcoreError;
use crate::watched::watched;

/// Measure one transport: a dict as `TransferMeasured` in the schema.
#[pyfunction]
#[pyo3(signature = (plan, backend, child, progress=None))]
pub(crate) fn bench_transfer<'py>(
    py: Python<'py>,
    plan: &Bound<'py, PyAny>,
    backend: &Bound<'py, PyAny>,
    child: Vec<String>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (plan, backend): (Plan, _) = (depythonize(plan)?, depythonize(backend)?);
    let start = || {
        let mut words = child.iter();
        let mut command = Command::new(words.next().map_or("", String::as_str));
        command.args(words);
        command
    };
    let work = |go_on: &(dyn Fn(u64, u64) -> bool + Sync)| measure(&plan, backend, &start, go_on);
    let (measured, stopped) = py.detach(|| watched(progress.as_ref(), work));
    if let Some(error) = stopped {
        return Err(error);
    }
    let measured = measured.unwrap_or(Err(BenchError::Stopped));
    let measured = measured.map_err(|error| SplitcoreError::new_err(error.to_string()))?;
    Ok(pythonize(py, &measured)?)
}

/// The whole life of the receiving process: answers on standard output until standard input ends.
#[pyfunction]
pub(crate) fn bench_transfer_receive(py: Python<'_>) -> PyResult<()> {
    py.detach(|| receive(stdin().lock(), stdout().lock()))
        .map_err(|error| PyOSError::new_err(error.to_string()))
}
