//! The phase-split scheduler as two deterministic state machines without IO.
//!
//! [`cluster::Cluster`] chooses machines and keeps the life of every request; [`machine::Machine`] batches, owns KV
//! blocks and runs its half of each handoff. Each takes the time and one event and answers with actions; carrying
//! those out (a network, an engine, a simulator) is the driver's. Nothing in here reads a clock, opens a socket, starts
//! a thread, uses a float or iterates in hash order, so the same events always give the same actions.
//!
//! ```
//! use splitcore_core::cluster::Cluster;
//! use splitcore_core::config::{ClusterConfig, Level};
//! use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Role};
//! use splitcore_core::id::MachineId;
//! use splitcore_core::time::Time;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut cluster = Cluster::new(ClusterConfig { level: Level::External, ..ClusterConfig::default() })?;
//! let mut actions = Vec::new();
//! for (index, role) in [Role::Prompt, Role::Token].into_iter().enumerate() {
//!     let machine = MachineId { index: index as u32, incarnation: 1 };
//!     let join = Join { machine, role, kv_capacity_tokens: 83_380, speed_weight: 1, link: None, costs: None };
//!     let _ = cluster.handle(Time::ZERO, &ClusterEvent::Join(join), &mut actions)?;
//! }
//! let arrival = Arrival::new(1, 1500, 400);
//! let _ = cluster.handle(Time::from_ns(5), &ClusterEvent::Arrive(arrival), &mut actions)?;
//! let Some(ClusterAction::Placed(placement)) = actions.last() else { panic!("not placed") };
//! assert_eq!(placement.prompt().map(|machine| machine.index), Some(0));
//! assert_eq!(placement.token().map(|machine| machine.index), Some(1));
//! cluster.check()?;
//! # Ok(())
//! # }
//! ```
//!
//! Where to look: `leg` has the states of a leg and every message; `event` what goes in and comes out; `config` each
//! threshold with its default; `placement` how a request is cut; `cost` what passes are expected to take.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod config;
pub mod cost;
pub mod error;
pub mod event;
pub mod id;
pub mod kv;
pub mod leg;
pub mod machine;
pub mod placement;
pub mod time;
