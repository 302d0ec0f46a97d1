//! The legs a machine holds: a slab with a look-up by key. Slots are reused, so a leg's block table keeps its
//! allocation for the next one.

use crate::id::{IdMap, LegKey, MachineId, Order};
use crate::kv::BlockTable;
use crate::leg::{Compute, Inbound, LegState, Outbound, Work};
use crate::placement::{Mode, Upto};
use crate::time::Time;

/// A leg as its machine knows it.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each set by another event")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Leg {
    pub(crate) key: LegKey,
    pub(crate) order: Order,
    pub(crate) work: Work,
    pub(crate) state: LegState,
    /// Who writes our inbound KV.
    pub(super) source: Option<MachineId>,
    /// Where our KV goes, and how, as the Cluster said.
    pub(super) to: Option<(MachineId, Mode)>,
    /// Where it goes should the transfer under way come to nothing: the Cluster has chosen again already.
    pub(super) next: Option<(MachineId, Mode)>,
    /// Who has all of its KV.
    pub(super) handed_to: Option<MachineId>,
    /// Who has set blocks aside for it.
    pub(super) granted_by: Option<MachineId>,
    /// Which destination asked us to stop writing, and waits for the answer.
    pub(super) aborted_by: Option<MachineId>,
    /// A grant of ours is out, so the source may write.
    pub(super) granted: bool,
    /// The Cluster said `Start`.
    pub(super) started: bool,
    /// To be dropped when the running pass or the transfer lets go of it.
    pub(super) aborted: bool,
    /// Its request ended in the running pass.
    pub(super) ended: bool,
    /// The source is lost: it writes nothing.
    pub(super) fenced: bool,
    /// It holds one of the `sends_max` places.
    pub(super) sends: bool,
    /// Its transfer failed, and no other destination has been named since.
    pub(super) failed: bool,
    /// When its transfer will have taken too long.
    pub(super) stalls_at: Option<Time>,
    /// Output tokens so far. While decoding, derived from the decode list instead.
    pub(super) generated: u32,
    /// Tokens of its next prefill that earlier passes have computed.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(super) chunked: u32,
    /// Its next prefill computes everything anew: its blocks were taken.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(super) recomputes: bool,
    pub(super) evictions: u32,
    /// KV tokens it counts for in reports.
    pub(crate) kv_tokens: u32,
    pub(crate) table: BlockTable,
}

impl Leg {
    /// Changes one state and asserts that the triple stays legal.
    pub(super) fn set(&mut self, change: impl FnOnce(&mut LegState)) {
        let before = self.state;
        change(&mut self.state);
        debug_assert!(self.state.is_legal(), "leg {:?}: {before:?} -> {:?}", self.key, self.state);
    }

    pub(super) fn compute(&self) -> Compute {
        self.state.compute
    }

    /// Where its next prefill starts and how many tokens are left of it: its own, or after an eviction everything so far,
    /// less the chunks that have been computed.
    pub(super) fn prefill(&self) -> (u32, u32) {
        let (start, tokens) = if self.recomputes {
            (0, self.work.prompt_tokens + self.generated)
        } else {
            (self.work.start, self.work.prefill_tokens())
        };
        (start + self.chunked, tokens - self.chunked)
    }

    /// A pass has computed so many tokens of its prefill. Returns whether that was the rest of it.
    pub(super) fn prefilled(&mut self, tokens: u32) -> bool {
        if tokens < self.prefill().1 {
            self.chunked += tokens;
            return false;
        }
        (self.chunked, self.recomputes) = (0, false);
        true
    }

    /// KV tokens that must have blocks before its next prefill.
    pub(super) fn prefill_room_tokens(&self) -> u32 {
        match self.work.upto {
            Upto::Position(upto) => upto,
            Upto::End => self.work.prompt_tokens + self.generated + 1,
        }
    }

    /// Whether the transport may still write its blocks.
    pub(super) fn writer_may_write(&self) -> bool {
        self.granted && !self.fenced && matches!(self.state.inbound, Inbound::Reserved | Inbound::Receiving)
    }

    /// Whether the transport may still read its blocks, for this machine.
    pub(super) fn sends_to(&self, machine: MachineId) -> bool {
        self.is_sending() && self.to.is_some_and(|(to, _)| to == machine)
    }

    /// Whether the transport may still read its blocks.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self.state.outbound, Outbound::Sending | Outbound::Draining)
    }
}

/// The slab.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Legs {
    slots: Vec<Leg>,
    vacant: Vec<u32>,
    #[cfg_attr(feature = "serde", serde(with = "crate::id::id_map"))]
    by_key: IdMap<LegKey, u32>,
}

impl Legs {
    pub(super) fn find(&self, key: LegKey) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn get(&self, slot: u32) -> &Leg {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Leg {
        &mut self.slots[slot as usize]
    }

    pub(super) fn len(&self) -> u32 {
        self.by_key.len() as u32
    }

    pub(super) fn insert(&mut self, key: LegKey, order: Order, work: Work, state: LegState) -> u32 {
        let leg = Leg {
            key,
            order,
            work,
            state,
            source: None,
            to: None,
            next: None,
            handed_to: None,
            granted_by: None,
            aborted_by: None,
            granted: false,
            started: false,
            aborted: false,
            ended: false,
            fenced: false,
            sends: false,
            failed: false,
            stalls_at: None,
            // A leg that begins at L or later continues after the token its predecessor sampled.
            generated: u32::from(work.start >= work.prompt_tokens),
            chunked: 0,
            recomputes: false,
            evictions: 0,
            kv_tokens: work.kv_tokens(),
            table: BlockTable::default(),
        };
        let slot = if let Some(slot) = self.vacant.pop() {
            let old = &mut self.slots[slot as usize];
            let table = std::mem::take(&mut old.table);
            *old = Leg { table, ..leg };
            slot
        } else {
            self.slots.push(leg);
            self.slots.len() as u32 - 1
        };
        self.by_key.insert(key, slot);
        slot
    }

    /// Forgets a leg whose blocks have gone back.
    pub(super) fn remove(&mut self, slot: u32) {
        let leg = &self.slots[slot as usize];
        assert!(leg.table.is_empty(), "leg {:?} dropped with blocks", leg.key);
        self.by_key.remove(&leg.key);
        self.vacant.push(slot);
    }

    /// The live legs in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Leg)> {
        self.slots
            .iter()
            .enumerate()
            .map(|(slot, leg)| (slot as u32, leg))
            .filter(|&(slot, leg)| self.by_key.get(&leg.key) == Some(&slot))
    }
}
