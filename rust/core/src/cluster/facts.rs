//! What machines (or an embedder) say, and what it does to the books.

use super::claims::check_report;
use super::machines::{Booking, Closing};
use super::requests::WatchedLeg;
use super::{Cluster, MachineState};
use crate::config::MixedReturn;
use crate::error::{Applied, EventError};
use crate::event::{ClusterAction, Fault, Outcome};
use crate::id::{AssignmentSeq, LegKey, MachineId, RequestId};
use crate::leg::{Command, Compute, Inbound, Notice, Outbound, Report};
use crate::placement::Reserve;
use crate::time::Time;

impl Cluster {
    pub(super) fn notice(
        &mut self,
        from: MachineId,
        notice: &Notice,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let Some(machine) = self.live(from)? else { return Ok(self.late()) };
        if let Notice::Report(report) | Notice::Released { report, .. } | Notice::Refused { report, .. } =
            notice
        {
            check_report(from, report)?;
        }
        let goes_on = match notice {
            Notice::Report(report) => report.running,
            // To give something back, or to answer an `Abort`, is not to go on.
            Notice::Reserved { .. }
            | Notice::Refused { .. }
            | Notice::Relief { .. }
            | Notice::Gone { .. }
            | Notice::Released { to: None, .. } => false,
            _ => true,
        };
        if goes_on {
            self.entry(machine).went_on_at = self.now;
        }
        Ok(self.fact(Some(machine), notice, actions))
    }

    /// A fact from a machine, or from an embedder about whichever machine it concerns.
    pub(super) fn fact(
        &mut self,
        from: Option<u32>,
        notice: &Notice,
        actions: &mut Vec<ClusterAction>,
    ) -> Applied {
        match *notice {
            Notice::Report(report) => {
                self.take_report(from, report, actions);
                if let Some(machine) = from {
                    self.tell_drained(machine, actions);
                }
                self.retry(actions);
                Applied::Yes
            }
            Notice::Released { key, to, report } => {
                // What is released changes the machine's place in the indexes as well: once is enough.
                let now = self.now;
                let settled = from.is_none_or(|machine| {
                    let entry = self.entry(machine);
                    entry.take_report(now, report);
                    entry.pooled != report.over_quarantine
                });
                let applied = self.released(from, key, to, report.seq, actions);
                if !settled || !applied.is_yes() {
                    self.take_report(from, report, actions);
                }
                self.retry(actions);
                applied
            }
            Notice::Finished { key, tokens } => self.finished(from, key, tokens, actions),
            Notice::Refused { key, report } => {
                self.take_report(from, report, actions);
                self.refused(from, key, actions)
            }
            Notice::Reserved { key } => {
                let slot = self.watch(from, key, 1, |leg| leg.state.inbound = Inbound::Reserved);
                if let (Some(slot), Some(machine)) = (slot, from) {
                    // Before, it might have refused.
                    self.runs_at(slot, self.id_of(machine), actions);
                }
                self.applied(slot)
            }
            Notice::Sent { key } => {
                let slot = self.watch(from, key, 0, |leg| leg.state.outbound = Outbound::Sending);
                self.applied(slot)
            }
            Notice::Landed { key } => {
                let slot = self.watch(from, key, 1, |leg| leg.state.inbound = Inbound::Ready);
                if let Some(slot) = slot {
                    self.got_across(slot);
                }
                self.applied(slot)
            }
            Notice::PrefillDone { key, .. } => self.prefill_done(from, key, actions),
            Notice::Evicted { key, tokens } => self.evicted(from, key, tokens),
            Notice::Progress { key, tokens } => self.progress(from, key, tokens, actions),
            Notice::TransferFailed { key } => self.transfer_failed(from, key, actions),
            Notice::Relief { key } => self.relieve(from, key, actions),
            Notice::Gone { key } => match self.find_leg(from, key, |_| true) {
                Some((slot, at)) => self.gone(slot, at, actions),
                None => self.late(),
            },
        }
    }

