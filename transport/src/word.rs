//! The words that a writer in one process publishes and a reader in another one waits for.
//!
//! All types here lie in memory that several processes map. They are valid when that memory is all zero, never move,
//! and are only ever used through shared references.
//!
//! - [`LayerCell`]: one layer of one slot. It ends published or closed, never both.
//! - [`Doorbell`] and [`DirtySet`]: "something changed", and where, for one reader over many cells.
//!
//! # Why no wake-up is lost
//!
//! Waking costs a system call, so a writer wakes only if someone waits. The sleeper raises `waiters`, then looks at
//! the word a last time (the kernel does, before it puts the thread to sleep); the writer changes the word, then
//! looks at `waiters`. Between the two steps of either side stands a `SeqCst` fence, so at least one of the two sees
//! what the other did: the writer wakes, or the sleeper does not sleep. A sleeper that is killed leaves `waiters` too
//! high for good, which costs a system call per change and nothing else.
//!
//! # Why a late writer does no harm
//!
//! A writer that was given up may still run, be it between its last look at the word and its publication. The word
//! then refuses it, as the exchange compares. But it writes the seal before that, and the slot may by then belong to
//! the next generation: so every part of a seal carries its generation, and an older one never replaces a newer one.
//!
//! This file names nothing but `crate::sync` and the standard library: the loom models include it as it is.

use std::fmt;
use std::time::Duration;

use crate::sync::{AtomicU32, AtomicU64, Deadline, FutexWord, Ordering, fence};

/// Set in a layer's word when its generation was closed, not published.
const CLOSED: u32 = 1 << 31;

/// What a finished layer says of itself, so that the receiver can check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSeal {
    /// Tokens whose KV the layer holds.
    pub tokens: u32,
    /// Bytes written for it.
    pub bytes: u64,
    /// CRC32C over them, where the backend checks.
    pub crc32c: Option<u32>,
}

/// Which use of a slot: it grows with every use, so that what was meant for an earlier one is told apart.
///
/// It is never 0, which is what a fresh word holds. After 2^31 - 1 uses it starts again at 1; of two that are less
/// than 2^30 uses apart it is always clear which is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(u32);

impl Generation {
    /// The first use of a slot.
    pub const FIRST: Self = Self(1);

    /// The last before they start again.
    pub const LAST: Self = Self(CLOSED - 1);

    /// The generation of a number that came from elsewhere; `None` unless it is in `1..2^31`.
    pub fn new(number: u32) -> Option<Self> {
        (number != 0 && number & CLOSED == 0).then_some(Self(number))
    }

    /// Its number, in `1..2^31`.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The next use of the same slot.
    #[must_use]
    pub fn next(self) -> Self {
        if self == Self::LAST { Self::FIRST } else { Self(self.0 + 1) }
    }

    /// Whether this is a later use of the slot than `other`.
    pub fn is_newer_than(self, other: Self) -> bool {
        // 31 bits wrap; that 0 is left out shifts the distance by one, which the halves do not notice.
        let ahead = self.0.wrapping_sub(other.0) & !CLOSED;
        ahead != 0 && ahead < 1 << 30
    }

    /// Whether a word or tag, its top bit aside, is of an earlier use than this, or of none.
    fn is_newer_than_raw(self, raw: u32) -> bool {
        Self::new(raw & !CLOSED).is_none_or(|other| self.is_newer_than(other))
    }
}

/// Why a layer could not be published. Either way it is not visible, and nothing that is visible has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpublishable {
    /// The receiver closed this generation.
    Closed,
    /// It has been published before.
    Twice,
    /// The slot has gone on to a newer generation.
    Stale,
}

impl fmt::Display for Unpublishable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the receiver has closed this generation of the layer",
            Self::Twice => "this generation of the layer has been published before",
            Self::Stale => "the layer's slot has gone on to a newer generation",
        })
    }
}

impl std::error::Error for Unpublishable {}

/// Where one generation of a layer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellState {
    /// Neither published nor closed.
    Pending,
    /// Every byte is in place, and may be read.
    Published(LayerSeal),
    /// It will never be visible: it was closed, or the slot has gone on.
    Closed,
}

