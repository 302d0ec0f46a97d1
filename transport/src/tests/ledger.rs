//! The sender's books against a naive model, and their waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use splitcore_core::kv::{BlockId, KvRange, RangeError};
use splitcore_secret::Token;

use super::kit::{HERE, THERE, blocks, key, pool, shape, whole};
use crate::error::TransferError;
use crate::ledger::Ledger;
use crate::transfer::{Completion, Grant, PeerState, TransferKey};

const LAYERS: u16 = 3;
const BLOCKS: u32 = 4;
const BLOCK_BYTES: u32 = 32;

fn ledger() -> Ledger {
    Ledger::new(pool(LAYERS, BLOCKS), shape(LAYERS, BLOCKS), HERE)
}

fn grant(request: u64, granted: &[u32], layer_bytes: u64) -> Grant {
    let key = key(request, request as u32, 1);
    Grant {
        key,
        receiver: HERE,
        blocks: blocks(granted.iter().copied()),
        layer_bytes,
        token: Token::default(),
    }
}

fn range(layer: u16, to: u32, offset: u32, bytes: u32) -> KvRange {
    let first = u32::from(layer) * BLOCK_BYTES;
    KvRange { from: BlockId(0), from_offset: first, to: BlockId(to), to_offset: first + offset, bytes }
}

#[derive(Debug, Clone)]
enum Step {
    Begin(u64),
    Put(u64, u16, Vec<KvRange>),
    Publish(u64, u16),
    End(u64),
    Lose,
    Poll,
}

fn ranges() -> impl Strategy<Value = (u16, Vec<KvRange>)> {
    let one = (0..LAYERS + 1, 0..BLOCKS + 1, 0..5_u32, 0..5_u32, 0..20_u8);
    (0..LAYERS + 1, proptest::collection::vec(one, 0..4)).prop_map(|(layer, parts)| {
        let ranges = parts.into_iter().map(|(other, to, at, bytes, stray)| {
            // Mostly of the layer that is named.
            let of = if stray == 0 { other } else { layer };
            range(of, to, at * 8, bytes * 8)
        });
        (layer, ranges.collect())
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..3_u64).prop_map(Step::Begin),
        10 => (0..3_u64, ranges()).prop_map(|(of, (layer, ranges))| Step::Put(of, layer, ranges)),
        6 => (0..3_u64, 0..LAYERS + 1).prop_map(|(of, layer)| Step::Publish(of, layer)),
        1 => (0..3_u64).prop_map(Step::End),
        1 => Just(Step::Poll),
        1 => proptest::bool::weighted(0.1).prop_map(|lose| if lose { Step::Lose } else { Step::Poll }),
    ]
}

/// Every byte of a layer that is put, one by one.
#[derive(Debug, Clone)]
struct Model {
    grant: Grant,
    put: BTreeMap<u16, Vec<u64>>,
    published: Vec<u16>,
}

/// Blocks 0 to 2, which have 96 bytes in a layer; 64 of them are to come.
fn granted(of: u64) -> Grant {
    grant(of, &[0, 1, 2], 64)
}

