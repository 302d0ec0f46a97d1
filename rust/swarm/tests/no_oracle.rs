//! No oracle: only the engine reveals an end. Requests that end later, and how much later, change no earlier action.

use proptest::prelude::*;
use splitcore_swarm::setup::Setup;
use splitcore_swarm::world::{Outcomes, World};

fn recorded(setup: Setup) -> Outcomes {
    World::new(setup).recording().run()
}

/// The same world, but requests that end after a line of its record have other outputs.
fn with_other_futures(setup: &Setup, first: &Outcomes, line: usize) -> Setup {
    let mut other = setup.clone();
    for (index, client) in other.clients.iter_mut().enumerate() {
        if first.ended_at.get(&index).is_none_or(|&ended| ended > line) {
            client.output_tokens = client.max_new_tokens;
        }
    }
    other
}

/// Where the first end lies that only one of two runs has at that place.
fn first_difference(setup: &Setup, first: &Outcomes, second: &Outcomes) -> usize {
    let at = |run: &Outcomes, index: usize| run.ended_at.get(&index).copied().unwrap_or(usize::MAX);
    let ends = (0..setup.clients.len()).map(|index| (at(first, index), at(second, index)));
    ends.filter(|(a, b)| a != b).map(|(a, b)| a.min(b)).min().unwrap_or(usize::MAX)
}

fn without_repeated_ids(seed: u64) -> Setup {
    let mut setup = Setup::random(seed);
    for client in &mut setup.clients {
        client.again_after_ns = None;
    }
    setup
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_longer_future_changes_no_action_before_the_first_end_that_differs(seed in any::<u64>(), share in 0_usize..4) {
        let setup = without_repeated_ids(seed);
        let first = recorded(setup.clone());
        let line = first.lines.len() * share / 4;
        let second = recorded(with_other_futures(&setup, &first, line));
        let same = first_difference(&setup, &first, &second).min(first.lines.len());
        prop_assert!(second.lines.len() >= same);
        for at in 0..same {
            prop_assert_eq!(&first.lines[at], &second.lines[at], "line {}", at);
        }
    }
}

#[test]
fn the_two_runs_do_differ_after_that_end() {
    let differs = |seed: &u64| {
        let setup = without_repeated_ids(*seed);
        let first = recorded(setup.clone());
        let second = recorded(with_other_futures(&setup, &first, first.lines.len() / 2));
        first.lines != second.lines
    };
    assert!((0..20).filter(differs).count() > 5, "the comparison above compares a run with itself");
}
