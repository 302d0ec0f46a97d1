//! The thread that has the Machine: it hears what happens, tells the Machine, and does what that wants done. It waits for
//! nobody but a daemon that does not read what it is told, and for that no longer than `frame_limit`.

mod cluster;
mod engine;
mod handoff;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{MachineAction, MachineEvent};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;
use splitcore_record::{CreateError, Ended, Options as Recording, Recorder};
use splitcore_wire::link::{LinkEvent, WorkerLink};
use splitcore_wire::message::{PeerAddress, Welcome};
use splitcore_wire::peers::Peers;
use splitcore_wire::session::{Identity, PeerIdentity, WorkerEvent};

use crate::contexts::Contexts;
use crate::inbox::{Board, End, Inbox, Input};
use crate::log::Losses;
use crate::mover::Mover;
use crate::options::WorkerOptions;
use engine::Running;
use handoff::{Early, Incoming};

/// Inputs that are heard before a pass that is due starts: what arrives together runs together.
const BURST: u32 = 256;

/// What the thread begins with.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) options: WorkerOptions,
    pub(crate) identity: Identity,
    pub(crate) inputs: Receiver<Input>,
    pub(crate) inbox: Inbox,
    pub(crate) board: Arc<Board>,
}

/// Says that the worker has ended, however its thread does.
struct Guard(Arc<Board>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.end(End::Failed("the driver has failed; its message is above".to_owned()));
    }
}

impl Driver {
    pub(crate) fn run(self, link: &WorkerLink, peers: Peers, mover: Mover) {
        let _guard = Guard(self.board.clone());
        let end = match self.wait_welcome() {
            Ok(welcome) => match Life::new(&self, link, peers, mover, &welcome) {
                Ok(life) => life.run(&welcome),
                Err(end) => end,
            },
            Err(end) => end,
        };
        match &end {
            End::Stopped => link.close("the worker ends"),
            End::GivenUp(reason) | End::Refused(reason) | End::Failed(reason) => link.close(reason),
        }
        self.board.end(end);
    }

    /// Who this machine is, its daemon says when it lets it in for the first time.
    fn wait_welcome(&self) -> Result<Welcome, End> {
        let mut losses = Losses::default();
        loop {
            match self.inputs.recv() {
                Ok(Input::Link(event)) => {
                    self.inbox.heard();
                    match event {
                        LinkEvent::Session(WorkerEvent::Welcome(welcome)) => return Ok(welcome),
                        LinkEvent::Lost { reason, .. } => {
                            if let Some(end) = cluster::end_of(&reason, false) {
                                return Err(end);
                            }
                            losses.tell(&self.options.log, None, &reason);
                        }
                        LinkEvent::Session(_) => {}
                    }
                }
                Ok(Input::End(end)) => return Err(end),
                Ok(Input::Peers(_) | Input::Mover(_) | Input::Done { .. }) => {}
                // Nobody has given it anything yet.
                Ok(Input::Leave) | Err(_) => return Err(End::Stopped),
            }
        }
    }
}

fn record(options: &WorkerOptions, machine: &Machine) -> Result<Option<Recorder<Machine>>, CreateError> {
    let Some(folder) = &options.event_log else { return Ok(None) };
    let log = options.log.clone();
    let on_end = Box::new(move |why: &Ended| log.line(&format!("the event log ends: {why}")));
    let recording = Recording { on_end, keep: options.event_log_keep, ..Recording::default() };
    Recorder::create(folder, &options.name, machine, recording).map(Some)
}

/// A machine from its first session on.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each set by another event")]
struct Life<'a> {
    options: &'a WorkerOptions,
    inputs: &'a Receiver<Input>,
    inbox: &'a Inbox,
    board: &'a Board,
    link: &'a WorkerLink,
    peers: Peers,
    mover: Mover,
    machine: Machine,
    recorder: Option<Recorder<Machine>>,
    origin: Instant,
    contexts: Contexts,
    /// What follows from what is being done, in order.
    events: VecDeque<MachineEvent>,
    /// Where machines are reached.
    addresses: BTreeMap<MachineId, PeerAddress>,
    /// Legs whose KV is to come.
    incoming: BTreeMap<LegKey, Incoming>,
    /// Grants whose legs are not here yet.
    early: BTreeMap<LegKey, Early>,
    /// Legs that the mover knows as their source.
    outgoing: BTreeSet<LegKey>,
    /// When the prefill of a leg that hands over was done.
    prefilled: BTreeMap<LegKey, Time>,
    running: Option<Running>,
    losses: Losses,
    in_session: bool,
    /// The Machine knows that there is no session.
    orphaned: bool,
    /// Registered, and the daemon has not answered yet.
    registering: bool,
    /// To be stopped: it ends with the session.
    leaving: bool,
    /// Registrations in a row that the daemon did not take.
    refused: u32,
    end: Option<End>,
}

