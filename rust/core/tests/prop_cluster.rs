//! The Cluster against a linear reading of its rules, at the edges of its bounds, and under events in any order.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use kit::*;
use proptest::prelude::*;
use splitcore_core::cluster::{Cluster, ClusterCounters, MachineLoad, MachineState};
use splitcore_core::config::{
    Admission, ClusterConfig, Cut, Level, MixedReturn, PolicyKind, Ties, TransferRule,
};
use splitcore_core::cost::{CostKnot, CostPoints, CostTable};
use splitcore_core::error::{Applied, EventError, Rejection};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Link, Outcome, Role, Slo};
use splitcore_core::id::{AssignmentSeq, MachineId, RequestId};
use splitcore_core::leg::{Command, Notice, Report};
use splitcore_core::placement::{Mode, Placement, Reserve, Seat, Step};
use splitcore_core::time::Time;

// --- The choice of machines, by linear scans over `load(i)`. ---

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Prompt,
    Token,
}

/// What the scans need beyond the loads: weights, and the order in which machines entered their pools.
#[derive(Debug, Clone, Default)]
struct Scan {
    weights: Vec<u64>,
    entered: Vec<u64>,
    entries: u64,
    placed: u64,
}

/// Whether a machine can hold a request.
fn fits(load: &MachineLoad, arrival: &Arrival) -> bool {
    load.kv_capacity_tokens >= u64::from(arrival.prompt_tokens) + u64::from(arrival.max_new_tokens)
}

/// Whether a pair can be made with it.
fn can_take(load: &MachineLoad, arrival: &Arrival) -> bool {
    fits(load, arrival) && load.aside_until.is_none()
}

impl Scan {
    fn enter(&mut self, machine: u32) {
        let at = machine as usize;
        self.entered.resize(self.entered.len().max(at + 1), 0);
        self.entries += 1;
        self.entered[at] = self.entries;
    }

    fn learn(&mut self, actions: &[ClusterAction]) {
        for action in actions {
            match action {
                ClusterAction::Moved { machine, .. } => self.enter(machine.index),
                ClusterAction::Placed(_) => self.placed += 1,
                _ => {}
            }
        }
    }

    fn up(cluster: &Cluster) -> Vec<MachineLoad> {
        let loads = (0..cluster.machines_len()).filter_map(|at| cluster.load(at));
        loads.filter(|load| load.state == MachineState::Up).collect()
    }

    /// Load over weight as a fraction, then the rank.
    fn first_of(
        &self,
        of: impl Iterator<Item = MachineLoad>,
        load: impl Fn(&MachineLoad) -> u64,
    ) -> Option<MachineLoad> {
        of.min_by(|a, b| {
            let at = |load: &MachineLoad| load.machine.index as usize;
            let (left, right) = (load(a) * self.weights[at(b)], load(b) * self.weights[at(a)]);
            left.cmp(&right).then(a.rank.cmp(&b.rank))
        })
    }

    fn splitwise(&self, cluster: &Cluster, arrival: &Arrival) -> Option<(u32, Step, u32, Step)> {
        let prompt = u64::from(arrival.prompt_tokens);
        let config = cluster.config();
        let up = Self::up(cluster);
        let load = |side: Side| {
            move |load: &MachineLoad| if side == Side::Prompt { load.booked } else { load.kv_tokens }
        };
        let is_over = |side: Side, load: &MachineLoad| match side {
            Side::Prompt => load.booked > 0 && load.booked + prompt > config.prompt_pending_tokens_max,
            Side::Token => {
                1000 * (load.kv_tokens + prompt + 1)
                    > u64::from(config.kv_fill_max_permille) * load.kv_capacity_tokens
            }
        };
        let search = |side: Side, own: Role, opposite: Role| {
            for (pool, step) in [(own, Step::Own), (Role::Mixed, Step::Mixed), (opposite, Step::Opposite)] {
                let able = |machine: &MachineLoad| {
                    let is_under = step == Step::Opposite || !is_over(side, machine);
                    machine.pool == pool && can_take(machine, arrival) && is_under
                };
                let members = up.iter().copied().filter(able);
                if let Some(least) = self.first_of(members, load(side)) {
                    return Some((least.machine.index, step));
                }
            }
            None
        };
        let pinned = arrival.pin_token.map(|pin| (pin, Step::Pinned));
        let found = search(Side::Prompt, Role::Prompt, Role::Token);
        let token = pinned.or_else(|| search(Side::Token, Role::Token, Role::Prompt));
        if let (Some(prompt), Some(token)) = (found, token) {
            return Some((prompt.0, prompt.1, token.0, token.1));
        }
        let least = self.least_of_all(cluster, arrival)?;
        let token = pinned.unwrap_or((least, Step::LeastOfAll));
        Some((least, Step::LeastOfAll, token.0, token.1))
    }

    /// The least loaded machine that can hold the whole request.
    fn least_of_all(&self, cluster: &Cluster, arrival: &Arrival) -> Option<u32> {
        let by_legs = cluster.config().policy == PolicyKind::LeastRequests;
        let all = Self::up(cluster).into_iter().filter(|load| fits(load, arrival));
        let load = |load: &MachineLoad| if by_legs { u64::from(load.legs) } else { load.booked };
        self.first_of(all, load).map(|least| least.machine.index)
    }

    fn least_booked(&self, cluster: &Cluster, arrival: &Arrival, pools: &[Role]) -> Option<u32> {
        let fitting = Self::up(cluster).into_iter().filter(|load| fits(load, arrival));
        let fitting = fitting.filter(|load| pools.contains(&load.pool));
        self.first_of(fitting, |load| load.booked).map(|load| load.machine.index)
    }

