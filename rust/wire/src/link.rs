//! A worker's connection to its daemon, kept by a thread: it connects, answers the heartbeat whatever the worker does,
//! and connects again. No runtime is needed.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use splitcore_core::event::Registration;
use splitcore_core::id::LegKey;
use splitcore_core::leg::Notice;
use splitcore_core::time::Time;

use crate::address::Address;
use crate::auth::nonce;
use crate::backoff::Backoff;
use crate::codec::{Decoder, encode};
use crate::message::{Descriptor, ToDaemon, ToWorker, Tokens};
use crate::session::{CloseReason, Identity, Settings, Step, WorkerEvent, WorkerSession};
use crate::stream::{Socket, Stream};
use crate::tls::Tls;

const READ_BYTES: usize = 64 << 10;

/// Where to connect, and as whom.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The daemon.
    pub address: Address,
    /// With TLS, and then whom to trust.
    pub tls: Option<Tls>,
    /// Who connects.
    pub identity: Identity,
    /// What is asked of the daemon.
    pub settings: Settings,
    /// Waits between tries.
    pub backoff: Backoff,
}

/// What has happened to the link.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkEvent {
    /// The daemon has said something.
    Session(WorkerEvent),
    /// The session is over, or there was none to be had. The link tries again after `retry_ns`.
    Lost {
        /// Why.
        reason: CloseReason,
        /// How long it waits.
        retry_ns: u64,
    },
}

/// Who hears of what happens to a link. Returns whether there was room: a session that says more than there is room for
/// ends, and of a link that nobody hears any more the thread ends.
type Tell = Box<dyn Fn(LinkEvent) -> bool + Send + Sync>;

/// The connection that is open now.
#[derive(Debug)]
struct Live {
    session: WorkerSession,
    stream: Stream,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Live>,
    stopped: bool,
}

struct Shared {
    origin: Instant,
    state: Mutex<State>,
    wake: Condvar,
    tell: Tell,
    frame_limit: Duration,
    queue_frames_max: u32,
}

impl Shared {
    fn now(&self) -> Time {
        Time::from_ns(self.origin.elapsed().as_nanos() as u64)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out what a session wants, in order. Returns why it is over, if it is.
    fn carry_out(&self, live: &mut Live, steps: Vec<Step<ToDaemon, WorkerEvent>>) -> Option<CloseReason> {
        for step in steps {
            match step {
                Step::Send(message) => {
                    let frame = match encode(&message, live.session.send_bytes_max()) {
                        Ok(frame) => frame,
                        Err(error) => return Some(error.into()),
                    };
                    if let Err(error) = live.stream.write_all(&frame) {
                        return Some(self.failed(&error));
                    }
                }
                Step::Event(event) => {
                    if !(self.tell)(LinkEvent::Session(event)) {
                        return Some(CloseReason::Slow { frames: self.queue_frames_max });
                    }
                }
                Step::Close(reason) => return Some(reason),
            }
        }
        None
    }

    fn failed(&self, error: &io::Error) -> CloseReason {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                CloseReason::Stalled { limit_ns: self.frame_limit.as_nanos() as u64 }
            }
            _ => CloseReason::Io(error.to_string()),
        }
    }

    /// Has a session do something on behalf of the worker. A failure is for the thread to find: it shuts the stream.
    fn act(
        &self,
        act: impl FnOnce(&mut WorkerSession, &mut Vec<Step<ToDaemon, WorkerEvent>>) -> bool,
    ) -> bool {
        let mut state = self.lock();
        let Some(live) = &mut state.live else { return false };
        let mut steps = Vec::new();
        let done = act(&mut live.session, &mut steps);
        if let Some(reason) = self.carry_out(live, steps) {
            live.session.close(reason, &mut Vec::new());
            live.stream.shut();
            return false;
        }
        done
    }
}

/// A worker's connection to its daemon.
pub struct WorkerLink {
    shared: Arc<Shared>,
    /// Unless they are told.
    events: Option<Receiver<LinkEvent>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for WorkerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerLink").field("state", &self.shared.state).finish_non_exhaustive()
    }
}

