//! The part of a host that has workers of its own: their sessions, and the requests whose tokens they give.

mod book;
mod sessions;
mod trace;
mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use splitcore_core::event::{ClusterEvent, Outcome};
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Command, Notice};
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;
use splitcore_wire::given::Given;
use splitcore_wire::listen::{ConnectionId, Handle};
use splitcore_wire::message::{Assigned, Tokens};
use splitcore_wire::roster::Roster;

use super::Failure;
use super::generate::Ending;
use super::{Fault, State};

pub(super) use book::{Book, Entry};
use watch::Watch;
pub use watch::{BlocksView, HandoffView, KvTotals, Stage};

/// Places that the Cluster has for machines.
const MACHINES_MAX: u32 = 1 << 20;

/// Sessions, and requests by their tokens.
#[derive(Debug)]
pub(super) struct Managed {
    pub(super) book: Book,
    pub(super) watch: Watch,
    roster: Roster,
    let_in: HashMap<ConnectionId, (MachineId, Handle)>,
    sessions: HashMap<MachineId, (ConnectionId, Handle)>,
    /// Machines that are to be stopped, and wait to be told that they hold nothing any more.
    leaving: HashSet<MachineId>,
    /// What each machine may speak of.
    given: HashMap<MachineId, Given>,
    /// Sessions that ended because a worker contradicted what is known, by the message that did.
    violations: BTreeMap<&'static str, u64>,
}

/// The epoch, or an incarnation, of a process that starts now: tenths of a second since 2026, which is more than those
/// of all before it.
pub fn life() -> Epoch {
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    let tenths = SystemTime::now().duration_since(since).map_or(1, |since| since.as_millis() / 100);
    Epoch(u32::try_from(tenths).unwrap_or(u32::MAX).max(1))
}

impl Managed {
    pub(super) fn new(reattach_ns: u64, machines_max: usize) -> Self {
        let places = u32::try_from(machines_max).unwrap_or(u32::MAX).min(MACHINES_MAX);
        Self {
            book: Book::new(reattach_ns),
            watch: Watch::default(),
            roster: Roster::new(places),
            let_in: HashMap::new(),
            sessions: HashMap::new(),
            leaving: HashSet::new(),
            given: HashMap::new(),
            violations: BTreeMap::new(),
        }
    }

    /// Sessions that ended because a worker contradicted what is known, by the message that did.
    pub(super) fn violations(&self) -> Vec<(&'static str, u64)> {
        self.violations.iter().map(|(&kind, &count)| (kind, count)).collect()
    }

    /// Sends a command, with what its machine must know besides.
    pub(super) fn command(&mut self, to: MachineId, seq: AssignmentSeq, command: Command) {
        let Some((_, handle)) = self.sessions.get(&to) else { return };
        let mut assigned = Assigned { seq, command, descriptor: None, peer: None };
        if let Some(work) = assigned.work().copied() {
            let request = assigned.key().request;
            assigned.descriptor = self.book.get(request.0).and_then(|entry| entry.descriptor(&work));
            if assigned.descriptor.is_none() {
                tracing::error!(request = request.0, "no tokens for a command");
                handle.close("the daemon does not know the tokens of a request");
                return;
            }
        }
        assigned.peer = assigned.other().map(|other| self.roster.address(other));
        if let Some(given) = self.given.get_mut(&to) {
            given.command(&assigned);
        }
        handle.command(assigned);
    }

    /// A request has machines.
    pub(super) fn placed(&mut self, placement: &Placement, now: Time) {
        self.redirected(placement, now);
        self.book.placed(placement.request.0, now);
    }

    /// Its output has another machine, and nothing else has changed.
    pub(super) fn redirected(&mut self, placement: &Placement, now: Time) {
        let ask = self.book.get(placement.request.0).map(|entry| &entry.ask);
        let prompt_tokens = ask.map_or(0, |ask| ask.prompt.len() as u32);
        let name = ask.map(|ask| ask.name.clone());
        self.watch.placed(placement, name, prompt_tokens, now);
    }

    /// A machine that takes no more work holds nothing any more. One that was to be stopped may go.
    pub(super) fn drained(&mut self, machine: MachineId) {
        if self.leaving.remove(&machine)
            && let Some((_, handle)) = self.sessions.get(&machine)
        {
            handle.close("it has left: it holds nothing any more");
        }
    }

    /// Tells a machine that an output needs no more than so many tokens.
    pub(super) fn enough(&self, to: MachineId, key: LegKey, tokens: u32) {
        if let Some((_, handle)) = self.sessions.get(&to) {
            handle.enough(key, tokens);
        }
    }

    /// The Cluster has taken a registration.
    pub(super) fn registered(&self, to: MachineId) {
        if let Some((_, handle)) = self.sessions.get(&to) {
            handle.registered();
        }
    }
}

