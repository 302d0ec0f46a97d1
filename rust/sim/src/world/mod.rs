//! The simulated world: one Cluster, n Machines, the messages between them, an engine for each machine and the
//! links. It decides nothing about scheduling; it carries out what the core asks for and tells it what happened.
//!
//! Events are ordered by (time, sequence). Messages without delay take the same queue, so a run with and without
//! delay is one code path.

mod check;
mod crashes;
mod engine;
mod flow_line;
mod messages;
mod outages;
mod transfers;
mod watchdog;

use std::collections::BTreeMap;

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{MachineConfig, SECOND_NS};
use splitcore_core::error::Rejection;
use splitcore_core::event::{
    Arrival, ClusterAction, ClusterEvent, Join, MachineAction, MachineEvent, Outcome as CoreOutcome,
};
use splitcore_core::id::MachineId;
use splitcore_core::leg::Command;
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;

use crate::SimError;
use crate::cost::CostModel;
use crate::event_queue::EventQueue;
use crate::faults::Recovery;
use crate::links::Links;
use crate::observer::Observer;
use crate::report::{
    Digest, GapHistogram, MachineTally, Outcome, PoolMoves, RequestRow, Timeline, TransferTally,
};
use crate::setup::Setup;
use crate::workload::TraceRequest;
use crashes::Crashes;
use engine::{Engine, Stream};
use messages::{Message, Messages};
use transfers::Transfers;
use watchdog::{EVENTS_PER_LOOK, Standing, Watchdog};

/// Messages that follow one another in a handoff, and more.
const MESSAGES_OF_A_HANDOFF: u64 = 16;

/// What happens next. Small, because the heap moves it around; messages lie beside it.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A message arrives: its place in [`Messages`].
    Message(u32),
    /// A machine's newest pass leaves the first of several stages.
    StageFree(u32),
    /// A machine's oldest pass ends.
    PassEnds(u32),
    /// The earliest flow may have ended.
    LinksTimer,
    /// A transfer's last layer is across: its place in [`Transfers`].
    Lands(u32),
    /// A machine's deadline may have come.
    MachineTick(u32),
    /// The Cluster's deadline may have come.
    ClusterTick,
    /// A crash that the user asked for: its place in the plan.
    Kill(u32),
    /// A machine crashes of its own accord.
    Fails(u32),
    /// A crashed machine is back.
    Repaired(u32),
    /// A killed Cluster's successor is up.
    ClusterStands,
    /// The gateway submits again what was turned away and must not be.
    Resubmit,
}

/// The state of a run.
pub(crate) struct World<O> {
    now_ns: u64,
    queue: EventQueue<Event>,
    messages: Messages,
    message_delay_ns: u64,
    cluster: Cluster,
    machines: Vec<Machine>,
    engines: Vec<Engine>,
    costs: Vec<CostModel>,
    kv_bytes_per_token: u64,
    fixed_costs_ns: Vec<u64>,
    links: Links,
    transfers: Transfers,
    requests: Vec<TraceRequest>,
    /// The class of each; empty where there is one.
    classes: Vec<u16>,
    /// Of the requests of each class.
    priorities: Vec<i32>,
    streams: Vec<Stream>,
    next_arrival: usize,
    machine_tick_armed: Vec<Option<u64>>,
    cluster_tick_armed: Option<u64>,
    cluster_actions: Vec<ClusterAction>,
    machine_actions: Vec<MachineAction>,
    /// Where machines crash.
    crashes: Option<Box<Crashes>>,
    pub(crate) gaps: GapHistogram,
    pub(crate) transfer_tally: TransferTally,
    pub(crate) tallies: Vec<MachineTally>,
    /// Batch sizes over time by home role: prompt, token, mixed.
    pub(crate) timelines: [Timeline; 3],
    pub(crate) digest: Digest,
    pub(crate) events: u64,
    pub(crate) out_of_range_lookups: u64,
    /// Requests that are over.
    pub(crate) ended: usize,
    pub(crate) last_end_ns: u64,
    /// Arrivals turned away, by reason.
    pub(crate) rejections: BTreeMap<&'static str, u64>,
    check: bool,
    watchdog: Watchdog,
    observer: O,
}

