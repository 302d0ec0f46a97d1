//! What a request may ask for: every field is checked before anything is placed.

use serde_json::{Map, Value, json};

use super::Kind;
use super::body::{Body, MessageBody, Prompt, Role};
use super::text::Message;
use crate::http::errors::ApiError;

/// Choices of one request at most, over all of its prompts.
const CHOICES_MAX: usize = 128;
/// Stop texts at most.
const STOPS_MAX: usize = 4;
/// Characters of one of them at most.
const STOP_CHARS_MAX: usize = 256;
/// Tokens of `stop_token_ids` at most.
const STOP_IDS_MAX: usize = 128;
/// Output tokens of a completion that says nothing about it.
const MAX_TOKENS: u32 = 16;

/// Fields that change no token.
const HARMLESS: [&str; 9] = [
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Fields that would change the output and are not offered, with the values that change nothing. `null` never does.
fn unsupported() -> [(&'static str, &'static [Value]); 24] {
    use std::sync::LazyLock;
    static NONE: [Value; 0] = [];
    static ZERO: LazyLock<[Value; 2]> = LazyLock::new(|| [json!(0), json!(0.0)]);
    static ONE: LazyLock<[Value; 2]> = LazyLock::new(|| [json!(1), json!(1.0)]);
    static FALSE: LazyLock<[Value; 1]> = LazyLock::new(|| [json!(false)]);
    static TRUE: LazyLock<[Value; 1]> = LazyLock::new(|| [json!(true)]);
    static EMPTY: LazyLock<[Value; 3]> = LazyLock::new(|| [json!([]), json!({}), json!("")]);
    static TOOL_CHOICE: LazyLock<[Value; 2]> = LazyLock::new(|| [json!("none"), json!("auto")]);
    static FORMAT: LazyLock<[Value; 1]> = LazyLock::new(|| [json!({"type": "text"})]);
    static MODALITIES: LazyLock<[Value; 1]> = LazyLock::new(|| [json!(["text"])]);
    static TOP_K: LazyLock<[Value; 2]> = LazyLock::new(|| [json!(0), json!(-1)]);
    [
        ("audio", &NONE),
        ("echo", &*FALSE),
        ("frequency_penalty", &*ZERO),
        ("function_call", &*TOOL_CHOICE),
        ("functions", &*EMPTY),
        ("include_stop_str_in_output", &*FALSE),
        ("logit_bias", &*EMPTY),
        ("logprobs", &*FALSE),
        ("min_p", &*ZERO),
        ("min_tokens", &*ZERO),
        ("modalities", &*MODALITIES),
        ("presence_penalty", &*ZERO),
        ("reasoning_effort", &NONE),
        ("repetition_penalty", &*ONE),
        ("response_format", &*FORMAT),
        ("skip_special_tokens", &*TRUE),
        ("suffix", &*EMPTY),
        ("tool_choice", &*TOOL_CHOICE),
        ("tools", &*EMPTY),
        ("top_k", &*TOP_K),
        ("top_logprobs", &*ZERO),
        ("use_beam_search", &*FALSE),
        ("verbosity", &NONE),
        ("web_search_options", &NONE),
    ]
}

/// What is asked for, before it is in tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    pub(super) source: Source,
    pub(super) n: usize,
    pub(super) stop: Vec<String>,
    pub(super) stop_ids: Vec<u32>,
    pub(super) ignore_eos: bool,
    pub(super) seed: Option<u64>,
    pub(super) temperature: f64,
    pub(super) top_p: f64,
    pub(super) most: Most,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// What goes before the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
    Messages(Vec<Message>),
}

/// How many output tokens at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Most {
    /// As many as the client says.
    Given { field: &'static str, tokens: u32 },
    /// So many, or what is left.
    UpTo(u32),
}

fn wrong(field: &str, what: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(field, format!("{field}: {what}"))
}

/// A field that is not offered here, at its place in the body.
fn not_offered(field: &str) -> ApiError {
    let error =
        wrong(field, "this service does not offer it, and does not ignore what would change the output");
    ApiError { code: "unsupported_parameter", ..error }
}

fn check_rest(rest: &Map<String, Value>) -> Result<(), ApiError> {
    let unsupported = unsupported();
    for (field, value) in rest {
        if HARMLESS.contains(&field.as_str()) {
            continue;
        }
        let Some((_, neutral)) = unsupported.iter().find(|(name, _)| name == field) else {
            return Err(ApiError {
                code: "unknown_parameter",
                ..wrong(&cut(field), "there is no such field")
            });
        };
        if !value.is_null() && !neutral.contains(value) {
            return Err(not_offered(field));
        }
    }
    Ok(())
}

/// As much of a name as an error repeats.
fn cut(name: &str) -> String {
    name.chars().take(64).collect()
}

