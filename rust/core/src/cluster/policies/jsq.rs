//! Unsplit: join the shortest queue over all machines, by booked load. The paper's baseline, with every machine
//! mixed.

use super::Policy;
use crate::cluster::pools::{Ask, Choice, Pick, View};
use crate::event::Role;
use crate::placement::Step;

/// Every machine is in one of them.
const ALL: [Role; 3] = [Role::Prompt, Role::Token, Role::Mixed];

pub(super) struct Jsq;

impl Policy for Jsq {
    fn pick(&self, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let pick = match ask.pin_token {
            Some(machine) => Pick { machine, step: Step::Pinned },
            None => Pick { machine: view.least_booked(&ALL, ask)?, step: Step::Own },
        };
        Some(Choice::whole(pick))
    }
}
