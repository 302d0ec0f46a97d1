//! The HTTP interface: routes, authentication, the shape of every answer.

pub(crate) mod body;
pub(crate) mod errors;
mod gate;
mod health;
mod machines;
mod pieces;
mod placements;
mod requests;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, StatusCode};
use tokio::sync::{Mutex, Semaphore, watch};
use tower_service::Service;

use crate::host::{Fault, Host};
use crate::metrics::Metrics;
use crate::openai::{self, Gateway};
use crate::options::Options;
use errors::ApiError;
pub(crate) use gate::Gate;

/// What the client calls its request.
pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Items of a call for many that are dealt with before others have a turn.
const TURN: usize = 256;
/// Longer ones are not given back.
const REQUEST_ID_BYTES_MAX: usize = 256;

/// What every connection shares.
pub struct App {
    /// The Cluster.
    pub host: Arc<Host>,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The options.
    pub options: Options,
    pub(crate) gateway: Option<Gateway>,
    gate: Gate,
    /// Room for bodies, in bytes.
    pub(crate) bodies: Arc<Semaphore>,
    asides: Semaphore,
    /// Whose machines join.
    joins: Arc<Mutex<()>>,
    draining: watch::Sender<bool>,
}

type Routes = [(&'static str, MethodRouter<Arc<App>>); 28];

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
        ("/v1/machines/{name}/undrain", post(machines::undrain)),
        ("/v1/reports", post(machines::report)),
        ("/v1/classes/{class}", put(machines::set_slo)),
        ("/v1/completions", post(openai::completions)),
        ("/v1/chat/completions", post(openai::chat)),
        ("/v1/models", get(openai::models)),
        ("/v1/models/{*id}", get(openai::model)),
        ("/v1/requests", get(requests::list)),
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

/// Whether it is a question for health, which is answered while there is no room for more.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/health" | "/readyz")
}

/// What a connection beyond the bound is told, unless it asks for health.
pub(crate) fn refuse_beyond(request: &Request<Incoming>) -> Option<Response> {
    if is_probe(request.uri().path()) {
        return None;
    }
    let message = "connections_max: no more connections are taken at once";
    let full = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "connections_max", message);
    Some(full.into_response())
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
    pub(crate) fn new(options: Options, gate: Gate) -> Result<Self, crate::OptionError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            host: Arc::new(Host::new(&options)?),
            metrics: Metrics::new(),
            gateway: Gateway::open(&options)?,
            bodies: Arc::new(Semaphore::new(options.bodies_bytes_max)),
            asides: Semaphore::new(cores.saturating_sub(1).max(1)),
            joins: Arc::default(),
            options,
            gate,
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

    /// Gives `each` the items in order, some at a time, and lets other calls in between. It goes on to the end though
    /// its own client leaves.
    async fn in_turns<T: Send + 'static, R: Send + 'static>(
        self: &Arc<Self>,
        items: Vec<T>,
        mut each: impl FnMut(&Self, Vec<T>) -> Result<Vec<R>, Fault> + Send + 'static,
    ) -> Result<Vec<R>, ApiError> {
        if items.len() <= TURN {
            return Ok(each(self, items)?);
        }
        let app = Arc::clone(self);
        let all = tokio::spawn(async move {
            let mut done = Vec::with_capacity(items.len());
            let mut items = items.into_iter();
            while items.len() > 0 {
                done.extend(each(&app, items.by_ref().take(TURN).collect())?);
                tokio::task::yield_now().await;
            }
            Ok(done)
        });
        all.await.unwrap_or(Err(Fault::Stopped)).map_err(ApiError::from)
    }

    /// Runs what takes long beside the thread that serves; so much of it at once as leaves that thread a core.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let _turn = self.asides.acquire().await.map_err(|_| Fault::Stopped)?;
        tokio::task::spawn_blocking(work).await.map_err(|_| Fault::Stopped.into())
    }
}

/// Answers one request.
pub(crate) async fn serve(app: Arc<App>, mut router: Router, request: Request<Incoming>) -> Response {
    let begun = Instant::now();
    let decides = request.method() == Method::POST && request.uri().path().starts_with("/v1/placements");
    let decides = decides && matches!(request.uri().path().len(), 14 | 20);
    let id = request.headers().get(&REQUEST_ID).filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).cloned();
    let mut response = if let Err(error) = app.gate.check(&request) {
        error.into_response()
    } else {
        router.call(request.map(Body::new)).await.unwrap_or_else(|never| match never {})
    };
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
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
