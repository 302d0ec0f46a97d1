//! Workloads: who asks for how many tokens, and when.
//!
//! A [`WorkloadSpec`] says what is wanted; [`WorkloadSpec::build`] makes the requests. Sizes come from the
//! built-in tables or from a trace file, arrivals from a generator or from the file itself. The same spec gives
//! the same requests on every platform.

mod arrivals;
mod classes;
mod draws;
mod size_table;
mod sizes;
mod spec;
mod trace;

pub use classes::{TrafficClass, mixed, read_classes};
pub(crate) use draws::Draws;
pub use size_table::SizeTable;
pub use spec::{Arrivals, Sampling, Source, WorkloadSpec};
pub use trace::{InvalidRows, LaterTurns, Reading, TraceFile, read_trace};

/// Most requests that one generated workload may hold (1.6 GB of them).
pub const REQUESTS_MAX: usize = 100_000_000;

/// Latest arrival a workload may hold: 146 years, so that a simulation can add its own times without overflow.
pub const ARRIVAL_MAX_NS: u64 = 1 << 62;

/// Largest number of tokens a prompt or an output may have.
pub const TOKENS_MAX: u32 = 1 << 31;

/// One request of a workload. Its id is its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRequest {
    /// When it arrives, from the start of the run.
    pub arrival_ns: u64,
    /// Length of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens it will produce, at least 1.
    pub output_tokens: u32,
}

/// At least one request, by arrival (equal arrivals keep the order of the source).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Name of the built-in workload, or of the file without its folder.
    pub name: String,
    /// The requests; `arrival_ns` never decreases.
    pub requests: Vec<TraceRequest>,
    /// The class of each request; empty where there is one class.
    pub classes: Vec<u16>,
    /// What was done with its files that a reader should know, each a sentence.
    pub notes: Vec<String>,
}
