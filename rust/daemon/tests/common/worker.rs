//! A worker without a model: a real session with the daemon, a real Machine, and tokens that follow from the seed. It
//! takes whole requests only (role mixed), so nothing is transferred.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use splitcore_core::config::MachineConfig;
use splitcore_core::event::{Join, MachineAction, MachineEvent, Registration, Role};
use splitcore_core::id::{Epoch, LegKey};
use splitcore_core::kv::{Arrangement, Dtype, KvLayout, Planes, Shard, TokenOrder, Values};
use splitcore_core::leg::Command;
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;
use splitcore_daemon::host::life;
use splitcore_wire::auth::Key;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::link::{LinkEvent, LinkOptions, WorkerLink};
use splitcore_wire::message::{Descriptor, Tokens, Welcome};
use splitcore_wire::session::{Identity, Settings, WorkerEvent};

/// Which token comes when: of the descriptor and the number of the output token.
pub(crate) type Model = fn(&Descriptor, u32) -> u32;

/// A running worker; dropped, it says goodbye and ends.
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    /// While it is up no pass ends.
    pub(crate) hold: Arc<AtomicBool>,
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn layout() -> KvLayout {
    KvLayout {
        layers: 2,
        values: Values::Heads { heads: 2, head_dim: 8 },
        dtype: Dtype::F32,
        block_tokens: 16,
        order: TokenOrder::Nhd,
        planes: Planes::Apart,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    }
}

impl Worker {
    pub(crate) fn start(address: &str, name: &str, model_name: &str, model: Model) -> Self {
        let identity = Identity {
            name: name.to_owned(),
            index: None,
            incarnation: life().0,
            epoch: Epoch(0),
            model: model_name.to_owned(),
            layout: layout(),
            blocks: 1000,
            context: None,
            peer: String::new(),
            transfer: String::new(),
            key: Key::default(),
        };
        let options = LinkOptions {
            address: address.parse().unwrap(),
            tls: None,
            identity,
            settings: Settings::default(),
            backoff: Backoff::new(5_000_000, 50_000_000, 1),
        };
        let (stop, hold, leave): (Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let (stops, holds, leaves) = (Arc::clone(&stop), Arc::clone(&hold), Arc::clone(&leave));
        let thread = std::thread::spawn(move || {
            let link = WorkerLink::start(options).unwrap();
            let mut life = Life {
                link: &link,
                machine: None,
                model,
                origin: Instant::now(),
                contexts: BTreeMap::new(),
                pass: None,
                in_session: false,
            };
            let mut leaving = false;
            while !stops.load(Ordering::Relaxed) {
                life.turn(holds.load(Ordering::Relaxed));
                if leaves.load(Ordering::Relaxed) && !leaving {
                    leaving = life.link.leave();
                }
                // The daemon has let it go.
                if leaving && !life.in_session {
                    return;
                }
            }
        });
        Self { stop, hold, leave, thread: Some(thread) }
    }

    /// Says that it is to be stopped.
    pub(crate) fn leave(&self) {
        self.leave.store(true, Ordering::Relaxed);
    }

    /// Whether its daemon has let it go.
    pub(crate) fn has_left(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "the worker panicked");
    }
}

struct Context {
    descriptor: Descriptor,
    has: u32,
    cap: u32,
}

struct Life<'a> {
    link: &'a WorkerLink,
    machine: Option<Machine>,
    model: Model,
    origin: Instant,
    contexts: BTreeMap<LegKey, Context>,
    pass: Option<u64>,
    in_session: bool,
}

