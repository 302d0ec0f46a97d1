//! The CSV formats.

use std::io::BufRead;

use csv::{ReaderBuilder, StringRecord, Trim};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::lines::Lines;
use super::place::{Place, quoted};
use super::rows::{Arrival, Rows};
use super::unknown_format;
use crate::SimError;

/// What a format calls its columns.
struct Format {
    time: &'static str,
    time_is: Time,
    prompt: &'static str,
    output: &'static str,
    /// A column that must say 1.
    batch: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq)]
enum Time {
    Date,
    Seconds,
    /// And the column may be absent.
    SecondsIfKnown,
}

const FORMATS: [Format; 4] = [
    // Azure's.
    Format {
        time: "TIMESTAMP",
        time_is: Time::Date,
        prompt: "ContextTokens",
        output: "GeneratedTokens",
        batch: None,
    },
    // The public Splitwise simulator's.
    Format {
        time: "arrival_timestamp",
        time_is: Time::Seconds,
        prompt: "prompt_size",
        output: "token_size",
        batch: Some("batch_size"),
    },
    // BurstGPT's.
    Format {
        time: "Timestamp",
        time_is: Time::Seconds,
        prompt: "Request tokens",
        output: "Response tokens",
        batch: None,
    },
    // Vidur's.
    Format {
        time: "arrived_at",
        time_is: Time::SecondsIfKnown,
        prompt: "num_prefill_tokens",
        output: "num_decode_tokens",
        batch: None,
    },
];

pub(super) fn read<R: BufRead>(lines: Lines<R>, trace: &mut Rows<'_>) -> Result<(), SimError> {
    // Flexible, so that a short row is told by its missing column.
    let mut rows = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(lines);
    let header = rows.byte_headers().cloned();
    let header_place = trace.place(rows.get_ref().number());
    let header = header.map_err(|error| csv_error(header_place, &error))?;
    let names: Vec<String> = header.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let layout = Layout::detect(&names, header_place)?;
    let mut row = StringRecord::new();
    loop {
        let more = rows.read_record(&mut row);
        let place = trace.place(rows.get_ref().number());
        let pushed = match more.map_err(|error| csv_error(place, &error)) {
            Ok(false) => return Ok(()),
            Ok(true) => layout.push(&row, &names, place, trace),
            Err(error) => Err(error),
        };
        trace.take(pushed)?;
    }
}

fn csv_error(place: Place<'_>, error: &csv::Error) -> SimError {
    match error.kind() {
        csv::ErrorKind::Io(reason) => place.io_error(reason),
        csv::ErrorKind::Utf8 { .. } => place.error("row", "UTF-8 text", "other bytes"),
        _ => place.error("row", "CSV", error.to_string()),
    }
}

/// A format, and the indices of the columns that count.
struct Layout {
    format: &'static Format,
    time: Option<usize>,
    prompt: usize,
    output: usize,
    batch: Option<usize>,
}

impl Layout {
    /// One known column tells the format; the others of this format must then be there too.
    fn detect(names: &[String], place: Place<'_>) -> Result<Self, SimError> {
        let index = |column: &str| names.iter().position(|name| name == column);
        let need = |column: &str| {
            let absent = || place.error(column, "a column of this name", quoted(&names.join(",")));
            index(column).ok_or_else(absent)
        };
        let is_it = |format: &&Format| {
            let columns = [Some(format.time), Some(format.prompt), Some(format.output), format.batch];
            columns.into_iter().flatten().any(|column| index(column).is_some())
        };
        let Some(format) = FORMATS.iter().find(is_it) else {
            return Err(unknown_format(place, &names.join(",")));
        };
        let may_lack_times = format.time_is == Time::SecondsIfKnown;
        Ok(Self {
            format,
            time: if may_lack_times { index(format.time) } else { Some(need(format.time)?) },
            batch: format.batch.map(need).transpose()?,
            prompt: need(format.prompt)?,
            output: need(format.output)?,
        })
    }

    fn push(
        &self,
        row: &StringRecord,
        names: &[String],
        place: Place<'_>,
        trace: &mut Rows<'_>,
    ) -> Result<(), SimError> {
        if row.len() != names.len() {
            let missing = names.get(row.len()).map_or("row", String::as_str);
            let (expected, got) = (format!("{} columns", names.len()), format!("{} columns", row.len()));
            return Err(place.error(missing, expected, got));
        }
        let &Self { format, time, prompt, output, batch } = self;
        let arrival = match time {
            None => Arrival::Unknown,
            Some(time) => {
                let (field, text) = (format.time, &row[time]);
                let ns = match format.time_is {
                    Time::Date => date_ns(place, field, text)?,
                    Time::Seconds | Time::SecondsIfKnown => {
                        place.time_ns(field, text, "seconds", 1_000_000_000)?
                    }
                };
                Arrival::At { field, text, ns }
            }
        };
        if let (Some(at), Some(column)) = (batch, format.batch)
            && place.tokens(column, &row[at]) != Ok(1)
        {
            return Err(place.error(column, "1", quoted(&row[at])));
        }
        let prompt = place.tokens(format.prompt, &row[prompt])?;
        let output = trace.output(place, format.output, &row[output])?;
        trace.push(place, arrival, prompt, output)
    }
}

/// A date with a zone, or without one in UTC.
fn date_ns(place: Place<'_>, field: &str, text: &str) -> Result<i128, SimError> {
    // In this order: the reading without a zone would drop one that is there.
    let instant = text
        .parse::<Timestamp>()
        .or_else(|_| text.parse::<DateTime>().and_then(|date| TimeZone::UTC.to_timestamp(date)));
    let expected = "a date as in 2023-11-16 18:17:03.9799600";
    instant.map(Timestamp::as_nanosecond).map_err(|_| place.error(field, expected, quoted(text)))
}
