//! Cancels, drains, and faults: what a lost machine held is placed again, ahead of new arrivals.
//!
//! What is done depends on where the KV is (docs/failures.md has the whole table):
//! - at its source still: another destination, same attempt ([`Cluster::send_elsewhere`]);
//! - at its destination already: nothing, the source was not needed any more;
//! - nowhere: a new attempt with prompt and delivered tokens as its prompt ([`Cluster::fault`]).

use super::machines::Closing;
use super::requests::{Keeper, Loss, Request, WatchedLeg};
use super::{Cluster, MachineState};
use crate::config::Level;
use crate::error::{Applied, EventError};
use crate::event::{ClusterAction, Fault, Outcome};
use crate::id::{LegKey, MachineId, Order, RequestId};
use crate::leg::{Compute, Inbound};
use crate::time::Time;

impl Cluster {
    /// The client gives up: over at once for it, load back now, blocks when their machines say so.
    pub(super) fn cancel(&mut self, request: RequestId, actions: &mut Vec<ClusterAction>) -> Applied {
        let Some(slot) = self.requests.find(request) else { return self.late() };
        self.give_up_legs(slot, actions);
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
        self.entry(index).state = MachineState::Draining;
        self.enroll(index);
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
        if self.machines[index as usize].state == MachineState::Lost {
            return;
        }
        self.back_in_session(index);
        self.moves_at(index, None);
        self.suspects.clear(index);
        self.entry(index).state = MachineState::Lost;
        self.predictor.leave(index);
        self.enroll(index);
        let closed: Vec<_> = self.closing.keys().filter(|(_, machine)| *machine == index).copied().collect();
        for key in closed {
            if let Some(Closing { booking, hedged, .. }) = self.closing.remove(&key) {
                if let Some(order) = hedged {
                    self.count_hedged(key.0.request, order);
                }
                let entry = self.entry(index);
                entry.closing -= 1;
                entry.free_kv(&booking);
            }
        }
        self.drop_legs_of(index);
    }

    /// Legs on a lost machine leave the books; `replace_lost` finds their requests by what is missing.
    fn drop_legs_of(&mut self, index: u32) {
        let lost = self.id_of(index);
        let concerns = |request: &Request| {
            request.is_kept_by(lost) || request.legs.iter().flatten().any(|leg| leg.machine == Some(lost))
        };
        let slots: Vec<u32> =
            self.requests.iter().filter(|(_, request)| concerns(request)).map(|(slot, _)| slot).collect();
        for slot in slots {
            if self.drop_keeper(slot, |keeper| keeper.machine == lost).is_some() {
                self.requests.get_mut(slot).lost = Loss::Copy;
            }
            let legs = self.requests.get(slot).legs;
            for (at, leg) in legs.iter().enumerate() {
                let Some(leg) = leg.filter(|leg| leg.machine == Some(lost)) else { continue };
                let entry = &mut self.machines[index as usize];
                entry.unbook(&leg.booking);
                entry.free_kv(&leg.booking);
                let request = self.requests.get_mut(slot);
                request.legs[at] = None;
                request.fault = Some(Fault::Lost { side: leg.side(), machine: lost });
                match (at, legs) {
                    // The next leg has everything: the loss of the source costs a copy of the request.
                    (0, [_, Some(next)]) if next.is_ready() => request.lost = Loss::Copy,
                    (1, [Some(first), _]) if !leg.is_ready() && self.config.level == Level::Managed => {
                        request.legs[1] = Some(leg.unseated());
                        request.lost = Loss::Destination;
                        debug_assert!(first.machine.is_some(), "a source has a machine");
                        self.unreserved.insert(request.place(slot));
                    }
                    _ => request.lost = Loss::Kv,
                }
            }
        }
    }

    /// Places again, in order of arrival, what a lost machine has left without a leg.
    pub(super) fn replace_lost(&mut self, actions: &mut Vec<ClusterAction>) {
        let lost = self.requests.iter().filter(|(_, request)| request.lost != Loss::None);
        let mut lost: Vec<(Order, u32)> = lost.map(|(slot, request)| (request.order, slot)).collect();
        lost.sort_unstable();
        for (_, slot) in lost {
            let now = self.now;
            let request = self.requests.get_mut(slot);
            let loss = std::mem::take(&mut request.lost);
            if loss != Loss::Copy {
                // Machines that die together are told of one by one, and the next may have just been chosen: no second
                // fault.
                if request.moved_at == now && request.faulted_at == now {
                    request.faults = request.faults.saturating_sub(1);
                }
                request.faulted_at = now;
            }
            match loss {
                Loss::Destination => self.send_elsewhere(slot, actions),
                Loss::Kv => self.fault(slot, actions),
                Loss::Copy | Loss::None => {}
            }
            self.cover(slot, actions);
        }
    }

