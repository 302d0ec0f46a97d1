//! Bodies of completions and chats as they come: types, before anything is checked against a model.

use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
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
    pub(super) seed: Option<Seed>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) min_tokens: Option<u32>,
    pub(super) max_tokens: Option<u32>,
    pub(super) max_completion_tokens: Option<u32>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    /// Everything else.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
    pub(super) continuous_usage_stats: Option<bool>,
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
    /// Everything else.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// Where draws begin: any whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seed(pub(super) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Seed;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number")
            }

            fn visit_u64<E: Error>(self, seed: u64) -> Result<Seed, E> {
                Ok(Seed(seed))
            }

            fn visit_i64<E: Error>(self, seed: i64) -> Result<Seed, E> {
                Ok(Seed(seed.cast_unsigned()))
            }

            /// Numbers beyond 64 bits come as this.
            fn visit_f64<E: Error>(self, seed: f64) -> Result<Seed, E> {
                if seed.fract() == 0.0 {
                    Ok(Seed(seed.to_bits()))
                } else {
                    Err(E::invalid_type(Unexpected::Float(seed), &self))
                }
            }
        }
        from.deserialize_any(Whole)
    }
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
    /// `None` where it is not there at all.
    #[serde(default, deserialize_with = "given")]
    pub(super) content: Option<Content>,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Content>, D::Error> {
    Content::deserialize(from).map(Some)
}

/// The text of a message; several parts are lines of it, and `null` is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content(pub(super) String);

/// Kinds of parts of a message: those that are texts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartType {
    Text,
    InputText,
    OutputText,
}

#[derive(Deserialize)]
struct TextPart {
    #[serde(rename = "type")]
    _type: PartType,
    text: String,
}

/// A part of a message: a text, or an object with one.
struct Part(String);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Part;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, or a part of type text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Part, E> {
                Ok(Part(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Part, A::Error> {
                let part: TextPart = Deserialize::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Part(part.text))
            }
        }
        from.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Content;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text or a list of text parts")
            }

            fn visit_unit<E: Error>(self) -> Result<Content, E> {
                Ok(Content(String::new()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Content, A::Error> {
                let parts: Vec<Part> = Deserialize::deserialize(SeqAccessDeserializer::new(list))?;
                let texts: Vec<String> = parts.into_iter().map(|Part(text)| text).collect();
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
