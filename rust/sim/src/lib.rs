//! Discrete-event simulator that drives the splitcore scheduler on real traces.

pub mod cost;
pub mod error;
pub mod event_queue;
pub mod links;
pub mod machines;
mod observer;
pub mod options;
pub mod report;
mod setup;
mod simulate;
pub mod workload;
mod world;

pub use error::SimError;
pub use observer::Observer;
pub use options::Options;
pub use simulate::{Report, simulate, simulate_observed};
