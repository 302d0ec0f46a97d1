//! Machines with several passes in flight: a leg is in one of them at most, they end in order, and nothing is lost.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use std::collections::{BTreeMap, BTreeSet};

use kit::*;
use proptest::prelude::*;
use splitcore_core::config::MachineConfig;
use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{MachineAction, MachineEvent};
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, Order};
use splitcore_core::leg::{Command, Compute, Notice};
use splitcore_core::machine::{BatchPlan, Machine};
use splitcore_core::time::Time;

/// A machine and its engine: what it was told to run, oldest first. The clock stands still.
#[derive(Debug, Clone)]
struct Pipe {
    machine: Machine,
    /// A snapshot that has been given the same events since.
    restored: Machine,
    stages: usize,
    flight: Vec<BatchPlan>,
    is_entered: bool,
    seq: u64,
}

impl Pipe {
    fn new(config: MachineConfig) -> Self {
        let machine = Machine::new(id(0), config).unwrap();
        Self {
            restored: machine.clone(),
            machine,
            stages: config.pipeline_stages as usize,
            flight: Vec::new(),
            is_entered: false,
            seq: 0,
        }
    }

    /// Blocks of one token, and otherwise the defaults.
    fn of(blocks: u32, pipeline_stages: u32) -> Self {
        Self::new(MachineConfig { blocks, block_tokens: 1, pipeline_stages, ..MachineConfig::default() })
    }

    /// One event, and the Tick that it makes due. Every pass that starts is checked.
    fn handle(&mut self, event: &MachineEvent) -> (Result<Applied, EventError>, Vec<MachineAction>) {
        let (result, mut actions) = self.tell(event);
        match event {
            MachineEvent::StageFree { .. } if result == Ok(Applied::Yes) => self.is_entered = false,
            MachineEvent::IterationDone { .. } if result.is_ok() => drop(self.flight.remove(0)),
            _ => {}
        }
        // A pass that has ended has left the first stage as well.
        self.is_entered &= !self.flight.is_empty();
        self.follow(&actions);
        if self.machine.next_deadline() == Some(Time::ZERO) {
            let ticked = self.tell(&MachineEvent::Tick).1;
            self.follow(&ticked);
            actions.extend(ticked);
        }
        assert!(self.machine.passes().eq(&self.flight), "{:?}", self.machine);
        assert_eq!(self.machine.report().running, !self.flight.is_empty());
        (result, actions)
    }

    fn tell(&mut self, event: &MachineEvent) -> (Result<Applied, EventError>, Vec<MachineAction>) {
        let (mut actions, mut same) = (Vec::new(), Vec::new());
        let result = self.machine.handle(Time::ZERO, event, &mut actions);
        assert_eq!(self.restored.handle(Time::ZERO, event, &mut same), result);
        assert_eq!(same, actions, "a restored machine differs at {event:?}");
        self.machine.check().unwrap();
        (result, actions)
    }

    fn act(&mut self, event: &MachineEvent) -> Vec<MachineAction> {
        let (result, actions) = self.handle(event);
        assert!(result.is_ok(), "{event:?}: {result:?}");
        actions
    }

    fn follow(&mut self, actions: &[MachineAction]) {
        let evicted: Vec<LegKey> = notices(actions).into_iter().filter_map(evicted_key).collect();
        for &key in &evicted {
            assert!(!self.keys().contains(&key), "{key:?} is evicted in flight");
        }
        for action in actions {
            let MachineAction::Run { pass } = action else { continue };
            let plan = self.machine.plan().clone();
            assert_eq!(plan.pass, *pass);
            assert!(!plan.is_empty() && !self.is_entered && self.flight.len() < self.stages, "{plan:?}");
            let others = self.keys();
            assert!(keys(&plan).iter().all(|key| !others.contains(key)), "{plan:?} beside {others:?}");
            let decodes = self.machine.queue_lengths().1 + evicted.len();
            assert!(plan.decodes.len() <= decodes.div_ceil(self.stages), "{plan:?} of {decodes} decodes");
            let last = plan.prefills.last().map(|item| item.key.request);
            let waits = |key: &LegKey| {
                let (state, _) = self.machine.leg(*key).unwrap();
                matches!(state.compute, Compute::Queued | Compute::Evicted) && !evicted.contains(key)
            };
            let overtaken =
                self.machine.leg_keys().filter(waits).find(|key| last.is_some_and(|last| key.request < last));
            assert_eq!(overtaken, None, "{plan:?}");
            self.flight.push(plan);
            self.is_entered = true;
        }
    }

