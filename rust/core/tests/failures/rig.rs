//! Four machines, a Cluster, and the strings between them, pulled by hand: prompt machines 0 and 1, token machines
//! 2 and 3. Every event is followed by a recount; the client's tokens must come in order and without a gap.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, MachineConfig, SECOND_NS};
use splitcore_core::error::EventError;
use splitcore_core::event::{
    Arrival, ClusterAction, ClusterEvent, Join, MachineAction, MachineEvent, Outcome, Put, Registration, Role,
};
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Command, LegState, Notice, Peer, Work};
use splitcore_core::machine::Machine;
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;

/// A message string between two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// From the Cluster to a machine.
    Down(u32),
    /// From a machine to the Cluster and the gateway.
    Up(u32),
    /// From a machine to another.
    Peer(u32, u32),
}

#[derive(Debug, Clone)]
enum Message {
    Command(Epoch, AssignmentSeq, Command),
    Registered(Epoch),
    Notice(Notice),
    /// Output tokens of a request after the first number, up to the second.
    Tokens(u64, u32, u32),
    Peer(Peer),
}

/// Bytes on their way.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    pub(crate) put: Put,
    pub(crate) from: MachineId,
    layers: u16,
    /// It neither moves nor stops.
    pub(crate) stalled: bool,
    stopping: bool,
}

const LAYERS: u16 = 2;
/// Blocks of one token on each machine.
pub(crate) const BLOCKS: u32 = 40;
/// Well before the Cluster takes a handoff back that does not go on.
pub(crate) const TRANSFER_LIMIT_NS: u64 = 10 * SECOND_NS;

#[derive(Debug, Clone)]
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) now_ns: u64,
    machines: Vec<Option<Machine>>,
    incarnations: Vec<u32>,
    away: BTreeSet<u32>,
    links: BTreeMap<Link, VecDeque<Message>>,
    /// Links that stand still.
    pub(crate) held: BTreeSet<Link>,
    /// Arrivals may be turned away.
    pub(crate) tolerant: bool,
    /// Messages between machines go before those of the Cluster, and the last machine's first.
    pub(crate) backwards: bool,
    /// Machines that stand still.
    pub(crate) paused: BTreeSet<u32>,
    pub(crate) transfers: Vec<Transfer>,
    arrivals: BTreeMap<u64, Arrival>,
    /// Requests that had to be given in again after a restart.
    pub(crate) given_again: u32,
    /// Output tokens that a machine has of a leg, all attempts together.
    outputs: BTreeMap<(u32, LegKey), u32>,
    works: BTreeMap<(u32, LegKey), Work>,
    /// Output tokens that the client has.
    pub(crate) client: BTreeMap<u64, u32>,
    pub(crate) ended: BTreeMap<u64, Outcome>,
    /// What the Cluster that lives now has ended.
    ended_here: BTreeMap<u64, Outcome>,
    pub(crate) placed: Vec<Placement>,
    /// What machines said to one another and to the transport.
    pub(crate) said: Vec<(u32, MachineAction)>,
    /// What the Cluster told machines.
    pub(crate) told: Vec<(u32, Command)>,
    drained: BTreeSet<MachineId>,
}

impl Rig {
    pub(crate) fn new(config: ClusterConfig) -> Self {
        let mut rig = Self {
            cluster: Cluster::new(config).unwrap(),
            now_ns: 0,
            machines: vec![None; 4],
            incarnations: vec![0; 4],
            away: BTreeSet::new(),
            links: BTreeMap::new(),
            held: BTreeSet::new(),
            backwards: false,
            tolerant: false,
            paused: BTreeSet::new(),
            transfers: Vec::new(),
            arrivals: BTreeMap::new(),
            given_again: 0,
            outputs: BTreeMap::new(),
            works: BTreeMap::new(),
            client: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_here: BTreeMap::new(),
            placed: Vec::new(),
            said: Vec::new(),
            told: Vec::new(),
            drained: BTreeSet::new(),
        };
        (0..4).for_each(|at| rig.boot(at));
        rig.settle();
        rig
    }

