//! Health, metrics, and what people look at.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use serde::Serialize;

use super::App;
use super::body::{answer, raw};
use super::errors::ApiError;
use crate::host::Overview;

type Answer = Result<Response, ApiError>;

/// The page holds everything that it needs, may ask only the service, and is part of no other page.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                           img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

/// `GET /healthz`: whether it is alive.
pub(super) async fn healthz(State(app): State<Arc<App>>) -> Response {
    if app.host.is_stopped() {
        return answer(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "stopped" });
    }
    answer(StatusCode::OK, &Status { status: "ok" })
}

/// `GET /readyz`: whether it can place.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Answer {
    let (status, word) = if app.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "shutting_down")
    } else if app.host.is_recovering()? {
        (StatusCode::SERVICE_UNAVAILABLE, "recovering")
    } else if app.host.is_usable()? {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no_machines")
    };
    Ok(answer(status, &Status { status: word }))
}

/// `GET /metrics`.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Answer {
    let text = app.metrics.text(&app.host.overview()?);
    Ok(raw(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text))
}

/// `GET /openapi.json`.
pub(super) async fn openapi() -> Response {
    raw(StatusCode::OK, "application/json", include_str!("../openapi.json"))
}

/// `GET /`.
pub(super) async fn page() -> Response {
    let mut response = raw(StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html"));
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    response
}

/// `GET /v1/overview`: what the page shows.
pub(super) async fn overview(State(app): State<Arc<App>>) -> Answer {
    let output_tokens = app.gateway.as_ref().map(|_| app.metrics.gateway().output_tokens());
    Ok(answer(StatusCode::OK, &Overview { output_tokens, ..app.host.overview()? }))
}

#[derive(Serialize)]
struct Check {
    ok: bool,
    fault: Option<String>,
    live: usize,
    parked: usize,
    counters: splitcore_core::cluster::ClusterCounters,
}

/// `GET /v1/check`: recounts everything and compares with the books.
pub(super) async fn check(State(app): State<Arc<App>>) -> Answer {
    let fault = app.host.check()?;
    let (live, parked, counters) = app.host.counters()?;
    let status = if fault.is_none() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    Ok(answer(status, &Check { ok: fault.is_none(), fault, live, parked, counters }))
}
