//! What a request may ask for: every field is checked before anything is placed.

use serde_json::{Map, Value};

use super::Kind;
use super::body::{Body, MessageBody, Prompt, Role};
use super::text::Message;
use crate::http::errors::ApiError;

/// Choices of one request at most, over all of its prompts.
const CHOICES_MAX: usize = 128;
/// Stop texts at most.
const STOPS_MAX: usize = 256;
/// Characters of one of them at most.
const STOP_CHARS_MAX: usize = 256;
/// Bytes of all of them at most.
const STOP_BYTES_MAX: usize = 16 << 10;
/// Tokens of `stop_token_ids` at most.
const STOP_IDS_MAX: usize = 128;
/// Output tokens of a completion that says nothing about it.
const MAX_TOKENS: u32 = 16;

/// Fields that change no token, and that nobody need be told of.
const HARMLESS: [&str; 11] = [
    "include_reasoning",
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// When a field that would change the output changes nothing. `null` never does.
#[derive(Debug, Clone, Copy)]
enum Neutral {
    /// At this number.
    Number(f64),
    /// At any of these numbers.
    Numbers(&'static [f64]),
    /// At this truth.
    Truth(bool),
    /// At none, `false`, or something empty.
    Empty,
    /// At any of these texts.
    Texts(&'static [&'static str]),
    /// At `{"type": "text"}`.
    PlainText,
    /// At `["text"]`.
    TextOnly,
}

/// Fields that would change the output and are not offered.
const NOT_OFFERED: [(&str, Neutral); 43] = [
    ("add_generation_prompt", Neutral::Truth(true)),
    ("allowed_token_ids", Neutral::Empty),
    ("audio", Neutral::Empty),
    ("bad_words", Neutral::Empty),
    ("chat_template", Neutral::Empty),
    ("chat_template_kwargs", Neutral::Empty),
    ("continue_final_message", Neutral::Truth(false)),
    ("documents", Neutral::Empty),
    ("echo", Neutral::Truth(false)),
    ("ebnf", Neutral::Empty),
    ("frequency_penalty", Neutral::Number(0.0)),
    ("function_call", Neutral::Texts(&["none", "auto"])),
    ("functions", Neutral::Empty),
    ("guided_choice", Neutral::Empty),
    ("guided_grammar", Neutral::Empty),
    ("guided_json", Neutral::Empty),
    ("guided_regex", Neutral::Empty),
    ("include_stop_str_in_output", Neutral::Truth(false)),
    ("json_schema", Neutral::Empty),
    ("length_penalty", Neutral::Number(1.0)),
    ("logit_bias", Neutral::Empty),
    ("logits_processors", Neutral::Empty),
    ("logprobs", Neutral::Number(0.0)),
    ("lora_path", Neutral::Empty),
    ("min_p", Neutral::Number(0.0)),
    ("modalities", Neutral::TextOnly),
    ("presence_penalty", Neutral::Number(0.0)),
    ("prompt_logprobs", Neutral::Number(0.0)),
    ("regex", Neutral::Empty),
    ("repetition_penalty", Neutral::Number(1.0)),
    ("response_format", Neutral::PlainText),
    ("skip_special_tokens", Neutral::Truth(true)),
    ("structural_tag", Neutral::Empty),
    ("structured_outputs", Neutral::Empty),
    ("suffix", Neutral::Empty),
    ("tool_choice", Neutral::Texts(&["none", "auto"])),
    ("tools", Neutral::Empty),
    ("top_k", Neutral::Numbers(&[0.0, -1.0])),
    ("top_logprobs", Neutral::Number(0.0)),
    ("truncate_prompt_tokens", Neutral::Empty),
    ("typical_p", Neutral::Number(1.0)),
    ("use_beam_search", Neutral::Truth(false)),
    ("web_search_options", Neutral::Empty),
];

impl Neutral {
    fn is(self, value: &Value) -> bool {
        let number = value.as_f64();
        match self {
            _ if value.is_null() => true,
            Self::Number(neutral) => number == Some(neutral) || (neutral == 0.0 && *value == false),
            Self::Numbers(neutral) => number.is_some_and(|number| neutral.contains(&number)),
            Self::Truth(neutral) => value.as_bool() == Some(neutral),
            Self::Empty => is_empty(value),
            Self::Texts(neutral) => value.as_str().is_some_and(|text| neutral.contains(&text)),
            Self::PlainText => is_empty(value) || value["type"] == "text",
            Self::TextOnly => value.as_array().is_some_and(|all| all.iter().all(|each| each == "text")),
        }
    }

    /// What is taken, for an error.
    fn taken(self) -> String {
        match self {
            Self::Number(neutral) => format!("null or {neutral} is taken"),
            Self::Numbers(neutral) => {
                let all: Vec<String> = neutral.iter().map(ToString::to_string).collect();
                format!("null, {} are taken", all.join(" and "))
            }
            Self::Truth(neutral) => format!("null or {neutral} is taken"),
            Self::Empty => "null or something empty is taken".to_owned(),
            Self::Texts(neutral) => format!("null, {} are taken", neutral.join(" and ")),
            Self::PlainText => "null or the type text is taken".to_owned(),
            Self::TextOnly => "null or text alone is taken".to_owned(),
        }
    }
}

/// Whether a value says that nothing is wanted.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        // A bias of nothing is none, for each token.
        Value::Object(values) => values.values().all(|value| value.as_f64() == Some(0.0)),
    }
}

