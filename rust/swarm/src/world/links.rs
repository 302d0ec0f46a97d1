//! Sessions: between a machine and a Cluster, and between two machines. Each is in order and exactly once; one that
//! breaks loses a suffix of what is on its way in each direction, and each side notices at its own time.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use splitcore_core::event::{ClusterEvent, Join, MachineAction, MachineEvent, Registration};
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Command, Notice, Peer};
use splitcore_core::machine::Machine;

use super::{Event, Host, Node, World};

/// What a session carries.
#[derive(Debug, Clone)]
pub(super) enum Message {
    /// With the prompt it is about, if it brings one.
    Command {
        epoch: Epoch,
        seq: AssignmentSeq,
        command: Command,
        owner: Option<usize>,
    },
    Registered(Epoch),
    /// A registration is refused: the machine counts as lost, or has spoken to a later Cluster.
    Turned {
        taken: bool,
    },
    Notice(Notice),
    /// An output token on its way to the gateway.
    Token {
        key: LegKey,
        index: u32,
        owner: usize,
    },
    Join(Join),
    Register {
        registration: Box<Registration>,
        owners: BTreeMap<LegKey, usize>,
        /// Whether the machine still has all that it had when it lost its Cluster.
        intact: bool,
    },
    Peer(Peer),
    /// What follows is of a new session.
    Reset,
    /// What follows would be of a machine that is gone.
    Lost,
}

impl Message {
    /// Whether it may name a request.
    pub(super) fn is_about(&self, request: RequestId) -> bool {
        let (Self::Command { .. } | Self::Notice(_) | Self::Token { .. } | Self::Peer(_)) = self else {
            return matches!(self, Self::Register { .. });
        };
        let text = format!("{self:?}");
        text.contains(&format!("{request:?}"))
    }
}

impl World {
    pub(super) fn delay(&mut self) -> u64 {
        let (low, high) = self.setup.delay_ns;
        self.rng.within(low, high)
    }

    pub(super) fn send(&mut self, from: Node, to: Node, session: u64, message: Message) {
        if session > 0 && self.broken.contains(&session) {
            return;
        }
        if let (Node::Machine(at), Node::Machine(other)) = (from, to) {
            if self.machine(other).is_none() {
                // The driver finds that nobody answers under that incarnation.
                let when = self.now + self.delay();
                return self.push(when, Event::PeerLost { at, lost: other });
            }
            if self.void.contains(&(at, other)) {
                return;
            }
        }
        self.wires.entry((from, to, session)).or_default().push_back(message);
        let when = self.now + self.delay();
        self.push(when, Event::Deliver(from, to, session));
    }

    pub(super) fn machine_acts(&mut self, id: MachineId, action: MachineAction) {
        match action {
            MachineAction::Notify { notice } => self.say(id, Message::Notice(notice)),
            MachineAction::Peer { to, message } => {
                self.note_grant(id, &message);
                self.send(Node::Machine(id), Node::Machine(to), 0, Message::Peer(message));
            }
            MachineAction::Run { pass } => self.run_pass(id, pass),
            MachineAction::Put(put) => self.put(id, put, None),
            MachineAction::StopPut { key } => self.stop_put(id, key),
            MachineAction::Resend { key, delivered } => self.resend(id, key, delivered),
        }
    }

    /// A machine says something to its Cluster, if it has one.
    pub(super) fn say(&mut self, id: MachineId, message: Message) {
        if let Some(session) = self.place(id).and_then(|place| place.session) {
            let (_, host) = self.sessions[session as usize - 1];
            self.send(Node::Machine(id), Node::Cluster(host), session, message);
        }
    }

    pub(super) fn deliver(&mut self, from: Node, to: Node, session: u64) {
        let wire = self.wires.get_mut(&(from, to, session));
        let Some(message) = wire.and_then(VecDeque::pop_front) else { return };
        match (from, to) {
            (Node::Machine(from), Node::Cluster(host)) => self.cluster_hears(host, from, session, message),
            (Node::Cluster(_), Node::Machine(id)) => self.machine_hears(id, session, message),
            (Node::Machine(from), Node::Machine(id)) => self.peer_hears(id, from, message),
            (from, to) => panic!("{message:?} from {from:?} to {to:?}"),
        }
    }

