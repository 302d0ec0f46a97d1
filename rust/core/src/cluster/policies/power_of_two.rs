//! The less loaded of two drawn machines on each side (Mitzenmacher, 2001). The draw is a hash of the seed and the
//! request, so there is no generator state.

use super::{Policy, each_side};
use crate::cluster::pools::{Ask, Choice, View};
use crate::id::draw;

pub(super) struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn pick(&self, view: &View<'_>, ask: &Ask) -> Option<Choice> {
        each_side(view, ask, |side, members| {
            let drawn = |counter: u64| {
                let counter = u64::from(ask.attempt) << 8 | (side as u64) << 4 | counter;
                let word = draw(view.config.seed, ask.order, counter);
                members[(word % members.len() as u64) as usize]
            };
            let (first, second) = (drawn(0), drawn(1));
            let best = if view.is_less(second, first, side) { second } else { first };
            let fits = |machine: &u32| view.fits(*machine, side, ask);
            Some(best).filter(fits).or_else(|| members.iter().copied().find(fits))
        })
    }
}
