//! Errors in the shape that `OpenAI`'s clients read: `{"error": {message, type, param, code}}`.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde::Serialize;
use splitcore_core::error::{EventError, Rejection};

use crate::host::Fault;

/// Seconds after which a rejected caller may try again.
const RETRY_AFTER_S: &str = "1";

/// An answer that is no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// For people.
    pub(crate) message: String,
    /// Which field or option it is about.
    pub(crate) param: Option<String>,
    /// For programs.
    pub(crate) code: &'static str,
}

/// The object inside `error`.
#[derive(Debug, Serialize)]
pub(crate) struct Inner<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

#[derive(Serialize)]
struct Outer<'a> {
    error: Inner<'a>,
}

impl ApiError {
    /// An error without a field.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code }
    }

    /// A request that says something wrong about a field.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
    }

    /// Whether the same call may succeed a little later.
    fn may_retry(&self) -> bool {
        matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
    }

    pub(crate) fn inner(&self) -> Inner<'_> {
        let r#type = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            // Whoever it was that gave the request up: it was not wrong.
            StatusCode::GONE => "request_cancelled",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Inner { message: &self.message, r#type, param: self.param.as_deref(), code: self.code }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&Outer { error: self.inner() }).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.may_retry() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(hyper::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The status of a rejection and what it means to the caller.
fn rejection(reason: Rejection) -> (StatusCode, &'static str) {
    match reason {
        Rejection::TooLarge => {
            (StatusCode::UNPROCESSABLE_ENTITY, "prompt_tokens and max_new_tokens exceed the largest machine")
        }
        Rejection::RequestsMax => (StatusCode::TOO_MANY_REQUESTS, "requests_max placements are live"),
        Rejection::Overloaded => {
            (StatusCode::TOO_MANY_REQUESTS, "accepted requests of its class wait for room")
        }
        Rejection::Headroom => {
            (StatusCode::TOO_MANY_REQUESTS, "only the share kept by recovery_headroom is left")
        }
        Rejection::TtftSlo => {
            (StatusCode::TOO_MANY_REQUESTS, "its first token would come after its class's limit")
        }
        Rejection::TbtSlo => {
            (StatusCode::TOO_MANY_REQUESTS, "its tokens would come further apart than its class's limit")
        }
        Rejection::NoMachine => (StatusCode::SERVICE_UNAVAILABLE, "no machine is up"),
        Rejection::PinUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "the machine of pin_token is not up"),
        Rejection::Recovering => {
            (StatusCode::SERVICE_UNAVAILABLE, "the service has restarted and hears from its machines first")
        }
    }
}

fn event(error: &EventError) -> (StatusCode, Option<&'static str>, &'static str) {
    match error {
        EventError::DuplicateRequest(_) => (StatusCode::CONFLICT, Some("request_id"), "duplicate_request"),
        EventError::UnknownMachine(_) => (StatusCode::NOT_FOUND, None, "unknown_machine"),
        EventError::MachineTaken(_) | EventError::StaleCluster(_) | EventError::DuplicateLeg(_) => {
            (StatusCode::CONFLICT, None, "conflict")
        }
        EventError::EmptyRequest(_)
        | EventError::EmptyMachine(_)
        | EventError::EmptySlo { .. }
        | EventError::BadClaim { .. }
        | EventError::BadReport { .. } => (StatusCode::BAD_REQUEST, None, "invalid_value"),
        EventError::TooLarge { .. } => (StatusCode::UNPROCESSABLE_ENTITY, None, "too_large"),
        EventError::NotInPass(_) | EventError::NotRunning { .. } | EventError::Unsupported(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, None, "internal")
        }
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        let message = fault.to_string();
        match fault {
            Fault::Rejected { request, reason } => {
                let (status, meaning) = rejection(reason);
                Self::new(status, reason.name(), format!("request {request} is rejected: {meaning}"))
            }
            Fault::Event(error) => {
                let (status, param, code) = event(&error);
                Self { param: param.map(str::to_owned), ..Self::new(status, code, message) }
            }
            Fault::UnknownMachine(_) => Self::new(StatusCode::NOT_FOUND, "unknown_machine", message),
            Fault::DuplicateMachine { .. } => Self {
                param: Some("name".to_owned()),
                ..Self::new(StatusCode::CONFLICT, "duplicate_machine", message)
            },
            Fault::NoWorkers => Self::new(StatusCode::CONFLICT, "no_workers", message),
            Fault::OwnWorkers => Self::new(StatusCode::CONFLICT, "own_workers", message),
            Fault::DuplicateName(_) => Self::new(StatusCode::CONFLICT, "duplicate_request", message),
            Fault::Recovering(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "recovering", message),
            Fault::UnknownName(_) | Fault::Incomplete(_) | Fault::UnknownRequest(_) => {
                Self::new(StatusCode::NOT_FOUND, "unknown_request", message)
            }
            Fault::Twice(_) => Self {
                param: Some("request_id".to_owned()),
                ..Self::new(StatusCode::CONFLICT, "duplicate_request", message)
            },
            Fault::ClassesMax => Self::new(StatusCode::TOO_MANY_REQUESTS, "classes_max", message),
            Fault::MachinesMax(_) => Self::new(StatusCode::TOO_MANY_REQUESTS, "machines_max", message),
            Fault::Stopped => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "stopped", message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::REJECTIONS;

    #[test]
    fn only_what_can_never_fit_is_not_worth_another_try() {
        for reason in REJECTIONS {
            let error = ApiError::from(Fault::Rejected { request: 1, reason });
            assert_eq!(error.may_retry(), reason != Rejection::TooLarge, "{reason:?}");
            assert_eq!(error.code, reason.name());
            let response = error.into_response();
            assert_eq!(response.headers().contains_key(RETRY_AFTER), reason != Rejection::TooLarge);
        }
    }

    #[test]
    fn every_reason_has_a_count_of_its_own() {
        for (at, reason) in REJECTIONS.iter().enumerate() {
            assert_eq!(REJECTIONS.iter().position(|each| each == reason), Some(at));
        }
    }
}
