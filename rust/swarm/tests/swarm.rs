//! The whole core in random worlds full of faults: whatever happens, every accepted request ends once, with its
//! tokens, and nothing is left over.

use proptest::prelude::*;
use splitcore_swarm::{run, swarm};

/// The first seeds; `SWARM_SEEDS=from..to` runs others.
fn seeds() -> (u64, u64) {
    let range = std::env::var("SWARM_SEEDS").unwrap_or_else(|_| "0..300".to_owned());
    let parsed = range.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let (from, to) = parsed.unwrap_or_else(|| panic!("SWARM_SEEDS: expected from..to, got {range}"));
    assert!(from < to, "SWARM_SEEDS: expected from..to, got {range}");
    (from, to)
}

#[test]
fn consecutive_seeds_end_well() {
    let (from, to) = seeds();
    let summary = swarm(from, to - from, 2, |_, _| true);
    let failing: Vec<u64> = summary.failed.iter().map(|failed| failed.seed).collect();
    if let Some(first) = summary.failed.first() {
        panic!("{first}\n{} of {} seeds failed: {failing:?}", failing.len(), summary.seeds);
    }
    if to - from >= 100 {
        assert!(summary.median_events >= 2_000, "median seed: {} events", summary.median_events);
        assert!(summary.median_faults >= 10, "median seed: {} faults", summary.median_faults);
    }
}

#[test]
fn a_swarm_finds_the_same_however_many_threads_it_has() {
    assert_eq!(swarm(40, 12, 1, |_, _| true), swarm(40, 12, 3, |_, _| true));
}

/// A machine that is paused can hear that another is gone before it hears that their session began anew.
#[test]
fn a_machine_that_is_known_to_be_gone_is_told_nothing_again() {
    let seed = run(25_490);
    assert!(seed.is_ok(), "{}", seed.unwrap_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(6), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_seed_ends_well_and_again_in_the_same_way(seed in any::<u64>()) {
        let first = run(seed);
        prop_assert!(first.is_ok(), "{}", first.unwrap_err());
        prop_assert_eq!(first, run(seed));
    }
}