    /// Where a prompt too short to be split runs.
    fn short(&self, cluster: &Cluster, arrival: &Arrival) -> Option<u32> {
        let least = |pools: &[Role]| self.least_booked(cluster, arrival, pools);
        let found = || least(&[Role::Token, Role::Mixed]).or_else(|| least(&[Role::Prompt]));
        arrival.pin_token.or_else(found)
    }

    /// The pool a side chooses from, and its members that can take its part, from the one whose turn it is on.
    fn side(&self, cluster: &Cluster, side: Side, arrival: &Arrival) -> Option<(Role, Vec<MachineLoad>)> {
        let up = Self::up(cluster);
        let order = match side {
            Side::Prompt => [Role::Prompt, Role::Mixed, Role::Token],
            Side::Token => [Role::Token, Role::Mixed, Role::Prompt],
        };
        order.into_iter().find_map(|pool| {
            let able = |load: &&MachineLoad| load.pool == pool && can_take(load, arrival);
            let mut members: Vec<_> = up.iter().filter(able).copied().collect();
            members.sort_by_key(|load| self.entered[load.machine.index as usize]);
            let turn = self.placed.checked_rem(members.len() as u64)? as usize;
            members.rotate_left(turn);
            Some((pool, members))
        })
    }

    fn each_side(
        &self,
        cluster: &Cluster,
        arrival: &Arrival,
        choose: impl Fn(Side, Vec<MachineLoad>) -> Option<MachineLoad>,
    ) -> Option<(u32, u32)> {
        let side = |side| {
            let (pool, members) = self.side(cluster, side, arrival)?;
            Some((pool, choose(side, members)?.machine.index))
        };
        let whole = |machine| (machine, machine);
        let least = || self.least_of_all(cluster, arrival).map(whole);
        match (side(Side::Prompt), arrival.pin_token, side(Side::Token)) {
            (None, pin, _) => pin.map(whole).or_else(least),
            (Some((_, prompt)), Some(pin), _) => Some((prompt, pin)),
            (_, None, None) => least(),
            (Some((prompts, _)), None, Some((tokens, token))) if prompts == tokens => Some(whole(token)),
            (Some((_, prompt)), None, Some((_, token))) => Some((prompt, token)),
        }
    }

    /// The pair the rules give, where they leave nothing to chance.
    fn pair(&self, cluster: &Cluster, arrival: &Arrival) -> Option<(u32, u32)> {
        match cluster.config().policy {
            PolicyKind::Splitwise => {
                self.splitwise(cluster, arrival).map(|(prompt, _, token, _)| (prompt, token))
            }
            PolicyKind::Jsq => {
                let all = [Role::Prompt, Role::Token, Role::Mixed];
                let least = || self.least_booked(cluster, arrival, &all);
                arrival.pin_token.or_else(least).map(|machine| (machine, machine))
            }
            PolicyKind::LeastRequests => self.each_side(cluster, arrival, |_, members| {
                self.first_of(members.into_iter(), |load| u64::from(load.legs))
            }),
            PolicyKind::RoundRobin => self.each_side(cluster, arrival, |_, members| members.first().copied()),
            PolicyKind::PowerOfTwo => None,
        }
    }
}

// --- Events in any order. ---

fn config() -> impl Strategy<Value = ClusterConfig> {
    let policies: Vec<PolicyKind> = PolicyKind::ALL.into_iter().map(|(kind, _)| kind).collect();
    let bounds = (
        prop::sample::select(vec![20_u64, 60, 8192]),
        prop::sample::select(vec![300_u32, 950, 1000]),
        prop::sample::select(vec![3_u32, 1000]),
        1_u32..4,
        prop::sample::select(vec![Admission::Bounds, Admission::Early, Admission::Predicted]),
        prop::sample::select(vec![0_u32, 1, 400]),
        prop::sample::select(vec![None, Some(1_u64), Some(70)]),
        prop::sample::select(vec![0_u32, 20]),
    );
    let ways = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (prop::sample::select(policies), bounds, ways, any::<u64>()).prop_map(
        |(
            policy,
            (pending, fill, requests_max, attempts_max, admission, headroom, ageing, split_from_tokens),
            (external, idle, hold, late, before),
            seed,
        )| {
            ClusterConfig {
                level: if external { Level::External } else { Level::Managed },
                policy,
                prompt_pending_tokens_max: pending,
                kv_fill_max_permille: fill,
                requests_max,
                attempts_max,
                admission,
                recovery_headroom_permille: headroom,
                priority_ageing_ns: ageing,
                split_from_tokens,
                mixed_return: if idle { MixedReturn::Idle } else { MixedReturn::Drained },
                mixed_hold_ns: if hold { 50 } else { 0 },
                reserve: if late { Reserve::AtSourceDone } else { Reserve::AtArrival },
                cut: if before { Cut::BeforeLast } else { Cut::AtPrompt },
                retry_interval_ns: 100,
                unplaceable_limit_ns: 200,
                transfer_failures_max: 2,
                aside_ns: 150,
                report_limit_ns: 120,
                ties: [Ties::Turn, Ties::First, Ties::Last][(seed % 3) as usize],
                park_limit_ns: 300,
                lease_ns: external.then_some(500),
                seed,
                ..ClusterConfig::default()
            }
        },
    )
}

fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

fn any_arrival(state: &mut u64) -> Arrival {
    Arrival {
        class: draw(state, 2) as u32,
        priority: draw(state, 3) as i32 - 1,
        resumable: draw(state, 8) > 0,
        pin_token: (draw(state, 8) == 0).then(|| draw(state, 5) as u32),
        ..Arrival::new(draw(state, 12), draw(state, 40) as u32, draw(state, 20) as u32)
    }
}

