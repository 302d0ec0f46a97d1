//! Clusters and their drivers: what they want done, registrations, and one Cluster following another.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use splitcore_core::cluster::{Cluster, MachineState};
use splitcore_core::config::ClusterConfig;
use splitcore_core::error::EventError;
use splitcore_core::event::{ClusterAction, ClusterEvent, Held, Join, Registration, Slo};
use splitcore_core::id::{Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::leg::Command;
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;

use super::failing::going;
use super::links::Message;
use super::{Event, Node, World};

/// A live request of one Cluster.
#[derive(Debug, Clone)]
pub(super) struct Live {
    /// Whose prompt it is.
    pub(super) owner: usize,
    pub(super) order: Option<Order>,
    /// Attempts before this one belong to an earlier request of the same name.
    pub(super) first_attempt: u32,
    pub(super) parked: bool,
    /// Taken over from machines.
    pub(super) adopted: bool,
    /// Who was told of it, or told of it.
    pub(super) told: BTreeSet<MachineId>,
}

impl Live {
    pub(super) fn new(owner: usize) -> Self {
        Self { owner, order: None, first_attempt: 0, parked: false, adopted: false, told: BTreeSet::new() }
    }
}

/// A Cluster and its driver.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) cluster: Cluster,
    pub(super) alive: bool,
    /// The sessions that it takes for open.
    pub(super) sessions: BTreeMap<MachineId, u64>,
    pub(super) live: BTreeMap<RequestId, Live>,
    pub(super) drains: BTreeSet<MachineId>,
    /// Machines that registered in time, and whether with all they had.
    pub(super) registered: BTreeMap<MachineId, bool>,
    /// The requests that machines held when it followed another, and what reached machines from that one later.
    pub(super) held: BTreeMap<usize, BTreeSet<MachineId>>,
    /// What the one before ended, or took from a machine, when its word did not count any more.
    pub(super) ended_before: BTreeSet<usize>,
    /// Legs that it has told machines to drop.
    pub(super) given_up: BTreeSet<(MachineId, LegKey)>,
}

impl Host {
    pub(super) fn new(config: ClusterConfig, slos: [Option<Slo>; 2], now: u64) -> Self {
        let mut cluster = match Cluster::new(config) {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        };
        for (class, slo) in (0..).zip(slos) {
            let _ = cluster.handle(Time::from_ns(now), &ClusterEvent::SetSlo { class, slo }, &mut Vec::new());
        }
        Self {
            cluster,
            alive: true,
            sessions: BTreeMap::new(),
            live: BTreeMap::new(),
            drains: BTreeSet::new(),
            registered: BTreeMap::new(),
            held: BTreeMap::new(),
            ended_before: BTreeSet::new(),
            given_up: BTreeSet::new(),
        }
    }
}

impl World {
    pub(super) fn cluster_acts(&mut self, host: usize, event: &ClusterEvent, actions: Vec<ClusterAction>) {
        self.touched.push(Node::Cluster(host));
        self.check_resumed(host, &actions);
        // A Tick can do more than one thing, each with a look at the line of its own.
        let one_line = !matches!(event, ClusterEvent::Tick);
        let mut line = Vec::new();
        for action in actions {
            self.log(Node::Cluster(host), &action);
            match action {
                ClusterAction::Placed(placement) => line.extend(self.placed(host, &placement)),
                ClusterAction::Rejected { request, .. } => self.rejected(host, request),
                ClusterAction::Parked { request } => {
                    if let Some(live) = self.hosts[host].live.get_mut(&request) {
                        live.parked = true;
                    }
                }
                ClusterAction::Moved { .. }
                | ClusterAction::Faulted { .. }
                | ClusterAction::SetAside { .. } => {}
                ClusterAction::Registered { to, epoch } => {
                    self.answer(host, to, Message::Registered(epoch));
                }
                ClusterAction::Command { to, seq, command } => {
                    self.note_given_up(host, to, &command);
                    let owner = self.owner_of(host, to, &command);
                    let epoch = self.hosts[host].cluster.epoch();
                    self.answer(host, to, Message::Command { epoch, seq, command, owner });
                }
                ClusterAction::Ended { request, outcome } => self.ended(host, request, outcome),
                ClusterAction::Drained { machine } => self.drained(host, machine),
            }
        }
        if self.setup.cluster.priority_ageing_ns.is_some() {
            // How long each has waited counts as well; among equals it is the arrival.
            line.sort_by_key(|&(priority, _)| priority);
        }
        assert!(!one_line || line.is_sorted(), "parked requests are placed out of line: {line:?}");
    }

