//! A link that misbehaves, for tests.
//!
//! It does what wires and libraries have been seen to do: puts come in another order, late, twice, never, or with
//! other bytes; so do publications, and completions may name another transfer or another end. The order that a link
//! promises is kept: a layer's puts come before its publication.
//!
//! What it does follows from the seed and the calls alone. There is no clock: what is held back is held for so many
//! further calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use splitcore_core::kv::{BlockId, KvRange, PoolShape};

use crate::error::TransferError;
use crate::transfer::{Completion, Grant, Link, PeerState, TransferKey, Wake};
use crate::word::Generation;

/// One thing for each kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds<T> {
    /// It never comes.
    pub drop: T,
    /// It comes a second time.
    pub twice: T,
    /// It comes some calls later.
    pub delay: T,
    /// It comes after the next one.
    pub reorder: T,
    /// It is another one: a put of other bytes, a publication of another number of tokens, the end of another
    /// transfer or another end.
    pub corrupt: T,
}

/// How often each fault is to happen, per mille.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// To puts.
    pub puts: Kinds<u16>,
    /// To publications.
    pub publishes: Kinds<u16>,
    /// To completions.
    pub ends: Kinds<u16>,
    /// For how many calls something is held back at most.
    pub held_max: u32,
}

/// What has been done to what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Injected {
    /// To puts.
    pub puts: Kinds<u64>,
    /// To publications.
    pub publishes: Kinds<u64>,
    /// To completions.
    pub ends: Kinds<u64>,
    /// Layers that were sent with other bytes or another number of tokens.
    pub corrupted: Vec<(TransferKey, u16)>,
}

impl Kinds<u16> {
    /// The same rate for every kind.
    pub const fn all(per_mille: u16) -> Self {
        Self { drop: per_mille, twice: per_mille, delay: per_mille, reorder: per_mille, corrupt: per_mille }
    }
}

#[derive(Debug, Clone)]
enum What {
    Put(Vec<KvRange>),
    Publish(u32),
}

/// A call that waits to be passed on.
#[derive(Debug, Clone)]
struct Held {
    key: TransferKey,
    layer: u16,
    what: What,
    /// Calls until it may go.
    calls: u32,
    /// Whether it is to come a second time, once it has gone.
    twice: bool,
    /// A second time of what has gone before: what becomes of it is nobody's business.
    again: bool,
}

/// What is drawn for one event.
#[derive(Debug, Clone, Copy)]
struct Fate {
    drop: bool,
    twice: bool,
    corrupt: bool,
    /// Calls to hold it back; `None`: it goes at once.
    held: Option<u32>,
}

struct State {
    draws: Pcg32,
    held: Vec<Held>,
    ends: Vec<(Completion, u32)>,
    /// Why a transfer was stopped here whose end has not come.
    refused: BTreeMap<(u32, u32), TransferError>,
    injected: Injected,
}

/// A link that misbehaves by its seed. Where the inner link refuses a call that was held back, the transfer fails.
pub struct Faulty {
    inner: Arc<dyn Link>,
    source: PoolShape,
    faults: Faults,
    state: Mutex<State>,
}

impl State {
    fn chance(&mut self, per_mille: u16) -> bool {
        self.draws.next_u32() % 1000 < u32::from(per_mille)
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.draws.next_u32() % limit.max(1)
    }

    fn fate(
        &mut self,
        rates: Kinds<u16>,
        held_max: u32,
        count: fn(&mut Injected) -> &mut Kinds<u64>,
    ) -> Fate {
        let drop = self.chance(rates.drop);
        let twice = !drop && self.chance(rates.twice);
        let corrupt = !drop && self.chance(rates.corrupt);
        let reorder = !drop && self.chance(rates.reorder);
        let delay = !drop && self.chance(rates.delay);
        let held = if delay { Some(1 + self.below(held_max)) } else { reorder.then_some(0) };
        let counts = count(&mut self.injected);
        counts.drop += u64::from(drop);
        counts.twice += u64::from(twice);
        counts.reorder += u64::from(reorder);
        counts.delay += u64::from(delay);
        Fate { drop, twice, corrupt, held }
    }

