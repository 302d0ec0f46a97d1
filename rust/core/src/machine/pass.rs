//! The end of a pass: what its prompts and decodes become.

use super::Machine;
use super::pipeline::{NO_PASS, mark};
use crate::error::{Applied, EventError};
use crate::event::MachineAction;
use crate::id::LegKey;
use crate::leg::{Compute, Notice, Outbound};

impl Machine {
    pub(super) fn iteration_done(
        &mut self,
        pass: u64,
        ended: &[LegKey],
        actions: &mut Vec<MachineAction>,
    ) -> Result<Applied, EventError> {
        if !self.is_running() || pass != self.oldest_plan().pass {
            return Err(EventError::NotRunning { pass });
        }
        if let Some(&stray) = ended.iter().find(|&&key| !self.is_in_pass(key)) {
            return Err(EventError::NotInPass(stray));
        }
        for &key in ended {
            self.mark_ended(key);
        }
        self.leave();
        // Decodes first: a leg that only now begins to decode has not sat this pass out.
        self.finish_decodes(mark(pass), actions);
        self.finish_prefills(actions);
        self.forget_oldest();
        while let Some(slot) = self.joining.pop() {
            self.list_decode(slot);
        }
        Ok(Applied::Yes)
    }

    /// Whether a leg is in the oldest pass.
    fn is_in_pass(&self, key: LegKey) -> bool {
        let oldest = self.oldest_plan();
        self.legs.find(key).is_some_and(|slot| match self.legs.get(slot).compute() {
            Compute::Prefilling => {
                self.config.pipeline_stages == 1 || oldest.prefills.iter().any(|item| item.slot == slot)
            }
            Compute::Decoding => self
                .decode_index(slot)
                .is_some_and(|index| self.all_run || self.decodes[index].runs == mark(oldest.pass)),
            _ => false,
        })
    }

    fn mark_ended(&mut self, key: LegKey) {
        let Some(slot) = self.legs.find(key) else { return };
        self.legs.get_mut(slot).ended = true;
        if let Some(index) = self.decode_index(slot) {
            self.decodes[index].ends = true;
            self.ending = true;
        }
    }

    /// Where a decoding leg stands in the list. O(log n).
    pub(super) fn decode_index(&self, slot: u32) -> Option<usize> {
        let order = self.legs.get(slot).order;
        let from = self.decodes.partition_point(|decode| decode.order < order);
        let rest = &self.decodes[from..];
        // An aborted attempt and its successor have the same order.
        let here = rest.iter().take_while(|decode| decode.order == order).position(|d| d.slot == slot)?;
        Some(from + here)
    }

    fn finish_prefills(&mut self, actions: &mut Vec<MachineAction>) {
        for index in 0..self.oldest_plan().prefills.len() {
            let item = self.oldest_plan().prefills[index];
            let leg = self.legs.get_mut(item.slot);
            let is_whole = leg.prefilled(item.tokens);
            leg.generated += u32::from(item.samples);
            if leg.aborted {
                self.drop_aborted(item.slot, actions);
            } else if leg.ended {
                self.finish(item.slot, actions);
            } else if !is_whole {
                self.queue_rest(item.slot);
            } else {
                let notice = Notice::PrefillDone { key: item.key, sampled: item.samples };
                actions.push(MachineAction::Notify { notice });
                self.after_prefill(item.slot, actions);
            }
        }
    }

    /// The rest of a prompt waits in the place that it had.
    fn queue_rest(&mut self, slot: u32) {
        let leg = self.legs.get_mut(slot);
        let compute = if leg.recomputes { Compute::Evicted } else { Compute::Queued };
        leg.set(|state| state.compute = compute);
        self.enqueue(slot);
    }

    fn after_prefill(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        let leg = self.legs.get_mut(slot);
        if !leg.work.hands_over() {
            self.join_decodes(slot);
        } else if leg.state.outbound == Outbound::Released {
            self.release(slot, actions);
        } else {
            leg.set(|state| state.compute = Compute::Held);
            if leg.is_sending() {
                // A layer-wise transfer can end from here on.
                self.watch_transfer(slot);
            }
            self.put_if_granted(slot, actions);
        }
    }

    fn finish_decodes(&mut self, mark: u8, actions: &mut Vec<MachineAction>) {
        if self.all_run {
            for decode in &mut self.decodes {
                decode.kv_tokens += 1;
            }
            self.kv_tokens += self.decodes.len() as u64;
        } else {
            self.finish_some(mark);
        }
        if std::mem::take(&mut self.ending) {
            self.take_ended(actions);
        }
    }

    /// The general case: some ran, some sat out or are in another pass.
    fn finish_some(&mut self, mark: u8) {
        for decode in self.decodes.iter_mut().filter(|decode| decode.runs == mark) {
            decode.runs = NO_PASS;
            decode.kv_tokens += 1;
            self.kv_tokens += 1;
        }
    }

    fn take_ended(&mut self, actions: &mut Vec<MachineAction>) {
        let mut index = 0;
        while index < self.decodes.len() {
            let decode = &self.decodes[index];
            if !decode.ends || decode.runs != NO_PASS {
                self.ending |= decode.ends;
                index += 1;
                continue;
            }
            let slot = self.leave_decodes(index);
            if self.legs.get(slot).aborted {
                self.release(slot, actions);
            } else {
                self.finish(slot, actions);
            }
        }
    }

    /// Takes a leg out of the decode list; what the list knew of it goes back into the leg.
    pub(super) fn leave_decodes(&mut self, index: usize) -> u32 {
        let decode = self.decodes.remove(index);
        self.decodes_changed = true;
        self.sitting_out -= u32::from(decode.sat_out > 0);
        let leg = self.legs.get_mut(decode.slot);
        leg.generated = decode.kv_tokens - leg.work.prompt_tokens;
        leg.kv_tokens = decode.kv_tokens;
        decode.slot
    }

    /// The engine ended the request here: blocks back, and tell the Cluster. A leg whose first token was its last
    /// may still be sending; it drains first.
    fn finish(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        let leg = self.legs.get(slot);
        let (key, order, work, tokens) = (leg.key, leg.order, leg.work, leg.generated);
        if leg.is_sending() {
            self.stop_sending(slot, actions);
            self.legs.get_mut(slot).set(|state| state.compute = Compute::Done);
        } else {
            self.give_back(slot);
        }
        self.keep_finished(key, order, work, tokens);
        actions.push(MachineAction::Notify { notice: Notice::Finished { key, tokens } });
        self.after_give_back(actions);
    }
}
