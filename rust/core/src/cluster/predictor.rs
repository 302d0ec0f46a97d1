//! What is expected of machines and requests: when a prompt is computed, how many will decode then, how long a pass
//! of theirs takes. No oracle: lengths of outputs are known from requests that have finished, as a mean.
//!
//! A decode is expected to last D = (mean output tokens) x (a decode pass of the batch as it is now). One that will
//! begin counts until D after its prompt is computed. Of those that decode now nothing says how far they are, as old
//! ones are the long ones: after `x` the share `x / D` of them is expected to have ended, which is the rate at which
//! they end in the long run whatever their lengths (Little's law).

use std::collections::BTreeMap;

use super::Cluster;
use super::requests::{Request, WatchedLeg};
use crate::cost::CostTable;
use crate::event::Slo;
use crate::id::Order;
use crate::leg::{Compute, Inbound};
use crate::time::Time;

/// Finished requests after which the older ones count half.
const FINISHED_MAX: u64 = 4096;
/// Entries of a machine's line beyond twice its decodes before those that are over are cleared away.
const STALE_MAX: usize = 64;

/// Requests by arrival: order and slot, and when their prompts are expected to be computed.
type Line = BTreeMap<(Order, u32), Time>;

/// What the Cluster knows for predictions. Empty where none are made, the cost tables apart.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Predictor {
    slos: BTreeMap<u32, Slo>,
    /// Each distinct table once, and how many machines have it; a place without any is free.
    tables: Vec<(Option<CostTable>, u32)>,
    /// Place in `tables` by machine.
    table_of: Vec<Option<u32>>,
    /// By machine, the requests that were given to it to decode, and when their prompts are expected to be computed.
    /// An entry whose request has ended or moved says nothing, and goes when there are many of them.
    decodes: Vec<Line>,
    /// By machine, the requests that were given to it to prefill. When these are due says nothing.
    prefills: Vec<Line>,
    finished: u64,
    output_tokens: u64,
}

impl Predictor {
    pub(super) fn slo(&self, class: u32) -> Option<Slo> {
        self.slos.get(&class).copied()
    }

    pub(super) fn set_slo(&mut self, class: u32, slo: Option<Slo>) {
        match slo {
            Some(slo) => self.slos.insert(class, slo),
            None => self.slos.remove(&class),
        };
    }

    /// A machine joins, or joins again with another table.
    pub(super) fn join(&mut self, machine: u32, costs: Option<&CostTable>) {
        self.leave(machine);
        let Some(costs) = costs else { return };
        let known = self.tables.iter().position(|(table, _)| table.as_ref() == Some(costs));
        let place = known.or_else(|| self.tables.iter().position(|(table, _)| table.is_none()));
        let place = place.unwrap_or_else(|| {
            self.tables.push((None, 0));
            self.tables.len() - 1
        });
        let (table, machines) = &mut self.tables[place];
        table.get_or_insert_with(|| costs.clone());
        *machines += 1;
        let at = machine as usize;
        if self.table_of.len() <= at {
            self.table_of.resize(at + 1, None);
        }
        self.table_of[at] = Some(place as u32);
    }

    /// A machine is lost, and its table with it where no other has the same.
    pub(super) fn leave(&mut self, machine: u32) {
        let Some(place) = self.table_of.get_mut(machine as usize).and_then(Option::take) else { return };
        let (table, machines) = &mut self.tables[place as usize];
        *machines -= 1;
        if *machines == 0 {
            *table = None;
        }
    }

    /// Cost tables that are kept.
    #[cfg(test)]
    pub(super) fn tables(&self) -> usize {
        self.tables.iter().flat_map(|(table, _)| table).count()
    }

    fn costs(&self, machine: u32) -> Option<&CostTable> {
        let place = (*self.table_of.get(machine as usize)?)?;
        self.tables[place as usize].0.as_ref()
    }