impl State {
    /// A notice of a worker, for the Cluster. The end of a request waits until its client has it: a daemon that dies
    /// before that leaves the tokens with the worker.
    pub(super) fn notice(&mut self, now: Time, from: MachineId, notice: Notice) -> Result<(), Fault> {
        if let Some(Managed { book, watch, .. }) = &mut self.managed {
            watch.notice(from, &notice, now);
            let is_present = |key: LegKey| self.core.runs(key, from);
            match notice {
                Notice::Finished { key, .. } if is_present(key) => {
                    if book.finish(key.request.0) {
                        tracing::error!(
                            request = key.request.0,
                            worker = self.machines.at(from.index).map_or("", |machine| &machine.name),
                            "a worker has ended an output early: the request fails"
                        );
                    }
                    if book.hold_finish(key.request.0, from, notice) {
                        return Ok(());
                    }
                }
                Notice::Reserved { key } | Notice::PrefillDone { key, .. } | Notice::Landed { key }
                    if is_present(key) =>
                {
                    book.acknowledge(key.request.0, now);
                    match (notice, book.trace(key.request.0)) {
                        (Notice::PrefillDone { .. }, Some(trace)) => trace.prefilled(now),
                        (Notice::Landed { .. }, Some(trace)) => trace.landed(now),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let _ = self.handle(now, &ClusterEvent::Notice { from, notice })?;
        self.keep(None);
        Ok(())
    }

    /// Output tokens of a worker, for a client: of the leg that runs there now, in the order of their numbers, each once.
    /// Those of a leg that was taken from it are late, and nobody's.
    pub(super) fn tokens(&mut self, now: Time, from: MachineId, tokens: &Tokens) -> Result<(), Fault> {
        let key = tokens.key;
        let Some(delivered) = self.core.delivered(key.request).filter(|_| self.core.runs(key, from)) else {
            return Ok(());
        };
        if tokens.from > delivered {
            return Ok(());
        }
        let skip = (delivered - tokens.from) as usize;
        let Some(new) = tokens.ids.get(skip..).filter(|new| !new.is_empty()) else { return Ok(()) };
        if let Some(managed) = &mut self.managed {
            managed.book.take(key.request.0, delivered, new, now);
        }
        let taken = delivered + new.len() as u32;
        if let Some(managed) = &mut self.managed
            && let Some(enough) = managed.book.given_by(from, key, taken)
        {
            // The word of it was lost, or the output has another machine now.
            managed.enough(from, key, enough);
        }
        let notice = Notice::Progress { key, tokens: new.len() as u32 };
        let _ = self.handle(now, &ClusterEvent::Notice { from, notice })?;
        self.keep(None);
        Ok(())
    }

    /// A request is over in the Cluster. `placement` is the last it had; none where it waited, or was adopted.
    pub(super) fn ended_managed(
        &mut self,
        request: u64,
        placement: Option<Placement>,
        outcome: Outcome,
        failure: Option<Failure>,
        now: Time,
    ) {
        let at = |machine: Option<MachineId>| {
            machine.and_then(|machine| self.machines.at(machine.index)).map(|machine| machine.name.as_str())
        };
        let prompt = at(placement.and_then(|placement| placement.prompt()));
        let token = at(placement.and_then(|placement| placement.token()));
        let Some(managed) = &mut self.managed else { return };
        let ending = match failure {
            Some(failure) => Ending::Failed(failure),
            None if outcome == Outcome::Finished => Ending::Finished,
            None => Ending::Cancelled,
        };
        managed.watch.end(RequestId(request), Stage::Failed);
        if let Some(entry) = managed.book.get(request) {
            let spans = entry.trace.spans(now);
            tracing::info!(
                request,
                name = entry.ask.name,
                ?outcome,
                attempt = placement.map(|placement| placement.attempt.0),
                prompt,
                token,
                prompt_tokens = entry.ask.prompt.len(),
                output_tokens = entry.tokens.len(),
                dispatch_ms = spans.dispatch_ms,
                prefill_ms = spans.prefill_ms,
                transfer_ms = spans.transfer_ms,
                decode_wait_ms = spans.decode_wait_ms,
                first_token_ms = spans.first_token_ms,
                total_ms = spans.total_ms,
                "ended"
            );
        }
        managed.book.ended(request, ending, now);
    }

    /// Gives up what nobody wants any more, and forgets what is over.
    pub(super) fn settle(&mut self, now: Time) {
        while let Some(request) = self.managed.as_mut().and_then(|managed| managed.book.next_close(now)) {
            self.close(now, request);
        }
    }

    /// Lets the Cluster know that nobody waits for a request: its end, where that was held back, or that it is not
    /// wanted.
    pub(super) fn close(&mut self, now: Time, request: u64) {
        let Some(managed) = &mut self.managed else { return };
        let event = match managed.book.released_finish(request) {
            Some((from, notice)) => ClusterEvent::Notice { from, notice },
            None if self.core.attempt(RequestId(request)).is_some() => {
                ClusterEvent::Cancel { request: RequestId(request) }
            }
            None => return,
        };
        // Whoever's call it is that this goes with has nothing to do with it.
        match self.handle(now, &event) {
            Ok(_) => self.keep(None),
            Err(error) => tracing::error!(request, %error, "a request could not be closed"),
        }
    }
}
