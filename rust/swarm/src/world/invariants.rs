//! What must hold after every event.

use splitcore_core::cluster::{Cluster, MachineState};
use splitcore_core::config::MixedReturn;
use splitcore_core::event::{ClusterAction, MachineAction, MachineEvent, Role};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::BlockTable;
use splitcore_core::leg::{Command, Compute, Inbound, LegState, Notice, Peer};
use splitcore_core::machine::Machine;

use super::transport::Transfer;
use super::{Node, World};
use crate::faults::FaultKind;

/// Events without an end of anything, at most.
const EVENTS_MAX: u64 = 1_000_000;

impl World {
    /// Recounts what the event has changed, and looks at every transfer.
    pub(super) fn check(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for &node in &touched {
            match node {
                Node::Cluster(host) => self.check_cluster(host),
                Node::Machine(id) => self.check_machine(id),
            }
        }
        touched.clear();
        self.touched = touched;
        self.transfers.retain(|_, at| at.writes || at.reads || !at.told || at.stopped);
        for transfer in self.transfers.values() {
            self.check_transfer(transfer);
        }
    }

    fn check_cluster(&self, host: usize) {
        let cluster = &self.hosts[host].cluster;
        cluster.check().unwrap_or_else(|fault| panic!("cluster {host} at {}: {fault}", self.now));
        assert!(cluster.now().as_ns() <= self.now, "cluster {host} is ahead of the time");
        let live = &self.hosts[host].live;
        assert_eq!(live.len(), cluster.live_requests(), "cluster {host}: {:?}", live.keys());
        if cluster.config().mixed_hold_ns == 0 {
            (0..cluster.machines_len()).for_each(|index| check_home(cluster, index));
        }
    }

    fn check_machine(&mut self, id: MachineId) {
        let Some(machine) = self.machine(id) else { return };
        machine.check().unwrap_or_else(|fault| panic!("machine {id:?} at {}: {fault}", self.now));
        assert!(machine.now().as_ns() <= self.now, "{id:?} is ahead of the time");
        for key in machine.leg_keys() {
            let evicted = machine.leg(key).filter(|(state, _)| state.compute == Compute::Evicted);
            // What has been computed anew of it, if its prompt is in chunks, it keeps.
            let bare = |table: &BlockTable| table.is_empty() || self.context(id, key).chunked.is_some();
            assert!(evicted.is_none_or(|(_, table)| bare(table)), "{key:?} is evicted and keeps blocks");
        }
        let states: Vec<_> = machine.leg_keys().filter_map(|key| Some((machine.leg(key)?.0, key))).collect();
        let aim = |(state, _): &(LegState, FaultKind)| states.iter().find(|(here, _)| here == state);
        let met = self.aims.iter().position(|waits| aim(waits).is_some());
        if let Some(at) = met.filter(|_| self.aimed.is_none()) {
            let waits = self.aims.remove(at);
            self.aimed = states.iter().find(|(here, _)| *here == waits.0).map(|&(_, key)| (waits.1, id, key));
        }
        self.out.triples.extend(states.iter().map(|(state, _)| *state));
    }

    /// Nothing is written into blocks that are not set aside for it, nor read from blocks that are not kept for it.
    fn check_transfer(&self, transfer: &Transfer) {
        let has = |id: MachineId, blocks: &[_]| {
            self.machine(id).is_none_or(|machine| {
                machine.leg(transfer.key).is_some_and(|(_, table)| table.blocks().starts_with(blocks))
            })
        };
        let writes = transfer.writes && !has(transfer.to, &transfer.write_blocks);
        assert!(!writes, "{transfer:?} writes blocks that are not set aside for it");
        let reads = transfer.reads && !has(transfer.from, &transfer.read_blocks);
        assert!(!reads, "{transfer:?} reads blocks that are not kept for it");
    }

    /// No more transfers at once than a source may send and a destination receive.
    pub(super) fn check_limits(&self, from: MachineId, to: MachineId) {
        let limits = |id: MachineId| self.setup.machines[id.index as usize].config;
        let within = |count: usize, limit: Option<u32>| limit.is_none_or(|limit| count <= limit as usize);
        let all = || self.transfers.values();
        let sends = all().filter(|transfer| transfer.reads && transfer.from == from).count();
        // Where a name comes again, a `LocalDone` of the request before can be taken for one of this.
        let again = self.setup.clients.iter().any(|client| client.again_after_ns.is_some());
        assert!(again || within(sends, limits(from).sends_max), "{from:?} sends {sends}");
        let receives = all().filter(|transfer| transfer.writes && transfer.to == to).count();
        assert!(within(receives, limits(to).receives_max), "{to:?} receives {receives}");
    }

