//! Files that are one JSON value: results of vLLM's benchmark, and `ShareGPT`'s conversations.

use std::io::{Cursor, Read};

use serde::Deserialize;
use serde_json::Value;

use super::place::Place;
use super::rows::{Arrival, Rows};
use super::texts::Counter;
use super::unknown_format;
use crate::SimError;

const INPUTS: &str = "input_lens";
const OUTPUTS: &str = "output_lens";
const STARTS: &str = "start_times";

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Conversations(Vec<Conversation>),
    Benchmark(Benchmark),
}

/// A result of vLLM's benchmark.
#[derive(Deserialize)]
struct Benchmark {
    input_lens: Vec<Value>,
    output_lens: Vec<Value>,
    #[serde(default)]
    start_times: Option<Vec<Value>>,
}

/// One of `ShareGPT`'s; some files say `conversation`.
#[derive(Deserialize)]
struct Conversation {
    #[serde(alias = "conversation")]
    conversations: Vec<Turn>,
}

#[derive(Deserialize)]
struct Turn {
    value: String,
}

/// Whether a first line is a JSON value of its own kind, or a part of one over several lines; a row of JSON lines is
/// neither.
pub(super) fn begins(line: &[u8]) -> bool {
    match serde_json::from_slice::<Value>(line) {
        Ok(value) => value.get(INPUTS).is_some(),
        // A row that is cut short is told as that: only a brace alone goes on in the next line.
        Err(_) => matches!(line.trim_ascii(), b"{" | b"["),
    }
}

/// Reads what has been read already and the rest.
pub(super) fn read(line: Vec<u8>, rest: impl Read, trace: &mut Rows<'_>) -> Result<(), SimError> {
    let place = trace.place(1);
    let content = serde_json::from_reader(Cursor::new(line).chain(rest));
    match content.map_err(|error| told(place, &error))? {
        Content::Conversations(all) => conversations(&all, trace),
        Content::Benchmark(result) => benchmark(&result, place, trace),
    }
}

fn told(place: Place<'_>, error: &serde_json::Error) -> SimError {
    if let Some(kind) = error.io_error_kind() {
        return place.io_error(&kind.into());
    }
    match error.classify() {
        serde_json::error::Category::Data => unknown_format(place, "JSON of another kind"),
        _ => place.error("file", "JSON", error.to_string()),
    }
}

fn benchmark(result: &Benchmark, place: Place<'_>, trace: &mut Rows<'_>) -> Result<(), SimError> {
    let count = result.input_lens.len();
    let starts = result.start_times.as_deref();
    for (name, length) in [(OUTPUTS, result.output_lens.len()), (STARTS, starts.map_or(count, <[_]>::len))] {
        if length != count {
            return Err(place.error(name, format!("as many as {INPUTS}, {count}"), length.to_string()));
        }
    }
    for at in 0..count {
        let row = one(result, starts, at, place, trace);
        trace.take(row)?;
    }
    Ok(())
}

fn one(
    result: &Benchmark,
    starts: Option<&[Value]>,
    at: usize,
    place: Place<'_>,
    trace: &mut Rows<'_>,
) -> Result<(), SimError> {
    let field = |name: &str| format!("{name}[{at}]");
    let prompt = place.tokens(&field(INPUTS), &result.input_lens[at].to_string())?;
    let output = trace.output(place, &field(OUTPUTS), &result.output_lens[at].to_string())?;
    let Some(starts) = starts else { return trace.push(place, Arrival::Unknown, prompt, output) };
    let (name, text) = (field(STARTS), starts[at].to_string());
    let ns = place.time_ns(&name, &text, "seconds", 1_000_000_000)?;
    trace.push(place, Arrival::At { field: &name, text: &text, ns }, prompt, output)
}

fn conversations(all: &[Conversation], trace: &mut Rows<'_>) -> Result<(), SimError> {
    let place = trace.place(1);
    let Some(path) = &trace.reading.tokenizer else {
        let expected = "lengths in tokens, or --tokenizer FILE.json to count those of texts";
        return Err(place.error("conversations", expected, "texts"));
    };
    let counter = Counter::load(path)?;
    for (at, conversation) in all.iter().enumerate() {
        let field = format!("[{at}].conversations");
        let row = match conversation.conversations.as_slice() {
            [question, answer, ..] => {
                let tokens = |text: &str| counter.count(text).to_string();
                let prompt = place.tokens(&field, &tokens(&question.value));
                let output = place.tokens(&field, &tokens(&answer.value));
                prompt.and_then(|prompt| trace.push(place, Arrival::Unknown, prompt, output?))
            }
            turns => Err(place.error(&field, "a question and its answer", format!("{} turns", turns.len()))),
        };
        trace.take(row)?;
    }
    trace.note(format!("{}: a request is the first question and answer of a conversation", trace.file));
    Ok(())
}
