//! One answer at the end, or a stream of events as tokens come.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};

use super::asks::Note;
use super::choices::{Choices, Heard};
use super::feed::Feed;
use super::shapes::{Answer, Choice, Usage, finish_name};
use crate::host::Ending;
use crate::http::body;
use crate::http::errors::ApiError;

/// Proxies that know it hand on every event at once.
static BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a choice that does not go on means to its client.
pub(super) fn failure(ending: Ending) -> ApiError {
    let (status, code, message) = match ending {
        Ending::Cancelled => (StatusCode::GONE, "cancelled", "the request was given up".to_owned()),
        Ending::Failed("attempts_max") => {
            let message = "the machines that had the request were lost, attempts_max times";
            (StatusCode::BAD_GATEWAY, "attempts_max", message.to_owned())
        }
        Ending::Failed("not_resumable") => {
            let message = "the machine that had the request was lost, and it cannot go on elsewhere";
            (StatusCode::BAD_GATEWAY, "not_resumable", message.to_owned())
        }
        Ending::Failed("ended_early") => {
            let message = "the machine that had the request could not go on with it, and ended it early";
            (StatusCode::BAD_GATEWAY, "ended_early", message.to_owned())
        }
        Ending::Failed(reason) => {
            (StatusCode::INTERNAL_SERVER_ERROR, reason, format!("the request failed: {reason}"))
        }
        Ending::Finished => {
            let message = "the request has ended without an answer";
            (StatusCode::INTERNAL_SERVER_ERROR, "internal", message.to_owned())
        }
    };
    ApiError::new(status, code, message)
}

/// The answer to a client that has so many tokens of each choice already; `None`: nothing at all.
pub(super) async fn answer(
    name: String,
    note: Note,
    choices: Choices,
    has: Option<Vec<u32>>,
    prompt_tokens: u64,
) -> Result<Response, ApiError> {
    let id = HeaderValue::from_str(&name).ok();
    let mut response = if note.stream {
        stream(name, note, choices, has, prompt_tokens)
    } else {
        whole(&name, &note, choices, prompt_tokens).await?
    };
    if let Some(id) = id {
        response.headers_mut().insert(crate::http::REQUEST_ID.clone(), id);
    }
    Ok(response)
}

async fn whole(
    name: &str,
    note: &Note,
    mut choices: Choices,
    prompt_tokens: u64,
) -> Result<Response, ApiError> {
    let mut texts = vec![(String::new(), None); choices.len()];
    while let Some(heard) = choices.next().await {
        let (choice, pieces) = match heard {
            Heard::Pieces { choice, pieces, .. } => (choice, pieces),
            Heard::Finished { choice, piece } => (choice, vec![piece]),
            Heard::Failed { ending, .. } => return Err(failure(ending)),
        };
        let (text, finish) = &mut texts[choice];
        for piece in pieces {
            text.push_str(&piece.text);
            *finish = piece.finish.map(finish_name).or(*finish);
        }
    }
    let shown = texts.iter().enumerate();
    let shown: Vec<Choice<'_>> =
        shown.map(|(index, (text, finish))| Choice::whole(note.kind, index, text, *finish)).collect();
    let usage = Usage::new(prompt_tokens, choices.taken());
    Ok(body::answer(StatusCode::OK, &Answer::whole(name, note, &shown, usage)))
}

/// A stream that is being read.
struct Events {
    feed: Feed,
    choices: Choices,
    prompt_tokens: u64,
    error: Option<ApiError>,
    closed: bool,
}

fn stream(name: String, note: Note, choices: Choices, has: Option<Vec<u32>>, prompt_tokens: u64) -> Response {
    let feed = Feed::new(name, note, choices.len(), has);
    let events = Events { feed, choices, prompt_tokens, error: None, closed: false };
    let bytes = futures_util::stream::unfold(events, |mut events| async move {
        let next = events.next().await?;
        Some((Ok::<_, Infallible>(next), events))
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(BUFFERING.clone(), HeaderValue::from_static("no"));
    response
}

impl Events {
    /// The next bytes, as soon as there are any: what is not read is not made either.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let bytes = self.feed.take();
            if !bytes.is_empty() {
                return Some(bytes.into());
            }
            match self.choices.next().await {
                Some(Heard::Pieces { choice, from, pieces }) => self.feed.pieces(choice, from, &pieces),
                Some(Heard::Finished { choice, piece }) => self.feed.finished(choice, &piece),
                Some(Heard::Failed { choice, ending }) => {
                    self.feed.failed(choice);
                    self.error.get_or_insert_with(|| failure(ending));
                }
                None if self.closed => return None,
                None => {
                    self.closed = true;
                    let usage = Usage::new(self.prompt_tokens, self.choices.taken());
                    self.feed.close(usage, self.error.as_ref());
                }
            }
        }
    }
}
