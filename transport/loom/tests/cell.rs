//! A layer's word, published, closed and waited for by several threads at once.

#![allow(clippy::unwrap_used, reason = "a thread that panicked fails the test")]

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;
use splitcore_transport_loom::word::{CellState, Generation, LayerCell, LayerSeal, Unpublishable};
use splitcore_transport_loom::{Ends, Fault, explore, explore_bounded, slept, woke};

const FOR_EVER: Duration = Duration::MAX;
const FIRST: Generation = Generation::FIRST;

fn seal(of: u32) -> LayerSeal {
    LayerSeal { tokens: of, bytes: u64::from(of) << 33 | 5, crc32c: Some(of + 2) }
}

fn second() -> Generation {
    FIRST.next()
}

/// A cell, and the layer's bytes, which nobody may touch while another one does.
#[derive(Default)]
struct Layer {
    cell: LayerCell,
    bytes: UnsafeCell<u32>,
}

// SAFETY: loom watches the cell, and a race on it fails the model.
unsafe impl Sync for Layer {}

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
    let ends = Ends::none();
    let met = ends.clone();
    explore(Fault::None, move || {
        a_reader_and_a_writer();
        met.met((slept(), woke()));
    });
    // Nobody sleeps that is not woken, and nobody is woken without having said that it will sleep.
    assert_eq!(ends.all(), [(false, false), (false, true), (true, true)]);
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

/// Whether the layer was closed.
fn a_writer_and_one_who_closes() -> bool {
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
    closed
}

#[test]
fn a_layer_is_published_or_closed_and_who_waits_learns_which() {
    let ends = Ends::none();
    let met = ends.clone();
    explore_bounded(Fault::None, 4, move || met.met((a_writer_and_one_who_closes(), slept())));
    assert_eq!(ends.all(), [(false, false), (false, true), (true, false), (true, true)]);
}

#[test]
#[should_panic(expected = "one of the two wins")]
fn control_a_plain_store_both_publishes_and_closes() {
    explore_bounded(Fault::Exchange, 3, || {
        a_writer_and_one_who_closes();
    });
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
    explore_bounded(Fault::None, 3, two_readers_and_a_writer);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_one_wake_up_is_too_few_for_two() {
    explore_bounded(Fault::WakeOne, 3, two_readers_and_a_writer);
}

#[test]
fn who_waits_for_the_next_generation_sleeps_on_when_this_one_ends() {
    let ends = Ends::none();
    let met = ends.clone();
    explore_bounded(Fault::None, 3, move || {
        let cell = Arc::new(LayerCell::default());
        let waiting = cell.clone();
        let reader = thread::spawn(move || waiting.wait(second(), FOR_EVER));
        assert!(cell.close(FIRST));
        assert_eq!(cell.publish(second(), seal(2)), Ok(()));
        assert_eq!(reader.join().unwrap(), CellState::Published(seal(2)));
        met.met(slept());
    });
    assert_eq!(ends.all(), [false, true]);
}

#[test]
fn a_late_writer_leaves_the_next_generation_alone() {
    let ends = Ends::none();
    let met = ends.clone();
    explore_bounded(Fault::None, 3, move || {
        let cell = Arc::new(LayerCell::default());
        let publishing = cell.clone();
        let late = thread::spawn(move || publishing.publish(FIRST, seal(1)));
        let closed = cell.close(FIRST);
        if closed {
            assert_eq!(cell.publish(second(), seal(2)), Ok(()));
            assert_eq!(cell.peek(second()), CellState::Published(seal(2)), "the late one may still write");
        } else {
            assert_eq!(cell.peek(FIRST), CellState::Published(seal(1)));
        }
        let published = late.join().unwrap();
        assert_eq!(published.is_ok(), !closed);
        if closed {
            assert_eq!(cell.peek(second()), CellState::Published(seal(2)));
        }
        met.met(published.map_err(|error| error.to_string()));
    });
    let [stale, closed] = [Unpublishable::Stale, Unpublishable::Closed].map(|error| Err(error.to_string()));
    assert_eq!(ends.all(), [Ok(()), stale, closed]);
}

#[test]
fn a_late_reader_sees_its_own_seal_or_that_it_is_late() {
    let ends = Ends::none();
    let met = ends.clone();
    explore_bounded(Fault::None, 5, move || {
        let cell = Arc::new(LayerCell::default());
        assert_eq!(cell.publish(FIRST, seal(1)), Ok(()));
        let publishing = cell.clone();
        let writer = thread::spawn(move || publishing.publish(second(), seal(2)));
        let seen = cell.peek(FIRST);
        assert!([CellState::Published(seal(1)), CellState::Closed].contains(&seen), "{seen:?}");
        assert_eq!(writer.join().unwrap(), Ok(()));
        assert_eq!(cell.peek(FIRST), CellState::Closed);
        assert_eq!(cell.peek(second()), CellState::Published(seal(2)));
        met.met(seen == CellState::Closed);
    });
    assert_eq!(ends.all(), [false, true]);
}