impl WorkerLink {
    /// Starts to connect. What happens waits for [`WorkerLink::recv`].
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(options: LinkOptions) -> io::Result<Self> {
        let (sender, events) = sync_channel(options.settings.limits.queue_frames_max as usize);
        let tell = move |event| match event {
            // Here the thread may wait: nobody is there to answer.
            LinkEvent::Lost { .. } => sender.send(event).is_ok(),
            LinkEvent::Session(_) => !matches!(sender.try_send(event), Err(TrySendError::Full(_))),
        };
        let mut link = Self::start_telling(options, tell)?;
        link.events = Some(events);
        Ok(link)
    }

    /// Starts to connect, and tells what happens as it happens: the call must neither wait nor use the link.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start_telling(
        options: LinkOptions,
        tell: impl Fn(LinkEvent) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let limits = options.settings.limits;
        let shared = Arc::new(Shared {
            origin: Instant::now(),
            state: Mutex::default(),
            wake: Condvar::new(),
            tell: Box::new(tell),
            frame_limit: Duration::from_nanos(limits.frame_limit_ns),
            queue_frames_max: limits.queue_frames_max,
        });
        let of = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("splitcore-link".to_owned());
        let thread = thread.spawn(move || keep(&of, options))?;
        Ok(Self { shared, events: None, thread: Some(thread) })
    }

    /// The next event, if one comes in time.
    pub fn recv(&self, limit: Duration) -> Option<LinkEvent> {
        self.events.as_ref()?.recv_timeout(limit).ok()
    }

    /// Answers a `Welcome`. Returns whether there was one to answer.
    pub fn register(&self, registration: Registration, descriptors: BTreeMap<LegKey, Descriptor>) -> bool {
        self.shared.act(|session, steps| session.register(registration, descriptors, steps))
    }

    /// Says something to the Cluster. Returns whether there was a session to say it on; what is lost with a session
    /// that breaks is said again after the next registration.
    pub fn notice(&self, notice: Notice) -> bool {
        self.shared.act(|session, steps| session.notice(notice, steps))
    }

    /// Gives output tokens. Returns whether there was a session to give them on.
    pub fn tokens(&self, tokens: Tokens) -> bool {
        self.shared.act(|session, steps| session.tokens(tokens, steps))
    }

    /// Says that the worker is to be stopped. Returns whether there was a session to say it on.
    pub fn leave(&self) -> bool {
        self.shared.act(WorkerSession::leave)
    }

    /// Ends the session, if there is one, with this reason, and connects no more.
    pub fn close(&self, reason: &str) {
        let mut state = self.shared.lock();
        state.stopped = true;
        if let Some(live) = &mut state.live {
            let mut steps = Vec::new();
            live.session.close(CloseReason::Closed(reason.to_owned()), &mut steps);
            match self.shared.carry_out(live, steps) {
                // The session's own end: what came before has been written.
                Some(CloseReason::Closed(_)) => live.stream.end(),
                _ => live.stream.shut(),
            }
        }
        self.shared.wake.notify_all();
    }

    /// Drops the connection without a word, as a broken network would. The link connects again.
    pub fn sever(&self) {
        if let Some(live) = &self.shared.lock().live {
            live.stream.shut();
        }
    }
}

