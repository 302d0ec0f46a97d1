//! Short ways to say what happens to a Cluster or a Machine.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests: what is missing fails them")]

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, MachineConfig};
use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, MachineAction, MachineEvent, Role};
use splitcore_core::id::{AssignmentSeq, Attempt, Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::leg::{Command, Notice, Peer, Report, Work};
use splitcore_core::machine::Machine;
use splitcore_core::placement::{Mode, Placement, Upto};
use splitcore_core::time::Time;

pub(crate) fn key(request: u64) -> LegKey {
    key_at(request, 1)
}

pub(crate) fn key_at(request: u64, attempt: u32) -> LegKey {
    LegKey { request: RequestId(request), attempt: Attempt(attempt) }
}

pub(crate) fn id(index: u32) -> MachineId {
    MachineId { index, incarnation: 1 }
}

pub(crate) fn whole(prompt_tokens: u32) -> Work {
    Work {
        prompt_tokens,
        start: 0,
        upto: Upto::End,
        max_new_tokens: 100,
        terms: splitcore_core::leg::Terms::default(),
    }
}

pub(crate) fn source(prompt_tokens: u32) -> Work {
    Work { upto: Upto::Position(prompt_tokens), ..whole(prompt_tokens) }
}

pub(crate) fn destination(prompt_tokens: u32) -> Work {
    Work { start: prompt_tokens, ..whole(prompt_tokens) }
}

/// A machine under test; the clock stands still unless a test moves it.
#[derive(Debug, Clone)]
pub(crate) struct Bench {
    pub(crate) machine: Machine,
    pub(crate) now_ns: u64,
    seq: u64,
}

impl Bench {
    /// Blocks of one token, and otherwise the defaults.
    pub(crate) fn new(blocks: u32) -> Self {
        Self::with(MachineConfig { blocks, block_tokens: 1, ..MachineConfig::default() })
    }

    pub(crate) fn with(config: MachineConfig) -> Self {
        Self { machine: Machine::new(id(0), config).unwrap(), now_ns: 0, seq: 0 }
    }

    pub(crate) fn handle(
        &mut self,
        event: &MachineEvent,
    ) -> (Result<Applied, EventError>, Vec<MachineAction>) {
        let mut actions = Vec::new();
        let now = Time::from_ns(self.now_ns);
        let applied = self.machine.handle(now, event, &mut actions);
        self.machine.check().unwrap();
        // A driver with nothing else to tell at this instant ticks at once.
        if self.machine.next_deadline() == Some(self.machine.now()) && !self.machine.is_running() {
            let _ = self.machine.handle(now, &MachineEvent::Tick, &mut actions);
            self.machine.check().unwrap();
        }
        (applied, actions)
    }

    pub(crate) fn act(&mut self, event: &MachineEvent) -> Vec<MachineAction> {
        let (applied, actions) = self.handle(event);
        assert!(applied.is_ok(), "{event:?}: {applied:?}");
        actions
    }

    pub(crate) fn command(&mut self, command: Command) -> Vec<MachineAction> {
        self.seq += 1;
        self.act(&MachineEvent::Command { epoch: Epoch(1), seq: AssignmentSeq(self.seq), command })
    }

    pub(crate) fn compute(&mut self, request: u64, work: Work) -> Vec<MachineAction> {
        self.command(Command::Compute { key: key(request), order: Order(request), work })
    }

    pub(crate) fn reserve(&mut self, request: u64, work: Work, source: MachineId) -> Vec<MachineAction> {
        let mut actions = self.command(Command::Reserve {
            key: key(request),
            order: Order(request),
            work,
            source,
            start: false,
        });
        actions.extend(self.command(Command::Start { key: key(request) }));
        actions
    }

    pub(crate) fn send(&mut self, request: u64, to: MachineId, mode: Mode) -> Vec<MachineAction> {
        self.command(Command::Send { key: key(request), to, mode })
    }

    pub(crate) fn abort(&mut self, request: u64) -> Vec<MachineAction> {
        self.command(Command::Abort { key: key(request) })
    }

    pub(crate) fn peer(&mut self, from: MachineId, message: Peer) -> Vec<MachineAction> {
        self.act(&MachineEvent::Peer { from, message })
    }

    pub(crate) fn grant(&mut self, from: MachineId, request: u64) -> Vec<MachineAction> {
        self.peer(from, Peer::Grant { key: key(request), blocks: 1 })
    }

    pub(crate) fn landed(&mut self, request: u64) -> Vec<MachineAction> {
        self.act(&MachineEvent::LayersLanded { key: key(request), layers: 1, of: 1 })
    }

    /// Ends the running pass, and these requests with it.
    pub(crate) fn pass(&mut self, ended: &[u64]) -> Vec<MachineAction> {
        let pass = self.machine.plan().pass;
        self.act(&MachineEvent::IterationDone { pass, ended: ended.iter().map(|&id| key(id)).collect() })
    }

    pub(crate) fn prefills(&self) -> Vec<u64> {
        self.machine.plan().prefills.iter().map(|item| item.key.request.0).collect()
    }

    pub(crate) fn decodes(&self) -> Vec<u64> {
        self.machine.plan().decodes.iter().map(|key| key.request.0).collect()
    }
}

pub(crate) fn notices(actions: &[MachineAction]) -> Vec<Notice> {
    let notice = |action: &MachineAction| match *action {
        MachineAction::Notify { notice } => Some(notice),
        _ => None,
    };
    actions.iter().filter_map(notice).collect()
}

pub(crate) fn peers(actions: &[MachineAction]) -> Vec<(MachineId, Peer)> {
    let peer = |action: &MachineAction| match *action {
        MachineAction::Peer { to, message } => Some((to, message)),
        _ => None,
    };
    actions.iter().filter_map(peer).collect()
}

/// A Cluster under test.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) cluster: Cluster,
    pub(crate) now_ns: u64,
}

