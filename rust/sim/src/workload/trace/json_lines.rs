//! JSON lines, a request in each: Mooncake's, and what Dynamo and `AIPerf` make of them.

use std::io::BufRead;

use serde::Deserialize;
use serde_json::Value;

use super::lines::Lines;
use super::place::{Place, quoted};
use super::rows::{Arrival, Rows};
use super::{unknown_format, whole_json};
use crate::SimError;

const TIMESTAMP: &str = "timestamp";
const DELAY: &str = "delay";
const INPUT: &str = "input_length";
const OUTPUT: &str = "output_length";
const MILLISECOND_NS: u32 = 1_000_000;

/// One line. Other keys are skipped without being stored.
#[derive(Deserialize)]
struct Row {
    timestamp: Option<Value>,
    delay: Option<Value>,
    session_id: Option<Value>,
    input_length: Option<Value>,
    output_length: Option<Value>,
}

pub(super) fn read<R: BufRead>(mut lines: Lines<R>, trace: &mut Rows<'_>) -> Result<(), SimError> {
    loop {
        let more = lines.advance();
        let place = trace.place(lines.number());
        if !more.map_err(|error| place.io_error(&error))? {
            return Ok(());
        }
        // One object over several lines, or one that is the whole file.
        if trace.is_empty() && whole_json::begins(lines.line()) {
            let (line, rest) = lines.into_parts();
            return whole_json::read(line, rest, trace);
        }
        let pushed = push(lines.line().trim_ascii(), place, trace)?;
        trace.take(pushed)?;
    }
}

/// Reads one line. Only a first one of no known kind ends the reading whatever is done with bad rows.
fn push(text: &[u8], place: Place<'_>, trace: &mut Rows<'_>) -> Result<Result<(), SimError>, SimError> {
    let shown = || String::from_utf8_lossy(text);
    // The brace is checked here because an array of three would pass as a row.
    let row = if text.starts_with(b"{") { serde_json::from_slice::<Row>(text).ok() } else { None };
    let Some(row) = row else {
        return Ok(Err(place.error("row", "one JSON object", quoted(&shown()))));
    };
    let is_known = row.timestamp.is_some() || row.input_length.is_some() || row.output_length.is_some();
    if trace.is_empty() && !is_known {
        return Err(unknown_format(place, &shown()));
    }
    Ok(request(row, place, trace))
}

fn request(row: Row, place: Place<'_>, trace: &mut Rows<'_>) -> Result<(), SimError> {
    let Row { timestamp, delay, session_id, input_length, output_length } = row;
    let session = session_id.map(|session| session.to_string());
    let (time, delay) = (number(timestamp), number(delay));
    let prompt = place.tokens(INPUT, &number(input_length))?;
    let output = trace.output(place, OUTPUT, &number(output_length))?;
    if !time.is_empty() {
        let ns = place.time_ns(TIMESTAMP, &time, "milliseconds", MILLISECOND_NS)?;
        trace.push(place, Arrival::At { field: TIMESTAMP, text: &time, ns }, prompt, output)?;
        if let Some(session) = session {
            trace.turn(session, ns);
        }
        return Ok(());
    }
    if delay.is_empty() {
        return trace.push(place, Arrival::Unknown, prompt, output);
    }
    let delay_ns = place.time_ns(DELAY, &delay, "milliseconds", MILLISECOND_NS)?;
    let session = session.unwrap_or_default();
    trace.push(place, Arrival::After { session, delay_ns }, prompt, output)
}

/// The value as text; a missing one as none, which no check of numbers accepts.
fn number(value: Option<Value>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