/// A futex word and the number of those who sleep on it.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct WaitWord {
    word: FutexWord,
    waiters: AtomicU32,
}

impl WaitWord {
    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    /// For a word with a single writer; [`WaitWord::notify`] follows.
    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.word.store(value, order);
    }

    /// Wakes those who sleep, after a change of the word.
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.word.wake_all();
        }
    }

    /// Waits until `done` likes the word, at most `within`; the word as it was seen last.
    pub(crate) fn wait_until(&self, within: Duration, done: impl Fn(u32) -> bool) -> u32 {
        let mut seen = self.word.load(Ordering::Acquire);
        if done(seen) {
            return seen;
        }
        let deadline = Deadline::after(within);
        while let Some(left) = deadline.left() {
            self.waiters.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.word.wait(seen, left);
            self.waiters.fetch_sub(1, Ordering::Relaxed);
            seen = self.word.load(Ordering::Acquire);
            if done(seen) {
                break;
            }
        }
        seen
    }
}

/// A part of a seal, and the generation it is of: `tag << 32 | value`.
#[derive(Debug, Default)]
#[repr(transparent)]
struct Lane(AtomicU64);

impl Lane {
    /// Writes, unless a part of this generation or a newer one is there.
    fn write(&self, generation: Generation, flag: bool, value: u32) {
        let tag = generation.0 | if flag { CLOSED } else { 0 };
        let new = u64::from(tag) << 32 | u64::from(value);
        let mut old = self.0.load(Ordering::Relaxed);
        while generation.is_newer_than_raw((old >> 32) as u32) {
            match self.0.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// The flag and the value, if they are of this generation.
    fn read(&self, generation: Generation) -> Option<(bool, u32)> {
        let lane = self.0.load(Ordering::Relaxed);
        let tag = (lane >> 32) as u32;
        (tag & !CLOSED == generation.0).then_some((tag & CLOSED != 0, lane as u32))
    }
}

/// One layer of one slot: its word, and the seal of what was published.
///
/// One writer per generation; any number that look, wait or close, in any process.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct LayerCell {
    word: WaitWord,
    tokens: Lane,
    /// Its flag says whether there is one.
    crc32c: Lane,
    bytes_low: Lane,
    bytes_high: Lane,
}

impl LayerCell {
    /// Makes everything that this thread has written for the layer visible, and wakes who waits.
    ///
    /// # Errors
    /// [`Unpublishable`]; whoever waits sees nothing of this call then.
    pub fn publish(&self, generation: Generation, seal: LayerSeal) -> Result<(), Unpublishable> {
        let mut seen = self.word.load(Ordering::Acquire);
        publishable(seen, generation)?;
        self.tokens.write(generation, false, seal.tokens);
        self.crc32c.write(generation, seal.crc32c.is_some(), seal.crc32c.unwrap_or(0));
        self.bytes_low.write(generation, false, seal.bytes as u32);
        self.bytes_high.write(generation, false, (seal.bytes >> 32) as u32);
        while let Err(now) = self.exchange(seen, generation.0) {
            publishable(now, generation)?;
            seen = now;
        }
        Ok(())
    }