impl Head {
    pub(crate) fn new(config: ClusterConfig, roles: &[Role]) -> Self {
        Self::with_capacity(config, roles, 10_000)
    }

    pub(crate) fn with_capacity(config: ClusterConfig, roles: &[Role], kv_capacity_tokens: u64) -> Self {
        let mut head = Self { cluster: Cluster::new(config).unwrap(), now_ns: 0 };
        for (index, &role) in roles.iter().enumerate() {
            head.join(id(index as u32), role, kv_capacity_tokens);
        }
        head
    }

    pub(crate) fn join(
        &mut self,
        machine: MachineId,
        role: Role,
        kv_capacity_tokens: u64,
    ) -> Vec<ClusterAction> {
        let (speed_weight, link, costs) = (1, None, None);
        self.act(&ClusterEvent::Join(Join { machine, role, kv_capacity_tokens, speed_weight, link, costs }))
    }

    pub(crate) fn handle(
        &mut self,
        event: &ClusterEvent,
    ) -> (Result<Applied, EventError>, Vec<ClusterAction>) {
        let mut actions = Vec::new();
        let applied = self.cluster.handle(Time::from_ns(self.now_ns), event, &mut actions);
        self.cluster.check().unwrap();
        (applied, actions)
    }

    pub(crate) fn act(&mut self, event: &ClusterEvent) -> Vec<ClusterAction> {
        let (applied, actions) = self.handle(event);
        assert!(applied.is_ok(), "{event:?}: {applied:?}");
        actions
    }

    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Vec<ClusterAction> {
        self.act(&ClusterEvent::Arrive(arrival))
    }

    pub(crate) fn place(&mut self, request: u64, prompt_tokens: u32, max_new_tokens: u32) -> Placement {
        let actions = self.arrive(Arrival::new(request, prompt_tokens, max_new_tokens));
        placement(&actions).unwrap_or_else(|| panic!("not placed: {actions:?}"))
    }

    pub(crate) fn notice(&mut self, from: u32, notice: Notice) -> Vec<ClusterAction> {
        self.act(&ClusterEvent::Notice { from: id(from), notice })
    }

    pub(crate) fn prefill_done(&mut self, from: u32, request: u64) -> Vec<ClusterAction> {
        self.notice(from, Notice::PrefillDone { key: key(request), sampled: true })
    }

    pub(crate) fn refused(&mut self, from: u32, key: LegKey, seq: u64) -> Vec<ClusterAction> {
        self.notice(from, Notice::Refused { key, report: report(seq) })
    }

    pub(crate) fn released(&mut self, from: u32, key: LegKey, seq: u64) -> Vec<ClusterAction> {
        self.notice(from, Notice::Released { key, to: None, report: report(seq) })
    }

    pub(crate) fn tick_at(&mut self, now_ns: u64) -> Vec<ClusterAction> {
        self.now_ns = now_ns;
        self.act(&ClusterEvent::Tick)
    }

    pub(crate) fn fact(&mut self, notice: Notice) -> Applied {
        self.handle(&ClusterEvent::Fact(notice)).0.unwrap()
    }
}

pub(crate) fn report(seq: u64) -> Report {
    Report { seq: AssignmentSeq(seq), free_blocks: 100, ..Report::default() }
}

pub(crate) fn placement(actions: &[ClusterAction]) -> Option<Placement> {
    actions.iter().find_map(|action| match action {
        ClusterAction::Placed(placement) => Some(*placement),
        _ => None,
    })
}

/// Indices of the machines of a placement.
pub(crate) fn pair(placement: &Placement) -> (u32, u32) {
    (placement.prompt().unwrap().index, placement.token().unwrap().index)
}

/// Commands, with the machine they go to.
pub(crate) fn commands(actions: &[ClusterAction]) -> Vec<(u32, Command)> {
    let command = |action: &ClusterAction| match *action {
        ClusterAction::Command { to, command, .. } => Some((to.index, command)),
        _ => None,
    };
    actions.iter().filter_map(command).collect()
}

/// Whom a `Reserve` goes to.
pub(crate) fn reserved_at(actions: &[ClusterAction]) -> Vec<u32> {
    let reserve = |(to, command): (u32, Command)| matches!(command, Command::Reserve { .. }).then_some(to);
    commands(actions).into_iter().filter_map(reserve).collect()
}
