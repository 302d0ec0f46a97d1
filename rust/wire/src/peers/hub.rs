//! Who is in session with this machine, by which connection. All of it runs on one thread, so that what is told of a
//! machine is in order.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use splitcore_core::id::MachineId;
use splitcore_core::time::Time;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::talk::{Ear, Mouth, Say, Talk, line};
use super::{PeersEvent, Tell};
use crate::address::Address;
use crate::auth::nonce;
use crate::backoff::Backoff;
use crate::listen::Accepted;
use crate::message::PeerAddress;
use crate::session::{CloseReason, Limits, PeerEvent, PeerIdentity, PeerSession, Settings};

/// A connection, or the line of connections to a machine that is dialled. Never used twice.
pub(super) type SessionId = u64;

pub(super) struct Hub {
    identity: PeerIdentity,
    settings: Settings,
    backoff: Backoff,
    origin: Instant,
    state: Mutex<State>,
}

struct State {
    tell: Tell,
    last: SessionId,
    /// Those who dialled.
    incoming: BTreeMap<MachineId, Held>,
    /// Those who are dialled.
    outgoing: BTreeMap<MachineId, Held>,
}

struct Held {
    id: SessionId,
    mouth: Mouth,
}

impl State {
    fn next_id(&mut self) -> SessionId {
        self.last += 1;
        self.last
    }

    /// Whether a connection is the one by which this machine is heard.
    fn is_heard(&self, machine: MachineId, id: SessionId) -> bool {
        [&self.incoming, &self.outgoing]
            .iter()
            .any(|held| held.get(&machine).is_some_and(|held| held.id == id))
    }
}

