//! What is heard on the worker port. A worker that contradicts what is known loses its session, and nobody else anything.

use std::collections::{BTreeMap, HashMap};

use splitcore_core::cluster::{Cluster, MachineState};
use splitcore_core::error::EventError;
use splitcore_core::event::{ClusterEvent, Registration};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::leg::Work;
use splitcore_core::time::Time;
use splitcore_wire::given::{Given, Violation, kind};
use splitcore_wire::listen::{ConnectionId, Handle, Heard, What};
use splitcore_wire::message::{Descriptor, Hello, Refusal};
use splitcore_wire::roster::Standing;
use splitcore_wire::session::{CloseReason, DaemonEvent};

use super::Managed;
use crate::host::directory::Machine;
use crate::host::{Fault, Host, State};

impl Host {
    /// Takes in what has happened on a connection of a worker.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn hear(&self, heard: Heard) -> Result<(), Fault> {
        self.with(|state| {
            let now = state.begin()?;
            state.hear(now, heard)
        })
    }
}

/// How it stands with a machine.
fn standing(
    core: &Cluster,
    sessions: &HashMap<MachineId, (ConnectionId, Handle)>,
    machine: MachineId,
) -> Standing {
    let here = || core.load(machine.index).filter(|load| load.machine == machine);
    match sessions.get(&machine) {
        Some(_) => Standing::Here,
        None if here().is_some_and(|load| load.state != MachineState::Lost) => Standing::Away,
        None => Standing::Lost,
    }
}

impl Managed {
    /// Whether what a worker registers with agrees with what is known here. The Cluster has its own say.
    fn check(
        &self,
        core: &Cluster,
        connection: ConnectionId,
        registration: &Registration,
        descriptors: &BTreeMap<LegKey, Descriptor>,
    ) -> Result<(), Refused> {
        let member =
            self.roster.entering(connection.0).ok_or(Refused::Late("its place is another worker's"))?;
        let layout =
            self.roster.check_layout(&member.layout, |machine| standing(core, &self.sessions, machine));
        layout.map_err(|refusal| Refused::Session(CloseReason::Refused(refusal)))?;
        let wrong = |what| Violation { kind: "register", key: None, what };
        let capacity = u64::from(member.blocks) * u64::from(member.layout.block_tokens);
        if registration.join.kv_capacity_tokens > capacity {
            return Err(wrong("has a capacity of more KV tokens than its blocks").into());
        }
        let machine = registration.join.machine;
        let new = Given::new(member.blocks);
        let given = self.given.get(&machine).unwrap_or(&new);
        given.check_registration(registration, core.epoch())?;
        for claim in &registration.claims {
            let wrong = |what| Violation { kind: "register", key: Some(claim.key), what };
            let Some(entry) = self.book.get(claim.key.request.0) else { continue };
            if registration.epoch != core.epoch() && !entry.adopted {
                return Err(wrong("is claimed from an earlier service and has begun with this one").into());
            }
            let told = descriptors.get(&claim.key);
            if told.is_some_and(|descriptor| !entry.is_of(descriptor, client_prompt(&claim.work))) {
                return Err(wrong("is described otherwise than it is known").into());
            }
        }
        Ok(())
    }
}

/// Why a registration is not taken.
enum Refused {
    /// As things stand, by which the worker need not have done anything wrong.
    Late(&'static str),
    Session(CloseReason),
    Violation(Violation),
    Event(EventError),
}

impl From<Violation> for Refused {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl Refused {
    fn reason(&self) -> String {
        match self {
            Self::Late(what) => (*what).to_owned(),
            Self::Session(reason) => reason.to_string(),
            Self::Violation(violation) => violation.to_string(),
            Self::Event(error) => error.to_string(),
        }
    }

