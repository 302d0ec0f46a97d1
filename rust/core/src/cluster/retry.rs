//! Requests that wait: parked ones for a pair, unreserved legs for a destination. Waiting for memory never fails a
//! request.

use std::ops::Bound;

use super::Cluster;
use super::policies::{LaterPools, policy};
use super::pools::{Ask, Pick, Side};
use super::requests::{Place, Request};
use crate::error::Applied;
use crate::event::{ClusterAction, Outcome};
use crate::id::{LegKey, MachineId, RequestId};
use crate::leg::{Compute, Inbound};
use crate::placement::{Reserve, Step};

/// What a second leg without a machine waits for: room on a machine of these pools that is not left out.
struct Wait<'a> {
    ask: Ask<'a>,
    pools: LaterPools,
    left_out: Vec<u32>,
}

impl Cluster {
    /// A destination has no room: undo the booking, find another, else let the leg wait unreserved while the source
    /// runs on.
    pub(super) fn refused(
        &mut self,
        from: Option<u32>,
        key: LegKey,
        actions: &mut Vec<ClusterAction>,
    ) -> Applied {
        let Some(slot) = self.requests.find_key(key) else { return self.late() };
        let Some(mut leg) = self.requests.get(slot).legs[1] else { return self.late() };
        let was_told = |id: &MachineId| leg.booking.sent && Some(id.index) == from;
        let Some(machine) = leg.machine.filter(was_told) else { return self.late() };
        self.counters.refused += 1;
        self.leave(slot, 1, actions);
        leg.machine = None;
        leg.booking.sent = false;
        let request = self.requests.get_mut(slot);
        request.legs[1] = Some(leg);
        request.refused_by.push(machine.index);
        self.place_second(slot, actions);
        self.cover(slot, actions);
        Applied::Yes
    }

    /// Finds a machine for a second leg that has none, or lets it wait for one in its place in line.
    pub(super) fn place_second(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let place = self.requests.get(slot).place(slot);
        match self.find_second(slot, |machine| self.is_awaited(machine, place)) {
            Some(pick) => self.seat_second(slot, pick, actions),
            None => {
                self.unreserved.insert(place);
            }
        }
    }

    /// A machine with room for a second leg that has none, of those that are not `barred`.
    fn find_second(&self, slot: u32, is_barred: impl Fn(u32) -> bool) -> Option<Pick> {
        if self.is_recovering() {
            return None;
        }
        let (wait, view) = (self.wait_of(slot), self.view());
        let refused_by = &self.requests.get(slot).refused_by;
        let has_room = |machine: u32| {
            self.may_use(&wait, machine)
                && view.has_room(machine, &wait.ask)
                && !refused_by.contains(&machine)
                && !is_barred(machine)
        };
        match wait.ask.pin_token {
            // No other machine will do: the leg waits for room on this one.
            Some(machine) => has_room(machine).then_some(Pick { machine, step: Step::Pinned }),
            None => view.least_later(wait.pools, has_room),
        }
    }

    /// Gives a second leg that has none its machine.
    fn seat_second(&mut self, slot: u32, pick: Pick, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        let [Some(first), Some(mut second)] = request.legs else { return };
        self.unreserved.remove(&request.place(slot));
        self.move_if_borrowed(pick.machine, pick.step, actions);
        second.machine = Some(self.id_of(pick.machine));
        second.state.inbound = Inbound::Reserving;
        self.book(&mut second);
        self.requests.get_mut(slot).legs[1] = Some(second);
        if self.predicts() {
            self.expect(slot);
        }
        if self.config.reserve == Reserve::AtArrival || first.state.compute == Compute::Held {
            self.command_reserve(slot, actions);
            self.command_send(slot, actions);
        }
    }

