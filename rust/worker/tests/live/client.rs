//! Clients, and the tokens that they are to get.

use splitcore_core::event::Outcome;

use crate::model::{STOP, VOCABULARY, mix, output};

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
    pub(crate) cap: u32,
    pub(crate) wanted: Vec<u32>,
    pub(crate) received: Vec<u32>,
    pub(crate) state: State,
}

impl Client {
    pub(crate) fn new(id: u64, prompt_max: u64) -> Self {
        let tokens = 1 + mix(id) % prompt_max;
        // A prompt may have what ends an output.
        let prompt: Vec<u32> =
            (0..tokens).map(|at| (mix(id << 32 | at) % u64::from(VOCABULARY)) as u32).collect();
        let cap = 1 + (mix(id ^ 0xcab) % 40) as u32;
        let wanted = output(id, &prompt, cap);
        Self { id, prompt, cap, wanted, received: Vec::new(), state: State::New }
    }

    /// The prompt of an attempt that goes on behind so many tokens.
    pub(crate) fn prompt_from(&self, resumed: u32) -> Vec<u32> {
        let mut prompt = self.prompt.clone();
        prompt.extend(&self.received[..resumed as usize]);
        prompt
    }

    pub(crate) fn stop_ids() -> Vec<u32> {
        vec![STOP]
    }
}
