//! Events that contradict what is known: each must be an error, and must change nothing.

use splitcore_core::cluster::{Cluster, MachineState};
use splitcore_core::error::Applied;
use splitcore_core::event::{Arrival, ClusterEvent, Held, Join, MachineEvent, Registration};
use splitcore_core::id::{AssignmentSeq, Attempt, Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::leg::{Command, Notice, Report, Terms, Work};
use splitcore_core::machine::Machine;
use splitcore_core::placement::{Mode, Upto};
use splitcore_core::time::Time;

use super::World;

/// One event in so many is followed by one that contradicts.
const ONE_IN: u64 = 400;

impl World {
    pub(super) fn contradict(&mut self) {
        if self.rng.below(ONE_IN) > 0 {
            return;
        }
        self.out.counters.contradictions += 1;
        let later = Time::from_ns(self.now + 7);
        self.say_old(later);
        if let (Some(host), true) = (self.serving, self.rng.chance(500)) {
            let draw = self.rng.draw();
            let live = self.hosts[host].live.keys().next().copied();
            let cluster = &mut self.hosts[host].cluster;
            let Some(event) = against_cluster(cluster, live, draw) else { return };
            let (before, mut actions) = (format!("{cluster:?}"), Vec::new());
            let result = cluster.handle(later, &event, &mut actions);
            assert!(result.is_err() && actions.is_empty(), "{event:?}: {result:?}, {actions:?}");
            assert_eq!(before, format!("{cluster:?}"), "{event:?} is refused and changes something");
        } else {
            let ids = self.machine_ids();
            if ids.is_empty() {
                return;
            }
            let (id, draw) = (self.rng.pick(&ids), self.rng.draw());
            let Some(machine) = self.place(id).and_then(|place| place.machine.as_mut()) else { return };
            let Some(event) = against_machine(machine, draw) else { return };
            let (before, mut actions) = (format!("{machine:?}"), Vec::new());
            let result = machine.handle(later, &event, &mut actions);
            assert!(result.is_err() && actions.is_empty(), "{event:?}: {result:?}, {actions:?}");
            assert_eq!(before, format!("{machine:?}"), "{event:?} is refused and changes something");
        }
    }
}

impl World {
    /// Copies hear what is over: words of a dead incarnation, commands of a Cluster that has been replaced.
    fn say_old(&self, later: Time) {
        if let Some(host) = self.serving {
            let mut cluster = self.hosts[host].cluster.clone();
            let live = self.hosts[host].live.keys().next().copied();
            let dead = (0..cluster.machines_len()).filter_map(|index| {
                let id = cluster.load(index)?.machine;
                Some(MachineId { incarnation: id.incarnation.checked_sub(1)?, ..id })
            });
            for from in dead.collect::<Vec<_>>() {
                let Some((request, attempt)) = live.and_then(|id| Some((id, cluster.attempt(id)?))) else {
                    break;
                };
                let notice = Notice::Finished { key: LegKey { request, attempt }, tokens: 1 };
                let mut actions = Vec::new();
                let result = cluster.handle(later, &ClusterEvent::Notice { from, notice }, &mut actions);
                assert!(
                    result == Ok(Applied::Late) && actions.is_empty(),
                    "{from:?} is dead: {result:?}, {actions:?}"
                );
            }
        }
        for machine in self.places.iter().filter_map(|place| place.machine.as_ref()) {
            let (Some(epoch), Some(key)) = (machine.epoch().0.checked_sub(1), machine.leg_keys().min())
            else {
                continue;
            };
            let (mut machine, mut actions) = (machine.clone(), Vec::new());
            let command = Command::Abort { key };
            let event = MachineEvent::Command { epoch: Epoch(epoch), seq: AssignmentSeq(0), command };
            let result = machine.handle(later, &event, &mut actions);
            assert!(
                result == Ok(Applied::Late) && actions.is_empty(),
                "{event:?} is stale: {result:?}, {actions:?}"
            );
        }
    }
}

fn against_cluster(cluster: &Cluster, live: Option<RequestId>, draw: u64) -> Option<ClusterEvent> {
    let unknown = MachineId { index: cluster.machines_len() + 3, incarnation: 1 };
    let known = cluster.load(0).map(|load| load.machine);
    let join = Join {
        machine: unknown,
        role: splitcore_core::event::Role::Mixed,
        kv_capacity_tokens: 10,
        speed_weight: 1,
        link: None,
        costs: None,
    };
    let registration =
        |join| Registration { join, epoch: cluster.epoch(), report: Report::default(), claims: Vec::new() };
    Some(match draw % 9 {
        0 => ClusterEvent::Arrive(Arrival::new(live?.0, 4, 4)),
        1 => ClusterEvent::Arrive(Arrival::new(u64::MAX, 0, 4)),
        2 => ClusterEvent::Arrive(Arrival { pin_token: Some(unknown.index), ..Arrival::new(u64::MAX, 1, 1) }),
        3 => ClusterEvent::Join(join),
        4 => ClusterEvent::Join(Join { machine: known?, ..join }),
        5 => {
            let epoch = Epoch(cluster.epoch().0 + 1);
            ClusterEvent::Register(Registration { epoch, ..registration(join) })
        }
        6 => {
            // A place whose machine is lost is open to any other incarnation, but not to that one.
            let lost = cluster.load(0).is_some_and(|load| load.state == MachineState::Lost);
            let before = known?.incarnation.checked_sub(u32::from(!lost))?;
            let older = MachineId { index: 0, incarnation: before };
            ClusterEvent::Register(registration(Join { machine: older, ..join }))
        }
        7 => ClusterEvent::Register(registration(Join { kv_capacity_tokens: 0, ..join })),
        _ if draw & 0x100 == 0 => ClusterEvent::Disconnect { machine: unknown },
        _ => ClusterEvent::Notice { from: unknown, notice: Notice::Report(Report::default()) },
    })
}

fn against_machine(machine: &Machine, draw: u64) -> Option<MachineEvent> {
    let key = LegKey { request: RequestId(u64::MAX), attempt: Attempt(1) };
    let work = Work {
        prompt_tokens: u32::MAX / 2,
        start: 0,
        upto: Upto::End,
        max_new_tokens: 1,
        terms: Terms::default(),
    };
    let first = machine.leg_keys().min();
    let command = |command| MachineEvent::Command { epoch: machine.epoch(), seq: AssignmentSeq(0), command };
    let source = MachineId { index: 7, incarnation: 9 };
    let (pass, newest) = (machine.oldest_plan().pass, machine.plan().pass);
    let is_pipelined = machine.config().pipeline_stages > 1;
    Some(match draw % 6 {
        0 => command(Command::Compute {
            key: first?,
            order: Order(0),
            work: Work { prompt_tokens: 1, ..work },
        }),
        1 => command(Command::Compute { key, order: Order(0), work }),
        2 => command(Command::Reserve { key, order: Order(0), work, source, start: true }),
        3 if is_pipelined && draw & 0x100 == 0 => MachineEvent::StageFree { pass: newest + 1 },
        3 => MachineEvent::IterationDone { pass: pass + 1, ended: Vec::new() },
        4 if machine.is_running() => MachineEvent::IterationDone { pass, ended: vec![key] },
        4 => MachineEvent::IterationDone { pass, ended: Vec::new() },
        _ => {
            let claims = machine.claims();
            let runs = |held| matches!(held, Held::Leg { .. } | Held::Closing);
            let last = claims.iter().find(|claim| !claim.work.hands_over() && runs(claim.held));
            command(Command::Send { key: last?.key, to: source, mode: Mode::Serialized })
        }
    })
}
