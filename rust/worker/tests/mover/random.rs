//! Legs that are granted, put, stopped and aborted in any order.

use std::collections::BTreeMap;

use proptest::prelude::*;
use splitcore_core::id::LegKey;
use splitcore_core::kv::BlockId;
use splitcore_transport::Backend;
use splitcore_worker::mover::{Follow, MoverEvent};

use crate::kit::{BOTH, LAYERS, Machine, key, options};

#[derive(Debug, Clone, Copy)]
enum Step {
    Grant,
    Put,
    Follow,
    /// The pass computes so many layers more.
    Layers(u16),
    /// The pass is over, whether or not it has computed all.
    Over,
    Stop,
    Abort,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Grant),
        3 => Just(Step::Put),
        3 => Just(Step::Follow),
        5 => (1..=LAYERS).prop_map(Step::Layers),
        1 => Just(Step::Over),
        1 => Just(Step::Stop),
        1 => Just(Step::Abort),
    ]
}

#[derive(Default)]
struct Leg {
    from: Vec<BlockId>,
    to: Vec<BlockId>,
    tokens: u32,
    granted: bool,
    follow: Option<Follow>,
    /// Layers that are computed, once it goes.
    layers: Option<u16>,
    stopped: bool,
    aborted: bool,
    ends: Vec<MoverEvent>,
}

struct World {
    source: Machine,
    destination: Machine,
    legs: BTreeMap<LegKey, Leg>,
}

impl World {
    fn new(backend: Backend, count: u64) -> Self {
        let source = Machine::with_blocks(0, options(backend), 128);
        let destination = Machine::with_blocks(1, options(backend), 128);
        let legs = (0..count).map(|request| {
            let (first, tokens) = (16 * request as u32, 3 + 7 * request as u32 % 30);
            let (from, to) = (source.table(first, tokens), destination.table(first, tokens));
            (key(request), Leg { from, to, tokens, ..Leg::default() })
        });
        let legs = legs.collect();
        Self { source, destination, legs }
    }

    fn step(&mut self, of: LegKey, step: Step) {
        let Self { source, destination, legs } = self;
        let leg = legs.get_mut(&of).unwrap();
        match step {
            Step::Grant if !leg.granted && !leg.aborted => {
                destination.grant(of, source, &leg.to, leg.tokens);
                leg.granted = true;
            }
            Step::Put if leg.granted && leg.layers.is_none() => {
                source.fill_all(&leg.from, leg.tokens, of.request.0);
                source.mover.put(of, destination.address.machine, &leg.from, leg.tokens);
                leg.layers = Some(LAYERS);
            }
            Step::Follow if leg.granted && leg.layers.is_none() => {
                let to = destination.address.machine;
                leg.follow = Some(source.mover.follow(of, to, &leg.from, leg.tokens));
                leg.layers = Some(0);
            }
            Step::Layers(more) => {
                let (Some(follow), Some(layers)) = (&mut leg.follow, &mut leg.layers) else { return };
                for _ in 0..more.min(LAYERS - *layers) {
                    source.fill(&leg.from, *layers, leg.tokens, of.request.0);
                    follow.put_layer(*layers);
                    *layers += 1;
                }
            }
            Step::Over => leg.follow = None,
            Step::Stop if leg.layers.is_some() && !leg.stopped => {
                source.mover.stop(of);
                leg.stopped = true;
            }
            Step::Abort if leg.granted && !leg.aborted => {
                destination.mover.abort(of);
                leg.aborted = true;
            }
            Step::Grant | Step::Put | Step::Follow | Step::Stop | Step::Abort => {}
        }
    }

    /// Every leg comes to its end, and only to one.
    fn settle(mut self) -> Result<(), TestCaseError> {
        let keys: Vec<LegKey> = self.legs.keys().copied().collect();
        for &of in &keys {
            self.step(of, Step::Layers(LAYERS));
            let Self { source, destination, legs } = &mut self;
            let leg = legs.get_mut(&of).unwrap();
            leg.follow = None;
            if leg.layers.is_some() {
                leg.ends.push(source.end(of));
                // Who stops what was done is told that it is fenced as well.
                if leg.stopped && matches!(leg.ends[0], MoverEvent::LocalDone { .. }) {
                    leg.ends.push(source.end(of));
                }
            }
            if leg.aborted {
                destination.fenced(of);
            }
        }
        for (&of, leg) in &self.legs {
            match &leg.ends[..] {
                [] => prop_assert!(leg.layers.is_none()),
                [MoverEvent::LocalDone { .. }, rest @ ..] => {
                    prop_assert!(leg.layers == Some(LAYERS));
                    prop_assert!(matches!(rest, [] | [MoverEvent::Fenced { .. }]), "{rest:?}");
                    if !leg.aborted {
                        self.destination.until_landed(of);
                        self.destination.verify(&leg.to, leg.tokens, of.request.0);
                    }
                }
                [MoverEvent::Fenced { .. }] => prop_assert!(leg.stopped),
                [MoverEvent::Failed { reason, .. }] => {
                    prop_assert!(leg.aborted || leg.layers < Some(LAYERS), "{reason}");
                }
                ends => prop_assert!(false, "{ends:?}"),
            }
        }
        for &of in &keys {
            self.source.mover.close(of);
            self.destination.mover.close(of);
        }
        self.destination.until_free();
        prop_assert_eq!(self.source.finish(), vec![]);
        // The first to end is lost to the other, which may have seen it.
        let mut told = self.destination.finish();
        told.retain(|event| !matches!(event, MoverEvent::PeerLost { .. }));
        prop_assert_eq!(told, vec![]);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_leg_comes_to_one_end_with_its_bytes_and_no_slot_stays_in_use(
        tcp in any::<bool>(),
        steps in proptest::collection::vec((0..6_u64, step()), 1..80),
    ) {
        let mut world = World::new(BOTH[usize::from(tcp)], 6);
        for (request, step) in steps {
            world.step(key(request), step);
        }
        world.settle()?;
    }
}
