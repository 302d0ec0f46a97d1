//! The machine-level scheduler (MLS): queues, batches, KV blocks and its half of each handoff.
//!
//! One `Machine` per schedulable copy of the model. It never sees another machine's state, takes any work, and its
//! batch rule follows from what it holds, so changing pools needs no message. It knows no role, no clock, no bytes.
//!
//! Invariants (recounted by [`Machine::check`]): free + held + cached + quarantined blocks = total and no block has
//! two owners; every leg is in the structure its state names; the reported KV tokens equal a recount; decodes and
//! prompts are in arrival order.

mod abort;
mod batch;
mod check;
mod handoff;
mod legs;
mod pass;
mod pipeline;
mod plan;
mod session;
mod timeouts;

use std::collections::{BTreeMap, VecDeque};

pub use check::MachineFault;
pub use plan::{BatchPlan, Prefill};

use crate::config::{ConfigError, MachineConfig};
use crate::error::{Applied, EventError};
use crate::event::{MachineAction, MachineEvent};
use crate::id::{AssignmentSeq, Epoch, IdMap, LegKey, MachineId, Order};
use crate::kv::BlockPool;
use crate::leg::{Command, LegState, Notice, Report, Work};
use crate::time::Time;
use batch::Decode;
use legs::Legs;
use pipeline::{NO_PASS, Pipeline};
use session::Kept;

/// What a machine has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MachineCounters {
    /// Messages about legs that are gone.
    pub late: u64,
    /// Decodes that lost their blocks.
    pub evicted: u64,
    /// Decodes that began to sit out.
    pub paused: u64,
    /// Reservations refused.
    pub refused: u64,
    /// Transfers stopped because they took too long.
    pub stalled: u64,
    /// Times it asked for a leg to be taken back.
    pub relieved: u64,
    /// Commands of a Cluster that has been replaced.
    pub stale: u64,
}

/// A leg in the prompt queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Queued {
    #[cfg_attr(feature = "serde", serde(default))]
    line: i64,
    order: Order,
    slot: u32,
}

impl Queued {
    /// The least goes first.
    fn place(&self) -> (i64, Order) {
        (self.line, self.order)
    }
}

/// The machine-level scheduler. `Clone` is a snapshot: the copy, given the same events, answers the same actions.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Machine {
    id: MachineId,
    config: MachineConfig,
    now: Time,
    pool: BlockPool,
    legs: Legs,
    /// Legs that wait for a place as a prompt, by arrival.
    queue: VecDeque<Queued>,
    /// Legs that decode, by arrival.
    decodes: Vec<Decode>,
    /// Legs that decode from the next pass on.
    joining: Vec<u32>,
    /// Decodes with a pass missed.
    sitting_out: u32,
    /// Every decode is in the pass being built or run. Never with a pipeline.
    all_run: bool,
    /// Some decode ends with its running pass.
    ending: bool,
    /// The decodes of the next pass are not those of the last.
    decodes_changed: bool,
    /// The newest pass in flight, or the last one.
    #[cfg_attr(feature = "serde", serde(with = "plan::whole"))]
    plan: BatchPlan,
    pipeline: Pipeline,
    /// KV tokens held or promised; what reports say.
    kv_tokens: u64,
    /// Blocks of the largest handoff so far: the default handoff floor.
    handoff_blocks_seen_max: u32,
    /// Grants that came before the leg they are for: the commands about one handoff travel on two sessions.
    early_grants: BTreeMap<LegKey, MachineId>,
    /// The last incarnation lost under each index.
    lost: BTreeMap<u32, u32>,
    granted: u32,
    grants_waiting: VecDeque<LegKey>,
    sending: u32,
    sends_waiting: VecDeque<LegKey>,
    /// Requests kept without a leg, until the Cluster releases them.
    #[cfg_attr(feature = "serde", serde(with = "crate::id::id_map"))]
    kept: IdMap<LegKey, Kept>,
    /// Transfers by the time they will have taken too long; one that has ended leaves when it is first in line.
    stalls: VecDeque<(Time, LegKey)>,
    /// Since when there is work and none of it finds room.
    stuck_since: Option<Time>,
    /// The newest Cluster heard of.
    epoch: Epoch,
    /// Since when there is no Cluster to talk to.
    orphaned_at: Option<Time>,
    last_seq: AssignmentSeq,
    last_report: Report,
    reported_at: Time,
    counters: MachineCounters,
}