    // The Cluster.

    pub(crate) fn tell_cluster(&mut self, event: &ClusterEvent) -> Result<(), EventError> {
        let mut actions = Vec::new();
        let result = self.cluster.handle(Time::from_ns(self.now_ns), event, &mut actions);
        self.cluster.check().unwrap_or_else(|fault| panic!("{event:?}: {fault}"));
        for action in actions {
            match action {
                ClusterAction::Command { to, seq, command } => {
                    self.told.push((to.index, command));
                    let message = Message::Command(self.cluster.epoch(), seq, command);
                    self.push(Link::Down(to.index), to, message);
                }
                ClusterAction::Registered { to, epoch } => {
                    self.push(Link::Down(to.index), to, Message::Registered(epoch));
                }
                ClusterAction::Ended { request, outcome } => {
                    // A Cluster that has restarted cannot know what was over, nor need the gateway be told again.
                    let twice = self.ended_here.insert(request.0, outcome);
                    assert!(twice.is_none(), "{request:?} ended twice");
                    self.ended.entry(request.0).or_insert(outcome);
                }
                ClusterAction::Rejected { request, reason } => {
                    assert!(self.tolerant, "{request:?} rejected: {reason:?}");
                    self.arrivals.remove(&request.0);
                }
                ClusterAction::Placed(placement) => self.placed.push(placement),
                ClusterAction::Drained { machine } => assert!(self.drained.insert(machine)),
                ClusterAction::Parked { .. }
                | ClusterAction::Moved { .. }
                | ClusterAction::Faulted { .. }
                | ClusterAction::SetAside { .. } => {}
            }
        }
        result.map(|_| ())
    }

    pub(crate) fn arrive(&mut self, request: u64, prompt_tokens: u32, max_new_tokens: u32) {
        let arrival = Arrival::new(request, prompt_tokens, max_new_tokens);
        self.arrivals.insert(request, arrival);
        self.client.insert(request, 0);
        self.tell_cluster(&ClusterEvent::Arrive(arrival)).unwrap();
    }

    pub(crate) fn cancel(&mut self, request: u64) {
        self.tell_cluster(&ClusterEvent::Cancel { request: RequestId(request) }).unwrap();
    }

    pub(crate) fn tick_cluster(&mut self) {
        self.tell_cluster(&ClusterEvent::Tick).unwrap();
    }

    // Machines.

    pub(crate) fn id(&self, at: u32) -> MachineId {
        MachineId { index: at, incarnation: self.incarnations[at as usize] }
    }

    pub(crate) fn is_up(&self, at: u32) -> bool {
        self.machines[at as usize].is_some()
    }

    pub(crate) fn machine(&self, at: u32) -> &Machine {
        self.machines[at as usize].as_ref().unwrap()
    }

    /// The state of a leg and the blocks it has.
    pub(crate) fn leg(&self, at: u32, key: LegKey) -> Option<(LegState, u32)> {
        let (state, table) = self.machines[at as usize].as_ref()?.leg(key)?;
        Some((state, table.len()))
    }

    pub(crate) fn tell(&mut self, at: u32, event: &MachineEvent) {
        let Some(machine) = self.machines[at as usize].as_mut() else { return };
        let mut actions = Vec::new();
        let result = machine.handle(Time::from_ns(self.now_ns), event, &mut actions);
        machine.check().unwrap_or_else(|fault| panic!("machine {at}: {event:?}: {fault}"));
        assert!(result.is_ok(), "machine {at}: {event:?}: {result:?}");
        for action in actions {
            self.said.push((at, action));
            self.carry_out(at, action);
        }
    }

