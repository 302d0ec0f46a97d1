//! Cost models: how long one forward pass takes on one machine.
//!
//! All arithmetic is `+ - * /` on `f64` in nanoseconds and is rounded to whole nanoseconds once, so that
//! results do not depend on a platform's math library.

pub(crate) mod distserve;
pub mod fit;
mod knots;
mod measured;
mod measurements;
pub mod profile;
mod profile_toml;
mod reference;

use std::fmt;
use std::str::FromStr;

use splitcore_core::cost::{CostKnot, CostPoints, CostTable};

use crate::SimError;
use crate::machines::{MachineKind, Model, Weights};
use distserve::DistServe;
pub use fit::{FitReport, fit_file, fit_text};
pub use knots::Knot;
use knots::PiecewiseLinear;
use measured::Measured;
pub use profile::{MachineProfile, MeasuredRange, Profile};
pub use reference::IdleReference;

/// Profiles hold milliseconds, passes cost nanoseconds.
const NS_PER_MS: f64 = 1e6;
/// Batches whose decode time is looked up instead of computed.
const TABLE_REQUESTS: u32 = 512;
/// What the public simulator multiplies a prompt pass by when decodes ride along.
const SPLITWISE_SIM_MIXED: f64 = 1.1;

/// Which way of counting is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CostKind {
    /// Decode by batch and context, prompts by number and size.
    #[default]
    Measured,
    /// Splitwise's public simulator's way, to reproduce its published results.
    SplitwiseSim,
    /// DistServe's analytic model, of OPT models on A100-80G.
    DistServe,
    /// The same with what starting a pass takes on the first stage: 2 ms and 0.0001 ms a token of prompts and contexts.
    DistServeOverhead,
    /// The baseline vLLM of DistServe, by the same model.
    DistServeVllm,
}

impl CostKind {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Measured, Self::SplitwiseSim, Self::DistServe, Self::DistServeOverhead, Self::DistServeVllm];
    /// The kinds whose times come from a profile.
    pub const PROFILED: [Self; 2] = [Self::Measured, Self::SplitwiseSim];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::SplitwiseSim => "splitwise-sim",
            Self::DistServe => "distserve",
            Self::DistServeOverhead => "distserve-overhead",
            Self::DistServeVllm => "distserve-vllm",
        }
    }

    /// The engine whose coefficients DistServe's model takes; none for times from a profile.
    const fn distserve_engine(self) -> Option<&'static str> {
        match self {
            Self::Measured | Self::SplitwiseSim => None,
            Self::DistServe | Self::DistServeOverhead => Some("distserve"),
            Self::DistServeVllm => Some("vllm"),
        }
    }

    /// The size of the weights that goes with it.
    pub const fn weights(self) -> Weights {
        match self {
            Self::Measured => Weights::Measured,
            Self::SplitwiseSim => Weights::Published,
            Self::DistServe | Self::DistServeOverhead | Self::DistServeVllm => Weights::DistServe,
        }
    }
}

impl fmt::Display for CostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CostKind {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            SimError::config("costs", format!("one of {known}"), format!("`{text}`"))
        })
    }
}

/// What one forward pass does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// Prompts in it.
    pub prompts: u32,
    /// Their tokens together.
    pub prompt_tokens: u32,
    /// The squares of their tokens together.
    pub prompt_tokens_squared: u64,
    /// The shortest of them.
    pub prompt_tokens_min: u32,
    /// The longest of them.
    pub prompt_tokens_max: u32,
    /// Decodes in it, one token each.
    pub decodes: u32,
    /// Prompt and generated tokens so far, of all decodes together.
    pub context_tokens: u64,
    /// The longest of these contexts.
    pub context_tokens_max: u32,
}

/// What a pass costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassCost {
    /// Its duration from the start of the first stage to the end of the last, at least 1.
    pub ns: u64,
    /// How long it keeps the slowest stage: the next pass ends this much later at the earliest. Equals `ns` on a
    /// machine of one stage; stages are alike but for what is counted on the first alone.
    pub stage_ns: u64,
    /// Whether anything in it lies outside what was measured.
    pub out_of_range: bool,
}

/// The times of one model on one kind of machine, ready to be asked for every pass.
#[derive(Debug, Clone)]
pub struct CostModel {
    kind: CostKind,
    form: Form,
    range: MeasuredRange,
    /// What the form's times are multiplied by, prefill and decode.
    factors: (f64, f64),
    /// Pipeline stages.
    stages: u32,
    /// A decode pass by batch without its context, from 0 requests on.
    decode_ns: Box<[f64]>,
}