/// One nanosecond a prompt token; two decodes take two or four.
fn costs(steep: u64) -> CostTable {
    let knots = |points: [(u32, u64); 2]| points.map(|(at, ns)| CostKnot { at, ns }).to_vec();
    CostTable::new(CostPoints {
        prefill: knots([(0, 0), (100, 100)]),
        decode: knots([(0, 0), (10, 10 * (1 + steep))]),
        context_ns_per_1024_tokens: 64 * steep,
        pass_tokens_max: 50,
    })
    .unwrap()
}

fn any_notice(cluster: &Cluster, seq: u64, state: &mut u64) -> Notice {
    let request = draw(state, 12);
    let live = cluster.attempt(RequestId(request)).map_or(1, |attempt| attempt.0);
    let key = key_at(request, if draw(state, 6) == 0 { 1 + draw(state, 3) as u32 } else { live });
    let report =
        Report { kv_tokens: draw(state, 60), free_blocks: 1, legs: 0, ..report(draw(state, seq + 1)) };
    let tokens = 1 + draw(state, 3) as u32;
    match draw(state, 11) {
        0 => Notice::Reserved { key },
        1 => Notice::Refused { key, report },
        2 | 3 => Notice::PrefillDone { key, sampled: true },
        4 => Notice::Landed { key },
        5 => Notice::Progress { key, tokens },
        6 => Notice::Evicted { key, tokens: tokens + 20 },
        7 => Notice::Finished { key, tokens },
        8 => Notice::Released { key, to: None, report },
        9 if draw(state, 3) == 0 => Notice::TransferFailed { key },
        9 => Notice::Sent { key },
        _ => Notice::Report(report),
    }
}

fn any_event(cluster: &Cluster, seq: u64, state: &mut u64) -> ClusterEvent {
    let index = draw(state, 6) as u32;
    let incarnation = cluster.load(index).map_or(0, |load| load.machine.incarnation);
    let machine = MachineId { index, incarnation: (incarnation + u32::from(draw(state, 12) == 0)).max(1) };
    match draw(state, 20) {
        0..=5 => ClusterEvent::Arrive(any_arrival(state)),
        6 => ClusterEvent::Cancel { request: RequestId(draw(state, 12)) },
        7 if draw(state, 4) == 0 => ClusterEvent::Drain { machine },
        8 if draw(state, 3) == 0 => ClusterEvent::Lose { machine },
        9 => ClusterEvent::Join(Join {
            machine: MachineId { index, incarnation: incarnation + draw(state, 2) as u32 },
            role: [Role::Prompt, Role::Token, Role::Mixed][draw(state, 3) as usize],
            kv_capacity_tokens: draw(state, 4) * 40,
            speed_weight: draw(state, 4) as u32,
            link: None,
            costs: (draw(state, 3) > 0).then(|| costs(draw(state, 2))),
        }),
        10 => ClusterEvent::Renew { request: RequestId(draw(state, 12)) },
        11 if draw(state, 3) == 0 => {
            let slo = Slo { ttft_ns: draw(state, 200), tbt_ns: draw(state, 30) };
            ClusterEvent::SetSlo { class: draw(state, 2) as u32, slo: (draw(state, 4) > 0).then_some(slo) }
        }
        11 | 12 => ClusterEvent::Tick,
        _ if cluster.config().level == Level::External => ClusterEvent::Fact(any_notice(cluster, seq, state)),
        _ => ClusterEvent::Notice { from: machine, notice: any_notice(cluster, seq, state) },
    }
}