    fn carry_out(&mut self, at: u32, action: MachineAction) {
        match action {
            MachineAction::Notify { notice } => self.push(Link::Up(at), self.id(at), Message::Notice(notice)),
            MachineAction::Peer { to, message } => {
                if to == self.id(to.index) && self.is_up(to.index) {
                    self.push(Link::Peer(at, to.index), to, Message::Peer(message));
                }
            }
            MachineAction::Run { .. } => {
                for put in self.machine(at).plan().puts.clone() {
                    self.put(at, put);
                }
            }
            MachineAction::Put(put) => self.put(at, put),
            MachineAction::StopPut { key } => {
                let from = self.id(at);
                let on_its_way = self.transfers.iter_mut().find(|it| it.put.key == key && it.from == from);
                match on_its_way {
                    Some(transfer) => transfer.stopping = true,
                    // All of it is across already.
                    None => self.tell(at, &MachineEvent::Fenced { key }),
                }
            }
            MachineAction::Resend { key, delivered } => {
                let output = self.outputs.get(&(at, key)).copied().unwrap_or(0);
                self.give(at, key, delivered, output);
            }
        }
    }

    fn give(&mut self, at: u32, key: LegKey, after: u32, upto: u32) {
        if upto > after {
            self.push(Link::Up(at), self.id(at), Message::Tokens(key.request.0, after, upto));
        }
    }

    /// Lets an idle machine begin a pass, and whatever else is due.
    pub(crate) fn tick(&mut self, at: u32) {
        self.tell(at, &MachineEvent::Tick);
    }

    /// Ends the running pass; the engine ends what has all its tokens.
    pub(crate) fn pass(&mut self, at: u32) {
        let plan = self.machine(at).plan().clone();
        let sampled = plan.prefills.iter().filter(|item| item.samples).map(|item| item.key);
        let mut ended = Vec::new();
        for key in sampled.chain(plan.decodes.iter().copied()).collect::<Vec<_>>() {
            let output = self.outputs.get_mut(&(at, key)).unwrap();
            *output += 1;
            let output = *output;
            self.give(at, key, output - 1, output);
            if output >= self.arrivals[&key.request.0].max_new_tokens {
                ended.push(key);
            }
        }
        self.tell(at, &MachineEvent::IterationDone { pass: plan.pass, ended });
    }

    // Transfers.

    fn put(&mut self, at: u32, put: Put) {
        let from = self.id(at);
        if put.to != self.id(put.to.index) || !self.is_up(put.to.index) {
            return;
        }
        self.transfers.push(Transfer { put, from, layers: 0, stalled: false, stopping: false });
    }

    fn transfer_of(&self, key: LegKey) -> usize {
        self.transfers.iter().position(|transfer| transfer.put.key == key).unwrap()
    }

    /// One more layer lands; with the last comes the token that the source has sampled.
    pub(crate) fn layer(&mut self, key: LegKey) {
        let index = self.transfer_of(key);
        self.transfers[index].layers += 1;
        let Transfer { put, from, layers, .. } = self.transfers[index].clone();
        let to = put.to.index;
        if layers == LAYERS {
            self.transfers.remove(index);
            let work = self.works[&(to, key)];
            if work.start >= work.prompt_tokens {
                let first = work.terms.resumed_tokens + 1;
                self.outputs.insert((to, key), first);
                self.give(to, key, first - 1, first);
            }
        }
        self.tell(to, &MachineEvent::LayersLanded { key, layers, of: LAYERS });
        if layers == LAYERS {
            self.tell(from.index, &MachineEvent::LocalDone { key });
        }
    }

    pub(crate) fn fail(&mut self, key: LegKey) {
        let transfer = self.transfers.remove(self.transfer_of(key));
        self.tell(transfer.from.index, &MachineEvent::TransferFailed { key });
    }

    pub(crate) fn fail_one(&mut self, index: usize, key: LegKey) {
        let transfer = self.transfers.remove(index);
        self.tell(transfer.from.index, &MachineEvent::TransferFailed { key });
    }

