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
//! A model that never comes to the hard part proves nothing either: [`Ends`] gathers what happened in each order, and
//! the test says what all of it must be, such as that the reader slept in some and not in others.
//!
//! # Bounds
//!
//! Loom skips orders that differ in nothing, and some that do differ: `sync` says how those are brought back. Where
//! what is left takes too long, [`explore_bounded`] allows only so many preemptions in one run. Loom takes `SeqCst`
//! accesses for weaker than they are, but its `SeqCst` fences are right, and fences are what the words use. It does
//! not model a load that returns what is stored later, nor a sleeper that wakes for no reason.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

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

/// What a model came to, over all its orders.
#[derive(Debug)]
pub struct Ends<T>(Arc<Mutex<BTreeSet<T>>>);

impl<T: Ord> Ends<T> {
    /// None so far.
    pub fn none() -> Self {
        Self(Arc::default())
    }

    /// One order of the model ended like this.
    pub fn met(&self, end: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(end);
    }

    /// All different ends, sorted.
    pub fn all(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl<T> Clone for Ends<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

// Loom runs all threads of a model as coroutines on the thread of the test, which these belong to.
thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
    static SLEPT: Cell<bool> = const { Cell::new(false) };
    static WOKE: Cell<bool> = const { Cell::new(false) };
}

/// Whether a thread has slept on a word in this order.
pub fn slept() -> bool {
    SLEPT.get()
}

/// Whether a thread has gone to wake another in this order.
pub fn woke() -> bool {
    WOKE.get()
}

/// Runs a model in every order.
///
/// # Panics
/// If any of them breaks an assertion, deadlocks, leaks, or touches a cell in a race.
pub fn explore(fault: Fault, model: impl Fn() + Send + Sync + 'static) {
    run(fault, None, model);
}

/// As [`explore`], in every order with so many preemptions at most.
///
/// # Panics
/// As [`explore`].
pub fn explore_bounded(fault: Fault, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    run(fault, Some(preemptions), model);
}

fn run(fault: Fault, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    FAULT.set(fault);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        SLEPT.set(false);
        WOKE.set(false);
        model();
    });
}
