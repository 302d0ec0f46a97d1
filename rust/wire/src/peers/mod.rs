//! Sessions between workers, over sockets: a thread with a runtime of its own listens for the machines that this one
//! writes to, and dials those that write to it.

mod hub;
mod talk;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use splitcore_core::id::MachineId;
use splitcore_core::leg::Peer;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::address::Address;
use crate::backoff::Backoff;
use crate::listen::{ACCEPT_PAUSE, Accepted, Listener};
use crate::message::{GrantBody, PeerAddress, Tokens};
use crate::pipe::LINGER;
use crate::session::{CloseReason, PeerIdentity, Settings};

use hub::Hub;
use talk::Say;

/// Where a worker takes peer connections, and on which terms.
#[derive(Debug, Clone)]
pub struct PeersOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: Address,
    /// The secret and the limits. The layout that others must have is that of the identity.
    pub settings: Settings,
    /// Waits between two dials of the same machine.
    pub backoff: Backoff,
}

/// What has happened between this machine and others.
#[derive(Debug, Clone, PartialEq)]
pub enum PeersEvent {
    /// A session is open, and what was on its way in one before it is lost: the machine hears `PeerReset`.
    Open {
        /// With whom.
        machine: MachineId,
        /// Where that is reached; of those who dialled.
        address: Option<PeerAddress>,
    },
    /// Another life answers where this machine was: it is gone, and the machine hears `PeerLost`. It is not dialled any
    /// more.
    Replaced {
        /// Who is gone.
        machine: MachineId,
    },
    /// For the machine.
    Message {
        /// Who speaks.
        from: MachineId,
        /// What.
        message: Peer,
        /// With a `Grant`.
        grant: Option<GrantBody>,
    },
    /// Output tokens that the source of a leg has drawn.
    Tokens {
        /// Who speaks.
        from: MachineId,
        /// The tokens.
        tokens: Tokens,
    },
    /// A session that this machine dialled is over, or there was none to be had; it is dialled again. For logs: the
    /// machine hears of the next session.
    Lost {
        /// With whom.
        machine: MachineId,
        /// Why.
        reason: CloseReason,
        /// How long until it is dialled again.
        retry_ns: u64,
    },
}

type Tell = Box<dyn Fn(PeersEvent) + Send>;

/// What the thread is asked for.
enum Ask {
    Begin(PeerIdentity, Tell),
    Say(PeerAddress, Say),
    Answer(MachineId, Say),
    Gone(MachineId),
}

/// A worker's sessions with other workers. Dropped, it ends all of them.
#[derive(Debug)]
pub struct Peers {
    asks: Option<UnboundedSender<Ask>>,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// Begins to listen. Nobody is let in before [`begin`](Self::begin). Gives the address with the port that it got.
    ///
    /// # Errors
    /// The address cannot be had, or there is no thread.
    pub fn bind(options: PeersOptions) -> io::Result<(Self, Address)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(Listener::bind(&options.listen))?;
        let address = listener.address().clone();
        let (sender, asks) = unbounded_channel();
        let thread = std::thread::Builder::new().name("splitcore-peers".to_owned()).spawn(move || {
            runtime.block_on(run(listener, options, asks));
            // Not to wait for the name of a host that nobody looks for any more.
            runtime.shutdown_background();
        })?;
        Ok((Self { asks: Some(sender), thread: Some(thread) }, address))
    }

    fn ask(&self, ask: Ask) {
        if let Some(asks) = &self.asks {
            // The thread ends with this, and not before.
            let _ = asks.send(ask);
        }
    }

    /// From here on it is known which machine this is. `tell` is called on a thread of this, and must not wait for
    /// one that waits for this. A second call does nothing.
    pub fn begin(&self, identity: PeerIdentity, tell: impl Fn(PeersEvent) + Send + 'static) {
        self.ask(Ask::Begin(identity, Box::new(tell)));
    }

    /// Says something to the source of a leg: dials it if there is no session, and until there is one, it waits.
    /// What waits when a session breaks is dropped: the machine says it again after the `PeerReset` of the next one.
    /// That is dialled whether or not there is more to say, until [`gone`](Self::gone): what has been lost is not known
    /// here.
    pub fn say(&self, to: &PeerAddress, message: Peer, grant: Option<GrantBody>) {
        self.ask(Ask::Say(to.clone(), Say::Message { message, grant }));
    }

    /// Answers the destination of a leg, on the session that it dialled. Without one it is dropped: that machine says
    /// again what is to be answered.
    pub fn answer(&self, to: MachineId, message: Peer) {
        self.ask(Ask::Answer(to, Say::Message { message, grant: None }));
    }

    /// Gives the destination of a leg output tokens, on the session that it dialled; as [`answer`](Self::answer).
    pub fn tokens(&self, to: MachineId, tokens: Tokens) {
        self.ask(Ask::Answer(to, Say::Tokens(tokens)));
    }

    /// The machine has heard `PeerLost`: the other one is not dialled any more, and sessions with it end.
    pub fn gone(&self, machine: MachineId) {
        self.ask(Ask::Gone(machine));
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The life of the thread.
async fn run(listener: Listener, options: PeersOptions, mut asks: UnboundedReceiver<Ask>) {
    let hub = loop {
        match asks.recv().await {
            Some(Ask::Begin(identity, tell)) => {
                break Arc::new(Hub::new(identity, options.settings.clone(), options.backoff, tell));
            }
            // Nobody knows anybody yet.
            Some(_) => {}
            None => return,
        }
    };
    let places = Arc::new(Semaphore::new(options.settings.limits.connections_max as usize));
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            ask = asks.recv() => match ask {
                Some(Ask::Begin(..)) => {}
                Some(Ask::Say(to, say)) => hub.say(&to, say, &mut tasks),
                Some(Ask::Answer(to, say)) => hub.answer(to, say),
                Some(Ask::Gone(machine)) => hub.gone(machine),
                None => break,
            },
            stream = accept(&listener) => {
                // Without a place it is dropped at once: whoever dialled tries again later.
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    hub.meet(stream, place, &mut tasks);
                }
            }
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
        }
    }
    drop(listener);
    hub.end();
    let farewell = async { while tasks.join_next().await.is_some() {} };
    // Each lingers at most so long; who has not said who it is is not told.
    let _ = tokio::time::timeout(LINGER, farewell).await;
}

async fn accept(listener: &Listener) -> Accepted {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}
