//! One Cluster and its machines, moved by hand: messages arrive in the order they were sent, passes and transfers end
//! when the test says so. After every event the invariants are recounted, and every block that a transfer may still
//! touch must be where it was when the transfer began.

use std::collections::{BTreeMap, VecDeque};

use crate::kit::id;
use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, MachineConfig};
use splitcore_core::event::{
    Arrival, ClusterAction, ClusterEvent, Join, MachineAction, MachineEvent, Outcome, Put, Role,
};
use splitcore_core::id::{LegKey, MachineId, RequestId};
use splitcore_core::kv::BlockId;
use splitcore_core::leg::{Command, Notice};
use splitcore_core::machine::Machine;
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;

/// A message on its way.
#[derive(Debug, Clone)]
enum Mail {
    ToCluster(MachineId, Notice),
    ToMachine(MachineId, MachineEvent),
}

/// Bytes on their way: the blocks they are read from and written to, with the generations these had at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) key: LegKey,
    pub(crate) from: MachineId,
    pub(crate) to: MachineId,
    pub(crate) tokens: u32,
    pub(crate) stopped: bool,
    reads: Vec<(BlockId, u32)>,
    writes: Vec<(BlockId, u32)>,
}

/// Who has a block, and how often it was handed out.
type Blocks = BTreeMap<BlockId, (LegKey, u32)>;

#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) now_ns: u64,
    machines: Vec<Option<Machine>>,
    mail: VecDeque<Mail>,
    pub(crate) transfers: Vec<Transfer>,
    /// Output tokens of each request; hidden from the core.
    outputs: BTreeMap<u64, (u32, u32)>,
    delivered: BTreeMap<u64, u32>,
    /// Index of the next token of a leg on a machine.
    next: BTreeMap<(u32, LegKey), u32>,
    blocks: Vec<Blocks>,
    handed_out: u32,
    pub(crate) ended: BTreeMap<u64, Outcome>,
    pub(crate) placed: Vec<Placement>,
    /// Pool moves: when, who, where to.
    pub(crate) moved: Vec<(u64, u32, Role)>,
    /// Transfers land, or are fenced, as soon as they start.
    pub(crate) instant: bool,
    /// Recount after every event.
    pub(crate) checks: bool,
}

impl Site {
    pub(crate) fn new(config: ClusterConfig, machines: &[(Role, MachineConfig)]) -> Self {
        let mut site = Self {
            cluster: Cluster::new(config).unwrap(),
            now_ns: 0,
            machines: Vec::new(),
            mail: VecDeque::new(),
            transfers: Vec::new(),
            outputs: BTreeMap::new(),
            delivered: BTreeMap::new(),
            next: BTreeMap::new(),
            blocks: vec![Blocks::new(); machines.len()],
            handed_out: 0,
            ended: BTreeMap::new(),
            placed: Vec::new(),
            moved: Vec::new(),
            instant: true,
            checks: true,
        };
        for (index, &(role, config)) in machines.iter().enumerate() {
            let machine = id(index as u32);
            site.machines.push(Some(Machine::new(machine, config).unwrap()));
            let kv_capacity_tokens = config.capacity_tokens();
            let join = Join { machine, role, kv_capacity_tokens, speed_weight: 1, link: None, costs: None };
            site.tell_cluster(&ClusterEvent::Join(join));
        }
        site
    }

    pub(crate) fn machine(&self, index: u32) -> &Machine {
        self.machines[index as usize].as_ref().unwrap()
    }

    /// Sends a request; nothing is delivered yet.
    pub(crate) fn submit(&mut self, arrival: Arrival, output_tokens: u32) {
        self.outputs.insert(arrival.request.0, (arrival.prompt_tokens, output_tokens));
        self.tell_cluster(&ClusterEvent::Arrive(arrival));
    }

    /// Sends a plain request and lets everything happen that takes no pass.
    pub(crate) fn arrive(&mut self, request: u64, prompt_tokens: u32, output_tokens: u32) {
        self.submit(Arrival::new(request, prompt_tokens, output_tokens), output_tokens);
        self.settle();
    }

    pub(crate) fn cancel(&mut self, request: u64) {
        self.tell_cluster(&ClusterEvent::Cancel { request: RequestId(request) });
    }

