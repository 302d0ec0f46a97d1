//! A slower link keeps what a link promises.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, KvRange, PoolShape, Values};

use super::kit::{HERE, Local, THERE, blocks, bytes, fill, shape, whole};
use crate::error::TransferError;
use crate::landing::Landing;
use crate::pool::Pool;
use crate::throttle::{Throttle, Wire};
use crate::transfer::{Completion, Grant, Link};

const LAYERS: u16 = 2;
const LONG: Duration = Duration::from_secs(30);
const FAST: u64 = 400_000_000;

/// Blocks of 128 KiB in a layer: several pieces each.
fn large() -> PoolShape {
    let mut shape = shape(LAYERS, 4);
    shape.layout.values = Values::Heads { heads: 1, head_dim: 16384 };
    shape
}

struct Pair {
    source: Arc<Pool>,
    landing: Landing,
    inner: Arc<Local>,
    link: Throttle,
}

fn pair(bytes_per_second: u64) -> Pair {
    let source = Arc::new(Pool::shared(large()).unwrap());
    let landing = Landing::new(Arc::new(Pool::shared(large()).unwrap()), HERE, 4).unwrap();
    let inner = Local::join(source.clone(), &landing, THERE);
    let wire = Wire {
        bytes_per_second: NonZeroU64::new(bytes_per_second).unwrap(),
        latency: Duration::from_micros(200),
    };
    let link = Throttle::new(inner.clone(), source.clone(), HERE, wire).unwrap();
    Pair { source, landing, inner, link }
}

impl Pair {
    fn begin(&self, granted: &[u32]) -> Grant {
        let blocks = blocks(granted.iter().copied());
        let layer_bytes = blocks.len() as u64 * u64::from(large().layout.layer_block_bytes());
        let grant = self.landing.open(THERE, RequestId(1), blocks, layer_bytes).unwrap();
        self.link.begin(&grant).unwrap();
        grant
    }

    fn send(&self, grant: &Grant) {
        for layer in 0..LAYERS {
            let ranges: Vec<_> =
                grant.blocks.iter().map(|&to| whole(&large(), layer, BlockId(3 - to.0), to)).collect();
            self.link.put(grant.key, layer, &ranges).unwrap();
            self.link.publish(grant.key, layer, 2).unwrap();
        }
    }

    /// The one end, and that there is no other.
    fn end(&self) -> Completion {
        let mut ended = Vec::new();
        while ended.is_empty() {
            assert!(self.link.wait(LONG), "nothing ends");
            self.link.poll(&mut ended);
        }
        assert!(!self.link.wait(Duration::from_millis(20)), "one end each");
        self.link.poll(&mut ended);
        assert_eq!(ended.len(), 1);
        ended.remove(0)
    }
}

#[test]
fn what_goes_over_a_slower_wire_lands_whole() {
    let pair = pair(FAST);
    for block in 0..4 {
        for layer in 0..LAYERS {
            let byte = |place: usize| (place as u32 * 7 / 3 + block * 50 + u32::from(layer)) as u8;
            fill(&pair.source, layer, BlockId(block), byte);
        }
    }
    let grant = pair.begin(&[2, 0, 1]);
    pair.send(&grant);
    for layer in 0..LAYERS {
        pair.landing.wait_layer(grant.key, layer, LONG).unwrap();
        for &to in &grant.blocks {
            let same = bytes(pair.landing.pool(), layer, to) == bytes(&pair.source, layer, BlockId(3 - to.0));
            assert!(same, "layer {layer}, block {}", to.0);
        }
    }
    assert_eq!(pair.end(), Completion::LocalDone(grant.key));
}

#[test]
fn what_waits_for_the_wire_can_be_stopped_and_is_never_written() {
    let pair = pair(1);
    let grant = pair.begin(&[0]);
    pair.send(&grant);
    pair.link.stop(grant.key);
    assert_eq!(pair.end(), Completion::Fenced(grant.key));
    assert_eq!(pair.landing.landed(grant.key), Ok(0));
    assert!(bytes(pair.landing.pool(), 0, BlockId(0)).iter().all(|&byte| byte == 0));
}

