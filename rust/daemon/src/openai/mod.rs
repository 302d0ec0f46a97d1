//! `OpenAI`'s interface: completions and chats, for a service that brings its own workers.
//!
//! `body` and `fields` read what is asked for, `text` makes tokens of it, `asks` what the host is asked for; `choices`
//! hears the tokens, and `answers` makes one answer of them or, with `feed`, a stream of events.

mod answers;
mod asks;
mod body;
mod choices;
mod feed;
mod fields;
pub(crate) mod metrics;
mod shapes;
pub(crate) mod text;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::host::Fault;
use crate::http::App;
use crate::http::body::{answer, json};
use crate::http::errors::ApiError;
use crate::options::{OptionError, Options};
use asks::Note;
use body::Body;
use choices::Choices;
use fields::{Asked, Source};
use shapes::{ModelView, ModelsView};
use text::Model;

type Outcome = Result<Response, ApiError>;
type Id = Result<Path<String>, PathRejection>;

/// Characters of a request's name at most.
const NAME_MAX: usize = 128;
/// Texts of so many bytes are made into tokens beside the thread that serves connections.
const LONG_TEXT: usize = 4096;
/// So many at once.
const LONG_TEXTS: usize = 2;

/// Which of the two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

/// The model that a service offers.
pub(crate) struct Gateway {
    model: Arc<Model>,
    name: String,
    created: u64,
    long_texts: Semaphore,
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Gateway {
    /// Reads the model of the options, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn open(options: &Options) -> Result<Option<Self>, OptionError> {
        let Some(directory) = &options.model else { return Ok(None) };
        let model = Model::load(directory).map_err(|error| {
            OptionError::new("model", "a folder of a model as transformers saves it", error)
        })?;
        let name = options.model_name().unwrap_or_default();
        tracing::info!(model = name, context = model.context, "offers a model");
        Ok(Some(Self {
            model: Arc::new(model),
            name,
            created: seconds_since_1970(),
            long_texts: Semaphore::new(LONG_TEXTS),
        }))
    }

    /// Positions that prompt and output may have together.
    pub(crate) fn context(&self) -> u32 {
        self.model.context
    }

    fn view(&self) -> ModelView<'_> {
        let max_model_len = self.model.context;
        ModelView {
            id: &self.name,
            object: "model",
            created: self.created,
            owned_by: "splitcore",
            max_model_len,
        }
    }

    fn unknown(&self, name: &str) -> ApiError {
        let shown: String = name.chars().take(64).collect();
        let message = format!("model: there is no model '{shown}'; this service offers '{}'", self.name);
        let param = Some("model".to_owned());
        ApiError { param, ..ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message) }
    }

    async fn prompts(&self, source: Source) -> Result<(Vec<Arc<[u32]>>, Source), ApiError> {
        if source.bytes() < LONG_TEXT {
            return asks::prompts(&self.model, &source).map(|prompts| (prompts, source));
        }
        let stopped =
            || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "stopped", "the prompt was not read");
        let _slot = self.long_texts.acquire().await.map_err(|_| stopped())?;
        let model = Arc::clone(&self.model);
        let read = move || asks::prompts(&model, &source).map(|prompts| (prompts, source));
        tokio::task::spawn_blocking(read).await.map_err(|_| stopped())?
    }
}

/// The gateway, where the service has a model.
fn gateway(app: &App) -> Result<&Gateway, ApiError> {
    app.gateway.as_ref().ok_or_else(|| {
        let message =
            "this service places requests for others' engines; with --model it would offer a model itself";
        ApiError::new(StatusCode::NOT_FOUND, "no_model", message)
    })
}

/// Bytes that nobody has had before.
fn random() -> Result<u64, ApiError> {
    getrandom::u64().map_err(|error| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no_randomness",
            format!("no random numbers: {error}"),
        )
    })
}

/// The name that the client gives its request, or one that nobody has.
fn request_name(kind: Kind, headers: &HeaderMap) -> Result<String, ApiError> {
    let Some(given) = headers.get(&crate::http::REQUEST_ID) else {
        let prefix = match kind {
            Kind::Completion => "cmpl",
            Kind::Chat => "chatcmpl",
        };
        return Ok(format!("{prefix}-{:016x}{:016x}", random()?, random()?));
    };
    let name = given.to_str().unwrap_or_default().trim();
    if name.is_empty() || name.len() > NAME_MAX {
        let message = format!("x-request-id: expected 1 to {NAME_MAX} visible characters");
        return Err(ApiError::invalid("x-request-id", message));
    }
    Ok(name.to_owned())
}

