//! What is measured of requests as their clients see them.

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::text::Finish;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishReason {
    finish_reason: &'static str,
}

/// Series of the gateway; clones are the same series.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    ends: Family<FinishReason, Counter>,
    prompt_tokens: Counter,
    output_tokens: Counter,
    running: Gauge,
}

impl Series {
    /// All at zero.
    pub(crate) fn new() -> Self {
        // From 1 ms to 2 minutes and more.
        let buckets = || Histogram::new(exponential_buckets(1e-3, 1.75, 24));
        let ends: Family<FinishReason, Counter> = Family::default();
        for finish_reason in ["stop", "length", "error", "cancelled"] {
            let _ = ends.get_or_create_owned(&FinishReason { finish_reason });
        }
        Self {
            first_token: buckets(),
            between_tokens: buckets(),
            whole: buckets(),
            ends,
            prompt_tokens: Counter::default(),
            output_tokens: Counter::default(),
            running: Gauge::default(),
        }
    }

    /// Shows them.
    pub(crate) fn register(&self, to: &mut Registry) {
        let seconds = [
            (
                "time_to_first_token",
                "From the receipt of a request to a choice's first token",
                &self.first_token,
            ),
            ("inter_token_latency", "Between two tokens of a choice", &self.between_tokens),
            ("e2e_request_latency", "From the receipt of a request to the end of a choice", &self.whole),
        ];
        for (name, help, series) in seconds {
            to.register_with_unit(name, help, Unit::Seconds, series.clone());
        }
        to.register("requests", "Choices of requests by how they ended for their client", self.ends.clone());
        to.register("prompt_tokens", "Tokens of prompts that were accepted", self.prompt_tokens.clone());
        to.register("output_tokens", "Tokens given to clients", self.output_tokens.clone());
        to.register("requests_running", "Requests whose answer is being given", self.running.clone());
    }

    /// Tokens given to clients so far.
    pub(crate) fn output_tokens(&self) -> u64 {
        self.output_tokens.get()
    }

    /// Counts a request that was received at `begun` and has been accepted.
    pub(super) fn tally(&self, begun: Instant, choices: usize, prompt_tokens: u64) -> Tally {
        self.prompt_tokens.inc_by(prompt_tokens);
        self.running.inc();
        Tally {
            series: self.clone(),
            begun,
            counts: true,
            last: vec![None; choices],
            over: vec![false; choices],
        }
    }

    /// For who comes back: all of it has been counted for who came first, but that it runs.
    pub(super) fn silent_tally(&self, choices: usize) -> Tally {
        self.running.inc();
        let begun = Instant::now();
        Tally {
            series: self.clone(),
            begun,
            counts: false,
            last: vec![None; choices],
            over: vec![false; choices],
        }
    }

    fn end(&self, finish_reason: &'static str) {
        self.ends.get_or_create_owned(&FinishReason { finish_reason }).inc();
    }
}

/// Counts one request. Dropped, it counts what has not ended as cancelled.
pub(super) struct Tally {
    series: Series,
    begun: Instant,
    counts: bool,
    last: Vec<Option<Instant>>,
    over: Vec<bool>,
}

impl Tally {
    /// A choice has more tokens.
    pub(super) fn tokens(&mut self, choice: usize, tokens: usize) {
        if !self.counts || tokens == 0 {
            return;
        }
        let now = Instant::now();
        let mut between = tokens;
        let before = self.last[choice].replace(now).unwrap_or_else(|| {
            self.series.first_token.observe((now - self.begun).as_secs_f64());
            between -= 1;
            now
        });
        // Those that come at once came one after another.
        let each = (now - before).as_secs_f64() / between.max(1) as f64;
        for _ in 0..between {
            self.series.between_tokens.observe(each);
        }
        self.series.output_tokens.inc_by(tokens as u64);
    }

    /// A choice has ended by itself.
    pub(super) fn finished(&mut self, choice: usize, finish: Finish) {
        if self.counts && !self.over[choice] {
            self.series.whole.observe(self.begun.elapsed().as_secs_f64());
        }
        self.end(choice, if finish == Finish::Stop { "stop" } else { "length" });
    }

    /// A choice goes on no more.
    pub(super) fn failed(&mut self, choice: usize) {
        self.end(choice, "error");
    }

    fn end(&mut self, choice: usize, finish_reason: &'static str) {
        if self.counts && !std::mem::replace(&mut self.over[choice], true) {
            self.series.end(finish_reason);
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.series.running.dec();
        for choice in 0..self.over.len() {
            self.end(choice, "cancelled");
        }
    }
}
