//! The three pools and the search that policies share.
//!
//! Pool order is the order of entry: a machine that comes home goes to the end. Of equal loads the machine is chosen that
//! was taken longest ago, or the first or the last in pool order, as [`Ties`] says.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::load_index::{Key, LoadIndex, RANK_MAX};
use super::machines::MachineEntry;
use super::policies::LaterPools;
use super::transfers::Suspects;
use crate::config::{ClusterConfig, PolicyKind, Ties};
use crate::event::Role;
use crate::id::Order;
pub use crate::placement::Side;
use crate::placement::Step;

/// Loads are compared as `load * SCALE / speed_weight`, so that weights act in whole numbers.
const SCALE: u64 = 1 << 16;

/// Membership, and two load indexes a pool: one a side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Pools {
    ties: Ties,
    members: [Vec<u32>; 3],
    index: [[LoadIndex; 2]; 3],
    /// Place of each machine among those of equal load: the lower is chosen. It comes from one count for all pools, as a
    /// machine enters its pool and, where machines are taken in turn, as it is taken.
    rank: Vec<u64>,
    ranks: u64,
    /// Members by capacity and speed weight. Of machines that are alike the least loaded stands for all.
    sizes: [BTreeMap<(u64, u32), u32>; 3],
    kv: Option<KvTotal>,
}

/// KV tokens and capacity of all members together, and what each has in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct KvTotal {
    tokens: u128,
    capacity_tokens: u128,
    of: Vec<(u64, u64)>,
}

impl KvTotal {
    /// Out of the way of those who keep no total.
    #[cold]
    fn set(&mut self, machine: u32, tokens: u64, capacity_tokens: u64) {
        let at = machine as usize;
        if self.of.len() <= at {
            self.of.resize(at + 1, (0, 0));
        }
        let old = std::mem::replace(&mut self.of[at], (tokens, capacity_tokens));
        self.tokens = self.tokens - u128::from(old.0) + u128::from(tokens);
        self.capacity_tokens = self.capacity_tokens - u128::from(old.1) + u128::from(capacity_tokens);
    }
}

impl Pools {
    /// Without machines; `kv` to keep the KV tokens of all members together.
    pub(crate) fn new(ties: Ties, kv: bool) -> Self {
        Self { ties, kv: kv.then(KvTotal::default), ..Self::default() }
    }

    /// KV tokens and capacity of all members together, if they are kept.
    pub(crate) fn kv_total(&self) -> Option<(u128, u128)> {
        self.kv.as_ref().map(|kv| (kv.tokens, kv.capacity_tokens))
    }

    /// Takes a machine into the pool that it is to be in.
    pub(crate) fn enter(&mut self, machine: u32, entry: &MachineEntry) {
        let at = machine as usize;
        if self.rank.len() <= at {
            self.rank.resize(at + 1, 0);
        }
        self.put_last(machine);
        self.members[entry.pool as usize].push(machine);
        *self.sizes[entry.pool as usize].entry(size(entry)).or_insert(0) += 1;
    }

    /// A machine is given something: where machines are taken in turn, it comes after all others of its load.
    #[inline]
    pub(crate) fn take(&mut self, machine: u32) {
        if self.ties == Ties::Turn {
            self.put_last(machine);
        }
    }

    fn put_last(&mut self, machine: u32) {
        self.rank[machine as usize] = match self.ties {
            Ties::Turn | Ties::First => self.ranks,
            Ties::Last => RANK_MAX - self.ranks,
        };
        self.ranks += 1;
    }

    /// The place of a machine among those of equal load.
    pub(crate) fn rank(&self, machine: u32) -> u64 {
        self.rank.get(machine as usize).copied().unwrap_or(0)
    }

