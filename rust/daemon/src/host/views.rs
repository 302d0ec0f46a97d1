//! What can be looked at: loads, counts, and the reasons of the last decisions.

use serde::Serialize;
use splitcore_core::cluster::{ClusterCounters, MachineLoad, MachineState};
use splitcore_core::error::Rejection;
use splitcore_core::event::Role;
use splitcore_core::id::MachineId;
use splitcore_core::leg::Command;
use splitcore_core::placement::{Mode, Placement, Seat, Step};

use super::managed::{BlocksView, HandoffView, KvTotals, Managed};
use super::{DECISIONS_KEPT, Fault, Host, REJECTIONS, State};

/// Machines that an overview has at most.
const MACHINES_SHOWN: usize = 200;

/// Every state of a machine that is here.
pub const STATES: [MachineState; 4] =
    [MachineState::Up, MachineState::Away, MachineState::Quarantined, MachineState::Draining];

/// What is counted beside the core's counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// By reason, in the order of `REJECTIONS`.
    pub rejected: [u64; REJECTIONS.len()],
    /// Leases that ran out.
    pub expired: u64,
    /// Machines that changed pools.
    pub moved: u64,
}

impl Totals {
    pub(super) fn reject(&mut self, reason: Rejection) {
        if let Some(at) = REJECTIONS.iter().position(|&each| each == reason) {
            self.rejected[at] += 1;
        }
    }
}

/// One of the last decisions. Names of machines are looked up when it is shown.
#[derive(Debug, Clone)]
pub struct Decision {
    at_ns: u64,
    request: u64,
    /// What the client calls the request, which is not known any more when that is over.
    name: Option<String>,
    answer: Result<Placement, Rejection>,
}

/// A decision as the page shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DecisionView {
    /// How long ago.
    age_ms: u64,
    request_id: u64,
    /// What the client calls it; of services with workers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    attempt: Option<u32>,
    prompt: Option<String>,
    token: Option<String>,
    transfer: Option<Mode>,
    prompt_step: Option<Step>,
    token_step: Option<Step>,
    prompt_load: Option<u64>,
    token_load: Option<u64>,
    runner_up: Option<String>,
    rejected: Option<&'static str>,
}

/// The books of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowView {
    /// Its name.
    pub name: String,
    /// Where its engine listens.
    pub url: Option<String>,
    /// Its home pool.
    pub role: Role,
    /// The pool it is in.
    pub pool: Role,
    /// Whether it takes work.
    pub state: MachineState,
    /// Live legs.
    pub legs: u32,
    /// Prompt tokens booked and not yet prefilled.
    pub prompt_pending_tokens: u64,
    /// KV tokens, by report and bookings.
    pub kv_tokens: u64,
    /// KV tokens it can hold.
    pub kv_capacity_tokens: u64,
    /// Its blocks; of workers of this service only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlocksView>,
}

/// Mean, largest and spread of one number over the machines of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Largest.
    pub max: f64,
    /// Standard deviation.
    pub std_dev: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        Self { mean, max: values.iter().copied().fold(0.0, f64::max), std_dev: variance.sqrt() }
    }
}

/// A pool in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PoolView {
    /// Which.
    pub pool: Role,
    /// Machines that take work.
    pub machines: usize,
    /// Prompt tokens that wait.
    pub queue_tokens: Spread,
    /// Share of KV tokens in use.
    pub kv_usage: Spread,
}

/// Everything at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Overview {
    /// Live requests.
    pub live: usize,
    /// Of these, those that wait for a machine.
    pub parked: usize,
    /// Which Cluster speaks: higher than any before it, of a service with workers of its own.
    pub epoch: u64,
    /// Since the start.
    pub uptime_ms: u64,
    /// Tokens given to clients so far; of services with workers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// The pools.
    pub pools: Vec<PoolView>,
    /// How many machines there are, lost ones left out.
    pub machines_total: usize,
    /// Of these, the first few hundred: those that something is the matter with, then the rest, by pool and name.
    pub machines: Vec<RowView>,
    /// The last decisions, newest first.
    pub decisions: Vec<DecisionView>,
    /// The last handoffs, newest first; of services with workers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoffs: Option<Vec<HandoffView>>,
    /// What the core has counted.
    pub counters: ClusterCounters,
    /// What else is counted.
    #[serde(skip)]
    pub totals: Totals,
    /// KV of services with workers of their own.
    #[serde(skip)]
    pub kv: Option<KvTotals>,
    /// Machines by state, in the order of `STATES`.
    #[serde(skip)]
    pub states: [usize; STATES.len()],
    /// Sessions of workers that ended because of what they said, by the message.
    #[serde(skip)]
    pub violations: Vec<(&'static str, u64)>,
}

