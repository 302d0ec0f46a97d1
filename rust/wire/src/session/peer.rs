//! A session between two workers: the destination of a handoff dials its source, which challenges and pings.

use splitcore_core::id::MachineId;
use splitcore_core::kv::KvLayout;
use splitcore_core::leg::Peer;
use splitcore_core::time::Time;

use super::{CloseReason, Limits, Pulse, Settings, Step, layout_refusal};
use crate::auth::{Key, Party, Secret, prove, verify};
use crate::hex::{Nonce, Proof};
use crate::message::{
    Challenge, GrantBody, Named, PROTOCOL, PeerAddress, PeerHello, PeerProof, PeerWelcome, Refusal, ToPeer,
    Tokens,
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
    /// Another life answers: the machine that was looked for is gone, and writes no more. It would listen there as long
    /// as it lived.
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

/// Of both sides.
#[derive(Debug, Clone, Copy)]
struct Nonces {
    challenge: Nonce,
    hello: Nonce,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The source waits for a `Prove`.
    Challenged(Nonce),
    /// And for a `Hello`.
    Proven(Nonces),
    /// The destination waits for a `Challenge`.
    Connected(Nonce),
    /// For a `Proved`.
    Proving(Nonces),
    /// And for a `Welcome`.
    Greeted(Nonces),
    Open {
        with: MachineId,
        dialled: bool,
    },
    Closed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Challenged(_) => "a prove is to come",
            Self::Proven(_) => "a hello is to come",
            Self::Connected(_) => "a challenge is to come",
            Self::Proving(_) => "a proved is to come",
            Self::Greeted(_) => "a welcome is to come",
            Self::Open { .. } => "the session is open",
            Self::Closed => "the session is closed",
        }
    }
}

/// Bytes of a frame of somebody who has not shown to know the key.
const STRANGER_BYTES_MAX: u32 = 1024;

/// Field of the [`Refusal`] of one who looks for another life.
const KEY: &str = "key";

/// Either side of a session between two workers.
#[derive(Debug)]
pub struct PeerSession {
    identity: PeerIdentity,
    settings: Settings,
    /// The machine that was connected to, the name of its key, and what those who know that share.
    source: MachineId,
    name: Nonce,
    secret: Secret,
    state: State,
    deadline: Time,
    pulse: Pulse,
}

type Out = Vec<Step<ToPeer, PeerEvent>>;

/// A machine in a proof between workers.
fn proof_name(machine: MachineId) -> String {
    format!("{}.{}", machine.index, machine.incarnation)
}

/// Who speaks to whom.
fn proof_names(from: MachineId, to: MachineId) -> String {
    format!("{} to {}", proof_name(from), proof_name(to))
}

