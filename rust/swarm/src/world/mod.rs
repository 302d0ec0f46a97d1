//! A deterministic world around the core: Clusters, Machines and their drivers, sessions, engines, a transport and
//! clients. Everything random comes from one seed. After each event every invariant is recounted.
//!
//! What the drivers do here is what the core may rely on: a session is in order and exactly once; one that breaks
//! loses a suffix in each direction; the next begins with a registration; copies of old messages are dropped by the
//! number of their session.

mod clients;
mod contradictions;
mod engine;
mod failing;
mod hosts;
mod invariants;
mod links;
mod record;
mod rest;
mod telling;
mod transport;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::rc::Rc;

use splitcore_core::event::{ClusterEvent, Join, MachineEvent};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::BlockId;
use splitcore_core::leg::LegState;
use splitcore_core::machine::Machine;

use crate::faults::FaultKind;
use crate::rng::Rng;
use crate::setup::Setup;
use clients::Submitted;
use engine::Context;
use hosts::Host;
use links::Message;
pub(crate) use record::Digest;
pub use record::{Counters, Line, Outcomes, Tail, Watch};
use transport::Transfer;

/// Who talks: a Cluster (the first, its successor, ...), or a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// The Cluster of this number.
    Cluster(usize),
    /// A machine.
    Machine(MachineId),
}

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    Arrive(usize),
    Cancel(usize),
    /// The next incarnation of a machine starts.
    Start {
        index: u32,
    },
    Deliver(Node, Node, u64),
    /// A side finds that a session is broken.
    Notice(Node, u64),
    /// A session is broken from outside.
    Break(u64),
    /// A machine looks for a Cluster.
    Seek(MachineId),
    HostStarts,
    HostDies(usize),
    /// A drained machine goes.
    Leave(MachineId),
    /// A pass has left the first stage of several.
    StageFree {
        machine: MachineId,
        pass: u64,
    },
    PassDone {
        machine: MachineId,
        pass: u64,
    },
    Layers {
        transfer: u64,
        layers: u16,
    },
    LocalDone {
        transfer: u64,
    },
    TransferFails {
        transfer: u64,
    },
    Fenced {
        transfer: u64,
    },
    PeerLost {
        at: MachineId,
        lost: MachineId,
    },
}

/// A place for a machine, and the driver of the one that is there.
#[derive(Debug, Default)]
struct Place {
    incarnation: u32,
    machine: Option<Machine>,
    /// Its session with a Cluster, while it thinks that there is one.
    session: Option<u64>,
    /// When it asks for its next session; drawn if nobody says.
    seeks_after_ns: Option<u64>,
    /// Since when it has been without one.
    orphaned_at: Option<u64>,
    /// It was without one for so long, at some time, that it dropped what it had.
    dropped: bool,
    paused_until: u64,
    /// An operator wants it to go.
    leaves: Option<u64>,
    /// It has asked for a session before.
    greeted: bool,
    /// The passes in its engine, oldest first, and when each would end alone.
    passes: VecDeque<(u64, u64)>,
    /// What its engine knows of each leg.
    contexts: BTreeMap<LegKey, Context>,
}

/// The world. See the module.
pub struct World {
    setup: Setup,
    rng: Rng,
    now: u64,
    hosts: Vec<Host>,
    /// The Cluster that clients and machines find now.
    serving: Option<usize>,
    places: Vec<Place>,
    wires: BTreeMap<(Node, Node, u64), VecDeque<Message>>,
    /// Sessions between machines and Clusters, from 1 on; 0 stands for the session of two machines.
    sessions: Vec<(MachineId, usize)>,
    broken: BTreeSet<u64>,
    /// Machines that do not know yet that what they say to another is lost.
    void: BTreeSet<(MachineId, MachineId)>,
    queue: BTreeMap<(u64, u64, u64), Event>,
    queued: u64,
    submitted: Vec<Submitted>,
    transfers: BTreeMap<u64, Transfer>,
    transfers_made: u64,
    /// The blocks that were set aside with the last grant of a leg.
    grants: BTreeMap<(MachineId, LegKey), Vec<BlockId>>,
    next_fault: usize,
    /// Faults that wait for a leg in a state, and the next to strike with the leg that is in it.
    aims: Vec<(LegState, FaultKind)>,
    aimed: Option<(FaultKind, MachineId, LegKey)>,
    healed_at: Option<u64>,
    /// What this event has changed, and is to be recounted.
    touched: Vec<Node>,
    since_end: u64,
    digest: Digest,
    tail: Option<(Tail, usize)>,
    watch: Option<Rc<RefCell<dyn Watch>>>,
    record: bool,
    out: Outcomes,
}

