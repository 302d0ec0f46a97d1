//! Answers that may be long: written piece by piece as the client takes them, so that neither their making nor their
//! keeping hangs on what was asked for.

use std::io;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hyper::StatusCode;
use serde::Serialize;
use tokio::time::{Duration, Instant};

use super::body::raw;

/// Bytes of a piece, and not much more.
const PIECE_BYTES: usize = 32 << 10;
/// What a whole answer may take its client, in terms of `write_timeout_s`.
const WHOLE_LIMIT: u32 = 10;

/// Writes one more part of an answer behind what is there; false: there is none.
pub(crate) trait Part: FnMut(&mut Vec<u8>) -> bool + Send + 'static {}

impl<F: FnMut(&mut Vec<u8>) -> bool + Send + 'static> Part for F {}

/// Appends a value as JSON.
pub(crate) fn push(out: &mut Vec<u8>, value: &impl Serialize) {
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!(%error, "a part of an answer could not be written");
    }
}

/// An answer in JSON of parts. What fits into one piece goes as one.
pub(crate) fn answer(write_timeout_s: f64, mut part: impl Part) -> Response {
    const JSON: &str = "application/json";
    let mut next = move || {
        let mut piece = Vec::with_capacity(PIECE_BYTES / 4);
        let mut more = true;
        while more && piece.len() < PIECE_BYTES {
            more = part(&mut piece);
        }
        (piece, more)
    };
    let (first, more) = next();
    if !more {
        return raw(StatusCode::OK, JSON, first);
    }
    let until = Instant::now() + Duration::from_secs_f64(write_timeout_s) * WHOLE_LIMIT;
    let mut first = Some(first);
    let mut is_over = false;
    let pieces = std::iter::from_fn(move || {
        if let Some(first) = first.take() {
            return Some(Ok(Bytes::from(first)));
        }
        if is_over {
            return None;
        }
        if Instant::now() >= until {
            is_over = true;
            return Some(Err(io::Error::from(io::ErrorKind::TimedOut)));
        }
        let (piece, more) = next();
        is_over = !more;
        Some(Ok(Bytes::from(piece)))
    });
    raw(StatusCode::OK, JSON, Body::from_stream(stream::iter(pieces)))
}

/// The parts of an object with one list: each of `items` is written by `write`, whatever it is.
pub(crate) fn list<T>(
    name: &'static str,
    mut items: impl Iterator<Item = T> + Send + 'static,
    mut write: impl FnMut(&mut Vec<u8>, T) + Send + 'static,
) -> impl Part {
    let mut begun = false;
    move |out| {
        if !begun {
            out.extend_from_slice(format!("{{\"{name}\":[").as_bytes());
        }
        let Some(item) = items.next() else {
            out.extend_from_slice(b"]}");
            return false;
        };
        if begun {
            out.push(b',');
        }
        begun = true;
        write(out, item);
        true
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hyper::body::Body as _;

    use super::*;

    fn numbers(count: u32) -> Response {
        answer(1.0, list("numbers", 0..count, |out, number| push(out, &number)))
    }

    #[tokio::test]
    async fn a_short_list_has_a_length_and_a_long_one_is_the_same_in_pieces() {
        for count in [0, 1, 2, 1000, 100_000] {
            let body = numbers(count).into_body();
            assert_eq!(body.size_hint().exact().is_some(), count <= 1000, "{count}");
            let bytes = body.collect().await.expect("whole").to_bytes();
            let read: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            let numbers = read["numbers"].as_array().expect("a list");
            assert!(numbers.iter().zip(0..).all(|(number, at): (_, u64)| *number == at), "{count}");
            assert_eq!(numbers.len(), count as usize);
        }
    }

    #[tokio::test]
    async fn no_piece_is_much_longer_than_another() {
        let mut body = numbers(100_000).into_body();
        while let Some(frame) = body.frame().await {
            let bytes = frame.expect("whole").into_data().expect("data");
            assert!(bytes.len() < PIECE_BYTES + 16);
        }
    }
}
