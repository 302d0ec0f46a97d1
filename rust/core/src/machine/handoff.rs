//! A machine's half of a handoff: reserve, grant, put, landed; and the ways out of it.
//!
//! ```text
//! source                                     destination
//!   Compute, Send                              Reserve, Start      <- Cluster
//!      |                <--- Grant ---             | blocks set aside
//!   prefill, Put  ======= layers =======>          | LayersLanded
//!      |                <--- Landed ---            | joins a batch
//!   blocks free
//! ```
//! Each side frees only its own blocks. The destination keeps its blocks quarantined after an abort until the
//! source says that it will never write (`AbortAck`), or is lost. An `AbortAck` answers an `Abort` and nothing else,
//! so that none is left over for a later leg of the same name. A grant may come before the leg it is for, and then
//! waits for it, or for the abort that follows if there is no leg to come.

use super::Machine;
use crate::error::{Applied, EventError};
use crate::event::{MachineAction, Put};
use crate::id::{AssignmentSeq, LegKey, MachineId, Order};
use crate::leg::{Compute, Inbound, LegState, Notice, Outbound, Peer, Work};
use crate::placement::Mode;

impl Machine {
    pub(super) fn reserve(
        &mut self,
        key: LegKey,
        order: Order,
        work: Work,
        source: MachineId,
        seq: AssignmentSeq,
        actions: &mut Vec<MachineAction>,
    ) -> Result<Applied, EventError> {
        self.check_new(key, work)?;
        self.last_seq = self.last_seq.max(seq);
        let blocks = self.blocks_for(work.kv_tokens());
        if blocks > self.pool.free() {
            self.counters.refused += 1;
            let report = self.riding_report();
            actions.push(MachineAction::Notify { notice: Notice::Refused { key, report } });
            return Ok(Applied::Yes);
        }
        let slot = self.legs.insert(key, order, work, LegState::RESERVED);
        let lost = self.is_lost(source);
        let leg = self.legs.get_mut(slot);
        leg.source = Some(source);
        leg.fenced = lost;
        self.kv_tokens += u64::from(leg.kv_tokens);
        let taken = self.pool.allocate(blocks, &mut leg.table);
        debug_assert!(taken.is_ok(), "room was checked");
        self.handoff_blocks_seen_max = self.handoff_blocks_seen_max.max(blocks);
        actions.push(MachineAction::Notify { notice: Notice::Reserved { key } });
        self.grants_waiting.push_back(key);
        self.grant_waiting(actions);
        Ok(Applied::Yes)
    }

    /// Grants in order of reservation, up to `receives_max`.
    pub(super) fn grant_waiting(&mut self, actions: &mut Vec<MachineAction>) {
        while self.config.receives_max.is_none_or(|limit| self.granted < limit) {
            let Some(key) = self.grants_waiting.pop_front() else { return };
            // One that was aborted while it waited is gone, and its name may have come again. A lost source writes
            // nothing.
            let Some(slot) = self.legs.find(key) else { continue };
            let leg = self.legs.get_mut(slot);
            let wanted = leg.state.inbound == Inbound::Reserved && !leg.granted && !leg.fenced;
            let Some(to) = leg.source.filter(|_| wanted) else { continue };
            leg.granted = true;
            self.granted += 1;
            let message = Peer::Grant { key, blocks: leg.table.len() };
            actions.push(MachineAction::Peer { to, message });
        }
    }

    pub(super) fn send(
        &mut self,
        key: LegKey,
        to: MachineId,
        mode: Mode,
        actions: &mut Vec<MachineAction>,
    ) -> Result<Applied, EventError> {
        let Some(slot) = self.legs.find(key) else { return Ok(self.late()) };
        let leg = self.legs.get_mut(slot);
        if !leg.work.hands_over() {
            return Err(EventError::Unsupported("a send of a leg that runs to the end"));
        }
        if leg.is_sending() && !leg.sends_to(to) {
            // The one under way is still to come to its end. It may even land: who refused before may have granted
            // since, and only who holds a reservation grants.
            leg.next = Some((to, mode));
            return Ok(Applied::Yes);
        }
        if leg.handed_to.is_some_and(|has| has != to) {
            // Who had it is gone, and the pass that made it is still running: the KV is here to be sent again.
            leg.handed_to = None;
            leg.set(|state| state.outbound = Outbound::None);
        }
        leg.to = Some((to, mode));
        leg.next = None;
        leg.failed = false;
        self.put_if_granted(slot, actions);
        Ok(Applied::Yes)
    }

    pub(super) fn start(&mut self, key: LegKey) -> Applied {
        let Some(slot) = self.legs.find(key) else { return self.late() };
        self.legs.get_mut(slot).started = true;
        self.begin_if_ready(slot);
        Applied::Yes
    }

    /// A landed and started leg joins the batches.
    fn begin_if_ready(&mut self, slot: u32) {
        let leg = self.legs.get_mut(slot);
        let ready = leg.state.inbound == Inbound::Ready && leg.compute() == Compute::Waiting;
        if !ready || !leg.started {
            return;
        }
        if leg.work.prefill_tokens() > 0 {
            leg.set(|state| state.compute = Compute::Queued);
            self.enqueue(slot);
        } else {
            self.join_decodes(slot);
        }
    }

