//! Cancels, drains, and faults: what a lost machine held is placed again, ahead of new arrivals.

use super::machines::Closing;
use super::requests::Request;
use super::{Cluster, MachineState};
use crate::error::{Applied, EventError};
use crate::event::{ClusterAction, Outcome};
use crate::id::{MachineId, Order, RequestId};
use crate::leg::{Compute, Inbound};
use crate::time::Time;

impl Cluster {
    /// The client gives up: over at once for it, load back now, blocks when their machines say so.
    pub(super) fn cancel(&mut self, request: RequestId, actions: &mut Vec<ClusterAction>) -> Applied {
        let Some(slot) = self.requests.find(request) else { return self.late() };
        for at in 0..2 {
            self.give_up(slot, at, actions);
        }
        self.counters.cancelled += 1;
        self.end(slot, Outcome::Cancelled, actions);
        self.retry(actions);
        Applied::Yes
    }

    /// No new work; what it has runs on.
    pub(super) fn drain(
        &mut self,
        machine: MachineId,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let Some(index) = self.live(machine)? else { return Ok(self.late()) };
        if self.machines[index as usize].state == MachineState::Draining {
            return Ok(self.late());
        }
        let entry = self.entry(index);
        entry.state = MachineState::Draining;
        let pool = entry.pool;
        self.pools.leave(pool, index);
        self.measure_largest();
        self.tell_drained(index, actions);
        Ok(Applied::Yes)
    }

    pub(super) fn lose(
        &mut self,
        machine: MachineId,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let Some(index) = self.live(machine)? else { return Ok(self.late()) };
        self.forget_machine(index);
        self.replace_lost(actions);
        self.retry(actions);
        Ok(Applied::Yes)
    }

    /// Takes a machine out, with whatever was closing on it: its blocks are gone with it.
    pub(super) fn forget_machine(&mut self, index: u32) {
        let entry = self.entry(index);
        if entry.state == MachineState::Up {
            let pool = entry.pool;
            self.pools.leave(pool, index);
        }
        self.entry(index).state = MachineState::Lost;
        let closed: Vec<_> = self.closing.keys().filter(|(_, machine)| *machine == index).copied().collect();
        for key in closed {
            if let Some(Closing { booking, .. }) = self.closing.remove(&key) {
                let entry = self.entry(index);
                entry.closing -= 1;
                entry.free_kv(&booking);
            }
        }
        self.drop_legs_of(index);
        self.measure_largest();
    }

    /// Legs on a lost machine leave the books; `replace_lost` finds their requests by what is missing.
    fn drop_legs_of(&mut self, index: u32) {
        let on = |leg: &super::requests::WatchedLeg| leg.machine.is_some_and(|id| id.index == index);
        let slots: Vec<u32> = self
            .requests
            .iter()
            .filter(|(_, request)| request.legs.iter().flatten().any(on))
            .map(|(slot, _)| slot)
            .collect();
        for slot in slots {
            let legs = self.requests.get(slot).legs;
            for (at, leg) in legs.iter().enumerate() {
                let Some(leg) = leg.filter(on) else { continue };
                let entry = &mut self.machines[index as usize];
                entry.unbook(&leg.booking);
                entry.free_kv(&leg.booking);
                let request = self.requests.get_mut(slot);
                request.legs[at] = None;
                // The next leg has everything: the loss of the source costs nothing.
                let handed_over = at == 0 && legs[1].is_some_and(|next| next.state.inbound == Inbound::Ready);
                request.lost = !handed_over;
            }
        }
    }

    /// Places again, in order of arrival, what a lost machine has left without a leg.
    pub(super) fn replace_lost(&mut self, actions: &mut Vec<ClusterAction>) {
        let mut lost: Vec<(Order, u32)> = self
            .requests
            .iter()
            .filter(|(_, request)| request.lost)
            .map(|(slot, request)| (request.order, slot))
            .collect();
        lost.sort_unstable();
        for (_, slot) in lost {
            self.requests.get_mut(slot).lost = false;
            self.fault(slot, actions);
        }
    }

    /// A request has lost its placement: a new attempt, with what the client has as part of its prompt.
    pub(super) fn fault(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        for at in 0..2 {
            self.give_up(slot, at, actions);
        }
        self.counters.faults += 1;
        let attempts_max = self.config.attempts_max;
        let request = self.requests.get_mut(slot);
        self.unreserved.remove(&(request.order, slot));
        request.faults += 1;
        if request.delivered >= request.arrival.max_new_tokens {
            // The client has everything there can be; only the word that it is over was lost.
            self.counters.finished += 1;
            self.end(slot, Outcome::Finished, actions);
            return;
        }
        let failed = if !request.arrival.resumable {
            Some(Outcome::NotResumable)
        } else if request.faults >= attempts_max {
            Some(Outcome::AttemptsMax)
        } else {
            None
        };
        if let Some(outcome) = failed {
            self.counters.failed += 1;
            self.end(slot, outcome, actions);
            return;
        }
        self.place_again(slot, actions);
    }

    /// The next attempt, with what the client has as part of its prompt.
    fn place_again(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get_mut(slot);
        request.attempt.0 += 1;
        request.resumed_from = request.delivered;
        match self.choose(slot) {
            Some(choice) => self.place(slot, choice, actions),
            None => self.park(slot, actions),
        }
    }

    /// Takes back requests whose handoff does not go on. They hold blocks that others may be waiting for in a
    /// circle, so they are placed as one leg, which waits for no other machine.
    pub(super) fn sweep(&mut self, actions: &mut Vec<ClusterAction>) {
        self.swept_at = self.now;
        let stuck = self.requests.iter().filter(|(_, request)| self.is_stuck(request));
        let mut stuck: Vec<(Order, u32)> = stuck.map(|(slot, request)| (request.order, slot)).collect();
        stuck.sort_unstable();
        for (order, slot) in stuck {
            for at in 0..2 {
                self.give_up(slot, at, actions);
            }
            self.unreserved.remove(&(order, slot));
            self.counters.relieved += 1;
            self.requests.get_mut(slot).whole = true;
            self.place_again(slot, actions);
        }
    }

    /// Whether a request holds blocks on one machine and has waited too long for another: it has found no
    /// destination, or nothing has gone on at its source for as long.
    fn is_stuck(&self, request: &Request) -> bool {
        let [Some(first), Some(second)] = request.legs else { return false };
        let is_past = |since: Time| since.after(self.config.park_limit_ns) <= self.now;
        if second.state.inbound == Inbound::Ready || !is_past(request.moved_at) {
            return false;
        }
        let unreserved = second.machine.is_none() && first.state.compute == Compute::Held;
        unreserved || first.machine.is_some_and(|id| is_past(self.machines[id.index as usize].went_on_at))
    }
}
