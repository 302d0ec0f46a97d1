//! The live requests, for whoever operates the service: some at a time, by their ids.

use serde::Serialize;
use splitcore_core::id::RequestId;
use splitcore_core::placement::{Mode, Placement};

use super::{Fault, Host, State};

/// A live request as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunningView {
    /// Its number.
    pub request_id: u64,
    /// What the client calls it; of services with workers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `placed`, or `parked` while it waits for a machine.
    pub state: &'static str,
    /// Which attempt runs.
    pub attempt: Option<u32>,
    /// The machine of its prompt.
    pub prompt: Option<String>,
    /// The machine of its output.
    pub token: Option<String>,
    /// How its KV moves, where it is split.
    pub transfer: Option<Mode>,
    /// Output tokens so far.
    pub output_tokens: u32,
    /// Of its prompt; of services with workers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<usize>,
    /// Output tokens at most; of services with workers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new_tokens: Option<u32>,
    /// Since it came, or since this service has known it; of services with workers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}

/// Some of the live requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Running {
    /// How many there are in all.
    pub live: usize,
    /// Some of them, by id.
    pub requests: Vec<RunningView>,
    /// The id to go on from, where there are more.
    pub next: Option<u64>,
}

impl Host {
    /// The live requests from an id on, `most` of them.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn running(&self, from: u64, most: usize) -> Result<Running, Fault> {
        self.with(|state| {
            let mut rest = state.live.range(from..);
            let requests = rest.by_ref().take(most).map(|(&id, placement)| state.running(id, *placement));
            let requests = requests.collect();
            let next = rest.next().map(|(&id, _)| id);
            Ok(Running { live: state.live.len(), requests, next })
        })
    }
}

impl State {
    fn running(&self, request: u64, placement: Option<Placement>) -> RunningView {
        let placed = placement.map(|placement| self.named(placement));
        let entry = self.managed.as_ref().and_then(|managed| managed.book.get(request));
        let delivered = || self.core.delivered(RequestId(request)).unwrap_or(0);
        let name =
            |machine: &Option<std::sync::Arc<super::Machine>>| machine.as_ref().map(|it| it.name.clone());
        RunningView {
            request_id: request,
            name: entry.map(|entry| entry.ask.name.clone()),
            state: if placed.is_some() { "placed" } else { "parked" },
            attempt: placed.as_ref().map(|placed| placed.placement.attempt.0),
            prompt: placed.as_ref().and_then(|placed| name(&placed.prompt)),
            token: placed.as_ref().and_then(|placed| name(&placed.token)),
            transfer: placed.as_ref().and_then(|placed| placed.placement.transfer()),
            output_tokens: entry.map_or_else(delivered, |entry| entry.tokens.len() as u32),
            prompt_tokens: entry.map(|entry| entry.ask.prompt.len()),
            max_new_tokens: entry.map(|entry| entry.ask.max_new_tokens),
            age_ms: entry.map(|entry| entry.age_ns(self.clock.now()) / 1_000_000),
        }
    }
}
