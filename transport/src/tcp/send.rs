//! The sender's half: books, a queue for each connection, and what ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use splitcore_core::kv::{KvRange, PoolShape};
use splitcore_secret::Token;

use super::frame::{Crc, Descriptor, Head};
use super::lane::{Driver, Ending, FRAME, Job, Lane, Piece};
use crate::connect::{ConnectOptions, greet, remote};
use crate::error::{HandshakeError, TransferError};
use crate::handshake::{Endpoint, Hello};
use crate::ledger::{Copy, Ledger};
use crate::pool::Pool;
use crate::transfer::{Completion, Grant, Link, PeerState, TransferKey, Wake};

/// Puts and publications that may be queued on one connection.
pub(super) const QUEUE_MAX: usize = 1 << 16;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A transfer on its connection.
pub(super) struct Route {
    pub(super) key: TransferKey,
    token: Token,
    /// Whether the receiver has been shown it. Only the connection's thread asks.
    shown: AtomicBool,
    lane: usize,
    /// No further frame of it is begun.
    pub(super) stopped: AtomicBool,
    /// By layer: the checksum of what was sent of it. Only the connection's thread asks.
    pub(super) crcs: Mutex<HashMap<u16, Crc>>,
}

impl Route {
    /// Appends, the first time, the frame that must come before all others of the transfer.
    pub(super) fn show(&self, into: &mut Vec<u8>) {
        if !self.shown.swap(true, Ordering::Relaxed) {
            Head::encode_show(self.key, &self.token, into);
        }
    }
}

/// What a link's callers and its threads share.
pub(super) struct Shared {
    pub(super) ledger: Ledger,
    pub(super) lanes: Vec<Lane>,
    pub(super) checksums: bool,
    pub(super) stall_limit: Duration,
    routes: Mutex<HashMap<TransferKey, Arc<Route>>>,
    next: AtomicUsize,
    broken: AtomicBool,
}

impl Shared {
    fn route(&self, key: TransferKey) -> Result<Arc<Route>, TransferError> {
        lock(&self.routes).get(&key).cloned().ok_or_else(|| match self.ledger.peer() {
            PeerState::Lost => TransferError::PeerLost { key, peer: self.ledger.receiver() },
            _ => TransferError::Unknown { key },
        })
    }

    /// No further frame of a transfer is begun; once the last one is out, it ends so.
    pub(super) fn wind_up(&self, completion: Completion, tell: bool) {
        let Ok(route) = self.route(completion.key()) else { return };
        if route.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        let lane = &self.lanes[route.lane];
        lane.push_ending(Ending { completion, tell: tell.then_some(route) });
    }

    /// Books an end; says whether it was the first of its transfer.
    pub(super) fn end(&self, completion: Completion) -> bool {
        lock(&self.routes).remove(&completion.key());
        self.ledger.end(completion)
    }

    /// The receiver is gone, or is to be: nothing is sent any more, and every transfer ends.
    pub(super) fn lose(&self, why: impl FnMut(TransferKey) -> TransferError) {
        if self.broken.swap(true, Ordering::AcqRel) {
            return;
        }
        for lane in &self.lanes {
            let _ = lane.stream.shutdown(Shutdown::Both);
            lane.close();
        }
        self.ledger.lose(why);
        lock(&self.routes).clear();
    }
}