impl Life<'_> {
    fn turn(&mut self, holds: bool) {
        let mut wait = Duration::from_millis(1);
        while let Some(event) = self.link.recv(std::mem::take(&mut wait)) {
            self.hear(event);
        }
        if !holds {
            self.finish_pass();
        }
        let now = self.now();
        while self.machine.as_ref().is_some_and(|of| of.next_deadline().is_some_and(|due| due <= now)) {
            self.tell(MachineEvent::Tick);
        }
    }

    fn now(&self) -> Time {
        Time::from_ns(self.origin.elapsed().as_nanos() as u64)
    }

    fn hear(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Lost { .. } => {
                self.in_session = false;
                if self.machine.is_some() {
                    self.tell(MachineEvent::ClusterLost);
                }
            }
            LinkEvent::Session(WorkerEvent::Welcome(welcome)) => self.register(&welcome),
            LinkEvent::Session(WorkerEvent::Registered { epoch }) => {
                self.in_session = true;
                self.tell(MachineEvent::Registered { epoch });
            }
            LinkEvent::Session(WorkerEvent::Command { epoch, assigned }) => {
                let command = assigned.command;
                if let (
                    Command::Compute { key, work, .. } | Command::Keep { key, work, .. },
                    Some(descriptor),
                ) = (command, assigned.descriptor)
                {
                    let has = work.terms.resumed_tokens;
                    let context = Context { descriptor, has, cap: has + work.max_new_tokens };
                    self.contexts.insert(key, context);
                }
                self.tell(MachineEvent::Command { epoch, seq: assigned.seq, command });
            }
        }
    }

    fn register(&mut self, welcome: &Welcome) {
        let config =
            MachineConfig { blocks: 1000, report_interval_ns: 20_000_000, ..MachineConfig::default() };
        let machine = self.machine.get_or_insert_with(|| Machine::new(welcome.machine, config).unwrap());
        let (epoch, claims) = (machine.epoch(), machine.claims());
        let described = claims.iter().map(|claim| (claim.key, self.contexts[&claim.key].descriptor.clone()));
        let join = Join {
            machine: welcome.machine,
            role: Role::Mixed,
            kv_capacity_tokens: machine.config().capacity_tokens(),
            speed_weight: 1,
            link: None,
            costs: None,
        };
        let described = described.collect();
        let registration = Registration { join, epoch, report: machine.report(), claims };
        self.link.register(registration, described);
    }

    fn tell(&mut self, event: MachineEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (now, mut actions) = (self.now(), Vec::new());
            let machine = self.machine.as_mut().expect("registered");
            let result = machine.handle(now, &event, &mut actions);
            assert!(result.is_ok(), "{event:?}: {result:?}");
            for action in actions {
                match action {
                    MachineAction::Notify { notice } => drop(self.link.notice(notice)),
                    MachineAction::Run { pass } => self.pass = Some(pass),
                    MachineAction::Resend { key, delivered } => {
                        let has = self.contexts[&key].has;
                        self.give(key, delivered, has);
                    }
                    MachineAction::Peer { .. } | MachineAction::Put(_) | MachineAction::StopPut { .. } => {
                        panic!("nothing is transferred: {action:?}")
                    }
                }
            }
        }
    }

    fn finish_pass(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        let plan = self.machine.as_ref().expect("registered").oldest_plan().clone();
        let sampled = plan.prefills.iter().filter(|item| item.samples).map(|item| item.key);
        let mut ended = Vec::new();
        for key in sampled.chain(plan.decodes.iter().copied()).collect::<Vec<_>>() {
            let context = self.contexts.get_mut(&key).expect("a context");
            context.has += 1;
            let (has, cap) = (context.has, context.cap);
            let last = (self.model)(&context.descriptor, has - 1);
            if has >= cap || context.descriptor.stop_ids.contains(&last) {
                ended.push(key);
            }
            if self.in_session {
                self.give(key, has - 1, has);
            }
        }
        self.tell(MachineEvent::IterationDone { pass, ended });
    }

    fn give(&self, key: LegKey, from: u32, to: u32) {
        let descriptor = &self.contexts[&key].descriptor;
        let ids: Vec<u32> = (from..to).map(|index| (self.model)(descriptor, index)).collect();
        if !ids.is_empty() {
            self.link.tokens(Tokens { key, from, ids });
        }
    }
}
