//! Failures that users of other systems reported, as tests; `docs/scenarios.md` says which is which.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

#[path = "../kit/mod.rs"]
mod kit;
#[path = "../kv_kit/mod.rs"]
mod kv_kit;

mod blocks;
mod failing;
mod layouts;
mod listed;
mod pools;
mod scheduler;
mod site;
mod transfer;
mod waiting;