    /// Takes a machine out of the pool that it is in. O(pool size); machines change pools rarely.
    pub(crate) fn leave(&mut self, machine: u32, entry: &MachineEntry) {
        let pool = entry.pool as usize;
        self.members[pool].retain(|&member| member != machine);
        for index in &mut self.index[pool] {
            index.set(machine, None);
        }
        let left = self.sizes[pool].get_mut(&size(entry)).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            self.sizes[pool].remove(&size(entry));
        }
        if let Some(kv) = &mut self.kv {
            kv.set(machine, 0, 0);
        }
    }

    /// Whether all members of a pool can hold and do equally much.
    pub(crate) fn are_alike(&self, pool: Role) -> bool {
        self.sizes[pool as usize].len() <= 1
    }

    /// Brings a machine's keys up to date. O(log n).
    pub(crate) fn refresh(&mut self, policy: PolicyKind, machine: u32, entry: &MachineEntry) {
        if !entry.pooled {
            return;
        }
        if let Some(kv) = &mut self.kv {
            kv.set(machine, entry.kv_load, entry.kv_capacity_tokens);
        }
        for side in [Side::Prompt, Side::Token] {
            let key = self.key(policy, side, machine, entry);
            self.index[entry.pool as usize][side as usize].set(machine, Some(key));
        }
    }

    pub(crate) fn key(&self, policy: PolicyKind, side: Side, machine: u32, entry: &MachineEntry) -> Key {
        let load = load(policy, side, entry);
        let scaled = match entry.speed_weight {
            // The usual case, without a 128-bit division.
            1 => load.saturating_mul(SCALE),
            weight => {
                let exact = u128::from(load) * u128::from(SCALE) / u128::from(weight);
                u64::try_from(exact).unwrap_or(u64::MAX)
            }
        };
        Key::new(scaled, self.rank[machine as usize], machine)
    }

    pub(crate) fn members(&self, pool: Role) -> &[u32] {
        &self.members[pool as usize]
    }

    pub(crate) fn index(&self, pool: Role, side: Side) -> &LoadIndex {
        &self.index[pool as usize][side as usize]
    }
}

/// What makes two machines alike.
fn size(entry: &MachineEntry) -> (u64, u32) {
    (entry.kv_capacity_tokens, entry.speed_weight)
}

/// What a policy compares machines by on one side.
pub(crate) fn load(policy: PolicyKind, side: Side, entry: &MachineEntry) -> u64 {
    match (policy, side) {
        (PolicyKind::LeastRequests, _) => u64::from(entry.legs),
        (PolicyKind::Jsq, _) | (_, Side::Prompt) => entry.booked,
        (_, Side::Token) => entry.kv_load,
    }
}

/// A request as a policy sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Tokens to prefill: the prompt, and after a fault the output so far.
    pub(crate) prompt_tokens: u32,
    /// Tokens at most when it ends.
    pub(crate) total_tokens_max: u64,
    /// Whether its first output token is its last: it ends with its prompt.
    pub(crate) ends_with_prompt: bool,
    /// Its arrival.
    pub(crate) order: Order,
    /// Draws differ from attempt to attempt.
    pub(crate) attempt: u32,
    /// The machine that must decode it.
    pub(crate) pin_token: Option<u32>,
    /// Machines that its KV did not get to: they are not asked twice.
    pub(crate) unreached: &'a [u32],
}

/// One side of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pick {
    /// Which machine.
    pub(crate) machine: u32,
    /// Where it was found.
    pub(crate) step: Step,
}

/// A pair; one leg where both are the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Who prefills.
    pub(crate) prompt: Pick,
    /// Who decodes.
    pub(crate) token: Pick,
}

impl Choice {
    /// The whole request on one machine.
    pub(crate) fn whole(pick: Pick) -> Self {
        Self { prompt: pick, token: pick }
    }
}

/// What a policy may look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) config: &'a ClusterConfig,
    pub(crate) machines: &'a [MachineEntry],
    pub(crate) pools: &'a Pools,
    pub(crate) suspects: &'a Suspects,
    /// Placements so far.
    pub(crate) placements: u64,
}