fn rejection(actions: &[ClusterAction]) -> Option<Rejection> {
    actions.iter().find_map(|action| match action {
        ClusterAction::Rejected { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// A dry run says what an arrival is answered with at the time up to which the Cluster has heard.
fn check_dry_run(before: &Cluster, arrival: &Arrival) {
    let (mut twin, mut actions) = (before.clone(), Vec::new());
    let _ = twin.handle(before.now(), &ClusterEvent::Arrive(*arrival), &mut actions).unwrap();
    let answer = placement(&actions).ok_or_else(|| rejection(&actions).unwrap());
    assert_eq!(before.dry_run(arrival).unwrap(), answer, "a dry run differs");
}

/// What an arrival was answered with is what the scans say.
fn check_choice(scan: &Scan, before: &Cluster, arrival: &Arrival, actions: &[ClusterAction]) {
    let (placed, rejected) = (placement(actions), rejection(actions));
    if before.config().policy == PolicyKind::PowerOfTwo {
        return;
    }
    if let Some(placed) = placed {
        let chosen = scan.pair(before, arrival);
        let whole = |machine| (machine, machine);
        let splits = before.config().policy != PolicyKind::Jsq;
        let chosen = if arrival.prompt_tokens < before.config().split_from_tokens && splits {
            scan.short(before, arrival).map(whole)
        } else if arrival.max_new_tokens == 1 && arrival.pin_token.is_none() {
            chosen.map(|(prompt, _)| whole(prompt))
        } else {
            chosen
        };
        if before.unreserved_legs() > 0 {
            // Its second leg may have to queue behind one that waits.
            assert_eq!(placed.prompt().map(|id| id.index), chosen.map(|(prompt, _)| prompt));
            return;
        }
        assert_eq!(Some(pair(&placed)), chosen, "{arrival:?} of {before:?}");
        let is_pair = placed.legs[1].is_some();
        if let Some((_, prompt, _, token)) = scan
            .splitwise(before, arrival)
            .filter(|_| is_pair && before.config().policy == PolicyKind::Splitwise)
        {
            assert_eq!((placed.why.prompt_step, placed.why.token_step), (prompt, token));
        }
    } else if rejected == Some(Rejection::NoMachine) && !Scan::up(before).is_empty() {
        assert_eq!(scan.pair(before, arrival), None, "{arrival:?} of {before:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_in_any_order_keep_the_books_and_the_rules(config in config(), seed in any::<u64>(), steps in 20_usize..250) {
        let mut cluster = Cluster::new(config).unwrap();
        let mut restored = cluster.clone();
        let (mut state, mut scan, mut now) = (seed, Scan::default(), 0_u64);
        let mut accepted = std::collections::BTreeMap::new();
        for step in 0..steps {
            if draw(&mut state, 25) == 0 {
                restored = cluster.clone();
            }
            let event = any_event(&cluster, step as u64, &mut state);
            // Time may be told backwards; it never goes back.
            now = (now + draw(&mut state, 40)).saturating_sub(draw(&mut state, 20));
            let before = cluster.clone();
            let (mut actions, mut same) = (Vec::new(), Vec::new());
            let applied = cluster.handle(Time::from_ns(now), &event, &mut actions);
            prop_assert_eq!(restored.handle(Time::from_ns(now), &event, &mut same), applied);
            prop_assert_eq!(&same, &actions, "a restored cluster differs at {:?}", event);
            prop_assert!(cluster.check().is_ok(), "{:?} after {:?}", cluster.check(), event);
            prop_assert!(cluster.now() >= before.now());
            if applied.is_err() {
                prop_assert!(actions.is_empty());
                prop_assert_eq!(format!("{cluster:?}"), format!("{before:?}"), "{:?} changed something", event);
                continue;
            }
            let counted = cluster.counters().late - before.counters().late;
            prop_assert_eq!(counted, u64::from(applied == Ok(Applied::Late)), "{:?}", event);
            prop_assert_eq!(told(&before.counters(), &cluster.counters()), said(&actions), "{:?}", event);
            match &event {
                ClusterEvent::Arrive(arrival) => {
                    check_dry_run(&before, arrival);
                    check_choice(&scan, &before, arrival, &actions);
                }
                ClusterEvent::Join(join) => {
                    let at = join.machine.index as usize;
                    scan.weights.resize(scan.weights.len().max(at + 1), 1);
                    scan.weights[at] = u64::from(join.speed_weight);
                    scan.enter(join.machine.index);
                }
                _ => {}
            }
            if let ClusterEvent::Arrive(arrival) = event
                && rejection(&actions).is_none()
            {
                accepted.insert(arrival.request, arrival);
            }
            for placed in actions.iter().filter_map(|action| placement(std::slice::from_ref(action))) {
                let holds = |id: MachineId| fits(&cluster.load(id.index).unwrap(), &accepted[&placed.request]);
                prop_assert!(
                    placed.legs().filter_map(|leg| leg.machine.id()).all(holds),
                    "{:?} after {:?}", placed, event
                );
            }
            scan.learn(&actions);
        }
        finish(cluster, now)?;
    }
}

/// What an event has added to the counters: placed, rejected, finished, cancelled, failed, parked.
fn told(before: &ClusterCounters, after: &ClusterCounters) -> [u64; 6] {
    let all =
        |of: &ClusterCounters| [of.placed, of.rejected, of.finished, of.cancelled, of.failed, of.parked];
    let (before, after) = (all(before), all(after));
    std::array::from_fn(|at| after[at] - before[at])
}

/// The same, from the actions.
fn said(actions: &[ClusterAction]) -> [u64; 6] {
    let mut said = [0; 6];
    for action in actions {
        let at = match action {
            ClusterAction::Placed(_) => 0,
            ClusterAction::Rejected { .. } => 1,
            ClusterAction::Ended { outcome: Outcome::Finished, .. } => 2,
            ClusterAction::Ended { outcome: Outcome::Cancelled, .. } => 3,
            ClusterAction::Ended { .. } => 4,
            ClusterAction::Parked { .. } => 5,
            _ => continue,
        };
        said[at] += 1;
    }
    said
}

/// Cancels and answers whatever is left, and looks for what remains on the books.
fn finish(mut cluster: Cluster, now: u64) -> Result<(), TestCaseError> {
    let mut actions = Vec::new();
    for request in 0..12 {
        let event = ClusterEvent::Cancel { request: RequestId(request) };
        let _ = cluster.handle(Time::from_ns(now), &event, &mut actions).unwrap();
    }
    prop_assert_eq!((cluster.live_requests(), cluster.parked_requests()), (0, 0));
    for index in 0..cluster.machines_len() {
        let load = cluster.load(index).unwrap();
        prop_assert_eq!((load.booked, load.legs, load.prompt_pending_tokens), (0, 0, 0));
    }
    // Losing every machine closes what was still to be answered.
    for index in 0..cluster.machines_len() {
        let machine = cluster.load(index).unwrap().machine;
        let _ = cluster.handle(Time::from_ns(now), &ClusterEvent::Lose { machine }, &mut actions).unwrap();
    }
    prop_assert!(cluster.check().is_ok());
    let books = format!("{cluster:?}");
    prop_assert!(books.contains("closing: {}"), "{}", books);
    let counters = cluster.counters();
    prop_assert!(counters.finished + counters.cancelled + counters.failed <= counters.placed);
    Ok(())
}

// --- Bounds at their edges. ---

fn steps(placement: &Placement) -> (Step, Step) {
    (placement.why.prompt_step, placement.why.token_step)
}

const PAIR: [Role; 2] = [Role::Prompt, Role::Token];

#[test]
fn a_fault_counts_again_at_another_time() {
    let config = ClusterConfig { attempts_max: 2, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Mixed]);
    head.place(1, 10, 10);
    head.now_ns = 10;
    head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!(head.cluster.parked_requests(), 1);
    // Placed and lost at one instant, but the first fault was at another.
    head.now_ns = 20;
    let next = MachineId { index: 0, incarnation: 2 };
    assert!(placement(&head.join(next, Role::Mixed, 1000)).is_some());
    let actions = head.act(&ClusterEvent::Lose { machine: next });
    let ended = ClusterAction::Ended { request: RequestId(1), outcome: Outcome::AttemptsMax };
    assert!(actions.contains(&ended), "{actions:?}");
}

#[test]
fn the_prompt_side_is_over_above_its_limit_and_never_when_idle() {
    let config = ClusterConfig { prompt_pending_tokens_max: 100, ..ClusterConfig::default() };
    let roles = [Role::Prompt, Role::Mixed, Role::Token];
    let mut head = Head::new(config, &roles);
    assert_eq!(steps(&head.place(1, 500, 2)).0, Step::Own, "idle");
    let mut head = Head::new(config, &roles);
    head.place(1, 40, 2);
    assert_eq!(steps(&head.clone().place(2, 60, 2)).0, Step::Own, "exactly the limit");
    assert_eq!(steps(&head.place(2, 61, 2)).0, Step::Mixed, "one more");
}

#[test]
fn the_token_side_is_over_above_its_share_of_the_capacity() {
    let roles = [Role::Prompt, Role::Mixed, Role::Token];
    let mut head = Head::with_capacity(ClusterConfig::default(), &roles, 1000);
    head.place(1, 499, 2);
    assert_eq!(steps(&head.clone().place(2, 449, 2)).1, Step::Own, "500 held and 450 more");
    assert_eq!(steps(&head.place(2, 450, 2)).1, Step::Mixed, "one more");
}

#[test]
fn the_cap_on_output_is_no_load_but_must_fit() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &PAIR, 1000);
    head.place(1, 10, 990);
    assert_eq!(head.cluster.load(1).unwrap().kv_tokens, 11);
    let rejected = |reason| [ClusterAction::Rejected { request: RequestId(2), reason }];
    assert_eq!(head.arrive(Arrival::new(2, 10, 991)), rejected(Rejection::TooLarge));
}

#[test]
fn a_split_request_books_its_one_where_it_decodes() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 40, 10);
    let booked = |head: &Head| (head.cluster.load(0).unwrap().booked, head.cluster.load(1).unwrap().booked);
    assert_eq!(booked(&head), (40, 1));
    head.prefill_done(0, 1);
    assert_eq!(booked(&head), (0, 1));
    head.notice(1, Notice::Evicted { key: key(1), tokens: 55 });
    assert_eq!(booked(&head), (0, 56), "to be prefilled again");
    head.prefill_done(1, 1);
    assert_eq!(booked(&head), (0, 1));
    head.notice(1, Notice::Finished { key: key(1), tokens: 9 });
    assert_eq!(booked(&head), (0, 0));
}