    pub(super) fn peer(
        &mut self,
        from: MachineId,
        message: Peer,
        actions: &mut Vec<MachineAction>,
    ) -> Applied {
        match message {
            Peer::Grant { key, .. } => self.peer_grant(from, key, actions),
            Peer::Landed { key } => self.peer_landed(from, key, actions),
            Peer::Abort { key } => self.peer_abort(from, key, actions),
            Peer::AbortAck { key } => self.peer_abort_ack(from, key, actions),
        }
    }

    fn peer_grant(&mut self, from: MachineId, key: LegKey, actions: &mut Vec<MachineAction>) -> Applied {
        if self.is_lost(from) {
            return self.late();
        }
        let Some(slot) = self.legs.find(key) else {
            // Its `Compute` is on its way, or the granter's `Abort`.
            self.early_grants.insert(key, from);
            return Applied::Yes;
        };
        self.legs.get_mut(slot).granted_by = Some(from);
        self.put_if_granted(slot, actions);
        Applied::Yes
    }

    fn peer_landed(&mut self, from: MachineId, key: LegKey, actions: &mut Vec<MachineAction>) -> Applied {
        self.forget_grant(from, key);
        let Some(slot) = self.legs.find(key) else { return self.late() };
        let leg = self.legs.get_mut(slot);
        let to_it = leg.to.is_some_and(|(to, _)| to == from);
        match leg.compute() {
            Compute::Prefilling if leg.sends_to(from) => {
                leg.granted_by = None;
                leg.handed_to = Some(from);
                leg.set(|state| state.outbound = Outbound::Released);
                self.free_send_place(slot, actions);
            }
            // Also where the transport has given up meanwhile: the destination has everything.
            Compute::Held | Compute::Done if to_it => {
                leg.handed_to = Some(from);
                self.release(slot, actions);
            }
            _ => return self.late(),
        }
        Applied::Yes
    }

    /// A grant that waits for its leg is for nothing: it was said again, and the leg has gone meanwhile.
    fn forget_grant(&mut self, from: MachineId, key: LegKey) {
        if self.early_grants.get(&key) == Some(&from) {
            self.early_grants.remove(&key);
        }
    }

    fn peer_abort(&mut self, from: MachineId, key: LegKey, actions: &mut Vec<MachineAction>) -> Applied {
        self.forget_grant(from, key);
        let Some(slot) = self.legs.find(key) else {
            actions.push(MachineAction::Peer { to: from, message: Peer::AbortAck { key } });
            return self.late();
        };
        let leg = self.legs.get_mut(slot);
        if leg.granted_by == Some(from) {
            leg.granted_by = None;
        }
        if leg.sends_to(from) {
            leg.aborted_by = Some(from);
            self.stop_sending(slot, actions);
        } else {
            actions.push(MachineAction::Peer { to: from, message: Peer::AbortAck { key } });
        }
        Applied::Yes
    }

    fn peer_abort_ack(&mut self, from: MachineId, key: LegKey, actions: &mut Vec<MachineAction>) -> Applied {
        let Some(slot) = self.legs.find(key) else { return self.late() };
        if self.legs.get(slot).source != Some(from) {
            return self.late();
        }
        self.release_if_drained(slot, actions);
        Applied::Yes
    }

    fn release_if_drained(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        if self.legs.get(slot).state.inbound == Inbound::Draining {
            self.release(slot, actions);
        }
    }

    pub(super) fn layers_landed(
        &mut self,
        key: LegKey,
        layers: u16,
        of: u16,
        actions: &mut Vec<MachineAction>,
    ) -> Applied {
        let Some(slot) = self.legs.find(key) else { return self.late() };
        let leg = self.legs.get_mut(slot);
        if !matches!(leg.state.inbound, Inbound::Reserved | Inbound::Receiving) {
            return self.late();
        }
        if layers < of {
            leg.set(|state| state.inbound = Inbound::Receiving);
            return Applied::Yes;
        }
        leg.set(|state| state.inbound = Inbound::Ready);
        let source = leg.source;
        self.free_grant(slot, actions);
        if let Some(to) = source {
            actions.push(MachineAction::Peer { to, message: Peer::Landed { key } });
        }
        actions.push(MachineAction::Notify { notice: Notice::Landed { key } });
        self.begin_if_ready(slot);
        Applied::Yes
    }

    pub(super) fn local_done(&mut self, key: LegKey, actions: &mut Vec<MachineAction>) -> Applied {
        let Some(slot) = self.legs.find(key) else { return self.late() };
        self.free_send_place(slot, actions);
        actions.push(MachineAction::Notify { notice: Notice::Sent { key } });
        Applied::Yes
    }