impl<'a> Life<'a> {
    fn new(
        driver: &'a Driver,
        link: &'a WorkerLink,
        peers: Peers,
        mover: Mover,
        welcome: &Welcome,
    ) -> Result<Self, End> {
        let Driver { options, identity, inputs, inbox, board } = driver;
        let machine = match Machine::new(welcome.machine, options.machine) {
            Ok(machine) => machine,
            Err(error) => unreachable!("checked when the worker started: {error}"),
        };
        let recorder = record(options, &machine).map_err(|error| End::Failed(error.to_string()))?;
        let address = PeerAddress {
            machine: welcome.machine,
            peer: identity.peer.clone(),
            transfer: identity.transfer.clone(),
            key: identity.key,
        };
        let to = inbox.clone();
        peers.begin(PeerIdentity { address, layout: identity.layout }, move |event| {
            to.put(Input::Peers(event));
        });
        Ok(Self {
            options,
            inputs,
            inbox,
            board,
            link,
            peers,
            mover,
            machine,
            recorder,
            origin: Instant::now(),
            contexts: Contexts::default(),
            events: VecDeque::new(),
            addresses: BTreeMap::new(),
            incoming: BTreeMap::new(),
            early: BTreeMap::new(),
            outgoing: BTreeSet::new(),
            prefilled: BTreeMap::new(),
            running: None,
            losses: Losses::default(),
            in_session: false,
            orphaned: false,
            registering: false,
            leaving: false,
            refused: 0,
            end: None,
        })
    }

    fn run(mut self, welcome: &Welcome) -> End {
        let MachineId { index, incarnation } = welcome.machine;
        self.options.log.line(&format!("machine {index}, incarnation {incarnation}"));
        self.register(welcome);
        let mut burst = 0;
        loop {
            match self.next_input(burst < BURST) {
                Some(Input::End(end)) => {
                    debug_assert_eq!(self.machine.check(), Ok(()));
                    return end;
                }
                Some(input) => {
                    burst += 1;
                    self.hear(input);
                }
                None => {
                    burst = 0;
                    self.tick();
                }
            }
            if let Some(end) = self.end.take() {
                return end;
            }
        }
    }

    /// What comes next; `None` when something is due. While it is, only what is here already is taken, and no more of
    /// that than `more` says.
    fn next_input(&self, more: bool) -> Option<Input> {
        let wait = match self.machine.next_deadline() {
            Some(due) => Duration::from_nanos(due.since(self.now())),
            None => Duration::MAX,
        };
        if wait.is_zero() {
            return if more { self.inputs.try_recv().ok() } else { None };
        }
        if wait == Duration::MAX {
            return Some(self.inputs.recv().unwrap_or(Input::End(End::Stopped)));
        }
        match self.inputs.recv_timeout(wait) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Input::End(End::Stopped)),
        }
    }

    fn hear(&mut self, input: Input) {
        match input {
            Input::Link(event) => {
                self.inbox.heard();
                self.hear_link(event);
            }
            Input::Peers(event) => self.hear_peers(event),
            Input::Mover(event) => self.hear_mover(event),
            Input::Done { pass, drawn } => self.pass_done(pass, drawn),
            Input::Leave => self.leave(),
            Input::End(end) => self.end = Some(end),
        }
    }

    fn tick(&mut self) {
        if self.machine.next_deadline().is_some_and(|due| due <= self.now()) {
            let _ = self.tell(&MachineEvent::Tick);
        }
    }

    fn now(&self) -> Time {
        Time::from_ns(self.origin.elapsed().as_nanos() as u64)
    }

    fn fail(&mut self, reason: String) {
        self.end.get_or_insert(End::Failed(reason));
    }

    /// Tells the Machine what has happened, and does what it wants done, and what follows from that.
    fn tell(&mut self, event: &MachineEvent) -> Result<Applied, EventError> {
        let told = self.apply(event);
        while let Some(event) = self.events.pop_front() {
            if let Err(error) = self.apply(&event) {
                self.fail(format!("the scheduler refuses {event:?}: {error}"));
            }
        }
        self.forget();
        told
    }

    /// All that the Machine ever hears and answers passes here.
    fn apply(&mut self, event: &MachineEvent) -> Result<Applied, EventError> {
        let (now, mut actions) = (self.now(), Vec::new());
        let result = self.machine.handle(now, event, &mut actions);
        if let Some(recorder) = &mut self.recorder {
            recorder.record(now, event, &result, &actions, &self.machine);
        }
        for action in actions {
            self.act(action);
        }
        self.look_at_incoming();
        result
    }

    fn act(&mut self, action: MachineAction) {
        match action {
            // What is not heard is said again after the next registration.
            MachineAction::Notify { notice } => drop(self.link.notice(notice)),
            MachineAction::Peer { to, message } => self.say(to, message),
            MachineAction::Run { pass } => self.run_pass(pass),
            MachineAction::Put(put) => self.put(&put),
            MachineAction::StopPut { key } => self.mover.stop(key),
            MachineAction::Resend { key, delivered } => self.resend(key, delivered),
        }
    }

    /// Forgets what was known of legs that are gone.
    fn forget(&mut self) {
        let held = self.machine.report().legs as usize + self.machine.kept();
        let Self { contexts, machine, mover, outgoing, prefilled, early, .. } = self;
        contexts.sweep(held, || {
            machine.leg_keys().chain(machine.claims().into_iter().map(|claim| claim.key)).collect()
        });
        prefilled.retain(|&key, _| machine.leg(key).is_some());
        outgoing.retain(|&key| {
            let stays = machine.leg(key).is_some() || early.contains_key(&key);
            if !stays {
                mover.close(key);
            }
            stays
        });
    }
}