/// What is asked for, before it is in tokens.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a field of the body")]
pub(super) struct Asked {
    pub(super) source: Source,
    pub(super) n: usize,
    pub(super) stop: Vec<String>,
    pub(super) stop_ids: Vec<u32>,
    pub(super) ignore_eos: bool,
    /// Output tokens before anything ends it but its cap.
    pub(super) min_tokens: u32,
    pub(super) seed: Option<u64>,
    pub(super) temperature: f64,
    pub(super) top_p: f64,
    pub(super) most: Most,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// With every event.
    pub(super) continuous_usage: bool,
    /// Fields that were passed over.
    pub(super) ignored: Vec<String>,
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
fn not_offered(field: &str, given: &Value, taken: &str) -> ApiError {
    let given = cut(&given.to_string());
    let error = wrong(
        field,
        format!("this service does not offer it, and got {given}, which would change the output; {taken}"),
    );
    ApiError { code: "unsupported_parameter", ..error }
}

/// Checks the fields that have no meaning here. Those that are passed over, though somebody may have meant something by
/// them, go to `ignored`.
fn check_rest(rest: &Map<String, Value>, ignored: &mut Vec<String>) -> Result<(), ApiError> {
    let is_none = |choice: &str| rest.get(choice).is_some_and(|value| value == "none");
    for (field, value) in rest {
        let is_unwanted = match field.as_str() {
            "tools" => is_none("tool_choice"),
            "functions" => is_none("function_call"),
            _ => false,
        };
        let known = NOT_OFFERED.iter().find(|(name, _)| name == field);
        match known {
            _ if HARMLESS.contains(&field.as_str()) || is_unwanted => {}
            Some((_, neutral)) if neutral.is(value) => {}
            Some((_, neutral)) => return Err(not_offered(field, value, &neutral.taken())),
            None if is_empty(value) => {}
            None => ignored.push(field.clone()),
        }
    }
    Ok(())
}

/// As much of a text as an error repeats.
fn cut(name: &str) -> String {
    let mut shown: String = name.chars().take(64).collect();
    if shown.len() < name.len() {
        shown.push_str("...");
    }
    shown
}

fn message(at: usize, body: MessageBody, ignored: &mut Vec<String>) -> Result<Message, ApiError> {
    for (field, value) in body.rest.iter().filter(|(_, value)| !is_empty(value)) {
        // What a template would have shown of it.
        if matches!(field.as_str(), "tool_calls" | "function_call") {
            let place = format!("messages[{at}].{field}");
            return Err(not_offered(&place, value, &Neutral::Empty.taken()));
        }
        ignored.push(format!("messages.{field}"));
    }
    let role = match body.role {
        // What developers say is what templates know as the system's.
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let content = match body.content {
        Some(content) => content.0,
        // An answer may have been nothing but calls of tools.
        None if body.role == Role::Assistant => String::new(),
        None => {
            return Err(wrong(
                &format!("messages[{at}].content"),
                "it is missing; expected a text or a list of text parts",
            ));
        }
    };
    Ok(Message { role, content, name: body.name })
}

fn source(
    kind: Kind,
    prompt: Option<Prompt>,
    messages: Option<Vec<MessageBody>>,
    ignored: &mut Vec<String>,
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
            let messages = messages.into_iter().enumerate().map(|(at, body)| message(at, body, ignored));
            Ok(Source::Messages(messages.collect::<Result<_, _>>()?))
        }
    }
}

