//! Failures that users of other systems reported, as tests; `docs/scenarios.md` says which is which.

#[path = "../kit/mod.rs"]
mod kit;

mod blocks;
mod listed;
mod scheduler;
mod site;
mod transfer;
