//! The cluster-level scheduler (CLS): pools, placement, the life of every request.
//!
//! It never sees a batch or a block id. It books what it places, corrects its books from what machines report, and
//! decides again when a machine refuses, drains or is lost.
//!
//! Invariants (recounted by [`Cluster::check`]): each request is in one state and ends once; booked load equals a
//! recount over live legs; the load indexes equal a plain scan; no accepted request is dropped.

mod admission;
mod check;
mod claims;
mod copies;
mod facts;
mod load_index;
mod machines;
mod moving;
mod placing;
mod policies;
mod pools;
mod predictor;
mod recovery;
mod requests;
mod restart;
mod retry;
mod sessions;
mod transfers;

use std::collections::{BTreeMap, BTreeSet};

pub use check::ClusterFault;
pub use machines::MachineState;
pub use pools::Side;

use crate::config::{ClusterConfig, ConfigError, Level};
use crate::error::{Applied, EventError};
use crate::event::{ClusterAction, ClusterEvent, Join, Role};
use crate::id::{AssignmentSeq, Attempt, Epoch, LegKey, MachineId, RequestId};
use crate::leg::Command;
use crate::time::Time;
use machines::{Booking, Closing, MachineEntry};
use pools::{Pools, View};
use predictor::Predictor;
use requests::{Place, Requests};
use transfers::Suspects;

/// What a Cluster has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClusterCounters {
    /// Placements made, further attempts included.
    pub placed: u64,
    /// Arrivals turned away.
    pub rejected: u64,
    /// Requests that ended as finished.
    pub finished: u64,
    /// Requests that the client gave up.
    pub cancelled: u64,
    /// Requests that failed or expired.
    pub failed: u64,
    /// Times a request was parked.
    pub parked: u64,
    /// Faults that cost a request its placement.
    pub faults: u64,
    /// Reservations a destination refused.
    pub refused: u64,
    /// Requests taken back from a handoff, or from a machine, where they did not go on within `park_limit_ns`.
    pub relieved: u64,
    /// Second legs that got another machine because the first came to nothing; their KV was still at the source.
    pub resent: u64,
    /// Requests taken over from machines after a restart.
    pub adopted: u64,
    /// Machines that moved to the mixed pool.
    pub to_mixed: u64,
    /// Machines that went home.
    pub to_home: u64,
    /// Times a machine was set aside because its transfers failed.
    #[cfg_attr(feature = "serde", serde(default))]
    pub set_aside: u64,
    /// Events about what is over.
    pub late: u64,
}

/// What is booked on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineLoad {
    /// Which.
    pub machine: MachineId,
    /// Home pool.
    pub home: Role,
    /// The pool it is in now.
    pub pool: Role,
    /// Whether it takes work.
    pub state: MachineState,
    /// Prompt tokens booked and not yet prefilled.
    pub prompt_pending_tokens: u64,
    /// Live legs.
    pub legs: u32,
    /// Pending prompt tokens, and one for each request that decodes here.
    pub booked: u64,
    /// KV tokens: last report and bookings since.
    pub kv_tokens: u64,
    /// KV tokens it can hold.
    pub kv_capacity_tokens: u64,
    /// Of machines with as much load, the one with the lowest is taken.
    pub rank: u64,
    /// When it made the report that is believed; none counts by our own books.
    pub reported_at: Option<Time>,
    /// Until when no pair is made with it, because its transfers failed.
    pub aside_until: Option<Time>,
}

