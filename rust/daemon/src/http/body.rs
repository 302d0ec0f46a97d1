//! Bodies in and out, within the bounds of the options.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::App;
use super::errors::ApiError;

/// Longest part of a wrong value that an error repeats.
const SHOWN: usize = 200;

/// The whole body, or why not.
async fn read(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let most = app.options.body_bytes_max;
    let too_large = || {
        let message = format!("body_bytes_max: a body has at most {most} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_bytes_max", message)
    };
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let mut body = request.into_body();
    let collect = async {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let broken = |_| ApiError::new(StatusCode::BAD_REQUEST, "broken_body", "the body ended too soon");
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if first.len() + rest.len() + data.len() > most {
                return Err(too_large());
            }
            if first.is_empty() {
                first = data;
            } else {
                rest.extend_from_slice(&data);
            }
        }
        if rest.is_empty() {
            return Ok(first);
        }
        let mut whole = BytesMut::with_capacity(first.len() + rest.len());
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&rest);
        Ok(whole.freeze())
    };
    let limit = app.options.body_timeout_s;
    tokio::time::timeout(Duration::from_secs_f64(limit), collect).await.unwrap_or_else(|_| {
        let message = format!("body_timeout_s: the body did not come within {limit} seconds");
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout_s", message))
    })
}

fn require_json(request: &Request) -> Result<(), ApiError> {
    let given = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = given.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        return Ok(());
    }
    let given = String::from_utf8_lossy(&given[..given.len().min(SHOWN)]);
    let message = format!("content-type: expected application/json, got '{given}'");
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(ApiError { param: Some("content-type".to_owned()), ..ApiError::new(status, "content_type", message) })
}

fn cut(message: &str) -> &str {
    let mut end = message.len().min(SHOWN);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

/// Reads bytes as JSON; an error says the field, what was got and what was expected.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let error: serde_json::Error = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    // Once more, slowly: only what is wrong pays for the path.
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let failed = serde_path_to_error::deserialize::<_, T>(&mut reader).err();
    let path = failed.as_ref().map(|failed| failed.path().to_string());
    // What is no JSON is no field either.
    let path = path.filter(|path| error.is_data() && path != "." && path != "?");
    let code = if error.is_data() { "invalid_value" } else { "malformed_json" };
    let what = error.to_string();
    let message = match &path {
        Some(path) => format!("{}: {}", cut(path), cut(&what)),
        _ if error.is_data() => cut(&what).to_owned(),
        _ => format!("the body is no JSON: {}", cut(&what)),
    };
    let param = path.map(|path| cut(&path).to_owned());
    Err(ApiError { param, ..ApiError::new(StatusCode::BAD_REQUEST, code, message) })
}

/// As `parse`, for what must be an object: a list of its values in order is none.
pub(crate) fn parse_object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.trim_ascii_start().first() == Some(&b'{') {
        return parse(bytes);
    }
    let value: serde_json::Value = parse(bytes)?;
    let got = match value {
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::String(_) => "a string",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::Bool(_) => "true or false",
        serde_json::Value::Null | serde_json::Value::Object(_) => "null",
    };
    let message = format!("the body: expected an object, got {got}");
    Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message))
}

/// The JSON object of a body.
pub(crate) async fn json<T: DeserializeOwned>(app: &App, request: Request) -> Result<T, ApiError> {
    require_json(&request)?;
    parse_object(&read(app, request).await?)
}

/// The bytes of a body that must be JSON.
pub(crate) async fn json_bytes(app: &App, request: Request) -> Result<Bytes, ApiError> {
    require_json(&request)?;
    read(app, request).await
}

/// The JSON of a body that may be empty.
pub(crate) async fn json_or_default<T: DeserializeOwned + Default>(
    app: &App,
    request: Request,
) -> Result<T, ApiError> {
    if hyper::body::Body::is_end_stream(request.body()) {
        return Ok(T::default());
    }
    let checked = require_json(&request);
    let bytes = read(app, request).await?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    checked.and_then(|()| parse_object(&bytes))
}

/// An answer in JSON.
pub(crate) fn answer(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => raw(status, "application/json", bytes),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            raw(StatusCode::INTERNAL_SERVER_ERROR, "application/json", Vec::new())
        }
    }
}

/// An answer of any type.
pub(crate) fn raw(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The values of a query, in the order of `names`; an unknown name is an error.
pub(crate) fn query<'a, const N: usize>(
    query: Option<&'a str>,
    names: [&'static str; N],
) -> Result<[Option<&'a str>; N], ApiError> {
    let mut values = [None; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(at) = names.iter().position(|&known| known == name) else {
            let message = format!("{}: expected one of {}", cut(name), names.join(", "));
            return Err(ApiError::invalid(cut(name), message));
        };
        values[at] = Some(value);
    }
    Ok(values)
}

/// A number of a query or a path.
pub(crate) fn number<T: std::str::FromStr>(name: &str, given: &str, expected: &str) -> Result<T, ApiError> {
    let got = || ApiError::invalid(name, format!("{name}: expected {expected}, got '{}'", cut(given)));
    given.parse().map_err(|_| got())
}
