//! The `measured` model: prompts by number and size, decode by batch and context.

use super::knots::PiecewiseLinear;
use super::profile::MachineProfile;

/// Both phases of one machine, in units of `1 / scale` milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    alone: PiecewiseLinear,
    batched: Option<PiecewiseLinear>,
    batched_prompt_tokens: f64,
    decode_base: PiecewiseLinear,
    context_per_token: f64,
}

impl Measured {
    pub(crate) fn new(profile: &MachineProfile, scale: f64) -> Self {
        let line = |knots: &[_]| PiecewiseLinear::new(knots, scale);
        Self {
            alone: line(&profile.prompt_knots),
            batched: Some(profile.batched_prompt_knots.as_slice())
                .filter(|knots| !knots.is_empty())
                .map(line),
            batched_prompt_tokens: profile.batched_prompt_tokens as f64,
            decode_base: line(&profile.decode_knots),
            context_per_token: profile.context_ms_per_token * scale,
        }
    }

    /// One prompt alone.
    pub(crate) fn alone(&self) -> &PiecewiseLinear {
        &self.alone
    }

    /// A decode pass without its context part, as a line.
    pub(crate) fn decode_line(&self) -> &PiecewiseLinear {
        &self.decode_base
    }

    /// One pass over `prompts` prompts of `total` tokens.
    ///
    /// The same total costs differently as one prompt and as many. Both ends were measured; between
    /// them the weight is how far the number of prompts has come from one to what the total would
    /// make of prompts of the measured size.
    pub(crate) fn prefill(&self, prompts: u32, total: f64) -> f64 {
        let alone = self.alone.at(total);
        let Some(batched) = &self.batched else { return alone };
        if prompts <= 1 || total <= self.batched_prompt_tokens {
            return alone;
        }
        let reached = 1.0 - 1.0 / f64::from(prompts);
        let full = 1.0 - self.batched_prompt_tokens / total;
        let weight = if reached < full { reached / full } else { 1.0 };
        (1.0 - weight) * alone + weight * batched.at(total)
    }

    /// A decode pass without its context part.
    pub(crate) fn decode_base(&self, batch: f64) -> f64 {
        self.decode_base.at(batch)
    }

    /// What the context of a batch adds.
    pub(crate) fn context(&self, tokens: f64) -> f64 {
        self.context_per_token * tokens
    }
}
