//! Whole runs of the simulator, and the fit of a cost profile.

use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use numpy::{Element, PyArray1, PyArrayDescr};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use pythonize::pythonize;
use splitcore_sim::Options;
use splitcore_sim::cost::fit_file;
use splitcore_sim::report::{RequestRecord, RequestRow, Series, Timelines, write_requests_csv};
use splitcore_sim::workload::TraceRequest;

use crate::arrays::{Field, read_only, row_descriptor};
use crate::errors::{self, SplitcoreError};
use crate::plain;

type WorkloadArrays = (String, Py<PyArray1<f64>>, Py<PyArray1<u32>>, Py<PyArray1<u32>>);

/// One row of `Report.requests`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Record(RequestRecord);

impl Record {
    const FIELDS: [Field; 15] = [
        ("request_id", "u8", offset_of!(RequestRecord, request_id)),
        ("arrival_s", "f8", offset_of!(RequestRecord, arrival_s)),
        ("ttft_s", "f8", offset_of!(RequestRecord, ttft_s)),
        ("tbt_mean_s", "f8", offset_of!(RequestRecord, tbt_mean_s)),
        ("tbt_max_s", "f8", offset_of!(RequestRecord, tbt_max_s)),
        ("e2e_s", "f8", offset_of!(RequestRecord, e2e_s)),
        ("ttft_slowdown", "f8", offset_of!(RequestRecord, ttft_slowdown)),
        ("tbt_slowdown", "f8", offset_of!(RequestRecord, tbt_slowdown)),
        ("e2e_slowdown", "f8", offset_of!(RequestRecord, e2e_slowdown)),
        ("prompt_tokens", "u4", offset_of!(RequestRecord, prompt_tokens)),
        ("output_tokens", "u4", offset_of!(RequestRecord, output_tokens)),
        ("prompt_machine", "i4", offset_of!(RequestRecord, prompt_machine)),
        ("token_machine", "i4", offset_of!(RequestRecord, token_machine)),
        ("attempts", "u4", offset_of!(RequestRecord, attempts)),
        ("outcome", "u4", offset_of!(RequestRecord, outcome)),
    ];
}

// SAFETY: the descriptor has the size of the record and each field lies in it where `repr(C)` puts it with the
// format of its Rust type; nine words of 8 bytes and six of 4 leave no padding, and no Python object is held.
unsafe impl Element for Record {
    const IS_COPY: bool = true;

    fn get_dtype(py: Python<'_>) -> Bound<'_, PyArrayDescr> {
        static DESCRIPTOR: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
        const { assert!(size_of::<Record>() == 9 * 8 + 6 * 4) };
        row_descriptor::<Self>(py, &DESCRIPTOR, &Self::FIELDS)
    }

    fn clone_ref(&self, _py: Python<'_>) -> Self {
        *self
    }
}

/// The result of one simulated run.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Report {
    summary: Py<PyAny>,
    requests: Py<PyArray1<Record>>,
    timeline: Py<PyDict>,
    machine_names: Vec<String>,
    rows: Vec<RequestRow>,
}

impl Report {
    fn new(py: Python<'_>, report: splitcore_sim::Report) -> PyResult<Self> {
        let records: Vec<Record> = report.requests.into_iter().map(Record).collect();
        Ok(Self {
            summary: pythonize(py, &report.summary)?.unbind(),
            requests: read_only(py, records),
            timeline: timeline(py, report.timeline)?,
            machine_names: report.machine_names,
            rows: report.rows,
        })
    }
}

fn timeline(py: Python<'_>, timelines: Timelines) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("t_s", read_only(py, timelines.t_s))?;
    for (pool, Series { decodes, prompt_tokens, .. }) in timelines.pools {
        dict.set_item(format!("{pool}_decodes"), read_only(py, decodes))?;
        dict.set_item(format!("{pool}_prompt_tokens"), read_only(py, prompt_tokens))?;
    }
    Ok(dict.unbind())
}

#[pymethods]
impl Report {
    /// Everything in numbers; ready for JSON.
    #[getter]
    fn summary(&self, py: Python<'_>) -> Py<PyAny> {
        self.summary.clone_ref(py)
    }

    /// One row per submitted request.
    #[getter]
    fn requests(&self, py: Python<'_>) -> Py<PyArray1<Record>> {
        self.requests.clone_ref(py)
    }

    /// Batch sizes over time.
    #[getter]
    fn timeline(&self, py: Python<'_>) -> Py<PyDict> {
        self.timeline.clone_ref(py)
    }

    /// The machines by index.
    #[getter]
    fn machine_names(&self) -> Vec<String> {
        self.machine_names.clone()
    }