#[test]
fn live_requests_are_bounded() {
    let config = ClusterConfig { requests_max: 2, ..ClusterConfig::default() };
    let mut head = Head::new(config, &PAIR);
    head.place(1, 10, 10);
    head.place(2, 10, 10);
    let reason = Rejection::RequestsMax;
    assert_eq!(
        head.arrive(Arrival::new(3, 10, 10)),
        [ClusterAction::Rejected { request: RequestId(3), reason }]
    );
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    head.place(3, 10, 10);
}

#[test]
fn an_arrival_without_machines_or_with_a_lost_pin_is_rejected() {
    let mut head = Head::new(ClusterConfig::default(), &[]);
    let rejected = |reason| [ClusterAction::Rejected { request: RequestId(1), reason }];
    assert_eq!(head.arrive(Arrival::new(1, 10, 10)), rejected(Rejection::NoMachine));
    head.join(id(0), Role::Token, 100);
    head.join(id(1), Role::Prompt, 100);
    head.act(&ClusterEvent::Drain { machine: id(0) });
    let pinned = Arrival { pin_token: Some(0), ..Arrival::new(1, 10, 10) };
    assert_eq!(head.arrive(pinned), rejected(Rejection::PinUnavailable));
}

#[test]
fn a_pinned_request_decodes_there_whatever_the_policy() {
    for (policy, name) in PolicyKind::ALL {
        let config = ClusterConfig { policy, ..ClusterConfig::default() };
        let mut head = Head::new(config, &[Role::Prompt, Role::Token, Role::Token, Role::Mixed]);
        for (request, pin) in [(1, 1), (2, 2), (3, 3), (4, 0), (5, 2)] {
            let actions = head.arrive(Arrival { pin_token: Some(pin), ..Arrival::new(request, 10, 10) });
            assert_eq!(pair(&placement(&actions).unwrap()).1, pin, "{name}");
        }
    }
}

#[test]
fn only_faults_count_towards_attempts_max() {
    let config = ClusterConfig { attempts_max: 2, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Mixed; 3]);
    head.place(1, 10, 10);
    head.place(2, 10, 10);
    let ended = |actions: &[ClusterAction], outcome| {
        actions.contains(&ClusterAction::Ended { request: RequestId(1), outcome })
    };
    let actions = head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!(placement(&actions).unwrap().attempt.0, 2);
    head.now_ns = 1;
    let on = pair(&placement(&actions).unwrap()).0;
    let actions = head.act(&ClusterEvent::Lose { machine: id(on) });
    assert!(ended(&actions, Outcome::AttemptsMax), "{actions:?}");
}

