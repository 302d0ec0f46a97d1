//! Machines that crash and come back. A crash takes a machine away with all it holds: its queue, its running pass, its
//! blocks, and every transfer and message from it or to it. The Cluster and the other machines hear of it at once.
//!
//! Clients keep the tokens they have. A gateway knows these, so before the loss it tells the Cluster what each request
//! has been given; the core then goes on after them. Where requests restart, it tells of those only that have ended.
//! What happens without a Cluster is in `outages`.

use std::collections::BTreeMap;

use splitcore_core::event::{ClusterEvent, Join, MachineEvent};
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Compute, Inbound, Notice};
use splitcore_core::machine::Machine;

use super::flow_line::TimedPass;
use super::outages::Outage;
use super::{Event, World, internal};
use crate::SimError;
use crate::faults::{Failures, FaultPlan, Kill, Recovery, Target};
use crate::observer::Observer;
use crate::report::{FaultTally, Outcome};
use crate::setup::Setup;

/// What crashes need and leave behind.
pub(super) struct Crashes {
    pub(super) recovery: Recovery,
    kills: Vec<Kill>,
    failures: Option<Failures>,
    repair_ns: u64,
    /// How each machine joins, under the incarnation that it has now.
    pub(super) joins: Vec<Join>,
    pub(super) is_up: Vec<bool>,
    /// The Cluster knows no request before it any more.
    pub(super) first_live: usize,
    pub(super) outage: Outage,
    /// Output tokens that were part of the prompt of an attempt, by request, if any were.
    resumed_from: BTreeMap<u32, u32>,
    /// KV tokens that were lost and not computed again yet, by request.
    pub(super) lost_tokens: BTreeMap<u32, u32>,
    /// When the client of a request began to wait for what a crash has delayed.
    pub(super) waits_since_ns: BTreeMap<u32, u64>,
    pub(super) tally: FaultTally,
    /// Of the machines that crashed.
    pub(super) evictions_and_pauses: (u64, u64),
}

/// A request before a crash.
pub(super) struct Before {
    pub(super) key: LegKey,
    /// Output tokens so far, those that its attempt has resumed from included.
    made: u32,
    /// Its attempt has made some.
    has_made: bool,
}

impl Crashes {
    pub(super) fn new(plan: &FaultPlan, recovery: Recovery, joins: Vec<Join>, setup: &Setup) -> Self {
        let failures =
            plan.mtbf_s.map(|mean_s| Failures::new(mean_s, plan.repair_ns, joins.len(), setup.seed));
        Self {
            recovery,
            kills: plan.kills.clone(),
            failures,
            repair_ns: plan.repair_ns,
            outage: Outage::new(plan, recovery, setup),
            is_up: vec![true; joins.len()],
            joins,
            first_live: 0,
            resumed_from: BTreeMap::new(),
            lost_tokens: BTreeMap::new(),
            waits_since_ns: BTreeMap::new(),
            tally: FaultTally::default(),
            evictions_and_pauses: (0, 0),
        }
    }

    /// The client of a request that a crash has met gets a new token.
    pub(super) fn caught_up(&mut self, now_ns: u64, request: u32) {
        if let Some(since_ns) = self.waits_since_ns.remove(&request) {
            self.tally.interruptions += 1;
            self.tally.extra_ns += now_ns - since_ns;
        }
    }
}

impl<O: Observer> World<O> {
    pub(super) fn schedule_crashes(&mut self) {
        let Some(crashes) = &mut self.crashes else { return };
        for (at, kill) in crashes.kills.iter().enumerate() {
            self.queue.push(kill.at_ns, Event::Kill(at as u32));
        }
        for machine in 0..self.machines.len() as u32 {
            self.schedule_failure(machine);
        }
    }

    fn schedule_failure(&mut self, machine: u32) {
        let failures = self.crashes.as_mut().and_then(|crashes| crashes.failures.as_mut());
        if let Some(at_ns) = failures.and_then(|failures| failures.next_ns(machine)) {
            self.queue.push(at_ns, Event::Fails(machine));
        }
    }

