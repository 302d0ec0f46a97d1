//! Machine types of the user's own, and what machines cost.

use std::path::PathBuf;

use pyo3::prelude::*;
use pythonize::pythonize;
use splitcore_sim::SimError;
use splitcore_sim::machines::{Catalogue, MachineType, PriceTable, parse_kind, read_machine_types};
use splitcore_sim::workload::read_classes;

use crate::errors;
use crate::plain;

/// Read a file of machine types.
#[pyfunction]
pub(crate) fn machine_types(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let types = py.detach(|| read_machine_types(&path.to_string_lossy()));
    Ok(pythonize(py, &types.map_err(|error| errors::sim(py, error))?)?)
}

/// Read a file of traffic classes.
#[pyfunction]
pub(crate) fn traffic_classes(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let classes = py.detach(|| read_classes(&path.to_string_lossy()));
    Ok(pythonize(py, &classes.map_err(|error| errors::sim(py, error))?)?)
}

/// Tell what a machine takes.
#[pyfunction]
pub(crate) fn machine_price<'py>(
    py: Python<'py>,
    machine: &str,
    prices: &str,
    machine_types: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let types: Vec<MachineType> = plain::read(machine_types)?
        .map_err(|error| errors::config(py, "machine_types", "machine types", error))?;
    let price = || {
        let table = PriceTable::named(prices)?;
        let kind = parse_kind("designs", machine, &Catalogue::new(&types)?)?;
        table.of_kind(&kind).ok_or_else(|| {
            let expected = "a machine whose cost, power and space the price table or its own type has";
            SimError::config("designs", expected, machine)
        })
    };
    Ok(pythonize(py, &price().map_err(|error| errors::sim(py, error))?)?)
}