    /// What a replaced Cluster still takes from a machine may go with it: its successor hears of it from nobody.
    fn note_given_up(&mut self, host: usize, to: MachineId, command: &Command) {
        let Command::Abort { key } = command else { return };
        self.hosts[host].given_up.insert((to, *key));
        let owner = self.hosts[host].live.get(&key.request).map(|live| live.owner);
        if let (Some(owner), Some(later)) = (owner, self.hosts.get_mut(host + 1)) {
            later.ended_before.insert(owner);
        }
    }

    /// A Cluster's driver sends on the session that it takes for open.
    fn answer(&mut self, host: usize, to: MachineId, message: Message) {
        let session = self.hosts[host].sessions.get(&to).copied();
        let Some(session) = session else { panic!("{message:?} to {to:?}, which has no session") };
        self.send(Node::Cluster(host), Node::Machine(to), session, message);
    }

    /// The prompt that goes with a command. It names the place in line, too.
    fn owner_of(&mut self, host: usize, to: MachineId, command: &Command) -> Option<usize> {
        if let Command::Confirm { key, .. } = command {
            // A machine had it after all.
            if let Some(live) = self.hosts[host].live.get_mut(&key.request) {
                live.parked = false;
                live.told.insert(to);
            }
        }
        let (Command::Reserve { key, order, .. }
        | Command::Compute { key, order, .. }
        | Command::Keep { key, order, .. }) = *command
        else {
            return None;
        };
        let live = self.hosts[host].live.get_mut(&key.request);
        let Some(live) = live else { panic!("{command:?} is about no live request") };
        assert!(live.order.is_none_or(|known| known == order), "{key:?} changes its place in line");
        live.order = Some(order);
        live.told.insert(to);
        Some(live.owner)
    }

    /// Returns its place in the line of the parked, if it was parked.
    fn placed(&mut self, host: usize, placement: &Placement) -> Option<(Reverse<i32>, Option<Order>)> {
        let key = LegKey { request: placement.request, attempt: placement.attempt };
        for (&id, &session) in &self.hosts[host].sessions {
            let here = self.places[id.index as usize].session == Some(session);
            let holds = self.machine(id).is_some_and(|machine| machine.leg(key).is_some());
            assert!(!here || !holds, "{key:?} is placed while machine {id:?} holds it");
        }
        let live = self.hosts[host].live.get_mut(&key.request)?;
        if live.first_attempt == 0 {
            live.first_attempt = key.attempt.0;
        }
        let priority = self.submitted[live.owner].client.priority;
        std::mem::take(&mut live.parked).then_some((Reverse(priority), live.order))
    }

    fn drained(&mut self, host: usize, id: MachineId) {
        assert!(self.hosts[host].drains.remove(&id), "{id:?} drained twice or unasked");
        let session = self.hosts[host].sessions.get(&id).copied();
        let now = self.now;
        let Some(place) = self.place(id) else { return };
        let idle = place.machine.as_ref().is_some_and(splitcore_core::machine::Machine::is_idle);
        assert!(place.session.is_none() || place.session != session || idle, "{id:?} drained and not idle");
        if let Some(after) = place.leaves {
            self.push(now.saturating_add(after), Event::Leave(id));
        }
    }

    /// A machine that is new joins. It may have died since, and another may have followed it.
    pub(super) fn join(&mut self, host: usize, join: Join) {
        let event = ClusterEvent::Join(join);
        let (result, actions) = self.handle(host, &event);
        match result {
            Ok(_) => self.cluster_acts(host, &event, actions),
            Err(EventError::MachineTaken(id)) if self.machine(id).is_none() => {
                self.hosts[host].sessions.remove(&id);
            }
            Err(error) => panic!("{event:?}: {error}"),
        }
    }

