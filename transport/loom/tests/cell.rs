//! A layer's word, published, closed and waited for by several threads at once.

#![allow(clippy::unwrap_used, reason = "a thread that panicked fails the test")]

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;
use splitcore_transport_loom::word::{CellState, Generation, LayerCell, LayerSeal, Unpublishable};
use splitcore_transport_loom::{Fault, explore, explore_bounded};

const FOR_EVER: Duration = Duration::MAX;
const FIRST: Generation = Generation::FIRST;

fn seal(of: u32) -> LayerSeal {
    LayerSeal { tokens: of, bytes: u64::from(of) << 33 | 5, crc32c: Some(of + 2) }
}

/// A cell, and the layer's bytes, which nobody may touch while another one does.
#[derive(Default)]
struct Layer {
    cell: LayerCell,
    bytes: UnsafeCell<u32>,
}

fn a_reader_and_a_writer() {
    let layer = Arc::new(Layer::default());
    let writing = layer.clone();
    let writer = thread::spawn(move || {
        // SAFETY: the reader looks only after the publication.
        writing.bytes.with_mut(|bytes| unsafe { *bytes = 7 });
        assert_eq!(writing.cell.publish(FIRST, seal(1)), Ok(()));
    });
    let heard = layer.cell.wait(FIRST, FOR_EVER);
    // SAFETY: the writer has published, and writes no more.
    assert_eq!(layer.bytes.with(|bytes| unsafe { *bytes }), 7);
    assert_eq!(heard, CellState::Published(seal(1)));
    writer.join().unwrap();
}

#[test]
fn a_reader_sees_the_whole_seal_and_every_byte_before_it() {
    let orders = explore(Fault::None, a_reader_and_a_writer);
    eprintln!("orders {orders}");
    assert!(orders > 10);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_publication_that_does_not_release_tears_the_bytes() {
    explore(Fault::WordRelease, a_reader_and_a_writer);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_reader_that_does_not_acquire_reads_torn_bytes() {
    explore(Fault::WordAcquire, a_reader_and_a_writer);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_without_the_fence_a_wake_up_is_lost() {
    explore(Fault::Fence, a_reader_and_a_writer);
}

fn a_writer_and_one_who_closes() {
    let cell = Arc::new(LayerCell::default());
    let publishing = cell.clone();
    let publisher = thread::spawn(move || publishing.publish(FIRST, seal(1)));
    let closing = cell.clone();
    let closer = thread::spawn(move || closing.close(FIRST));
    let heard = cell.wait(FIRST, FOR_EVER);
    let published = publisher.join().unwrap();
    let closed = closer.join().unwrap();
    assert_eq!(published, if closed { Err(Unpublishable::Closed) } else { Ok(()) }, "one of the two wins");
    assert_eq!(heard, if closed { CellState::Closed } else { CellState::Published(seal(1)) });
    assert_eq!(cell.peek(FIRST), heard, "and it stays so");
}

#[test]
fn a_layer_is_published_or_closed_and_who_waits_learns_which() {
    let orders = explore_bounded(Fault::None, 3, a_writer_and_one_who_closes);
    eprintln!("orders {orders}");
    assert!(orders > 10);
}

#[test]
#[should_panic(expected = "one of the two wins")]
fn control_a_plain_store_both_publishes_and_closes() {
    explore_bounded(Fault::Exchange, 3, a_writer_and_one_who_closes);
}

fn two_readers_and_a_writer() {
    let cell = Arc::new(LayerCell::default());
    let readers = [0, 1].map(|_| {
        let cell = cell.clone();
        thread::spawn(move || assert_eq!(cell.wait(FIRST, FOR_EVER), CellState::Published(seal(1))))
    });
    assert_eq!(cell.publish(FIRST, seal(1)), Ok(()));
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn everyone_who_waits_is_woken() {
    let orders = explore_bounded(Fault::None, 3, two_readers_and_a_writer);
    eprintln!("orders {orders}");
    assert!(orders > 10);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_one_wake_up_is_too_few_for_two() {
    explore_bounded(Fault::WakeOne, 3, two_readers_and_a_writer);
}

#[test]
fn a_late_writer_leaves_the_next_generation_alone() {
    let orders = explore(Fault::None, || {
        let cell = Arc::new(LayerCell::default());
        let publishing = cell.clone();
        let late = thread::spawn(move || publishing.publish(FIRST, seal(1)));
        let closed = cell.close(FIRST);
        let second = FIRST.next();
        if closed {
            assert_eq!(cell.publish(second, seal(2)), Ok(()));
            assert_eq!(cell.peek(second), CellState::Published(seal(2)));
        } else {
            assert_eq!(cell.peek(FIRST), CellState::Published(seal(1)));
        }
        assert_eq!(late.join().unwrap().is_ok(), !closed);
        if closed {
            assert_eq!(cell.peek(second), CellState::Published(seal(2)));
        }
    });
    eprintln!("orders {orders}");
    assert!(orders > 10);
}

#[test]
fn a_late_reader_sees_its_own_seal_or_that_it_is_late() {
    let orders = explore(Fault::None, || {
        let cell = Arc::new(LayerCell::default());
        assert_eq!(cell.publish(FIRST, seal(1)), Ok(()));
        let publishing = cell.clone();
        let writer = thread::spawn(move || publishing.publish(FIRST.next(), seal(2)));
        let seen = cell.peek(FIRST);
        assert!([CellState::Published(seal(1)), CellState::Closed].contains(&seen), "{seen:?}");
        assert_eq!(writer.join().unwrap(), Ok(()));
        assert_eq!(cell.peek(FIRST), CellState::Closed);
        assert_eq!(cell.peek(FIRST.next()), CellState::Published(seal(2)));
    });
    eprintln!("orders {orders}");
    assert!(orders > 10);
}
