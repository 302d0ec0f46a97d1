//! The engine of each machine: how long a pass takes, and which tokens it makes. It alone knows output lengths.

use splitcore_core::event::MachineEvent;
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::machine::BatchPlan;
use splitcore_core::placement::Placement;

use super::crashes::Crashes;
use super::flow_line::{FlowLine, TimedPass};
use super::watchdog::Watchdog;
use super::{Event, World};
use crate::SimError;
use crate::cost::{Pass, PassCost};
use crate::observer::Observer;
use crate::report::{GapHistogram, NO_TIME_NS, Outcome, RequestRow};
use crate::setup::MachineSetup;
use crate::workload::TraceRequest;

/// A machine's engine.
#[derive(Debug)]
pub(super) struct Engine {
    /// Its cost model; none where passes take no time.
    cost: Option<usize>,
    /// Its place in [`World::timelines`].
    timeline: usize,
    pub(super) line: FlowLine,
    /// The legs that end with the running pass, as the event that will say so.
    done: MachineEvent,
    /// The streams of the requests that decode here, by arrival, kept together: every pass touches them all.
    batch: Vec<Decoding>,
    /// Requests that decode here and are behind: what they make, their clients have already.
    pub(super) behind: Vec<u32>,
    /// The plan's, when the batch was made.
    decodes_version: u64,
    /// The last batch, while the next is made from it.
    before: Vec<Decoding>,
}

/// The part of a [`Stream`] that changes with every token, while its request decodes.
#[derive(Debug, Clone, Copy)]
struct Decoding {
    request: u32,
    left: u32,
    last_token_ns: u64,
    gap_max_ns: u64,
}

impl Decoding {
    fn load(request: u32, streams: &[Stream]) -> Self {
        let stream = &streams[request as usize];
        Self {
            request,
            left: stream.left,
            last_token_ns: stream.last_token_ns,
            gap_max_ns: stream.gap_max_ns,
        }
    }

    fn store(&self, streams: &mut [Stream]) {
        let stream = &mut streams[self.request as usize];
        stream.left = self.left;
        stream.last_token_ns = self.last_token_ns;
        stream.gap_max_ns = self.gap_max_ns;
    }
}

impl Engine {
    /// Whether a pass is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.line.passes().next().is_some()
    }

    pub(super) fn new(machine: &MachineSetup) -> Self {
        Self {
            line: FlowLine::new(machine.config.pipeline_stages),
            cost: (!machine.is_instant).then_some(machine.cost),
            timeline: machine.role as usize,
            done: MachineEvent::IterationDone { pass: 0, ended: Vec::new() },
            batch: Vec::new(),
            behind: Vec::new(),
            decodes_version: 0,
            before: Vec::new(),
        }
    }
}

/// The output of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    arrival_ns: u64,
    /// Tokens the engine will still make.
    pub(super) left: u32,
    /// Of these, the ones that an earlier attempt has made already.
    pub(super) again: u32,
    last_token_ns: u64,
    ttft_ns: u64,
    gap_max_ns: u64,
    pub(super) prompt_machine: i32,
    pub(super) token_machine: i32,
    /// Its last attempt, by number; 0 until it is placed.
    pub(super) attempt: u32,
    placed: u32,
    pub(super) outcome: Outcome,
    /// Its last attempt has not yet made a token that the client did not have.
    pub(super) is_behind: bool,
    /// Its transfer under way.
    pub(super) transfer: Option<u32>,
}

impl Stream {
    pub(super) fn new(request: &TraceRequest) -> Self {
        Self {
            arrival_ns: request.arrival_ns,
            left: request.output_tokens,
            again: 0,
            last_token_ns: NO_TIME_NS,
            ttft_ns: NO_TIME_NS,
            gap_max_ns: 0,
            prompt_machine: -1,
            token_machine: -1,
            attempt: 0,
            placed: 0,
            outcome: Outcome::Unfinished,
            is_behind: false,
            transfer: None,
        }
    }

    /// One more token now. Returns the gap since the last one, if there was one.
    fn emit(&mut self, now_ns: u64) -> Option<u64> {
        self.left -= 1;
        if self.again > 0 {
            self.again -= 1;
            return None;
        }
        self.is_behind = false;
        if self.last_token_ns == NO_TIME_NS {
            self.last_token_ns = now_ns;
            self.ttft_ns = now_ns - self.arrival_ns;
            return None;
        }
        let gap_ns = now_ns - self.last_token_ns;
        self.last_token_ns = now_ns;
        self.gap_max_ns = self.gap_max_ns.max(gap_ns);
        Some(gap_ns)
    }

