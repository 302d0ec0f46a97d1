//! The planner: which cluster for which traffic, objectives and prices, found by simulation.
//!
//! Three layers, each a wall:
//!
//! - a [`Probe`] is one simulated run and the objectives it is held against; [`judge`] answers with a [`Verdict`];
//! - a [`Search`] decides which probes are worth making and what follows from their verdicts. It runs nothing itself
//!   and has no threads, so its result hangs on the verdicts alone;
//! - a driver makes the probes: [`drive`] on all cores of this machine, with a [`Cache`] beside it; Python drives the
//!   same searches on a Ray cluster.

mod cache;
pub mod capacity;
pub mod designs;
mod drive;
mod judge;
pub mod placement;
mod probe;
pub mod provision;
mod search;
pub mod slo;
mod stats;

pub use cache::Cache;
pub use drive::{Drive, drive};
pub use judge::judge;
pub use probe::{Finding, Probe, Verdict};
pub use search::{Progress, Search};
pub use stats::{Interval, mean_with_interval};
