//! What goes from this machine: after its pass by a thread that puts one leg after the other, or layer by layer by the
//! thread of the engine.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::kv::{BlockId, TransferPlan, plan_transfer};
use splitcore_transport::{Completion, Grant, Link, Outcome};
use splitcore_wire::message::{GrantBody, PeerAddress};

use super::books::{Books, Done, LinkState, Shared};
use super::{MoverEvent, endpoint_of};

/// Leave to write into another machine's blocks.
pub(super) struct Granted {
    to: MachineId,
    grant: Grant,
}

/// One transfer from here.
pub(super) struct Outgoing {
    leg: LegKey,
    number: u64,
    pub(super) grant: Grant,
    blocks: Vec<BlockId>,
    tokens: u32,
    work: Mutex<Work>,
}

/// How far a transfer is. Who holds it puts; the lock of the books may be taken while it is held, and not the other way
/// round.
#[derive(Default)]
struct Work {
    link: Option<(Arc<dyn Link>, Option<TransferPlan>)>,
    /// Layers that are computed and not put.
    ready: VecDeque<u16>,
}

/// A transfer from here that has not ended.
pub(super) struct Running {
    pub(super) outgoing: Arc<Outgoing>,
    /// Its connection, once it has begun there.
    link: Option<Arc<dyn Link>>,
    stopped: bool,
    /// What went wrong here.
    fault: Option<String>,
}

impl Running {
    /// Nothing more is to be read for it, if anything was to be.
    pub(super) fn stop_on_link(&self) {
        if let Some(link) = &self.link {
            link.stop(self.outgoing.grant.key);
        }
    }

    /// Its connection is closed: its end comes from the books.
    pub(super) fn let_go(&mut self, link: &Arc<dyn Link>) {
        drop(self.link.take_if(|of| Arc::ptr_eq(of, link)));
    }
}

impl Outgoing {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing more is put; whoever puts now has come to its end when this returns.
    pub(super) fn cut(&self) {
        *self.work() = Work::default();
    }
}

/// Transfers that have something to put, first come, first served.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Mutex<(VecDeque<Arc<Outgoing>>, bool)>,
    more: Condvar,
}

impl Queue {
    fn jobs(&self) -> MutexGuard<'_, (VecDeque<Arc<Outgoing>>, bool)> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, outgoing: Arc<Outgoing>) {
        self.jobs().0.push_back(outgoing);
        self.more.notify_one();
    }

    pub(super) fn end(&self) {
        self.jobs().1 = true;
        self.more.notify_all();
    }

    fn next(&self) -> Option<Arc<Outgoing>> {
        let waits = |jobs: &mut (VecDeque<_>, bool)| jobs.0.is_empty() && !jobs.1;
        let mut jobs = self.more.wait_while(self.jobs(), waits).unwrap_or_else(PoisonError::into_inner);
        if jobs.1 { None } else { jobs.0.pop_front() }
    }
}

/// The thread that puts.
pub(super) fn run(shared: &Arc<Shared>) {
    while let Some(outgoing) = shared.queue.next() {
        shared.advance(&outgoing);
    }
}

