//! The engine of each machine, and what its driver does with tokens.

use std::collections::BTreeSet;

use splitcore_core::event::{Claim, Held, MachineEvent};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::leg::{Command, Compute, Inbound};
use splitcore_core::machine::{BatchPlan, Machine, Prefill};
use splitcore_core::placement::Upto;

use super::links::Message;
use super::{Event, World};

/// What an engine knows of a leg.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    /// Whose prompt.
    pub(super) owner: usize,
    /// Output tokens it has.
    pub(super) has: u32,
    /// Of these, the ones that came with its prompt.
    pub(super) resumed: u32,
    /// Its KV comes with one more token, which its source sampled.
    pub(super) follows: bool,
    /// Its tokens are not sent: the Cluster has yet to say from where on.
    pub(super) muted: bool,
    /// Where it is handed over, if that is before the last prompt token.
    pub(super) cut: Option<u32>,
    /// Where the next chunk of its prompt begins, once there was one.
    pub(super) chunked: Option<u32>,
}

impl World {
    /// What the engine reads from a command.
    pub(super) fn learn(&mut self, id: MachineId, command: &Command, owner: Option<usize>) {
        let (Command::Reserve { key, work, .. }
        | Command::Compute { key, work, .. }
        | Command::Keep { key, work, .. }) = *command
        else {
            return;
        };
        let Some(owner) = owner else { panic!("{command:?} without a prompt") };
        let prompt_tokens = self.submitted[owner].client.prompt_tokens;
        let has = work.terms.resumed_tokens;
        assert_eq!(work.prompt_tokens, prompt_tokens + has, "{command:?} for a prompt of {prompt_tokens}");
        let follows = work.start >= work.prompt_tokens;
        let cut = match work.upto {
            Upto::Position(upto) => Some(upto).filter(|&upto| upto < work.prompt_tokens),
            Upto::End => None,
        };
        let context = Context { owner, has, resumed: has, follows, muted: false, cut, chunked: None };
        let Some(place) = self.place(id) else { return };
        let is_here = place.contexts.get(&key).is_some_and(|known| known.owner == owner);
        // A leg goes on with what it has while its request is to be kept.
        if !(is_here && matches!(command, Command::Keep { .. })) {
            place.contexts.insert(key, context);
        }
    }

    pub(super) fn context(&self, id: MachineId, key: LegKey) -> Context {
        let context = self.places[id.index as usize].contexts.get(&key).copied();
        context.unwrap_or_else(|| panic!("{id:?} knows nothing of {key:?}"))
    }

    /// Prompt and output tokens so far.
    fn context_tokens(&self, id: MachineId, key: LegKey) -> u32 {
        let context = self.context(id, key);
        self.submitted[context.owner].client.prompt_tokens + context.has
    }

    pub(super) fn run_pass(&mut self, id: MachineId, pass: u64) {
        let Some(machine) = self.machine(id) else { return };
        let plan = machine.plan().clone();
        assert_eq!(plan.pass, pass);
        self.check_plan(id, &plan);
        let (low, high) = self.setup.pass_ns;
        let took = self.rng.within(low, high);
        for put in plan.puts {
            self.put(id, put, Some(took));
        }
        let lag = self.rng.within(0, self.setup.engine_lag_ns);
        let ends_at = self.now + took + lag;
        if self.setup.machines[id.index as usize].config.pipeline_stages > 1 {
            // It may come too late to be told: the pass has ended.
            let free_at = self.now + self.rng.within(0, took + lag);
            self.push(free_at, Event::StageFree { machine: id, pass });
        }
        let Some(place) = self.place(id) else { return };
        place.passes.push_back((pass, ends_at));
        if place.passes.len() == 1 {
            self.push(ends_at, Event::PassDone { machine: id, pass });
        }
    }

    /// An engine may say so twice.
    pub(super) fn stage_free(&mut self, id: MachineId, pass: u64) {
        let Some(place) = self.place(id) else { return };
        if !place.passes.iter().any(|&(runs, _)| runs == pass) {
            return;
        }
        if self.rng.chance(100) {
            self.push(self.now, Event::StageFree { machine: id, pass });
        }
        self.tell_machine(id, &MachineEvent::StageFree { pass });
    }