#[test]
fn a_request_that_may_not_resume_fails_with_that_reason() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.arrive(Arrival { resumable: false, ..Arrival::new(1, 10, 10) });
    let actions = head.act(&ClusterEvent::Lose { machine: id(0) });
    let outcome = Outcome::NotResumable;
    assert!(actions.contains(&ClusterAction::Ended { request: RequestId(1), outcome }));
    assert!(matches!(commands(&actions)[..], [(1, Command::Abort { .. })]));
}

#[test]
fn a_resumed_request_computes_what_the_client_has_again_and_no_more_than_its_cap() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed; 2]);
    head.place(1, 10, 8);
    head.notice(0, Notice::Progress { key: key(1), tokens: 3 });
    let actions = head.act(&ClusterEvent::Lose { machine: id(0) });
    let (1, Command::Compute { key, work, .. }) = commands(&actions)[0] else { panic!("{actions:?}") };
    assert_eq!((key, work.prompt_tokens, work.max_new_tokens), (key_at(1, 2), 13, 5));
    // A late word about the first attempt changes nothing.
    let late = head.handle(&ClusterEvent::Fact(Notice::Progress { key: kit::key(1), tokens: 1 }));
    assert_eq!(late.0, Ok(Applied::Late));
}

#[test]
fn the_loss_of_a_source_after_landing_costs_nothing() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(1, Notice::Landed { key: key(1) });
    let actions = head.act(&ClusterEvent::Lose { machine: id(0) });
    assert!(placement(&actions).is_none() && head.cluster.counters().faults == 0);
    head.notice(1, Notice::Finished { key: key(1), tokens: 9 });
    assert_eq!(head.cluster.live_requests(), 0);
}

#[test]
fn parked_requests_go_by_priority_and_then_by_arrival() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    for (request, priority) in [(1, 0), (2, 5), (3, 0), (4, 5), (5, -1)] {
        head.arrive(Arrival { priority, ..Arrival::new(request, 10, 10) });
    }
    head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!(head.cluster.parked_requests(), 5);
    let actions = head.join(id(1), Role::Mixed, 10_000);
    let placed = actions.iter().filter_map(|action| match action {
        ClusterAction::Placed(placement) => Some(placement.request.0),
        _ => None,
    });
    assert_eq!(placed.collect::<Vec<_>>(), [2, 4, 1, 3, 5]);
}

#[test]
fn legs_that_wait_are_tried_again_at_the_interval_and_not_before() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 500, 10);
    head.refused(1, key(1), 0);
    assert_eq!(head.cluster.unreserved_legs(), 1);
    assert_eq!(head.cluster.next_deadline(), Some(Time::from_ns(1_000_000_000)));
    head.tick_at(999_999_999);
    assert_eq!(head.cluster.next_deadline(), Some(Time::from_ns(1_000_000_000)));
    assert_eq!(reserved_at(&head.tick_at(1_000_000_000)), [1]);
}

fn external() -> ClusterConfig {
    ClusterConfig { level: Level::External, lease_ns: Some(100), ..ClusterConfig::default() }
}

#[test]
fn a_lease_runs_out_to_the_nanosecond_and_any_call_extends_it() {
    let mut head = Head::new(external(), &PAIR);
    head.place(1, 10, 10);
    head.now_ns = 50;
    assert_eq!(head.fact(Notice::PrefillDone { key: key(1), sampled: true }), Applied::Yes);
    assert!(head.tick_at(149).is_empty());
    head.act(&ClusterEvent::Renew { request: RequestId(1) });
    assert!(head.tick_at(248).is_empty());
    let outcome = Outcome::Expired;
    assert_eq!(head.tick_at(249), [ClusterAction::Ended { request: RequestId(1), outcome }]);
    assert_eq!((head.cluster.load(0).unwrap().kv_tokens, head.cluster.load(1).unwrap().kv_tokens), (0, 0));
    assert_eq!(head.fact(Notice::Progress { key: key(1), tokens: 1 }), Applied::Late);
}

#[test]
fn an_embedders_source_is_booked_until_the_first_progress() {
    let mut head = Head::new(external(), &PAIR);
    head.place(1, 10, 10);
    assert_eq!(head.fact(Notice::PrefillDone { key: key(1), sampled: true }), Applied::Yes);
    let kv = |head: &Head| (head.cluster.load(0).unwrap().kv_tokens, head.cluster.load(1).unwrap().kv_tokens);
    assert_eq!(kv(&head), (11, 11));
    assert_eq!(head.fact(Notice::Progress { key: key(1), tokens: 2 }), Applied::Yes);
    assert_eq!(kv(&head), (0, 13), "and the books follow what is delivered");
    assert_eq!(head.fact(Notice::Finished { key: key(1), tokens: 2 }), Applied::Yes);
    assert_eq!((kv(&head), head.cluster.live_requests()), ((0, 0), 0));
}

