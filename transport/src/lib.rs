//! Moves the KV cache of a leg from one machine's blocks to another's, by a plan, and decides nothing.
//!
//! The scheduler core asks (`Put`, `StopPut`) and hears facts (`LayersLanded`, `LocalDone`, `TransferFailed`,
//! `Fenced`, `PeerLost`); this crate is what lies between.
//!
//! ```text
//!   receiving machine                                        sending machine
//!   Pool (registered memory) + Receiver (sockets)            Pool
//!     |  Endpoint  ------- the scheduler's messages ------->   connect() -> Link
//!   Landing::open -> Grant ------------------------------->    Link::begin
//!                                                              Link::put   (ranges of a layer, by the plan)
//!   Landing::wait_layer  <== shm, tcp, cuda-ipc, nixl ======   Link::publish
//!   Landing::release                                           Link::poll  -> LocalDone
//! ```
//!
//! # Rules for every backend
//!
//! - **Push.** The destination sets blocks aside and grants them; only then does the source write.
//! - **Layer by layer.** A layer is published after every byte of it is in place, never before; a half-written layer
//!   is never seen. Layers are all-or-nothing.
//! - **One end.** Every transfer that was begun comes to exactly one [`Completion`], failure and stop included.
//! - **Fencing.** After [`Landing::stop`] blocks stay untouchable until [`Arrival::Fenced`]: over TCP at once, since
//!   only the receiver's own thread writes; over shared memory and CUDA IPC when the writer acknowledges or dies.
//! - **Strangers learn and reach nothing.** Who connects shows to know the key of the endpoint before either side says
//!   anything of itself, and each transfer over a stream the token of its grant.
//! - **Bounds.** A plan names blocks and offsets, not addresses, so both sides check every range.
//! - **No hidden timeouts.** Deadlines are arguments or options, and an error says what was waited for.
//! - **No busy waiting.** Whoever waits sleeps, on a futex or a descriptor.

mod board;
mod connect;
mod cuda;
mod error;
mod faulty;
mod handshake;
mod knock;
mod landing;
mod ledger;
mod local;
mod memory;
mod outcomes;
pub mod outside;
mod pool;
mod receiver;
pub mod ring;
mod shm;
mod sockets;
mod sync;
mod tcp;
#[cfg(test)]
mod tests;
mod throttle;
mod transfer;
pub mod word;

/// Parts that tests and fuzzers drive by hand; no part of the interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::tcp::{frame, fuzz};
}

pub use connect::{ConnectOptions, backends_of, connect};
pub use cuda::{DeviceLayers, DeviceStream, DeviceView, cuda_adopt, cuda_devices, cuda_pool};
pub use error::{HandshakeError, MemoryError, TransferError};
pub use faulty::{Faults, Faulty, Injected, Kinds};
pub use handshake::{Backend, Endpoint, Incarnation, Offer, PROTOCOL, boot_id, choose};
pub use knock::is_dead;
pub use landing::{Arrival, Landing, Writer, Writing};
pub use memory::Mapping;
pub use outcomes::{Outcome, Outcomes, Overdue};
pub use pool::Pool;
pub use receiver::{ListenOptions, Receiver};
pub use splitcore_secret::{Key, Secret, Token};
pub use throttle::{Throttle, Wire};
pub use transfer::{Completion, Grant, Link, PeerState, TransferKey, Wake};
pub use word::{Generation, LayerSeal};
