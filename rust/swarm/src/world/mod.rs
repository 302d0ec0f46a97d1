//! A deterministic world around the core: one Cluster, n Machines, sessions, an engine and a transport that take
//! time and fail. Everything random comes from one seed. After each event every invariant is recounted.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "it grows into a documented one next")]
#![allow(clippy::unwrap_used, reason = "a helper of tests: what is missing fails them")]

mod actors;
mod setup;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use splitcore_core::cluster::Cluster;
use splitcore_core::cost::{CostKnot, CostPoints, CostTable};
use splitcore_core::event::{ClusterAction, ClusterEvent, Join, MachineAction, MachineEvent, Outcome};
use splitcore_core::id::{AssignmentSeq, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Command, LegState, Notice, Peer};
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;

pub use setup::{Client, Fault, MachineSetup, Setup};

/// A nanosecond a prompt token, and twenty a decode.
fn costs() -> CostTable {
    let knots = |points: [(u32, u64); 2]| points.map(|(at, ns)| CostKnot { at, ns }).to_vec();
    CostTable::new(CostPoints {
        prefill: knots([(0, 0), (100, 100)]),
        decode: knots([(0, 0), (10, 200)]),
        context_ns_per_1024_tokens: 1000,
        pass_tokens_max: 100,
    })
    .unwrap()
}

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Rng(pub(crate) u64);

impl Rng {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Below `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// Within `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Who talks: the Cluster, or a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Cluster,
    Machine(MachineId),
}

/// What a session carries. The last item of a broken one is the loss.
#[derive(Debug, Clone)]
enum Message {
    Command(AssignmentSeq, Command),
    Notice(Notice),
    Peer(Peer),
    Lost,
}

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    Arrive(usize),
    Cancel(usize),
    Fault(usize),
    Rejoin { index: u32 },
    Deliver(Node, Node),
    PassDone { machine: MachineId, pass: u64 },
    Layers { transfer: u64, layers: u16 },
    LocalDone { transfer: u64 },
    TransferFails { transfer: u64 },
    Fenced { transfer: u64 },
    PeerLost { at: MachineId, lost: MachineId },
}

/// Bytes on their way.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each set by another event")]
#[derive(Debug, Clone)]
struct Transfer {
    key: LegKey,
    from: MachineId,
    to: MachineId,
    /// It may still write at the destination.
    writes: bool,
    /// It may still read at the source.
    reads: bool,
    /// The source has heard that it is read.
    told: bool,
    stopped: bool,
}

/// What the engine and the gateway know of a submitted request.
#[derive(Debug, Clone)]
struct Submitted {
    client: Client,
    accepted: bool,
    delivered: u32,
    ended: Option<Outcome>,
}

/// One line of the record: when, who, and what it wanted done.
pub type Line = (u64, Node, String);

/// What a run leaves behind.
#[derive(Debug, Default)]
pub struct Outcomes {
    pub finished: u32,
    pub cancelled: u32,
    pub failed: u32,
    pub rejected: u32,
    pub triples: BTreeSet<LegState>,
    pub lines: Vec<Line>,
    /// Position in `lines` at which the engine first said that a request had ended.
    pub ended_at: BTreeMap<usize, usize>,
    pub cluster: splitcore_core::cluster::ClusterCounters,
    pub evicted: u64,
    pub events: u64,
}

