//! Watching a run from outside, for tests and for questions that no report answers.

use splitcore_core::machine::BatchPlan;

use crate::faults::Recovery;
use crate::report::Outcome;

/// Told what happens in a run, as it happens. Every method does nothing unless implemented; `()` watches nothing and
/// costs nothing. Machines and requests are named by their index.
#[expect(unused_variables, reason = "the defaults do nothing")]
pub trait Observer {
    /// A run begins; with faults there are two, one after the other.
    fn run_started(&mut self, recovery: Recovery) {}

    /// An event as it enters the digest: time, kind and machine, request or other number. Two runs take the same
    /// course as long as these agree.
    fn logged(&mut self, words: [u64; 3]) {}

    /// A machine starts a pass.
    fn pass_started(&mut self, now_ns: u64, machine: u32, end_ns: u64, plan: &BatchPlan) {}

    /// A pass ends, unless its machine has crashed: its decodes, and those of its prefills that sample, have got a token.
    fn pass_ended(&mut self, now_ns: u64, machine: u32, plan: &BatchPlan) {}

    /// A client gets a token, with `left` to come. A token that is made again is not given again.
    fn token(&mut self, now_ns: u64, request: u64, left: u32) {}

    /// The KV of a request has arrived, `visible_ns` after the end of its prefill.
    fn landed(&mut self, now_ns: u64, from: u32, to: u32, request: u64, visible_ns: u64) {}

    /// A request is over.
    fn ended(&mut self, now_ns: u64, request: u64, outcome: Outcome) {}

    /// Whether it has seen what it wanted to know. Asked after every event; the run ends with the first yes.
    fn is_satisfied(&self) -> bool {
        false
    }
}

/// Watches nothing.
impl Observer for () {}

impl<O: Observer> Observer for &mut O {
    fn run_started(&mut self, recovery: Recovery) {
        (**self).run_started(recovery);
    }

    fn logged(&mut self, words: [u64; 3]) {
        (**self).logged(words);
    }

    fn pass_started(&mut self, now_ns: u64, machine: u32, end_ns: u64, plan: &BatchPlan) {
        (**self).pass_started(now_ns, machine, end_ns, plan);
    }

    fn pass_ended(&mut self, now_ns: u64, machine: u32, plan: &BatchPlan) {
        (**self).pass_ended(now_ns, machine, plan);
    }

    fn token(&mut self, now_ns: u64, request: u64, left: u32) {
        (**self).token(now_ns, request, left);
    }

    fn landed(&mut self, now_ns: u64, from: u32, to: u32, request: u64, visible_ns: u64) {
        (**self).landed(now_ns, from, to, request, visible_ns);
    }

    fn ended(&mut self, now_ns: u64, request: u64, outcome: Outcome) {
        (**self).ended(now_ns, request, outcome);
    }

    fn is_satisfied(&self) -> bool {
        (**self).is_satisfied()
    }
}
