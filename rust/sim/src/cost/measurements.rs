//! A user's own measurements: one row for one measured run.

use std::collections::BTreeMap;

use csv::{StringRecord, Trim};

use crate::SimError;

/// Largest size a column may hold; products of two still fit an exact float.
const SIZE_MAX: u64 = 50_000_000;
/// Longest time a column may hold, a little over eleven days.
const TIME_MAX_MS: f64 = 1e9;
/// Columns that must be there. Power and end-to-end columns may be and are not read.
const COLUMNS: [&str; 8] = [
    "model",
    "hardware",
    "tensor_parallel",
    "prompt_size",
    "batch_size",
    "token_size",
    "prompt_time",
    "token_time",
];

/// Which machine a row is about, in the order profiles are written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MachineKey {
    pub(super) model: String,
    pub(super) hardware: String,
    pub(super) tensor_parallel: u32,
}

/// One run: `batch` equal requests, prefilled in one pass and decoded together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) line: u64,
    pub(super) prompt_tokens: u64,
    pub(super) batch: u64,
    pub(super) output_tokens: u64,
    pub(super) prompt_ms: f64,
    pub(super) token_ms: f64,
}

impl Row {
    /// Prompt tokens of the whole batch.
    pub(super) fn total_prompt_tokens(&self) -> u64 {
        self.prompt_tokens * self.batch
    }

    /// Context of the whole batch in the average pass: prompts plus half of the outputs.
    pub(super) fn context_tokens(&self) -> f64 {
        self.batch as f64 * (self.prompt_tokens as f64 + self.output_tokens as f64 / 2.0)
    }
}

/// Reads all rows, grouped by machine; within one, in file order.
pub(super) fn read(text: &str, file: &str) -> Result<BTreeMap<MachineKey, Vec<Row>>, SimError> {
    let mut reader = csv::ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| csv_error(&error, file))?.clone();
    let columns = find_columns(&header, file)?;
    let mut machines: BTreeMap<MachineKey, Vec<Row>> = BTreeMap::new();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| csv_error(&error, file))? {
        let line = record.position().map_or(0, csv::Position::line);
        let cells = Cells { record: &record, columns: &columns, file, line };
        let key = MachineKey {
            model: cells.name("model")?,
            hardware: cells.name("hardware")?,
            tensor_parallel: cells.size("tensor_parallel")? as u32,
        };
        let row = Row {
            line,
            prompt_tokens: cells.size("prompt_size")?,
            batch: cells.size("batch_size")?,
            output_tokens: cells.size("token_size")?,
            prompt_ms: cells.time_ms("prompt_time")?,
            token_ms: cells.time_ms("token_time")?,
        };
        machines.entry(key).or_default().push(row);
    }
    if machines.is_empty() {
        return Err(input(file, 2, "row", "at least one measurement", "none"));
    }
    Ok(machines)
}

fn find_columns(header: &StringRecord, file: &str) -> Result<BTreeMap<&'static str, usize>, SimError> {
    COLUMNS
        .into_iter()
        .map(|column| {
            let at = header.iter().position(|cell| cell == column);
            let missing = || {
                let found = header.iter().collect::<Vec<_>>().join(",");
                input(file, 1, column, "a column of this name", format!("`{found}`"))
            };
            Ok((column, at.ok_or_else(missing)?))
        })
        .collect()
}

/// One record with what is needed to say where a cell stands.
struct Cells<'a> {
    record: &'a StringRecord,
    columns: &'a BTreeMap<&'static str, usize>,
    file: &'a str,
    line: u64,
}

impl Cells<'_> {
    fn text(&self, column: &'static str) -> &str {
        self.record.get(self.columns[column]).unwrap_or_default()
    }

    fn wrong(&self, column: &'static str, expected: impl Into<String>) -> SimError {
        input(self.file, self.line, column, expected, format!("`{}`", self.text(column)))
    }

    fn name(&self, column: &'static str) -> Result<String, SimError> {
        let text = self.text(column);
        if text.is_empty() { Err(self.wrong(column, "a name")) } else { Ok(text.to_owned()) }
    }

    fn size(&self, column: &'static str) -> Result<u64, SimError> {
        let size = self.text(column).parse().ok().filter(|size| (1..=SIZE_MAX).contains(size));
        size.ok_or_else(|| self.wrong(column, format!("a whole number in 1..={SIZE_MAX}")))
    }

    fn time_ms(&self, column: &'static str) -> Result<f64, SimError> {
        let time = self.text(column).parse().ok().filter(|&ms: &f64| ms > 0.0 && ms <= TIME_MAX_MS);
        time.ok_or_else(|| self.wrong(column, format!("milliseconds above 0, at most {TIME_MAX_MS}")))
    }
}

pub(super) fn input(
    file: &str,
    line: u64,
    field: &str,
    expected: impl Into<String>,
    got: impl Into<String>,
) -> SimError {
    let (file, field) = (file.to_owned(), field.to_owned());
    SimError::Input { file, line, field, expected: expected.into(), got: got.into() }
}

fn csv_error(error: &csv::Error, file: &str) -> SimError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            input(file, line, "row", format!("{expected_len} cells as in the header"), len.to_string())
        }
        _ => input(file, line, "row", "comma-separated text", error.to_string()),
    }
}
