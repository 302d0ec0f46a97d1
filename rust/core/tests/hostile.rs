//! A Cluster among machines that lie: whatever they say, in whatever order, nothing panics, the books are right, and
//! what is refused changes nothing.

#[path = "kit/hostile.rs"]
mod hostile;

use hostile::Draws;
use proptest::prelude::*;
use splitcore_core::cluster::Cluster;
use splitcore_core::event::ClusterEvent;

/// A Cluster and its time.
fn begin(draws: &mut Draws<'_>) -> (Cluster, u64) {
    (Cluster::new(hostile::config(draws)).expect("its options are in range"), 0)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Several machines register with whatever claims, in the grace time and after it, again and again.
    #[test]
    fn any_registrations_leave_the_books_right(seed in any::<u64>(), steps in 2_usize..14) {
        let mut draws = Draws::new(&[], seed);
        let (mut cluster, mut now) = begin(&mut draws);
        for _ in 0..steps {
            now += draws.below(25);
            let event = match draws.below(8) {
                0 => ClusterEvent::Tick,
                1 => hostile::event(&cluster, &mut draws),
                _ => hostile::registration(&cluster, &mut draws),
            };
            hostile::apply(&mut cluster, now, &event);
        }
        hostile::apply(&mut cluster, now + 1_000, &ClusterEvent::Tick);
    }

    /// Events of every kind, from machines that are there or not, about legs that they were given or not.
    #[test]
    fn any_events_leave_the_books_right_and_nobody_is_heard_of_what_he_was_not_given(
        seed in any::<u64>(),
        steps in 5_usize..60,
    ) {
        let mut draws = Draws::new(&[], seed);
        let (mut cluster, mut now) = begin(&mut draws);
        for _ in 0..steps {
            now += draws.below(15);
            let event = hostile::event(&cluster, &mut draws);
            hostile::apply(&mut cluster, now, &event);
        }
    }
}
