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

/// Searches that know nothing of each other, made in the same rounds.
#[derive(Debug, Clone)]
pub(crate) struct SideBySide<S> {
    searches: Vec<S>,
    /// Probes that each asked for last.
    asked: Vec<usize>,
}

impl<S: Search> SideBySide<S> {
    pub(crate) fn new(searches: Vec<S>) -> Self {
        Self { searches, asked: Vec::new() }
    }

    pub(crate) fn searches(&self) -> &[S] {
        &self.searches
    }
}

impl<S: Search> Search for SideBySide<S> {
    fn ask(&mut self) -> Vec<Probe> {
        let asked: Vec<Vec<Probe>> = self.searches.iter_mut().map(Search::ask).collect();
        self.asked = asked.iter().map(Vec::len).collect();
        asked.into_iter().flatten().collect()
    }

    fn tell(&mut self, verdicts: &[Verdict]) {
        let mut rest = verdicts;
        for (search, asked) in self.searches.iter_mut().zip(std::mem::take(&mut self.asked)) {
            let (its, others) = rest.split_at(asked);
            rest = others;
            if asked > 0 {
                search.tell(its);
            }
        }
    }

    fn progress(&self) -> Progress {
        self.searches.iter().map(Search::progress).fold(Progress::default(), |sum, one| Progress {
            done: sum.done + one.done,
            expected: sum.expected + one.expected,
        })
    }
}
