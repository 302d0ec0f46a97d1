//! The yardstick: the same choices by a plain scan over two arrays, and nothing else.

use crate::placing::{Books, Placed};

/// Loads of prompt machines and of token machines.
#[derive(Debug)]
pub struct Linear {
    pending_tokens: Vec<Load>,
    kv_tokens: Vec<Load>,
    taken: u64,
}

/// Tokens, and after them, for machines of equal load, the number of choices there had been when this one was taken last.
type Load = (u64, u64);

impl Linear {
    /// Half of the machines on either side.
    pub fn new(machines: u32) -> Self {
        let side = vec![(0, 0); machines as usize / 2];
        Self { pending_tokens: side.clone(), kv_tokens: side, taken: 0 }
    }
}

fn first_least(loads: &[Load]) -> usize {
    loads.iter().enumerate().min_by_key(|&(_, load)| load).map_or(0, |(at, _)| at)
}

impl Books for Linear {
    fn place(&mut self, request: u64, prompt_tokens: u32) -> Placed {
        let (prompt, token) = (first_least(&self.pending_tokens), first_least(&self.kv_tokens));
        self.taken += 1;
        self.pending_tokens[prompt] = (self.pending_tokens[prompt].0 + u64::from(prompt_tokens), self.taken);
        self.kv_tokens[token] = (self.kv_tokens[token].0 + u64::from(prompt_tokens) + 1, self.taken);
        // Prompt and token machines alternate.
        Placed { request, prompt_tokens, prompt: 2 * prompt as u32, token: 2 * token as u32 + 1 }
    }

    fn prefill_done(&mut self, placed: &Placed) {
        self.pending_tokens[placed.prompt as usize / 2].0 -= u64::from(placed.prompt_tokens);
    }

    fn finish(&mut self, placed: &Placed) {
        self.kv_tokens[placed.token as usize / 2].0 -= u64::from(placed.prompt_tokens) + 1;
    }
}