impl Host {
    /// The books of some machines from an index on, lost ones included, and where to go on.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn rows(&self, from: u32, most: u32) -> Result<(Vec<RowView>, Option<u32>), Fault> {
        self.with(|state| {
            let all = state.core.machines_len();
            let until = from.saturating_add(most).min(all);
            let loads = (from..until).filter_map(|index| state.core.load(index));
            Ok((loads.filter_map(|load| state.row(&load)).collect(), (until < all).then_some(until)))
        })
    }

    /// Everything at one moment.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn overview(&self) -> Result<Overview, Fault> {
        self.with(|state| Ok(state.overview()))
    }

    /// Live requests, those of them that wait, and the core's counters.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn counters(&self) -> Result<(usize, usize, ClusterCounters), Fault> {
        self.with(|state| {
            state.begin()?;
            Ok((state.core.live_requests(), state.core.parked_requests(), state.core.counters()))
        })
    }

    /// Whether a prompt and an output could be computed now.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn is_usable(&self) -> Result<bool, Fault> {
        self.with(|state| {
            let up = || state.loads().filter(|load| load.state == MachineState::Up);
            let prompt = up().any(|load| load.home != Role::Token);
            let token = up().any(|load| load.home != Role::Prompt);
            Ok(prompt && token)
        })
    }

    /// KV tokens of the largest machine that takes work; 0 without any.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn kv_capacity_tokens_max(&self) -> Result<u64, Fault> {
        self.with(|state| {
            let up = state.loads().filter(|load| load.state == MachineState::Up);
            Ok(up.map(|load| load.kv_capacity_tokens).max().unwrap_or(0))
        })
    }

    /// Whether it waits for the workers of an earlier service, and places nothing new.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn is_recovering(&self) -> Result<bool, Fault> {
        self.with(|state| {
            state.begin()?;
            Ok(state.core.is_recovering())
        })
    }

    /// Recounts everything and compares with the books: `Some` is a bug.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn check(&self) -> Result<Option<String>, Fault> {
        self.with(|state| {
            if let Err(fault) = state.core.check() {
                return Ok(Some(fault.0));
            }
            let (known, live) = (state.live.len(), state.core.live_requests());
            Ok((known != live).then(|| format!("{known} live requests known, {live} in the core")))
        })
    }
}

impl State {
    fn loads(&self) -> impl Iterator<Item = MachineLoad> {
        (0..self.core.machines_len()).filter_map(|index| self.core.load(index))
    }

    fn row(&self, load: &MachineLoad) -> Option<RowView> {
        let machine = self.machines.at(load.machine.index)?;
        Some(RowView {
            name: machine.name.clone(),
            url: machine.url.clone(),
            role: load.home,
            pool: load.pool,
            state: load.state,
            legs: load.legs,
            prompt_pending_tokens: load.prompt_pending_tokens,
            kv_tokens: load.kv_tokens,
            kv_capacity_tokens: load.kv_capacity_tokens,
            blocks: self.managed.as_ref().and_then(|of| of.watch.blocks(load.machine.index)),
        })
    }

    fn overview(&self) -> Overview {
        let now_ns = self.clock.now().as_ns();
        let here: Vec<MachineLoad> = self.loads().filter(|load| load.state != MachineState::Lost).collect();
        let pools = [Role::Prompt, Role::Token, Role::Mixed].map(|pool| {
            let of = || here.iter().filter(move |load| load.pool == pool && load.state == MachineState::Up);
            let queues: Vec<f64> = of().map(|load| load.prompt_pending_tokens as f64).collect();
            let usage: Vec<f64> =
                of().map(|load| load.kv_tokens as f64 / load.kv_capacity_tokens.max(1) as f64).collect();
            PoolView {
                pool,
                machines: queues.len(),
                queue_tokens: Spread::of(&queues),
                kv_usage: Spread::of(&usage),
            }
        });
        let states = STATES.map(|state| here.iter().filter(|load| load.state == state).count());
        Overview {
            live: self.core.live_requests(),
            parked: self.core.parked_requests(),
            epoch: self.core.epoch().0.into(),
            uptime_ms: now_ns / 1_000_000,
            output_tokens: None,
            pools: pools.to_vec(),
            decisions: self.recent.iter().rev().map(|decision| self.shown(decision, now_ns)).collect(),
            handoffs: self.managed.as_ref().map(|managed| {
                let name = |index| self.machines.at(index).map_or_else(String::new, |it| it.name.clone());
                managed.watch.shown(name)
            }),
            counters: self.core.counters(),
            totals: self.totals,
            kv: self.managed.as_ref().map(|managed| managed.watch.totals()),
            states,
            machines_total: here.len(),
            machines: self.foremost(&here),
            violations: self.managed.as_ref().map_or_else(Vec::new, Managed::violations),
        }
    }