    /// Mean output tokens of finished requests, rounded up; `None` before the first.
    fn output_tokens_mean(&self) -> Option<u64> {
        (self.finished > 0).then(|| self.output_tokens.div_ceil(self.finished))
    }
}

/// Requests that decode, and the tokens of their contexts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decodes {
    requests: u32,
    context_tokens: u64,
}

impl Decodes {
    /// A decode pass with one more request.
    fn pass_ns(self, costs: &CostTable, prompt_tokens: u32) -> u64 {
        let context = self.context_tokens.saturating_add(u64::from(prompt_tokens) + 1);
        costs.decode_ns(self.requests.saturating_add(1), context)
    }
}

/// Passes that are filled with prompts, and what they take.
struct Passes<'a> {
    costs: &'a CostTable,
    /// What decodes add to a pass.
    ride_ns: u64,
    /// In the pass that is being filled.
    prompt_tokens: u64,
    total_ns: u64,
}

impl Passes<'_> {
    /// A prompt; where it does not fit, a next pass begins with it, of whatever length it is.
    fn add(&mut self, tokens: u32) {
        let tokens = u64::from(tokens);
        if self.prompt_tokens + tokens > u64::from(self.costs.points().pass_tokens_max) {
            self.end();
        }
        self.prompt_tokens += tokens;
    }

    /// Tokens of prompts whose lengths are not known: recomputed ones, mostly.
    fn add_many(&mut self, tokens: u64) {
        let pass = u64::from(self.costs.points().pass_tokens_max);
        let full_ns = self.costs.prefill_ns(pass).saturating_add(self.ride_ns);
        self.total_ns = self.total_ns.saturating_add((tokens / pass).saturating_mul(full_ns));
        self.add((tokens % pass) as u32);
    }

    /// The pass is full.
    fn end(&mut self) {
        if self.prompt_tokens > 0 {
            let pass_ns = self.costs.prefill_ns(self.prompt_tokens).saturating_add(self.ride_ns);
            self.total_ns = self.total_ns.saturating_add(pass_ns);
            self.prompt_tokens = 0;
        }
    }
}

fn take_line(lines: &mut Vec<Line>, machine: u32) -> Line {
    let at = machine as usize;
    if lines.len() <= at {
        lines.resize(at + 1, Line::new());
    }
    std::mem::take(&mut lines[at])
}

impl Cluster {
    /// A request has finished: its output counts towards the mean. Where the machine does not say how much there
    /// was, what was delivered counts; nothing at all says nothing.
    #[cold]
    pub(super) fn learn_output(&mut self, slot: u32, tokens: u32) {
        let request = self.requests.get(slot);
        let output = request.resumed_from.saturating_add(tokens).max(request.delivered);
        if output == 0 {
            return;
        }
        let predictor = &mut self.predictor;
        predictor.finished += 1;
        predictor.output_tokens += u64::from(output);
        if predictor.finished == FINISHED_MAX {
            predictor.finished /= 2;
            predictor.output_tokens /= 2;
        }
    }

    /// A request has been given to a machine to decode; it is booked on both sides.
    #[cold]
    pub(super) fn expect(&mut self, slot: u32) {
        let request = self.requests.get(slot);
        let [Some(first), second] = request.legs else { return };
        let (Some(prompt), token) = (first.machine, second.unwrap_or(first).machine) else { return };
        let at = (request.order, slot);
        let mut line = take_line(&mut self.predictor.prefills, prompt.index);
        line.insert(at, self.now);
        if line.len() > 2 * self.machines[prompt.index as usize].prefill_legs as usize + STALE_MAX {
            line.retain(|&(order, slot), _| self.prefill_of(prompt.index, order, slot).is_some());
        }
        self.predictor.prefills[prompt.index as usize] = line;
        let Some(token) = token else { return };
        let wait_ns = self.predicted_ttft_ns(prompt.index, 0).unwrap_or(0);
        let due = self.now.after(wait_ns);
        let mut line = take_line(&mut self.predictor.decodes, token.index);
        line.insert(at, due);
        if line.len() > 2 * self.machines[token.index as usize].decode_legs as usize + STALE_MAX {
            line.retain(|&(order, slot), _| self.decode_of(token.index, order, slot).is_some());
        }
        self.predictor.decodes[token.index as usize] = line;
    }

