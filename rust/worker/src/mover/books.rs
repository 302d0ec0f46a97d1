//! What the threads of a mover share: who is transferring what, and with whom.
//!
//! One lock, under which events are told, so that those of a leg are in order. Nobody copies, connects or waits while
//! holding it. [`super::outgoing::Work`] has a lock of its own, which is taken before this one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use splitcore_core::id::{LegKey, MachineId};
use splitcore_transport::{Endpoint, Incarnation, Landing, Link, Outcomes, Pool};

use super::incoming::Slot;
use super::outgoing::{Granted, Outgoing, Queue, Running};
use super::{MoverEvent, MoverOptions};

/// A transfer that comes here: its slot and the slot's generation.
pub(super) type Name = (u32, u32);

pub(super) struct Shared {
    pub(super) pool: Arc<Pool>,
    pub(super) me: Incarnation,
    pub(super) options: MoverOptions,
    /// Its bell wakes the watcher, whatever there is to look at.
    pub(super) landing: Landing,
    pub(super) queue: Queue,
    tell: Box<dyn Fn(MoverEvent) + Send + Sync>,
    began: Instant,
    books: Mutex<Books>,
}

pub(super) struct Books {
    /// The mover is being dropped.
    pub(super) over: bool,
    last: u64,
    /// By leg: the number of what was opened or put last.
    pub(super) current: BTreeMap<LegKey, u64>,
    /// By leg: what is to come here.
    pub(super) coming: BTreeMap<LegKey, Name>,
    pub(super) slots: BTreeMap<Name, Slot>,
    /// By leg: leave to write elsewhere, or why there is none.
    pub(super) grants: BTreeMap<LegKey, Result<Granted, String>>,
    /// By leg: what goes from here.
    pub(super) running: BTreeMap<LegKey, Running>,
    /// By leg: that it has gone from here, and everything of it was read.
    pub(super) done: BTreeMap<LegKey, Done>,
    pub(super) outcomes: Outcomes<LegKey>,
    pub(super) peers: BTreeMap<Incarnation, Other>,
}

/// How a transfer from here ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// All was read: whoever stops it afterwards is told that it is fenced.
    Local,
    /// It was told that nothing is read any more.
    Over,
}

/// Another machine.
pub(super) struct Other {
    pub(super) machine: MachineId,
    pub(super) endpoint: Endpoint,
    pub(super) state: LinkState,
    /// Its process is dead.
    pub(super) lost: bool,
    /// How often there was reason to think so since it was last found out.
    pub(super) doubts: u32,
}

/// The connection to another machine's receiver, and what waits for it.
pub(super) enum LinkState {
    None,
    Connecting(Vec<Arc<Outgoing>>),
    Up(Arc<dyn Link>),
    /// It does not even stop: it is being closed, and is made anew if something waits.
    Closing(Vec<Arc<Outgoing>>),
}

impl Books {
    /// The number of a new transfer of a leg.
    pub(super) fn number(&mut self, key: LegKey) -> u64 {
        self.last += 1;
        self.current.insert(key, self.last);
        self.last
    }

    /// The other machine of an endpoint.
    pub(super) fn other(&mut self, machine: MachineId, endpoint: &Endpoint) -> &mut Other {
        self.peers.entry(endpoint.incarnation).or_insert_with(|| Other {
            machine,
            endpoint: endpoint.clone(),
            state: LinkState::None,
            lost: false,
            doubts: 0,
        })
    }
}

impl Shared {
    pub(super) fn new(
        pool: Arc<Pool>,
        me: Incarnation,
        options: MoverOptions,
        landing: Landing,
        tell: Box<dyn Fn(MoverEvent) + Send + Sync>,
    ) -> Self {
        let books = Books {
            over: false,
            last: 0,
            current: BTreeMap::new(),
            coming: BTreeMap::new(),
            slots: BTreeMap::new(),
            grants: BTreeMap::new(),
            running: BTreeMap::new(),
            done: BTreeMap::new(),
            outcomes: Outcomes::new(options.stop_limit),
            peers: BTreeMap::new(),
        };
        let (queue, books) = (Queue::default(), Mutex::new(books));
        Self { pool, me, options, landing, queue, tell, began: Instant::now(), books }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the mover began.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Tells the driver, which `books` show to be there still.
    pub(super) fn tell(&self, books: &Books, event: MoverEvent) {
        if !books.over {
            (self.tell)(event);
        }
    }

    /// Nothing is told any more, and the threads end. Gives the connections, to be closed when they have.
    pub(super) fn end(&self) -> Vec<Arc<dyn Link>> {
        let mut books = self.books();
        books.over = true;
        for entry in std::mem::take(&mut books.running).into_values() {
            entry.stop_on_link();
        }
        let states =
            books.peers.values_mut().map(|other| std::mem::replace(&mut other.state, LinkState::None));
        let links = states.filter_map(|state| match state {
            LinkState::Up(link) => Some(link),
            LinkState::None | LinkState::Connecting(_) | LinkState::Closing(_) => None,
        });
        let links = links.collect();
        drop(books);
        self.queue.end();
        self.landing.wake();
        links
    }
}
