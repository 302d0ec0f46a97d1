//! The placement service: one [`splitcore_core::cluster::Cluster`] behind HTTP, for engines that bring their own
//! workers; or, with a model, the daemon of the live service, whose workers connect to it.
//!
//! `host` has the lock, the clock and what is kept beside the core (`host/managed`: sessions of workers, tokens for
//! clients); `http` the routes; `openai` completions and chats; `connection` what
//! one client may take, `server` signals and the end. Nothing in here decides where a request runs: that is the core's.

#![forbid(unsafe_code)]

pub mod clock;
mod connection;
mod doors;
pub mod host;
pub mod http;
pub mod metrics;
mod openai;
pub mod options;
pub mod server;
#[doc(hidden)]
pub mod testing;
mod timed;
mod tls;
mod words;

pub use options::{OptionError, Options};
pub use server::{ServeError, Server, Stop, run};
