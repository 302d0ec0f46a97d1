//! Workloads shared by the benchmarks. Each is seeded, reaches a steady state before anything is measured, and then
//! goes on in equal steps.

pub mod batching;
pub mod draws;
pub mod flows;
pub mod linear;
pub mod managed;
pub mod moving;
pub mod placing;
