//! What the Cluster keeps of each machine: its home and pool, and what is booked on it.

use std::collections::VecDeque;

use crate::event::{Join, Link, Role};
use crate::id::{AssignmentSeq, MachineId, Order};
use crate::leg::Report;
use crate::time::Time;

/// Whether a machine takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MachineState {
    /// It does.
    Up,
    /// Its session has ended; it may come back.
    Away,
    /// Too many of its blocks wait for silent writers. It takes work again when they are free.
    Quarantined,
    /// It finishes what it has.
    Draining,
    /// It is gone; its index waits for a next incarnation.
    Lost,
}

/// What one leg books on its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Booking {
    /// Prompt tokens until `PrefillDone`.
    pub(crate) prefill_tokens: u32,
    /// Whether it prefills here, until `PrefillDone`.
    pub(crate) prefills: bool,
    /// Whether it decodes here.
    pub(crate) decodes: bool,
    /// KV tokens.
    pub(crate) kv_tokens: u32,
    /// Whether the machine has been told, so that its reports will include it.
    pub(crate) sent: bool,
}

/// A leg given up: what it booked, and the number of the `Abort` that its machine answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Closing {
    pub(crate) booking: Booking,
    pub(crate) seq: AssignmentSeq,
    /// Of a leg whose request has moved away because its machine had no session: the request's place in line. The leg
    /// may be taken up again.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) hedged: Option<Order>,
}

/// A machine as the Cluster books it. What every placement touches comes first and fills one cache line: with
/// thousands of machines, each further line is a miss more for every booking.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(C, align(64))]
pub(crate) struct MachineEntry {
    /// Prompt tokens not yet prefilled, and one for each request that decodes here.
    pub(crate) booked: u64,
    /// KV tokens: the last report and everything booked since, or all live bookings where it has not reported. Never
    /// idle for want of a report, never full.
    pub(crate) kv_load: u64,
    /// Bookings the machine has not been told of.
    unsent_kv: u64,
    pub(crate) kv_capacity_tokens: u64,
    pub(crate) id: MachineId,
    pub(crate) prefill_legs: u32,
    pub(crate) decode_legs: u32,
    /// Live legs.
    pub(crate) legs: u32,
    pub(crate) home: Role,
    pub(crate) pool: Role,
    /// Up, draining or lost; what else keeps work away is beside it.
    pub(crate) state: MachineState,
    /// Whether there is a `report`.
    reports: bool,
    /// Whether it is in its pool, and can be chosen.
    pub(crate) pooled: bool,
    pub(crate) speed_weight: u32,
    /// Legs given up whose blocks are not yet known to be free.
    pub(crate) closing: u32,
    report: Report,
    /// When it came.
    reported_at: Time,
    /// Bookings it was told of after its last report.
    later_kv: u64,
    later: VecDeque<(AssignmentSeq, u32)>,
    seq: AssignmentSeq,
    pub(crate) link: Option<Link>,
    pub(crate) mixed_since: Time,
    /// When it last said that something it holds went on.
    pub(crate) went_on_at: Time,
    /// It has been told that it holds nothing any more.
    pub(crate) drained: bool,
    /// Since when it has no session.
    pub(crate) away_since: Option<Time>,
    /// It is to be stopped: when it holds nothing, or its session ends, it is gone.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) leaves: bool,
    /// When its requests move away from it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) moves_at: Option<Time>,
}

impl MachineEntry {
    pub(crate) fn new(join: &Join) -> Self {
        Self {
            id: join.machine,
            home: join.role,
            pool: join.role,
            state: MachineState::Up,
            kv_capacity_tokens: join.kv_capacity_tokens,
            speed_weight: join.speed_weight,
            link: join.link,
            booked: 0,
            kv_load: 0,
            prefill_legs: 0,
            decode_legs: 0,
            legs: 0,
            closing: 0,
            drained: false,
            pooled: false,
            away_since: None,
            leaves: false,
            moves_at: None,
            unsent_kv: 0,
            later: VecDeque::new(),
            later_kv: 0,
            reports: false,
            report: Report::default(),
            reported_at: Time::ZERO,
            seq: AssignmentSeq(0),
            mixed_since: Time::ZERO,
            went_on_at: Time::ZERO,
        }
    }

    /// A place that no machine has taken yet.
    pub(crate) fn vacant(index: u32) -> Self {
        let machine = MachineId { index, incarnation: 0 };
        let join = Join {
            machine,
            role: Role::Mixed,
            kv_capacity_tokens: 0,
            speed_weight: 1,
            link: None,
            costs: None,
        };
        Self { state: MachineState::Lost, ..Self::new(&join) }
    }

    /// Whether this incarnation may take its place: a later one at any time. Once it is lost any other, or a wrong number
    /// would keep the place for ever; nothing that was said of a lost machine is heard any more.
    pub(crate) fn is_followed_by(&self, incarnation: u32) -> bool {
        let other = incarnation != self.id.incarnation;
        incarnation > self.id.incarnation || (other && self.state == MachineState::Lost)
    }

    /// Whether it can be given work.
    pub(crate) fn takes_work(&self) -> bool {
        self.shown_state() == MachineState::Up
    }

    /// Whether it can be asked to keep a request, which takes no blocks.
    pub(crate) fn can_keep(&self) -> bool {
        self.state == MachineState::Up && self.away_since.is_none()
    }

    /// What keeps work away, if anything does.
    pub(crate) fn shown_state(&self) -> MachineState {
        match self.state {
            MachineState::Lost => MachineState::Lost,
            _ if self.away_since.is_some() => MachineState::Away,
            MachineState::Up if self.report.over_quarantine => MachineState::Quarantined,
            state => state,
        }
    }