    pub(crate) fn fence(&mut self, key: LegKey) {
        let transfer = self.transfers.remove(self.transfer_of(key));
        self.tell(transfer.from.index, &MachineEvent::Fenced { key });
    }

    // Messages.

    fn push(&mut self, link: Link, of: MachineId, message: Message) {
        let at = of.index;
        let cut = !matches!(link, Link::Peer(..)) && self.away.contains(&at);
        if of == self.id(at) && !cut {
            self.links.entry(link).or_default().push_back(message);
        }
    }

    /// Delivers the first message of a link. Returns whether there was one.
    pub(crate) fn deliver(&mut self, link: Link) -> bool {
        let Some(message) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else { return false };
        match (link, message) {
            (Link::Down(at), Message::Command(epoch, seq, command)) => {
                self.learn(at, &command);
                self.tell(at, &MachineEvent::Command { epoch, seq, command });
            }
            (Link::Down(at), Message::Registered(epoch)) => {
                self.tell(at, &MachineEvent::Registered { epoch });
            }
            (Link::Up(at), Message::Notice(notice)) => {
                let from = self.id(at);
                self.tell_cluster(&ClusterEvent::Notice { from, notice }).unwrap();
            }
            (Link::Up(_), Message::Tokens(request, after, upto)) => self.gateway(request, after, upto),
            (Link::Peer(from, to), Message::Peer(message)) => {
                self.tell(to, &MachineEvent::Peer { from: self.id(from), message });
            }
            (link, message) => panic!("{message:?} on {link:?}"),
        }
        true
    }

    fn learn(&mut self, at: u32, command: &Command) {
        let (Command::Reserve { key, work, .. } | Command::Compute { key, work, .. }) = *command else {
            return;
        };
        self.works.insert((at, key), work);
        self.outputs.insert((at, key), work.terms.resumed_tokens);
    }

    /// Gives the client what it lacks, in order, and tells the Cluster how much that was.
    fn gateway(&mut self, request: u64, after: u32, upto: u32) {
        let client = self.client.get_mut(&request).unwrap();
        if after > *client {
            // Of a leg that has not been confirmed yet, or is being given up: those before were lost.
            return;
        }
        // A destination does not know that the first token was the last.
        let upto = upto.min(self.arrivals[&request].max_new_tokens);
        let tokens = upto.saturating_sub(*client);
        *client += tokens;
        let live = self.cluster.attempt(RequestId(request));
        if let Some(attempt) = live.filter(|_| tokens > 0) {
            let key = LegKey { request: RequestId(request), attempt };
            self.tell_cluster(&ClusterEvent::Fact(Notice::Progress { key, tokens })).unwrap();
        }
    }

