//! Quantile tables: the lengths of a trace in a few kilobytes.
//!
//! A table holds the quantiles of the prompts and of the outputs, and those of the outputs of each twentieth of the
//! rows by prompt: output depends on prompt in ways that a correlation does not show.
//!
//! Two grids, because the two kinds of row differ. A marginal stands for thousands of rows and gets points up to
//! 99.99 %. A twentieth stands for hundreds, where such points would all lie on the last row; its grid ends in steps
//! of 0.25 % instead, and is read at the middle of each row's share of probability, which keeps the mean of a long
//! tail (0.4 % per twentieth at worst on the built-in traces; the marginal grid would lose up to 8 %).

use std::fmt::Write as _;

use super::TOKENS_MAX;
use crate::SimError;

/// Twentieths of the rows by prompt.
const BINS: usize = 20;
/// Grid points are whole hundredths of a percent; this is all of it.
const WHOLE: u32 = 10_000;

/// 0..99 % by 1, 99.1..99.9 by 0.1, 99.95, 99.99, 100.
const MARGINAL_GRID: [u32; 112] = {
    let mut grid = [WHOLE; 112];
    let mut i = 0;
    while i < 109 {
        grid[i] = if i < 100 { i as u32 * 100 } else { 9_900 + (i as u32 - 99) * 10 };
        i += 1;
    }
    grid[109] = 9_995;
    grid[110] = 9_999;
    grid
};

/// 0..95 % by 1, then by 0.25.
const BIN_GRID: [u32; 116] = {
    let mut grid = [WHOLE; 116];
    let mut i = 0;
    while i < 115 {
        grid[i] = if i < 95 { i as u32 * 100 } else { 9_500 + (i as u32 - 95) * 25 };
        i += 1;
    }
    grid
};

/// Prompt and output lengths of a trace, as quantiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeTable {
    prompt: Quantiles,
    output: Quantiles,
    /// Outputs of each twentieth of the rows by prompt.
    bins: Vec<Quantiles>,
}

impl SizeTable {
    /// The table of these (prompt, output) rows; at least one row per twentieth.
    ///
    /// Rows of equal prompt that straddle two twentieths are told apart by their order.
    ///
    /// # Errors
    ///
    /// Fewer than 20 rows.
    pub fn from_rows(rows: &[(u32, u32)]) -> Result<Self, SimError> {
        if rows.len() < BINS {
            return Err(SimError::config("rows", format!("at least {BINS}"), rows.len()));
        }
        let mut by_prompt = rows.to_vec();
        by_prompt.sort_by_key(|&(prompt, _)| prompt);
        let outputs = |rows: &[(u32, u32)]| sorted(rows.iter().map(|&(_, output)| output));
        let edge = |bin: usize| bin * rows.len() / BINS;
        Ok(Self {
            prompt: Quantiles::marginal(&sorted(rows.iter().map(|&(prompt, _)| prompt))),
            output: Quantiles::marginal(&outputs(rows)),
            bins: (0..BINS)
                .map(|bin| Quantiles::bin(&outputs(&by_prompt[edge(bin)..edge(bin + 1)])))
                .collect(),
        })
    }

    /// Reads what [`SizeTable::to_text`] wrote; lines that start with `#` are comments. `name` is for errors.
    ///
    /// # Errors
    ///
    /// [`SimError::Input`] for the first line that is not as written there.
    pub fn parse(name: &str, text: &str) -> Result<Self, SimError> {
        let mut lines =
            text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
        let mut row = |key: &str, grid: &'static [u32]| {
            let (line, number) = lines.next().unwrap_or(("", text.lines().count() as u64 + 1));
            Quantiles::parse(line, key, grid).ok_or_else(|| SimError::Input {
                file: name.to_owned(),
                line: number,
                field: key.to_owned(),
                expected: format!("`{key}` and {} rising token counts", grid.len()),
                got: format!("{:?}", line.chars().take(40).collect::<String>()),
            })
        };
        Ok(Self {
            prompt: row("prompt", &MARGINAL_GRID)?,
            output: row("output", &MARGINAL_GRID)?,
            bins: (0..BINS).map(|_| row("bin", &BIN_GRID)).collect::<Result<_, _>>()?,
        })
    }

    /// One line per row of quantiles: `prompt`, `output`, then a `bin` per twentieth.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let named = [("prompt", &self.prompt), ("output", &self.output)];
        for (key, quantiles) in named.into_iter().chain(self.bins.iter().map(|bin| ("bin", bin))) {
            text.push_str(key);
            for tokens in &quantiles.tokens {
                // Writing to a String cannot fail.
                let _ = write!(text, " {tokens}");
            }
            text.push('\n');
        }
        text
    }

    /// Prompt length at `u` of its distribution, `u` in [0, 1).
    pub fn prompt_tokens(&self, u: f64) -> u32 {
        self.prompt.at(u)
    }

    /// Output length at `u` of its distribution, whatever the prompt.
    pub fn output_tokens(&self, u: f64) -> u32 {
        self.output.at(u)
    }

    /// Output length at `u` of its distribution among prompts of the twentieth that holds `prompt_u`.
    pub fn output_tokens_given(&self, prompt_u: f64, u: f64) -> u32 {
        let bin = (prompt_u * BINS as f64) as usize;
        self.bins[bin.min(BINS - 1)].at(u)
    }
}

/// An inverse distribution function, linear between grid points.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Quantiles {
    grid: &'static [u32],
    tokens: Vec<u32>,
}