    /// Whether an operation may go before those that are held.
    fn may_go(&self, key: TransferKey, layer: u16, what: &What) -> bool {
        let is_put = |held: &Held| {
            held.key == key && held.layer == layer && !held.again && matches!(held.what, What::Put(_))
        };
        matches!(what, What::Put(_)) || !self.held.iter().any(is_put)
    }

    /// Takes one of those out that may go now, any of them.
    fn ripe(&mut self) -> Option<Held> {
        let ripe: Vec<usize> = (0..self.held.len())
            .filter(|&index| {
                let held = &self.held[index];
                held.calls == 0 && self.may_go(held.key, held.layer, &held.what)
            })
            .collect();
        let chosen = self.below(ripe.len() as u32) as usize;
        ripe.get(chosen).map(|&index| self.held.remove(index))
    }

    /// Another transfer's end, or another end of this one.
    fn corrupt_end(&mut self, end: Completion) -> Completion {
        self.injected.ends.corrupt += 1;
        let key = end.key();
        if self.chance(500) {
            let generation = Generation::new(key.generation.get() ^ (1 << 20)).unwrap_or(Generation::LAST);
            let other = TransferKey { generation, ..key };
            return match end {
                Completion::LocalDone(_) => Completion::LocalDone(other),
                Completion::Fenced(_) => Completion::Fenced(other),
                Completion::Failed(_, error) => Completion::Failed(other, error),
            };
        }
        match end {
            Completion::LocalDone(_) => Completion::Fenced(key),
            Completion::Fenced(_) => Completion::Failed(key, TransferError::Unknown { key }),
            Completion::Failed(..) => Completion::LocalDone(key),
        }
    }
}

fn name(key: TransferKey) -> (u32, u32) {
    (key.slot, key.generation.get())
}

impl Faulty {
    /// A link over `inner`, which sends from a pool of the shape `source`, with faults drawn from `seed`.
    pub fn new(inner: Arc<dyn Link>, source: PoolShape, seed: u64, faults: Faults) -> Self {
        let state = State {
            draws: Pcg32::seed_from_u64(seed),
            held: Vec::new(),
            ends: Vec::new(),
            refused: BTreeMap::new(),
            injected: Injected::default(),
        };
        Self { inner, source, faults, state: Mutex::new(state) }
    }

