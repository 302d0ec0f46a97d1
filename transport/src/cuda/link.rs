//! The writing half: copies queue on a stream of the link's own, and a layer is published when the event behind its
//! copies is recorded.
//!
//! The order within one layer is what makes it right: copies, then the event, then the word. A receiver that sees the
//! word therefore finds the event recorded, and lets its own stream wait for it. That the copies themselves are done
//! is known later: a thread sleeps until they are, says so to the receiver and ends the transfer here.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use splitcore_core::kv::KvRange;

use super::driver::{Driver, Event, EventUse, Fault, Handle, Stream};
use super::handles::Import;
use crate::board::Board;
use crate::error::TransferError;
use crate::landing::unpublishable;
use crate::ledger::{Copy, Ledger};
use crate::local::{Line, Message, Sending};
use crate::transfer::{Completion, Grant, PeerState, TransferKey};
use crate::word::{CellState, LayerSeal, Unpublishable};

/// What the receiver gave: its memory and its events.
pub(super) struct Target {
    pub(super) import: Import,
    /// Where in the mapping its pool begins.
    pub(super) offset: u64,
    /// For each slot and, within it, each layer.
    pub(super) marks: Vec<Handle>,
    /// Last, so that it is dropped last: it says that nothing of the receiver's is open here.
    pub(super) hold: super::hold::Hold,
}

/// What one thread and the caller's share.
pub(super) struct Copier {
    driver: Arc<dyn Driver>,
    /// Where the source's pool begins.
    source: u64,
    ledger: Ledger,
    board: Board,
    line: Arc<Line>,
    stream: Stream,
    jobs: Sender<Job>,
    state: Mutex<State>,
}

struct State {
    /// Until the receiver is gone or the link ends.
    target: Option<Target>,
    /// Events of the receiver's that are open here, by slot and layer.
    open: HashMap<usize, Event>,
    /// Events of ours that nobody waits for.
    spare: Vec<Event>,
    /// Stopped, and not yet at their end.
    stopped: HashSet<TransferKey>,
}

/// Something to be done when the copies before it are.
pub(super) enum Job {
    /// The last layer is published.
    Finish(TransferKey, Event),
    /// Nothing more is copied for it. `asked`: by the receiver.
    Fence { key: TransferKey, copied: Option<Event>, asked: bool },
    /// The device failed it.
    Fail(TransferKey, TransferError),
    /// Nothing comes any more.
    Quit,
}

fn device(fault: Fault) -> TransferError {
    TransferError::Device { what: fault.what.to_owned(), reason: fault.reason }
}

/// Copies that continue each other in both pools, as one.
fn joined(copies: &[Copy]) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::with_capacity(copies.len());
    for copy in copies {
        match runs.last_mut() {
            Some((from, to, bytes)) if *from + *bytes == copy.from && *to + *bytes == copy.to => {
                *bytes += u64::from(copy.bytes);
            }
            _ => runs.push((copy.from, copy.to, u64::from(copy.bytes))),
        }
    }
    runs
}

impl Copier {
    /// A copier to an open target, and the stream of its jobs.
    ///
    /// # Errors
    /// The device has no stream.
    pub(super) fn new(
        driver: Arc<dyn Driver>,
        source: u64,
        ledger: Ledger,
        board: Board,
        line: Arc<Line>,
        target: Target,
    ) -> Result<(Self, Receiver<Job>), Fault> {
        let stream = driver.stream()?;
        let (jobs, todo) = std::sync::mpsc::channel();
        let state =
            State { target: Some(target), open: HashMap::new(), spare: Vec::new(), stopped: HashSet::new() };
        Ok((Self { driver, source, ledger, board, line, stream, jobs, state: Mutex::new(state) }, todo))
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self, key: TransferKey) -> TransferError {
        TransferError::PeerLost { key, peer: self.ledger.receiver() }
    }

