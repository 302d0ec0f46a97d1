//! One seed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;

use splitcore_core::leg::LegState;

use crate::embedder::Embedder;
use crate::failures::Failure;
use crate::setup::Setup;
use crate::world::{Counters, Outcomes, Tail, World};

/// Lines of the record that go with a failure.
const LAST_EVENTS: usize = 40;

/// A seed that went well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Events.
    pub events: u64,
    /// Faults that hit something.
    pub faults: u64,
    /// Stands for every action in its order: the same in every run of the seed.
    pub digest: u64,
    /// How often a leg in this state met this failure.
    pub hits: BTreeMap<(LegState, Failure), u64>,
    /// The rest that was counted.
    pub counters: Counters,
}

/// A seed that did not: a bug of the core, or of the world around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub seed: u64,
    /// What did not hold, and where that is written.
    pub what: String,
    /// The last events and the actions that followed each.
    pub last: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.last {
            writeln!(f, "{line}")?;
        }
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

impl std::error::Error for Failed {}

/// Runs the world of one seed.
///
/// # Errors
/// [`Failed`] with the first invariant that does not hold.
pub fn run(seed: u64) -> Result<Run, Failed> {
    run_setup(&Setup::random(seed))
}

/// Runs a world that may have been changed by hand.
///
/// # Errors
/// [`Failed`] with the first invariant that does not hold.
pub fn run_setup(setup: &Setup) -> Result<Run, Failed> {
    match quietly(|| outcomes(setup, None)) {
        Ok(out) => {
            let Outcomes { events, faults, digest, hits, counters, .. } = out;
            Ok(Run { events, faults, digest, hits, counters })
        }
        Err(what) => {
            // Text costs more than the run itself: it is made only when it is wanted.
            Err(Failed { seed: setup.seed, what, last: trace(setup, LAST_EVENTS) })
        }
    }
}

/// Runs the kind of world that a setup asks for, and keeps so many of its last events as text.
fn outcomes(setup: &Setup, tail: Option<(Tail, usize)>) -> Outcomes {
    let setup = setup.clone();
    match (setup.embedding, tail) {
        (Some(embedding), None) => Embedder::new(setup, embedding).run(),
        (Some(embedding), Some((tail, lines))) => {
            Embedder::new(setup, embedding).with_tail(tail, lines).run()
        }
        (None, None) => World::new(setup).run(),
        (None, Some((tail, lines))) => World::new(setup).with_tail(tail, lines).run(),
    }
}

/// The last events of a world, as text, however it ends.
pub fn trace(setup: &Setup, lines: usize) -> Vec<String> {
    let tail: Tail = Rc::new(RefCell::new(VecDeque::new()));
    let _ = quietly(|| outcomes(setup, Some((Rc::clone(&tail), lines))));
    let lines = std::mem::take(&mut *tail.borrow_mut());
    lines.into()
}

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs, and turns a panic into its message. Nothing is printed.
fn quietly<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHES.get() {
                CAUGHT.set(Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
    CATCHES.set(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    CATCHES.set(false);
    result.map_err(|_| CAUGHT.take().unwrap_or_default())
}
