//! From an arrival to booked legs and the commands that carry them out.

use super::machines::Booking;
use super::policies::policy;
use super::pools::{Ask, Choice, Pick, Side};
use super::requests::{Request, WatchedLeg};
use super::{Cluster, MachineState};
use crate::config::{Cut, PolicyKind, TransferRule};
use crate::error::{Applied, EventError, Rejection};
use crate::event::{Arrival, ClusterAction, Link, Role};
use crate::id::{AssignmentSeq, Attempt, LegKey, MachineId, Order, RequestId};
use crate::leg::{Command, Compute, Inbound, LegState, Outbound};
use crate::placement::{Kv, Leg, Mode, Placement, Reserve, Seat, Step, Upto, Why};

impl Cluster {
    pub(super) fn arrive(
        &mut self,
        arrival: Arrival,
        actions: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        self.check_arrival(&arrival)?;
        let choice = match self.answer(&arrival) {
            Ok(choice) => choice,
            Err(reason) => {
                self.counters.rejected += 1;
                actions.push(ClusterAction::Rejected { request: arrival.request, reason });
                return Ok(Applied::Yes);
            }
        };
        let attempt = Attempt(self.free_attempt(arrival.request, 1));
        self.line_base_ns.get_or_insert(0);
        let line = self.line(arrival.priority, self.now);
        let request = Request { attempt, ..Request::new(arrival, Order(self.arrivals), line, self.now) };
        self.arrivals += 1;
        if self.requests.len() == 0 {
            self.swept_at = self.now;
        }
        let slot = self.requests.insert(request);
        self.place(slot, choice, actions);
        Ok(Applied::Yes)
    }

    fn check_arrival(&self, arrival: &Arrival) -> Result<(), EventError> {
        if self.requests.find(arrival.request).is_some() {
            return Err(EventError::DuplicateRequest(arrival.request));
        }
        if arrival.prompt_tokens == 0 || arrival.max_new_tokens == 0 {
            return Err(EventError::EmptyRequest(arrival.request));
        }
        match arrival.pin_token {
            Some(pin) if pin as usize >= self.machines.len() => Err(EventError::UnknownMachine(pin)),
            _ => Ok(()),
        }
    }

    pub(super) fn admit(&self, arrival: &Arrival) -> Result<(), Rejection> {
        let total = arrival.total_tokens_max();
        if self.requests.len() >= self.config.requests_max as usize {
            return Err(Rejection::RequestsMax);
        }
        if self.is_recovering() {
            return Err(Rejection::Recovering);
        }
        if self.kv_capacity_tokens_max == 0 {
            return Err(self.nowhere_now(arrival));
        }
        if total > self.kv_capacity_tokens_max {
            return Err(Rejection::TooLarge);
        }
        let Some(pin) = arrival.pin_token else { return Ok(()) };
        let entry = &self.machines[pin as usize];
        if entry.state == MachineState::Up && total > entry.kv_capacity_tokens {
            return Err(Rejection::TooLarge);
        }
        if entry.pooled { Ok(()) } else { Err(Rejection::PinUnavailable) }
    }

    /// Why an arrival that a machine could hold finds none now.
    pub(super) fn nowhere_now(&self, arrival: &Arrival) -> Rejection {
        // Those that were accepted before it wait for such a machine as well, and go first.
        let waits = self.parked_by_class.contains_key(&arrival.class);
        if waits { Rejection::Overloaded } else { Rejection::NoMachine }
    }

    /// This attempt, unless one of its name or a later one still has blocks somewhere, of an earlier request of this id
    /// or of another Cluster's time: their messages must stay recognisable.
    #[inline]
    fn free_attempt(&self, request: RequestId, attempt: u32) -> u32 {
        if self.closing.is_empty() {
            return attempt;
        }
        let of = |attempt| (LegKey { request, attempt: Attempt(attempt) }, 0);
        let taken = self.closing.range(of(attempt)..of(u32::MAX));
        taken.last().map_or(attempt, |((key, _), _)| key.attempt.0 + 1)
    }

