//! Clients, and the tokens that they are to get.

use splitcore_core::event::Outcome;

/// The output token of this place: all of the toy language model.
pub(crate) fn token(seed: u64, index: u32) -> u32 {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(index));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (word >> 40) as u32
}

/// How long the output of a request is.
pub(crate) fn output_tokens(seed: u64) -> u32 {
    1 + token(seed, u32::MAX) % 40
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Not sent, or turned away.
    New,
    /// Sent; whether a machine has said anything of it.
    Live { acknowledged: bool },
    /// The client has been told.
    Ended(Outcome),
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) output_tokens: u32,
    pub(crate) received: Vec<u32>,
    pub(crate) state: State,
}

impl Client {
    pub(crate) fn new(id: u64) -> Self {
        let prompt_tokens = 1 + token(id, 7) % 600;
        let prompt = (0..prompt_tokens).map(|at| token(id ^ 0xff_0000, at)).collect();
        let output_tokens = output_tokens(id);
        Self { id, prompt, output_tokens, received: Vec::new(), state: State::New }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.id
    }

    /// The prompt of an attempt that goes on behind so many tokens.
    pub(crate) fn prompt_from(&self, resumed: u32) -> Vec<u32> {
        let mut prompt = self.prompt.clone();
        prompt.extend(&self.received[..resumed as usize]);
        prompt
    }
}
