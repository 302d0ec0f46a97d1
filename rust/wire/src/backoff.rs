//! How long to wait before the next try. Data in, data out: whoever asks does the waiting.

/// Each wait is longer than the one before, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub first_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Spreads the tries of many workers: each has its own.
    pub seed: u64,
    tries: u32,
}

impl Backoff {
    /// From `first_ns`, doubling, to `max_ns`.
    pub fn new(first_ns: u64, max_ns: u64, seed: u64) -> Self {
        Self { first_ns, max_ns: max_ns.max(first_ns), seed, tries: 0 }
    }

    /// Tries since the last success.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// The wait before the next try: between half of its length and all of it.
    pub fn next_ns(&mut self) -> u64 {
        let doubled = self.first_ns.saturating_mul(1 << self.tries.min(32));
        let longest = doubled.min(self.max_ns);
        self.tries = self.tries.saturating_add(1);
        let mut word = self.seed.wrapping_add(u64::from(self.tries).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        longest - (word ^ (word >> 31)) % (longest / 2 + 1)
    }

    /// A try has succeeded.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(100_000_000, 2_000_000_000, 0)
    }
}
