//! Sessions with machines. One that breaks loses what was on its way; the machine runs on, gets no work meanwhile, and
//! is lost only when it is not back within `rejoin_limit_ns`. Back, it registers with everything it holds, and both
//! sides are brought to agree: what did not arrive is sent again, what was given up meanwhile is aborted again, and
//! the machine says again where its legs stand ([`Command::Confirm`]).

use std::collections::BTreeSet;

use super::machines::Closing;
use super::{Booking, Cluster, MachineState};
use crate::error::{Applied, EventError};
use crate::event::{Claim, ClusterAction, Held, Registration};
use crate::id::{AssignmentSeq, LegKey, MachineId, Order, RequestId};
use crate::leg::{Command, Compute, Report};

/// Places for machines. They register in any order, so that one can leave places before it for others to come, but
/// not as many as a wrong number would.
const MACHINES_MAX: u32 = 1 << 20;

impl Cluster {
    pub(super) fn disconnect(
        &mut self,
        machine: MachineId,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let Some(index) = self.live(machine)? else { return Ok(self.late()) };
        let now = self.now;
        let entry = self.entry(index);
        if entry.away_since.is_some() {
            return Ok(self.late());
        }
        if entry.leaves {
            return self.lose(machine, actions);
        }
        entry.away_since = Some(now);
        self.away.insert((now.after(self.config.rejoin_limit_ns), index));
        self.enroll(index);
        if let Some(hedge_after_ns) = self.config.hedge_after_ns.filter(|_| self.is_managed()) {
            self.moves_at(index, Some(now.after(hedge_after_ns)));
        }
        Ok(Applied::Yes)
    }

    pub(super) fn back_in_session(&mut self, index: u32) {
        if let Some(since) = self.entry(index).away_since.take() {
            self.away.remove(&(since.after(self.config.rejoin_limit_ns), index));
            self.moves_at(index, None);
        }
    }

    /// A session begins. O(live requests).
    pub(super) fn register(
        &mut self,
        registration: &Registration,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let machine = registration.join.machine;
        if registration.epoch > self.config.epoch {
            return Err(EventError::StaleCluster(machine));
        }
        registration.join.check()?;
        if machine.index >= MACHINES_MAX {
            return Err(EventError::UnknownMachine(machine.index));
        }
        let known = self.machines.get(machine.index as usize);
        let rejoins = known.is_some_and(|entry| entry.id == machine && entry.state != MachineState::Lost);
        let follows = known.is_none_or(|entry| entry.is_followed_by(machine.incarnation));
        if !rejoins && !follows {
            return Err(EventError::MachineTaken(machine));
        }
        self.check_registration(registration)?;
        if follows {
            self.seat_machine(&registration.join)?;
        }
        let epoch = self.config.epoch;
        actions.push(ClusterAction::Registered { to: machine, epoch });
        // What another Cluster has numbered says nothing about our assignments.
        let seq = if registration.epoch == epoch { registration.report.seq } else { AssignmentSeq(0) };
        let now = self.now;
        self.reports_due.get_or_insert(now.after(self.config.report_limit_ns));
        self.entry(machine.index).take_report(now, Report { seq, ..registration.report });
        if rejoins {
            self.rejoin(registration, seq, actions);
        } else {
            self.enroll(machine.index);
            self.refresh(machine.index);
            let recovering = self.is_recovering();
            if recovering {
                self.replace_lost(actions);
            }
            self.adopt_all(registration, actions);
            if !recovering {
                // Only now is it known which names are taken.
                self.replace_lost(actions);
            }
        }
        self.tell_drained(machine.index, actions);
        self.retry(actions);
        self.cover_all(actions);
        Ok(Applied::Yes)
    }

