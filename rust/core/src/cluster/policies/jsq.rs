//! Unsplit: join the shortest queue over all machines, by booked load. The paper's baseline, with every machine
//! mixed.

use super::Policy;
use crate::cluster::pools::{Ask, Choice, Pick, View};
use crate::placement::Step;

pub(super) struct Jsq;

impl Policy for Jsq {
    fn pick(&self, view: &View<'_>, ask: &Ask) -> Option<Choice> {
        let pick = match ask.pin_token {
            Some(machine) => Pick { machine, step: Step::Pinned },
            None => Pick { machine: view.least_of_all(ask)?, step: Step::Own },
        };
        Some(Choice::whole(pick))
    }
}
