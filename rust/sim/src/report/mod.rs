//! What a run says at its end: rows, percentiles, objectives, files.
//!
//! Metrics cover all submitted requests, without warm-up or drain cut off; a request that did not finish counts as
//! infinitely slow. Infinities and missing values become null in JSON and empty cells in CSV.

mod admission;
mod classes;
mod digest;
mod faults;
mod files;
mod gaps;
mod quantiles;
mod records;
mod rows;
mod slo;
mod summary;
mod tally;
mod timeline;

pub use admission::{AdmissionLimits, AdmissionReport};
pub use classes::ClassReport;
pub use digest::Digest;
pub use faults::{FaultReport, FaultTally, RecoveryReport};
pub use files::{write_requests_csv, write_summary_json};
pub use gaps::{GapHistogram, GapQuantiles};
pub use quantiles::{Percentiles, Quantiles, between};
pub use records::RequestRecord;
pub use rows::{NO_TIME_NS, Outcome, RequestRow, TbtRule};
pub use slo::{Reference, RequestLimits, SloLimits, SloReport, Slowdowns, slowdown};
pub use summary::{Inputs, PoolMoves, RequestCounts, RunFacts, Summary};
pub use tally::{MachineReport, MachineTally, TransferKind, TransferReport, TransferTally, VisibleTime};
pub use timeline::{Series, Timeline, Timelines};
