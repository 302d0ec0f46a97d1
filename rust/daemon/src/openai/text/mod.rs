//! Between texts and tokens: a model's tokenizer, its chat template and what ends its output.

mod decoder;
mod stops;
mod template;
#[cfg(test)]
mod testing;
mod writer;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::Tokenizer;

pub(crate) use template::{Message, RenderError};
pub(crate) use writer::{Finish, Piece, Writer};

use template::Template;

/// Beyond this a `model_max_length` means that nobody has set it.
const LENGTH_UNSET: u64 = 1 << 30;

/// Why a directory is no model that can be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {what}", path.display())]
    Broken {
        /// Which.
        path: PathBuf,
        /// In which way.
        what: String,
    },
}

/// A model as far as texts go, read from a directory as transformers' `save_pretrained` writes it.
pub(crate) struct Model {
    tokenizer: Tokenizer,
    template: Option<Template>,
    special: HashSet<u32>,
    /// Tokens that end an output, in order.
    pub(crate) eos: Vec<u32>,
    /// Tokens of prompt and output together at most.
    pub(crate) context: u32,
    /// Token ids are below this.
    pub(crate) vocabulary: u32,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Model").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Model {
    /// Reads a directory.
    ///
    /// # Errors
    /// The first file that is missing or broken.
    pub(crate) fn load(directory: &Path) -> Result<Self, ModelError> {
        let path = directory.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|error| ModelError::Read { path: path.clone(), error })?;
        let broken =
            |error: tokenizers::Error| ModelError::Broken { path: path.clone(), what: error.to_string() };
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(broken)?;
        // Prompts are whole: what is too long is refused, not cut.
        tokenizer.with_truncation(None).map_err(broken)?;
        tokenizer.with_padding(None);
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect();
        let config = read_json(&directory.join("config.json"))?.unwrap_or_default();
        let generation = read_json(&directory.join("generation_config.json"))?.unwrap_or_default();
        let words = read_json(&directory.join("tokenizer_config.json"))?.unwrap_or_default();
        let template = Template::read(directory, &words)?;
        let mut eos = BTreeSet::new();
        for from in [&generation, &config, &config["text_config"]] {
            ids(&from["eos_token_id"], &mut eos);
        }
        let named = template::special(&words, "eos_token").and_then(|token| tokenizer.token_to_id(&token));
        eos.extend(named);
        let vocabulary = number(&config, "vocab_size").unwrap_or(0);
        let vocabulary = vocabulary.max(tokenizer.get_vocab_size(true) as u64);
        let context = number(&config, "max_position_embeddings")
            .or_else(|| words["model_max_length"].as_u64().filter(|&most| most < LENGTH_UNSET));
        let context = context.filter(|&most| most > 0).ok_or_else(|| ModelError::Broken {
            path: directory.join("config.json"),
            what: "there is no max_position_embeddings".to_owned(),
        })?;
        Ok(Self {
            tokenizer,
            template,
            special,
            eos: eos.into_iter().collect(),
            context: u32::try_from(context).unwrap_or(u32::MAX),
            vocabulary: u32::try_from(vocabulary).unwrap_or(u32::MAX),
        })
    }

    /// The tokens of a text; with those that the tokenizer puts around one, if `whole`.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub(crate) fn encode(&self, text: &str, whole: bool) -> Result<Vec<u32>, String> {
        let encoded = self.tokenizer.encode_fast(text, whole).map_err(|error| error.to_string())?;
        Ok(encoded.get_ids().to_vec())
    }

    /// A conversation as the text that the model continues.
    ///
    /// # Errors
    /// The template refuses it, or there is none.
    pub(crate) fn render(&self, messages: &[Message]) -> Result<String, RenderError> {
        self.template.as_ref().ok_or(RenderError::NoTemplate)?.render(messages)
    }

    /// The text of tokens, special ones left out.
    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, true).unwrap_or_else(|error| {
            tracing::error!(%error, "tokens could not be decoded");
            String::new()
        })
    }

    fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }
}

/// A field of a config; of a model that sees as well, it is in the part for texts.
fn number(config: &Value, field: &str) -> Option<u64> {
    config[field].as_u64().or_else(|| config["text_config"][field].as_u64())
}

fn ids(value: &Value, into: &mut BTreeSet<u32>) {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(values) => into.extend(values.iter().filter_map(id)),
        value => into.extend(id(value)),
    }
}

/// The text of a file; `None` where there is none.
fn read_text(path: &Path) -> Result<Option<String>, ModelError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ModelError::Read { path: path.to_owned(), error }),
    }
}

fn read_json(path: &Path) -> Result<Option<Value>, ModelError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| ModelError::Broken { path: path.to_owned(), what: error.to_string() })
}
