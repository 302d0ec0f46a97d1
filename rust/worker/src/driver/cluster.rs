//! With the daemon: registrations, commands, and the tokens that it is given.

use std::collections::BTreeMap;

use splitcore_core::event::{Held, Join, MachineEvent, Registration};
use splitcore_core::id::LegKey;
use splitcore_core::leg::Command;
use splitcore_wire::link::LinkEvent;
use splitcore_wire::message::{Assigned, Descriptor, Tokens, Welcome};
use splitcore_wire::session::{CloseReason, WorkerEvent};

use super::Life;
use crate::inbox::End;

/// A daemon that closes so many sessions in a row on a registration does not take this machine back.
const REFUSED_MAX: u32 = 3;

/// What no other try mends. Another worker may have the place by now, where a new daemon met that one first, and then
/// this one needs another place. One that was in session before waits for a daemon that is set up as the last one was.
pub(super) fn end_of(reason: &CloseReason, had_place: bool) -> Option<End> {
    let (CloseReason::RefusedThere(refusal) | CloseReason::Refused(refusal)) = reason else { return None };
    match refusal.field.as_str() {
        "incarnation" => Some(End::Failed(format!("another worker has this name: {refusal}"))),
        "index" | "name" if had_place => Some(End::GivenUp(format!("the place is taken: {refusal}"))),
        _ if refusal.permanent && !had_place => Some(End::Refused(reason.to_string())),
        _ => None,
    }
}

impl Life<'_> {
    pub(super) fn hear_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Lost { reason, .. } => self.lose_session(&reason),
            LinkEvent::Session(WorkerEvent::Welcome(welcome)) => self.register(&welcome),
            LinkEvent::Session(WorkerEvent::Registered { epoch }) => {
                (self.in_session, self.registering, self.refused) = (true, false, 0);
                self.orphaned = false;
                self.losses.forget(None);
                self.board.count(|stats| stats.sessions += 1);
                self.options.log.line(&format!("in session with the daemon, epoch {}", epoch.0));
                let _ = self.tell(&MachineEvent::Registered { epoch });
            }
            LinkEvent::Session(WorkerEvent::Command { epoch, assigned }) => {
                let key = assigned.key();
                let Assigned { seq, command, descriptor, peer } = *assigned;
                if epoch >= self.machine.epoch() {
                    // One that has been replaced would have the Machine refuse it, and may not change these either.
                    // A new daemon may not have met a machine yet that is known here.
                    if let Some(peer) = peer.filter(|peer| !peer.peer.is_empty()) {
                        self.addresses.insert(peer.machine, peer);
                    }
                    if let Some(descriptor) = descriptor {
                        let is_here = self.machine.leg(key).is_some();
                        self.contexts.learn(&command, descriptor, is_here);
                    }
                }
                if matches!(command, Command::Compute { .. }) {
                    self.early.remove(&key);
                }
                if let Err(error) = self.tell(&MachineEvent::Command { epoch, seq, command }) {
                    // The daemon's books are wrong, and other requests are not to pay for that.
                    self.options.log.line(&format!("a command is refused: {error}"));
                }
            }
        }
    }

    /// What is here goes on elsewhere; then the daemon ends the session. Without one there is nobody to hand anything to.
    pub(super) fn leave(&mut self) {
        if std::mem::replace(&mut self.leaving, true) {
            return;
        }
        self.options.log.line("leaving: what is here goes on elsewhere");
        if !self.link.leave() {
            self.end = Some(End::Stopped);
        }
    }

    fn lose_session(&mut self, reason: &CloseReason) {
        if self.leaving {
            self.options.log.line(&format!("left: {reason}"));
            self.end = Some(End::Stopped);
            return;
        }
        let closed = std::mem::take(&mut self.registering) && matches!(reason, CloseReason::ClosedThere(_));
        self.refused = if closed { self.refused + 1 } else { self.refused };
        self.in_session = false;
        self.losses.tell(&self.options.log, None, reason);
        self.end = end_of(reason, true);
        if self.refused >= REFUSED_MAX {
            self.end = Some(End::GivenUp(format!("the daemon does not take this machine back: {reason}")));
        }
        self.contexts.mute();
        // It has heard so at the first of many tries.
        if !std::mem::replace(&mut self.orphaned, true) {
            let _ = self.tell(&MachineEvent::ClusterLost);
        }
    }

    pub(super) fn register(&mut self, welcome: &Welcome) {
        let (epoch, claims) = (self.machine.epoch(), self.machine.claims());
        let mut described = BTreeMap::<LegKey, Descriptor>::new();
        if welcome.epoch != epoch {
            for claim in claims.iter().filter(|claim| claim.held != Held::Closing) {
                let Some(context) = self.contexts.get(claim.key) else {
                    return self.fail(format!("nothing is known of request {}", claim.key.request.0));
                };
                described.insert(claim.key, context.descriptor().clone());
            }
        }
        let join = Join {
            machine: welcome.machine,
            role: self.options.role,
            kv_capacity_tokens: self.machine.config().capacity_tokens(),
            speed_weight: 1,
            link: None,
            costs: None,
        };
        let registration = Registration { join, epoch, report: self.machine.report(), claims };
        self.registering = true;
        self.link.register(registration, described);
    }

    pub(super) fn resend(&mut self, key: LegKey, delivered: u32) {
        let Some(context) = self.contexts.get_mut(key) else {
            return self.fail(format!("nothing is known of request {}", key.request.0));
        };
        if let Some(tokens) = context.resend(key, delivered) {
            self.give(tokens);
        }
    }

    /// A leg has output tokens from `first` on that it had not before.
    pub(super) fn give_news(&mut self, key: LegKey, first: u32) {
        let in_session = self.in_session;
        let news = self.contexts.get_mut(key).and_then(|context| context.news(key, first, in_session));
        if let Some(tokens) = news {
            self.give(tokens);
        }
    }

    /// What is lost with a session that breaks is given again in the next.
    fn give(&self, tokens: Tokens) {
        self.link.tokens(tokens);
    }
}
