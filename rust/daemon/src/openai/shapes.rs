//! The shapes of answers, as `OpenAI`'s clients read them.

use serde::Serialize;

use super::asks::Note;
use super::{Kind, text::Finish};

/// `stop`, `length`, or `error`.
pub(super) fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

/// Tokens counted.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Usage {
    #[serde(rename = "prompt_tokens")]
    prompt: u64,
    #[serde(rename = "completion_tokens")]
    completion: u64,
    #[serde(rename = "total_tokens")]
    total: u64,
}

impl Usage {
    pub(super) fn new(prompt: u64, completion: u64) -> Self {
        Self { prompt, completion, total: prompt + completion }
    }
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct MessageView<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<&'a str>,
}

/// A choice, in a stream or whole.
#[derive(Debug, Serialize)]
pub(super) struct Choice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<MessageView<'a>>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

impl<'a> Choice<'a> {
    fn empty(index: usize, finish_reason: Option<&'static str>) -> Self {
        Self { index, text: None, delta: None, message: None, logprobs: None, finish_reason }
    }

    /// The beginning of a chat's choice in a stream.
    pub(super) fn opening(index: usize) -> Self {
        let delta = Some(Delta { role: Some("assistant"), content: Some("") });
        Self { delta, ..Self::empty(index, None) }
    }

    /// A part of a stream.
    pub(super) fn part(kind: Kind, index: usize, text: &'a str, finish: Option<&'static str>) -> Self {
        let choice = Self::empty(index, finish);
        match kind {
            Kind::Completion => Self { text: Some(text), ..choice },
            Kind::Chat => {
                let content = Some(text).filter(|text| !text.is_empty());
                Self { delta: Some(Delta { role: None, content }), ..choice }
            }
        }
    }

    /// All of it.
    pub(super) fn whole(kind: Kind, index: usize, text: &'a str, finish: Option<&'static str>) -> Self {
        let choice = Self::empty(index, finish);
        match kind {
            Kind::Completion => Self { text: Some(text), ..choice },
            Kind::Chat => {
                let message = MessageView { role: "assistant", content: text, refusal: None };
                Self { message: Some(message), ..choice }
            }
        }
    }
}

#[allow(clippy::option_option, reason = "absent, or null")]
type MaybeNull<T> = Option<Option<T>>;

/// An answer, or one chunk of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: MaybeNull<Usage>,
}

impl<'a> Answer<'a> {
    /// The whole answer.
    pub(super) fn whole(id: &'a str, note: &'a Note, choices: &'a [Choice<'a>], usage: Usage) -> Self {
        let object = match note.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion",
        };
        let usage = Some(Some(usage));
        Self { id, object, created: note.created, model: &note.model, choices, usage }
    }

    /// A chunk; with usage on demand, each but the last says that it has none.
    pub(super) fn chunk(
        id: &'a str,
        note: &'a Note,
        choices: &'a [Choice<'a>],
        usage: Option<Usage>,
    ) -> Self {
        let object = match note.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion.chunk",
        };
        let usage = (note.include_usage || note.continuous_usage).then_some(usage);
        Self { id, object, created: note.created, model: &note.model, choices, usage }
    }
}

/// A model in the list.
#[derive(Debug, Serialize)]
pub(super) struct ModelView<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) owned_by: &'static str,
    pub(super) max_model_len: u32,
}

/// The models.
#[derive(Debug, Serialize)]
pub(super) struct ModelsView<'a> {
    pub(super) object: &'static str,
    pub(super) data: [ModelView<'a>; 1],
}
