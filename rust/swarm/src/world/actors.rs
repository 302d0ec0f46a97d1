//! Clients, faults, the engine and the transport of the world.

use super::{Event, Message, Node, Transfer, World};
use splitcore_core::event::{Arrival, ClusterEvent, MachineEvent, Put};
use splitcore_core::id::{LegKey, MachineId, RequestId};
use splitcore_core::leg::{Command, Notice};

impl World {
    pub(super) fn arrive(&mut self, index: usize) {
        let client = self.submitted[index].client.clone();
        let id = RequestId(client.id);
        if self.live.contains_key(&id) {
            return;
        }
        self.live.insert(id, index);
        let arrival = Arrival {
            class: client.class,
            priority: client.priority,
            resumable: client.resumable,
            pin_token: client.pin_token,
            ..Arrival::new(client.id, client.prompt_tokens, client.max_new_tokens)
        };
        self.tell_cluster(&ClusterEvent::Arrive(arrival));
        let accepted = self.live.get(&id) == Some(&index);
        self.submitted[index].accepted = accepted;
        if let Some(after) = client.cancel_after_ns.filter(|_| accepted) {
            self.push(self.now + after, Event::Cancel(index));
        }
    }

    pub(super) fn cancel(&mut self, index: usize) {
        let request = RequestId(self.submitted[index].client.id);
        if self.live.get(&request) == Some(&index) {
            self.tell_cluster(&ClusterEvent::Cancel { request });
        }
    }

    pub(super) fn fault(&mut self, index: usize) {
        let fault = self.setup.faults[index];
        let place = fault.machine as usize;
        let Some(id) = self.machines[place].as_ref().map(splitcore_core::machine::Machine::id) else {
            return;
        };
        let Some(back_after_ns) = fault.loss_back_after_ns else {
            if self.draining.insert(id) {
                self.tell_cluster(&ClusterEvent::Drain { machine: id });
            }
            return;
        };
        if let Some(machine) = self.machines[place].take() {
            self.out.evicted += machine.counters().evicted;
        }
        self.transfers.retain(|_, transfer| transfer.from != id && transfer.to != id);
        self.next_token.retain(|(at, _), _| *at != id);
        // What it had sent arrives up to some point, and then the loss; what was sent to it is gone.
        let mut others = vec![Node::Cluster];
        others.extend(self.machines.iter().flatten().map(|machine| Node::Machine(machine.id())));
        let lost = Node::Machine(id);
        self.sessions.retain(|(_, to), _| *to != lost);
        for other in others {
            let waiting = self.sessions.get(&(lost, other)).map_or(0, std::collections::VecDeque::len);
            let keep = self.rng.below(waiting as u64 + 1) as usize;
            let session = self.sessions.entry((lost, other)).or_default();
            session.truncate(keep);
            session.push_back(Message::Lost);
            let when = self.now + self.delay();
            self.push(when, Event::Deliver(lost, other));
        }
        self.push(self.now + back_after_ns, Event::Rejoin { index: fault.machine });
    }

    /// What the engine reads from a command: where the leg's output begins.
    pub(super) fn learn(&mut self, id: MachineId, command: &Command) {
        let (Command::Reserve { key, work, .. } | Command::Compute { key, work, .. }) = *command else {
            return;
        };
        let resumed = work.prompt_tokens - self.submitted[self.owners[&key]].client.prompt_tokens;
        let follows = work.start >= work.prompt_tokens;
        self.next_token.insert((id, key), resumed + 1 + u32::from(follows));
        if follows {
            self.follows_token.insert((id, key));
        }
    }

    pub(super) fn run_pass(&mut self, id: MachineId, pass: u64) {
        let plan = self.machine(id).unwrap().plan().clone();
        assert_eq!(plan.pass, pass);
        let config = self.setup.machines[id.index as usize].config;
        let items = plan.prefills.len() + plan.decodes.len();
        let tokens = plan.prompt_tokens as usize + plan.decodes.len();
        assert!(items <= config.batch_requests_max as usize, "{plan:?}");
        assert!(tokens <= config.batch_tokens_max as usize || items == 1, "{plan:?}");
        let context = |key: &LegKey| u64::from(self.context(id, *key));
        assert_eq!(plan.context_tokens, plan.decodes.iter().map(context).sum::<u64>());
        for item in &plan.prefills {
            let evicted = item.start == 0 && item.samples;
            assert!(!evicted || item.tokens == self.context(id, item.key), "{item:?}");
        }
        let (low, high) = self.setup.pass_ns;
        let took = self.rng.within(low, high);
        for put in plan.puts {
            self.put(id, put, Some(took));
        }
        self.push(self.now + took, Event::PassDone { machine: id, pass });
    }

    /// Prompt and output tokens so far.
    fn context(&self, id: MachineId, key: LegKey) -> u32 {
        self.submitted[self.owners[&key]].client.prompt_tokens + self.next_token[&(id, key)] - 1
    }