    fn cluster_hears(&mut self, host: usize, from: MachineId, session: u64, message: Message) {
        if !self.hosts[host].alive {
            return;
        }
        let current = self.hosts[host].sessions.get(&from).copied();
        if matches!(message, Message::Join(_) | Message::Register { .. }) {
            if current.is_some_and(|current| current > session) {
                self.out.counters.late_copies += 1;
                return;
            }
            // A new session shows that the old one is over; the driver may say so, or let the registration say it.
            if current.is_some() && self.rng.chance(500) {
                self.tell_cluster(host, &ClusterEvent::Disconnect { machine: from });
            }
            // An incarnation that follows another ends whatever was open with that.
            let sessions = &mut self.hosts[host].sessions;
            sessions.retain(|id, _| id.index != from.index || id.incarnation >= from.incarnation);
            sessions.insert(from, session);
        } else if current != Some(session) {
            self.out.counters.late_copies += 1;
            return;
        }
        match message {
            Message::Join(join) => self.join(host, join),
            Message::Register { registration, owners, intact } => {
                self.register(host, session, *registration, &owners, intact);
            }
            Message::Notice(notice) => self.tell_cluster(host, &ClusterEvent::Notice { from, notice }),
            Message::Token { key, index, owner } => self.gateway(host, from, key, index, owner),
            message => panic!("{message:?} from {from:?} to a Cluster"),
        }
    }

    fn machine_hears(&mut self, id: MachineId, session: u64, message: Message) {
        let Some(place) = self.place(id) else { return };
        let (current, epoch) = (place.session, place.machine.as_ref().map(Machine::epoch));
        if current != Some(session) {
            self.out.counters.late_copies += 1;
            // Even where a driver lets through what comes from the Cluster before, the machine refuses it.
            let Message::Command { epoch: of, seq, command, .. } = message else { return };
            if Some(of) < epoch {
                self.refuse(id, of, seq, command);
            }
            return;
        }
        match message {
            Message::Command { epoch, seq, command, owner } => {
                self.learn(id, &command, owner);
                self.tell_machine(id, &MachineEvent::Command { epoch, seq, command });
                if let Some(owner) = owner {
                    self.note_held(id, session, owner);
                }
            }
            Message::Registered(epoch) => {
                self.note_dropped(id);
                if let Some(place) = self.place(id) {
                    place.orphaned_at = None;
                }
                self.tell_machine(id, &MachineEvent::Registered { epoch });
            }
            Message::Turned { taken } => {
                place.session = None;
                if taken {
                    self.out.counters.taken += 1;
                    self.throw_away(id);
                } else {
                    self.out.counters.stale_clusters += 1;
                    let when = self.now + self.delay() + 1;
                    self.push(when, Event::Seek(id));
                }
            }
            message => panic!("{message:?} to {id:?}"),
        }
    }

    /// What a replaced Cluster still got through to a machine is not to be lost either, if the machine has yet to
    /// register with the next.
    fn note_held(&mut self, id: MachineId, session: u64, owner: usize) {
        let (_, host) = self.sessions[session as usize - 1];
        if host + 1 < self.hosts.len() && self.owners_on(id).contains(&owner) {
            let unmet = |later: &&mut Host| !later.registered.contains_key(&id);
            for later in self.hosts[host + 1..].iter_mut().filter(unmet) {
                later.held.entry(owner).or_default().insert(id);
            }
        }
    }

    /// A command of a Cluster that has been replaced: counted, and nothing else.
    fn refuse(&mut self, id: MachineId, epoch: Epoch, seq: AssignmentSeq, command: Command) {
        let Some(machine) = self.machine(id) else { return };
        let (stale, report) = (machine.counters().stale, machine.report());
        let wanted = self.digest.value();
        self.tell_machine(id, &MachineEvent::Command { epoch, seq, command });
        let Some(machine) = self.machine(id) else { return };
        assert_eq!((machine.counters().stale, machine.report()), (stale + 1, report), "{command:?} refused");
        assert_eq!(wanted, self.digest.value(), "{command:?} refused");
        self.out.counters.stale_commands += 1;
    }

    fn peer_hears(&mut self, id: MachineId, from: MachineId, message: Message) {
        if self.machine(id).is_none() {
            return;
        }
        match message {
            Message::Peer(message) => {
                self.tell_machine(id, &MachineEvent::Peer { from, message });
            }
            Message::Reset => {
                self.void.remove(&(id, from));
                self.tell_machine(id, &MachineEvent::PeerReset { machine: from });
            }
            Message::Lost => self.peer_lost(id, from),
            message => panic!("{message:?} from {from:?} to {id:?}"),
        }
    }

