//! Watches a run and counts the requests that have missed an objective, until one is lost.

use splitcore_sim::Observer;
use splitcore_sim::report::{NO_TIME_NS, Outcome, Reference, RequestRow};

use super::Case;

/// Events between two looks at how old the requests in the system are: at least so many, and more where there are many
/// requests, so that looking costs little beside the run.
const EVENTS_MIN: usize = 256;
const EVENTS_PER_REQUEST: usize = 4;

pub(super) struct Watch<'a> {
    case: &'a Case<'a>,
    /// Of each request.
    idle: Vec<Reference>,
    /// Of each request, once it has its first token.
    ttft_ns: Vec<u64>,
    is_over: Vec<bool>,
    /// Requests that are not over.
    to_end: usize,
    /// By request and rule of its class: counted already.
    missed: Vec<bool>,
    rules_max: usize,
    /// By rule.
    misses: Vec<usize>,
    lost: Vec<bool>,
    is_lost: bool,
    /// Requests that have arrived, and were not over when they were last looked at.
    in_system: Vec<usize>,
    next_arrival: usize,
    events_left: usize,
}

impl<'a> Watch<'a> {
    pub(super) fn new(case: &'a Case<'a>) -> Self {
        let requests = case.scenario.requests();
        let rules_max = case.classes.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let lost: Vec<bool> = case.rules.iter().map(|rule| rule.lost_from == 0).collect();
        Self {
            case,
            idle: requests
                .iter()
                .map(|each| case.scenario.idle(each.prompt_tokens, each.output_tokens))
                .collect(),
            ttft_ns: vec![NO_TIME_NS; requests.len()],
            is_over: vec![false; requests.len()],
            to_end: requests.len(),
            missed: vec![false; requests.len() * rules_max],
            rules_max,
            misses: vec![0; case.rules.len()],
            is_lost: lost.contains(&true),
            lost,
            in_system: Vec::new(),
            next_arrival: 0,
            events_left: EVENTS_MIN,
        }
    }

    /// By rule.
    pub(super) fn lost(&self) -> &[bool] {
        &self.lost
    }

    /// Counts what a request has missed, if it ends now or goes on: none of its times will shrink.
    fn review(&mut self, now_ns: u64, request: usize, outcome: Outcome) {
        let of = self.case.scenario.requests()[request];
        let age_ns = now_ns - of.arrival_ns;
        let row = RequestRow {
            request_id: request as u64,
            arrival_ns: of.arrival_ns,
            prompt_tokens: of.prompt_tokens,
            output_tokens: of.output_tokens,
            ttft_ns: self.ttft_ns[request].min(age_ns),
            e2e_ns: age_ns,
            tbt_max_ns: NO_TIME_NS,
            prompt_machine: -1,
            token_machine: -1,
            attempts: 1,
            outcome,
        };
        let rules = self.case.classes[self.case.class_of(request)].clone();
        for (at, rule) in rules.enumerate() {
            let missed = &mut self.missed[request * self.rules_max + at];
            if *missed || !self.case.misses(&self.case.rules[rule], &row, self.idle[request]) {
                continue;
            }
            *missed = true;
            self.misses[rule] += 1;
            if self.misses[rule] >= self.case.rules[rule].lost_from {
                self.lost[rule] = true;
                self.is_lost = true;
            }
        }
    }

    /// Looks at every request in the system: one may be too old already.
    fn look(&mut self, now_ns: u64) {
        let arrived = self.case.scenario.requests()[self.next_arrival..].iter();
        let arrived = arrived.take_while(|request| request.arrival_ns <= now_ns).count();
        self.in_system.extend(self.next_arrival..self.next_arrival + arrived);
        self.next_arrival += arrived;
        let mut in_system = std::mem::take(&mut self.in_system);
        in_system.retain(|&request| !self.is_over[request]);
        for &request in &in_system {
            self.review(now_ns, request, Outcome::Finished);
        }
        self.events_left = EVENTS_MIN.max(EVENTS_PER_REQUEST * in_system.len());
        self.in_system = in_system;
    }
}

impl Observer for Watch<'_> {
    fn logged(&mut self, words: [u64; 3]) {
        self.events_left -= 1;
        if self.events_left == 0 {
            self.look(words[0]);
        }
    }

    fn token(&mut self, now_ns: u64, request: u64, left: u32) {
        let of = &self.case.scenario.requests()[request as usize];
        if left + 1 == of.output_tokens {
            self.ttft_ns[request as usize] = now_ns - of.arrival_ns;
            // The last token of a request of one comes with its end.
            self.review(now_ns, request as usize, Outcome::Finished);
        }
    }

    fn ended(&mut self, now_ns: u64, request: u64, outcome: Outcome) {
        self.is_over[request as usize] = true;
        self.to_end -= 1;
        self.review(now_ns, request as usize, outcome);
    }

    /// Where the last request decides there is nothing to save: what is left are a few events, and with them the run is
    /// a whole one.
    fn is_satisfied(&self) -> bool {
        self.is_lost && self.to_end > 0
    }
}
