//! Random worlds around the scheduler core: one Cluster (at times two), n Machines, sessions, engines, a transport and
//! clients, all of them failing, all of it from one seed. After every event every invariant is recounted; then the
//! world heals, and every accepted request must end.

pub mod failures;
pub mod world;
