//! Where in a file something stands, and what its text must be.

use super::super::{ARRIVAL_MAX_NS, TOKENS_MAX};
use crate::SimError;

/// One line of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) file: &'a str,
    pub(super) line: u64,
}

impl Place<'_> {
    pub(super) fn error(self, field: &str, expected: impl Into<String>, got: impl Into<String>) -> SimError {
        SimError::Input {
            file: self.file.to_owned(),
            line: self.line,
            field: field.to_owned(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    pub(super) fn io_error(self, reason: &std::io::Error) -> SimError {
        SimError::Io { file: self.file.to_owned(), reason: reason.to_string() }
    }

    /// A number of tokens.
    pub(super) fn tokens(self, field: &str, text: &str) -> Result<u32, SimError> {
        // Spreadsheets and data frames write whole numbers as 100.0.
        let whole =
            || text.parse::<f64>().ok().filter(|number| number.fract() == 0.0).map(|number| number as u32);
        let tokens = text.parse().ok().or_else(whole).filter(|tokens| (1..=TOKENS_MAX).contains(tokens));
        tokens.ok_or_else(|| {
            self.error(field, format!("a whole number of tokens from 1 to {TOKENS_MAX}"), quoted(text))
        })
    }

    /// A time of `unit_ns` per unit as nanoseconds, rounded once; whole numbers are exact at any size.
    pub(super) fn time_ns(self, field: &str, text: &str, unit: &str, unit_ns: u32) -> Result<i128, SimError> {
        let ns = if let Ok(whole) = text.parse::<u64>() {
            i128::from(whole) * i128::from(unit_ns)
        } else {
            let units = text.parse::<f64>().ok().filter(|units| units.is_finite() && *units >= 0.0);
            let units = units.ok_or_else(|| self.error(field, format!("{unit}, 0 or more"), quoted(text)))?;
            // Beyond i128 the cast saturates, and the limit refuses it.
            (units * f64::from(unit_ns)).round() as i128
        };
        let is_near = ns <= i128::from(ARRIVAL_MAX_NS);
        is_near.then_some(ns).ok_or_else(|| self.error(field, "a time within 146 years", quoted(text)))
    }
}

/// Text of a file as shown in an error: quoted, escaped, and not too long.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    if text.is_empty() { "nothing".to_owned() } else { format!("{shown:?}{more}") }
}
