//! One machine of the live service: its sessions, its scheduler and its KV transfers, around an engine that only runs passes.

#![forbid(unsafe_code)]

pub mod mover;
