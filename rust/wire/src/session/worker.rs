//! A worker's side of its session with the daemon.

use std::collections::BTreeMap;

use splitcore_core::event::Registration;
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey};
use splitcore_core::kv::KvLayout;
use splitcore_core::leg::Notice;
use splitcore_core::time::Time;

use super::{CloseReason, Limits, Pulse, Settings, Step, check_sequence};
use crate::auth::{Key, Party, prove, verify};
use crate::hex::Nonce;
use crate::message::{
    Assigned, Challenge, Descriptor, Hello, Named, PROTOCOL, Refusal, ToDaemon, ToWorker, Tokens, Welcome,
};

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// What people call it; unique.
    pub name: String,
    /// Its place, if it has had one.
    pub index: Option<u32>,
    /// Grows with every start of a worker of this name.
    pub incarnation: u32,
    /// The newest Cluster that it has spoken to; 0 for none.
    pub epoch: Epoch,
    /// What it runs.
    pub model: String,
    /// How its KV lies.
    pub layout: KvLayout,
    /// KV blocks that it has.
    pub blocks: u32,
    /// Positions that its model takes; `None`: it does not say.
    pub context: Option<u32>,
    /// Where it takes peer connections.
    pub peer: String,
    /// Where its transports take KV.
    pub transfer: String,
    /// What other workers that dial it must show to know.
    pub key: Key,
}

/// What the daemon has said.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerEvent {
    /// Let in: [`WorkerSession::register`] what is held. Claims need be described where the epoch is another than that
    /// of the last [`WorkerEvent::Registered`].
    Welcome(Welcome),
    /// The session is established.
    Registered {
        /// By whom.
        epoch: Epoch,
    },
    /// Something to do.
    Command {
        /// Who says so.
        epoch: Epoch,
        /// What.
        assigned: Box<Assigned>,
    },
    /// An output ends as if its cap were so many tokens.
    Enough {
        /// Whose.
        key: LegKey,
        /// Output tokens over all attempts.
        tokens: u32,
    },
}

#[derive(Debug, Clone, Copy)]
enum State {
    Connected,
    /// The host has yet to register, or a `Welcome` is to come.
    Greeted(Nonce),
    Welcomed(Epoch),
    Registering(Epoch),
    Established(Epoch),
    Closed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Connected => "a challenge is to come",
            Self::Greeted(_) => "a welcome is to come",
            Self::Welcomed(_) => "a register is to come",
            Self::Registering(_) => "a registered is to come",
            Self::Established(_) => "the session is established",
            Self::Closed => "the session is closed",
        }
    }
}

/// A worker's side of its session with the daemon.
#[derive(Debug)]
pub struct WorkerSession {
    identity: Identity,
    settings: Settings,
    nonce: Nonce,
    state: State,
    deadline: Time,
    pulse: Pulse,
    frame_bytes_max: u32,
    last_seq: AssignmentSeq,
}

type Out = Vec<Step<ToDaemon, WorkerEvent>>;

impl WorkerSession {
    /// It has connected.
    pub fn new(identity: Identity, settings: Settings, nonce: Nonce, now: Time) -> Self {
        let Limits { handshake_limit_ns, ping_interval_ns, silence_limit_ns, frame_bytes_max, .. } =
            settings.limits;
        Self {
            identity,
            settings,
            nonce,
            state: State::Connected,
            deadline: now.after(handshake_limit_ns),
            pulse: Pulse::new(now, ping_interval_ns, silence_limit_ns),
            frame_bytes_max,
            last_seq: AssignmentSeq(0),
        }
    }

    /// Bytes of the next frame, at most.
    pub fn frame_bytes_max(&self) -> u32 {
        match self.state {
            State::Connected | State::Greeted(_) => self.settings.limits.handshake_bytes_max,
            _ => self.settings.limits.frame_bytes_max,
        }
    }

