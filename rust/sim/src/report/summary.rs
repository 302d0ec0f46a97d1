//! The summary of a run: one value that becomes the JSON a user reads.

use serde::Serialize;

use super::admission::AdmissionReport;
use super::classes::ClassReport;
use super::faults::FaultReport;
use super::gaps::{GapHistogram, GapQuantiles};
use super::quantiles::{Quantiles, finite};
use super::rows::{Outcome, RequestRow, TbtRule};
use super::slo::{Reference, SloLimits, SloReport};
use super::tally::{MachineReport, MachineTally, TransferReport, TransferTally};

/// What a run hands over to be summarised.
pub struct Inputs<'a> {
    /// All submitted requests.
    pub rows: &'a [RequestRow],
    /// All gaps between tokens.
    pub gaps: &'a GapHistogram,
    /// All transfers.
    pub transfers: &'a TransferTally,
    /// All machines.
    pub machines: &'a [MachineTally],
    /// How a request's TBT is averaged.
    pub tbt_rule: TbtRule,
    /// What is to be kept.
    pub limits: SloLimits,
    /// Times on the idle reference machine by prompt and output tokens.
    pub reference: &'a dyn Fn(u32, u32) -> Reference,
    /// Moves between pools.
    pub pools: PoolMoves,
    /// Everything that is passed on as it is.
    pub facts: RunFacts,
}

/// How often machines moved between pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PoolMoves {
    /// To the mixed pool.
    pub to_mixed: u64,
    /// Back home.
    pub to_home: u64,
}

/// Facts of a run that the summary passes on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFacts {
    /// Who was turned away.
    pub admission: AdmissionReport,
    /// Cost-model look-ups outside what was profiled.
    pub out_of_range_lookups: u64,
    /// Name of the cost model.
    pub cost_model: String,
    /// Name of the policy.
    pub policy: String,
    /// Name of the language model.
    pub model: String,
    /// Name of the workload or trace file.
    pub trace: String,
    /// What was done with its files that a reader should know, each a sentence.
    pub notes: Vec<String>,
    /// How KV caches were to move.
    pub transfer_mode: String,
    /// Seed of the workload.
    pub seed: u64,
    /// Requests evicted for want of KV blocks.
    pub evictions: u64,
    /// Decodes that sat out a pass.
    pub pauses: u64,
    /// Events handled.
    pub events: u64,
    /// Simulated time from 0 to the last end.
    pub duration_ns: u64,
    /// Real time the run took.
    pub wall_s: f64,
    /// Digest of the event log.
    pub digest: u64,
}

/// How many requests ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounts {
    /// All of them.
    pub submitted: u64,
    /// Those that got all their tokens.
    pub completed: u64,
    /// Those never placed.
    pub rejected: u64,
    /// Those given up.
    pub failed: u64,
    /// Those stopped by their caller.
    pub cancelled: u64,
    /// Those the run did not wait for.
    pub unfinished: u64,
}