/// A transfer that follows the layers of a pass. Dropped before all layers were put, it has failed.
pub struct Follow {
    shared: Arc<Shared>,
    /// None where the transfer has failed before it began.
    outgoing: Option<Arc<Outgoing>>,
    left: BTreeSet<u16>,
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Follow {
    /// A layer's KV is in its blocks: it is sent while the next layer is computed. What goes wrong ends the transfer,
    /// and the driver hears of it. A layer that is put again, or that the model has not, is passed over.
    pub fn put_layer(&mut self, layer: u16) {
        if let (true, Some(outgoing)) = (self.left.remove(&layer), &self.outgoing) {
            outgoing.work().ready.push_back(layer);
            self.shared.advance(outgoing);
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        if let Some(outgoing) = self.outgoing.as_ref().filter(|_| !self.left.is_empty()) {
            let reason = format!("{} layers were not computed", self.left.len());
            self.shared.give_up(&mut self.shared.books(), outgoing, reason);
        }
    }
}

impl Shared {
    pub(super) fn granted(self: &Arc<Self>, leg: LegKey, to: &PeerAddress, body: &GrantBody) {
        let read = || {
            let endpoint = endpoint_of(to)?;
            let grant: Grant = serde_json::from_str(&body.transfer).map_err(|error| error.to_string())?;
            if grant.receiver == endpoint.incarnation {
                Ok((endpoint, grant))
            } else {
                Err(format!("a grant of {} from {}", grant.receiver, endpoint.incarnation))
            }
        };
        let mut books = self.books();
        let granted = read().map(|(endpoint, grant)| {
            let machine = to.machine;
            books.other(machine, &endpoint);
            self.connect(&mut books, endpoint.incarnation);
            Granted { to: machine, grant }
        });
        books.grants.insert(leg, granted.map_err(|error| format!("a grant that cannot be read: {error}")));
    }

    pub(super) fn put(self: &Arc<Self>, leg: LegKey, to: MachineId, blocks: &[BlockId], tokens: u32) {
        let layers = 0..self.pool.shape().layout.layers;
        let ready = layers.collect();
        self.begin(leg, to, blocks, tokens, ready);
    }

    pub(super) fn follow(
        self: &Arc<Self>,
        leg: LegKey,
        to: MachineId,
        blocks: &[BlockId],
        tokens: u32,
    ) -> Follow {
        let left = (0..self.pool.shape().layout.layers).collect();
        let outgoing = self.begin(leg, to, blocks, tokens, VecDeque::new());
        Follow { shared: Arc::clone(self), outgoing, left }
    }

    /// A new transfer, of which these layers are computed. It takes the place of one that has not ended.
    fn begin(
        self: &Arc<Self>,
        leg: LegKey,
        to: MachineId,
        blocks: &[BlockId],
        tokens: u32,
        ready: VecDeque<u16>,
    ) -> Option<Arc<Outgoing>> {
        let mut books = self.books();
        self.forget_running(&mut books, leg);
        books.done.remove(&leg);
        let number = books.number(leg);
        let refused = match books.grants.remove(&leg) {
            Some(Ok(granted)) if granted.to == to => Ok(granted.grant),
            Some(Ok(granted)) => {
                Err(format!("the grant is of machine {}, not of {}", granted.to.index, to.index))
            }
            Some(Err(reason)) => Err(reason),
            None => Err(format!("machine {} has granted nothing", to.index)),
        };
        let grant = match refused {
            Ok(grant) => grant,
            Err(reason) => {
                self.end_failed(&mut books, leg, number, reason);
                return None;
            }
        };
        let receiver = grant.receiver;
        let work = Mutex::new(Work { link: None, ready });
        let outgoing = Arc::new(Outgoing { leg, number, grant, blocks: blocks.to_vec(), tokens, work });
        let running = Running { outgoing: Arc::clone(&outgoing), link: None, stopped: false, fault: None };
        books.running.insert(leg, running);
        self.connect(&mut books, receiver);
        match books.peers.get_mut(&receiver).map(|other| (other.lost, &mut other.state)) {
            Some((false, LinkState::Up(_))) => self.queue.push(Arc::clone(&outgoing)),
            Some((false, LinkState::Connecting(waiting) | LinkState::Closing(waiting))) => {
                waiting.push(Arc::clone(&outgoing));
            }
            Some(_) | None => self.give_up(&mut books, &outgoing, format!("machine {} is gone", to.index)),
        }
        Some(outgoing)
    }

    /// Puts what is computed, if there is a connection to put it on.
    fn advance(&self, outgoing: &Arc<Outgoing>) {
        let mut work = outgoing.work();
        if work.ready.is_empty() {
            return;
        }
        if work.link.is_none() {
            work.link = self.begin_on_link(outgoing).map(|link| (link, None));
        }
        let Work { link: Some((link, plan)), ready } = &mut *work else { return };
        while let Some(layer) = ready.pop_front() {
            if let Err(reason) = self.put_layer(outgoing, &**link, plan, layer) {
                ready.clear();
                return self.give_up(&mut self.books(), outgoing, reason);
            }
        }
    }

    fn put_layer(
        &self,
        outgoing: &Outgoing,
        link: &dyn Link,
        plan: &mut Option<TransferPlan>,
        layer: u16,
    ) -> Result<(), String> {
        let (key, tokens) = (outgoing.grant.key, outgoing.tokens);
        if plan.is_none() {
            let (here, there) = (self.pool.shape(), link.remote());
            let made = plan_transfer(here, &outgoing.blocks, there, &outgoing.grant.blocks, 0..tokens);
            *plan = Some(made.map_err(|error| error.to_string())?);
        }
        let ranges: Vec<_> = plan.iter().flat_map(|plan| plan.layer(layer)).collect();
        let put = link.put(key, layer, &ranges).and_then(|()| link.publish(key, layer, tokens));
        put.map_err(|error| error.to_string())
    }

    /// The connection of a transfer that is to go on, on which it has begun now.
    fn begin_on_link(&self, outgoing: &Arc<Outgoing>) -> Option<Arc<dyn Link>> {
        let mut books = self.books();
        let Books { running, peers, outcomes, .. } = &mut *books;
        let entry = running.get_mut(&outgoing.leg).filter(|entry| Arc::ptr_eq(&entry.outgoing, outgoing))?;
        let grant = &outgoing.grant;
        let link = match peers.get_mut(&grant.receiver).map(|other| &mut other.state) {
            Some(LinkState::Up(link)) => Arc::clone(link),
            Some(LinkState::Connecting(waiting) | LinkState::Closing(waiting)) => {
                if !waiting.iter().any(|of| Arc::ptr_eq(of, outgoing)) {
                    waiting.push(Arc::clone(outgoing));
                }
                return None;
            }
            // There was one when it was asked for.
            Some(LinkState::None) | None => {
                self.give_up(&mut books, outgoing, "the connection has broken".to_owned());
                return None;
            }
        };
        if let Err(error) = link.begin(grant) {
            self.give_up(&mut books, outgoing, error.to_string());
            return None;
        }
        // How long it may take is the Machine's to say, who stops it; what is stopped must end.
        outcomes.begin(outgoing.leg, grant.receiver, grant.key, Duration::MAX);
        entry.link = Some(Arc::clone(&link));
        Some(link)
    }

    /// A transfer fails for a reason of this side: at once where it has not begun, else when the link has ended it.
    pub(super) fn give_up(&self, books: &mut Books, outgoing: &Arc<Outgoing>, reason: String) {
        let Some(entry) = books.running.get_mut(&outgoing.leg) else { return };
        if !Arc::ptr_eq(&entry.outgoing, outgoing) {
            return;
        }
        if let Some(link) = entry.link.clone() {
            entry.fault.get_or_insert(reason);
            self.stop_on_link(books, outgoing, &*link);
        } else {
            books.running.remove(&outgoing.leg);
            self.end_failed(books, outgoing.leg, outgoing.number, reason);
        }
    }

    fn stop_on_link(&self, books: &mut Books, outgoing: &Outgoing, link: &dyn Link) {
        let Grant { key, receiver, .. } = outgoing.grant;
        link.stop(key);
        books.outcomes.stopped(receiver, key, self.now());
        // There is something to be in time for.
        self.landing.wake();
    }

    fn end_failed(&self, books: &mut Books, key: LegKey, transfer: u64, reason: String) {
        books.done.insert(key, Done::Over);
        self.tell(books, MoverEvent::Failed { key, transfer, reason });
    }

    pub(super) fn stop(&self, leg: LegKey) {
        let mut books = self.books();
        let Some(entry) = books.running.get_mut(&leg) else {
            // Its end is known, and is an answer unless it was that all is read.
            if books.done.insert(leg, Done::Over) != Some(Done::Over) {
                let transfer = books.current.get(&leg).copied().unwrap_or_else(|| books.number(leg));
                self.tell(&books, MoverEvent::Fenced { key: leg, transfer });
            }
            return;
        };
        entry.stopped = true;
        let outgoing = Arc::clone(&entry.outgoing);
        if let Some(link) = entry.link.clone() {
            self.stop_on_link(&mut books, &outgoing, &*link);
        } else {
            books.running.remove(&leg);
            books.done.insert(leg, Done::Over);
            self.tell(&books, MoverEvent::Fenced { key: leg, transfer: outgoing.number });
        }
    }

    /// Whatever goes from here for a leg ends without a word.
    fn forget_running(&self, books: &mut Books, leg: LegKey) {
        if let Some(entry) = books.running.remove(&leg)
            && let Some(link) = &entry.link
        {
            self.stop_on_link(books, &entry.outgoing, &**link);
        }
    }

    /// Forgets all of a leg that goes from here.
    pub(super) fn forget(&self, books: &mut Books, leg: LegKey) {
        self.forget_running(books, leg);
        books.grants.remove(&leg);
        books.done.remove(&leg);
    }

    /// The one end of a transfer.
    pub(super) fn finish(&self, books: &mut Books, outcome: Outcome<LegKey>) {
        let Outcome { leg, receiver, end } = outcome;
        let is_it = |entry: &Running| {
            let grant = &entry.outgoing.grant;
            grant.receiver == receiver && grant.key == end.key()
        };
        if !books.running.get(&leg).is_some_and(is_it) {
            return;
        }
        let Some(Running { outgoing, stopped, fault, .. }) = books.running.remove(&leg) else { return };
        let (key, transfer) = (leg, outgoing.number);
        match end {
            Completion::LocalDone(_) if !stopped => {
                books.done.insert(leg, Done::Local);
                self.tell(books, MoverEvent::LocalDone { key, transfer });
            }
            Completion::LocalDone(_) | Completion::Fenced(_) if stopped => {
                books.done.insert(leg, Done::Over);
                self.tell(books, MoverEvent::Fenced { key, transfer });
            }
            // Nobody here has stopped it.
            Completion::LocalDone(_) | Completion::Fenced(_) => {
                let reason = fault.unwrap_or_else(|| "the other machine has stopped it".to_owned());
                self.end_failed(books, key, transfer, reason);
            }
            Completion::Failed(_, error) => {
                self.end_failed(books, key, transfer, fault.unwrap_or_else(|| error.to_string()));
            }
        }
    }
}
