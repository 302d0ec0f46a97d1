//! What the calls of a cluster do inside its lock. No Python code can run here, so no call can meet itself.

use std::collections::{HashMap, VecDeque};

use pyo3::prelude::*;
use pyo3::types::PyString;
use splitcore_core::cluster::{Cluster as Core, MachineState};
use splitcore_core::config::Level;
use splitcore_core::error::{Applied, EventError, Rejection};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Outcome, Slo};
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Notice, Report};
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;

use crate::clock::Clock;
use crate::errors::Fault;

/// Arrivals of a batch between two looks whether to stop.
const ARRIVALS_PER_LOOK: usize = 1024;

/// The names of machines by index, and back. The core knows indices only.
#[derive(Default)]
pub(crate) struct Names {
    by_index: Vec<Py<PyString>>,
    index_of: HashMap<String, u32>,
}

impl Names {
    pub(crate) fn by_index(&self) -> &[Py<PyString>] {
        &self.by_index
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let by_index = self.by_index.iter().map(|name| name.clone_ref(py)).collect();
        Self { by_index, index_of: self.index_of.clone() }
    }

    fn push(&mut self, name: String, shown: Py<PyString>) {
        self.index_of.insert(name, self.by_index.len() as u32);
        self.by_index.push(shown);
    }

    /// Names machines that joined or registered by event, and rows left open for others.
    pub(crate) fn fill(&mut self, py: Python<'_>, machines: u32) {
        for index in self.by_index.len() as u32..machines {
            let mut name = format!("machine-{index}");
            while self.index_of.contains_key(&name) {
                name.push('\'');
            }
            let shown = PyString::new(py, &name).unbind();
            self.push(name, shown);
        }
    }
}

/// Ids of requests that ended without a call of their own.
#[derive(Clone, Default)]
pub(crate) struct EndedAlone {
    pub(crate) expired: VecDeque<u64>,
    pub(crate) unplaceable: VecDeque<u64>,
}

/// What happened without a call of its own, until the caller asks for it.
#[derive(Clone, Default)]
pub(crate) struct Owed {
    placements: Vec<Placement>,
    ended: EndedAlone,
    /// At the managed level, everything the next `handle` is to return first.
    actions: Vec<ClusterAction>,
}

/// All that a cluster's lock guards.
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
    pub(crate) owed: Owed,
    /// Of the last event; kept for its allocation.
    actions: Vec<ClusterAction>,
}

/// What became of the requests of a lost machine.
#[derive(Default)]
pub(crate) struct Recovered {
    pub(crate) placed: Vec<u64>,
    pub(crate) parked: Vec<u64>,
    pub(crate) failed: Vec<u64>,
}

/// The rows and attempts of `place_many`.
pub(crate) struct Rows {
    pub(crate) prompt: Vec<i64>,
    pub(crate) token: Vec<i64>,
    pub(crate) attempt: Vec<u32>,
}

/// A fact that an embedder tells of a request.
#[derive(Clone, Copy)]
pub(crate) enum Fact {
    PrefillDone,
    /// Output tokens so far, all attempts together.
    Progress(u32),
    Finish,
    Cancel,
    SourceReleased,
}