    pub(crate) fn tell_cluster(&mut self, event: &ClusterEvent) {
        let mut actions = Vec::new();
        let applied = self.cluster.handle(Time::from_ns(self.now_ns), event, &mut actions);
        assert!(applied.is_ok(), "{event:?}: {applied:?}");
        for action in actions {
            match action {
                ClusterAction::Command { to, seq, command } => {
                    self.mail.push_back(Mail::ToMachine(
                        to,
                        MachineEvent::Command { epoch: splitcore_core::id::Epoch(1), seq, command },
                    ));
                }
                ClusterAction::Placed(placement) => self.placed.push(placement),
                ClusterAction::Ended { request, outcome } => {
                    let before = self.ended.insert(request.0, outcome);
                    assert!(before.is_none(), "{request:?} ended twice");
                }
                ClusterAction::Moved { machine, pool } => self.moved.push((self.now_ns, machine.index, pool)),
                ClusterAction::Rejected { request, reason } => panic!("{request:?}: {reason:?}"),
                _ => {}
            }
        }
        self.check();
    }

    pub(crate) fn tell_machine(&mut self, to: MachineId, event: &MachineEvent) {
        self.learn(to.index, event);
        let Some(machine) = &mut self.machines[to.index as usize] else { return };
        let mut actions = Vec::new();
        let applied = machine.handle(Time::from_ns(self.now_ns), event, &mut actions);
        assert!(applied.is_ok(), "{to:?}: {event:?}: {applied:?}");
        self.see_blocks(to.index);
        for action in actions {
            match action {
                MachineAction::Notify { notice } => self.mail.push_back(Mail::ToCluster(to, notice)),
                MachineAction::Peer { to: peer, message } => {
                    self.mail.push_back(Mail::ToMachine(peer, MachineEvent::Peer { from: to, message }));
                }
                MachineAction::Run { .. } => {
                    for put in self.machine(to.index).plan().puts.clone() {
                        self.put(to, put);
                    }
                }
                MachineAction::Put(put) => self.put(to, put),
                MachineAction::StopPut { key } => self.stop(to, key),
                MachineAction::Resend { .. } => panic!("no session breaks here"),
            }
        }
        self.check();
    }

    /// What the engine reads from a command: where the leg's output begins.
    fn learn(&mut self, machine: u32, event: &MachineEvent) {
        let MachineEvent::Command { command, .. } = event else { return };
        let (Command::Reserve { key, work, .. } | Command::Compute { key, work, .. }) = *command else {
            return;
        };
        let resumed = work.prompt_tokens - self.outputs[&key.request.0].0;
        self.next.insert((machine, key), resumed + 1 + u32::from(work.start >= work.prompt_tokens));
    }

    /// Delivers the next message. Returns whether there was one.
    pub(crate) fn deliver(&mut self) -> bool {
        match self.mail.pop_front() {
            Some(Mail::ToCluster(from, notice)) => self.tell_cluster(&ClusterEvent::Notice { from, notice }),
            Some(Mail::ToMachine(to, event)) => self.tell_machine(to, &event),
            None => return false,
        }
        true
    }

    /// Delivers everything and starts every pass that is due.
    pub(crate) fn settle(&mut self) {
        loop {
            while self.deliver() {}
            if self.instant && !self.transfers.is_empty() {
                if self.transfers[0].stopped {
                    self.fence(0);
                } else {
                    self.land(0);
                }
                continue;
            }
            if !self.start_pass() {
                return;
            }
        }
    }

    /// Ticks one idle machine that has something to run. Returns whether there was one.
    pub(crate) fn start_pass(&mut self) -> bool {
        let due = |machine: &&Machine| {
            !machine.is_running() && machine.next_deadline().is_some_and(|due| due.as_ns() <= self.now_ns)
        };
        let Some(to) = self.machines.iter().flatten().find(due).map(Machine::id) else { return false };
        self.tell_machine(to, &MachineEvent::Tick);
        true
    }

