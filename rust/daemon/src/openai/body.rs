//! Bodies of completions and chats as they come: types, before anything is checked against a model.

use std::fmt;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Both kinds of request; what one of them does not have is refused later, by its name.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Body {
    pub(super) model: Option<String>,
    pub(super) prompt: Option<Prompt>,
    pub(super) messages: Option<Vec<MessageBody>>,
    pub(super) n: Option<u32>,
    pub(super) best_of: Option<u32>,
    pub(super) stop: Option<Stop>,
    pub(super) stop_token_ids: Option<Vec<u32>>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) seed: Option<i64>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) max_tokens: Option<u32>,
    pub(super) max_completion_tokens: Option<u32>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    /// Everything else.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

/// Whose a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Debug, Deserialize)]
pub(super) struct MessageBody {
    pub(super) role: Role,
    pub(super) content: Content,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// A text, or texts in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content(pub(super) String);

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartType {
    Text,
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    _type: PartType,
    text: String,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Content;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text or a list of text parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Content, A::Error> {
                let parts: Vec<Part> = Deserialize::deserialize(SeqAccessDeserializer::new(list))?;
                let texts: Vec<String> = parts.into_iter().map(|part| part.text).collect();
                Ok(Content(texts.join("\n")))
            }
        }
        from.deserialize_any(Either)
    }
}

/// Texts that end an output: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stop(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Stop;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Stop, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(Stop)
            }
        }
        from.deserialize_any(Either)
    }
}

/// One prompt or several, each a text or tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Prompt {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

/// What is in a list of prompts, or in one of tokens.
enum Item {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Item;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, a token id or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
                let id = u32::try_from(id);
                id.map(Item::Token).map_err(|_| E::custom("a token id is below 2^32"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Item, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(Item::Tokens)
            }
        }
        from.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Prompt;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, a list of token ids, or a list of either")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompt, E> {
                Ok(Prompt::Texts(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
                let (mut texts, mut ids, mut lists) = (Vec::new(), Vec::new(), Vec::new());
                while let Some(item) = list.next_element()? {
                    match item {
                        Item::Text(text) => texts.push(text),
                        Item::Token(id) => ids.push(id),
                        Item::Tokens(tokens) => lists.push(tokens),
                    }
                }
                match (texts.is_empty(), ids.is_empty(), lists.is_empty()) {
                    (false, true, true) => Ok(Prompt::Texts(texts)),
                    (true, false, true) => Ok(Prompt::Tokens(vec![ids])),
                    (true, true, false) => Ok(Prompt::Tokens(lists)),
                    (true, true, true) => Err(A::Error::custom("the list is empty")),
                    _ => Err(A::Error::custom("a list of prompts has texts or tokens, not both")),
                }
            }
        }
        from.deserialize_any(Any)
    }
}
