//! The project's own profile format: what was measured of each (model, hardware, tensor-parallel size).

use std::path::Path;
use std::sync::LazyLock;

use super::knots::{Knot, PiecewiseLinear};
use super::profile_toml;
use crate::SimError;
use crate::files::read_ordinary;
use crate::machines::{MachineKind, Model, no_measurement};

/// Decodes in one pass up to which no time may extrapolate to zero or below.
pub const CHECKED_BATCH_REQUESTS: u64 = 512;
/// Prompt tokens up to which no time may extrapolate to zero or below.
pub const CHECKED_PROMPT_TOKENS: u64 = 40_000;

/// Times of all measured machines, checked: whoever holds one can compute with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    machines: Vec<MachineProfile>,
}

/// Times of one model on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineProfile {
    /// Model name as measured.
    pub model: String,
    /// Hardware name as measured, such as `h100-80gb`.
    pub hardware: String,
    /// GPUs that share the model.
    pub tensor_parallel: u32,
    /// What a decode pass takes longer for each token of context in its batch.
    pub context_ms_per_token: f64,
    /// Size of each prompt in `batched_prompt_knots`.
    pub batched_prompt_tokens: u64,
    /// What the measurements span; times outside are extrapolated and counted.
    pub range: MeasuredRange,
    /// One prompt alone, by its tokens.
    pub prompt_knots: Vec<Knot>,
    /// Several prompts of one size in a pass, by their total tokens; empty when never measured.
    pub batched_prompt_knots: Vec<Knot>,
    /// One decode pass without its context part, by requests in the batch.
    pub decode_knots: Vec<Knot>,
    /// Prompt pass as the public simulator keys it, by prompt size times batch.
    pub splitwise_sim_prompt_knots: Vec<Knot>,
    /// Decode pass as the public simulator keys it, by prompt size times batch.
    pub splitwise_sim_token_knots: Vec<Knot>,
}

/// What the measurements of one machine span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredRange {
    /// Smallest prompt measured alone.
    pub prompt_min_tokens: u64,
    /// Largest prompt measured alone.
    pub prompt_max_tokens: u64,
    /// Longest prompt or output of any measured request.
    pub context_max_tokens: u64,
    /// Largest batch.
    pub batch_max_requests: u64,
    /// Largest product of prompt size and batch.
    pub total_prompt_max_tokens: u64,
}

/// What is wrong with one machine's profile, before a line is known.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Key, as in the file.
    pub(crate) field: &'static str,
    /// Which knot, from 0.
    pub(crate) index: Option<usize>,
    pub(crate) expected: String,
    pub(crate) got: String,
}

impl Problem {
    /// The column of a measurement file it comes from.
    pub(crate) fn column(&self) -> &'static str {
        match self.field {
            "tensor_parallel" => "tensor_parallel",
            "decode_ms_by_batch" | "context_ms_per_token" | "splitwise_sim_token_ms_by_tokens" => {
                "token_time"
            }
            _ => "prompt_time",
        }
    }
}

impl Profile {
    /// The profile that ships with the project.
    pub fn builtin() -> Self {
        // Searches make thousands of runs, each from its options: what never changes is read once.
        static BUILTIN: LazyLock<Profile> = LazyLock::new(|| {
            profile_toml::parse(include_str!("../../profiles/dgx.toml"), "dgx.toml")
                .expect("the shipped profile is valid: a test loads it")
        });
        BUILTIN.clone()
    }

    /// Reads a profile file.
    ///
    /// # Errors
    /// [`SimError::Io`] when it cannot be read, [`SimError::Input`] with the line when it makes no sense.
    pub fn load(path: &str) -> Result<Self, SimError> {
        let text = read_ordinary(Path::new(path))?;
        Self::from_toml(&text, path)
    }

