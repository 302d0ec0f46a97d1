//! The daemon's side of a session with a worker.
//!
//! ```text
//! Challenge ->   <- Hello   [host: welcome or refuse]   Welcome ->   <- Describe*, Register
//!                            [host: registered]         Registered ->   Command*   <- Notice, Tokens
//! ```

use std::collections::BTreeMap;

use splitcore_core::cost::CostTable;
use splitcore_core::event::{Claim, Held, Registration};
use splitcore_core::id::{AssignmentSeq, LegKey, MachineId};
use splitcore_core::leg::Notice;
use splitcore_core::time::Time;

use super::{
    ClaimError, CloseReason, Limits, Pulse, Settings, Step, check_sequence, layout_refusal, text_refusal,
};
use crate::auth::{Party, prove, verify};
use crate::hex::Nonce;
use crate::message::{
    Assigned, Challenge, Descriptor, DescriptorError, Hello, Named, PROTOCOL, Refusal, ToDaemon, ToWorker,
    Tokens, Welcome,
};

/// Knots of a machine's costs, at most: more are no table that somebody has measured.
const COST_KNOTS_MAX: usize = 4096;

/// What a worker has said.
#[derive(Debug, Clone, PartialEq)]
pub enum DaemonEvent {
    /// One that knows the secret and runs the right model asks to be let in: [`DaemonSession::welcome`] or
    /// [`DaemonSession::refuse`] it.
    Hello(Box<Hello>),
    /// What it holds; after the Cluster has taken it, [`DaemonSession::registered`].
    Register {
        /// What it holds.
        registration: Box<Registration>,
        /// What its claims are about. Each that is not closing has one where the Cluster is new to it.
        descriptors: BTreeMap<LegKey, Descriptor>,
    },
    /// For the Cluster.
    Notice(Notice),
    /// For the gateway.
    Tokens(Tokens),
    /// It is to be stopped.
    Leave,
}

#[derive(Debug)]
enum State {
    /// A `Hello` is to come.
    Challenged,
    /// The host decides.
    Greeted(Box<Hello>),
    /// `Describe` and `Register` are to come.
    Welcomed(MachineId),
    /// The Cluster takes it in.
    Registering(MachineId),
    Established(MachineId),
    Closed,
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            Self::Challenged => "a hello is to come",
            Self::Greeted(_) => "a welcome is to come",
            Self::Welcomed(_) => "a register is to come",
            Self::Registering(_) => "a registered is to come",
            Self::Established(_) => "the session is established",
            Self::Closed => "the session is closed",
        }
    }
}

/// The daemon's side of a session with a worker.
#[derive(Debug)]
pub struct DaemonSession {
    settings: Settings,
    challenge: Nonce,
    state: State,
    /// When this part of the handshake must have ended.
    deadline: Time,
    pulse: Pulse,
    descriptors: BTreeMap<LegKey, Descriptor>,
    /// Memory of a registration, until it is taken.
    held_bytes: u64,
    last_seq: AssignmentSeq,
}

type Out = Vec<Step<ToWorker, DaemonEvent>>;

impl DaemonSession {
    /// Somebody has connected.
    pub fn new(settings: Settings, challenge: Nonce, now: Time, out: &mut Out) -> Self {
        let Limits { handshake_limit_ns, ping_interval_ns, silence_limit_ns, .. } = settings.limits;
        let secret = settings.secret.is_some();
        out.push(Step::Send(ToWorker::Challenge(Challenge { protocol: PROTOCOL, nonce: challenge, secret })));
        Self {
            settings,
            challenge,
            state: State::Challenged,
            deadline: now.after(handshake_limit_ns),
            pulse: Pulse::new(now, ping_interval_ns, silence_limit_ns),
            descriptors: BTreeMap::new(),
            held_bytes: 0,
            last_seq: AssignmentSeq(0),
        }
    }

    /// Bytes of the next frame, at most.
    pub fn frame_bytes_max(&self) -> u32 {
        let limits = &self.settings.limits;
        match self.state {
            State::Challenged | State::Greeted(_) => limits.handshake_bytes_max,
            _ => limits.frame_bytes_max,
        }
    }

    /// Memory of what has come of a registration that the host has yet to take.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether commands may be sent.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// The machine, once it is let in.
    pub fn machine(&self) -> Option<MachineId> {
        match self.state {
            State::Welcomed(id) | State::Registering(id) | State::Established(id) => Some(id),
            State::Challenged | State::Greeted(_) | State::Closed => None,
        }
    }

    /// A message has come.
    pub fn receive(&mut self, now: Time, message: ToDaemon, out: &mut Out) {
        if self.is_closed() {
            return;
        }
        self.pulse.heard_at = self.pulse.heard_at.max(now);
        if let Err(reason) = self.take(now, message, out) {
            self.close(reason, out);
        }
    }

