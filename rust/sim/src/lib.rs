//! Discrete-event simulator that drives the splitcore scheduler on real traces.
//!
//! It decides nothing about scheduling: the [`splitcore_core`] state machines do, exactly as they would live. The
//! simulator is what they cannot have: a clock, messages, engines whose passes take time, and network cards.
//!
//! ```
//! use splitcore_sim::{Options, simulate};
//!
//! # fn main() -> Result<(), splitcore_sim::SimError> {
//! let options = Options {
//!     prompt: Some("2xdgx-h100".into()),
//!     token: Some("1xdgx-a100".into()),
//!     rate: Some(2.0),
//!     requests: Some(50),
//!     ..Options::default()
//! };
//! let report = simulate(&options, &mut |_ended, _all| true)?;
//! assert_eq!(report.summary.requests.completed, 50);
//! # Ok(())
//! # }
//! ```

pub mod cost;
pub mod error;
pub mod event_queue;
mod faults;
mod files;
pub mod links;
pub mod machines;
mod observer;
pub mod options;
mod phase;
pub mod report;
mod scenario;
mod setup;
mod simulate;
mod thresholds;
pub mod workload;
mod world;

pub use error::SimError;
pub use faults::Recovery;
pub use files::{open_ordinary, read_ordinary};
pub use observer::Observer;
pub use options::Options;
pub use scenario::{Run, Scenario};
pub use simulate::{Report, simulate, simulate_observed};
pub use thresholds::Thresholds;