    /// A session begins.
    pub(super) fn register(
        &mut self,
        host: usize,
        session: u64,
        registration: Registration,
        owners: &BTreeMap<LegKey, usize>,
        intact: bool,
    ) {
        let id = registration.join.machine;
        let recovering = self.hosts[host].cluster.is_recovering();
        let event = ClusterEvent::Register(registration);
        let (result, actions) = self.handle(host, &event);
        let ClusterEvent::Register(registration) = &event else { return };
        if let Err(error) = result {
            let epoch = self.hosts[host].cluster.epoch();
            match error {
                EventError::StaleCluster(_) => assert!(registration.epoch > epoch, "{error}"),
                EventError::MachineTaken(_) => {}
                error => panic!("{event:?}: {error}"),
            }
            let taken = matches!(error, EventError::MachineTaken(_));
            self.note(|| format!("    refused: {error}"));
            self.answer(host, id, Message::Turned { taken });
            self.hosts[host].sessions.remove(&id);
            return;
        }
        self.out.counters.adopted += u64::from(recovering);
        if recovering {
            self.hosts[host].registered.entry(id).or_insert(intact);
        }
        self.adopt(host, registration, owners, &actions);
        self.cluster_acts(host, &event, actions);
        let Some(after) = self.place(id).and_then(|place| place.leaves) else { return };
        if self.hosts[host].sessions.get(&id) == Some(&session) && self.hosts[host].drains.insert(id) {
            self.tell_cluster(host, &going(id, after));
        }
    }

    /// Requests that a Cluster has from machines, with the prompts that come along.
    fn adopt(
        &mut self,
        host: usize,
        registration: &Registration,
        owners: &BTreeMap<LegKey, usize>,
        actions: &[ClusterAction],
    ) {
        for claim in registration.claims.iter().filter(|claim| claim.held != Held::Closing) {
            let request = claim.key.request;
            let attempt = self.hosts[host].cluster.attempt(request);
            let ends = |action: &ClusterAction| matches!(action, ClusterAction::Ended { request: ended, .. } if *ended == request);
            let is_live = attempt.is_some() || actions.iter().any(ends);
            if !is_live {
                continue;
            }
            let owner = owners[&claim.key];
            if let Some(live) = self.hosts[host].live.get_mut(&request) {
                if live.owner == owner {
                    live.told.insert(registration.join.machine);
                }
                continue;
            }
            self.out.counters.revived += u64::from(self.submitted[owner].ended.is_some());
            let first_attempt = attempt.map_or(1, |attempt| attempt.0);
            let order = Some(claim.order);
            let told = BTreeSet::from([registration.join.machine]);
            let live = Live { order, first_attempt, adopted: true, told, ..Live::new(owner) };
            self.hosts[host].live.insert(request, live);
        }
    }

    /// The Cluster dies, or is replaced while it lives. What machines hold now must not be lost.
    pub(super) fn replace_host(&mut self, gap_ns: Option<u64>, overlap_ns: u64) -> bool {
        let Some(old) = self.serving else { return false };
        let epoch = Epoch(self.setup.cluster.epoch.0 + self.hosts.len() as u32);
        let config = ClusterConfig { epoch, grace_ns: self.setup.grace_ns, ..self.setup.cluster };
        let mut next = Host { alive: false, ..Host::new(config, self.setup.slos, self.now) };
        for id in self.machine_ids() {
            // A machine may still be told to drop it.
            let given_up = self.dropped_on(id);
            for owner in self.owners_on(id).difference(&given_up).copied() {
                next.held.entry(owner).or_default().insert(id);
            }
        }
        self.check_known(old, &next.held);
        self.check_copies(old, &next.held);
        self.hosts.push(next);
        self.out.counters.restarts += 1;
        self.serving = None;
        self.delay_seeking();
        if let Some(gap_ns) = gap_ns {
            self.host_dies(old);
            self.push(self.now + gap_ns, Event::HostStarts);
        } else {
            self.start_host();
            self.push(self.now + overlap_ns, Event::HostDies(old));
            for session in self.hosts[old].sessions.values().copied().collect::<Vec<_>>() {
                let when = self.now + self.rng.within(0, overlap_ns);
                self.push(when, Event::Break(session));
            }
        }
        true
    }

    /// The requests whose `Abort` or `Release` is on its way to a machine, from whichever Cluster it listens to.
    fn dropped_on(&self, id: MachineId) -> BTreeSet<usize> {
        let session = self.places[id.index as usize].session;
        let is_to = |at: &Node, of: u64| *at == Node::Machine(id) && Some(of) == session;
        let wires = self.wires.iter().filter(|((_, at, of), _)| is_to(at, *of));
        let aborted = wires.flat_map(|(_, wire)| wire).filter_map(|message| match message {
            Message::Command { command: Command::Abort { key } | Command::Release { key }, .. } => Some(*key),
            _ => None,
        });
        let contexts = &self.places[id.index as usize].contexts;
        aborted.filter_map(|key| contexts.get(&key)).map(|context| context.owner).collect()
    }

