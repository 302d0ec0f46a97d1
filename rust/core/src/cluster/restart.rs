//! A Cluster that starts anew knows nothing; its machines know everything. During the grace time after a restart they
//! register, and each leg or kept request they claim becomes a live request again. Nothing is placed until it ends.
//! Then what is still incomplete counts as lost with the machines that have not registered, and is placed again.
//!
//! A leg that a machine claims later is for nothing any more: its machine counted as lost. A record is one copy more of
//! its request.

use super::Cluster;
use super::claims::claimed_arrival;
use super::machines::Booking;
use super::requests::{Loss, Request, WatchedLeg};
use super::sessions::has_prefilled;
use crate::event::{Claim, ClusterAction, Fault, Held, Registration};
use crate::id::{AssignmentSeq, MachineId};
use crate::leg::{Command, Compute, Inbound, LegState, Outbound};
use crate::placement::{Mode, Upto};
use crate::time::Time;

impl Cluster {
    /// Takes over what a machine claims that this Cluster meets for the first time.
    pub(super) fn adopt_all(&mut self, registration: &Registration, actions: &mut Vec<ClusterAction>) {
        let machine = registration.join.machine;
        // Legs first: a kept request is of use only where there is none.
        let (kept, legs): (Vec<&Claim>, Vec<&Claim>) =
            registration.claims.iter().partition(|claim| claim.held == Held::Kept);
        for claim in legs.into_iter().chain(kept) {
            let over = self.ended_in_grace.contains(&claim.key.request) || claim.held == Held::Closing;
            match if over || !self.is_recovering() { None } else { self.adopted_slot(claim, actions) } {
                Some(slot) if claim.held == Held::Kept => self.adopt_kept(slot, machine, claim, actions),
                Some(slot) => self.adopt_leg(slot, machine, claim, actions),
                None if self.takes_late(machine, claim, actions) => {}
                None => self.dismiss(machine, claim, actions),
            }
        }
    }

    /// When whatever is adopted counts as accepted: machines register in any order, and their requests are as old.
    fn restarted_at(&self) -> Time {
        let opens_at = self.opens_at.filter(|&opens_at| opens_at != Time::MAX);
        opens_at.map_or(self.now, |at| Time::from_ns(at.as_ns().saturating_sub(self.config.grace_ns)))
    }

    /// The request of a claim, made if it is new. `None` where a later attempt of it is known, or a later request of its
    /// name.
    fn adopted_slot(&mut self, claim: &Claim, actions: &mut Vec<ClusterAction>) -> Option<u32> {
        self.arrivals = self.arrivals.max(claim.order.0 + 1);
        self.forget_earlier(claim, actions);
        let Some(slot) = self.requests.find(claim.key.request) else {
            if self.requests.len() == 0 {
                self.swept_at = self.now;
            }
            let accepted_at = self.restarted_at();
            let line = self.adopted_line(&claim.work.terms, accepted_at);
            let slot = self.requests.insert(adopted(claim, line, accepted_at));
            self.counters.adopted += 1;
            return Some(slot);
        };
        let request = self.requests.get(slot);
        let known = request.attempt;
        if claim.key.attempt < known || claim.order != request.order {
            return None;
        }
        if claim.key.attempt > known {
            self.give_up_legs(slot, actions);
        }
        let request = self.requests.get_mut(slot);
        if request.legs.iter().all(Option::is_none) {
            // The attempt is what its machine says; that this Cluster may have counted as far says nothing of it.
            request.attempt = claim.key.attempt;
            let resumed = claim.work.terms.resumed_tokens;
            (request.resumed_from, request.delivered) = (resumed, request.delivered.max(resumed));
        }
        Some(slot)
    }

    /// A name comes again only when the request that had it is over: one that was claimed first, by a machine that has
    /// not heard of its end, is forgotten.
    fn forget_earlier(&mut self, claim: &Claim, actions: &mut Vec<ClusterAction>) {
        let Some(slot) = self.requests.find(claim.key.request) else { return };
        if self.requests.get(slot).order < claim.order {
            self.give_up_legs(slot, actions);
            let _ = self.remove(slot, actions);
        }
    }

    /// A record of an earlier attempt is one of the request all the same; so is the end of one while nobody has a leg.
    fn takes_late(&mut self, machine: MachineId, claim: &Claim, actions: &mut Vec<ClusterAction>) -> bool {
        let Some(slot) = self.requests.find(claim.key.request) else { return false };
        let request = self.requests.get(slot);
        let is_record = claim.held == Held::Kept || (claim.held == Held::Finished && request.parked);
        is_record && !request.is_run_by(machine) && self.takes_record(machine, claim, actions)
    }