    /// Ends the running pass of a machine; a request ends with its last token.
    pub(crate) fn end_pass(&mut self, index: u32) {
        let plan = self.machine(index).plan().clone();
        let sampled = plan.prefills.iter().filter(|item| item.samples).map(|item| item.key);
        let mut ended = Vec::new();
        for key in sampled.chain(plan.decodes.iter().copied()) {
            let next = self.next.get_mut(&(index, key)).unwrap();
            let token = *next;
            *next += 1;
            if self.cluster.attempt(key.request) == Some(key.attempt) {
                let delivered = self.delivered.entry(key.request.0).or_insert(0);
                assert!(token <= *delivered + 1, "a token of {key:?} was lost");
                if token > *delivered {
                    *delivered = token;
                    self.mail.push_back(Mail::ToCluster(id(index), Notice::Progress { key, tokens: 1 }));
                }
            }
            if token >= self.outputs[&key.request.0].1 {
                ended.push(key);
            }
        }
        self.tell_machine(self.machine(index).id(), &MachineEvent::IterationDone { pass: plan.pass, ended });
    }

    /// Ends the running pass of every machine and delivers what follows. Returns whether any was running.
    pub(crate) fn round(&mut self) -> bool {
        let running = |machine: &&Machine| machine.is_running();
        let running: Vec<u32> =
            self.machines.iter().flatten().filter(running).map(|machine| machine.id().index).collect();
        for &index in &running {
            self.end_pass(index);
        }
        self.settle();
        !running.is_empty()
    }

    /// Rounds, a second each, until nothing is left to do.
    pub(crate) fn finish(&mut self) {
        self.settle();
        for _ in 0..100_000 {
            let goes_on = self.round();
            if !goes_on && self.cluster.live_requests() == 0 {
                // The reports that are still owed.
                self.advance(1_000_000_000);
                return;
            }
            self.advance(1_000_000_000);
        }
        panic!("nothing ends any more: {self:?}");
    }

    /// Lets time pass: whoever has a deadline gets a Tick.
    pub(crate) fn advance(&mut self, by_ns: u64) {
        self.now_ns += by_ns;
        let is_due = |due: Option<Time>| due.is_some_and(|due| due.as_ns() <= self.now_ns);
        let due: Vec<MachineId> = self
            .machines
            .iter()
            .flatten()
            .filter(|machine| is_due(machine.next_deadline()))
            .map(Machine::id)
            .collect();
        let cluster_is_due = is_due(self.cluster.next_deadline());
        for machine in due {
            self.tell_machine(machine, &MachineEvent::Tick);
        }
        self.settle();
        if cluster_is_due {
            self.tell_cluster(&ClusterEvent::Tick);
            self.settle();
        }
    }

    fn put(&mut self, from: MachineId, put: Put) {
        if self.machines[put.to.index as usize].is_none() {
            return;
        }
        let of = |at: MachineId| {
            let table = self.machine(at.index).leg(put.key).unwrap().1;
            let seen = |block: &BlockId| self.blocks[at.index as usize].get(block).map(|&(_, seen)| seen);
            table.blocks().iter().map(|block| (*block, seen(block).unwrap_or(0))).collect()
        };
        let (reads, writes) = (of(from), of(put.to));
        let Put { key, to, tokens, .. } = put;
        self.transfers.push(Transfer { key, from, to, tokens, stopped: false, reads, writes });
    }

    fn stop(&mut self, from: MachineId, key: LegKey) {
        let running = self.transfers.iter_mut().find(|at| at.key == key && at.from == from);
        match running {
            Some(transfer) => transfer.stopped = true,
            // It is across; the transport says so again.
            None => self.mail.push_back(Mail::ToMachine(from, MachineEvent::Fenced { key })),
        }
    }

    /// A transfer's last byte is written.
    pub(crate) fn land(&mut self, at: usize) {
        let Transfer { key, from, to, .. } = self.transfers.remove(at);
        self.tell_machine(to, &MachineEvent::LayersLanded { key, layers: 1, of: 1 });
        self.tell_machine(from, &MachineEvent::LocalDone { key });
    }

    /// A stopped transfer writes no more.
    pub(crate) fn fence(&mut self, at: usize) {
        let Transfer { key, from, .. } = self.transfers.remove(at);
        self.tell_machine(from, &MachineEvent::Fenced { key });
    }

    /// A transfer breaks.
    pub(crate) fn fail(&mut self, at: usize) {
        let Transfer { key, from, .. } = self.transfers.remove(at);
        self.tell_machine(from, &MachineEvent::TransferFailed { key });
    }