/// The cluster-level scheduler. `Clone` is a snapshot: the copy, given the same events, answers the same actions.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cluster {
    config: ClusterConfig,
    now: Time,
    machines: Vec<MachineEntry>,
    pools: Pools,
    requests: Requests,
    arrivals: u64,
    /// What is added to its times for [`Terms::line`](crate::leg::Terms::line), once there is one: they come after those
    /// of the Cluster before.
    #[cfg_attr(feature = "serde", serde(default))]
    line_base_ns: Option<i64>,
    /// Accepted requests without a live leg, in line: the longer they wait and the higher their priority, the sooner.
    parked: BTreeSet<Place>,
    parked_by_class: BTreeMap<u32, u32>,
    /// Parked requests that no machine known can hold, by the time they end.
    unplaceable: BTreeSet<(Time, u32)>,
    /// Whether a machine has come or changed since the parked were last tried: nothing else can find them a place.
    machines_changed: bool,
    /// Requests whose second leg has no machine, in line.
    unreserved: BTreeSet<Place>,
    /// Legs given up whose machine has not yet said that the blocks are free.
    closing: BTreeMap<(LegKey, u32), Closing>,
    /// Leases by the time they run out.
    leases: BTreeSet<(Time, u32)>,
    /// Machines that may go home once their hold-down is over.
    held_in_mixed: BTreeSet<(Time, u32)>,
    /// Machines without a session by the time they are lost.
    away: BTreeSet<(Time, u32)>,
    /// Machines whose requests go on elsewhere, by when they are to.
    #[cfg_attr(feature = "serde", serde(default))]
    moving: BTreeSet<(Time, u32)>,
    /// After a restart: when the time in which machines register ends.
    opens_at: Option<Time>,
    /// What has ended since the restart: a machine that registers late may still claim it.
    ended_in_grace: BTreeSet<RequestId>,
    retried_at: Time,
    /// When handoffs were last looked over for ones that do not go on.
    swept_at: Time,
    /// When reports are next looked over for ones that are too old, if there are any.
    reports_due: Option<Time>,
    kv_capacity_tokens_max: u64,
    /// What requests and passes are expected to take.
    predictor: Predictor,
    /// Machines whose transfers fail.
    suspects: Suspects,
    counters: ClusterCounters,
}

