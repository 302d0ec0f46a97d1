//! The two CSV formats.

use std::io::BufRead;

use csv::{ReaderBuilder, StringRecord, Trim};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::lines::Lines;
use super::place::{Place, quoted};
use super::{ArrivalField, Trace, unknown_format};
use crate::SimError;

const TIMESTAMP: &str = "TIMESTAMP";
const CONTEXT: &str = "ContextTokens";
const GENERATED: &str = "GeneratedTokens";

const ARRIVAL: &str = "arrival_timestamp";
const BATCH: &str = "batch_size";
const PROMPT: &str = "prompt_size";
const TOKEN: &str = "token_size";

pub(super) fn read<R: BufRead>(lines: Lines<R>, trace: &mut Trace<'_>) -> Result<(), SimError> {
    // Flexible, so that a short row is told by its missing column.
    let mut rows = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(lines);
    let header = rows.byte_headers().cloned();
    let header_place = trace.place(rows.get_ref().number());
    let header = header.map_err(|error| csv_error(header_place, &error))?;
    let names: Vec<String> = header.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let mut layout = Layout::detect(&names, header_place)?;
    let mut row = StringRecord::new();
    loop {
        let more = rows.read_record(&mut row);
        let place = trace.place(rows.get_ref().number());
        if !more.map_err(|error| csv_error(place, &error))? {
            return Ok(());
        }
        if row.len() != names.len() {
            let missing = names.get(row.len()).map_or("row", String::as_str);
            let (expected, got) = (format!("{} columns", names.len()), format!("{} columns", row.len()));
            return Err(place.error(missing, expected, got));
        }
        layout.push(&row, place, trace)?;
    }
}

fn csv_error(place: Place<'_>, error: &csv::Error) -> SimError {
    match error.kind() {
        csv::ErrorKind::Io(reason) => place.io_error(reason),
        csv::ErrorKind::Utf8 { .. } => place.error("row", "UTF-8 text", "other bytes"),
        _ => place.error("row", "CSV", error.to_string()),
    }
}

/// Indices of the columns that count.
enum Layout {
    /// Dates, context and generated tokens; the first date is time zero.
    Azure { date: usize, context: usize, generated: usize, start_ns: Option<i128> },
    /// The public simulator's: seconds, batch, prompt and output size.
    SplitwiseSim { arrival: usize, batch: usize, prompt: usize, token: usize },
}

impl Layout {
    /// One known column tells the format; the others of this format must then be there too.
    fn detect(names: &[String], place: Place<'_>) -> Result<Self, SimError> {
        let index = |column: &str| names.iter().position(|name| name == column);
        let need = |column: &str| {
            let absent = || place.error(column, "a column of this name", quoted(&names.join(",")));
            index(column).ok_or_else(absent)
        };
        if [TIMESTAMP, CONTEXT, GENERATED].into_iter().any(|column| index(column).is_some()) {
            let (date, context, generated) = (need(TIMESTAMP)?, need(CONTEXT)?, need(GENERATED)?);
            return Ok(Self::Azure { date, context, generated, start_ns: None });
        }
        if [ARRIVAL, BATCH, PROMPT, TOKEN].into_iter().any(|column| index(column).is_some()) {
            let (arrival, batch) = (need(ARRIVAL)?, need(BATCH)?);
            return Ok(Self::SplitwiseSim { arrival, batch, prompt: need(PROMPT)?, token: need(TOKEN)? });
        }
        Err(unknown_format(place, &names.join(",")))
    }

    fn push(&mut self, row: &StringRecord, place: Place<'_>, trace: &mut Trace<'_>) -> Result<(), SimError> {
        match self {
            Self::Azure { date, context, generated, start_ns } => {
                let text = &row[*date];
                let date_ns = date_ns(place, text)?;
                let ns = date_ns - *start_ns.get_or_insert(date_ns);
                let prompt = place.tokens(CONTEXT, &row[*context])?;
                let output = place.tokens(GENERATED, &row[*generated])?;
                trace.push(place, &ArrivalField { name: TIMESTAMP, text, ns }, prompt, output)
            }
            Self::SplitwiseSim { arrival, batch, prompt, token } => {
                let text = &row[*arrival];
                let ns = place.time_ns(ARRIVAL, text, "seconds", 1_000_000_000)?;
                if place.tokens(BATCH, &row[*batch]) != Ok(1) {
                    return Err(place.error(BATCH, "1", quoted(&row[*batch])));
                }
                let prompt = place.tokens(PROMPT, &row[*prompt])?;
                let output = place.tokens(TOKEN, &row[*token])?;
                trace.push(place, &ArrivalField { name: ARRIVAL, text, ns }, prompt, output)
            }
        }
    }
}

/// A date with a zone, or without one in UTC.
fn date_ns(place: Place<'_>, text: &str) -> Result<i128, SimError> {
    // In this order: the reading without a zone would drop one that is there.
    let instant = text
        .parse::<Timestamp>()
        .or_else(|_| text.parse::<DateTime>().and_then(|date| TimeZone::UTC.to_timestamp(date)));
    let expected = "a date as in 2023-11-16 18:17:03.9799600";
    instant.map(Timestamp::as_nanosecond).map_err(|_| place.error(TIMESTAMP, expected, quoted(text)))
}
