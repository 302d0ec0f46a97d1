//! Tests of what the backends share, and of the links that stand on others.

mod board;
mod faulty;
mod handshake;
pub(crate) mod kit;
mod landing;
mod ledger;
mod outcomes;
mod rules;
mod threads;
mod throttle;