    /// Delivers all messages but those on links that are held.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut ready = self.links.iter().filter(|(_, queue)| !queue.is_empty()).map(|(link, _)| *link);
            let goes = |link: &Link| !self.stands_still(*link);
            let next = if self.backwards { ready.rfind(goes) } else { ready.find(goes) };
            let Some(link) = next else { return };
            let _ = self.deliver(link);
        }
    }

    fn stands_still(&self, link: Link) -> bool {
        let ends = match link {
            Link::Down(at) | Link::Up(at) => [at, at],
            Link::Peer(from, to) => [from, to],
        };
        self.held.contains(&link) || ends.iter().any(|at| self.paused.contains(at))
    }

    // Failures.

    /// A new incarnation comes up and registers.
    pub(crate) fn boot(&mut self, at: u32) {
        self.incarnations[at as usize] += 1;
        let config = MachineConfig {
            blocks: BLOCKS,
            block_tokens: 1,
            transfer_limit_ns: Some(TRANSFER_LIMIT_NS),
            ..MachineConfig::default()
        };
        self.machines[at as usize] = Some(Machine::new(self.id(at), config).unwrap());
        self.register(at).unwrap();
    }

    pub(crate) fn register(&mut self, at: u32) -> Result<(), EventError> {
        self.away.remove(&at);
        let role = if at < 2 { Role::Prompt } else { Role::Token };
        let machine = self.machine(at);
        let join = Join {
            machine: self.id(at),
            role,
            kv_capacity_tokens: u64::from(BLOCKS),
            speed_weight: 1,
            link: None,
            costs: None,
        };
        let (epoch, report, claims) = (machine.epoch(), machine.report(), machine.claims());
        let registration = Registration { join, epoch, report, claims };
        let result = self.tell_cluster(&ClusterEvent::Register(registration));
        if result.is_err() {
            self.away.insert(at);
        }
        result
    }

    pub(crate) fn is_away(&self, at: u32) -> bool {
        self.away.contains(&at)
    }

    /// Registers again; too late, the machine starts anew.
    pub(crate) fn rejoin(&mut self, at: u32) {
        if self.register(at).is_err() {
            let machine = self.id(at);
            self.kill(at);
            self.tell_peers_lost(machine);
            self.boot(at);
        }
    }

    /// What is on its way between a machine and the Cluster is lost, and both notice.
    pub(crate) fn break_session(&mut self, at: u32) {
        self.links.remove(&Link::Up(at));
        self.links.remove(&Link::Down(at));
        self.away.insert(at);
        self.tell(at, &MachineEvent::ClusterLost);
        self.tell_cluster(&ClusterEvent::Disconnect { machine: self.id(at) }).unwrap();
    }

    /// A machine is gone with all it had; the others hear of it.
    pub(crate) fn kill(&mut self, at: u32) {
        let id = self.id(at);
        self.machines[at as usize] = None;
        self.links.retain(|link, _| match *link {
            Link::Down(of) | Link::Up(of) => of != at,
            Link::Peer(from, to) => from != at && to != at,
        });
        self.transfers.retain(|transfer| transfer.from != id && transfer.put.to != id);
        self.held.retain(|link| !matches!(*link, Link::Peer(from, to) if from == at || to == at));
        self.paused.remove(&at);
        self.outputs.retain(|&(of, _), _| of != at);
    }

    pub(crate) fn tell_peers_lost(&mut self, lost: MachineId) {
        for at in (0..4).filter(|&at| at != lost.index) {
            self.tell(at, &MachineEvent::PeerLost { machine: lost });
        }
    }

    /// A machine dies; the Cluster hears of it before the other machines, or after.
    pub(crate) fn lose(&mut self, at: u32, cluster_first: bool) {
        let machine = self.id(at);
        self.kill(at);
        if !cluster_first {
            self.tell_peers_lost(machine);
            self.settle();
        }
        // One that has restarted may not know it.
        let _ = self.tell_cluster(&ClusterEvent::Lose { machine });
        if cluster_first {
            self.settle();
            self.tell_peers_lost(machine);
        }
    }

    /// What is on its way between two machines is lost, and a new session is open.
    pub(crate) fn reset_peers(&mut self, one: u32, other: u32) {
        for (at, with) in [(one, other), (other, one)] {
            self.links.remove(&Link::Peer(at, with));
        }
        for (at, with) in [(one, other), (other, one)] {
            let machine = self.id(with);
            self.tell(at, &MachineEvent::PeerReset { machine });
        }
    }

    /// The Cluster dies. The machines in `back` register with the next one.
    pub(crate) fn restart(&mut self, grace_ns: u64) {
        let epoch = Epoch(self.cluster.epoch().0 + 1);
        let config = ClusterConfig { epoch, grace_ns, ..*self.cluster.config() };
        self.cluster = Cluster::new(config).unwrap();
        self.ended_here.clear();
        self.drained.clear();
        self.links.retain(|link, _| matches!(link, Link::Peer(..)));
        for at in 0..4 {
            self.away.insert(at);
            self.tell(at, &MachineEvent::ClusterLost);
        }
        self.tick_cluster();
    }

    // To the end.

    pub(crate) fn now(&self) -> Time {
        Time::from_ns(self.now_ns)
    }

    /// Time passes up to a point, with all deadlines on the way; passes and transfers stand still.
    pub(crate) fn wait_ns(&mut self, ns: u64) {
        let end = self.now_ns + ns;
        while let Some(due) = self.next_deadline().filter(|due| due.as_ns() <= end) {
            self.now_ns = self.now_ns.max(due.as_ns());
            self.tick_due();
        }
        self.now_ns = end;
    }

    /// Time passes for one machine only.
    pub(crate) fn wait_machine_ns(&mut self, at: u32, ns: u64) {
        self.now_ns += ns;
        self.tick(at);
    }

    fn next_deadline(&self) -> Option<Time> {
        let machines = (0..4).filter(|at| !self.paused.contains(at));
        let machines = machines.filter_map(|at| self.machines[at as usize].as_ref()?.next_deadline());
        machines.chain(self.cluster.next_deadline()).min()
    }

    fn tick_due(&mut self) {
        for at in (0..4).filter(|at| !self.paused.contains(at)).collect::<Vec<_>>() {
            let due = self.machines[at as usize].as_ref().and_then(Machine::next_deadline);
            if due.is_some_and(|due| due <= self.now()) {
                self.tick(at);
            }
        }
        if self.cluster.next_deadline().is_some_and(|due| due <= self.now()) {
            self.tick_cluster();
        }
        self.settle();
    }

    /// One step of everything that moves by itself. Returns whether anything did.
    pub(crate) fn step(&mut self) -> bool {
        self.settle();
        for at in (0..4).filter(|at| !self.paused.contains(at)).collect::<Vec<_>>() {
            let Some(machine) = &self.machines[at as usize] else { continue };
            if !machine.is_running() && machine.next_deadline() == Some(machine.now()) {
                self.tick(at);
                return true;
            }
        }
        let moves = |transfer: &&Transfer| {
            let ends = [transfer.from.index, transfer.put.to.index];
            !transfer.stalled && !ends.iter().any(|at| self.paused.contains(at))
        };
        if let Some(transfer) = self.transfers.iter().find(moves).cloned() {
            let key = transfer.put.key;
            if transfer.stopping {
                self.fence(key);
            } else {
                self.layer(key);
            }
            return true;
        }
        let running = (0..4).filter(|at| !self.paused.contains(at));
        let mut running = running.filter(|&at| self.is_up(at) && self.machine(at).is_running());
        if let Some(at) = running.next() {
            self.pass(at);
            return true;
        }
        false
    }

    /// A few steps, or fewer where nothing moves any more.
    pub(crate) fn steps(&mut self, steps: u32) {
        (0..steps).all(|_| self.step());
    }

    /// Runs until every request has ended and every book is empty.
    pub(crate) fn run(&mut self) {
        let end_ns = self.now_ns + 1000 * SECOND_NS;
        for _ in 0..10_000 {
            if self.step() {
                continue;
            }
            if self.arrivals.keys().all(|id| self.ended.contains_key(id)) && self.is_empty() {
                return;
            }
            if self.give_in_again() {
                continue;
            }
            let due = self.next_deadline().unwrap_or_else(|| panic!("nothing is due: {}", self.stuck()));
            assert!(self.now_ns < end_ns, "never ends: {}", self.stuck());
            self.now_ns = self.now_ns.max(due.as_ns());
            self.tick_due();
        }
        panic!("goes round and round: {}", self.stuck());
    }

    /// What only a Cluster knew that has died (no machine had been told) the gateway must give in again.
    fn give_in_again(&mut self) -> bool {
        if self.cluster.epoch() == Epoch(1) || self.cluster.is_recovering() {
            return false;
        }
        let unknown =
            |id: &u64| !self.ended.contains_key(id) && self.cluster.attempt(RequestId(*id)).is_none();
        let Some(request) = self.arrivals.keys().copied().find(unknown) else { return false };
        self.given_again += 1;
        self.tell_cluster(&ClusterEvent::Arrive(self.arrivals[&request])).unwrap();
        true
    }

    /// Runs until something is so.
    pub(crate) fn run_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            assert!(self.step(), "nothing moves: {}", self.stuck());
        }
    }

    /// No transfer stands still any more.
    pub(crate) fn free_transfers(&mut self) {
        self.transfers.iter_mut().for_each(|transfer| transfer.stalled = false);
    }

    fn is_empty(&self) -> bool {
        let idle = |machine: &Machine| machine.is_idle() && machine.kept() == 0;
        let over = self.machines.iter().flatten().all(idle) && self.transfers.is_empty();
        over && self.cluster.live_requests() == 0 && !self.cluster.is_recovering()
    }

    fn stuck(&self) -> String {
        let up = self.machines.iter().flatten();
        let machines: Vec<_> = up.map(|machine| (machine.id(), machine.claims(), machine.report())).collect();
        let (ended, transfers) = (&self.ended, &self.transfers);
        format!("now {} {ended:?}\n{transfers:?}\n{machines:#?}\n{:?}", self.now_ns, self.cluster)
    }

    /// All books are back at zero, and every client has every token.
    pub(crate) fn check_end(&mut self) {
        for (request, outcome) in self.ended.clone() {
            let Some(arrival) = self.arrivals.get(&request) else { continue };
            let expected = arrival.max_new_tokens;
            if outcome == Outcome::Finished {
                assert_eq!(self.client[&request], expected, "request {request}");
            }
        }
        for machine in self.machines.iter().flatten() {
            let pool = machine.pool();
            assert_eq!((pool.free(), pool.quarantined()), (pool.total(), 0), "{:?}", machine.id());
            assert_eq!(machine.report().kv_tokens, 0);
            let state = format!("{machine:?}");
            for empty in ["early_grants: {}", " granted: 0,", " sending: 0,"] {
                assert!(state.contains(empty), "{:?}: not {empty}\n{state}", machine.id());
            }
        }
        assert_eq!((self.cluster.live_requests(), self.cluster.parked_requests()), (0, 0));
        let ended = |of: &[Outcome]| self.ended_here.values().filter(|&outcome| of.contains(outcome)).count();
        let failed = [Outcome::AttemptsMax, Outcome::NotResumable, Outcome::Expired];
        let told = [ended(&[Outcome::Finished]), ended(&[Outcome::Cancelled]), ended(&failed)];
        let counters = self.cluster.counters();
        assert_eq!([counters.finished, counters.cancelled, counters.failed], told.map(|count| count as u64));
        // Who is drained at once holds nothing, and nothing is awaited of it.
        for at in 0..4 {
            let machine = self.id(at);
            if self.is_up(at) && !self.drained.contains(&machine) {
                let _ = self.tell_cluster(&ClusterEvent::Drain { machine });
                assert!(self.drained.contains(&machine), "{machine:?} is not empty: {:?}", self.cluster);
            }
            let load = self.cluster.load(at).unwrap();
            assert_eq!((load.booked, load.legs), (0, 0), "{machine:?}");
        }
        let books = format!("{:?}", self.cluster);
        for empty in ["closing: {}", "unreserved: {}", "parked_by_class: {}", "away: {}"] {
            assert!(books.contains(empty), "not {empty}: {books}");
        }
    }

    pub(crate) fn is_drained(&self, at: u32) -> bool {
        self.drained.contains(&self.id(at))
    }

    pub(crate) fn finish(&mut self) {
        self.held.clear();
        self.paused.clear();
        self.run();
        // The last report says that all is free.
        self.wait_ns(2 * SECOND_NS);
        self.check_end();
    }
}
