//! Every cell of the failure table (`docs/failures.md`): a leg in each legal state meets each failure that it can meet.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

#[path = "../../../swarm/src/failures.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "a module of another crate, made into a document there")]
mod failures;
mod cancel;
mod drain;
mod machine_lost;
mod paused;
mod peer_lost;
mod peer_reset;
mod restart;
mod rig;
mod scenes;
mod session;
mod strike;
mod transfer;
