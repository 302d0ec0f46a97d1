//! What is expected of machines and requests: when a prompt is computed, how many will decode then, how long a pass
//! of theirs takes. No oracle: lengths of outputs are known from requests that have finished, as a mean.
//!
//! A decode is expected to last D = (mean output tokens) x (a decode pass of the batch as it is now). Outputs differ,
//! so none is expected to end at an instant: of decodes that run on for `x`, the share `x / D` is expected to have
//! ended, which is the rate at which they end in the long run whatever their lengths (Little's law).

use std::collections::BTreeMap;

use super::Cluster;
use super::requests::{Request, WatchedLeg};
use crate::config::Admission;
use crate::cost::CostTable;
use crate::event::Slo;
use crate::id::Order;
use crate::leg::{Compute, Inbound};
use crate::time::Time;

/// Finished requests after which the older ones count half.
const FINISHED_MAX: u64 = 4096;
/// Entries of a machine's line beyond twice its decodes before those that are over are cleared away.
const STALE_MAX: usize = 64;

/// What the Cluster knows for predictions. Empty where none are made, the cost tables apart.
#[derive(Debug, Clone, Default)]
pub(super) struct Predictor {
    slos: BTreeMap<u32, Slo>,
    /// Each distinct table once, and how many machines have it.
    tables: Vec<(CostTable, u32)>,
    /// Place in `tables` by machine.
    table_of: Vec<Option<u32>>,
    /// By machine, the requests that were given to it to decode, and when their prompts are expected to be computed.
    /// An entry whose request has ended or moved says nothing, and goes when there are many of them.
    decodes: Vec<BTreeMap<(Order, u32), Time>>,
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
        let at = machine as usize;
        if self.table_of.len() <= at {
            self.table_of.resize(at + 1, None);
        }
        if let Some(old) = self.table_of[at].take() {
            self.tables[old as usize].1 -= 1;
        }
        let Some(costs) = costs else { return };
        let known = self.tables.iter().position(|(table, _)| table == costs);
        let place = known.or_else(|| self.tables.iter().position(|&(_, machines)| machines == 0));
        let place = place.unwrap_or_else(|| {
            self.tables.push((costs.clone(), 0));
            self.tables.len() - 1
        });
        let (table, machines) = &mut self.tables[place];
        if known.is_none() {
            *table = costs.clone();
        }
        *machines += 1;
        self.table_of[at] = Some(place as u32);
    }

    fn costs(&self, machine: u32) -> Option<&CostTable> {
        let place = (*self.table_of.get(machine as usize)?)?;
        Some(&self.tables[place as usize].0)
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

impl Cluster {
    /// A request has finished: its output counts towards the mean. Where the machine does not say how much there
    /// was, what was delivered counts; nothing at all says nothing.
    pub(super) fn learn_output(&mut self, slot: u32, tokens: u32) {
        if self.config.admission == Admission::Bounds {
            return;
        }
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
    pub(super) fn expect(&mut self, slot: u32) {
        if self.config.admission == Admission::Bounds {
            return;
        }
        let request = self.requests.get(slot);
        let [Some(first), second] = request.legs else { return };
        let (Some(prompt), Some(token)) = (first.machine, second.unwrap_or(first).machine) else { return };
        let (order, machine) = (request.order, token.index);
        let wait_ns = self.queue_ns(prompt.index, 0).unwrap_or(0);
        let due = self.now.after(wait_ns);
        let mut line = self.take_decodes(machine);
        line.insert((order, slot), due);
        if line.len() > 2 * self.machines[machine as usize].decode_legs as usize + STALE_MAX {
            line.retain(|&(order, slot), _| self.decode_of(machine, order, slot).is_some());
        }
        self.predictor.decodes[machine as usize] = line;
    }

    fn take_decodes(&mut self, machine: u32) -> BTreeMap<(Order, u32), Time> {
        let (lines, at) = (&mut self.predictor.decodes, machine as usize);
        if lines.len() <= at {
            lines.resize(at + 1, BTreeMap::new());
        }
        std::mem::take(&mut lines[at])
    }

    /// From now until the machine has computed the prompts booked on it, and one more of `prompt_tokens`. Decodes
    /// there ride along in every pass.
    fn queue_ns(&self, machine: u32, prompt_tokens: u32) -> Option<u64> {
        let costs = self.predictor.costs(machine)?;
        let entry = &self.machines[machine as usize];
        let waiting = entry.booked - u64::from(entry.decode_legs);
        let queue_ns = costs.queue_ns(waiting, prompt_tokens);
        if entry.decode_legs == 0 {
            return Some(queue_ns);
        }
        let ride_ns = costs.decode_ns(entry.decode_legs, entry.kv_load).saturating_sub(costs.decode_ns(1, 0));
        let passes = costs.queue_passes(waiting, prompt_tokens);
        Some(queue_ns.saturating_add(passes.saturating_mul(ride_ns)))
    }

    /// From an arrival to its first token: the prompts before it, and its own.
    pub(super) fn predicted_ttft_ns(&self, machine: u32, prompt_tokens: u32) -> Option<u64> {
        self.queue_ns(machine, prompt_tokens)
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

    /// Those expected at a later time: whose prompts are computed by then, less the share of `lasts_ns` that each has
    /// run by then. A transfer under way is taken to be over by then.
    fn decodes_at(&self, machine: u32, at: Time, lasts_ns: Option<u64>) -> Decodes {
        let whole = lasts_ns.unwrap_or(1);
        let (mut requests, mut context) = (0_u128, 0_u128);
        for (request, leg, due) in self.decodes(machine) {
            let computed = decodes_already(request, leg) || request.has_computed();
            let starts = if computed { self.now } else { due.max(self.now) };
            if starts > at {
                continue;
            }
            let left = lasts_ns.map_or(1, |lasts_ns| lasts_ns.saturating_sub(at.since(starts)));
            requests += u128::from(left);
            context += u128::from(left) * u128::from(self.context_tokens(request));
        }
        let whole = u128::from(whole);
        Decodes {
            requests: u32::try_from(requests.div_ceil(whole)).unwrap_or(u32::MAX),
            context_tokens: u64::try_from(context / whole).unwrap_or(u64::MAX),
        }
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