impl State {
    pub(crate) fn new(core: Core) -> Self {
        Self {
            core,
            names: Names::default(),
            clock: Clock::starting_at(Time::ZERO),
            owed: Owed::default(),
            actions: Vec::new(),
        }
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            core: self.core.clone(),
            names: self.names.clone_ref(py),
            clock: Clock::starting_at(self.core.now()),
            owed: self.owed.clone(),
            actions: Vec::new(),
        }
    }

    /// The time of a call, with the Tick before it if one is due.
    fn begin(&mut self, now_ns: Option<u64>) -> Result<Time, EventError> {
        let now = self.clock.read(now_ns);
        if self.core.next_deadline().is_some_and(|due| due <= now) {
            let _ = self.handle(now, &ClusterEvent::Tick)?;
            self.keep(None);
        }
        Ok(now)
    }

    /// Applies one event; what it wants done is in `actions`.
    fn handle(&mut self, now: Time, event: &ClusterEvent) -> Result<Applied, EventError> {
        self.actions.clear();
        self.core.handle(now, event, &mut self.actions)
    }

    /// Keeps what the caller is not told by the call itself; `told` is the request whose placement it returns.
    fn keep(&mut self, told: Option<RequestId>) {
        for &action in &self.actions {
            match action {
                ClusterAction::Placed(placement) if Some(placement.request) != told => {
                    self.owed.placements.push(placement);
                }
                ClusterAction::Ended { request, outcome: Outcome::Expired } => {
                    self.owed.ended.expired.push_back(request.0);
                }
                ClusterAction::Ended { request, outcome: Outcome::Unplaceable } => {
                    self.owed.ended.unplaceable.push_back(request.0);
                }
                ClusterAction::Placed(_)
                | ClusterAction::Rejected { .. }
                | ClusterAction::Parked { .. }
                | ClusterAction::Command { .. }
                | ClusterAction::Registered { .. }
                | ClusterAction::Ended { .. }
                | ClusterAction::Moved { .. }
                | ClusterAction::Faulted { .. }
                | ClusterAction::SetAside { .. }
                | ClusterAction::Drained { .. } => {}
            }
        }
        if self.core.config().level == Level::Managed {
            self.owed.actions.append(&mut self.actions);
        }
        self.bound_owed();
    }

    /// Who never polls is owed no more than the placements that still hold, and as many ids as can be live.
    fn bound_owed(&mut self) {
        if self.owed.placements.len() > 2 * self.core.live_requests() + 64 {
            let core = &self.core;
            self.owed.placements.retain(|placement| holds(core, placement));
        }
        let ids_max = self.core.config().requests_max as usize;
        for ids in [&mut self.owed.ended.expired, &mut self.owed.ended.unplaceable] {
            while ids.len() > ids_max {
                ids.pop_front();
            }
        }
    }

    /// A machine that is there: one of this name that was lost is not.
    pub(crate) fn machine(&self, name: &str) -> Result<MachineId, Fault> {
        let index = self.names.index_of.get(name);
        let load = index.and_then(|&index| self.core.load(index));
        let here = load.filter(|load| load.state != MachineState::Lost);
        here.map(|load| load.machine).ok_or_else(|| Fault::UnknownMachine(name.to_owned()))
    }

    pub(crate) fn add_machine(
        &mut self,
        name: &str,
        shown: Py<PyString>,
        join: Join,
        now_ns: Option<u64>,
    ) -> Result<u32, Fault> {
        let known = self.names.index_of.get(name).and_then(|&index| self.core.load(index));
        let machine = match known {
            Some(load) if load.state != MachineState::Lost => {
                return Err(Fault::DuplicateMachine(name.to_owned()));
            }
            Some(load) => MachineId { incarnation: load.machine.incarnation + 1, ..load.machine },
            None => MachineId { index: self.core.machines_len(), incarnation: 1 },
        };
        let now = self.begin(now_ns)?;
        let _ = self.handle(now, &ClusterEvent::Join(Join { machine, ..join }))?;
        if known.is_none() {
            self.names.push(name.to_owned(), shown);
        }
        self.keep(None);
        Ok(machine.index)
    }

    pub(crate) fn drain_machine(&mut self, name: &str, now_ns: Option<u64>) -> Result<(), Fault> {
        let machine = self.machine(name)?;
        let now = self.begin(now_ns)?;
        let _ = self.handle(now, &ClusterEvent::Drain { machine })?;
        self.keep(None);
        Ok(())
    }

    pub(crate) fn undrain_machine(&mut self, name: &str, now_ns: Option<u64>) -> Result<(), Fault> {
        let machine = self.machine(name)?;
        let now = self.begin(now_ns)?;
        let _ = self.handle(now, &ClusterEvent::Undrain { machine })?;
        self.keep(None);
        Ok(())
    }

    pub(crate) fn lose_machine(&mut self, name: &str, now_ns: Option<u64>) -> Result<Recovered, Fault> {
        let machine = self.machine(name)?;
        let now = self.begin(now_ns)?;
        let _ = self.handle(now, &ClusterEvent::Lose { machine })?;
        let mut recovered = Recovered::default();
        for action in &self.actions {
            match action {
                ClusterAction::Placed(placement) => recovered.placed.push(placement.request.0),
                ClusterAction::Parked { request } => recovered.parked.push(request.0),
                ClusterAction::Ended { outcome: Outcome::Finished, .. }
                | ClusterAction::Rejected { .. }
                | ClusterAction::Command { .. }
                | ClusterAction::Registered { .. }
                | ClusterAction::Moved { .. }
                | ClusterAction::Faulted { .. }
                | ClusterAction::SetAside { .. }
                | ClusterAction::Drained { .. } => {}
                ClusterAction::Ended { request, .. } => recovered.failed.push(request.0),
            }
        }
        // Parked for a moment only: the same event found a place.
        let placed = &recovered.placed;
        recovered.parked.retain(|id| !placed.contains(id));
        self.keep(None);
        Ok(recovered)
    }

    pub(crate) fn set_slo(&mut self, class: u32, slo: Option<Slo>, now_ns: Option<u64>) -> Result<(), Fault> {
        let now = self.begin(now_ns)?;
        let _ = self.handle(now, &ClusterEvent::SetSlo { class, slo })?;
        Ok(())
    }

    pub(crate) fn place(
        &mut self,
        arrival: Arrival,
        pin_token: Option<&str>,
        dry_run: bool,
        now_ns: Option<u64>,
    ) -> Result<Placement, Fault> {
        let pin_token = pin_token.map(|name| self.machine(name)).transpose()?.map(|machine| machine.index);
        let arrival = Arrival { pin_token, ..arrival };
        let now = self.begin(now_ns)?;
        let answer = if dry_run { self.core.dry_run(&arrival) } else { self.arrive(arrival, now) };
        match answer {
            Ok(Ok(placement)) => Ok(placement),
            Ok(Err(reason)) => Err(Fault::Rejected { reason, request: arrival.request.0 }),
            Err(EventError::EmptyRequest(_)) => {
                let option = if arrival.prompt_tokens == 0 { "prompt_tokens" } else { "max_new_tokens" };
                Err(Fault::Empty { option })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn arrive(&mut self, arrival: Arrival, now: Time) -> Result<Result<Placement, Rejection>, EventError> {
        let _ = self.handle(now, &ClusterEvent::Arrive(arrival))?;
        let answer = self.actions.iter().rev().find_map(|action| match *action {
            ClusterAction::Placed(placement) if placement.request == arrival.request => Some(Ok(placement)),
            ClusterAction::Rejected { reason, .. } => Some(Err(reason)),
            _ => None,
        });
        if self.actions.len() > 1 {
            self.keep(Some(arrival.request));
        }
        Ok(answer.unwrap_or(Err(Rejection::NoMachine)))
    }

    /// Places a batch in order, all at one time. An id that is live or occurs twice fails the whole batch before
    /// anything is placed. `go_on` is asked now and then; where it says no, the rows end there.
    pub(crate) fn place_many(
        &mut self,
        arrivals: &[Arrival],
        now_ns: Option<u64>,
        go_on: &dyn Fn(u64, u64) -> bool,
    ) -> Result<Rows, Fault> {
        let now = self.begin(now_ns)?;
        if let Some(id) = twice(arrivals) {
            return Err(Fault::DuplicateRequest(id));
        }
        if let Some(live) = arrivals.iter().find(|each| self.core.attempt(each.request).is_some()) {
            return Err(EventError::DuplicateRequest(live.request).into());
        }
        let mut rows = Rows {
            prompt: Vec::with_capacity(arrivals.len()),
            token: Vec::with_capacity(arrivals.len()),
            attempt: Vec::with_capacity(arrivals.len()),
        };
        for (at, &arrival) in arrivals.iter().enumerate() {
            if at % ARRIVALS_PER_LOOK == ARRIVALS_PER_LOOK - 1 && !go_on(at as u64, arrivals.len() as u64) {
                break;
            }
            let placement = self.arrive(arrival, now)?.ok();
            let row = |machine: Option<MachineId>| machine.map_or(-1, |machine| i64::from(machine.index));
            rows.prompt.push(row(placement.and_then(|placement| placement.prompt())));
            rows.token.push(row(placement.and_then(|placement| placement.token())));
            rows.attempt.push(placement.map_or(0, |placement| placement.attempt.0));
        }
        Ok(rows)
    }

    /// Tells the core a fact; without an attempt, of the live one. Returns whether it applied.
    pub(crate) fn fact(
        &mut self,
        fact: Fact,
        request: u64,
        attempt: Option<u32>,
        now_ns: Option<u64>,
    ) -> Result<bool, Fault> {
        let now = self.begin(now_ns)?;
        let id = RequestId(request);
        let live = self.core.attempt(id);
        // Attempts begin at 1, so 0 is late for sure.
        let attempt = attempt.map_or(live.unwrap_or(Attempt(0)), Attempt);
        let key = LegKey { request: id, attempt };
        let event = match fact {
            Fact::PrefillDone => ClusterEvent::Fact(Notice::PrefillDone { key, sampled: true }),
            Fact::Progress(so_far) => {
                let tokens = so_far.saturating_sub(self.core.delivered(id).unwrap_or(0));
                ClusterEvent::Fact(Notice::Progress { key, tokens })
            }
            Fact::Finish => ClusterEvent::Fact(Notice::Finished { key, tokens: 0 }),
            Fact::Cancel if live == Some(attempt) => ClusterEvent::Cancel { request: id },
            // The core cancels whatever attempt is live; of another one, only the count of late calls is due.
            Fact::Cancel => ClusterEvent::Fact(Notice::Progress { key, tokens: 0 }),
            Fact::SourceReleased => {
                ClusterEvent::Fact(Notice::Released { key, to: None, report: Report::default() })
            }
        };
        let applied = self.handle(now, &event)?;
        if !self.actions.is_empty() {
            self.keep(None);
        }
        Ok(applied.is_yes())
    }

    /// The placements that still hold and the ids of what has ended, once.
    pub(crate) fn poll(&mut self, now_ns: Option<u64>) -> Result<(Vec<Placement>, EndedAlone), Fault> {
        self.begin(now_ns)?;
        let mut placements = std::mem::take(&mut self.owed.placements);
        placements.retain(|placement| holds(&self.core, placement));
        Ok((placements, std::mem::take(&mut self.owed.ended)))
    }

    pub(crate) fn renew(&mut self, requests: &[u64], now_ns: Option<u64>) -> Result<usize, Fault> {
        let now = self.begin(now_ns)?;
        let mut live = 0;
        for &id in requests {
            live += usize::from(self.handle(now, &ClusterEvent::Renew { request: RequestId(id) })?.is_yes());
        }
        Ok(live)
    }

    /// The start of a `handle` call: its time, and what is to be done before its events.
    pub(crate) fn begin_events(
        &mut self,
        now_ns: Option<u64>,
    ) -> Result<(Time, Vec<ClusterAction>), EventError> {
        let now = self.clock.read(now_ns);
        let mut actions = std::mem::take(&mut self.owed.actions);
        if self.core.next_deadline().is_some_and(|due| due <= now) {
            let _ = self.core.handle(now, &ClusterEvent::Tick, &mut actions)?;
        }
        Ok((now, actions))
    }
}

/// Whether a placement is still the one its request runs by.
fn holds(core: &Core, placement: &Placement) -> bool {
    core.attempt(placement.request) == Some(placement.attempt)
}

/// An id that occurs twice. Ascending ids, the common case, are not copied.
fn twice(arrivals: &[Arrival]) -> Option<u64> {
    if arrivals.is_sorted_by(|a, b| a.request < b.request) {
        return None;
    }
    let mut ids: Vec<u64> = arrivals.iter().map(|arrival| arrival.request.0).collect();
    ids.sort_unstable();
    ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
