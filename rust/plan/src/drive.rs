//! Makes the probes of a search on the cores of this machine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rayon::prelude::*;
use splitcore_sim::SimError;

use crate::cache::Cache;
use crate::judge::judge;
use crate::probe::{Probe, Verdict};
use crate::search::{Progress, Search};

/// How a search is driven.
pub struct Drive<'a> {
    /// Probes made at a time, at least 1.
    pub jobs: usize,
    /// Where verdicts are kept.
    pub cache: Option<&'a Cache>,
    /// Called after each verdict, from any thread; false ends the search with [`SimError::Interrupted`].
    pub control: &'a (dyn Fn(Progress) -> bool + Sync),
}

/// Drives a search to its end. Its result does not hang on `jobs`, nor on what the cache held.
///
/// # Errors
/// The first probe, in the order asked, that cannot be made; a cache that cannot be written; an interruption, after the
/// probes under way are made and kept in the cache.
pub fn drive(search: &mut dyn Search, drive: &Drive<'_>) -> Result<(), SimError> {
    drive_by(search, drive, &judge)
}

/// As [`drive`], judged by anything.
pub(crate) fn drive_by(
    search: &mut dyn Search,
    drive: &Drive<'_>,
    judge: &(dyn Fn(&Probe) -> Result<Verdict, SimError> + Sync),
) -> Result<(), SimError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(drive.jobs.max(1)).build();
    let pool = pool.map_err(|error| SimError::Internal { reason: format!("no threads: {error}") })?;
    loop {
        let asked = search.ask();
        if asked.is_empty() {
            return Ok(());
        }
        let round = Round::new(&asked, search.progress(), drive);
        let verdicts = pool.install(|| round.make(judge))?;
        search.tell(&verdicts);
    }
}

/// What is made between an ask and its tell.
struct Round<'a> {
    /// Each probe once, in the order asked.
    probes: Vec<&'a Probe>,
    /// How often each was asked for.
    times: Vec<u64>,
    /// Where in `probes` each one asked for is.
    places: Vec<usize>,
    before: Progress,
    drive: &'a Drive<'a>,
    done: AtomicU64,
    is_stopped: AtomicBool,
    /// The first probe that cannot be made, as far as is known: those after it need not be.
    failed: AtomicUsize,
}

impl<'a> Round<'a> {
    fn new(asked: &'a [Probe], before: Progress, drive: &'a Drive<'a>) -> Self {
        let (mut probes, mut times) = (Vec::new(), Vec::new());
        let mut known = HashMap::new();
        let mut places = Vec::with_capacity(asked.len());
        for probe in asked {
            let place = *known.entry(probe.key()).or_insert(probes.len());
            if place == probes.len() {
                probes.push(probe);
                times.push(0);
            }
            times[place] += 1;
            places.push(place);
        }
        Self {
            probes,
            times,
            places,
            before,
            drive,
            done: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            failed: AtomicUsize::new(usize::MAX),
        }
    }

    /// The verdicts, as asked.
    fn make(
        &self,
        judge: &(dyn Fn(&Probe) -> Result<Verdict, SimError> + Sync),
    ) -> Result<Vec<Verdict>, SimError> {
        let one = |at: usize| {
            if self.is_stopped.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed) < at {
                // Never seen: an error before it is, or the interruption.
                return Err(SimError::Interrupted);
            }
            let verdict = self.verdict(at, judge);
            match &verdict {
                Ok(_) => self.tell_control(at),
                Err(_) => _ = self.failed.fetch_min(at, Ordering::Relaxed),
            }
            verdict
        };
        let made: Vec<_> = (0..self.probes.len()).into_par_iter().with_max_len(1).map(one).collect();
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(SimError::Interrupted);
        }
        let made: Vec<Verdict> = made.into_iter().collect::<Result<_, _>>()?;
        Ok(self.places.iter().map(|&place| made[place].clone()).collect())
    }

    fn verdict(
        &self,
        at: usize,
        judge: &(dyn Fn(&Probe) -> Result<Verdict, SimError> + Sync),
    ) -> Result<Verdict, SimError> {
        let probe = self.probes[at];
        let Some(cache) = self.drive.cache else { return judge(probe) };
        // The key is that of the files as they are before the run.
        let key = cache.key(probe);
        if let Some(verdict) = cache.get_key(&key) {
            return Ok(verdict);
        }
        let verdict = judge(probe)?;
        cache.put_key(key, &verdict)?;
        Ok(verdict)
    }

    fn tell_control(&self, at: usize) {
        let done = self.before.done + self.done.fetch_add(self.times[at], Ordering::Relaxed) + self.times[at];
        let progress = Progress { done, expected: self.before.expected.max(done) };
        if !(self.drive.control)(progress) {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
