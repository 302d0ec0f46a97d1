//! The whole service in one process: HTTP in front, real workers behind it, two for prompts and two for outputs, KV over
//! real transports. The tests of `docs/scenarios.md` that need all of it at once.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

#[allow(dead_code, reason = "made for the tests of the protocol")]
#[path = "../../../wire/tests/kit/certificates.rs"]
mod certificates;
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "made for the worker's own tests")]
#[path = "../../../worker/tests/live/model.rs"]
mod model;

mod fleet;
mod kit;
mod late;
mod legs;
mod lines;
mod many;
mod secure;
mod slow;
