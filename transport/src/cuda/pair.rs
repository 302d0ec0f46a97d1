//! The two ends of a connection: what they tell each other in the handshake, and the link that comes of it.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use splitcore_core::kv::{KvRange, PoolShape};

use super::driver::{Fault, HANDLE_BYTES, Handle, Stream};
use super::hold::{Held, Hold};
use super::link::{Copier, Target};
use super::memory::{DeviceMemory, memory_of};
use crate::board::Board;
use crate::connect::ConnectOptions;
use crate::error::{HandshakeError, TransferError};
use crate::handshake::{Endpoint, Hello, Welcome};
use crate::ledger::Ledger;
use crate::local::{self, Call, Offered, Watch, call};
use crate::pool::Pool;
use crate::receiver::Serving;
use crate::transfer::{Completion, Grant, Link, PeerState, TransferKey, Wake};

/// What the receiver's welcome says of its memory.
#[derive(Debug, Serialize, Deserialize)]
struct Shared {
    /// Which process: one cannot open its own memory.
    process: u64,
    /// The device.
    device: String,
    /// The allocation's handle.
    memory: String,
    /// Where in it the pool begins.
    offset: u64,
    /// The events' handles, one after the other.
    events: String,
}

fn device(fault: &Fault) -> HandshakeError {
    HandshakeError::Io { what: fault.what.to_owned(), reason: fault.reason.clone() }
}

/// The life of a connection at its receiver.
pub(crate) fn serve(stream: UnixStream, hello: &Hello, serving: &Serving) -> Result<(), HandshakeError> {
    let Some(layers) = &serving.layers else {
        return Err(HandshakeError::NoBackend("the receiver's pool is not on a CUDA device".to_owned()));
    };
    let events = layers.events();
    let io = |error: std::io::Error| HandshakeError::Io {
        what: "local connection".to_owned(),
        reason: error.to_string(),
    };
    let Some(watch) = Watch::over_peer(&stream).map_err(io)? else { return Ok(()) };
    let (end, held) = Held::new(watch).map_err(io)?;
    let (memory, offset) = events.memory.exported();
    let shared = Shared {
        process: events.memory.driver().process(),
        device: events.memory.driver().name(),
        memory: memory.to_hex(),
        offset,
        events: events.handles.iter().map(|handle| handle.to_hex()).collect(),
    };
    let extra = serde_json::to_value(shared).map_err(|error| HandshakeError::Malformed(error.to_string()))?;
    let descriptors = [serving.landing.board().fd(), end.as_fd()];
    let served = local::serve(stream, hello, serving, &Offered { extra, descriptors: &descriptors });
    // Ours, or the sender's end would never be seen to close.
    drop(end);
    if served.is_ok() {
        held.keep(events.clone());
    }
    served
}

/// Connects a sender.
pub(crate) fn connect(
    pool: &Arc<Pool>,
    to: &Endpoint,
    hello: &Hello,
    options: &ConnectOptions,
) -> Result<Arc<dyn Link>, HandshakeError> {
    let memory = memory_of(pool)
        .ok_or_else(|| HandshakeError::NoBackend("the sender's pool is not on a CUDA device".to_owned()))?;
    if hello.checksums {
        return Err(HandshakeError::NoBackend("cuda-ipc has no checksums over device memory".to_owned()));
    }
    reaches(&memory, to.device.as_deref().unwrap_or("no device"))?;
    // In this order, so that what fails is closed before the goodbye.
    let (call, welcome, [board, end]) = call::<2>(to, hello, options)?;
    let hold = Hold::new(end);
    let (copier, todo) = open(pool, &memory, &welcome, board, hold, &call)?;
    let copier = Arc::new(copier);
    let mut link = CudaLink { copier: Some(copier.clone()), worker: None, call };
    link.call.attend(copier.clone())?;
    let worker = std::thread::Builder::new().name("kv-copies".to_owned()).spawn(move || copier.work(&todo));
    link.worker = Some(worker.map_err(|error| HandshakeError::Io {
        what: "thread for copies".to_owned(),
        reason: error.to_string(),
    })?);
    Ok(Arc::new(link))
}

