//! Tests of what the backends share, and of the links that stand on others.

mod faulty;
pub(crate) mod kit;
mod landing;
mod ledger;
mod outcomes;
mod throttle;