    pub(super) fn pass_done(&mut self, id: MachineId, pass: u64) {
        let Some(machine) = self.machine(id) else { return };
        let plan = machine.plan().clone();
        let sampled = plan.prefills.iter().filter(|item| item.samples).map(|item| item.key);
        let mut ended = Vec::new();
        for key in sampled.chain(plan.decodes.iter().copied()).collect::<Vec<_>>() {
            if self.sample(id, key) {
                ended.push(key);
            }
        }
        self.tell_machine(id, &MachineEvent::IterationDone { pass, ended });
    }

    /// One more token of a leg. Returns whether it was the last.
    fn sample(&mut self, id: MachineId, key: LegKey) -> bool {
        let next = self.next_token.get_mut(&(id, key)).unwrap();
        let token = *next;
        *next += 1;
        self.give(id, key, token);
        let owner = self.owners[&key];
        let ends = token >= self.submitted[owner].client.output_tokens;
        if ends {
            self.out.ended_at.entry(owner).or_insert(self.out.lines.len());
        }
        ends
    }

    /// A machine gives the client a token, unless the client has it already or is gone.
    fn give(&mut self, id: MachineId, key: LegKey, token: u32) {
        let owner = self.owners[&key];
        let is_live = self.live.get(&key.request) == Some(&owner);
        let submitted = &mut self.submitted[owner];
        if is_live && token <= submitted.client.output_tokens && token > submitted.delivered {
            assert_eq!(token, submitted.delivered + 1, "a token of {key:?} was lost");
            submitted.delivered = token;
            self.since_end = self.since_end.saturating_sub(200);
            let notice = Notice::Progress { key, tokens: 1 };
            self.send(Node::Machine(id), Node::Cluster, Message::Notice(notice));
        }
    }

    pub(super) fn put(&mut self, from: MachineId, put: Put, pass_ns: Option<u64>) {
        if !self.is_live(Node::Machine(put.to)) {
            return;
        }
        let transfer = self.transfers_made;
        self.transfers_made += 1;
        let record = Transfer {
            key: put.key,
            from,
            to: put.to,
            writes: true,
            reads: true,
            told: false,
            stopped: false,
        };
        self.transfers.insert(transfer, record);
        let (low, high) = self.setup.transfer_ns;
        // The last layer is computed about when the pass ends, and may be across before the engine says so.
        let start = self.now + pass_ns.map_or(0, |took| took.saturating_sub(1));
        let took = self.rng.within(low, high);
        if self.rng.chance(self.setup.transfer_fails_permille) {
            let when = self.rng.within(self.now, start + took);
            self.push(when, Event::TransferFails { transfer });
            return;
        }
        for layers in 1..self.setup.layers {
            let when = self.rng.within(self.now, start + took);
            self.push(when, Event::Layers { transfer, layers });
        }
        self.push(start + took, Event::Layers { transfer, layers: self.setup.layers });
        let when = start + self.rng.within(low, high + 1);
        self.push(when, Event::LocalDone { transfer });
    }

    pub(super) fn layers(&mut self, transfer: u64, layers: u16) {
        let Some(record) = self.transfers.get_mut(&transfer) else { return };
        let of = self.setup.layers;
        if !record.writes {
            return;
        }
        record.writes = layers < of;
        // What has arrived has been read, though the source's side may say so later.
        record.reads &= record.writes;
        let (key, to) = (record.key, record.to);
        if layers == of && self.follows_token.contains(&(to, key)) {
            // The token that the source sampled comes with the last layer.
            self.give(to, key, self.next_token[&(to, key)] - 1);
        }
        self.tell_machine(to, &MachineEvent::LayersLanded { key, layers, of });
    }

    pub(super) fn local_done(&mut self, transfer: u64) {
        let Some(record) = self.transfers.get_mut(&transfer) else { return };
        if record.stopped {
            return;
        }
        record.reads = false;
        record.told = true;
        let (key, from) = (record.key, record.from);
        self.tell_machine(from, &MachineEvent::LocalDone { key });
    }

    pub(super) fn transfer_fails(&mut self, transfer: u64) {
        // A transfer that is being stopped may fail instead: either way it is over.
        if let Some(record) = self.transfers.remove(&transfer) {
            self.tell_machine(record.from, &MachineEvent::TransferFailed { key: record.key });
        }
    }

    pub(super) fn stop_put(&mut self, from: MachineId, key: LegKey) {
        let found = self.transfers.iter().find(|(_, record)| record.key == key && record.from == from);
        if let Some((&transfer, _)) = found {
            self.transfers.get_mut(&transfer).unwrap().stopped = true;
            let when = self.now + self.rng.within(0, self.setup.transfer_ns.1);
            self.push(when, Event::Fenced { transfer });
        } else if self.machine(from).is_some() {
            // Already across as far as the transport knows; it says so again.
            let record =
                Transfer { key, from, to: from, writes: false, reads: false, told: true, stopped: true };
            self.transfers.insert(self.transfers_made, record);
            self.push(self.now, Event::Fenced { transfer: self.transfers_made });
            self.transfers_made += 1;
        }
    }

    pub(super) fn transfer_fenced(&mut self, transfer: u64) {
        if let Some(record) = self.transfers.remove(&transfer) {
            self.tell_machine(record.from, &MachineEvent::Fenced { key: record.key });
        }
    }
}
