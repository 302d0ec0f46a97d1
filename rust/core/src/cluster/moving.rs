//! Requests that move away from a machine before it is lost: its session broke, and it may not come back in time; or it
//! leaves in order.
//!
//! From a machine without a session nothing comes, so after `hedge_after_ns` the next attempt of its streams begins.
//! Should the machine be back before it is lost, one of the two goes on: the leg that it has, as long as the client has no
//! token of the next attempt, and as far as it has come; else the next attempt. The other is given up, so that no token
//! comes twice. A machine that leaves decides nothing: its requests go on elsewhere, and it may go when it holds nothing.

use super::machines::Closing;
use super::requests::{Request, WatchedLeg};
use super::restart::claimed_leg;
use super::sessions::has_prefilled;
use super::{Cluster, MachineState};
use crate::error::{Applied, EventError};
use crate::event::{Claim, ClusterAction, Held, Registration};
use crate::id::{MachineId, Order};
use crate::leg::{Compute, Inbound};
use crate::time::Time;

impl Cluster {
    /// A machine is to be stopped: it gets no new work, and what it has goes on elsewhere.
    pub(super) fn depart(
        &mut self,
        machine: MachineId,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let Some(index) = self.live(machine)? else { return Ok(self.late()) };
        let now = self.now;
        let entry = self.entry(index);
        if std::mem::replace(&mut entry.leaves, true) {
            return Ok(self.late());
        }
        (entry.state, entry.drained) = (MachineState::Draining, false);
        let is_away = entry.away_since.is_some();
        self.enroll(index);
        if is_away {
            // It has said its last.
            return self.lose(machine, actions);
        }
        self.moves_at(index, Some(now));
        self.move_due(actions);
        self.tell_drained(index, actions);
        self.retry(actions);
        Ok(Applied::Yes)
    }

    /// Takes a drain back: the machine gets work again. One that leaves does so.
    pub(super) fn undrain(
        &mut self,
        machine: MachineId,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let Some(index) = self.live(machine)? else { return Ok(self.late()) };
        let entry = self.entry(index);
        if entry.state != MachineState::Draining || entry.leaves {
            return Ok(self.late());
        }
        (entry.state, entry.drained) = (MachineState::Up, false);
        self.enroll(index);
        self.go_home(index, actions);
        self.retry(actions);
        self.cover_all(actions);
        Ok(Applied::Yes)
    }

    /// When the requests of a machine are to move away; `None`: they stay.
    pub(super) fn moves_at(&mut self, index: u32, due: Option<Time>) {
        let old = std::mem::replace(&mut self.entry(index).moves_at, due);
        if let Some(old) = old {
            self.moving.remove(&(old, index));
        }
        if let Some(due) = due {
            self.moving.insert((due, index));
        }
    }

    /// Moves away what is due. What finds no place stays, and is tried again.
    pub(super) fn move_due(&mut self, actions: &mut Vec<ClusterAction>) {
        if self.is_recovering() {
            return;
        }
        while let Some(&(_, index)) = self.moving.first().filter(|(due, _)| *due <= self.now) {
            let again = self.now.after(self.config.retry_interval_ns);
            let stays = self.move_away(index, actions);
            self.moves_at(index, stays.then_some(again));
        }
    }

    /// Begins the next attempt of what a machine has, in order of arrival. Returns whether something that could move has
    /// found no place. O(live requests).
    fn move_away(&mut self, index: u32, actions: &mut Vec<ClusterAction>) -> bool {
        let machine = self.id_of(index);
        let mut found: Vec<(Order, u32)> = Vec::new();
        for (slot, request) in self.requests.iter() {
            if self.may_move(request, machine) {
                found.push((request.order, slot));
            }
        }
        found.sort_unstable();
        let is_away = self.machines[index as usize].away_since.is_some();
        let mut stays = false;
        for (order, slot) in found {
            let request = self.requests.get(slot);
            let key = request.key();
            if let [Some(_), Some(second)] = request.legs
                && second.machine == Some(machine)
                && !second.is_ready()
            {
                self.counters.resent += 1;
                self.reserve_elsewhere(slot, actions);
            } else if self.choose(slot).is_some() {
                self.place_again(slot, actions);
            } else {
                stays = true;
                continue;
            }
            if let Some(closing) = self.closing.get_mut(&(key, index)).filter(|_| is_away) {
                closing.hedged = Some(order);
            }
        }
        stays
    }