    /// No more passes than stages, and no leg in two of them.
    fn check_passes(&self, id: MachineId) {
        let Some(machine) = self.machine(id) else { return };
        let mut passes = 0;
        let mut legs = BTreeSet::new();
        for plan in machine.passes() {
            passes += 1;
            for key in plan.prefills.iter().map(|item| &item.key).chain(&plan.decodes) {
                assert!(legs.insert(*key), "{key:?} is in two passes of {id:?}");
            }
        }
        let stages = self.setup.machines[id.index as usize].config.pipeline_stages;
        assert!(passes <= stages, "{id:?} has {passes} passes in flight");
    }

    /// The limits of a batch, its sums, and first come first served.
    fn check_plan(&self, id: MachineId, plan: &BatchPlan) {
        self.check_passes(id);
        let config = self.setup.machines[id.index as usize].config;
        let items = plan.prefills.len() + plan.decodes.len();
        let tokens = plan.prompt_tokens as usize + plan.decodes.len();
        assert!(items <= config.batch_requests_max as usize, "{plan:?}");
        assert!(tokens <= config.batch_tokens_max as usize || items == 1, "{plan:?}");
        let context = |key: &LegKey| u64::from(self.context_tokens(id, *key));
        assert_eq!(plan.context_tokens, plan.decodes.iter().map(context).sum::<u64>());
        let chunk = config.prefill_chunk_tokens.unwrap_or(u32::MAX);
        assert!(plan.prompt_tokens <= chunk, "chunks of {chunk}: {plan:?}");
        for item in &plan.prefills {
            let end = item.start + item.tokens;
            assert!(!item.samples || end == self.context_tokens(id, item.key), "{item:?}");
            let follows = self.context(id, item.key).chunked;
            assert!(follows.is_none_or(|at| at == item.start), "{item:?} goes on at {follows:?}");
        }
        let Some(machine) = self.machine(id) else { return };
        let room = |key: LegKey| machine.leg(key).map_or(0, |(_, table)| table.len() * config.block_tokens);
        let decodes = plan.decodes.iter().map(|&key| (key, self.context_tokens(id, key)));
        let prefills = plan.prefills.iter().map(|item| (item.key, item.start + item.tokens));
        for (key, tokens) in decodes.chain(prefills) {
            assert!(room(key) >= tokens, "{key:?} computes {tokens} tokens in {}", room(key));
        }
        if plan.prefills.is_empty() {
            return;
        }
        check_prompt_order(machine, plan);
    }

    pub(super) fn pass_done(&mut self, id: MachineId, pass: u64) {
        let Some(machine) = self.machine(id) else { return };
        let plan = machine.oldest_plan().clone();
        let Some(place) = self.place(id) else { return };
        assert_eq!(place.passes.pop_front().map(|(oldest, _)| oldest), Some(pass));
        if let Some(&(next, ends_at)) = place.passes.front() {
            self.push(self.now.max(ends_at), Event::PassDone { machine: id, pass: next });
        }
        for item in &plan.prefills {
            let context = self.place(id).and_then(|place| place.contexts.get_mut(&item.key));
            if let Some(context) = context {
                let end = item.start + item.tokens;
                let more = !item.samples && context.cut != Some(end);
                context.chunked = more.then_some(end);
            }
        }
        let sampled = plan.prefills.iter().filter(|item| item.samples).map(|item| item.key);
        let mut ended = Vec::new();
        for key in sampled.chain(plan.decodes.iter().copied()).collect::<Vec<_>>() {
            if self.sample(id, key) {
                ended.push(key);
            }
        }
        self.tell_machine(id, &MachineEvent::IterationDone { pass, ended });
    }