impl Quantiles {
    /// The first row is 0 %, the last 100 %, the others evenly between.
    fn marginal(rows: &[u32]) -> Self {
        let last = rows.len() as u64 - 1;
        let tokens = MARGINAL_GRID.iter().map(|&q| between(rows, last * u64::from(q) * 2)).collect();
        Self { grid: &MARGINAL_GRID, tokens }
    }

    /// Each row stands at the middle of its share of probability.
    fn bin(rows: &[u32]) -> Self {
        let n = rows.len() as u64;
        let place = |q: u32| (2 * n * u64::from(q)).saturating_sub(u64::from(WHOLE));
        Self { grid: &BIN_GRID, tokens: BIN_GRID.iter().map(|&q| between(rows, place(q))).collect() }
    }

    fn parse(line: &str, key: &str, grid: &'static [u32]) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some(key) {
            return None;
        }
        let tokens: Vec<u32> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let fits =
            tokens.len() == grid.len() && tokens.is_sorted() && tokens.iter().all(|&t| t <= TOKENS_MAX);
        fits.then_some(Self { grid, tokens })
    }

    fn at(&self, u: f64) -> u32 {
        let at = u * f64::from(WHOLE);
        let right = self.grid.partition_point(|&q| f64::from(q) <= at).clamp(1, self.grid.len() - 1);
        let point = |i: usize| (f64::from(self.grid[i]), f64::from(self.tokens[i]));
        let ((q0, low), (q1, high)) = (point(right - 1), point(right));
        let tokens = low + (high - low) * (at - q0) / (q1 - q0);
        (tokens.round() as u32).max(1)
    }
}

fn sorted(tokens: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut tokens: Vec<u32> = tokens.collect();
    tokens.sort_unstable();
    tokens
}

/// The value at index `place / (2 * WHOLE)`, rounded half up; integers only, so a table regenerates exactly.
fn between(rows: &[u32], place: u64) -> u32 {
    let step = 2 * u64::from(WHOLE);
    let last = rows.len() - 1;
    let (index, part) = ((place / step) as usize, place % step);
    if index >= last {
        return rows[last];
    }
    let (low, high) = (u64::from(rows[index]), u64::from(rows[index + 1]));
    ((low * (step - part) + high * part + step / 2) / step) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grids_rise_from_zero_to_all() {
        for grid in [&MARGINAL_GRID[..], &BIN_GRID[..]] {
            assert!(grid.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!((grid[0], grid[grid.len() - 1]), (0, WHOLE));
        }
        assert_eq!(
            MARGINAL_GRID[98..],
            [9800, 9900, 9910, 9920, 9930, 9940, 9950, 9960, 9970, 9980, 9990, 9995, 9999, 10_000]
        );
        assert_eq!(BIN_GRID[93..98], [9300, 9400, 9500, 9525, 9550]);
    }

    #[test]
    fn quantiles_of_a_straight_line_are_the_line() {
        let rows: Vec<u32> = (0..=10_000).map(|i| i + 7).collect();
        let line = Quantiles::marginal(&rows);
        for u in [0.0, 0.000_1, 0.25, 0.5, 0.987_6, 0.999_5, 0.999_9] {
            assert_eq!(line.at(u), 7 + (u * 10_000.0).round() as u32, "{u}");
        }
    }

    #[test]
    fn a_draw_is_at_least_one_token() {
        assert_eq!(Quantiles { grid: &BIN_GRID, tokens: vec![0; 116] }.at(0.3), 1);
    }

    #[test]
    fn a_single_row_is_every_quantile() {
        assert_eq!(Quantiles::bin(&[9]).tokens, [9; 116]);
        assert_eq!(Quantiles::marginal(&[9]).tokens, [9; 112]);
    }

    #[test]
    fn bins_follow_the_prompt() {
        let rows: Vec<(u32, u32)> = (0..200).rev().map(|i| (i + 1, 100 + i / 10)).collect();
        let table = SizeTable::from_rows(&rows).unwrap();
        assert_eq!(table.output_tokens_given(0.0, 0.9), 100);
        assert_eq!(table.output_tokens_given(0.049, 0.1), 100);
        assert_eq!(table.output_tokens_given(0.051, 0.1), 101);
        assert_eq!(table.output_tokens_given(0.999, 0.5), 119);
    }

    #[test]
    fn text_round_trips() {
        let rows: Vec<(u32, u32)> = (0..77).map(|i| (i * 31 % 50 + 1, i * i + 1)).collect();
        let table = SizeTable::from_rows(&rows).unwrap();
        assert_eq!(SizeTable::parse("t", &format!("# note\n{}", table.to_text())).unwrap(), table);
    }

    #[test]
    fn too_few_rows_are_refused() {
        let error = SizeTable::from_rows(&[(1, 1); 19]).unwrap_err();
        assert_eq!(error.to_string(), "rows: expected at least 20, got 19");
    }

    #[test]
    fn a_broken_table_is_refused_by_line() {
        let good = SizeTable::from_rows(&[(5, 6); 40]).unwrap().to_text();
        let line_of = |text: &str| match SizeTable::parse("t", text).unwrap_err() {
            SimError::Input { line, field, .. } => (line, field),
            other => panic!("{other}"),
        };
        assert_eq!(line_of(""), (1, "prompt".to_owned()));
        assert_eq!(line_of(&good.replacen("output 6", "output x", 1)), (2, "output".to_owned()));
        assert_eq!(line_of(&good.replacen("output 6", "output 7", 1)), (2, "output".to_owned()));
        assert_eq!(line_of(&good.replacen("bin 6", "bin", 1)), (3, "bin".to_owned()));
        let cut = good.lines().take(10).collect::<Vec<_>>().join("\n");
        assert_eq!(line_of(&cut), (11, "bin".to_owned()));
    }
}
