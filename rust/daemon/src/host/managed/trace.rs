//! Where the time of a request went, as the service hears of it.

use splitcore_core::time::Time;

/// What has happened to a request, and when for the first time.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Trace {
    arrived: Time,
    acknowledged: Option<Time>,
    prefilled: Option<Time>,
    first_token: Option<Time>,
    landed: Option<Time>,
    second_token: Option<Time>,
}

/// Durations between them; each begins where the one before ends.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(clippy::struct_field_names, reason = "units stand last in names")]
pub(in crate::host) struct Spans {
    /// Until a machine has it.
    pub(in crate::host) dispatch_ms: Option<f64>,
    /// From there until its prompt is computed: waiting for a place in a pass, and the pass.
    pub(in crate::host) prefill_ms: Option<f64>,
    /// What the transfer took beyond that.
    pub(in crate::host) transfer_ms: Option<f64>,
    /// From there, or without a transfer from the first token, to the second.
    pub(in crate::host) decode_wait_ms: Option<f64>,
    /// From the arrival to the first token.
    pub(in crate::host) first_token_ms: Option<f64>,
    /// From the arrival to now.
    pub(in crate::host) total_ms: f64,
}

impl Trace {
    pub(super) fn new(arrived: Time) -> Self {
        Self {
            arrived,
            acknowledged: None,
            prefilled: None,
            first_token: None,
            landed: None,
            second_token: None,
        }
    }

    /// How long ago it arrived.
    pub(super) fn age_ns(&self, now: Time) -> u64 {
        now.since(self.arrived)
    }

    pub(super) fn acknowledged(&mut self, now: Time) {
        self.acknowledged.get_or_insert(now);
    }

    pub(super) fn prefilled(&mut self, now: Time) {
        self.acknowledged(now);
        self.prefilled.get_or_insert(now);
    }

    pub(super) fn landed(&mut self, now: Time) {
        self.landed.get_or_insert(now);
    }

    /// So many output tokens are here.
    pub(super) fn tokens(&mut self, count: usize, now: Time) {
        if count >= 1 {
            self.first_token.get_or_insert(now);
        }
        if count >= 2 {
            self.second_token.get_or_insert(now);
        }
    }

    pub(super) fn spans(&self, now: Time) -> Spans {
        let between = |from: Option<Time>, to: Option<Time>| {
            let (from, to) = (from?, to?);
            Some(to.since(from) as f64 / 1e6)
        };
        let begins = self.landed.max(self.prefilled).or(self.first_token);
        Spans {
            dispatch_ms: between(Some(self.arrived), self.acknowledged),
            prefill_ms: between(self.acknowledged, self.prefilled),
            transfer_ms: between(self.prefilled, self.landed),
            decode_wait_ms: between(begins, self.second_token),
            first_token_ms: between(Some(self.arrived), self.first_token),
            total_ms: now.since(self.arrived) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    #[test]
    fn each_span_begins_where_the_one_before_ends() {
        let mut trace = Trace::new(at(10));
        trace.acknowledged(at(12));
        trace.tokens(1, at(50));
        trace.prefilled(at(51));
        trace.prefilled(at(99));
        trace.landed(at(60));
        trace.tokens(2, at(75));
        trace.tokens(3, at(80));
        let spans = trace.spans(at(100));
        assert_eq!(spans.dispatch_ms, Some(2.0));
        assert_eq!(spans.prefill_ms, Some(39.0));
        assert_eq!(spans.transfer_ms, Some(9.0));
        assert_eq!(spans.decode_wait_ms, Some(15.0));
        assert_eq!((spans.first_token_ms, spans.total_ms), (Some(40.0), 90.0));
    }

    #[test]
    fn what_has_not_happened_has_no_span() {
        let spans = Trace::new(at(10)).spans(at(11));
        assert_eq!((spans.dispatch_ms, spans.prefill_ms, spans.transfer_ms), (None, None, None));
        assert_eq!((spans.decode_wait_ms, spans.first_token_ms, spans.total_ms), (None, None, 1.0));
    }
}