    fn take_report(&mut self, from: Option<u32>, report: Report, actions: &mut Vec<ClusterAction>) {
        let Some(machine) = from else { return };
        let now = self.now;
        let due = now.after(self.config.report_limit_ns);
        self.reports_due.get_or_insert(due);
        let entry = self.entry(machine);
        entry.take_report(now, report);
        if entry.pooled == report.over_quarantine {
            self.enroll(machine);
        }
        self.refresh(machine);
        // Where quarantine had kept it from its pool, it may have had nothing to stay away from home for since.
        self.go_home(machine, actions);
    }

    /// Machines that have not reported for `report_limit_ns` count by our own books again. O(machines), and O(live
    /// requests) for each such machine.
    pub(super) fn drop_old_reports(&mut self, actions: &mut Vec<ClusterAction>) {
        self.reports_due = None;
        for machine in 0..self.machines_len() {
            let Some(since) = self.machines[machine as usize].reported_at() else { continue };
            let due = since.after(self.config.report_limit_ns);
            if due > self.now {
                self.reports_due = Time::earliest(self.reports_due, Some(due));
                continue;
            }
            let own_kv = self.booked_kv(machine);
            // One of ours, in its session, says when its blocks are free; an embedder may have stopped reporting.
            let keeps_away = self.is_managed()
                && self.machines[machine as usize].shown_state() == MachineState::Quarantined;
            self.entry(machine).disbelieve(own_kv, keeps_away);
            self.enroll(machine);
            self.refresh(machine);
            self.go_home(machine, actions);
            self.tell_drained(machine, actions);
        }
    }

    /// KV tokens of all bookings on a machine, those of legs given up included until it has let go.
    fn booked_kv(&self, machine: u32) -> u64 {
        let id = self.id_of(machine);
        let legs = self.requests.iter().flat_map(|(_, request)| request.legs.iter().flatten());
        let live = legs.filter(|leg| leg.machine == Some(id)).map(|leg| leg.booking);
        let given_up = self.closing.iter().filter(|((_, at), _)| *at == machine);
        let bookings = live.chain(given_up.map(|(_, closing)| closing.booking));
        bookings.map(|booking| u64::from(booking.kv_tokens)).sum()
    }

    /// The leg of a live attempt that was sent to a machine: of one that it was not told of it can say nothing yet.
    /// From an embedder, the first that `wanted` accepts.
    pub(super) fn find_leg(
        &self,
        from: Option<u32>,
        key: LegKey,
        wanted: impl Fn(&WatchedLeg) -> bool,
    ) -> Option<(u32, usize)> {
        let slot = self.requests.find_key(key)?;
        let on = |leg: &WatchedLeg| match from {
            Some(machine) => leg.booking.sent && leg.machine.is_some_and(|id| id.index == machine),
            None => wanted(leg),
        };
        let legs = &self.requests.get(slot).legs;
        let at = legs.iter().position(|leg| leg.as_ref().is_some_and(on))?;
        Some((slot, at))
    }

    /// Something is known of the first or the second leg of a handoff, from the machine that has it. Returns whose leg
    /// it is, if it is live.
    fn watch(
        &mut self,
        from: Option<u32>,
        key: LegKey,
        about: usize,
        change: impl FnOnce(&mut WatchedLeg),
    ) -> Option<u32> {
        let (slot, at) = self.find_leg(from, key, |leg| leg.mode.is_some() == (about == 1))?;
        if at != about {
            return None;
        }
        if let Some(leg) = &mut self.requests.get_mut(slot).legs[at] {
            change(leg);
        }
        self.touch_lease(slot);
        Some(slot)
    }

    /// A request's KV is where it decodes.
    fn got_across(&mut self, slot: u32) {
        let [first, second] = self.requests.get(slot).legs.map(|leg| leg.and_then(|leg| leg.machine));
        self.note_transfer(first, second);
    }

    fn applied(&mut self, slot: Option<u32>) -> Applied {
        if slot.is_some() { Applied::Yes } else { self.late() }
    }