    /// A machine that was replaced or given up meanwhile may not know so.
    fn is_violation(&self) -> bool {
        match self {
            Self::Late(_) | Self::Session(_) => false,
            Self::Violation(_) => true,
            Self::Event(error) => !matches!(error, EventError::MachineTaken(_) | EventError::StaleCluster(_)),
        }
    }
}

/// By what a worker has broken the order of the protocol, if that is why its session is over.
fn broken(reason: &CloseReason) -> Option<&'static str> {
    match reason {
        CloseReason::Frame(_) => Some("frame"),
        CloseReason::Unexpected { message, .. } | CloseReason::Incomplete { message, .. } => Some(message),
        CloseReason::Claim { .. } | CloseReason::Claims { .. } => Some("register"),
        CloseReason::Pong { .. } => Some("pong"),
        _ => None,
    }
}

/// Whether people hear of a refusal elsewhere, or need not: what strangers get wrong would fill the log.
fn is_told(refusal: &Refusal) -> bool {
    !["model", "context", "epoch"].contains(&refusal.field.as_str())
}

/// Tokens of a prompt that are the client's own.
fn client_prompt(work: &Work) -> usize {
    work.prompt_tokens.saturating_sub(work.terms.resumed_tokens) as usize
}

impl State {
    fn hear(&mut self, now: Time, Heard { connection, what }: Heard) -> Result<(), Fault> {
        match what {
            What::Hello { hello, from, handle } => self.hello(connection, &hello, &from, handle),
            What::Event(DaemonEvent::Register { registration, descriptors }) => {
                self.register(now, connection, *registration, &descriptors)?;
            }
            What::Event(DaemonEvent::Hello(_)) => {}
            What::Event(DaemonEvent::Leave) => self.leaves(now, connection)?,
            What::Event(said) => self.said(now, connection, said)?,
            // Before the host had its say: whose model is another, or takes too few positions.
            What::Closed { reason: CloseReason::Refused(refusal) } if !is_told(&refusal) => {
                let reason = refusal.to_string();
                tracing::warn!(reason, "a connection to the worker port is refused");
                self.closed(now, connection, &reason)?;
            }
            What::Closed { reason } => match broken(&reason).filter(|_| self.is_let_in(connection)) {
                Some(kind) => self.contradicts(now, connection, kind, &reason.to_string())?,
                None => self.closed(now, connection, &reason.to_string())?,
            },
        }
        Ok(())
    }

    fn is_let_in(&self, connection: ConnectionId) -> bool {
        self.managed.as_ref().is_some_and(|managed| managed.let_in.contains_key(&connection))
    }

    fn hello(&mut self, connection: ConnectionId, hello: &Hello, from: &str, handle: Handle) {
        let is_recovering = self.core.is_recovering();
        let Some(managed) = &mut self.managed else { return };
        if is_recovering && hello.index.is_none() {
            // Its place may be that of one who has yet to come back. It tries again.
            handle.close("the service has restarted and lets in those first who had a place");
            return;
        }
        let Managed { roster, sessions, .. } = managed;
        match roster.enter(connection.0, hello, from, |machine| standing(&self.core, sessions, machine)) {
            Ok(machine) => {
                handle.welcome(machine);
                managed.let_in.insert(connection, (machine, handle));
            }
            Err(refusal) => {
                tracing::warn!(
                    worker = hello.name,
                    from,
                    reason = refusal.to_string(),
                    "a worker is refused"
                );
                handle.refuse(refusal);
            }
        }
    }

    /// The machine of a connection whose session is the present one.
    fn speaker(&self, connection: ConnectionId) -> Option<MachineId> {
        let managed = self.managed.as_ref()?;
        let &(machine, _) = managed.let_in.get(&connection)?;
        let (current, _) = managed.sessions.get(&machine)?;
        (*current == connection).then_some(machine)
    }

    /// A notice or tokens of a worker, if its session is the present one.
    fn said(&mut self, now: Time, connection: ConnectionId, said: DaemonEvent) -> Result<(), Fault> {
        let Some(from) = self.speaker(connection) else { return Ok(()) };
        let Some(managed) = &mut self.managed else { return Ok(()) };
        let Some(given) = managed.given.get_mut(&from) else { return Ok(()) };
        let checked = match &said {
            DaemonEvent::Notice(notice) => given.notice(notice).map(|()| kind(notice)),
            DaemonEvent::Tokens(tokens) => given.tokens(tokens).map(|()| "tokens"),
            DaemonEvent::Hello(_) | DaemonEvent::Register { .. } | DaemonEvent::Leave => return Ok(()),
        };
        let (kind, taken) = match (checked, said) {
            (Err(violation), _) => {
                return self.contradicts(now, connection, violation.kind, &violation.to_string());
            }
            (Ok(kind), DaemonEvent::Notice(notice)) => (kind, self.notice(now, from, notice)),
            (Ok(kind), DaemonEvent::Tokens(tokens)) => (kind, self.tokens(now, from, &tokens)),
            (Ok(_), _) => return Ok(()),
        };
        match taken {
            Err(Fault::Event(error)) => self.contradicts(now, connection, kind, &error.to_string()),
            other => other,
        }
    }

    /// Ends a session whose worker says what cannot be. What it has sent besides is not heard any more.
    fn contradicts(
        &mut self,
        now: Time,
        connection: ConnectionId,
        kind: &'static str,
        reason: &str,
    ) -> Result<(), Fault> {
        let Some(managed) = &mut self.managed else { return Ok(()) };
        *managed.violations.entry(kind).or_default() += 1;
        if let Some((_, handle)) = managed.let_in.get(&connection) {
            handle.close(reason);
        }
        self.closed(now, connection, reason)
    }

