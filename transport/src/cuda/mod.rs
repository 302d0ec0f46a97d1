//! CUDA IPC, between two devices of one host or within one: the sender opens the receiver's device memory once, copies
//! on a stream of its own and publishes on the receiver's board, as over shared memory.
//!
//! ```text
//!   sender's thread           sender's stream              receiver
//!   put      ---------------> copies
//!   publish  ---------------> event recorded
//!            --- word, after the record -----------------> wait_layer sees it
//!                                                          its stream waits for the event, then reads
//!   a thread sleeps <-------- copies done
//!     Settled  ------------------------------------------> settled(): what was read can be trusted
//!     LocalDone
//! ```
//!
//! # What a device changes
//!
//! - A layer is published when its copies are queued, not when they are done. A stream that waits for the layer's event
//!   reads the right bytes, unless the writer dies in between: so a receiver asks [`crate::Landing::settled`] before it
//!   trusts what came of the layers, and a slot is not released before that.
//! - Each slot has an event a layer, made by the receiver, which lives as long as the slots. A slot is used again after
//!   its release only, so no event is recorded for the next transfer while one still waits for the last.
//! - The receiver frees its memory only when every sender has closed it or has died: see [`hold`].
//! - A process cannot open what it exported, so both ends of a link are never in one process.
//!
//! Nothing of CUDA is needed to build, and a machine without its driver gets an error that says so.

mod driver;
mod gpu;
mod handles;
mod hold;
mod layers;
mod link;
mod memory;
mod pair;
mod symbols;

#[cfg(test)]
mod death;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use layers::DeviceLayers;
pub use memory::{DeviceStream, DeviceView, cuda_adopt, cuda_devices, cuda_pool};
pub(crate) use pair::{connect, serve};

use crate::pool::Pool;

/// Transfers at once over a device's pool: each has an event a layer, which both processes have open.
const SLOTS_MAX: u32 = 32;

/// The device that a pool lies on, if it lies on one.
pub(crate) fn device_name(pool: &Pool) -> Option<String> {
    memory::memory_of(pool).map(|memory| memory.driver().name())
}

/// Slots for a receiver that asks for `slots` over a pool.
pub(crate) fn slots_for(pool: &Pool, slots: u32) -> u32 {
    if pool.device_base().is_some() { slots.min(SLOTS_MAX) } else { slots }
}
