//! How a leg leaves: released after its handoff, or aborted at whatever it was doing. Each block is freed once.

use super::Machine;
use crate::error::Applied;
use crate::event::MachineAction;
use crate::id::{AssignmentSeq, LegKey};
use crate::leg::{Compute, Inbound, Notice, Peer};

impl Machine {
    /// The Cluster gives a leg up. What the engine or a writer still touches is dropped when they let go.
    pub(super) fn abort(
        &mut self,
        key: LegKey,
        seq: AssignmentSeq,
        actions: &mut Vec<MachineAction>,
    ) -> Applied {
        self.last_seq = self.last_seq.max(seq);
        self.forget_outcome(key);
        let Some(slot) = self.legs.find(key) else {
            // Gone already; the answer lets the Cluster close its books all the same.
            let report = self.riding_report();
            actions.push(MachineAction::Notify { notice: Notice::Released { key, to: None, report } });
            return self.late();
        };
        self.legs.get_mut(slot).aborted = true;
        match self.legs.get(slot).compute() {
            Compute::Prefilling => self.stop_sending(slot, actions),
            Compute::Decoding => self.abort_decode(slot, actions),
            Compute::Queued | Compute::Evicted => {
                self.queue.retain(|queued| queued.slot != slot);
                self.release(slot, actions);
            }
            Compute::Held | Compute::Done => self.drop_aborted(slot, actions),
            Compute::Waiting => self.abort_waiting(slot, actions),
        }
        Applied::Yes
    }

    fn abort_decode(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        let Some(index) = self.decode_index(slot) else {
            self.joining.retain(|&joins| joins != slot);
            self.release(slot, actions);
            return;
        };
        if self.is_running() && self.runs(&self.decodes[index]) {
            self.decodes[index].ends = true;
            self.ending = true;
        } else {
            self.leave_decodes(index);
            self.release(slot, actions);
        }
    }

    fn abort_waiting(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        let leg = self.legs.get_mut(slot);
        if leg.state.inbound == Inbound::Draining {
            return;
        }
        if !leg.writer_may_write() {
            self.release(slot, actions);
            return;
        }
        leg.set(|state| state.inbound = Inbound::Draining);
        self.pool.quarantine(&leg.table);
        if let Some(to) = leg.source {
            actions.push(MachineAction::Peer { to, message: Peer::Abort { key: leg.key } });
        }
    }

    /// Drops an aborted leg that computes no more, once nothing reads it.
    pub(super) fn drop_aborted(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        if self.legs.get(slot).is_sending() {
            self.stop_sending(slot, actions);
            self.legs.get_mut(slot).set(|state| state.compute = Compute::Done);
        } else {
            self.release(slot, actions);
        }
    }

    /// Frees a leg's blocks and says so. A leg that told its end has left the Cluster's books with it, and a
    /// `Released` could be taken for one about a later request of the same name.
    pub(super) fn release(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        self.acknowledge_abort(slot, actions);
        let leg = self.legs.get(slot);
        let (key, to, told) = (leg.key, leg.handed_to, leg.ended && !leg.aborted);
        if let Some(to) = to.filter(|_| !leg.aborted && !leg.ended) {
            self.keep_handed_over(key, leg.order, leg.work, to);
        }
        self.give_back(slot);
        let report = self.riding_report();
        let notice = if told { Notice::Report(report) } else { Notice::Released { key, to, report } };
        actions.push(MachineAction::Notify { notice });
        self.after_give_back(actions);
    }

    /// Takes everything a leg holds back and forgets it.
    pub(super) fn give_back(&mut self, slot: u32) {
        self.unwatch_transfer(slot);
        let leg = self.legs.get_mut(slot);
        self.kv_tokens -= u64::from(leg.kv_tokens);
        self.granted -= u32::from(std::mem::take(&mut leg.granted));
        self.sending -= u32::from(std::mem::take(&mut leg.sends));
        if leg.state.inbound == Inbound::Draining {
            self.pool.release_quarantined(&mut leg.table);
        } else {
            self.pool.release(&mut leg.table);
        }
        self.legs.remove(slot);
    }

    /// Places that a leg held go to the next in line.
    pub(super) fn after_give_back(&mut self, actions: &mut Vec<MachineAction>) {
        if !self.grants_waiting.is_empty() {
            self.grant_waiting(actions);
        }
        if !self.sends_waiting.is_empty() {
            self.put_waiting(actions);
        }
    }
}
