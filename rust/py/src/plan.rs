//! The planner: searches driven on the cores of this machine, and their parts for who drives them elsewhere.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use pythonize::{depythonize, pythonize};
use serde::de::DeserializeOwned;
use splitcore_plan::capacity::{CapacitySearch, CapacitySpec};
use splitcore_plan::designs::{self, Iso, PublishedPools};
use splitcore_plan::placement::{PlacementSearch, PlacementSpec};
use splitcore_plan::provision::{ProvisionSearch, ProvisionSpec};
use splitcore_plan::{Drive, Probe, Progress, Verdict};
use splitcore_sim::{Options, SimError};

use crate::errors::{self, SplitcoreError};
use crate::plain;
use crate::simulate::wrong_option;
use crate::watched::watched;

/// A search of any kind.
enum Kind {
    Capacity(Box<CapacitySearch>),
    Provision(Box<ProvisionSearch>),
    Placement(Box<PlacementSearch>),
}

impl Kind {
    fn search(&mut self) -> &mut (dyn splitcore_plan::Search + Send) {
        match self {
            Self::Capacity(search) => search.as_mut(),
            Self::Provision(search) => search.as_mut(),
            Self::Placement(search) => search.as_mut(),
        }
    }

    fn found<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Capacity(search) => pythonize(py, &search.found())?,
            Self::Provision(search) => pythonize(py, &search.found())?,
            Self::Placement(search) => pythonize(py, &search.found())?,
        })
    }
}

/// Reads one part of a specification; the error names it.
fn part<T: DeserializeOwned>(spec: &Bound<'_, PyDict>, name: &str, expected: &str) -> PyResult<T> {
    let py = spec.py();
    let value = spec.get_item(name)?.unwrap_or_else(|| py.None().into_bound(py));
    let shown = plain::shown(&value);
    plain::read(&value)?.map_err(|_| errors::config(py, name.trim_end_matches("_rps"), expected, shown))
}

/// As [`part`], of what is made of several; the error says what is wrong in it.
fn whole<T: DeserializeOwned>(spec: &Bound<'_, PyDict>, name: &str) -> PyResult<T> {
    let py = spec.py();
    let value = spec.get_item(name)?.unwrap_or_else(|| py.None().into_bound(py));
    plain::read(&value)?.map_err(|error| errors::config(py, name, &error, plain::shown(&value)))
}

fn options(spec: &Bound<'_, PyDict>) -> PyResult<Options> {
    let given: Bound<'_, PyDict> = spec.as_any().get_item("options")?.cast_into()?;
    plain::read(&given)?.map_err(|error| wrong_option(&given, &error))
}

fn capacity_search(spec: &Bound<'_, PyDict>) -> PyResult<Kind> {
    let spec_read = CapacitySpec {
        options: options(spec)?,
        slo: whole(spec, "slo")?,
        seeds: part(spec, "seeds", "a number from 1 on")?,
        resolution: part(spec, "resolution", "a share")?,
        step_rps: part(spec, "step_rps", "requests per second")?,
    };
    let search = spec.py().detach(|| CapacitySearch::new(&spec_read));
    search.map(|search| Kind::Capacity(Box::new(search))).map_err(|error| errors::sim(spec.py(), error))
}

fn provision_search(spec: &Bound<'_, PyDict>) -> PyResult<Kind> {
    let spec_read = ProvisionSpec {
        options: options(spec)?,
        slo: whole(spec, "slo")?,
        designs: whole(spec, "designs")?,
        goal: part(spec, "goal", "min-cost, min-power, min-space or max-throughput")?,
        limits: whole(spec, "limits")?,
        rate_rps: part(spec, "rate_rps", "requests per second")?,
        seeds: part(spec, "seeds", "a number from 1 on")?,
        machines_max: part(spec, "machines_max", "a number from 1 on")?,
        machines_step: part(spec, "machines_step", "a number from 1 on")?,
        resolution: part(spec, "resolution", "a share")?,
        whole_map: part(spec, "whole_map", "true or false")?,
    };
    let search = spec.py().detach(|| ProvisionSearch::new(&spec_read));
    search.map(|search| Kind::Provision(Box::new(search))).map_err(|error| errors::sim(spec.py(), error))
}