impl<O: Observer> World<O> {
    /// Machines joined, nothing arrived.
    pub(crate) fn new(setup: &Setup, recovery: Recovery, mut observer: O) -> Result<Self, SimError> {
        observer.run_started(recovery);
        let (cluster, machines, joins) = joined(setup)?;
        let nics: Vec<_> = setup.machines.iter().map(|machine| machine.nic).collect();
        let count = machines.len();
        let tally = |machine: &crate::setup::MachineSetup| {
            let mut tally = MachineTally::new(machine.name.clone(), role_name(machine.role));
            tally.hardware = Some(machine.kind.to_string());
            tally
        };
        let crashes = |plan| Box::new(Crashes::new(plan, recovery, joins, setup));
        let mut world = Self {
            now_ns: 0,
            queue: EventQueue::with_capacity(4 * count),
            messages: Messages::default(),
            message_delay_ns: setup.message_delay_ns,
            cluster,
            engines: setup.machines.iter().map(Engine::new).collect(),
            costs: setup.costs.clone(),
            kv_bytes_per_token: setup.model.kv_bytes_per_token(),
            fixed_costs_ns: setup.machines.iter().map(|machine| machine.link.fixed_cost_ns).collect(),
            links: Links::new(&nics, setup.contention),
            transfers: Transfers::default(),
            streams: setup.workload.requests.iter().map(Stream::new).collect(),
            requests: setup.workload.requests.clone(),
            classes: setup.workload.classes.clone(),
            priorities: setup.priorities.clone(),
            next_arrival: 0,
            machine_tick_armed: vec![None; count],
            cluster_tick_armed: None,
            cluster_actions: Vec::new(),
            machine_actions: Vec::new(),
            crashes: setup.faults.as_ref().map(crashes),
            gaps: GapHistogram::new(),
            transfer_tally: TransferTally::default(),
            tallies: setup.machines.iter().map(tally).collect(),
            timelines: [Timeline::new(), Timeline::new(), Timeline::new()],
            digest: Digest::new(),
            events: 0,
            out_of_range_lookups: 0,
            ended: 0,
            last_end_ns: 0,
            rejections: BTreeMap::new(),
            check: setup.check,
            watchdog: Watchdog::new(longest_ns(setup)),
            machines,
            observer,
        };
        world.schedule_crashes();
        Ok(world)
    }

    /// Handles the next event. Returns false when there is none left.
    pub(crate) fn step(&mut self) -> Result<bool, SimError> {
        // Arrivals are known from the start, so at equal times they come first.
        let arrival = self.requests.get(self.next_arrival).map(|request| request.arrival_ns);
        let arrives = arrival.is_some_and(|at| self.queue.peek_time().is_none_or(|next| at <= next));
        if let (true, Some(at)) = (arrives, arrival) {
            self.now_ns = at;
            self.queue.move_to(at);
            self.arrive()?;
        } else if let Some((now, event)) = self.queue.pop() {
            self.now_ns = now;
            self.happen(event)?;
        } else {
            return Ok(false);
        }
        self.events += 1;
        self.arm_links();
        if self.check {
            self.check_all()?;
        }
        Ok(true)
    }