    /// A machine stops without a word: what was on its way to it is gone, and it writes no more.
    pub(crate) fn kill(&mut self, index: u32) {
        self.machines[index as usize] = None;
        self.blocks[index as usize].clear();
        self.transfers.retain(|at| at.from.index != index && at.to.index != index);
    }

    /// The others hear that a machine is gone.
    pub(crate) fn lost(&mut self, index: u32) {
        for other in 0..self.machines.len() as u32 {
            if self.machines[other as usize].is_some() {
                self.tell_machine(id(other), &MachineEvent::PeerLost { machine: id(index) });
            }
        }
        self.tell_cluster(&ClusterEvent::Lose { machine: id(index) });
        self.settle();
    }

    /// Counts handed-out blocks anew after an event.
    fn see_blocks(&mut self, index: u32) {
        if !self.checks {
            return;
        }
        let machine = self.machines[index as usize].as_ref().unwrap();
        let mut now = Blocks::new();
        for key in machine.leg_keys() {
            for &block in machine.leg(key).unwrap().1.blocks() {
                let before = self.blocks[index as usize].get(&block).filter(|(owner, _)| *owner == key);
                let generation = if let Some(&(_, generation)) = before {
                    generation
                } else {
                    self.handed_out += 1;
                    self.handed_out
                };
                assert!(now.insert(block, (key, generation)).is_none(), "{block:?} has two owners");
            }
        }
        self.blocks[index as usize] = now;
    }

    fn check(&self) {
        if !self.checks {
            return;
        }
        self.cluster.check().unwrap();
        for machine in self.machines.iter().flatten() {
            machine.check().unwrap();
        }
        for transfer in &self.transfers {
            for (at, blocks) in [(transfer.from, &transfer.reads), (transfer.to, &transfer.writes)] {
                for (block, generation) in blocks {
                    let now = self.blocks[at.index as usize].get(block);
                    let same = now == Some(&(transfer.key, *generation));
                    assert!(same, "{block:?} of {at:?} is {now:?} under {transfer:?}");
                }
            }
        }
    }

    /// Nothing is booked, held or waited for any more.
    pub(crate) fn assert_empty(&self) {
        assert_eq!((self.cluster.live_requests(), self.cluster.parked_requests()), (0, 0));
        assert!(self.mail.is_empty() && self.transfers.is_empty(), "{:?} {:?}", self.mail, self.transfers);
        let books = format!("{:?}", self.cluster);
        for empty in ["closing: {}", "unreserved: {}", "parked: {}", "parked_by_class: {}", "leases: {}"] {
            assert!(books.contains(empty), "not empty at the end: {empty}\n{books}");
        }
        for machine in self.machines.iter().flatten() {
            assert!(machine.is_idle(), "{machine:?}");
            assert_eq!((machine.pool().free(), machine.report().kv_tokens), (machine.pool().total(), 0));
            let state = format!("{machine:?}");
            for empty in [
                "early_grants: {}",
                " granted: 0,",
                " sending: 0,",
                "grants_waiting: []",
                "sends_waiting: []",
            ] {
                assert!(state.contains(empty), "not empty at the end: {empty}\n{state}");
            }
            let load = self.cluster.load(machine.id().index).unwrap();
            assert_eq!((load.booked, load.legs, load.kv_tokens, load.prompt_pending_tokens), (0, 0, 0, 0));
        }
    }

    /// Letters that the state of the core takes in print: a measure of its memory.
    pub(crate) fn state_letters(&self) -> usize {
        let machines = self.machines.iter().flatten().map(|machine| format!("{machine:?}").len());
        format!("{:?}", self.cluster).len() + machines.sum::<usize>()
    }

    /// Forgets what the test itself has noted of requests that are over.
    pub(crate) fn forget(&mut self) {
        self.ended.clear();
        self.placed.clear();
        self.outputs.clear();
        self.delivered.clear();
        self.next.clear();
    }
}

/// Blocks of one token.
pub(crate) fn tokens(blocks: u32) -> MachineConfig {
    MachineConfig { blocks, block_tokens: 1, ..MachineConfig::default() }
}
