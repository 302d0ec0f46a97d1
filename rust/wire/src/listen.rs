//! A daemon's side: a listener whose connections are tasks, each with a session of its own. What a stranger sends ends
//! the stranger's connection and touches nothing else.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::ServerConfig;
use splitcore_core::id::MachineId;
use splitcore_core::time::Time;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::address::Address;
use crate::auth::nonce;
use crate::message::{Assigned, Hello, Refusal, ToDaemon, ToWorker};
use crate::pipe::{Pipe, READ_BYTES, put};
use crate::session::{CloseReason, DaemonEvent, DaemonSession, Settings, Step};
use crate::tls::why;

/// After an `accept` that failed, for want of descriptors most likely.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What has happened on a connection.
#[derive(Debug)]
pub struct Heard {
    /// Which.
    pub connection: ConnectionId,
    /// What.
    pub what: What,
}

/// What can happen on a connection.
#[derive(Debug)]
pub enum What {
    /// A worker asks to be let in; answer on the handle.
    Hello {
        /// Who.
        hello: Box<Hello>,
        /// Where the connection comes from: `host:port`, or `unix`.
        from: String,
        /// To answer, and to speak later.
        handle: Handle,
    },
    /// A worker has said something.
    Event(DaemonEvent),
    /// It is over. The last of a connection; of one that never came to a `Hello` the only one.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

/// What a host says on a connection.
#[derive(Debug)]
pub(crate) enum Say {
    Welcome(MachineId),
    Refuse(Refusal),
    Registered,
    Command(Box<Assigned>),
    Close(String),
}

/// Speaks on a connection. On one that is over it speaks to nobody: the host hears of that in turn.
#[derive(Debug, Clone)]
pub struct Handle {
    says: mpsc::Sender<Say>,
    slow: Arc<Notify>,
}

impl Say {
    pub(crate) fn carry_out(
        self,
        session: &mut DaemonSession,
        now: Time,
        steps: &mut Vec<Step<ToWorker, DaemonEvent>>,
    ) {
        match self {
            Self::Welcome(machine) => drop(session.welcome(now, machine, steps)),
            Self::Refuse(refusal) => session.refuse(refusal, steps),
            Self::Registered => drop(session.registered(steps)),
            Self::Command(assigned) => drop(session.command(*assigned, steps)),
            Self::Close(reason) => session.close(CloseReason::Closed(reason), steps),
        }
    }
}

impl Handle {
    /// One that has room for so many frames, and what is said on it.
    pub(crate) fn new(frames_max: u32) -> (Self, mpsc::Receiver<Say>) {
        let (says, said) = mpsc::channel(frames_max.max(1) as usize);
        (Self { says, slow: Arc::new(Notify::new()) }, said)
    }

    fn say(&self, say: Say) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.says.try_send(say) {
            self.slow.notify_one();
        }
    }

    /// Lets the worker in.
    pub fn welcome(&self, machine: MachineId) {
        self.say(Say::Welcome(machine));
    }

    /// Does not let the worker in.
    pub fn refuse(&self, refusal: Refusal) {
        self.say(Say::Refuse(refusal));
    }

    /// The Cluster has taken the registration.
    pub fn registered(&self) {
        self.say(Say::Registered);
    }

    /// Gives the worker something to do.
    pub fn command(&self, assigned: Assigned) {
        self.say(Say::Command(Box::new(assigned)));
    }

    /// Ends the session, and tells the worker why.
    pub fn close(&self, reason: &str) {
        self.say(Say::Close(reason.to_owned()));
    }
}

/// Where workers connect.
#[derive(Debug)]
pub struct Listener {
    inner: Inner,
    address: Address,
    tls: Option<Arc<ServerConfig>>,
}

