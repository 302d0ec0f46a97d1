//! Rules of the receiving half, one by one.

use std::time::Duration;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, RangeError};

use super::kit::{Stranger, THERE, blocks, key, landing, seal};
use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::landing::Arrival;
use crate::transfer::PeerState;

const LAYERS: u16 = 3;
const BLOCKS: u32 = 4;

#[test]
fn what_cannot_be_written_is_not_granted() {
    let landing = landing(LAYERS, BLOCKS, 1);
    let open = |granted, bytes| landing.open(THERE, RequestId(1), blocks(granted), bytes).map(|_| ());
    let refused = |range| Err(TransferError::Refused { key: key(1, 0, 1), layer: 0, range });
    assert_eq!(open(vec![], 32), refused(RangeError::Empty));
    assert_eq!(open(vec![0], 0), refused(RangeError::Empty));
    let outside = RangeError::OutsidePool { block: BlockId(BLOCKS), offset: 0, bytes: 0 };
    assert_eq!(open(vec![0, BLOCKS], 32), refused(outside));
    assert_eq!(landing.in_use(), 0, "no slot is lost over it");
    assert_eq!(open(vec![0], 32), Ok(()));
    assert_eq!(open(vec![1], 32), Err(TransferError::NoSlot { slots: 1 }));
}

#[test]
fn more_than_the_blocks_hold_is_not_granted() {
    let landing = landing(LAYERS, BLOCKS, 1);
    let open = |bytes| landing.open(THERE, RequestId(1), blocks([0, 1]), bytes).map(|_| ());
    let range = RangeError::OutsidePool { block: BlockId(1), offset: 0, bytes: 65 };
    assert_eq!(open(65), Err(TransferError::Refused { key: key(1, 0, 1), layer: 0, range }));
    assert_eq!(open(64), Ok(()));
}

#[test]
fn a_transfer_that_has_landed_cannot_fail_any_more() {
    let landing = landing(LAYERS, BLOCKS, 1);
    let key = landing.open(THERE, RequestId(1), blocks([0]), 32).unwrap().key;
    for layer in 0..LAYERS {
        landing.publish(THERE, key, layer, seal(32)).unwrap();
    }
    landing.fail(key, TransferError::Protocol("a frame that came twice".to_owned()));
    let mut arrivals = Vec::new();
    landing.poll(&mut arrivals);
    assert_eq!(arrivals, [Arrival::Layers { key, layers: LAYERS, of: LAYERS }]);
    assert_eq!(landing.release(key), Ok(()));
}

#[test]
fn a_writer_that_has_died_is_not_merely_silent() {
    let landing = landing(LAYERS, BLOCKS, 1);
    landing.joined(THERE, Stranger::new(false)).unwrap();
    landing.left(THERE, true);
    // The end of its socket is heard after its death.
    landing.left(THERE, false);
    assert_eq!(landing.writer_state(THERE), PeerState::Lost);
}

#[test]
fn the_late_end_of_an_earlier_connection_does_not_end_the_next_one() {
    let landing = landing(LAYERS, BLOCKS, 1);
    let (one, two, next) = (Stranger::new(true), Stranger::new(true), Stranger::new(true));
    landing.joined(THERE, one.clone()).unwrap();
    landing.joined(THERE, two.clone()).unwrap();
    landing.parted(THERE, &*one, false);
    assert_eq!(landing.writer_state(THERE), PeerState::Lost);
    landing.joined(THERE, next.clone()).unwrap();
    let key = landing.open(THERE, RequestId(1), blocks([0]), 32).unwrap().key;
    landing.parted(THERE, &*two, false);
    assert_eq!(landing.writer_state(THERE), PeerState::Connected);
    assert_eq!(landing.publish(THERE, key, 0, seal(32)), Ok(()));
    landing.parted(THERE, &*next, false);
    assert_eq!(landing.writer_state(THERE), PeerState::Lost);
    assert_eq!(landing.wait_layer(key, 1, Duration::ZERO), Err(TransferError::PeerLost { key, peer: THERE }));
}

#[test]
fn whoever_writes_elsewhere_is_told_to_stop_and_is_fenced_by_its_answer_alone() {
    let landing = landing(LAYERS, BLOCKS, 1);
    let writer = Stranger::new(false);
    landing.joined(THERE, writer.clone()).unwrap();
    let key = landing.open(THERE, RequestId(1), blocks([0]), 32).unwrap().key;
    landing.stop(key).unwrap();
    assert_eq!(*writer.stopped.lock().unwrap(), [key]);
    assert_eq!(landing.release(key), Err(TransferError::NotFenced { key }));
    landing.fenced(Incarnation(77), key);
    assert_eq!(landing.release(key), Err(TransferError::NotFenced { key }), "another's word is nothing");
    landing.fenced(THERE, key);
    let mut arrivals = Vec::new();
    landing.poll(&mut arrivals);
    assert_eq!(arrivals, [Arrival::Fenced(key)]);
    assert_eq!(landing.release(key), Ok(()));
}
