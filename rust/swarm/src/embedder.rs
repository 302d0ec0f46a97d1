//! A world in which an embedder carries placements out: the Cluster at the external level, engines that tell facts of
//! what they run, and clients. Facts get lost, come late, twice, and with other numbers than they were sent with. After
//! each event every invariant is recounted; then the embedder is reliable again, and every request must end.

use std::collections::BTreeMap;
use std::fmt::Write;

use splitcore_core::cluster::{Cluster, MachineState};
use splitcore_core::config::{ClusterConfig, Level};
use splitcore_core::error::Applied;
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Outcome};
use splitcore_core::id::{Attempt, Epoch, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Notice, Report};
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;

use crate::rng::Rng;
use crate::setup::Setup;
use crate::world::{Digest, Outcomes, Tail};

/// How an embedder of a seed behaves.
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    /// A placement that no call has touched for this long is expired.
    pub lease_ns: Option<u64>,
    /// Requests whose lease somebody renews, in thousandths.
    pub renewed_permille: u64,
    /// Facts that never come.
    pub lost_permille: u64,
    /// Facts that come twice, the second time late.
    pub twice_permille: u64,
    /// Facts with another number in them than they were sent with.
    pub corrupted_permille: u64,
    /// Placements whose transfer fails.
    pub transfer_fails_permille: u64,
}

impl Embedding {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        Self {
            lease_ns: rng.pick(&[None, Some(5_000), Some(200_000)]),
            renewed_permille: rng.pick(&[0, 500, 1000]),
            lost_permille: rng.pick(&[0, 0, 20, 200]),
            twice_permille: rng.pick(&[0, 100, 500]),
            corrupted_permille: rng.pick(&[0, 0, 20, 300]),
            transfer_fails_permille: rng.pick(&[0, 50, 300]),
        }
    }
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Event {
    Arrive(usize),
    Cancel(RequestId),
    Renew(RequestId),
    Tell(Notice),
    /// What a machine holds, by its own account.
    Report(MachineId),
    Fault,
    Join(u32),
    Leave(MachineId),
}

/// A request that the Cluster has accepted.
#[derive(Debug)]
struct Live {
    owner: usize,
    attempt: Attempt,
    parked: bool,
    /// Whose machines are booked for it.
    legs: [Option<MachineId>; 2],
    /// When a call about it last applied, or it was placed.
    touched_at: u64,
}

/// The world. See the module.
pub(crate) struct Embedder {
    setup: Setup,
    embedding: Embedding,
    rng: Rng,
    now: u64,
    cluster: Cluster,
    /// The incarnation at each place, and whether it is there.
    places: Vec<(u32, bool)>,
    live: BTreeMap<RequestId, Live>,
    queue: BTreeMap<(u64, u64), Event>,
    queued: u64,
    faults_left: u64,
    /// The embedder is reliable from here on.
    healed: bool,
    digest: Digest,
    tail: Option<(Tail, usize)>,
    out: Outcomes,
}

/// Ticks in a row, with nothing else to come, after which the Cluster stands still.
const TICKS_MAX: u64 = 10_000;

impl Embedder {
    pub(crate) fn new(setup: Setup, embedding: Embedding) -> Self {
        let cluster = new_cluster(&setup, embedding, Epoch(1));
        let mut world = Self {
            rng: Rng(setup.seed ^ 0xe3b0),
            embedding,
            now: 0,
            cluster,
            places: vec![(0, false); setup.machines.len()],
            live: BTreeMap::new(),
            queue: BTreeMap::new(),
            queued: 0,
            faults_left: 0,
            healed: false,
            digest: Digest::default(),
            tail: None,
            out: Outcomes::default(),
            setup,
        };
        (0..world.places.len() as u32).for_each(|index| world.join(index));
        for index in 0..world.setup.clients.len() {
            world.push(world.setup.clients[index].at_ns, Event::Arrive(index));
        }
        if !world.setup.faults.is_empty() {
            world.faults_left = world.rng.within(1, 40);
            world.push(1_000, Event::Fault);
        }
        world
    }

    /// Keeps so many of the last events as text.
    pub(crate) fn with_tail(mut self, tail: Tail, lines: usize) -> Self {
        self.tail = Some((tail, lines));
        self
    }

