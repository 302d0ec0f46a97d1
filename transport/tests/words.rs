//! The shared words between real threads, and against simple models. All orders of few steps are loom's business.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use splitcore_transport::word::{
    CellState, DirtySet, DirtyWord, Doorbell, Generation, LayerCell, LayerSeal, Unpublishable,
};

/// No wait of these tests takes long unless a wake-up is lost.
const LONG: Duration = Duration::from_secs(20);
const ROUNDS: u32 = 2000;

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

fn seal(of: u32) -> LayerSeal {
    let bytes = u64::from(of) * 0x1_0000_0001;
    LayerSeal { tokens: of, bytes, crc32c: of.is_multiple_of(2).then_some(of ^ 0xffff_ffff) }
}

#[test]
fn zeroed_memory_is_a_fresh_cell_a_silent_bell_and_a_clean_set() {
    // SAFETY: all of them are valid when all bytes are zero, which is what this test is about.
    let (cell, bell, marks): (LayerCell, Doorbell, [DirtyWord; 2]) =
        unsafe { MaybeUninit::zeroed().assume_init() };
    for number in [1, 2, 1 << 30, (1 << 31) - 1] {
        assert_eq!(cell.peek(generation(number)), CellState::Pending, "generation {number}");
    }
    assert_eq!(bell.count(), 0);
    assert_eq!((DirtySet::new(&marks).take(0), DirtySet::new(&marks).take(1)), (0, 0));
    assert_eq!(cell.publish(Generation::LAST, seal(5)), Ok(()), "a fresh cell takes any generation");
    assert_eq!(cell.peek(Generation::LAST), CellState::Published(seal(5)));
}

#[test]
fn generations_start_again_at_one_and_stay_in_order() {
    assert_eq!(Generation::LAST.next(), Generation::FIRST);
    assert_eq!((Generation::new(0), Generation::new(1 << 31)), (None, None));
    let mut earlier = generation(Generation::LAST.get() - 2);
    for _ in 0..6 {
        let later = earlier.next();
        assert!(later.is_newer_than(earlier) && !earlier.is_newer_than(later), "{later:?} after {earlier:?}");
        assert!(!later.is_newer_than(later));
        assert_ne!(later.get(), 0);
        earlier = later;
    }
}

/// Maps the cell at the start of a memory file, for as long as the process lives.
fn map(file: &OwnedFd) -> &'static LayerCell {
    let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping of the whole file, which is zero at first and is never unmapped, nor used otherwise.
    unsafe { &*rustix::mm::mmap(std::ptr::null_mut(), 4096, read_write, shared, file, 0).unwrap().cast() }
}

#[test]
fn a_waiter_is_woken_through_another_mapping_of_the_same_memory() {
    let file = rustix::fs::memfd_create("words", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let (here, there) = (map(&file), map(&file));
    assert!(!std::ptr::eq(here, there));
    let answered = Doorbell::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=ROUNDS {
                assert_eq!(there.wait(generation(number), LONG), CellState::Published(seal(number)));
                answered.ring();
            }
        });
        for number in 1..=ROUNDS {
            assert_eq!(here.publish(generation(number), seal(number)), Ok(()));
            assert_eq!(answered.wait(number - 1, LONG), number, "no wake-up comes through");
        }
    });
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(usize),
    Close(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![(0_usize..8).prop_map(Step::Publish), (0_usize..8).prop_map(Step::Close)], 0..24)
}

proptest! {
    /// Against a model: the newest generation that ended, and how each one ended.
    #[test]
    fn a_generation_ends_once_and_never_after_a_newer_one(
        start in prop_oneof![Just(1_u32), Just((1 << 31) - 4)],
        steps in steps(),
    ) {
        let all: Vec<Generation> =
            std::iter::successors(Some(generation(start)), |of| Some(of.next())).take(8).collect();
        let cell = LayerCell::default();
        let mut ended = BTreeMap::<usize, bool>::new();
        for step in steps {
            let (Step::Publish(at) | Step::Close(at)) = step;
            let newest = ended.last_key_value().map(|(newest, published)| (*newest, *published));
            let fresh = newest.is_none_or(|(newest, _)| newest < at);
            match step {
                Step::Publish(_) => {
                    let expected = match newest {
                        _ if fresh => Ok(()),
                        Some((newest, true)) if newest == at => Err(Unpublishable::Twice),
                        Some((newest, false)) if newest == at => Err(Unpublishable::Closed),
                        _ => Err(Unpublishable::Stale),
                    };
                    prop_assert_eq!(cell.publish(all[at], seal(at as u32)), expected);
                }
                Step::Close(_) => prop_assert_eq!(cell.close(all[at]), fresh || newest == Some((at, false))),
            }
            if fresh {
                ended.insert(at, matches!(step, Step::Publish(_)));
            }
            let (newest, published) = ended.last_key_value().unwrap();
            for (at, of) in all.iter().enumerate() {
                let expected = match at.cmp(newest) {
                    std::cmp::Ordering::Greater => CellState::Pending,
                    std::cmp::Ordering::Equal if *published => CellState::Published(seal(at as u32)),
                    _ => CellState::Closed,
                };
                prop_assert_eq!(cell.peek(*of), expected);
                prop_assert_eq!(cell.wait(*of, Duration::ZERO), expected);
            }
        }
    }

    #[test]
    fn a_set_gives_back_what_was_marked_and_each_mark_once(slots in vec(0_usize..200, 0..80)) {
        let words: Vec<DirtyWord> = (0..DirtySet::words_for(200)).map(|_| DirtyWord::default()).collect();
        let set = DirtySet::new(&words);
        for slot in &slots {
            set.mark(*slot);
        }
        let mut expected = slots;
        expected.sort_unstable();
        expected.dedup();
        prop_assert_eq!(taken(set), expected);
        prop_assert_eq!(taken(set), Vec::<usize>::new());
    }
}

