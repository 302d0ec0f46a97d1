//! A worker in a thread: a link to the daemon, a Machine, a toy engine, and a transport that moves nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use splitcore_core::config::MachineConfig;
use splitcore_core::event::{Join, MachineAction, MachineEvent, Put, Registration, Role};
use splitcore_core::id::{Epoch, LegKey, MachineId};
use splitcore_core::leg::{Command, Inbound, Peer};
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;
use splitcore_wire::address::Address;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::link::{LinkEvent, LinkOptions, WorkerLink};
use splitcore_wire::message::{Assigned, Descriptor, Tokens, Welcome};
use splitcore_wire::session::{Identity, WorkerEvent};

use crate::client::{output_tokens, token};
use crate::kit;

const BLOCKS: u32 = 1000;
const LAYERS: u16 = 2;

/// What workers tell each other past the daemon, and the test tells them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    Peer { from: MachineId, message: Peer },
    Landed(LegKey),
    Lost(MachineId),
    Sever,
    Die,
    Stop,
}

/// Who is there.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    inboxes: Mutex<BTreeMap<MachineId, Sender<Word>>>,
    /// Those who followed others.
    later: Mutex<Vec<ToyWorker>>,
}

impl Hub {
    pub(crate) fn enter(&self, machine: MachineId) -> Receiver<Word> {
        let (sender, receiver) = channel();
        self.inboxes.lock().unwrap().insert(machine, sender);
        receiver
    }

    /// Returns whether there is such a machine.
    pub(crate) fn tell(&self, to: MachineId, word: Word) -> bool {
        let inboxes = self.inboxes.lock().unwrap();
        inboxes.get(&to).is_some_and(|inbox| inbox.send(word).is_ok())
    }

    /// Tells whoever lives at this place.
    pub(crate) fn tell_index(&self, index: u32, word: Word) {
        let inboxes = self.inboxes.lock().unwrap();
        let inbox = inboxes.iter().find(|(id, _)| id.index == index).map(|(_, inbox)| inbox);
        inbox.unwrap().send(word).unwrap();
    }

    fn leave(&self, machine: MachineId) {
        let mut inboxes = self.inboxes.lock().unwrap();
        inboxes.remove(&machine);
        for inbox in inboxes.values() {
            let _ = inbox.send(Word::Lost(machine));
        }
    }

    pub(crate) fn join_later(&self) {
        while let Some(worker) = { self.later.lock().unwrap().pop() } {
            worker.join();
        }
    }
}

/// What the engine knows of a leg.
#[derive(Debug, Clone)]
struct Context {
    descriptor: Descriptor,
    /// Output tokens that it has, and how many of these came with the prompt.
    has: u32,
    resumed: u32,
    /// Its KV comes with one more token.
    follows: bool,
    /// The daemon has yet to say from which token on it needs them.
    muted: bool,
}

#[derive(Debug)]
pub(crate) struct ToyWorker(JoinHandle<()>);

impl ToyWorker {
    pub(crate) fn start(hub: &Arc<Hub>, address: &Address, index: u32, incarnation: u32, role: Role) -> Self {
        let machine = MachineId { index, incarnation };
        let inbox = hub.enter(machine);
        let identity = Identity {
            name: format!("worker-{index}"),
            index: Some(index),
            incarnation,
            epoch: Epoch(0),
            blocks: BLOCKS,
            ..kit::identity()
        };
        let options = LinkOptions {
            address: address.clone(),
            tls: None,
            identity,
            settings: kit::settings(),
            backoff: Backoff::new(2_000_000, 50_000_000, u64::from(index)),
        };
        let (hub, address) = (Arc::clone(hub), address.clone());
        let run = move || {
            let link = WorkerLink::start(options).unwrap();
            let dies = Life::new(machine, role, &hub, &link).run(&inbox);
            drop(link);
            hub.leave(machine);
            if dies {
                let next = Self::start(&hub, &address, index, incarnation + 1, role);
                hub.later.lock().unwrap().push(next);
            }
        };
        Self(std::thread::Builder::new().name(format!("worker-{index}")).spawn(run).unwrap())
    }