    fn rejoin(&mut self, registration: &Registration, seen: AssignmentSeq, actions: &mut Vec<ClusterAction>) {
        let machine = registration.join.machine;
        let last = self.entry(machine.index).seq();
        self.back_in_session(machine.index);
        self.take_terms(&registration.join);
        self.enroll(machine.index);
        self.refresh(machine.index);
        self.take_up_again(registration, actions);
        let runs = |claim: &&Claim| matches!(claim.held, Held::Leg { .. } | Held::Finished);
        let here = registration.claims.iter().filter(runs).filter(|claim| self.is_live_on(claim, machine));
        let here: BTreeSet<LegKey> = here.map(|claim| claim.key).collect();
        let records = self.settle_records(registration, &here, actions);
        // Before it is told to drop what it may be the last to have.
        self.cover_all(actions);
        self.settle_closing(registration, actions);
        for claim in &registration.claims {
            let known = match claim.held {
                Held::Leg { .. } | Held::Finished => {
                    here.contains(&claim.key) || self.is_closing(claim.key, machine)
                }
                Held::Closing => self.is_closing(claim.key, machine),
                Held::Kept => records.contains(&claim.key),
            };
            if !known {
                self.dismiss(machine, claim, actions);
            }
        }
        for (slot, at) in self.legs_on(machine) {
            self.settle_leg(slot, at, &here, seen, actions);
        }
        // What is still to come has been told again.
        self.entry(machine.index).drop_unarrived(last);
        self.refresh(machine.index);
        self.go_home(machine.index, actions);
    }

    /// Legs of live requests that a machine has, or is to have, by arrival.
    fn legs_on(&self, machine: MachineId) -> Vec<(u32, usize)> {
        let mut found: Vec<(Order, u32, usize)> = Vec::new();
        for (slot, request) in self.requests.iter() {
            for (at, leg) in request.legs.iter().enumerate() {
                if leg.is_some_and(|leg| leg.machine == Some(machine) && leg.booking.sent) {
                    found.push((request.order, slot, at));
                }
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, slot, at)| (slot, at)).collect()
    }

    /// Whether a claim is about a live leg. A name can have come again before the word that its end is known arrived;
    /// the place in line tells the two requests apart.
    fn is_live_on(&self, claim: &Claim, machine: MachineId) -> bool {
        let request = self.requests.find_key(claim.key).map(|slot| self.requests.get(slot));
        request.is_some_and(|request| request.order == claim.order && request.is_run_by(machine))
    }

    fn is_closing(&self, key: LegKey, machine: MachineId) -> bool {
        self.closing.contains_key(&(key, machine.index))
    }

    /// Machines that have not let go of a leg yet.
    pub(super) fn closing_at(&self, key: LegKey) -> impl Iterator<Item = u32> + use<> {
        let found: Vec<u32> =
            self.closing.range((key, 0)..=(key, u32::MAX)).map(|(&(_, machine), _)| machine).collect();
        found.into_iter()
    }

    /// A leg that should be on the machine: it is, it has never arrived, or it is gone.
    fn settle_leg(
        &mut self,
        slot: u32,
        at: usize,
        here: &BTreeSet<LegKey>,
        seen: AssignmentSeq,
        actions: &mut Vec<ClusterAction>,
    ) {
        // An earlier one of the same machine may have changed it.
        let request = self.requests.get(slot);
        let (key, Some(mut leg)) = (request.key(), request.legs[at]) else { return };
        let Some(machine) = leg.machine else { return };
        if here.contains(&key) {
            let delivered = request.delivered;
            if leg.send_seq > seen {
                // Before it says again that a transfer has failed, which was to another destination.
                self.command_rest(slot, at, actions);
            }
            self.command(machine, None, Command::Confirm { key, delivered }, actions);
            if leg.send_seq <= seen {
                self.command_rest(slot, at, actions);
            }
        } else if leg.seq > seen && self.can_hold(slot, machine) {
            self.entry(machine.index).take_back(leg.seq, &mut leg.booking);
            self.requests.get_mut(slot).legs[at] = Some(leg);
            self.command_again(slot, at, actions);
        } else if leg.seq > seen {
            // It has never had it, and can hold it no more: nobody's fault.
            self.entry(machine.index).take_back(leg.seq, &mut leg.booking);
            self.requests.get_mut(slot).legs[at] = Some(leg);
            self.place_again(slot, actions);
        } else {
            let _ = self.gone(slot, at, actions);
        }
    }

