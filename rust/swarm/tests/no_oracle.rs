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

/// Where the first end lies that two runs do not share: it comes at another place, or after another number of tokens.
/// The destination of a handoff can have one token more than the request by the time that an engine says the end, so
/// a shorter output can end at the very place at which a longer one does.
fn first_difference(setups: [&Setup; 2], runs: [&Outcomes; 2]) -> usize {
    let end = |run: usize, index: usize| {
        let at = runs[run].ended_at.get(&index).copied().unwrap_or(usize::MAX);
        (at, setups[run].clients[index].output_tokens)
    };
    let ends = (0..setups[0].clients.len()).map(|index| (end(0, index), end(1, index)));
    ends.filter(|(a, b)| a != b).map(|(a, b)| a.0.min(b.0)).min().unwrap_or(usize::MAX)
}

fn without_repeated_ids(seed: u64) -> Setup {
    let mut setup = Setup::random(seed);
    for client in &mut setup.clients {
        client.again_after_ns = None;
    }
    setup
}

/// Runs a world twice, the second time with other ends after a share of its record, in quarters. Every action before
/// the first end that differs is to be the same.
fn check_a_longer_future_changes_nothing_before_an_end(
    seed: u64,
    quarters: usize,
) -> Result<(), TestCaseError> {
    let setup = without_repeated_ids(seed);
    let first = recorded(setup.clone());
    let other = with_other_futures(&setup, &first, first.lines.len() * quarters / 4);
    let second = recorded(other.clone());
    let same = first_difference([&setup, &other], [&first, &second]).min(first.lines.len());
    prop_assert!(second.lines.len() >= same);
    for at in 0..same {
        prop_assert_eq!(&first.lines[at], &second.lines[at], "line {}", at);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_longer_future_changes_no_action_before_the_first_end_that_differs(seed in any::<u64>(), quarters in 0_usize..4) {
        check_a_longer_future_changes_nothing_before_an_end(seed, quarters)?;
    }
}

/// An output of one token and one of two end at the same place here: its destination had decoded once before the pass
/// of the prompt, in which the shorter one ended, was over.
#[test]
fn an_end_at_the_same_place_after_another_token_is_another_end() {
    check_a_longer_future_changes_nothing_before_an_end(57_055_407_243_758_777, 0).unwrap();
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
