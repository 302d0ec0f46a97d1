//! Each failure, done to a scene; and all pairs of failures, one after the other, wherever they can meet.

use splitcore_core::config::SECOND_NS;
use splitcore_core::error::EventError;
use splitcore_core::event::ClusterEvent;
use splitcore_core::leg::LegState;

use crate::failures::{Cell, Failure, cell, legal, name};
use crate::rig::{Rig, TRANSFER_LIMIT_NS};
use crate::scenes::{Scene, leg_in};

pub(crate) const GRACE_NS: u64 = 2 * SECOND_NS;

impl Scene {
    /// Where a failure of the other machine strikes.
    fn peer(&self) -> u32 {
        self.peer.unwrap()
    }

    /// Does a failure to the leg. What was on its way before is lost where the failure loses it, and nothing that it
    /// causes is delivered yet.
    pub(crate) fn strike(&mut self, failure: Failure) {
        let (at, request) = (self.at, self.request());
        match failure {
            Failure::MachineLost => self.rig.lose_if_up(at, true),
            Failure::PeerLost => self.rig.lose_if_up(self.peer(), false),
            Failure::TransferFailed => {
                if self.rig.transfers.iter().any(|transfer| transfer.put.key == self.key) {
                    self.rig.fail(self.key);
                }
            }
            Failure::TransferStalled => {
                self.rig.transfers.iter_mut().for_each(|transfer| transfer.stalled = true);
                self.rig.wait_ns(TRANSFER_LIMIT_NS);
            }
            Failure::Cancel => self.rig.cancel(request),
            Failure::SessionLost => {
                self.rig.break_session(at);
                self.rig.register_if_up(at);
            }
            Failure::Expired => self.rig.expire(at),
            Failure::PeerReset => self.rig.reset_peers(at, self.peer()),
            Failure::Paused => {
                self.rig.paused.insert(at);
                self.rig.wait_ns(SECOND_NS);
            }
            Failure::ClusterRestart => {
                self.rig.restart(GRACE_NS);
                (0..4).for_each(|at| self.rig.register_if_up(at));
            }
            Failure::Drain => {
                let machine = self.rig.id(at);
                self.rig.tell_cluster(&ClusterEvent::Drain { machine }).unwrap();
            }
        }
    }

    /// The world heals, and everything comes to its end.
    pub(crate) fn heal(&mut self) {
        self.rig.free_transfers();
        for at in 0..4 {
            if !self.rig.is_up(at) {
                self.rig.boot(at);
            }
        }
        self.rig.finish();
    }
}

impl Rig {
    fn lose_if_up(&mut self, at: u32, cluster_first: bool) {
        if self.is_up(at) {
            self.lose(at, cluster_first);
        }
    }

    pub(crate) fn register_if_up(&mut self, at: u32) {
        if self.is_up(at) {
            self.register(at).unwrap();
        }
    }

    /// A session breaks, and the machine is back too late.
    pub(crate) fn expire(&mut self, at: u32) {
        if !self.is_up(at) {
            return;
        }
        let machine = self.id(at);
        self.break_session(at);
        self.wait_ns(self.cluster.config().rejoin_limit_ns);
        assert_eq!(self.register(at), Err(EventError::MachineTaken(machine)));
        self.kill(at);
        self.tell_peers_lost(machine);
    }
}

fn can_be(state: LegState, failure: Failure) -> bool {
    matches!(cell(state, failure), Cell::Handled(_))
}

#[test]
fn after_any_failure_every_request_ends_and_every_book_is_empty() {
    for state in legal() {
        for failure in Failure::ALL.into_iter().filter(|&failure| can_be(state, failure)) {
            eprintln!("{} / {}", name(state), failure.name());
            let mut scene = leg_in(state);
            scene.strike(failure);
            scene.heal();
            assert_eq!(scene.rig.given_again, 0);
        }
    }
}

/// Neither hears of the other's death: what each knew is gone.
#[test]
fn any_machine_may_be_lost_together_with_the_cluster() {
    for state in legal() {
        for at in 0..4 {
            eprintln!("{} / {at}", name(state));
            let mut scene = leg_in(state);
            scene.rig.settle();
            if !scene.rig.is_up(at) {
                continue;
            }
            let machine = scene.rig.id(at);
            scene.rig.kill(at);
            scene.rig.restart(GRACE_NS);
            scene.rig.tell_peers_lost(machine);
            (0..4).for_each(|at| scene.rig.register_if_up(at));
            scene.heal();
            assert_eq!(scene.rig.given_again, 0, "a request is lost");
        }
    }
}

fn possible(state: LegState) -> Vec<Failure> {
    Failure::ALL.into_iter().filter(|&failure| can_be(state, failure)).collect()
}

/// Between two failures: nothing is delivered, or all of it in one order or the other and then some steps.
const BETWEEN: [Option<(bool, u32)>; 5] =
    [None, Some((false, 0)), Some((true, 0)), Some((false, 3)), Some((true, 8))];

fn go_on(scene: &mut Scene, between: Option<(bool, u32)>) {
    let Some((backwards, steps)) = between else { return };
    scene.rig.backwards = backwards;
    scene.rig.settle();
    scene.rig.steps(steps);
}

#[test]
fn after_any_two_failures_every_request_ends_and_every_book_is_empty() {
    for state in legal() {
        for (first, second) in pairs(&possible(state)) {
            for between in BETWEEN {
                eprintln!("{} / {} / {} / {between:?}", name(state), first.name(), second.name());
                let mut scene = leg_in(state);
                scene.strike(first);
                go_on(&mut scene, between);
                scene.strike(second);
                scene.heal();
            }
        }
    }
}

#[test]
fn after_any_three_failures_every_request_ends_and_every_book_is_empty() {
    for state in legal() {
        for (first, second) in pairs(&possible(state)) {
            let mut two = leg_in(state);
            two.strike(first);
            go_on(&mut two, BETWEEN[(first as usize + second as usize) % BETWEEN.len()]);
            two.strike(second);
            for third in possible(state) {
                let between = BETWEEN[(first as usize + third as usize * 2) % BETWEEN.len()];
                eprintln!("{} / {:?} / {between:?}", name(state), [first, second, third].map(Failure::name));
                let mut scene = two.clone();
                go_on(&mut scene, between);
                scene.strike(third);
                scene.heal();
            }
        }
    }
}

fn pairs(of: &[Failure]) -> impl Iterator<Item = (Failure, Failure)> {
    of.iter().flat_map(move |&first| of.iter().map(move |&second| (first, second)))
}