impl Cluster {
    /// A Cluster without machines.
    ///
    /// # Errors
    /// The first option outside its range.
    pub fn new(config: ClusterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            now: Time::ZERO,
            machines: Vec::new(),
            pools: Pools::new(config.ties, config.recovery_headroom_permille > 0),
            requests: Requests::default(),
            arrivals: 0,
            line_base_ns: None,
            parked: BTreeSet::new(),
            parked_by_class: BTreeMap::new(),
            unplaceable: BTreeSet::new(),
            machines_changed: false,
            unreserved: BTreeSet::new(),
            closing: BTreeMap::new(),
            leases: BTreeSet::new(),
            held_in_mixed: BTreeSet::new(),
            away: BTreeSet::new(),
            moving: BTreeSet::new(),
            // From the first event on.
            opens_at: (config.grace_ns > 0).then_some(Time::MAX),
            ended_in_grace: BTreeSet::new(),
            retried_at: Time::ZERO,
            swept_at: Time::ZERO,
            reports_due: None,
            kv_capacity_tokens_max: 0,
            predictor: Predictor::default(),
            suspects: Suspects::default(),
            counters: ClusterCounters::default(),
        })
    }

    /// Applies one event and appends what it wants done.
    ///
    /// A `now` below the last one seen is raised to it. An event about something that is over is counted and
    /// answers [`Applied::Late`]. An arrival answers with [`ClusterAction::Placed`] or
    /// [`ClusterAction::Rejected`]. O(log machines) for arrivals and facts; a lost machine costs O(live requests).
    ///
    /// # Errors
    /// [`EventError`] when the event contradicts what is known; nothing has changed.
    pub fn handle(
        &mut self,
        now: Time,
        event: &ClusterEvent,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        let before = self.now;
        self.now = before.max(now);
        let result = match *event {
            ClusterEvent::Arrive(arrival) => self.arrive(arrival, actions),
            ClusterEvent::Cancel { request } => Ok(self.cancel(request, actions)),
            ClusterEvent::Join(ref join) => self.join(join, actions),
            ClusterEvent::Register(ref registration) => self.register(registration, actions),
            ClusterEvent::Disconnect { machine } => self.disconnect(machine, actions),
            ClusterEvent::Drain { machine } => self.drain(machine, actions),
            ClusterEvent::Undrain { machine } => self.undrain(machine, actions),
            ClusterEvent::Leave { machine } => self.depart(machine, actions),
            ClusterEvent::Lose { machine } => self.lose(machine, actions),
            ClusterEvent::Notice { from, ref notice } => self.notice(from, notice, actions),
            ClusterEvent::Fact(ref notice) => Ok(self.fact(None, notice, actions)),
            ClusterEvent::Renew { request } => Ok(self.renew(request)),
            ClusterEvent::SetSlo { class, slo } => self.set_slo(class, slo),
            ClusterEvent::Tick => Ok(self.tick(actions)),
        };
        if result.is_err() {
            self.now = before;
        } else if self.opens_at == Some(Time::MAX) {
            self.opens_at = Some(self.now.after(self.config.grace_ns));
        }
        result
    }

    fn join(&mut self, join: &Join, actions: &mut Vec<ClusterAction>) -> Result<Applied, EventError> {
        let MachineId { index, incarnation } = join.machine;
        let follows = match self.machines.get(index as usize) {
            Some(entry) => entry.is_followed_by(incarnation),
            None => index as usize == self.machines.len(),
        };
        if !follows {
            return Err(EventError::MachineTaken(join.machine));
        }
        self.seat_machine(join)?;
        self.replace_lost(actions);
        self.retry(actions);
        self.cover_all(actions);
        Ok(Applied::Yes)
    }

    /// Takes a new incarnation in; the old one is lost at once.
    fn seat_machine(&mut self, join: &Join) -> Result<(), EventError> {
        join.check()?;
        let index = join.machine.index;
        // Machines register in any order; the places before this one are for those to come.
        while self.machines.len() <= index as usize {
            self.machines.push(MachineEntry::vacant(self.machines.len() as u32));
        }
        self.forget_machine(index);
        self.machines[index as usize] = MachineEntry::new(join);
        self.predictor.join(index, join.costs.as_ref());
        self.enroll(index);
        Ok(())
    }

    /// Takes in what a machine that is back says of itself: it may hold less than before. Its home stays.
    fn take_terms(&mut self, join: &Join) {
        let index = join.machine.index;
        let entry = &mut self.machines[index as usize];
        let known = (entry.kv_capacity_tokens, entry.speed_weight, entry.link);
        self.predictor.join(index, join.costs.as_ref());
        if known == (join.kv_capacity_tokens, join.speed_weight, join.link) {
            return;
        }
        if std::mem::take(&mut entry.pooled) {
            self.pools.leave(index, entry);
        }
        (entry.kv_capacity_tokens, entry.speed_weight, entry.link) =
            (join.kv_capacity_tokens, join.speed_weight, join.link);
        self.enroll(index);
        self.measure_all();
    }

    /// Puts a machine into its pool or takes it out, as its state demands.
    fn enroll(&mut self, index: u32) {
        let entry = &mut self.machines[index as usize];
        let pooled = entry.takes_work();
        if entry.pooled != pooled {
            entry.pooled = pooled;
            if pooled {
                self.pools.enter(index, entry);
                self.refresh(index);
            } else {
                self.pools.leave(index, entry);
            }
        }
        self.machines_changed = true;
        self.measure_largest(index);
    }

    /// Moves a machine to another pool.
    fn move_to(&mut self, index: u32, pool: Role, actions: &mut Vec<ClusterAction>) {
        let entry = &mut self.machines[index as usize];
        self.pools.leave(index, entry);
        entry.pool = pool;
        self.pools.enter(index, entry);
        let machine = entry.id;
        self.refresh(index);
        actions.push(ClusterAction::Moved { machine, pool });
    }

    /// The capacity of the largest machine that is up, after a change of one. O(1) unless that one was the largest.
    fn measure_largest(&mut self, changed: u32) {
        let (entry, before) = (&self.machines[changed as usize], self.kv_capacity_tokens_max);
        if entry.state == MachineState::Up {
            self.kv_capacity_tokens_max = before.max(entry.kv_capacity_tokens);
        } else if entry.kv_capacity_tokens >= before {
            return self.measure_all();
        }
        if self.kv_capacity_tokens_max != before {
            self.judge_all_parked();
        }
    }

    fn measure_all(&mut self) {
        let up = self.machines.iter().filter(|entry| entry.state == MachineState::Up);
        self.kv_capacity_tokens_max = up.map(|entry| entry.kv_capacity_tokens).max().unwrap_or(0);
        self.judge_all_parked();
    }

    /// The entry of a live machine; `None` for an incarnation that is over.
    fn live(&self, machine: MachineId) -> Result<Option<u32>, EventError> {
        let entry =
            self.machines.get(machine.index as usize).ok_or(EventError::UnknownMachine(machine.index))?;
        let live = entry.id == machine && entry.state != MachineState::Lost;
        Ok(live.then_some(machine.index))
    }

    fn entry(&mut self, machine: u32) -> &mut MachineEntry {
        &mut self.machines[machine as usize]
    }

    fn refresh(&mut self, machine: u32) {
        self.pools.refresh(self.config.policy, machine, &self.machines[machine as usize]);
    }

    fn view(&self) -> View<'_> {
        View {
            config: &self.config,
            machines: &self.machines,
            pools: &self.pools,
            suspects: &self.suspects,
            placements: self.counters.placed,
        }
    }

    fn is_managed(&self) -> bool {
        self.config.level == Level::Managed
    }

    /// Sends a command that a booking goes with, if machines are ours to command. Returns its number.
    fn command(
        &mut self,
        to: MachineId,
        booking: Option<&mut Booking>,
        command: Command,
        actions: &mut Vec<ClusterAction>,
    ) -> AssignmentSeq {
        if !self.is_managed() {
            return AssignmentSeq(0);
        }
        let entry = self.entry(to.index);
        let seq = entry.assign(booking);
        // Without a session it would get nowhere; the next registration shows what is missing.
        if entry.away_since.is_none() {
            actions.push(ClusterAction::Command { to, seq, command });
        }
        seq
    }

    fn late(&mut self) -> Applied {
        self.counters.late += 1;
        Applied::Late
    }

    /// When the next Tick is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let mut due = None;
        if !self.is_recovering() {
            if !self.unreserved.is_empty() {
                due = Some(self.retried_at.after(self.config.retry_interval_ns));
            }
            if self.is_managed() && self.requests.len() > 0 {
                due = Time::earliest(due, Some(self.swept_at.after(self.config.park_limit_ns)));
            }
            due = Time::earliest(due, self.moving.first().map(|&(due, _)| due));
        }
        for line in [&self.leases, &self.held_in_mixed, &self.away, &self.unplaceable] {
            due = Time::earliest(due, line.first().map(|&(due, _)| due));
        }
        due = Time::earliest(Time::earliest(due, self.suspects.next_due()), self.reports_due);
        Time::earliest(due, self.opens_at.filter(|&opens| opens != Time::MAX))
    }

    /// The live attempt of a request.
    pub fn attempt(&self, request: RequestId) -> Option<Attempt> {
        self.requests.find(request).map(|slot| self.requests.get(slot).attempt)
    }

    /// Whether a machine has a leg of a live attempt now, or the word of it is on its way there.
    pub fn runs(&self, key: LegKey, machine: MachineId) -> bool {
        self.requests.find_key(key).is_some_and(|slot| self.requests.get(slot).is_run_by(machine))
    }

    /// Output tokens that the client of a live request has, all attempts together.
    pub fn delivered(&self, request: RequestId) -> Option<u32> {
        self.requests.find(request).map(|slot| self.requests.get(slot).delivered)
    }

    /// What is booked on a machine.
    pub fn load(&self, machine: u32) -> Option<MachineLoad> {
        let entry = self.machines.get(machine as usize)?;
        Some(MachineLoad {
            machine: entry.id,
            home: entry.home,
            pool: entry.pool,
            state: entry.shown_state(),
            prompt_pending_tokens: entry.booked - u64::from(entry.decode_legs),
            legs: entry.legs,
            booked: entry.booked,
            kv_tokens: entry.kv_load,
            kv_capacity_tokens: entry.kv_capacity_tokens,
            rank: self.pools.rank(machine),
            reported_at: entry.reported_at(),
            aside_until: self.suspects.aside_until(machine),
        })
    }

    /// Machines ever known, lost ones included.
    pub fn machines_len(&self) -> u32 {
        self.machines.len() as u32
    }

    /// Live requests.
    pub fn live_requests(&self) -> usize {
        self.requests.len()
    }

    /// Accepted requests that wait for a machine.
    pub fn parked_requests(&self) -> usize {
        self.parked.len()
    }

    /// Second legs that wait for room on a machine.
    pub fn unreserved_legs(&self) -> usize {
        self.unreserved.len()
    }

    /// What it has counted.
    pub fn counters(&self) -> ClusterCounters {
        self.counters
    }

    /// Which Cluster of its service it is: what its commands carry.
    pub fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    /// Whether it has restarted and still hears from its machines before it places anything.
    pub fn is_recovering(&self) -> bool {
        self.opens_at.is_some()
    }

    /// Its options.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// The last time seen.
    pub fn now(&self) -> Time {
        self.now
    }
}
