//! Makes the probes of a search on the cores of this machine.

use splitcore_sim::SimError;

use crate::cache::Cache;
use crate::search::{Progress, Search};

/// How a search is driven.
pub struct Drive<'a> {
    /// Probes made at a time, at least 1.
    pub jobs: usize,
    /// Where verdicts are kept.
    pub cache: Option<&'a Cache>,
    /// Called after each verdict, from any thread; false ends the search with [`SimError::Interrupted`].
    pub control: &'a (dyn Fn(Progress) -> bool + Sync),
}

/// Drives a search to its end.
///
/// # Errors
/// The first probe, in the order asked, that cannot be made; a cache that cannot be written; an interruption.
pub fn drive(search: &mut dyn Search, drive: &Drive<'_>) -> Result<(), SimError> {
    let _ = (search, drive);
    Err(SimError::Internal { reason: "not there yet".into() })
}
