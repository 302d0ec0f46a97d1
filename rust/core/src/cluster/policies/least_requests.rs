//! The machine with the fewest requests on each side.

use super::{LaterPools, Policy, each_side, own_pool_later};
use crate::cluster::pools::{Ask, Choice, View};

pub(super) struct LeastRequests;

impl Policy for LeastRequests {
    fn pick(&self, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        each_side(view, ask, |side, pool, _| {
            view.least(pool, side, ask, |machine| view.can_take(machine, side, ask))
        })
    }

    fn later_pools(&self, view: &View<'_>, ask: &Ask<'_>) -> LaterPools {
        own_pool_later(view, ask)
    }
}