    /// Whether an attempt is the live one of a request that is not over.
    pub(super) fn is_live(&self, attempt: Attempt) -> bool {
        self.attempt == attempt.0 && self.outcome == Outcome::Unfinished
    }

    /// Tokens that the client has.
    pub(super) fn given(&self, request: &TraceRequest) -> u32 {
        request.output_tokens - (self.left - self.again)
    }

    /// Placed. A further attempt begins after the tokens that the Cluster knows to be delivered; the client keeps all
    /// that it has.
    pub(super) fn place(&mut self, placement: &Placement, request: &TraceRequest, delivered: u32) {
        let machine = |id: Option<MachineId>| id.map_or(-1, |id| id.index.cast_signed());
        self.prompt_machine = machine(placement.prompt());
        self.token_machine = machine(placement.token());
        if self.attempt > 0 {
            self.again = self.given(request) - delivered;
            self.left = request.output_tokens - delivered;
            self.is_behind = true;
        }
        self.attempt = placement.attempt.0;
        self.placed += 1;
    }

    /// A machine is asked to take its second leg: the one of its placement, or another where that one could not.
    pub(super) fn decode_at(&mut self, attempt: Attempt, machine: MachineId) {
        if self.is_live(attempt) {
            self.token_machine = machine.index.cast_signed();
        }
    }

    /// It has its last token. Returns the leg that ends.
    fn finish(&mut self, request: u32) -> LegKey {
        self.outcome = Outcome::Finished;
        LegKey { request: RequestId(u64::from(request)), attempt: Attempt(self.attempt) }
    }

    pub(super) fn row(&self, id: u64, request: &TraceRequest) -> RequestRow {
        let finished = self.outcome == Outcome::Finished;
        RequestRow {
            request_id: id,
            arrival_ns: request.arrival_ns,
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            ttft_ns: self.ttft_ns,
            e2e_ns: if finished { self.last_token_ns - self.arrival_ns } else { NO_TIME_NS },
            tbt_max_ns: if self.gap_max_ns > 0 { self.gap_max_ns } else { NO_TIME_NS },
            prompt_machine: self.prompt_machine,
            token_machine: self.token_machine,
            attempts: self.placed,
            outcome: self.outcome,
        }
    }
}

/// Where tokens that are made one by one are told.
struct Teller<'a, O> {
    gaps: &'a mut GapHistogram,
    watchdog: &'a mut Watchdog,
    observer: &'a mut O,
}

impl<O: Observer> Teller<'_, O> {
    /// One more token of a request. One that is made again is not given again.
    fn emit(&mut self, now_ns: u64, request: RequestId, stream: &mut Stream, crashes: Option<&mut Crashes>) {
        let (is_new, was_behind) = (stream.again == 0, stream.is_behind);
        if let Some(gap_ns) = stream.emit(now_ns) {
            self.gaps.record(gap_ns);
        }
        if is_new {
            self.watchdog.go_on();
            self.observer.token(now_ns, request.0, stream.left);
            if let Some(crashes) = crashes.filter(|_| was_behind) {
                crashes.caught_up(now_ns, request.0 as u32);
            }
        }
    }
}

/// A plan as the cost model sees it.
fn pass_of(plan: &BatchPlan) -> Pass {
    let tokens = plan.prefills.iter().map(|prefill| prefill.tokens);
    Pass {
        prompts: plan.prefills.len() as u32,
        prompt_tokens: plan.prompt_tokens,
        prompt_tokens_squared: tokens.clone().map(|tokens| u64::from(tokens) * u64::from(tokens)).sum(),
        prompt_tokens_min: tokens.clone().min().unwrap_or(0),
        prompt_tokens_max: tokens.max().unwrap_or(0),
        decodes: plan.decodes.len() as u32,
        context_tokens: plan.context_tokens,
        context_tokens_max: plan.context_tokens_max,
    }
}

