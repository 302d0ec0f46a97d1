//! Measures the transports between two processes, beside what the machine can do at best in the same run.
//!
//! The parent sends, a child receives; they talk by lines of JSON over the child's standard input and output
//! ([`receive`] is the child's whole life). Times are of the monotonic clock, which all processes of a host share.

mod bandwidth;
mod ceiling;
mod child;
mod exposed;
mod notify;
mod queued;
mod setting;

use std::process::Command;

use serde::{Deserialize, Serialize};
use splitcore_transport::Backend;

pub use child::receive;
pub use setting::BenchError;

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Bytes of each block in one layer.
    pub block_bytes: Vec<u32>,
    /// Bytes of a whole transfer.
    pub transfer_bytes: u64,
    /// Times each is repeated; the best counts, since other load can only slow it down.
    pub repetitions: u32,
    /// Layers published one by one to measure how soon each is seen.
    pub notifies: u32,
    /// Transfers that are queued at once.
    pub queued: u32,
    /// Bits a second of the throttled link.
    pub throttle_bits_per_second: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            block_bytes: vec![16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20],
            transfer_bytes: 256 << 20,
            repetitions: 5,
            notifies: 2000,
            queued: 10_000,
            throttle_bits_per_second: 10_000_000_000,
        }
    }
}

/// Bytes a second at one block size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bytes of each block in one layer.
    pub block_bytes: u32,
    /// From the first put until the receiver has seen the last layer.
    pub bytes_per_second: f64,
    /// The same blocks by the plainest means: one thread's `memcpy`, or one socket.
    pub ceiling_bytes_per_second: f64,
}

/// How soon a published layer is seen by a receiver that sleeps, one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notify {
    /// Half of them are faster.
    pub p50_ns: u64,
    /// One in a hundred is slower.
    pub p99_ns: u64,
}

/// How long a decode waits for KV after its prefill has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposed {
    /// How long the prefill takes.
    pub prefill_ns: u64,
    /// How long the throttled link needs for its KV.
    pub transfer_ns: u64,
    /// Each layer sent as it is computed.
    pub layer_wise_ns: u64,
    /// All layers sent after the last.
    pub serialized_ns: u64,
}

/// Whether many queued transfers slow each other down.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Queued {
    /// How many.
    pub transfers: u32,
    /// Transfers a second of the first tenth: seen whole by the receiver, or over shared memory handed over.
    pub first_per_second: f64,
    /// Of the last tenth.
    pub last_per_second: f64,
}

/// All of one transport.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub backend: Backend,
    /// By block size.
    pub bandwidth: Vec<Bandwidth>,
    /// One way.
    pub notify: Notify,
    /// Under the throttle.
    pub exposed: Exposed,
    /// Many at once.
    pub queued: Queued,
}

/// Measures one transport. `child` starts a process that does nothing but call [`receive`] on its standard input and
/// output; `go_on` hears how many of all steps are done, and stops the rest by saying no.
///
/// # Errors
/// The child cannot be started or fails, the transport does, or it was stopped.
pub fn measure(
    plan: &Plan,
    backend: Backend,
    child: &dyn Fn() -> Command,
    go_on: &dyn Fn(u64, u64) -> bool,
) -> Result<Measured, BenchError> {
    let steps = plan.block_bytes.len() as u64 + 3;
    let step = |done: u64| if go_on(done, steps) { Ok(()) } else { Err(BenchError::Stopped) };
    let mut bandwidth = Vec::new();
    for (done, &block_bytes) in (0..).zip(&plan.block_bytes) {
        step(done)?;
        bandwidth.push(bandwidth::measure(plan, backend, block_bytes, child)?);
    }
    step(steps - 3)?;
    let notify = notify::measure(plan, backend, child)?;
    step(steps - 2)?;
    let exposed = exposed::measure(plan, backend, child)?;
    step(steps - 1)?;
    let queued = queued::measure(plan, backend, child)?;
    Ok(Measured { backend, bandwidth, notify, exposed, queued })
}