    /// A new attempt begins after the last token that the client has.
    pub(super) fn check_resumed(&self, host: usize, actions: &[ClusterAction]) {
        for action in actions {
            let ClusterAction::Command { command: Command::Compute { key, work, .. }, .. } = action else {
                continue;
            };
            let is_it = |other: &ClusterAction| matches!(other, ClusterAction::Placed(placement) if (placement.request, placement.attempt) == (key.request, key.attempt));
            let delivered = self.hosts[host].cluster.delivered(key.request);
            if let Some(delivered) = delivered.filter(|_| actions.iter().any(is_it)) {
                assert_eq!(work.terms.resumed_tokens, delivered, "{key:?} begins after another token");
            }
        }
    }

    /// What must be answered is answered: otherwise a clock would have to see to it.
    pub(super) fn check_answer(&self, id: MachineId, event: &MachineEvent, actions: &[MachineAction]) {
        let Some(machine) = self.machine(id) else { return };
        let leg = |key| machine.leg(key).map(|(state, _)| state);
        let notes = |wanted: &dyn Fn(&Notice) -> bool| {
            actions.iter().any(|action| matches!(action, MachineAction::Notify { notice } if wanted(notice)))
        };
        let landed = |to: MachineId, key: LegKey| {
            let message = Peer::Landed { key };
            actions.contains(&MachineAction::Peer { to, message })
        };
        let silent = self.places[id.index as usize].orphaned_at.is_some();
        match *event {
            MachineEvent::Command { epoch, command: Command::Reserve { key, .. }, .. }
                if leg(key).is_some() && epoch == machine.epoch() =>
            {
                let answered = notes(&|notice| *notice == Notice::Reserved { key });
                assert!(silent || answered, "{id:?} does not say that {key:?} is reserved");
            }
            MachineEvent::Command { command: Command::Confirm { key, .. }, .. } if !silent => {
                let Some(state) = leg(key).filter(|_| !actions.is_empty()) else { return };
                let gone = notes(&|notice| matches!(notice, Notice::Gone { .. } | Notice::Finished { .. }));
                let ready =
                    state.inbound != Inbound::Ready || notes(&|notice| *notice == Notice::Landed { key });
                let computed = !matches!(state.compute, Compute::Held | Compute::Decoding)
                    || notes(&|notice| matches!(notice, Notice::PrefillDone { .. }));
                assert!(gone || (ready && computed), "{id:?} does not say where {key:?} stands");
            }
            MachineEvent::LayersLanded { key, layers, of } if layers == of => {
                let waits = leg(key).is_some_and(|state| state.inbound == Inbound::Ready);
                if let (true, Some(source)) = (waits, machine.leg_peers(key).0) {
                    assert!(landed(source, key), "{id:?} does not tell {source:?} that {key:?} has landed");
                }
            }
            // Where the other is gone nobody is there to hear it, and the machine may know.
            MachineEvent::PeerReset { machine: other } if self.machine(other).is_some() => {
                for key in machine.leg_keys().filter(|&key| machine.leg_peers(key).0 == Some(other)) {
                    let waits = leg(key).is_some_and(|state| state.inbound == Inbound::Ready);
                    assert!(
                        !waits || landed(other, key),
                        "{id:?} does not say again that {key:?} has landed"
                    );
                }
            }
            _ => {}
        }
    }

    /// Nothing accepted waits for ever in a world that is well.
    pub(super) fn watch(&self) {
        let Some(healed_at) = self.healed_at else { return };
        assert!(self.since_end < EVENTS_MAX, "nothing ends any more: {}", self.stuck());
        let bound = healed_at + self.setup.patience_ns() * (100 + self.submitted.len() as u64);
        let waits = self.serving.is_some_and(|host| !self.hosts[host].live.is_empty());
        assert!(!waits || self.now < bound, "requests wait for ever: {}", self.stuck());
    }
}

/// A machine in the mixed pool that has no work of the other kind is home.
fn check_home(cluster: &Cluster, index: u32) {
    let Some(load) = cluster.load(index) else { return };
    if load.state != MachineState::Up || load.pool == load.home {
        return;
    }
    let stays = match (cluster.config().mixed_return, load.home) {
        (MixedReturn::Idle, _) => load.legs > 0,
        (_, Role::Prompt) => load.booked > load.prompt_pending_tokens,
        (_, Role::Token) => load.prompt_pending_tokens > 0,
        (_, Role::Mixed) => false,
    };
    assert!(stays, "machine {index} stays in the mixed pool without a reason: {load:?}");
}

/// Whether anything is left on a machine that should be empty.
pub(super) fn check_empty(machine: &Machine) {
    let id = machine.id();
    assert!(machine.is_idle(), "{id:?} is not idle: {machine:?}");
    assert_eq!(machine.pool().free(), machine.pool().total(), "{id:?} keeps blocks");
    assert_eq!(machine.report().kv_tokens, 0, "{id:?} keeps tokens");
    assert_eq!(machine.kept(), 0, "{id:?} keeps requests: {:?}", machine.claims());
    let state = format!("{machine:?}");
    for empty in ["early_grants: {}", " granted: 0,", " sending: 0,", "sitting_out: 0,", "stalls: []"] {
        assert!(state.contains(empty), "{id:?} not empty at the end: {empty}\n{state}");
    }
}