    fn happen(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::Message(at) => self.deliver(at),
            Event::StageFree(machine) => self.stage_free(machine),
            Event::PassEnds(machine) => self.pass_ends(machine),
            Event::LinksTimer => self.flows_end(),
            Event::Lands(transfer) => self.land(transfer),
            Event::MachineTick(machine) => {
                let armed = &mut self.machine_tick_armed[machine as usize];
                if *armed != Some(self.now_ns) {
                    // A later tick that an earlier one has made stale.
                    return Ok(());
                }
                *armed = None;
                self.log(1, machine, 0);
                self.tell_machine(machine, &MachineEvent::Tick)
            }
            Event::ClusterTick => {
                if self.cluster_tick_armed != Some(self.now_ns) {
                    return Ok(());
                }
                self.cluster_tick_armed = None;
                self.log(2, 0, 0);
                if self.is_shut() { self.tick_shut() } else { self.tell_cluster(&ClusterEvent::Tick) }
            }
            Event::Kill(at) => self.kill(at),
            Event::Fails(machine) => self.fail(machine),
            Event::Repaired(machine) => self.repaired(machine),
            Event::ClusterStands => self.cluster_stands(),
            Event::Resubmit => self.resubmit(),
        }
    }

    fn arrive(&mut self) -> Result<(), SimError> {
        let id = self.next_arrival as u64;
        let request = self.requests[self.next_arrival];
        self.next_arrival += 1;
        self.watchdog.go_on();
        self.log(3, request.prompt_tokens, id);
        if self.is_shut() {
            // It waits at the gateway.
            return Ok(());
        }
        self.tell_cluster(&ClusterEvent::Arrive(self.arrival(id as usize, 0)))
    }

    /// A request as it is submitted by a client that has `given` of its tokens.
    fn arrival(&self, at: usize, given: u32) -> Arrival {
        let TraceRequest { prompt_tokens, output_tokens, .. } = self.requests[at];
        let class = self.classes.get(at).map_or(0, |&class| class.into());
        let priority = self.priorities[class as usize];
        Arrival { class, priority, ..Arrival::new(at as u64, prompt_tokens + given, output_tokens - given) }
    }

    fn deliver(&mut self, at: u32) -> Result<(), SimError> {
        match self.messages.take(at) {
            Message::ToCluster { from, notice } => {
                let (tag, id) = messages::notice_tag(&notice);
                self.log(16 + tag, from.index, id);
                self.tell_cluster(&ClusterEvent::Notice { from, notice })
            }
            Message::ToMachine { to, epoch, seq, command } => {
                let (tag, id) = messages::command_tag(&command);
                self.log(32 + tag, to, id);
                self.tell_machine(to, &MachineEvent::Command { epoch, seq, command })
            }
            Message::Register { machine } => self.register(machine),
            Message::Registered { to, epoch } => {
                self.log(30, to, u64::from(epoch.0));
                self.tell_machine(to, &MachineEvent::Registered { epoch })
            }
            Message::Fenced { machine, key } => {
                self.log(10, machine, key.request.0);
                self.tell_machine(machine, &MachineEvent::Fenced { key })
            }
            Message::Peer { to, from, message } => {
                let (tag, id) = messages::peer_tag(&message);
                self.log(48 + tag, to, id);
                self.tell_machine(to, &MachineEvent::Peer { from, message })
            }
        }
    }

    fn tell_cluster(&mut self, event: &ClusterEvent) -> Result<(), SimError> {
        let mut actions = std::mem::take(&mut self.cluster_actions);
        let result = self.cluster.handle(Time::from_ns(self.now_ns), event, &mut actions);
        // A late event is counted by the core; there is nothing to do about it here.
        let _ = result.map_err(|error| internal(&error))?;
        for action in actions.drain(..) {
            self.carry_out(action);
        }
        self.cluster_actions = actions;
        self.arm_cluster();
        Ok(())
    }

    fn carry_out(&mut self, action: ClusterAction) {
        match action {
            ClusterAction::Command { to, seq, command } => {
                if let Command::Reserve { key, .. } = command {
                    self.streams[key.request.0 as usize].decode_at(key.attempt, to);
                }
                let epoch = self.cluster.epoch();
                self.post(Message::ToMachine { to: to.index, epoch, seq, command });
            }
            ClusterAction::Placed(placement) => {
                let at = placement.request.0 as usize;
                let delivered = if self.streams[at].attempt > 0 { self.give_up(at as u32) } else { 0 };
                let stream = &mut self.streams[at];
                stream.place(&placement, &self.requests[at], delivered);
                let pair = (stream.prompt_machine as u32, stream.token_machine as u32);
                self.log(4, pair.0, u64::from(pair.1));
            }
            // The gateway submits again what was accepted once.
            ClusterAction::Rejected { request, .. } if self.streams[request.0 as usize].attempt > 0 => {}
            ClusterAction::Rejected { request, reason } => {
                self.count_rejection(reason);
                self.log(5, 0, request.0);
                self.end(request.0, Outcome::Rejected);
            }
            ClusterAction::Ended { request, outcome } => {
                // A finished request ended at its last token, before the Cluster heard of it.
                if !matches!(outcome, CoreOutcome::Finished) {
                    self.give_up(request.0 as u32);
                    // Nor does a client that has gone wait for a Cluster that took its request over.
                    if self.streams[request.0 as usize].outcome == Outcome::Unfinished {
                        self.end(request.0, Outcome::Failed);
                    }
                }
            }
            ClusterAction::Moved { machine, pool } => self.log(6, machine.index, pool as u64),
            ClusterAction::Parked { request } => {
                // One that a new Cluster takes over from its keeper may have a leg that registers later.
                let attempt = self.cluster.attempt(request).map_or(0, |attempt| attempt.0);
                if attempt > self.streams[request.0 as usize].attempt {
                    self.give_up(request.0 as u32);
                }
            }
            ClusterAction::Registered { to, epoch } => {
                self.post(Message::Registered { to: to.index, epoch });
            }
            ClusterAction::Drained { .. }
            | ClusterAction::Faulted { .. }
            | ClusterAction::SetAside { .. } => {}
        }
    }

    #[cold]
    fn count_rejection(&mut self, reason: Rejection) {
        *self.rejections.entry(reason.name()).or_insert(0) += 1;
    }

    fn tell_machine(&mut self, machine: u32, event: &MachineEvent) -> Result<(), SimError> {
        let mut actions = std::mem::take(&mut self.machine_actions);
        let at = machine as usize;
        let result = self.machines[at].handle(Time::from_ns(self.now_ns), event, &mut actions);
        let _ = result.map_err(|error| internal(&error))?;
        let from = self.machines[at].id();
        for action in actions.drain(..) {
            match action {
                MachineAction::Notify { notice } => self.post(Message::ToCluster { from, notice }),
                MachineAction::Peer { to, message } => {
                    self.post(Message::Peer { to: to.index, from, message });
                }
                MachineAction::Run { .. } => self.run_pass(machine),
                MachineAction::Put(put) => self.start_serialized(machine, &put),
                MachineAction::StopPut { key } => self.stop_transfer(machine, key),
                // A token is the client's as soon as it is made.
                MachineAction::Resend { .. } => {}
            }
        }
        self.machine_actions = actions;
        self.arm_machine(machine);
        Ok(())
    }

    fn post(&mut self, message: Message) {
        let at = self.messages.put(message);
        self.queue.push(self.now_ns + self.message_delay_ns, Event::Message(at));
    }

    fn arm_machine(&mut self, machine: u32) {
        let at = machine as usize;
        let Some(due) = self.machines[at].next_deadline() else { return };
        let due = due.as_ns().max(self.now_ns);
        if self.machine_tick_armed[at].is_none_or(|armed| due < armed) {
            self.machine_tick_armed[at] = Some(due);
            self.queue.push(due, Event::MachineTick(machine));
        }
    }

    fn arm_cluster(&mut self) {
        let Some(due) = self.cluster.next_deadline() else { return };
        let due = due.as_ns().max(self.now_ns);
        if self.cluster_tick_armed.is_none_or(|armed| due < armed) {
            self.cluster_tick_armed = Some(due);
            self.queue.push(due, Event::ClusterTick);
        }
    }

    fn arm_links(&mut self) {
        if let Some(due) = self.links.arm() {
            self.queue.push(due, Event::LinksTimer);
        }
    }

    /// Enters an event into the digest.
    fn log(&mut self, tag: u64, machine: u32, id: u64) {
        let words = [self.now_ns, tag << 32 | u64::from(machine), id];
        self.observer.logged(words);
        self.digest.fold_all(&words);
    }

    fn end(&mut self, id: u64, outcome: Outcome) {
        let stream = &mut self.streams[id as usize];
        stream.outcome = outcome;
        self.observer.ended(self.now_ns, id, outcome);
        self.ended += 1;
        self.last_end_ns = self.last_end_ns.max(self.now_ns);
        self.watchdog.go_on();
    }

    /// Requests that have arrived and are not over.
    pub(crate) fn pending(&self) -> usize {
        self.next_arrival - self.ended
    }

    /// In which way the run goes in circles, if it does. Cheap enough to ask after every event.
    pub(crate) fn circle(&mut self) -> Option<String> {
        if !self.events.is_multiple_of(EVENTS_PER_LOOK) {
            return None;
        }
        let standing = Standing {
            now_ns: self.now_ns,
            is_busy: self.links.active() > 0 || self.engines.iter().any(Engine::is_busy),
            pending: self.pending() as u64,
            machines: self.machines.len() as u64,
        };
        let streams = self.streams[..self.next_arrival].iter().zip(&self.requests);
        let pending = streams.filter(|(stream, _)| stream.outcome == Outcome::Unfinished);
        let tokens = || pending.map(|(_, request)| u64::from(request.output_tokens)).sum();
        self.watchdog.look(standing, tokens)
    }

    /// Whether whoever watches wants to see no more.
    pub(crate) fn is_seen_enough(&self) -> bool {
        self.observer.is_satisfied()
    }

    /// Whether every request has arrived and ended.
    pub(crate) fn is_over(&self) -> bool {
        self.ended == self.requests.len()
    }

    pub(crate) fn rows(&self) -> Vec<RequestRow> {
        let pairs = self.streams.iter().zip(&self.requests).enumerate();
        pairs.map(|(id, (stream, request))| stream.row(id as u64, request)).collect()
    }

    /// How often machines moved between pools, under all Clusters.
    pub(crate) fn pool_moves(&self) -> PoolMoves {
        let before = self.crashes.as_ref().map_or(PoolMoves::default(), |crashes| crashes.outage.pool_moves);
        let counters = self.cluster.counters();
        PoolMoves {
            to_mixed: before.to_mixed + counters.to_mixed,
            to_home: before.to_home + counters.to_home,
        }
    }

    /// Evictions and pauses of all machines, those that crashed included.
    pub(crate) fn evictions_and_pauses(&self) -> (u64, u64) {
        let lost = self.crashes.as_ref().map_or((0, 0), |crashes| crashes.evictions_and_pauses);
        let counters = self.machines.iter().map(Machine::counters);
        counters.fold(lost, |sum, each| (sum.0 + each.evicted, sum.1 + each.paused))
    }
}