    /// One more token of a leg. Returns whether it was the last.
    fn sample(&mut self, id: MachineId, key: LegKey) -> bool {
        self.add_token(id, key);
        let context = self.context(id, key);
        let ends = context.has >= self.submitted[context.owner].client.output_tokens;
        if ends {
            self.out.ended_at.entry(context.owner).or_insert(self.out.lines.len());
        }
        ends
    }

    /// A machine has one more token of a leg, and sends it.
    pub(super) fn add_token(&mut self, id: MachineId, key: LegKey) {
        let Some(place) = self.place(id) else { return };
        let in_session = place.session.is_some() && place.orphaned_at.is_none();
        let context = place.contexts.get_mut(&key);
        let Some(context) = context else { panic!("{id:?} knows nothing of {key:?}") };
        context.has += 1;
        // In a new session, before the Cluster has said from where on it needs them, all come first that it may
        // lack: the gateway drops what it has.
        let first = if context.muted { context.resumed + 1 } else { context.has };
        context.muted &= !in_session;
        let context = *context;
        if in_session {
            (first..=context.has).for_each(|index| self.send_token(id, key, context, index));
        }
    }

    fn send_token(&mut self, id: MachineId, key: LegKey, context: Context, index: u32) {
        // An engine that went on only to hear that it had ended has nothing to send.
        if index <= self.submitted[context.owner].client.output_tokens {
            self.say(id, Message::Token { key, index, owner: context.owner });
        }
    }

    /// The Cluster says from which token on it needs them.
    pub(super) fn resend(&mut self, id: MachineId, key: LegKey, delivered: u32) {
        let context = self.place(id).and_then(|place| place.contexts.get_mut(&key));
        let Some(context) = context else { panic!("{id:?} knows nothing of {key:?}") };
        context.muted = false;
        let context = *context;
        for index in delivered + 1..=context.has {
            self.send_token(id, key, context, index);
        }
    }

    /// The token that the source sampled comes with the last layer.
    pub(super) fn follow(&mut self, id: MachineId, key: LegKey) {
        let context = self.place(id).and_then(|place| place.contexts.get_mut(&key));
        if context.is_some_and(|context| std::mem::take(&mut context.follows)) {
            self.add_token(id, key);
        }
    }

    pub(super) fn count_evicted(&mut self, id: MachineId) {
        if let Some(machine) = self.machine(id) {
            self.out.counters.evicted += machine.counters().evicted;
        }
    }

    pub(super) fn legs_on(&self, id: MachineId) -> Vec<LegKey> {
        self.machine(id).map_or(Vec::new(), |machine| machine.leg_keys().collect())
    }
}

/// Prompts start in the order of their line: none that waits stands before one that starts. Two Clusters that lived at once
/// can have given one place in line to two requests. Where a machine would stand still, legs whose KV has landed may go
/// past prompts that wait for blocks.
fn check_prompt_order(machine: &Machine, plan: &BatchPlan) {
    let claims = machine.claims();
    let place = |claim: &Claim| (claim.work.terms.line, claim.order);
    let place_of = |key: LegKey| {
        let here = claims.binary_search_by_key(&key, |claim| claim.key).ok();
        here.map(|at| place(&claims[at]))
    };
    let starts: Vec<_> = plan.prefills.iter().map(|item| place_of(item.key)).collect();
    assert!(starts.is_sorted(), "prompts start out of order: {plan:?}");
    let landed = |key| machine.leg(key).is_some_and(|(state, _)| state.inbound == Inbound::Ready);
    // A prompt that has begun has its blocks as well.
    let has_blocks = |item: &Prefill| item.start > 0 || landed(item.key);
    let alone = machine.passes().count() == 1;
    if alone && plan.decodes.is_empty() && plan.prefills.iter().all(has_blocks) {
        return;
    }
    let last = starts.last().copied().flatten();
    for claim in &claims {
        let waits = matches!(claim.held, Held::Leg { state, .. } if state.compute == Compute::Queued);
        assert!(
            !waits || Some(place(claim)) >= last,
            "{:?} waits while a later one starts: {plan:?}",
            claim.key
        );
    }
}