    /// Reads a profile from its text; `file` is what errors call it.
    ///
    /// # Errors
    /// [`SimError::Input`] with file, line and field.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, SimError> {
        profile_toml::parse(text, file)
    }

    /// The text of the profile; reading it again gives an equal one.
    pub fn to_toml(&self) -> String {
        profile_toml::write(self)
    }

    /// Takes machines that passed [`MachineProfile::check`].
    pub(crate) fn from_checked(machines: Vec<MachineProfile>) -> Self {
        Self { machines }
    }

    /// All measured machines, in file order.
    pub fn machines(&self) -> &[MachineProfile] {
        &self.machines
    }

    /// The times of a catalogued model on a catalogued machine; the hardware may stand under its GPU's
    /// name or under the machine's.
    ///
    /// # Errors
    /// [`SimError::Config`] naming both when nobody measured the pairing.
    pub fn find(&self, model: Model, kind: &MachineKind) -> Result<&MachineProfile, SimError> {
        let of_model = || self.machines.iter().filter(|machine| machine.model == model.name());
        let names = kind.hardware.names_in_profiles();
        of_model()
            .find(|machine| machine.tensor_parallel == kind.tp && names.contains(&machine.hardware.as_str()))
            .ok_or_else(|| {
                let known =
                    of_model().map(|machine| format!("{}:tp{}", machine.hardware, machine.tensor_parallel));
                no_measurement(model, kind, known)
            })
    }
}

impl MachineProfile {
    /// Whether two entries are about the same machine.
    pub(crate) fn same_machine(&self, other: &Self) -> bool {
        (&self.model, &self.hardware, self.tensor_parallel)
            == (&other.model, &other.hardware, other.tensor_parallel)
    }

    /// Checks everything a cost model relies on.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        if self.tensor_parallel == 0 {
            return Err(problem("tensor_parallel", "at least 1", &0));
        }
        if self.batched_prompt_tokens == 0 {
            return Err(problem("batched_prompt_tokens", "at least 1", &0));
        }
        if !(self.context_ms_per_token.is_finite() && self.context_ms_per_token >= 0.0) {
            return Err(problem("context_ms_per_token", "a time of 0 or more", &self.context_ms_per_token));
        }
        if self.range.prompt_min_tokens > self.range.prompt_max_tokens {
            let expected = format!("at most prompt_max_tokens = {}", self.range.prompt_max_tokens);
            return Err(problem("prompt_min_tokens", expected, &self.range.prompt_min_tokens));
        }
        check_knots("prompt_ms_by_tokens", &self.prompt_knots, 1..=CHECKED_PROMPT_TOKENS)?;
        if !self.batched_prompt_knots.is_empty() {
            // Batches no larger than one prompt are never looked up.
            let from = self.batched_prompt_tokens.min(CHECKED_PROMPT_TOKENS);
            check_knots(
                "batched_prompt_ms_by_tokens",
                &self.batched_prompt_knots,
                from..=CHECKED_PROMPT_TOKENS,
            )?;
        }
        check_knots("decode_ms_by_batch", &self.decode_knots, 1..=CHECKED_BATCH_REQUESTS)?;
        for (field, knots) in [
            ("splitwise_sim_prompt_ms_by_tokens", &self.splitwise_sim_prompt_knots),
            ("splitwise_sim_token_ms_by_tokens", &self.splitwise_sim_token_knots),
        ] {
            check_knots(field, knots, 1..=CHECKED_PROMPT_TOKENS)?;
        }
        Ok(())
    }
}

fn problem(field: &'static str, expected: impl Into<String>, got: &impl ToString) -> Problem {
    Problem { field, index: None, expected: expected.into(), got: got.to_string() }
}

/// Every time positive, sizes increasing, and still positive at both ends of `within`.
fn check_knots(
    field: &'static str,
    knots: &[Knot],
    within: std::ops::RangeInclusive<u64>,
) -> Result<(), Problem> {
    if knots.len() < 2 {
        return Err(problem(field, "at least two knots", &knots.len()));
    }
    for (index, knot) in knots.iter().enumerate() {
        let at = |expected: String, got: String| Problem { field, index: Some(index), expected, got };
        if !(knot.ms.is_finite() && knot.ms > 0.0) {
            return Err(at("a time above 0 ms".to_owned(), knot.ms.to_string()));
        }
        let least = if index == 0 { 1 } else { knots[index - 1].x + 1 };
        if knot.x < least {
            return Err(at(
                format!("a size of at least {least}, sizes increase strictly"),
                knot.x.to_string(),
            ));
        }
    }
    let line = PiecewiseLinear::new(knots, 1.0);
    for (x, index) in [(*within.start(), 0), (*within.end(), knots.len() - 1)] {
        let ms = line.at(x as f64);
        // Written so that a NaN fails too.
        if !(ms.is_finite() && ms > 0.0) {
            let expected = format!("knots whose line is still above 0 ms at {x}");
            return Err(Problem { field, index: Some(index), expected, got: format!("{ms} ms") });
        }
    }
    Ok(())
}