impl World {
    /// A world before its first event.
    pub fn new(setup: Setup) -> Self {
        let mut world = Self {
            rng: Rng(setup.seed ^ 0x5eed),
            now: 0,
            hosts: vec![Host::new(setup.cluster, setup.slos, 0)],
            serving: Some(0),
            places: Vec::new(),
            wires: BTreeMap::new(),
            sessions: Vec::new(),
            broken: BTreeSet::new(),
            void: BTreeSet::new(),
            queue: BTreeMap::new(),
            queued: 0,
            submitted: Vec::new(),
            transfers: BTreeMap::new(),
            transfers_made: 0,
            grants: BTreeMap::new(),
            next_fault: 0,
            aims: Vec::new(),
            aimed: None,
            healed_at: None,
            touched: Vec::new(),
            since_end: 0,
            digest: Digest::default(),
            tail: None,
            watch: None,
            record: false,
            out: Outcomes::default(),
            setup,
        };
        for index in 0..world.setup.machines.len() {
            world.places.push(Place::default());
            match world.setup.machines[index].starts_at_ns {
                // Whoever joins takes the next free place; others register for theirs.
                0 if world.hosts[0].cluster.machines_len() == index as u32 => {
                    world.start_joined(index as u32);
                }
                at => world.push(at, Event::Start { index: index as u32 }),
            }
        }
        for index in 0..world.setup.clients.len() {
            let client = world.setup.clients[index].clone();
            world.push(client.at_ns, Event::Arrive(index));
            world.submitted.push(Submitted::new(client));
        }
        world
    }

