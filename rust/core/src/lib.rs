//! The scheduler core.
pub mod cluster;
pub mod config;
pub mod error;
pub mod event;
pub mod id;
pub mod kv;
pub mod leg;
pub mod machine;
pub mod placement;
pub mod time;