impl Hub {
    pub(super) fn new(identity: PeerIdentity, settings: Settings, backoff: Backoff, tell: Tell) -> Self {
        let state = State { tell, last: 0, incoming: BTreeMap::new(), outgoing: BTreeMap::new() };
        Self { identity, settings, backoff, origin: Instant::now(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn limits(&self) -> Limits {
        self.settings.limits
    }

    pub(super) fn now(&self) -> Time {
        Time::from_ns(self.origin.elapsed().as_nanos() as u64)
    }

    /// Says something to a machine that is dialled, and dials it if need be.
    pub(super) fn say(self: &Arc<Self>, to: &PeerAddress, say: Say, tasks: &mut JoinSet<()>) {
        let machine = to.machine;
        let mut state = self.state();
        if let Some(held) = state.outgoing.get(&machine) {
            return held.mouth.say(say);
        }
        let address = match to.peer.parse::<Address>() {
            Ok(address) => address,
            Err(error) => {
                let reason = CloseReason::Closed(error.to_string());
                return (state.tell)(PeersEvent::Lost { machine, reason, retry_ns: 0 });
            }
        };
        let (mouth, ear) = line(self.limits().queue_frames_max);
        mouth.say(say);
        let id = state.next_id();
        state.outgoing.insert(machine, Held { id, mouth });
        tasks.spawn(Arc::clone(self).keep(id, machine, address, ear));
    }

    /// Says something to a machine that has dialled, if it is in session.
    pub(super) fn answer(&self, to: MachineId, say: Say) {
        if let Some(held) = self.state().incoming.get(&to) {
            held.mouth.say(say);
        }
    }

    /// A machine is gone.
    pub(super) fn gone(&self, machine: MachineId) {
        let mut state = self.state();
        let held = [state.incoming.remove(&machine), state.outgoing.remove(&machine)];
        held.into_iter().flatten().for_each(|held| held.mouth.end("the machine counts as gone"));
    }

    /// Everything ends.
    pub(super) fn end(&self) {
        let mut state = self.state();
        let incoming = std::mem::take(&mut state.incoming);
        let outgoing = std::mem::take(&mut state.outgoing);
        incoming
            .into_values()
            .chain(outgoing.into_values())
            .for_each(|held| held.mouth.end("the worker ends"));
    }

    /// What a session says; nothing of one whose place another has taken.
    pub(super) fn hear(&self, id: SessionId, event: PeerEvent, mouth: &mut Option<Mouth>) {
        let mut state = self.state();
        let from = match &event {
            PeerEvent::Open { machine, .. } | PeerEvent::Replaced { machine } => *machine,
            PeerEvent::Message { from, .. } | PeerEvent::Tokens { from, .. } => *from,
        };
        if let Some(mouth) = mouth.take_if(|_| matches!(event, PeerEvent::Open { .. }))
            && let Some(before) = state.incoming.insert(from, Held { id, mouth })
        {
            before.mouth.end("the same machine has opened another session");
        }
        if !state.is_heard(from, id) {
            return;
        }
        if matches!(event, PeerEvent::Replaced { .. }) {
            // It is not dialled any more.
            state.outgoing.remove(&from);
        }
        (state.tell)(match event {
            PeerEvent::Open { machine, address } => PeersEvent::Open { machine, address },
            PeerEvent::Replaced { machine } => PeersEvent::Replaced { machine },
            PeerEvent::Message { from, message, grant } => PeersEvent::Message { from, message, grant },
            PeerEvent::Tokens { from, tokens } => PeersEvent::Tokens { from, tokens },
        });
    }

    /// A connection is over. A machine that is dialled is dialled again, so that its place stays.
    pub(super) fn closed(&self, id: SessionId) {
        self.state().incoming.retain(|_, held| held.id != id);
    }

    /// The life of a connection that another machine has made.
    pub(super) async fn serve(self: Arc<Self>, stream: Accepted) {
        let Ok(nonce) = nonce() else { return };
        let id = self.state().next_id();
        let (mouth, mut ear) = line(self.limits().queue_frames_max);
        let mut steps = Vec::new();
        let (identity, settings) = (self.identity.clone(), self.settings.clone());
        let session = PeerSession::accept(identity, settings, nonce, self.now(), &mut steps);
        let talk = Talk::new(&self, id, session, steps, Some(mouth));
        match stream {
            Accepted::Tcp(stream) => drop(talk.run(stream, &mut ear).await),
            Accepted::Unix(stream) => drop(talk.run(stream, &mut ear).await),
        }
    }

    /// Dials a machine, and dials it again, until it is gone or has been replaced.
    async fn keep(self: Arc<Self>, id: SessionId, machine: MachineId, address: Address, mut ear: Ear) {
        let Backoff { first_ns, max_ns, seed, .. } = self.backoff;
        let seed = seed
            .wrapping_add(u64::from(machine.index) << 32 | u64::from(self.identity.address.machine.index));
        let mut backoff = Backoff::new(first_ns, max_ns, seed);
        loop {
            let (reason, opened) = match self.dial(id, machine, &address, &mut ear).await {
                Ok(over) => over,
                Err(error) => (CloseReason::Io(error.to_string()), false),
            };
            if opened {
                // The machine says it again: it may have been lost already.
                ear.drain();
                backoff.reset();
            }
            if ear.is_over() {
                return;
            }
            let retry_ns = backoff.next_ns();
            {
                let state = self.state();
                if !state.is_heard(machine, id) {
                    return;
                }
                (state.tell)(PeersEvent::Lost { machine, reason, retry_ns });
            }
            if timeout(Duration::from_nanos(retry_ns), ear.ended()).await.is_ok() {
                return;
            }
        }
    }

    /// One connection to a machine.
    async fn dial(
        &self,
        id: SessionId,
        machine: MachineId,
        address: &Address,
        ear: &mut Ear,
    ) -> io::Result<(CloseReason, bool)> {
        let limit = Duration::from_nanos(self.limits().handshake_limit_ns);
        let connecting = async {
            io::Result::Ok(match address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Accepted::Tcp(stream)
                }
                Address::Unix(path) => Accepted::Unix(UnixStream::connect(path).await?),
            })
        };
        let stream = tokio::select! {
            connected = timeout(limit, connecting) => connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?,
            reason = ear.ended() => return Ok((CloseReason::Closed(reason.to_owned()), false)),
        };
        let (identity, settings) = (self.identity.clone(), self.settings.clone());
        let session = PeerSession::dial(identity, settings, machine, nonce()?, self.now());
        let talk = Talk::new(self, id, session, Vec::new(), None);
        Ok(match stream {
            Accepted::Tcp(stream) => talk.run(stream, ear).await,
            Accepted::Unix(stream) => talk.run(stream, ear).await,
        })
    }
}
