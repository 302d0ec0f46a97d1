//! What every request is held against before anything looks at its path: whom it is for, where it comes from, whether
//! it bears the secret, and what kind of body it brings.
//!
//! Without a secret, a page in an operator's browser is as much a stranger as anybody, and reaches loopback. It cannot
//! choose `Host` and `Origin`, nor send JSON unasked, so these three tell it apart from a client.

use std::net::{IpAddr, SocketAddr};

use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, EXPECT, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Method, Request, StatusCode, Version};

use super::body::require_json;
use super::errors::ApiError;
use crate::words::shown;

/// What this service lets in.
pub(crate) struct Gate {
    secret: Option<Vec<u8>>,
    /// It listens on loopback, and everybody there may come in: the name that it was told to listen on.
    local: Option<String>,
}

/// Paths that answer without the secret: health, and what is the same for everybody.
fn is_open(path: &str) -> bool {
    super::is_probe(path) || matches!(path, "/" | "/openapi.json")
}

fn wrong_host(status: StatusCode, code: &'static str, message: String) -> ApiError {
    ApiError { param: Some("host".to_owned()), ..ApiError::new(status, code, message) }
}

/// The only value of a header.
fn text<'a>(request: &'a Request<Incoming>, name: &HeaderName) -> Option<&'a str> {
    request.headers().get(name).and_then(|value| value.to_str().ok())
}

/// Compares without telling by its time where the first difference is.
fn same(given: &[u8], secret: &[u8]) -> bool {
    let differ = given.iter().zip(secret).fold(0, |differ, (one, other)| differ | (one ^ other));
    given.len() == secret.len() && std::hint::black_box(differ) == 0
}

/// What follows `Bearer`, in any case.
fn bearer(given: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = given.split_at_checked(6)?;
    let token = token.strip_prefix(b" ").filter(|_| scheme.eq_ignore_ascii_case(b"bearer"))?;
    Some(token.trim_ascii())
}

/// Whether a name, with or without a port, is that of this host for programs on it.
fn is_local(host: &str, listens_on: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_loopback = bare.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback());
    is_loopback || name.eq_ignore_ascii_case("localhost") || name.eq_ignore_ascii_case(listens_on)
}

impl Gate {
    /// Of a service that was told to listen on `asked` and does so on `address`.
    pub(crate) fn new(secret: Option<Vec<u8>>, asked: &str, address: SocketAddr) -> Self {
        let name = asked.rsplit_once(':').map_or(asked, |(name, _)| name);
        let is_local = secret.is_none() && address.ip().is_loopback();
        Self { secret, local: is_local.then(|| name.to_owned()) }
    }

    /// Lets a request in, or says why not.
    pub(crate) fn check(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
        self.check_host(request)?;
        if self.secret.is_none() {
            check_origin(request)?;
        }
        self.authorise(request)?;
        check_expectation(request)?;
        check_body(request)
    }

    fn check_host(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
        let count = request.headers().get_all(HOST).iter().count();
        // Before HTTP/1.1 there was none; no browser is as old.
        let least = usize::from(request.version() == Version::HTTP_11);
        if !(least..=1).contains(&count) {
            let message = format!("host: expected one such header, got {count}");
            return Err(wrong_host(StatusCode::BAD_REQUEST, "invalid_value", message));
        }
        let Some(listens_on) = &self.local else { return Ok(()) };
        let header = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
        let target = request.uri().authority().map(Authority::as_str);
        match header.into_iter().chain(target).find(|host| !is_local(host, listens_on)) {
            None => Ok(()),
            Some(host) => {
                let message = format!(
                    "host: expected localhost or a loopback address, got '{}': a service on loopback without a \
                     secret_file answers programs of its own host only",
                    shown(host)
                );
                Err(wrong_host(StatusCode::MISDIRECTED_REQUEST, "foreign_host", message))
            }
        }
    }

    fn authorise(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
        let Some(secret) = &self.secret else { return Ok(()) };
        if is_open(request.uri().path()) {
            return Ok(());
        }
        let given = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if given.and_then(bearer).is_some_and(|token| same(token, secret)) {
            return Ok(());
        }
        let message = "authorization: expected 'Bearer' and the secret of secret_file";
        Err(ApiError::new(StatusCode::UNAUTHORIZED, "wrong_secret", message))
    }
}

/// A page of another origin says so whenever it could do harm.
fn check_origin(request: &Request<Incoming>) -> Result<(), ApiError> {
    let host = text(request, &HOST).unwrap_or_default();
    for origin in request.headers().get_all(ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !of.is_some_and(|of| of.eq_ignore_ascii_case(host)) {
            let message = format!(
                "origin: expected that of this service, got '{}': without a secret_file no page of another origin \
                 may call it",
                shown(origin)
            );
            let param = Some("origin".to_owned());
            return Err(ApiError {
                param,
                ..ApiError::new(StatusCode::FORBIDDEN, "foreign_origin", message)
            });
        }
    }
    Ok(())
}

fn check_expectation(request: &Request<Incoming>) -> Result<(), ApiError> {
    let known = |given: &HeaderValue| given.as_bytes().eq_ignore_ascii_case(b"100-continue");
    match request.headers().get_all(EXPECT).iter().find(|given| !known(given)) {
        None => Ok(()),
        Some(given) => {
            let given = String::from_utf8_lossy(given.as_bytes());
            let message = format!("expect: expected 100-continue, got '{}'", shown(&given));
            let param = Some("expect".to_owned());
            let status = StatusCode::EXPECTATION_FAILED;
            Err(ApiError { param, ..ApiError::new(status, "expectation", message) })
        }
    }
}

/// A body that may change something is JSON, as it is.
fn check_body(request: &Request<Incoming>) -> Result<(), ApiError> {
    let may_change = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    if !may_change || request.body().is_end_stream() {
        return Ok(());
    }
    let plain = |given: &HeaderValue| given.as_bytes().eq_ignore_ascii_case(b"identity");
    if let Some(given) = request.headers().get_all(CONTENT_ENCODING).iter().find(|given| !plain(given)) {
        let given = String::from_utf8_lossy(given.as_bytes());
        let message = format!("content-encoding: expected none, got '{}'", shown(&given));
        let param = Some("content-encoding".to_owned());
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ApiError { param, ..ApiError::new(status, "content_encoding", message) });
    }
    require_json(request.headers())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_whole() {
        assert!(same(b"secret", b"secret"));
        for wrong in ["secre", "secret!", "", "Secret"] {
            assert!(!same(wrong.as_bytes(), b"secret"), "{wrong}");
        }
    }

    #[test]
    fn the_scheme_is_read_in_any_case() {
        for given in ["Bearer x", "bearer x", "BEARER  x"] {
            assert_eq!(bearer(given.as_bytes()), Some(b"x".as_slice()), "{given}");
        }
        for given in ["Bearerx", "Basic x", "x", "", "Bearer"] {
            assert_eq!(bearer(given.as_bytes()), None, "{given}");
        }
    }

    #[test]
    fn only_names_of_this_host_are_local() {
        for host in [
            "localhost",
            "LocalHost:80",
            "127.0.0.1:8090",
            "127.8.9.1",
            "[::1]:1",
            "[::ffff:127.0.0.1]",
            "box",
        ] {
            assert!(is_local(host, "box"), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "a@b@c",
            "[::2]",
        ] {
            assert!(!is_local(host, "box"), "{host}");
        }
    }
}