/// A sender of one receiver.
struct TcpLink {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Connects a sender.
pub(crate) fn connect(
    pool: &Arc<Pool>,
    to: &Endpoint,
    hello: &Hello,
    options: &ConnectOptions,
) -> Result<Arc<dyn Link>, HandshakeError> {
    if pool.host_base().is_none() {
        return Err(HandshakeError::NoBackend("the source pool is a device's".to_owned()));
    }
    let io = |what: &'static str| {
        move |error: std::io::Error| HandshakeError::Io { what: what.to_owned(), reason: error.to_string() }
    };
    let mut lanes = Vec::new();
    let mut shape: Option<PoolShape> = None;
    for _ in 0..options.connections.max(1) {
        let mut stream: TcpStream = remote(to, options.within)?;
        let welcome = greet(&mut stream, to, hello, options)?;
        super::tune(&stream, options.stall_limit).map_err(io("tcp socket"))?;
        stream.set_nonblocking(true).map_err(io("tcp socket"))?;
        shape = Some(welcome.shape);
        lanes.push(Lane::new(stream).map_err(io("eventfd"))?);
    }
    let Some(shape) = shape else { return Err(HandshakeError::NoBackend("no connection".to_owned())) };
    let shared = Arc::new(Shared {
        ledger: Ledger::new(pool.clone(), shape, to.incarnation),
        lanes,
        checksums: hello.checksums,
        stall_limit: options.stall_limit,
        routes: Mutex::default(),
        next: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    });
    let mut link = TcpLink { shared: shared.clone(), threads: Vec::new() };
    for lane in 0..shared.lanes.len() {
        let mut driver = Driver::new(shared.clone(), lane);
        let thread = std::thread::Builder::new().name("kv-send".to_owned()).spawn(move || driver.run());
        link.threads.push(thread.map_err(io("sending thread"))?);
    }
    Ok(Arc::new(link))
}

impl Link for TcpLink {
    fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        let shared = &self.shared;
        let mut routes = lock(&shared.routes);
        shared.ledger.begin(grant)?;
        // One transfer after the other on each connection, whatever their sizes: the streams share one link.
        let lane = shared.next.fetch_add(1, Ordering::Relaxed) % shared.lanes.len();
        let route = Route {
            key: grant.key,
            token: grant.token,
            shown: AtomicBool::new(false),
            lane,
            stopped: AtomicBool::new(false),
            crcs: Mutex::default(),
        };
        if let Entry::Vacant(place) = routes.entry(grant.key) {
            place.insert(Arc::new(route));
        }
        Ok(())
    }

    fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError> {
        let shared = &self.shared;
        let route = shared.route(key)?;
        shared.lanes[route.lane].push(|| {
            let copies = shared.ledger.put(key, layer, ranges)?;
            let mut pieces = Vec::with_capacity(copies.len());
            for (copy, range) in copies.into_iter().zip(ranges) {
                cut(copy, range, shared.ledger.remote(), &mut pieces);
            }
            Ok((!pieces.is_empty()).then_some(Job::Put { route, layer, pieces }))
        })
    }

    fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError> {
        let shared = &self.shared;
        let route = shared.route(key)?;
        shared.lanes[route.lane].push(|| {
            let sealed = shared.ledger.publish(key, layer)?;
            Ok(Some(Job::Publish { route, layer, tokens, sealed }))
        })
    }

    fn stop(&self, key: TransferKey) {
        self.shared.wind_up(Completion::Fenced(key), true);
    }

    fn poll(&self, ended: &mut Vec<Completion>) {
        self.shared.ledger.poll(ended);
    }

    fn wait(&self, within: Duration) -> bool {
        self.shared.ledger.wait(within)
    }

    fn on_end(&self, wake: Wake) {
        self.shared.ledger.on_end(wake);
    }

    fn peer(&self) -> PeerState {
        self.shared.ledger.peer()
    }

    fn remote(&self) -> &PoolShape {
        self.shared.ledger.remote()
    }
}

/// Cuts a range that is longer than a frame should be.
fn cut(copy: Copy, range: &KvRange, remote: &PoolShape, into: &mut Vec<Piece>) {
    let first = Piece {
        from: copy.from,
        to: Descriptor { block: range.to.0, offset: range.to_offset, bytes: copy.bytes.min(FRAME) },
    };
    into.push(first);
    let mut done = first.to.bytes;
    while done < copy.bytes {
        let bytes = (copy.bytes - done).min(FRAME);
        // Always there: the ledger found the whole range inside.
        let Some((block, offset)) = remote.block_at(copy.to + u64::from(done)) else { return };
        into.push(Piece {
            from: copy.from + u64::from(done),
            to: Descriptor { block: block.0, offset, bytes },
        });
        done += bytes;
    }
}

/// What is on its way comes out, a frame that is partly out too; then the receiver is waited for, at most the stall
/// limit, so that what it has not yet read is not lost. What is queued is not sent.
impl Drop for TcpLink {
    fn drop(&mut self) {
        for lane in &self.shared.lanes {
            lane.close();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
