//! Who knows each request. What a Cluster knows dies with it, so every accepted request is known to two machines as
//! far as there are two: where its legs run, where it was handed over from, and otherwise where a record of it is kept
//! until it ends. So any one machine may be lost together with the Cluster, at whatever moment: the next Cluster finds
//! the request on the other one. No record costs a machine blocks.

use super::Cluster;
use super::requests::{COPIES, Keeper};
use crate::event::{Claim, ClusterAction};
use crate::id::{LegKey, MachineId, RequestId};
use crate::leg::Command;

impl Cluster {
    /// Machines that know a live request, or to which the word of it is on its way: its legs', then those that keep it.
    pub fn known_to(&self, request: RequestId) -> Vec<MachineId> {
        let Some(request) = self.requests.find(request).map(|slot| self.requests.get(slot)) else {
            return Vec::new();
        };
        let mut known: Vec<MachineId> = request.run_by().collect();
        for keeper in request.keepers.iter().flatten() {
            if !known.contains(&keeper.machine) {
                known.push(keeper.machine);
            }
        }
        known
    }

    /// Has a request kept by as many machines as there should be, or as there are. While machines register after a
    /// restart only a request that none has is given to one: who else knows it they have yet to say.
    /// O(1) where the machines are up, O(machines) at worst.
    pub(super) fn cover(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        if !self.is_managed() {
            return;
        }
        let wanted = if self.is_recovering() { 1 } else { COPIES };
        while self.requests.at(slot).is_some_and(|request| request.copies() < wanted) {
            let Some(machine) = self.free_keeper(slot) else { return };
            self.keep_at(slot, machine, actions);
        }
    }

    /// A machine has come: it may be the second one. O(live requests).
    pub(super) fn cover_all(&mut self, actions: &mut Vec<ClusterAction>) {
        if !self.is_managed() {
            return;
        }
        let slots: Vec<u32> = self.requests.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.cover(slot, actions);
        }
    }

    /// A machine that can keep a request and does not know it. Requests spread by their place in line.
    pub(super) fn free_keeper(&self, slot: u32) -> Option<MachineId> {
        let request = self.requests.get(slot);
        let (before, from) =
            self.machines.split_at((request.order.0 % self.machines.len().max(1) as u64) as usize);
        let is_free = |id| !request.is_run_by(id) && !request.is_kept_by(id);
        let mut free = from.iter().chain(before).filter(|entry| entry.can_keep());
        free.find(|entry| is_free(entry.id)).map(|entry| entry.id)
    }

    /// Before the legs of a request that nobody keeps are given up: one of their machines keeps it.
    pub(super) fn keep_at_legs(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        if !self.is_managed() || request.keepers.iter().any(Option::is_some) {
            return;
        }
        let reachable = |id: &MachineId| self.machines[id.index as usize].away_since.is_none();
        let told = request.run_by().find(reachable);
        if let Some(machine) = told {
            self.keep_at(slot, machine, actions);
        }
    }

    fn keep_at(&mut self, slot: u32, machine: MachineId, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        // One output token is left to come: a request whose client has the last ends, or its machine says so.
        let given = request.delivered.min(request.arrival.max_new_tokens - 1);
        let (key, order, work) = (request.key(), request.order, request.work_from(given));
        self.note_keeper(slot, Keeper { machine, attempt: key.attempt }, actions);
        self.command(machine, None, Command::Keep { key, order, work }, actions);
    }

    /// A machine has a record of a request. Of more than are needed the oldest is released.
    #[inline]
    pub(super) fn note_keeper(&mut self, slot: u32, keeper: Keeper, actions: &mut Vec<ClusterAction>) {
        let keepers = &mut self.requests.get_mut(slot).keepers;
        if let Some(vacant) = keepers.iter_mut().find(|keeper| keeper.is_none()) {
            *vacant = Some(keeper);
            return;
        }
        let oldest = keepers[0];
        keepers.rotate_left(1);
        keepers[COPIES - 1] = Some(keeper);
        self.release_keeper(self.requests.get(slot).arrival.request, oldest, actions);
    }

    /// A leg is on its way to a machine: what that one keeps of the request it need not any more.
    #[inline]
    pub(super) fn runs_at(&mut self, slot: u32, machine: MachineId, actions: &mut Vec<ClusterAction>) {
        if self.requests.get(slot).keepers[0].is_some() {
            let keeper = self.drop_keeper(slot, |keeper| keeper.machine == machine);
            self.release_keeper(self.requests.get(slot).arrival.request, keeper, actions);
        }
    }

    /// A machine that was taken off the keepers of a request may forget it.
    #[inline]
    pub(super) fn release_keeper(
        &mut self,
        request: RequestId,
        keeper: Option<Keeper>,
        actions: &mut Vec<ClusterAction>,
    ) {
        let Some(Keeper { machine, attempt }) = keeper else { return };
        self.command(machine, None, Command::Release { key: LegKey { request, attempt } }, actions);
    }

    /// Takes a keeper off the books, if there is such a one. The others stay in the order in which they came.
    pub(super) fn drop_keeper(&mut self, slot: u32, concerns: impl Fn(&Keeper) -> bool) -> Option<Keeper> {
        let keepers = &mut self.requests.get_mut(slot).keepers;
        let at = keepers.iter().position(|keeper| keeper.as_ref().is_some_and(&concerns))?;
        let dropped = keepers[at].take();
        keepers[at..].rotate_left(1);
        dropped
    }

    /// A machine that registers claims a record of a request. Unless that is over it is of use: who else is to know the
    /// request may not have heard of it yet. Returns whether it was taken.
    pub(super) fn takes_record(
        &mut self,
        machine: MachineId,
        claim: &Claim,
        actions: &mut Vec<ClusterAction>,
    ) -> bool {
        let Some(slot) = self.requests.find(claim.key.request) else { return false };
        let request = self.requests.get(slot);
        // A name can have come again before the word of its end arrived.
        if request.order != claim.order {
            return false;
        }
        let attempt = claim.key.attempt;
        if let Some(known) = request.keepers.iter().flatten().find(|keeper| keeper.machine == machine) {
            return known.attempt == attempt;
        }
        self.note_keeper(slot, Keeper { machine, attempt }, actions);
        true
    }
}
