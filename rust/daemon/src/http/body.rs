//! Bodies in and out, within the bounds of the options.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;

use super::App;
use super::errors::ApiError;
use crate::words::{plain, shown};

/// Bytes of a body that every connection may hold. What is beyond counts towards `bodies_bytes_max`.
const FREE_BYTES: usize = 16 << 10;
/// Steps in which it counts.
const STEP_BYTES: usize = 64 << 10;
/// Longer bodies are taken apart beside the thread that serves.
const LONG_BYTES: usize = 256 << 10;

/// A body, and the room that it takes until it is dropped.
struct Held {
    bytes: BytesMut,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body on its way.
struct Coming<'a> {
    app: &'a App,
    /// What came at once, which is most often all.
    first: Bytes,
    whole: BytesMut,
    room: Option<OwnedSemaphorePermit>,
    /// There is no room for the rest yet.
    waits: bool,
}

impl Coming<'_> {
    fn too_large(&self) -> ApiError {
        let message = format!("body_bytes_max: a body has at most {} bytes", self.app.options.body_bytes_max);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_bytes_max", message)
    }

    fn no_room(&self) -> ApiError {
        let most = self.app.options.bodies_bytes_max;
        let message = format!("bodies_bytes_max: bodies of {most} bytes together are on their way");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "bodies_bytes_max", message)
    }

    async fn collect(&mut self, mut body: Body) -> Result<(), ApiError> {
        while let Some(frame) = body.frame().await {
            let broken = |_| ApiError::new(StatusCode::BAD_REQUEST, "broken_body", "the body ended too soon");
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            let length = self.first.len() + self.whole.len() + data.len();
            if length > self.app.options.body_bytes_max {
                return Err(self.too_large());
            }
            if length > FREE_BYTES {
                self.make_room(length).await?;
            }
            if length == data.len() {
                self.first = data;
                continue;
            }
            if self.whole.is_empty() {
                self.whole.extend_from_slice(&std::mem::take(&mut self.first));
            }
            self.whole.extend_from_slice(&data);
        }
        Ok(())
    }

    /// Waits until there is room for so many bytes.
    async fn make_room(&mut self, bytes: usize) -> Result<(), ApiError> {
        let held = self.room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if bytes <= held {
            return Ok(());
        }
        // As much again at once, so that what grows is moved a few times only; never more than a body may have.
        let most = self.app.options.body_bytes_max;
        let wanted = (bytes + bytes / 2).next_multiple_of(STEP_BYTES).min(most.max(bytes)) - held;
        let bodies = Arc::clone(&self.app.bodies);
        let room = if held == 0 {
            self.waits = true;
            let room = bodies.acquire_many_owned(wanted as u32).await;
            self.waits = false;
            room.map_err(|_| ApiError::from(crate::host::Fault::Stopped))?
        } else {
            // Who holds room does not wait for more: all could wait for one another.
            bodies.try_acquire_many_owned(wanted as u32).map_err(|_| self.no_room())?
        };
        match &mut self.room {
            Some(held) => held.merge(room),
            None => self.room = Some(room),
        }
        self.whole.reserve(held + wanted - self.whole.len());
        Ok(())
    }

    fn done(self) -> Bytes {
        match self.room {
            None if self.whole.is_empty() => self.first,
            None => self.whole.freeze(),
            Some(room) => {
                let bytes = if self.whole.is_empty() { BytesMut::from(self.first) } else { self.whole };
                Bytes::from_owner(Held { bytes, _room: room })
            }
        }
    }
}

/// The whole body, or why not.
async fn read(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let first = Bytes::new();
    let mut coming = Coming { app, first, whole: BytesMut::new(), room: None, waits: false };
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > app.options.body_bytes_max) {
        return Err(coming.too_large());
    }
    let limit = app.options.body_timeout_s;
    let collected = coming.collect(request.into_body());
    let collected = tokio::time::timeout(Duration::from_secs_f64(limit), collected).await;
    if let Ok(collected) = collected {
        return collected.map(|()| coming.done());
    }
    if coming.waits {
        return Err(coming.no_room());
    }
    let message = format!("body_timeout_s: the body did not come within {limit} seconds");
    Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout_s", message))
}

