//! Trace files, told apart by content: two kinds of CSV and one of JSON lines.

mod csv_rows;
mod json_lines;
mod lines;
mod place;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use self::lines::Lines;
use self::place::{Place, quoted};
use super::{ARRIVAL_MAX_NS, TraceRequest};
use crate::SimError;

const FORMATS: &str = "CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens (Azure), \
     CSV with the columns arrival_timestamp,batch_size,prompt_size,token_size (splitwise-sim), \
     or JSON lines with timestamp,input_length,output_length (Mooncake)";

/// Reads a trace with its own times; at least one request, by arrival.
///
/// The formats, whatever the file's name:
/// - Azure CSV: dates in `TIMESTAMP`; the first request arrives at 0;
/// - splitwise-sim CSV: seconds in `arrival_timestamp`; other columns than the four needed are ignored;
/// - Mooncake JSON lines: milliseconds in `timestamp`; other keys are ignored.
///
/// # Errors
///
/// A file that cannot be read, or [`SimError::Input`] for the first thing that is wrong in it.
pub fn read_trace(path: &Path) -> Result<Vec<TraceRequest>, SimError> {
    let file = path.display().to_string();
    let io_error = |error: io::Error| {
        // A mistyped built-in name lands here as a path.
        let hint = "; the built-in workloads are azure-conv and azure-code";
        let hint = if error.kind() == io::ErrorKind::NotFound { hint } else { "" };
        SimError::Io { file: file.clone(), reason: format!("{error}{hint}") }
    };
    let mut reader = BufReader::new(File::open(path).map_err(io_error)?);
    if reader.fill_buf().map_err(io_error)?.starts_with(b"\xEF\xBB\xBF") {
        reader.consume(3);
    }
    let start = reader.fill_buf().map_err(io_error)?;
    let mut trace = Trace { file: &file, last_ns: 0, requests: Vec::new() };
    match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => {}
        Some(b'{') => json_lines::read(Lines::new(reader), &mut trace)?,
        Some(_) => csv_rows::read(Lines::new(reader), &mut trace)?,
    }
    if trace.requests.is_empty() {
        return Err(trace.place(1).error("file", "at least one request", "none"));
    }
    Ok(trace.requests)
}

/// The error for content of no known format.
fn unknown_format(place: Place<'_>, content: &str) -> SimError {
    place.error("format", FORMATS, quoted(content))
}

/// The requests read so far.
struct Trace<'a> {
    file: &'a str,
    last_ns: u64,
    requests: Vec<TraceRequest>,
}

/// When a row says its request arrives.
struct ArrivalField<'a> {
    name: &'a str,
    text: &'a str,
    /// From the start of the trace; negative if before it.
    ns: i128,
}

impl<'a> Trace<'a> {
    fn place(&self, line: u64) -> Place<'a> {
        Place { file: self.file, line }
    }

    fn push(
        &mut self,
        place: Place<'_>,
        arrival: &ArrivalField<'_>,
        prompt_tokens: u32,
        output_tokens: u32,
    ) -> Result<(), SimError> {
        if arrival.ns < i128::from(self.last_ns) {
            return Err(place.error(arrival.name, "a time not before the last one", quoted(arrival.text)));
        }
        let arrival_ns = u64::try_from(arrival.ns).ok().filter(|&ns| ns <= ARRIVAL_MAX_NS);
        let Some(arrival_ns) = arrival_ns else {
            return Err(place.error(arrival.name, "a time within 146 years", quoted(arrival.text)));
        };
        self.last_ns = arrival_ns;
        self.requests.push(TraceRequest { arrival_ns, prompt_tokens, output_tokens });
        Ok(())
    }
}
