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
use crate::event::Role;
use crate::placement::Step;

/// Pools in the order in which they are searched.
pub(crate) type LaterPools = &'static [(Role, Step)];

/// How machines are chosen.
pub(crate) trait Policy {
    /// Both sides of an arrival, in one decision. `None` if no machine can hold it.
    fn pick(&self, view: &View<'_>, ask: &Ask<'_>) -> Option<Choice>;

    /// The pools whose machines a second leg that waits may use.
    fn later_pools(&self, _view: &View<'_>, _ask: &Ask<'_>) -> LaterPools {
        &[(Role::Token, Step::Own), (Role::Mixed, Step::Mixed), (Role::Prompt, Step::Opposite)]
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

/// For policies that choose each side on its own: `choose` gets the side, its pool, and the machines of that pool that
/// can take the side's part. Where both sides have the same pool (no prompt and no token machines), one machine runs the
/// whole request; so does one where a side has no machine to make a pair with.
fn each_side(
    view: &View<'_>,
    ask: &Ask<'_>,
    choose: impl Fn(Side, Role, &[u32]) -> Option<u32>,
) -> Option<Choice> {
    let own = |machine| Pick { machine, step: Step::Own };
    let side = |side| {
        let (pool, members) = view.side_members(side, ask)?;
        Some((pool, own(choose(side, pool, &members)?)))
    };
    let least = |machine| Pick { machine, step: Step::LeastOfAll };
    let whole = || view.least_of_all(ask).map(least).map(Choice::whole);
    let Some((prompt_pool, prompt)) = side(Side::Prompt) else {
        let pinned = ask.pin_token.map(|machine| Choice::whole(Pick { machine, step: Step::Pinned }));
        return pinned.or_else(whole);
    };
    if let Some(machine) = ask.pin_token {
        return Some(Choice { prompt, token: Pick { machine, step: Step::Pinned } });
    }
    let Some((token_pool, token)) = side(Side::Token) else { return whole() };
    Some(if prompt_pool == token_pool { Choice::whole(token) } else { Choice { prompt, token } })
}

/// For policies whose machines do not change pools: the pool that a token side is chosen from.
fn own_pool_later(view: &View<'_>, ask: &Ask<'_>) -> LaterPools {
    match view.side_members(Side::Token, ask) {
        Some((Role::Token, _)) => &[(Role::Token, Step::Own)],
        Some((Role::Mixed, _)) => &[(Role::Mixed, Step::Own)],
        Some((Role::Prompt, _)) => &[(Role::Prompt, Step::Own)],
        None => &[],
    }
}
