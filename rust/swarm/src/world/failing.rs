//! Faults as they strike, and in which states they meet the legs. And healing.

use std::collections::VecDeque;

use splitcore_core::event::ClusterEvent;
use splitcore_core::id::{LegKey, MachineId, RequestId};

use super::links::Message;
use super::{Event, Node, World};
use crate::failures::Failure;
use crate::faults::FaultKind;

impl World {
    /// A fault comes. It counts if it meets anything.
    pub(super) fn strike(&mut self, kind: FaultKind) {
        self.note(|| format!("fault: {kind:?}"));
        let hits = match kind {
            FaultKind::Crash { machine, back_after_ns } => self.strike_crash(machine, back_after_ns),
            FaultKind::Pause { machine, for_ns } => self.pause(machine, for_ns),
            FaultKind::SessionLoss { machine, back_after_ns } => {
                self.strike_session(machine, back_after_ns.unwrap_or(u64::MAX))
            }
            FaultKind::PeerReset { machine, other } => self.reset_peers(machine, other),
            FaultKind::Drain { machine, leaves_after_ns } => self.drain(machine, leaves_after_ns),
            FaultKind::TransferFail => self.strike_transfer(None, false),
            FaultKind::TransferStall => self.strike_transfer(None, true),
            FaultKind::Cancel => self.strike_client(None),
            FaultKind::Restart { gap_ns } => self.strike_cluster(Some(gap_ns), 0),
            FaultKind::Outage { machine, gap_ns } => self.strike_both(machine, gap_ns),
            FaultKind::Replace { overlap_ns } => self.strike_cluster(None, overlap_ns),
        };
        self.out.faults += u64::from(hits);
    }

    /// A fault meets a leg that is in the state it waited for.
    pub(super) fn strike_leg(&mut self, kind: FaultKind, id: MachineId, key: LegKey) {
        let machine = u64::from(id.index);
        let peers = self.machine(id).map_or((None, None), |machine| machine.leg_peers(key));
        let peer = peers.0.or(peers.1).map(|peer| u64::from(peer.index));
        let hits = match kind {
            FaultKind::TransferFail => self.strike_transfer(Some(key), false),
            FaultKind::TransferStall => self.strike_transfer(Some(key), true),
            FaultKind::Cancel => self.strike_client(Some(key.request)),
            FaultKind::Crash { back_after_ns, .. } => {
                // The leg's own machine, or the other one of its handoff.
                let machine = peer.filter(|_| self.rng.chance(500)).unwrap_or(machine);
                return self.strike(FaultKind::Crash { machine, back_after_ns });
            }
            FaultKind::Pause { for_ns, .. } => return self.strike(FaultKind::Pause { machine, for_ns }),
            FaultKind::SessionLoss { back_after_ns, .. } => {
                return self.strike(FaultKind::SessionLoss { machine, back_after_ns });
            }
            FaultKind::PeerReset { other, .. } => {
                let other = peer.unwrap_or(other);
                return self.strike(FaultKind::PeerReset { machine, other });
            }
            FaultKind::Drain { leaves_after_ns, .. } => {
                return self.strike(FaultKind::Drain { machine, leaves_after_ns });
            }
            FaultKind::Outage { gap_ns, .. } => {
                return self.strike(FaultKind::Outage { machine, gap_ns });
            }
            FaultKind::Restart { .. } | FaultKind::Replace { .. } => return self.strike(kind),
        };
        self.note(|| format!("fault: {kind:?} meets {key:?}"));
        self.out.faults += u64::from(hits);
    }

    /// The machine of a place, or the next one that is there.
    fn living(&self, place: u64) -> Option<MachineId> {
        let (after, before) = (self.places.iter().skip(place as usize), self.places.iter());
        after.chain(before).find_map(|place| Some(place.machine.as_ref()?.id()))
    }

    fn hit(&mut self, id: MachineId, key: LegKey, failure: Failure) {
        if let Some((state, _)) = self.machine(id).and_then(|machine| machine.leg(key)) {
            *self.out.hits.entry((state, failure)).or_insert(0) += 1;
        }
    }

    /// Every leg on a machine meets a failure.
    fn hit_all(&mut self, id: MachineId, failure: Failure) {
        for key in self.legs_on(id) {
            self.hit(id, key, failure);
        }
    }

