//! Trace files, told apart by content: several kinds of CSV, JSON lines and JSON.

mod csv_rows;
mod json_lines;
mod lines;
mod place;
mod rows;
mod texts;
mod whole_json;

use std::io::{self, BufRead, BufReader};
use std::path::Path;

use self::lines::Lines;
use self::place::{Place, quoted};
use self::rows::Rows;
use super::TraceRequest;
use crate::SimError;
use crate::files::open_ordinary;

const FORMATS: &str = "CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens (Azure), \
     arrival_timestamp,batch_size,prompt_size,token_size (splitwise-sim), \
     Timestamp,Request tokens,Response tokens (BurstGPT) \
     or arrived_at,num_prefill_tokens,num_decode_tokens (Vidur), \
     JSON lines with timestamp,input_length,output_length (Mooncake, Dynamo, AIPerf), \
     JSON with input_lens,output_lens (vLLM's benchmark) or with conversations (ShareGPT)";

/// How what a trace leaves open is read. Without these each such thing is an error that names its option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// `error` or `skip`: rows that are no requests.
    pub invalid_rows: InvalidRows,
    /// Tokens of an answer whose length the trace does not say.
    pub missing_output: Option<u32>,
    /// `error` or `after-arrival`: turns of a session that have a delay after the turn before instead of a time.
    pub later_turns: LaterTurns,
    /// The `tokenizer.json` that counts the tokens of texts.
    pub tokenizer: Option<String>,
    /// Whether times stay as the file has them; otherwise its first request arrives at 0.
    pub own_times: bool,
}

/// What becomes of rows that are no requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InvalidRows {
    /// The first ends the reading.
    #[default]
    Error,
    /// They are left out and counted.
    Skip,
}

/// When later turns of a session arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LaterTurns {
    /// That is not known.
    #[default]
    Error,
    /// Their delay after the turn before arrived. That a client waits for its answer first is not simulated.
    AfterArrival,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceFile {
    /// By arrival, the first at 0 or at its own time; all at 0 where the file has no times.
    pub requests: Vec<TraceRequest>,
    /// Whether it says when its requests arrive.
    pub has_times: bool,
    /// What was done with it that a reader should know, each a sentence.
    pub notes: Vec<String>,
}

/// Reads a trace; at least one request.
///
/// The formats, whatever the file's name; further columns and keys are ignored:
/// - Azure CSV: dates in `TIMESTAMP`;
/// - splitwise-sim CSV: seconds in `arrival_timestamp`;
/// - `BurstGPT` CSV: seconds in `Timestamp`;
/// - Vidur CSV: seconds in `arrived_at`, which may be absent;
/// - JSON lines of Mooncake, Dynamo and `AIPerf`: milliseconds in `timestamp`, or in `delay` after the turn before in the same
///   `session_id`;
/// - the result of vLLM's benchmark, with or without `start_times` in seconds;
/// - `ShareGPT` JSON: the first question and answer of each conversation, counted by a tokenizer; no times.
///
/// The first request arrives at 0, unless [`Reading::own_times`] are asked for. Rows out of order are sorted.
///
/// # Errors
///
/// A file that cannot be read, or [`SimError::Input`] for the first thing that is wrong in it.
pub fn read_trace(path: &Path, reading: &Reading) -> Result<TraceFile, SimError> {
    let file = path.display().to_string();
    let io_error = |error: io::Error| SimError::Io { file: file.clone(), reason: error.to_string() };
    let opened = open_ordinary(path).map_err(|error| match error {
        // A mistyped built-in name lands here as a path.
        SimError::Io { file, reason } if !path.exists() => {
            let hint = "the built-in workloads are azure-conv and azure-code";
            SimError::Io { file, reason: format!("{reason}; {hint}") }
        }
        other => other,
    })?;
    let mut reader = BufReader::new(opened);
    if reader.fill_buf().map_err(io_error)?.starts_with(b"\xEF\xBB\xBF") {
        reader.consume(3);
    }
    let start = reader.fill_buf().map_err(io_error)?;
    let mut rows = Rows::new(&file, reading);
    match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => {}
        Some(b'{') => json_lines::read(Lines::new(reader), &mut rows)?,
        Some(b'[') => whole_json::read(Vec::new(), reader, &mut rows)?,
        Some(_) => csv_rows::read(Lines::new(reader), &mut rows)?,
    }
    rows.into_trace()
}

/// The error for content of no known format.
fn unknown_format(place: Place<'_>, content: &str) -> SimError {
    place.error("format", FORMATS, quoted(content))
}
