//! A leg in each of the legal states, brought there by real events.

use splitcore_core::config::{ClusterConfig, Cut, PolicyKind, SECOND_NS, TransferRule};
use splitcore_core::id::{Attempt, LegKey, RequestId};
use splitcore_core::leg::{Command, Compute as C, Inbound as I, LegState, Outbound as O};

use crate::failures::{Cell, Failure, cell, legal};
use crate::rig::{Link, Rig, TRANSFER_LIMIT_NS};

/// What a failure may change of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) attempt: u32,
    pub(crate) faults: u64,
    pub(crate) resent: u64,
    pub(crate) relieved: u64,
}

/// A leg, its machine, and the machine at the other end of its handoff.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) rig: Rig,
    pub(crate) at: u32,
    pub(crate) key: LegKey,
    pub(crate) peer: Option<u32>,
}

impl Scene {
    pub(crate) fn request(&self) -> u64 {
        self.key.request.0
    }

    /// The attempt that is live now, if any.
    pub(crate) fn attempt(&self) -> Option<u32> {
        self.rig.cluster.attempt(self.key.request).map(|attempt| attempt.0)
    }

    /// Blocks of the leg.
    pub(crate) fn blocks(&self) -> Option<u32> {
        Some(self.rig.leg(self.at, self.key)?.1)
    }

    pub(crate) fn state(&self) -> Option<LegState> {
        Some(self.rig.leg(self.at, self.key)?.0)
    }

    pub(crate) fn is_here(&self) -> bool {
        self.state().is_some()
    }

    /// Lets the transport let go, and the pass end.
    pub(crate) fn let_go(&mut self) {
        self.rig.free_transfers();
        if self.rig.transfers.iter().any(|transfer| transfer.put.key == self.key) {
            self.rig.fence(self.key);
        }
        self.let_fenced_pass();
    }

    pub(crate) fn let_fenced_pass(&mut self) {
        self.rig.settle();
        if self.state().is_some_and(|state| state.compute == C::Prefilling) {
            self.rig.pass(self.at);
        }
        self.rig.settle();
    }

    /// The live attempt, and what the Cluster has counted: faults, other destinations, requests taken back.
    pub(crate) fn books(&self) -> Books {
        let counters = self.rig.cluster.counters();
        let attempt = self.attempt().unwrap_or(0);
        Books { attempt, faults: counters.faults, resent: counters.resent, relieved: counters.relieved }
    }

    /// Whom the Cluster has sent a command like this about the request.
    pub(crate) fn told(&self, wanted: impl Fn(&Command) -> bool) -> Vec<u32> {
        self.rig.told.iter().filter(|(_, command)| wanted(command)).map(|(to, _)| *to).collect()
    }

    /// Output tokens at the end of the prompt of the live attempt, if it has been placed again.
    pub(crate) fn resumed(&self) -> Option<u32> {
        self.rig.told.iter().rev().find_map(|(_, command)| match *command {
            Command::Compute { key, work, .. } if key.request == self.key.request => {
                Some(work.terms.resumed_tokens)
            }
            _ => None,
        })
    }

    /// Whether the Cluster has given the leg up: it only waits for the engine or the transport to let go.
    pub(crate) fn is_given_up(&self) -> bool {
        let on = format!("({:?}, {})", self.key, self.at);
        format!("{:?}", self.rig.cluster).contains(&format!("{on}: Closing"))
    }
}

const PROMPT_TOKENS: u32 = 6;

fn config() -> ClusterConfig {
    ClusterConfig { transfer: TransferRule::Serialized, ..ClusterConfig::default() }
}

pub(crate) fn key(request: u64) -> LegKey {
    LegKey { request: RequestId(request), attempt: Attempt(1) }
}

/// One request, placed on 0 and 2, everything said.
fn handoff(config: ClusterConfig) -> Rig {
    let mut rig = Rig::new(config);
    rig.arrive(1, PROMPT_TOKENS, 4);
    rig.settle();
    rig
}

/// Layer by layer, in its pass.
pub(crate) fn layer_wise() -> Rig {
    let mut rig = handoff(ClusterConfig { transfer: TransferRule::LayerWise, ..config() });
    rig.tick(0);
    rig
}

/// Prefilled, and its transfer under way.
fn sending() -> Rig {
    let mut rig = handoff(config());
    rig.tick(0);
    rig.pass(0);
    rig.settle();
    rig
}

/// The transfer stood still for too long and is being stopped.
fn stopping() -> Rig {
    let mut rig = sending();
    rig.transfers[0].stalled = true;
    rig.wait_ns(TRANSFER_LIMIT_NS);
    rig
}

/// The leg before has everything but the last prompt token.
fn landed_before_last() -> Rig {
    let mut rig = handoff(ClusterConfig { cut: Cut::BeforeLast, ..config() });
    rig.tick(0);
    rig.pass(0);
    rig.settle();
    land(&mut rig);
    rig.settle();
    rig
}

pub(crate) fn land(rig: &mut Rig) {
    rig.layer(key(1));
    rig.layer(key(1));
}