impl Machine {
    /// A machine with nothing to do.
    ///
    /// # Errors
    /// The first option outside its range.
    pub fn new(id: MachineId, config: MachineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut machine = Self {
            id,
            config,
            now: Time::ZERO,
            pool: BlockPool::new(config.blocks),
            legs: Legs::default(),
            queue: VecDeque::new(),
            decodes: Vec::new(),
            joining: Vec::new(),
            sitting_out: 0,
            all_run: config.pipeline_stages == 1,
            ending: false,
            decodes_changed: false,
            plan: BatchPlan::default(),
            pipeline: Pipeline::default(),
            kv_tokens: 0,
            handoff_blocks_seen_max: 0,
            early_grants: BTreeMap::new(),
            lost: BTreeMap::new(),
            granted: 0,
            grants_waiting: VecDeque::new(),
            sending: 0,
            sends_waiting: VecDeque::new(),
            kept: IdMap::default(),
            stalls: VecDeque::new(),
            stuck_since: None,
            epoch: Epoch(0),
            orphaned_at: None,
            last_seq: AssignmentSeq(0),
            last_report: Report::default(),
            reported_at: Time::ZERO,
            counters: MachineCounters::default(),
        };
        machine.last_report = machine.report();
        Ok(machine)
    }

    /// Applies one event and appends what it wants done.
    ///
    /// A `now` below the last one seen is raised to it. An event about a leg that is gone is counted and answers
    /// [`Applied::Late`].
    ///
    /// # Errors
    /// [`EventError`] when the event contradicts what the machine holds; nothing has changed.
    pub fn handle(
        &mut self,
        now: Time,
        event: &MachineEvent,
        actions: &mut Vec<MachineAction>,
    ) -> Result<Applied, EventError> {
        let before = self.now;
        self.now = before.max(now);
        let first = actions.len();
        let result = self.apply(event, actions);
        if result.is_err() {
            self.now = before;
            return result;
        }
        match event {
            MachineEvent::Tick => self.tick(actions),
            _ if !self.may_start() => {}
            MachineEvent::IterationDone { .. } | MachineEvent::StageFree { .. } => self.start_pass(actions),
            // An idle machine starts with the Tick that is due at once: what arrives at the same instant (more
            // prompts, the grant that makes a transfer layer-wise) joins the pass.
            _ => self.pipeline.is_due = self.has_work(),
        }
        if self.orphaned_at.is_some() {
            Self::mute(first, actions);
        }
        result
    }

    fn apply(
        &mut self,
        event: &MachineEvent,
        actions: &mut Vec<MachineAction>,
    ) -> Result<Applied, EventError> {
        Ok(match *event {
            MachineEvent::Command { epoch, seq, command } => {
                if self.is_stale(epoch) {
                    return Ok(self.late());
                }
                let applied = self.command(command, seq, actions)?;
                self.follow(epoch);
                self.last_seq = self.last_seq.max(seq);
                applied
            }
            MachineEvent::ClusterLost => self.cluster_lost(),
            MachineEvent::Registered { epoch } => self.registered(epoch, actions),
            MachineEvent::Peer { from, message } => self.peer(from, message, actions),
            MachineEvent::StageFree { pass } => self.stage_free(pass)?,
            MachineEvent::IterationDone { pass, ref ended } => self.iteration_done(pass, ended, actions)?,
            MachineEvent::LayersLanded { key, layers, of } => self.layers_landed(key, layers, of, actions),
            MachineEvent::LocalDone { key } => self.local_done(key, actions),
            MachineEvent::TransferFailed { key } => self.transfer_failed(key, actions),
            MachineEvent::Fenced { key } => self.fenced(key, actions),
            MachineEvent::PeerLost { machine } => self.peer_lost(machine, actions),
            MachineEvent::PeerReset { machine } => self.peer_reset(machine, actions),
            MachineEvent::Tick => Applied::Yes,
        })
    }

    fn command(
        &mut self,
        command: Command,
        seq: AssignmentSeq,
        actions: &mut Vec<MachineAction>,
    ) -> Result<Applied, EventError> {
        Ok(match command {
            Command::Reserve { key, order, work, source, start } => {
                let applied = self.reserve(key, order, work, source, seq, actions)?;
                if let Some(slot) = self.legs.find(key).filter(|_| start) {
                    self.legs.get_mut(slot).started = true;
                }
                applied
            }
            Command::Compute { key, order, work } => self.compute(key, order, work)?,
            Command::Send { key, to, mode } => self.send(key, to, mode, actions)?,
            Command::Start { key } => self.start(key),
            Command::Abort { key } => self.abort(key, seq, actions),
            Command::Keep { key, order, work } => self.keep(key, order, work),
            Command::Release { key } => self.release_kept(key),
            Command::Confirm { key, delivered } => self.confirm(key, delivered, actions),
        })
    }