    /// The requests that a machine holds: in a leg, or as a record.
    pub(super) fn owners_on(&self, id: MachineId) -> BTreeSet<usize> {
        let claims = self.machine(id).map_or(Vec::new(), splitcore_core::machine::Machine::claims);
        let held = claims.iter().filter(|claim| claim.held != Held::Closing);
        held.map(|claim| self.places[id.index as usize].contexts[&claim.key].owner).collect()
    }

    /// Whether the session between a Cluster and a machine holds on both sides, and the machine has never dropped what it
    /// had for want of one.
    fn reaches(&self, host: usize, id: MachineId) -> bool {
        let sessions = &self.hosts[host].sessions;
        let session = sessions.get(&id).filter(|session| !self.broken.contains(session));
        let place = &self.places[id.index as usize];
        let one = session.is_some() && session == place.session.as_ref();
        self.machine(id).is_some() && one && !place.dropped && place.orphaned_at.is_none()
    }

    /// Who is said to know a request does, unless the machine is out of reach or a word about it on its way.
    fn check_copies(&self, host: usize, held: &BTreeMap<usize, BTreeSet<MachineId>>) {
        let of = &self.hosts[host];
        for (request, live) in &of.live {
            let holds = |id: &MachineId| held.get(&live.owner).is_some_and(|holders| holders.contains(id));
            for id in of.cluster.known_to(*request) {
                let (here, there) = (Node::Cluster(host), Node::Machine(id));
                let between = |(from, to, _): &(Node, Node, u64)| {
                    (*from, *to) == (here, there) || (*from, *to) == (there, here)
                };
                let on_its_way = || {
                    let mut wires = self.wires.iter().filter(|(wire, _)| between(wire));
                    wires.any(|(_, wire)| wire.iter().any(|message| message.is_about(*request)))
                };
                assert!(
                    holds(&id) || !self.reaches(host, id) || on_its_way(),
                    "{request:?} is said to be known to {id:?}, and is not: {live:?}"
                );
            }
        }
    }

    /// A request that no machine holds is one whose word is on its way, whose machine is gone or out of reach, or that
    /// no machine could be told of.
    fn check_known(&self, host: usize, held: &BTreeMap<usize, BTreeSet<MachineId>>) {
        let of = &self.hosts[host];
        let reach = |id: &MachineId| self.reaches(host, *id);
        let up = |index| of.cluster.load(index).is_some_and(|load| load.state == MachineState::Up);
        let any_up = (0..of.cluster.machines_len()).any(up);
        // A source hands over to a machine that this Cluster has not met yet, and that gives everything up meanwhile.
        let unmet = self.machine_ids().into_iter().any(|id| !reach(&id));
        for (request, live) in of.live.iter().filter(|(_, live)| !held.contains_key(&live.owner)) {
            let out_of_reach =
                live.told.iter().any(|id| !reach(id)) || (live.parked && !any_up) || (live.adopted && unmet);
            let on_its_way = || {
                let from_here = |(from, _, _): &(Node, Node, u64)| *from == Node::Cluster(host);
                let mut wires = self.wires.iter().filter(|(wire, _)| from_here(wire));
                wires.any(|(_, wire)| wire.iter().any(|message| message.is_about(*request)))
            };
            assert!(out_of_reach || on_its_way(), "{request:?} is live and no machine knows of it: {live:?}");
        }
    }

    /// Machines find the next Cluster soon; at times one comes late, or only when the world heals.
    fn delay_seeking(&mut self) {
        let (grace_ns, stray) = (self.setup.grace_ns, self.rng.chance(400));
        for index in 0..self.places.len() {
            let after = match self.rng.below(10) {
                0 if stray => Some(u64::MAX),
                1 if stray => Some(grace_ns * 2),
                2 | 3 => Some(self.rng.below(grace_ns / 2)),
                _ => None,
            };
            self.places[index].seeks_after_ns = after;
        }
    }

    pub(super) fn start_host(&mut self) {
        let host = self.hosts.len() - 1;
        self.hosts[host].alive = true;
        self.serving = Some(host);
        if self.rng.chance(500) {
            self.tell_cluster(host, &ClusterEvent::Tick);
        }
    }

    pub(super) fn host_dies(&mut self, host: usize) {
        self.hosts[host].alive = false;
        for session in self.hosts[host].sessions.values().copied().collect::<Vec<_>>() {
            self.break_session(session);
        }
        // A machine may have begun one that it does not know of.
        for id in self.machine_ids() {
            let session = self.place(id).and_then(|place| place.session);
            if let Some(session) = session.filter(|&session| self.sessions[session as usize - 1].1 == host) {
                self.break_session(session);
            }
        }
    }
}