#[derive(Debug)]
enum Inner {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(at) => {
                let listener = TcpListener::bind(at).await?;
                let address = Address::Tcp(listener.local_addr()?.to_string());
                Ok(Self { inner: Inner::Tcp(listener), address, tls: None })
            }
            Address::Unix(path) => {
                remove_abandoned(path)?;
                let inner = Inner::Unix(UnixListener::bind(path)?);
                Ok(Self { inner, address: address.clone(), tls: None })
            }
        }
    }

    /// Speaks TLS with all who connect, unless it is a socket of the file system, which does not leave its host.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<ServerConfig>) -> Self {
        self.tls = matches!(self.inner, Inner::Tcp(_)).then_some(tls);
        self
    }

    /// Whether it speaks TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Where it listens, with the port that it was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Takes connections until it is dropped, or nobody listens to `heard` any more.
    pub async fn serve(self, settings: Settings, heard: mpsc::Sender<Heard>) {
        let places = Arc::new(Semaphore::new(settings.limits.connections_max as usize));
        let held = Arc::new(Held { bytes: AtomicU64::new(0), bytes_max: settings.limits.held_bytes_max });
        let origin = Instant::now();
        for id in 0.. {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = heard.closed() => return,
            };
            let Ok((stream, from)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // Without a place it is dropped at once: the worker tries again later.
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let share = Share { of: Arc::clone(&held), bytes: 0 };
            let task = Task::new(ConnectionId(id), from, settings.clone(), origin, heard.clone(), share);
            let Ok(task) = task else { continue };
            let tls = self.tls.clone();
            tokio::spawn(async move {
                match stream {
                    Accepted::Tcp(stream) => match tls {
                        Some(tls) => task.run_tls(tls, stream).await,
                        None => task.run(stream).await,
                    },
                    Accepted::Unix(stream) => task.run(stream).await,
                }
                drop(place);
            });
        }
    }

    /// The next connection, and where it comes from.
    ///
    /// # Errors
    /// The system has none to give: it is to be tried again a little later.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, String)> {
        match &self.inner {
            Inner::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Accepted::Tcp(stream), from.to_string()))
            }
            Inner::Unix(listener) => Ok((Accepted::Unix(listener.accept().await?.0), "unix".to_owned())),
        }
    }
}

/// One that was killed has left its socket behind, and nobody answers there. Whatever else is there stays: a file that is
/// no socket refuses a connection as well.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    let Ok(there) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there"));
    }
    let answer = std::os::unix::net::UnixStream::connect(path);
    if answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// A connection of either kind.
pub(crate) enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// What has come on all connections together, and waits for the rest of its frame or of its registration.
struct Held {
    bytes: AtomicU64,
    bytes_max: u64,
}

/// The part of it that one connection has.
struct Share {
    of: Arc<Held>,
    bytes: u64,
}

impl Share {
    /// It is so much now. Returns whether all of them together are within their bound.
    fn set(&mut self, bytes: u64) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let total = self.of.bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        bytes <= before || total.wrapping_add(bytes).wrapping_sub(before) <= self.of.bytes_max
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One connection.
struct Task {
    id: ConnectionId,
    from: String,
    share: Share,
    session: DaemonSession,
    settings: Settings,
    origin: Instant,
    heard: mpsc::Sender<Heard>,
    says: mpsc::Receiver<Say>,
    handle: Handle,
    pipe: Pipe,
    steps: Vec<Step<ToWorker, DaemonEvent>>,
}

impl Task {
    fn new(
        id: ConnectionId,
        from: String,
        settings: Settings,
        origin: Instant,
        heard: mpsc::Sender<Heard>,
        share: Share,
    ) -> io::Result<Self> {
        let (handle, says) = Handle::new(settings.limits.queue_frames_max);
        let mut steps = Vec::new();
        let now = Time::from_ns(origin.elapsed().as_nanos() as u64);
        let session = DaemonSession::new(settings.clone(), nonce()?, now, &mut steps);
        Ok(Self {
            id,
            from,
            share,
            session,
            pipe: Pipe::new(settings.limits),
            settings,
            origin,
            heard,
            says,
            handle,
            steps,
        })
    }

    fn now(&self) -> Time {
        Time::from_ns(self.origin.elapsed().as_nanos() as u64)
    }

    /// The handshake of TLS is part of the session's: both must have ended in time.
    async fn run_tls(mut self, tls: Arc<ServerConfig>, stream: TcpStream) {
        let heard = self.heard.clone();
        let accepted = tokio::select! {
            accepted = tokio::time::timeout_at(self.deadline(), TlsAcceptor::from(tls).accept(stream)) => accepted,
            () = heard.closed() => return,
        };
        let reason = match accepted {
            Ok(Ok(stream)) => {
                self.pipe.keeps();
                return self.run(stream).await;
            }
            Ok(Err(error)) => CloseReason::Io(why(&error)),
            Err(_) => CloseReason::Handshake { limit_ns: self.settings.limits.handshake_limit_ns },
        };
        self.over(reason).await;
    }

    async fn run<S: AsyncRead + AsyncWrite>(mut self, stream: S) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let reason = self.converse(&mut reader, &mut writer).await;
        self.pipe.part(&mut reader, &mut writer).await;
        self.over(reason).await;
    }

    async fn over(&self, reason: CloseReason) {
        let _ = self.heard.send(Heard { connection: self.id, what: What::Closed { reason } }).await;
    }

