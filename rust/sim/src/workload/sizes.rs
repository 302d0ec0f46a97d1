//! Where the lengths of generated requests come from.

use super::draws::Draws;
use super::{Sampling, SizeTable};

/// A source of (prompt, output) lengths.
pub(super) enum Sizes {
    /// A built-in workload.
    Table(SizeTable),
    /// The rows of a trace, drawn with replacement; never empty.
    Rows(Vec<(u32, u32)>),
}

impl Sizes {
    /// One (prompt, output) pair.
    pub(super) fn draw(&self, sampling: Sampling, draws: &mut Draws) -> (u32, u32) {
        match (self, sampling) {
            (Self::Table(table), Sampling::Joint) => {
                let prompt_u = draws.uniform();
                (table.prompt_tokens(prompt_u), table.output_tokens_given(prompt_u, draws.uniform()))
            }
            (Self::Table(table), Sampling::Independent) => {
                (table.prompt_tokens(draws.uniform()), table.output_tokens(draws.uniform()))
            }
            (Self::Rows(rows), Sampling::Joint) => rows[draws.index(rows.len())],
            (Self::Rows(rows), Sampling::Independent) => {
                let (prompt, _) = rows[draws.index(rows.len())];
                (prompt, rows[draws.index(rows.len())].1)
            }
        }
    }
}
