//! The three pools and the search that policies share.
//!
//! Pool order is the order of entry: a machine that comes home goes to the end. Equal loads go to the first, or to
//! the last where [`Ties`] says so.

use super::load_index::{Key, LoadIndex};
use super::machines::MachineEntry;
use crate::config::{ClusterConfig, PolicyKind, Ties};
use crate::event::Role;
use crate::id::Order;
use crate::placement::Step;

/// Which half of a request a machine is sought for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Prefill.
    Prompt,
    /// Decode.
    Token,
}

/// Loads are compared as `load * SCALE / speed_weight`, so that weights act in whole numbers.
const SCALE: u64 = 1 << 16;

/// Membership, and two load indexes a pool: one a side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Pools {
    ties: Ties,
    members: [Vec<u32>; 3],
    index: [[LoadIndex; 2]; 3],
    /// Order of entry of each machine.
    rank: Vec<u32>,
    entries: u32,
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

    pub(crate) fn enter(&mut self, pool: Role, machine: u32) {
        let at = machine as usize;
        if self.rank.len() <= at {
            self.rank.resize(at + 1, 0);
        }
        self.rank[at] = self.entries;
        self.entries += 1;
        self.members[pool as usize].push(machine);
    }

    /// O(pool size); machines change pools rarely.
    pub(crate) fn leave(&mut self, pool: Role, machine: u32) {
        self.members[pool as usize].retain(|&member| member != machine);
        for index in &mut self.index[pool as usize] {
            index.set(machine, None);
        }
        if let Some(kv) = &mut self.kv {
            kv.set(machine, 0, 0);
        }
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
        let rank = self.rank[machine as usize];
        let rank = if self.ties == Ties::Last { u32::MAX - rank } else { rank };
        Key::new(scaled, rank, machine)
    }

    pub(crate) fn members(&self, pool: Role) -> &[u32] {
        &self.members[pool as usize]
    }

    pub(crate) fn index(&self, pool: Role, side: Side) -> &LoadIndex {
        &self.index[pool as usize][side as usize]
    }
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
pub(crate) struct Ask {
    /// Tokens to prefill: the prompt, and after a fault the output so far.
    pub(crate) prompt_tokens: u32,
    /// Tokens at most when it ends.
    pub(crate) total_tokens_max: u64,
    /// Its arrival.
    pub(crate) order: Order,
    /// Draws differ from attempt to attempt.
    pub(crate) attempt: u32,
    /// The machine that must decode it.
    pub(crate) pin_token: Option<u32>,
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
    /// Placements so far.
    pub(crate) placements: u64,
}

impl View<'_> {
    /// The least loaded machine of a pool on one side. O(1).
    pub(crate) fn least(&self, pool: Role, side: Side) -> Option<u32> {
        self.pools.index(pool, side).least().map(Key::machine)
    }

    /// The least booked machine of all pools that can hold the request. O(1) where all machines are alike.
    pub(crate) fn least_of_all(&self, ask: &Ask) -> Option<u32> {
        let pools = [Role::Prompt, Role::Token, Role::Mixed];
        let winners = pools.iter().filter_map(|&pool| self.pools.index(pool, Side::Prompt).least());
        let least = winners.min()?.machine();
        if self.fits(least, Side::Token, ask) {
            return Some(least);
        }
        let all = pools.iter().flat_map(|&pool| self.pools.index(pool, Side::Prompt).iter());
        all.filter(|key| self.fits(key.machine(), Side::Token, ask)).min().map(Key::machine)
    }

    /// The least loaded machine of the first of `pools` that is not over.
    pub(crate) fn first_under(&self, pools: [(Role, Step); 2], side: Side, ask: &Ask) -> Option<Pick> {
        pools.into_iter().find_map(|(pool, step)| {
            let machine = self.least(pool, side)?;
            (!self.is_over(machine, side, ask)).then_some(Pick { machine, step })
        })
    }

    /// The least loaded machine of the other side's pool, over or not, as long as the request fits at all.
    pub(crate) fn borrow(&self, pool: Role, side: Side, ask: &Ask) -> Option<Pick> {
        let machine = self.least(pool, side)?;
        self.fits(machine, side, ask).then_some(Pick { machine, step: Step::Opposite })
    }

    /// The token side again, after a refusal: the least loaded machine that is not over, of the first pool that has
    /// one, leaving some machines out. A scan, since refusals are rare: where machines are unequal, the least loaded
    /// can be over and another not.
    pub(crate) fn token_side_except(&self, except: &[u32], ask: &Ask) -> Option<Pick> {
        let pools = [(Role::Token, Step::Own), (Role::Mixed, Step::Mixed), (Role::Prompt, Step::Opposite)];
        pools.into_iter().find_map(|(pool, step)| {
            let keys = self.pools.index(pool, Side::Token).iter();
            // One that said that it has no block left refuses; its next report may say otherwise.
            let has_room = |machine: u32| {
                !except.contains(&machine)
                    && !self.is_over(machine, Side::Token, ask)
                    && self.machines[machine as usize].may_have_room()
            };
            let least = keys.filter(|key| has_room(key.machine())).min();
            least.map(|key| Pick { machine: key.machine(), step })
        })
    }

    /// The pool a side chooses from when machines do not change pools: its own, else mixed, else the other.
    pub(crate) fn side_pool(&self, side: Side) -> Option<Role> {
        let pools = match side {
            Side::Prompt => [Role::Prompt, Role::Mixed, Role::Token],
            Side::Token => [Role::Token, Role::Mixed, Role::Prompt],
        };
        pools.into_iter().find(|&pool| !self.pools.members(pool).is_empty())
    }

    /// The machines of a pool in pool order.
    pub(crate) fn members(&self, pool: Role) -> &[u32] {
        self.pools.members(pool)
    }

    /// Load on one side, in the policy's unit.
    pub(crate) fn load(&self, machine: u32, side: Side) -> u64 {
        load(self.config.policy, side, &self.machines[machine as usize])
    }

    /// Whether the first machine comes before the second on this side.
    pub(crate) fn is_less(&self, first: u32, second: u32, side: Side) -> bool {
        let key = |at: u32| self.pools.key(self.config.policy, side, at, &self.machines[at as usize]);
        key(first) < key(second)
    }

    /// Whether a side of the request can be held at all.
    pub(crate) fn fits(&self, machine: u32, side: Side, ask: &Ask) -> bool {
        let need = match side {
            Side::Prompt => u64::from(ask.prompt_tokens),
            Side::Token => ask.total_tokens_max,
        };
        need <= self.machines[machine as usize].kv_capacity_tokens
    }

    /// Whether a side has too much already (design of Splitwise, thresholds of its public simulator).
    pub(crate) fn is_over(&self, machine: u32, side: Side, ask: &Ask) -> bool {
        let entry = &self.machines[machine as usize];
        let prompt = u64::from(ask.prompt_tokens);
        let over = match side {
            Side::Prompt => entry.booked > 0 && entry.booked + prompt > self.config.prompt_pending_tokens_max,
            Side::Token => {
                let filled = u128::from(entry.kv_load + prompt + 1) * 1000;
                filled > u128::from(self.config.kv_fill_max_permille) * u128::from(entry.kv_capacity_tokens)
            }
        };
        over || !self.fits(machine, side, ask)
    }
}