    /// Runs to the end and checks that nothing is left.
    pub(crate) fn run(mut self) -> Outcomes {
        let mut ticks = 0;
        while self.step(&mut ticks) {
            self.out.events += 1;
            self.check();
        }
        self.check_rest();
        self.out.digest = self.digest.value();
        self.out
    }

    fn push(&mut self, at: u64, event: Event) {
        self.queued += 1;
        self.queue.insert((at.max(self.now), self.queued), event);
    }

    fn step(&mut self, ticks: &mut u64) -> bool {
        if !self.healed && self.out.events >= self.setup.heals_at_event {
            self.heal();
            return true;
        }
        let due = self.cluster.next_deadline().map(|due| due.as_ns().max(self.now));
        let next = self.queue.first_key_value().map(|(&key, _)| key);
        match (due, next) {
            (_, None) if !self.healed => self.heal(),
            (_, None) if self.live.is_empty() => return false,
            // Nothing more is told of these.
            (_, None) if self.live.values().any(|live| !live.parked) => self.give_up_the_silent(),
            (None, None) => panic!("{} requests wait for nothing", self.live.len()),
            (Some(at), next) if next.is_none_or(|(time, _)| at < time) => {
                *ticks += 1;
                assert!(*ticks < TICKS_MAX, "{} requests stand still", self.live.len());
                self.now = at;
                self.tell(&ClusterEvent::Tick);
                let again = self.cluster.next_deadline();
                assert!(again.is_none_or(|due| due.as_ns() > at), "a tick at {at} leaves its deadline due");
            }
            (_, Some(key)) => {
                *ticks = 0;
                self.now = key.0;
                if let Some(event) = self.queue.remove(&key) {
                    self.happen(event);
                }
            }
            (_, None) => return false,
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(index) => self.arrive(index),
            Event::Cancel(request) => self.tell(&ClusterEvent::Cancel { request }),
            Event::Renew(request) => {
                self.tell(&ClusterEvent::Renew { request });
                let wanted = self.live.contains_key(&request) && !self.healed;
                if let (true, Some(lease)) = (wanted, self.embedding.lease_ns) {
                    self.push(self.now + lease / 2 + 1, Event::Renew(request));
                }
            }
            Event::Tell(notice) => self.tell(&ClusterEvent::Fact(notice)),
            Event::Report(from) => {
                let report = Report { kv_tokens: self.rng.below(500), ..Report::default() };
                self.tell(&ClusterEvent::Notice { from, notice: Notice::Report(report) });
            }
            Event::Fault => self.fault(),
            Event::Join(index) => self.join(index),
            Event::Leave(machine) => {
                if self.places[machine.index as usize] == (machine.incarnation, true) {
                    self.places[machine.index as usize].1 = false;
                    self.tell(&ClusterEvent::Lose { machine });
                    self.push(self.now + 50_000, Event::Join(machine.index));
                }
            }
        }
    }

    fn arrive(&mut self, index: usize) {
        let client = self.setup.clients[index].clone();
        let arrival = Arrival {
            class: client.class,
            priority: client.priority,
            resumable: client.resumable,
            pin_token: client.pin_token.filter(|&pin| pin < self.cluster.machines_len()),
            ..Arrival::new(client.id, client.prompt_tokens, client.max_new_tokens)
        };
        self.out.counters.sent += 1;
        let request = arrival.request;
        if self.live.contains_key(&request) {
            return self.refuse(&ClusterEvent::Arrive(arrival));
        }
        self.live.insert(
            request,
            Live { owner: index, attempt: Attempt(0), parked: false, legs: [None; 2], touched_at: self.now },
        );
        self.tell(&ClusterEvent::Arrive(arrival));
        if !self.live.contains_key(&request) {
            return;
        }
        self.out.counters.accepted += 1;
        if let Some(after) = client.cancel_after_ns {
            self.push(self.now + after, Event::Cancel(request));
        }
        if let (Some(lease), true) =
            (self.embedding.lease_ns, self.rng.chance(self.embedding.renewed_permille))
        {
            self.push(self.now + lease / 2 + 1, Event::Renew(request));
        }
    }

    fn join(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if std::mem::replace(&mut place.1, true) {
            return;
        }
        place.0 += 1;
        let join = self.join_of(index);
        self.tell(&ClusterEvent::Join(join.clone()));
        // The same incarnation again is refused.
        self.refuse(&ClusterEvent::Join(join));
    }

