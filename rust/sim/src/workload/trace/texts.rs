//! Lengths of texts in tokens.

use std::path::Path;

use tokenizers::Tokenizer;

use crate::SimError;
use crate::files::read_ordinary;

/// Counts by a model's tokenizer.
pub(super) struct Counter {
    tokenizer: Tokenizer,
}

impl Counter {
    /// Reads a `tokenizer.json`.
    pub(super) fn load(path: &str) -> Result<Self, SimError> {
        let text = read_ordinary(Path::new(path))?;
        let refuse = |error: tokenizers::Error| SimError::Io {
            file: path.to_owned(),
            reason: format!("expected the tokenizer.json of a model ({error})"),
        };
        Ok(Self { tokenizer: Tokenizer::from_bytes(text.as_bytes()).map_err(refuse)? })
    }

    /// Tokens of a text without any that a model adds; 0 where it cannot be encoded.
    pub(super) fn count(&self, text: &str) -> usize {
        self.tokenizer.encode_fast(text, false).map_or(0, |encoded| encoded.len())
    }
}