    fn prefill_done(&mut self, from: Option<u32>, key: LegKey, actions: &mut Vec<ClusterAction>) -> Applied {
        let found = self.find_leg(from, key, |leg| leg.booking.prefill_tokens > 0);
        let Some((slot, at)) = found else { return self.late() };
        let hands_over = self.end_prefill(slot, at, actions);
        if hands_over && self.config.reserve == Reserve::AtSourceDone {
            self.command_reserve(slot, actions);
            self.command_send(slot, actions);
        }
        let now = self.now;
        self.requests.get_mut(slot).moved_at = now;
        self.touch_lease(slot);
        Applied::Yes
    }

    /// A leg has computed its prompt. Returns whether it now hands over; said again after a lost session, it does not.
    fn end_prefill(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) -> bool {
        let Some(leg) = &mut self.requests.get_mut(slot).legs[at] else { return false };
        let Some(machine) = leg.machine else { return false };
        let tokens = std::mem::take(&mut leg.booking.prefill_tokens);
        // What a leg holds for its successor is no prefill work any more: it keeps no machine from going home.
        let turns = std::mem::take(&mut leg.booking.prefills);
        leg.state.compute = if leg.booking.decodes { Compute::Decoding } else { Compute::Held };
        let hands_over = !leg.booking.decodes && turns;
        let entry = self.entry(machine.index);
        entry.booked -= u64::from(tokens);
        entry.prefill_legs -= u32::from(turns);
        self.refresh(machine.index);
        if turns {
            self.go_home(machine.index, actions);
        }
        hands_over
    }

    /// Until the next `PrefillDone` the machine has everything so far to prefill again.
    fn evicted(&mut self, from: Option<u32>, key: LegKey, tokens: u32) -> Applied {
        let found = self.find_leg(from, key, |leg| leg.booking.decodes);
        let Some((slot, at)) = found else { return self.late() };
        let decodes = self.requests.get_mut(slot).legs[at].as_mut().filter(|leg| leg.booking.decodes);
        let Some(leg) = decodes else { return self.late() };
        let Some(machine) = leg.machine else { return Applied::Late };
        let again = !std::mem::replace(&mut leg.booking.prefills, true);
        let more = u64::from(tokens) - u64::from(leg.booking.prefill_tokens.min(tokens));
        leg.booking.prefill_tokens += more as u32;
        leg.state.compute = Compute::Evicted;
        let entry = self.entry(machine.index);
        entry.booked += more;
        entry.prefill_legs += u32::from(again);
        self.refresh(machine.index);
        Applied::Yes
    }

    fn progress(
        &mut self,
        from: Option<u32>,
        key: LegKey,
        tokens: u32,
        actions: &mut Vec<ClusterAction>,
    ) -> Applied {
        let Some(slot) = self.requests.find_key(key) else { return self.late() };
        if from.is_some() && self.find_leg(from, key, |_| true).is_none() {
            return self.late();
        }
        let managed = self.is_managed();
        let request = self.requests.get_mut(slot);
        // Positions are 32 bits wide, so no more than that is ever counted.
        let delivered_max = (u32::MAX - 1).saturating_sub(request.arrival.prompt_tokens);
        let tokens = tokens.min(delivered_max - request.delivered);
        request.delivered += tokens;
        if !managed {
            // The destination decodes, so it has the KV: the source's blocks are free.
            if request.legs[1].is_some() && request.legs[0].is_some() {
                self.got_across(slot);
                self.leave(slot, 0, actions);
            }
            self.end_own_prefill(slot, tokens, actions);
            self.grow_own(slot, tokens);
        } else if request.parked && self.end_if_given(slot, actions) {
            // An attempt that was given up has given the last: there is nothing to wait for.
            return Applied::Yes;
        }
        self.touch_lease(slot);
        Applied::Yes
    }

    /// An embedder that tells of tokens need not have told that the prompt is done: it is.
    fn end_own_prefill(&mut self, slot: u32, tokens: u32, actions: &mut Vec<ClusterAction>) {
        for at in 0..2 {
            if tokens > 0 && self.requests.get(slot).legs[at].is_some_and(|leg| leg.booking.decodes) {
                self.end_prefill(slot, at, actions);
            }
        }
    }

