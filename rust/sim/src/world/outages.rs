//! The Cluster's state dies and is rebuilt. With it go all messages between it and the machines; the machines run on,
//! and their tokens reach the clients. Its successor knows nothing: for a grace time it hears from the machines what
//! they hold, takes that over and goes on.
//!
//! The gateway knows its clients. What arrives without a Cluster, or in the grace time, waits there. When the time is
//! over it submits again what no machine has registered, after the tokens that the client has: nothing accepted is lost.
//!
//! Where requests restart, machines lose what they hold with the Cluster, as where nobody can say what they hold, and
//! every request is submitted again from its prompt.

use std::collections::{BTreeMap, BTreeSet};

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, SECOND_NS};
use splitcore_core::event::{ClusterEvent, MachineEvent, Registration};
use splitcore_core::id::{Attempt, Epoch, LegKey, RequestId};
use splitcore_core::leg::Notice;
use splitcore_core::machine::Machine;

use super::messages::Message;
use super::{Event, World, internal};
use crate::SimError;
use crate::faults::{FaultPlan, Recovery};
use crate::observer::Observer;
use crate::report::{Outcome, PoolMoves};
use crate::setup::Setup;

/// A request that was accepted once and is turned away when it is submitted again is tried at this interval.
const RESUBMIT_INTERVAL_NS: u64 = SECOND_NS;

/// Where the Cluster stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It takes arrivals.
    Open,
    /// There is none.
    Down,
    /// It hears from its machines and takes none yet.
    Grace,
}

/// What a killed Cluster needs and leaves behind.
pub(super) struct Outage {
    restart_ns: u64,
    grace_ns: u64,
    slos: Vec<ClusterEvent>,
    stage: Stage,
    /// The gateway will submit again what was turned away and must not be.
    resubmits: bool,
    /// Some request was submitted later than others that arrived after it.
    pub(super) is_out_of_order: bool,
    /// Requests that lost their placement in the grace time, and were counted then.
    pub(super) met: BTreeSet<u32>,
    /// What machines register, while it is on its way.
    pub(super) registrations: BTreeMap<u32, Registration>,
    /// Output tokens that were part of the prompt when the gateway submitted a request again, if any were.
    pub(super) submitted_after: BTreeMap<u32, u32>,
    /// Of the Clusters that were killed.
    pub(super) pool_moves: PoolMoves,
}

impl Outage {
    pub(super) fn new(plan: &FaultPlan, recovery: Recovery, setup: &Setup) -> Self {
        Self {
            restart_ns: plan.restart_ns,
            grace_ns: match recovery {
                Recovery::Resume => plan.grace_ns,
                // Nothing is to be heard from machines but that they are there.
                Recovery::Restart => setup.message_delay_ns.max(1),
            },
            slos: setup.slos().collect(),
            stage: Stage::Open,
            resubmits: false,
            is_out_of_order: false,
            met: BTreeSet::new(),
            registrations: BTreeMap::new(),
            submitted_after: BTreeMap::new(),
            pool_moves: PoolMoves::default(),
        }
    }

    /// Whether what arrives waits at the gateway.
    pub(super) fn is_shut(&self) -> bool {
        self.stage != Stage::Open
    }
}

impl<O: Observer> World<O> {
    /// Whether there is no Cluster that takes arrivals.
    pub(super) fn is_shut(&self) -> bool {
        self.crashes.as_ref().is_some_and(|crashes| crashes.outage.is_shut())
    }

    #[cold]
    pub(super) fn kill_cluster(&mut self) -> Result<(), SimError> {
        let is_over = self.is_over();
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        if is_over || crashes.outage.stage == Stage::Down {
            return Ok(());
        }
        crashes.tally.cluster_restarts += 1;
        (crashes.outage.stage, crashes.first_live) = (Stage::Down, 0);
        let (recovery, stands_ns) = (crashes.recovery, self.now_ns + crashes.outage.restart_ns);
        self.log(13, 0, u64::from(self.cluster.epoch().0));
        self.begin_waits(recovery);
        self.forget_cluster()?;
        for machine in 0..self.machines.len() as u32 {
            if self.is_up(machine) {
                if recovery == Recovery::Restart {
                    self.take_away(machine)?;
                }
                self.tell_machine(machine, &MachineEvent::ClusterLost)?;
            }
        }
        self.queue.push(stands_ns, Event::ClusterStands);
        Ok(())
    }

    fn is_up(&self, machine: u32) -> bool {
        self.crashes.as_ref().is_some_and(|crashes| crashes.is_up[machine as usize])
    }

