//! Events that nobody honest would send, out of a stream of draws: small numbers, so that they are about the same few
//! requests and machines, with an extreme one now and then. Random tests and the fuzz target draw from here.

#![allow(dead_code, reason = "each of its users needs a part of it")]
#![allow(clippy::unwrap_used, reason = "points that are right by construction")]

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{Admission, ClusterConfig, Cut, Level, PolicyKind};
use splitcore_core::cost::{CostKnot, CostPoints, CostTable};
use splitcore_core::error::Applied;
use splitcore_core::event::{Arrival, Claim, ClusterEvent, Held, Join, Link, Registration, Role, Slo};
use splitcore_core::id::{AssignmentSeq, Attempt, Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::leg::{Compute, Inbound, LegState, Notice, Outbound, Report, Terms, Work};
use splitcore_core::placement::{Mode, Reserve, Upto};
use splitcore_core::time::Time;

/// What is drawn from: bytes while there are any, then a generator.
#[derive(Debug, Clone)]
pub(crate) struct Draws<'a> {
    bytes: &'a [u8],
    state: u64,
}

impl<'a> Draws<'a> {
    pub(crate) fn new(bytes: &'a [u8], seed: u64) -> Self {
        Self { bytes, state: seed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if let Some((&byte, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            return u64::from(byte) % bound;
        }
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % bound
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == of - 1
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A small number, or an extreme one.
    fn number(&mut self, small: u64) -> u32 {
        if self.one_in(60) {
            self.pick(&[0, u32::MAX, u32::MAX - 1, 1 << 31, u32::MAX / 2, u32::MAX / 2 + 1])
        } else {
            self.below(small) as u32
        }
    }

    fn long_number(&mut self, small: u64) -> u64 {
        if self.one_in(60) {
            self.pick(&[0, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 62, u64::MAX / 2, u64::MAX / 2 + 1])
        } else {
            self.below(small)
        }
    }
}

const REQUESTS: u64 = 4;
const MACHINES: u64 = 4;

/// Options at which much happens in a short time.
pub(crate) fn config(draws: &mut Draws<'_>) -> ClusterConfig {
    let policies = PolicyKind::ALL.map(|(policy, _)| policy);
    let external = draws.one_in(8);
    ClusterConfig {
        level: if external { Level::External } else { Level::Managed },
        policy: draws.pick(&policies),
        epoch: Epoch(2),
        grace_ns: draws.pick(&[0, 60, 200]),
        requests_max: draws.pick(&[2, 1000]),
        attempts_max: 1 + draws.below(4) as u32,
        admission: draws.pick(&[Admission::Bounds, Admission::Early, Admission::Predicted]),
        recovery_headroom_permille: draws.pick(&[0, 100]),
        reserve: draws.pick(&[Reserve::AtArrival, Reserve::AtSourceDone]),
        cut: draws.pick(&[Cut::AtPrompt, Cut::BeforeLast]),
        mixed_hold_ns: draws.pick(&[0, 30]),
        retry_interval_ns: 20,
        park_limit_ns: 80,
        rejoin_limit_ns: 50,
        hedge_after_ns: draws.pick(&[None, Some(10)]),
        lease_ns: external.then_some(100),
        ..ClusterConfig::default()
    }
}

fn key(draws: &mut Draws<'_>) -> LegKey {
    LegKey { request: RequestId(draws.long_number(REQUESTS)), attempt: Attempt(draws.number(4)) }
}

/// The key of a live request, mostly.
fn likely_key(cluster: &Cluster, draws: &mut Draws<'_>) -> LegKey {
    let key = key(draws);
    match cluster.attempt(key.request) {
        Some(attempt) if !draws.one_in(6) => LegKey { attempt, ..key },
        _ => key,
    }
}

fn machine(cluster: &Cluster, draws: &mut Draws<'_>) -> MachineId {
    let index =
        if draws.one_in(100) { draws.pick(&[u32::MAX, 1 << 20]) } else { draws.below(MACHINES) as u32 };
    match cluster.load(index) {
        Some(load) if !draws.one_in(6) => load.machine,
        _ => MachineId { index, incarnation: draws.number(4) },
    }
}

fn report(draws: &mut Draws<'_>) -> Report {
    Report {
        seq: AssignmentSeq(draws.long_number(12)),
        kv_tokens: draws.long_number(60),
        free_blocks: draws.number(5),
        legs: draws.number(3),
        running: draws.one_in(2),
        quarantined_blocks: draws.number(3),
        over_quarantine: draws.one_in(6),
    }
}

fn costs(draws: &mut Draws<'_>) -> CostTable {
    let steep = draws.long_number(5);
    let knots = |ns| vec![CostKnot { at: 0, ns: 0 }, CostKnot { at: 100, ns }];
    let (prefill, decode) = (knots(steep), knots(100));
    let (context_ns_per_1024_tokens, pass_tokens_max) = (draws.long_number(50), 50);
    CostTable::new(CostPoints { prefill, decode, context_ns_per_1024_tokens, pass_tokens_max }).unwrap()
}

fn join(cluster: &Cluster, draws: &mut Draws<'_>) -> Join {
    Join {
        machine: machine(cluster, draws),
        role: draws.pick(&[Role::Prompt, Role::Token, Role::Mixed]),
        kv_capacity_tokens: if draws.one_in(3) { draws.long_number(90) } else { 500 },
        speed_weight: 1 + draws.number(2).min(u32::MAX - 1),
        link: draws
            .one_in(4)
            .then(|| Link { bytes_per_s: draws.long_number(9), fixed_cost_ns: draws.long_number(9) }),
        costs: draws.one_in(2).then(|| costs(draws)),
    }
}

/// The numbers of a request are those of its name, unless they are hostile.
fn work(request: RequestId, draws: &mut Draws<'_>) -> Work {
    let lies = draws.one_in(12);
    let resumed_tokens = if lies { draws.number(20) } else { draws.below(4) as u32 };
    let prompt_tokens = 6 + request.0.min(9) as u32;
    let own = if lies { draws.number(20) } else { prompt_tokens };
    let prompt = own.wrapping_add(resumed_tokens);
    let cut = prompt.wrapping_sub(u32::from(draws.one_in(3)));
    let (start, upto) = match draws.below(4) {
        0 => (0, Upto::Position(cut)),
        1 => (cut, Upto::End),
        2 if lies => (draws.number(20), Upto::Position(draws.number(20))),
        _ => (0, Upto::End),
    };
    Work {
        prompt_tokens: prompt,
        start,
        upto,
        max_new_tokens: if lies { draws.number(9) } else { 8 - resumed_tokens },
        terms: Terms {
            resumed_tokens,
            class: u32::from(lies && draws.one_in(2)),
            priority: 0,
            line: if lies { draws.number(9).into() } else { 0 },
            resumable: !(lies && draws.one_in(2)),
            pin_token: (lies && draws.one_in(2)).then(|| draws.number(5)),
        },
    }
}

fn state(work: &Work, draws: &mut Draws<'_>) -> LegState {
    use {Compute as C, Inbound as I, Outbound as O};
    let of = |compute, inbound, outbound| LegState { compute, inbound, outbound };
    let (none, quiet) = (I::None, O::None);
    if draws.one_in(20) {
        return of(
            draws.pick(&[C::Waiting, C::Queued, C::Prefilling, C::Held, C::Decoding, C::Evicted, C::Done]),
            draws.pick(&[I::None, I::Reserving, I::Reserved, I::Receiving, I::Ready, I::Draining]),
            draws.pick(&[O::None, O::Sending, O::Draining, O::Released]),
        );
    }
    match (work.start > 0, work.hands_over()) {
        (true, _) => draws.pick(&[
            of(C::Waiting, I::Reserved, quiet),
            of(C::Waiting, I::Receiving, quiet),
            of(C::Queued, I::Ready, quiet),
            of(C::Decoding, I::Ready, quiet),
        ]),
        (false, true) => {
            draws.pick(&[of(C::Queued, none, quiet), of(C::Held, none, quiet), of(C::Held, none, O::Sending)])
        }
        (false, false) => draws.pick(&[of(C::Queued, none, quiet), of(C::Decoding, none, quiet)]),
    }
}

fn claim(cluster: &Cluster, draws: &mut Draws<'_>) -> Claim {
    let key = likely_key(cluster, draws);
    let mut work = work(key.request, draws);
    let held = match draws.below(8) {
        0 => Held::Closing,
        1 => Held::Finished,
        2 | 3 => Held::Kept,
        _ => Held::Leg { state: state(&work, draws), mode: draws.one_in(2).then_some(Mode::LayerWise) },
    };
    if held == Held::Kept && work.start > 0 && !draws.one_in(9) {
        work.start = 0;
    }
    // The place in line goes with the name, unless it has come again.
    let order = if draws.one_in(10) { draws.long_number(9) } else { key.request.0 };
    Claim { key, order: Order(order), work, held }
}

pub(crate) fn registration(cluster: &Cluster, draws: &mut Draws<'_>) -> ClusterEvent {
    let join = join(cluster, draws);
    let claims = (0..draws.below(5)).map(|_| claim(cluster, draws)).collect();
    let epoch = Epoch(draws.pick(&[1, 2, 2, 2, 3]));
    ClusterEvent::Register(Registration { join, epoch, report: report(draws), claims })
}

pub(crate) fn notice(cluster: &Cluster, draws: &mut Draws<'_>) -> Notice {
    let key = likely_key(cluster, draws);
    match draws.below(15) {
        0 => Notice::Reserved { key },
        1 => Notice::Refused { key, report: report(draws) },
        2 | 3 => Notice::PrefillDone { key, sampled: draws.one_in(2) },
        4 => Notice::Sent { key },
        5 => Notice::Landed { key },
        6 | 7 => Notice::Progress { key, tokens: draws.number(4) },
        8 => Notice::Evicted { key, tokens: draws.number(30) },
        9 => Notice::Finished { key, tokens: draws.number(9) },
        10 | 11 => {
            let to = draws.one_in(2).then(|| machine(cluster, draws));
            Notice::Released { key, to, report: report(draws) }
        }
        12 => Notice::TransferFailed { key },
        13 => draws.pick(&[Notice::Relief { key }, Notice::Gone { key }]),
        _ => Notice::Report(report(draws)),
    }
}

/// Any event at all.
pub(crate) fn event(cluster: &Cluster, draws: &mut Draws<'_>) -> ClusterEvent {
    match draws.below(24) {
        0..=3 => ClusterEvent::Arrive(Arrival {
            class: draws.number(2),
            priority: draws.number(3).cast_signed(),
            resumable: !draws.one_in(6),
            pin_token: draws.one_in(8).then(|| draws.number(5)),
            ..Arrival::new(draws.long_number(REQUESTS), draws.number(30), draws.number(9))
        }),
        4 => ClusterEvent::Cancel { request: RequestId(draws.long_number(REQUESTS)) },
        5 => ClusterEvent::Join(join(cluster, draws)),
        6..=9 => registration(cluster, draws),
        10 => ClusterEvent::Disconnect { machine: machine(cluster, draws) },
        11 if draws.one_in(2) => ClusterEvent::Drain { machine: machine(cluster, draws) },
        11 if draws.one_in(3) => ClusterEvent::Undrain { machine: machine(cluster, draws) },
        11 if draws.one_in(3) => ClusterEvent::Leave { machine: machine(cluster, draws) },
        11 if draws.one_in(2) => ClusterEvent::Lose { machine: machine(cluster, draws) },
        12 if draws.one_in(2) => ClusterEvent::Renew { request: RequestId(draws.long_number(REQUESTS)) },
        12 => {
            let slo = Slo { ttft_ns: draws.long_number(90), tbt_ns: draws.long_number(90) };
            ClusterEvent::SetSlo { class: draws.number(2), slo: draws.one_in(2).then_some(slo) }
        }
        13 | 14 => ClusterEvent::Fact(notice(cluster, draws)),
        15 => ClusterEvent::Tick,
        _ => ClusterEvent::Notice { from: machine(cluster, draws), notice: notice(cluster, draws) },
    }
}

/// The leg that a notice is about.
fn about(notice: &Notice) -> Option<LegKey> {
    match *notice {
        Notice::Report(_) => None,
        Notice::Reserved { key }
        | Notice::Refused { key, .. }
        | Notice::PrefillDone { key, .. }
        | Notice::Sent { key }
        | Notice::Landed { key }
        | Notice::Progress { key, .. }
        | Notice::Evicted { key, .. }
        | Notice::Finished { key, .. }
        | Notice::Released { key, .. }
        | Notice::TransferFailed { key }
        | Notice::Relief { key }
        | Notice::Gone { key } => Some(key),
    }
}

/// Applies an event: the books are right after it, what is refused changes nothing, and no machine is heard about a leg
/// that it was not given.
pub(crate) fn apply(cluster: &mut Cluster, now: u64, event: &ClusterEvent) {
    let before = cluster.clone();
    let mut actions = Vec::new();
    let applied = cluster.handle(Time::from_ns(now), event, &mut actions);
    if let Err(fault) = cluster.check() {
        panic!("{fault} after {event:?}: {applied:?}");
    }
    if applied.is_err() {
        assert!(actions.is_empty(), "{event:?} is refused and wants {actions:?}");
        assert_eq!(
            format!("{cluster:?}"),
            format!("{before:?}"),
            "{event:?} is refused and changes something"
        );
    }
    let ClusterEvent::Notice { from, notice } = event else { return };
    let Some(key) = about(notice).filter(|&key| !before.runs(key, *from)) else { return };
    // That a leg which was given up has let go is heard, and concerns no request.
    let answers = matches!(notice, Notice::Released { .. });
    assert!(
        applied != Ok(Applied::Yes) || answers,
        "{from:?} was not given {key:?}, and is heard: {event:?}"
    );
    let known = |cluster: &Cluster| (cluster.delivered(key.request), cluster.attempt(key.request).is_some());
    assert_eq!(known(cluster), known(&before), "{event:?}");
}