    /// Whether a transfer may go on with a layer. One that the receiver has closed is stopped by that.
    fn check(&self, state: &mut State, key: TransferKey, layer: u16) -> Result<(), TransferError> {
        if state.target.is_none() {
            return Err(self.lost(key));
        }
        if !self.ledger.is_open(key) || layer >= self.board.layers() {
            // The ledger has the right words for these.
            return Ok(());
        }
        let stopped = TransferError::Stopped { key, layer, peer: PeerState::Connected };
        if state.stopped.contains(&key) {
            return Err(stopped);
        }
        match self.board.peek(key.slot, key.generation, layer) {
            CellState::Pending => Ok(()),
            CellState::Published(_) => Err(TransferError::Published { key, layer }),
            CellState::Closed => {
                self.end_after_copies(state, key, false);
                Err(stopped)
            }
        }
    }

    /// See [`crate::Link::begin`].
    pub(super) fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        // Under the lock, so that it begins before a word to stop it or after.
        let state = self.state();
        if state.target.is_none() {
            return Err(self.lost(grant.key));
        }
        self.ledger.begin(grant)
    }

    /// See [`crate::Link::put`].
    pub(super) fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError> {
        let mut state = self.state();
        self.check(&mut state, key, layer)?;
        let copies = self.ledger.put(key, layer, ranges)?;
        let Some(target) = &state.target else { return Err(self.lost(key)) };
        let base = target.import.base() + target.offset;
        for (from, to, bytes) in joined(&copies) {
            if let Err(fault) = self.driver.copy(base + to, self.source + from, bytes, self.stream) {
                return Err(self.fail(&mut state, key, fault));
            }
        }
        Ok(())
    }

    /// See [`crate::Link::publish`].
    pub(super) fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError> {
        let mut state = self.state();
        self.check(&mut state, key, layer)?;
        let sealed = self.ledger.publish(key, layer)?;
        let mark = match self.mark(&mut state, key, layer) {
            Ok(mark) => mark,
            Err(fault) => return Err(self.fail(&mut state, key, fault)),
        };
        // This before the word, or a receiver could wait for what the event marked in an earlier transfer.
        if let Err(fault) = self.driver.record(mark, self.stream) {
            return Err(self.fail(&mut state, key, fault));
        }
        let seal = LayerSeal { tokens, bytes: sealed.bytes, crc32c: None };
        if let Err(why) = self.board.publish(key.slot, key.generation, layer, seal) {
            if why != Unpublishable::Twice {
                // What the board refuses, the receiver has ended.
                self.end_after_copies(&mut state, key, false);
            }
            return Err(unpublishable(key, layer, PeerState::Connected, why));
        }
        if sealed.last {
            match self.copied(&mut state) {
                Ok(copied) => drop(self.jobs.send(Job::Finish(key, copied))),
                Err(fault) => return Err(self.fail(&mut state, key, fault)),
            }
        }
        Ok(())
    }

    /// The receiver's event of a slot and layer.
    fn mark(&self, state: &mut State, key: TransferKey, layer: u16) -> Result<Event, Fault> {
        let index = key.slot as usize * usize::from(self.board.layers()) + usize::from(layer);
        if let Some(&mark) = state.open.get(&index) {
            return Ok(mark);
        }
        let handle = state.target.as_ref().and_then(|target| target.marks.get(index));
        let handle =
            handle.ok_or(Fault { what: "event", reason: format!("there is none of slot {}", key.slot) })?;
        let mark = self.driver.open_event(handle)?;
        state.open.insert(index, mark);
        Ok(mark)
    }

    /// An event that is reached when all copies so far are done.
    fn copied(&self, state: &mut State) -> Result<Event, Fault> {
        let event = state.spare.pop().map_or_else(|| self.driver.event(EventUse::Here), Ok)?;
        self.driver.record(event, self.stream).inspect_err(|_| state.spare.push(event))?;
        Ok(event)
    }

    /// Lets no more be copied for a transfer that the device failed.
    fn fail(&self, state: &mut State, key: TransferKey, fault: Fault) -> TransferError {
        let error = device(fault);
        state.stopped.insert(key);
        let _ = self.jobs.send(Job::Fail(key, error.clone()));
        error
    }

    /// Lets no more be copied for a transfer; its end comes when its copies are done.
    fn end_after_copies(&self, state: &mut State, key: TransferKey, asked: bool) {
        if self.ledger.is_open(key) {
            state.stopped.insert(key);
        }
        let copied = self.copied(state).ok();
        let _ = self.jobs.send(Job::Fence { key, copied, asked });
    }

    /// See [`crate::Link::stop`].
    pub(super) fn stop(&self, key: TransferKey) {
        self.end_after_copies(&mut self.state(), key, false);
    }

    /// Lets what is put from now on wait for the work that `stream` has been given so far.
    pub(super) fn after(&self, stream: Stream) -> Result<(), TransferError> {
        let mut state = self.state();
        let event =
            state.spare.pop().map_or_else(|| self.driver.event(EventUse::Here), Ok).map_err(device)?;
        let ordered = self.driver.record(event, stream).and_then(|()| self.driver.hold(self.stream, event));
        // A wait keeps what the event marked when it began, so the event may mark something else now.
        state.spare.push(event);
        ordered.map_err(device)
    }

    /// The life of the thread that waits for copies.
    pub(super) fn work(&self, todo: &Receiver<Job>) {
        while let Ok(job) = todo.recv() {
            match job {
                Job::Finish(key, copied) => match self.wait(copied) {
                    Ok(()) => {
                        self.line.send(Message::Settled(key));
                        self.ledger.end(Completion::LocalDone(key));
                    }
                    Err(fault) => self.give_up(key, device(fault)),
                },
                Job::Fence { key, copied, asked } => {
                    // A device that fails has lost its context, and with it whatever was queued.
                    let _ = copied.map_or_else(|| self.driver.drain(self.stream), |copied| self.wait(copied));
                    self.ledger.end(Completion::Fenced(key));
                    self.state().stopped.remove(&key);
                    self.line.send(if asked { Message::Stopped(key) } else { Message::GivenUp(key) });
                }
                Job::Fail(key, error) => {
                    let _ = self.driver.drain(self.stream);
                    self.give_up(key, error);
                }
                Job::Quit => return,
            }
        }
    }

    fn wait(&self, copied: Event) -> Result<(), Fault> {
        let reached = self.driver.wait(copied);
        self.state().spare.push(copied);
        reached
    }

    fn give_up(&self, key: TransferKey, error: TransferError) {
        self.ledger.end(Completion::Failed(key, error));
        self.state().stopped.remove(&key);
        self.line.send(Message::GivenUp(key));
    }

    /// Ends the thread when it has done what is queued.
    pub(super) fn quit(&self) {
        let _ = self.jobs.send(Job::Quit);
    }

    /// Lets go of all that is the receiver's, once nothing is copied to it any more. Nobody is left to tell of a
    /// failure: the driver lets go of what a process leaves.
    pub(super) fn let_go(&self) {
        let mut state = self.state();
        let Some(target) = state.target.take() else { return };
        let _ = self.driver.drain(self.stream);
        for (_, mark) in state.open.drain() {
            let _ = self.driver.end_event(mark);
        }
        let Target { import, offset: _, marks: _, hold } = target;
        drop(import);
        // After the import, since the receiver frees its memory on this.
        drop(hold);
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.let_go();
        let spare = std::mem::take(&mut self.state().spare);
        for event in spare {
            let _ = self.driver.end_event(event);
        }
        let _ = self.driver.end_stream(self.stream);
    }
}

impl Sending for Copier {
    fn fence(&self, key: TransferKey) -> bool {
        self.end_after_copies(&mut self.state(), key, true);
        false
    }

    fn lose(&self) {
        // Copies to it end first: the ends below say that nothing is read here any more.
        self.let_go();
        self.ledger.lose(|key| self.lost(key));
    }
}
