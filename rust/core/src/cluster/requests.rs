//! The requests a Cluster has accepted: one slot each from acceptance to the end.

use super::machines::Booking;
use crate::event::{Arrival, Fault};
use crate::id::{AssignmentSeq, Attempt, IdMap, LegKey, MachineId, Order, RequestId};
use crate::leg::{Compute, Inbound, LegState, Outbound, Terms, Work};
use crate::placement::{Mode, Side, Upto};
use crate::time::Time;

/// A leg as the Cluster watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct WatchedLeg {
    /// Where it runs; `None` while its place is to be found.
    pub(crate) machine: Option<MachineId>,
    pub(crate) start: u32,
    pub(crate) upto: Upto,
    /// How its KV comes, if it follows another leg.
    pub(crate) mode: Option<Mode>,
    pub(crate) state: LegState,
    pub(crate) booking: Booking,
    /// The assignment that brought it to its machine.
    pub(crate) seq: AssignmentSeq,
    /// Of a first leg: the assignment that last named where its KV goes.
    pub(crate) send_seq: AssignmentSeq,
}

impl WatchedLeg {
    /// A second leg anew, after its machine was given up: nothing of it has landed.
    pub(crate) fn unseated(&self) -> Self {
        let state =
            LegState { compute: Compute::Waiting, inbound: Inbound::Reserving, outbound: Outbound::None };
        let booking = Booking { sent: false, ..self.booking };
        Self { machine: None, state, booking, seq: AssignmentSeq(0), ..*self }
    }

    /// Which half of its request it is; of a whole one, what it has come to.
    pub(crate) fn side(&self) -> Side {
        let prefills = !self.booking.decodes || (self.start == 0 && self.booking.prefills);
        if prefills { Side::Prompt } else { Side::Token }
    }

    /// Whether all of its KV is where it decodes.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.inbound == Inbound::Ready
    }
}

/// What a lost machine has cost a request; set and cleared within one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Loss {
    /// Nothing.
    #[default]
    None,
    /// One of the machines that knew it.
    Copy,
    /// Where its KV was to go.
    Destination,
    /// Its KV.
    Kv,
}

/// A machine with a record of a request, and under which attempt's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Keeper {
    pub(crate) machine: MachineId,
    pub(crate) attempt: Attempt,
}

#[cfg(feature = "serde")]
fn none_made() -> Attempt {
    Attempt(0)
}

/// Machines that know a request, if there are as many: one can be lost together with the Cluster.
pub(crate) const COPIES: usize = 2;

/// Place in a line, the least first: what age and priority come to, then arrival. The slot makes the request easy to
/// find.
pub(crate) type Place = (i64, Order, u32);

/// A live request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Request {
    pub(crate) arrival: Arrival,
    pub(crate) order: Order,
    /// See [`Terms::line`].
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) line: i64,
    pub(crate) accepted_at: Time,
    pub(crate) attempt: Attempt,
    /// The last one that was made, where that is a later one.
    #[cfg_attr(feature = "serde", serde(default = "none_made"))]
    pub(crate) attempts_made: Attempt,
    /// An earlier Cluster made this attempt, and may have made later ones.
    pub(crate) adopted: bool,
    pub(crate) faults: u32,
    /// Output tokens the client has. A next attempt starts after them.
    pub(crate) delivered: u32,
    /// Of these, the ones that were delivered before this attempt, and so belong to its prompt.
    pub(crate) resumed_from: u32,
    pub(crate) parked: bool,
    /// When it ends for want of a machine that could hold it.
    pub(crate) unplaceable_due: Option<Time>,
    /// To be placed as one leg: a handoff of it did not go on.
    pub(crate) whole: bool,
    /// When it was placed, or its first leg had computed.
    pub(crate) moved_at: Time,
    /// When a loss of a machine last met it.
    pub(crate) faulted_at: Time,
    pub(crate) lost: Loss,
    /// What has last met it, until it is counted.
    pub(crate) fault: Option<Fault>,
    /// Who keeps the request itself, the oldest record first.
    pub(crate) keepers: [Option<Keeper>; COPIES],
    /// Who refused its second leg since it was last tried from the line; asking in turn would never end.
    pub(crate) refused_by: Vec<u32>,
    /// Machines that its KV did not get to.
    pub(crate) unreached: Vec<u32>,
    pub(crate) legs: [Option<WatchedLeg>; 2],
    pub(crate) lease_due: Option<Time>,
}

impl Request {
    /// One just accepted, without legs.
    #[inline]
    pub(crate) fn new(arrival: Arrival, order: Order, line: i64, accepted_at: Time) -> Self {
        Self {
            arrival,
            order,
            line,
            accepted_at,
            attempt: Attempt(1),
            attempts_made: Attempt(0),
            adopted: false,
            faults: 0,
            delivered: 0,
            resumed_from: 0,
            parked: false,
            unplaceable_due: None,
            whole: false,
            moved_at: accepted_at,
            faulted_at: Time::MAX,
            lost: Loss::None,
            fault: None,
            keepers: [None; COPIES],
            refused_by: Vec::new(),
            unreached: Vec::new(),
            legs: [None; 2],
            lease_due: None,
        }
    }

