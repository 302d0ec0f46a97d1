//! The search over pool sizes, told verdicts made up from what is known to hold.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod examples;
mod grids;
mod kit;
mod rates;