    pub(super) fn transfer_failed(&mut self, key: LegKey, actions: &mut Vec<MachineAction>) -> Applied {
        let Some(slot) = self.legs.find(key) else { return self.late() };
        if self.legs.get(slot).is_sending() {
            let leg = self.legs.get_mut(slot);
            // A stalled one has been told of, and where another destination is named the Cluster has heard already.
            let news = !leg.aborted && !leg.ended && !leg.failed && leg.next.is_none();
            leg.failed = true;
            self.sending_ended(slot, actions);
            if news {
                actions.push(MachineAction::Notify { notice: Notice::TransferFailed { key } });
            }
        }
        Applied::Yes
    }

    pub(super) fn fenced(&mut self, key: LegKey, actions: &mut Vec<MachineAction>) -> Applied {
        let Some(slot) = self.legs.find(key) else { return self.late() };
        if self.legs.get(slot).is_sending() {
            self.sending_ended(slot, actions);
        }
        Applied::Yes
    }

    /// A machine is gone: it writes no more into our blocks, and nobody reads ours for it.
    pub(super) fn peer_lost(&mut self, machine: MachineId, actions: &mut Vec<MachineAction>) -> Applied {
        let last = self.lost.entry(machine.index).or_insert(machine.incarnation);
        *last = machine.incarnation.max(*last);
        self.early_grants.retain(|_, granter| *granter != machine);
        let slots: Vec<u32> = self.legs.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let leg = self.legs.get_mut(slot);
            if leg.granted_by == Some(machine) {
                leg.granted_by = None;
            }
            if leg.aborted_by == Some(machine) {
                leg.aborted_by = None;
            }
            if leg.source == Some(machine) {
                leg.fenced = true;
                self.release_if_drained(slot, actions);
            } else if leg.sends_to(machine) {
                self.sending_ended(slot, actions);
            }
        }
        Applied::Yes
    }

    /// Starts the transfer of a held leg whose destination has granted it.
    pub(super) fn put_if_granted(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        let leg = self.legs.get(slot);
        let Some((to, _)) = leg.to else { return };
        let granted = leg.granted_by == Some(to) && !leg.failed;
        if leg.compute() != Compute::Held || !granted || leg.is_sending() || leg.aborted {
            return;
        }
        let key = leg.key;
        if !self.take_send_place() {
            self.sends_waiting.push_back(key);
            return;
        }
        let leg = self.legs.get_mut(slot);
        leg.sends = true;
        leg.set(|state| state.outbound = Outbound::Sending);
        let tokens = leg.work.kv_tokens();
        actions.push(MachineAction::Put(Put { key, order: leg.order, to, tokens, mode: Mode::Serialized }));
        self.watch_transfer(slot);
    }

    /// Whether one more transfer may start; takes its place.
    pub(super) fn take_send_place(&mut self) -> bool {
        let free = self.config.sends_max.is_none_or(|limit| self.sending < limit);
        self.sending += u32::from(free);
        free
    }

    fn free_send_place(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        if std::mem::take(&mut self.legs.get_mut(slot).sends) {
            self.sending -= 1;
            self.put_waiting(actions);
        }
    }

    /// The next transfers in line, after a place has become free.
    pub(super) fn put_waiting(&mut self, actions: &mut Vec<MachineAction>) {
        while self.config.sends_max.is_none_or(|limit| self.sending < limit) {
            let Some(key) = self.sends_waiting.pop_front() else { return };
            if let Some(slot) = self.legs.find(key) {
                self.put_if_granted(slot, actions);
            }
        }
    }

    /// A grant of ours has done its work or is void.
    pub(super) fn free_grant(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        if std::mem::take(&mut self.legs.get_mut(slot).granted) {
            self.granted -= 1;
            self.grant_waiting(actions);
        }
    }

    /// Asks the transport to stop; `Fenced` follows.
    pub(super) fn stop_sending(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        let leg = self.legs.get_mut(slot);
        if leg.state.outbound == Outbound::Sending {
            leg.set(|state| state.outbound = Outbound::Draining);
            actions.push(MachineAction::StopPut { key: leg.key });
        }
    }

    /// The transport neither reads nor writes for this leg any more, though not all has landed.
    fn sending_ended(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        self.free_send_place(slot, actions);
        self.unwatch_transfer(slot);
        self.acknowledge_abort(slot, actions);
        let leg = self.legs.get_mut(slot);
        if leg.to.map(|(to, _)| to) == leg.granted_by {
            leg.granted_by = None;
        }
        if leg.compute() == Compute::Done {
            return self.release(slot, actions);
        }
        leg.set(|state| state.outbound = Outbound::None);
        if let Some(next) = leg.next.take() {
            leg.to = Some(next);
            leg.failed = false;
            self.put_if_granted(slot, actions);
        }
    }

    /// Tells a destination that aborted that nothing will be written any more.
    pub(super) fn acknowledge_abort(&mut self, slot: u32, actions: &mut Vec<MachineAction>) {
        let leg = self.legs.get_mut(slot);
        if let Some(to) = leg.aborted_by.take() {
            actions.push(MachineAction::Peer { to, message: Peer::AbortAck { key: leg.key } });
        }
    }
}
