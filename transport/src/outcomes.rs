//! Which transfers are under way, and the one end of each, whatever its link makes of it.
//!
//! A [`crate::Link`] gives every transfer exactly one [`Completion`]. A driver that hears many links still has three
//! things to see to, which are done here: a leg's name outlives its transfers, so that the end of an earlier one must
//! not be taken for the current one's; two receivers may give out the same [`TransferKey`]; and a transfer that does
//! not end must be stopped, and a link that does not even answer to that must be closed.
//!
//! It has no clock: times are durations since whenever the driver likes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::transfer::{Completion, TransferKey};

/// A transfer's name among all receivers'.
type Name = (Incarnation, u32, u32);

fn name(receiver: Incarnation, key: TransferKey) -> Name {
    (receiver, key.slot, key.generation.get())
}

/// What is still to end. `L` is the driver's name for what it transfers, such as a leg's key.
#[derive(Debug, Clone)]
pub struct Outcomes<L> {
    begun: BTreeMap<Name, Begun<L>>,
    /// How long a stopped transfer may take to end.
    grace: Duration,
}

#[derive(Debug, Clone)]
struct Begun<L> {
    leg: L,
    key: TransferKey,
    due: Duration,
    stopped: bool,
}

/// The one end of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<L> {
    /// What was transferred.
    pub leg: L,
    /// By which receiver's grant.
    pub receiver: Incarnation,
    /// How it ended.
    pub end: Completion,
}

/// What to do about transfers that have not ended in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// Stop this one: its time is up.
    Stop(Incarnation, TransferKey),
    /// Close the link to this receiver, then call [`Outcomes::closed`]: it was told to stop, and did not answer.
    Close(Incarnation),
}

impl<L: Clone> Outcomes<L> {
    /// Nothing under way; a stopped transfer may take `grace` to end.
    pub fn new(grace: Duration) -> Self {
        Self { begun: BTreeMap::new(), grace }
    }

    /// A transfer has begun, and is to end by `due`. False if it is under way already.
    pub fn begin(&mut self, leg: L, receiver: Incarnation, key: TransferKey, due: Duration) -> bool {
        let new = Begun { leg, key, due, stopped: false };
        match self.begun.entry(name(receiver, key)) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(new);
                true
            }
            std::collections::btree_map::Entry::Occupied(_) => false,
        }
    }

    /// The driver has stopped it: the end is due within the grace. False if it has ended.
    pub fn stopped(&mut self, receiver: Incarnation, key: TransferKey, now: Duration) -> bool {
        let Some(begun) = self.found(receiver, key) else { return false };
        if !begun.stopped {
            begun.stopped = true;
            let due = now.saturating_add(self.grace);
            if let Some(begun) = self.begun.get_mut(&name(receiver, key)) {
                begun.due = due;
            }
        }
        true
    }

    fn found(&mut self, receiver: Incarnation, key: TransferKey) -> Option<&mut Begun<L>> {
        self.begun.get_mut(&name(receiver, key)).filter(|begun| begun.key == key)
    }

    /// What a link to `receiver` says: the transfer's end the first time, `None` for what is late, repeated or unknown.
    pub fn hear(&mut self, receiver: Incarnation, end: Completion) -> Option<Outcome<L>> {
        self.found(receiver, end.key())?;
        let begun = self.begun.remove(&name(receiver, end.key()))?;
        Some(Outcome { leg: begun.leg, receiver, end })
    }

    /// What is overdue at `now`: each transfer is to be stopped once, and each link closed until
    /// [`closed`](Self::closed) is called. O(transfers under way).
    pub fn overdue(&mut self, now: Duration) -> Vec<Overdue> {
        let (mut stops, mut closes) = (Vec::new(), Vec::new());
        let again = now.saturating_add(self.grace);
        for (&(receiver, ..), begun) in self.begun.iter_mut().filter(|(_, begun)| begun.due <= now) {
            if begun.stopped {
                closes.push(Overdue::Close(receiver));
            } else {
                begun.stopped = true;
                begun.due = again;
                stops.push(Overdue::Stop(receiver, begun.key));
            }
        }
        // In order of receivers, so that those of one stand together.
        closes.dedup();
        stops.append(&mut closes);
        stops
    }

    /// When to ask for what is overdue next.
    pub fn next_due(&self) -> Option<Duration> {
        self.begun.values().map(|begun| begun.due).min()
    }

    /// The link to a receiver is closed: the end of everything that was under way on it.
    pub fn closed(&mut self, receiver: Incarnation) -> Vec<Outcome<L>> {
        let (first, last) = ((receiver, 0, 0), (receiver, u32::MAX, u32::MAX));
        let names: Vec<Name> = self.begun.range(first..=last).map(|(&name, _)| name).collect();
        let lost = |begun: Begun<L>| {
            let error = TransferError::PeerLost { key: begun.key, peer: receiver };
            Outcome { leg: begun.leg, receiver, end: Completion::Failed(begun.key, error) }
        };
        names.into_iter().filter_map(|name| self.begun.remove(&name)).map(lost).collect()
    }

    /// Transfers under way.
    pub fn len(&self) -> usize {
        self.begun.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }
}
