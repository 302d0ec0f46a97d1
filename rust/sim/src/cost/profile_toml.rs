//! Profiles as TOML text.

use std::fmt::Write as _;

use serde::Deserialize;
use toml::Spanned;

use super::knots::Knot;
use super::profile::{MachineProfile, MeasuredRange, Problem, Profile};
use crate::SimError;

/// First line of every profile.
const FORMAT: &str = "splitcore-profile";
/// Raised whenever an older reader would misread a file.
const VERSION: u32 = 1;

type Knots = Spanned<Vec<Spanned<(u64, f64)>>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: Spanned<String>,
    version: Spanned<u32>,
    #[serde(default)]
    machine: Vec<Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    model: String,
    hardware: String,
    tensor_parallel: Spanned<u32>,
    context_ms_per_token: Spanned<f64>,
    batched_prompt_tokens: Spanned<u64>,
    prompt_min_tokens: Spanned<u64>,
    prompt_max_tokens: u64,
    context_max_tokens: u64,
    batch_max_requests: u64,
    total_prompt_max_tokens: u64,
    prompt_ms_by_tokens: Knots,
    #[serde(default)]
    batched_prompt_ms_by_tokens: Option<Knots>,
    decode_ms_by_batch: Knots,
    splitwise_sim_prompt_ms_by_tokens: Knots,
    splitwise_sim_token_ms_by_tokens: Knots,
}

impl Entry {
    fn to_profile(&self) -> MachineProfile {
        MachineProfile {
            model: self.model.clone(),
            hardware: self.hardware.clone(),
            tensor_parallel: *self.tensor_parallel.get_ref(),
            context_ms_per_token: *self.context_ms_per_token.get_ref(),
            batched_prompt_tokens: *self.batched_prompt_tokens.get_ref(),
            range: MeasuredRange {
                prompt_min_tokens: *self.prompt_min_tokens.get_ref(),
                prompt_max_tokens: self.prompt_max_tokens,
                context_max_tokens: self.context_max_tokens,
                batch_max_requests: self.batch_max_requests,
                total_prompt_max_tokens: self.total_prompt_max_tokens,
            },
            prompt_knots: plain(&self.prompt_ms_by_tokens),
            batched_prompt_knots: self.batched_prompt_ms_by_tokens.as_ref().map(plain).unwrap_or_default(),
            decode_knots: plain(&self.decode_ms_by_batch),
            splitwise_sim_prompt_knots: plain(&self.splitwise_sim_prompt_ms_by_tokens),
            splitwise_sim_token_knots: plain(&self.splitwise_sim_token_ms_by_tokens),
        }
    }

    /// Where in the text the trouble starts.
    fn offset_of(&self, problem: &Problem) -> Option<usize> {
        let knots = match problem.field {
            "tensor_parallel" => return Some(self.tensor_parallel.span().start),
            "context_ms_per_token" => return Some(self.context_ms_per_token.span().start),
            "batched_prompt_tokens" => return Some(self.batched_prompt_tokens.span().start),
            "prompt_min_tokens" => return Some(self.prompt_min_tokens.span().start),
            "prompt_ms_by_tokens" => &self.prompt_ms_by_tokens,
            "batched_prompt_ms_by_tokens" => self.batched_prompt_ms_by_tokens.as_ref()?,
            "decode_ms_by_batch" => &self.decode_ms_by_batch,
            "splitwise_sim_prompt_ms_by_tokens" => &self.splitwise_sim_prompt_ms_by_tokens,
            "splitwise_sim_token_ms_by_tokens" => &self.splitwise_sim_token_ms_by_tokens,
            _ => return None,
        };
        let knot = problem.index.and_then(|index| knots.get_ref().get(index));
        Some(knot.map_or(knots.span().start, |knot| knot.span().start))
    }
}

fn plain(knots: &Knots) -> Vec<Knot> {
    knots.get_ref().iter().map(|knot| Knot { x: knot.get_ref().0, ms: knot.get_ref().1 }).collect()
}

