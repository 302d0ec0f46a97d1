//! Result files. Each is written beside its place and then renamed, so that no reader ever sees half of one.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::rows::{NO_TIME_NS, RequestRow, TbtRule};
use super::summary::Summary;
use crate::SimError;

/// Columns of the requests file.
const COLUMNS: [&str; 12] = [
    "request_id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "ttft_s",
    "tbt_mean_s",
    "tbt_max_s",
    "e2e_s",
    "prompt_machine",
    "token_machine",
    "attempts",
    "outcome",
];

/// Writes one line for each request, in the order given; `machines` are the names the rows refer to by index.
///
/// Numbers are the shortest that read back the same; a cell without a value is empty.
///
/// # Errors
/// If the file cannot be written; then nothing is left behind.
pub fn write_requests_csv(
    path: &Path,
    rows: &[RequestRow],
    machines: &[impl AsRef<str>],
) -> Result<(), SimError> {
    write_whole(path, |file| {
        let mut csv = csv::Writer::from_writer(file);
        csv.write_record(COLUMNS)?;
        let mut cell = String::new();
        for row in rows {
            write_row(&mut csv, &mut cell, row, machines)?;
        }
        csv.flush()
    })
}

/// Writes the summary as JSON, indented.
///
/// # Errors
/// If the file cannot be written; then nothing is left behind.
pub fn write_summary_json(path: &Path, summary: &Summary) -> Result<(), SimError> {
    write_whole(path, |file| {
        serde_json::to_writer_pretty(&mut *file, summary)?;
        file.write_all(b"\n")
    })
}

fn write_row<W: Write>(
    csv: &mut csv::Writer<W>,
    cell: &mut String,
    row: &RequestRow,
    machines: &[impl AsRef<str>],
) -> io::Result<()> {
    let time =
        |time_ns: u64| Some(time_ns).filter(|&time_ns| time_ns != NO_TIME_NS).map(|time_ns| time_ns as f64);
    let mean_ns = row.tbt_metric_ns(TbtRule::MeanGap).filter(|mean_ns| mean_ns.is_finite());
    let name = |index: i32| {
        usize::try_from(index).ok().and_then(|index| machines.get(index)).map_or("", AsRef::as_ref)
    };
    write_cell(csv, cell, Some(row.request_id))?;
    write_cell(csv, cell, Some(row.arrival_ns as f64 / 1e9))?;
    write_cell(csv, cell, Some(row.prompt_tokens))?;
    write_cell(csv, cell, Some(row.output_tokens))?;
    let tbt_max_ns = time(row.tbt_max_ns).filter(|_| row.output_tokens > 1);
    for time_ns in [time(row.ttft_ns), mean_ns, tbt_max_ns, time(row.e2e_ns)] {
        write_cell(csv, cell, time_ns.map(|time_ns| time_ns / 1e9))?;
    }
    csv.write_field(name(row.prompt_machine))?;
    csv.write_field(name(row.token_machine))?;
    write_cell(csv, cell, Some(row.attempts))?;
    csv.write_field(row.outcome.name())?;
    csv.write_record(None::<&[u8]>)?;
    Ok(())
}

/// Writes a value, or nothing, using `cell` as scratch space.
fn write_cell<W: Write>(
    csv: &mut csv::Writer<W>,
    cell: &mut String,
    value: Option<impl std::fmt::Display>,
) -> io::Result<()> {
    cell.clear();
    if let Some(value) = value {
        // Writing to a string cannot fail.
        let _ = write!(cell, "{value}");
    }
    Ok(csv.write_field(&*cell)?)
}

/// Writes a file as a whole: to a temporary name in the same folder, then renamed over `path`.
fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), SimError> {
    let temporary = temporary_beside(path);
    let written = File::create_new(&temporary).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 16, file);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&temporary, path)
    });
    written.map_err(|error| {
        // It may not exist; the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
        SimError::Io { file: path.display().to_string(), reason: error.to_string() }
    })
}

/// A name no other file has: processes differ in their id, threads of one in the count.
fn temporary_beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().map_or_else(|| "out".into(), |name| name.to_string_lossy());
    path.with_file_name(format!(".{name}.{}-{count}.tmp", std::process::id()))
}
