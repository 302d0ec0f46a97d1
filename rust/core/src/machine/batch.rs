//! The one batch rule (Splitwise, section IV-B): which legs run in the next pass, and who gives way when blocks
//! run out.
//!
//! A pass holds at most `batch_tokens_max` tokens (prompt tokens, and one for each decode) and `batch_requests_max`
//! requests; the first item always fits, so a longer prompt runs alone. It is filled with
//! 1. decodes that sat out `sit_out_max` passes in a row,
//! 2. prompts by their place in line, which is by arrival and priority, up to the first that does not fit,
//! 3. decodes that sat out the last pass, oldest first,
//! 4. the other decodes by arrival.
//!
//! With `prefill_chunk_tokens` the prompts of a pass have at most so many tokens together. The one that does not fit any
//! more is cut: it keeps its place and its blocks, and the next pass goes on with it.
//!
//! With a pipeline it takes none that is in a pass in flight, and no more than its share of the decodes.
//!
//! Joins and pauses happen between passes only. A paused decode keeps its blocks; an evicted one loses them and is
//! recomputed. The two have two counters.

use super::pipeline::NO_PASS;
use super::plan::Prefill;
use super::{Machine, Queued};
use crate::config::MachineConfig;
use crate::event::{MachineAction, Put};
use crate::id::Order;
use crate::leg::{Compute, Notice, Outbound};
use crate::placement::Mode;

/// A decoding leg. The list is dense and in arrival order, since every pass walks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Decode {
    pub(crate) order: Order,
    pub(crate) slot: u32,
    /// Prompt and output tokens so far; the next pass needs room for as many.
    pub(crate) kv_tokens: u32,
    /// Tokens its blocks hold.
    pub(crate) room_tokens: u32,
    /// Passes in a row it was left out of.
    pub(super) sat_out: u16,
    /// The mark of the pass being built or in flight that it is in. Where all are, this says nothing: see
    /// [`Machine::all_run`].
    pub(super) runs: u8,
    /// Its request ended in its running pass, or it was aborted during it.
    pub(super) ends: bool,
}

/// What is left of a pass.
struct Budget {
    tokens: u32,
    /// Prompt tokens, where prompts are cut.
    prompts: Option<u32>,
    requests: u32,
    decodes: u32,
    empty: bool,
}

impl Budget {
    /// Takes `tokens` if they fit; the first item always does.
    fn take(&mut self, tokens: u32) -> bool {
        if self.requests == 0 || (tokens > self.tokens && !self.empty) {
            return false;
        }
        self.tokens = self.tokens.saturating_sub(tokens);
        self.requests -= 1;
        self.empty = false;
        true
    }

    /// As many tokens of a prompt as may still be taken.
    fn cut(&self, tokens: u32) -> u32 {
        self.prompts.map_or(tokens, |left| tokens.min(left).min(self.tokens))
    }

    /// Takes a prompt, or a chunk of one, if it fits.
    fn take_prefill(&mut self, tokens: u32) {
        let taken = self.take(tokens);
        debug_assert!(taken, "{tokens} prompt tokens do not fit");
        self.prompts = self.prompts.map(|left| left - tokens);
    }

    /// Takes a decode if it fits.
    fn take_decode(&mut self) -> bool {
        let takes = self.decodes > 0 && self.take(1);
        self.decodes -= u32::from(takes);
        takes
    }
}

impl Machine {
    /// Builds the next pass and asks for it, unless there is nothing to run. It may start.
    pub(super) fn start_pass(&mut self, actions: &mut Vec<MachineAction>) {
        self.pipeline.is_due = false;
        self.set_plan_aside();
        let mut evicted = None;
        // An eviction can empty the very pass it was for; what it freed then serves another.
        while self.has_work() && evicted.replace(self.counters.evicted) != Some(self.counters.evicted) {
            self.build_pass(actions);
            if !self.plan.is_empty() {
                self.enter();
                self.stuck_since = None;
                self.count_sitting_out();
                self.attach_puts();
                actions.push(MachineAction::Run { pass: self.plan.pass });
                return;
            }
        }
        self.take_plan_back();
        let stuck = self.has_work() && !self.is_running();
        self.stuck_since = if stuck { self.stuck_since.or(Some(self.now)) } else { None };
    }

