//! One end for each transfer, whatever is heard of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::kit::{HERE, THERE, key};
use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::outcomes::{Outcome, Outcomes, Overdue};
use crate::transfer::{Completion, TransferKey};

const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
enum Step {
    Begin(usize, u64),
    Hear(usize, u8),
    Stop(usize),
    Time(u64),
    Closed(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6_usize, 0..20_u64).prop_map(|(of, within)| Step::Begin(of, within)),
        (0..6_usize, 0..3_u8).prop_map(|(of, kind)| Step::Hear(of, kind)),
        (0..6_usize).prop_map(Step::Stop),
        (0..8_u64).prop_map(Step::Time),
        any::<bool>().prop_map(Step::Closed),
    ]
}

/// Two receivers that give out the same keys, and two transfers of a slot.
fn named(of: usize) -> (Incarnation, TransferKey) {
    let receiver = if of.is_multiple_of(2) { HERE } else { THERE };
    (receiver, key(1, (of / 4) as u32, (of / 2 % 2) as u32 + 1))
}

fn end(kind: u8, key: TransferKey) -> Completion {
    match kind {
        0 => Completion::LocalDone(key),
        1 => Completion::Fenced(key),
        _ => Completion::Failed(key, TransferError::Unknown { key }),
    }
}

/// By number: the leg, when it is due, and whether it was stopped.
type Begun = BTreeMap<usize, (usize, Duration, bool)>;

/// Whom to stop now, and, of those who were stopped before, whom to close.
fn fall_due(begun: &mut Begun, now: Duration) -> (Vec<(Incarnation, TransferKey)>, BTreeSet<Incarnation>) {
    let (mut stops, mut closes) = (Vec::new(), BTreeSet::new());
    for (&of, (_, due, stopped)) in begun.iter_mut().filter(|(_, (_, due, _))| *due <= now) {
        if *stopped {
            closes.insert(named(of).0);
        } else {
            (*due, *stopped) = (now + GRACE, true);
            stops.push(named(of));
        }
    }
    (stops, closes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.saturating_mul(2), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_transfer_that_was_begun_ends_once(steps in proptest::collection::vec(step(), 1..60)) {
        let mut outcomes = Outcomes::new(GRACE);
        // When each is due, and whether it was stopped.
        let mut begun = Begun::new();
        let (mut now, mut leg) = (Duration::ZERO, 0);
        for step in steps {
            match step {
                Step::Begin(of, within) => {
                    let ((receiver, key), due) = (named(of), now + Duration::from_secs(within));
                    leg += 1;
                    prop_assert_eq!(outcomes.begin(leg, receiver, key, due), !begun.contains_key(&of));
                    begun.entry(of).or_insert((leg, due, false));
                }
                Step::Hear(of, kind) => {
                    let (receiver, key) = named(of);
                    let heard = outcomes.hear(receiver, end(kind, key));
                    let expected = begun.remove(&of)
                        .map(|(leg, ..)| Outcome { leg, receiver, end: end(kind, key) });
                    prop_assert_eq!(heard, expected);
                }
                Step::Stop(of) => {
                    let (receiver, key) = named(of);
                    let known = begun.get_mut(&of);
                    prop_assert_eq!(outcomes.stopped(receiver, key, now), known.is_some());
                    if let Some((_, due, stopped)) = known.filter(|(.., stopped)| !stopped) {
                        (*due, *stopped) = (now + GRACE, true);
                    }
                }
                Step::Time(seconds) => {
                    now += Duration::from_secs(seconds);
                    let (stops, closes) = fall_due(&mut begun, now);
                    let overdue = outcomes.overdue(now);
                    for (receiver, key) in &stops {
                        prop_assert!(overdue.contains(&Overdue::Stop(*receiver, *key)));
                    }
                    for receiver in &closes {
                        let count = overdue.iter().filter(|&one| *one == Overdue::Close(*receiver)).count();
                        prop_assert_eq!(count, 1);
                    }
                    prop_assert_eq!(overdue.len(), stops.len() + closes.len());
                }
                Step::Closed(here) => {
                    let receiver = if here { HERE } else { THERE };
                    let mut legs: Vec<usize> =
                        outcomes.closed(receiver).into_iter().map(|outcome| outcome.leg).collect();
                    let mut expected = Vec::new();
                    begun.retain(|&of, (leg, ..)| {
                        let closed = named(of).0 == receiver;
                        expected.extend(closed.then_some(*leg));
                        !closed
                    });
                    legs.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(legs, expected);
                }
            }
            prop_assert_eq!(outcomes.len(), begun.len());
            prop_assert_eq!(outcomes.next_due(), begun.values().map(|&(_, due, _)| due).min());
        }
    }
}

#[test]
fn the_late_end_of_a_legs_first_transfer_is_not_its_second_ones() {
    let mut outcomes = Outcomes::new(GRACE);
    let (first, second) = (key(7, 0, 1), key(7, 0, 2));
    assert!(outcomes.begin("leg", HERE, first, GRACE));
    assert!(outcomes.hear(HERE, Completion::Fenced(first)).is_some());
    assert!(outcomes.begin("leg", HERE, second, GRACE));
    assert_eq!(outcomes.hear(HERE, Completion::LocalDone(first)), None);
    assert_eq!(outcomes.hear(THERE, Completion::LocalDone(second)), None, "another receiver's of that name");
    assert!(outcomes.hear(HERE, Completion::LocalDone(second)).is_some());
}