fn taken(set: DirtySet<'_>) -> Vec<usize> {
    let mut slots = Vec::new();
    for word in 0..set.words() {
        let bits = set.take(word);
        slots.extend((0..64).filter(|bit| bits & 1 << bit != 0).map(|bit| 64 * word + bit));
    }
    slots
}

#[test]
fn a_wait_that_nobody_ends_says_pending() {
    let cell = LayerCell::default();
    assert_eq!(cell.wait(Generation::FIRST, Duration::ZERO), CellState::Pending);
    assert_eq!(cell.wait(Generation::FIRST, Duration::from_millis(2)), CellState::Pending);
    assert!(cell.close(Generation::FIRST));
    assert_eq!(cell.wait(Generation::FIRST, Duration::MAX), CellState::Closed);
    assert_eq!(Doorbell::default().wait(0, Duration::from_millis(2)), 0);
}

#[test]
fn two_readers_follow_a_writer_through_many_generations() {
    let cell = LayerCell::default();
    let read = Doorbell::default();
    let bytes = [const { AtomicU64::new(0) }; 64];
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 1..=ROUNDS {
                    assert_eq!(cell.wait(generation(number), LONG), CellState::Published(seal(number)));
                    for byte in &bytes {
                        assert_eq!(byte.load(Ordering::Relaxed), u64::from(number), "a stale byte");
                    }
                    read.ring();
                }
            });
        }
        for number in 1..=ROUNDS {
            for byte in &bytes {
                byte.store(number.into(), Ordering::Relaxed);
            }
            assert_eq!(cell.publish(generation(number), seal(number)), Ok(()));
            let mut count = read.count();
            while count < 2 * number {
                let seen = count;
                count = read.wait(seen, LONG);
                assert_ne!(count, seen, "a reader is lost in generation {number}");
            }
        }
    });
}

#[test]
fn of_who_publishes_and_who_closes_one_wins_each_time() {
    let cells: Vec<LayerCell> = (0..ROUNDS).map(|_| LayerCell::default()).collect();
    let ends = thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            cells.iter().map(|cell| cell.publish(Generation::FIRST, seal(1)).is_ok()).collect::<Vec<_>>()
        });
        let closer =
            scope.spawn(|| cells.iter().rev().map(|cell| cell.close(Generation::FIRST)).collect::<Vec<_>>());
        for cell in &cells {
            assert_ne!(cell.wait(Generation::FIRST, LONG), CellState::Pending);
        }
        let published = publisher.join().unwrap();
        published.into_iter().zip(closer.join().unwrap().into_iter().rev()).collect::<Vec<_>>()
    });
    for (cell, (published, closed)) in cells.iter().zip(ends) {
        assert_ne!(published, closed);
        let end = if closed { CellState::Closed } else { CellState::Published(seal(1)) };
        assert_eq!(cell.peek(Generation::FIRST), end);
    }
}

#[test]
fn a_reader_of_many_cells_finds_all_that_several_writers_publish() {
    const SLOTS: usize = 192;
    let cells: Vec<LayerCell> = (0..SLOTS).map(|_| LayerCell::default()).collect();
    let words: Vec<DirtyWord> = (0..DirtySet::words_for(SLOTS)).map(|_| DirtyWord::default()).collect();
    let set = DirtySet::new(&words);
    let bell = Doorbell::default();
    for round in (1..=20).map(generation) {
        thread::scope(|scope| {
            for first in 0..3 {
                let (cells, bell) = (&cells, &bell);
                scope.spawn(move || {
                    for slot in (first..SLOTS).step_by(3) {
                        assert_eq!(cells[slot].publish(round, seal(slot as u32)), Ok(()));
                        set.mark(slot);
                        bell.ring();
                    }
                });
            }
            let mut found = [false; SLOTS];
            loop {
                let seen = bell.count();
                for slot in taken(set) {
                    assert_eq!(cells[slot].peek(round), CellState::Published(seal(slot as u32)));
                    found[slot] = true;
                }
                if found.iter().all(|found| *found) {
                    break;
                }
                assert_ne!(bell.wait(seen, LONG), seen, "a ring is lost");
            }
        });
    }
}
