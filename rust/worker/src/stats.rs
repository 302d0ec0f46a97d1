//! What a worker has done, in numbers.

/// Counted since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Passes that the engine has run.
    pub passes: u64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Passes with a decode in them.
    pub decode_passes: u64,
    /// Tokens decoded.
    pub decode_tokens: u64,
    /// Handoffs that this machine was the source of, and whose KV has all landed.
    pub transfers: u64,
    /// Of these, the time from the end of their prefill until all had landed: what the transfer cost the request.
    pub exposed_ns: u64,
    /// The longest of these times.
    pub exposed_max_ns: u64,
    /// Transfers that failed.
    pub transfers_failed: u64,
    /// Sessions with the daemon.
    pub sessions: u64,
}

impl Stats {
    /// Decodes in a pass, on average over the passes that had one.
    pub fn decode_batch_mean(&self) -> f64 {
        if self.decode_passes == 0 { 0.0 } else { self.decode_tokens as f64 / self.decode_passes as f64 }
    }

    pub(crate) fn transferred(&mut self, exposed_ns: u64) {
        self.transfers += 1;
        self.exposed_ns += exposed_ns;
        self.exposed_max_ns = self.exposed_max_ns.max(exposed_ns);
    }
}
