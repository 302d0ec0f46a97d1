//! Models of the transport's lock-free parts, in every order of their threads that matters.
//!
//! [`word`] and [`ring`] are the shipped files themselves, included by path. They take atomics, fences, shared cells
//! and the futex from `crate::sync` only, and here that is a module over [loom], which runs a model again and again:
//! in every order of the threads' steps, and with every stale value that the memory model lets a load return. The
//! futex is a lock and a condition variable beside each word, as in the kernel: whoever wants to sleep compares the
//! word under the lock. A wait for some time is one for ever, so a lost wake-up is a deadlock, and loom reports it.
//!
//! # Negative controls
//!
//! A model that cannot fail proves nothing. So each property is also run over code that is broken on purpose, and
//! that run must fail, with the message that belongs to the fault. Since everything goes through `crate::sync`, the
//! shipped files need no copy and no hook for it: [`Fault`] says what `sync` does wrong for one run. Faults in the
//! order of calls (the bell before the mark) are in the test itself.
//!
//! # Bounds
//!
//! Loom skips orders that differ in nothing; where what is left is still too much, [`explore_bounded`] allows only so
//! many preemptions in one run. Loom takes `SeqCst` accesses for weaker than they are, but its `SeqCst` fences are
//! right, and fences are what the words use. It does not model a load that returns what is stored later.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../../src/ring.rs"]
pub mod ring;
mod sync;
#[path = "../../src/word.rs"]
pub mod word;

/// What goes wrong in one run, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Writers of words (a layer's, a bell's, a ring's tail) do not release what they wrote before.
    WordRelease,
    /// Readers of words do not acquire it.
    WordAcquire,
    /// The ring's consumer does not release the slots that it has emptied.
    HeadRelease,
    /// The ring's producer does not acquire them.
    HeadAcquire,
    /// No fence between a change and the look at who waits, nor between saying so and the last look.
    Fence,
    /// Words are compared first and stored then, not in one step.
    Exchange,
    /// Who wakes does so only once, though several may sleep.
    WakeOne,
}

thread_local! {
    /// Loom runs all threads of a model as coroutines on the thread of the test.
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

fn fault() -> Fault {
    FAULT.get()
}

/// Runs a model in every order. How many there were.
///
/// # Panics
/// If any of them breaks an assertion, deadlocks, leaks, or touches a cell in a race.
pub fn explore(fault: Fault, model: impl Fn() + Send + Sync + 'static) -> usize {
    run(fault, None, model)
}

/// As [`explore`], in every order with so many preemptions at most.
///
/// # Panics
/// As [`explore`].
pub fn explore_bounded(fault: Fault, preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> usize {
    run(fault, Some(preemptions), model)
}

fn run(fault: Fault, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> usize {
    FAULT.set(fault);
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = orders.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    orders.load(Ordering::Relaxed)
}