    /// A leg's first command has not arrived; nor have those after it.
    fn command_again(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) {
        if at == 0 {
            self.command_compute(slot, actions);
            self.command_rest(slot, 0, actions);
        } else if self.requests.get(slot).legs[0].is_some() {
            self.command_reserve(slot, actions);
        } else {
            self.place_again(slot, actions);
        }
    }

    /// What a leg that has arrived may lack: where its KV goes, or that it may start. Said twice it changes nothing.
    pub(super) fn command_rest(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        let (key, Some(second)) = (request.key(), request.legs[1]) else { return };
        let Some(machine) = second.machine.filter(|_| second.booking.sent) else { return };
        if at == 1 {
            self.command(machine, None, Command::Start { key }, actions);
        } else {
            self.command_send(slot, actions);
        }
    }

    /// What was given up while the machine was away: told again where it is still held, closed where it is gone.
    fn settle_closing(&mut self, registration: &Registration, actions: &mut Vec<ClusterAction>) {
        let machine = registration.join.machine;
        let on_it = self.closing.iter().filter(|((_, at), _)| *at == machine.index);
        for (key, closing) in on_it.map(|(&(key, _), &closing)| (key, closing)).collect::<Vec<_>>() {
            let is_it = |claim: &Claim| claim.key == key && claim.held != Held::Kept;
            if registration.claims.iter().any(is_it) {
                // Also where it is being dropped: what it says of that before it hears of this session goes nowhere.
                let seq = self.command(machine, None, Command::Abort { key }, actions);
                self.closing.insert((key, machine.index), Closing { seq, hedged: None, ..closing });
            } else {
                self.closing.remove(&(key, machine.index));
                self.close(machine.index, &closing.booking, actions);
            }
        }
    }

    /// Lets a machine forget what it claims.
    pub(super) fn dismiss(&mut self, machine: MachineId, claim: &Claim, actions: &mut Vec<ClusterAction>) {
        let key = claim.key;
        if matches!(claim.held, Held::Finished | Held::Kept) {
            self.command(machine, None, Command::Release { key }, actions);
            return;
        }
        let seq = self.command(machine, None, Command::Abort { key }, actions);
        // Its KV is in the machine's reports, not in our bookings.
        let booking = Booking { sent: true, ..Booking::default() };
        if self.closing.insert((key, machine.index), Closing { booking, seq, hedged: None }).is_none() {
            self.entry(machine.index).closing += 1;
        }
    }

    /// What a machine that is back keeps. What it was to keep and does not, because the command was lost, others must.
    /// Returns the records that stay; none where the leg itself is `here`.
    fn settle_records(
        &mut self,
        registration: &Registration,
        here: &BTreeSet<LegKey>,
        actions: &mut Vec<ClusterAction>,
    ) -> BTreeSet<LegKey> {
        let machine = registration.join.machine;
        let runs_here: BTreeSet<RequestId> = here.iter().map(|key| key.request).collect();
        let kept = registration.claims.iter().filter(|claim| claim.held == Held::Kept);
        let kept = kept.filter(|claim| !runs_here.contains(&claim.key.request));
        let has: BTreeSet<(LegKey, Order)> = kept.clone().map(|claim| (claim.key, claim.order)).collect();
        let slots: Vec<u32> = self.requests.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let request = self.requests.get(slot);
            if request.is_kept_by(machine) {
                let (id, order) = (request.arrival.request, request.order);
                let is_there = |attempt| has.contains(&(LegKey { request: id, attempt }, order));
                self.drop_keeper(slot, |keeper| keeper.machine == machine && !is_there(keeper.attempt));
            }
        }
        let mut records = BTreeSet::new();
        for claim in kept {
            if self.takes_record(machine, claim, actions) {
                records.insert(claim.key);
            }
        }
        records
    }
}

/// Whether a claimed leg has computed its prompt.
pub(super) fn has_prefilled(compute: Compute) -> bool {
    matches!(compute, Compute::Held | Compute::Decoding | Compute::Done)
}
