//! Splitwise (Patel et al., ISCA 2024, section IV-A): prompt and token machine together, at arrival, by the
//! shortest queue. Each side searches its own pool, then the mixed pool, then borrows from the other side's pool
//! (the machine moves to mixed); if every pool is over, the least booked machine of all runs the whole request.

use super::Policy;
use crate::cluster::pools::{Ask, Choice, Pick, Side, View};
use crate::event::Role;
use crate::placement::Step;

pub(super) struct Splitwise;

impl Policy for Splitwise {
    fn pick(&self, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice> {
        let pinned = ask.pin_token.map(|machine| Pick { machine, step: Step::Pinned });
        let prompt = view
            .first_under([(Role::Prompt, Step::Own), (Role::Mixed, Step::Mixed)], Side::Prompt, ask)
            .or_else(|| view.borrow(Role::Token, Side::Prompt, ask));
        let token = pinned
            .or_else(|| {
                view.first_under([(Role::Token, Step::Own), (Role::Mixed, Step::Mixed)], Side::Token, ask)
            })
            .or_else(|| view.borrow(Role::Prompt, Side::Token, ask));
        if let (Some(prompt), Some(token)) = (prompt, token) {
            return Some(Choice { prompt, token });
        }
        let machine = view.least_of_all(ask)?;
        let least = Pick { machine, step: Step::LeastOfAll };
        Some(Choice { prompt: least, token: pinned.unwrap_or(least) })
    }
}