/// Reads and checks a profile.
pub(super) fn parse(text: &str, file: &str) -> Result<Profile, SimError> {
    let input = |offset: usize, field: &str, expected: String, got: String| SimError::Input {
        file: file.to_owned(),
        line: line_at(text, offset),
        field: field.to_owned(),
        expected,
        got,
    };
    let document: Document = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        input(offset, "toml", "a profile of this format".to_owned(), error.message().trim().to_owned())
    })?;
    if document.format.get_ref() != FORMAT {
        let got = format!("`{}`", document.format.get_ref());
        return Err(input(document.format.span().start, "format", format!("`{FORMAT}`"), got));
    }
    if *document.version.get_ref() != VERSION {
        let got = document.version.get_ref().to_string();
        return Err(input(document.version.span().start, "version", VERSION.to_string(), got));
    }
    if document.machine.is_empty() {
        return Err(input(text.len(), "machine", "at least one [[machine]]".to_owned(), "none".to_owned()));
    }
    let mut machines: Vec<MachineProfile> = Vec::with_capacity(document.machine.len());
    for entry in &document.machine {
        let machine = entry.get_ref().to_profile();
        let start = entry.span().start;
        machine.check().map_err(|problem| {
            let offset = entry.get_ref().offset_of(&problem).unwrap_or(start);
            input(offset, problem.field, problem.expected, problem.got)
        })?;
        if machines.iter().any(|earlier| earlier.same_machine(&machine)) {
            let got =
                format!("{} on {}:tp{} again", machine.model, machine.hardware, machine.tensor_parallel);
            return Err(input(start, "machine", "each machine once".to_owned(), got));
        }
        machines.push(machine);
    }
    Ok(Profile::from_checked(machines))
}

/// Lines count from 1.
fn line_at(text: &str, offset: usize) -> u64 {
    1 + text.get(..offset).unwrap_or(text).matches('\n').count() as u64
}

/// Writes a profile with every digit, one knot a line.
pub(super) fn write(profile: &Profile) -> String {
    let mut out = format!("format = \"{FORMAT}\"\nversion = {VERSION}\n");
    for machine in profile.machines() {
        write_machine(&mut out, machine);
    }
    out
}

fn write_machine(out: &mut String, machine: &MachineProfile) {
    let range = &machine.range;
    let fields = [
        ("model", quoted(&machine.model)),
        ("hardware", quoted(&machine.hardware)),
        ("tensor_parallel", machine.tensor_parallel.to_string()),
        // Debug prints the shortest text that reads back as the same float, and never a bare integer.
        ("context_ms_per_token", format!("{:?}", machine.context_ms_per_token)),
        ("batched_prompt_tokens", machine.batched_prompt_tokens.to_string()),
        ("prompt_min_tokens", range.prompt_min_tokens.to_string()),
        ("prompt_max_tokens", range.prompt_max_tokens.to_string()),
        ("context_max_tokens", range.context_max_tokens.to_string()),
        ("batch_max_requests", range.batch_max_requests.to_string()),
        ("total_prompt_max_tokens", range.total_prompt_max_tokens.to_string()),
    ];
    out.push_str("\n[[machine]]\n");
    for (key, value) in fields {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{key} = {value}");
    }
    for (key, knots) in [
        ("prompt_ms_by_tokens", &machine.prompt_knots),
        ("batched_prompt_ms_by_tokens", &machine.batched_prompt_knots),
        ("decode_ms_by_batch", &machine.decode_knots),
        ("splitwise_sim_prompt_ms_by_tokens", &machine.splitwise_sim_prompt_knots),
        ("splitwise_sim_token_ms_by_tokens", &machine.splitwise_sim_token_knots),
    ] {
        if knots.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{key} = [");
        for knot in knots {
            let _ = writeln!(out, "    [{}, {:?}],", knot.x, knot.ms);
        }
        out.push_str("]\n");
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