/// Whether a body is said to be JSON.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = given.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        return Ok(());
    }
    let given = String::from_utf8_lossy(given);
    let message = format!("content-type: expected application/json, got '{}'", shown(&given));
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(ApiError { param: Some("content-type".to_owned()), ..ApiError::new(status, "content_type", message) })
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
    // What is no JSON is no field either. A reader may take another kind of value for no JSON.
    let is_json = error.is_data() || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
    let path = path.filter(|path| is_json && path != "." && path != "?");
    let code = if is_json { "invalid_value" } else { "malformed_json" };
    let what = error.to_string();
    let message = match &path {
        Some(path) => format!("{}: {}", shown(path), plain(&what)),
        _ if is_json => plain(&what),
        _ => format!("the body is no JSON: {}", shown(&what)),
    };
    let param = path.map(|path| shown(&path).to_owned());
    Err(ApiError { param, ..ApiError::new(StatusCode::BAD_REQUEST, code, message) })
}

/// As `parse`, for what must be an object: a list of its values in order is none.
pub(crate) fn parse_object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.trim_ascii_start().first() == Some(&b'{') {
        return parse(bytes);
    }
    let _: serde::de::IgnoredAny = parse(bytes)?;
    let got = match bytes.trim_ascii_start().first() {
        Some(b'[') => "a list",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ => "a number",
    };
    let message = format!("the body: expected an object, got {got}");
    Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message))
}

/// What becomes of bytes; beside the thread that serves, if there are many.
async fn taken_apart<T: Send + 'static>(
    app: &App,
    bytes: Bytes,
    parse: fn(&[u8]) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    if bytes.len() < LONG_BYTES { parse(&bytes) } else { app.aside(move || parse(&bytes)).await? }
}

/// The JSON object of a body.
pub(crate) async fn json<T>(app: &App, request: Request) -> Result<T, ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    json_by(app, request, parse_object).await
}

/// What `parse` makes of a body that must be JSON.
pub(crate) async fn json_by<T: Send + 'static>(
    app: &App,
    request: Request,
    parse: fn(&[u8]) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    require_json(request.headers())?;
    taken_apart(app, read(app, request).await?, parse).await
}

/// The bytes of a body that must be JSON: as long as they live, they count as on their way.
pub(crate) async fn json_bytes(app: &App, request: Request) -> Result<Bytes, ApiError> {
    require_json(request.headers())?;
    read(app, request).await
}

/// As `json_by`, with the body itself: as long as it lives, it counts as on its way.
pub(crate) async fn json_held<T>(app: &App, request: Request) -> Result<(T, Bytes), ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    require_json(request.headers())?;
    let bytes = read(app, request).await?;
    Ok((taken_apart(app, bytes.clone(), parse_object).await?, bytes))
}

/// The JSON of a body that may be empty.
pub(crate) async fn json_or_default<T>(app: &App, request: Request) -> Result<T, ApiError>
where
    T: DeserializeOwned + Default + Send + 'static,
{
    if hyper::body::Body::is_end_stream(request.body()) {
        return Ok(T::default());
    }
    let bytes = read(app, request).await?;
    if bytes.is_empty() { Ok(T::default()) } else { taken_apart(app, bytes, parse_object).await }
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
            let message = format!("{}: expected one of {}", shown(name), names.join(", "));
            return Err(ApiError::invalid(shown(name), message));
        };
        values[at] = Some(value);
    }
    Ok(values)
}

/// A number of a query or a path.
pub(crate) fn number<T: std::str::FromStr>(name: &str, given: &str, expected: &str) -> Result<T, ApiError> {
    let got = || ApiError::invalid(name, format!("{name}: expected {expected}, got '{}'", shown(given)));
    given.parse().map_err(|_| got())
}