/// All that a request may wait for without a pass or a transfer, one after the other.
fn longest_ns(setup: &Setup) -> u64 {
    let cluster = &setup.cluster;
    let mut waits = vec![
        SECOND_NS,
        cluster.mixed_hold_ns,
        cluster.priority_ageing_ns.unwrap_or(0),
        cluster.retry_interval_ns,
        cluster.park_limit_ns,
        cluster.rejoin_limit_ns,
        cluster.grace_ns,
        cluster.lease_ns.unwrap_or(0),
        setup.message_delay_ns.saturating_mul(MESSAGES_OF_A_HANDOFF),
    ];
    if let Some(faults) = &setup.faults {
        waits.extend([faults.repair_ns, faults.restart_ns, faults.grace_ns]);
    }
    let machine = setup.machines.iter().map(|machine| {
        let MachineConfig { report_interval_ns, park_limit_ns, transfer_limit_ns, orphan_limit_ns, .. } =
            machine.config;
        let limits = [transfer_limit_ns, orphan_limit_ns].map(|limit| limit.unwrap_or(0));
        report_interval_ns.saturating_add(park_limit_ns).saturating_add(limits[0]).saturating_add(limits[1])
    });
    waits.push(machine.max().unwrap_or(0));
    waits.into_iter().fold(0, u64::saturating_add)
}