    /// An embedder's machines do not report, so the books follow what is delivered.
    fn grow_own(&mut self, slot: u32, tokens: u32) {
        for leg in self.requests.get_mut(slot).legs.iter_mut().flatten() {
            let (true, Some(machine)) = (leg.booking.decodes, leg.machine) else { continue };
            leg.booking.kv_tokens = leg.booking.kv_tokens.saturating_add(tokens);
            let entry = &mut self.machines[machine.index as usize];
            entry.grow_unsent_kv(tokens);
            self.pools.refresh(self.config.policy, machine.index, entry);
        }
    }

    /// A transfer that has not landed needs another destination, as long as its source has the KV; an embedder's
    /// source is not ours to ask, so there it costs the request its placement.
    fn transfer_failed(
        &mut self,
        from: Option<u32>,
        key: LegKey,
        actions: &mut Vec<ClusterAction>,
    ) -> Applied {
        let found = self.find_leg(from, key, |leg| !leg.booking.decodes);
        let Some((slot, 0)) = found else { return self.late() };
        let Some(second) = self.requests.get(slot).legs[1].filter(|next| !next.is_ready()) else {
            return self.late();
        };
        self.touch_lease(slot);
        let source = self.requests.get(slot).legs[0].and_then(|leg| leg.machine);
        let (Some(from), Some(to)) = (source, second.machine) else { return Applied::Yes };
        let request = self.requests.get_mut(slot);
        request.fault = Some(Fault::Transfer { from, to });
        request.unreached.push(to.index);
        self.note_failed_transfer(from, to, actions);
        if self.is_managed() {
            self.send_elsewhere(slot, actions);
        } else {
            self.fault(slot, actions);
        }
        Applied::Yes
    }

    /// A leg's blocks are free: it handed over, or it was given up earlier. A leg that was given up is closed only
    /// by the answer to its `Abort`, the last its machine has to say of it; until then its name is not used again.
    fn released(
        &mut self,
        from: Option<u32>,
        key: LegKey,
        to: Option<MachineId>,
        seq: AssignmentSeq,
        actions: &mut Vec<ClusterAction>,
    ) -> Applied {
        if let Some((machine, closing)) = from.and_then(|at| Some((at, *self.closing.get(&(key, at))?))) {
            if seq < closing.seq {
                return self.late();
            }
            self.closing.remove(&(key, machine));
            self.close(machine, &closing.booking, actions);
            return Applied::Yes;
        }
        match self.find_leg(from, key, |leg| !leg.booking.decodes) {
            Some((slot, at)) if to.is_none() && self.is_managed() => self.dropped(slot, at, actions),
            Some((slot, 0)) if self.requests.get(slot).legs[0].is_some_and(|leg| !leg.booking.decodes) => {
                self.handed_over(slot, to, actions);
                self.touch_lease(slot);
                Applied::Yes
            }
            _ => self.late(),
        }
    }

    /// A given-up leg's blocks are free at last.
    pub(super) fn close(&mut self, machine: u32, booking: &Booking, actions: &mut Vec<ClusterAction>) {
        let entry = self.entry(machine);
        entry.closing -= 1;
        entry.free_kv(booking);
        self.refresh(machine);
        self.tell_drained(machine, actions);
    }

    fn finished(
        &mut self,
        from: Option<u32>,
        key: LegKey,
        tokens: u32,
        actions: &mut Vec<ClusterAction>,
    ) -> Applied {
        // Cancelled meanwhile: the end that was applied first wins.
        let found = match from {
            Some(_) => self.find_leg(from, key, |_| true).map(|(slot, _)| slot),
            // An embedder may know of an end while we seek a machine.
            None => self.requests.find_key(key),
        };
        let Some(slot) = found else { return self.late() };
        if self.predicts() {
            self.learn_output(slot, tokens);
        }
        let legs = self.requests.get(slot).legs;
        for (at, leg) in legs.iter().enumerate() {
            let Some(leg) = leg else { continue };
            let ended_here = from.is_none() || leg.machine.is_some_and(|id| Some(id.index) == from);
            // A source whose first token was the last may still be sending: it answers when nothing is left.
            if ended_here && (at == 1 || legs[1].is_none()) {
                self.leave(slot, at, actions);
                if let Some(machine) = leg.machine {
                    // It keeps the end until it knows that we know.
                    self.command(machine, None, Command::Release { key }, actions);
                }
            } else {
                self.give_up(slot, at, actions);
            }
        }
        self.counters.finished += 1;
        self.end(slot, Outcome::Finished, actions);
        Applied::Yes
    }