/// Whether memory of the receiver's device can be written from the sender's.
fn reaches(memory: &DeviceMemory, theirs: &str) -> Result<(), HandshakeError> {
    memory.driver().reaches(theirs).map_err(|why| HandshakeError::Mismatch {
        field: "device".to_owned(),
        ours: memory.driver().name(),
        theirs: format!("{theirs} ({why})"),
    })
}

/// Opens what the receiver shares.
fn open(
    pool: &Arc<Pool>,
    memory: &Arc<DeviceMemory>,
    welcome: &Welcome,
    board: std::os::fd::OwnedFd,
    hold: Hold,
    call: &Call,
) -> Result<(Copier, std::sync::mpsc::Receiver<super::link::Job>), HandshakeError> {
    let shared: Shared = serde_json::from_value(welcome.extra.clone())
        .map_err(|error| HandshakeError::Malformed(format!("device memory: {error}")))?;
    let driver = memory.driver();
    if shared.process == driver.process() {
        return Err(HandshakeError::NoBackend(
            "the receiver is in this process, and CUDA cannot open memory in the process that exported it"
                .to_owned(),
        ));
    }
    reaches(memory, &shared.device)?;
    let layers = welcome.shape.layout.layers;
    let events = handles(&shared.events, welcome.slots as usize * usize::from(layers))?;
    let [handle] = handles(&shared.memory, 1)?[..] else { return Err(malformed(0, 1)) };
    let board = Board::open(board, welcome.slots, layers, welcome.incarnation)?;
    let import = memory.device.imports.open(welcome.incarnation, handle).map_err(|fault| device(&fault))?;
    let target = Target { import, offset: shared.offset, marks: events, hold };
    let ledger = Ledger::new(pool.clone(), welcome.shape, welcome.incarnation);
    Copier::new(driver.clone(), memory.pointer(), ledger, board, call.line().clone(), target)
        .map_err(|fault| device(&fault))
}

fn malformed(found: usize, expected: usize) -> HandshakeError {
    HandshakeError::Malformed(format!("device handles of {found} characters, expected {expected}"))
}

/// The handles of a text, of which there must be so many.
fn handles(text: &str, count: usize) -> Result<Vec<Handle>, HandshakeError> {
    let wrong = || malformed(text.len(), count * 2 * HANDLE_BYTES);
    if !text.is_ascii() || text.len() != count * 2 * HANDLE_BYTES {
        return Err(wrong());
    }
    (0..count)
        .map(|index| text.get(index * 2 * HANDLE_BYTES..(index + 1) * 2 * HANDLE_BYTES))
        .map(|digits| digits.and_then(Handle::from_hex).ok_or_else(wrong))
        .collect()
}

/// A sender's connection by CUDA IPC.
struct CudaLink {
    /// Gone before the goodbye.
    copier: Option<Arc<Copier>>,
    worker: Option<JoinHandle<()>>,
    call: Call,
}

impl CudaLink {
    fn copier(&self) -> &Copier {
        // Only dropping takes it away.
        self.copier.as_deref().expect("a link that is not dropped has its copier")
    }
}

impl Link for CudaLink {
    fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        self.copier().begin(grant)
    }

    fn after(&self, stream: u64) -> Result<(), TransferError> {
        self.copier().after(Stream(stream))
    }

    fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError> {
        self.copier().put(key, layer, ranges)
    }

    fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError> {
        self.copier().publish(key, layer, tokens)
    }

    fn stop(&self, key: TransferKey) {
        self.copier().stop(key);
    }

    fn poll(&self, ended: &mut Vec<Completion>) {
        self.copier().ledger().poll(ended);
    }

    fn wait(&self, within: Duration) -> bool {
        self.copier().ledger().wait(within)
    }

    fn on_end(&self, wake: Wake) {
        self.copier().ledger().on_end(wake);
    }

    fn peer(&self) -> PeerState {
        self.copier().ledger().peer()
    }

    fn remote(&self) -> &PoolShape {
        self.copier().ledger().remote()
    }
}

impl Drop for CudaLink {
    fn drop(&mut self) {
        self.call.leave();
        if let Some(copier) = &self.copier {
            copier.quit();
        }
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        if let Some(copier) = self.copier.take() {
            // Whoever else still holds the copier: what is the receiver's is closed before the goodbye.
            copier.let_go();
        }
    }
}
