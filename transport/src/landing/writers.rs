//! Who may be writing: connected, silent or lost, and how each is told to stop.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::{Arrival, BTreeMap, Inner, Landing, Phase, lock};
use crate::error::{HandshakeError, TransferError};
use crate::handshake::Incarnation;
use crate::transfer::{PeerState, TransferKey};

/// A connected writer, as its backend sees it.
pub trait Writer: Send + Sync {
    /// Whether it writes only through this process, under [`Landing::writing`]: then a stop fences at once.
    fn writes_here(&self) -> bool;

    /// Tells it to stop a transfer; unless it writes here it answers, and the backend calls [`Landing::fenced`].
    fn stop(&self, key: TransferKey);

    /// Ends its connection.
    fn close(&self);
}

/// Writers that are remembered before the lost ones among them are forgotten: they only make messages clearer.
const REMEMBERED: usize = 1024;

#[derive(Default)]
pub(super) struct Writers {
    known: BTreeMap<Incarnation, Known>,
}

struct Known {
    state: PeerState,
    /// One for each connection.
    handles: Vec<Arc<dyn Writer>>,
}

impl Known {
    fn position(&self, handle: &dyn Writer) -> Option<usize> {
        self.handles.iter().position(|other| std::ptr::addr_eq(Arc::as_ptr(other), handle))
    }
}

impl Writers {
    fn state(&self, writer: Incarnation) -> PeerState {
        self.known.get(&writer).map_or(PeerState::Absent, |known| known.state)
    }

    /// Whether nothing that this writer was granted can be written after a stop. One that was never here finds the
    /// board closed when it comes.
    pub(super) fn is_fenced(&self, writer: Incarnation) -> bool {
        match self.known.get(&writer) {
            None => true,
            Some(known) => match known.state {
                PeerState::Absent | PeerState::Lost => true,
                PeerState::Silent => false,
                PeerState::Connected => known.handles.iter().all(|handle| handle.writes_here()),
            },
        }
    }

    pub(super) fn handle(&self, writer: Incarnation) -> Option<Arc<dyn Writer>> {
        self.known.get(&writer).and_then(|known| known.handles.first()).cloned()
    }
}

impl Landing {
    /// What is known of a writer.
    pub fn writer_state(&self, writer: Incarnation) -> PeerState {
        lock(&self.inner.writers).state(writer)
    }

    /// A writer has connected, perhaps with one more connection.
    ///
    /// # Errors
    /// Its earlier connection broke and nobody has seen it die, so only another incarnation may come now; or it is
    /// connected and one of the two connections maps our memory.
    pub fn joined(&self, writer: Incarnation, handle: Arc<dyn Writer>) -> Result<(), HandshakeError> {
        let mut writers = lock(&self.inner.writers);
        if writers.known.len() >= REMEMBERED {
            writers.known.retain(|_, known| known.state != PeerState::Lost);
        }
        let known =
            writers.known.entry(writer).or_insert(Known { state: PeerState::Absent, handles: Vec::new() });
        if known.state == PeerState::Silent {
            return Err(HandshakeError::Mismatch {
                field: "incarnation".to_owned(),
                ours: format!("{writer} is awaited dead"),
                theirs: writer.to_string(),
            });
        }
        // Streams of one writer end together. One that maps our memory has nothing beside it, or its end would not
        // mean that nothing is written any more.
        let here = known.handles.iter().chain([&handle]).all(|handle| handle.writes_here());
        if known.state == PeerState::Connected && !here {
            return Err(HandshakeError::Mismatch {
                field: "incarnation".to_owned(),
                ours: format!("{writer} is connected"),
                theirs: writer.to_string(),
            });
        }
        known.state = PeerState::Connected;
        known.handles.push(handle);
        Ok(())
    }

    /// Sleeps while a writer is connected, at most `within`: one that has just left may come again at once, before
    /// its goodbye was heard.
    pub(crate) fn until_left(&self, writer: Incarnation, within: Duration) {
        let writers = lock(&self.inner.writers);
        let is_here = |writers: &mut Writers| writers.state(writer) == PeerState::Connected;
        drop(self.inner.departed.wait_timeout_while(writers, within, is_here));
    }

    /// A writer's connection is over; its others are closed too. What it had not finished fails, and is fenced when
    /// `gone` says that it writes no more. Called again with `gone` when a silent one has died. O(slots).
    ///
    /// For news of the writer itself. What a connection's own end says is for [`parted`](Self::parted).
    pub fn left(&self, writer: Incarnation, gone: bool) {
        self.leave(lock(&self.inner.writers), writer, gone);
    }

    /// One of a writer's connections is over, and nothing that came by it is written any more: as
    /// [`left`](Self::left) with `gone`, but nothing if the connection was closed before, by the end of another one.
    /// One that `said_bye` takes only itself down, unless it was the last.
    pub fn parted(&self, writer: Incarnation, handle: &dyn Writer, said_bye: bool) {
        let mut writers = lock(&self.inner.writers);
        let Some(known) = writers.known.get_mut(&writer) else { return };
        let Some(at) = known.position(handle) else { return };
        if said_bye && known.handles.len() > 1 {
            known.handles.swap_remove(at);
            return;
        }
        self.leave(writers, writer, true);
    }

    fn leave(&self, mut writers: MutexGuard<'_, Writers>, writer: Incarnation, gone: bool) {
        let Some(known) = writers.known.get_mut(&writer) else { return };
        // The dead do not fall silent again.
        if known.state == PeerState::Lost && !gone {
            return;
        }
        known.state = if gone { PeerState::Lost } else { PeerState::Silent };
        let handles = std::mem::take(&mut known.handles);
        for slot in &self.inner.slots {
            self.inner.orphan(&mut lock(slot), writer, gone);
        }
        drop(writers);
        self.inner.departed.notify_all();
        for handle in handles {
            handle.close();
        }
    }
}

impl Inner {
    /// What becomes of a slot whose writer has left.
    fn orphan(&self, slot: &mut super::Slot, writer: Incarnation, gone: bool) {
        let Some(open) = slot.open.as_mut().filter(|open| open.writer == writer) else { return };
        let key = open.key;
        match open.phase {
            Phase::Open => {
                if self.board.close(key.slot, key.generation) == 0 && open.settled {
                    return;
                }
                let error = TransferError::PeerLost { key, peer: writer };
                open.failure = Some(error.clone());
                open.phase = if gone { Phase::Fenced } else { Phase::Stopping };
                self.tell(Arrival::Failed(key, error));
                if gone {
                    self.tell(Arrival::Fenced(key));
                }
            }
            Phase::Stopping if gone => {
                open.phase = Phase::Fenced;
                self.tell(Arrival::Fenced(key));
            }
            Phase::Stopping | Phase::Fenced => {}
        }
    }
}