impl Drop for WorkerLink {
    fn drop(&mut self) {
        self.close("the worker ends");
        // One that waits for room to tell of its last session waits no more.
        self.events = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The life of a link.
fn keep(shared: &Shared, mut options: LinkOptions) {
    while !shared.lock().stopped {
        let reason = match open(shared, &options) {
            Ok(socket) => run(shared, &mut options, socket),
            Err(error) => CloseReason::Io(error.to_string()),
        };
        if let Some(live) = shared.lock().live.take() {
            live.stream.shut();
        }
        let retry_ns = options.backoff.next_ns();
        let mut state = shared.lock();
        if state.stopped {
            return;
        }
        drop(state);
        if !(shared.tell)(LinkEvent::Lost { reason, retry_ns }) {
            return;
        }
        state = shared.lock();
        let wait = Duration::from_nanos(retry_ns);
        drop(shared.wake.wait_timeout_while(state, wait, |state| !state.stopped));
    }
}

/// Connects. A handshake of TLS is part of the session's, and has no more time than that.
fn open(shared: &Shared, options: &LinkOptions) -> io::Result<Socket> {
    let limit = Duration::from_nanos(options.settings.limits.handshake_limit_ns);
    let stream = Stream::connect(&options.address, options.tls.as_ref(), limit, shared.frame_limit)?;
    let socket = stream.socket()?;
    let session =
        WorkerSession::new(options.identity.clone(), options.settings.clone(), nonce()?, shared.now());
    let mut state = shared.lock();
    if state.stopped {
        return Err(io::Error::other("the worker ends"));
    }
    state.live = Some(Live { session, stream });
    Ok(socket)
}

/// Reads until the session is over.
fn run(shared: &Shared, options: &mut LinkOptions, mut socket: Socket) -> CloseReason {
    let mut decoder = Decoder::new();
    let mut bytes = vec![0; READ_BYTES];
    let mut within_since: Option<Instant> = None;
    loop {
        let wait = {
            let state = shared.lock();
            let Some(live) = state.live.as_ref().filter(|live| !live.session.is_closed()) else {
                return CloseReason::Closed("closed here".to_owned());
            };
            Duration::from_nanos(live.session.next_deadline().since(shared.now()).max(1_000_000))
        };
        let frame_left = within_since.map(|since| shared.frame_limit.saturating_sub(since.elapsed()));
        let wait = frame_left.map_or(wait, |left| wait.min(left.max(Duration::from_millis(1))));
        if let Err(error) = socket.set_limits(Some(wait), shared.frame_limit) {
            return CloseReason::Io(error.to_string());
        }
        let read = match socket.read(&mut bytes) {
            Ok(0) => return CloseReason::Io("end of stream".to_owned()),
            Ok(read) => read,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => 0,
                _ => return CloseReason::Io(error.to_string()),
            },
        };
        match hear(shared, options, &mut decoder, &bytes[..read]) {
            Ok(0) => {}
            Ok(_) => within_since = None,
            Err(reason) => return reason,
        }
        within_since = decoder.is_within_frame().then(|| within_since.unwrap_or_else(Instant::now));
        if within_since.is_some_and(|since| since.elapsed() >= shared.frame_limit) {
            return CloseReason::Stalled { limit_ns: shared.frame_limit.as_nanos() as u64 };
        }
    }
}

/// Takes what has been read, then looks at the time. Returns how many messages there were.
fn hear(
    shared: &Shared,
    options: &mut LinkOptions,
    decoder: &mut Decoder,
    bytes: &[u8],
) -> Result<u64, CloseReason> {
    let mut state = shared.lock();
    let Some(live) = state.live.as_mut() else {
        return Err(CloseReason::Closed("closed here".to_owned()));
    };
    let taken = live.stream.take(bytes, |bytes| decoder.push(bytes));
    let (mut steps, mut heard, now) = (Vec::new(), 0, shared.now());
    loop {
        match decoder.next::<ToWorker>(live.session.frame_bytes_max()) {
            Ok(Some(message)) => live.session.receive(now, message, &mut steps),
            Ok(None) => break,
            Err(error) => {
                live.session.close(error.into(), &mut steps);
                break;
            }
        }
        heard += 1;
    }
    live.session.tick(now, &mut steps);
    for step in &steps {
        match step {
            Step::Event(WorkerEvent::Welcome(welcome)) => {
                options.identity.index = Some(welcome.machine.index);
            }
            Step::Event(WorkerEvent::Registered { epoch }) => {
                options.identity.epoch = *epoch;
                options.backoff.reset();
            }
            _ => {}
        }
    }
    // What came before the end is heard before it.
    let over = shared.carry_out(live, steps).or_else(|| match taken {
        Ok(false) => None,
        Ok(true) => Some(CloseReason::Io("end of stream".to_owned())),
        Err(error) => Some(shared.failed(&error)),
    });
    over.map_or(Ok(heard), Err)
}