    fn join_of(&self, index: u32) -> Join {
        let setup = &self.setup.machines[index as usize];
        Join {
            machine: MachineId { index, incarnation: self.places[index as usize].0 },
            role: setup.role,
            kv_capacity_tokens: setup.config.capacity_tokens(),
            speed_weight: setup.weight,
            link: setup.link,
            costs: setup.costs.clone(),
        }
    }

    /// A machine goes, is drained, reports, or the Cluster begins anew and knows of nothing.
    fn fault(&mut self) {
        self.out.faults += 1;
        let index = self.rng.below(self.places.len() as u64) as u32;
        let machine = MachineId { index, incarnation: self.places[index as usize].0 };
        match self.rng.below(10) {
            0..=3 => self.push(self.now, Event::Leave(machine)),
            4..=5 => self.tell(&ClusterEvent::Drain { machine }),
            6 => self.begin_anew(),
            _ => self.push(self.now, Event::Report(machine)),
        }
        self.faults_left -= 1;
        if self.faults_left > 0 {
            let after = self.rng.within(1, 20_000);
            self.push(self.now + after, Event::Fault);
        }
    }

    /// An external Cluster that dies takes what it knew along: its machines join the next one, and what is told of
    /// earlier placements is late.
    fn begin_anew(&mut self) {
        self.out.counters.restarts += 1;
        let epoch = Epoch(self.cluster.epoch().0 + 1);
        self.cluster = new_cluster(&self.setup, self.embedding, epoch);
        self.out.counters.lost += std::mem::take(&mut self.live).len() as u64;
        for index in 0..self.places.len() as u32 {
            self.places[index as usize].1 = false;
            self.join(index);
        }
    }

    fn heal(&mut self) {
        self.healed = true;
        (0..self.places.len() as u32).for_each(|index| {
            let (incarnation, there) = self.places[index as usize];
            let machine = MachineId { index, incarnation };
            let up = self.cluster.load(index).is_some_and(|load| load.state == MachineState::Up);
            if there && !up {
                self.places[index as usize].1 = false;
                self.tell(&ClusterEvent::Lose { machine });
            }
            self.join(index);
        });
    }

    fn give_up_the_silent(&mut self) {
        let silent = self.live.iter().filter(|(_, live)| !live.parked).map(|(&request, _)| request);
        for request in silent.collect::<Vec<_>>() {
            self.push(self.now, Event::Cancel(request));
        }
    }

    /// An event that contradicts what is known: it is refused, and nothing has changed.
    fn refuse(&mut self, event: &ClusterEvent) {
        self.out.counters.contradictions += 1;
        let (before, mut actions) = (format!("{:?}", self.cluster), Vec::new());
        let refused = self.cluster.handle(Time::from_ns(self.now + 1), event, &mut actions);
        assert!(refused.is_err(), "{event:?} is taken");
        assert!(actions.is_empty(), "{event:?} is refused and does {actions:?}");
        assert_eq!(before, format!("{:?}", self.cluster), "{event:?} is refused and changes something");
    }

    fn tell(&mut self, event: &ClusterEvent) {
        self.note(|now| format!("{now} {event:?}"));
        let delivered = |cluster: &Cluster| match event {
            ClusterEvent::Fact(Notice::Progress { key, .. }) => cluster.delivered(key.request),
            _ => None,
        };
        let (before, mut actions) = (delivered(&self.cluster), Vec::new());
        match self.cluster.handle(Time::from_ns(self.now), event, &mut actions) {
            Ok(Applied::Late) => {
                self.out.counters.late_copies += 1;
                assert!(actions.is_empty(), "{event:?} is late and does {actions:?}");
                assert_eq!(before, delivered(&self.cluster), "{event:?} is late and counts");
            }
            Ok(Applied::Yes) => self.touch(event),
            Err(error) => panic!("{event:?}: {error}"),
        }
        for action in actions {
            self.note(|now| format!("{now}     wants {action:?}"));
            let _ = write!(self.digest, "{} {action:?}", self.now);
            self.carry_out(&action);
        }
    }