    fn take(&mut self, now: Time, message: ToDaemon, out: &mut Out) -> Result<(), CloseReason> {
        let name = message.name();
        match (&self.state, message) {
            (_, ToDaemon::Close { reason }) => return Err(CloseReason::ClosedThere(reason)),
            (State::Challenged, ToDaemon::Hello(hello)) => {
                self.check_hello(&hello).map_err(CloseReason::Refused)?;
                self.state = State::Greeted(hello.clone());
                out.push(Step::Event(DaemonEvent::Hello(hello)));
            }
            (State::Welcomed(_), ToDaemon::Describe { key, descriptor }) => {
                self.describe(key, *descriptor)?;
            }
            (&State::Welcomed(id), ToDaemon::Register(registration)) => {
                self.check_registration(id, &registration)?;
                self.held_bytes += (registration.claims.capacity() * size_of::<Claim>()) as u64;
                self.state = State::Registering(id);
                self.deadline = now.after(self.settings.limits.register_limit_ns);
                let descriptors = std::mem::take(&mut self.descriptors);
                out.push(Step::Event(DaemonEvent::Register { registration, descriptors }));
            }
            (State::Established(_), ToDaemon::Notice(notice)) => {
                out.push(Step::Event(DaemonEvent::Notice(notice)));
            }
            (State::Established(_), ToDaemon::Tokens(tokens)) => {
                out.push(Step::Event(DaemonEvent::Tokens(tokens)));
            }
            (State::Established(_), ToDaemon::Leave {}) => out.push(Step::Event(DaemonEvent::Leave)),
            (
                State::Welcomed(_) | State::Registering(_) | State::Established(_),
                ToDaemon::Pong { number },
            ) => {
                self.pulse.pong(number)?;
            }
            _ => return Err(CloseReason::Unexpected { message: name, state: self.state.name() }),
        }
        Ok(())
    }

    /// The version first: of another one nothing else need mean what it means here.
    fn check_hello(&self, hello: &Hello) -> Result<(), Refusal> {
        if hello.protocol != PROTOCOL {
            return Err(Refusal::new("protocol", PROTOCOL, hello.protocol));
        }
        if let Some(secret) = &self.settings.secret {
            let Some(proof) = &hello.proof else { return Err(Refusal::new("proof", "a proof", "none")) };
            if !verify(secret, Party::Worker, &self.challenge, &hello.nonce, &hello.name, proof) {
                return Err(Refusal::new("proof", "the same secret", "a proof by another"));
            }
        }
        if hello.name.is_empty() {
            return Err(Refusal::new("name", "at least one letter", "none").permanently());
        }
        if let Some(refusal) = text_refusal(hello) {
            return Err(refusal);
        }
        if hello.epoch > self.settings.epoch {
            let expected = format!("at most {}", self.settings.epoch.0);
            return Err(Refusal::new("epoch", expected, hello.epoch.0));
        }
        if let Some(model) = self.settings.model.as_ref().filter(|model| **model != hello.model) {
            return Err(Refusal::new("model", model, &hello.model));
        }
        if let Some(context) = hello.context.filter(|&context| context < self.settings.context) {
            let expected = format!("at least {}", self.settings.context);
            return Err(Refusal::new("context", expected, context));
        }
        layout_refusal(&hello.layout, &hello.layout).map_or(Ok(()), Err)
    }

    fn describe(&mut self, key: LegKey, mut descriptor: Descriptor) -> Result<(), CloseReason> {
        descriptor.prompt.shrink_to_fit();
        let limit = self.settings.limits.claims_max;
        if self.descriptors.len() >= limit as usize {
            return Err(CloseReason::Claims { limit });
        }
        self.held_bytes += descriptor.held_bytes();
        if self.descriptors.insert(key, descriptor).is_some() {
            return Err(CloseReason::Claim { key, what: ClaimError::Twice });
        }
        Ok(())
    }

    fn check_registration(&self, id: MachineId, registration: &Registration) -> Result<(), CloseReason> {
        if registration.join.machine != id {
            let what = "it names another machine than the welcome did";
            return Err(CloseReason::Incomplete { message: "register", what });
        }
        let limit = self.settings.limits.claims_max;
        // A leg that is being given up, and the request that is to be kept.
        if registration.claims.len() > 2 * limit as usize {
            return Err(CloseReason::Claims { limit });
        }
        let costs = registration.join.costs.as_ref().map(CostTable::points);
        if costs.is_some_and(|of| of.prefill.len() + of.decode.len() > COST_KNOTS_MAX) {
            return Err(CloseReason::Incomplete {
                message: "register",
                what: "its costs have too many knots",
            });
        }
        let knows_us = registration.epoch == self.settings.epoch;
        let mut longest: BTreeMap<LegKey, u32> = BTreeMap::new();
        for claim in &registration.claims {
            let (key, tokens) = (claim.key, claim.work.prompt_tokens);
            let descriptor = self.descriptors.get(&key);
            if descriptor.is_none() && !knows_us && claim.held != Held::Closing {
                return Err(CloseReason::Claim { key, what: ClaimError::Unknown });
            }
            if let Some(descriptor) = descriptor {
                let checked = descriptor.check_covers(&claim.work);
                checked.map_err(|error| CloseReason::Claim { key, what: error.into() })?;
                longest.entry(key).and_modify(|longest| *longest = tokens.max(*longest)).or_insert(tokens);
            }
        }
        for (&key, descriptor) in &self.descriptors {
            let tokens = descriptor.prompt.len() as u64;
            let what = match longest.get(&key) {
                None => ClaimError::Unclaimed,
                Some(&of) if u64::from(of) < tokens => DescriptorError::Prompt { tokens, of }.into(),
                Some(_) => continue,
            };
            return Err(CloseReason::Claim { key, what });
        }
        Ok(())
    }