    /// All legs in flight.
    fn keys(&self) -> BTreeSet<LegKey> {
        self.flight.iter().flat_map(keys).collect()
    }

    fn command(&mut self, command: Command) -> Vec<MachineAction> {
        self.seq += 1;
        self.act(&MachineEvent::Command { epoch: Epoch(1), seq: AssignmentSeq(self.seq), command })
    }

    fn compute(&mut self, request: u64, prompt_tokens: u32) -> Vec<MachineAction> {
        let work = whole(prompt_tokens);
        self.command(Command::Compute { key: key(request), order: Order(request), work })
    }

    fn abort(&mut self, request: u64) -> Vec<MachineAction> {
        self.command(Command::Abort { key: key(request) })
    }

    /// The first stage is free.
    fn free(&mut self) -> Vec<MachineAction> {
        let pass = self.flight.last().unwrap().pass;
        self.act(&MachineEvent::StageFree { pass })
    }

    /// The oldest pass ends, and these requests with it.
    fn end(&mut self, ended: &[u64]) -> Vec<MachineAction> {
        let pass = self.flight[0].pass;
        self.act(&MachineEvent::IterationDone { pass, ended: ended.iter().map(|&id| key(id)).collect() })
    }

    /// Prompts and decodes of each pass in flight.
    fn passes(&self) -> Vec<(Vec<u64>, Vec<u64>)> {
        let requests = |plan: &BatchPlan| {
            let prefills = plan.prefills.iter().map(|item| item.key.request.0).collect();
            (prefills, plan.decodes.iter().map(|key| key.request.0).collect())
        };
        self.flight.iter().map(requests).collect()
    }
}

fn keys(plan: &BatchPlan) -> Vec<LegKey> {
    plan.prefills.iter().map(|item| item.key).chain(plan.decodes.iter().copied()).collect()
}

fn evicted_key(notice: Notice) -> Option<LegKey> {
    if let Notice::Evicted { key, .. } = notice { Some(key) } else { None }
}

#[test]
fn two_prompts_overlap_in_two_stages() {
    let mut pipe = Pipe::of(10_000, 2);
    for request in 1..=4 {
        pipe.compute(request, 2048);
    }
    assert_eq!(pipe.passes(), [(vec![1], vec![])], "the first stage is taken");
    pipe.free();
    assert_eq!(pipe.passes(), [(vec![1], vec![]), (vec![2], vec![])]);
    pipe.free();
    assert_eq!(pipe.passes().len(), 2, "both stages are taken");
    assert_eq!(pipe.machine.queue_lengths(), (2, 0));
    pipe.end(&[1]);
    assert_eq!(pipe.passes(), [(vec![2], vec![]), (vec![3], vec![])]);
    // The third is in the first stage still, when the second leaves the last.
    pipe.end(&[2]);
    assert_eq!(pipe.passes(), [(vec![3], vec![])]);
    pipe.end(&[3]);
    assert_eq!(pipe.passes(), [(vec![4], vec![])], "a pass that has ended has left the first stage");
}

#[test]
fn decodes_share_the_stages() {
    let mut pipe = Pipe::of(10_000, 2);
    for request in 1..=5 {
        pipe.compute(request, 10);
    }
    pipe.end(&[]);
    pipe.end(&[]);
    let mut seen = Vec::new();
    for _ in 0..6 {
        pipe.free();
        seen.push(pipe.passes().last().unwrap().1.clone());
        pipe.end(&[]);
    }
    // Three of five at most, so that both stages have work.
    assert!(seen.iter().all(|decodes| (2..=3).contains(&decodes.len())), "{seen:?}");
    assert!(seen.windows(2).all(|two| two[0].len() + two[1].len() == 5), "{seen:?}");
    let paused = pipe.machine.counters().paused;
    for _ in 0..4 {
        pipe.free();
        pipe.end(&[]);
    }
    assert_eq!(pipe.machine.counters().paused, paused, "who is in flight sits nothing out");
}

