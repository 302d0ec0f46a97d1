//! Each side's machines in turn, in pool order. The turn is the number of placements so far, so a rejected request
//! leaves it where it was.

use super::{Policy, each_side};
use crate::cluster::pools::{Ask, Choice, View};

pub(super) struct RoundRobin;

impl Policy for RoundRobin {
    fn pick(&self, view: &View<'_>, ask: &Ask) -> Option<Choice> {
        each_side(view, ask, |side, members| {
            let turn = (view.placements % members.len() as u64) as usize;
            let in_turn = members[turn..].iter().chain(&members[..turn]);
            in_turn.copied().find(|&machine| view.fits(machine, side, ask))
        })
    }
}