#[test]
fn a_stopped_transfer_holds_up_none_behind_it() {
    // What is stopped would take a day, what is behind it a second.
    let pair = pair(1);
    let first = pair.begin(&[0]);
    pair.send(&first);
    let second = pair.landing.open(THERE, RequestId(2), blocks([1]), 1).unwrap();
    pair.link.begin(&second).unwrap();
    let tiny = KvRange { bytes: 1, ..whole(&large(), 0, BlockId(3), BlockId(1)) };
    pair.link.put(second.key, 0, &[tiny]).unwrap();
    pair.link.publish(second.key, 0, 1).unwrap();
    pair.link.stop(first.key);
    assert_eq!(pair.landing.wait_layer(second.key, 0, LONG).map(|seal| seal.bytes), Ok(1));
}

#[test]
fn what_the_inner_link_would_refuse_is_refused_at_once() {
    let pair = pair(1);
    let grant = pair.begin(&[0]);
    let key = grant.key;
    let range = whole(&large(), 0, BlockId(3), BlockId(0));
    let elsewhere = whole(&large(), 0, BlockId(3), BlockId(1));
    assert!(matches!(pair.link.put(key, 0, &[elsewhere]), Err(TransferError::Refused { .. })));
    assert!(matches!(pair.link.publish(key, 0, 2), Err(TransferError::Incomplete { .. })));
    pair.link.put(key, 0, &[range]).unwrap();
    assert!(pair.link.put(key, 0, &[range]).is_err());
    pair.link.publish(key, 0, 2).unwrap();
    assert_eq!(pair.link.publish(key, 0, 2), Err(TransferError::Published { key, layer: 0 }));
    assert_eq!(pair.link.begin(&grant), Err(TransferError::Unknown { key }));
}

#[test]
fn a_transfer_that_the_inner_link_refuses_later_fails_once_with_its_reason() {
    let pair = pair(FAST);
    let reason = TransferError::Io { what: "send", reason: "no route".to_owned() };
    pair.inner.refusals.lock().unwrap().push_back(reason.clone());
    let grant = pair.begin(&[0]);
    let ranges = [whole(&large(), 0, BlockId(3), BlockId(0))];
    pair.link.put(grant.key, 0, &ranges).unwrap();
    assert_eq!(pair.end(), Completion::Failed(grant.key, reason));
}

#[test]
fn a_busy_inner_link_is_asked_again() {
    let pair = pair(FAST);
    let busy = TransferError::Busy { queued: 1, limit: 1 };
    pair.inner.refusals.lock().unwrap().extend([busy.clone(), busy.clone(), busy]);
    let grant = pair.begin(&[0, 1]);
    pair.send(&grant);
    assert_eq!(pair.end(), Completion::LocalDone(grant.key));
}

#[test]
fn a_receiver_that_stops_and_one_that_goes_end_what_waits() {
    let pair = pair(1);
    let (first, second) = (pair.begin(&[0]), pair.begin(&[1]));
    pair.send(&first);
    pair.landing.stop(first.key).unwrap();
    assert_eq!(pair.end(), Completion::Fenced(first.key));
    pair.landing.left(THERE, true);
    assert!(
        matches!(pair.end(), Completion::Failed(key, TransferError::PeerLost { .. }) if key == second.key)
    );
    assert!(matches!(pair.link.put(second.key, 0, &[]), Err(TransferError::PeerLost { .. })));
}

#[test]
fn dropping_it_ends_its_thread_and_stops_what_waits() {
    let pair = pair(1);
    let grant = pair.begin(&[0]);
    pair.send(&grant);
    let Pair { inner, link, source: _, landing: _ } = pair;
    drop(link);
    let mut ended = Vec::new();
    inner.poll(&mut ended);
    assert_eq!(ended, [Completion::Fenced(grant.key)]);
}