impl<O: Observer> World<O> {
    pub(super) fn run_pass(&mut self, machine: u32) {
        let at = machine as usize;
        let plan = self.machines[at].plan();
        let engine = &mut self.engines[at];
        let cost = match engine.cost {
            Some(cost) => self.costs[cost].pass_ns(&pass_of(plan)),
            None => PassCost { ns: 1, stage_ns: 1, out_of_range: false },
        };
        self.out_of_range_lookups += u64::from(cost.out_of_range);
        let (decodes, prompt_tokens) = (plan.decodes.len() as u32, plan.prompt_tokens);
        let pass = engine.line.enter(self.now_ns, cost.stage_ns, cost.ns);
        let TimedPass { entered_ns, end_ns, .. } = pass;
        self.tallies[at].record_pass(pass.busy_ns(), prompt_tokens, decodes);
        // Reports count what waits in the queue too; here it is what has blocks.
        let block_tokens = self.machines[at].config().block_tokens;
        self.tallies[at].record_kv(u64::from(self.machines[at].pool().held()) * u64::from(block_tokens));
        self.timelines[engine.timeline].add(self.now_ns, end_ns, decodes, prompt_tokens);
        self.observer.pass_started(self.now_ns, machine, end_ns, plan);
        if entered_ns < end_ns {
            self.queue.push(entered_ns, Event::StageFree(machine));
        }
        self.queue.push(end_ns, Event::PassEnds(machine));
        for index in 0..self.machines[at].plan().puts.len() {
            let put = self.machines[at].plan().puts[index];
            self.start_layer_wise(machine, &put, end_ns - self.now_ns);
        }
    }

    pub(super) fn stage_free(&mut self, machine: u32) -> Result<(), SimError> {
        let pass = self.machines[machine as usize].plan().pass;
        self.log(13, machine, pass);
        self.tell_machine(machine, &MachineEvent::StageFree { pass })
    }

    pub(super) fn pass_ends(&mut self, machine: u32) -> Result<(), SimError> {
        let at = machine as usize;
        let blank = MachineEvent::IterationDone { pass: 0, ended: Vec::new() };
        let mut done = std::mem::replace(&mut self.engines[at].done, blank);
        if let MachineEvent::IterationDone { pass, ended } = &mut done {
            *pass = self.machines[at].oldest_plan().pass;
            ended.clear();
            self.log(7, machine, *pass);
            self.emit_tokens(at, ended);
        }
        self.engines[at].line.leave();
        let result = self.tell_machine(machine, &done);
        // The event keeps its buffer for the next pass.
        self.engines[at].done = done;
        result
    }

    /// Every request of the pass gets a token, unless its prompt needs more than this leg.
    fn emit_tokens(&mut self, at: usize, ended: &mut Vec<LegKey>) {
        let in_order = !self.crashes.as_ref().is_some_and(|crashes| crashes.outage.is_out_of_order);
        self.engines[at].follow(self.machines[at].oldest_plan(), in_order, &mut self.streams);
        if self.crashes.is_some() {
            self.count_lost_work(at);
        }
        let plan = self.machines[at].oldest_plan();
        let engine = &mut self.engines[at];
        self.watchdog.pass();
        if !engine.batch.is_empty() {
            self.watchdog.go_on();
        }
        let before = ended.len();
        for prefill in plan.prefills.iter().filter(|prefill| prefill.samples) {
            let stream = &mut self.streams[prefill.key.request.0 as usize];
            if !stream.is_live(prefill.key.attempt) {
                // Given up while the pass ran; its token goes nowhere.
                continue;
            }
            let mut teller =
                Teller { gaps: &mut self.gaps, watchdog: &mut self.watchdog, observer: &mut self.observer };
            teller.emit(self.now_ns, prefill.key.request, stream, self.crashes.as_deref_mut());
            if stream.left == 0 {
                ended.push(stream.finish(prefill.key.request.0 as u32));
            }
        }
        let observer = &mut self.observer;
        let given = |now_ns, decoding: &Decoding| {
            observer.token(now_ns, u64::from(decoding.request), decoding.left);
        };
        engine.decode(self.now_ns, &mut self.gaps, given, |decoding| {
            decoding.store(&mut self.streams);
            ended.push(self.streams[decoding.request as usize].finish(decoding.request));
        });
        if !engine.behind.is_empty() {
            let mut teller =
                Teller { gaps: &mut self.gaps, watchdog: &mut self.watchdog, observer: &mut self.observer };
            let crashes = self.crashes.as_deref_mut();
            engine.decode_behind(self.now_ns, &mut self.streams, &mut teller, crashes, ended);
        }
        self.observer.pass_ended(self.now_ns, at as u32, plan);
        for key in &ended[before..] {
            self.observer.ended(self.now_ns, key.request.0, Outcome::Finished);
            self.ended += 1;
            self.last_end_ns = self.now_ns;
        }
    }
}