#[derive(Debug, Clone)]
enum Form {
    Measured(Measured),
    SplitwiseSim { prompt: PiecewiseLinear, token: PiecewiseLinear },
    DistServe(DistServe),
}

impl CostModel {
    /// Prepares the times of `model` on `machine`. Only the kinds of [`CostKind::PROFILED`] look at the profile.
    ///
    /// A profile knows no pipelines: `pp` stages share the time of a pass evenly, and passing on costs nothing.
    ///
    /// # Errors
    /// [`SimError::Config`] naming both when there are no times of the pairing.
    pub fn new(
        kind: CostKind,
        profile: &Profile,
        model: Model,
        machine: &MachineKind,
    ) -> Result<Self, SimError> {
        let (form, range) = if let Some(engine) = kind.distserve_engine() {
            let has_overhead = kind == CostKind::DistServeOverhead;
            let times = DistServe::new(engine, has_overhead, model, machine)?;
            (Form::DistServe(times), DistServe::range())
        } else {
            let times = profile.find(model, machine)?;
            let line = |knots: &[Knot]| PiecewiseLinear::new(knots, NS_PER_MS);
            let form = if kind == CostKind::Measured {
                Form::Measured(Measured::new(times, NS_PER_MS))
            } else {
                let (prompt, token) = (&times.splitwise_sim_prompt_knots, &times.splitwise_sim_token_knots);
                Form::SplitwiseSim { prompt: line(prompt), token: line(token) }
            };
            (form, times.range)
        };
        let factors = (machine.hardware.prefill_factor, machine.hardware.decode_factor);
        let decode_ns = (0..=TABLE_REQUESTS).map(|batch| factors.1 * form.decode_base(batch)).collect();
        Ok(Self { kind, form, range, factors, stages: machine.pp, decode_ns })
    }

    /// Which way of counting this is.
    pub fn kind(&self) -> CostKind {
        self.kind
    }

    /// What the measurements behind it span.
    pub fn range(&self) -> MeasuredRange {
        self.range
    }

    /// One pass. An empty pass costs 1 ns: no pass is free.
    pub fn pass_ns(&self, pass: &Pass) -> PassCost {
        let ns = match (pass.prompts, pass.decodes) {
            (0, 0) => 0.0,
            (0, batch) => self.decode(batch, pass.context_tokens as f64),
            (prompts, 0) => {
                let (total, squares) = (f64::from(pass.prompt_tokens), pass.prompt_tokens_squared as f64);
                self.prefill(prompts, total, squares)
            }
            _ => self.mixed(pass),
        };
        let tokens = f64::from(pass.prompt_tokens) + pass.context_tokens as f64;
        let (ns, stage_ns) = self.staged(ns, self.overhead(tokens));
        PassCost { ns, stage_ns, out_of_range: self.is_out_of_range(pass) }
    }

    /// A pass through all stages, each rounded alike, and the first of them, which may take longer.
    fn staged(&self, ns: f64, overhead: f64) -> (u64, u64) {
        let (stage_ns, overhead_ns) = (whole_ns(ns / f64::from(self.stages)), (overhead + 0.5) as u64);
        (stage_ns * u64::from(self.stages) + overhead_ns, stage_ns + overhead_ns)
    }

    /// What starting a pass over so many tokens of prompts and contexts takes on the first stage.
    fn overhead(&self, tokens: f64) -> f64 {
        match &self.form {
            Form::DistServe(times) => times.overhead(tokens),
            Form::Measured(_) | Form::SplitwiseSim { .. } => 0.0,
        }
    }

    /// One prompt alone.
    pub fn prefill_ns(&self, prompt_tokens: u32) -> u64 {
        let tokens = f64::from(prompt_tokens);
        self.staged(self.prefill(1, tokens, tokens * tokens), self.overhead(tokens)).0
    }

    /// One decode pass; `context_tokens` is the total of the batch.
    pub fn decode_ns(&self, batch: u32, context_tokens: u64) -> u64 {
        let tokens = context_tokens as f64;
        self.staged(self.decode(batch, tokens), self.overhead(tokens)).0
    }

