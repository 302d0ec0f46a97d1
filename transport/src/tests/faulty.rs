//! What a driver sees over a link that misbehaves: one end for each transfer, no wrong bytes that are not owned up to,
//! and no block that is written after it was given back.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, KvRange};

use super::kit::{HERE, Local, THERE, bytes, fill, landing, pool, shape};
use crate::faulty::{Faults, Faulty, Kinds};
use crate::landing::{Arrival, Landing};
use crate::outcomes::{Outcomes, Overdue};
use crate::pool::Pool;
use crate::throttle::{Throttle, Wire};
use crate::transfer::{Completion, Link, TransferKey};

const LAYERS: u16 = 3;
const BLOCKS: u32 = 12;
const SLOTS: u32 = 4;
const CANARY: u8 = 0xCA;
const POISON: u8 = 0xBD;
/// Steps of a run; every call of the link counts for the faults.
const STEPS: u32 = 120;

/// What makes another link of a link that sends from a pool.
type Wrap = fn(Arc<dyn Link>, &Arc<Pool>) -> Arc<dyn Link>;

/// A transfer as its test sees it.
struct Story {
    key: TransferKey,
    from: Vec<BlockId>,
    to: Vec<BlockId>,
    /// What is still to be called, in order: ranges, or a publication.
    plan: Vec<(u16, Vec<KvRange>)>,
    stamp: u8,
    seen: u16,
    ended: bool,
    gone: bool,
}

struct World {
    draws: Pcg32,
    source: Arc<Pool>,
    landing: Landing,
    link: Faulty,
    outcomes: Outcomes<u64>,
    now: Duration,
    stories: BTreeMap<u64, Story>,
    free_from: Vec<BlockId>,
    free_to: Vec<BlockId>,
    ends: BTreeMap<u64, u32>,
    wrong: u32,
    next: u64,
}