    /// A call has applied: it extends the lease, and a source that it says has handed over is free.
    fn touch(&mut self, event: &ClusterEvent) {
        let (request, fact) = match event {
            // A source is not missed where its destination has the KV.
            ClusterEvent::Lose { machine } => return self.take_legs(*machine),
            ClusterEvent::Renew { request } => (*request, None),
            ClusterEvent::Fact(notice) => match key_of(notice) {
                Some(key) => (key.request, Some((key.attempt, notice))),
                None => return,
            },
            _ => return,
        };
        let Some(live) = self.live.get_mut(&request) else { return };
        live.touched_at = self.now;
        let Some((attempt, notice)) = fact else { return };
        assert!(live.attempt == attempt || live.parked, "{notice:?} applies to {:?}", live.attempt);
        let hands_over = matches!(notice, Notice::Released { .. } | Notice::Progress { .. });
        if let ([source @ Some(_), Some(_)], true) = (&mut live.legs, hands_over) {
            *source = None;
        }
    }

    fn take_legs(&mut self, machine: MachineId) {
        for leg in self.live.values_mut().flat_map(|live| &mut live.legs) {
            if *leg == Some(machine) {
                *leg = None;
            }
        }
    }

    fn carry_out(&mut self, action: &ClusterAction) {
        match *action {
            ClusterAction::Placed(ref placement) => self.placed(placement),
            ClusterAction::Rejected { request, .. } => {
                self.out.counters.rejected += 1;
                let Some(live) = self.live.remove(&request) else { panic!("{request:?} was rejected") };
                assert!(live.attempt == Attempt(0) && !live.parked, "accepted {request:?} was rejected");
            }
            ClusterAction::Parked { request } => {
                let live = self.known(request);
                (live.parked, live.legs) = (true, [None; 2]);
            }
            ClusterAction::Ended { request, outcome } => {
                let Some(live) = self.live.remove(&request) else { panic!("{request:?} ended twice") };
                if outcome == Outcome::Expired {
                    let silent_ns = self.now - live.touched_at;
                    let lease_ns = self.embedding.lease_ns;
                    assert!(
                        lease_ns == Some(silent_ns),
                        "{request:?} expired after {silent_ns} of {lease_ns:?}"
                    );
                }
                let counters = &mut self.out.counters;
                match outcome {
                    Outcome::Finished => counters.finished += 1,
                    Outcome::Cancelled => counters.cancelled += 1,
                    _ => counters.failed += 1,
                }
            }
            ClusterAction::Moved { .. } | ClusterAction::Faulted { .. } | ClusterAction::SetAside { .. } => {}
            ClusterAction::Drained { machine } => self.push(self.now, Event::Leave(machine)),
            ClusterAction::Command { .. } | ClusterAction::Registered { .. } => {
                panic!("an embedder is told {action:?}")
            }
        }
    }

    fn known(&mut self, request: RequestId) -> &mut Live {
        self.live.get_mut(&request).unwrap_or_else(|| panic!("{request:?} is not live"))
    }

    /// Runs a placement: its facts come as time goes on.
    fn placed(&mut self, placement: &Placement) {
        for leg in placement.legs() {
            let Some(machine) = leg.machine.id() else { continue };
            let here = self.places[machine.index as usize] == (machine.incarnation, true);
            assert!(here, "{:?} is placed on {machine:?}, which is gone", placement.request);
        }
        let (request, attempt, now) = (placement.request, placement.attempt, self.now);
        let live = self.known(request);
        live.parked = false;
        live.touched_at = now;
        live.legs = placement.legs.map(|leg| leg.and_then(|leg| leg.machine.id()));
        // A second leg that has found its machine runs on with what is told already.
        if live.attempt == attempt {
            return;
        }
        assert!(live.attempt < attempt, "{request:?} goes back to {attempt:?}");
        live.attempt = attempt;
        let owner = live.owner;
        let delivered = self.cluster.delivered(request).unwrap_or(0);
        let mut left = self.setup.clients[owner].output_tokens.saturating_sub(delivered);
        let tokens = left;
        let key = LegKey { request, attempt };
        let mut at = self.now + self.rng.within(0, 2_000);
        self.send(at, Notice::PrefillDone { key, sampled: true });
        if placement.legs[1].is_some() {
            at += self.rng.within(0, 1_000);
            if self.rng.chance(self.embedding.transfer_fails_permille) && !self.healed {
                return self.send(at, Notice::TransferFailed { key });
            }
            self.send(at, Notice::Landed { key });
            // Whoever does not say so is taken at the first token of the destination.
            if self.rng.chance(500) {
                self.send(at, Notice::Released { key, to: None, report: Report::default() });
            }
        }
        while left > 0 {
            let tokens = (self.rng.within(1, 8) as u32).min(left);
            left -= tokens;
            at += self.rng.within(1, 3_000);
            self.send(at, Notice::Progress { key, tokens });
        }
        self.send(at, Notice::Finished { key, tokens });
    }

