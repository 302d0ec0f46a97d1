//! The Machine against a slow model of its rules, and against events in any order.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use std::collections::BTreeSet;

use kit::*;
use proptest::prelude::*;
use splitcore_core::config::MachineConfig;
use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{MachineAction, MachineEvent, Put};
use splitcore_core::id::{AssignmentSeq, LegKey, MachineId, Order};
use splitcore_core::kv::BlockId;
use splitcore_core::leg::{Command, Compute, Inbound, Notice, Outbound, Peer, Work};
use splitcore_core::machine::Machine;
use splitcore_core::placement::{Mode, Upto};
use splitcore_core::time::Time;

// --- The batch rule, beside a planner written from the rules alone. ---

#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    id: u64,
    prompt: u32,
    generated: u32,
    /// Tokens of its prefill that are computed.
    done: u32,
    /// Tokens of its prefill in the pass that runs.
    chunk: u32,
    blocks: u32,
    sat_out: u32,
    evictions: u32,
}

impl Job {
    fn left(&self) -> u32 {
        self.prompt + self.generated - self.done
    }
}

/// A machine that runs whole requests only: lists, scans and arithmetic.
#[derive(Debug, Clone)]
struct Naive {
    config: MachineConfig,
    free: u32,
    prompts: Vec<Job>,
    prefilling: Vec<Job>,
    decodes: Vec<Job>,
    running: BTreeSet<u64>,
    is_running: bool,
}

impl Naive {
    fn new(config: MachineConfig) -> Self {
        Self {
            config,
            free: config.blocks,
            prompts: Vec::new(),
            prefilling: Vec::new(),
            decodes: Vec::new(),
            running: BTreeSet::new(),
            is_running: false,
        }
    }

    fn arrive(&mut self, id: u64, prompt: u32) {
        let job = Job { id, prompt, generated: 0, done: 0, chunk: 0, blocks: 0, sat_out: 0, evictions: 0 };
        self.prompts.push(job);
        self.plan();
    }

    fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.block_tokens)
    }

    fn grows(&self, job: &Job) -> bool {
        job.prompt + job.generated > job.blocks * self.config.block_tokens
    }

    /// The next pass. One that its own evictions have emptied is planned again.
    fn plan(&mut self) {
        while !self.is_running {
            let waiting = self.prompts.len();
            self.plan_once();
            if self.prompts.len() == waiting {
                return;
            }
        }
    }

    /// A pass by section 1 of the rules, and evictions by section 3.
    fn plan_once(&mut self) {
        self.prompts.sort_by_key(|job| job.id);
        self.decodes.sort_by_key(|job| job.id);
        self.running.clear();
        let (mut tokens, mut items) = (0, 0);
        let mut chunks = self.config.prefill_chunk_tokens;
        let mut fits = |more: u32| {
            let fits = items < self.config.batch_requests_max
                && (items == 0 || tokens + more <= self.config.batch_tokens_max);
            if fits {
                tokens += more;
                items += 1;
            }
            fits
        };
        for job in self.decodes.iter().filter(|job| job.sat_out >= self.config.sit_out_max) {
            if fits(1) {
                self.running.insert(job.id);
            }
        }
        let growing = self.decodes.iter().filter(|job| self.grows(job)).count() as u32;
        let starved = self.running.len() as u32;
        while let Some(job) = self.prompts.first().cloned() {
            let taken: u32 = self.prefilling.iter().map(|job| job.chunk).sum();
            let free = self.config.batch_tokens_max.saturating_sub(starved + taken);
            let size = chunks.map_or(job.left(), |left| job.left().min(left).min(free));
            let wanted = self.blocks(job.prompt + job.generated + 1) - job.blocks;
            let floor = self.config.handoff_floor_blocks.unwrap_or(0);
            let is_empty = self.free == self.config.blocks;
            let room = if is_empty { wanted <= self.free } else { wanted + floor + growing <= self.free };
            if size == 0 || (wanted > 0 && !room) || !fits(size) {
                break;
            }
            chunks = chunks.map(|left| left - size);
            self.free -= wanted;
            self.prefilling.push(Job { blocks: job.blocks + wanted, chunk: size, ..job });
            self.prompts.remove(0);
        }
        for had_sat_out in [true, false] {
            for job in self.decodes.iter().filter(|job| (job.sat_out > 0) == had_sat_out) {
                if !self.running.contains(&job.id) && fits(1) {
                    self.running.insert(job.id);
                }
            }
        }
        self.make_room();
        if self.running.is_empty() && self.prefilling.is_empty() {
            self.go_on_with_those_that_have_their_blocks();
        }
        self.is_running = !self.running.is_empty() || !self.prefilling.is_empty();
        if self.is_running {
            for job in &mut self.decodes {
                job.sat_out = if self.running.contains(&job.id) { 0 } else { job.sat_out + 1 };
            }
        }
    }

    /// Where nothing else could run.
    fn go_on_with_those_that_have_their_blocks(&mut self) {
        let (mut left, mut items) = (self.config.prefill_chunk_tokens.unwrap_or(0), 0);
        while let Some(at) = self.prompts.iter().position(|job| job.blocks > 0) {
            let size = self.prompts[at].left().min(left);
            if size == 0 || items == self.config.batch_requests_max {
                return;
            }
            (left, items) = (left - size, items + 1);
            let job = self.prompts.remove(at);
            self.prefilling.push(Job { chunk: size, ..job });
        }
    }

    fn make_room(&mut self) {
        loop {
            let needs = |job: &&Job| self.running.contains(&job.id) && self.grows(job);
            let Some(needy) = self.decodes.iter().find(needs).map(|job| job.id) else { return };
            if self.free > 0 {
                self.free -= 1;
                self.decodes.iter_mut().find(|job| job.id == needy).unwrap().blocks += 1;
                continue;
            }
            let younger = self.decodes.get(1..).unwrap_or(&[]);
            let spared = |job: &&Job| job.evictions < self.config.evictions_max;
            let victim = younger.iter().rev().find(spared).or(younger.last()).map(|job| job.id);
            let Some(victim) = victim else {
                self.running.remove(&needy);
                continue;
            };
            let at = self.decodes.iter().position(|job| job.id == victim).unwrap();
            let job = self.decodes.remove(at);
            self.free += job.blocks;
            self.running.remove(&victim);
            self.prompts.push(Job { blocks: 0, done: 0, sat_out: 0, evictions: job.evictions + 1, ..job });
            self.prompts.sort_by_key(|job| job.id);
        }
    }

    fn pass_done(&mut self, ended: &BTreeSet<u64>) {
        self.is_running = false;
        for job in &mut self.decodes {
            job.generated += u32::from(self.running.contains(&job.id));
        }
        for job in std::mem::take(&mut self.prefilling) {
            let done = job.done + job.chunk;
            if job.chunk < job.left() && !ended.contains(&job.id) {
                self.prompts.push(Job { done, chunk: 0, ..job });
            } else {
                self.decodes.push(Job { generated: job.generated + 1, done: 0, chunk: 0, ..job });
            }
        }
        let gone: u32 = self.decodes.iter().filter(|job| ended.contains(&job.id)).map(|job| job.blocks).sum();
        self.free += gone;
        self.decodes.retain(|job| !ended.contains(&job.id));
        self.plan();
    }

    fn passes(&self) -> (Vec<u64>, Vec<u64>) {
        let decodes = self.decodes.iter().map(|job| job.id).filter(|id| self.running.contains(id));
        (self.prefilling.iter().map(|job| job.id).collect(), decodes.collect())
    }
}

