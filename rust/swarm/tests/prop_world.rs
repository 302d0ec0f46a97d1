//! The whole core in a random world: whatever happens, every accepted request ends once, with its tokens, and
//! nothing is left over.

use proptest::prelude::*;
use splitcore_swarm::world::{Setup, World};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_accepted_request_ends_once_and_nothing_is_left_over(seed in any::<u64>()) {
        World::new(Setup::random(seed)).run();
    }

    #[test]
    fn handoffs_given_up_at_any_point_leave_nothing_over(seed in any::<u64>()) {
        World::new(Setup::interrupted(seed)).run();
    }
}

/// The same over consecutive seeds: `WORLD_SEEDS=from..to` runs others than the first few.
#[test]
fn consecutive_seeds_end_well() {
    let range = std::env::var("WORLD_SEEDS").unwrap_or_else(|_| "0..3000".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let fails = |setup: Setup| std::panic::catch_unwind(|| World::new(setup).run()).is_err();
    let failing = (from..to).filter(|&seed| fails(Setup::random(seed)) || fails(Setup::interrupted(seed)));
    let failing: Vec<u64> = failing.collect();
    assert!(failing.is_empty(), "{} failing seeds: {failing:?}", failing.len());
}
