//! Cost models: how long one forward pass takes on one machine.
//!
//! All arithmetic is `+ - * /` on `f64` in nanoseconds and is rounded to whole nanoseconds once, so that
//! results do not depend on a platform's math library.

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
    /// The public simulator's way, to reproduce its published results.
    SplitwiseSim,
}

impl CostKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Measured, Self::SplitwiseSim];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::SplitwiseSim => "splitwise-sim",
        }
    }

    /// The size of the weights that goes with it.
    pub const fn weights(self) -> Weights {
        match self {
            Self::Measured => Weights::Measured,
            Self::SplitwiseSim => Weights::Published,
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
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| SimError::config("costs", "measured or splitwise-sim", format!("`{text}`")))
    }
}

/// What one forward pass does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// Prompts in it.
    pub prompts: u32,
    /// Their tokens together.
    pub prompt_tokens: u32,
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
    /// Its duration, at least 1.
    pub ns: u64,
    /// Whether anything in it lies outside what was measured.
    pub out_of_range: bool,
}

/// The times of one model on one kind of machine, ready to be asked for every pass.
#[derive(Debug, Clone)]
pub struct CostModel {
    kind: CostKind,
    form: Form,
    range: MeasuredRange,
    /// A decode pass by batch without its context, from 0 requests on.
    decode_ns: Box<[f64]>,
}

#[derive(Debug, Clone)]
enum Form {
    Measured(Measured),
    SplitwiseSim { prompt: PiecewiseLinear, token: PiecewiseLinear },
}

impl CostModel {
    /// Prepares the times of `model` on `machine`.
    ///
    /// # Errors
    /// [`SimError::Config`] naming both when the profile has no measurement of the pairing.
    pub fn new(
        kind: CostKind,
        profile: &Profile,
        model: Model,
        machine: MachineKind,
    ) -> Result<Self, SimError> {
        let times = profile.find(model, machine)?;
        let form = match kind {
            CostKind::Measured => Form::Measured(Measured::new(times, NS_PER_MS)),
            CostKind::SplitwiseSim => Form::SplitwiseSim {
                prompt: PiecewiseLinear::new(&times.splitwise_sim_prompt_knots, NS_PER_MS),
                token: PiecewiseLinear::new(&times.splitwise_sim_token_knots, NS_PER_MS),
            },
        };
        let decode_ns = (0..=TABLE_REQUESTS).map(|batch| form.decode_base(batch)).collect();
        Ok(Self { kind, form, range: times.range, decode_ns })
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
            (prompts, 0) => self.prefill(prompts, f64::from(pass.prompt_tokens)),
            _ => self.mixed(pass),
        };
        PassCost { ns: whole_ns(ns), out_of_range: self.is_out_of_range(pass) }
    }

    /// One prompt alone.
    pub fn prefill_ns(&self, prompt_tokens: u32) -> u64 {
        whole_ns(self.prefill(1, f64::from(prompt_tokens)))
    }

    /// One decode pass; `context_tokens` is the total of the batch.
    pub fn decode_ns(&self, batch: u32, context_tokens: u64) -> u64 {
        whole_ns(self.decode(batch, context_tokens as f64))
    }

    /// What the Cluster is told of it, rounded to whole nanoseconds at the knots: prompts as if each pass were one,
    /// decodes by batch and context.
    ///
    /// # Errors
    /// [`SimError::Internal`] if the knots are no table; a profile's are.
    pub fn table(&self, pass_tokens_max: u32) -> Result<CostTable, SimError> {
        let (prefill, decode, context_ns) = match &self.form {
            Form::Measured(measured) => (measured.alone(), measured.decode_line(), measured.context(1024.0)),
            Form::SplitwiseSim { prompt, token } => (prompt, token, 0.0),
        };
        let knots = |line: &PiecewiseLinear| {
            line.knots().map(|(x, ns)| CostKnot { at: x as u32, ns: whole_ns(ns) }).collect()
        };
        let points = CostPoints {
            prefill: knots(prefill),
            decode: knots(decode),
            context_ns_per_1024_tokens: (context_ns + 0.5) as u64,
            pass_tokens_max,
        };
        CostTable::new(points).map_err(|error| SimError::Internal { reason: error.to_string() })
    }

    fn prefill(&self, prompts: u32, total_tokens: f64) -> f64 {
        match &self.form {
            Form::Measured(measured) => measured.prefill(prompts, total_tokens),
            Form::SplitwiseSim { prompt, .. } => prompt.at(total_tokens),
        }
    }

    fn decode_base(&self, batch: u32) -> f64 {
        self.decode_ns.get(batch as usize).copied().unwrap_or_else(|| self.form.decode_base(batch))
    }

    fn decode(&self, batch: u32, context_tokens: f64) -> f64 {
        let base = self.decode_base(batch);
        match &self.form {
            Form::Measured(measured) => base + measured.context(context_tokens),
            Form::SplitwiseSim { .. } => base,
        }
    }

    fn mixed(&self, pass: &Pass) -> f64 {
        let total = f64::from(pass.prompt_tokens);
        match &self.form {
            // The prompts already read the weights once; the decodes add what a batch of one without
            // context would not cost.
            Form::Measured(measured) => {
                measured.prefill(pass.prompts, total) + self.decode(pass.decodes, pass.context_tokens as f64)
                    - self.decode_base(1)
            }
            Form::SplitwiseSim { prompt, .. } => {
                SPLITWISE_SIM_MIXED * prompt.at(total + f64::from(pass.decodes))
            }
        }
    }

    fn is_out_of_range(&self, pass: &Pass) -> bool {
        let range = &self.range;
        match self.form {
            Form::Measured(_) => {
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
        assert_eq!(error, "costs: expected measured or splitwise-sim, got `guess`");
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
