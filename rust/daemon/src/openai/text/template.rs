//! A model's chat template: Jinja as transformers runs it.

use std::borrow::Cow;
use std::path::Path;

use jiff::fmt::strtime;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value as Jinja, context};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter};

use super::{ModelError, read_text};

/// What a template may do at most, so that one that goes wild ends.
const FUEL: u64 = 50_000_000;
/// What tokens are called that a template may name.
const TOKENS: [&str; 5] = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token"];

/// A part of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Message {
    /// Whose.
    pub(crate) role: &'static str,
    /// The text.
    pub(crate) content: String,
    /// Who it is among those of this role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

/// Why a conversation is not rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RenderError {
    /// The model is none for conversations.
    #[error("the model has no chat template")]
    NoTemplate,
    /// What the template says.
    #[error("the chat template refuses it: {0}")]
    Refused(String),
}

/// A template that has been parsed.
pub(super) struct Template(Environment<'static>);

/// A token of the tokenizer's config: a text, or an object with one.
pub(super) fn special(config: &Value, name: &str) -> Option<String> {
    let token = &config[name];
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

impl Template {
    /// Of a model's directory: a file of its own, or in the tokenizer's config, alone or as `default` of several.
    pub(super) fn read(directory: &Path, config: &Value) -> Result<Option<Self>, ModelError> {
        let mut path = directory.join("chat_template.jinja");
        let mut source = read_text(&path)?;
        if source.is_none() {
            path = directory.join("tokenizer_config.json");
            source = match &config["chat_template"] {
                Value::String(source) => Some(source.clone()),
                Value::Array(named) => {
                    let default = named.iter().find(|each| each["name"] == "default");
                    default.and_then(|each| each["template"].as_str()).map(str::to_owned)
                }
                _ => None,
            };
        }
        let Some(source) = source else { return Ok(None) };
        let broken = |error: Error| ModelError::Broken { path, what: format!("chat template: {error}") };
        Self::parse(&source, config).map(Some).map_err(broken)
    }

    fn parse(source: &str, config: &Value) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax =
            minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        for name in TOKENS {
            if let Some(token) = special(config, name) {
                environment.add_global(name, token);
            }
        }
        environment.add_template_owned("chat", without_generation(source).into_owned())?;
        Ok(Self(environment))
    }

    /// The conversation, up to where the model's answer begins.
    pub(super) fn render(&self, messages: &[Message]) -> Result<String, RenderError> {
        let messages = Jinja::from(minijinja::value::Serde(messages));
        let (tools, documents) = (Jinja::from(()), Jinja::from(()));
        let values = context! { messages, add_generation_prompt => true, tools, documents };
        let refused = |error: Error| {
            let what = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            RenderError::Refused(what)
        };
        self.0.get_template("chat").and_then(|template| template.render(values)).map_err(refused)
    }
}

fn raise_exception(message: &str) -> Result<Jinja, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// The time of day in UTC.
fn strftime_now(format: &str) -> Result<String, Error> {
    let text = strtime::format(format, jiff::Timestamp::now());
    text.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// As Python's `json.dumps` with `ensure_ascii=False`.
fn to_json(value: &Jinja, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(16));
            let format = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, format))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Spaced)),
    };
    let failed = |what: String| Error::new(ErrorKind::BadSerialization, what);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| failed(error.to_string()))
}

/// One line, with a space behind commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, to: &mut W) -> std::io::Result<()> {
        to.write_all(b": ")
    }
}

/// The same template without transformers' own tag, which marks what training is about.
fn without_generation(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let (mut text, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|end| at + end) else { break };
        let tag = &rest[at + 2..end];
        let word = tag.trim_matches(|char: char| char.is_whitespace() || char == '-' || char == '+');
        let other = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        text.push_str(&rest[..at + 2]);
        text.push_str(&other.map_or(Cow::Borrowed(tag), |other| Cow::Owned(tag.replacen(word, other, 1))));
        rest = &rest[end..];
    }
    text.push_str(rest);
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(role: &'static str, content: &str) -> Message {
        Message { role, content: content.to_owned(), name: None }
    }

    fn render(source: &str, messages: &[Message]) -> Result<String, RenderError> {
        let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>"});
        Template::parse(source, &config).expect("a template").render(messages)
    }

    #[test]
    fn chat_markup_comes_out_to_the_byte() {
        let source = "{{ bos_token }}{% for message in messages %}\n    {{ '<|im_start|>' + message['role'] + '\n' \
                      + message['content'] | trim + '<|im_end|>' + '\n' }}\n{% endfor %}\n\
                      {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let text = render(source, &[message("system", " Be brief. "), message("user", "<b> & 'c'")]);
        let expected = "<s>    <|im_start|>system\nBe brief.<|im_end|>\n\n    <|im_start|>user\n<b> & 'c'<|im_end|>\n\n\
                        <|im_start|>assistant\n";
        assert_eq!(text.as_deref(), Ok(expected));
    }

    #[test]
    fn methods_of_python_and_namespaces_work() {
        let source = "{%- set ns = namespace(first=none) -%}\
                      {%- for m in messages if m.role == 'user' -%}\
                      {%- if loop.index0 == 1 %}{% continue %}{% endif -%}\
                      {%- set ns.first = m.content.strip().split(' ')[0].upper() -%}{{ m.get('name', 'x') }}\
                      {%- endfor -%}{{ ns.first }}{{ tools is none }}{{ missing is defined }}";
        let text = render(source, &[message("user", " a b"), message("user", "c")]);
        assert_eq!(text.as_deref(), Ok("xATrueFalse"));
    }

    #[test]
    fn a_template_says_itself_why_it_refuses() {
        let source =
            "{% if messages[0].role != 'user' %}{{ raise_exception('begin with a user') }}{% endif %}";
        let refused = RenderError::Refused("begin with a user".to_owned());
        assert_eq!(render(source, &[message("assistant", "")]), Err(refused));
        assert_eq!(render(source, &[message("user", "")]).as_deref(), Ok(""));
    }

    #[test]
    fn json_is_that_of_python() {
        let text = render("{{ messages | tojson }}", &[message("user", "<\u{e9}>\n")]);
        assert_eq!(text.as_deref(), Ok("[{\"role\": \"user\", \"content\": \"<\u{e9}>\\n\"}]"));
        let text = render("{{ {'a': [1]} | tojson(indent=2) }}", &[]);
        assert_eq!(text.as_deref(), Ok("{\n  \"a\": [\n    1\n  ]\n}"));
    }

    #[test]
    fn the_date_is_a_date() {
        let text = render("{{ strftime_now('%d %b %Y') }}", &[]).expect("a date");
        assert!(text.len() == 11 && text.ends_with(|char: char| char.is_ascii_digit()), "{text}");
        assert!(render("{{ strftime_now('%!') }}", &[]).is_err());
    }

    #[test]
    fn the_tag_for_training_leaves_its_content() {
        let source = "{% if add_generation_prompt %}a{%- generation -%} b {% endgeneration %}c{% endif %}";
        assert_eq!(render(source, &[]).as_deref(), Ok("ab c"));
    }

    #[test]
    fn a_template_without_end_is_ended() {
        let source = "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}";
        assert!(matches!(render(source, &[]), Err(RenderError::Refused(_))));
    }
}
