//! From measurements to a profile: medians for the knots, one weighted slope for the context.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::knots::{Knot, PiecewiseLinear};
use super::measured::Measured;
use super::measurements::{self, MachineKey, Row, input};
use super::profile::{CHECKED_BATCH_REQUESTS, CHECKED_PROMPT_TOKENS, MachineProfile, MeasuredRange, Profile};
use crate::SimError;
use crate::files::read_ordinary;

/// How well a fitted profile gives back the rows it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct FitReport {
    /// One entry for each (model, hardware, tensor-parallel size), in profile order.
    pub machines: Vec<MachineFit>,
    /// Mean error over the rows of all machines.
    pub total: FitError,
}

/// The fit of one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineFit {
    /// Model name as measured.
    pub model: String,
    /// Hardware name as measured.
    pub hardware: String,
    /// GPUs that share the model.
    pub tensor_parallel: u32,
    /// Rows read.
    pub rows: usize,
    /// Mean error over those rows, except the ones of dropped knots.
    pub error: FitError,
    /// Knots left out because the line through them falls below zero within the checked sizes.
    pub dropped: Vec<DroppedKnot>,
    /// Whether decode got faster with context, so that the slope was set to 0.
    pub context_set_to_zero: bool,
}

/// Mean absolute percentage errors, row by row, on the rows of the fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FitError {
    /// Of prompt times.
    pub prompt_mape_percent: f64,
    /// Of token times.
    pub token_mape_percent: f64,
}

/// A measured point that is not in the profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedKnot {
    /// Key of the list in the profile.
    pub field: &'static str,
    /// Its size.
    pub x: u64,
}

/// Fits the measurements in a file.
///
/// # Errors
/// [`SimError::Io`] when it cannot be read, otherwise as [`fit_text`].
pub fn fit_file(path: &str) -> Result<(Profile, FitReport), SimError> {
    let text = read_ordinary(Path::new(path))?;
    fit_text(&text, path)
}

/// Fits measurements from their text; `file` is what errors call it.
///
/// # Errors
/// [`SimError::Input`] with line and field for a malformed row, or with the first line of a machine
/// whose rows do not make a usable profile (fewer than two sizes, times that extrapolate below zero).
pub fn fit_text(text: &str, file: &str) -> Result<(Profile, FitReport), SimError> {
    let mut machines = Vec::new();
    let mut fits = Vec::new();
    let mut total = ErrorSum::default();
    for (key, rows) in measurements::read(text, file)? {
        let (machine, dropped, context_set_to_zero) = fit_machine(&key, &rows);
        machine.check().map_err(|problem| {
            let MachineKey { model, hardware, tensor_parallel } = &key;
            let of = format!("{} of {model} on {hardware}:tp{tensor_parallel}", problem.field);
            let line = rows.first().map_or(0, |row| row.line);
            input(file, line, problem.column(), format!("{} in {of}", problem.expected), problem.got)
        })?;
        let error = ErrorSum::of(&machine, &rows, &dropped);
        total.add(&error);
        machines.push(machine);
        fits.push(MachineFit {
            model: key.model,
            hardware: key.hardware,
            tensor_parallel: key.tensor_parallel,
            rows: rows.len(),
            error: error.mean(),
            dropped,
            context_set_to_zero,
        });
    }
    Ok((Profile::from_checked(machines), FitReport { machines: fits, total: total.mean() }))
}