    /// What has been done so far.
    pub fn injected(&self) -> Injected {
        self.state().injected.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call goes by: what has been held long enough is passed on.
    fn step(&self, state: &mut State) {
        for held in &mut state.held {
            held.calls = held.calls.saturating_sub(1);
        }
        let most = state.held.len();
        for _ in 0..most {
            let Some(held) = state.ripe() else { return };
            let (key, again) = (held.key, held.again);
            if let Err(error) = self.pass(state, held)
                && !again
            {
                self.refuse(state, key, error);
            }
        }
    }

    fn pass(&self, state: &mut State, held: Held) -> Result<(), TransferError> {
        let done = match &held.what {
            What::Put(ranges) => self.inner.put(held.key, held.layer, ranges),
            What::Publish(tokens) => self.inner.publish(held.key, held.layer, *tokens),
        };
        match done {
            // A put that finds no room is made again; one that is repeated anyway need not be.
            Err(TransferError::Busy { .. }) if !held.again => {
                state.held.push(Held { calls: 1, ..held });
                Ok(())
            }
            Ok(()) if held.twice => {
                let calls = 2 + state.below(self.faults.held_max);
                state.held.push(Held { calls, twice: false, again: true, ..held });
                Ok(())
            }
            done => done,
        }
    }

    /// The inner link did not take a call whose caller has been told that it was taken.
    fn refuse(&self, state: &mut State, key: TransferKey, error: TransferError) {
        state.held.retain(|held| held.key != key);
        let has_ended = matches!(
            error,
            TransferError::Unknown { .. } | TransferError::Stopped { .. } | TransferError::PeerLost { .. }
        );
        if !has_ended {
            state.refused.entry(name(key)).or_insert(error);
            self.inner.stop(key);
        }
    }

    fn call(&self, key: TransferKey, layer: u16, mut what: What) -> Result<(), TransferError> {
        let mut state = self.state();
        let held_max = self.faults.held_max;
        let fate = match &what {
            What::Put(_) => state.fate(self.faults.puts, held_max, |injected| &mut injected.puts),
            What::Publish(_) => {
                state.fate(self.faults.publishes, held_max, |injected| &mut injected.publishes)
            }
        };
        if fate.corrupt {
            self.corrupt(&mut state, key, layer, &mut what);
        }
        let mut done = Ok(());
        if !fate.drop {
            let waits = fate.held.or_else(|| (!state.may_go(key, layer, &what)).then_some(0));
            let call = Held { key, layer, what, calls: 0, twice: fate.twice, again: false };
            match waits {
                // The step below is not yet the next call's.
                Some(calls) => state.held.push(Held { calls: calls + 2, ..call }),
                None => done = self.pass(&mut state, call),
            }
        }
        self.step(&mut state);
        done
    }

    fn corrupt(&self, state: &mut State, key: TransferKey, layer: u16, what: &mut What) {
        match what {
            What::Publish(tokens) => {
                *tokens ^= 1;
                state.injected.publishes.corrupt += 1;
            }
            What::Put(ranges) => {
                let chosen = state.below(ranges.len() as u32) as usize;
                let other = state.below(self.source.blocks);
                let Some(range) = ranges.get_mut(chosen) else { return };
                let from = BlockId(other);
                let end =
                    self.source.locate(from, range.from_offset).map(|place| place + u64::from(range.bytes));
                if from == range.from || end.is_none_or(|end| end > self.source.bytes()) {
                    return;
                }
                range.from = from;
                state.injected.puts.corrupt += 1;
            }
        }
        state.injected.corrupted.push((key, layer));
    }

    /// Completions on their way through.
    fn hear(&self, state: &mut State, end: Completion) {
        let key = end.key();
        state.held.retain(|held| held.key != key || held.again);
        let end = match (end, state.refused.remove(&name(key))) {
            (Completion::Fenced(key), Some(error)) => Completion::Failed(key, error),
            (end, _) => end,
        };
        let fate = state.fate(self.faults.ends, self.faults.held_max, |injected| &mut injected.ends);
        if fate.drop {
            return;
        }
        let end = if fate.corrupt { state.corrupt_end(end) } else { end };
        if fate.twice {
            let calls = state.below(self.faults.held_max);
            state.ends.push((end.clone(), calls));
        }
        state.ends.push((end, fate.held.map_or(0, |calls| calls + 1)));
    }
}

impl Link for Faulty {
    fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        self.step(&mut self.state());
        self.inner.begin(grant)
    }

    fn after(&self, stream: u64) -> Result<(), TransferError> {
        self.inner.after(stream)
    }

    fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError> {
        self.call(key, layer, What::Put(ranges.to_vec()))
    }

    fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError> {
        self.call(key, layer, What::Publish(tokens))
    }

    fn stop(&self, key: TransferKey) {
        self.state().held.retain(|held| held.key != key || held.again);
        self.inner.stop(key);
    }

    fn poll(&self, ended: &mut Vec<Completion>) {
        let mut state = self.state();
        self.step(&mut state);
        let mut inner = Vec::new();
        self.inner.poll(&mut inner);
        for end in inner {
            self.hear(&mut state, end);
        }
        let mut later = Vec::new();
        for (end, calls) in std::mem::take(&mut state.ends) {
            match calls.checked_sub(1) {
                Some(calls) => later.push((end, calls)),
                None => ended.push(end),
            }
        }
        state.ends = later;
    }

    /// While anything is held back this returns at once, since only calls move it on.
    fn wait(&self, within: Duration) -> bool {
        let state = self.state();
        let holds = !state.held.is_empty() || !state.ends.is_empty();
        drop(state);
        holds || self.inner.wait(within)
    }

    /// What is held back wakes nobody: only calls move it on.
    fn on_end(&self, wake: Wake) {
        self.inner.on_end(wake);
    }

    fn peer(&self) -> PeerState {
        self.inner.peer()
    }

    fn remote(&self) -> &PoolShape {
        self.inner.remote()
    }
}