fn value(stamp: u8, layer: u16, place: usize) -> u8 {
    stamp.wrapping_mul(31).wrapping_add(layer as u8 * 7).wrapping_add(place as u8) & 0x7F
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        Self::over(seed, faults, |link, _| link)
    }

    /// A world whose faulty link stands on what `wrap` makes of the sound one.
    fn over(seed: u64, faults: Faults, wrap: Wrap) -> Self {
        let source = pool(LAYERS, BLOCKS);
        let landing = landing(LAYERS, BLOCKS, SLOTS);
        let all: Vec<BlockId> = (0..BLOCKS).map(BlockId).collect();
        for &block in &all {
            for layer in 0..LAYERS {
                fill(&source, layer, block, |_| POISON);
                fill(landing.pool(), layer, block, |_| CANARY);
            }
        }
        let inner = Local::join(source.clone(), &landing, THERE);
        let inner = wrap(inner, &source);
        let link = Faulty::new(inner, shape(LAYERS, BLOCKS), seed, faults);
        Self {
            draws: Pcg32::seed_from_u64(!seed),
            source,
            landing,
            link,
            outcomes: Outcomes::new(Duration::from_secs(20)),
            now: Duration::ZERO,
            stories: BTreeMap::new(),
            free_from: all.clone(),
            free_to: all,
            ends: BTreeMap::new(),
            wrong: 0,
            next: 0,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.draws.next_u32() as usize % limit.max(1)
    }

    fn take(&mut self, count: usize, to: bool) -> Vec<BlockId> {
        (0..count)
            .map(|_| {
                let left = if to { self.free_to.len() } else { self.free_from.len() };
                let index = self.below(left);
                if to { self.free_to.swap_remove(index) } else { self.free_from.swap_remove(index) }
            })
            .collect()
    }

    /// Grants blocks, fills those to send, and begins.
    fn open(&mut self) {
        let count = 1 + self.below(3);
        if self.free_to.len() < count || self.free_from.len() < count || self.landing.in_use() == SLOTS {
            return;
        }
        let (from, to) = (self.take(count, false), self.take(count, true));
        for &block in &to {
            for layer in 0..LAYERS {
                let clean = bytes(self.landing.pool(), layer, block).iter().all(|&byte| byte == CANARY);
                assert!(clean, "a block that nobody holds was written");
            }
        }
        let (request, stamp) = (self.next, self.next as u8);
        self.next += 1;
        for (index, &block) in from.iter().enumerate() {
            for layer in 0..LAYERS {
                fill(&self.source, layer, block, |place| value(stamp, layer, index * 32 + place));
            }
        }
        let grant = self.landing.open(THERE, RequestId(request), to.clone(), 32 * count as u64).unwrap();
        self.link.begin(&grant).unwrap();
        let due = self.now + Duration::from_secs(60);
        assert!(self.outcomes.begin(request, HERE, grant.key, due));
        let plan = self.plan(&from, &to);
        let story = Story { key: grant.key, from, to, plan, stamp, seen: 0, ended: false, gone: false };
        self.stories.insert(request, story);
    }

    /// Each block of a layer in one put or two, then the layer's publication.
    fn plan(&mut self, from: &[BlockId], to: &[BlockId]) -> Vec<(u16, Vec<KvRange>)> {
        let mut plan = Vec::new();
        for layer in 0..LAYERS {
            for (&from, &to) in from.iter().zip(to) {
                let first = u32::from(layer) * 32;
                let cut = 8 * self.below(4) as u32;
                let part = |at: u32, bytes: u32| KvRange {
                    from,
                    from_offset: first + at,
                    to,
                    to_offset: first + at,
                    bytes,
                };
                if cut > 0 {
                    plan.push((layer, vec![part(0, cut)]));
                }
                plan.push((layer, vec![part(cut, 32 - cut)]));
            }
            plan.push((layer, Vec::new()));
        }
        plan.reverse();
        plan
    }

    /// The source's next call for some transfer.
    fn send(&mut self) {
        let waiting: Vec<u64> = self
            .stories
            .iter()
            .filter(|(_, story)| !story.ended && !story.plan.is_empty())
            .map(|(&of, _)| of)
            .collect();
        let index = self.below(waiting.len());
        let Some(story) = waiting.get(index).and_then(|of| self.stories.get_mut(of)) else { return };
        let Some((layer, ranges)) = story.plan.pop() else { return };
        let done = if ranges.is_empty() {
            self.link.publish(story.key, layer, 2)
        } else {
            self.link.put(story.key, layer, &ranges)
        };
        if done.is_err() {
            // What is wrong is told; a driver gives such a transfer up.
            story.plan.clear();
            self.stop(story_of(&self.stories, waiting[index]));
        }
    }

    fn stop(&mut self, key: TransferKey) {
        self.link.stop(key);
        self.outcomes.stopped(HERE, key, self.now);
    }

    fn any_key(&mut self) -> Option<TransferKey> {
        let index = self.below(self.stories.len());
        self.stories.values().nth(index).map(|story| story.key)
    }

    fn poll(&mut self) {
        let mut ended = Vec::new();
        self.link.poll(&mut ended);
        for end in ended {
            let heard = self.outcomes.hear(HERE, end);
            self.ended(heard.map(|outcome| outcome.leg));
        }
        let mut arrivals = Vec::new();
        self.landing.poll(&mut arrivals);
        for arrival in arrivals {
            match arrival {
                Arrival::Layers { key, layers, .. } => self.look(key, layers),
                Arrival::Failed(..) => {}
                Arrival::Fenced(key) => self.give_back(key),
            }
        }
        for overdue in self.outcomes.overdue(self.now) {
            match overdue {
                Overdue::Stop(_, key) => self.link.stop(key),
                Overdue::Close(receiver) => {
                    for outcome in self.outcomes.closed(receiver) {
                        // What a closed link had under way is stopped; so it is here, where the link stays.
                        self.link.stop(outcome.end.key());
                        self.ended(Some(outcome.leg));
                    }
                }
            }
        }
    }

    fn ended(&mut self, of: Option<u64>) {
        let Some(of) = of else { return };
        *self.ends.entry(of).or_default() += 1;
        let Some(story) = self.stories.get_mut(&of) else { return };
        story.ended = true;
        for block in story.from.clone() {
            for layer in 0..LAYERS {
                fill(&self.source, layer, block, |_| POISON);
            }
        }
        let from = std::mem::take(&mut story.from);
        self.free_from.extend(from);
        self.forget(of);
    }

    /// Compares what has become visible.
    fn look(&mut self, key: TransferKey, layers: u16) {
        let Some((&of, story)) = self.stories.iter_mut().find(|(_, story)| story.key == key) else {
            panic!("{key} is nobody's");
        };
        let corrupted = self.link.injected().corrupted;
        for layer in story.seen..layers {
            let right = story.to.iter().enumerate().all(|(index, &block)| {
                let found = bytes(self.landing.pool(), layer, block);
                (0..32).all(|place| found[place] == value(story.stamp, layer, index * 32 + place))
            });
            let tokens = self.landing.wait_layer(key, layer, Duration::ZERO).unwrap().tokens;
            let owned_up = corrupted.contains(&(key, layer));
            assert!((right && tokens == 2) || owned_up, "{key}, layer {layer}: wrong, and nothing was said");
            self.wrong += u32::from(!right);
        }
        story.seen = layers;
        if layers == LAYERS {
            self.landing.release(key).unwrap();
            self.reuse(of);
        }
    }

    fn give_back(&mut self, key: TransferKey) {
        // One that landed before it was stopped is free already.
        if self.landing.release(key).is_ok() {
            let of = self.stories.iter().find(|(_, story)| story.key == key).map(|(&of, _)| of);
            self.reuse(of.unwrap());
        }
    }

    /// The destination's blocks are free: whatever writes them now is caught.
    fn reuse(&mut self, of: u64) {
        let Some(story) = self.stories.get_mut(&of) else { return };
        for block in story.to.drain(..) {
            for layer in 0..LAYERS {
                fill(self.landing.pool(), layer, block, |_| CANARY);
            }
            self.free_to.push(block);
        }
        story.gone = true;
        self.forget(of);
    }

    fn forget(&mut self, of: u64) {
        if self.stories.get(&of).is_some_and(|story| story.ended && story.gone) {
            self.stories.remove(&of);
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_secs(1);
        match self.below(16) {
            0..3 => self.open(),
            3..12 => self.send(),
            12 => {
                if self.below(4) == 0
                    && let Some(key) = self.any_key()
                {
                    self.stop(key);
                }
            }
            13 => {
                if self.below(4) == 0
                    && let Some(key) = self.any_key()
                {
                    let _ = self.landing.stop(key);
                }
            }
            _ => self.poll(),
        }
    }

    /// No more is begun: everything comes to an end, by itself, by its deadline or because the receiver gives it up.
    fn finish(&mut self) {
        for _ in 0..60 {
            self.now += Duration::from_secs(1);
            self.send();
            self.poll();
        }
        let mut calls = 0;
        while !self.outcomes.is_empty() || !self.stories.is_empty() {
            self.now += Duration::from_secs(10);
            let keys: Vec<TransferKey> = self.stories.values().map(|story| story.key).collect();
            for key in keys {
                let _ = self.landing.stop(key);
            }
            self.poll();
            calls += 1;
            assert!(calls < 100, "{} transfers never end", self.stories.len());
        }
    }

    fn check(mut self) -> World {
        for _ in 0..STEPS {
            self.step();
        }
        self.finish();
        assert_eq!(self.landing.in_use(), 0);
        let all: BTreeSet<u64> = (0..self.next).collect();
        assert_eq!(self.ends.keys().copied().collect::<BTreeSet<_>>(), all, "each has an end");
        assert!(self.ends.values().all(|&count| count == 1), "and one only: {:?}", self.ends);
        assert_eq!((self.free_from.len(), self.free_to.len()), (BLOCKS as usize, BLOCKS as usize));
        for block in (0..BLOCKS).map(BlockId) {
            for layer in 0..LAYERS {
                let clean = bytes(self.landing.pool(), layer, block).iter().all(|&byte| byte == CANARY);
                assert!(clean, "block {} was written after it was given back", block.0);
            }
        }
        self
    }
}

fn story_of(stories: &BTreeMap<u64, Story>, of: u64) -> TransferKey {
    stories[&of].key
}

/// Every fault, none, or a few, by the seed.
fn faults(seed: u64) -> Faults {
    let mut draws = Pcg32::seed_from_u64(seed ^ 0x5eed);
    let mut rate = || match draws.next_u32() % 3 {
        0 => 0,
        1 => 30,
        _ => 300,
    };
    let mut kinds =
        || Kinds { drop: rate() / 3, twice: rate(), delay: rate(), reorder: rate(), corrupt: rate() / 3 };
    Faults { puts: kinds(), publishes: kinds(), ends: kinds(), held_max: 8 }
}

#[test]
fn no_layer_is_wrong_unseen_and_every_transfer_ends_once_whatever_the_link_does() {
    let (mut transfers, mut wrong, mut corrupted) = (0, 0, 0);
    for seed in 0..3000 {
        let world = std::panic::catch_unwind(|| World::new(seed, faults(seed)).check());
        let Ok(world) = world else { panic!("seed {seed} fails") };
        transfers += world.next;
        wrong += world.wrong;
        corrupted += world.link.injected().corrupted.len();
    }
    assert!(transfers > 15_000, "{transfers} transfers");
    assert!(wrong > 100 && corrupted > 1000, "the faults are not idle: {wrong} of {corrupted}");
}

#[test]
fn without_faults_everything_that_is_not_stopped_lands_in_order() {
    for seed in 0..200 {
        let mut world = World::new(seed, Faults::default());
        world.open();
        let key = world.stories[&0].key;
        while !world.stories[&0].plan.is_empty() {
            world.send();
        }
        let mut ended = Vec::new();
        world.link.poll(&mut ended);
        assert_eq!(ended, [Completion::LocalDone(key)]);
        assert_eq!(world.landing.landed(key), Ok(LAYERS));
        assert_eq!(world.link.injected(), crate::faulty::Injected::default());
    }
}

#[test]
fn the_same_holds_where_the_bytes_go_in_the_background() {
    let throttle: Wrap = |link, pool| {
        let wire = Wire { bytes_per_second: NonZeroU64::MAX, latency: Duration::from_micros(20) };
        Arc::new(Throttle::new(link, pool.clone(), HERE, wire).unwrap())
    };
    for seed in 0..200 {
        let world = std::panic::catch_unwind(|| World::over(seed, faults(seed), throttle).check());
        assert!(world.is_ok(), "seed {seed} fails");
    }
}

#[test]
fn what_comes_late_twice_or_in_another_order_still_lands() {
    let harmless = Kinds { twice: 400, delay: 400, reorder: 400, ..Kinds::default() };
    let faults = Faults { puts: harmless, publishes: harmless, ends: harmless, held_max: 6 };
    for seed in 0..300 {
        let mut world = World::over(seed, faults, |link, _| link);
        world.open();
        let key = world.stories[&0].key;
        while !world.stories[&0].plan.is_empty() {
            world.send();
        }
        let mut ended = Vec::new();
        for _ in 0..200 {
            world.link.poll(&mut ended);
        }
        assert!(ended.iter().all(|end| *end == Completion::LocalDone(key)), "seed {seed}: {ended:?}");
        assert!(!ended.is_empty(), "seed {seed}");
        world.look(key, LAYERS);
    }
}

#[test]
fn a_seed_says_all_that_is_done() {
    let run = |seed| World::new(seed, faults(seed)).check().link.injected();
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}

#[test]
fn every_fault_happens_at_its_rate() {
    let all = Kinds::all(200);
    let faults = Faults { puts: all, publishes: all, ends: all, held_max: 4 };
    let mut totals = [[0; 5]; 3];
    for seed in 0..300 {
        let injected = World::new(seed, faults).check().link.injected();
        for (total, counts) in totals.iter_mut().zip([injected.puts, injected.publishes, injected.ends]) {
            let counts = [counts.drop, counts.twice, counts.delay, counts.reorder, counts.corrupt];
            for (total, count) in total.iter_mut().zip(counts) {
                *total += count;
            }
        }
    }
    assert!(totals.iter().flatten().all(|&total| total > 50), "{totals:?}");
}