fn batch_config() -> impl Strategy<Value = MachineConfig> {
    (
        prop::sample::select(vec![24_u32, 40, 10_000]),
        prop::sample::select(vec![1_u32, 3, 16]),
        prop::sample::select(vec![1_u32, 6, 20, 2048]),
        prop::sample::select(vec![1_u32, 3, 512]),
        1_u32..5,
        0_u32..3,
        prop::option::of(0_u32..6),
        prop::option::of(1_u32..12),
    )
        .prop_map(
            |(blocks, block_tokens, tokens, requests, sit_out_max, evictions_max, floor, chunk)| {
                MachineConfig {
                    prefill_chunk_tokens: chunk.map(|chunk| chunk.min(tokens)),
                    blocks,
                    block_tokens,
                    batch_tokens_max: tokens,
                    batch_requests_max: requests,
                    sit_out_max,
                    evictions_max,
                    handoff_floor_blocks: floor,
                    ..MachineConfig::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn passes_are_those_of_the_naive_planner(
        config in batch_config(),
        steps in prop::collection::vec((any::<bool>(), 1_u32..16, any::<u64>()), 1..120),
    ) {
        let mut bench = Bench::with(config);
        let mut naive = Naive::new(config);
        let capacity = config.blocks * config.block_tokens;
        for (id, (arrives, prompt, ends)) in (1_u64..).zip(steps) {
            if arrives || !naive.is_running {
                bench.compute(id, whole(prompt));
                naive.arrive(id, prompt);
            } else {
                let (prefills, decodes) = naive.passes();
                let size = |id: &u64| {
                    let jobs = naive.decodes.iter().chain(&naive.prefilling);
                    jobs.filter(|job| job.id == *id).map(|job| job.prompt + job.generated).sum::<u32>()
                };
                // Some end at random, and whoever comes near the capacity.
                let ends = |id: &u64| (ends >> (id % 64)).is_multiple_of(8) || size(id) + 2 > capacity;
                let ended: BTreeSet<u64> = prefills.into_iter().chain(decodes).filter(ends).collect();
                bench.pass(&ended.iter().copied().collect::<Vec<_>>());
                naive.pass_done(&ended);
            }
            prop_assert_eq!(bench.machine.is_running(), naive.is_running);
            if naive.is_running {
                prop_assert_eq!((bench.prefills(), bench.decodes()), naive.passes());
                let tokens: Vec<u32> = bench.machine.plan().prefills.iter().map(|item| item.tokens).collect();
                let expected: Vec<u32> = naive.prefilling.iter().map(|job| job.chunk).collect();
                prop_assert_eq!(tokens, expected);
                let ends: Vec<bool> = bench.machine.plan().prefills.iter().map(|item| item.samples).collect();
                let whole: Vec<bool> = naive.prefilling.iter().map(|job| job.chunk == job.left()).collect();
                prop_assert_eq!(ends, whole, "a token is drawn behind the last chunk");
                let starts: Vec<u32> = bench.machine.plan().prefills.iter().map(|item| item.start).collect();
                let done: Vec<u32> = naive.prefilling.iter().map(|job| job.done).collect();
                prop_assert_eq!(starts, done);
            }
            prop_assert_eq!(bench.machine.pool().free(), naive.free);
        }
    }
}

#[test]
fn a_prompt_longer_than_a_pass_runs_alone() {
    let mut bench = Bench::new(100_000);
    bench.compute(1, whole(2049));
    bench.compute(2, whole(1));
    assert_eq!(bench.prefills(), [1]);
    bench.pass(&[]);
    // It sits out while the short prompt runs only if both do not fit: here they do.
    assert_eq!((bench.prefills(), bench.decodes()), (vec![2], vec![1]));
}

#[test]
fn exactly_a_pass_of_prompt_leaves_no_place_for_a_decode() {
    let mut bench = Bench::new(100_000);
    bench.compute(1, whole(10));
    bench.pass(&[]);
    for request in 2..8 {
        bench.compute(request, whole(2048));
    }
    bench.pass(&[]);
    let mut passes = Vec::new();
    for _ in 0..6 {
        passes.push((bench.prefills().len(), bench.decodes().contains(&1)));
        bench.pass(&[]);
    }
    // Four passes in a row without it, and then it goes first and the prompt waits.
    assert_eq!(passes, [(1, false), (1, false), (1, false), (1, false), (0, true), (1, false)]);
}

#[test]
fn a_prompt_that_does_not_fit_keeps_later_ones_waiting() {
    let mut bench = Bench::new(100_000);
    bench.compute(1, whole(1));
    for (request, prompt) in [(2, 2000), (3, 100), (4, 10)] {
        bench.compute(request, whole(prompt));
    }
    bench.pass(&[]);
    assert_eq!(bench.prefills(), [2]);
    bench.pass(&[]);
    assert_eq!(bench.prefills(), [3, 4]);
}

// --- Evictions. ---

/// Three decodes that hold 12 of a machine's blocks.
fn three_decodes(blocks: u32) -> Bench {
    let mut bench =
        Bench::with(MachineConfig { blocks, block_tokens: 1, evictions_max: 1, ..MachineConfig::default() });
    // The first occupies the engine until all three are here.
    bench.compute(0, whole(1));
    for request in 1..4 {
        bench.compute(request, whole(3));
    }
    bench.pass(&[0]);
    bench.pass(&[]);
    bench
}

fn evicted(actions: &[MachineAction]) -> Vec<(u64, u32)> {
    let evicted = |notice: Notice| match notice {
        Notice::Evicted { key, tokens } => Some((key.request.0, tokens)),
        _ => None,
    };
    notices(actions).into_iter().filter_map(evicted).collect()
}

#[test]
fn the_youngest_gives_way_with_what_it_has_so_far() {
    let mut bench = three_decodes(12);
    assert_eq!(bench.decodes(), [1, 2, 3]);
    let actions = bench.pass(&[]);
    assert_eq!(evicted(&actions), [(3, 5)], "prompt and two tokens");
    assert_eq!(bench.decodes(), [1, 2]);
    assert_eq!(bench.machine.counters().evicted, 1);
    assert_eq!(bench.machine.counters().paused, 0, "evicted and paused are counted apart");
}

#[test]
fn an_evicted_request_is_recomputed_ahead_of_younger_work() {
    let mut bench = three_decodes(12);
    bench.compute(9, whole(1));
    bench.pass(&[]);
    assert!(bench.prefills().is_empty(), "request 3 has no room, and 9 is behind it");
    bench.pass(&[1, 2]);
    assert_eq!(bench.prefills(), [3, 9]);
    let item = bench.machine.plan().prefills[0];
    assert_eq!((item.start, item.tokens, item.samples), (0, 5, true));
}

#[test]
fn a_request_evicted_often_enough_is_spared() {
    let mut bench = three_decodes(14);
    assert_eq!(evicted(&bench.pass(&[])), [(3, 5)]);
    // Once is enough here. Request 1 ends and makes room for request 3 and a younger one.
    bench.compute(4, whole(1));
    bench.pass(&[1]);
    assert_eq!(bench.prefills(), [3, 4]);
    assert_eq!(evicted(&bench.pass(&[])), [(4, 2)], "the youngest that has not been evicted");
    let mut order = Vec::new();
    while order.is_empty() {
        order = evicted(&bench.pass(&[]));
    }
    assert_eq!(order[0].0, 3, "the only candidate has been, so it is taken all the same");
}

#[test]
fn the_oldest_sits_out_where_nobody_can_give_way() {
    let mut bench = Bench::new(10);
    bench.compute(1, whole(3));
    bench.pass(&[]);
    // A handoff holds the rest.
    bench.reserve(2, destination(5), id(1));
    bench.pass(&[]);
    assert!(!bench.machine.is_running() && bench.machine.leg(key(1)).unwrap().1.len() == 4);
    bench.act(&MachineEvent::PeerLost { machine: id(1) });
    bench.abort(2);
    assert_eq!(bench.decodes(), [1]);
}

// --- Handoffs. ---

#[test]
fn prompts_leave_the_handoff_floor_alone_but_one_request_can_always_run() {
    let config = MachineConfig {
        blocks: 20,
        block_tokens: 1,
        handoff_floor_blocks: Some(8),
        ..MachineConfig::default()
    };
    let mut bench = Bench::with(config);
    bench.compute(1, whole(15));
    assert_eq!(bench.prefills(), [1], "an empty machine gives everything");
    bench.pass(&[1]);
    bench.compute(2, whole(5));
    bench.compute(3, whole(6));
    bench.pass(&[]);
    assert!(bench.prefills().is_empty(), "14 free, 7 wanted, 8 kept");
    assert!(!peers(&bench.reserve(4, destination(7), id(1))).is_empty(), "a handoff may take the floor");
}

#[test]
fn by_default_the_floor_is_the_largest_handoff_seen() {
    let mut bench = Bench::new(20);
    bench.reserve(1, destination(7), id(1));
    bench.compute(2, whole(4));
    assert!(bench.prefills().is_empty(), "12 free, 5 wanted, 8 kept");
    bench.landed(1);
    bench.pass(&[1]);
    assert_eq!(bench.prefills(), [2]);
}

#[test]
fn a_reservation_is_all_or_nothing() {
    let mut bench = Bench::new(10);
    let actions = bench.reserve(1, destination(9), id(1));
    assert_eq!(bench.machine.pool().free(), 0);
    assert!(matches!(notices(&actions)[..], [Notice::Reserved { .. }]));
    let actions = bench.reserve(2, destination(1), id(1));
    assert!(matches!(notices(&actions)[..], [Notice::Refused { .. }]) && peers(&actions).is_empty());
    assert_eq!((bench.machine.counters().refused, bench.machine.report().legs), (1, 1));
}

/// How a source's transfer starts when its grant comes at each of its stages.
fn put_of(mode: Mode, grant_at: u32) -> Option<Mode> {
    let mut bench = Bench::new(100);
    bench.compute(9, whole(1));
    bench.compute(1, source(4));
    bench.send(1, id(1), mode);
    let mut started = Vec::new();
    for stage in 0..4 {
        if grant_at == stage {
            started.extend(bench.grant(id(1), 1));
        }
        if bench.machine.is_running() && stage < 2 {
            started.extend(bench.pass(&[9].into_iter().filter(|_| stage == 0).collect::<Vec<_>>()));
        }
        started.extend(bench.machine.plan().puts.iter().map(|&put| MachineAction::Put(put)));
    }
    started.iter().find_map(|action| match action {
        MachineAction::Put(Put { mode, .. }) => Some(*mode),
        _ => None,
    })
}

#[test]
fn a_grant_starts_the_transfer_whenever_it_comes() {
    assert_eq!(put_of(Mode::LayerWise, 0), Some(Mode::LayerWise), "before the pass");
    assert_eq!(put_of(Mode::LayerWise, 1), Some(Mode::Serialized), "during the pass, so after it");
    assert_eq!(put_of(Mode::LayerWise, 2), Some(Mode::Serialized), "after the pass");
    assert_eq!(put_of(Mode::Serialized, 0), Some(Mode::Serialized));
    assert_eq!(put_of(Mode::LayerWise, 9), None, "never without one");
}

#[test]
fn transfers_start_in_order_up_to_the_bound() {
    let config =
        MachineConfig { blocks: 100, block_tokens: 1, sends_max: Some(1), ..MachineConfig::default() };
    let mut bench = Bench::with(config);
    for request in 1..4 {
        bench.compute(request, source(4));
        bench.send(request, id(1), Mode::Serialized);
        bench.grant(id(1), request);
    }
    let put = |actions: &[MachineAction]| {
        let put = |action: &MachineAction| match action {
            MachineAction::Put(put) => Some(put.key.request.0),
            _ => None,
        };
        actions.iter().filter_map(put).collect::<Vec<_>>()
    };
    let mut started = put(&bench.pass(&[]));
    started.extend(put(&bench.pass(&[])));
    assert_eq!(started, [1]);
    assert_eq!(put(&bench.act(&MachineEvent::LocalDone { key: key(1) })), [2]);
    assert_eq!(put(&bench.peer(id(1), Peer::Landed { key: key(2) })), [3]);
}

#[test]
fn a_draining_machine_reuses_no_block_before_its_writer_has_let_go() {
    let ways: [fn(&mut Bench); 2] = [
        |bench| drop(bench.peer(id(1), Peer::AbortAck { key: key(1) })),
        |bench| drop(bench.act(&MachineEvent::PeerLost { machine: id(1) })),
    ];
    for let_go in ways {
        let mut bench = Bench::new(6);
        bench.reserve(1, destination(3), id(1));
        let held: Vec<BlockId> = bench.machine.leg(key(1)).unwrap().1.blocks().to_vec();
        let actions = bench.abort(1);
        assert_eq!(peers(&actions), [(id(1), Peer::Abort { key: key(1) })]);
        assert!(notices(&actions).is_empty());
        // Others make do with the rest; another machine's word counts for nothing.
        bench.reserve(2, destination(1), id(2));
        bench.peer(id(2), Peer::AbortAck { key: key(1) });
        bench.act(&MachineEvent::PeerLost { machine: id(3) });
        assert!(bench.machine.leg(key(2)).unwrap().1.blocks().iter().all(|block| !held.contains(block)));
        assert_eq!((bench.machine.pool().free(), bench.machine.pool().quarantined()), (0, 4));
        let_go(&mut bench);
        assert_eq!((bench.machine.pool().free(), bench.machine.pool().quarantined()), (4, 0));
    }
}

/// A machine of 20 blocks with one leg, at its first pass.
fn at_work(work: Work) -> Bench {
    let mut bench = Bench::new(20);
    bench.compute(1, work);
    bench
}

/// Its KV goes out after the pass, or with it.
fn sending(mode: Mode) -> Bench {
    let mut bench = Bench::new(20);
    bench.compute(9, whole(1));
    bench.compute(1, source(4));
    bench.send(1, id(1), mode);
    bench.grant(id(1), 1);
    bench.pass(&[9]);
    if mode == Mode::Serialized {
        bench.pass(&[]);
    }
    bench
}

fn fence(bench: &mut Bench) {
    bench.act(&MachineEvent::Fenced { key: key(1) });
}

fn frees_everything(name: &str, mut bench: Bench, let_go: &[fn(&mut Bench)]) {
    bench.abort(1);
    for step in let_go {
        step(&mut bench);
    }
    assert!(bench.machine.is_idle(), "{name}: {:?}", bench.machine);
    assert_eq!(bench.machine.pool().free(), 20, "{name}");
}

#[test]
fn an_abort_in_any_state_of_a_source_frees_each_block_once() {
    let pass: fn(&mut Bench) = |bench| drop(bench.pass(&[]));
    let landed: fn(&mut Bench) = |bench| drop(bench.peer(id(1), Peer::Landed { key: key(1) }));
    let mut queued = Bench::new(20);
    queued.compute(9, whole(1));
    queued.compute(1, whole(4));
    frees_everything("queued", queued, &[|bench| drop(bench.pass(&[9]))]);
    frees_everything("prefilling", at_work(whole(4)), &[pass]);
    frees_everything("ended in that pass", at_work(whole(4)), &[|bench| drop(bench.pass(&[1]))]);
    let mut decoding = at_work(whole(4));
    decoding.pass(&[]);
    frees_everything("decoding", decoding.clone(), &[pass]);
    frees_everything("its last token", decoding, &[|bench| drop(bench.pass(&[1]))]);
    let mut held = at_work(source(4));
    held.pass(&[]);
    frees_everything("held", held, &[]);
    frees_everything("sending", sending(Mode::Serialized), &[fence]);
    frees_everything(
        "sending, and failed",
        sending(Mode::Serialized),
        &[|bench| {
            drop(bench.act(&MachineEvent::TransferFailed { key: key(1) }));
        }],
    );
    frees_everything(
        "sending to a machine that is lost",
        sending(Mode::Serialized),
        &[|bench| {
            drop(bench.act(&MachineEvent::PeerLost { machine: id(1) }));
        }],
    );
    frees_everything("landed at once", sending(Mode::Serialized), &[landed, fence]);
    frees_everything("layer by layer", sending(Mode::LayerWise), &[pass, fence]);
    frees_everything("layer by layer, fenced first", sending(Mode::LayerWise), &[fence, pass]);
    frees_everything("layer by layer, landed first", sending(Mode::LayerWise), &[landed, fence, pass]);
    frees_everything(
        "ended with its first token",
        sending(Mode::LayerWise),
        &[|bench| drop(bench.pass(&[1])), fence],
    );
}

#[test]
fn an_abort_in_any_state_of_a_destination_frees_each_block_once() {
    let mut reserved = Bench::new(20);
    reserved.reserve(1, destination(4), id(1));
    let ack: fn(&mut Bench) = |bench| drop(bench.peer(id(1), Peer::AbortAck { key: key(1) }));
    frees_everything("reserved", reserved.clone(), &[ack, ack]);
    frees_everything("landed meanwhile", reserved.clone(), &[|bench| drop(bench.landed(1)), ack]);
    let mut receiving = reserved.clone();
    receiving.act(&MachineEvent::LayersLanded { key: key(1), layers: 1, of: 2 });
    frees_everything("receiving", receiving, &[ack]);
    let mut lost = reserved.clone();
    lost.act(&MachineEvent::PeerLost { machine: id(1) });
    frees_everything("its source lost", lost, &[]);
    reserved.landed(1);
    frees_everything("decoding", reserved, &[|bench| drop(bench.pass(&[]))]);
}

#[test]
fn a_first_token_that_is_the_last_ends_the_request_at_its_source() {
    let mut bench = Bench::new(20);
    bench.compute(1, source(4));
    bench.send(1, id(1), Mode::Serialized);
    bench.grant(id(1), 1);
    let actions = bench.pass(&[1]);
    assert!(matches!(notices(&actions)[..], [Notice::Finished { tokens: 1, .. }]), "{actions:?}");
    assert!(bench.machine.is_idle(), "nothing was sent, so nothing drains");
    // The destination hears from the Cluster, and asks.
    assert_eq!(
        peers(&bench.peer(id(1), Peer::Abort { key: key(1) })),
        [(id(1), Peer::AbortAck { key: key(1) })]
    );
}

#[test]
fn layers_that_land_before_the_pass_is_over_free_the_source_with_it() {
    let mut bench = Bench::new(20);
    bench.compute(9, whole(1));
    bench.compute(1, source(4));
    bench.send(1, id(1), Mode::LayerWise);
    bench.grant(id(1), 1);
    bench.pass(&[9]);
    bench.peer(id(1), Peer::Landed { key: key(1) });
    assert_eq!(bench.machine.leg(key(1)).unwrap().0.outbound, Outbound::Released);
    let told = notices(&bench.pass(&[]));
    assert!(matches!(told[..], [Notice::PrefillDone { .. }, Notice::Released { .. }]), "{told:?}");
    assert_eq!(bench.machine.pool().free(), 20);
}

#[test]
fn a_leg_starts_when_everything_is_here_and_the_cluster_has_said_so() {
    let mut bench = Bench::new(20);
    let (key, order, work) = (key(1), Order(1), destination(4));
    bench.command(Command::Reserve { key, order, work, source: id(1), start: false });
    bench.act(&MachineEvent::LayersLanded { key, layers: 1, of: 3 });
    assert_eq!(bench.machine.leg(key).unwrap().0.inbound, Inbound::Receiving);
    bench.act(&MachineEvent::LayersLanded { key, layers: 3, of: 3 });
    assert_eq!(bench.machine.leg(key).unwrap().0.compute, Compute::Waiting);
    bench.command(Command::Start { key });
    assert_eq!(bench.machine.leg(key).unwrap().0.compute, Compute::Decoding);
    assert_eq!(bench.machine.plan().context_tokens, 5, "the source's token is part of the context");
}

#[test]
fn a_report_follows_the_interval_and_rides_on_releases() {
    let mut bench = Bench::new(20);
    assert_eq!(bench.machine.next_deadline(), None, "nothing new to tell");
    bench.compute(1, whole(4));
    assert_eq!(bench.machine.next_deadline(), Some(Time::from_ns(1_000_000_000)));
    bench.now_ns = 999_999_999;
    assert!(bench.act(&MachineEvent::Tick).is_empty());
    bench.now_ns += 1;
    let told = notices(&bench.act(&MachineEvent::Tick));
    let Notice::Report(report) = told[0] else { panic!("{told:?}") };
    assert_eq!((report.seq, report.kv_tokens, report.free_blocks, report.legs), (AssignmentSeq(1), 5, 15, 1));
    bench.now_ns += 10;
    bench.pass(&[1]);
    assert_eq!(
        bench.machine.next_deadline(),
        Some(Time::from_ns(2_000_000_000)),
        "a finish shows with the next report"
    );
    bench.compute(2, whole(4));
    bench.abort(2);
    bench.pass(&[]);
    assert_eq!(bench.machine.next_deadline(), None, "the release told everything");
    bench.now_ns = 5;
    bench.compute(2, whole(4));
    assert_eq!(bench.machine.next_deadline(), Some(Time::from_ns(2_000_000_010)), "time never goes back");
}

// --- Events in any order. ---

#[derive(Debug, Clone)]
struct Chaos {
    blocks: u32,
    sends_max: Option<u32>,
    receives_max: Option<u32>,
    seed: u64,
    steps: usize,
}

fn chaos() -> impl Strategy<Value = Chaos> {
    (8_u32..40, prop::option::of(1_u32..3), prop::option::of(1_u32..3), any::<u64>(), 20_usize..300).prop_map(
        |(blocks, sends_max, receives_max, seed, steps)| Chaos {
            blocks,
            sends_max,
            receives_max,
            seed,
            steps,
        },
    )
}

/// A number below `bound`, and the next state.
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// Any event: sensible ones, late ones, ones about strangers, and contradictions.
fn any_event(machine: &Machine, seq: u64, state: &mut u64) -> MachineEvent {
    let request = 1 + draw(state, 6);
    let (key, order) = (key_at(request, 1 + draw(state, 2) as u32), Order(request));
    let peer = MachineId { index: 1 + draw(state, 2) as u32, incarnation: 1 + (draw(state, 40) / 39) as u32 };
    let prompt_tokens = 1 + draw(state, 9) as u32;
    let work = Work {
        prompt_tokens,
        start: 0,
        upto: Upto::End,
        max_new_tokens: 9,
        terms: splitcore_core::leg::Terms::default(),
    };
    let first = Work { upto: Upto::Position(prompt_tokens), ..work };
    let second = Work { start: prompt_tokens - draw(state, 2) as u32, ..work };
    let mode = if draw(state, 2) == 0 { Mode::LayerWise } else { Mode::Serialized };
    let command = |command| MachineEvent::Command {
        epoch: splitcore_core::id::Epoch(1),
        seq: AssignmentSeq(seq),
        command,
    };
    let message = |message| MachineEvent::Peer { from: peer, message };
    match draw(state, 22) {
        0 => command(Command::Compute { key, order, work }),
        1 | 2 => command(Command::Compute { key, order, work: first }),
        3 | 4 => {
            command(Command::Reserve { key, order, work: second, source: peer, start: seq.is_multiple_of(2) })
        }
        5 | 6 => command(Command::Send { key, to: peer, mode }),
        7 => command(Command::Start { key }),
        8 | 9 => command(Command::Abort { key }),
        10 | 11 => message(Peer::Grant { key, blocks: 1 }),
        12 => message(Peer::Landed { key }),
        13 => message(Peer::Abort { key }),
        14 => message(Peer::AbortAck { key }),
        15 => MachineEvent::LayersLanded { key, layers: 1 + draw(state, 2) as u16, of: 2 },
        16 => MachineEvent::LocalDone { key },
        17 => MachineEvent::TransferFailed { key },
        18 => MachineEvent::Fenced { key },
        19 if draw(state, 4) == 0 => MachineEvent::PeerLost { machine: peer },
        19 => MachineEvent::Tick,
        _ => {
            let plan = machine.plan();
            let all: Vec<LegKey> =
                plan.decodes.iter().copied().chain(plan.prefills.iter().map(|item| item.key)).collect();
            let mut ended: Vec<LegKey> = all.into_iter().filter(|_| draw(state, 4) == 0).collect();
            if draw(state, 20) == 0 {
                ended.push(key);
            }
            MachineEvent::IterationDone { pass: plan.pass + draw(state, 20) / 19, ended }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_in_any_order_break_no_invariant_and_errors_change_nothing(chaos in chaos()) {
        let config = MachineConfig {
            blocks: chaos.blocks,
            block_tokens: 2,
            batch_requests_max: 4,
            sends_max: chaos.sends_max,
            receives_max: chaos.receives_max,
            evictions_max: 1,
            ..MachineConfig::default()
        };
        let mut machine = Machine::new(id(0), config).unwrap();
        let mut restored = machine.clone();
        let mut state = chaos.seed;
        let mut told: BTreeSet<(LegKey, bool)> = BTreeSet::new();
        for step in 0..chaos.steps {
            if draw(&mut state, 30) == 0 {
                restored = machine.clone();
            }
            let event = any_event(&machine, step as u64 + 1, &mut state);
            let now = Time::from_ns(draw(&mut state, 1000) + step as u64);
            let before = format!("{machine:?}");
            let (mut actions, mut same) = (Vec::new(), Vec::new());
            let applied = machine.handle(now, &event, &mut actions);
            prop_assert_eq!(restored.handle(now, &event, &mut same), applied);
            prop_assert_eq!(&same, &actions, "a restored machine differs at {:?}", event);
            prop_assert!(machine.check().is_ok(), "{:?} after {:?}", machine.check(), event);
            if applied.is_err() {
                prop_assert!(actions.is_empty());
                prop_assert_eq!(format!("{machine:?}"), before, "{:?} changed something", event);
            }
            if let MachineEvent::Command { command, .. } = event
                && let Command::Compute { key, .. } | Command::Reserve { key, .. } = command
                && applied.is_ok()
            {
                told.retain(|&(of, _)| of != key);
            }
            if matches!(event, MachineEvent::Command { command: Command::Abort { .. }, .. }) {
                // An abort is answered even where the leg has left before.
                continue;
            }
            for notice in notices(&actions) {
                let (Notice::Released { key, .. } | Notice::Finished { key, .. }) = notice else { continue };
                let is_end = matches!(notice, Notice::Finished { .. });
                prop_assert!(told.insert((key, is_end)), "{:?} left twice", key);
            }
        }
    }
}

#[test]
fn contradictions_are_errors_and_late_words_are_counted() {
    let mut bench = Bench::new(10);
    bench.compute(1, whole(4));
    let seq = AssignmentSeq(9);
    let again = Command::Compute { key: key(1), order: Order(1), work: whole(4) };
    let (applied, _) =
        bench.handle(&MachineEvent::Command { epoch: splitcore_core::id::Epoch(1), seq, command: again });
    assert_eq!(applied, Err(EventError::DuplicateLeg(key(1))));
    let large = Command::Compute { key: key(2), order: Order(2), work: whole(10) };
    let (applied, _) =
        bench.handle(&MachineEvent::Command { epoch: splitcore_core::id::Epoch(1), seq, command: large });
    assert_eq!(applied, Err(EventError::TooLarge { key: key(2), tokens: 11, capacity_tokens: 10 }));
    let (applied, _) = bench.handle(&MachineEvent::IterationDone { pass: 2, ended: vec![] });
    assert_eq!(applied, Err(EventError::NotRunning { pass: 2 }));
    let (applied, _) = bench.handle(&MachineEvent::IterationDone { pass: 1, ended: vec![key(5)] });
    assert_eq!(applied, Err(EventError::NotInPass(key(5))));
    assert_eq!(bench.machine.report().seq, AssignmentSeq(1), "what failed was never assigned");
    for late in [
        MachineEvent::LocalDone { key: key(5) },
        MachineEvent::Fenced { key: key(5) },
        MachineEvent::TransferFailed { key: key(5) },
        MachineEvent::LayersLanded { key: key(5), layers: 1, of: 1 },
        MachineEvent::Peer { from: id(1), message: Peer::Landed { key: key(5) } },
        MachineEvent::Peer { from: id(1), message: Peer::AbortAck { key: key(5) } },
    ] {
        assert_eq!(bench.handle(&late), (Ok(Applied::Late), vec![]), "{late:?}");
    }
    assert_eq!(bench.machine.counters().late, 6);
}