fn wrong_proof() -> Refusal {
    Refusal::new("proof", "the same secret", "a proof by another")
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
        let (source, key) = (identity.address.machine, identity.address.key);
        Self::new(identity, settings, source, key, State::Challenged(nonce), now)
    }

    /// It has connected to where `wanted` should be.
    pub fn dial(
        identity: PeerIdentity,
        settings: Settings,
        wanted: &PeerAddress,
        nonce: Nonce,
        now: Time,
    ) -> Self {
        Self::new(identity, settings, wanted.machine, wanted.key, State::Connected(nonce), now)
    }

    fn new(
        identity: PeerIdentity,
        settings: Settings,
        source: MachineId,
        key: Key,
        state: State,
        now: Time,
    ) -> Self {
        let Limits { handshake_limit_ns, ping_interval_ns, silence_limit_ns, .. } = settings.limits;
        let pulse = Pulse::new(now, ping_interval_ns, silence_limit_ns);
        let (name, secret) = (key.name(), key.with(settings.secret.as_ref()));
        let deadline = now.after(handshake_limit_ns);
        Self { identity, settings, source, name, secret, state, deadline, pulse }
    }

    fn prove(&self, party: Party, nonces: Nonces, name: &str) -> Proof {
        prove(&self.secret, party, &nonces.challenge, &nonces.hello, name)
    }

    fn check(&self, party: Party, nonces: Nonces, name: &str, proof: &Proof) -> Result<(), Refusal> {
        let right = verify(&self.secret, party, &nonces.challenge, &nonces.hello, name, proof);
        if right { Ok(()) } else { Err(wrong_proof()) }
    }

    /// Whether the other side has shown that it is none of the strangers who can reach a socket.
    pub fn is_proven(&self) -> bool {
        matches!(self.state, State::Proven(_) | State::Greeted(_) | State::Open { .. })
    }

    /// Bytes of the next frame, at most.
    pub fn frame_bytes_max(&self) -> u32 {
        match self.state {
            State::Open { .. } | State::Closed => self.settings.limits.frame_bytes_max,
            State::Proven(_) | State::Greeted(_) => self.settings.limits.handshake_bytes_max,
            State::Challenged(_) | State::Connected(_) | State::Proving(_) => STRANGER_BYTES_MAX,
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
            (State::Connected(_) | State::Proving(_) | State::Greeted(_), ToPeer::Refused(refusal)) => {
                if matches!(self.state, State::Proving(_)) && refusal.field == KEY {
                    out.push(Step::Event(PeerEvent::Replaced { machine: self.source }));
                }
                return Err(CloseReason::RefusedThere(refusal));
            }
            (State::Challenged(challenge), ToPeer::Prove(proof)) => self.answer(challenge, &proof, out)?,
            (State::Proven(nonces), ToPeer::Hello(hello)) => {
                self.check_hello(nonces, &hello).map_err(CloseReason::Refused)?;
                self.welcome(now, nonces, *hello, out);
            }
            (State::Connected(nonce), ToPeer::Challenge(challenge)) => {
                self.show(nonce, challenge, out).map_err(CloseReason::Refused)?;
            }
            (State::Proving(nonces), ToPeer::Proved { proof }) => {
                self.check(Party::Source, nonces, "", &proof).map_err(CloseReason::Refused)?;
                self.greet(nonces, out);
            }
            (State::Greeted(nonces), ToPeer::Welcome(welcome)) => self.enter(now, nonces, &welcome, out)?,
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

    /// Whoever has connected says that it knows the key.
    fn answer(&mut self, challenge: Nonce, shown: &PeerProof, out: &mut Out) -> Result<(), CloseReason> {
        if shown.key != self.name {
            return Err(CloseReason::Refused(Refusal::new(KEY, "another one", "one that is not known here")));
        }
        let nonces = Nonces { challenge, hello: shown.nonce };
        self.check(Party::Destination, nonces, "", &shown.proof).map_err(CloseReason::Refused)?;
        out.push(Step::Send(ToPeer::Proved { proof: self.prove(Party::Source, nonces, "") }));
        self.state = State::Proven(nonces);
        Ok(())
    }

    fn check_hello(&self, nonces: Nonces, hello: &PeerHello) -> Result<(), Refusal> {
        if hello.protocol != PROTOCOL {
            return Err(Refusal::new("protocol", PROTOCOL, hello.protocol));
        }
        let names = proof_names(hello.address.machine, self.source);
        self.check(Party::Destination, nonces, &names, &hello.proof)?;
        layout_refusal(&self.identity.layout, &hello.layout).map_or(Ok(()), Err)
    }

    fn welcome(&mut self, now: Time, nonces: Nonces, hello: PeerHello, out: &mut Out) {
        let Limits { ping_interval_ns, silence_limit_ns, .. } = self.settings.limits;
        let with = hello.address.machine;
        out.push(Step::Send(ToPeer::Welcome(PeerWelcome {
            protocol: PROTOCOL,
            machine: self.source,
            ping_interval_ns,
            silence_limit_ns,
            proof: self.prove(Party::Source, nonces, &proof_names(self.source, with)),
        })));
        self.state = State::Open { with, dialled: false };
        self.pulse = Pulse::new(now, ping_interval_ns, silence_limit_ns);
        out.push(Step::Event(PeerEvent::Open { machine: with, address: Some(hello.address) }));
    }

    /// Shows that it knows the key of the one that it looks for.
    fn show(&mut self, nonce: Nonce, challenge: Challenge, out: &mut Out) -> Result<(), Refusal> {
        if challenge.protocol != PROTOCOL {
            return Err(Refusal::new("protocol", PROTOCOL, challenge.protocol));
        }
        if challenge.secret != self.settings.secret.is_some() {
            let says = |there| if there { "a secret" } else { "no secret" };
            return Err(Refusal::new("secret", says(!challenge.secret), says(challenge.secret)));
        }
        let nonces = Nonces { challenge: challenge.nonce, hello: nonce };
        let proof = self.prove(Party::Destination, nonces, "");
        out.push(Step::Send(ToPeer::Prove(PeerProof { key: self.name, nonce, proof })));
        self.state = State::Proving(nonces);
        Ok(())
    }

    /// Says who it is to one who has shown to be the one that it looks for.
    fn greet(&mut self, nonces: Nonces, out: &mut Out) {
        let PeerIdentity { address, layout } = self.identity.clone();
        let names = proof_names(address.machine, self.source);
        let proof = self.prove(Party::Destination, nonces, &names);
        let hello = PeerHello { protocol: PROTOCOL, address, layout, proof };
        out.push(Step::Send(ToPeer::Hello(Box::new(hello))));
        self.state = State::Greeted(nonces);
    }

    fn enter(
        &mut self,
        now: Time,
        nonces: Nonces,
        welcome: &PeerWelcome,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if welcome.protocol != PROTOCOL {
            return Err(CloseReason::Refused(Refusal::new("protocol", PROTOCOL, welcome.protocol)));
        }
        let machine = welcome.machine;
        let names = proof_names(machine, self.identity.address.machine);
        self.check(Party::Source, nonces, &names, &welcome.proof).map_err(CloseReason::Refused)?;
        if welcome.silence_limit_ns <= welcome.ping_interval_ns {
            let what = "silence_limit is not above ping_interval";
            return Err(CloseReason::Incomplete { message: "welcome", what });
        }
        if machine != self.source {
            let refusal = Refusal::new("machine", proof_name(self.source), proof_name(machine));
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
            State::Challenged(_)
            | State::Proven(_)
            | State::Connected(_)
            | State::Proving(_)
            | State::Greeted(_) => self.deadline,
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
        let source = matches!(self.state, State::Challenged(_) | State::Proven(_));
        self.state = State::Closed;
        match &reason {
            CloseReason::Refused(refusal) if source => out.push(Step::Send(ToPeer::Refused(refusal.clone()))),
            CloseReason::ClosedThere(_) | CloseReason::RefusedThere(_) | CloseReason::Io(_) => {}
            reason => out.push(Step::Send(ToPeer::Close { reason: reason.to_string() })),
        }
        out.push(Step::Close(reason));
    }
}
