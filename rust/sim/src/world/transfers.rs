//! KV transfers: what the core asks of a transport, carried out on the simulated links.
//!
//! A serialized transfer is a flow that starts when asked. A layer-wise one starts with prefill, runs no faster
//! than prefill makes its bytes, and lands no earlier than the fixed cost after prefill (Splitwise, section IV-C).

use splitcore_core::event::{MachineEvent, Put};
use splitcore_core::id::LegKey;

use super::messages::Message;
use super::{Event, World};
use crate::SimError;
use crate::links::FlowId;
use crate::observer::Observer;
use crate::report::TransferKind;

/// A transfer under way.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    key: LegKey,
    from: u32,
    to: u32,
    bytes: u64,
    kind: TransferKind,
    prefill_end_ns: u64,
    /// It lands no earlier.
    lands_after_ns: u64,
    flow: FlowId,
    /// Stopped before it landed.
    stopped: bool,
}

/// The transfers under way, and which flow belongs to which.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    slots: Vec<Transfer>,
    vacant: Vec<u32>,
    /// By flow slot.
    of_flow: Vec<u32>,
    ended: Vec<FlowId>,
}

impl Transfers {
    fn put(&mut self, transfer: Transfer) -> u32 {
        let at = if let Some(at) = self.vacant.pop() {
            self.slots[at as usize] = transfer;
            at
        } else {
            self.slots.push(transfer);
            self.slots.len() as u32 - 1
        };
        let flow = transfer.flow.slot();
        if self.of_flow.len() <= flow {
            self.of_flow.resize(flow + 1, 0);
        }
        self.of_flow[flow] = at;
        at
    }
}

impl<O: Observer> World<O> {
    pub(super) fn start_serialized(&mut self, from: u32, put: &Put) {
        self.start_transfer(from, put, TransferKind::Serialized, 0, 0, None);
    }

    pub(super) fn start_layer_wise(&mut self, from: u32, put: &Put, prefill_ns: u64) {
        let fixed_ns = self.fixed_cost_ns(from, put.to.index);
        let bytes = u64::from(put.tokens) * self.kv_bytes_per_token;
        let cap = bytes as f64 * 1e9 / prefill_ns as f64;
        self.start_transfer(from, put, TransferKind::LayerWise, prefill_ns, fixed_ns, Some(cap));
    }

    fn start_transfer(
        &mut self,
        from: u32,
        put: &Put,
        kind: TransferKind,
        prefill_ns: u64,
        fixed_ns: u64,
        rate_cap: Option<f64>,
    ) {
        let (to, bytes) = (put.to.index, u64::from(put.tokens) * self.kv_bytes_per_token);
        let prefill_end_ns = self.now_ns + prefill_ns;
        let flow = self.links.start(self.now_ns, from, to, bytes, rate_cap);
        let at = self.transfers.put(Transfer {
            key: put.key,
            from,
            to,
            bytes,
            kind,
            prefill_end_ns,
            lands_after_ns: prefill_end_ns + fixed_ns,
            flow,
            stopped: false,
        });
        self.streams[put.key.request.0 as usize].transfer = Some(at);
        self.watchdog.transfer();
        self.log(8, from, put.key.request.0);
    }

    /// The larger of the two machines' fixed costs.
    fn fixed_cost_ns(&self, from: u32, to: u32) -> u64 {
        self.fixed_costs_ns[from as usize].max(self.fixed_costs_ns[to as usize])
    }

    pub(super) fn flows_end(&mut self) -> Result<(), SimError> {
        let mut ended = std::mem::take(&mut self.transfers.ended);
        ended.clear();
        self.links.complete_due(self.now_ns, &mut ended);
        for flow in &ended {
            let at = self.transfers.of_flow[flow.slot()];
            let lands_ns = self.transfers.slots[at as usize].lands_after_ns;
            if lands_ns > self.now_ns {
                self.queue.push(lands_ns, Event::Lands(at));
            } else {
                self.land(at)?;
            }
        }
        self.transfers.ended = ended;
        Ok(())
    }

    /// The last layer is across, and with it the first token.
    pub(super) fn land(&mut self, at: u32) -> Result<(), SimError> {
        let transfer = self.transfers.slots[at as usize];
        self.transfers.vacant.push(at);
        if transfer.stopped {
            return Ok(());
        }
        self.streams[transfer.key.request.0 as usize].transfer = None;
        self.log(9, transfer.to, transfer.key.request.0);
        let visible_ns = self.now_ns - transfer.prefill_end_ns;
        self.transfer_tally.record(transfer.kind, transfer.bytes, visible_ns);
        let key = transfer.key;
        self.observer.landed(self.now_ns, transfer.from, transfer.to, key.request.0, visible_ns);
        self.tell_machine(transfer.to, &MachineEvent::LayersLanded { key, layers: 1, of: 1 })?;
        self.tell_machine(transfer.from, &MachineEvent::LocalDone { key })
    }

    /// Stops a transfer and says that nothing is written any more.
    pub(super) fn stop_transfer(&mut self, machine: u32, key: LegKey) {
        if let Some(at) = self.streams[key.request.0 as usize].transfer {
            self.halt(at);
        }
        let fenced = self.messages.put(Message::Fenced { machine, key });
        self.queue.push(self.now_ns, Event::Message(fenced));
    }

    fn halt(&mut self, at: u32) {
        let transfer = &mut self.transfers.slots[at as usize];
        transfer.stopped = true;
        self.streams[transfer.key.request.0 as usize].transfer = None;
        // One that has ended but not landed frees its place when its time comes.
        if self.links.cancel(self.now_ns, transfer.flow) {
            self.transfers.vacant.push(at);
        }
    }

    /// Ends all transfers from and to a machine that has crashed. Nobody is told.
    pub(super) fn halt_transfers_of(&mut self, machine: u32) {
        for at in 0..self.transfers.slots.len() {
            let transfer = &self.transfers.slots[at];
            let under_way = self.streams[transfer.key.request.0 as usize].transfer == Some(at as u32);
            if under_way && (transfer.from == machine || transfer.to == machine) {
                self.halt(at as u32);
            }
        }
    }
}