pub struct World {
    setup: Setup,
    rng: Rng,
    now: u64,
    cluster: Cluster,
    machines: Vec<Option<Machine>>,
    incarnations: Vec<u32>,
    sessions: BTreeMap<(Node, Node), VecDeque<Message>>,
    queue: BTreeMap<(u64, u64, u64), Event>,
    queued: u64,
    submitted: Vec<Submitted>,
    live: BTreeMap<RequestId, usize>,
    owners: BTreeMap<LegKey, usize>,
    /// Index of the next token of a leg on a machine.
    next_token: BTreeMap<(MachineId, LegKey), u32>,
    /// Legs that begin after a token their source sampled.
    follows_token: BTreeSet<(MachineId, LegKey)>,
    transfers: BTreeMap<u64, Transfer>,
    transfers_made: u64,
    draining: BTreeSet<MachineId>,
    since_end: u64,
    /// Print every event: `WORLD_TRACE=1`, with one seed.
    trace: bool,
    pub record: bool,
    pub out: Outcomes,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let cluster = Cluster::new(setup.cluster).unwrap();
        let mut world = Self {
            rng: Rng(setup.seed ^ 0x5eed),
            now: 0,
            cluster,
            machines: Vec::new(),
            incarnations: Vec::new(),
            sessions: BTreeMap::new(),
            queue: BTreeMap::new(),
            queued: 0,
            submitted: Vec::new(),
            live: BTreeMap::new(),
            owners: BTreeMap::new(),
            next_token: BTreeMap::new(),
            follows_token: BTreeSet::new(),
            transfers: BTreeMap::new(),
            transfers_made: 0,
            draining: BTreeSet::new(),
            since_end: 0,
            trace: std::env::var_os("WORLD_TRACE").is_some(),
            record: false,
            out: Outcomes::default(),
            setup,
        };
        world.set_slos();
        for index in 0..world.setup.machines.len() as u32 {
            world.incarnations.push(0);
            world.machines.push(None);
            world.join(index);
        }
        for index in 0..world.setup.clients.len() {
            let client = world.setup.clients[index].clone();
            world.push(client.at_ns, Event::Arrive(index));
            world.submitted.push(Submitted { client, accepted: false, delivered: 0, ended: None });
        }
        for index in 0..world.setup.faults.len() {
            world.push(world.setup.faults[index].at_ns, Event::Fault(index));
        }
        world
    }

    /// Runs to the end and checks that nothing is left.
    pub fn run(mut self) -> Outcomes {
        while self.step() {
            self.check();
            self.out.events += 1;
            self.since_end += 1;
            assert!(self.since_end < 200_000, "nothing ends any more\n{}", self.stuck());
        }
        self.check_rest();
        self.out.cluster = self.cluster.counters();
        self.out.evicted +=
            self.machines.iter().flatten().map(|machine| machine.counters().evicted).sum::<u64>();
        self.out
    }

    fn push(&mut self, at: u64, event: Event) {
        // Simultaneous events come in an order of the seed's choosing.
        let tie = self.rng.draw() & 0xffff;
        self.queued += 1;
        self.queue.insert((at.max(self.now), tie, self.queued), event);
    }

    fn step(&mut self) -> bool {
        let due = self.deadline();
        let next = self.queue.first_key_value().map(|(&key, _)| key);
        match (due, next) {
            (None, None) => false,
            (Some((at, node)), None) => self.tick(at, node),
            (Some((at, node)), Some((time, tie, _))) if at < time || (at == time && tie & 1 == 0) => {
                self.tick(at, node)
            }
            (_, Some(key)) => {
                self.now = key.0;
                let event = self.queue.remove(&key).unwrap();
                self.happen(&event);
                true
            }
        }
    }

    fn deadline(&self) -> Option<(u64, Node)> {
        let machines = self.machines.iter().flatten();
        let machines =
            machines.filter_map(|machine| Some((machine.next_deadline()?, Node::Machine(machine.id()))));
        let cluster = self.cluster.next_deadline().map(|due| (due, Node::Cluster));
        cluster.into_iter().chain(machines).min().map(|(due, node)| (due.as_ns().max(self.now), node))
    }

    fn tick(&mut self, at: u64, node: Node) -> bool {
        self.now = at;
        match node {
            Node::Cluster => self.tell_cluster(&ClusterEvent::Tick),
            Node::Machine(id) => self.tell_machine(id, &MachineEvent::Tick),
        }
        let again = match node {
            Node::Cluster => self.cluster.next_deadline(),
            Node::Machine(id) => self.machine(id).and_then(Machine::next_deadline),
        };
        assert!(
            again.is_none_or(|due| due.as_ns() > at),
            "a tick of {node:?} at {at} leaves its deadline due"
        );
        true
    }

    fn happen(&mut self, event: &Event) {
        if self.trace {
            let message = match *event {
                Event::Deliver(from, to) => {
                    format!("{:?}", self.sessions.get(&(from, to)).and_then(VecDeque::front))
                }
                _ => String::new(),
            };
            eprintln!("{} {event:?} {message}", self.now);
        }
        match *event {
            Event::Arrive(index) => self.arrive(index),
            Event::Cancel(index) => self.cancel(index),
            Event::Fault(index) => self.fault(index),
            Event::Rejoin { index } => self.join(index),
            Event::Deliver(from, to) => self.deliver(from, to),
            Event::PassDone { machine, pass } => self.pass_done(machine, pass),
            Event::Layers { transfer, layers } => self.layers(transfer, layers),
            Event::LocalDone { transfer } => self.local_done(transfer),
            Event::TransferFails { transfer } => self.transfer_fails(transfer),
            Event::Fenced { transfer } => self.transfer_fenced(transfer),
            Event::PeerLost { at, lost } => self.tell_machine(at, &MachineEvent::PeerLost { machine: lost }),
        }
    }

    fn machine(&self, id: MachineId) -> Option<&Machine> {
        self.machines[id.index as usize].as_ref().filter(|machine| machine.id() == id)
    }

    fn is_live(&self, node: Node) -> bool {
        match node {
            Node::Cluster => true,
            Node::Machine(id) => self.machine(id).is_some(),
        }
    }

    fn join(&mut self, index: u32) {
        let place = index as usize;
        if self.machines[place].is_some() {
            return;
        }
        self.incarnations[place] += 1;
        let id = MachineId { index, incarnation: self.incarnations[place] };
        let setup = self.setup.machines[place];
        let machine = Machine::new(id, setup.config).unwrap();
        let kv_capacity_tokens = machine.config().capacity_tokens();
        self.machines[place] = Some(machine);
        let join = Join {
            machine: id,
            role: setup.role,
            kv_capacity_tokens,
            speed_weight: setup.weight,
            link: setup.link,
            costs: Some(costs()),
        };
        self.tell_cluster(&ClusterEvent::Join(join));
    }

    /// Limits that some arrivals break.
    fn set_slos(&mut self) {
        for (class, slo) in self.setup.slos.into_iter().enumerate() {
            self.tell_cluster(&ClusterEvent::SetSlo { class: class as u32, slo });
        }
    }

    fn tell_cluster(&mut self, event: &ClusterEvent) {
        let mut actions = Vec::new();
        let before = format!("{:?}", self.cluster.counters());
        let applied = self.cluster.handle(Time::from_ns(self.now), event, &mut actions);
        assert!(applied.is_ok(), "cluster at {}: {event:?}: {applied:?} (before: {before})", self.now);
        if self.record {
            for action in &actions {
                self.out.lines.push((self.now, Node::Cluster, format!("{action:?}")));
            }
        }
        for action in actions {
            self.cluster_acts(action);
        }
    }

    fn tell_machine(&mut self, id: MachineId, event: &MachineEvent) {
        let Some(machine) = self.machines[id.index as usize].as_mut().filter(|machine| machine.id() == id)
        else {
            return;
        };
        let mut actions = Vec::new();
        let applied = machine.handle(Time::from_ns(self.now), event, &mut actions);
        assert!(applied.is_ok(), "machine {id:?} at {}: {event:?}: {applied:?}", self.now);
        if self.record {
            for action in &actions {
                self.out.lines.push((self.now, Node::Machine(id), format!("{action:?}")));
            }
        }
        for action in actions {
            self.machine_acts(id, action);
        }
    }

    fn cluster_acts(&mut self, action: ClusterAction) {
        match action {
            ClusterAction::Placed(placement) => {
                let key = LegKey { request: placement.request, attempt: placement.attempt };
                for machine in self.machines.iter().flatten() {
                    assert!(
                        machine.leg(key).is_none(),
                        "{key:?} is placed while machine {:?} holds it",
                        machine.id()
                    );
                }
                self.owners.insert(key, self.live[&placement.request]);
            }
            ClusterAction::Rejected { request, .. } => {
                let index = self.live.remove(&request).unwrap();
                assert!(!self.submitted[index].accepted, "accepted request {request:?} was rejected");
                self.out.rejected += 1;
                self.since_end = 0;
            }
            ClusterAction::Parked { .. } | ClusterAction::Moved { .. } | ClusterAction::Registered { .. } => {
            }
            ClusterAction::Command { to, seq, command } => {
                self.send(Node::Cluster, Node::Machine(to), Message::Command(seq, command));
            }
            ClusterAction::Ended { request, outcome } => self.ended(request, outcome),
            ClusterAction::Drained { machine } => {
                assert!(self.draining.remove(&machine), "{machine:?} drained twice or unasked");
                if let Some(machine) = self.machine(machine) {
                    assert!(machine.is_idle(), "{machine:?} drained and not idle");
                }
            }
        }
    }

    fn ended(&mut self, request: RequestId, outcome: Outcome) {
        self.since_end = 0;
        let index = self.live.remove(&request).unwrap_or_else(|| panic!("{request:?} ended twice"));
        let submitted = &mut self.submitted[index];
        assert!(submitted.ended.is_none() && submitted.accepted, "{request:?} ended twice");
        submitted.ended = Some(outcome);
        match outcome {
            Outcome::Finished => {
                self.out.finished += 1;
                let (got, want) = (submitted.delivered, submitted.client.output_tokens);
                assert_eq!(got, want, "{request:?} finished with the wrong number of tokens");
            }
            Outcome::Cancelled => self.out.cancelled += 1,
            Outcome::AttemptsMax | Outcome::NotResumable | Outcome::Expired => self.out.failed += 1,
        }
        if let Some(again) = self.submitted[index].client.again_after_ns {
            // The same id comes again.
            let mut client = self.submitted[index].client.clone();
            client.again_after_ns = None;
            client.cancel_after_ns = None;
            client.at_ns = self.now + again;
            self.push(client.at_ns, Event::Arrive(self.submitted.len()));
            self.submitted.push(Submitted { client, accepted: false, delivered: 0, ended: None });
        }
    }

    fn machine_acts(&mut self, id: MachineId, action: MachineAction) {
        match action {
            MachineAction::Notify { notice } => {
                self.send(Node::Machine(id), Node::Cluster, Message::Notice(notice));
            }
            MachineAction::Peer { to, message } => {
                self.send(Node::Machine(id), Node::Machine(to), Message::Peer(message));
            }
            MachineAction::Run { pass } => self.run_pass(id, pass),
            MachineAction::Put(put) => self.put(id, put, None),
            MachineAction::StopPut { key } => self.stop_put(id, key),
            MachineAction::Resend { .. } => {}
        }
    }

    fn send(&mut self, from: Node, to: Node, message: Message) {
        if !self.is_live(to) {
            // The driver of a machine finds that nobody answers under that incarnation.
            if let (Node::Machine(at), Node::Machine(lost)) = (from, to) {
                let when = self.now + self.delay();
                self.push(when, Event::PeerLost { at, lost });
            }
            return;
        }
        self.sessions.entry((from, to)).or_default().push_back(message);
        let when = self.now + self.delay();
        self.push(when, Event::Deliver(from, to));
    }

    fn delay(&mut self) -> u64 {
        let (low, high) = self.setup.delay_ns;
        self.rng.within(low, high)
    }

    fn deliver(&mut self, from: Node, to: Node) {
        let Some(message) = self.sessions.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        match (message, from, to) {
            (Message::Command(seq, command), _, Node::Machine(id)) => {
                self.learn(id, &command);
                self.tell_machine(
                    id,
                    &MachineEvent::Command { epoch: splitcore_core::id::Epoch(1), seq, command },
                );
            }
            (Message::Notice(notice), Node::Machine(from), _) => {
                self.tell_cluster(&ClusterEvent::Notice { from, notice });
            }
            (Message::Peer(message), Node::Machine(from), Node::Machine(id)) => {
                self.tell_machine(id, &MachineEvent::Peer { from, message });
            }
            (Message::Lost, Node::Machine(lost), Node::Machine(id)) => {
                self.tell_machine(id, &MachineEvent::PeerLost { machine: lost });
            }
            (Message::Lost, Node::Machine(machine), Node::Cluster) => {
                self.draining.remove(&machine);
                self.tell_cluster(&ClusterEvent::Lose { machine });
            }
            (message, from, to) => panic!("{message:?} from {from:?} to {to:?}"),
        }
    }

    fn check(&mut self) {
        self.cluster.check().unwrap_or_else(|fault| panic!("cluster at {}: {fault}", self.now));
        for machine in self.machines.iter().flatten() {
            machine
                .check()
                .unwrap_or_else(|fault| panic!("machine {:?} at {}: {fault}", machine.id(), self.now));
            for key in machine.leg_keys() {
                self.out.triples.insert(machine.leg(key).unwrap().0);
            }
        }
        self.transfers.retain(|_, at| at.writes || at.reads || !at.told || at.stopped);
        for transfer in self.transfers.values() {
            let holds = |id| self.machine(id).is_none_or(|machine| machine.leg(transfer.key).is_some());
            assert!(!transfer.writes || holds(transfer.to), "{transfer:?} writes freed blocks");
            assert!(!transfer.reads || holds(transfer.from), "{transfer:?} reads freed blocks");
        }
    }

    fn check_rest(&mut self) {
        for submitted in self.submitted.iter().filter(|submitted| submitted.accepted) {
            assert!(submitted.ended.is_some(), "never ended: {submitted:?}\n{}", self.stuck());
        }
        assert_eq!((self.cluster.live_requests(), self.cluster.parked_requests()), (0, 0));
        assert!(self.draining.is_empty(), "never drained: {:?}", self.draining);
        let books = format!("{:?}", self.cluster);
        for empty in ["closing: {}", "unreserved: {}", "parked_by_class: {}", "leases: {}"] {
            assert!(books.contains(empty), "not empty at the end: {empty}\n{books}");
        }
        for machine in self.machines.iter().flatten() {
            let id = machine.id();
            assert!(machine.is_idle(), "{id:?} is not idle\n{}", self.stuck());
            assert_eq!(machine.pool().free(), machine.pool().total(), "{id:?} keeps blocks");
            assert_eq!(machine.report().kv_tokens, 0, "{id:?} keeps tokens");
            let state = format!("{machine:?}");
            for empty in ["early_grants: {}", " granted: 0,", " sending: 0,", "sitting_out: 0,"] {
                assert!(state.contains(empty), "{id:?} not empty at the end: {empty}\n{state}");
            }
            let load = self.cluster.load(id.index).unwrap();
            let left = (load.booked, load.legs, load.kv_tokens, load.prompt_pending_tokens);
            assert_eq!(left, (0, 0, 0, 0), "{id:?} keeps load");
        }
    }

    fn stuck(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("now {} cluster {:?}\n", self.now, self.cluster);
        for machine in self.machines.iter().flatten() {
            let _ = writeln!(text, "\n{machine:?}");
        }
        let _ = writeln!(text, "\ntransfers {:?}\nqueue {:?}", self.transfers, self.queue.len());
        text
    }
}