    /// Legs whose handoff is with another machine meet a failure of it.
    fn hit_peers(&mut self, id: MachineId, other: MachineId, failure: Failure) {
        for key in self.legs_on(id) {
            let peers = self.machine(id).map(|machine| machine.leg_peers(key));
            if peers.is_some_and(|(source, to)| source == Some(other) || to == Some(other)) {
                self.hit(id, key, failure);
            }
        }
    }

    fn strike_crash(&mut self, place: u64, back_after_ns: Option<u64>) -> bool {
        let Some(id) = self.living(place) else { return false };
        self.hit_all(id, Failure::MachineLost);
        self.crash(id);
        if let Some(after) = back_after_ns {
            self.push(self.now + after, Event::Start { index: id.index });
        }
        true
    }

    /// A machine is gone: sessions break, what it had sent arrives up to some point, what was sent to it is lost.
    fn crash(&mut self, id: MachineId) {
        let others: Vec<MachineId> = self.machine_ids().into_iter().filter(|&other| other != id).collect();
        for &other in &others {
            self.hit_peers(other, id, Failure::PeerLost);
        }
        self.count_evicted(id);
        let place = &mut self.places[id.index as usize];
        place.machine = None;
        if let Some(session) = place.session.take() {
            self.break_session(session);
        }
        self.end_transfers(id);
        self.grants.retain(|(at, _), _| *at != id);
        let lost = Node::Machine(id);
        for other in others {
            let other = Node::Machine(other);
            self.wires.remove(&(other, lost, 0));
            self.lose_suffix((lost, other, 0));
            self.wires.entry((lost, other, 0)).or_default().push_back(Message::Lost);
            let when = self.now + self.delay();
            self.push(when, Event::Deliver(lost, other, 0));
        }
    }

    /// A machine that has been given up meanwhile starts anew.
    pub(super) fn throw_away(&mut self, id: MachineId) {
        self.crash(id);
        let when = self.now + self.rng.within(0, 1_000);
        self.push(when, Event::Start { index: id.index });
    }

    fn pause(&mut self, place: u64, for_ns: u64) -> bool {
        let Some(id) = self.living(place) else { return false };
        self.hit_all(id, Failure::Paused);
        let (now, heartbeat_ns) = (self.now, self.setup.heartbeat_ns);
        let place = &mut self.places[id.index as usize];
        place.paused_until = place.paused_until.max(now + for_ns);
        if let Some(session) = place.session.filter(|_| for_ns > heartbeat_ns) {
            self.push(now + heartbeat_ns, Event::Break(session));
        }
        true
    }

    fn strike_session(&mut self, place: u64, back_after_ns: u64) -> bool {
        let Some(id) = self.living(place) else { return false };
        let place = &mut self.places[id.index as usize];
        let Some(session) = place.session else { return false };
        place.seeks_after_ns = Some(back_after_ns);
        let late = back_after_ns > self.setup.cluster.rejoin_limit_ns;
        self.hit_all(id, if late { Failure::Expired } else { Failure::SessionLost });
        self.break_session(session);
        true
    }

    fn reset_peers(&mut self, place: u64, other: u64) -> bool {
        let (Some(id), Some(other)) = (self.living(place), self.living(other)) else { return false };
        if id == other || self.void.contains(&(id, other)) || self.void.contains(&(other, id)) {
            return false;
        }
        for (at, from) in [(id, other), (other, id)] {
            self.hit_peers(at, from, Failure::PeerReset);
            let wire = (Node::Machine(from), Node::Machine(at), 0);
            self.lose_suffix(wire);
            self.wires.entry(wire).or_default().push_back(Message::Reset);
            self.void.insert((at, from));
            let when = self.now + self.delay();
            self.push(when, Event::Deliver(wire.0, wire.1, 0));
        }
        true
    }

    fn drain(&mut self, place: u64, leaves_after_ns: u64) -> bool {
        let (Some(id), Some(host)) = (self.living(place), self.serving) else { return false };
        let place = &mut self.places[id.index as usize];
        let known = self.hosts[host].cluster.load(id.index).is_some_and(|load| load.machine == id);
        if place.leaves.is_some() || !known {
            return false;
        }
        place.leaves = Some(leaves_after_ns);
        self.hit_all(id, Failure::Drain);
        let lost = splitcore_core::cluster::MachineState::Lost;
        if self.hosts[host].cluster.load(id.index).is_some_and(|load| load.state != lost) {
            self.hosts[host].drains.insert(id);
        }
        let event = going(id, leaves_after_ns);
        self.tell_cluster(host, &event);
        true
    }