#[test]
fn a_borrowed_machine_goes_home_when_drained_or_when_idle() {
    for (mixed_return, goes_at_once) in [(MixedReturn::Drained, true), (MixedReturn::Idle, false)] {
        let config =
            ClusterConfig { mixed_return, prompt_pending_tokens_max: 10, ..ClusterConfig::default() };
        let mut head = Head::new(config, &PAIR);
        head.place(1, 10, 10);
        // The prompt machine is over, so the token machine takes the prompt of the second, and decodes both.
        let second = head.place(2, 10, 10);
        assert_eq!((pair(&second), steps(&second).0), ((1, 1), Step::Opposite));
        assert_eq!(head.cluster.load(1).unwrap().pool, Role::Mixed);
        let home = ClusterAction::Moved { machine: id(1), pool: Role::Token };
        assert_eq!(head.prefill_done(1, 2).contains(&home), goes_at_once, "{mixed_return:?}");
        head.notice(1, Notice::Finished { key: key(2), tokens: 1 });
        let actions = head.notice(1, Notice::Finished { key: key(1), tokens: 1 });
        assert_eq!(actions.contains(&home), !goes_at_once, "{mixed_return:?}");
    }
}

#[test]
fn a_borrowed_machine_stays_for_the_hold_down() {
    let config =
        ClusterConfig { prompt_pending_tokens_max: 10, mixed_hold_ns: 100, ..ClusterConfig::default() };
    let mut head = Head::new(config, &PAIR);
    head.place(1, 10, 10);
    head.now_ns = 5;
    head.place(2, 10, 10);
    assert!(head.prefill_done(1, 2).is_empty());
    assert_eq!(head.cluster.next_deadline(), Some(Time::from_ns(105)));
    assert!(head.tick_at(104).is_empty());
    assert_eq!(head.tick_at(105), [ClusterAction::Moved { machine: id(1), pool: Role::Token }]);
}

#[test]
fn a_late_reservation_waits_for_the_source_and_is_serialized() {
    let config = ClusterConfig {
        reserve: Reserve::AtSourceDone,
        transfer: TransferRule::LayerWise,
        ..ClusterConfig::default()
    };
    let mut head = Head::new(config, &PAIR);
    let actions = head.arrive(Arrival::new(1, 1000, 10));
    let told = commands(&actions);
    assert!(matches!(told[..], [(0, Command::Compute { .. }), (1, Command::Keep { .. })]), "{told:?}");
    assert_eq!(placement(&actions).unwrap().transfer(), Some(Mode::Serialized));
    let actions = head.prefill_done(0, 1);
    let told: Vec<u32> = commands(&actions).iter().map(|&(to, _)| to).collect();
    assert_eq!((reserved_at(&actions), told), (vec![1], vec![1, 0]), "Reserve, Send");
}

#[test]
fn the_automatic_transfer_mode_turns_where_bytes_outweigh_the_fixed_cost() {
    let config = ClusterConfig { kv_bytes_per_token: Some(1_000), ..ClusterConfig::default() };
    let mut head = Head::new(config, &[]);
    for (index, (role, fixed_cost_ns)) in
        [(Role::Prompt, 5_000), (Role::Token, 8_000)].into_iter().enumerate()
    {
        let link = Some(Link { bytes_per_s: 1_000_000_000, fixed_cost_ns });
        let machine = id(index as u32);
        let join = Join { machine, role, kv_capacity_tokens: 1000, speed_weight: 1, link, costs: None };
        head.act(&ClusterEvent::Join(join));
    }
    // One token takes 1 us; the larger fixed cost is 8 us.
    assert_eq!(head.place(1, 7, 2).transfer(), Some(Mode::Serialized));
    assert_eq!(head.place(2, 8, 2).transfer(), Some(Mode::LayerWise));
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    assert_eq!(head.place(1, 511, 2).transfer(), Some(Mode::Serialized), "nothing known");
    assert_eq!(head.place(2, 512, 2).transfer(), Some(Mode::LayerWise));
}

#[test]
fn a_report_counts_with_what_was_booked_after_it() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    let kv = |head: &Head| head.cluster.load(0).unwrap().kv_tokens;
    head.place(1, 10, 10);
    assert_eq!(kv(&head), 11, "not reported: our own books");
    head.place(2, 20, 10);
    let says = |seq, kv_tokens| Notice::Report(Report { kv_tokens, ..report(seq) });
    head.notice(0, says(1, 15));
    assert_eq!(kv(&head), 15 + 21, "its report, and the assignment it does not include");
    head.notice(0, says(2, 40));
    assert_eq!(kv(&head), 40);
    head.notice(0, says(1, 15));
    assert_eq!(kv(&head), 40, "an older one is ignored");
    head.notice(0, says(2, 44));
    assert_eq!(kv(&head), 44, "the same assignments, a later word");
}

#[test]
fn a_rejected_request_does_not_advance_the_next_choice() {
    for (policy, name) in PolicyKind::ALL {
        let config = ClusterConfig { policy, seed: 7, ..ClusterConfig::default() };
        let roles = [Role::Prompt, Role::Prompt, Role::Prompt, Role::Token, Role::Token, Role::Mixed];
        let mut head = Head::new(config, &roles);
        for request in 0..20 {
            let mut other = head.clone();
            for rejected in
                [Arrival::new(900, 20_000, 1), Arrival { pin_token: Some(3), ..Arrival::new(901, 1, 10_000) }]
            {
                assert!(matches!(other.arrive(rejected)[..], [ClusterAction::Rejected { .. }]));
            }
            let _ = other.handle(&ClusterEvent::Arrive(Arrival::new(902, 0, 1))).0.unwrap_err();
            assert_eq!(other.place(request, 10, 10), head.place(request, 10, 10), "{name}");
        }
    }
}

