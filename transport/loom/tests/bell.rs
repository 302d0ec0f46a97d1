//! A doorbell alone, and with marks over cells.

#![allow(clippy::unwrap_used, reason = "a thread that panicked fails the test")]

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use splitcore_transport_loom::word::{
    CellState, DirtySet, DirtyWord, Doorbell, Generation, LayerCell, LayerSeal,
};
use splitcore_transport_loom::{Ends, Fault, explore, explore_bounded, slept, woke};

const FOR_EVER: Duration = Duration::MAX;
const SEAL: LayerSeal = LayerSeal { tokens: 3, bytes: 4, crc32c: None };

fn two_rings() {
    let bell = Arc::new(Doorbell::default());
    let ringers = [0, 1].map(|_| {
        let bell = bell.clone();
        thread::spawn(move || bell.ring())
    });
    let mut seen = 0;
    while seen != 2 {
        seen = bell.wait(seen, FOR_EVER);
    }
    for ringer in ringers {
        ringer.join().unwrap();
    }
}

#[test]
fn every_ring_is_heard() {
    let ends = Ends::none();
    let met = ends.clone();
    explore_bounded(Fault::None, 3, move || {
        two_rings();
        met.met((slept(), woke()));
    });
    assert_eq!(ends.all(), [(false, false), (false, true), (true, true)]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_without_the_fence_a_ring_is_lost() {
    explore_bounded(Fault::Fence, 3, two_rings);
}

#[derive(Default)]
struct Table {
    cells: [LayerCell; 2],
    marks: [DirtyWord; 1],
    bell: Doorbell,
}

/// In which order the writers and the reader go about it.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Right,
    /// A writer rings before it marks.
    RingsFirst,
    /// The reader takes the count after the marks.
    CountsLast,
}

fn write(table: &Table, slot: usize, order: Order) {
    assert_eq!(table.cells[slot].publish(Generation::FIRST, SEAL), Ok(()));
    if order == Order::RingsFirst {
        table.bell.ring();
        DirtySet::new(&table.marks).mark(slot);
    } else {
        DirtySet::new(&table.marks).mark(slot);
        table.bell.ring();
    }
}

/// Looks at marked slots only, until so many were seen published, and sleeps in between.
fn read(table: &Table, slots: u32, order: Order) {
    let mut found = 0_u64;
    loop {
        let early = table.bell.count();
        let marks = DirtySet::new(&table.marks).take(0);
        for slot in (0..2).filter(|slot| marks & 1 << slot != 0) {
            assert_eq!(
                table.cells[slot].peek(Generation::FIRST),
                CellState::Published(SEAL),
                "a mark is late"
            );
            found |= 1 << slot;
        }
        if found.count_ones() == slots {
            return;
        }
        let seen = if order == Order::CountsLast { table.bell.count() } else { early };
        table.bell.wait(seen, FOR_EVER);
    }
}

fn one_slot(order: Order) {
    let table = Arc::new(Table::default());
    let writing = table.clone();
    let writer = thread::spawn(move || write(&writing, 1, order));
    read(&table, 1, order);
    writer.join().unwrap();
}

#[test]
fn a_published_slot_is_found_by_its_mark() {
    let ends = Ends::none();
    let met = ends.clone();
    explore_bounded(Fault::None, 4, move || {
        one_slot(Order::Right);
        met.met(slept());
    });
    assert_eq!(ends.all(), [false, true]);
}

#[test]
fn no_slot_of_two_writers_is_missed() {
    explore_bounded(Fault::None, 2, || {
        let table = Arc::new(Table::default());
        let writers = [0, 1].map(|slot| {
            let table = table.clone();
            thread::spawn(move || write(&table, slot, Order::Right))
        });
        read(&table, 2, Order::Right);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_ring_before_the_mark_misses_a_slot() {
    explore(Fault::None, || one_slot(Order::RingsFirst));
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_count_after_the_marks_misses_a_slot() {
    explore(Fault::None, || one_slot(Order::CountsLast));
}