    /// Takes a leg whose blocks are free off the books.
    pub(super) fn leave(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) {
        let Some(leg) = self.requests.get_mut(slot).legs[at].take() else { return };
        let Some(machine) = leg.machine else { return };
        let entry = self.entry(machine.index);
        entry.unbook(&leg.booking);
        entry.free_kv(&leg.booking);
        self.refresh(machine.index);
        self.go_home(machine.index, actions);
        self.tell_drained(machine.index, actions);
    }

    /// Takes a leg off the books and tells its machine; its blocks stay booked until the machine has let go.
    pub(super) fn give_up(&mut self, slot: u32, at: usize, actions: &mut Vec<ClusterAction>) {
        let managed = self.is_managed();
        let request = self.requests.get_mut(slot);
        let key = request.key();
        let Some(leg) = request.legs[at].take() else { return };
        let Some(machine) = leg.machine else { return };
        let entry = &mut self.machines[machine.index as usize];
        entry.unbook(&leg.booking);
        // A leg that was never told needs no answer.
        if managed && leg.booking.sent {
            entry.closing += 1;
            let seq = self.command(machine, None, Command::Abort { key }, actions);
            let closing = Closing { booking: leg.booking, seq, hedged: None };
            if let Some(before) = self.closing.insert((key, machine.index), closing) {
                // The machine had begun to drop it of its own accord.
                let entry = self.entry(machine.index);
                entry.closing -= 1;
                entry.free_kv(&before.booking);
            }
        } else {
            entry.free_kv(&leg.booking);
        }
        self.refresh(machine.index);
        self.go_home(machine.index, actions);
        self.tell_drained(machine.index, actions);
    }

    /// The request is over, with no leg left on the books.
    pub(super) fn end(&mut self, slot: u32, outcome: Outcome, actions: &mut Vec<ClusterAction>) {
        let Some(id) = self.remove(slot, actions) else { return };
        if self.is_recovering() {
            self.ended_in_grace.insert(id);
        }
        actions.push(ClusterAction::Ended { request: id, outcome });
    }

    /// Takes a request without a leg off the books.
    pub(super) fn remove(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) -> Option<RequestId> {
        let request = self.requests.remove(slot)?;
        for keeper in request.keepers {
            self.release_keeper(request.arrival.request, keeper, actions);
        }
        if let Some(due) = request.lease_due {
            self.leases.remove(&(due, slot));
        }
        if request.parked {
            self.unpark(&request, slot);
        }
        self.unreserved.remove(&request.place(slot));
        Some(request.arrival.request)
    }

    /// Sends a machine home from the mixed pool, if it has nothing left that keeps it there.
    pub(super) fn go_home(&mut self, machine: u32, actions: &mut Vec<ClusterAction>) {
        let (now, hold) = (self.now, self.config.mixed_hold_ns);
        let entry = &mut self.machines[machine as usize];
        if entry.pool == entry.home || !entry.pooled {
            return;
        }
        let done = match self.config.mixed_return {
            MixedReturn::Drained => entry.opposite_legs() == 0,
            MixedReturn::Idle => entry.legs == 0,
        };
        if !done {
            return;
        }
        let due = entry.mixed_since.after(hold);
        if due > now {
            self.held_in_mixed.insert((due, machine));
            return;
        }
        let home = entry.home;
        self.held_in_mixed.remove(&(due, machine));
        self.counters.to_home += 1;
        self.move_to(machine, home, actions);
    }

    pub(super) fn tell_drained(&mut self, machine: u32, actions: &mut Vec<ClusterAction>) {
        let entry = &mut self.machines[machine as usize];
        if entry.state == MachineState::Draining && !entry.drained && entry.is_empty() {
            entry.drained = true;
            actions.push(ClusterAction::Drained { machine: entry.id });
        }
    }
}
