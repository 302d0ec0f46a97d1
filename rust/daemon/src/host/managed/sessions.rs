//! What is heard on the worker port.

use std::collections::BTreeMap;

use splitcore_core::event::{ClusterEvent, Registration};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::time::Time;
use splitcore_wire::listen::{ConnectionId, Handle, Heard, What};
use splitcore_wire::message::{Descriptor, Hello};
use splitcore_wire::session::DaemonEvent;

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

impl State {
    fn hear(&mut self, now: Time, Heard { connection, what }: Heard) -> Result<(), Fault> {
        match what {
            What::Hello { hello, handle } => self.hello(connection, &hello, handle),
            What::Event(DaemonEvent::Register { registration, descriptors }) => {
                self.register(now, connection, *registration, &descriptors);
            }
            What::Event(DaemonEvent::Hello(_)) => {}
            What::Event(DaemonEvent::Notice(notice)) => {
                if let Some((from, handle)) = self.speaker(connection) {
                    let taken = self.notice(now, from, notice);
                    answer_for(taken, &handle)?;
                }
            }
            What::Event(DaemonEvent::Tokens(tokens)) => {
                if let Some((from, handle)) = self.speaker(connection) {
                    let taken = self.tokens(now, from, &tokens);
                    answer_for(taken, &handle)?;
                }
            }
            What::Event(DaemonEvent::Leave) => self.leaves(now, connection)?,
            What::Closed { reason } => self.closed(now, connection, &reason.to_string())?,
        }
        Ok(())
    }

    fn hello(&mut self, connection: ConnectionId, hello: &Hello, handle: Handle) {
        let is_recovering = self.core.is_recovering();
        let Some(managed) = &mut self.managed else { return };
        if is_recovering && hello.index.is_none() {
            // Its place may be that of one who has yet to come back. It tries again.
            handle.close("the service has restarted and lets in those first who had a place");
            return;
        }
        match managed.roster.enter(hello) {
            Ok(machine) => {
                handle.welcome(machine);
                managed.watch.machine(machine.index, hello.blocks);
                managed.let_in.insert(connection, (machine, handle));
            }
            Err(refusal) => {
                tracing::warn!(worker = hello.name, %refusal, "a worker is refused");
                handle.refuse(refusal);
            }
        }
    }

    /// The machine of a connection whose session is the present one.
    fn speaker(&self, connection: ConnectionId) -> Option<(MachineId, Handle)> {
        let managed = self.managed.as_ref()?;
        let (machine, handle) = managed.let_in.get(&connection)?;
        let (current, _) = managed.sessions.get(machine)?;
        (*current == connection).then(|| (*machine, handle.clone()))
    }

    fn register(
        &mut self,
        now: Time,
        connection: ConnectionId,
        registration: Registration,
        descriptors: &BTreeMap<LegKey, Descriptor>,
    ) {
        let Some(managed) = &mut self.managed else { return };
        let Some((machine, handle)) = managed.let_in.get(&connection).cloned() else { return };
        managed.sessions.retain(|id, (_, old)| {
            let stays = id.index != machine.index;
            if !stays {
                old.close("another session has begun");
            }
            stays
        });
        managed.sessions.insert(machine, (connection, handle.clone()));
        managed.watch.report(machine.index, &registration.report);
        let name =
            managed.roster.member(machine.index).map_or_else(String::new, |member| member.name.clone());
        tracing::info!(
            worker = name,
            index = machine.index,
            claims = registration.claims.len(),
            "a worker has registered"
        );
        self.machines.set(machine.index, Machine { name, url: None });
        let described = self.adopt(now, &registration, descriptors);
        let event = ClusterEvent::Register(registration);
        let taken = self.handle(now, &event);
        match taken {
            Ok(_) => self.keep(None),
            Err(error) => {
                tracing::warn!(%error, "a registration contradicts the books");
                handle.close(&error.to_string());
                if let Some(managed) = &mut self.managed {
                    managed.sessions.remove(&machine);
                }
            }
        }
        for request in described {
            self.settle_adopted(request);
        }
    }

    /// Takes down what a worker describes, before the Cluster has its say. Returns whose were new.
    fn adopt(
        &mut self,
        now: Time,
        registration: &Registration,
        descriptors: &BTreeMap<LegKey, Descriptor>,
    ) -> Vec<u64> {
        let Some(managed) = &mut self.managed else { return Vec::new() };
        let mut described = Vec::new();
        for (key, descriptor) in descriptors {
            let claim = registration.claims.iter().find(|claim| claim.key == *key);
            let Some(claim) = claim else { continue };
            let prompt_tokens = claim.work.prompt_tokens.saturating_sub(claim.work.terms.resumed_tokens);
            if managed.book.adopt(key.request.0, descriptor, prompt_tokens as usize, now) {
                described.push(key.request.0);
            }
        }
        described
    }

    /// What the Cluster has not taken over is over.
    fn settle_adopted(&mut self, request: u64) {
        let Some(managed) = &mut self.managed else { return };
        if self.core.attempt(splitcore_core::id::RequestId(request)).is_some() {
            self.live.entry(request).or_insert(None);
        } else {
            managed.book.forget(request);
        }
    }

    /// A worker is to be stopped: what it has goes on elsewhere.
    fn leaves(&mut self, now: Time, connection: ConnectionId) -> Result<(), Fault> {
        let Some((machine, _)) = self.speaker(connection) else { return Ok(()) };
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

/// A worker that contradicts the books loses its session, and nobody else anything.
fn answer_for(taken: Result<(), Fault>, handle: &Handle) -> Result<(), Fault> {
    match taken {
        Err(Fault::Event(error)) => {
            tracing::warn!(%error, "a worker's word contradicts the books");
            handle.close(&error.to_string());
            Ok(())
        }
        other => other,
    }
}