impl View<'_> {
    /// The least loaded machine of a pool on one side of those that `suits` accepts. O(1) where it accepts the least
    /// loaded of all, or where all are alike: `suits` must then refuse the others as well.
    pub(crate) fn least(
        &self,
        pool: Role,
        side: Side,
        ask: &Ask<'_>,
        suits: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let index = self.pools.index(pool, side);
        let least = index.least()?.machine();
        if suits(least) {
            return Some(least);
        }
        if self.are_alike(pool, ask) {
            return None;
        }
        index.iter().filter(|key| suits(key.machine())).min().map(Key::machine)
    }

    /// The least loaded machine of all pools that can hold the whole request. O(1) where the least loaded of all can.
    pub(crate) fn least_of_all(&self, ask: &Ask<'_>) -> Option<u32> {
        let pools = [Role::Prompt, Role::Token, Role::Mixed];
        let winners = pools.iter().filter_map(|&pool| self.pools.index(pool, Side::Prompt).least());
        let least = winners.min()?.machine();
        if self.fits(least, ask) {
            return Some(least);
        }
        let all = pools.iter().flat_map(|&pool| self.pools.index(pool, Side::Prompt).iter());
        all.filter(|key| self.fits(key.machine(), ask)).min().map(Key::machine)
    }

    /// The least booked machine of some pools that can hold the request, as the unsplit rule compares. O(1) where the least
    /// booked of all can, but for the policy that compares by another load.
    pub(crate) fn least_booked(&self, pools: &[Role], ask: &Ask<'_>) -> Option<u32> {
        let key = |at| self.pools.key(PolicyKind::Jsq, Side::Prompt, at, &self.machines[at as usize]);
        let is_indexed = self.config.policy != PolicyKind::LeastRequests;
        let winners = pools.iter().filter_map(|&pool| self.pools.index(pool, Side::Prompt).least());
        let least = winners.min().map(Key::machine).filter(|&machine| is_indexed && self.fits(machine, ask));
        least.or_else(|| {
            let all = pools.iter().flat_map(|&pool| self.pools.members(pool)).copied();
            all.filter(|&machine| self.fits(machine, ask)).map(key).min().map(Key::machine)
        })
    }

    /// Where a prompt too short to be split runs: as an unsplit one, on the machines that decode.
    pub(crate) fn for_short(&self, ask: &Ask<'_>) -> Option<Choice> {
        let pinned = ask.pin_token.map(|machine| Pick { machine, step: Step::Pinned });
        let least = |pools: &[Role]| self.least_booked(pools, ask);
        let pick = || {
            let machine = least(&[Role::Token, Role::Mixed]).or_else(|| least(&[Role::Prompt]))?;
            Some(Pick { machine, step: Step::Own })
        };
        pinned.or_else(pick).map(Choice::whole)
    }

    /// The least loaded machine that is not over, of the first of `pools` that has one.
    pub(crate) fn first_under(&self, pools: [(Role, Step); 2], side: Side, ask: &Ask<'_>) -> Option<Pick> {
        pools.into_iter().find_map(|(pool, step)| {
            let machine = self.least(pool, side, ask, |machine| !self.is_over(machine, side, ask))?;
            Some(Pick { machine, step })
        })
    }

    /// The least loaded machine of the other side's pool that can hold its part, over or not.
    pub(crate) fn borrow(&self, pool: Role, side: Side, ask: &Ask<'_>) -> Option<Pick> {
        let machine = self.least(pool, side, ask, |machine| self.can_take(machine, side, ask))?;
        Some(Pick { machine, step: Step::Opposite })
    }

    /// The least loaded machine that `suits` accepts on the token side, of the first of `pools` that has one. A scan,
    /// since few legs wait: where machines are unequal, the least loaded can be over and another not.
    pub(crate) fn least_later(&self, pools: LaterPools, suits: impl Fn(u32) -> bool) -> Option<Pick> {
        pools.iter().find_map(|&(pool, step)| {
            let keys = self.pools.index(pool, Side::Token).iter();
            let least = keys.filter(|key| suits(key.machine())).min();
            least.map(|key| Pick { machine: key.machine(), step })
        })
    }

    /// Whether a leg that waits finds room on a machine. One that holds nothing takes whatever it can hold: nothing that
    /// ends there could make more room.
    pub(crate) fn has_room(&self, machine: u32, ask: &Ask<'_>) -> bool {
        let entry = &self.machines[machine as usize];
        let is_empty = entry.kv_load == 0 && self.can_take(machine, Side::Token, ask);
        // One that said that it has no block left refuses; its next report may say otherwise.
        entry.may_have_room() && (is_empty || !self.is_over(machine, Side::Token, ask))
    }

    /// The machines a side chooses from when machines do not change pools: those that can take its part, in pool order,
    /// of its own pool, else mixed, else the other.
    pub(crate) fn side_members(&self, side: Side, ask: &Ask<'_>) -> Option<(Role, Cow<'_, [u32]>)> {
        let pools = match side {
            Side::Prompt => [Role::Prompt, Role::Mixed, Role::Token],
            Side::Token => [Role::Token, Role::Mixed, Role::Prompt],
        };
        pools.into_iter().find_map(|pool| {
            let members = self.pools.members(pool);
            let can_take = |machine: &u32| self.can_take(*machine, side, ask);
            let able = if self.are_alike(pool, ask) {
                Cow::Borrowed(if members.first().is_some_and(can_take) { members } else { &[] })
            } else {
                Cow::Owned(members.iter().copied().filter(can_take).collect())
            };
            (!able.is_empty()).then_some((pool, able))
        })
    }

    /// Load on one side, in the policy's unit.
    pub(crate) fn load(&self, machine: u32, side: Side) -> u64 {
        load(self.config.policy, side, &self.machines[machine as usize])
    }

    /// Whether the first machine has less on this side than the second.
    pub(crate) fn is_less(&self, first: u32, second: u32, side: Side) -> bool {
        let load = |at: u32| {
            let entry = &self.machines[at as usize];
            (self.load(at, side), u64::from(entry.speed_weight))
        };
        let ((first, first_weight), (second, second_weight)) = (load(first), load(second));
        u128::from(first) * u128::from(second_weight) < u128::from(second) * u128::from(first_weight)
    }

    /// Whether what holds of one machine of a pool holds of all.
    fn are_alike(&self, pool: Role, ask: &Ask<'_>) -> bool {
        self.pools.are_alike(pool) && ask.unreached.is_empty() && !self.suspects.any_aside()
    }

    /// Whether one side of a pair can be given to a machine: it can hold it, and KV gets there and away, as far as is
    /// known.
    pub(crate) fn can_take(&self, machine: u32, side: Side, ask: &Ask<'_>) -> bool {
        self.fits(machine, ask)
            && !self.suspects.is_aside(machine)
            && !(side == Side::Token && ask.unreached.contains(&machine))
    }

    /// Whether a machine can hold the request. Either side must hold the whole: where its KV cannot be sent, a request
    /// runs on where it is.
    pub(crate) fn fits(&self, machine: u32, ask: &Ask<'_>) -> bool {
        ask.total_tokens_max <= self.machines[machine as usize].kv_capacity_tokens
    }

    /// Whether a side has too much already (design of Splitwise, thresholds of its public simulator).
    pub(crate) fn is_over(&self, machine: u32, side: Side, ask: &Ask<'_>) -> bool {
        let entry = &self.machines[machine as usize];
        let prompt = u64::from(ask.prompt_tokens);
        let over = match side {
            Side::Prompt => entry.booked > 0 && entry.booked + prompt > self.config.prompt_pending_tokens_max,
            Side::Token => {
                let filled = u128::from(entry.kv_load + prompt + 1) * 1000;
                filled > u128::from(self.config.kv_fill_max_permille) * u128::from(entry.kv_capacity_tokens)
            }
        };
        over || !self.can_take(machine, side, ask)
    }
}