    fn compute(&mut self, key: LegKey, order: Order, work: Work) -> Result<Applied, EventError> {
        self.check_new(key, work)?;
        let slot = self.legs.insert(key, order, work, LegState::QUEUED);
        self.legs.get_mut(slot).granted_by = self.early_grants.remove(&key);
        self.kv_tokens += u64::from(work.kv_tokens());
        self.enqueue(slot);
        Ok(Applied::Yes)
    }

    fn check_new(&self, key: LegKey, work: Work) -> Result<(), EventError> {
        if self.legs.find(key).is_some() {
            return Err(EventError::DuplicateLeg(key));
        }
        let (tokens, capacity_tokens) = (work.kv_tokens(), self.config.capacity_tokens());
        if u64::from(tokens) > capacity_tokens {
            return Err(EventError::TooLarge { key, tokens, capacity_tokens });
        }
        Ok(())
    }

    /// The pass first: what it changes goes into the report.
    fn tick(&mut self, actions: &mut Vec<MachineAction>) {
        if self.pipeline.is_due {
            self.start_pass(actions);
        }
        self.time_out(actions);
        if self.report_due().is_some_and(|due| due <= self.now) {
            let report = self.riding_report();
            actions.push(MachineAction::Notify { notice: Notice::Report(report) });
        }
    }

    /// When the next Tick is due: at once if a pass may start and has something to run, else the report interval after
    /// the last report, if there is something new to tell or a pass is running.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.pipeline.is_due {
            return Some(self.now);
        }
        Time::earliest(self.report_due(), self.timeout_due())
    }

    fn report_due(&self) -> Option<Time> {
        let Report { seq, kv_tokens, free_blocks, legs, quarantined_blocks, .. } = self.last_report;
        // A pass longer than the interval is told of, lest it be taken for silence.
        let tells = self.is_running()
            || seq != self.last_seq
            || kv_tokens != self.kv_tokens
            || free_blocks != self.pool.free()
            || legs != self.legs.len()
            || quarantined_blocks != self.pool.quarantined();
        (tells && self.orphaned_at.is_none()).then(|| self.reported_at.after(self.config.report_interval_ns))
    }

    /// The pass that started last.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// Whether a pass could have something in it that is in no other.
    fn has_work(&self) -> bool {
        !self.queue.is_empty() || self.decodes.iter().any(|decode| decode.runs == NO_PASS)
    }

    /// What a report would say now.
    pub fn report(&self) -> Report {
        Report {
            seq: self.last_seq,
            kv_tokens: self.kv_tokens,
            free_blocks: self.pool.free(),
            legs: self.legs.len(),
            running: self.is_running(),
            quarantined_blocks: self.pool.quarantined(),
            over_quarantine: self.is_over_quarantine(),
        }
    }

    /// The last time seen.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Its name.
    pub fn id(&self) -> MachineId {
        self.id
    }

    /// Its options.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// Its blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// What it has counted.
    pub fn counters(&self) -> MachineCounters {
        self.counters
    }

    /// Whether it holds no leg.
    pub fn is_idle(&self) -> bool {
        self.legs.len() == 0
    }

    /// Requests kept without a leg.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Prompts waiting and requests decoding.
    pub fn queue_lengths(&self) -> (usize, usize) {
        (self.queue.len(), self.decodes.len() + self.joining.len())
    }

    /// The state, order and blocks of a leg, if it is here.
    pub fn leg(&self, key: LegKey) -> Option<(LegState, &crate::kv::BlockTable)> {
        let leg = self.legs.get(self.legs.find(key)?);
        Some((leg.state, &leg.table))
    }

    /// The other machines of a leg's handoff: who writes its KV here, and who is to have it next.
    pub fn leg_peers(&self, key: LegKey) -> (Option<MachineId>, Option<MachineId>) {
        let leg = self.legs.find(key).map(|slot| self.legs.get(slot));
        leg.map_or((None, None), |leg| (leg.source, leg.to.map(|(to, _)| to)))
    }

    /// The keys of the legs here, in no particular order.
    pub fn leg_keys(&self) -> impl Iterator<Item = LegKey> {
        self.legs.iter().map(|(_, leg)| leg.key)
    }

    /// A report that goes out with this event: the interval starts anew.
    fn riding_report(&mut self) -> Report {
        self.last_report = self.report();
        self.reported_at = self.now;
        self.last_report
    }

    fn late(&mut self) -> Applied {
        self.counters.late += 1;
        Applied::Late
    }

    fn is_lost(&self, machine: MachineId) -> bool {
        self.lost.get(&machine.index).is_some_and(|&incarnation| machine.incarnation <= incarnation)
    }

    fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.block_tokens)
    }

    fn handoff_floor_blocks(&self) -> u32 {
        self.config.handoff_floor_blocks.unwrap_or(self.handoff_blocks_seen_max)
    }
}
