//! What all searches have in common: they ask for probes and are told the verdicts.

use crate::probe::{Probe, Verdict};

/// How far a search is. `expected` is a guess that may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Probes judged.
    pub done: u64,
    /// Probes there will be in all, as far as can be told.
    pub expected: u64,
}

/// A search, in rounds: [`Search::ask`], then [`Search::tell`] with one verdict for each probe, until nothing is asked.
///
/// The order of the verdicts is that of the probes, whatever the order in which they were made; so the result is the
/// same for any number of threads or machines.
pub trait Search {
    /// The next probes; none when the search is over.
    fn ask(&mut self) -> Vec<Probe>;

    /// The verdicts of all probes last asked for, in their order.
    fn tell(&mut self, verdicts: &[Verdict]);

    /// How far it is.
    fn progress(&self) -> Progress;
}
