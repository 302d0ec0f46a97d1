//! With other machines: grants, tokens and KV, of legs that come here and of legs that go.

use splitcore_core::error::Applied;
use splitcore_core::event::{MachineEvent, Put};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::BlockId;
use splitcore_core::leg::{Inbound, Peer};
use splitcore_wire::message::{GrantBody, PeerAddress, Tokens};
use splitcore_wire::peers::PeersEvent;

use super::Life;
use crate::contexts::Context;
use crate::mover::MoverEvent;

/// A leg whose KV is to come.
#[derive(Debug)]
pub(super) struct Incoming {
    source: MachineId,
    /// The source may have heard of the grant.
    said: bool,
    /// Of how many layers all are here.
    whole: Option<u16>,
    /// Aborts that the source has yet to answer.
    aborts: u32,
}

/// A grant whose leg is not here yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Early {
    from: MachineId,
    blocks: u32,
}

impl Life<'_> {
    pub(super) fn hear_peers(&mut self, event: PeersEvent) {
        match event {
            PeersEvent::Open { machine, address } => self.open(machine, address),
            PeersEvent::Replaced { machine } => self.lose_peer(machine),
            PeersEvent::Message { from, message, grant } => self.hear_peer(from, message, grant.as_ref()),
            PeersEvent::Tokens { from, tokens } => self.follow(from, &tokens),
            PeersEvent::Lost { machine, reason, .. } => {
                self.losses.tell(&self.options.log, Some(machine), &reason);
                // Whoever died before a byte was sent is known to be dead no other way.
                if let Some(address) = self.addresses.get(&machine) {
                    self.mover.doubt(address);
                }
            }
        }
    }

    fn open(&mut self, machine: MachineId, address: Option<PeerAddress>) {
        let Some(address) = address else {
            self.losses.forget(Some(machine));
            // Dialled from here: what is said again is said anew, and answers to what was said before are lost.
            for incoming in self.incoming.values_mut().filter(|incoming| incoming.source == machine) {
                incoming.aborts = 0;
            }
            let _ = self.tell(&MachineEvent::PeerReset { machine });
            // The Machine drops what that one has granted, which came in the other session and is not lost.
            let early: Vec<_> = self.early.iter().filter(|(_, early)| early.from == machine).collect();
            let early: Vec<_> = early.into_iter().map(|(&key, &early)| (key, early)).collect();
            for (key, Early { from, blocks }) in early {
                let _ = self.tell(&MachineEvent::Peer { from, message: Peer::Grant { key, blocks } });
            }
            return;
        };
        self.addresses.insert(machine, address);
        self.early.retain(|_, early| early.from != machine);
        let _ = self.tell(&MachineEvent::PeerReset { machine });
    }

    /// It is dead, and neither reads nor writes.
    fn lose_peer(&mut self, machine: MachineId) {
        self.early.retain(|_, early| early.from != machine);
        let _ = self.tell(&MachineEvent::PeerLost { machine });
        self.peers.gone(machine);
        self.losses.forget(Some(machine));
    }

    fn hear_peer(&mut self, from: MachineId, message: Peer, grant: Option<&GrantBody>) {
        match message {
            Peer::Grant { key, blocks } => {
                if let (Some(to), Some(body)) = (self.addresses.get(&from), grant) {
                    self.mover.granted(key, to, body);
                    self.outgoing.insert(key);
                }
                if self.machine.leg(key).is_none() {
                    self.early.insert(key, Early { from, blocks });
                }
                let _ = self.tell(&MachineEvent::Peer { from, message });
                // It may have missed what was drawn.
                self.give_to_destination(key, from);
                return;
            }
            Peer::Landed { key } => {
                self.early.remove(&key);
                // Where its pass still runs, nothing was waited for.
                let exposed_ns = self.prefilled.get(&key).map_or(0, |&since| self.now().since(since));
                if self.tell(&MachineEvent::Peer { from, message }) == Ok(Applied::Yes) {
                    self.board.count(|stats| stats.transferred(exposed_ns));
                }
                return;
            }
            Peer::Abort { key } => drop(self.early.remove(&key)),
            Peer::AbortAck { key } => {
                // Only the answer to the last abort is about what is there now: a leg can come again by the same name.
                let Some(incoming) = self.incoming.get_mut(&key).filter(|of| of.source == from) else {
                    return;
                };
                let left = incoming.aborts.checked_sub(1);
                incoming.aborts = left.unwrap_or(0);
                if left != Some(0) {
                    return;
                }
            }
        }
        let _ = self.tell(&MachineEvent::Peer { from, message });
    }

    /// Gives the destination of a leg the tokens that were drawn here: without the first it cannot go on.
    pub(super) fn give_to_destination(&mut self, key: LegKey, to: MachineId) {
        let Some(context) = self.contexts.get(key) else { return };
        let goes_on = !context.is_over(self.options.bounds) && self.machine.leg_peers(key).1 == Some(to);
        if let Some(tokens) = context.drawn(key).filter(|_| goes_on) {
            self.peers.tokens(to, tokens);
        }
    }

    /// The source of a leg has drawn its first token.
    fn follow(&mut self, from: MachineId, tokens: &Tokens) {
        let key = tokens.key;
        if self.machine.leg_peers(key).0 != Some(from) || !self.awaits(key) {
            return;
        }
        if let Some(context) = self.contexts.get_mut(key) {
            context.follow(tokens);
            self.land(key);
        }
    }

    /// Whether a leg has yet to get all of its KV.
    fn awaits(&self, key: LegKey) -> bool {
        let leg = self.machine.leg(key);
        leg.is_some_and(|(state, _)| matches!(state.inbound, Inbound::Reserved | Inbound::Receiving))
    }

    /// A leg has landed when its bytes and its token are here. Then the daemon gets the token from here as well: the
    /// source may be gone, and its word with it.
    fn land(&mut self, key: LegKey) {
        let Some(of) = self.incoming.get(&key).and_then(|incoming| incoming.whole) else { return };
        let Some(context) = self.contexts.get(key) else { return };
        if context.lacks_first() || !self.awaits(key) {
            return;
        }
        self.give_news(key, context.resumed());
        let _ = self.tell(&MachineEvent::LayersLanded { key, layers: of, of });
    }

    pub(super) fn hear_mover(&mut self, event: MoverEvent) {
        if !self.mover.is_current(&event) {
            return;
        }
        match event {
            MoverEvent::Landed { key, layers, of, .. } => {
                let Some(incoming) = self.incoming.get_mut(&key) else { return };
                if layers == of {
                    incoming.whole = Some(of);
                    self.land(key);
                } else {
                    let _ = self.tell(&MachineEvent::LayersLanded { key, layers, of });
                }
            }
            MoverEvent::LocalDone { key, .. } => drop(self.tell(&MachineEvent::LocalDone { key })),
            MoverEvent::Failed { key, reason, .. } => {
                let request = key.request.0;
                self.options.log.line(&format!("the transfer of request {request} fails: {reason}"));
                self.board.count(|stats| stats.transfers_failed += 1);
                let _ = self.tell(&MachineEvent::TransferFailed { key });
            }
            MoverEvent::Fenced { key, .. } => self.fence(key),
            MoverEvent::PeerLost { machine } => self.lose_peer(machine),
        }
    }

    /// Nothing is read or written for a leg any more. Of one that was to come here the transport knows that as well as
    /// its source.
    fn fence(&mut self, key: LegKey) {
        let event = match self.incoming.get(&key) {
            Some(incoming) => MachineEvent::Peer { from: incoming.source, message: Peer::AbortAck { key } },
            None => MachineEvent::Fenced { key },
        };
        let _ = self.tell(&event);
    }

    /// What the Machine wants said to another.
    pub(super) fn say(&mut self, to: MachineId, message: Peer) {
        match message {
            Peer::Grant { key, .. } => self.grant(to, key, message),
            Peer::AbortAck { .. } => self.peers.answer(to, message),
            Peer::Landed { .. } => self.say_to_source(to, message, None),
            Peer::Abort { key } => {
                let Some(incoming) = self.incoming.get_mut(&key) else { return };
                if !incoming.said {
                    // Nobody knows of the grant, and so nobody writes.
                    return self
                        .events
                        .push_back(MachineEvent::Peer { from: to, message: Peer::AbortAck { key } });
                }
                incoming.aborts += 1;
                self.mover.abort(key);
                self.say_to_source(to, message, None);
            }
        }
    }

    fn say_to_source(&self, to: MachineId, message: Peer, grant: Option<GrantBody>) {
        if let Some(address) = self.addresses.get(&to) {
            self.peers.say(address, message, grant);
        }
    }

    fn grant(&mut self, to: MachineId, key: LegKey, message: Peer) {
        let mut incoming = Incoming { source: to, said: false, whole: None, aborts: 0 };
        let blocks: Vec<BlockId> =
            self.machine.leg(key).map(|(_, table)| table.blocks().to_vec()).unwrap_or_default();
        let tokens = self.contexts.get(key).map_or(0, Context::start);
        if let Some(address) = self.addresses.get(&to) {
            match self.mover.open(key, address, &blocks, tokens) {
                Ok(transfer) => {
                    incoming.said = true;
                    let blocks = blocks.iter().map(|block| block.0).collect();
                    self.peers.say(address, message, Some(GrantBody { blocks, transfer }));
                }
                Err(error) => {
                    let request = key.request.0;
                    self.options
                        .log
                        .line(&format!("request {request} cannot come from {}: {error}", to.index));
                }
            }
        }
        self.incoming.entry(key).and_modify(|known| known.said |= incoming.said).or_insert(incoming);
    }

    /// What has become of legs that were to come: the mover lets go of those that have landed or are gone.
    pub(super) fn look_at_incoming(&mut self) {
        let Self { incoming, machine, mover, .. } = self;
        incoming.retain(|&key, _| {
            let state = machine.leg(key).map(|(state, _)| state.inbound);
            let stays = matches!(state, Some(Inbound::Reserved | Inbound::Receiving | Inbound::Draining));
            if !stays {
                mover.close(key);
            }
            stays
        });
    }

    /// A transfer that starts after its pass, or with it.
    pub(super) fn put(&mut self, put: &Put) {
        let Some((_, table)) = self.machine.leg(put.key) else { return };
        self.outgoing.insert(put.key);
        self.mover.put(put.key, put.to, table.blocks(), put.tokens);
        self.give_to_destination(put.key, put.to);
    }
}
