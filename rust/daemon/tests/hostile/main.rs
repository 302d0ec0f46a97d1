//! What no honest client sends: the right status and shape, nothing lost, and never more memory than is stated.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod browsers;
mod greedy;
mod process;
mod wrong;
