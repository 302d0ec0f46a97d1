//! Random worlds around the scheduler core: one Cluster (at times two), n Machines, sessions, engines, a transport and
//! clients, all of them failing, all of it from one seed. In some, an embedder carries placements out instead
//! ([`embedder`]). After every event every invariant is recounted; then the
//! world heals, and every accepted request must end.
//!
//! [`run`] runs one seed, [`swarm`] many on all the processors one likes. The same seed always gives the same run.

pub mod embedder;
pub mod failures;
pub mod faults;
pub mod rng;
mod run;
pub mod setup;
mod swarm;
pub mod world;

pub use run::{Failed, Run, run, run_setup, trace};
pub use swarm::{Summary, first_failure, swarm};
