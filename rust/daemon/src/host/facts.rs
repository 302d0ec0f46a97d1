//! What callers say of requests and machines.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use splitcore_core::cluster::MachineState;
use splitcore_core::event::{ClusterAction, ClusterEvent, Join, Link, Outcome, Slo};
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Notice, Report};

use super::directory::Machine;
use super::log::Kind;
use super::{CLASSES_MAX, Fault, Host, MachineSpec, State};

/// A fact about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The prompt is computed.
    PrefillDone,
    /// Output tokens so far, all attempts together.
    Progress(u32),
    /// The output has ended.
    Finish,
    /// The client gave it up.
    Cancel,
    /// The prompt machine has freed its KV blocks.
    SourceReleased,
    /// It is still wanted.
    Renew,
}

/// What a machine holds now.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportSpec {
    /// Whose.
    pub machine: String,
    /// KV tokens held on it, by whomever placed.
    #[serde(default)]
    pub kv_tokens: Option<u64>,
    /// Whether it wants new work.
    #[serde(default = "yes")]
    pub accepts: bool,
}

fn yes() -> bool {
    true
}

/// What became of the requests of a lost machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Ids that run elsewhere now.
    pub placed: Vec<u64>,
    /// Ids that wait for a machine.
    pub parked: Vec<u64>,
    /// Ids that ended.
    pub failed: Vec<u64>,
}

impl Host {
    /// Tells a fact; without an attempt, of the live one. Returns whether it applied.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn fact(&self, fact: Fact, request: u64, attempt: Option<u32>) -> Result<bool, Fault> {
        self.with(|state| state.fact(fact, request, attempt))
    }

    /// Whether all of these can join.
    ///
    /// # Errors
    /// The first machine that cannot.
    pub fn check_joins(&self, specs: &[MachineSpec]) -> Result<(), Fault> {
        let most = self.machines_max;
        self.with(|state| state.check_joins(specs, most))
    }

    /// Takes machines in of which it is known that they can join.
    ///
    /// # Errors
    /// The first machine that cannot.
    pub fn join(&self, specs: Vec<MachineSpec>) -> Result<(), Fault> {
        self.with(|state| specs.into_iter().try_for_each(|spec| state.join(spec)))
    }

    /// Gives a machine no more requests.
    ///
    /// # Errors
    /// [`Fault::UnknownMachine`].
    pub fn drain(&self, name: &str) -> Result<(), Fault> {
        self.tell_machine(name, |machine| ClusterEvent::Drain { machine })
    }

    /// Gives a machine requests again.
    ///
    /// # Errors
    /// [`Fault::UnknownMachine`].
    pub fn undrain(&self, name: &str) -> Result<(), Fault> {
        self.tell_machine(name, |machine| ClusterEvent::Undrain { machine })
    }

    fn tell_machine(&self, name: &str, event: impl FnOnce(MachineId) -> ClusterEvent) -> Result<(), Fault> {
        self.with(|state| {
            let event = event(state.machine(name)?);
            let now = state.begin()?;
            let _ = state.handle(now, &event)?;
            state.keep(None);
            Ok(())
        })
    }

    /// Takes a machine out and places its requests again.
    ///
    /// # Errors
    /// [`Fault::UnknownMachine`].
    pub fn lose(&self, name: &str) -> Result<Recovered, Fault> {
        self.with(|state| state.lose(name))
    }

    /// Takes reports in; names that are not here are given back.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn report(&self, reports: Vec<ReportSpec>) -> Result<Vec<String>, Fault> {
        self.with(|state| {
            let now = state.begin()?;
            let mut unknown = Vec::new();
            for report in reports {
                let Ok(from) = state.machine(&report.machine) else {
                    unknown.push(report.machine);
                    continue;
                };
                let Some(load) = state.core.load(from.index) else { continue };
                let before = state.machines.foreign_kv_tokens(from.index);
                // The core adds what is booked here, so that a report never makes it forget a booking.
                let own = load.kv_tokens - before.min(load.kv_tokens);
                let foreign = report.kv_tokens.map_or(before, |held| held.saturating_sub(own));
                let foreign = foreign.min(load.kv_capacity_tokens);
                state.machines.set_foreign_kv_tokens(from.index, foreign);
                let notice = Notice::Report(Report {
                    kv_tokens: foreign,
                    free_blocks: u32::MAX,
                    over_quarantine: !report.accepts,
                    ..Report::default()
                });
                let _ = state.handle(now, &ClusterEvent::Notice { from, notice })?;
                if !state.actions.is_empty() {
                    state.keep(None);
                }
            }
            Ok(unknown)
        })
    }

    /// Sets the limits of a class of requests, or takes them away.
    ///
    /// # Errors
    /// A limit of zero, or too many classes.
    pub fn set_slo(&self, class: u32, slo: Option<Slo>) -> Result<(), Fault> {
        self.with(|state| {
            if slo.is_some() && !state.classes.contains(&class) && state.classes.len() >= CLASSES_MAX {
                return Err(Fault::ClassesMax);
            }
            let now = state.begin()?;
            let _ = state.handle(now, &ClusterEvent::SetSlo { class, slo })?;
            match slo {
                Some(_) => state.classes.insert(class),
                None => state.classes.remove(&class),
            };
            state.keep(None);
            Ok(())
        })
    }
}

