//! DistServe's analytic latency model: quadratic in the prompts, linear in batch and context.

use std::sync::LazyLock;

use serde::Deserialize;
use splitcore_core::cost::CostKnot;

use super::profile::MeasuredRange;
use super::{NS_PER_MS, whole_ns};
use crate::SimError;
use crate::machines::{GPU_MEMORY_BYTES, MachineKind, Model, no_measurement};

/// The name in profiles of the only GPU there are coefficients of.
const PROFILE_NAME: &str = "a100-80gb";
/// Decodes in a pass from which the second set of coefficients holds.
const LARGE_BATCH_REQUESTS: u32 = 95;
/// What starting a prefill pass of one stage adds to it; with more stages, to each stage as often as there are stages.
const PREFILL_START_NS: f64 = 1e6;
/// What starting a pass takes on the first stage, where that is counted: at all, and for each token of context.
const OVERHEAD_NS: f64 = 2e6;
const OVERHEAD_NS_PER_TOKEN: f64 = 100.0;
/// Tokens of a request at most: the positions that OPT has learned.
const POSITIONS: u64 = 2048;
/// Prompt sizes at which the Cluster's table is cut from the quadratic.
const SAMPLED_PROMPTS: [u32; 14] =
    [1, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16_384, 32_768, 65_536];

static DATA: LazyLock<Document> = LazyLock::new(|| {
    toml::from_str(include_str!("../../data/distserve.toml"))
        .expect("the shipped coefficients are valid: a test loads them")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    times: Vec<Times>,
    memory: Vec<Memory>,
}

/// Coefficients in milliseconds: constant, by tokens, and by squares or requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Times {
    engine: String,
    model: String,
    tensor_parallel: u32,
    prefill: [f64; 3],
    decode_small: [f64; 3],
    decode_large: [f64; 3],
}

/// KV tokens of a model: as published, and the line through these.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    model: String,
    published: Vec<(u32, u32, u64)>,
    tokens_per_gpu: u64,
    tokens_of_weights: u64,
}

/// The times of one model on one machine, in nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct DistServe {
    prefill: [f64; 3],
    decode_small: [f64; 3],
    decode_large: [f64; 3],
    /// Of all stages together.
    prefill_start: f64,
    /// Whether the first stage's start of each pass counts.
    has_overhead: bool,
}

impl DistServe {
    /// Looks the coefficients of an engine up, `distserve` or `vllm`.
    pub(super) fn new(
        engine: &str,
        has_overhead: bool,
        model: Model,
        kind: &MachineKind,
    ) -> Result<Self, SimError> {
        let rows = rows(engine, model)?;
        if kind.hardware.profile_name != PROFILE_NAME {
            let expected = format!("a machine of {PROFILE_NAME} GPUs under these costs");
            return Err(SimError::config("model", expected, format!("{model} on {kind}")));
        }
        let times = rows.iter().find(|times| times.tensor_parallel == kind.tp).ok_or_else(|| {
            let known = rows.iter().map(|times| format!("{PROFILE_NAME}:tp{}", times.tensor_parallel));
            no_measurement(model, kind, known)
        })?;
        let ns = |coefficients: [f64; 3]| coefficients.map(|ms| ms * NS_PER_MS);
        Ok(Self {
            prefill: ns(times.prefill),
            decode_small: ns(times.decode_small),
            decode_large: ns(times.decode_large),
            prefill_start: PREFILL_START_NS * f64::from(kind.pp) * f64::from(kind.pp),
            has_overhead,
        })
    }

    /// A pass over prompts through all stages.
    pub(super) fn prefill(&self, tokens: f64, squares: f64) -> f64 {
        let [start, per_token, per_square] = self.prefill;
        start + per_token * tokens + per_square * squares + self.prefill_start
    }

    /// A pass over decodes through all stages.
    pub(super) fn decode(&self, batch: u32, context_tokens: f64) -> f64 {
        let [start, per_token, per_request] =
            if batch < LARGE_BATCH_REQUESTS { self.decode_small } else { self.decode_large };
        start + per_token * context_tokens + per_request * f64::from(batch)
    }

    /// What starting a pass adds on the first stage.
    pub(super) fn overhead(&self, tokens: f64) -> f64 {
        if self.has_overhead { OVERHEAD_NS + OVERHEAD_NS_PER_TOKEN * tokens } else { 0.0 }
    }

    /// Prompts for the Cluster, as if each pass were one: between the samples a chord, which lies above.
    pub(super) fn prefill_knots(&self, factor: f64) -> Vec<CostKnot> {
        let knot = |at: u32| {
            let tokens = f64::from(at);
            let ns = factor * self.prefill(tokens, tokens * tokens) + self.overhead(tokens);
            CostKnot { at, ns: whole_ns(ns) }
        };
        SAMPLED_PROMPTS.map(knot).into()
    }

    /// Decodes without context for the Cluster, with the jump between the two sets of coefficients.
    pub(super) fn decode_knots(&self, factor: f64) -> Vec<CostKnot> {
        let last_small = LARGE_BATCH_REQUESTS - 1;
        let knot = |at: u32| {
            let ns = factor * self.decode(at, 0.0) + self.overhead(0.0);
            CostKnot { at, ns: whole_ns(ns) }
        };
        [1, last_small, LARGE_BATCH_REQUESTS, 2 * LARGE_BATCH_REQUESTS].map(knot).into()
    }