    fn build_pass(&mut self, actions: &mut Vec<MachineAction>) {
        self.plan.clear();
        let mut budget = self.budget();
        if self.sitting_out > 0 {
            self.take_starved(&mut budget);
        }
        if !self.queue.is_empty() {
            self.take_prompts(&mut budget);
        }
        self.take_decodes(&mut budget);
        self.grow(actions);
        if self.decodes_changed {
            self.list_decodes();
        }
        if self.plan.is_empty() && !self.is_running() {
            self.take_landed(&mut self.budget());
        }
    }

    fn budget(&self) -> Budget {
        let MachineConfig { batch_tokens_max: tokens, batch_requests_max: requests, .. } = self.config;
        let prompts = self.config.prefill_chunk_tokens;
        Budget { tokens, prompts, requests, decodes: self.decodes_share(), empty: true }
    }

    fn take_starved(&mut self, budget: &mut Budget) {
        let (limit, mark) = (self.config.sit_out_max, self.next_mark());
        for decode in self.decodes.iter_mut().filter(|decode| u32::from(decode.sat_out) >= limit) {
            decode.runs = if budget.take_decode() { mark } else { NO_PASS };
        }
    }

    fn take_prompts(&mut self, budget: &mut Budget) {
        while !self.queue.is_empty() && self.take_prompt(0, budget) {}
    }

    /// Takes the prompt at a place in the queue, if it fits and there is room.
    fn take_prompt(&mut self, at: usize, budget: &mut Budget) -> bool {
        let slot = self.queue[at].slot;
        let (start, left) = self.legs.get(slot).prefill();
        let tokens = budget.cut(left);
        let fits = budget.requests > 0 && (budget.empty || tokens <= budget.tokens);
        if !fits || (tokens == 0 && left > 0) || !self.make_room(slot) {
            return false;
        }
        budget.take_prefill(tokens);
        self.queue.remove(at);
        let leg = self.legs.get_mut(slot);
        let samples = tokens == left && (leg.work.samples_first() || leg.recomputes);
        self.plan.prefills.push(Prefill { key: leg.key, start, tokens, samples, slot });
        self.plan.prompt_tokens += tokens;
        leg.set(|state| state.compute = Compute::Prefilling);
        true
    }

    /// Where a machine would stand still, legs whose KV has landed go past prompts that wait for the very blocks they
    /// hold: they have all they need, and once they decode they can give way.
    fn take_landed(&mut self, budget: &mut Budget) {
        let mut at = 0;
        while at < self.queue.len() {
            if self.wanted_blocks(self.queue[at].slot) > 0 {
                at += 1;
            } else if !self.take_prompt(at, budget) {
                return;
            }
        }
    }

    /// Blocks a leg lacks for its next prefill.
    pub(super) fn wanted_blocks(&self, slot: u32) -> u32 {
        let leg = self.legs.get(slot);
        self.blocks_for(leg.prefill_room_tokens()).saturating_sub(leg.table.len())
    }

    /// Blocks for a prompt, if they can be had without taking the handoff floor or the blocks that running decodes
    /// need in this very pass. An otherwise empty machine gives everything, so that one request can always finish.
    fn make_room(&mut self, slot: u32) -> bool {
        let wanted = self.wanted_blocks(slot);
        if wanted == 0 {
            return true;
        }
        if self.pool.held() + self.pool.quarantined() > 0 {
            let growing = self.decodes.iter().filter(|decode| decode.kv_tokens > decode.room_tokens).count();
            let kept = self.handoff_floor_blocks().saturating_add(growing as u32);
            if wanted.saturating_add(kept) > self.pool.free() {
                return false;
            }
        }
        self.pool.allocate(wanted, &mut self.legs.get_mut(slot).table).is_ok()
    }