    pub(crate) fn join(self) {
        if let Err(panic) = self.0.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

struct Life<'a> {
    machine: Machine,
    role: Role,
    hub: &'a Hub,
    link: &'a WorkerLink,
    origin: Instant,
    contexts: BTreeMap<LegKey, Context>,
    events: VecDeque<MachineEvent>,
    /// The pass that runs, and the transfers that follow its layers.
    pass: Option<u64>,
    puts: Vec<Put>,
    in_session: bool,
}

impl<'a> Life<'a> {
    fn new(id: MachineId, role: Role, hub: &'a Hub, link: &'a WorkerLink) -> Self {
        let config = MachineConfig {
            blocks: BLOCKS,
            report_interval_ns: 20_000_000,
            transfer_limit_ns: None,
            orphan_limit_ns: None,
            park_limit_ns: 3600 * 1_000_000_000,
            ..MachineConfig::default()
        };
        Self {
            machine: Machine::new(id, config).unwrap(),
            role,
            hub,
            link,
            origin: Instant::now(),
            contexts: BTreeMap::new(),
            events: VecDeque::new(),
            pass: None,
            puts: Vec::new(),
            in_session: false,
        }
    }

    /// Returns whether it was killed.
    fn run(mut self, inbox: &Receiver<Word>) -> bool {
        let (mut stops, deadline) = (false, Instant::now() + crate::LIMIT);
        loop {
            assert!(
                Instant::now() < deadline,
                "time is up at {:?}: {:?}",
                self.machine.id(),
                self.machine.claims()
            );
            let mut wait = Duration::from_micros(500);
            while let Some(event) = self.link.recv(std::mem::take(&mut wait)) {
                self.hear(event);
            }
            while let Ok(word) = inbox.try_recv() {
                match word {
                    Word::Peer { from, message } => self.tell(MachineEvent::Peer { from, message }),
                    Word::Landed(key) => self.landed(key),
                    Word::Lost(machine) => self.tell(MachineEvent::PeerLost { machine }),
                    Word::Sever => self.link.sever(),
                    Word::Die => return true,
                    Word::Stop => stops = true,
                }
            }
            self.finish_pass();
            while self.machine.next_deadline().is_some_and(|due| due <= self.now()) {
                self.tell(MachineEvent::Tick);
            }
            if stops && self.machine.is_idle() && self.machine.kept() == 0 {
                self.machine.check().unwrap();
                assert_eq!(self.machine.pool().free(), BLOCKS);
                return false;
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_ns(self.origin.elapsed().as_nanos() as u64)
    }

    fn hear(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Lost { .. } => {
                self.in_session = false;
                self.contexts.values_mut().for_each(|context| context.muted = true);
                self.tell(MachineEvent::ClusterLost);
            }
            LinkEvent::Session(WorkerEvent::Welcome(welcome)) => self.register(&welcome),
            LinkEvent::Session(WorkerEvent::Registered { epoch }) => {
                self.in_session = true;
                self.tell(MachineEvent::Registered { epoch });
            }
            LinkEvent::Session(WorkerEvent::Command { epoch, assigned }) => {
                let Assigned { seq, command, descriptor, .. } = *assigned;
                self.learn(&command, descriptor);
                self.tell(MachineEvent::Command { epoch, seq, command });
            }
        }
    }

    fn register(&mut self, welcome: &Welcome) {
        let (machine, epoch, claims) = (welcome.machine, self.machine.epoch(), self.machine.claims());
        assert_eq!(machine, self.machine.id());
        let described = claims.iter().filter(|_| welcome.epoch != epoch);
        let described = described.map(|claim| (claim.key, self.contexts[&claim.key].descriptor.clone()));
        let join = Join {
            role: self.role,
            kv_capacity_tokens: self.machine.config().capacity_tokens(),
            ..kit::join(machine)
        };
        let described = described.collect();
        let registration = Registration { join, epoch, report: self.machine.report(), claims };
        self.link.register(registration, described);
    }

    fn learn(&mut self, command: &Command, descriptor: Option<Descriptor>) {
        let (Command::Reserve { key, work, .. }
        | Command::Compute { key, work, .. }
        | Command::Keep { key, work, .. }) = *command
        else {
            return;
        };
        let descriptor = descriptor.unwrap();
        let resumed = work.terms.resumed_tokens;
        let seed = descriptor.sampling.seed;
        let tail = &descriptor.prompt[descriptor.prompt.len() - resumed as usize..];
        assert!(
            (0..).zip(tail).all(|(index, &id)| id == token(seed, index)),
            "{key:?} goes on from other tokens"
        );
        let follows = work.start >= work.prompt_tokens;
        let context = Context { descriptor, has: resumed, resumed, follows, muted: false };
        match self.contexts.get_mut(&key) {
            // The leg of this key is here still, and goes on until it is aborted.
            Some(known) if matches!(command, Command::Keep { .. }) => known.descriptor = context.descriptor,
            _ => drop(self.contexts.insert(key, context)),
        }
    }

    fn tell(&mut self, event: MachineEvent) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let (now, mut actions) = (self.now(), Vec::new());
            let result = self.machine.handle(now, &event, &mut actions);
            assert!(result.is_ok(), "{:?}: {event:?}: {result:?}", self.machine.id());
            for action in actions {
                self.act(action);
            }
        }
    }