    #[cold]
    pub(super) fn fail(&mut self, machine: u32) -> Result<(), SimError> {
        // Once everything has ended no further crash is looked for, so that the run ends.
        if !self.is_over() {
            self.schedule_failure(machine);
        }
        self.crash(machine)
    }

    #[cold]
    pub(super) fn kill(&mut self, at: u32) -> Result<(), SimError> {
        let target = self.crashes.as_ref().map(|crashes| crashes.kills[at as usize].target);
        match target {
            Some(Target::Machine(machine)) => self.crash(machine),
            Some(Target::Cluster) => self.kill_cluster(),
            None => Ok(()),
        }
    }

    fn crash(&mut self, machine: u32) -> Result<(), SimError> {
        let is_over = self.is_over();
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        if is_over || !crashes.is_up[machine as usize] {
            return Ok(());
        }
        crashes.is_up[machine as usize] = false;
        crashes.tally.crashes += 1;
        let repaired_ns = self.now_ns + crashes.repair_ns;
        let lost = self.take_away(machine)?;
        self.log(11, machine, u64::from(lost.id().incarnation));
        if self.cluster.load(machine).is_some_and(|load| load.machine == lost.id()) {
            let before = self.tell_progress()?;
            self.tell_cluster(&ClusterEvent::Lose { machine: lost.id() })?;
            self.count_faults(&before, Some(&lost));
        } else {
            self.count_unheard(&lost);
        }
        for other in 0..self.machines.len() {
            if self.crashes.as_ref().is_some_and(|crashes| crashes.is_up[other]) {
                self.tell_machine(other as u32, &MachineEvent::PeerLost { machine: lost.id() })?;
            }
        }
        self.queue.push(repaired_ns, Event::Repaired(machine));
        Ok(())
    }

    /// Puts the next incarnation in a machine's place, which waits there for its repair, and forgets everything that
    /// was on its way from or to the old one. Returns the old one.
    pub(super) fn take_away(&mut self, machine: u32) -> Result<Machine, SimError> {
        let at = machine as usize;
        let old = &self.machines[at];
        let id = MachineId { index: machine, incarnation: old.id().incarnation + 1 };
        let next = Machine::new(id, *old.config()).map_err(|error| internal(&error))?;
        let lost = std::mem::replace(&mut self.machines[at], next);
        self.machine_tick_armed[at] = None;
        for engine in &self.engines {
            engine.store(&mut self.streams);
        }
        self.cut_passes(at, &lost);
        self.engines[at].reset();
        self.halt_transfers_of(machine);
        let messages = &mut self.messages;
        self.queue.retain(|event| match *event {
            Event::StageFree(of) | Event::PassEnds(of) | Event::MachineTick(of) => of != machine,
            Event::Message(at) => {
                let gone = messages.get(at).concerns(machine);
                if gone {
                    messages.take(at);
                }
                !gone
            }
            Event::LinksTimer
            | Event::Lands(_)
            | Event::ClusterTick
            | Event::Kill(_)
            | Event::Fails(_)
            | Event::Repaired(_)
            | Event::ClusterStands
            | Event::Resubmit => true,
        });
        if let Some(crashes) = &mut self.crashes {
            crashes.joins[at].machine = id;
            crashes.outage.registrations.remove(&machine);
            crashes.evictions_and_pauses.0 += lost.counters().evicted;
            crashes.evictions_and_pauses.1 += lost.counters().paused;
        }
        Ok(lost)
    }

