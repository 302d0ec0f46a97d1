//! Machines whose KV transfers fail. A transfer has two ends and a failure does not say which is to blame, so both are
//! noted; one that fails several times in a row is set aside: no pair is made with it, while whole requests, which move
//! no KV, may still run there. After a while it is tried again, and one more failure sets it aside again. The first
//! transfer that gets across clears both its ends.

use std::collections::BTreeMap;

use super::Cluster;
use crate::event::ClusterAction;
use crate::id::MachineId;
use crate::time::Time;

/// What is known against machines; empty where all transfers get across.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Suspects {
    /// With whom a machine's transfers have failed since the last that got across, the oldest first.
    failed_with: BTreeMap<u32, Vec<u32>>,
    /// Machines set aside, and until when.
    aside: BTreeMap<u32, Time>,
}

impl Suspects {
    pub(super) fn is_aside(&self, machine: u32) -> bool {
        self.aside.contains_key(&machine)
    }

    pub(super) fn any_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    pub(super) fn aside_until(&self, machine: u32) -> Option<Time> {
        self.aside.get(&machine).copied()
    }

    /// When the next machine is tried again.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.aside.values().min().copied()
    }

    /// With how many different machines transfers of this one have failed.
    fn breadth(&self, machine: u32) -> usize {
        let mut with = self.failed_with.get(&machine).cloned().unwrap_or_default();
        with.sort_unstable();
        with.dedup();
        with.len()
    }

    fn is_cleared(&self) -> bool {
        self.failed_with.is_empty() && self.aside.is_empty()
    }

    /// Nothing is held against a machine any more.
    pub(super) fn clear(&mut self, machine: u32) {
        self.failed_with.remove(&machine);
        self.aside.remove(&machine);
    }
}

impl Cluster {
    /// KV did not get from one machine to another.
    pub(super) fn note_failed_transfer(
        &mut self,
        from: MachineId,
        to: MachineId,
        actions: &mut Vec<ClusterAction>,
    ) {
        let ends = [from.index, to.index];
        // Of what was under way when a machine was set aside, the other end is not to blame.
        if ends.iter().any(|&end| self.suspects.is_aside(end)) {
            return;
        }
        for (end, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            self.suspects.failed_with.entry(end).or_default().push(other);
        }
        let limit = self.config.transfer_failures_max as usize;
        let is_full = |end: &u32| self.suspects.failed_with.get(end).is_some_and(|with| with.len() >= limit);
        if !ends.iter().any(is_full) {
            return;
        }
        // Whoever fails with more machines is at fault; where two fail with each other alone, where the KV was to go.
        let [first, second] = ends.map(|end| self.suspects.breadth(end));
        let guilty = if first > second { ends[0] } else { ends[1] };
        self.set_aside(guilty, actions);
    }

    fn set_aside(&mut self, machine: u32, actions: &mut Vec<ClusterAction>) {
        let due = self.now.after(self.config.aside_ns);
        self.suspects.aside.insert(machine, due);
        // Tried again, it has one failure left.
        let left = self.config.transfer_failures_max as usize - 1;
        if let Some(with) = self.suspects.failed_with.get_mut(&machine) {
            with.drain(..with.len().saturating_sub(left));
        }
        // The others are not to blame for what failed with it.
        self.suspects.failed_with.retain(|&other, with| {
            if other != machine {
                with.retain(|&peer| peer != machine);
            }
            !with.is_empty()
        });
        self.counters.set_aside += 1;
        actions.push(ClusterAction::SetAside { machine: self.id_of(machine) });
    }

    /// KV has got from one machine to another.
    #[inline]
    pub(super) fn note_transfer(&mut self, from: Option<MachineId>, to: Option<MachineId>) {
        if !self.suspects.is_cleared() {
            for machine in from.into_iter().chain(to) {
                self.suspects.clear(machine.index);
            }
        }
    }

    /// Machines that have been set aside for long enough are tried again. Returns whether there are such.
    pub(super) fn end_asides(&mut self) -> bool {
        let (now, before) = (self.now, self.suspects.aside.len());
        self.suspects.aside.retain(|_, due| *due > now);
        self.suspects.aside.len() < before
    }
}
