//! Event logs, replayed.

use std::path::PathBuf;

use pyo3::prelude::*;
use pythonize::pythonize;
use serde::Serialize;
use splitcore_record::{Difference, Log, LogEnd, Replayed, What, replay_told};

use crate::errors::SplitcoreError;
use crate::watched::watched;

/// What `splitcore.schema.Replayed` describes.
#[derive(Serialize)]
struct Told {
    agrees: bool,
    logs: Vec<ToldLog>,
}

#[derive(Serialize)]
struct ToldLog {
    name: String,
    run: u32,
    what: Option<What>,
    version: String,
    begun_s: f64,
    first_event: u64,
    segments: u64,
    events: u64,
    actions: u64,
    end: &'static str,
    ended_early: Option<String>,
    difference: Option<ToldDifference>,
}

#[derive(Serialize)]
struct ToldDifference {
    file: PathBuf,
    event: u64,
    now_ns: u64,
    happened: String,
    part: String,
    recorded: String,
    replayed: String,
}

impl From<Replayed> for Told {
    fn from(replayed: Replayed) -> Self {
        let agrees = replayed.agrees();
        Self { agrees, logs: replayed.logs.into_iter().map(ToldLog::from).collect() }
    }
}

impl From<Log> for ToldLog {
    fn from(log: Log) -> Self {
        let (end, ended_early) = match log.end {
            LogEnd::Closed => ("closed", None),
            LogEnd::Open => ("open", None),
            LogEnd::Early(why) => ("early", Some(why)),
        };
        Self {
            name: log.name,
            run: log.run,
            what: log.what,
            version: log.version,
            begun_s: log.unix_ms as f64 / 1000.0,
            first_event: log.first,
            segments: log.segments,
            events: log.events,
            actions: log.actions,
            end,
            ended_early,
            difference: log.difference.map(ToldDifference::from),
        }
    }
}

impl From<Difference> for ToldDifference {
    fn from(difference: Difference) -> Self {
        let Difference { path, event, now, happened, part, recorded, replayed } = difference;
        Self { file: path, event, now_ns: now.as_ns(), happened, part, recorded, replayed }
    }
}

/// Apply the events of every log under a folder once more and compare what comes of them.
#[pyfunction]
#[pyo3(signature = (folder, *, progress = None))]
pub(crate) fn replay(
    py: Python<'_>,
    folder: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'_, PyAny>> {
    let (replayed, stopped) = py.detach(|| watched(progress.as_ref(), |tell| replay_told(&folder, tell)));
    if let Some(error) = stopped {
        return Err(error);
    }
    let replayed =
        replayed.ok_or_else(|| SplitcoreError::new_err("the replay stopped at an internal error"))?;
    let (replayed, _) = replayed.map_err(|error| SplitcoreError::new_err(error.to_string()))?;
    Ok(pythonize(py, &Told::from(replayed))?)
}