    /// From now until the machine has computed the prompts booked on it, and one more of `prompt_tokens`: they are
    /// packed into passes as the machine packs them, first come first served. Of the running pass nothing is known
    /// but its prompts, so it counts whole. Decodes on the machine ride along in every pass.
    pub(super) fn predicted_ttft_ns(&self, machine: u32, prompt_tokens: u32) -> Option<u64> {
        let costs = self.predictor.costs(machine)?;
        let entry = &self.machines[machine as usize];
        let ride_ns = match entry.decode_legs {
            0 => 0,
            legs => costs.decode_ns(legs, entry.kv_load).saturating_sub(costs.decode_ns(1, 0)),
        };
        let line = self.predictor.prefills.get(machine as usize).into_iter().flatten();
        let waiting = line.filter_map(|(&(order, slot), _)| self.prefill_of(machine, order, slot));
        let mut passes = Passes { costs, ride_ns, prompt_tokens: 0, total_ns: 0 };
        let mut listed: u64 = 0;
        for tokens in waiting {
            listed += u64::from(tokens);
            passes.add(tokens);
        }
        passes.add_many((entry.booked - u64::from(entry.decode_legs)).saturating_sub(listed));
        passes.add(prompt_tokens);
        passes.end();
        Some(passes.total_ns)
    }

    /// Prompt tokens that a live request has yet to prefill on a machine.
    fn prefill_of(&self, machine: u32, order: Order, slot: u32) -> Option<u32> {
        let request = self.requests.at(slot).filter(|request| request.order == order)?;
        let leg = request.legs[0].as_ref().filter(|leg| leg.booking.prefill_tokens > 0)?;
        (leg.machine == Some(self.machines[machine as usize].id)).then_some(leg.booking.prefill_tokens)
    }

    /// A decode pass with one more request: in `ahead_ns` from now, or with those that decode now.
    pub(super) fn predicted_tbt_ns(
        &self,
        machine: u32,
        prompt_tokens: u32,
        ahead_ns: Option<u64>,
    ) -> Option<u64> {
        let costs = self.predictor.costs(machine)?;
        let now = self.decodes_now(machine);
        let Some(ahead_ns) = ahead_ns else { return Some(now.pass_ns(costs, prompt_tokens)) };
        let pass_ns = costs.decode_ns(now.requests.max(1), now.context_tokens);
        let lasts_ns = self.predictor.output_tokens_mean().map(|mean| mean.saturating_mul(pass_ns).max(1));
        Some(self.decodes_at(machine, self.now.after(ahead_ns), lasts_ns).pass_ns(costs, prompt_tokens))
    }

    /// Those whose KV is here and whose passes run.
    fn decodes_now(&self, machine: u32) -> Decodes {
        let here = self.decodes(machine).filter(|(request, leg, _)| decodes_already(request, leg));
        let tokens = here.map(|(request, ..)| self.context_tokens(request));
        tokens.fold(Decodes { requests: 0, context_tokens: 0 }, |sum, tokens| Decodes {
            requests: sum.requests + 1,
            context_tokens: sum.context_tokens.saturating_add(tokens),
        })
    }

