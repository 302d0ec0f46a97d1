//! The protocol between a splitcore daemon and its workers, and between workers: `docs/protocol.md` in code.
//!
//! [`message`] is what is said, [`codec`] how it is framed, [`session`] who may say what when; none of them does IO.
//! [`link`] drives a worker's side with threads, `listen` (feature `tokio`) a daemon's with tasks, `peers` (the same) both
//! sides of what workers tell each other. [`tls`] is whom a worker trusts,
//! [`roster`] who has which name and place, [`given`] what a worker may speak of.

#![forbid(unsafe_code)]

pub mod address;
pub mod backoff;
pub mod codec;
pub mod given;
pub mod link;
#[cfg(feature = "tokio")]
pub mod listen;
pub mod message;
#[cfg(feature = "tokio")]
pub mod offline;
#[cfg(feature = "tokio")]
pub mod peers;
#[cfg(feature = "tokio")]
mod pipe;
pub mod roster;
pub mod session;
mod stream;
pub mod text;
pub mod tls;

pub use splitcore_secret as auth;
pub use splitcore_secret::hex;