    pub(crate) fn book(&mut self, booking: &Booking) {
        self.book_known(booking);
        self.grow_unsent_kv(booking.kv_tokens);
    }

    /// Books a leg that the machine's report includes.
    pub(crate) fn book_known(&mut self, booking: &Booking) {
        self.legs += 1;
        self.booked += u64::from(booking.prefill_tokens) + u64::from(booking.decodes);
        self.prefill_legs += u32::from(booking.prefills);
        self.decode_legs += u32::from(booking.decodes);
    }

    /// Takes a leg off the books. Its KV tokens stay until `free_kv`.
    pub(crate) fn unbook(&mut self, booking: &Booking) {
        self.legs -= 1;
        self.booked -= u64::from(booking.prefill_tokens) + u64::from(booking.decodes);
        self.prefill_legs -= u32::from(booking.prefills);
        self.decode_legs -= u32::from(booking.decodes);
    }

    pub(crate) fn free_kv(&mut self, booking: &Booking) {
        let tokens = u64::from(booking.kv_tokens);
        // What the machine was told of leaves with its next report.
        if !self.reports || !booking.sent {
            self.kv_load -= tokens;
        }
        if !booking.sent {
            self.unsent_kv -= tokens;
        }
    }

    /// A leg that its machine does not report on has grown.
    pub(crate) fn grow_unsent_kv(&mut self, tokens: u32) {
        self.kv_load += u64::from(tokens);
        self.unsent_kv += u64::from(tokens);
    }

    /// The number of the next assignment; from here on a report can include `booking`.
    pub(crate) fn assign(&mut self, booking: Option<&mut Booking>) -> AssignmentSeq {
        self.seq.0 += 1;
        if let Some(booking) = booking.filter(|booking| !booking.sent) {
            booking.sent = true;
            self.unsent_kv -= u64::from(booking.kv_tokens);
            self.later_kv += u64::from(booking.kv_tokens);
            self.later.push_back((self.seq, booking.kv_tokens));
        }
        self.seq
    }

    /// An assignment did not arrive: its booking waits to be told again.
    pub(crate) fn take_back(&mut self, seq: AssignmentSeq, booking: &mut Booking) {
        let Ok(at) = self.later.binary_search_by_key(&seq, |&(seq, _)| seq) else { return };
        self.later.remove(at);
        self.later_kv -= u64::from(booking.kv_tokens);
        self.unsent_kv += u64::from(booking.kv_tokens);
        booking.sent = false;
    }

    /// Bookings of assignments up to this one that no report includes: those have not arrived, and will not.
    pub(crate) fn drop_unarrived(&mut self, upto: AssignmentSeq) {
        while let Some(&(_, tokens)) = self.later.front().filter(|(seq, _)| *seq <= upto) {
            self.later.pop_front();
            self.later_kv -= u64::from(tokens);
            self.kv_load -= u64::from(tokens);
        }
    }

    /// The number of the last assignment.
    pub(crate) fn seq(&self) -> AssignmentSeq {
        self.seq
    }

    /// Takes a report in, unless it is older than the last one.
    pub(crate) fn take_report(&mut self, now: Time, report: Report) {
        if report.seq < self.report.seq {
            return;
        }
        while self.later.front().is_some_and(|&(seq, _)| seq <= report.seq) {
            if let Some((_, tokens)) = self.later.pop_front() {
                self.later_kv -= u64::from(tokens);
            }
        }
        (self.reports, self.report, self.reported_at) = (true, report, now);
        self.kv_load = report.kv_tokens + self.later_kv + self.unsent_kv;
    }

    /// When it made the report that counts.
    pub(crate) fn reported_at(&self) -> Option<Time> {
        self.reports.then_some(self.reported_at)
    }

    /// Its last report is too old to be believed: what is booked on it, `own_kv` tokens, counts. Reports from before
    /// the last are late still. `over_quarantine` stays where it says itself when that ends.
    pub(crate) fn disbelieve(&mut self, own_kv: u64, over_quarantine: bool) {
        self.report = Report { seq: self.report.seq, over_quarantine, ..Report::default() };
        self.reports = false;
        self.kv_load = own_kv;
    }

    /// Whether its last report leaves hope for a block.
    pub(crate) fn may_have_room(&self) -> bool {
        !self.reports || self.report.free_blocks > 0
    }

    /// Whether nothing is on it, by our books and by its own: a leg that has ended may still be read by a transfer.
    pub(crate) fn is_empty(&self) -> bool {
        self.legs == 0 && self.closing == 0 && self.report.legs == 0
    }

    /// Legs of the kind its home role does not do.
    pub(crate) fn opposite_legs(&self) -> u32 {
        match self.home {
            Role::Prompt => self.decode_legs,
            Role::Token => self.prefill_legs,
            Role::Mixed => 0,
        }
    }

    /// What `kv_load` must be, from the KV tokens of all live bookings and of those not told of.
    pub(crate) fn kv_recount(&self, own_kv: u64, unsent_kv: u64) -> u64 {
        let later: u64 = self.later.iter().map(|&(_, tokens)| u64::from(tokens)).sum();
        if self.reports { self.report.kv_tokens + later + unsent_kv } else { own_kv }
    }

    pub(crate) fn unsent_kv(&self) -> u64 {
        self.unsent_kv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_placement_touches_fits_one_cache_line() {
        assert!(std::mem::offset_of!(MachineEntry, speed_weight) + size_of::<u32>() <= 64);
    }
}
