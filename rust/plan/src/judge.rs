//! Makes a probe: runs it and holds it against its objectives.

use splitcore_sim::SimError;

use crate::probe::{Probe, Verdict};

/// Simulates the probe and judges it. The same probe has the same verdict on every machine.
///
/// # Errors
/// Options that cannot be, or a stuck run.
pub fn judge(probe: &Probe) -> Result<Verdict, SimError> {
    let _ = probe;
    Err(SimError::Internal { reason: "not there yet".into() })
}
