//! The less loaded of two drawn machines on each side (Mitzenmacher, 2001); of two with equal loads the one drawn first,
//! so that idle machines are taken equally often. The draw is a hash of the seed and the request, so there is no
//! generator state.

use super::{LaterPools, Policy, each_side, own_pool_later};
use crate::cluster::pools::{Ask, Choice, View};
use crate::id::draw;

pub(super) struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn pick(&self, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        each_side(view, ask, |side, _, members| {
            let drawn = |counter: u64| {
                let counter = u64::from(ask.attempt) << 8 | (side as u64) << 4 | counter;
                let word = draw(view.config.seed, ask.order, counter);
                members[(word % members.len() as u64) as usize]
            };
            let (first, second) = (drawn(0), drawn(1));
            Some(if view.is_less(second, first, side) { second } else { first })
        })
    }

    fn later_pools(&self, view: &View<'_>, ask: &Ask<'_>) -> LaterPools {
        own_pool_later(view, ask)
    }
}
