//! A session between two workers: the destination of a handoff dials its source, which challenges and pings.

use splitcore_core::id::MachineId;
use splitcore_core::kv::KvLayout;
use splitcore_core::leg::Peer;
use splitcore_core::time::Time;

use super::{CloseReason, Limits, Pulse, Settings, Step, layout_refusal};
use crate::auth::{Party, prove, verify};
use crate::hex::Nonce;
use crate::message::{
    Challenge, GrantBody, Named, PROTOCOL, PeerAddress, PeerHello, PeerWelcome, Refusal, ToPeer, Tokens,
};

/// What a worker says of itself to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Who it is, and where others reach it.
    pub address: PeerAddress,
    /// How its KV lies.
    pub layout: KvLayout,
}

/// What a peer has said.
#[derive(Debug, Clone, PartialEq)]
pub enum PeerEvent {
    /// The session is open, and what was on its way in one before it is lost: the machine hears
    /// `MachineEvent::PeerReset`, before anything else from there.
    Open {
        /// With whom.
        machine: MachineId,
        /// Where that is reached; from whoever dialled.
        address: Option<PeerAddress>,
    },
    /// A later incarnation answers: the machine that was looked for is gone, and writes no more.
    Replaced {
        /// Who was looked for.
        machine: MachineId,
    },
    /// For the machine.
    Message {
        /// Who speaks.
        from: MachineId,
        /// What.
        message: Peer,
        /// With a `Grant`.
        grant: Option<GrantBody>,
    },
    /// Output tokens that the source has drawn.
    Tokens {
        /// Who speaks.
        from: MachineId,
        /// The tokens.
        tokens: Tokens,
    },
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The source waits for a `Hello`.
    Challenged(Nonce),
    /// The destination waits for a `Challenge`.
    Connected {
        wanted: MachineId,
        nonce: Nonce,
    },
    /// And for a `Welcome`.
    Greeted {
        wanted: MachineId,
        nonce: Nonce,
        challenge: Nonce,
    },
    Open {
        with: MachineId,
        dialled: bool,
    },
    Closed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Challenged(_) => "a hello is to come",
            Self::Connected { .. } => "a challenge is to come",
            Self::Greeted { .. } => "a welcome is to come",
            Self::Open { .. } => "the session is open",
            Self::Closed => "the session is closed",
        }
    }
}

/// Either side of a session between two workers.
#[derive(Debug)]
pub struct PeerSession {
    identity: PeerIdentity,
    settings: Settings,
    state: State,
    deadline: Time,
    pulse: Pulse,
}

type Out = Vec<Step<ToPeer, PeerEvent>>;

/// The name in a proof between workers.
fn proof_name(machine: MachineId) -> String {
    format!("{}.{}", machine.index, machine.incarnation)
}

impl PeerSession {
    /// Another worker has connected.
    pub fn accept(
        identity: PeerIdentity,
        settings: Settings,
        nonce: Nonce,
        now: Time,
        out: &mut Out,
    ) -> Self {
        let secret = settings.secret.is_some();
        out.push(Step::Send(ToPeer::Challenge(Challenge { protocol: PROTOCOL, nonce, secret })));
        Self::new(identity, settings, State::Challenged(nonce), now)
    }

    /// It has connected to where `wanted` should be.
    pub fn dial(
        identity: PeerIdentity,
        settings: Settings,
        wanted: MachineId,
        nonce: Nonce,
        now: Time,
    ) -> Self {
        Self::new(identity, settings, State::Connected { wanted, nonce }, now)
    }

    fn new(identity: PeerIdentity, settings: Settings, state: State, now: Time) -> Self {
        let Limits { handshake_limit_ns, ping_interval_ns, silence_limit_ns, .. } = settings.limits;
        let pulse = Pulse::new(now, ping_interval_ns, silence_limit_ns);
        Self { identity, settings, state, deadline: now.after(handshake_limit_ns), pulse }
    }

