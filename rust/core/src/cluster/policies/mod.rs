//! The policies, one short file each, behind one small trait. A policy sees a read-only view and returns a choice;
//! the Cluster applies it. It keeps no state: what it needs to remember (how many placements there were, in which
//! order) is in the view.

mod jsq;
mod least_requests;
mod power_of_two;
mod round_robin;
mod splitwise;

use super::pools::{Ask, Choice, Pick, Side, View};
use crate::config::PolicyKind;
use crate::placement::Step;

/// How machines are chosen.
pub(crate) trait Policy {
    /// Both sides of an arrival, in one decision. `None` if no machine can hold it.
    fn pick(&self, view: &View<'_>, ask: &Ask) -> Option<Choice>;

    /// Another token machine after `except` refused. `None` leaves the leg waiting.
    fn place_later(&self, view: &View<'_>, ask: &Ask, except: &[u32]) -> Option<Pick> {
        view.token_side_except(except, ask)
    }
}

/// The policy of a kind.
pub(crate) fn policy(kind: PolicyKind) -> &'static dyn Policy {
    match kind {
        PolicyKind::Splitwise => &splitwise::Splitwise,
        PolicyKind::Jsq => &jsq::Jsq,
        PolicyKind::LeastRequests => &least_requests::LeastRequests,
        PolicyKind::RoundRobin => &round_robin::RoundRobin,
        PolicyKind::PowerOfTwo => &power_of_two::PowerOfTwo,
    }
}

/// For policies that choose each side on its own: `choose` gets the side and the members of its pool. Where both
/// sides have the same pool (no prompt and no token machines), one machine runs the whole request.
fn each_side(view: &View<'_>, ask: &Ask, choose: impl Fn(Side, &[u32]) -> Option<u32>) -> Option<Choice> {
    let (prompt_pool, token_pool) = (view.side_pool(Side::Prompt)?, view.side_pool(Side::Token)?);
    let own = |machine| Pick { machine, step: Step::Own };
    let pinned = ask.pin_token.map(|machine| Pick { machine, step: Step::Pinned });
    let token = pinned.or_else(|| choose(Side::Token, view.members(token_pool)).map(own))?;
    if prompt_pool == token_pool && pinned.is_none() {
        return Some(Choice::whole(token));
    }
    let prompt = choose(Side::Prompt, view.members(prompt_pool)).map(own)?;
    Some(Choice { prompt, token })
}
