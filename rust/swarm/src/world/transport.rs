//! The transport: bytes that take time, fail, stand still, and are stopped.

use splitcore_core::event::{MachineEvent, Put};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::BlockId;
use splitcore_core::leg::Peer;

use super::{Event, World};

/// Bytes on their way.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each set by another event")]
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    pub(super) key: LegKey,
    pub(super) from: MachineId,
    pub(super) to: MachineId,
    /// It may still write at the destination.
    pub(super) writes: bool,
    /// It may still read at the source.
    pub(super) reads: bool,
    /// The source has heard that it is read.
    pub(super) told: bool,
    pub(super) stopped: bool,
    /// It will not end until it is stopped.
    pub(super) stalled: bool,
    /// What it reads, and what it writes: the blocks that were there when it began.
    pub(super) read_blocks: Vec<BlockId>,
    pub(super) write_blocks: Vec<BlockId>,
}

impl World {
    /// The blocks that go with a grant are those that may be written.
    pub(super) fn note_grant(&mut self, id: MachineId, message: &Peer) {
        if let Peer::Grant { key, blocks } = *message {
            let leg = self.machine(id).and_then(|machine| machine.leg(key));
            let Some((_, table)) = leg else { panic!("{id:?} grants {key:?}, which it does not have") };
            assert_eq!(table.len(), blocks, "{id:?} grants {key:?}");
            let blocks = table.blocks().to_vec();
            self.grants.insert((id, key), blocks);
        }
    }

    pub(super) fn put(&mut self, from: MachineId, put: Put, pass_ns: Option<u64>) {
        if self.machine(put.to).is_none() {
            return;
        }
        self.out.counters.transfers += 1;
        let number = self.transfers_made;
        self.transfers_made += 1;
        let grant = self.grants.get(&(put.to, put.key)).cloned();
        let Some(write_blocks) = grant else { panic!("{put:?} from {from:?} without a grant") };
        let leg = self.machine(from).and_then(|machine| machine.leg(put.key));
        let Some((_, table)) = leg else { panic!("{put:?} from {from:?}, which does not have it") };
        let mut transfer = Transfer {
            key: put.key,
            from,
            to: put.to,
            writes: true,
            reads: true,
            told: false,
            stopped: false,
            stalled: false,
            read_blocks: table.blocks().to_vec(),
            write_blocks,
        };
        let (low, mut high) = self.setup.transfer_ns;
        let well = self.healed_at.is_some();
        if !well && self.rng.chance(self.setup.transfer_slow_permille) {
            high *= 10;
        }
        let fails = !well && self.rng.chance(self.setup.transfer_fails_permille);
        transfer.stalled = !well && self.rng.chance(self.setup.transfer_stalls_permille);
        let stalled = transfer.stalled;
        self.transfers.insert(number, transfer);
        self.check_limits(from, put.to);
        // The last layer is computed about when the pass ends, and may be across before the engine says so.
        let start = self.now + pass_ns.map_or(0, |took| took.saturating_sub(1));
        let took = self.rng.within(low, high);
        for layers in 1..self.setup.layers {
            let when = self.rng.within(self.now, start + took);
            self.push(when, Event::Layers { transfer: number, layers });
        }
        if stalled {
            self.fail_transfer(number, true);
        } else if fails {
            // Early, or at the end, where a checksum does not match.
            let when =
                if self.rng.chance(500) { start + took } else { self.rng.within(self.now, start + took) };
            self.push(when, Event::TransferFails { transfer: number });
        } else {
            self.push(start + took, Event::Layers { transfer: number, layers: self.setup.layers });
            let when = start + self.rng.within(low, high + 1);
            self.push(when, Event::LocalDone { transfer: number });
        }
    }

    pub(super) fn layers(&mut self, transfer: u64, layers: u16) {
        let Some(record) = self.transfers.get_mut(&transfer) else { return };
        let of = self.setup.layers;
        if !record.writes || (record.stalled && layers == of) {
            return;
        }
        record.writes = layers < of;
        // What has arrived has been read, though the source's side may say so later.
        record.reads &= record.writes;
        let (key, to) = (record.key, record.to);
        if layers == of && self.awaits(to, key) {
            self.follow(to, key);
        }
        self.tell_machine(to, &MachineEvent::LayersLanded { key, layers, of });
    }

    /// Whether a leg has yet to get all of its KV.
    fn awaits(&self, id: MachineId, key: LegKey) -> bool {
        use splitcore_core::leg::Inbound::{Receiving, Reserved};
        let leg = self.machine(id).and_then(|machine| machine.leg(key));
        leg.is_some_and(|(state, _)| matches!(state.inbound, Reserved | Receiving))
    }