    /// What a worker registers with is checked whole, here and by the Cluster, before anything changes.
    fn register(
        &mut self,
        now: Time,
        connection: ConnectionId,
        registration: Registration,
        descriptors: &BTreeMap<LegKey, Descriptor>,
    ) -> Result<(), Fault> {
        let Some(managed) = &self.managed else { return Ok(()) };
        if !managed.let_in.contains_key(&connection) {
            return Ok(());
        }
        let checked = managed.check(&self.core, connection, &registration, descriptors);
        let event = ClusterEvent::Register(registration);
        let taken = checked.and_then(|()| match self.handle(now, &event) {
            Ok(_) => Ok(()),
            Err(error) => Err(Refused::Event(error)),
        });
        let ClusterEvent::Register(registration) = event else { return Ok(()) };
        match taken {
            Ok(()) => {
                self.registered(now, connection, &registration, descriptors);
                Ok(())
            }
            Err(refused) => self.refuse_registration(now, connection, &refused),
        }
    }

    fn refuse_registration(
        &mut self,
        now: Time,
        connection: ConnectionId,
        refused: &Refused,
    ) -> Result<(), Fault> {
        let reason = refused.reason();
        let Some(managed) = &mut self.managed else { return Ok(()) };
        let name = managed.roster.entering(connection.0).map_or("", |member| &member.name);
        tracing::warn!(worker = name, reason, "a registration is refused");
        if refused.is_violation() {
            return self.contradicts(now, connection, "register", &reason);
        }
        if let Some((_, handle)) = managed.let_in.get(&connection) {
            handle.close(&reason);
        }
        self.closed(now, connection, &reason)
    }

    /// The Cluster has taken a registration.
    fn registered(
        &mut self,
        now: Time,
        connection: ConnectionId,
        registration: &Registration,
        descriptors: &BTreeMap<LegKey, Descriptor>,
    ) {
        self.adopt(now, registration, descriptors);
        let Some(managed) = &mut self.managed else { return };
        let Some((machine, handle)) = managed.let_in.get(&connection).cloned() else { return };
        managed.sessions.retain(|id, (_, old)| {
            let stays = id.index != machine.index;
            if !stays {
                old.close("another session has begun");
            }
            stays
        });
        managed.given.retain(|id, _| id.index != machine.index || *id == machine);
        managed.sessions.insert(machine, (connection, handle));
        let Some(member) = managed.roster.register(connection.0) else { return };
        let (name, blocks) = (member.name.clone(), member.blocks);
        managed.given.entry(machine).or_insert_with(|| Given::new(blocks)).register(registration);
        managed.watch.machine(machine.index, blocks);
        managed.watch.report(machine.index, &registration.report);
        let claims = registration.claims.len();
        tracing::info!(worker = name, index = machine.index, claims, "a worker has registered");
        self.machines.set(machine.index, Machine { name, url: None });
        self.keep(None);
    }

    /// Takes down what a worker has described, of what the Cluster knows now: of others it is for nothing.
    fn adopt(&mut self, now: Time, registration: &Registration, descriptors: &BTreeMap<LegKey, Descriptor>) {
        let Some(managed) = &mut self.managed else { return };
        for claim in &registration.claims {
            let Some(descriptor) = descriptors.get(&claim.key) else { continue };
            let Some(delivered) = self.core.delivered(claim.key.request) else { continue };
            let request = claim.key.request.0;
            if managed.book.adopt(request, descriptor, client_prompt(&claim.work), delivered, now) {
                self.live.entry(request).or_insert(None);
            }
        }
    }

    /// A worker is to be stopped: what it has goes on elsewhere.
    fn leaves(&mut self, now: Time, connection: ConnectionId) -> Result<(), Fault> {
        let Some(machine) = self.speaker(connection) else { return Ok(()) };
        if let Some(managed) = &mut self.managed {
            managed.leaving.insert(machine);
        }
        let name = self.machines.at(machine.index).map_or("", |machine| &machine.name);
        tracing::info!(worker = name, "a worker leaves: what it has goes on elsewhere");
        let _ = self.handle(now, &ClusterEvent::Leave { machine })?;
        self.keep(None);
        Ok(())
    }

    fn closed(&mut self, now: Time, connection: ConnectionId, reason: &str) -> Result<(), Fault> {
        let Some(managed) = &mut self.managed else { return Ok(()) };
        managed.roster.leave(connection.0);
        let Some((machine, _)) = managed.let_in.remove(&connection) else {
            tracing::debug!(reason, "a connection to the worker port ended");
            return Ok(());
        };
        if managed.sessions.get(&machine).is_none_or(|(current, _)| *current != connection) {
            return Ok(());
        }
        managed.sessions.remove(&machine);
        managed.leaving.remove(&machine);
        let name = managed.roster.member(machine.index).map_or("", |member| &member.name);
        tracing::warn!(worker = name, reason, "a worker's session ended");
        let _ = self.handle(now, &ClusterEvent::Disconnect { machine })?;
        self.keep(None);
        Ok(())
    }
}