#[test]
fn round_robin_gives_each_machine_of_a_pool_its_turn() {
    let config = ClusterConfig { policy: PolicyKind::RoundRobin, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Prompt, Role::Token, Role::Prompt, Role::Token, Role::Prompt]);
    let pairs: Vec<_> = (0..6).map(|request| pair(&head.place(request, 10, 10))).collect();
    assert_eq!(pairs, [(0, 1), (2, 3), (4, 1), (0, 3), (2, 1), (4, 3)]);
}

#[test]
fn power_of_two_takes_the_less_loaded_of_two_that_only_the_seed_and_the_request_decide() {
    let with_seed = |seed| {
        let config = ClusterConfig { policy: PolicyKind::PowerOfTwo, seed, ..ClusterConfig::default() };
        Head::with_capacity(config, &[Role::Mixed; 16], 1_000_000)
    };
    let (mut head, mut heavy) = (with_seed(1), with_seed(1));
    // The same draws on a cluster where one machine carries a mountain: it is taken only where both draws are it.
    heavy.arrive(Arrival { pin_token: Some(3), ..Arrival::new(9_999, 500_000, 1) });
    head.arrive(Arrival { pin_token: Some(5), ..Arrival::new(9_999, 1, 1) });
    let mut took = 0;
    let mut most = [0_u32; 16];
    for request in 0..2000 {
        took += u32::from(pair(&heavy.place(request, 10, 10)).0 == 3);
        most[pair(&head.place(request, 10, 10)).0 as usize] += 1;
    }
    // One in 256 draws it twice, about 8 of 2000; a single draw would take it 125 times.
    assert!(took < 30, "{took}");
    let (least, largest) = (most.iter().min().unwrap(), most.iter().max().unwrap());
    assert!(largest - least < 25, "{most:?}: far from the spread of single draws");
    let pairs = |seed| {
        let mut head = with_seed(seed);
        (0..50).map(|request| pair(&head.place(request, 10, 10)).0).collect::<Vec<_>>()
    };
    assert!(pairs(1) == pairs(1) && pairs(1) != pairs(2));
}

#[test]
fn speed_weights_divide_the_load() {
    let config = ClusterConfig { policy: PolicyKind::Jsq, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[]);
    for (index, speed_weight) in [1, 3].into_iter().enumerate() {
        let machine = id(index as u32);
        let join = Join {
            machine,
            role: Role::Mixed,
            kv_capacity_tokens: 10_000,
            speed_weight,
            link: None,
            costs: None,
        };
        head.act(&ClusterEvent::Join(join));
    }
    let on: Vec<u32> = (0..8).map(|request| pair(&head.place(request, 99, 10)).0).collect();
    assert_eq!(on, [0, 1, 1, 1, 0, 1, 1, 1]);
}

#[test]
fn a_draining_machine_takes_nothing_new_and_says_when_it_is_empty() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed; 2]);
    head.place(1, 10, 10);
    assert!(head.act(&ClusterEvent::Drain { machine: id(0) }).is_empty());
    assert_eq!(head.handle(&ClusterEvent::Drain { machine: id(0) }).0, Ok(Applied::Late));
    assert_eq!(pair(&head.place(2, 10, 10)), (1, 1));
    let actions = head.notice(0, Notice::Finished { key: key(1), tokens: 1 });
    assert!(actions.contains(&ClusterAction::Drained { machine: id(0) }));
    let actions = head.act(&ClusterEvent::Drain { machine: id(1) });
    assert!(actions.is_empty());
    head.act(&ClusterEvent::Lose { machine: id(1) });
    assert_eq!(head.cluster.parked_requests(), 1, "drain, then loss: parked until a machine joins");
    head.join(id(2), Role::Mixed, 10_000);
    assert_eq!(head.cluster.parked_requests(), 0);
}

#[test]
fn contradictions_are_errors() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    let arrive = |request, prompt, pin_token| {
        ClusterEvent::Arrive(Arrival { pin_token, ..Arrival::new(request, prompt, 10) })
    };
    let join = |index, incarnation, kv_capacity_tokens, speed_weight| {
        let machine = MachineId { index, incarnation };
        ClusterEvent::Join(Join {
            machine,
            role: Role::Mixed,
            kv_capacity_tokens,
            speed_weight,
            link: None,
            costs: None,
        })
    };
    let cases = [
        (arrive(1, 10, None), EventError::DuplicateRequest(RequestId(1))),
        (arrive(2, 0, None), EventError::EmptyRequest(RequestId(2))),
        (arrive(2, 10, Some(9)), EventError::UnknownMachine(9)),
        (join(0, 1, 100, 1), EventError::MachineTaken(id(0))),
        (join(3, 1, 100, 1), EventError::MachineTaken(id(3))),
        (join(2, 1, 0, 1), EventError::EmptyMachine(id(2))),
        (join(2, 1, 100, 0), EventError::EmptyMachine(id(2))),
        (ClusterEvent::Lose { machine: id(5) }, EventError::UnknownMachine(5)),
    ];
    for (event, error) in cases {
        assert_eq!(head.handle(&event), (Err(error), vec![]), "{event:?}");
    }
    // An incarnation that is over is late, not wrong.
    head.join(MachineId { index: 0, incarnation: 2 }, Role::Prompt, 100);
    assert_eq!(head.handle(&ClusterEvent::Lose { machine: id(0) }).0, Ok(Applied::Late));
    let notice = Notice::Report(Report { seq: AssignmentSeq(9), ..Report::default() });
    assert_eq!(head.handle(&ClusterEvent::Notice { from: id(0), notice }).0, Ok(Applied::Late));
}

#[test]
fn a_seat_that_is_not_found_yet_is_told_as_later() {
    assert_eq!((Seat::Later.id(), Seat::Fixed(id(3)).id()), (None, Some(id(3))));
}
