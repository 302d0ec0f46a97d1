//! The HTTP interface: routes, authentication, the shape of every answer.

pub(crate) mod body;
pub(crate) mod errors;
mod health;
mod machines;
mod placements;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderName};
use hyper::{Method, Request, StatusCode};
use tokio::sync::watch;
use tower_service::Service;

use crate::host::{Fault, Host};
use crate::metrics::Metrics;
use crate::openai::{self, Gateway};
use crate::options::Options;
use errors::ApiError;

/// What the client calls its request.
pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What every connection shares.
pub struct App {
    /// The Cluster.
    pub host: Arc<Host>,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The options.
    pub options: Options,
    pub(crate) gateway: Option<Gateway>,
    secret: Option<Vec<u8>>,
    draining: watch::Sender<bool>,
}

type Routes = [(&'static str, MethodRouter<Arc<App>>); 26];

/// Every path and what answers there.
fn routes() -> Routes {
    [
        ("/v1/placements", post(placements::place)),
        ("/v1/placements/batch", post(placements::place_batch)),
        ("/v1/placements/{id}", get(placements::show).delete(placements::end)),
        ("/v1/placements/{id}/prefill_done", post(placements::prefill_done)),
        ("/v1/placements/{id}/source_released", post(placements::source_released)),
        ("/v1/placements/{id}/progress", post(placements::progress)),
        ("/v1/placements/{id}/renew", post(placements::renew)),
        ("/v1/events", get(placements::events)),
        ("/v1/machines", get(machines::list).post(machines::join)),
        ("/v1/machines/{name}", delete(machines::lose)),
        ("/v1/machines/{name}/drain", post(machines::drain)),
        ("/v1/reports", post(machines::report)),
        ("/v1/classes/{class}", put(machines::set_slo)),
        ("/v1/completions", post(openai::completions)),
        ("/v1/chat/completions", post(openai::chat)),
        ("/v1/models", get(openai::models)),
        ("/v1/models/{*id}", get(openai::model)),
        ("/v1/requests/{id}", get(openai::attach)),
        ("/v1/loads", get(machines::loads)),
        ("/v1/overview", get(health::overview)),
        ("/v1/check", get(health::check)),
        ("/healthz", get(health::healthz)),
        ("/health", get(health::healthz)),
        ("/readyz", get(health::readyz)),
        ("/metrics", get(health::metrics)),
        ("/openapi.json", get(health::openapi)),
    ]
}

/// Paths that answer without the secret: health, and what is the same for everybody.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/openapi.json" | "/healthz" | "/health" | "/readyz")
}

/// The router of a service.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new().route("/", get(health::page));
    for (path, method) in routes() {
        router = router.route(path, method);
    }
    let missing = || async {
        ApiError::new(StatusCode::NOT_FOUND, "unknown_path", "nothing is at this path; see /openapi.json")
    };
    let method = || async {
        let message = "this path does not answer that method; see /openapi.json";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "unknown_method", message)
    };
    router.fallback(missing).method_not_allowed_fallback(method).with_state(Arc::clone(app))
}

impl App {
    /// What connections share, with the books empty.
    pub(crate) fn new(options: Options, secret: Option<Vec<u8>>) -> Result<Self, crate::OptionError> {
        Ok(Self {
            host: Arc::new(Host::new(&options)?),
            metrics: Metrics::new(),
            gateway: Gateway::open(&options)?,
            options,
            secret,
            draining: watch::Sender::new(false),
        })
    }

    /// Not ready from here on; nothing new is placed.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns once it drains.
    pub(crate) async fn drained(&self) {
        let mut draining = self.draining.subscribe();
        let _ = draining.wait_for(|&draining| draining).await;
    }

    /// What places for others' engines is not for a service with workers of its own.
    fn places_for_others(&self) -> Result<(), ApiError> {
        if self.gateway.is_none() { Ok(()) } else { Err(Fault::OwnWorkers.into()) }
    }

    /// From SIGTERM on nothing new is placed: its books would not outlive it.
    pub(crate) fn refuse_when_draining(&self) -> Result<(), ApiError> {
        if !self.is_draining() {
            return Ok(());
        }
        let message = "the service is shutting down and places nothing new";
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message))
    }

    fn check_batch(&self, what: &str, items: usize) -> Result<(), ApiError> {
        let most = self.options.batch_max;
        if items <= most {
            return Ok(());
        }
        let message = format!("batch_max: at most {most} {what} in one call, got {items}");
        let param = Some(what.to_owned());
        Err(ApiError { param, ..ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "batch_max", message) })
    }

    fn authorise(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
        let Some(secret) = &self.secret else { return Ok(()) };
        if is_open(request.uri().path()) {
            return Ok(());
        }
        let given = request
            .headers()
            .get(AUTHORIZATION)
            .map(hyper::header::HeaderValue::as_bytes)
            .unwrap_or_default();
        let token = given.strip_prefix(b"Bearer ").unwrap_or_default();
        if same(token, secret) {
            return Ok(());
        }
        let message = "authorization: expected 'Bearer' and the secret of secret_file";
        Err(ApiError::new(StatusCode::UNAUTHORIZED, "wrong_secret", message))
    }
}

/// Compares without telling by its time where the first difference is.
fn same(given: &[u8], secret: &[u8]) -> bool {
    let differ = given.iter().zip(secret).fold(0, |differ, (one, other)| differ | (one ^ other));
    given.len() == secret.len() && std::hint::black_box(differ) == 0
}

/// Answers one request.
pub(crate) async fn serve(app: Arc<App>, mut router: Router, request: Request<Incoming>) -> Response {
    let begun = Instant::now();
    let decides = request.method() == Method::POST && request.uri().path().starts_with("/v1/placements");
    let decides = decides && matches!(request.uri().path().len(), 14 | 20);
    let id = request.headers().get(&REQUEST_ID).cloned();
    let mut response = if let Err(error) = app.authorise(&request) {
        error.into_response()
    } else {
        router.call(request.map(Body::new)).await.unwrap_or_else(|never| match never {})
    };
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    if decides {
        app.metrics.decided(begun.elapsed());
    }
    app.metrics.answered(response.status());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_whole() {
        assert!(same(b"secret", b"secret"));
        assert!(!same(b"secre", b"secret"));
        assert!(!same(b"secret!", b"secret"));
        assert!(!same(b"", b"secret"));
        assert!(!same(b"Secret", b"secret"));
    }

    #[test]
    fn only_the_two_placing_paths_have_their_lengths() {
        assert_eq!(("/v1/placements".len(), "/v1/placements/batch".len()), (14, 20));
    }

    #[test]
    fn the_description_has_every_path() {
        let text = include_str!("../openapi.json");
        let described: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let mut described: Vec<&str> =
            described["paths"].as_object().expect("paths").keys().map(String::as_str).collect();
        let routes = routes();
        // A name with slashes is one name.
        let routed: Vec<String> = routes.iter().map(|(path, _)| path.replace("{*", "{")).collect();
        let mut routed: Vec<&str> = routed.iter().map(String::as_str).chain(["/"]).collect();
        described.sort_unstable();
        routed.sort_unstable();
        assert_eq!(described, routed);
    }
}
