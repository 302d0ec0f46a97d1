//! Who is admitted, and in which line those wait who were. Everything is asked before anything is booked: a rejected
//! arrival leaves no trace but its count. What was accepted is never rejected later.

use super::Cluster;
use super::pools::Choice;
use crate::config::Admission;
use crate::error::{Applied, EventError, Rejection};
use crate::event::{Arrival, Slo};
use crate::leg::Terms;
use crate::time::Time;

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

    /// Where a request stands in every line. Waiting ages all alike, so the order of two never changes and a number of
    /// what is fixed will do: the time it was accepted, moved ahead by its priority.
    pub(super) fn line(&self, priority: i32, accepted_at: Time) -> i64 {
        let line = match self.config.priority_ageing_ns {
            Some(_) => self.line_base_ns.unwrap_or(0).saturating_add_unsigned(accepted_at.as_ns()),
            None => 0,
        };
        let line = i128::from(line) - self.advantage(priority);
        line.clamp((-Terms::LINE_MAX).into(), Terms::LINE_MAX.into()) as i64
    }

    /// What a priority is worth in a line.
    fn advantage(&self, priority: i32) -> i128 {
        i128::from(priority) * self.config.priority_ageing_ns.map_or(1, i128::from)
    }

    /// Where a request of an earlier Cluster stands: among its like as it did, of which the last counts as accepted with
    /// the restart.
    pub(super) fn adopted_line(&mut self, terms: &Terms, restarted_at: Time) -> i64 {
        if self.config.priority_ageing_ns.is_none() {
            return self.line(terms.priority, restarted_at);
        }
        let accepted_ns = i128::from(terms.line) + self.advantage(terms.priority);
        // Half, so that as much is left for what is yet to come, whatever a machine claims.
        let limit = i128::from(Terms::LINE_MAX / 2);
        let base_ns = (accepted_ns - i128::from(restarted_at.as_ns())).clamp(-limit, limit) as i64;
        self.line_base_ns = Some(self.line_base_ns.map_or(base_ns, |before| before.max(base_ns)));
        terms.line
    }
}