    pub(super) fn first_ask(&self, arrival: &Arrival) -> Ask<'static> {
        Ask {
            prompt_tokens: arrival.prompt_tokens,
            total_tokens_max: arrival.total_tokens_max(),
            ends_with_prompt: arrival.max_new_tokens == 1,
            order: Order(self.arrivals),
            attempt: 1,
            pin_token: arrival.pin_token,
            unreached: &[],
        }
    }

    /// What a policy is asked for a request that was accepted before.
    pub(super) fn ask(&self, slot: u32) -> Ask<'_> {
        let request = self.requests.get(slot);
        let arrival = &request.arrival;
        let total_tokens_max = arrival.total_tokens_max();
        // One whose session broke may be back; after a restart it may yet register, and may then hold less.
        let pin_up = |&pin: &u32| {
            let entry = self.machines.get(pin as usize);
            entry.is_some_and(|entry| {
                entry.state == MachineState::Up && total_tokens_max <= entry.kv_capacity_tokens
            })
        };
        Ask {
            prompt_tokens: request.prompt_tokens(),
            total_tokens_max,
            ends_with_prompt: arrival.max_new_tokens == 1,
            order: request.order,
            attempt: request.attempt.0,
            // Where the pinned machine is gone or too small, any will do: an accepted request is not dropped.
            pin_token: arrival.pin_token.filter(pin_up),
            unreached: &request.unreached,
        }
    }

    /// What a placement would be, without making it, as of the time of the last event.
    ///
    /// # Errors
    /// As an arrival; the rejection is the inner error.
    pub fn dry_run(&self, arrival: &Arrival) -> Result<Result<Placement, Rejection>, EventError> {
        self.check_arrival(arrival)?;
        Ok(self.answer(arrival).map(|choice| {
            let legs = self.cut(choice, arrival.prompt_tokens);
            Placement {
                request: arrival.request,
                attempt: Attempt(self.free_attempt(arrival.request, 1)),
                legs: legs.map(|leg| leg.map(|leg| self.told(&leg))),
                why: self.why(choice),
            }
        }))
    }

    /// A policy's choice. A prompt too short to be split goes where an unsplit one would; a request that ends with its
    /// prompt is decoded nowhere, so that nothing is reserved or sent for it.
    pub(super) fn pick(&self, ask: &Ask<'_>) -> Option<Choice> {
        let view = self.view();
        if ask.prompt_tokens < self.config.split_from_tokens && self.config.policy != PolicyKind::Jsq {
            return view.for_short(ask);
        }
        let choice = policy(self.config.policy).pick(&view, ask)?;
        let ends_there = ask.ends_with_prompt && ask.pin_token.is_none();
        Some(if ends_there { Choice::whole(choice.prompt) } else { choice })
    }

    /// The machines for a request that was accepted before. Where its policy has none, any that can hold it whole
    /// will do: since it was accepted, the pools may have changed.
    pub(super) fn choose(&self, slot: u32) -> Option<Choice> {
        let (ask, view) = (self.ask(slot), self.view());
        if self.is_recovering() || ask.pin_token.is_some_and(|pin| !self.machines[pin as usize].pooled) {
            return None;
        }
        if !self.requests.get(slot).whole {
            let picked = self.pick(&ask);
            if picked.is_some() {
                return picked;
            }
        }
        let pinned = ask.pin_token.map(|machine| Pick { machine, step: Step::Pinned });
        let least = |machine| Pick { machine, step: Step::LeastOfAll };
        pinned.or_else(|| view.least_of_all(&ask).map(least)).map(Choice::whole)
    }

    /// The whole of a request that was accepted before on a given machine, unless that cannot hold it or another is pinned.
    pub(super) fn choose_whole(&self, slot: u32, machine: u32) -> Option<Choice> {
        let ask = self.ask(slot);
        let is_free =
            ask.pin_token.is_none() && !self.is_recovering() && self.machines[machine as usize].pooled;
        let fits = is_free && self.view().fits(machine, &ask);
        fits.then_some(Choice::whole(Pick { machine, step: Step::LeastOfAll }))
    }

    /// Applies a choice to an accepted request: pool moves, bookings, commands. Each placement has a whole lease.
    pub(super) fn place(&mut self, slot: u32, choice: Choice, actions: &mut Vec<ClusterAction>) {
        self.touch_lease(slot);
        let why = self.why(choice);
        let mut legs = self.cut(choice, self.requests.get(slot).prompt_tokens());
        let place = self.requests.get(slot).place(slot);
        let waits = legs[1].filter(|_| self.is_awaited(choice.token.machine, place));
        self.move_if_borrowed(choice.prompt.machine, choice.prompt.step, actions);
        if let Some(second) = waits {
            legs[1] = Some(second.unseated());
        } else {
            self.move_if_borrowed(choice.token.machine, choice.token.step, actions);
        }
        for leg in legs.iter_mut().flatten() {
            self.book(leg);
        }
        let now = self.now;
        if !self.closing.is_empty() {
            let LegKey { request, attempt } = self.requests.get(slot).key();
            self.requests.get_mut(slot).attempt = Attempt(self.free_attempt(request, attempt.0));
        }
        let request = self.requests.get_mut(slot);
        request.legs = legs;
        request.moved_at = now;
        let placed = (request.arrival.request, request.attempt);
        if self.predicts() {
            self.expect(slot);
        }
        self.command_first(slot, actions);
        if waits.is_some() {
            // There may be another machine that nobody waits for.
            self.place_second(slot, actions);
            legs = self.requests.get(slot).legs;
        }
        // Both legs' machines know it, if both were told.
        if waits.is_some() || legs[1].is_none() || self.config.reserve != Reserve::AtArrival {
            self.cover(slot, actions);
        }
        self.counters.placed += 1;
        actions.push(ClusterAction::Placed(Placement {
            request: placed.0,
            attempt: placed.1,
            legs: legs.map(|leg| leg.map(|leg| self.told(&leg))),
            why,
        }));
    }

    /// Cuts a request into legs for the chosen pair.
    fn cut(&self, choice: Choice, prompt_tokens: u32) -> [Option<WatchedLeg>; 2] {
        let id = |machine: u32| Some(self.machines[machine as usize].id);
        let (prompt, token) = (choice.prompt.machine, choice.token.machine);
        let first = WatchedLeg {
            machine: id(prompt),
            start: 0,
            upto: Upto::End,
            mode: None,
            seq: AssignmentSeq(0),
            send_seq: AssignmentSeq(0),
            state: LegState::QUEUED,
            booking: Booking {
                prefill_tokens: prompt_tokens,
                prefills: true,
                decodes: true,
                kv_tokens: prompt_tokens.saturating_add(1),
                sent: false,
            },
        };
        if prompt == token {
            return [Some(first), None];
        }
        let at = match self.config.cut {
            Cut::AtPrompt => prompt_tokens,
            // A prompt of one token has nothing before the last.
            Cut::BeforeLast => prompt_tokens.saturating_sub(1).max(1),
        };
        let source = WatchedLeg {
            upto: Upto::Position(at),
            booking: Booking { prefill_tokens: at, decodes: false, ..first.booking },
            ..first
        };
        let rest = prompt_tokens - at;
        let destination = WatchedLeg {
            machine: id(token),
            start: at,
            mode: Some(self.transfer_mode(prompt, token, at)),
            state: LegState {
                compute: Compute::Waiting,
                inbound: Inbound::Reserving,
                outbound: Outbound::None,
            },
            booking: Booking { prefill_tokens: rest, prefills: rest > 0, ..first.booking },
            ..first
        };
        [Some(source), Some(destination)]
    }

    /// Serialized where the bytes take less time than what layer-wise transfer costs at any size (Splitwise,
    /// section IV-C: the slower network card of the pair, the larger fixed cost).
    fn transfer_mode(&self, prompt: u32, token: u32, tokens: u32) -> Mode {
        let serialized = match self.config.transfer {
            _ if self.config.reserve == Reserve::AtSourceDone => true,
            TransferRule::Serialized => true,
            TransferRule::LayerWise => false,
            TransferRule::Auto => match self.known_links(prompt, token) {
                Some((kv_bytes, from, to)) => {
                    let fixed_ns = u128::from(from.fixed_cost_ns.max(to.fixed_cost_ns));
                    let bytes_per_s = u128::from(from.bytes_per_s.min(to.bytes_per_s));
                    u128::from(tokens) * u128::from(kv_bytes) * 1_000_000_000 < fixed_ns * bytes_per_s
                }
                None => tokens < self.config.layer_wise_from_tokens,
            },
        };
        if serialized { Mode::Serialized } else { Mode::LayerWise }
    }

    /// KV size and both network cards, if all are known.
    fn known_links(&self, prompt: u32, token: u32) -> Option<(u64, Link, Link)> {
        let kv_bytes = self.config.kv_bytes_per_token?;
        Some((kv_bytes, self.machines[prompt as usize].link?, self.machines[token as usize].link?))
    }

    fn why(&self, choice: Choice) -> Why {
        let view = self.view();
        let prompt = choice.prompt.machine;
        let pool = self.machines[prompt as usize].pool;
        let next = self.pools.index(pool, Side::Prompt).least_except(prompt);
        Why {
            prompt_step: choice.prompt.step,
            token_step: choice.token.step,
            prompt_load: view.load(prompt, Side::Prompt),
            token_load: view.load(choice.token.machine, Side::Token),
            runner_up: next.map(|key| (key.machine(), view.load(key.machine(), Side::Prompt))),
        }
    }

    /// A leg as placements tell it.
    fn told(&self, leg: &WatchedLeg) -> Leg {
        let kv = match leg.mode {
            Some(mode) => Kv::From { mode, reserve: self.config.reserve },
            None => Kv::None,
        };
        let machine = leg.machine.map_or(Seat::Later, Seat::Fixed);
        Leg { machine, start: leg.start, upto: leg.upto, kv }
    }

    pub(super) fn book(&mut self, leg: &mut WatchedLeg) {
        if let Some(machine) = leg.machine {
            self.pools.take(machine.index);
            self.entry(machine.index).book(&leg.booking);
            self.refresh(machine.index);
        }
    }

    /// A machine chosen from the other side's pool joins the mixed pool.
    pub(super) fn move_if_borrowed(&mut self, machine: u32, step: Step, actions: &mut Vec<ClusterAction>) {
        let now = self.now;
        let entry = &mut self.machines[machine as usize];
        if step != Step::Opposite || entry.pool == Role::Mixed {
            return;
        }
        entry.mixed_since = now;
        self.counters.to_mixed += 1;
        self.move_to(machine, Role::Mixed, actions);
    }

    /// The commands of a new placement: the destination first, so that its grant can be early.
    fn command_first(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        if !self.is_managed() {
            return;
        }
        if self.config.reserve == Reserve::AtArrival {
            self.command_reserve(slot, actions);
        }
        self.command_compute(slot, actions);
        if self.config.reserve == Reserve::AtArrival {
            self.command_send(slot, actions);
        }
    }

    pub(super) fn command_compute(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        let Some(mut first) = request.legs[0] else { return };
        let Some(machine) = first.machine else { return };
        let (key, order, work) = (request.key(), request.order, request.work(&first));
        let compute = Command::Compute { key, order, work };
        first.seq = self.command(machine, Some(&mut first.booking), compute, actions);
        self.requests.get_mut(slot).legs[0] = Some(first);
        self.runs_at(slot, machine, actions);
    }

    /// Reserve at the second leg's machine.
    pub(super) fn command_reserve(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        let (Some(source), Some(mut second)) = (request.legs[0].and_then(|leg| leg.machine), request.legs[1])
        else {
            return;
        };
        let Some(machine) = second.machine else { return };
        let (key, order, work) = (request.key(), request.order, request.work(&second));
        // Splitwise decodes as soon as it can; Microserving's start is a call of its own.
        let start = self.config.cut == Cut::AtPrompt;
        let reserve = Command::Reserve { key, order, work, source, start };
        second.seq = self.command(machine, Some(&mut second.booking), reserve, actions);
        if !start {
            self.command(machine, None, Command::Start { key }, actions);
        }
        self.requests.get_mut(slot).legs[1] = Some(second);
    }

    /// Tells the first leg's machine where its KV goes.
    pub(super) fn command_send(&mut self, slot: u32, actions: &mut Vec<ClusterAction>) {
        let request = self.requests.get(slot);
        let [Some(mut first), Some(second)] = request.legs else { return };
        let (Some(from), Some(to), Some(mode)) = (first.machine, second.machine, second.mode) else { return };
        let key = request.key();
        first.send_seq = self.command(from, None, Command::Send { key, to, mode }, actions);
        self.requests.get_mut(slot).legs[0] = Some(first);
    }

    /// The machine's id at an index.
    pub(super) fn id_of(&self, machine: u32) -> MachineId {
        self.machines[machine as usize].id
    }
}