    pub(super) fn local_done(&mut self, transfer: u64) {
        let Some(record) = self.transfers.get(&transfer) else { return };
        // What was cut off by the death of either side is not done.
        let cut_off =
            self.machine(record.from).is_none() || (record.reads && self.machine(record.to).is_none());
        let Some(record) = self.transfers.get_mut(&transfer) else { return };
        if record.stopped || record.stalled || cut_off {
            return;
        }
        record.reads = false;
        record.told = true;
        let (key, from) = (record.key, record.from);
        self.tell_machine(from, &MachineEvent::LocalDone { key });
    }

    pub(super) fn transfer_fails(&mut self, transfer: u64) {
        if !self.transfers.get(&transfer).is_some_and(|record| record.writes && !record.stalled) {
            return;
        }
        // One that is being stopped may fail instead: either way it is over.
        self.fail_transfer(transfer, false);
        let is_last = self.is_last(transfer);
        if let Some(record) = self.transfers.remove(&transfer).filter(|_| is_last) {
            self.tell_machine(record.from, &MachineEvent::TransferFailed { key: record.key });
        }
    }

    /// Whether no later transfer of a leg of this name has begun: the outcome of an earlier one is told to nobody.
    fn is_last(&self, transfer: u64) -> bool {
        let name = |record: &Transfer| (record.key, record.from);
        let of = self.transfers.get(&transfer).map(name);
        self.transfers.range(transfer + 1..).all(|(_, later)| Some(name(later)) != of)
    }

    pub(super) fn stop_put(&mut self, from: MachineId, key: LegKey) {
        // The last one of that name; an earlier one may be across and not yet told of.
        let found =
            self.transfers.iter_mut().rev().find(|(_, record)| record.key == key && record.from == from);
        let (transfer, high) = if let Some((&transfer, record)) = found {
            record.stopped = true;
            (transfer, self.setup.transfer_ns.1)
        } else {
            // Already across as far as the transport knows; it says so again.
            let to = self.machine(from).and_then(|machine| machine.leg_peers(key).1).unwrap_or(from);
            let record = Transfer {
                key,
                from,
                to,
                writes: false,
                reads: false,
                told: true,
                stopped: true,
                stalled: false,
                read_blocks: Vec::new(),
                write_blocks: Vec::new(),
            };
            self.transfers.insert(self.transfers_made, record);
            self.transfers_made += 1;
            (self.transfers_made - 1, 0)
        };
        let limit_ns = self.setup.machines[from.index as usize].config.transfer_limit_ns.unwrap_or(0);
        let slow = self.healed_at.is_none() && self.rng.chance(self.setup.slow_stops_permille);
        let after = if slow { limit_ns * 3 } else { self.rng.within(0, high) };
        self.push(self.now + after, Event::Fenced { transfer });
    }

    pub(super) fn transfer_fenced(&mut self, transfer: u64) {
        let from = self.transfers.get(&transfer).map(|record| record.from);
        // Nobody is there to stop what a machine that has died had begun.
        if from.is_none_or(|from| self.machine(from).is_none()) {
            return;
        }
        if let Some(record) = self.transfers.remove(&transfer) {
            self.tell_machine(record.from, &MachineEvent::Fenced { key: record.key });
        }
    }

    /// What a machine that is gone had begun may still arrive until the other side hears of it; what was for it is
    /// over, and its source hears of that, or only of the loss.
    pub(super) fn end_transfers(&mut self, id: MachineId) {
        let mut fail = Vec::new();
        for (&number, record) in &mut self.transfers {
            if record.from == id {
                (record.reads, record.told, record.stopped) = (false, true, false);
            } else if record.to == id {
                record.writes = false;
                fail.push(number);
            }
        }
        for number in fail {
            if self.rng.chance(500) {
                if let Some(record) = self.transfers.get_mut(&number) {
                    (record.writes, record.stalled) = (true, false);
                }
                let when = self.now + self.delay();
                self.push(when, Event::TransferFails { transfer: number });
            }
        }
    }

    /// A machine hears that another is gone: nothing of it is written here any more, and nothing read for it.
    pub(super) fn peer_lost(&mut self, at: MachineId, lost: MachineId) {
        if self.machine(at).is_none() {
            return;
        }
        self.transfers.retain(|_, record| {
            (record.from, record.to) != (at, lost) && (record.from, record.to) != (lost, at)
        });
        self.tell_machine(at, &MachineEvent::PeerLost { machine: lost });
    }
}
