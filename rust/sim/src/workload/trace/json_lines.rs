//! The JSON lines of Mooncake's traces.

use std::io::BufRead;

use serde::Deserialize;
use serde_json::Value;

use super::lines::Lines;
use super::place::{Place, quoted};
use super::{ArrivalField, Trace, unknown_format};
use crate::SimError;

const TIMESTAMP: &str = "timestamp";
const INPUT: &str = "input_length";
const OUTPUT: &str = "output_length";

/// One line. Other keys are skipped without being stored.
#[derive(Deserialize)]
struct Row {
    timestamp: Option<Value>,
    input_length: Option<Value>,
    output_length: Option<Value>,
}

pub(super) fn read<R: BufRead>(mut lines: Lines<R>, trace: &mut Trace<'_>) -> Result<(), SimError> {
    loop {
        let more = lines.advance();
        let place = trace.place(lines.number());
        if !more.map_err(|error| place.io_error(&error))? {
            return Ok(());
        }
        push(lines.line().trim_ascii(), place, trace)?;
    }
}

fn push(text: &[u8], place: Place<'_>, trace: &mut Trace<'_>) -> Result<(), SimError> {
    let shown = || String::from_utf8_lossy(text);
    // The brace is checked here because an array of three would pass as a row.
    let row = if text.starts_with(b"{") { serde_json::from_slice::<Row>(text).ok() } else { None };
    let row = row.ok_or_else(|| place.error("row", "one JSON object", quoted(&shown())))?;
    let Row { timestamp, input_length, output_length } = row;
    if trace.requests.is_empty() && timestamp.is_none() && input_length.is_none() && output_length.is_none() {
        return Err(unknown_format(place, &shown()));
    }
    let time = number(timestamp);
    let ns = place.time_ns(TIMESTAMP, &time, "milliseconds", 1_000_000)?;
    let prompt = place.tokens(INPUT, &number(input_length))?;
    let output = place.tokens(OUTPUT, &number(output_length))?;
    trace.push(place, &ArrivalField { name: TIMESTAMP, text: &time, ns }, prompt, output)
}

/// The value as text; a missing one as none, which no check of numbers accepts.
fn number(value: Option<Value>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