fn message(at: usize, body: MessageBody) -> Result<Message, ApiError> {
    if let Some((field, _)) = body.rest.iter().find(|(_, value)| !value.is_null()) {
        return Err(not_offered(&format!("messages[{at}].{}", cut(field))));
    }
    let role = match body.role {
        // What developers say is what templates know as the system's.
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    Ok(Message { role, content: body.content.0, name: body.name })
}

fn source(
    kind: Kind,
    prompt: Option<Prompt>,
    messages: Option<Vec<MessageBody>>,
) -> Result<Source, ApiError> {
    let missing = |field| wrong(field, "it is missing");
    let foreign =
        |field, path| ApiError { code: "unknown_parameter", ..wrong(field, format!("it belongs to {path}")) };
    match (kind, prompt, messages) {
        (Kind::Completion, _, Some(_)) => Err(foreign("messages", "/v1/chat/completions")),
        (Kind::Completion, None, None) => Err(missing("prompt")),
        (Kind::Completion, Some(Prompt::Texts(texts)), None) => Ok(Source::Texts(texts)),
        (Kind::Completion, Some(Prompt::Tokens(tokens)), None) => Ok(Source::Tokens(tokens)),
        (Kind::Chat, Some(_), _) => Err(foreign("prompt", "/v1/completions")),
        (Kind::Chat, None, None) => Err(missing("messages")),
        (Kind::Chat, None, Some(messages)) if messages.is_empty() => {
            Err(wrong("messages", "expected at least one message"))
        }
        (Kind::Chat, None, Some(messages)) => {
            let messages = messages.into_iter().enumerate().map(|(at, body)| message(at, body));
            Ok(Source::Messages(messages.collect::<Result<_, _>>()?))
        }
    }
}

fn stops(given: Vec<String>) -> Result<Vec<String>, ApiError> {
    if given.len() > STOPS_MAX {
        return Err(wrong("stop", format!("expected at most {STOPS_MAX} texts, got {}", given.len())));
    }
    for stop in &given {
        let chars = stop.chars().count();
        if chars == 0 || chars > STOP_CHARS_MAX {
            return Err(wrong(
                "stop",
                format!("expected texts of 1 to {STOP_CHARS_MAX} characters, got {chars}"),
            ));
        }
    }
    Ok(given)
}

fn most(kind: Kind, max_tokens: Option<u32>, max_completion_tokens: Option<u32>) -> Result<Most, ApiError> {
    let given = match (kind, max_completion_tokens) {
        (Kind::Completion, Some(_)) => {
            let error = wrong("max_completion_tokens", "it belongs to /v1/chat/completions");
            return Err(ApiError { code: "unknown_parameter", ..error });
        }
        (Kind::Chat, Some(tokens)) => Some(("max_completion_tokens", tokens)),
        (_, None) => max_tokens.map(|tokens| ("max_tokens", tokens)),
    };
    match (kind, given) {
        (_, Some((field, 0))) => Err(wrong(field, "expected at least 1, got 0")),
        (_, Some((field, tokens))) => Ok(Most::Given { field, tokens }),
        (Kind::Completion, None) => Ok(Most::UpTo(MAX_TOKENS)),
        (Kind::Chat, None) => Ok(Most::UpTo(u32::MAX)),
    }
}

/// Checks a body.
pub(super) fn check(kind: Kind, body: Body) -> Result<Asked, ApiError> {
    check_rest(&body.rest)?;
    let source = source(kind, body.prompt, body.messages)?;
    let prompts = match &source {
        Source::Texts(texts) => texts.len(),
        Source::Tokens(tokens) => tokens.len(),
        Source::Messages(_) => 1,
    };
    let n = body.n.unwrap_or(1) as usize;
    if n == 0 || n > CHOICES_MAX {
        return Err(wrong("n", format!("expected 1 to {CHOICES_MAX}, got {n}")));
    }
    if prompts.saturating_mul(n) > CHOICES_MAX {
        return Err(wrong(
            "prompt",
            format!("at most {CHOICES_MAX} choices in one request, got {prompts} times {n}"),
        ));
    }
    if body.best_of.is_some_and(|best_of| kind == Kind::Chat || best_of as usize != n) {
        return Err(not_offered("best_of"));
    }
    let temperature = body.temperature.unwrap_or(1.0);
    if !(0.0..=2.0).contains(&temperature) {
        return Err(wrong("temperature", format!("expected 0 to 2, got {temperature}")));
    }
    let top_p = body.top_p.unwrap_or(1.0);
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(wrong("top_p", format!("expected above 0 and at most 1, got {top_p}")));
    }
    let stop_ids = body.stop_token_ids.unwrap_or_default();
    if stop_ids.len() > STOP_IDS_MAX {
        return Err(wrong(
            "stop_token_ids",
            format!("expected at most {STOP_IDS_MAX}, got {}", stop_ids.len()),
        ));
    }
    let stream = body.stream.unwrap_or(false);
    if body.stream_options.is_some() && !stream {
        return Err(wrong("stream_options", "it needs stream to be true"));
    }
    Ok(Asked {
        source,
        n,
        stop: body.stop.map_or(Ok(Vec::new()), |stop| stops(stop.0))?,
        stop_ids,
        ignore_eos: body.ignore_eos.unwrap_or(false),
        seed: body.seed.map(i64::cast_unsigned),
        temperature,
        top_p,
        most: most(kind, body.max_tokens, body.max_completion_tokens)?,
        stream,
        include_usage: body.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
    })
}