    /// Decodes in the order of the rule. Almost always all of them fit, and no flag needs to be set.
    fn take_decodes(&mut self, budget: &mut Budget) {
        let marked = |decode: &&Decode| decode.runs != NO_PASS;
        let taken = if self.sitting_out > 0 { self.decodes.iter().filter(marked).count() } else { 0 };
        let waiting = (self.decodes.len() - taken) as u32;
        let all_run = self.config.pipeline_stages == 1 && waiting <= budget.tokens.min(budget.requests);
        let all_ran = std::mem::replace(&mut self.all_run, all_run);
        self.decodes_changed |= !(all_ran && self.all_run);
        if self.all_run {
            if taken > 0 {
                self.decodes.iter_mut().for_each(|decode| decode.runs = NO_PASS);
            }
            return;
        }
        let mark = self.next_mark();
        for sat_out in [true, false] {
            for decode in self.decodes.iter_mut().filter(|decode| decode.runs == NO_PASS) {
                if sat_out == (decode.sat_out > 0) && budget.take_decode() {
                    decode.runs = mark;
                }
            }
        }
    }

    /// Gives each running decode the block its next token needs, oldest first; where none is free the youngest is
    /// evicted.
    fn grow(&mut self, actions: &mut Vec<MachineAction>) {
        let mark = self.next_mark();
        let (mut index, mut context_tokens, mut context_tokens_max) = (0, 0, 0);
        while let Some(decode) = self.decodes.get_mut(index) {
            if !self.all_run && decode.runs != mark {
                index += 1;
                continue;
            }
            if decode.kv_tokens <= decode.room_tokens {
                context_tokens += u64::from(decode.kv_tokens);
                context_tokens_max = context_tokens_max.max(decode.kv_tokens);
                index += 1;
                continue;
            }
            if self.pool.allocate(1, &mut self.legs.get_mut(decode.slot).table).is_ok() {
                decode.room_tokens += self.config.block_tokens;
            } else if let Some(victim) = self.victim() {
                self.evict(victim, actions);
                // The victim may be this decode, or an older one that had been spared before and is counted already.
                (index, context_tokens, context_tokens_max) = (0, 0, 0);
            } else {
                // The oldest is never taken, nor what another pass computes: this one sits out and keeps what it has.
                self.leave_out(index);
            }
        }
        (self.plan.context_tokens, self.plan.context_tokens_max) = (context_tokens, context_tokens_max);
    }

    /// The youngest decode that has not been evicted too often, or the youngest if all have; never the oldest. None
    /// while that one is in a pass in flight.
    fn victim(&self) -> Option<usize> {
        let limit = self.config.evictions_max;
        let younger = 1..self.decodes.len();
        let evictions = |index: usize| self.legs.get(self.decodes[index].slot).evictions;
        let youngest = younger.clone().rev().find(|&index| evictions(index) < limit).or(younger.last());
        youngest.filter(|&index| [NO_PASS, self.next_mark()].contains(&self.decodes[index].runs))
    }

    fn evict(&mut self, index: usize, actions: &mut Vec<MachineAction>) {
        let slot = self.leave_decodes(index);
        let leg = self.legs.get_mut(slot);
        leg.evictions += 1;
        leg.recomputes = true;
        leg.set(|state| state.compute = Compute::Evicted);
        self.pool.release(&mut leg.table);
        self.counters.evicted += 1;
        let notice = Notice::Evicted { key: leg.key, tokens: leg.kv_tokens };
        self.enqueue(slot);
        actions.push(MachineAction::Notify { notice });
    }

    /// Whether a decode is in the pass being built or in one in flight.
    pub(super) fn runs(&self, decode: &Decode) -> bool {
        self.all_run || decode.runs != NO_PASS
    }