/// A run in numbers. Serialises to the JSON summary; what is infinite or has no value becomes null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// How many requests ended how.
    pub requests: RequestCounts,
    /// Time to first token, over all submitted requests.
    pub ttft_s: Quantiles,
    /// Mean time between tokens of a request by the run's rule; requests of one token have none.
    pub tbt_s: Quantiles,
    /// (E2E - TTFT) / (N - 1) whatever the rule; requests of one token have none.
    pub tpot_s: Quantiles,
    /// Time to last token, over all submitted requests.
    pub e2e_s: Quantiles,
    /// The nine objectives, and attainment.
    pub slo: SloReport,
    /// KV transfers.
    pub transfer: TransferReport,
    /// Who was turned away, and why.
    pub admission: AdmissionReport,
    /// Class by class; absent where there is one kind of traffic.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassReport>,
    /// Every gap between two tokens.
    pub gaps_s: GapQuantiles,
    /// Moves between pools.
    pub pools: PoolMoves,
    /// What faults cost, and what restarts from scratch would have; absent without faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultReport>,
    /// Machine by machine.
    pub machines: Vec<MachineReport>,
    /// Cost-model look-ups outside what was profiled.
    pub out_of_range_lookups: u64,
    /// Name of the cost model.
    pub cost_model: String,
    /// Name of the policy.
    pub policy: String,
    /// Name of the language model.
    pub model: String,
    /// Name of the workload or trace file.
    pub trace: String,
    /// What was done with its files that a reader should know, each a sentence.
    pub notes: Vec<String>,
    /// How KV caches were to move.
    pub transfer_mode: String,
    /// Mean arrivals a second, (n - 1) / (last - first); null where all come at once.
    #[serde(serialize_with = "finite")]
    pub rate_rps: f64,
    /// Seed of the workload.
    pub seed: u64,
    /// Requests evicted for want of KV blocks.
    pub evictions: u64,
    /// Decodes that sat out a pass.
    pub pauses: u64,
    /// Events handled.
    pub events: u64,
    /// Simulated seconds from 0 to the last end.
    pub duration_s: f64,
    /// Real seconds the run took.
    #[serde(serialize_with = "finite")]
    pub wall_s: f64,
    /// Digest of the event log in sixteen hexadecimal digits.
    pub digest: String,
}

impl Summary {
    /// Works out all metrics of a run; of faults it knows nothing.
    pub fn new(inputs: Inputs<'_>) -> Self {
        let Inputs { rows, tbt_rule, facts, .. } = inputs;
        Self {
            requests: RequestCounts::of(rows),
            ttft_s: in_seconds(rows.iter().map(RequestRow::ttft_metric_ns)),
            tbt_s: in_seconds(rows.iter().filter_map(|row| row.tbt_metric_ns(tbt_rule))),
            tpot_s: in_seconds(rows.iter().filter_map(|row| row.tbt_metric_ns(TbtRule::MeanGap))),
            e2e_s: in_seconds(rows.iter().map(RequestRow::e2e_metric_ns)),
            slo: SloReport::of(rows, tbt_rule, inputs.limits, inputs.reference),
            transfer: inputs.transfers.report(),
            admission: facts.admission,
            classes: Vec::new(),
            gaps_s: inputs.gaps.quantiles(),
            pools: inputs.pools,
            faults: None,
            machines: inputs.machines.iter().map(|machine| machine.report(facts.duration_ns)).collect(),
            out_of_range_lookups: facts.out_of_range_lookups,
            cost_model: facts.cost_model,
            policy: facts.policy,
            model: facts.model,
            trace: facts.trace,
            notes: facts.notes,
            transfer_mode: facts.transfer_mode,
            rate_rps: rate_rps(rows),
            seed: facts.seed,
            evictions: facts.evictions,
            pauses: facts.pauses,
            events: facts.events,
            duration_s: facts.duration_ns as f64 / 1e9,
            wall_s: facts.wall_s,
            digest: format!("{:016x}", facts.digest),
        }
    }
}

impl RequestCounts {
    /// Counts rows by outcome.
    pub fn of(rows: &[RequestRow]) -> Self {
        let mut counts = Self { submitted: rows.len() as u64, ..Self::default() };
        for row in rows {
            *match row.outcome {
                Outcome::Finished => &mut counts.completed,
                Outcome::Rejected => &mut counts.rejected,
                Outcome::Failed => &mut counts.failed,
                Outcome::Cancelled => &mut counts.cancelled,
                Outcome::Unfinished => &mut counts.unfinished,
            } += 1;
        }
        counts
    }
}

/// Mean arrivals a second of rows in order of arrival.
fn rate_rps(rows: &[RequestRow]) -> f64 {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return f64::NAN };
    (rows.len() - 1) as f64 * 1e9 / last.arrival_ns.saturating_sub(first.arrival_ns) as f64
}

/// Quantiles in seconds of times in nanoseconds.
pub(super) fn in_seconds(times_ns: impl Iterator<Item = f64>) -> Quantiles {
    let mut seconds: Vec<f64> = times_ns.map(|time_ns| time_ns / 1e9).collect();
    Quantiles::of(&mut seconds)
}