    /// The host lets the worker in, as this machine. Returns whether there was one to let in.
    pub fn welcome(&mut self, now: Time, machine: MachineId, out: &mut Out) -> bool {
        let State::Greeted(hello) = &self.state else { return false };
        let Limits { ping_interval_ns, silence_limit_ns, frame_bytes_max, register_limit_ns, .. } =
            self.settings.limits;
        let secret = self.settings.secret.as_ref();
        let proof =
            secret.map(|secret| prove(secret, Party::Daemon, &self.challenge, &hello.nonce, &hello.name));
        out.push(Step::Send(ToWorker::Welcome(Welcome {
            protocol: PROTOCOL,
            machine,
            epoch: self.settings.epoch,
            ping_interval_ns,
            silence_limit_ns,
            frame_bytes_max,
            proof,
        })));
        self.state = State::Welcomed(machine);
        self.deadline = now.after(register_limit_ns);
        self.pulse = Pulse::new(now, ping_interval_ns, silence_limit_ns);
        true
    }

    /// The host does not let the worker in.
    pub fn refuse(&mut self, refusal: Refusal, out: &mut Out) {
        self.close(CloseReason::Refused(refusal), out);
    }

    /// The Cluster has taken the registration. Returns whether there was one.
    pub fn registered(&mut self, out: &mut Out) -> bool {
        let State::Registering(machine) = self.state else { return false };
        out.push(Step::Send(ToWorker::Registered { epoch: self.settings.epoch }));
        (self.state, self.held_bytes) = (State::Established(machine), 0);
        true
    }

    /// Sends a command. Returns whether the session was there to send it on.
    pub fn command(&mut self, assigned: Assigned, out: &mut Out) -> bool {
        if !self.is_established() {
            return false;
        }
        if let Err(reason) = check_sequence(self.last_seq, assigned.seq) {
            self.close(reason, out);
            return false;
        }
        self.last_seq = assigned.seq;
        out.push(Step::Send(ToWorker::Command(Box::new(assigned))));
        true
    }

    /// Says that an output is long enough. Returns whether the session was there to say it on.
    pub fn enough(&mut self, key: LegKey, tokens: u32, out: &mut Out) -> bool {
        if self.is_established() {
            out.push(Step::Send(ToWorker::Enough { key, tokens }));
        }
        self.is_established()
    }

    /// A deadline may have come.
    pub fn tick(&mut self, now: Time, out: &mut Out) {
        let limits = self.settings.limits;
        let checked = match self.state {
            State::Challenged | State::Greeted(_) if now >= self.deadline => {
                Err(CloseReason::Handshake { limit_ns: limits.handshake_limit_ns })
            }
            State::Challenged | State::Greeted(_) | State::Closed => return,
            State::Welcomed(_) | State::Registering(_) if now >= self.deadline => {
                Err(CloseReason::Registration { limit_ns: limits.register_limit_ns })
            }
            State::Welcomed(_) | State::Registering(_) | State::Established(_) => self.pulse.check(now),
        };
        if let Err(reason) = checked {
            return self.close(reason, out);
        }
        if let Some(number) = self.pulse.ping(now) {
            out.push(Step::Send(ToWorker::Ping { number }));
        }
    }

    /// When the next [`DaemonSession::tick`] is due.
    pub fn next_deadline(&self) -> Time {
        let beat = self.pulse.ping_at().min(self.pulse.silence_at());
        match self.state {
            State::Challenged | State::Greeted(_) => self.deadline,
            State::Welcomed(_) | State::Registering(_) => self.deadline.min(beat),
            State::Established(_) => beat,
            State::Closed => Time::MAX,
        }
    }

    /// Ends it, and tells the worker why where it can still hear that.
    pub fn close(&mut self, reason: CloseReason, out: &mut Out) {
        if self.is_closed() {
            return;
        }
        self.state = State::Closed;
        match &reason {
            CloseReason::Refused(refusal) => out.push(Step::Send(ToWorker::Refused(refusal.clone()))),
            CloseReason::ClosedThere(_) | CloseReason::Io(_) => {}
            reason => out.push(Step::Send(ToWorker::Close { reason: reason.to_string() })),
        }
        out.push(Step::Close(reason));
    }
}