impl Model {
    /// The places of a put, or `None` where it must be refused.
    fn places(&self, layer: u16, ranges: &[KvRange]) -> Option<Vec<u64>> {
        let shape = shape(LAYERS, BLOCKS);
        if layer >= LAYERS || self.published.contains(&layer) {
            return None;
        }
        let mut places = self.put.get(&layer).cloned().unwrap_or_default();
        for range in ranges {
            if range.bytes == 0 {
                return None;
            }
            let start = shape.locate(range.to, range.to_offset)?;
            let from = shape.locate(range.from, range.from_offset)?;
            if from + u64::from(range.bytes) > shape.bytes() {
                return None;
            }
            for place in start..start + u64::from(range.bytes) {
                let (block, offset) = shape.block_at(place)?;
                let is_ours = self.grant.blocks.contains(&block) && offset / BLOCK_BYTES == u32::from(layer);
                if !is_ours || places.contains(&place) {
                    return None;
                }
                places.push(place);
            }
        }
        (places.len() as u64 <= self.grant.layer_bytes).then_some(places)
    }
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    let ledger = ledger();
    let mut open: BTreeMap<u64, Model> = BTreeMap::new();
    let (mut expected, mut lost) = (Vec::new(), false);
    for step in steps {
        match step {
            Step::Begin(of) => {
                let grant = granted(*of);
                let begun = ledger.begin(&grant).is_ok();
                prop_assert_eq!(begun, !lost && !open.contains_key(of));
                if begun {
                    open.insert(*of, Model { grant, put: BTreeMap::new(), published: Vec::new() });
                }
            }
            Step::Put(of, layer, ranges) => {
                let places = open.get(of).filter(|_| !lost).and_then(|model| model.places(*layer, ranges));
                let put = ledger.put(granted(*of).key, *layer, ranges);
                prop_assert_eq!(put.is_ok(), places.is_some(), "{:?}", put);
                if let (Some(places), Some(model)) = (places, open.get_mut(of)) {
                    model.put.insert(*layer, places);
                }
            }
            Step::Publish(of, layer) => {
                let model = open.get_mut(of).filter(|_| !lost);
                let whole = model.is_some_and(|model| {
                    let put = model.put.get(layer).map_or(0, Vec::len) as u64;
                    let whole = put == model.grant.layer_bytes && !model.published.contains(layer);
                    if whole {
                        model.published.push(*layer);
                    }
                    whole
                });
                let last = open.get(of).is_some_and(|model| model.published.len() == usize::from(LAYERS));
                let sealed = ledger.publish(granted(*of).key, *layer);
                prop_assert_eq!(
                    sealed.clone().ok().map(|sealed| (sealed.bytes, sealed.last)),
                    whole.then_some((64, last))
                );
            }
            Step::End(of) => {
                let key = granted(*of).key;
                let ended = ledger.end(Completion::Fenced(key));
                prop_assert_eq!(ended, open.remove(of).is_some());
                expected.extend(ended.then_some(Completion::Fenced(key)));
            }
            Step::Lose => {
                lost = true;
                let why = |key: TransferKey| TransferError::PeerLost { key, peer: HERE };
                ledger.lose(why);
                let keys = std::mem::take(&mut open).into_values().map(|model| model.grant.key);
                expected.extend(keys.map(|key| Completion::Failed(key, why(key))));
            }
            Step::Poll => {
                prop_assert_eq!(ledger.wait(Duration::ZERO), !expected.is_empty());
                let mut ended = Vec::new();
                ledger.poll(&mut ended);
                prop_assert_eq!(&ended, &std::mem::take(&mut expected));
            }
        }
        let peer = if lost { PeerState::Lost } else { PeerState::Connected };
        prop_assert_eq!(ledger.peer(), peer);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.saturating_mul(2), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_agree_with_a_model_of_single_bytes(steps in proptest::collection::vec(step(), 1..60)) {
        check(&steps)?;
    }
}

#[test]
fn what_is_refused_is_named_and_leaves_the_books_as_they_were() {
    let ledger = ledger();
    let grant = grant(1, &[1, 2], 64);
    let key = grant.key;
    ledger.begin(&grant).unwrap();
    let whole = |to| whole(&shape(LAYERS, BLOCKS), 0, BlockId(3), BlockId(to));
    let put = |ranges: &[KvRange]| ledger.put(key, 0, ranges).map(|_| ());
    let refused = |range| Err(TransferError::Refused { key, layer: 0, range });
    assert_eq!(put(&[KvRange { bytes: 0, ..whole(1) }]), refused(RangeError::Empty));
    assert_eq!(put(&[whole(0)]), refused(RangeError::NotGranted { block: BlockId(0) }));
    assert_eq!(put(&[range(1, 1, 0, 32)]), refused(RangeError::OutsideLayer { layer: 0, touches: 1 }));
    let outside = KvRange { from: BlockId(BLOCKS), ..whole(1) };
    assert!(matches!(put(&[outside]), Err(TransferError::OutsideSource { block: BlockId(BLOCKS), .. })));
    let overlap = TransferError::Overlap { key, layer: 0, block: BlockId(1), offset: 0 };
    assert_eq!(put(&[whole(1), whole(1)]), Err(overlap));
    let short = TransferError::Incomplete { key, layer: 0, bytes: 0, expected: 64 };
    assert_eq!(ledger.publish(key, 0), Err(short), "nothing of those is booked");
    put(&[whole(1), whole(2)]).unwrap();
    assert_eq!(put(&[whole(1)]), Err(TransferError::Incomplete { key, layer: 0, bytes: 96, expected: 64 }));
    ledger.publish(key, 0).unwrap();
    assert_eq!(ledger.publish(key, 0), Err(TransferError::Published { key, layer: 0 }));
    assert_eq!(put(&[whole(1)]), Err(TransferError::Published { key, layer: 0 }));
    let none = TransferError::NoSuchLayer { key, layer: LAYERS, layers: LAYERS };
    assert_eq!(ledger.publish(key, LAYERS), Err(none));
}

#[test]
fn bytes_put_twice_do_not_stand_for_bytes_that_are_missing() {
    let ledger = ledger();
    let grant = grant(1, &[1, 2], 64);
    ledger.begin(&grant).unwrap();
    let first = whole(&shape(LAYERS, BLOCKS), 0, BlockId(3), BlockId(1));
    ledger.put(grant.key, 0, &[first]).unwrap();
    let again = ledger.put(grant.key, 0, &[first]);
    let overlap = TransferError::Overlap { key: grant.key, layer: 0, block: BlockId(1), offset: 0 };
    assert_eq!(again, Err(overlap));
    assert!(ledger.publish(grant.key, 0).is_err(), "block 2 has not been written");
}

#[test]
fn a_grant_of_another_life_of_the_receiver_is_refused() {
    let grant = Grant { receiver: THERE, ..grant(1, &[1], 32) };
    assert_eq!(ledger().begin(&grant), Err(TransferError::Unknown { key: grant.key }));
}

#[test]
fn a_poll_does_not_wait_for_a_thread_that_sleeps() {
    let ledger = Arc::new(ledger());
    let grant = grant(1, &[1], 32);
    ledger.begin(&grant).unwrap();
    let (sleeper, up) = (ledger.clone(), Arc::new(std::sync::Barrier::new(2)));
    let woken = std::thread::spawn({
        let up = up.clone();
        move || {
            up.wait();
            sleeper.wait(Duration::from_secs(20))
        }
    });
    up.wait();
    let mut ended = Vec::new();
    for _ in 0..1000 {
        ledger.poll(&mut ended);
        std::thread::yield_now();
    }
    ledger.end(Completion::Fenced(grant.key));
    assert!(woken.join().unwrap(), "the end came while it slept");
    ledger.poll(&mut ended);
    assert_eq!(ended, [Completion::Fenced(grant.key)]);
}

#[test]
fn ends_that_nobody_polls_take_up_the_places_of_transfers() {
    let ledger = ledger();
    for number in 0..crate::ledger::TRANSFERS_MAX as u64 {
        let grant = grant(number, &[1], 32);
        ledger.begin(&grant).unwrap();
        assert!(ledger.end(Completion::LocalDone(grant.key)));
        assert!(!ledger.end(Completion::Fenced(grant.key)), "one end each");
    }
    let one_more = grant(u64::from(u32::MAX), &[1], 32);
    assert!(matches!(ledger.begin(&one_more), Err(TransferError::Busy { .. })));
    let mut ended = Vec::new();
    ledger.poll(&mut ended);
    assert_eq!(ended.len(), crate::ledger::TRANSFERS_MAX);
    assert_eq!(ledger.begin(&one_more), Ok(()));
}

#[test]
fn who_sleeps_for_many_links_is_woken_by_each_end_and_by_a_loss() {
    use std::sync::Mutex;
    let ledger = Arc::new(ledger());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (of, into) = (Arc::downgrade(&ledger), seen.clone());
    ledger.on_end(Arc::new(move || {
        let ledger = of.upgrade().unwrap();
        // What it is woken for is there to be seen.
        let mut ended = Vec::new();
        ledger.poll(&mut ended);
        into.lock().unwrap().push((ended.len(), ledger.peer()));
    }));
    ledger.on_end(Arc::new(|| panic!("only the first call counts")));
    let grants: Vec<Grant> = (1..4).map(|request| grant(request, &[1], 32)).collect();
    for grant in &grants {
        ledger.begin(grant).unwrap();
    }
    assert!(ledger.end(Completion::Fenced(grants[0].key)));
    assert!(!ledger.end(Completion::Fenced(grants[0].key)));
    ledger.lose(|key| TransferError::PeerLost { key, peer: HERE });
    assert_eq!(*seen.lock().unwrap(), [(1, PeerState::Connected), (2, PeerState::Lost)]);
}
