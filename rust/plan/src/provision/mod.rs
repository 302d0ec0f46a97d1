//! Which pools of which machines: the cheapest that hold a rate, or the fastest within limits.
//!
//! Which clusters are judged, and at which rate, is up to an inquiry that knows answers only: `cheapest`, `fastest`
//! or, if nothing holds, `binding`. The search turns questions into probes, seed after seed: the first for every
//! cluster in question, the next only for those that held all before.

mod answer;
mod binding;
mod cheapest;
mod confirm;
mod edge;
mod fastest;
mod judged;
mod search;
mod space;
mod spec;

pub use answer::{Binding, Candidate, Cell, Chosen, Provision, Spare};
pub use search::ProvisionSearch;
pub use spec::{Design, Goal, Limits, Price, ProvisionSpec};
