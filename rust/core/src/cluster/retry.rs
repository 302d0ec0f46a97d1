//! Requests that wait: parked ones for a pair, unreserved legs for a destination. Waiting for memory never fails a
//! request.

use super::Cluster;
use super::policies::policy;
use super::pools::{Pick, Side};
use super::requests::Request;
use crate::error::Applied;
use crate::event::{ClusterAction, Outcome};
use crate::id::{LegKey, MachineId, RequestId};
use crate::leg::{Compute, Inbound};
use crate::placement::{Reserve, Step};

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
        let order = request.order;
        if !self.place_second(slot, actions) {
            self.unreserved.insert((order, slot));
        }
        self.cover(slot, actions);
        Applied::Yes
    }

    /// Finds a machine for a second leg that has none. Returns whether it did.
    pub(super) fn place_second(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) -> bool {
        let request = self.requests.get(slot);
        let [Some(first), Some(mut second)] = request.legs else { return false };
        if self.is_recovering() {
            return false;
        }
        let ask = self.ask(slot);
        let source = first.machine.map(|id| id.index);
        // A machine that has not let go of this very leg yet would take the new one for it.
        let closing = self.closing_at(request.key());
        let except: Vec<u32> =
            source.into_iter().chain(request.refused_by.iter().copied()).chain(closing).collect();
        let view = self.view();
        let pick = match ask.pin_token {
            // No other machine will do: the leg waits for room on this one.
            Some(pin) => Some(Pick { machine: pin, step: Step::Pinned })
                .filter(|_| !except.contains(&pin) && self.machines[pin as usize].pooled)
                .filter(|_| !view.is_over(pin, Side::Token, &ask)),
            None => policy(self.config.policy).place_later(&view, &ask, &except),
        };
        let Some(pick) = pick else { return false };
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
        true
    }

    /// Puts an accepted request without legs in line, unless its client has everything.
    pub(super) fn park(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        if self.end_if_given(slot, actions) {
            return;
        }
        let request = self.requests.get_mut(slot);
        request.parked = true;
        let arrival = request.arrival;
        let key = self.parked_key(self.requests.get(slot), slot);
        self.parked.insert(key);
        *self.parked_by_class.entry(arrival.class).or_insert(0) += 1;
        self.counters.parked += 1;
        actions.push(ClusterAction::Parked { request: arrival.request });
        self.cover(slot, actions);
    }

    pub(super) fn unpark(&mut self, request: &Request, slot: u32) {
        self.parked.remove(&self.parked_key(request, slot));
        let class = request.arrival.class;
        if let Some(count) = self.parked_by_class.get_mut(&class) {
            *count -= 1;
            if *count == 0 {
                self.parked_by_class.remove(&class);
            }
        }
    }

    /// Tries everything that waits, in line. An unreserved leg that finds no room keeps what comes after it waiting;
    /// a parked request finds no place only where no machine is large enough, and keeps nobody waiting.
    pub(super) fn retry(&mut self, actions: &mut Vec<ClusterAction>) {
        if (self.parked.is_empty() && self.unreserved.is_empty()) || self.is_recovering() {
            return;
        }
        self.retried_at = self.now;
        while let Some(&(_, slot)) = self.unreserved.first() {
            let request = self.requests.get_mut(slot);
            request.refused_by.clear();
            let order = request.order;
            if !self.place_second(slot, actions) {
                break;
            }
            self.unreserved.remove(&(order, slot));
        }
        if self.kv_capacity_tokens_max == 0 {
            return;
        }
        let line: Vec<u32> = self.parked.iter().map(|&(_, _, slot)| slot).collect();
        for slot in line {
            // What was delivered while it waited belongs to its prompt too.
            let request = self.requests.get_mut(slot);
            request.resumed_from = request.delivered;
            let Some(choice) = self.choose(slot) else { continue };
            let request = self.requests.get_mut(slot);
            request.parked = false;
            let parked = request.clone();
            self.unpark(&parked, slot);
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
