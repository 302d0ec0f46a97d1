//! Boards and memory that are not what a peer said.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};

use super::kit::{HERE, THERE, seal};
use crate::board::Board;
use crate::error::MemoryError;
use crate::memory::Mapping;
use crate::word::{CellState, Generation, Unpublishable};

const SLOTS: u32 = 70;
const LAYERS: u16 = 3;

fn copy(board: &Board) -> OwnedFd {
    board.fd().try_clone_to_owned().unwrap()
}

fn memory(seals: SealFlags, len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn a_peer_opens_the_board_that_it_was_told_of_and_no_other() {
    let board = Board::create(SLOTS, LAYERS, HERE).unwrap();
    assert!(Board::open(copy(&board), SLOTS, LAYERS, HERE).is_ok());
    let open = |slots, layers, owner| Board::open(copy(&board), slots, layers, owner).map(|_| ());
    assert_eq!(open(SLOTS, LAYERS, THERE), Err(MemoryError::NotABoard));
    assert_eq!(open(SLOTS - 1, LAYERS, HERE), Err(MemoryError::NotABoard));
    assert_eq!(open(SLOTS, LAYERS - 1, HERE), Err(MemoryError::NotABoard));
    assert_eq!(open(0, LAYERS, HERE), Err(MemoryError::Empty));
    assert!(matches!(open(u32::MAX, u16::MAX, HERE), Err(MemoryError::TooShort { .. })));
    assert!(matches!(Board::create(0, LAYERS, HERE), Err(MemoryError::Empty)));
    let other = Mapping::create("test", 1 << 16).unwrap();
    let other = Board::open(other.fd().try_clone_to_owned().unwrap(), SLOTS, LAYERS, HERE);
    assert!(matches!(other, Err(MemoryError::NotABoard)), "memory of zeros");
}

#[test]
fn memory_that_a_peer_could_shrink_or_that_is_too_short_is_not_mapped() {
    let open = |fd| Board::open(fd, SLOTS, LAYERS, HERE).map(|_| ());
    assert_eq!(open(memory(SealFlags::empty(), 1 << 20)), Err(MemoryError::NotSealed));
    assert_eq!(open(memory(SealFlags::GROW | SealFlags::SEAL, 1 << 20)), Err(MemoryError::NotSealed));
    assert!(matches!(open(memory(SealFlags::SHRINK, 4096)), Err(MemoryError::TooShort { found: 4096, .. })));
    assert!(matches!(open(memory(SealFlags::SHRINK, 0)), Err(MemoryError::TooShort { found: 0, .. })));
    let (file, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(open(file.into()), Err(MemoryError::NotSealed), "no memory at all");
}

#[test]
fn what_lies_outside_the_board_is_closed() {
    let board = Board::create(SLOTS, LAYERS, HERE).unwrap();
    let first = Generation::FIRST;
    for (slot, layer) in [(SLOTS, 0), (0, LAYERS), (u32::MAX, u16::MAX)] {
        assert_eq!(board.publish(slot, first, layer, seal(1)), Err(Unpublishable::Closed));
        assert_eq!(board.peek(slot, first, layer), CellState::Closed);
        assert_eq!(board.wait(slot, first, layer, Duration::MAX), CellState::Closed);
    }
    board.changed(u32::MAX);
    assert_eq!(board.close(SLOTS, first), 0);
    board.take_changed(|slot| panic!("slot {slot} has not changed"));
}

#[test]
fn every_slot_that_changed_is_told_once_to_whoever_has_the_board() {
    let ours = Board::create(SLOTS, LAYERS, HERE).unwrap();
    let theirs = Board::open(copy(&ours), SLOTS, LAYERS, HERE).unwrap();
    let changed = || {
        let mut slots = Vec::new();
        ours.take_changed(|slot| slots.push(slot));
        slots
    };
    let rings = ours.rings();
    for slot in [69, 0, 63, 64, 0] {
        theirs.changed(slot);
    }
    assert_ne!(ours.wait_change(rings, Duration::MAX), rings);
    assert_eq!(changed(), [0, 63, 64, 69]);
    assert!(changed().is_empty());
    let (first, next) = (Generation::FIRST, Generation::FIRST.next());
    theirs.publish(64, first, 1, seal(5)).unwrap();
    assert_eq!(ours.peek(64, first, 1), CellState::Published(seal(5)));
    assert_eq!(ours.close(64, first), LAYERS - 1);
    assert_eq!(theirs.publish(64, first, 0, seal(5)), Err(Unpublishable::Closed));
    assert_eq!(theirs.publish(64, first, 1, seal(5)), Err(Unpublishable::Twice));
    assert_eq!(ours.close(64, next), LAYERS);
    assert_eq!(theirs.publish(64, first, 1, seal(5)), Err(Unpublishable::Stale));
    assert_eq!(changed(), [64]);
}
