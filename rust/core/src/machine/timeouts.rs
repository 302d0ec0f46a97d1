//! What a machine does not wait for for ever: a transfer that stands still, room for work that found none, and a
//! Cluster that does not come back.

use super::Machine;
use crate::event::MachineAction;
use crate::leg::{Notice, Outbound};
use crate::time::Time;

impl Machine {
    /// The earliest time at which waiting ends. O(1).
    pub(super) fn timeout_due(&self) -> Option<Time> {
        let mut due = self.stalls.front().map(|&(due, _)| due);
        if let Some(since) = self.stuck_since {
            due = Time::earliest(due, Some(since.after(self.config.park_limit_ns)));
        }
        if let (Some(since), Some(limit_ns)) = (self.orphaned_at, self.config.orphan_limit_ns) {
            let holds = self.legs.len() > 0 || !self.kept.is_empty();
            due = Time::earliest(due, holds.then(|| since.after(limit_ns)));
        }
        due
    }

    pub(super) fn time_out(&mut self, actions: &mut Vec<MachineAction>) {
        if self.timeout_due().is_none_or(|due| due > self.now) {
            return;
        }
        self.stop_stalled(actions);
        self.give_back_stuck(actions);
        self.drop_orphans(actions);
    }

    /// From now on the transfer of a leg may take `transfer_limit_ns`.
    pub(super) fn watch_transfer(&mut self, slot: u32) {
        let Some(limit_ns) = self.config.transfer_limit_ns else { return };
        let due = self.now.after(limit_ns);
        let leg = self.legs.get_mut(slot);
        leg.stalls_at = Some(due);
        // All wait equally long, so the line is in order.
        self.stalls.push_back((due, leg.key));
    }

    pub(super) fn unwatch_transfer(&mut self, slot: u32) {
        let leg = self.legs.get_mut(slot);
        let ended = leg.stalls_at.take().map(|due| (due, leg.key));
        // The first in line is a transfer that still runs, so that a deadline is never for nothing.
        if ended.is_none() || self.stalls.front() != ended.as_ref() {
            return;
        }
        self.stalls.pop_front();
        while let Some(&(due, key)) = self.stalls.front() {
            let slot = self.legs.find(key);
            if slot.is_some_and(|slot| self.legs.get(slot).stalls_at == Some(due)) {
                return;
            }
            self.stalls.pop_front();
        }
    }

    /// A stalled transfer is stopped and has failed; one that does not even stop is for the Cluster to route around.
    fn stop_stalled(&mut self, actions: &mut Vec<MachineAction>) {
        while let Some(&(_, key)) = self.stalls.front().filter(|(due, _)| *due <= self.now) {
            let Some(slot) = self.legs.find(key) else { return };
            self.unwatch_transfer(slot);
            let leg = self.legs.get(slot);
            if leg.aborted || leg.ended {
                continue;
            }
            self.watch_transfer(slot);
            let leg = self.legs.get_mut(slot);
            if leg.state.outbound == Outbound::Sending {
                leg.failed = true;
                self.counters.stalled += 1;
                self.stop_sending(slot, actions);
                actions.push(MachineAction::Notify { notice: Notice::TransferFailed { key } });
            } else {
                self.counters.relieved += 1;
                actions.push(MachineAction::Notify { notice: Notice::Relief { key } });
            }
        }
    }

    /// The oldest leg that waits for room goes back to the Cluster. Others may then find room, or go next.
    fn give_back_stuck(&mut self, actions: &mut Vec<MachineAction>) {
        let Some(since) = self.stuck_since else { return };
        if since.after(self.config.park_limit_ns) > self.now {
            return;
        }
        let oldest = self.decodes.first().map(|decode| (decode.order, decode.slot));
        let queued = self.queue.front().map(|queued| (queued.order, queued.slot));
        let oldest = oldest.into_iter().chain(queued).min();
        self.stuck_since = oldest.map(|_| self.now);
        let Some((_, slot)) = oldest else { return };
        let key = self.legs.get(slot).key;
        self.counters.relieved += 1;
        actions.push(MachineAction::Notify { notice: Notice::Relief { key } });
    }

    /// Nobody has asked for what is here for so long that nobody will.
    fn drop_orphans(&mut self, actions: &mut Vec<MachineAction>) {
        let (Some(since), Some(limit_ns)) = (self.orphaned_at, self.config.orphan_limit_ns) else { return };
        if since.after(limit_ns) > self.now {
            return;
        }
        self.orphaned_at = Some(self.now);
        self.kept.clear();
        for key in self.leg_keys().collect::<Vec<_>>() {
            let _ = self.abort(key, self.last_seq, actions);
        }
    }

    pub(super) fn is_over_quarantine(&self) -> bool {
        let (blocks, total) = (u64::from(self.pool.quarantined()), u64::from(self.pool.total()));
        blocks * 1000 > total * u64::from(self.config.quarantine_limit_permille)
    }
}