    /// The KV is at the source, and what was to take it cannot: another destination, or a wait for one.
    pub(super) fn send_elsewhere(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let Some(second) = self.requests.get(slot).legs[1] else { return };
        if self.count_fault(slot, actions) {
            self.fail(slot, Outcome::AttemptsMax, actions);
            return;
        }
        self.give_up(slot, 1, actions);
        if self.is_unreachable(slot) {
            self.decode_at_source(slot, actions);
            return;
        }
        self.counters.resent += 1;
        let now = self.now;
        let request = self.requests.get_mut(slot);
        request.legs[1] = Some(second.unseated());
        request.moved_at = now;
        request.refused_by.clear();
        self.place_second(slot, actions);
        self.cover(slot, actions);
    }

    /// Whether sending a request's KV once more is not worth a try: it did not get to a machine, and no other is left, or
    /// one more fault would be the last.
    fn is_unreachable(&self, slot: u32) -> bool {
        let request = self.requests.get(slot);
        !request.unreached.is_empty()
            && (request.faults + 1 >= self.config.attempts_max || !self.has_other_destination(slot))
    }

    /// Where KV cannot be sent, the request runs whole where its prompt was: that takes no transfer.
    fn decode_at_source(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get_mut(slot);
        request.whole = true;
        if !request.arrival.resumable {
            self.fail(slot, Outcome::NotResumable, actions);
            return;
        }
        let source = request.legs[0].and_then(|leg| leg.machine).map(|id| id.index);
        self.place_again_at(slot, source, actions);
    }

    /// A request has lost its placement: a new attempt, with what the client has as part of its prompt.
    pub(super) fn fault(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let too_many = self.count_fault(slot, actions);
        if self.end_if_given(slot, actions) {
            return;
        }
        if !self.requests.get(slot).arrival.resumable {
            self.fail(slot, Outcome::NotResumable, actions);
        } else if too_many {
            self.fail(slot, Outcome::AttemptsMax, actions);
        } else {
            self.place_again(slot, actions);
        }
    }

    /// Ends a request whose client has everything there can be; only the word that it is over was lost.
    pub(super) fn end_if_given(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) -> bool {
        let request = self.requests.get(slot);
        let given = request.delivered >= request.arrival.max_new_tokens;
        if given {
            self.give_up_legs(slot, actions);
            self.counters.finished += 1;
            self.end(slot, Outcome::Finished, actions);
        }
        given
    }

    /// Counts a fault. Returns whether it was one too many.
    fn count_fault(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) -> bool {
        self.counters.faults += 1;
        let attempts_max = self.config.attempts_max;
        let request = self.requests.get_mut(slot);
        if let Some(fault) = request.fault.take() {
            actions.push(ClusterAction::Faulted { request: request.arrival.request, fault });
        }
        request.faults += 1;
        request.faults >= attempts_max
    }

    pub(super) fn fail(&mut self, slot: u32, outcome: Outcome, actions: &mut Vec<ClusterAction>) {
        self.give_up_legs(slot, actions);
        self.counters.failed += 1;
        self.end(slot, outcome, actions);
    }

    pub(super) fn give_up_legs(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        for at in 0..2 {
            self.give_up(slot, at, actions);
        }
        let place = self.requests.get(slot).place(slot);
        self.unreserved.remove(&place);
    }

    /// The next attempt, with what the client has as part of its prompt; or the end, where it has everything.
    pub(super) fn place_again(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        self.place_again_at(slot, None, actions);
    }

    /// The same, whole on a machine if there is one named and it can hold the request.
    fn place_again_at(&mut self, slot: u32, at: Option<u32>, actions: &mut Vec<ClusterAction>) {
        if self.end_if_given(slot, actions) {
            return;
        }
        self.keep_at_legs(slot, actions);
        self.give_up_legs(slot, actions);
        // As long as machines register, they may claim the next one.
        let recovering = self.is_recovering();
        let request = self.requests.get_mut(slot);
        if recovering {
            request.attempt = request.attempt.next();
        } else {
            request.begin_attempt();
        }
        request.resumed_from = request.delivered;
        match at.and_then(|at| self.choose_whole(slot, at)).or_else(|| self.choose(slot)) {
            Some(choice) => self.place(slot, choice, actions),
            None => self.park(slot, actions),
        }
    }

    /// The source says that its blocks are free: `to` has its KV. The source keeps the request; where it only turns out
    /// that it has the leg no more, another machine is to.
    #[inline]
    pub(super) fn handed_over(&mut self, slot: u32, to: Option<MachineId>, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        let (attempt, source) = (request.attempt, request.legs[0].and_then(|leg| leg.machine));
        self.leave(slot, 0, actions);
        if let Some(machine) = source.filter(|_| to.is_some() && self.is_managed()) {
            self.note_keeper(slot, Keeper { machine, attempt }, actions);
        }
        if !self.requests.get(slot).legs[1].as_ref().is_some_and(WatchedLeg::is_ready) {
            self.handed_over_early(slot, to, actions);
        }
        if to.is_none() {
            self.cover(slot, actions);
        }
    }

