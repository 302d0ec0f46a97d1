//! Messages on their way, and their tags in the digest.

use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId};
use splitcore_core::leg::{Command, Notice, Peer};

/// A message on its way.
#[derive(Debug, Clone, Copy)]
pub(super) enum Message {
    ToCluster {
        from: MachineId,
        notice: Notice,
    },
    ToMachine {
        to: u32,
        epoch: Epoch,
        seq: AssignmentSeq,
        command: Command,
    },
    Peer {
        to: u32,
        from: MachineId,
        message: Peer,
    },
    /// A machine begins a session with a Cluster that knows nothing. What it registers lies with the crashes.
    Register {
        machine: u32,
    },
    /// The Cluster has taken that in.
    Registered {
        to: u32,
        epoch: Epoch,
    },
    /// From the transport: a stopped transfer writes no more.
    Fenced {
        machine: u32,
        key: LegKey,
    },
}

/// A slab: the queue holds indices, so that heap entries stay small.
#[derive(Debug, Default)]
pub(super) struct Messages {
    slots: Vec<Message>,
    vacant: Vec<u32>,
}

impl Messages {
    pub(super) fn put(&mut self, message: Message) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.slots[at as usize] = message;
            return at;
        }
        self.slots.push(message);
        self.slots.len() as u32 - 1
    }

    pub(super) fn get(&self, at: u32) -> &Message {
        &self.slots[at as usize]
    }

    pub(super) fn take(&mut self, at: u32) -> Message {
        self.vacant.push(at);
        self.slots[at as usize]
    }
}

impl Message {
    /// Whether it comes from a machine or goes to it.
    pub(super) fn concerns(&self, machine: u32) -> bool {
        match *self {
            Self::ToCluster { from, .. } => from.index == machine,
            Self::ToMachine { to, .. } | Self::Registered { to, .. } => to == machine,
            Self::Peer { to, from, .. } => to == machine || from.index == machine,
            Self::Fenced { machine: at, .. } | Self::Register { machine: at } => at == machine,
        }
    }

    /// Whether it comes from the Cluster or goes to it.
    pub(super) fn concerns_cluster(&self) -> bool {
        match self {
            Self::ToCluster { .. }
            | Self::ToMachine { .. }
            | Self::Register { .. }
            | Self::Registered { .. } => true,
            Self::Peer { .. } | Self::Fenced { .. } => false,
        }
    }
}

/// Kind and request, for the digest.
pub(super) fn notice_tag(notice: &Notice) -> (u64, u64) {
    match notice {
        Notice::Reserved { key } => (0, key.request.0),
        Notice::Refused { key, .. } => (1, key.request.0),
        Notice::PrefillDone { key, .. } => (2, key.request.0),
        Notice::Sent { key } => (3, key.request.0),
        Notice::Landed { key } => (4, key.request.0),
        Notice::Progress { key, .. } => (5, key.request.0),
        Notice::Evicted { key, .. } => (6, key.request.0),
        Notice::Finished { key, .. } => (7, key.request.0),
        Notice::Released { key, .. } => (8, key.request.0),
        Notice::TransferFailed { key } => (9, key.request.0),
        Notice::Report(report) => (10, report.kv_tokens),
        Notice::Relief { key } => (11, key.request.0),
        Notice::Gone { key } => (12, key.request.0),
    }
}

pub(super) fn command_tag(command: &Command) -> (u64, u64) {
    match command {
        Command::Reserve { key, .. } => (0, key.request.0),
        Command::Compute { key, .. } => (1, key.request.0),
        Command::Send { key, .. } => (2, key.request.0),
        Command::Start { key } => (3, key.request.0),
        Command::Abort { key } => (4, key.request.0),
        Command::Keep { key, .. } => (5, key.request.0),
        Command::Release { key } => (6, key.request.0),
        Command::Confirm { key, .. } => (7, key.request.0),
    }
}

pub(super) fn peer_tag(message: &Peer) -> (u64, u64) {
    match message {
        Peer::Grant { key, .. } => (0, key.request.0),
        Peer::Landed { key } => (1, key.request.0),
        Peer::Abort { key } => (2, key.request.0),
        Peer::AbortAck { key } => (3, key.request.0),
    }
}