/// `POST /v1/completions`.
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Outcome {
    generate(app, Kind::Completion, request).await
}

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Outcome {
    generate(app, Kind::Chat, request).await
}

async fn generate(app: Arc<App>, kind: Kind, request: Request) -> Outcome {
    let begun = Instant::now();
    let gateway = gateway(&app)?;
    let name = request_name(kind, request.headers())?;
    let body: Body = json(&app, request).await?;
    app.refuse_when_draining()?;
    if let Some(model) = body.model.as_ref().filter(|model| **model != gateway.name) {
        return Err(gateway.unknown(model));
    }
    let asked = fields::check(kind, body)?;
    let note = Note {
        kind,
        created: seconds_since_1970(),
        model: gateway.name.clone(),
        n: asked.n,
        seed: asked.seed.map_or_else(random, Ok)?,
        stream: asked.stream,
        include_usage: asked.include_usage,
    };
    let (prompts, source) = gateway.prompts(asked.source.clone()).await?;
    let asked = Asked { source, ..asked };
    let holds = app.host.kv_capacity_tokens_max()?;
    let asks = asks::asks(&gateway.model, &name, &asked, &prompts, &note, holds)?;
    let taken = |fault| match fault {
        Fault::DuplicateName(_) => {
            ApiError { param: Some("x-request-id".to_owned()), ..ApiError::from(fault) }
        }
        fault => ApiError::from(fault),
    };
    let outputs = app.host.generate(asks).map_err(taken)?;
    app.metrics.decided(begun.elapsed());
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let tally = app.metrics.gateway().tally(begun, outputs.len(), prompt_tokens);
    let mut choices = Choices::new(Arc::clone(&gateway.model), outputs, tally);
    choices.acknowledged().await.map_err(answers::failure)?;
    answers::answer(name, note, choices, None, prompt_tokens).await
}

/// `GET /v1/requests/{id}`: the answer of a request that is live or has ended lately.
pub(crate) async fn attach(State(app): State<Arc<App>>, id: Id, headers: HeaderMap) -> Outcome {
    let gateway = gateway(&app)?;
    let Path(name) = id.map_err(|error| ApiError::invalid("id", error.body_text()))?;
    let outputs = app.host.attach(&name)?;
    let note = outputs.first().and_then(|output| serde_json::from_str(&output.ask.note).ok());
    let note: Note = note.ok_or_else(|| {
        let message = format!("request '{name}' was not made here");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_request", message)
    })?;
    let has = headers.get("last-event-id").map(|given| {
        let counts = given.to_str().ok().and_then(|given| feed::read_id(given, outputs.len()));
        counts.ok_or_else(|| {
            let message = format!("last-event-id: expected {} counts with commas", outputs.len());
            ApiError::invalid("last-event-id", message)
        })
    });
    let has = has.transpose()?;
    let prompts = outputs.iter().step_by(note.n.max(1));
    let prompt_tokens = prompts.map(|output| output.ask.prompt.len() as u64).sum();
    let tally = app.metrics.gateway().silent_tally(outputs.len());
    let mut choices = Choices::new(Arc::clone(&gateway.model), outputs, tally);
    choices.acknowledged().await.map_err(answers::failure)?;
    answers::answer(name, note, choices, has, prompt_tokens).await
}

/// `GET /v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Outcome {
    let gateway = gateway(&app)?;
    Ok(answer(StatusCode::OK, &ModelsView { object: "list", data: [gateway.view()] }))
}

/// `GET /v1/models/{id}`; the name may have slashes.
pub(crate) async fn model(State(app): State<Arc<App>>, id: Id) -> Outcome {
    let gateway = gateway(&app)?;
    let Path(name) = id.map_err(|error| ApiError::invalid("id", error.body_text()))?;
    if name != gateway.name {
        return Err(gateway.unknown(&name));
    }
    Ok(answer(StatusCode::OK, &gateway.view()))
}
