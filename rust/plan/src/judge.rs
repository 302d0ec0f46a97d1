//! Makes a probe: runs it and holds it against its objectives.

use splitcore_sim::{Options, Scenario, SimError};

use crate::probe::{Probe, Verdict};

/// Simulates the probe and judges it. The same probe has the same verdict on every machine.
///
/// # Errors
/// Options that cannot be, or a stuck run.
pub fn judge(probe: &Probe) -> Result<Verdict, SimError> {
    let _ = probe;
    Err(SimError::Internal { reason: "not there yet".into() })
}

/// What a probe runs: its options with the traffic of its objectives.
pub(crate) fn scenario(probe: &Probe) -> Result<Scenario, SimError> {
    let classes = &probe.slo.classes;
    let is_all_there_is = classes.len() == 1 && classes.iter().all(|class| class.traffic.trace.is_none());
    let traffic = if is_all_there_is { &[] } else { classes.as_slice() };
    let classes = traffic.iter().map(|class| class.traffic.clone()).collect();
    Scenario::new(&Options { classes, ..probe.options.clone() })
}