fn placement_search(spec: &Bound<'_, PyDict>) -> PyResult<Kind> {
    let spec_read = PlacementSpec {
        options: options(spec)?,
        slo: whole(spec, "slo")?,
        affinity: part(spec, "affinity", "high or low")?,
        machine: part(spec, "machine", "a name of hardware")?,
        nodes_max: part(spec, "nodes_max", "a number from 1 on")?,
        gpus_per_node: part(spec, "gpus_per_node", "a number from 1 on")?,
        node_bandwidth_bytes_per_s: part(spec, "node_bandwidth_bytes_per_s", "bytes per second")?,
        rate_rps: part(spec, "rate_rps", "requests per second")?,
        seeds: part(spec, "seeds", "a number from 1 on")?,
        resolution: part(spec, "resolution", "a share")?,
    };
    let search = spec.py().detach(|| PlacementSearch::new(&spec_read));
    search.map(|search| Kind::Placement(Box::new(search))).map_err(|error| errors::sim(spec.py(), error))
}

fn probe(given: &Bound<'_, PyDict>) -> PyResult<Probe> {
    Ok(Probe {
        options: options(given)?,
        slo: whole(given, "slo")?,
        whole: part(given, "whole", "true or false")?,
    })
}

/// Simulate a probe and hold it against its objectives.
#[pyfunction]
pub(crate) fn judge<'py>(py: Python<'py>, probe: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let probe = self::probe(probe)?;
    let verdict = py.detach(|| splitcore_plan::judge(&probe)).map_err(|error| errors::sim(py, error))?;
    Ok(pythonize(py, &verdict)?)
}

/// Find the highest rate at which a cluster keeps its objectives.
#[pyfunction]
pub(crate) fn capacity<'py>(
    spec: &Bound<'py, PyDict>,
    jobs: Option<usize>,
    cache: Option<&Bound<'py, Cache>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    driven(spec.py(), capacity_search(spec)?, jobs, cache, progress.as_ref())
}

/// Find the best cluster of several designs.
#[pyfunction]
pub(crate) fn provision<'py>(
    spec: &Bound<'py, PyDict>,
    jobs: Option<usize>,
    cache: Option<&Bound<'py, Cache>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    driven(spec.py(), provision_search(spec)?, jobs, cache, progress.as_ref())
}

/// Find how to cut a model over GPUs for each phase.
#[pyfunction]
pub(crate) fn placement<'py>(
    spec: &Bound<'py, PyDict>,
    jobs: Option<usize>,
    cache: Option<&Bound<'py, Cache>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    driven(spec.py(), placement_search(spec)?, jobs, cache, progress.as_ref())
}

fn driven<'py>(
    py: Python<'py>,
    mut kind: Kind,
    jobs: Option<usize>,
    cache: Option<&Bound<'py, Cache>>,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let jobs = jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let cache = cache.map(|cache| &cache.get().cache);
    let search = kind.search();
    let (done, stopped) = py.detach(|| {
        watched(progress, |tell| {
            let control = |progress: Progress| tell(progress.done, progress.expected);
            splitcore_plan::drive(search, &Drive { jobs, cache, control: &control })
        })
    });
    let panicked = || Err(SimError::Internal { reason: "the search stopped".into() });
    match (done.unwrap_or_else(panicked), stopped) {
        (_, Some(error)) => Err(error),
        (Ok(()), None) => kind.found(py),
        (Err(error), None) => Err(errors::sim(py, error)),
    }
}

/// Verdicts kept in a file.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Cache {
    cache: splitcore_plan::Cache,
}

#[pymethods]
impl Cache {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let cache = py.detach(|| splitcore_plan::Cache::open(&path));
        cache.map(|cache| Self { cache }).map_err(|error| errors::sim(py, error))
    }

    /// Look a probe's verdict up.
    fn get<'py>(&self, probe: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let verdict = self.cache.get(&self::probe(probe)?);
        Ok(verdict.map(|verdict| pythonize(probe.py(), &verdict)).transpose()?)
    }

    /// Keep a probe's verdict.
    fn put(&self, probe: &Bound<'_, PyDict>, verdict: &Bound<'_, PyDict>) -> PyResult<()> {
        let (py, verdict) = (probe.py(), depythonize(verdict)?);
        let probe = self::probe(probe)?;
        py.detach(|| self.cache.put(&probe, &verdict)).map_err(|error| errors::sim(py, error))
    }
}

/// A search whose probes are made elsewhere.
#[pyclass(frozen, module = "splitcore._native")]
pub(crate) struct Search {
    state: Mutex<State>,
}