    /// The session between a machine and a Cluster is over; both will notice.
    pub(super) fn break_session(&mut self, session: u64) {
        if !self.broken.insert(session) {
            return;
        }
        let (id, host) = self.sessions[session as usize - 1];
        let (machine, cluster) = (Node::Machine(id), Node::Cluster(host));
        for (from, to) in [(machine, cluster), (cluster, machine)] {
            self.lose_suffix((from, to, session));
            let when = self.now + self.delay();
            self.push(when, Event::Notice(to, session));
        }
    }

    /// Some of what is on its way still arrives, up to a point.
    pub(super) fn lose_suffix(&mut self, wire: (Node, Node, u64)) {
        let on_its_way = self.wires.get(&wire).map_or(0, VecDeque::len);
        let keep = self.rng.below(on_its_way as u64 + 1) as usize;
        if let Some(wire) = self.wires.get_mut(&wire) {
            wire.truncate(keep);
        }
    }

    pub(super) fn notice_break(&mut self, node: Node, session: u64) {
        let (id, _) = self.sessions[session as usize - 1];
        match node {
            Node::Cluster(host) => {
                if !self.hosts[host].alive || self.hosts[host].sessions.get(&id) != Some(&session) {
                    return;
                }
                self.hosts[host].sessions.remove(&id);
                // Whoever runs the machines may know that this one is gone for good.
                if self.machine(id).is_none() && self.rng.chance(300) {
                    self.tell_cluster(host, &ClusterEvent::Lose { machine: id });
                } else {
                    self.tell_cluster(host, &ClusterEvent::Disconnect { machine: id });
                }
            }
            Node::Machine(_) => {
                if self.place(id).is_some_and(|place| place.session == Some(session)) {
                    self.lose_session(id);
                }
            }
        }
    }

    /// A machine is without a Cluster, and will look for one.
    fn lose_session(&mut self, id: MachineId) {
        let now = self.now;
        let Some(place) = self.place(id) else { return };
        place.session = None;
        place.orphaned_at.get_or_insert(now);
        for context in place.contexts.values_mut() {
            context.muted = true;
        }
        let seeks = place.seeks_after_ns.take();
        self.tell_machine(id, &MachineEvent::ClusterLost);
        let after = match seeks {
            Some(after) if self.healed_at.is_none() => after,
            _ => self.rng.within(0, 500),
        };
        if after < u64::MAX {
            self.push(now + after, Event::Seek(id));
        }
    }

    /// Whether a machine has been without a Cluster for so long that it has dropped what it had.
    fn note_dropped(&mut self, id: MachineId) -> bool {
        let (now, limit_ns) = (self.now, self.setup.machines[id.index as usize].config.orphan_limit_ns);
        let Some(place) = self.place(id) else { return false };
        let silent_ns = place.orphaned_at.map_or(0, |since| now - since);
        let drops = limit_ns.is_some_and(|limit_ns| silent_ns >= limit_ns);
        place.dropped |= drops;
        drops
    }

    /// A machine opens a session with the Cluster it finds, and begins it with everything it holds.
    pub(super) fn seek(&mut self, id: MachineId) {
        if self.place(id).is_none_or(|place| place.session.is_some()) {
            return;
        }
        let Some(serving) = self.serving else {
            let when = self.now + self.rng.within(100, 2_000);
            return self.push(when, Event::Seek(id));
        };
        let older = self.hosts[..serving].iter().rposition(|host| host.alive);
        let host = older.filter(|_| self.rng.chance(150)).unwrap_or(serving);
        self.sessions.push((id, host));
        self.out.counters.sessions += 1;
        let session = self.sessions.len() as u64;
        let known = id.index < self.hosts[host].cluster.machines_len();
        let joins = known && self.rng.chance(500);
        // Also where it dropped everything in an earlier silence: that may have been after its Cluster's death.
        let dropped = self.note_dropped(id) || self.places[id.index as usize].dropped;
        let (join, intact) = (self.join_of(id), !dropped);
        let Some(place) = self.place(id) else { return };
        place.session = Some(session);
        let first = !std::mem::replace(&mut place.greeted, true);
        let Some(machine) = &place.machine else { return };
        let message = if first && joins {
            Message::Join(join)
        } else {
            let (epoch, report, claims) = (machine.epoch(), machine.report(), machine.claims());
            let owners = claims.iter().map(|claim| (claim.key, place.contexts[&claim.key].owner)).collect();
            let registration = Box::new(Registration { join, epoch, report, claims });
            Message::Register { registration, owners, intact }
        };
        self.send(Node::Machine(id), Node::Cluster(host), session, message);
    }
}
