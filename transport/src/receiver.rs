//! A machine's receiving end: its sockets, and a thread for each connection.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use splitcore_secret::{Key, Secret};

use crate::cuda::DeviceLayers;
use crate::error::HandshakeError;
use crate::handshake::{
    Answer, Backend, Bounded, Endpoint, Greeting, Hello, Incarnation, boot_id, demand, receive, send,
};
use crate::landing::Landing;
use crate::pool::Pool;
use crate::sockets::{Flag, ready};

/// After a connection that could not be accepted.
const RESPITE: Duration = Duration::from_millis(100);

/// Connections of those who have not shown to know the key, at most: the oldest makes room. Whoever may come in has done
/// so within a few messages.
const STRANGERS_MAX: usize = 64;

/// How a receiver listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenOptions {
    /// The model, by a name or a hash; senders must say the same.
    pub model: String,
    /// What senders must know besides the key of the endpoint, if anything.
    pub secret: Option<Secret>,
    /// Transfers at once. Over a device's pool there are at most 32.
    pub slots: u32,
    /// Where the folder of the local socket is made; `None` for the system's folder of temporary files.
    pub folder: Option<PathBuf>,
    /// Whether senders on the same host may come by the local socket.
    pub local: bool,
    /// Where others may come; port 0 takes a free one. `None`: they may not.
    pub tcp: Option<SocketAddr>,
    /// How long a peer may take for its handshake.
    pub handshake_within: Duration,
    /// Connections at once.
    pub connections_max: usize,
    /// How long a writer may be silent in the middle of a frame before its connection is closed.
    pub stall_limit: Duration,
}

impl ListenOptions {
    /// Local senders and, on loopback, others; 256 transfers at once.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            secret: None,
            slots: 256,
            folder: None,
            local: true,
            tcp: Some(([127, 0, 0, 1], 0).into()),
            handshake_within: Duration::from_secs(5),
            connections_max: 4096,
            stall_limit: Duration::from_secs(10),
        }
    }
}

/// Either socket.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// What a connection's thread has.
pub(crate) struct Serving {
    pub(crate) landing: Landing,
    pub(crate) options: ListenOptions,
    /// What senders show to know.
    pub(crate) secret: Secret,
    pub(crate) host: String,
    pub(crate) backends: Vec<Backend>,
    /// Of a device's pool.
    pub(crate) layers: Option<DeviceLayers>,
    /// Up when the receiver closes.
    pub(crate) closing: Flag,
}

struct Connection {
    thread: JoinHandle<()>,
    /// Gone when its thread has ended.
    stream: Weak<Stream>,
    /// Whether it has shown to know the key.
    known: Arc<AtomicBool>,
}

/// Sockets, and a thread for each connection. Dropped, it ends every connection and joins every thread; transfers that have not landed
/// fail, and are fenced as far as they are written by this process or by writers that have died. Those of a writer
/// that never came stay open: nobody writes them.
pub struct Receiver {
    serving: Arc<Serving>,
    endpoint: Endpoint,
    accepting: Vec<JoinHandle<()>>,
    connections: Arc<Mutex<Vec<Connection>>>,
    folder: Option<PathBuf>,
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> HandshakeError {
    move |error| HandshakeError::Io { what: what.into(), reason: error.to_string() }
}

impl Receiver {
    /// Registers `pool` and listens for those who will write it.
    ///
    /// # Errors
    /// No memory, no socket, or nobody could come.
    pub fn listen(pool: Arc<Pool>, me: Incarnation, options: ListenOptions) -> Result<Self, HandshakeError> {
        let mut backends = Vec::new();
        if options.local && pool.device_base().is_some() {
            backends.push(Backend::CudaIpc);
        }
        if options.local && pool.mapping().is_some() {
            backends.push(Backend::Shm);
        }
        if options.tcp.is_some() && pool.host_base().is_some() {
            backends.push(Backend::Tcp);
        }
        let host = boot_id()?;
        let key = Key::random().map_err(io("random key"))?;
        let slots = crate::cuda::slots_for(&pool, options.slots);
        let landing = Landing::new(pool, me, slots)?;
        let serving = Arc::new(Serving {
            layers: DeviceLayers::of(&landing)?,
            landing,
            secret: key.with(options.secret.as_ref()),
            options,
            host: host.clone(),
            backends: backends.clone(),
            closing: Flag::new().map_err(io("eventfd"))?,
        });
        let device = crate::cuda::device_name(serving.landing.pool());
        let mut receiver = Self {
            serving: serving.clone(),
            endpoint: Endpoint {
                incarnation: me,
                host,
                unix: None,
                tcp: None,
                backends,
                device,
                nixl: None,
                key,
            },
            accepting: Vec::new(),
            connections: Arc::default(),
            folder: None,
        };
        if serving.options.local {
            receiver.listen_local()?;
        }
        if let Some(address) = serving.options.tcp {
            receiver.listen_tcp(address)?;
        }
        Ok(receiver)
    }

