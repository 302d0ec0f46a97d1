//! From a checked request to what the host is asked for: tokens, seeds, caps.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use splitcore_wire::message::Sampling;

use super::Kind;
use super::fields::{Asked, Most, Source};
use super::text::{Model, RenderError};
use crate::host::Generate;
use crate::http::errors::ApiError;

/// What makes the answer of a request, whoever comes back to it, and to whichever daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) kind: Kind,
    pub(super) created: u64,
    pub(super) model: String,
    /// Choices of each prompt.
    pub(super) n: usize,
    pub(super) seed: u64,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    #[serde(default)]
    pub(super) continuous_usage: bool,
}

/// The seed of a choice: the request's own for the first, so that one choice alone is as the first of many.
pub(super) fn seed_of(seed: u64, choice: usize) -> u64 {
    if choice == 0 {
        return seed;
    }
    // SplitMix64.
    let mut z = seed.wrapping_add((choice as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn wrong(field: &str, what: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(field, format!("{field}: {what}"))
}

/// The prompts in tokens. Takes its time where they are long.
pub(super) fn prompts(model: &Model, source: &Source) -> Result<Vec<Arc<[u32]>>, ApiError> {
    let prompts = match source {
        Source::Texts(texts) => {
            let encode = |text: &String| model.encode(text, true).map_err(|error| wrong("prompt", error));
            texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?
        }
        Source::Tokens(tokens) => tokens.clone(),
        Source::Messages(messages) => {
            let text = model.render(messages).map_err(|error| match error {
                RenderError::NoTemplate => ApiError {
                    code: "no_chat_template",
                    ..wrong("messages", "the model has no chat template")
                },
                error @ RenderError::Refused(_) => wrong("messages", error),
            })?;
            vec![model.encode(&text, false).map_err(|error| wrong("messages", error))?]
        }
    };
    let field = source.field();
    for prompt in &prompts {
        if prompt.is_empty() {
            return Err(wrong(field, "expected at least one token, got none"));
        }
        if let Some(id) = prompt.iter().find(|&&id| id >= model.vocabulary) {
            return Err(wrong(field, format!("token ids are below {}, got {id}", model.vocabulary)));
        }
    }
    Ok(prompts.into_iter().map(Arc::from).collect())
}

impl Source {
    /// The field that it comes from.
    pub(super) fn field(&self) -> &'static str {
        if matches!(self, Self::Messages(_)) { "messages" } else { "prompt" }
    }
}

/// Output tokens at most, behind a prompt. What the client leaves open ends with the context, or with what the largest
/// machine can hold.
fn cap(model: &Model, asked: &Asked, prompt: usize, holds: u64) -> Result<u32, ApiError> {
    let context = u64::from(model.context);
    let prompt = prompt as u64;
    let too_long =
        |field: &str, what: String| ApiError { code: "context_length_exceeded", ..wrong(field, what) };
    if prompt >= context {
        let what = format!("the model's context is {context} tokens, and the prompt alone has {prompt}");
        return Err(too_long(asked.source.field(), what));
    }
    match asked.most {
        Most::Given { field, tokens } if prompt + u64::from(tokens) > context => {
            let what = format!(
                "the model's context is {context} tokens; {prompt} of the prompt and {tokens} do not fit"
            );
            Err(too_long(field, what))
        }
        Most::Given { tokens, .. } => Ok(tokens),
        Most::UpTo(tokens) => {
            // Without any machine the host says so itself.
            let held = if holds == 0 { context } else { holds.saturating_sub(prompt).max(1) };
            Ok((context - prompt).min(u64::from(tokens)).min(held) as u32)
        }
    }
}

/// One ask for each choice: those of the first prompt, those of the next.
pub(super) fn asks(
    model: &Model,
    name: &str,
    asked: &Asked,
    prompts: &[Arc<[u32]>],
    note: &Note,
    holds: u64,
) -> Result<Vec<Generate>, ApiError> {
    if let Some(id) = asked.stop_ids.iter().find(|&&id| id >= model.vocabulary) {
        return Err(wrong("stop_token_ids", format!("token ids are below {}, got {id}", model.vocabulary)));
    }
    let mut stop_ids = asked.stop_ids.clone();
    if !asked.ignore_eos {
        stop_ids.extend(model.eos.iter().filter(|id| !asked.stop_ids.contains(id)));
    }
    let text = serde_json::to_string(note).unwrap_or_default();
    let mut asks = Vec::with_capacity(prompts.len() * asked.n);
    for prompt in prompts {
        let max_new_tokens = cap(model, asked, prompt.len(), holds)?;
        for choice in 0..asked.n {
            let seed = seed_of(note.seed, choice);
            asks.push(Generate {
                name: name.to_owned(),
                choice: asks.len() as u32,
                choices: (prompts.len() * asked.n) as u32,
                prompt: Arc::clone(prompt),
                max_new_tokens,
                sampling: Sampling {
                    temperature: asked.temperature,
                    top_p: asked.top_p,
                    min_tokens: asked.min_tokens,
                    seed,
                },
                stop: asked.stop.clone(),
                stop_ids: stop_ids.clone(),
                note: text.clone(),
                class: 0,
                priority: 0,
            });
        }
    }
    Ok(asks)
}
