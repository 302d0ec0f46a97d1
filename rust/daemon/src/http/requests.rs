//! The live requests, for whoever operates the service.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;

use super::App;
use super::body::{answer, number, query};
use super::errors::ApiError;

/// Requests in one answer, unless it is asked for others.
const SHOWN: usize = 100;
/// Requests in one answer at most.
const SHOWN_MAX: usize = 1000;

/// `GET /v1/requests`: those that are live, from an id on.
pub(super) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let [from, most] = query(request.uri().query(), ["from", "most"])?;
    let from = from.map_or(Ok(0), |given| number("from", given, "a whole number"))?;
    let expected = format!("1 to {SHOWN_MAX}");
    let most = most.map_or(Ok(SHOWN), |given| number("most", given, &expected))?;
    if !(1..=SHOWN_MAX).contains(&most) {
        return Err(ApiError::invalid("most", format!("most: expected {expected}, got {most}")));
    }
    Ok(answer(StatusCode::OK, &app.host.running(from, most)?))
}