    fn listen_local(&mut self) -> Result<(), HandshakeError> {
        let folder = self.serving.options.folder.clone().unwrap_or_else(std::env::temp_dir);
        // A name of its own: whoever lists the folder beside it learns nothing of this life.
        let name = Incarnation::random()?;
        let folder = folder.join(format!("splitcore-{}-{name}", std::process::id()));
        let named = |path: &Path| path.display().to_string();
        sweep(folder.parent());
        std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(io(named(&folder)))?;
        self.folder = Some(folder.clone());
        let path = folder.join("kv.sock");
        let listener = UnixListener::bind(&path).map_err(io(named(&path)))?;
        listener.set_nonblocking(true).map_err(io("local socket"))?;
        self.endpoint.unix = Some(path);
        self.accept(listener, |listener| listener.accept().map(|(stream, _)| Stream::Unix(stream)))
    }

    fn listen_tcp(&mut self, address: SocketAddr) -> Result<(), HandshakeError> {
        let listener = TcpListener::bind(address).map_err(io(format!("listening at {address}")))?;
        listener.set_nonblocking(true).map_err(io("tcp socket"))?;
        self.endpoint.tcp = Some(listener.local_addr().map_err(io("tcp socket"))?);
        self.accept(listener, |listener| listener.accept().map(|(stream, _)| Stream::Tcp(stream)))
    }

    fn accept<L: AsFd + Send + 'static>(
        &mut self,
        listener: L,
        next: fn(&L) -> std::io::Result<Stream>,
    ) -> Result<(), HandshakeError> {
        let (serving, connections) = (self.serving.clone(), self.connections.clone());
        let accepting = move || {
            while let Ok([closing, _]) =
                ready([(serving.closing.as_fd(), false), (listener.as_fd(), false)], None)
            {
                if closing {
                    return;
                }
                match next(&listener) {
                    Ok(stream) => adopt(&serving, &connections, stream),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // No descriptor is left, say: who knocks goes on knocking, so this thread sleeps a while.
                    Err(_) => drop(ready([(serving.closing.as_fd(), false)], Some(RESPITE))),
                }
            }
        };
        let thread = std::thread::Builder::new().name("kv-accept".to_owned()).spawn(accepting);
        self.accepting.push(thread.map_err(io("accepting thread"))?);
        Ok(())
    }

    /// How it is reached.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How it listens.
    pub fn options(&self) -> &ListenOptions {
        &self.serving.options
    }

    /// What has come.
    pub fn landing(&self) -> &Landing {
        &self.serving.landing
    }

    /// How streams wait for what comes; `None` unless the pool is a device's.
    pub fn layers(&self) -> Option<&DeviceLayers> {
        self.serving.layers.as_ref()
    }
}