    /// The machines that people look at first: those that something is the matter with, then the rest, each by pool
    /// and name; of very many, only some.
    fn foremost(&self, here: &[MachineLoad]) -> Vec<RowView> {
        let is_well = |load: &&MachineLoad| load.state == MachineState::Up;
        let (well, unwell): (Vec<_>, Vec<_>) = here.iter().partition(is_well);
        let shown = unwell.into_iter().chain(well).take(MACHINES_SHOWN);
        let mut rows: Vec<RowView> = shown.filter_map(|load| self.row(load)).collect();
        let rank = |row: &RowView| {
            let pool = match row.pool {
                Role::Prompt => 0,
                Role::Token => 1,
                Role::Mixed => 2,
            };
            (row.state == MachineState::Up, pool)
        };
        rows.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name)));
        rows
    }

    fn shown(&self, decision: &Decision, now_ns: u64) -> DecisionView {
        let placed = decision.answer.ok().map(|placement| self.named(placement));
        let why = placed.as_ref().map(|placed| placed.placement.why);
        let name = |machine: Option<&std::sync::Arc<super::Machine>>| machine.map(|it| it.name.clone());
        DecisionView {
            age_ms: now_ns.saturating_sub(decision.at_ns) / 1_000_000,
            request_id: decision.request,
            name: decision.name.clone(),
            attempt: placed.as_ref().map(|placed| placed.placement.attempt.0),
            prompt: name(placed.as_ref().and_then(|placed| placed.prompt.as_ref())),
            token: name(placed.as_ref().and_then(|placed| placed.token.as_ref())),
            transfer: placed.as_ref().and_then(|placed| placed.placement.transfer()),
            prompt_step: why.map(|why| why.prompt_step),
            token_step: why.map(|why| why.token_step),
            prompt_load: why.map(|why| why.prompt_load),
            token_load: why.map(|why| why.token_load),
            runner_up: name(placed.as_ref().and_then(|placed| placed.runner_up.as_ref())),
            rejected: decision.answer.err().map(Rejection::name),
        }
    }

    pub(super) fn decided(&mut self, placement: &Placement) {
        let why = placement.why;
        let name = |machine: Option<splitcore_core::id::MachineId>| {
            machine.and_then(|machine| self.machines.at(machine.index)).map(|machine| machine.name.as_str())
        };
        let runner_up = why.runner_up.and_then(|(index, _)| self.machines.at(index));
        tracing::debug!(
            request = placement.request.0,
            attempt = placement.attempt.0,
            prompt = name(placement.prompt()),
            token = name(placement.token()),
            transfer = ?placement.transfer(),
            prompt_step = ?why.prompt_step,
            token_step = ?why.token_step,
            prompt_load = why.prompt_load,
            token_load = why.token_load,
            runner_up = runner_up.map(|machine| machine.name.as_str()),
            "placed"
        );
        self.remember(placement.request.0, Ok(*placement));
    }

    /// The output of a request goes to another machine than it was placed on, in the same attempt: its destination is
    /// lost or has no room, or was to be chosen later.
    pub(super) fn follow(&mut self, to: MachineId, command: &Command) {
        let Command::Reserve { key, .. } = *command else { return };
        let Some(Some(placement)) = self.live.get_mut(&key.request.0) else { return };
        let Some(leg) = placement.legs[1].as_mut().filter(|leg| leg.machine.id() != Some(to)) else { return };
        leg.machine = Seat::Fixed(to);
        let placement = *placement;
        let token = self.machines.at(to.index).map(|machine| machine.name.as_str());
        tracing::debug!(request = key.request.0, attempt = key.attempt.0, token, "placed its output");
        if let Some(managed) = &mut self.managed {
            managed.redirected(&placement, self.core.now());
        }
    }

    pub(super) fn rejected(&mut self, request: u64, reason: Rejection) {
        self.remember(request, Err(reason));
    }

    fn remember(&mut self, request: u64, answer: Result<Placement, Rejection>) {
        if self.recent.len() == DECISIONS_KEPT {
            self.recent.pop_front();
        }
        let asked = self.managed.as_ref().and_then(|of| of.book.get(request));
        let name = asked.map(|entry| entry.ask.name.clone());
        self.recent.push_back(Decision { at_ns: self.core.now().as_ns(), request, name, answer });
    }
}
