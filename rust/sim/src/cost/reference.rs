//! The idle machine that slowdowns are measured against.

use super::{CostModel, Form, Profile, distserve, whole_ns};
use crate::SimError;
use crate::cost::CostKind;
use crate::machines::{Hardware, MachineKind, Model};

/// Times of a request alone on a DGX-A100, same model and same cost model: with all eight GPUs, or under DistServe's
/// costs with the largest tensor-parallel size there are coefficients of.
#[derive(Debug, Clone)]
pub struct IdleReference {
    cost: CostModel,
}

impl IdleReference {
    /// Prepares the reference for `model`.
    ///
    /// # Errors
    /// [`SimError::Config`] when the profile lacks the model on that machine.
    pub fn new(kind: CostKind, profile: &Profile, model: Model) -> Result<Self, SimError> {
        let machine = match kind.distserve_engine() {
            None => MachineKind::whole(Hardware::A100),
            Some(engine) => MachineKind::new(Hardware::A100, distserve::tp_max(engine, model)?, 1),
        };
        let cost = CostModel::new(kind, profile, model, &machine)?;
        Ok(Self { cost })
    }

    /// Time to the first token.
    pub fn ttft_ns(&self, prompt_tokens: u32) -> u64 {
        self.cost.prefill_ns(prompt_tokens)
    }

    /// Time between tokens, at the context half-way through the output.
    pub fn tbt_ns(&self, prompt_tokens: u32, output_tokens: u32) -> u64 {
        whole_ns(self.tbt(prompt_tokens, output_tokens))
    }

    /// From arrival to the last token, rounded once.
    pub fn e2e_ns(&self, prompt_tokens: u32, output_tokens: u32) -> u64 {
        let gaps = f64::from(output_tokens.saturating_sub(1));
        let prompt = f64::from(prompt_tokens);
        let ttft = self.cost.prefill(1, prompt, prompt * prompt) + self.cost.overhead(prompt);
        whole_ns(ttft + self.tbt(prompt_tokens, output_tokens) * gaps)
    }

    fn tbt(&self, prompt_tokens: u32, output_tokens: u32) -> f64 {
        let prompt = f64::from(prompt_tokens);
        match &self.cost.form {
            Form::Measured(_) | Form::DistServe(_) => {
                let context = prompt + f64::from(output_tokens) / 2.0;
                self.cost.decode(1, context) + self.cost.overhead(context)
            }
            // As published: by prompt size, the one place where the lines are used as they were keyed.
            Form::SplitwiseSim { token, .. } => token.at(prompt),
        }
    }
}