    pub(crate) fn is_kept_by(&self, machine: MachineId) -> bool {
        self.keepers.iter().flatten().any(|keeper| keeper.machine == machine)
    }

    /// The machines that a leg of it was sent to.
    pub(crate) fn run_by(&self) -> impl Iterator<Item = MachineId> {
        self.legs.iter().flatten().filter(|leg| leg.booking.sent).filter_map(|leg| leg.machine)
    }

    pub(crate) fn is_run_by(&self, machine: MachineId) -> bool {
        self.run_by().any(|id| id == machine)
    }

    /// Machines that know it, or are about to: its legs', and those that keep it. More than `COPIES` are not counted.
    #[inline]
    pub(crate) fn copies(&self) -> usize {
        let told = |leg: &Option<WatchedLeg>| leg.as_ref().filter(|leg| leg.booking.sent)?.machine;
        let [first, second] = self.legs.each_ref().map(told);
        let mut count = usize::from(first.is_some()) + usize::from(second.is_some() && second != first);
        if count < COPIES {
            let kept = self.keepers.iter().flatten().map(|keeper| Some(keeper.machine));
            count += kept.filter(|&machine| machine != first && machine != second).count();
        }
        count.min(COPIES)
    }

    /// Another attempt, whose name is nobody else's.
    pub(crate) fn begin_attempt(&mut self) {
        let adopted = std::mem::take(&mut self.adopted);
        let last = self.attempt.max(self.attempts_made);
        self.attempt = if adopted { last.after_restart() } else { last.next() };
    }

    pub(crate) fn key(&self) -> LegKey {
        LegKey { request: self.arrival.request, attempt: self.attempt }
    }

    /// Tokens to prefill in this attempt.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.arrival.prompt_tokens + self.resumed_from
    }

    pub(crate) fn work(&self, leg: &WatchedLeg) -> Work {
        Work { start: leg.start, upto: leg.upto, ..self.work_from(self.resumed_from) }
    }

    /// The whole request, from after its first output tokens on.
    pub(crate) fn work_from(&self, delivered: u32) -> Work {
        Work {
            prompt_tokens: self.arrival.prompt_tokens + delivered,
            start: 0,
            upto: Upto::End,
            max_new_tokens: self.arrival.max_new_tokens.saturating_sub(delivered).max(1),
            terms: Terms {
                resumed_tokens: delivered,
                class: self.arrival.class,
                priority: self.arrival.priority,
                line: self.line,
                resumable: self.arrival.resumable,
                pin_token: self.arrival.pin_token,
            },
        }
    }

    /// Its place among others that wait.
    #[inline]
    pub(crate) fn place(&self, slot: u32) -> Place {
        (self.line, self.order, slot)
    }

    /// Whether a leg waits for a machine.
    pub(crate) fn is_unreserved(&self) -> bool {
        self.legs.iter().flatten().any(|leg| leg.machine.is_none())
    }
}

/// The table.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Requests {
    slots: Vec<Option<Request>>,
    vacant: Vec<u32>,
    #[cfg_attr(feature = "serde", serde(with = "crate::id::id_map"))]
    by_id: IdMap<RequestId, u32>,
}

impl Requests {
    pub(crate) fn find(&self, id: RequestId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The slot of a live attempt.
    pub(crate) fn find_key(&self, key: LegKey) -> Option<u32> {
        self.find(key.request).filter(|&slot| self.get(slot).attempt == key.attempt)
    }

    pub(crate) fn get(&self, slot: u32) -> &Request {
        match &self.slots[slot as usize] {
            Some(request) => request,
            None => panic!("request slot {slot} is vacant"),
        }
    }

    /// The request of a slot, if it is not vacant.
    pub(crate) fn at(&self, slot: u32) -> Option<&Request> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Request {
        match &mut self.slots[slot as usize] {
            Some(request) => request,
            None => panic!("request slot {slot} is vacant"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, request: Request) -> u32 {
        let id = request.arrival.request;
        let slot = if let Some(slot) = self.vacant.pop() {
            self.slots[slot as usize] = Some(request);
            slot
        } else {
            self.slots.push(Some(request));
            self.slots.len() as u32 - 1
        };
        self.by_id.insert(id, slot);
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<Request> {
        let request = self.slots[slot as usize].take()?;
        self.by_id.remove(&request.arrival.request);
        self.vacant.push(slot);
        Some(request)
    }

    /// Live requests in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Request)> {
        self.slots.iter().enumerate().filter_map(|(slot, request)| Some((slot as u32, request.as_ref()?)))
    }
}