struct State {
    kind: Kind,
    /// What has been asked and not yet answered.
    asked: Vec<Probe>,
}

impl Search {
    fn new(kind: Kind) -> Self {
        Self { state: Mutex::new(State { kind, asked: Vec::new() }) }
    }

    /// Works on the state without the GIL, which whoever has the lock may be waiting for.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut State) -> T + Send) -> T {
        py.detach(|| work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[pymethods]
impl Search {
    /// A search for the highest rate of a cluster.
    #[staticmethod]
    fn capacity(spec: &Bound<'_, PyDict>) -> PyResult<Self> {
        capacity_search(spec).map(Self::new)
    }

    /// A search for the best cluster.
    #[staticmethod]
    fn provision(spec: &Bound<'_, PyDict>) -> PyResult<Self> {
        provision_search(spec).map(Self::new)
    }

    /// A search for a placement.
    #[staticmethod]
    fn placement(spec: &Bound<'_, PyDict>) -> PyResult<Self> {
        placement_search(spec).map(Self::new)
    }

    /// The probes to judge next; the same ones until they are told.
    fn ask<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let asked = self.with(py, |state| {
            if state.asked.is_empty() {
                state.asked = state.kind.search().ask();
            }
            state.asked.clone()
        });
        Ok(pythonize(py, &asked)?)
    }

    /// Take the verdicts of all probes asked for, in their order.
    fn tell(&self, py: Python<'_>, verdicts: &Bound<'_, PyAny>) -> PyResult<()> {
        let verdicts: Vec<Verdict> = depythonize(verdicts)?;
        let told = self.with(py, |state| {
            let asked = state.asked.len();
            if asked == verdicts.len() {
                state.asked.clear();
                state.kind.search().tell(&verdicts);
            }
            (asked, verdicts.len())
        });
        match told {
            (asked, given) if asked == given => Ok(()),
            (asked, given) => {
                Err(SplitcoreError::new_err(format!("{asked} probes were asked for, {given} verdicts told")))
            }
        }
    }

    /// Probes judged, and those there will be as far as can be told.
    fn progress(&self, py: Python<'_>) -> (u64, u64) {
        let Progress { done, expected } = self.with(py, |state| state.kind.search().progress());
        (done, expected)
    }

    /// What has been found; the answer once nothing more is asked.
    fn found<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).kind.found(py)
    }
}

/// Read a set of objectives: a built-in one by its name, or a file.
#[pyfunction]
pub(crate) fn slo_set(py: Python<'_>, name_or_path: String) -> PyResult<Bound<'_, PyAny>> {
    let set = py.detach(|| splitcore_plan::slo::SloSet::parse(&name_or_path));
    Ok(pythonize(py, &set.map_err(|error| errors::sim(py, error))?)?)
}

/// Tell a mean and its interval.
#[pyfunction]
pub(crate) fn mean_interval(py: Python<'_>, values: Vec<f64>) -> PyResult<(f64, Bound<'_, PyAny>)> {
    if values.is_empty() {
        return Err(errors::config(py, "values", "at least one", "none"));
    }
    let (mean, interval) = splitcore_plan::mean_with_interval(&values);
    Ok((mean, pythonize(py, &interval)?))
}

/// The designs that have a name.
#[pyfunction]
pub(crate) fn design_presets(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    Ok(pythonize(py, designs::presets())?)
}

/// The pool sizes of a design in one of the Splitwise paper's comparisons: machines of both pools, and the highest rate
/// that the public simulator has for them.
#[pyfunction]
pub(crate) fn published_pools(
    py: Python<'_>,
    design: &str,
    comparison: &str,
    trace: &str,
) -> PyResult<(u32, u32, Option<f64>)> {
    let goal = match comparison {
        "iso-power" => Iso::IsoPower,
        "iso-cost" => Iso::IsoCost,
        "iso-throughput" => Iso::IsoThroughput,
        other => {
            return Err(errors::config(py, "comparison", "iso-power, iso-cost or iso-throughput", other));
        }
    };
    let Some(PublishedPools { prompt, token, max_rps }) = designs::published_pools(design, goal, trace)
    else {
        let got = format!("{design}, {trace}");
        return Err(errors::config(py, "design", "a design and trace with published pools", got));
    };
    Ok((prompt, token, max_rps))
}
