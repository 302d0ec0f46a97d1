//! A forward pass, as an engine sees it.

use splitcore_core::id::LegKey;
use splitcore_wire::message::Sampling;

use crate::mover::Follow;

/// A run of positions of one request.
#[derive(Debug)]
pub struct Span {
    /// Which leg; each is in a pass once.
    pub key: LegKey,
    /// The token ids.
    pub tokens: Vec<u32>,
    /// The position of the first; KV of all positions before is in the blocks.
    pub start: u32,
    /// The block table, from position 0.
    pub blocks: Vec<u32>,
    /// How the token after the span is drawn; `None`: none is.
    pub sampling: Option<Sampling>,
    /// Tokens that may not be drawn: the output would end too early.
    pub forbidden: Vec<u32>,
    /// Which output token of the request that is, from 0.
    pub output: u32,
    /// Transfers that follow the layers of this span.
    pub follows: Vec<Follow>,
}

/// One forward pass: all its spans together.
#[derive(Debug)]
pub struct Pass {
    /// Its number, for [`crate::Worker::pass_done`].
    pub number: u64,
    /// What is in it.
    pub spans: Vec<Span>,
}