    /// What a request's second leg waits for.
    fn wait_of(&self, slot: u32) -> Wait<'_> {
        let (request, ask) = (self.requests.get(slot), self.ask(slot));
        let pools = policy(self.config.policy).later_pools(&self.view(), &ask);
        let source = request.legs[0].and_then(|leg| leg.machine).map(|id| id.index);
        // A machine that has not let go of this very leg yet would take the new one for it.
        let left_out = source.into_iter().chain(self.closing_at(request.key())).collect();
        Wait { ask, pools, left_out }
    }

    /// Whether a second leg that waits can be given to a machine as soon as that has room.
    fn may_use(&self, wait: &Wait<'_>, machine: u32) -> bool {
        let entry = &self.machines[machine as usize];
        let is_sought = match wait.ask.pin_token {
            Some(pin) => pin == machine,
            None => wait.pools.iter().any(|&(pool, _)| pool == entry.pool),
        };
        is_sought
            && entry.pooled
            && self.view().can_take(machine, Side::Token, &wait.ask)
            && !wait.left_out.contains(&machine)
    }

    /// Whether a machine can hold a request.
    pub(super) fn can_hold(&self, slot: u32, machine: MachineId) -> bool {
        self.view().fits(machine.index, &self.ask(slot))
    }

    /// Whether there is a machine that a second leg without one could be given to, with room or not.
    pub(super) fn has_other_destination(&self, slot: u32) -> bool {
        let wait = self.wait_of(slot);
        (0..self.machines_len()).any(|machine| self.may_use(&wait, machine))
    }

    /// Whether a leg that stands before `place` waits for room on a machine: that one is served first.
    pub(super) fn is_awaited(&self, machine: u32, place: Place) -> bool {
        let before = self.unreserved.range(..place);
        before.into_iter().any(|&(.., slot)| self.may_use(&self.wait_of(slot), machine))
    }

    /// Puts an accepted request without legs in line, unless its client has everything.
    pub(super) fn park(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        if self.end_if_given(slot, actions) {
            return;
        }
        let request = self.requests.get_mut(slot);
        request.parked = true;
        let arrival = request.arrival;
        let place = request.place(slot);
        self.parked.insert(place);
        *self.parked_by_class.entry(arrival.class).or_insert(0) += 1;
        self.judge_parked(slot);
        self.counters.parked += 1;
        actions.push(ClusterAction::Parked { request: arrival.request });
        self.cover(slot, actions);
    }

    /// Takes a request that is live on out of the line of the parked.
    pub(super) fn leave_line(&mut self, slot: u32) {
        let parked = self.requests.get(slot).clone();
        self.unpark(&parked, slot);
        let request = self.requests.get_mut(slot);
        (request.parked, request.unplaceable_due) = (false, None);
    }

    pub(super) fn unpark(&mut self, request: &Request, slot: u32) {
        self.parked.remove(&request.place(slot));
        if let Some(due) = request.unplaceable_due {
            self.unplaceable.remove(&(due, slot));
        }
        let class = request.arrival.class;
        if let Some(count) = self.parked_by_class.get_mut(&class) {
            *count -= 1;
            if *count == 0 {
                self.parked_by_class.remove(&class);
            }
        }
    }

    /// Whether a parked request waits for a machine that is known, be it away: if for none, its time runs.
    fn judge_parked(&mut self, slot: u32) {
        let request = self.requests.get(slot);
        let is_vain =
            request.arrival.total_tokens_max() > self.kv_capacity_tokens_max && !self.is_recovering();
        let due = match request.unplaceable_due {
            Some(due) if is_vain => Some(due),
            Some(due) => {
                self.unplaceable.remove(&(due, slot));
                None
            }
            None => is_vain.then(|| self.now.after(self.config.unplaceable_limit_ns)),
        };
        if let Some(due) = due {
            self.unplaceable.insert((due, slot));
        }
        self.requests.get_mut(slot).unplaceable_due = due;
    }

    /// The largest machine is another one. O(parked).
    pub(super) fn judge_all_parked(&mut self) {
        for (_, _, slot) in self.parked.clone() {
            self.judge_parked(slot);
        }
    }

    /// Tries what waits: legs without a reservation, then parked requests, each in line.
    pub(super) fn retry(&mut self, actions: &mut Vec<ClusterAction>) {
        if self.is_recovering() {
            return;
        }
        self.retry_unreserved(actions);
        if std::mem::take(&mut self.machines_changed) {
            self.retry_parked(actions);
        }
    }

    /// A leg that finds no room keeps those after it from the machines that it may use, and from no others.
    fn retry_unreserved(&mut self, actions: &mut Vec<ClusterAction>) {
        if self.unreserved.is_empty() {
            return;
        }
        self.retried_at = self.now;
        let mut open: Vec<u32> =
            (0..self.machines_len()).filter(|&at| self.machines[at as usize].pooled).collect();
        let mut from = Bound::Unbounded;
        while let Some(&place) = self.unreserved.range((from, Bound::Unbounded)).next() {
            from = Bound::Excluded(place);
            let (.., slot) = place;
            let wait = self.wait_of(slot);
            if !open.iter().any(|&machine| self.may_use(&wait, machine)) {
                continue;
            }
            self.requests.get_mut(slot).refused_by.clear();
            if let Some(pick) = self.find_second(slot, |machine| open.binary_search(&machine).is_err()) {
                self.seat_second(slot, pick, actions);
            } else {
                let wait = self.wait_of(slot);
                open.retain(|&machine| !self.may_use(&wait, machine));
            }
            if open.is_empty() {
                break;
            }
        }
    }

    /// A parked request finds no place only where no machine is large enough, and keeps nobody waiting.
    fn retry_parked(&mut self, actions: &mut Vec<ClusterAction>) {
        if self.parked.is_empty() || self.kv_capacity_tokens_max == 0 {
            return;
        }
        let line: Vec<u32> = self.parked.iter().map(|&(_, _, slot)| slot).collect();
        for slot in line {
            // What was delivered while it waited belongs to its prompt too.
            let request = self.requests.get_mut(slot);
            request.resumed_from = request.delivered;
            let Some(choice) = self.choose(slot) else { continue };
            self.leave_line(slot);
            self.place(slot, choice, actions);
        }
    }

    pub(super) fn tick(&mut self, actions: &mut Vec<ClusterAction>) -> Applied {
        while let Some(&(due, slot)) = self.leases.first().filter(|(due, _)| *due <= self.now) {
            self.leases.remove(&(due, slot));
            self.requests.get_mut(slot).lease_due = None;
            for at in 0..2 {
                self.give_up(slot, at, actions);
            }
            self.counters.failed += 1;
            self.end(slot, Outcome::Expired, actions);
        }
        while let Some(&(_, machine)) = self.away.first().filter(|(due, _)| *due <= self.now) {
            let _ = self.lose(self.id_of(machine), actions);
        }
        if self.opens_at.is_some_and(|due| due <= self.now) {
            self.open(actions);
        }
        self.move_due(actions);
        while let Some(&(_, slot)) = self.unplaceable.first().filter(|(due, _)| *due <= self.now) {
            self.fail(slot, Outcome::Unplaceable, actions);
        }
        if self.reports_due.is_some_and(|due| due <= self.now) {
            self.drop_old_reports(actions);
            self.retry(actions);
        }
        if self.end_asides() {
            self.retry(actions);
        }
        while let Some(&(due, machine)) = self.held_in_mixed.first().filter(|(due, _)| *due <= self.now) {
            self.held_in_mixed.remove(&(due, machine));
            self.go_home(machine, actions);
        }
        let sweeps = self.is_managed() && !self.is_recovering();
        if sweeps && self.swept_at.after(self.config.park_limit_ns) <= self.now {
            self.sweep(actions);
        }
        if self.next_deadline().is_some_and(|due| due <= self.now) {
            self.retry(actions);
        }
        Applied::Yes
    }

    /// A call touched the request: its lease starts anew.
    pub(super) fn touch_lease(&mut self, slot: u32) {
        let Some(lease_ns) = self.config.lease_ns else { return };
        let due = self.now.after(lease_ns);
        let request = self.requests.get_mut(slot);
        if let Some(old) = request.lease_due.replace(due) {
            self.leases.remove(&(old, slot));
        }
        self.leases.insert((due, slot));
    }

    pub(super) fn renew(&mut self, request: RequestId) -> Applied {
        let Some(slot) = self.requests.find(request) else { return self.late() };
        self.touch_lease(slot);
        Applied::Yes
    }
}