    /// What the Cluster is told of it, rounded to whole nanoseconds at the knots: prompts as if each pass were one,
    /// decodes by batch and context, each pass through all stages.
    ///
    /// # Errors
    /// [`SimError::Internal`] if the knots are no table; a profile's are.
    pub fn table(&self, pass_tokens_max: u32) -> Result<CostTable, SimError> {
        let (prefill_factor, decode_factor) = self.factors;
        let knots = |line: &PiecewiseLinear, factor: f64| -> Vec<CostKnot> {
            line.knots().map(|(x, ns)| CostKnot { at: x as u32, ns: whole_ns(factor * ns) }).collect()
        };
        let (prefill, decode, context_ns) = match &self.form {
            Form::Measured(measured) => (
                knots(measured.alone(), prefill_factor),
                knots(measured.decode_line(), decode_factor),
                decode_factor * measured.context(1024.0),
            ),
            Form::SplitwiseSim { prompt, token } => {
                (knots(prompt, prefill_factor), knots(token, decode_factor), 0.0)
            }
            Form::DistServe(times) => (
                times.prefill_knots(prefill_factor),
                times.decode_knots(decode_factor),
                1024.0 * times.context_per_token(decode_factor),
            ),
        };
        let points = CostPoints {
            prefill,
            decode,
            context_ns_per_1024_tokens: (context_ns + 0.5) as u64,
            pass_tokens_max,
        };
        CostTable::new(points).map_err(|error| SimError::Internal { reason: error.to_string() })
    }

    /// All stages of a pass over prompts.
    fn prefill(&self, prompts: u32, total_tokens: f64, squares: f64) -> f64 {
        self.factors.0
            * match &self.form {
                Form::Measured(measured) => measured.prefill(prompts, total_tokens),
                Form::SplitwiseSim { prompt, .. } => prompt.at(total_tokens),
                Form::DistServe(times) => times.prefill(total_tokens, squares),
            }
    }

    fn decode_base(&self, batch: u32) -> f64 {
        let computed = || self.factors.1 * self.form.decode_base(batch);
        self.decode_ns.get(batch as usize).copied().unwrap_or_else(computed)
    }

    /// All stages of a pass over decodes.
    fn decode(&self, batch: u32, context_tokens: f64) -> f64 {
        match &self.form {
            Form::Measured(measured) => {
                self.decode_base(batch) + self.factors.1 * measured.context(context_tokens)
            }
            Form::SplitwiseSim { .. } => self.decode_base(batch),
            Form::DistServe(times) => self.factors.1 * times.decode(batch, context_tokens),
        }
    }

    fn mixed(&self, pass: &Pass) -> f64 {
        let total = f64::from(pass.prompt_tokens);
        if let Form::SplitwiseSim { prompt, .. } = &self.form {
            return self.factors.0 * (SPLITWISE_SIM_MIXED * prompt.at(total + f64::from(pass.decodes)));
        }
        // The prompts already read the weights once; the decodes add what a batch of one without context would not
        // cost.
        self.prefill(pass.prompts, total, pass.prompt_tokens_squared as f64)
            + self.decode(pass.decodes, pass.context_tokens as f64)
            - self.decode_base(1)
    }

    fn is_out_of_range(&self, pass: &Pass) -> bool {
        let range = &self.range;
        match self.form {
            Form::Measured(_) | Form::DistServe(_) => {
                u64::from(pass.decodes) > range.batch_max_requests
                    || u64::from(pass.context_tokens_max) > range.context_max_tokens
                    || (pass.prompts > 0
                        && (u64::from(pass.prompt_tokens_min) < range.prompt_min_tokens
                            || u64::from(pass.prompt_tokens_max) > range.prompt_max_tokens))
            }
            Form::SplitwiseSim { .. } => {
                u64::from(pass.prompt_tokens) + u64::from(pass.decodes) > range.total_prompt_max_tokens
            }
        }
    }
}

impl Form {
    fn decode_base(&self, batch: u32) -> f64 {
        match self {
            Self::Measured(measured) => measured.decode_base(f64::from(batch)),
            Self::SplitwiseSim { token, .. } => token.at(f64::from(batch)),
            Self::DistServe(times) => times.decode(batch, 0.0),
        }
    }
}

/// Rounds to the nearest nanosecond; nothing takes less than one.
fn whole_ns(ns: f64) -> u64 {
    if ns >= 1.0 { (ns + 0.5) as u64 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for kind in CostKind::ALL {
            assert_eq!(kind.to_string().parse::<CostKind>().unwrap(), kind);
        }
        let error = "guess".parse::<CostKind>().unwrap_err().to_string();
        let known = "measured, splitwise-sim, distserve, distserve-overhead, distserve-vllm";
        assert_eq!(error, format!("costs: expected one of {known}, got `guess`"));
    }

    #[test]
    fn rounding() {
        for (ns, whole) in
            [(1.4, 1), (1.5, 2), (0.2, 1), (-3.0, 1), (f64::NAN, 1), (7_000_000_000.4, 7_000_000_000)]
        {
            assert_eq!(whole_ns(ns), whole, "{ns}");
        }
    }
}