/// The Cluster with all machines in it, and how each of them joined.
fn joined(setup: &Setup) -> Result<(Cluster, Vec<Machine>, Vec<Join>), SimError> {
    let mut cluster = Cluster::new(setup.cluster).map_err(|error| internal(&error))?;
    let mut machines = Vec::new();
    let mut joins = Vec::new();
    let mut actions = Vec::new();
    for (index, machine) in setup.machines.iter().enumerate() {
        let id = MachineId { index: index as u32, incarnation: 1 };
        let made = Machine::new(id, machine.config).map_err(|error| internal(&error))?;
        let join = Join {
            machine: id,
            role: machine.role,
            kv_capacity_tokens: machine.config.capacity_tokens(),
            speed_weight: 1,
            link: Some(machine.link),
            costs: Some(setup.cost_tables[machine.cost].clone()),
        };
        let joined = cluster.handle(Time::ZERO, &ClusterEvent::Join(join.clone()), &mut actions);
        let _ = joined.map_err(|error| internal(&error))?;
        machines.push(made);
        joins.push(join);
    }
    for limits in setup.slos() {
        let _ = cluster.handle(Time::ZERO, &limits, &mut actions).map_err(|error| internal(&error))?;
    }
    Ok((cluster, machines, joins))
}

/// A role as reports call it.
pub(crate) fn role_name(role: splitcore_core::event::Role) -> &'static str {
    match role {
        splitcore_core::event::Role::Prompt => "prompt",
        splitcore_core::event::Role::Token => "token",
        splitcore_core::event::Role::Mixed => "mixed",
    }
}

/// The core refused what the simulator told it, or failed its own recount: a bug here or there.
fn internal(error: &dyn std::fmt::Display) -> SimError {
    SimError::Internal { reason: error.to_string() }
}