fn fit_machine(key: &MachineKey, rows: &[Row]) -> (MachineProfile, Vec<DroppedKnot>, bool) {
    let slope = context_slope_ms_per_token(rows);
    let context_ms_per_token = if slope > 0.0 { slope } else { 0.0 };
    let batched_prompt_tokens = widest(rows, |row| row.prompt_tokens);
    // Sweeps of the output length repeat one prompt size many times; the shape that was measured in
    // most batch sizes stands for its size, so that all knots of a list come from like runs.
    let shape_of = |row: &Row| (row.prompt_tokens, row.output_tokens);
    let shape = widest(rows, shape_of);
    let same_output = |row: &Row| row.output_tokens == shape.1;
    let total = |row: &Row| (row.total_prompt_tokens(), row.prompt_ms);
    let mut machine = MachineProfile {
        model: key.model.clone(),
        hardware: key.hardware.clone(),
        tensor_parallel: key.tensor_parallel,
        context_ms_per_token,
        batched_prompt_tokens,
        range: measured_range(rows),
        prompt_knots: medians_preferring(rows, same_output, |row| (row.batch == 1).then(|| total(row))),
        batched_prompt_knots: medians_preferring(rows, same_output, |row| {
            (row.prompt_tokens == batched_prompt_tokens).then(|| total(row))
        }),
        decode_knots: medians_preferring(
            rows,
            |row| shape_of(row) == shape,
            |row| Some((row.batch, row.token_ms - context_ms_per_token * row.context_tokens())),
        ),
        // The public simulator takes all rows of a size.
        splitwise_sim_prompt_knots: medians(rows.iter().map(total)),
        splitwise_sim_token_knots: medians(rows.iter().map(|row| (row.total_prompt_tokens(), row.token_ms))),
    };
    if machine.batched_prompt_knots.len() < 2 {
        machine.batched_prompt_knots.clear();
    }
    let mut dropped = Vec::new();
    for (field, knots, reach) in [
        ("prompt_ms_by_tokens", &mut machine.prompt_knots, CHECKED_PROMPT_TOKENS),
        ("batched_prompt_ms_by_tokens", &mut machine.batched_prompt_knots, CHECKED_PROMPT_TOKENS),
        ("decode_ms_by_batch", &mut machine.decode_knots, CHECKED_BATCH_REQUESTS),
        ("splitwise_sim_prompt_ms_by_tokens", &mut machine.splitwise_sim_prompt_knots, CHECKED_PROMPT_TOKENS),
        ("splitwise_sim_token_ms_by_tokens", &mut machine.splitwise_sim_token_knots, CHECKED_PROMPT_TOKENS),
    ] {
        dropped.extend(drop_falling_end(knots, reach).into_iter().map(|x| DroppedKnot { field, x }));
    }
    (machine, dropped, slope < 0.0)
}

/// What a token of context adds, by least squares of relative errors within each batch size.
///
/// Relative, because run noise grows with the time; within a batch, because the base of each batch is
/// a knot of its own.
fn context_slope_ms_per_token(rows: &[Row]) -> f64 {
    let mut by_batch: BTreeMap<u64, Vec<(f64, f64, f64)>> = BTreeMap::new();
    for row in rows {
        let weight = 1.0 / (row.token_ms * row.token_ms);
        by_batch.entry(row.batch).or_default().push((row.context_tokens(), row.token_ms, weight));
    }
    let (mut shared, mut spread) = (0.0, 0.0);
    for points in by_batch.values() {
        if points.iter().all(|point| point.0 == points[0].0) {
            continue;
        }
        let weights: f64 = points.iter().map(|&(_, _, weight)| weight).sum();
        let x_mean = points.iter().map(|&(x, _, weight)| x * weight).sum::<f64>() / weights;
        let y_mean = points.iter().map(|&(_, y, weight)| y * weight).sum::<f64>() / weights;
        for &(x, y, weight) in points {
            shared += weight * (x - x_mean) * (y - y_mean);
            spread += weight * (x - x_mean) * (x - x_mean);
        }
    }
    if spread > 0.0 { shared / spread } else { 0.0 }
}

/// The median time at each size over the `preferred` rows; a size without any counts with all its rows.
fn medians_preferring(
    rows: &[Row],
    preferred: impl Fn(&Row) -> bool,
    point: impl Fn(&Row) -> Option<(u64, f64)>,
) -> Vec<Knot> {
    let mut knots = medians(rows.iter().filter(|row| preferred(row)).filter_map(&point));
    for other in medians(rows.iter().filter_map(&point)) {
        if let Err(at) = knots.binary_search_by_key(&other.x, |knot| knot.x) {
            knots.insert(at, other);
        }
    }
    knots
}

/// The value of `of` that was measured in most batch sizes; ties go to more rows, then to the smaller.
fn widest<T: Ord + Copy>(rows: &[Row], of: impl Fn(&Row) -> T) -> T {
    let mut by_value: BTreeMap<T, Vec<u64>> = BTreeMap::new();
    for row in rows {
        by_value.entry(of(row)).or_default().push(row.batch);
    }
    let rank = |batches: &[u64]| {
        let mut distinct = batches.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        (distinct.len(), batches.len())
    };
    // `max_by_key` keeps the last of equals; reversed, that is the smallest.
    let best = by_value.into_iter().rev().max_by_key(|(_, batches)| rank(batches));
    best.expect("a machine has at least one row").0
}

