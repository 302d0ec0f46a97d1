//! Requests that come, are prefilled and end, at a steady number of live ones, half prompt and half token machines.
//!
//! Bounds are out of reach, so every choice is the least loaded machine of either pool, and the cluster answers
//! exactly as [`crate::linear::Linear`].

use std::collections::VecDeque;

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, Level};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Role};
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::leg::Notice;
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;

use crate::draws::Draws;

/// Prompts have 1 to this many tokens.
const PROMPT_TOKENS_MAX: u32 = 2048;
const OUTPUT_TOKENS_MAX: u32 = 512;
/// Of the live requests, one in this many is still being prefilled.
const PREFILLING_SHARE: usize = 4;
const STEP_NS: u64 = 1_000;

/// A live request and its machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its id.
    pub request: u64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Index of the machine that prefills.
    pub prompt: u32,
    /// Index of the machine that decodes.
    pub token: u32,
}

impl Placed {
    /// The key of its only attempt.
    pub fn key(&self) -> LegKey {
        LegKey { request: RequestId(self.request), attempt: Attempt(1) }
    }
}

/// Whoever chooses machines and keeps books of them.
pub trait Books {
    /// Chooses and books.
    fn place(&mut self, request: u64, prompt_tokens: u32) -> Placed;
    /// The prompt is computed, and its KV has moved.
    fn prefill_done(&mut self, placed: &Placed);
    /// The request has ended.
    fn finish(&mut self, placed: &Placed);
}

/// A steady flow of requests through some books.
#[derive(Debug)]
pub struct Placing<B> {
    /// The books.
    pub books: B,
    draws: Draws,
    requests: u64,
    prefilling: VecDeque<Placed>,
    decoding: Vec<Placed>,
}

impl<B: Books> Placing<B> {
    /// Brings `live` requests in.
    pub fn new(books: B, live: usize, seed: u64) -> Self {
        let draws = Draws::new(seed);
        let mut placing =
            Self { books, draws, requests: 0, prefilling: VecDeque::new(), decoding: Vec::new() };
        for at in 0..live {
            placing.place();
            if at >= live / PREFILLING_SHARE {
                placing.prefill_done();
            }
        }
        placing
    }

    /// One request comes, another one is prefilled, a third one ends. Returns the one that came.
    pub fn step(&mut self) -> Placed {
        let placed = self.place();
        self.prefill_done();
        let at = self.draws.below(self.decoding.len() as u64) as usize;
        let ended = self.decoding.swap_remove(at);
        self.books.finish(&ended);
        placed
    }

    fn place(&mut self) -> Placed {
        let prompt_tokens = self.draws.between(1, PROMPT_TOKENS_MAX);
        let placed = self.books.place(self.requests, prompt_tokens);
        self.requests += 1;
        self.prefilling.push_back(placed);
        placed
    }

    fn prefill_done(&mut self) {
        if let Some(placed) = self.prefilling.pop_front() {
            self.books.prefill_done(&placed);
            self.decoding.push(placed);
        }
    }
}

/// A Cluster with `machines` machines, every second one a token machine, and bounds out of reach.
pub(crate) fn cluster(machines: u32, level: Level) -> Cluster {
    let config = ClusterConfig {
        level,
        prompt_pending_tokens_max: 1 << 40,
        lease_ns: None,
        ..ClusterConfig::default()
    };
    let mut cluster = Cluster::new(config).expect("the options are in range");
    for index in 0..machines {
        let join = Join {
            machine: MachineId { index, incarnation: 1 },
            role: if index % 2 == 0 { Role::Prompt } else { Role::Token },
            kv_capacity_tokens: 1 << 40,
            speed_weight: 1,
            link: None,
            costs: None,
        };
        let joined = cluster.handle(Time::ZERO, &ClusterEvent::Join(join), &mut Vec::new());
        let _ = joined.expect("indices are without gaps");
    }
    cluster
}

/// The arrival of a request.
pub(crate) fn arrival(request: u64, prompt_tokens: u32) -> ClusterEvent {
    ClusterEvent::Arrive(Arrival::new(request, prompt_tokens, OUTPUT_TOKENS_MAX))
}

/// What a placement says.
pub(crate) fn placed(placement: &Placement, prompt_tokens: u32) -> Placed {
    let index = |machine: Option<MachineId>| machine.expect("both machines are chosen at arrival").index;
    Placed {
        request: placement.request.0,
        prompt_tokens,
        prompt: index(placement.prompt()),
        token: index(placement.token()),
    }
}

/// A Cluster at the external level: it chooses, and is told what happens.
#[derive(Debug)]
pub struct External {
    /// The Cluster.
    pub cluster: Cluster,
    actions: Vec<ClusterAction>,
    now_ns: u64,
}

impl External {
    /// A Cluster of so many machines.
    pub fn new(machines: u32) -> Self {
        Self { cluster: cluster(machines, Level::External), actions: Vec::new(), now_ns: 0 }
    }

    fn tell(&mut self, event: &ClusterEvent) {
        self.now_ns += STEP_NS;
        self.actions.clear();
        let told = self.cluster.handle(Time::from_ns(self.now_ns), event, &mut self.actions);
        let _ = told.expect("the events agree with the books");
    }
}

impl Books for External {
    fn place(&mut self, request: u64, prompt_tokens: u32) -> Placed {
        self.tell(&arrival(request, prompt_tokens));
        match &self.actions[..] {
            [ClusterAction::Placed(placement)] => placed(placement, prompt_tokens),
            other => panic!("an arrival answered {other:?}"),
        }
    }

    fn prefill_done(&mut self, placed: &Placed) {
        self.tell(&ClusterEvent::Fact(Notice::PrefillDone { key: placed.key(), sampled: true }));
    }

    fn finish(&mut self, placed: &Placed) {
        self.tell(&ClusterEvent::Fact(Notice::Finished { key: placed.key(), tokens: OUTPUT_TOKENS_MAX }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Linear;
    use crate::managed::Managed;

    #[test]
    fn chooses_as_the_linear_scan() {
        let mut linear = Placing::new(Linear::new(40), 300, 7);
        let mut external = Placing::new(External::new(40), 300, 7);
        for _ in 0..5_000 {
            assert_eq!(external.step(), linear.step());
        }
    }

    #[test]
    fn stays_steady_at_both_levels() {
        let mut external = Placing::new(External::new(40), 300, 7);
        let mut managed = Placing::new(Managed::new(40), 300, 7);
        for _ in 0..5_000 {
            external.step();
            managed.step();
        }
        for cluster in [&external.books.cluster, &managed.books.cluster] {
            assert_eq!(cluster.check(), Ok(()));
            assert_eq!(cluster.live_requests(), 300);
            assert_eq!(cluster.counters().to_mixed, 0);
            assert_eq!(cluster.counters().late, 0);
        }
    }
}