/// Removes what receivers that were killed have left: folders of ours whose socket nobody listens to any more. New ones
/// are let be, since a socket is there a moment before it listens.
fn sweep(beside: Option<&Path>) {
    const SETTLED: Duration = Duration::from_secs(60);
    let is_left = |path: &Path| {
        let age =
            path.metadata().and_then(|about| about.modified()).map(|at| at.elapsed().unwrap_or_default());
        let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        age.is_ok_and(|age| age > SETTLED) && UnixStream::connect(path.join("kv.sock")).is_err_and(refused)
    };
    let entries = beside.and_then(|beside| std::fs::read_dir(beside).ok()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("splitcore-")) {
        if is_left(&entry.path()) {
            // Whose it is not may not, and need not, remove it.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Gives a connection a thread of its own, so that a peer that says nothing holds up nobody else.
fn adopt(serving: &Arc<Serving>, connections: &Mutex<Vec<Connection>>, stream: Stream) {
    let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
    connections.retain(|connection| !connection.thread.is_finished());
    if connections.len() >= serving.options.connections_max {
        return;
    }
    let is_stranger =
        |of: &&mut Connection| !of.known.load(Ordering::Relaxed) && of.stream.strong_count() > 0;
    let mut strangers: Vec<&mut Connection> = connections.iter_mut().filter(is_stranger).collect();
    if strangers.len() >= STRANGERS_MAX {
        // Once it is closed it counts no more, though its thread may still be about to end.
        let oldest = std::mem::take(&mut strangers[0].stream);
        let _ = oldest.upgrade().map(|stream| stream.close());
    }
    let (stream, known) = (Arc::new(stream), Arc::<AtomicBool>::default());
    let (serving, held, knows) = (serving.clone(), Arc::downgrade(&stream), known.clone());
    let thread = std::thread::Builder::new().name("kv-connection".to_owned()).spawn(move || {
        // What a peer did wrong was told to the peer; the receiver goes on.
        let _ = stream.another().map(|stream| stream.serve(&serving, &knows));
        stream.close();
    });
    if let Ok(thread) = thread {
        connections.push(Connection { thread, stream: held, known });
    }
}

impl Stream {
    fn another(&self) -> std::io::Result<Self> {
        let copy = match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        };
        // An accepted socket of a listener that does not block may not block either.
        match &copy {
            Self::Unix(stream) => stream.set_nonblocking(false)?,
            Self::Tcp(stream) => stream.set_nonblocking(false)?,
        }
        Ok(copy)
    }

    fn close(&self) {
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }

    /// The life of a connection.
    fn serve(self, serving: &Serving, known: &AtomicBool) -> Result<(), HandshakeError> {
        match self {
            Self::Unix(mut stream) => {
                let hello = admit(&mut stream, serving, known, true)?;
                match hello.backend {
                    Backend::CudaIpc => crate::cuda::serve(stream, &hello, serving),
                    _ => crate::shm::serve(stream, &hello, serving),
                }
            }
            Self::Tcp(mut stream) => {
                let hello = admit(&mut stream, serving, known, false)?;
                crate::tcp::serve(stream, &hello, serving)
            }
        }
    }
}

/// Has a sender show that it may come, and then say who it is. One who may come and does not fit is told why.
fn admit(
    stream: &mut impl Bounded,
    serving: &Serving,
    known: &AtomicBool,
    local: bool,
) -> Result<Hello, HandshakeError> {
    let (landing, within) = (&serving.landing, serving.options.handshake_within);
    let proven = demand(stream, landing.owner(), &serving.secret, within)?;
    known.store(true, Ordering::Relaxed);
    let greeted = receive::<Greeting>(stream, within).and_then(|greeting| proven.greeted(greeting));
    let checked = greeted.and_then(|hello| {
        let by_socket = |backend: &Backend| (*backend != Backend::Tcp) == local;
        let backends: Vec<Backend> = serving.backends.iter().copied().filter(by_socket).collect();
        hello.check(
            landing.owner(),
            &serving.options.model,
            landing.pool().shape(),
            &backends,
            &serving.host,
        )?;
        Ok(hello)
    });
    if let Err(error) = &checked {
        let _ = send(stream, &Answer::Refused(error.to_string()), within);
    }
    checked
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.closing.raise();
        for thread in self.accepting.drain(..) {
            let _ = thread.join();
        }
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in connections.iter().filter_map(|connection| connection.stream.upgrade()) {
            stream.close();
        }
        for connection in connections.drain(..) {
            let _ = connection.thread.join();
        }
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn folders_of_killed_receivers_are_swept_and_no_others() {
        let beside = std::env::temp_dir().join(format!("kv-sweep-{}", std::process::id()));
        let make = |name: &str, old: bool| {
            let folder = beside.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let listener = UnixListener::bind(folder.join("kv.sock")).unwrap();
            let at = SystemTime::now() - Duration::from_secs(if old { 3600 } else { 0 });
            std::fs::File::open(&folder).unwrap().set_modified(at).unwrap();
            (folder, listener)
        };
        let (killed, socket) = make("splitcore-1-a", true);
        drop(socket);
        let (young, socket) = make("splitcore-2-b", false);
        drop(socket);
        let (living, _listens) = make("splitcore-3-c", true);
        let (other, socket) = make("another-4-d", true);
        drop(socket);
        sweep(Some(&beside));
        let left = [&killed, &young, &living, &other].map(|folder| folder.exists());
        std::fs::remove_dir_all(&beside).unwrap();
        assert_eq!(left, [false, true, true, true]);
    }
}