/// A machine runs out of blocks under two requests, and the younger gives way.
fn evicted(policy: PolicyKind, requests: u64, at: u32) -> Rig {
    let mut rig = Rig::new(ClusterConfig { policy, ..config() });
    for request in 1..=requests {
        rig.arrive(request, 10, 29);
    }
    rig.run_until(|rig| rig.leg(at, key(requests)).is_some_and(|(state, _)| state.compute == C::Evicted));
    rig
}

/// The legs of a first machine, or of the only one.
fn first(state: LegState) -> (Rig, u64) {
    let rig = match (state.compute, state.outbound) {
        (C::Queued, O::None) => handoff(config()),
        (C::Prefilling, O::None) => {
            let mut rig = handoff(config());
            rig.tick(0);
            rig
        }
        (C::Held, O::None) => {
            let mut rig = Rig::new(config());
            rig.held.insert(Link::Peer(2, 0));
            rig.arrive(1, PROMPT_TOKENS, 4);
            rig.settle();
            rig.tick(0);
            rig.pass(0);
            rig.settle();
            rig
        }
        (C::Decoding, O::None) => {
            let mut rig = handoff(ClusterConfig { policy: PolicyKind::Jsq, ..config() });
            rig.tick(0);
            rig.pass(0);
            rig.settle();
            rig
        }
        (C::Evicted, O::None) => return (evicted(PolicyKind::Jsq, 5, 0), 5),
        (C::Prefilling, O::Sending) => layer_wise(),
        (C::Prefilling, O::Draining) => {
            // The machine cannot be heard for so long in this pass that the request is taken back.
            let mut rig = layer_wise();
            rig.held.insert(Link::Up(0));
            rig.wait_ns(61 * SECOND_NS);
            rig
        }
        (C::Prefilling, O::Released) => {
            let mut rig = layer_wise();
            land(&mut rig);
            rig.settle();
            rig
        }
        (C::Held, O::Sending) => sending(),
        (C::Held, O::Draining) => stopping(),
        (C::Done, O::Draining) => {
            let mut rig = stopping();
            rig.wait_ns(TRANSFER_LIMIT_NS);
            rig
        }
        _ => panic!("{state:?} is not that of a first leg"),
    };
    (rig, 1)
}

/// The legs of a second machine.
fn second(state: LegState) -> (Rig, u64) {
    let rig = match (state.compute, state.inbound) {
        (C::Waiting, I::Reserved) => handoff(config()),
        (C::Waiting, I::Receiving) => {
            let mut rig = sending();
            rig.layer(key(1));
            rig
        }
        (C::Waiting, I::Ready) => {
            // Its `Start` is a command of its own, and still on its way.
            let mut rig = Rig::new(ClusterConfig { cut: Cut::BeforeLast, ..config() });
            rig.arrive(1, PROMPT_TOKENS, 4);
            let reserved = rig.deliver(Link::Down(2));
            assert!(reserved);
            rig.held.insert(Link::Down(2));
            rig.settle();
            rig.tick(0);
            rig.pass(0);
            rig.settle();
            land(&mut rig);
            rig.settle();
            rig
        }
        (C::Waiting, I::Draining) => stopping(),
        (C::Queued, I::Ready) => landed_before_last(),
        (C::Prefilling, I::Ready) => {
            let mut rig = landed_before_last();
            rig.tick(2);
            rig
        }
        (C::Decoding, I::Ready) => {
            let mut rig = sending();
            rig.held.insert(Link::Peer(2, 0));
            land(&mut rig);
            rig.settle();
            rig.tick(2);
            rig
        }
        (C::Evicted, I::Ready) => return (evicted(PolicyKind::Splitwise, 3, 2), 3),
        _ => panic!("{state:?} is not that of a second leg"),
    };
    (rig, 1)
}

/// A leg in this state.
pub(crate) fn leg_in(state: LegState) -> Scene {
    let is_first = state.inbound == I::None;
    let (mut rig, request) = if is_first { first(state) } else { second(state) };
    rig.held.clear();
    rig.said.clear();
    rig.told.clear();
    let whole = is_first && matches!(state.compute, C::Decoding | C::Evicted);
    let (at, peer) = if is_first { (0, 2) } else { (2, 0) };
    let scene = Scene { rig, at, key: key(request), peer: (!whole).then_some(peer) };
    let reached = scene.rig.leg(at, scene.key).map(|(state, _)| state);
    assert_eq!(reached, Some(state));
    scene
}

/// The scenes of the cells that name a test: what it is to show, it shows of each of them.
pub(crate) fn scenes(failure: Failure, test: &str) -> Vec<Scene> {
    let of = |state: &LegState| matches!(cell(*state, failure), Cell::Handled(row) if row.test == test);
    let scenes: Vec<Scene> = legal().filter(of).map(leg_in).collect();
    assert!(!scenes.is_empty(), "no cell names {test}");
    scenes
}

#[test]
fn every_legal_state_is_reached_and_every_request_ends_from_there() {
    assert_eq!(legal().count(), 19);
    for state in legal() {
        let mut scene = leg_in(state);
        scene.rig.free_transfers();
        scene.rig.finish();
    }
}
