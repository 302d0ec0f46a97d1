//! What must hold after every event.

use splitcore_core::cluster::{Cluster, MachineState};
use splitcore_core::config::MixedReturn;
use splitcore_core::event::Role;
use splitcore_core::id::MachineId;
use splitcore_core::leg::LegState;
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