    /// Whoever has the KV has not told us yet, and may be another than we think.
    #[cold]
    fn handed_over_early(&mut self, slot: u32, to: Option<MachineId>, actions: &mut Vec<ClusterAction>) {
        let second = self.requests.get(slot).legs[1];
        let (known, registered) = (second.and_then(|leg| leg.machine), second.is_some());
        let now = self.now;
        self.requests.get_mut(slot).moved_at = now;
        // Whoever has it was given up before it could say so; or after a restart it has not registered yet.
        let elsewhere = known.is_none() || to.is_some_and(|to| known != Some(to));
        if elsewhere && self.is_managed() {
            if registered {
                self.place_again(slot, actions);
            } else {
                self.park(slot, actions);
            }
        }
    }

    /// A machine has no leg that it should have: what that means depends on how far the leg was known to be.
    pub(super) fn gone(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) -> Applied {
        let legs = self.requests.get(slot).legs;
        match (at, legs) {
            (0, [Some(first), Some(_)]) if !first.booking.decodes => self.handed_over(slot, None, actions),
            (1, [Some(_), Some(second)]) if !second.is_ready() => self.reserve_elsewhere(slot, actions),
            _ => self.fault_at(slot, at, actions),
        }
        Applied::Yes
    }

    /// Another destination for KV that is at its source. The leg may still be dropped where it was: until the machine
    /// answers, its name is not used again there.
    pub(super) fn reserve_elsewhere(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let Some(second) = self.requests.get(slot).legs[1] else { return };
        self.give_up(slot, 1, actions);
        let request = self.requests.get_mut(slot);
        request.legs[1] = Some(second.unseated());
        self.place_second(slot, actions);
        self.cover(slot, actions);
    }

    /// A machine does not have a leg that it should have, and with it the KV is gone.
    fn fault_at(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get_mut(slot);
        let gone =
            request.legs[at].and_then(|leg| Some(Fault::Gone { side: leg.side(), machine: leg.machine? }));
        request.fault = gone;
        self.fault(slot, actions);
    }

    /// A machine has dropped a leg that we did not give up: it had been without a Cluster for too long.
    pub(super) fn dropped(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) -> Applied {
        match (at, self.requests.get(slot).legs) {
            (0, [_, Some(next)]) if next.is_ready() => {
                self.leave(slot, 0, actions);
                self.cover(slot, actions);
                Applied::Yes
            }
            (0, _) => {
                self.fault_at(slot, at, actions);
                Applied::Yes
            }
            _ => self.gone(slot, at, actions),
        }
    }

    /// A machine cannot go on with a leg: it runs elsewhere, and that is no fault.
    pub(super) fn relieve(
        &mut self,
        from: Option<u32>,
        key: LegKey,
        actions: &mut Vec<ClusterAction>,
    ) -> Applied {
        let Some((slot, _)) = self.find_leg(from, key, |_| true) else { return self.late() };
        self.counters.relieved += 1;
        self.place_again(slot, actions);
        Applied::Yes
    }

    /// Takes back requests whose handoff does not go on. They hold blocks that others may be waiting for in a
    /// circle, so they are placed as one leg, which waits for no other machine.
    pub(super) fn sweep(&mut self, actions: &mut Vec<ClusterAction>) {
        self.swept_at = self.now;
        let stuck = self.requests.iter().filter(|(_, request)| self.is_stuck(request));
        let mut stuck: Vec<(Order, u32)> = stuck.map(|(slot, request)| (request.order, slot)).collect();
        stuck.sort_unstable();
        for (_, slot) in stuck {
            self.counters.relieved += 1;
            self.requests.get_mut(slot).whole = true;
            self.place_again(slot, actions);
        }
    }

    /// Whether a request holds blocks on one machine and has waited too long for another: it has found no
    /// destination, nothing has gone on at its source for as long, or its source is gone.
    fn is_stuck(&self, request: &Request) -> bool {
        let Some(second) = request.legs[1] else { return false };
        let is_past = |since: Time| since.after(self.config.park_limit_ns) <= self.now;
        if second.state.inbound == Inbound::Ready || !is_past(request.moved_at) {
            return false;
        }
        let Some(first) = request.legs[0] else { return true };
        let unreserved = second.state.inbound == Inbound::Reserving && first.state.compute == Compute::Held;
        unreserved || first.machine.is_some_and(|id| is_past(self.machines[id.index as usize].went_on_at))
    }
}
