//! Tests of what the backends share, and of the links that stand on others.

mod kit;
mod ledger;