/// The median time at each size.
fn medians(points: impl Iterator<Item = (u64, f64)>) -> Vec<Knot> {
    let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (x, ms) in points {
        by_size.entry(x).or_default().push(ms);
    }
    by_size.into_iter().map(|(x, mut times)| Knot { x, ms: median(&mut times) }).collect()
}

/// The middle, or the mean of the two middle ones; `times` is not empty.
fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] } else { f64::midpoint(times[middle - 1], times[middle]) }
}

fn measured_range(rows: &[Row]) -> MeasuredRange {
    let alone = || rows.iter().filter(|row| row.batch == 1).map(|row| row.prompt_tokens);
    let largest = |of: fn(&Row) -> u64| rows.iter().map(of).max().unwrap_or(0);
    MeasuredRange {
        prompt_min_tokens: alone().min().unwrap_or(0),
        prompt_max_tokens: alone().max().unwrap_or(0),
        context_max_tokens: largest(|row| row.prompt_tokens.max(row.output_tokens)),
        batch_max_requests: largest(|row| row.batch),
        total_prompt_max_tokens: largest(Row::total_prompt_tokens),
    }
}

/// Removes last knots while the line beyond them falls to zero within `reach`: a batch that was too
/// large to fit shows as a time that drops.
fn drop_falling_end(knots: &mut Vec<Knot>, reach: u64) -> Vec<u64> {
    let mut dropped = Vec::new();
    while knots.len() > 2 && PiecewiseLinear::new(knots, 1.0).at(reach as f64) <= 0.0 {
        dropped.extend(knots.pop().map(|knot| knot.x));
    }
    dropped
}

/// Relative errors being added up.
#[derive(Debug, Default)]
struct ErrorSum {
    prompt: (f64, usize),
    token: (f64, usize),
}

impl ErrorSum {
    fn of(machine: &MachineProfile, rows: &[Row], dropped: &[DroppedKnot]) -> Self {
        let model = Measured::new(machine, 1.0);
        let is_dropped = |field: &str, x: u64| dropped.iter().any(|knot| knot.field == field && knot.x == x);
        let mut sum = Self::default();
        for row in rows {
            let (total, batch) = (row.total_prompt_tokens(), row.batch as f64);
            let list = if row.batch == 1 { "prompt_ms_by_tokens" } else { "batched_prompt_ms_by_tokens" };
            if !is_dropped(list, total) {
                add_relative(&mut sum.prompt, model.prefill(row.batch as u32, total as f64), row.prompt_ms);
            }
            if !is_dropped("decode_ms_by_batch", row.batch) {
                let ms = model.decode_base(batch) + model.context(row.context_tokens());
                add_relative(&mut sum.token, ms, row.token_ms);
            }
        }
        sum
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in [(&mut self.prompt, other.prompt), (&mut self.token, other.token)] {
            mine.0 += theirs.0;
            mine.1 += theirs.1;
        }
    }

    fn mean(&self) -> FitError {
        let percent = |(sum, rows): (f64, usize)| if rows == 0 { 0.0 } else { 100.0 * sum / rows as f64 };
        FitError { prompt_mape_percent: percent(self.prompt), token_mape_percent: percent(self.token) }
    }
}

fn add_relative(sum: &mut (f64, usize), fitted: f64, measured: f64) {
    sum.0 += ((fitted - measured) / measured).abs();
    sum.1 += 1;
}

impl fmt::Display for FitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model, hardware, tp: rows, prompt MAPE %, token MAPE % (in-sample)")?;
        for machine in &self.machines {
            let MachineFit { model, hardware, tensor_parallel, rows, error, .. } = machine;
            writeln!(f, "{model}, {hardware}, tp{tensor_parallel}: {rows}, {error}")?;
            for DroppedKnot { field, x } in &machine.dropped {
                writeln!(f, "  left out {field} at {x}: the line beyond it falls below zero")?;
            }
            if machine.context_set_to_zero {
                writeln!(f, "  decode got faster with context; its slope was set to 0")?;
            }
        }
        let rows: usize = self.machines.iter().map(|machine| machine.rows).sum();
        write!(f, "all: {rows}, {}", self.total)
    }
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}, {:.2}", self.prompt_mape_percent, self.token_mape_percent)
    }
}