    /// Whether a request has something on a machine that it would miss, and may go on elsewhere.
    fn may_move(&self, request: &Request, machine: MachineId) -> bool {
        let arrival = &request.arrival;
        let is_on = |leg: &Option<WatchedLeg>| leg.as_ref().is_some_and(|leg| leg.machine == Some(machine));
        if !request.legs.iter().any(is_on) || !arrival.resumable || arrival.pin_token == Some(machine.index) {
            return false;
        }
        let entry = &self.machines[machine.index as usize];
        // Should the machine be lost, that is the fault with which the request ends.
        if entry.away_since.is_some() && request.faults + 1 >= self.config.attempts_max {
            return false;
        }
        match request.legs {
            // The destination has everything: its source is not needed any more.
            [Some(_), Some(second)] if second.is_ready() => second.machine == Some(machine),
            // It will soon have handed over.
            [Some(first), Some(second)] if first.machine == Some(machine) && entry.leaves => {
                first.state.compute != Compute::Held || second.machine.is_none()
            }
            _ => true,
        }
    }

    /// A lost machine had legs whose requests have moved away from it: that was a fault after all.
    pub(super) fn count_hedged(&mut self, request: crate::id::RequestId, order: Order) {
        let Some(slot) = self.requests.find(request) else { return };
        let request = self.requests.get_mut(slot);
        if request.order == order {
            request.faults += 1;
            self.counters.faults += 1;
        }
    }

    /// A machine is back, and has legs whose requests have moved away meanwhile: of each, the one that is ahead goes on.
    pub(super) fn take_up_again(&mut self, registration: &Registration, actions: &mut Vec<ClusterAction>) {
        for claim in &registration.claims {
            if let Some(slot) = self.wins(registration.join.machine, claim) {
                self.go_back(slot, registration.join.machine, claim, actions);
            }
        }
    }

    /// The request of a claimed leg that goes on in place of the attempt begun since.
    fn wins(&self, machine: MachineId, claim: &Claim) -> Option<u32> {
        let Held::Leg { state, .. } = claim.held else { return None };
        let closing = self.closing.get(&(claim.key, machine.index))?;
        let slot = self.requests.find(claim.key.request)?;
        let request = self.requests.get(slot);
        // It needs no other leg, and its attempt is the one before the present one.
        let whole = !claim.work.hands_over() && (claim.work.start == 0 || state.inbound == Inbound::Ready);
        if closing.hedged != Some(claim.order) || request.order != claim.order || !whole {
            return None;
        }
        let has_computed = |leg: &WatchedLeg| has_prefilled(leg.state.compute) || leg.is_ready();
        let is_ahead = has_prefilled(state.compute) || !request.legs.iter().flatten().any(has_computed);
        let given = request.delivered > request.resumed_from;
        (is_ahead && !given).then_some(slot)
    }

    /// A leg that was given up because its machine was away is the request's again.
    fn go_back(&mut self, slot: u32, machine: MachineId, claim: &Claim, actions: &mut Vec<ClusterAction>) {
        self.give_up_legs(slot, actions);
        if let Some(Closing { booking, .. }) = self.closing.remove(&(claim.key, machine.index)) {
            let entry = self.entry(machine.index);
            entry.closing -= 1;
            entry.free_kv(&booking);
        }
        let leg = claimed_leg(machine, claim);
        self.entry(machine.index).book_known(&leg.booking);
        self.refresh(machine.index);
        let now = self.now;
        let request = self.requests.get_mut(slot);
        request.legs[usize::from(claim.work.start > 0)] = Some(leg);
        request.attempts_made = request.attempts_made.max(request.attempt);
        (request.attempt, request.resumed_from) = (claim.key.attempt, claim.work.terms.resumed_tokens);
        request.moved_at = now;
        if std::mem::take(&mut request.parked) {
            let parked = request.clone();
            self.unpark(&parked, slot);
        }
        self.runs_at(slot, machine, actions);
    }
}