    /// A fact goes to the Cluster, by an embedder that is not always reliable.
    fn send(&mut self, at: u64, notice: Notice) {
        if self.healed {
            return self.push(at, Event::Tell(notice));
        }
        let Embedding { lost_permille, twice_permille, corrupted_permille, .. } = self.embedding;
        if self.rng.chance(twice_permille) {
            let late = at + self.rng.within(0, 50_000);
            self.push(late, Event::Tell(notice));
        }
        if self.rng.chance(lost_permille) {
            return;
        }
        let notice = if self.rng.chance(corrupted_permille) { self.corrupt(notice) } else { notice };
        self.push(at, Event::Tell(notice));
    }

    /// The same with another request, attempt or count in it.
    fn corrupt(&mut self, mut notice: Notice) -> Notice {
        let request = RequestId(self.rng.below(self.setup.clients.len() as u64 + 2));
        let attempt = Attempt(self.rng.pick(&[0, 1, 2, 3, u32::MAX]));
        let count = self.rng.pick(&[0, 1, 7, u32::MAX]);
        let which = self.rng.below(3);
        match &mut notice {
            Notice::Progress { tokens, .. } | Notice::Finished { tokens, .. } if which == 0 => {
                *tokens = count;
            }
            Notice::PrefillDone { key, .. }
            | Notice::Landed { key }
            | Notice::Released { key, .. }
            | Notice::Progress { key, .. }
            | Notice::TransferFailed { key }
            | Notice::Finished { key, .. } => {
                let of = if which == 1 { request } else { key.request };
                *key = LegKey { request: of, attempt: if which == 1 { key.attempt } else { attempt } };
            }
            _ => {}
        }
        notice
    }

    fn note(&mut self, text: impl FnOnce(u64) -> String) {
        let Some((tail, lines)) = &self.tail else { return };
        let mut tail = tail.borrow_mut();
        if tail.len() >= *lines {
            tail.pop_front();
        }
        tail.push_back(text(self.now));
    }

    fn check(&self) {
        if let Err(fault) = self.cluster.check() {
            panic!("at {}: {fault}", self.now);
        }
        assert_eq!(self.cluster.live_requests(), self.live.len(), "live requests");
        let parked = self.live.values().filter(|live| live.parked).count();
        assert_eq!(self.cluster.parked_requests(), parked, "parked requests");
        let mut legs = vec![0; self.places.len()];
        for machine in self.live.values().flat_map(|live| live.legs).flatten() {
            legs[machine.index as usize] += 1;
        }
        for (index, legs) in legs.into_iter().enumerate() {
            let load = self.cluster.load(index as u32);
            assert_eq!(load.map_or(0, |load| load.legs), legs, "legs on machine {index}");
        }
    }

    /// Nothing is left on any machine.
    fn check_rest(&self) {
        for index in 0..self.cluster.machines_len() {
            let Some(load) = self.cluster.load(index) else { continue };
            let left = (load.booked, load.legs, load.prompt_pending_tokens);
            assert_eq!(left, (0, 0, 0), "{load:?} with no live request");
        }
    }
}

/// The leg that a fact is about.
fn key_of(notice: &Notice) -> Option<LegKey> {
    match *notice {
        Notice::PrefillDone { key, .. }
        | Notice::Landed { key }
        | Notice::Released { key, .. }
        | Notice::Progress { key, .. }
        | Notice::TransferFailed { key }
        | Notice::Finished { key, .. } => Some(key),
        _ => None,
    }
}

fn new_cluster(setup: &Setup, embedding: Embedding, epoch: Epoch) -> Cluster {
    let config =
        ClusterConfig { level: Level::External, lease_ns: embedding.lease_ns, epoch, ..setup.cluster };
    let mut cluster = Cluster::new(config).unwrap_or_else(|error| panic!("{error}"));
    for (class, slo) in setup.slos.iter().enumerate() {
        let event = ClusterEvent::SetSlo { class: class as u32, slo: *slo };
        if let Err(error) = cluster.handle(Time::ZERO, &event, &mut Vec::new()) {
            panic!("{error}");
        }
    }
    cluster
}