    /// Write `requests` as CSV.
    fn write_requests_csv(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| write_requests_csv(&path, &self.rows, &self.machine_names));
        written.map_err(|error| errors::sim(py, error))
    }

    fn __repr__(&self) -> String {
        let (requests, machines) = (self.rows.len(), self.machine_names.len());
        let finished = self.rows.iter().filter(|row| row.finished()).count();
        format!("<Report of {requests} requests on {machines} machines, {finished} finished>")
    }
}

/// Simulate a workload; `splitcore.simulate` documents the options.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    config: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Report> {
    let options: Options = plain::read(config)?.map_err(|error| wrong_option(config, &error))?;
    // What stopped the run: Ctrl-C, or what the progress callback raised.
    let mut stopped = None;
    let done = py.detach(|| {
        let mut control = |ended: u64, total: u64| {
            let go_on = Python::attach(|py| {
                py.check_signals()?;
                match &progress {
                    Some(progress) => progress.call1(py, (ended, total)).map(drop),
                    None => Ok(()),
                }
            });
            go_on.map_err(|error| stopped = Some(error)).is_ok()
        };
        splitcore_sim::simulate(&options, &mut control)
    });
    match (done, stopped) {
        (_, Some(error)) => Err(error),
        (Ok(report), None) => Report::new(py, report),
        (Err(error), None) => Err(errors::sim(py, error)),
    }
}

/// The requests of a workload: its name, and their arrivals, prompts and outputs.
#[pyfunction]
pub(crate) fn workload(py: Python<'_>, config: &Bound<'_, PyDict>) -> PyResult<WorkloadArrays> {
    let options: Options = plain::read(config)?.map_err(|error| wrong_option(config, &error))?;
    let made = py.detach(|| options.workload()).map_err(|error| errors::sim(py, error))?;
    let column = |of: fn(&TraceRequest) -> u32| made.requests.iter().map(of).collect::<Vec<_>>();
    let arrivals = made.requests.iter().map(|request| request.arrival_ns as f64 / 1e9).collect::<Vec<_>>();
    let prompts = read_only(py, column(|request| request.prompt_tokens));
    let outputs = read_only(py, column(|request| request.output_tokens));
    Ok((made.name, read_only(py, arrivals), prompts, outputs))
}

/// Finds the option that cannot be read: each is read alone, as the others have defaults. Thresholds are options too.
pub(crate) fn wrong_option(config: &Bound<'_, PyDict>, error: &str) -> PyErr {
    wrong_within(config, None).unwrap_or_else(|| errors::config(config.py(), "config", error, config))
}

fn wrong_within(options: &Bound<'_, PyDict>, group: Option<&str>) -> Option<PyErr> {
    let py = options.py();
    for (name, value) in options {
        let alone = PyDict::new(py);
        let set = alone.set_item(&name, &value).and_then(|()| match group {
            Some(group) => {
                let outer = PyDict::new(py);
                outer.set_item(group, &alone)?;
                Ok(outer)
            }
            None => Ok(alone),
        });
        let error = match set.and_then(|alone| plain::read::<Options>(&alone)) {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error,
            Err(error) => return Some(error),
        };
        if let (None, Ok(inner)) = (group, value.cast::<PyDict>()) {
            return wrong_within(inner, Some(&name.to_string()));
        }
        let expected = error.rsplit_once("expected ").map_or("a value in range", |(_, expected)| expected);
        return Some(errors::config(py, &name.to_string(), expected, plain::shown(&value)));
    }
    None
}

/// Fit a cost profile to measurements and write it.
#[pyfunction]
pub(crate) fn profile_fit(
    py: Python<'_>,
    csv_path: PathBuf,
    out_path: PathBuf,
) -> PyResult<Bound<'_, PyDict>> {
    if is_one_file(&csv_path, &out_path) {
        let expected = "another file than csv_path, which is read";
        return Err(errors::config(py, "out_path", expected, out_path.display()));
    }
    let fitted = py.detach(|| fit_file(&csv_path.to_string_lossy()));
    let (profile, report) = fitted.map_err(|error| errors::sim(py, error))?;
    write_whole(&out_path, &profile.to_toml())
        .map_err(|error| SplitcoreError::new_err(format!("{}: {error}", out_path.display())))?;
    let errors = PyDict::new(py);
    for machine in report.machines {
        let phases = PyDict::new(py);
        phases.set_item("prefill", machine.error.prompt_mape_percent / 100.0)?;
        phases.set_item("decode", machine.error.token_mape_percent / 100.0)?;
        let label = format!("{} {}:tp{}", machine.model, machine.hardware, machine.tensor_parallel);
        errors.set_item(label, phases)?;
    }
    Ok(errors)
}

/// Whether two paths lead to one file, which is there.
fn is_one_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Writes a file beside its place and renames it, so that an older one stays whole until then.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}
