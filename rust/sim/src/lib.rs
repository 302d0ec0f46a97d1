//! Discrete-event simulator that drives the splitcore scheduler on real traces.

pub mod cost;
pub mod error;
pub mod event_queue;
pub mod links;
pub mod machines;
pub mod report;
pub mod workload;

pub use error::SimError;