    /// A drained machine goes, and is replaced when the world heals, or soon after.
    pub(super) fn leave(&mut self, id: MachineId) {
        if self.machine(id).is_some() {
            self.crash(id);
            let after = if self.healed_at.is_some() { 0 } else { self.rng.pick(&[0, 10_000, 100_000]) };
            self.push(self.now + after, Event::Start { index: id.index });
        }
    }

    fn strike_transfer(&mut self, key: Option<LegKey>, stalls: bool) -> bool {
        let running = |record: &super::Transfer| {
            if key.is_some_and(|key| record.key != key) {
                return false;
            }
            let limits = &self.setup.machines[record.from.index as usize].config;
            let alive = self.machine(record.from).is_some() && self.machine(record.to).is_some();
            let may = !stalls || limits.transfer_limit_ns.is_some();
            record.writes && !record.stalled && alive && may
        };
        let running: Vec<u64> =
            self.transfers.iter().filter(|(_, record)| running(record)).map(|(&number, _)| number).collect();
        if running.is_empty() {
            return false;
        }
        let transfer = self.rng.pick(&running);
        if !stalls {
            self.transfer_fails(transfer);
        } else if let Some(record) = self.transfers.get_mut(&transfer) {
            record.stalled = true;
            self.fail_transfer(transfer, true);
        }
        true
    }

    /// Both legs of a transfer meet its failure.
    pub(super) fn fail_transfer(&mut self, transfer: u64, stalls: bool) {
        let failure = if stalls { Failure::TransferStalled } else { Failure::TransferFailed };
        let ends = self.transfers.get(&transfer).map(|record| (record.key, record.from, record.to));
        if let Some((key, from, to)) = ends {
            self.hit(from, key, failure);
            self.hit(to, key, failure);
        }
    }

    fn strike_client(&mut self, request: Option<RequestId>) -> bool {
        let Some(host) = self.serving else { return false };
        let live = self.hosts[host].live.keys().copied();
        let live: Vec<_> = live.filter(|&id| request.is_none_or(|wanted| wanted == id)).collect();
        if live.is_empty() {
            return false;
        }
        let request = self.rng.pick(&live);
        self.cancel_live(host, request);
        true
    }

    /// A client gives a live request up.
    pub(super) fn cancel_live(&mut self, host: usize, request: RequestId) {
        for id in self.machine_ids() {
            for key in self.legs_on(id).into_iter().filter(|key| key.request == request) {
                self.hit(id, key, Failure::Cancel);
            }
        }
        self.tell_cluster(host, &ClusterEvent::Cancel { request });
    }

    /// Neither hears of the other's death.
    fn strike_both(&mut self, place: u64, gap_ns: u64) -> bool {
        self.serving.is_some() && self.strike_crash(place, None) && self.strike_cluster(Some(gap_ns), 0)
    }

    fn strike_cluster(&mut self, gap_ns: Option<u64>, overlap_ns: u64) -> bool {
        if self.serving.is_none() {
            return false;
        }
        for id in self.machine_ids() {
            self.hit_all(id, Failure::ClusterRestart);
        }
        self.replace_host(gap_ns, overlap_ns)
    }

    /// From now on nothing goes wrong any more, and who is away comes back.
    pub(super) fn heal(&mut self) {
        self.note(|| "the world heals".to_owned());
        self.healed_at = Some(self.now);
        self.since_end = 0;
        for host in 0..self.hosts.len() {
            let last = host + 1 == self.hosts.len();
            if self.hosts[host].alive && !last && self.serving != Some(host) {
                self.host_dies(host);
            }
        }
        for index in 0..self.places.len() {
            let place = &mut self.places[index];
            place.paused_until = 0;
            let (leaves, session) = (place.leaves.is_some(), place.session);
            match place.machine.as_ref().map(splitcore_core::machine::Machine::id) {
                Some(id) if leaves => {
                    let when = self.now + self.rng.within(0, 100_000);
                    self.push(when, Event::Leave(id));
                }
                Some(id) if session.is_none() => self.push(self.now, Event::Seek(id)),
                Some(_) => {}
                None => self.push(self.now, Event::Start { index: index as u32 }),
            }
        }
        self.wires.retain(|_, wire: &mut VecDeque<Message>| !wire.is_empty());
    }
}

/// How a machine says that it takes no more work: one that goes at once has its work go on elsewhere.
pub(super) fn going(machine: MachineId, leaves_after_ns: u64) -> ClusterEvent {
    if leaves_after_ns == 0 { ClusterEvent::Leave { machine } } else { ClusterEvent::Drain { machine } }
}
