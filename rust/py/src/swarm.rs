//! Random worlds full of faults, many seeds of them.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use pyo3::prelude::*;
use pythonize::pythonize;
use serde::Serialize;
use splitcore_swarm::failures::{Cell, Failure, cell, legal, name};
use splitcore_swarm::{Failed, Summary};

use crate::errors::{self, SplitcoreError, whole};
use crate::watched::watched;

const JOBS_MAX: usize = 1024;

/// What `splitcore.schema.SwarmSummary` describes.
#[derive(Serialize)]
struct Told {
    version: &'static str,
    commit: Option<&'static str>,
    from_seed: u64,
    seeds: u64,
    jobs: usize,
    wall_s: f64,
    events: u64,
    events_median: u64,
    faults_median: u64,
    digest: String,
    counters: BTreeMap<&'static str, u64>,
    cells: Vec<CellHits>,
    failed: Vec<FailedSeed>,
}

#[derive(Serialize)]
struct CellHits {
    state: String,
    failure: &'static str,
    hits: u64,
}

#[derive(Serialize)]
struct FailedSeed {
    seed: u64,
    what: String,
    last_events: Vec<String>,
}

impl Told {
    fn new(from_seed: u64, jobs: usize, wall_s: f64, summary: Summary) -> Self {
        let cells = legal().flat_map(|state| Failure::ALL.map(|failure| (state, failure)));
        let cells = cells.filter(|&(state, failure)| matches!(cell(state, failure), Cell::Handled(_)));
        let hits = |(state, failure): (_, Failure)| CellHits {
            state: name(state),
            failure: failure.name(),
            hits: summary.hits.get(&(state, failure)).copied().unwrap_or(0),
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            // Set by the Makefile where there is a repository.
            commit: option_env!("SPLITCORE_COMMIT").filter(|commit| !commit.is_empty()),
            from_seed,
            seeds: summary.seeds,
            jobs,
            wall_s,
            events: summary.events,
            events_median: summary.median_events,
            faults_median: summary.median_faults,
            digest: format!("{:016x}", summary.digest),
            counters: summary.counters.named().into_iter().collect(),
            cells: cells.map(hits).collect(),
            failed: summary
                .failed
                .into_iter()
                .map(|Failed { seed, what, last }| FailedSeed { seed, what, last_events: last })
                .collect(),
        }
    }
}

fn seeds(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    at_least_1(value, "seeds", "1 to 2^64 - 1", u64::MAX)
}

fn from_seed(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(value, "from_seed", "0 to 2^64 - 1")
}

fn jobs(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if value.is_none() {
        return Ok(None);
    }
    at_least_1(value, "jobs", "1 to 1024", JOBS_MAX as u64).map(|jobs| Some(jobs as usize))
}

fn at_least_1(
    value: &Bound<'_, PyAny>,
    option: &'static str,
    expected: &'static str,
    most: u64,
) -> PyResult<u64> {
    match whole(value, option, expected)? {
        given if (1..=most).contains(&given) => Ok(given),
        given => Err(errors::config(value.py(), option, expected, given)),
    }
}

/// Run random worlds full of faults around the scheduler and check every invariant after every event.
#[pyfunction]
#[pyo3(signature = (*, seeds = 300, from_seed = 0, jobs = None, progress = None))]
pub(crate) fn swarm(
    py: Python<'_>,
    #[pyo3(from_py_with = seeds)] seeds: u64,
    #[pyo3(from_py_with = from_seed)] from_seed: u64,
    #[pyo3(from_py_with = jobs)] jobs: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'_, PyAny>> {
    if from_seed.checked_add(seeds - 1).is_none() {
        return Err(errors::config(py, "from_seed", "the last seed to be at most 2^64 - 1", from_seed));
    }
    let jobs = jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let jobs = jobs.min(usize::try_from(seeds).unwrap_or(usize::MAX));
    let begun = Instant::now();
    let (summary, stopped) = py.detach(|| {
        watched(progress.as_ref(), |tell| {
            splitcore_swarm::swarm(from_seed, seeds, jobs, |done, _| tell(done, seeds))
        })
    });
    if let Some(error) = stopped {
        return Err(error);
    }
    let summary = summary.ok_or_else(|| SplitcoreError::new_err("the swarm stopped at an internal error"))?;
    Ok(pythonize(py, &Told::new(from_seed, jobs, begun.elapsed().as_secs_f64(), summary))?)
}