/// Three requests that decode on two stages, and hold `blocks` blocks: the first two in one pass, the third in another.
fn three_decodes(blocks: u32) -> Pipe {
    let mut pipe = Pipe::of(blocks, 2);
    pipe.compute(0, 1);
    for request in 1..=3 {
        pipe.compute(request, 3);
    }
    pipe.end(&[0]);
    pipe.end(&[]);
    assert_eq!(pipe.passes(), [(vec![], vec![1, 2])]);
    pipe.free();
    assert_eq!(pipe.passes(), [(vec![], vec![1, 2]), (vec![], vec![3])]);
    pipe
}

#[test]
fn an_abort_in_flight_waits_for_the_end_of_its_own_pass() {
    let mut pipe = three_decodes(100);
    assert!(notices(&pipe.abort(3)).is_empty());
    let left = |actions: &[MachineAction]| {
        notices(actions)
            .iter()
            .any(|notice| matches!(notice, Notice::Released { key: k, .. } if *k == key(3)))
    };
    assert!(!left(&pipe.end(&[])), "the pass of the others");
    assert!(pipe.machine.leg(key(3)).is_some());
    assert!(left(&pipe.end(&[])));
    assert!(pipe.machine.leg(key(3)).is_none());
    // The same for a prompt.
    pipe.compute(9, 5);
    pipe.free();
    assert_eq!(pipe.passes(), [(vec![], vec![1]), (vec![9], vec![2])]);
    assert!(notices(&pipe.abort(9)).is_empty());
    pipe.end(&[]);
    assert!(pipe.machine.leg(key(9)).is_some());
    pipe.end(&[]);
    assert!(pipe.machine.leg(key(9)).is_none());
}

#[test]
fn who_would_give_way_does_so_when_its_pass_is_over() {
    let mut pipe = three_decodes(12);
    // Two need a block each and none is free; the third, the youngest, is in flight.
    pipe.free();
    let actions = pipe.end(&[]);
    assert!(notices(&actions).is_empty() && pipe.passes() == [(vec![], vec![3])], "{actions:?}");
    let actions = pipe.end(&[]);
    let evicted: Vec<_> = notices(&actions).into_iter().filter_map(evicted_key).collect();
    assert_eq!(evicted, [key(3)]);
    assert_eq!(pipe.passes(), [(vec![], vec![1, 2])]);
    assert_eq!(pipe.machine.counters().evicted, 1);
}

#[test]
fn with_all_decodes_in_flight_nothing_is_due() {
    let mut pipe = three_decodes(100);
    pipe.end(&[]);
    assert_eq!(pipe.passes(), [(vec![], vec![3])], "the first stage is taken");
    pipe.free();
    pipe.free();
    let before = pipe.passes();
    assert_eq!(before, [(vec![], vec![3]), (vec![], vec![1, 2])]);
    pipe.compute(9, 90);
    assert_eq!(pipe.passes(), before);
    assert_ne!(pipe.machine.next_deadline(), Some(Time::ZERO));
    // The prompt that is too large now leaves the decodes alone.
    pipe.abort(9);
    pipe.end(&[3]);
    assert_eq!(pipe.passes(), [(vec![], vec![1, 2])]);
    assert_ne!(pipe.machine.next_deadline(), Some(Time::ZERO), "who could run is in flight");
    let plan = pipe.machine.plan().clone();
    assert_eq!(plan.decodes, [key(1), key(2)], "a pass that does not come about leaves the plan alone");
}

#[test]
fn what_contradicts_the_passes_in_flight_is_refused() {
    let mut pipe = three_decodes(100);
    let (oldest, newest) = (pipe.flight[0].pass, pipe.flight[1].pass);
    let before = format!("{:?}", pipe.machine);
    for (event, error) in [
        (MachineEvent::StageFree { pass: oldest - 1 }, EventError::NotRunning { pass: oldest - 1 }),
        (MachineEvent::StageFree { pass: newest + 1 }, EventError::NotRunning { pass: newest + 1 }),
        (done(newest, &[]), EventError::NotRunning { pass: newest }),
        (done(oldest, &[3]), EventError::NotInPass(key(3))),
    ] {
        assert_eq!(pipe.handle(&event), (Err(error), vec![]), "{event:?}");
        assert_eq!(format!("{:?}", pipe.machine), before);
    }
    let again = MachineEvent::StageFree { pass: oldest };
    assert_eq!(pipe.handle(&again), (Ok(Applied::Late), vec![]));
    assert_eq!(pipe.machine.counters().late, 1);
    pipe.free();
    assert_eq!(pipe.handle(&MachineEvent::StageFree { pass: newest }).0, Ok(Applied::Late));
}