    /// Keeps every action as text.
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.record = true;
        self
    }

    /// Keeps so many of the last events as text.
    #[must_use]
    pub fn with_tail(mut self, tail: Tail, lines: usize) -> Self {
        self.tail = Some((tail, lines));
        self
    }

    /// Shows every event to `watch`.
    #[must_use]
    pub fn watched(mut self, watch: Rc<RefCell<dyn Watch>>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Runs to the end and checks that nothing is left.
    ///
    /// # Panics
    /// With the first invariant that does not hold.
    pub fn run(mut self) -> Outcomes {
        while self.step() {
            self.check();
            self.out.events += 1;
            self.since_end += 1;
            self.watch();
        }
        self.check_rest();
        self.out.digest = self.digest.value();
        self.out
    }

    fn push(&mut self, at: u64, event: Event) {
        // Simultaneous events come in an order of the seed's choosing.
        let tie = self.rng.draw() & 0xffff;
        self.queued += 1;
        self.queue.insert((at.max(self.now), tie, self.queued), event);
    }

    fn step(&mut self) -> bool {
        if self.healed_at.is_none() {
            let due = |world: &Self| {
                let fault = world.setup.faults.get(world.next_fault);
                fault.copied().filter(|fault| fault.at_event <= world.out.events)
            };
            if let Some((kind, id, key)) = self.aimed.take() {
                self.strike_leg(kind, id, key);
                return true;
            }
            if let Some(fault) = due(self) {
                self.next_fault += 1;
                match fault.aim {
                    Some(state) => self.aims.push((state, fault.kind)),
                    None => self.strike(fault.kind),
                }
                return true;
            }
            if self.out.events >= self.setup.heals_at_event {
                self.heal();
                return true;
            }
            self.contradict();
        }
        let due = self.deadline();
        let next = self.queue.first_key_value().map(|(&key, _)| key);
        match (due, next) {
            (None, None) if self.healed_at.is_none() => self.heal(),
            (None, None) => return false,
            (Some((at, node)), None) => self.tick(at, node),
            (Some((at, node)), Some((time, tie, _))) if at < time || (at == time && tie & 1 == 0) => {
                self.tick(at, node);
            }
            (_, Some(key)) => {
                self.now = key.0;
                if let Some(event) = self.queue.remove(&key) {
                    self.happen(event);
                }
            }
        }
        true
    }

    fn deadline(&self) -> Option<(u64, Node)> {
        let due = |place: &Place| {
            let machine = place.machine.as_ref()?;
            let due = machine.next_deadline()?.as_ns().max(place.paused_until);
            Some((due, Node::Machine(machine.id())))
        };
        let hosts = self.hosts.iter().enumerate().filter(|(_, host)| host.alive);
        let hosts =
            hosts.filter_map(|(at, host)| Some((host.cluster.next_deadline()?.as_ns(), Node::Cluster(at))));
        let first = self.places.iter().filter_map(due).chain(hosts).min();
        first.map(|(due, node)| (due.max(self.now), node))
    }

    fn tick(&mut self, at: u64, node: Node) {
        self.now = at;
        self.note(|| format!("{node:?} ticks"));
        let again = match node {
            Node::Cluster(host) => {
                self.tell_cluster(host, &ClusterEvent::Tick);
                self.hosts[host].cluster.next_deadline()
            }
            Node::Machine(id) => {
                self.tell_machine(id, &MachineEvent::Tick);
                self.machine(id).and_then(Machine::next_deadline)
            }
        };
        assert!(
            again.is_none_or(|due| due.as_ns() > at),
            "a tick of {node:?} at {at} leaves its deadline due"
        );
    }

    /// The machine that an event happens to.
    fn target(&self, event: &Event) -> Option<MachineId> {
        let transfer = |number: &u64| self.transfers.get(number);
        match event {
            Event::Deliver(_, Node::Machine(id), _)
            | Event::Notice(Node::Machine(id), _)
            | Event::Seek(id)
            | Event::Leave(id)
            | Event::StageFree { machine: id, .. }
            | Event::PassDone { machine: id, .. }
            | Event::PeerLost { at: id, .. } => Some(*id),
            Event::Layers { transfer: number, .. } => transfer(number).map(|transfer| transfer.to),
            Event::LocalDone { transfer: number }
            | Event::TransferFails { transfer: number }
            | Event::Fenced { transfer: number } => transfer(number).map(|transfer| transfer.from),
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) {
        // What happens to a machine that stands still happens when it goes on.
        if let Some(id) = self.target(&event).filter(|&id| self.machine(id).is_some()) {
            let until = self.places[id.index as usize].paused_until;
            if until > self.now {
                return self.push(until, event);
            }
        }
        self.note_event(&event);
        match event {
            Event::Arrive(index) => self.arrive(index),
            Event::Cancel(index) => self.cancel(index),
            Event::Start { index } => self.start(index),
            Event::Deliver(from, to, session) => self.deliver(from, to, session),
            Event::Notice(node, session) => self.notice_break(node, session),
            Event::Break(session) => self.break_session(session),
            Event::Seek(id) => self.seek(id),
            Event::HostStarts => self.start_host(),
            Event::HostDies(host) => self.host_dies(host),
            Event::Leave(id) => self.leave(id),
            Event::StageFree { machine, pass } => self.stage_free(machine, pass),
            Event::PassDone { machine, pass } => self.pass_done(machine, pass),
            Event::Layers { transfer, layers } => self.layers(transfer, layers),
            Event::LocalDone { transfer } => self.local_done(transfer),
            Event::TransferFails { transfer } => self.transfer_fails(transfer),
            Event::Fenced { transfer } => self.transfer_fenced(transfer),
            Event::PeerLost { at, lost } => self.peer_lost(at, lost),
        }
    }

    fn machine(&self, id: MachineId) -> Option<&Machine> {
        self.places[id.index as usize].machine.as_ref().filter(|machine| machine.id() == id)
    }

    /// The driver of a live machine.
    fn place(&mut self, id: MachineId) -> Option<&mut Place> {
        let place = &mut self.places[id.index as usize];
        place.machine.as_ref().is_some_and(|machine| machine.id() == id).then_some(place)
    }

    fn machine_ids(&self) -> Vec<MachineId> {
        self.places.iter().filter_map(|place| Some(place.machine.as_ref()?.id())).collect()
    }

    /// A first incarnation that is in its pool before anything happens.
    fn start_joined(&mut self, index: u32) {
        let id = self.incarnate(index);
        self.sessions.push((id, 0));
        let session = self.sessions.len() as u64;
        self.places[index as usize].session = Some(session);
        self.places[index as usize].greeted = true;
        self.hosts[0].sessions.insert(id, session);
        let join = self.join_of(id);
        self.tell_cluster(0, &ClusterEvent::Join(join));
    }

    /// The next incarnation of a place that is empty.
    fn start(&mut self, index: u32) {
        if self.places[index as usize].machine.is_none() {
            let id = self.incarnate(index);
            self.seek(id);
        }
    }

    fn incarnate(&mut self, index: u32) -> MachineId {
        let place = &mut self.places[index as usize];
        let id = MachineId { index, incarnation: place.incarnation + 1 };
        let config = self.setup.machines[index as usize].config;
        let machine = match Machine::new(id, config) {
            Ok(machine) => machine,
            Err(error) => panic!("{error}"),
        };
        *place = Place { incarnation: id.incarnation, machine: Some(machine), ..Place::default() };
        id
    }

    fn join_of(&self, id: MachineId) -> Join {
        let setup = &self.setup.machines[id.index as usize];
        Join {
            machine: id,
            role: setup.role,
            kv_capacity_tokens: setup.config.capacity_tokens(),
            speed_weight: setup.weight,
            link: setup.link,
            costs: setup.costs.clone(),
        }
    }

    /// An action goes into the digest, and into the record if one is kept.
    fn log(&mut self, node: Node, action: &impl std::fmt::Debug) {
        let now = self.now;
        let _ = write!(self.digest, "{now} {node:?} {action:?}");
        if self.record {
            self.out.lines.push((now, node, format!("{action:?}")));
        }
        self.note(|| format!("    {node:?} wants {action:?}"));
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some((tail, lines)) = &self.tail {
            let mut tail = tail.borrow_mut();
            if tail.len() >= *lines {
                tail.pop_front();
            }
            tail.push_back(format!("{:>9} {}", self.now, text()));
        }
    }

    fn note_event(&mut self, event: &Event) {
        if self.tail.is_none() {
            return;
        }
        let message = match *event {
            Event::Deliver(from, to, session) => {
                let first = self.wires.get(&(from, to, session)).and_then(VecDeque::front);
                first.map_or(String::new(), |message| format!(" {message:?}"))
            }
            _ => String::new(),
        };
        self.note(|| format!("{event:?}{message}"));
    }
}