    fn leave_out(&mut self, index: usize) {
        if std::mem::take(&mut self.all_run) {
            let mark = self.next_mark();
            self.decodes.iter_mut().for_each(|decode| decode.runs = mark);
        }
        self.decodes[index].runs = NO_PASS;
        self.decodes_changed = true;
    }

    /// Writes the plan's decodes anew. Left alone while the same ones run pass after pass.
    fn list_decodes(&mut self) {
        let mark = self.next_mark();
        self.plan.decodes.clear();
        for decode in &self.decodes {
            if self.all_run || decode.runs == mark {
                self.plan.decodes.push(self.legs.get(decode.slot).key);
            }
        }
        self.plan.decodes_version += 1;
        self.decodes_changed = false;
    }

    /// Counts the pass that begins for those who run in it and those who do not.
    fn count_sitting_out(&mut self) {
        if self.all_run && self.sitting_out == 0 {
            return;
        }
        for decode in &mut self.decodes {
            if self.all_run || decode.runs != NO_PASS {
                self.sitting_out -= u32::from(decode.sat_out > 0);
                decode.sat_out = 0;
            } else {
                self.sitting_out += u32::from(decode.sat_out == 0);
                self.counters.paused += u64::from(decode.sat_out == 0);
                decode.sat_out = decode.sat_out.saturating_add(1);
            }
        }
    }

    /// Layer-wise transfers whose grant is here start with the pass that ends the prompt; the mode of the others is
    /// thereby serialized.
    fn attach_puts(&mut self) {
        for index in 0..self.plan.prefills.len() {
            let Prefill { slot, tokens, .. } = self.plan.prefills[index];
            let leg = self.legs.get(slot);
            if tokens < leg.prefill().1 {
                continue;
            }
            let Some((to, Mode::LayerWise)) = leg.to else { continue };
            if leg.granted_by != Some(to) || leg.is_sending() || !self.take_send_place() {
                continue;
            }
            let leg = self.legs.get_mut(slot);
            leg.sends = true;
            leg.set(|state| state.outbound = Outbound::Sending);
            let tokens = leg.work.kv_tokens();
            self.plan.puts.push(Put { key: leg.key, order: leg.order, to, tokens, mode: Mode::LayerWise });
        }
    }

    /// Puts a leg into the prompt queue, in its place in line: an evicted one goes ahead of younger work. Of two that
    /// Clusters of the same time gave one place, the first here goes first.
    pub(super) fn enqueue(&mut self, slot: u32) {
        let leg = self.legs.get(slot);
        let queued = Queued { line: leg.work.terms.line, order: leg.order, slot };
        let at = self.queue.partition_point(|other| other.place() <= queued.place());
        self.queue.insert(at, queued);
    }

    /// A leg begins to decode: with the next pass, since joins happen between passes only.
    pub(super) fn join_decodes(&mut self, slot: u32) {
        let leg = self.legs.get_mut(slot);
        leg.set(|state| state.compute = Compute::Decoding);
        let kv_tokens = leg.work.prompt_tokens + leg.generated;
        self.kv_tokens += u64::from(kv_tokens);
        self.kv_tokens -= u64::from(std::mem::replace(&mut leg.kv_tokens, kv_tokens));
        if self.is_running() && self.config.pipeline_stages == 1 {
            self.joining.push(slot);
        } else {
            self.list_decode(slot);
        }
    }

    /// Puts a leg into the decode list, by arrival. The list then knows its tokens.
    pub(super) fn list_decode(&mut self, slot: u32) {
        let leg = self.legs.get_mut(slot);
        let decode = Decode {
            order: leg.order,
            slot,
            kv_tokens: std::mem::take(&mut leg.kv_tokens),
            room_tokens: leg.table.len() * self.config.block_tokens,
            sat_out: 0,
            runs: NO_PASS,
            ends: false,
        };
        let at = self.decodes.partition_point(|other| other.order <= decode.order);
        self.decodes.insert(at, decode);
        self.decodes_changed = true;
    }
}