fn done(pass: u64, ended: &[u64]) -> MachineEvent {
    MachineEvent::IterationDone { pass, ended: ended.iter().map(|&id| key(id)).collect() }
}

#[test]
fn stages_are_at_least_one_and_at_most_64() {
    for (stages, fits) in [(0, false), (1, true), (64, true), (65, false)] {
        let config = MachineConfig { pipeline_stages: stages, ..MachineConfig::default() };
        assert_eq!(config.validate().is_ok(), fits, "{stages}");
    }
    let mut pipe = Pipe::of(1000, 64);
    for request in 0..200 {
        pipe.compute(request, 2);
        if pipe.flight.len() < 64 {
            pipe.free();
        }
    }
    assert_eq!(pipe.flight.len(), 64);
}

// --- Events in any order. ---

#[derive(Debug, Clone)]
struct Chaos {
    config: MachineConfig,
    seed: u64,
    steps: u64,
}

fn chaos() -> impl Strategy<Value = Chaos> {
    (
        (prop::sample::select(vec![1_u32, 2, 3, 7, 64]), 24_u32..80, 1_u32..4),
        (
            prop::sample::select(vec![1_u32, 6, 20, 2048]),
            prop::sample::select(vec![1_u32, 3, 512]),
            1_u32..5,
            0_u32..3,
        ),
        any::<u64>(),
        10_u64..200,
    )
        .prop_map(
            |((stages, blocks, block_tokens), (tokens, requests, sits, evictions), seed, steps)| {
                let config = MachineConfig {
                    blocks,
                    block_tokens,
                    batch_tokens_max: tokens,
                    batch_requests_max: requests,
                    pipeline_stages: stages,
                    sit_out_max: sits,
                    evictions_max: evictions,
                    handoff_floor_blocks: Some(0),
                    ..MachineConfig::default()
                };
                Chaos { config, seed, steps }
            },
        )
}

/// A number below `bound`, and the next state.
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// Clients of a pipe: what each has and wants.
#[derive(Debug, Default)]
struct Clients {
    has: BTreeMap<u64, u32>,
    wants: BTreeMap<u64, u32>,
    aborted: BTreeSet<u64>,
    finished: BTreeMap<u64, u32>,
    released: BTreeSet<u64>,
}

impl Clients {
    /// One token for each leg of the oldest pass. Returns who has the last.
    fn sample(&mut self, plan: &BatchPlan) -> Vec<u64> {
        let requests: Vec<u64> = keys(plan).iter().map(|key| key.request.0).collect();
        for request in &requests {
            *self.has.entry(*request).or_insert(0) += 1;
        }
        requests.into_iter().filter(|request| self.has[request] == self.wants[request]).collect()
    }

    fn hear(&mut self, actions: &[MachineAction]) {
        for notice in notices(actions) {
            match notice {
                Notice::Finished { key, tokens } => {
                    assert_eq!(self.finished.insert(key.request.0, tokens), None, "{key:?} ends twice");
                }
                Notice::Released { key, .. } => {
                    assert!(self.released.insert(key.request.0), "{key:?} leaves twice");
                    assert!(self.aborted.contains(&key.request.0));
                }
                _ => {}
            }
        }
    }
}

/// Any event that may come next, or one that contradicts what is in flight.
fn step(pipe: &mut Pipe, clients: &mut Clients, request: u64, state: &mut u64) {
    let capacity = pipe.machine.config().capacity_tokens();
    let choice = draw(state, 12);
    let actions = match choice {
        0..=3 => {
            let prompt = 1 + draw(state, 12) as u32;
            let wants = 1 + draw(state, (capacity - u64::from(prompt)).min(12)) as u32;
            clients.wants.insert(request, wants);
            pipe.compute(request, prompt)
        }
        4 => {
            let known: Vec<u64> = pipe.machine.leg_keys().map(|key| key.request.0).collect();
            let Some(&request) = known.get(draw(state, 20) as usize) else { return };
            if !clients.aborted.insert(request) {
                return;
            }
            let in_flight = pipe.keys().contains(&key(request));
            let actions = pipe.abort(request);
            assert_eq!(pipe.machine.leg(key(request)).is_some(), in_flight, "{request} is aborted");
            actions
        }
        5 => return contradict(pipe, state),
        6..=8 if pipe.is_entered => pipe.free(),
        _ if pipe.flight.is_empty() => return,
        _ => {
            let ended = clients.sample(&pipe.flight[0].clone());
            pipe.end(&ended)
        }
    };
    clients.hear(&actions);
}

