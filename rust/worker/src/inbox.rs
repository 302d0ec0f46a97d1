//! Between the driver's thread and all others: what comes in by one channel, and a board for what goes to the engine.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use splitcore_core::id::LegKey;
use splitcore_wire::link::LinkEvent;
use splitcore_wire::peers::PeersEvent;

use crate::mover::MoverEvent;
use crate::pass::Pass;
use crate::stats::Stats;

/// Why a worker has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It was told to.
    Stopped,
    /// The daemon has given this machine up while it was away, and what it held runs elsewhere: it may begin anew with
    /// the next incarnation.
    GivenUp(String),
    /// The daemon does not let it in, and would not at a later try: it is what it is, or how the two are set up.
    Refused(String),
    /// It cannot go on.
    Failed(String),
}

/// What the driver hears.
#[derive(Debug)]
pub(crate) enum Input {
    Link(LinkEvent),
    Peers(PeersEvent),
    Mover(MoverEvent),
    Done { pass: u64, drawn: Vec<(LegKey, u32)> },
    Leave,
    End(End),
}

/// Where inputs go. Nobody waits.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    sender: Sender<Input>,
    /// What the daemon has said that has not been heard yet.
    said: Arc<AtomicU32>,
    said_max: u32,
}

impl Inbox {
    pub(crate) fn new(sender: Sender<Input>, said_max: u32) -> Self {
        Self { sender, said: Arc::default(), said_max }
    }

    /// A driver that has ended hears nothing, and needs not.
    pub(crate) fn put(&self, input: Input) {
        let _ = self.sender.send(input);
    }

    /// Returns whether there was room. That a session is over is always heard.
    pub(crate) fn put_link(&self, event: LinkEvent) -> bool {
        let room = self.said.load(Ordering::Relaxed) < self.said_max;
        if !room && !matches!(event, LinkEvent::Lost { .. }) {
            return false;
        }
        self.said.fetch_add(1, Ordering::Relaxed);
        self.put(Input::Link(event));
        true
    }

    /// An event of the link was taken.
    pub(crate) fn heard(&self) {
        self.said.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Here {
    pass: Option<Pass>,
    end: Option<End>,
    stats: Stats,
}

/// What is there for the engine.
#[derive(Debug, Default)]
pub(crate) struct Board {
    here: Mutex<Here>,
    changed: Condvar,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, pass: Pass) {
        self.lock().pass = Some(pass);
        self.changed.notify_all();
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Stats)) {
        count(&mut self.lock().stats);
    }

    /// The first end is the one that counts.
    pub(crate) fn end(&self, end: End) {
        let mut here = self.lock();
        here.pass = None;
        here.end.get_or_insert(end);
        self.changed.notify_all();
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock().stats
    }

    pub(crate) fn ended(&self) -> Option<End> {
        self.lock().end.clone()
    }

    /// The next pass, if there is one in time and the worker has not ended.
    pub(crate) fn take(&self, within: Duration) -> Option<Pass> {
        let waits = |here: &mut Here| here.pass.is_none() && here.end.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), within, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.pass.take()
    }

    pub(crate) fn wait_end(&self) -> End {
        let mut here = self.lock();
        loop {
            match &here.end {
                Some(end) => return end.clone(),
                None => here = self.changed.wait(here).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