    /// Until there is a reason to end.
    async fn converse<S: AsyncRead + AsyncWrite>(
        &mut self,
        reader: &mut ReadHalf<S>,
        writer: &mut WriteHalf<S>,
    ) -> CloseReason {
        let mut bytes = vec![0; READ_BYTES];
        let slow = Arc::clone(&self.handle.slow);
        let heard = self.heard.clone();
        loop {
            if let Some(reason) = self.carry_out().await {
                return reason;
            }
            let deadline = self.deadline();
            let speaks = self.pipe.has_room();
            tokio::select! {
                wrote = put(writer, self.pipe.unwritten()), if self.pipe.writes() => match wrote {
                    Ok(wrote) => self.pipe.wrote(wrote),
                    Err(error) => self.fail(CloseReason::Io(why(&error))),
                },
                read = reader.read(&mut bytes) => match read {
                    Ok(0) => self.fail(CloseReason::Io("end of stream".to_owned())),
                    Ok(read) => self.hear(&bytes[..read]),
                    Err(error) => self.fail(CloseReason::Io(why(&error))),
                },
                say = self.says.recv(), if speaks => if let Some(say) = say { self.say(say) },
                () = slow.notified() => {
                    let frames = self.settings.limits.queue_frames_max;
                    self.fail(CloseReason::Slow { frames });
                }
                () = heard.closed() => self.fail(CloseReason::Closed("the daemon ends".to_owned())),
                () = tokio::time::sleep_until(deadline) => {}
            }
            self.look_at_the_time();
        }
    }

    fn deadline(&self) -> Instant {
        let session = Duration::from_nanos(self.session.next_deadline().since(self.now()));
        let deadline = Instant::now() + session.min(Duration::from_secs(3600));
        self.pipe.deadline().map_or(deadline, |frame| frame.min(deadline))
    }

    fn look_at_the_time(&mut self) {
        if let Some(reason) = self.pipe.stalled() {
            self.fail(reason);
        }
        let now = self.now();
        self.session.tick(now, &mut self.steps);
    }

    fn fail(&mut self, reason: CloseReason) {
        self.session.close(reason, &mut self.steps);
    }

    fn hear(&mut self, bytes: &[u8]) {
        let now = self.now();
        let (session, steps) = (&mut self.session, &mut self.steps);
        self.pipe.read(bytes, |decoder| {
            let mut any = false;
            while !session.is_closed() {
                match decoder.next::<ToDaemon>(session.frame_bytes_max()) {
                    Ok(Some(message)) => session.receive(now, message, steps),
                    Ok(None) => break,
                    Err(error) => session.close(error.into(), steps),
                }
                any = true;
            }
            any
        });
        self.weigh();
    }

    /// A connection whose bytes are too many together with those of all others is the one that ends.
    fn weigh(&mut self) {
        if !self.share.set(self.pipe.held_bytes() + self.session.held_bytes()) {
            let limit = self.settings.limits.held_bytes_max;
            self.fail(CloseReason::Held { limit });
        }
    }

    fn say(&mut self, say: Say) {
        let now = self.now();
        say.carry_out(&mut self.session, now, &mut self.steps);
        self.weigh();
    }

    /// Carries out what the session wants, in order.
    async fn carry_out(&mut self) -> Option<CloseReason> {
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Send(message) => {
                    if let Err(error) = self.pipe.push(&message) {
                        return Some(error.into());
                    }
                }
                Step::Event(event) => {
                    let what = match event {
                        DaemonEvent::Hello(hello) => {
                            What::Hello { hello, from: self.from.clone(), handle: self.handle.clone() }
                        }
                        event => What::Event(event),
                    };
                    if self.heard.send(Heard { connection: self.id, what }).await.is_err() {
                        return Some(CloseReason::Closed("the daemon ends".to_owned()));
                    }
                }
                Step::Close(reason) => return Some(reason),
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails so")]
mod tests {
    use tokio::io::BufStream;

    use super::*;

    #[test]
    fn a_stream_that_keeps_what_it_is_given_is_flushed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let heard = async {
            let (near, mut far) = tokio::io::duplex(4096);
            let (heard, _hears) = mpsc::channel(8);
            let held = Arc::new(Held { bytes: AtomicU64::new(0), bytes_max: u64::MAX });
            let (settings, share) = (Settings::default(), Share { of: held, bytes: 0 });
            let task = Task::new(ConnectionId(1), String::new(), settings, Instant::now(), heard, share);
            let mut task = task.unwrap();
            task.pipe.keeps();
            let conversation = tokio::spawn(task.run(BufStream::new(near)));
            let mut header = [0; 4];
            // Well before the session ends, which writes out whatever there is.
            let read = tokio::time::timeout(Duration::from_secs(4), far.read_exact(&mut header)).await;
            conversation.abort();
            read
        };
        assert_eq!(runtime.block_on(heard).expect("the challenge comes").unwrap(), 4);
    }
}
