//! Whether a registration can be true, before anything of it is taken in: its claims each for themselves, against each
//! other, and against what other machines have registered with.
//!
//! What an honest machine may say is never refused. It can be behind (a leg of an attempt that is over, a record of an
//! earlier one, a request of a name that has come again), and what it says of that is dismissed, claim by claim. What
//! no honest machine can say costs it its session: there is no telling which of its words are true.

use std::collections::BTreeMap;

use super::Cluster;
use crate::error::EventError;
use crate::event::{Arrival, Claim, Held, Registration};
use crate::id::{LegKey, MachineId, Order};
use crate::leg::{Compute, Inbound, LegState, Outbound, Report, Terms, Work};
use crate::placement::Upto;

/// KV tokens that a report can speak of: any more would not fit the sums that are made of them.
const REPORT_KV_TOKENS_MAX: u64 = 1 << 62;

/// Places in line, and attempts, that leave room to count on from.
const ORDER_MAX: u64 = u64::MAX / 2;
const ATTEMPT_MAX: u32 = u32::MAX / 2;

/// `Err` with what is wrong unless `holds`.
fn require(holds: bool, wrong: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(wrong) }
}

impl Cluster {
    /// Checks a registration whole.
    ///
    /// # Errors
    /// [`EventError::BadClaim`] with the first claim that cannot be true; [`EventError::BadReport`].
    pub(super) fn check_registration(&self, registration: &Registration) -> Result<(), EventError> {
        let machine = registration.join.machine;
        check_report(machine, &registration.report)?;
        let bad = |claim: &Claim, why| EventError::BadClaim { machine, key: claim.key, why };
        if let (false, Some(claim)) = (self.is_managed(), registration.claims.first()) {
            return Err(bad(claim, "machines that an embedder commands hold nothing of ours"));
        }
        let mut of_request = BTreeMap::new();
        let mut of_key = BTreeMap::new();
        for claim in &registration.claims {
            check_alone(claim).map_err(|why| bad(claim, why))?;
            let others: &mut Vec<&Claim> = of_key.entry(claim.key).or_default();
            check_same_key(claim, others).map_err(|why| bad(claim, why))?;
            others.push(claim);
            let others: &mut ClaimsOfRequest<'_> = of_request.entry(claim.key.request).or_default();
            others.check(claim).map_err(|why| bad(claim, why))?;
            if self.is_recovering() {
                self.check_against_known(machine, claim).map_err(|why| bad(claim, why))?;
            }
        }
        Ok(())
    }

    /// A request that another machine has registered with is the same request here.
    fn check_against_known(&self, machine: MachineId, claim: &Claim) -> Result<(), &'static str> {
        let Some(slot) = self.requests.find(claim.key.request) else { return Ok(()) };
        let request = self.requests.get(slot);
        // Another request of this name: one of the two is over.
        if request.order != claim.order {
            return Ok(());
        }
        require(
            claimed_arrival(claim) == request.arrival,
            "another machine has registered with the same request and other numbers or terms",
        )?;
        let runs = matches!(claim.held, Held::Leg { .. } | Held::Finished);
        if !runs || claim.key.attempt != request.attempt || request.is_run_by(machine) {
            return Ok(());
        }
        match (claim.work.start, request.legs) {
            (0, [Some(_), _]) => Err("another machine has registered with the first leg of this attempt"),
            (0, [None, Some(second)]) => require(
                claim.work.upto == Upto::Position(second.start),
                "its leg does not end where the next one, on another machine, starts",
            ),
            (start, [Some(first), _]) => require(
                first.upto == Upto::Position(start),
                "its leg does not start where the one before, on another machine, ends",
            ),
            (start, [None, Some(second)]) => require(
                second.start == start,
                "another machine has registered with another cut of this attempt",
            ),
            (_, [None, None]) => Ok(()),
        }
    }
}

/// Checks what a machine says that it holds.
///
/// # Errors
/// [`EventError::BadReport`].
pub(super) fn check_report(machine: MachineId, report: &Report) -> Result<(), EventError> {
    if report.kv_tokens > REPORT_KV_TOKENS_MAX {
        return Err(EventError::BadReport { machine, kv_tokens: report.kv_tokens });
    }
    Ok(())
}

