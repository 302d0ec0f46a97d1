//! The machine with the fewest requests on each side.

use super::{Policy, each_side};
use crate::cluster::pools::{Ask, Choice, View};

pub(super) struct LeastRequests;

impl Policy for LeastRequests {
    fn pick(&self, view: &View<'_>, ask: &Ask) -> Option<Choice> {
        each_side(view, ask, |side, members| {
            let least = view.side_pool(side).and_then(|pool| view.least(pool, side));
            least.filter(|&machine| view.fits(machine, side, ask)).or_else(|| {
                // Machines of unequal size: the best of those that can hold it.
                let fitting = members.iter().copied().filter(|&machine| view.fits(machine, side, ask));
                fitting.reduce(|best, other| if view.is_less(other, best, side) { other } else { best })
            })
        })
    }
}
