//! Many seeds.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use splitcore_core::leg::LegState;

use crate::failures::Failure;
use crate::run::{Failed, Run, run};
use crate::world::Counters;

/// What a swarm has found. The same for the same seeds, however many threads ran them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Those that failed, by seed.
    pub failed: Vec<Failed>,
    /// Events of those that went well.
    pub events: u64,
    /// Events of the median seed, of those that went well.
    pub median_events: u64,
    /// Faults of the median seed, of those that went well.
    pub median_faults: u64,
    /// How often a leg in this state met this failure.
    pub hits: BTreeMap<(LegState, Failure), u64>,
    /// The sums of what was counted.
    pub counters: Counters,
    /// Stands for every action of every seed.
    pub digest: u64,
}

/// Runs `seeds` seeds from `from` on, `jobs` at a time, and tells `progress` after each how many are done and how
/// many of them failed. Where that answers false, no further seed is begun.
pub fn swarm(from: u64, seeds: u64, jobs: usize, progress: impl Fn(u64, u64) -> bool + Sync) -> Summary {
    summarise(results(from, seeds, jobs, progress))
}

/// As [`swarm`], but ends with the first seed that fails: no other is begun. Seeds are begun in order, so it is the
/// same one however many threads there are.
pub fn first_failure(from: u64, seeds: u64, jobs: usize) -> Option<Failed> {
    let mut results = results(from, seeds, jobs, |_, failed| failed == 0).into_iter();
    results.find_map(|(_, result)| result.err())
}

/// Seeds and how they ended, in order, until all are done or `goes_on` does not want more.
fn results(
    from: u64,
    seeds: u64,
    jobs: usize,
    goes_on: impl Fn(u64, u64) -> bool + Sync,
) -> Vec<(u64, Result<Run, Failed>)> {
    let next = AtomicU64::new(0);
    let done = Mutex::new((0, 0));
    let work = || {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= seeds {
                return results;
            }
            let result = run(from + at);
            if let Ok(mut done) = done.lock() {
                done.0 += 1;
                done.1 += u64::from(result.is_err());
                if !goes_on(done.0, done.1) {
                    next.store(seeds, Ordering::Relaxed);
                }
            }
            results.push((from + at, result));
        }
    };
    let mut results: Vec<(u64, Result<Run, Failed>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    results.sort_by_key(|(seed, _)| *seed);
    results
}

fn summarise(results: Vec<(u64, Result<Run, Failed>)>) -> Summary {
    let mut summary = Summary { seeds: results.len() as u64, ..Summary::default() };
    let (mut events, mut faults) = (Vec::new(), Vec::new());
    for (_, result) in results {
        match result {
            Ok(run) => {
                summary.events += run.events;
                events.push(run.events);
                faults.push(run.faults);
                summary.counters.add(&run.counters);
                summary.digest = summary.digest.rotate_left(5) ^ run.digest;
                for (cell, count) in run.hits {
                    *summary.hits.entry(cell).or_insert(0) += count;
                }
            }
            Err(failed) => summary.failed.push(failed),
        }
    }
    (summary.median_events, summary.median_faults) = (median(events), median(faults));
    summary
}

fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}
