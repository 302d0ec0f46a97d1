//! The bytes of a stream: events in the format of `text/event-stream`.

use serde::Serialize;

use super::asks::Note;
use super::place;
use super::shapes::{Answer, Choice, Usage, finish_name};
use super::text::Piece;
use crate::http::errors::ApiError;

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Writes the events of one stream.
///
/// An event stands for one token at most and is made from it and those before it, so that a stream that is told again is
/// the same. Its id says how far the client is with each choice; what has no id of its own is told again.
#[derive(Debug, Clone)]
pub(super) struct Feed {
    id: String,
    note: Note,
    /// Tokens of each choice that the client has; of one of several that is over, all.
    taken: Vec<u32>,
    prompt_tokens: u64,
    /// Tokens so far, of all choices.
    completion_tokens: u64,
    bytes: Vec<u8>,
}

#[derive(Serialize)]
struct ErrorEvent<'a> {
    error: crate::http::errors::Inner<'a>,
}

impl Feed {
    /// For a client that has so many tokens of each choice already; `None`: nothing at all.
    pub(super) fn new(
        id: String,
        note: Note,
        choices: usize,
        has: Option<Vec<u32>>,
        prompt_tokens: u64,
    ) -> Self {
        let comes_back = has.is_some();
        let taken = has.unwrap_or_else(|| vec![0; choices]);
        let mut feed = Self { id, note, taken, prompt_tokens, completion_tokens: 0, bytes: Vec::new() };
        if feed.note.kind == super::Kind::Chat && !comes_back {
            for choice in 0..choices {
                feed.event(choice + 1 == choices, &Choice::opening(choice));
            }
        }
        feed
    }

    /// The bytes since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// The pieces of a choice's tokens from number `from` on.
    pub(super) fn pieces(&mut self, choice: usize, from: u32, pieces: &[Piece]) {
        for (count, piece) in (from + 1..).zip(pieces) {
            self.completion_tokens += 1;
            if count <= self.taken[choice] {
                continue;
            }
            let is_last = piece.finish.is_some() && self.taken.len() > 1;
            self.taken[choice] = if is_last { place::ALL } else { count };
            if piece.text.is_empty() && piece.finish.is_none() {
                continue;
            }
            let finish = piece.finish.map(finish_name);
            self.event(true, &Choice::part(self.note.kind, choice, &piece.text, finish));
        }
    }

    /// A choice goes on no more.
    pub(super) fn failed(&mut self, choice: usize) {
        self.event(false, &Choice::part(self.note.kind, choice, "", Some("error")));
    }

    /// The end of the stream, after all choices.
    pub(super) fn close(&mut self, usage: Usage, error: Option<&ApiError>) {
        if let Some(error) = error {
            self.data(&ErrorEvent { error: error.inner() });
        } else if self.note.include_usage {
            let (id, note) = (self.id.clone(), self.note.clone());
            self.data(&Answer::chunk(&id, &note, &[], Some(usage)));
        }
        self.bytes.extend_from_slice(DONE);
    }

    fn event(&mut self, has_id: bool, choice: &Choice<'_>) {
        if has_id {
            self.bytes.extend_from_slice(format!("id: {}\n", place::write(&self.taken)).as_bytes());
        }
        let usage =
            self.note.continuous_usage.then(|| Usage::new(self.prompt_tokens, self.completion_tokens));
        let chunk = Answer::chunk(&self.id, &self.note, std::slice::from_ref(choice), usage);
        write_data(&mut self.bytes, &chunk);
    }

    fn data(&mut self, value: &impl Serialize) {
        write_data(&mut self.bytes, value);
    }
}

fn write_data(bytes: &mut Vec<u8>, value: &impl Serialize) {
    bytes.extend_from_slice(b"data: ");
    if let Err(error) = serde_json::to_writer(&mut *bytes, value) {
        tracing::error!(%error, "an event could not be written");
    }
    bytes.extend_from_slice(b"\n\n");
}
