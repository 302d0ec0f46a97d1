//! Requests for output tokens: what a gateway asks, and what it hears until the end.

use std::sync::Arc;

use splitcore_wire::message::Sampling;

use super::{Fault, Host};

/// One choice of a client's request.
#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    /// What the client calls the request; choices of one request have one name.
    pub name: String,
    /// Which choice, from 0.
    pub choice: u32,
    /// The client's prompt.
    pub prompt: Arc<[u32]>,
    /// Output tokens at most.
    pub max_new_tokens: u32,
    /// How to draw.
    pub sampling: Sampling,
    /// Texts that end the output. The host only keeps them, for who comes back.
    pub stop: Vec<String>,
    /// Tokens that end the output; the one that does is given as well.
    pub stop_ids: Vec<u32>,
    /// The gateway's own, given back to who comes back.
    pub note: String,
    /// Class of the service objective.
    pub class: u32,
    /// Higher goes first among those that wait.
    pub priority: i32,
}

/// How a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// At a token of `stop_ids`, or at the cap.
    Finished,
    /// Given up, by its client or because none came back.
    Cancelled,
    /// It cannot go on: the reason's name.
    Failed(&'static str),
}

/// What is heard of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Output tokens, in order from 0, each once.
    Tokens {
        /// Place of the first.
        from: u32,
        /// The tokens.
        ids: Vec<u32>,
    },
    /// The last.
    Ended(Ending),
}

/// The output of one choice. Dropped before its end, it cancels the choice, unless another of the same choice lives.
#[derive(Debug)]
pub struct Output {
    /// What was asked for.
    pub ask: Arc<Generate>,
}

impl Host {
    /// Begins all choices of a request, or none.
    ///
    /// # Errors
    /// Turned away, or the name is a live request's.
    pub fn generate(self: &Arc<Self>, asks: Vec<Generate>) -> Result<Vec<Output>, Fault> {
        let _ = asks;
        Err(Fault::Stopped)
    }

    /// The choices of a request that is live or has ended lately.
    ///
    /// # Errors
    /// No request has this name.
    pub fn attach(self: &Arc<Self>, name: &str) -> Result<Vec<Output>, Fault> {
        let _ = name;
        Err(Fault::Stopped)
    }
}

impl Output {
    /// Returns once a machine has the request.
    ///
    /// # Errors
    /// It has ended before.
    pub async fn acknowledged(&mut self) -> Result<(), Ending> {
        Err(Ending::Failed("stopped"))
    }

    /// What comes next.
    pub async fn next(&mut self) -> Said {
        Said::Ended(Ending::Failed("stopped"))
    }
}