impl State {
    /// A machine that takes no more work holds nothing any more.
    pub(super) fn drained(&mut self, machine: MachineId) {
        if let Some(managed) = &mut self.managed {
            managed.drained(machine);
        }
        if let Some(machine) = self.machines.at(machine.index) {
            self.log.push(Kind::Drained { machine: machine.name.clone() });
        }
    }

    /// A machine that is here: one of this name that was lost is not.
    pub(super) fn machine(&self, name: &str) -> Result<MachineId, Fault> {
        let load = self.machines.index(name).and_then(|index| self.core.load(index));
        let here = load.filter(|load| load.state != MachineState::Lost);
        here.map(|load| load.machine).ok_or_else(|| Fault::UnknownMachine(name.to_owned()))
    }

    fn fact(&mut self, fact: Fact, request: u64, attempt: Option<u32>) -> Result<bool, Fault> {
        let now = self.begin()?;
        let id = RequestId(request);
        let live = self.core.attempt(id);
        // Attempts begin at 1, so 0 is late for sure.
        let attempt = attempt.map_or(live.unwrap_or(Attempt(0)), Attempt);
        let key = LegKey { request: id, attempt };
        // The core counts what is late; of an attempt that is over, this changes nothing else.
        let late = ClusterEvent::Fact(Notice::Progress { key, tokens: 0 });
        let event = match fact {
            Fact::PrefillDone => ClusterEvent::Fact(Notice::PrefillDone { key, sampled: true }),
            Fact::Progress(so_far) => {
                let tokens = so_far.saturating_sub(self.core.delivered(id).unwrap_or(0));
                ClusterEvent::Fact(Notice::Progress { key, tokens })
            }
            Fact::Finish => ClusterEvent::Fact(Notice::Finished { key, tokens: 0 }),
            Fact::SourceReleased => {
                ClusterEvent::Fact(Notice::Released { key, to: None, report: Report::default() })
            }
            Fact::Cancel if live == Some(attempt) => ClusterEvent::Cancel { request: id },
            Fact::Renew if live == Some(attempt) => ClusterEvent::Renew { request: id },
            Fact::Cancel | Fact::Renew => late,
        };
        let applied = self.handle(now, &event)?;
        if !self.actions.is_empty() {
            self.keep(None);
        }
        Ok(applied.is_yes())
    }

    /// Whether all of these can join.
    fn check_joins(&self, specs: &[MachineSpec], most: usize) -> Result<(), Fault> {
        let mut urls = HashMap::new();
        let mut new = 0;
        for spec in specs {
            if self.machine(&spec.name).is_ok() {
                return Err(self.taken(spec));
            }
            if let Some(here) = urls.insert(spec.name.as_str(), &spec.url) {
                let (name, here, again) = (spec.name.clone(), here.clone(), spec.url.clone());
                return Err(Fault::DuplicateMachine { name, here, again });
            }
            new += usize::from(self.machines.index(&spec.name).is_none());
        }
        if self.machines.len() + new > most { Err(Fault::MachinesMax(most)) } else { Ok(()) }
    }

    /// Another machine of this name is here.
    fn taken(&self, spec: &MachineSpec) -> Fault {
        let here = self.machines.index(&spec.name).and_then(|index| self.machines.at(index)?.url.clone());
        Fault::DuplicateMachine { name: spec.name.clone(), here, again: spec.url.clone() }
    }

    fn join(&mut self, spec: MachineSpec) -> Result<(), Fault> {
        let known = self.machines.index(&spec.name).and_then(|index| self.core.load(index));
        let machine = match known {
            Some(load) if load.state != MachineState::Lost => return Err(self.taken(&spec)),
            Some(load) => MachineId { incarnation: load.machine.incarnation + 1, ..load.machine },
            None => MachineId { index: self.core.machines_len(), incarnation: 1 },
        };
        let fixed_cost_ns = (spec.transfer_fixed_cost_s * 1e9).clamp(0.0, 1e18) as u64;
        let join = Join {
            machine,
            role: spec.role,
            kv_capacity_tokens: u64::from(spec.kv_blocks) * u64::from(spec.block_tokens),
            speed_weight: spec.speed_weight,
            link: spec.link_bytes_per_s.map(|bytes_per_s| Link { bytes_per_s, fixed_cost_ns }),
            costs: spec.costs,
        };
        let now = self.begin()?;
        let _ = self.handle(now, &ClusterEvent::Join(join))?;
        self.machines.set(machine.index, Machine { name: spec.name, url: spec.url });
        self.keep(None);
        Ok(())
    }

    fn lose(&mut self, name: &str) -> Result<Recovered, Fault> {
        let machine = self.machine(name)?;
        let now = self.begin()?;
        let _ = self.handle(now, &ClusterEvent::Lose { machine })?;
        let mut recovered = Recovered::default();
        for action in &self.actions {
            match *action {
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
        let placed: HashSet<u64> = recovered.placed.iter().copied().collect();
        recovered.parked.retain(|id| !placed.contains(id));
        self.keep(None);
        Ok(recovered)
    }
}