    /// The passes in flight of a crashed machine come to nothing.
    fn cut_passes(&mut self, at: usize, lost: &Machine) {
        let engine = &self.engines[at];
        for (plan, pass) in lost.passes().zip(engine.line.passes()) {
            let (decodes, worked_to_ns) = (plan.decodes.len() as u32, self.now_ns.min(pass.entered_ns));
            self.tallies[at].cut_pass(pass.entered_ns - worked_to_ns, plan.prompt_tokens, decodes);
            self.timelines[engine.timeline()].take_back(
                self.now_ns,
                pass.end_ns,
                decodes,
                plan.prompt_tokens,
            );
            if let Some(crashes) = &mut self.crashes {
                crashes.tally.lost_work_ns += worked_to_ns - pass.start_ns;
            }
        }
    }

    /// Tells the Cluster what clients have beyond what it knows. Returns the requests it knows that have not ended.
    pub(super) fn tell_progress(&mut self) -> Result<Vec<Before>, SimError> {
        let Some(crashes) = &mut self.crashes else { return Ok(Vec::new()) };
        let (resumes, first_live) = (crashes.recovery == Recovery::Resume, crashes.first_live);
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        let mut live_from = self.next_arrival;
        for at in first_live..self.next_arrival {
            let request = RequestId(at as u64);
            let (stream, of) = (&self.streams[at], &self.requests[at]);
            let runs = stream.outcome == Outcome::Unfinished;
            let attempt = self.cluster.attempt(request);
            if runs || attempt.is_some() || crashes.outage.is_shut() {
                live_from = live_from.min(at);
            }
            let (Some(attempt), Some(known)) = (attempt, self.cluster.delivered(request)) else { continue };
            let key = LegKey { request, attempt };
            let known = known + crashes.outage.submitted_after.get(&(at as u32)).copied().unwrap_or(0);
            let tokens = stream.given(of) - known;
            // A client that has its last token waits for nothing, whatever becomes of the machine's word.
            if tokens > 0 && (resumes || !runs) {
                behind.push(Notice::Progress { key, tokens });
            }
            if runs {
                before.push(crashes.before(key, of.output_tokens - stream.left));
            }
        }
        crashes.first_live = live_from;
        behind.into_iter().try_for_each(|notice| self.tell_cluster(&ClusterEvent::Fact(notice)))?;
        Ok(before)
    }

    /// Counts the requests that have lost their placement to a crash, and what they have to compute again.
    pub(super) fn count_faults(&mut self, before: &[Before], lost: Option<&Machine>) {
        for each in before {
            let key = each.key;
            let now = self.cluster.attempt(key.request);
            if now == Some(key.attempt) {
                continue;
            }
            let request = key.request.0 as u32;
            let tokens = self.computed_tokens(each, self.machines.iter().chain(lost));
            let delivered = self.delivered(key.request);
            let Some(crashes) = &mut self.crashes else { return };
            if crashes.outage.is_shut() {
                crashes.outage.met.insert(request);
            }
            if now.is_none() {
                crashes.tally.failed += 1;
                crashes.lost_tokens.remove(&request);
                crashes.waits_since_ns.remove(&request);
                continue;
            }
            if tokens > 0 {
                *crashes.lost_tokens.entry(request).or_insert(0) += tokens;
            }
            crashes.waits_since_ns.entry(request).or_insert(self.now_ns);
            if delivered.is_some_and(|tokens| tokens > 0) {
                crashes.tally.resumed += 1;
            } else {
                crashes.tally.restarted += 1;
            }
        }
    }