    /// Ends a generation that will not be published, and wakes who waits: it was given up, or its writer has died.
    ///
    /// True if the generation is closed, by this call or by one before, and so will never be visible. False if it has
    /// been published, or if the slot has gone on to a newer one.
    pub fn close(&self, generation: Generation) -> bool {
        let mut seen = self.word.load(Ordering::Acquire);
        loop {
            if !generation.is_newer_than_raw(seen) {
                return seen == generation.0 | CLOSED;
            }
            match self.exchange(seen, generation.0 | CLOSED) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Where a generation stands now.
    pub fn peek(&self, generation: Generation) -> CellState {
        self.state(self.word.load(Ordering::Acquire), generation)
    }

    /// Waits until a generation is published or closed. [`CellState::Pending`] says that the time is up.
    pub fn wait(&self, generation: Generation, within: Duration) -> CellState {
        let seen = self.word.wait_until(within, |word| !generation.is_newer_than_raw(word));
        self.state(seen, generation)
    }

    fn exchange(&self, seen: u32, new: u32) -> Result<(), u32> {
        self.word.word.compare_exchange(seen, new, Ordering::Release, Ordering::Acquire)?;
        self.word.notify();
        Ok(())
    }

    fn state(&self, seen: u32, generation: Generation) -> CellState {
        if generation.is_newer_than_raw(seen) {
            return CellState::Pending;
        }
        if seen != generation.0 {
            return CellState::Closed;
        }
        // A part of another generation here is of a newer one, which overwrites under a reader that comes too late.
        self.seal(generation).map_or(CellState::Closed, CellState::Published)
    }

    fn seal(&self, generation: Generation) -> Option<LayerSeal> {
        let (_, tokens) = self.tokens.read(generation)?;
        let (has_crc32c, crc32c) = self.crc32c.read(generation)?;
        let (_, low) = self.bytes_low.read(generation)?;
        let (_, high) = self.bytes_high.read(generation)?;
        let bytes = u64::from(high) << 32 | u64::from(low);
        Some(LayerSeal { tokens, bytes, crc32c: has_crc32c.then_some(crc32c) })
    }
}

/// Whether a generation may be published over a word.
fn publishable(seen: u32, generation: Generation) -> Result<(), Unpublishable> {
    if generation.is_newer_than_raw(seen) {
        Ok(())
    } else if seen == generation.0 {
        Err(Unpublishable::Twice)
    } else if seen == generation.0 | CLOSED {
        Err(Unpublishable::Closed)
    } else {
        Err(Unpublishable::Stale)
    }
}

/// Tells one sleeper, or several, that something changed; what, they look up.
///
/// The reader takes [`Doorbell::count`], looks at everything, and waits with that count: a ring in between ends the
/// wait at once. Whoever rings does so after the change.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Doorbell {
    count: WaitWord,
}

impl Doorbell {
    /// Says that something changed, and wakes who waits.
    pub fn ring(&self) {
        self.count.word.fetch_add(1, Ordering::Release);
        self.count.notify();
    }

    /// How often it has been rung, modulo 2^32. What was changed before those rings is visible after this call.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until the count is no longer `seen`. The count; it is still `seen` when the time is up.
    pub fn wait(&self, seen: u32, within: Duration) -> u32 {
        self.count.wait_until(within, |count| count != seen)
    }
}

/// 64 marks of a [`DirtySet`], as they lie in shared memory.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct DirtyWord(AtomicU64);

/// Which slots have changed, so that a reader does not look at all of them. It goes with a [`Doorbell`].
///
/// The writer changes a slot, marks it and rings. The reader takes the bell's count, takes all marks, looks at those
/// slots, and waits with that count. A mark that is taken twice costs a look; none is lost.
#[derive(Debug, Clone, Copy)]
pub struct DirtySet<'a> {
    words: &'a [DirtyWord],
}

impl<'a> DirtySet<'a> {
    /// How many slots one word marks.
    pub const SLOTS_PER_WORD: usize = 64;

    /// The set that lies in these words; slot `i` is bit `i % 64` of word `i / 64`.
    pub fn new(words: &'a [DirtyWord]) -> Self {
        Self { words }
    }

    /// How many words mark so many slots.
    pub fn words_for(slots: usize) -> usize {
        slots.div_ceil(Self::SLOTS_PER_WORD)
    }

    /// How many words there are to take.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Marks a slot, after it has changed.
    ///
    /// # Panics
    /// If the set has no such slot.
    pub fn mark(&self, slot: usize) {
        let bit = 1 << (slot % Self::SLOTS_PER_WORD);
        self.words[slot / Self::SLOTS_PER_WORD].0.fetch_or(bit, Ordering::Release);
    }

    /// Takes the marks of one word away: bit `i` is slot `64 * word + i`. What was changed before the marks is
    /// visible after this call.
    ///
    /// # Panics
    /// If the set has no such word.
    pub fn take(&self, word: usize) -> u64 {
        let word = &self.words[word].0;
        // Most words have no mark, and a load leaves the line shared. A mark whose ring was heard is seen even so.
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
    }
}
