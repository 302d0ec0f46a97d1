//! Each side's machines in turn, in pool order. The turn is the number of placements so far, so a rejected request
//! leaves it where it was.

use super::{LaterPools, Policy, each_side, own_pool_later};
use crate::cluster::pools::{Ask, Choice, View};

pub(super) struct RoundRobin;

impl Policy for RoundRobin {
    fn pick(&self, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        each_side(view, ask, |_, _, members| {
            members.get((view.placements % members.len() as u64) as usize).copied()
        })
    }

    fn later_pools(&self, view: &View<'_>, ask: &Ask<'_>) -> LaterPools {
        own_pool_later(view, ask)
    }
}