    /// KV tokens that an attempt had when it was lost: all positions before the last token made. Whether there are any
    /// is what its legs on these machines say.
    pub(super) fn computed_tokens<'a>(
        &self,
        before: &Before,
        machines: impl Iterator<Item = &'a Machine>,
    ) -> u32 {
        let &Before { key, made, has_made } = before;
        let has_kv = machines.filter_map(|machine| machine.leg(key)).any(|(state, _)| match state.compute {
            Compute::Decoding | Compute::Held | Compute::Done => true,
            // After an eviction the leg computes again what had landed.
            Compute::Queued | Compute::Prefilling => state.inbound == Inbound::Ready && !has_made,
            Compute::Waiting => state.inbound == Inbound::Ready,
            Compute::Evicted => false,
        });
        if has_kv {
            (self.requests[key.request.0 as usize].prompt_tokens + made).saturating_sub(1).max(1)
        } else {
            0
        }
    }

    /// The share of a pass that has ended in which lost work was done again, or work for nobody.
    #[cold]
    pub(super) fn count_lost_work(&mut self, at: usize) {
        let (plan, engine) = (self.machines[at].oldest_plan(), &self.engines[at]);
        let Some(crashes) = &mut self.crashes else { return };
        let mut count = 0;
        for prefill in &plan.prefills {
            if self.streams[prefill.key.request.0 as usize].is_live(prefill.key.attempt) {
                count += crashes.compute_again(prefill.key.request.0 as u32, prefill.tokens);
            } else {
                count += prefill.tokens;
            }
        }
        for &request in &engine.behind {
            count += crashes.compute_again(request, 1);
        }
        if count > 0 {
            let tokens = u64::from(plan.prompt_tokens) + plan.decodes.len() as u64;
            let lasted_ns = engine.line.passes().next().map_or(0, TimedPass::busy_ns);
            crashes.tally.lost_work_ns +=
                (u128::from(lasted_ns) * u128::from(count) / u128::from(tokens)) as u64;
            crashes.tally.lost_tokens += u64::from(count);
        }
    }

    /// The attempt of a request is over, whatever its legs still do: they make no more tokens. Returns the tokens that
    /// the Cluster knows to be delivered, after which the next attempt begins.
    #[cold]
    pub(super) fn give_up(&mut self, request: u32) -> u32 {
        for engine in &mut self.engines {
            engine.give_up(request, &mut self.streams);
        }
        let id = RequestId(u64::from(request));
        if let Some(Attempt(attempt)) = self.cluster.attempt(id) {
            self.streams[request as usize].attempt = attempt;
        }
        let delivered = self.delivered(id).unwrap_or(0);
        if let Some(crashes) = self.crashes.as_mut().filter(|_| delivered > 0) {
            crashes.resumed_from.insert(request, delivered);
        }
        delivered
    }

    /// Output tokens that the Cluster knows the client of a live request to have, or was submitted after.
    fn delivered(&self, request: RequestId) -> Option<u32> {
        let submitted_after =
            self.crashes.as_ref().and_then(|crashes| crashes.outage.submitted_after.get(&(request.0 as u32)));
        Some(self.cluster.delivered(request)? + submitted_after.copied().unwrap_or(0))
    }

    /// A machine is back under its next incarnation, with nothing.
    #[cold]
    pub(super) fn repaired(&mut self, machine: u32) -> Result<(), SimError> {
        let Some(crashes) = &mut self.crashes else { return Ok(()) };
        crashes.is_up[machine as usize] = true;
        let join = crashes.joins[machine as usize].clone();
        let has_restarted = crashes.tally.cluster_restarts > 0;
        self.log(12, machine, u64::from(join.machine.incarnation));
        if has_restarted {
            return self.begin_session(machine);
        }
        self.tell_cluster(&ClusterEvent::Join(join))
    }

    pub(crate) fn fault_tally(&self) -> Option<FaultTally> {
        self.crashes.as_ref().map(|crashes| crashes.tally)
    }
}

impl Crashes {
    /// A request whose attempt has come to `made` output tokens, before something happens to it.
    pub(super) fn before(&self, key: LegKey, made: u32) -> Before {
        let resumed_from = self.resumed_from.get(&(key.request.0 as u32)).copied().unwrap_or(0);
        Before { key, made, has_made: made > resumed_from }
    }

    /// Of some tokens computed for a request, those that had been computed before.
    fn compute_again(&mut self, request: u32, tokens: u32) -> u32 {
        let Some(left) = self.lost_tokens.get_mut(&request) else { return 0 };
        let again = tokens.min(*left);
        *left -= again;
        if *left == 0 {
            self.lost_tokens.remove(&request);
        }
        again
    }
}
