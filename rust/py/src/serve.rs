//! The placement service inside the Python process: options in, one thread detached until a signal ends it.

use pyo3::prelude::*;
use pythonize::Depythonizer;
use splitcore_daemon::{Options, ServeError, run};

use crate::errors::{self, SplitcoreError};

/// Serve placements over HTTP until SIGTERM or Ctrl-C.
#[pyfunction]
#[pyo3(signature = (options))]
pub(crate) fn serve(py: Python<'_>, options: &Bound<'_, PyAny>) -> PyResult<()> {
    let options = Options::read(&mut Depythonizer::from_object(options)).map_err(SplitcoreError::new_err)?;
    let ended = py.detach(|| run(options));
    // Python has seen Ctrl-C as well and raises it here.
    py.check_signals()?;
    match ended {
        Ok(_) => Ok(()),
        Err(ServeError::Option(error)) => Err(errors::config(py, error.option, &error.expected, error.got)),
        Err(error @ (ServeError::Listen { .. } | ServeError::System(_))) => {
            Err(SplitcoreError::new_err(error.to_string()))
        }
    }
}