fn contradict(pipe: &mut Pipe, state: &mut u64) {
    let newest = pipe.machine.plan().pass;
    let event = match (draw(state, 4), &pipe.flight[..]) {
        (0, [_, .., last]) => done(last.pass, &[]),
        (1, [first, .., last]) => {
            MachineEvent::IterationDone { pass: first.pass, ended: keys(last)[..1].to_vec() }
        }
        (2, []) => MachineEvent::StageFree { pass: newest },
        (2, [first, ..]) => MachineEvent::StageFree { pass: first.pass - 1 },
        _ => MachineEvent::StageFree { pass: newest + 1 },
    };
    if pipe.flight.len() == 1 && matches!(event, MachineEvent::IterationDone { .. }) {
        return;
    }
    let before = format!("{:?}", pipe.machine);
    let (result, actions) = pipe.handle(&event);
    assert!(result.is_err() && actions.is_empty(), "{event:?} is {result:?}");
    assert_eq!(format!("{:?}", pipe.machine), before, "{event:?} changed something");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_leg_is_in_one_pass_and_every_request_ends(chaos in chaos()) {
        let (mut pipe, mut clients, mut state) = (Pipe::new(chaos.config), Clients::default(), chaos.seed);
        for request in 1..=chaos.steps {
            step(&mut pipe, &mut clients, request, &mut state);
            if draw(&mut state, 10) == 0 {
                pipe.restored = pipe.machine.clone();
                // It registers with every leg, in flight or not.
                let claimed: BTreeSet<LegKey> = pipe.machine.claims().iter().map(|claim| claim.key).collect();
                prop_assert!(pipe.machine.leg_keys().all(|key| claimed.contains(&key)));
            }
        }
        let mut passes = 0;
        while !pipe.flight.is_empty() {
            if pipe.is_entered && draw(&mut state, 2) == 0 {
                clients.hear(&pipe.free());
                continue;
            }
            let ended = clients.sample(&pipe.flight[0].clone());
            clients.hear(&pipe.end(&ended));
            passes += 1;
            prop_assert!(passes < 20_000, "no end: {:?}", pipe.machine);
        }
        prop_assert!(pipe.machine.is_idle(), "{:?}", pipe.machine);
        for (request, wants) in clients.wants {
            let aborted = clients.aborted.contains(&request);
            prop_assert_eq!(clients.finished.get(&request).copied(), (!aborted).then_some(wants));
            prop_assert_eq!(clients.released.contains(&request), aborted);
        }
        let report = pipe.machine.report();
        prop_assert_eq!((report.kv_tokens, report.free_blocks, report.running), (0, chaos.config.blocks, false));
        prop_assert_eq!(pipe.machine.queue_lengths(), (0, 0));
    }

    /// With one stage the engine's word of it changes nothing.
    #[test]
    fn one_stage_starts_with_the_end_of_a_pass(chaos in chaos(), frees: u64) {
        let config = MachineConfig { pipeline_stages: 1, ..chaos.config };
        let (mut told, mut untold) = (Pipe::new(config), Pipe::new(config));
        let mut state = chaos.seed;
        for request in 1..=chaos.steps {
            if draw(&mut state, 3) == 0 {
                let prompt_tokens = 1 + draw(&mut state, 9) as u32;
                prop_assert_eq!(told.compute(request, prompt_tokens), untold.compute(request, prompt_tokens));
            } else if let Some(plan) = told.flight.first().cloned() {
                if frees >> (request % 64) & 1 == 0 {
                    prop_assert!(told.free().is_empty());
                }
                let big = told.machine.report().kv_tokens + 20 > config.capacity_tokens();
                let ends = |key: &&LegKey| big || key.request.0.is_multiple_of(3);
                let ended: Vec<u64> = keys(&plan).iter().filter(ends).map(|key| key.request.0).collect();
                prop_assert_eq!(told.end(&ended), untold.end(&ended));
            }
            prop_assert_eq!(&told.flight, &untold.flight);
        }
    }
}