impl Engine {
    /// Makes the batch that of the pass. Both lists are by arrival, so one walk finds who stayed, came and went. A
    /// request that was submitted again has come late to the Cluster: then the plan is not `in_order`.
    fn follow(&mut self, plan: &BatchPlan, in_order: bool, streams: &mut [Stream]) {
        if std::mem::replace(&mut self.decodes_version, plan.decodes_version) == plan.decodes_version {
            return;
        }
        std::mem::swap(&mut self.batch, &mut self.before);
        self.batch.clear();
        self.behind.clear();
        let mut before = self.before.iter().peekable();
        let mut sorted = Vec::new();
        let decodes = if in_order {
            &plan.decodes
        } else {
            sorted.clone_from(&plan.decodes);
            sorted.sort_unstable();
            &sorted
        };
        for key in decodes {
            let request = key.request.0 as u32;
            while let Some(gone) = before.next_if(|decoding| decoding.request < request) {
                gone.store(streams);
            }
            if let Some(stayed) = before.next_if(|decoding| decoding.request == request) {
                self.batch.push(*stayed);
                continue;
            }
            let stream = &streams[key.request.0 as usize];
            if !stream.is_live(key.attempt) {
                // Given up, and still in the pass.
                continue;
            }
            if stream.is_behind {
                self.behind.push(request);
            } else {
                self.batch.push(Decoding::load(request, streams));
            }
        }
        before.for_each(|gone| gone.store(streams));
    }

    /// One token for each of the batch; calls `given` with each, and `end` with each that got its last.
    fn decode(
        &mut self,
        now_ns: u64,
        gaps: &mut GapHistogram,
        mut given: impl FnMut(u64, &Decoding),
        mut end: impl FnMut(&Decoding),
    ) {
        let (mut gap_ns, mut count) = (0, 0);
        for decoding in &mut self.batch {
            // Requests that decode together share the gap, so it is counted once for a run of equals.
            let gap = now_ns - decoding.last_token_ns;
            if gap != gap_ns {
                if count > 0 {
                    gaps.record_n(gap_ns, count);
                }
                (gap_ns, count) = (gap, 0);
            }
            count += 1;
            decoding.left -= 1;
            decoding.last_token_ns = now_ns;
            decoding.gap_max_ns = decoding.gap_max_ns.max(gap);
            given(now_ns, decoding);
            if decoding.left == 0 {
                end(decoding);
            }
        }
        if count > 0 {
            gaps.record_n(gap_ns, count);
        }
    }

    /// One token for each request that is behind. One that has caught up joins the batch.
    #[cold]
    fn decode_behind<O: Observer>(
        &mut self,
        now_ns: u64,
        streams: &mut [Stream],
        teller: &mut Teller<'_, O>,
        mut crashes: Option<&mut Crashes>,
        ended: &mut Vec<LegKey>,
    ) {
        let Self { behind, batch, .. } = self;
        behind.retain(|&request| {
            let stream = &mut streams[request as usize];
            teller.emit(now_ns, RequestId(u64::from(request)), stream, crashes.as_deref_mut());
            if stream.left == 0 {
                ended.push(stream.finish(request));
            } else if !stream.is_behind {
                let at = batch.partition_point(|decoding| decoding.request < request);
                batch.insert(at, Decoding::load(request, streams));
            }
            streams[request as usize].is_behind && streams[request as usize].left > 0
        });
    }

    /// Every client is behind from now on, until its next token.
    pub(super) fn fall_behind(&mut self, streams: &mut [Stream]) {
        self.store(streams);
        self.behind.extend(self.batch.drain(..).map(|decoding| decoding.request));
    }

    /// Brings the streams of the batch up to date.
    pub(super) fn store(&self, streams: &mut [Stream]) {
        self.batch.iter().for_each(|decoding| decoding.store(streams));
    }

    /// Makes no more tokens for a request, though its leg may still be in a pass.
    pub(super) fn give_up(&mut self, request: u32, streams: &mut [Stream]) {
        self.behind.retain(|&behind| behind != request);
        if let Ok(at) = self.batch.binary_search_by_key(&request, |decoding| decoding.request) {
            self.batch.remove(at).store(streams);
        }
    }

    /// Its machine has crashed and comes back empty. The streams are up to date.
    pub(super) fn reset(&mut self) {
        self.batch.clear();
        self.behind.clear();
        self.decodes_version = 0;
        self.line.clear();
    }

    /// Its machine's place in [`World::timelines`].
    pub(super) fn timeline(&self) -> usize {
        self.timeline
    }
}