    fn act(&mut self, action: MachineAction) {
        match action {
            MachineAction::Notify { notice } => drop(self.link.notice(notice)),
            MachineAction::Peer { to, message } => {
                let from = self.machine.id();
                self.hub.tell(to, Word::Peer { from, message });
            }
            MachineAction::Run { pass } => {
                self.pass = Some(pass);
                self.puts.clone_from(&self.machine.plan().puts);
            }
            MachineAction::Put(put) => self.put(put),
            MachineAction::StopPut { key } => {
                self.puts.retain(|put| put.key != key);
                self.events.push_back(MachineEvent::Fenced { key });
            }
            MachineAction::Resend { key, delivered } => {
                let context = self.contexts.get_mut(&key).unwrap();
                context.muted = false;
                let has = context.has;
                self.give(key, delivered, has);
            }
        }
    }

    fn put(&mut self, put: Put) {
        if self.hub.tell(put.to, Word::Landed(put.key)) {
            self.events.push_back(MachineEvent::LocalDone { key: put.key });
        }
    }

    fn landed(&mut self, key: LegKey) {
        let leg = self.machine.leg(key);
        if leg.is_some_and(|(state, _)| matches!(state.inbound, Inbound::Reserved | Inbound::Receiving)) {
            let context = self.contexts.get_mut(&key).unwrap();
            if std::mem::take(&mut context.follows) {
                self.sample(key);
            }
        }
        self.tell(MachineEvent::LayersLanded { key, layers: LAYERS, of: LAYERS });
    }

    fn finish_pass(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        let plan = self.machine.oldest_plan().clone();
        let sampled = plan.prefills.iter().filter(|item| item.samples).map(|item| item.key);
        let mut ended = Vec::new();
        for key in sampled.chain(plan.decodes.iter().copied()).collect::<Vec<_>>() {
            if self.sample(key) {
                ended.push(key);
            }
        }
        for put in std::mem::take(&mut self.puts) {
            self.put(put);
        }
        self.tell(MachineEvent::IterationDone { pass, ended });
    }

    /// One more token of a leg. Returns whether it was the last.
    fn sample(&mut self, key: LegKey) -> bool {
        let context = self.contexts.get_mut(&key).unwrap();
        context.has += 1;
        let first = if context.muted { context.resumed } else { context.has - 1 };
        context.muted &= !self.in_session;
        let (has, of) = (context.has, output_tokens(context.descriptor.sampling.seed));
        if self.in_session {
            self.give(key, first, has);
        }
        has >= of
    }

    fn give(&self, key: LegKey, from: u32, to: u32) {
        let seed = self.contexts[&key].descriptor.sampling.seed;
        let ids: Vec<u32> = (from..to.min(output_tokens(seed))).map(|index| token(seed, index)).collect();
        if !ids.is_empty() {
            self.link.tokens(Tokens { key, from, ids });
        }
    }
}