/// The request of a claim as it arrived.
pub(super) fn claimed_arrival(claim: &Claim) -> Arrival {
    let (work, terms) = (claim.work, claim.work.terms);
    Arrival {
        request: claim.key.request,
        prompt_tokens: work.prompt_tokens - terms.resumed_tokens,
        max_new_tokens: work.max_new_tokens + terms.resumed_tokens,
        class: terms.class,
        priority: terms.priority,
        resumable: terms.resumable,
        pin_token: terms.pin_token,
    }
}

/// The numbers of one claim, and the state of its leg.
fn check_alone(claim: &Claim) -> Result<(), &'static str> {
    let Claim { key, order, work, held } = claim;
    require((1..=ATTEMPT_MAX).contains(&key.attempt.0), "its attempt is out of range")?;
    require(order.0 <= ORDER_MAX, "its place in line is out of range")?;
    check_work(work)?;
    match held {
        Held::Leg { state, .. } => check_state(*state, work),
        Held::Kept => require(work.start == 0, "a request that is kept starts at its first position"),
        Held::Closing | Held::Finished => Ok(()),
    }
}

fn check_work(work: &Work) -> Result<(), &'static str> {
    let Work { prompt_tokens, start, upto, max_new_tokens, terms } = *work;
    require(prompt_tokens > 0 && max_new_tokens > 0, "it has no prompt token, or no output token to come")?;
    require(
        terms.resumed_tokens < prompt_tokens,
        "the output tokens at the end of its prompt are as many as its prompt, or more",
    )?;
    require(
        max_new_tokens.checked_add(terms.resumed_tokens).is_some(),
        "its output tokens do not fit 32 bits",
    )?;
    require((-Terms::LINE_MAX..=Terms::LINE_MAX).contains(&terms.line), "its place in line is out of range")?;
    require(start <= prompt_tokens, "it starts behind its prompt")?;
    match upto {
        Upto::End => Ok(()),
        Upto::Position(_) if start > 0 => Err("a leg that follows another is the last one"),
        Upto::Position(upto) => require((1..=prompt_tokens).contains(&upto), "it ends outside of its prompt"),
    }
}

/// Whether a machine can hold such a leg in such a state.
fn check_state(state: LegState, work: &Work) -> Result<(), &'static str> {
    require(state.is_legal() && state.compute != Compute::Done, "no leg can be in this state")?;
    let follows = state.inbound != Inbound::None;
    require(
        follows == (work.start > 0),
        "KV comes in for a leg that starts anew, or none for one that does not",
    )?;
    require(state.inbound != Inbound::Draining, "a leg whose writer is stopped is closing")?;
    let hands_over = state.compute == Compute::Held || state.outbound != Outbound::None;
    require(!hands_over || work.hands_over(), "its KV goes out, and no other leg follows")?;
    let decodes = matches!(state.compute, Compute::Decoding | Compute::Evicted);
    require(!(decodes && work.hands_over()), "it decodes, and another leg follows")
}

/// A machine has at most one leg of an attempt, or its end; and beside a leg a record, kept to outlive it.
fn check_same_key(claim: &Claim, others: &[&Claim]) -> Result<(), &'static str> {
    let may_have_record = |held: Held| matches!(held, Held::Leg { .. } | Held::Closing);
    let agree = |other: &&Claim| match (claim.held, other.held) {
        (Held::Kept, held) | (held, Held::Kept) => may_have_record(held) && claim.order == other.order,
        _ => false,
    };
    require(others.is_empty() || (others.len() == 1 && others.iter().all(agree)), "it is claimed twice")
}

/// What one machine claims of one request.
#[derive(Default)]
struct ClaimsOfRequest<'a> {
    /// Requests that have had this name, by their place in line.
    by_order: BTreeMap<Order, &'a Claim>,
    leg: Option<LegKey>,
}

impl<'a> ClaimsOfRequest<'a> {
    fn check(&mut self, claim: &'a Claim) -> Result<(), &'static str> {
        let first = *self.by_order.entry(claim.order).or_insert(claim);
        require(
            claimed_arrival(first) == claimed_arrival(claim),
            "the same request is claimed with other numbers or terms",
        )?;
        if !matches!(claim.held, Held::Leg { .. }) {
            return Ok(());
        }
        require(self.leg.replace(claim.key).is_none(), "legs of two attempts of its request are claimed")
    }
}
