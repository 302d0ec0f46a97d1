use std::sync::Mutex;

use splitcore_sim::Options;

use super::*;
use crate::slo::SloSet;

fn probe(rate: f64) -> Probe {
    let options = Options {
        prompt: Some("1xdgx-h100".into()),
        token: Some("1xdgx-h100".into()),
        rate: Some(rate),
        requests: Some(60),
        ..Options::default()
    };
    Probe { options, slo: SloSet::named("splitwise").unwrap(), whole: false }
}

/// Bisects in as many ways as it has seeds, each round asking for all of them, some twice.
struct Bisection {
    ends: Vec<(f64, f64)>,
    rounds_left: u32,
    told: u64,
    log: Vec<Verdict>,
}

impl Bisection {
    fn new(searches: u32, rounds: u32) -> Self {
        let ends = (0..searches).map(|at| (0.0, 10.0 + f64::from(at))).collect();
        Self { ends, rounds_left: rounds, told: 0, log: Vec::new() }
    }
}

impl Search for Bisection {
    fn ask(&mut self) -> Vec<Probe> {
        if self.rounds_left == 0 {
            return Vec::new();
        }
        self.rounds_left -= 1;
        let each = |&(low, high): &(f64, f64)| probe(f64::midpoint(low, high));
        let mut probes: Vec<Probe> = self.ends.iter().map(each).collect();
        probes.push(probes[0].clone());
        probes
    }

    fn tell(&mut self, verdicts: &[Verdict]) {
        assert_eq!(verdicts.len(), self.ends.len() + 1);
        assert_eq!(verdicts.last(), verdicts.first());
        for ((low, high), verdict) in self.ends.iter_mut().zip(verdicts) {
            *if verdict.met { low } else { high } = f64::midpoint(*low, *high);
        }
        self.told += verdicts.len() as u64;
        self.log.extend_from_slice(verdicts);
    }

    fn progress(&self) -> Progress {
        Progress { done: self.told, expected: self.told }
    }
}

/// Anything that hangs on the probe alone.
fn made_up(probe: &Probe) -> Verdict {
    let rate = probe.options.rate.unwrap();
    Verdict {
        met: !((rate * 1e6) as u64).is_multiple_of(3),
        findings: Vec::new(),
        requests: 1,
        completed: 1,
        events: (rate * 1e9) as u64,
        cut_short: false,
        out_of_range_lookups: 0,
    }
}

fn drive_with(jobs: usize, cache: Option<&Cache>) -> Drive<'_> {
    Drive { jobs, cache, control: &|_| true }
}

#[test]
fn the_result_is_the_same_for_any_number_of_threads() {
    let results = [1, 2, 5].map(|jobs| {
        let mut search = Bisection::new(7, 20);
        drive_by(&mut search, &drive_with(jobs, None), &|probe| Ok(made_up(probe))).unwrap();
        (search.ends, search.log)
    });
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
    let real = [1, 2, 5].map(|jobs| {
        let mut search = Bisection::new(3, 3);
        drive(&mut search, &drive_with(jobs, None)).unwrap();
        (search.ends, search.log)
    });
    assert_eq!(real[0], real[1]);
    assert_eq!(real[0], real[2]);
    assert!(real[0].1.iter().any(|verdict| verdict.met) && real[0].1.iter().any(|verdict| !verdict.met));
}

#[test]
fn what_is_asked_twice_is_made_once() {
    let made = Mutex::new(Vec::new());
    let mut search = Bisection::new(4, 1);
    let judge = |probe: &Probe| {
        made.lock().unwrap().push(probe.options.rate);
        Ok(made_up(probe))
    };
    drive_by(&mut search, &drive_with(3, None), &judge).unwrap();
    assert_eq!(made.into_inner().unwrap().len(), 4);
    assert_eq!(search.told, 5);
}

#[test]
fn progress_counts_within_the_round() {
    let seen = Mutex::new(Vec::new());
    let control = |progress: Progress| {
        seen.lock().unwrap().push(progress.done);
        assert!(progress.expected >= progress.done);
        true
    };
    let mut search = Bisection::new(3, 2);
    let drive = Drive { jobs: 2, cache: None, control: &control };
    drive_by(&mut search, &drive, &|probe| Ok(made_up(probe))).unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    // Four probes a round, two of them the same.
    assert_eq!((seen.len(), seen[2], seen[5]), (6, 4, 8));
}

#[test]
fn the_first_error_in_order_is_told() {
    for jobs in [1, 2, 5] {
        let mut search = Bisection::new(6, 1);
        let has_later_failed = AtomicBool::new(false);
        let judge = |probe: &Probe| match probe.options.rate.unwrap() {
            6.0 => {
                while jobs > 1 && !has_later_failed.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                Err(SimError::Internal { reason: "earlier".into() })
            }
            7.0 => {
                has_later_failed.store(true, Ordering::Relaxed);
                Err(SimError::Internal { reason: "later".into() })
            }
            _ => Ok(made_up(probe)),
        };
        let told = drive_by(&mut search, &drive_with(jobs, None), &judge).unwrap_err();
        assert_eq!(told, SimError::Internal { reason: "earlier".into() });
        assert_eq!(search.told, 0);
    }
    // And of real ones.
    let mut search = Bisection::new(1, 1);
    search.ends[0] = (0.0, 0.0);
    let told = drive(&mut search, &drive_with(2, None)).unwrap_err().to_string();
    assert!(told.starts_with("rate: expected"), "{told}");
}

#[test]
fn an_interruption_ends_the_search() {
    let mut search = Bisection::new(6, 4);
    let count = AtomicU64::new(0);
    let control = |_| count.fetch_add(1, Ordering::Relaxed) < 8;
    let drive = Drive { jobs: 1, cache: None, control: &control };
    let told = drive_by(&mut search, &drive, &|probe| Ok(made_up(probe))).unwrap_err();
    assert_eq!(told, SimError::Interrupted);
    assert_eq!((search.told, count.into_inner()), (7, 9), "the second round is not told");
}