    /// The client of every live request waits from now on. Where requests restart all their KV is lost.
    fn begin_waits(&mut self, recovery: Recovery) {
        for engine in &mut self.engines {
            engine.fall_behind(&mut self.streams);
        }
        for at in 0..self.next_arrival {
            let stream = &mut self.streams[at];
            if stream.outcome != Outcome::Unfinished || stream.attempt == 0 {
                continue;
            }
            stream.is_behind = true;
            let tokens =
                if recovery == Recovery::Restart { self.tokens_on(at, self.machines.iter()) } else { 0 };
            let (request, now_ns) = (at as u32, self.now_ns);
            let Some(crashes) = &mut self.crashes else { return };
            crashes.waits_since_ns.entry(request).or_insert(now_ns);
            if tokens > 0 {
                *crashes.lost_tokens.entry(request).or_insert(0) += tokens;
            }
        }
    }

    /// KV tokens of a request's live attempt, if these machines have them.
    fn tokens_on<'a>(&self, at: usize, machines: impl Iterator<Item = &'a Machine>) -> u32 {
        let (stream, of) = (&self.streams[at], &self.requests[at]);
        let key = LegKey { request: RequestId(at as u64), attempt: Attempt(stream.attempt) };
        self.crashes.as_ref().map_or(0, |crashes| {
            self.computed_tokens(&crashes.before(key, of.output_tokens - stream.left), machines)
        })
    }

    /// The Cluster and its messages are gone. Its successor, which knows nothing, waits for its time.
    fn forget_cluster(&mut self) -> Result<(), SimError> {
        let (old, counters) = (*self.cluster.config(), self.cluster.counters());
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        crashes.outage.pool_moves.to_mixed += counters.to_mixed;
        crashes.outage.pool_moves.to_home += counters.to_home;
        crashes.outage.registrations.clear();
        let config =
            ClusterConfig { epoch: Epoch(old.epoch.0 + 1), grace_ns: crashes.outage.grace_ns, ..old };
        self.cluster = Cluster::new(config).map_err(|error| internal(&error))?;
        self.cluster_tick_armed = None;
        let messages = &mut self.messages;
        self.queue.retain(|event| match *event {
            Event::ClusterTick => false,
            Event::Message(at) => {
                let gone = messages.get(at).concerns_cluster();
                if gone {
                    messages.take(at);
                }
                !gone
            }
            _ => true,
        });
        Ok(())
    }

    /// A new Cluster is up. All machines hear of it at once, and what they say is on its way.
    #[cold]
    pub(super) fn cluster_stands(&mut self) -> Result<(), SimError> {
        let epoch = self.cluster.epoch();
        self.log(14, 0, u64::from(epoch.0));
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        crashes.outage.stage = Stage::Grace;
        crashes.outage.met.clear();
        let slos = crashes.outage.slos.clone();
        for machine in 0..self.machines.len() as u32 {
            if self.is_up(machine) {
                self.send_registration(machine);
            }
        }
        for slo in &slos {
            self.tell_cluster(slo)?;
        }
        // Its grace time begins, whoever registers.
        self.tell_cluster(&ClusterEvent::Tick)
    }

    /// A machine that has come up without a session, once the first Cluster is gone.
    pub(super) fn begin_session(&mut self, machine: u32) -> Result<(), SimError> {
        self.tell_machine(machine, &MachineEvent::ClusterLost)?;
        if self.crashes.as_ref().is_some_and(|crashes| crashes.outage.stage != Stage::Down) {
            self.send_registration(machine);
        }
        Ok(())
    }

    fn send_registration(&mut self, machine: u32) {
        let at = machine as usize;
        let of = &self.machines[at];
        let (epoch, report, claims) = (of.epoch(), of.report(), of.claims());
        let Some(crashes) = &mut self.crashes else { return };
        let join = crashes.joins[at].clone();
        crashes.outage.registrations.insert(machine, Registration { join, epoch, report, claims });
        self.post(Message::Register { machine });
    }

    /// A registration arrives. Of what the Cluster takes over it hears at once what the clients have; those that have
    /// gone it need not serve.
    #[cold]
    pub(super) fn register(&mut self, machine: u32) -> Result<(), SimError> {
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        let Some(registration) = crashes.outage.registrations.remove(&machine) else { return Ok(()) };
        self.log(29, machine, registration.claims.len() as u64);
        let claimed = registration.claims.iter().map(|claim| claim.key.request);
        let is_over = |request: &RequestId| self.streams[request.0 as usize].outcome != Outcome::Unfinished;
        let mut over: Vec<RequestId> = claimed.filter(is_over).collect();
        over.retain(|&request| self.cluster.attempt(request).is_none());
        let before = self.cluster.counters().adopted;
        self.tell_cluster(&ClusterEvent::Register(registration))?;
        over.retain(|&request| self.cluster.attempt(request).is_some());
        let adopted = self.cluster.counters().adopted - before;
        if let Some(crashes) = &mut self.crashes {
            crashes.tally.adopted += adopted.saturating_sub(over.len() as u64);
        }
        if self.cluster.is_recovering() {
            self.tell_progress()?;
        }
        for request in over {
            if self.cluster.attempt(request).is_some() {
                self.tell_cluster(&ClusterEvent::Cancel { request })?;
            }
        }
        Ok(())
    }

    /// The Cluster's deadline in its grace time, most often the end of it.
    #[cold]
    pub(super) fn tick_shut(&mut self) -> Result<(), SimError> {
        let mut before = self.tell_progress()?;
        let Some(crashes) = &self.crashes else { return Ok(()) };
        before.retain(|each| !crashes.outage.met.contains(&(each.key.request.0 as u32)));
        self.tell_cluster(&ClusterEvent::Tick)?;
        self.count_faults(&before, None);
        if self.cluster.is_recovering() { Ok(()) } else { self.reopen() }
    }

    fn reopen(&mut self) -> Result<(), SimError> {
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        crashes.outage.stage = Stage::Open;
        for at in crashes.first_live..self.next_arrival {
            let (request, stream) = (RequestId(at as u64), &self.streams[at]);
            let Some(attempt) = self.cluster.attempt(request) else { continue };
            // A later attempt was on its way when the Cluster died, and this one makes no tokens any more.
            if stream.outcome == Outcome::Unfinished && attempt.0 < stream.attempt {
                let key = LegKey { request, attempt };
                self.tell_cluster(&ClusterEvent::Fact(Notice::Relief { key }))?;
            }
        }
        self.submit_missing()
    }

    #[cold]
    pub(super) fn resubmit(&mut self) -> Result<(), SimError> {
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        crashes.outage.resubmits = false;
        if crashes.outage.is_shut() { Ok(()) } else { self.submit_missing() }
    }

    /// Submits what waits at the gateway, and again what the Cluster should know and does not.
    fn submit_missing(&mut self) -> Result<(), SimError> {
        let mut is_left = false;
        let first = self.crashes.as_ref().map_or(0, |crashes| crashes.first_live);
        for at in first..self.next_arrival {
            if self.is_missing(at) {
                self.submit(at)?;
                is_left |= self.is_missing(at);
            }
        }
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        if is_left && !std::mem::replace(&mut crashes.outage.resubmits, true) {
            self.queue.push(self.now_ns + RESUBMIT_INTERVAL_NS, Event::Resubmit);
        }
        Ok(())
    }

    fn is_missing(&self, at: usize) -> bool {
        self.streams[at].outcome == Outcome::Unfinished
            && self.cluster.attempt(RequestId(at as u64)).is_none()
    }

    fn submit(&mut self, at: usize) -> Result<(), SimError> {
        let (of, stream, request) = (self.requests[at], &self.streams[at], at as u32);
        let was_accepted = stream.attempt > 0;
        let given = stream.given(&of);
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        let after = if crashes.recovery == Recovery::Resume { given } else { 0 };
        if after > 0 {
            crashes.outage.submitted_after.insert(request, after);
        } else {
            crashes.outage.submitted_after.remove(&request);
        }
        crashes.outage.is_out_of_order = true;
        self.log(15, after, at as u64);
        self.tell_cluster(&ClusterEvent::Arrive(self.arrival(at, after)))?;
        if !was_accepted || self.is_missing(at) {
            return Ok(());
        }
        if let Some(crashes) = &mut self.crashes {
            crashes.tally.resubmitted += 1;
            *(if after > 0 { &mut crashes.tally.resumed } else { &mut crashes.tally.restarted }) += 1;
        }
        Ok(())
    }

    /// The KV that only a lost machine had, of which the Cluster, if there is one, has not heard.
    pub(super) fn count_unheard(&mut self, lost: &Machine) {
        for at in 0..self.next_arrival {
            let stream = &self.streams[at];
            if stream.outcome != Outcome::Unfinished || stream.attempt == 0 {
                continue;
            }
            let tokens = self.tokens_on(at, std::iter::once(lost));
            if tokens == 0 || self.tokens_on(at, self.machines.iter()) > 0 {
                continue;
            }
            let (request, now_ns) = (at as u32, self.now_ns);
            let Some(crashes) = &mut self.crashes else { return };
            *crashes.lost_tokens.entry(request).or_insert(0) += tokens;
            crashes.waits_since_ns.entry(request).or_insert(now_ns);
        }
    }
}
