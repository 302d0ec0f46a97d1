//! Completions and chats by a service with workers of its own, as a client's bytes show them.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod errors;
mod kit;
mod restart;
mod streams;