    /// Bytes of a frame that the daemon takes, at most.
    pub fn send_bytes_max(&self) -> u32 {
        self.frame_bytes_max
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether notices and tokens may be sent.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// A message has come.
    pub fn receive(&mut self, now: Time, message: ToWorker, out: &mut Out) {
        if self.is_closed() {
            return;
        }
        self.pulse.heard_at = self.pulse.heard_at.max(now);
        if let Err(reason) = self.take(now, message, out) {
            self.close(reason, out);
        }
    }

    fn take(&mut self, now: Time, message: ToWorker, out: &mut Out) -> Result<(), CloseReason> {
        let name = message.name();
        match (self.state, message) {
            (_, ToWorker::Close { reason }) => return Err(CloseReason::ClosedThere(reason)),
            (State::Connected | State::Greeted(_), ToWorker::Refused(refusal)) => {
                return Err(CloseReason::RefusedThere(refusal));
            }
            (State::Connected, ToWorker::Challenge(challenge)) => self.greet(challenge, out)?,
            (State::Greeted(challenge), ToWorker::Welcome(welcome)) => {
                self.check_welcome(challenge, &welcome)?;
                self.enter(now, &welcome);
                out.push(Step::Event(WorkerEvent::Welcome(welcome)));
            }
            (State::Registering(of), ToWorker::Registered { epoch }) => {
                if epoch != of {
                    let what = "it names another epoch than the welcome did";
                    return Err(CloseReason::Incomplete { message: "registered", what });
                }
                self.identity.epoch = epoch;
                self.state = State::Established(epoch);
                out.push(Step::Event(WorkerEvent::Registered { epoch }));
            }
            (State::Established(epoch), ToWorker::Command(assigned)) => {
                check_sequence(self.last_seq, assigned.seq)?;
                check_assigned(&assigned)?;
                self.last_seq = assigned.seq;
                out.push(Step::Event(WorkerEvent::Command { epoch, assigned }));
            }
            (State::Established(_), ToWorker::Enough { key, tokens }) => {
                out.push(Step::Event(WorkerEvent::Enough { key, tokens }));
            }
            (
                State::Welcomed(_) | State::Registering(_) | State::Established(_),
                ToWorker::Ping { number },
            ) => out.push(Step::Send(ToDaemon::Pong { number })),
            (state, _) => return Err(CloseReason::Unexpected { message: name, state: state.name() }),
        }
        Ok(())
    }

    fn greet(&mut self, challenge: Challenge, out: &mut Out) -> Result<(), CloseReason> {
        let refuse = |field, ours: &dyn ToString, theirs: &dyn ToString| {
            CloseReason::Refused(Refusal::new(field, ours.to_string(), theirs.to_string()))
        };
        if challenge.protocol != PROTOCOL {
            return Err(refuse("protocol", &PROTOCOL, &challenge.protocol));
        }
        if challenge.secret != self.settings.secret.is_some() {
            let says = |there| if there { "a secret" } else { "no secret" };
            return Err(refuse("secret", &says(!challenge.secret), &says(challenge.secret)));
        }
        let of = self.identity.clone();
        let secret = self.settings.secret.as_ref();
        let proof =
            secret.map(|secret| prove(secret, Party::Worker, &challenge.nonce, &self.nonce, &of.name));
        self.state = State::Greeted(challenge.nonce);
        out.push(Step::Send(ToDaemon::Hello(Box::new(Hello {
            protocol: PROTOCOL,
            name: of.name,
            index: of.index,
            incarnation: of.incarnation,
            epoch: of.epoch,
            model: of.model,
            layout: of.layout,
            blocks: of.blocks,
            context: of.context,
            peer: of.peer,
            transfer: of.transfer,
            key: of.key,
            nonce: self.nonce,
            proof,
        }))));
        Ok(())
    }

    fn check_welcome(&self, challenge: Nonce, welcome: &Welcome) -> Result<(), CloseReason> {
        let of = &self.identity;
        let refuse = |refusal| Err(CloseReason::Refused(refusal));
        if welcome.protocol != PROTOCOL {
            return refuse(Refusal::new("protocol", PROTOCOL, welcome.protocol));
        }
        if let Some(secret) = &self.settings.secret {
            let right = welcome.proof.is_some_and(|proof| {
                verify(secret, Party::Daemon, &challenge, &self.nonce, &of.name, &proof)
            });
            if !right {
                return refuse(Refusal::new("proof", "the same secret", "a proof by another"));
            }
        }
        if welcome.epoch < of.epoch {
            return Err(CloseReason::StaleEpoch { ours: of.epoch.0, theirs: welcome.epoch.0 });
        }
        let here = (of.index.unwrap_or(welcome.machine.index), of.incarnation);
        if (welcome.machine.index, welcome.machine.incarnation) != here {
            let what = "it names another machine than the hello did";
            return Err(CloseReason::Incomplete { message: "welcome", what });
        }
        if welcome.silence_limit_ns <= welcome.ping_interval_ns {
            let what = "silence_limit is not above ping_interval";
            return Err(CloseReason::Incomplete { message: "welcome", what });
        }
        Ok(())
    }

    fn enter(&mut self, now: Time, welcome: &Welcome) {
        self.identity.index = Some(welcome.machine.index);
        self.state = State::Welcomed(welcome.epoch);
        self.deadline = now.after(self.settings.limits.register_limit_ns);
        self.pulse = Pulse::new(now, welcome.ping_interval_ns, welcome.silence_limit_ns);
        self.frame_bytes_max = welcome.frame_bytes_max;
    }

    /// Says what is held. Returns whether it was to be said now.
    pub fn register(
        &mut self,
        registration: Registration,
        descriptors: BTreeMap<LegKey, Descriptor>,
        out: &mut Out,
    ) -> bool {
        let State::Welcomed(epoch) = self.state else { return false };
        for (key, descriptor) in descriptors {
            out.push(Step::Send(ToDaemon::Describe { key, descriptor: Box::new(descriptor) }));
        }
        out.push(Step::Send(ToDaemon::Register(Box::new(registration))));
        self.state = State::Registering(epoch);
        true
    }

    /// Says something to the Cluster. Returns whether the session was there to say it on.
    pub fn notice(&mut self, notice: Notice, out: &mut Out) -> bool {
        if self.is_established() {
            out.push(Step::Send(ToDaemon::Notice(notice)));
        }
        self.is_established()
    }

    /// Says that the worker is to be stopped. Returns whether the session was there to say it on.
    pub fn leave(&mut self, out: &mut Out) -> bool {
        if self.is_established() {
            out.push(Step::Send(ToDaemon::Leave {}));
        }
        self.is_established()
    }

    /// Gives output tokens. Returns whether the session was there to give them on.
    pub fn tokens(&mut self, tokens: Tokens, out: &mut Out) -> bool {
        if self.is_established() {
            out.push(Step::Send(ToDaemon::Tokens(tokens)));
        }
        self.is_established()
    }

    /// A deadline may have come.
    pub fn tick(&mut self, now: Time, out: &mut Out) {
        let limits = self.settings.limits;
        let checked = match self.state {
            State::Connected | State::Greeted(_) if now >= self.deadline => {
                Err(CloseReason::Handshake { limit_ns: limits.handshake_limit_ns })
            }
            State::Connected | State::Greeted(_) | State::Closed => return,
            State::Welcomed(_) | State::Registering(_) if now >= self.deadline => {
                Err(CloseReason::Registration { limit_ns: limits.register_limit_ns })
            }
            State::Welcomed(_) | State::Registering(_) | State::Established(_) => self.pulse.check(now),
        };
        if let Err(reason) = checked {
            self.close(reason, out);
        }
    }

    /// When the next [`WorkerSession::tick`] is due.
    pub fn next_deadline(&self) -> Time {
        match self.state {
            State::Connected | State::Greeted(_) => self.deadline,
            State::Welcomed(_) | State::Registering(_) => self.deadline.min(self.pulse.silence_at()),
            State::Established(_) => self.pulse.silence_at(),
            State::Closed => Time::MAX,
        }
    }

    /// Ends it, and tells the daemon why where it can still hear that.
    pub fn close(&mut self, reason: CloseReason, out: &mut Out) {
        if self.is_closed() {
            return;
        }
        self.state = State::Closed;
        if !matches!(reason, CloseReason::ClosedThere(_) | CloseReason::RefusedThere(_) | CloseReason::Io(_))
        {
            out.push(Step::Send(ToDaemon::Close { reason: reason.to_string() }));
        }
        out.push(Step::Close(reason));
    }
}

/// What goes with a command must be there, and be about it.
fn check_assigned(assigned: &Assigned) -> Result<(), CloseReason> {
    let incomplete = |what| CloseReason::Incomplete { message: "command", what };
    match (assigned.work(), &assigned.descriptor) {
        (Some(work), Some(descriptor)) => {
            let key = assigned.key();
            descriptor.check(work).map_err(|error| CloseReason::Claim { key, what: error.into() })?;
        }
        (Some(_), None) => return Err(incomplete("it brings a request without a descriptor")),
        (None, Some(_)) => return Err(incomplete("a descriptor without a request")),
        (None, None) => {}
    }
    if assigned.other() == assigned.peer.as_ref().map(|peer| peer.machine) {
        Ok(())
    } else {
        Err(incomplete("the address is not that of the machine it names"))
    }
}