/// Empty ones end nothing.
fn stops(given: Vec<String>) -> Result<Vec<String>, ApiError> {
    if given.len() > STOPS_MAX {
        return Err(wrong("stop", format!("expected at most {STOPS_MAX} texts, got {}", given.len())));
    }
    let stops: Vec<String> = given.into_iter().filter(|stop| !stop.is_empty()).collect();
    if let Some(chars) = stops.iter().map(|stop| stop.chars().count()).find(|&chars| chars > STOP_CHARS_MAX) {
        return Err(wrong(
            "stop",
            format!("expected texts of at most {STOP_CHARS_MAX} characters, got {chars}"),
        ));
    }
    let bytes: usize = stops.iter().map(String::len).sum();
    if bytes > STOP_BYTES_MAX {
        return Err(wrong(
            "stop",
            format!("expected at most {STOP_BYTES_MAX} bytes in all texts together, got {bytes}"),
        ));
    }
    Ok(stops)
}

fn most(kind: Kind, max_tokens: Option<u32>, max_completion_tokens: Option<u32>) -> Result<Most, ApiError> {
    let old = max_tokens.map(|tokens| ("max_tokens", tokens));
    let new = max_completion_tokens.map(|tokens| ("max_completion_tokens", tokens));
    // Each kind of request has its own name for it, and clients send the other as well.
    let given = match kind {
        Kind::Completion => old.or(new),
        Kind::Chat => new.or(old),
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
    let mut ignored = Vec::new();
    check_rest(&body.rest, &mut ignored)?;
    let source = source(kind, body.prompt, body.messages, &mut ignored)?;
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
    if let Some(best_of) = body.best_of.filter(|&best_of| best_of != 1 && best_of as usize != n) {
        return Err(not_offered("best_of", &best_of.into(), "null, 1 and n are taken"));
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
    let stream_options = body.stream_options.unwrap_or_default();
    let unknown = stream_options.rest.iter().filter(|(_, value)| !is_empty(value));
    ignored.extend(unknown.map(|(field, _)| format!("stream_options.{field}")));
    ignored.sort_unstable();
    ignored.dedup();
    let most = most(kind, body.max_tokens, body.max_completion_tokens)?;
    let min_tokens = body.min_tokens.unwrap_or(0);
    let (Most::Given { tokens: cap, .. } | Most::UpTo(cap)) = most;
    if min_tokens > cap {
        return Err(wrong(
            "min_tokens",
            format!("expected at most max_tokens, which is {cap}, got {min_tokens}"),
        ));
    }
    Ok(Asked {
        source,
        n,
        stop: body.stop.map_or(Ok(Vec::new()), |stop| stops(stop.0))?,
        stop_ids,
        ignore_eos: body.ignore_eos.unwrap_or(false),
        min_tokens,
        seed: body.seed.map(|seed| seed.0),
        temperature,
        top_p,
        most,
        stream,
        include_usage: stream_options.include_usage.unwrap_or(false),
        continuous_usage: stream_options.continuous_usage_stats.unwrap_or(false),
        ignored,
    })
}
