//! The board: a word for each slot and layer, on which writers publish and readers wait.
//!
//! It lies in shared memory, so that a writer in another process publishes with two stores. Its first page says what
//! it is; then come the marks of slots that changed, then the cells. All-zero memory is a board on which nothing was
//! ever published.

use std::mem::size_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::MemoryError;
use crate::handshake::{Incarnation, PROTOCOL};
use crate::memory::Mapping;
use crate::word::{
    CellState, DirtySet, DirtyWord, Doorbell, Generation, LayerCell, LayerSeal, Unpublishable,
};

const MAGIC: u64 = u64::from_le_bytes(*b"splitkvb");
const PAGE: usize = 4096;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    incarnation: AtomicU64,
    protocol: AtomicU32,
    slots: AtomicU32,
    layers: AtomicU32,
    unused: AtomicU32,
    doorbell: Doorbell,
}

/// A board, ours or a peer's.
#[derive(Debug)]
pub struct Board {
    mapping: Mapping,
    slots: u32,
    layers: u16,
}

/// Bytes of the marks and, behind them, of all.
fn extents(slots: u32, layers: u16) -> (usize, usize) {
    let marks = DirtySet::words_for(slots as usize) * size_of::<DirtyWord>();
    let marks = marks.next_multiple_of(size_of::<LayerCell>());
    (PAGE + marks, PAGE + marks + slots as usize * usize::from(layers) * size_of::<LayerCell>())
}

impl Board {
    /// A new board for so many transfers at once.
    ///
    /// # Errors
    /// No memory.
    pub fn create(slots: u32, layers: u16, owner: Incarnation) -> Result<Self, MemoryError> {
        if slots == 0 || layers == 0 {
            return Err(MemoryError::Empty);
        }
        let mapping = Mapping::create("splitcore-board", extents(slots, layers).1)?;
        let board = Self { mapping, slots, layers };
        let header = board.header();
        header.incarnation.store(owner.0, Ordering::Relaxed);
        header.protocol.store(u32::from(PROTOCOL), Ordering::Relaxed);
        header.slots.store(slots, Ordering::Relaxed);
        header.layers.store(u32::from(layers), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(board)
    }

    /// A peer's board, by the descriptor it sent.
    ///
    /// # Errors
    /// It is too small, not sealed, or not the board of that peer.
    pub fn open(fd: OwnedFd, slots: u32, layers: u16, owner: Incarnation) -> Result<Self, MemoryError> {
        if slots == 0 || layers == 0 {
            return Err(MemoryError::Empty);
        }
        let board = Self { mapping: Mapping::open(fd, extents(slots, layers).1)?, slots, layers };
        let header = board.header();
        let fits = header.magic.load(Ordering::Acquire) == MAGIC
            && header.incarnation.load(Ordering::Relaxed) == owner.0
            && header.protocol.load(Ordering::Relaxed) == u32::from(PROTOCOL)
            && header.slots.load(Ordering::Relaxed) == slots
            && header.layers.load(Ordering::Relaxed) == u32::from(layers);
        if fits { Ok(board) } else { Err(MemoryError::NotABoard) }
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and longer than a page, and the header is atomics, for which every
        // bit pattern is valid and which other processes may change.
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    fn marks(&self) -> DirtySet<'_> {
        // SAFETY: as for the header; `extents` leaves room for one bit a slot between the first page and the cells.
        let words = unsafe {
            std::slice::from_raw_parts(
                self.mapping.base().add(PAGE).cast::<DirtyWord>().as_ptr(),
                DirtySet::words_for(self.slots as usize),
            )
        };
        DirtySet::new(words)
    }

    fn cell(&self, slot: u32, layer: u16) -> Option<&LayerCell> {
        if slot >= self.slots || layer >= self.layers {
            return None;
        }
        let index = slot as usize * usize::from(self.layers) + usize::from(layer);
        let offset = extents(self.slots, self.layers).0 + index * size_of::<LayerCell>();
        // SAFETY: inside the mapping by the check above, aligned by `extents`, and atomics all through.
        Some(unsafe { self.mapping.base().add(offset).cast::<LayerCell>().as_ref() })
    }

    /// Transfers at once.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Layers of each.
    pub fn layers(&self) -> u16 {
        self.layers
    }

    /// The descriptor, for a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }

    /// Makes a layer visible; every byte of it must be in place. A slot or layer outside counts as closed.
    ///
    /// # Errors
    /// It was closed, or published, or the slot is another's by now.
    pub fn publish(
        &self,
        slot: u32,
        generation: Generation,
        layer: u16,
        seal: LayerSeal,
    ) -> Result<(), Unpublishable> {
        self.cell(slot, layer).ok_or(Unpublishable::Closed)?.publish(generation, seal)?;
        self.changed(slot);
        Ok(())
    }

    /// Closes what is not published of a slot; says how many layers that were.
    pub fn close(&self, slot: u32, generation: Generation) -> u16 {
        let closed = (0..self.layers)
            .filter(|&layer| self.cell(slot, layer).is_some_and(|cell| cell.close(generation)))
            .count() as u16;
        self.changed(slot);
        closed
    }

    /// What a layer's word says.
    pub fn peek(&self, slot: u32, generation: Generation, layer: u16) -> CellState {
        self.cell(slot, layer).map_or(CellState::Closed, |cell| cell.peek(generation))
    }

    /// Sleeps until a layer is published or closed; [`CellState::Pending`] when the time is up first.
    pub fn wait(&self, slot: u32, generation: Generation, layer: u16, within: Duration) -> CellState {
        self.cell(slot, layer).map_or(CellState::Closed, |cell| cell.wait(generation, within))
    }

    /// Marks a slot as changed and wakes who waits for any.
    pub fn changed(&self, slot: u32) {
        if slot < self.slots {
            self.marks().mark(slot as usize);
            self.header().doorbell.ring();
        }
    }

    /// The slots that changed since the last call.
    pub fn take_changed(&self, mut each: impl FnMut(u32)) {
        let set = self.marks();
        for word in 0..set.words() {
            let mut marks = set.take(word);
            while marks != 0 {
                each((word * DirtySet::SLOTS_PER_WORD) as u32 + marks.trailing_zeros());
                marks &= marks - 1;
            }
        }
    }

    /// Rings so far; see [`wait_change`](Self::wait_change).
    pub fn rings(&self) -> u32 {
        self.header().doorbell.count()
    }

    /// Wakes who waits for any change.
    pub fn ring(&self) {
        self.header().doorbell.ring();
    }

    /// Sleeps until the bell has rung since `seen`, at most `within`; gives the rings by then.
    pub fn wait_change(&self, seen: u32, within: Duration) -> u32 {
        self.header().doorbell.wait(seen, within)
    }
}