    /// Those expected at a later time: whose prompts are computed by then, and who will not have ended. A transfer
    /// under way is taken to be over by then.
    fn decodes_at(&self, machine: u32, at: Time, lasts_ns: Option<u64>) -> Decodes {
        let whole = lasts_ns.unwrap_or(1);
        let (mut requests, mut context) = (0_u128, 0_u128);
        for (request, leg, due) in self.decodes(machine) {
            let left = match lasts_ns {
                _ if self.starts(request, due) > at => 0,
                Some(lasts_ns) if decodes_already(request, leg) => {
                    lasts_ns.saturating_sub(at.since(self.now))
                }
                Some(lasts_ns) if at.since(self.starts(request, due)) >= lasts_ns => 0,
                Some(lasts_ns) => lasts_ns,
                None => 1,
            };
            requests += u128::from(left);
            context += u128::from(left) * u128::from(self.context_tokens(request));
        }
        let whole = u128::from(whole);
        Decodes {
            requests: u32::try_from(requests.div_ceil(whole)).unwrap_or(u32::MAX),
            context_tokens: u64::try_from(context / whole).unwrap_or(u64::MAX),
        }
    }

    /// When a request is expected to begin to decode.
    fn starts(&self, request: &Request, due: Time) -> Time {
        if request.has_computed() { self.now } else { due.max(self.now) }
    }

    /// The requests that a machine decodes or will, by arrival, and when their prompts are expected to be computed.
    fn decodes(&self, machine: u32) -> impl Iterator<Item = (&Request, &WatchedLeg, Time)> {
        let line = self.predictor.decodes.get(machine as usize).into_iter().flatten();
        line.filter_map(move |(&(order, slot), &due)| {
            let (request, leg) = self.decode_of(machine, order, slot)?;
            Some((request, leg, due))
        })
    }

    /// The decoding leg of a live request, if this is its machine.
    fn decode_of(&self, machine: u32, order: Order, slot: u32) -> Option<(&Request, &WatchedLeg)> {
        let request = self.requests.at(slot).filter(|request| request.order == order)?;
        let leg = request.legs[1].as_ref().or(request.legs[0].as_ref())?;
        let is_here = leg.booking.decodes && leg.machine == Some(self.machines[machine as usize].id);
        is_here.then_some((request, leg))
    }

    /// Prompt and output so far. Where nobody tells how much was delivered, half of the mean is taken.
    fn context_tokens(&self, request: &Request) -> u64 {
        let so_far = request.delivered - request.resumed_from;
        let output = match so_far {
            0 => self.predictor.output_tokens_mean().unwrap_or(0) / 2,
            tokens => u64::from(tokens),
        };
        u64::from(request.prompt_tokens()) + output
    }
}

impl Request {
    /// Whether the prompt is computed: its KV waits, moves or is used.
    fn has_computed(&self) -> bool {
        self.legs[0].is_none_or(|first| matches!(first.state.compute, Compute::Held | Compute::Decoding))
    }
}

/// Whether a decoding leg has its KV and its passes run.
fn decodes_already(request: &Request, leg: &WatchedLeg) -> bool {
    if request.legs[1].is_none() {
        return leg.state.compute == Compute::Decoding;
    }
    let landed = leg.state.inbound == Inbound::Ready || request.legs[0].is_none();
    landed && leg.state.compute != Compute::Evicted
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "points that are right by construction")]

    use super::*;
    use crate::cost::{CostKnot, CostPoints};

    #[test]
    fn a_table_goes_with_the_last_machine_that_has_it() {
        let table = |ns| {
            let knots = vec![CostKnot { at: 1, ns }];
            let (prefill, decode) = (knots.clone(), knots);
            let points = CostPoints { prefill, decode, context_ns_per_1024_tokens: 0, pass_tokens_max: 1 };
            CostTable::new(points).unwrap()
        };
        let mut predictor = Predictor::default();
        for (machine, ns) in [(0, 1), (1, 1), (2, 2)] {
            predictor.join(machine, Some(&table(ns)));
        }
        let kept = [0, 2, 1].map(|machine| {
            predictor.leave(machine);
            predictor.tables()
        });
        assert_eq!(kept, [2, 1, 0]);
        predictor.join(5, Some(&table(3)));
        assert_eq!(
            (predictor.tables.len(), predictor.costs(5), predictor.costs(0)),
            (2, Some(&table(3)), None)
        );
    }
}