    /// Bytes of the next frame, at most.
    pub fn frame_bytes_max(&self) -> u32 {
        match self.state {
            State::Open { .. } | State::Closed => self.settings.limits.frame_bytes_max,
            _ => self.settings.limits.handshake_bytes_max,
        }
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// With whom it is open.
    pub fn machine(&self) -> Option<MachineId> {
        if let State::Open { with, .. } = self.state { Some(with) } else { None }
    }

    /// A message has come.
    pub fn receive(&mut self, now: Time, message: ToPeer, out: &mut Out) {
        if self.is_closed() {
            return;
        }
        self.pulse.heard_at = self.pulse.heard_at.max(now);
        if let Err(reason) = self.take(now, message, out) {
            self.close(reason, out);
        }
    }

    fn take(&mut self, now: Time, message: ToPeer, out: &mut Out) -> Result<(), CloseReason> {
        let name = message.name();
        match (self.state, message) {
            (_, ToPeer::Close { reason }) => return Err(CloseReason::ClosedThere(reason)),
            (State::Connected { .. } | State::Greeted { .. }, ToPeer::Refused(refusal)) => {
                return Err(CloseReason::RefusedThere(refusal));
            }
            (State::Challenged(challenge), ToPeer::Hello(hello)) => {
                self.check_hello(&challenge, &hello).map_err(CloseReason::Refused)?;
                self.welcome(now, &challenge, *hello, out);
            }
            (State::Connected { wanted, nonce }, ToPeer::Challenge(challenge)) => {
                self.greet(wanted, nonce, challenge, out)?;
            }
            (State::Greeted { wanted, nonce, challenge }, ToPeer::Welcome(welcome)) => {
                self.enter(now, wanted, &nonce, &challenge, &welcome, out)?;
            }
            (State::Open { with, dialled }, ToPeer::Peer { message, grant }) => {
                // The destination asks, the source answers.
                if dialled != matches!(message, Peer::AbortAck { .. }) {
                    return Err(CloseReason::Unexpected { message: name, state: "it is the other side's" });
                }
                if matches!(message, Peer::Grant { .. }) != grant.is_some() {
                    let what = "a grant without its blocks, or blocks without a grant";
                    return Err(CloseReason::Incomplete { message: name, what });
                }
                out.push(Step::Event(PeerEvent::Message { from: with, message, grant }));
            }
            (State::Open { dialled: false, .. }, ToPeer::Tokens(_)) => {
                return Err(CloseReason::Unexpected { message: name, state: "it is the other side's" });
            }
            (State::Open { with, dialled: true }, ToPeer::Tokens(tokens)) => {
                out.push(Step::Event(PeerEvent::Tokens { from: with, tokens }));
            }
            (State::Open { dialled: true, .. }, ToPeer::Ping { number }) => {
                out.push(Step::Send(ToPeer::Pong { number }));
            }
            (State::Open { dialled: false, .. }, ToPeer::Pong { number }) => self.pulse.pong(number)?,
            (state, _) => return Err(CloseReason::Unexpected { message: name, state: state.name() }),
        }
        Ok(())
    }

    fn check_hello(&self, challenge: &Nonce, hello: &PeerHello) -> Result<(), Refusal> {
        if hello.protocol != PROTOCOL {
            return Err(Refusal::new("protocol", PROTOCOL, hello.protocol));
        }
        if let Some(secret) = &self.settings.secret {
            let Some(proof) = &hello.proof else { return Err(Refusal::new("proof", "required", "none")) };
            let name = proof_name(hello.address.machine);
            if !verify(secret, Party::Destination, challenge, &hello.nonce, &name, proof) {
                return Err(Refusal::new("proof", "another secret", "a proof that does not match"));
            }
        }
        layout_refusal(&self.identity.layout, &hello.layout).map_or(Ok(()), Err)
    }

    fn welcome(&mut self, now: Time, challenge: &Nonce, hello: PeerHello, out: &mut Out) {
        let Limits { ping_interval_ns, silence_limit_ns, .. } = self.settings.limits;
        let machine = self.identity.address.machine;
        let secret = self.settings.secret.as_ref();
        let name = proof_name(machine);
        let proof = secret.map(|secret| prove(secret, Party::Source, challenge, &hello.nonce, &name));
        out.push(Step::Send(ToPeer::Welcome(PeerWelcome {
            protocol: PROTOCOL,
            machine,
            ping_interval_ns,
            silence_limit_ns,
            proof,
        })));
        let with = hello.address.machine;
        self.state = State::Open { with, dialled: false };
        self.pulse = Pulse::new(now, ping_interval_ns, silence_limit_ns);
        out.push(Step::Event(PeerEvent::Open { machine: with, address: Some(hello.address) }));
    }

    fn greet(
        &mut self,
        wanted: MachineId,
        nonce: Nonce,
        challenge: Challenge,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if challenge.protocol != PROTOCOL {
            let refusal = Refusal::new("protocol", PROTOCOL, challenge.protocol);
            return Err(CloseReason::Refused(refusal));
        }
        if challenge.secret != self.settings.secret.is_some() {
            let says = |there| if there { "a secret" } else { "no secret" };
            let refusal = Refusal::new("secret", says(!challenge.secret), says(challenge.secret));
            return Err(CloseReason::Refused(refusal));
        }
        let PeerIdentity { address, layout } = self.identity.clone();
        let name = proof_name(address.machine);
        let secret = self.settings.secret.as_ref();
        let proof = secret.map(|secret| prove(secret, Party::Destination, &challenge.nonce, &nonce, &name));
        self.state = State::Greeted { wanted, nonce, challenge: challenge.nonce };
        let hello = PeerHello { protocol: PROTOCOL, address, layout, nonce, proof };
        out.push(Step::Send(ToPeer::Hello(Box::new(hello))));
        Ok(())
    }

    fn enter(
        &mut self,
        now: Time,
        wanted: MachineId,
        nonce: &Nonce,
        challenge: &Nonce,
        welcome: &PeerWelcome,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if welcome.protocol != PROTOCOL {
            return Err(CloseReason::Refused(Refusal::new("protocol", PROTOCOL, welcome.protocol)));
        }
        let machine = welcome.machine;
        if let Some(secret) = &self.settings.secret {
            let name = proof_name(machine);
            let right = welcome
                .proof
                .is_some_and(|proof| verify(secret, Party::Source, challenge, nonce, &name, &proof));
            if !right {
                let refusal = Refusal::new("proof", "another secret", "a proof that does not match");
                return Err(CloseReason::Refused(refusal));
            }
        }
        if welcome.silence_limit_ns <= welcome.ping_interval_ns {
            let what = "silence_limit is not above ping_interval";
            return Err(CloseReason::Incomplete { message: "welcome", what });
        }
        if machine != wanted {
            if machine.index == wanted.index && machine.incarnation > wanted.incarnation {
                out.push(Step::Event(PeerEvent::Replaced { machine: wanted }));
            }
            let refusal = Refusal::new("machine", proof_name(wanted), proof_name(machine));
            return Err(CloseReason::Refused(refusal));
        }
        self.state = State::Open { with: machine, dialled: true };
        self.pulse = Pulse::new(now, welcome.ping_interval_ns, welcome.silence_limit_ns);
        out.push(Step::Event(PeerEvent::Open { machine, address: None }));
        Ok(())
    }

    /// Says something to the other machine. Returns whether the session was there to say it on.
    pub fn say(&mut self, message: Peer, grant: Option<GrantBody>, out: &mut Out) -> bool {
        let State::Open { .. } = self.state else { return false };
        out.push(Step::Send(ToPeer::Peer { message, grant }));
        true
    }

    /// Gives the other machine output tokens. Returns whether the session was there, and this side is its source.
    pub fn tokens(&mut self, tokens: Tokens, out: &mut Out) -> bool {
        let State::Open { dialled: false, .. } = self.state else { return false };
        out.push(Step::Send(ToPeer::Tokens(tokens)));
        true
    }

    /// A deadline may have come.
    pub fn tick(&mut self, now: Time, out: &mut Out) {
        let State::Open { dialled, .. } = self.state else {
            if !self.is_closed() && now >= self.deadline {
                let limit_ns = self.settings.limits.handshake_limit_ns;
                self.close(CloseReason::Handshake { limit_ns }, out);
            }
            return;
        };
        if let Err(reason) = self.pulse.check(now) {
            return self.close(reason, out);
        }
        if let Some(number) = if dialled { None } else { self.pulse.ping(now) } {
            out.push(Step::Send(ToPeer::Ping { number }));
        }
    }

    /// When the next [`PeerSession::tick`] is due.
    pub fn next_deadline(&self) -> Time {
        match self.state {
            State::Challenged(_) | State::Connected { .. } | State::Greeted { .. } => self.deadline,
            State::Open { dialled: true, .. } => self.pulse.silence_at(),
            State::Open { dialled: false, .. } => self.pulse.ping_at().min(self.pulse.silence_at()),
            State::Closed => Time::MAX,
        }
    }

    /// Ends it, and tells the other side why where it can still hear that.
    pub fn close(&mut self, reason: CloseReason, out: &mut Out) {
        if self.is_closed() {
            return;
        }
        let source = matches!(self.state, State::Challenged(_));
        self.state = State::Closed;
        match &reason {
            CloseReason::Refused(refusal) if source => out.push(Step::Send(ToPeer::Refused(refusal.clone()))),
            CloseReason::ClosedThere(_) | CloseReason::RefusedThere(_) | CloseReason::Io(_) => {}
            reason => out.push(Step::Send(ToPeer::Close { reason: reason.to_string() })),
        }
        out.push(Step::Close(reason));
    }
}