    /// What a token of context adds, by the dearer set: the Cluster's table knows but one.
    pub(super) fn context_per_token(&self, factor: f64) -> f64 {
        let dearer = self.decode_small[1].max(self.decode_large[1]);
        factor * dearer + self.overhead(1.0) - self.overhead(0.0)
    }

    /// The grid behind the coefficients is not published; what the model itself cannot take counts as outside.
    pub(super) fn range() -> MeasuredRange {
        MeasuredRange {
            prompt_min_tokens: 1,
            prompt_max_tokens: POSITIONS,
            context_max_tokens: POSITIONS,
            batch_max_requests: u64::MAX,
            total_prompt_max_tokens: u64::MAX,
        }
    }
}

fn rows(engine: &str, model: Model) -> Result<Vec<&'static Times>, SimError> {
    let of_engine = || DATA.times.iter().filter(|times| times.engine == engine);
    let rows: Vec<_> = of_engine().filter(|times| times.model == model.name()).collect();
    if rows.is_empty() {
        let mut known: Vec<&str> = of_engine().map(|times| times.model.as_str()).collect();
        known.dedup();
        let only = if model == Model::Opt175b { ", of which no times are published" } else { "" };
        let expected = format!("{} under these costs", known.join(" or "));
        return Err(SimError::config("model", expected, format!("`{model}`{only}")));
    }
    Ok(rows)
}

/// The largest tensor-parallel size there are coefficients of.
pub(super) fn tp_max(engine: &str, model: Model) -> Result<u32, SimError> {
    Ok(rows(engine, model)?.iter().map(|times| times.tensor_parallel).max().unwrap_or(1))
}

/// KV tokens that a machine holds beside the weights: as published, else by the line that the published ones follow.
/// GPUs of another size leave as large a share of their memory free.
///
/// # Errors
/// [`SimError::Config`] naming both when the weights do not fit, or when nothing is published of the model.
pub(crate) fn kv_capacity_tokens(model: Model, kind: &MachineKind) -> Result<u64, SimError> {
    let Some(memory) = DATA.memory.iter().find(|memory| memory.model == model.name()) else {
        let known: Vec<&str> = DATA.memory.iter().map(|memory| memory.model.as_str()).collect();
        let expected = format!("{} under these costs", known.join(" or "));
        return Err(SimError::config("model", expected, format!("`{model}`")));
    };
    let listed = memory.published.iter().find(|&&(tp, pp, _)| (tp, pp) == (kind.tp, kind.pp));
    match listed {
        Some(&(.., tokens)) if kind.hardware.gpu_memory_bytes == GPU_MEMORY_BYTES => Ok(tokens),
        _ => memory.fitted(kind).ok_or_else(|| {
            let expected = format!("a machine that holds {model} and KV beside it");
            SimError::config("model", expected, format!("{kind} with {} bytes", kind.memory_bytes()))
        }),
    }
}

impl Memory {
    /// By the line; none where the weights leave nothing.
    fn fitted(&self, kind: &MachineKind) -> Option<u64> {
        let scaled = u128::from(kind.memory_bytes()) * u128::from(self.tokens_per_gpu);
        let tokens = scaled / u128::from(GPU_MEMORY_BYTES);
        let left = tokens.checked_sub(u128::from(self.tokens_of_weights))?;
        u64::try_from(left).ok().filter(|&left| left > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::Hardware;

    #[test]
    fn published_capacities_come_back_and_lie_on_the_line() {
        for memory in &DATA.memory {
            let model = Model::parse(&memory.model).unwrap();
            for &(tp, pp, tokens) in &memory.published {
                let kind = MachineKind::new(Hardware::A100, tp, pp);
                assert_eq!(kv_capacity_tokens(model, &kind).unwrap(), tokens);
                let fitted = memory.fitted(&kind).unwrap();
                assert!(fitted.abs_diff(tokens) * 1000 <= tokens, "{model} {kind}: {fitted} for {tokens}");
            }
        }
        let figures: Vec<u64> =
            DATA.memory.iter().flat_map(|memory| memory.published.iter().map(|row| row.2)).collect();
        let (small, medium) = ([66_144, 163_008, 356_736], [11_600, 78_496, 78_512, 212_304]);
        assert_eq!(figures, [&small[..], &medium, &[26_208, 59_520, 76_192, 126_160]].concat());
    }

    #[test]
    fn other_pairs_follow_the_line_or_do_not_fit() {
        let tokens = |model, tp, pp| kv_capacity_tokens(model, &MachineKind::new(Hardware::A100, tp, pp));
        assert_eq!(tokens(Model::Opt66b, 3, 1).unwrap(), 3 * 33_450 - 55_300);
        assert_eq!(tokens(Model::Opt13b, 1, 2).unwrap(), 163_008, "as with two GPUs in one stage");
        for (model, tp, pp) in [(Model::Opt66b, 1, 1), (Model::Opt175b, 4, 1), (Model::Opt175b, 2, 2)] {
            let error = tokens(model, tp, pp).unwrap_err().to_string();
            assert!(error.starts_with(&format!("model: expected a machine that holds {model}")), "{error}");
        }
        let error = tokens(Model::Bloom176b, 8, 1).unwrap_err().to_string();
        let known = "opt-13b or opt-66b or opt-175b";
        assert_eq!(error, format!("model: expected {known} under these costs, got `bloom-176b`"));
    }
}
