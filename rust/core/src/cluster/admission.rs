//! Who is admitted, and in which line those wait who were. Everything is asked before anything is booked: a rejected
//! arrival leaves no trace but its count. What was accepted is never rejected later.

use super::Cluster;
use super::pools::Choice;
use super::requests::Request;
use crate::config::Admission;
use crate::error::{Applied, EventError, Rejection};
use crate::event::{Arrival, Slo};
use crate::id::Order;

/// Place in the line of parked requests: rank, then arrival. The slot makes the request easy to find.
pub(super) type ParkedKey = (i128, Order, u32);

/// KV tokens that an arrival books: its prompt and a token, on each of its machines.
fn kv_of(arrival: &Arrival, choice: Choice) -> u64 {
    let legs = if choice.prompt.machine == choice.token.machine { 1 } else { 2 };
    legs * (u64::from(arrival.prompt_tokens) + 1)
}

impl Cluster {
    /// The pair for an arrival, or why it is turned away: what can never fit or exceeds a bound first, then the pool
    /// search, then the share kept free, then the limits of its class on that pair.
    pub(super) fn answer(&self, arrival: &Arrival) -> Result<Choice, Rejection> {
        self.admit(arrival)?;
        let choice = self.pick(&self.first_ask(arrival)).ok_or_else(|| self.nowhere_now(arrival))?;
        if self.config.recovery_headroom_permille > 0 {
            self.check_headroom(arrival, choice)?;
        }
        if self.predicts() {
            self.check_slo(arrival, choice)?;
        }
        Ok(choice)
    }

    /// Whether the bounds on requests and on KV leave room for all of these, one after the other: what belongs together
    /// is asked for together, before any of it is placed.
    ///
    /// # Errors
    /// Why one of them, or the last of them, would be turned away.
    pub fn check_together(&self, arrivals: &[Arrival]) -> Result<(), Rejection> {
        if self.requests.len() + arrivals.len() > self.config.requests_max as usize {
            return Err(Rejection::RequestsMax);
        }
        let mut more = 0;
        for arrival in arrivals {
            more += kv_of(arrival, self.answer(arrival)?);
        }
        let is_bound = self.config.recovery_headroom_permille > 0;
        if is_bound && !self.leaves_headroom(arrivals.len(), more) {
            Err(Rejection::Headroom)
        } else {
            Ok(())
        }
    }

    /// Whether anything is predicted at all.
    pub(super) fn predicts(&self) -> bool {
        self.config.admission != Admission::Bounds
    }

    /// Whether the arrival leaves a share of slots and of KV tokens free, itself counted.
    #[cold]
    fn check_headroom(&self, arrival: &Arrival, choice: Choice) -> Result<(), Rejection> {
        if self.leaves_headroom(1, kv_of(arrival, choice)) { Ok(()) } else { Err(Rejection::Headroom) }
    }

    fn leaves_headroom(&self, requests: usize, more: u64) -> bool {
        let (kv_tokens, capacity_tokens) = self.pools.kv_total().unwrap_or_default();
        let usable = u128::from(1000 - self.config.recovery_headroom_permille);
        let leaves = |used: u128, of: u128| used * 1000 <= of * usable;
        let slots = leaves((self.requests.len() + requests) as u128, u128::from(self.config.requests_max));
        let kv = leaves(kv_tokens + u128::from(more), capacity_tokens);
        slots && kv
    }

    /// Whether the chosen pair is expected to keep the limits of the class. A class without limits and a machine
    /// without a cost table turn nobody away; a prediction equal to the limit keeps it.
    #[cold]
    fn check_slo(&self, arrival: &Arrival, choice: Choice) -> Result<(), Rejection> {
        let Some(slo) = self.predictor.slo(arrival.class) else { return Ok(()) };
        let ttft_ns = self.predicted_ttft_ns(choice.prompt.machine, arrival.prompt_tokens);
        if ttft_ns.is_some_and(|ns| ns > slo.ttft_ns) {
            return Err(Rejection::TtftSlo);
        }
        let ahead_ns = match self.config.admission {
            Admission::Predicted => Some(ttft_ns.unwrap_or(0)),
            Admission::Early | Admission::Bounds => None,
        };
        let tbt_ns = self.predicted_tbt_ns(choice.token.machine, arrival.prompt_tokens, ahead_ns);
        if tbt_ns.is_some_and(|ns| ns > slo.tbt_ns) { Err(Rejection::TbtSlo) } else { Ok(()) }
    }

    pub(super) fn set_slo(&mut self, class: u32, slo: Option<Slo>) -> Result<Applied, EventError> {
        if slo.is_some_and(|slo| slo.ttft_ns == 0 || slo.tbt_ns == 0) {
            return Err(EventError::EmptySlo { class });
        }
        self.predictor.set_slo(class, slo);
        Ok(Applied::Yes)
    }

    /// Where a request stands in the line of the parked. Waiting ages all alike, so the order of two never changes
    /// and a key of what is fixed will do: the time it was accepted, moved ahead by its priority.
    pub(super) fn parked_key(&self, request: &Request, slot: u32) -> ParkedKey {
        let priority = i128::from(request.arrival.priority);
        let rank = match self.config.priority_ageing_ns {
            Some(step_ns) => i128::from(request.accepted_at.as_ns()) - priority * i128::from(step_ns),
            None => -priority,
        };
        (rank, request.order, slot)
    }
}