    fn adopt_kept(&mut self, slot: u32, machine: MachineId, claim: &Claim, actions: &mut Vec<ClusterAction>) {
        if self.requests.get(slot).is_run_by(machine) || !self.takes_record(machine, claim, actions) {
            self.dismiss(machine, claim, actions);
        }
        let request = self.requests.get(slot);
        if !request.parked && request.legs.iter().all(Option::is_none) {
            self.park(slot, actions);
        }
    }

    /// Seats a claimed leg; the machine then says again where it stands.
    fn adopt_leg(&mut self, slot: u32, machine: MachineId, claim: &Claim, actions: &mut Vec<ClusterAction>) {
        let at = usize::from(claim.work.start > 0);
        let leg = claimed_leg(machine, claim);
        if let Some(other) = self.requests.get(slot).legs[at] {
            // Two destinations of one handoff: the word that the first was given up was lost. Who has the KV stays.
            if other.is_ready() || !leg.is_ready() {
                self.dismiss(machine, claim, actions);
                return;
            }
            self.give_up(slot, at, actions);
        }
        self.entry(machine.index).book_known(&leg.booking);
        self.refresh(machine.index);
        let request = self.requests.get_mut(slot);
        request.legs[at] = Some(leg);
        if request.parked {
            self.leave_line(slot);
        }
        self.runs_at(slot, machine, actions);
        let delivered = self.requests.get(slot).delivered;
        self.command(machine, None, Command::Confirm { key: claim.key, delivered }, actions);
        self.command_rest(slot, at, actions);
        if at == 1 && self.requests.get(slot).legs[0].is_some() {
            self.command_rest(slot, 0, actions);
        }
    }

    /// The grace time is over: machines that have not registered are lost, with what only they had.
    pub(super) fn open(&mut self, actions: &mut Vec<ClusterAction>) {
        self.opens_at = None;
        self.ended_in_grace.clear();
        self.machines_changed = true;
        self.judge_all_parked();
        let slots: Vec<u32> = self.requests.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let request = self.requests.get_mut(slot);
            match request.legs {
                // Its destination is lost, or had not been named yet: it waits for one like any other.
                [Some(first), None] if !first.booking.decodes => {
                    request.legs[1] = Some(rest_of(&first, request.prompt_tokens()));
                    self.unreserved.insert(request.place(slot));
                }
                [None, Some(second)] if !second.is_ready() => {
                    (request.lost, request.fault) = (Loss::Kv, Some(Fault::Unregistered));
                }
                [None, None] => request.begin_attempt(),
                _ => {}
            }
        }
        self.replace_lost(actions);
        self.retry(actions);
        self.cover_all(actions);
    }
}

/// A request as a machine's claim describes it.
fn adopted(claim: &Claim, line: i64, accepted_at: Time) -> Request {
    let resumed = claim.work.terms.resumed_tokens;
    Request {
        attempt: claim.key.attempt,
        adopted: true,
        delivered: resumed,
        resumed_from: resumed,
        ..Request::new(claimed_arrival(claim), claim.order, line, accepted_at)
    }
}

/// A claimed leg as the Cluster watches it: with the books of one that has yet to run, as far as it does not say more.
pub(super) fn claimed_leg(machine: MachineId, claim: &Claim) -> WatchedLeg {
    let work = claim.work;
    let (state, mode) = if let Held::Leg { state, mode } = claim.held {
        (state, mode)
    } else {
        let inbound = if work.start > 0 { Inbound::Ready } else { Inbound::None };
        (LegState { compute: Compute::Done, inbound, outbound: Outbound::None }, None)
    };
    let waits = !has_prefilled(state.compute);
    let booking = Booking {
        prefill_tokens: if waits { work.prefill_tokens() } else { 0 },
        prefills: waits && work.prefill_tokens() > 0,
        decodes: !work.hands_over(),
        kv_tokens: work.prompt_tokens.saturating_add(1),
        sent: true,
    };
    let mode = (work.start > 0).then_some(mode.unwrap_or(Mode::Serialized));
    WatchedLeg {
        machine: Some(machine),
        start: work.start,
        upto: work.upto,
        mode,
        state,
        booking,
        seq: AssignmentSeq(0),
        send_seq: AssignmentSeq(0),
    }
}

/// The second leg that a first one hands over to, without a machine.
fn rest_of(first: &WatchedLeg, prompt_tokens: u32) -> WatchedLeg {
    let start = match first.upto {
        Upto::Position(upto) => upto,
        Upto::End => prompt_tokens,
    };
    let rest = prompt_tokens - start;
    let booking =
        Booking { prefill_tokens: rest, prefills: rest > 0, decodes: true, sent: false, ..first.booking };
    WatchedLeg { start, upto: Upto::End, mode: Some(Mode::Serialized), booking, ..*first }.unseated()
}
