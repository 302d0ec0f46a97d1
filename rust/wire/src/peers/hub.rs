//! Who is in session with this machine, by which connection. All of it runs on one thread, so that what is told of a
//! machine is in order.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use splitcore_core::id::MachineId;
use splitcore_core::time::Time;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::talk::{Ear, Mouth, Say, Talk, line};
use super::{PeersEvent, Tell};
use crate::address::Address;
use crate::auth::nonce;
use crate::backoff::Backoff;
use crate::listen::Accepted;
use crate::message::PeerAddress;
use crate::session::{CloseReason, Limits, PeerEvent, PeerIdentity, PeerSession, Settings};

/// Connections of those who have not shown who they are, at most: the oldest makes room. Whoever may come in has done so
/// within a few messages.
const STRANGERS_MAX: usize = 64;

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
    /// Those who have dialled and not shown who they are, the oldest first.
    strangers: VecDeque<(SessionId, AbortHandle)>,
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
        let state = State {
            tell,
            last: 0,
            incoming: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            strangers: VecDeque::new(),
        };
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
        tasks.spawn(Arc::clone(self).keep(id, to.clone(), address, ear));
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
        self.known(id);
        self.state().incoming.retain(|_, held| held.id != id);
    }

    /// Somebody has connected: the place keeps it from being one of too many.
    pub(super) fn meet(
        self: &Arc<Self>,
        stream: Accepted,
        place: OwnedSemaphorePermit,
        tasks: &mut JoinSet<()>,
    ) {
        let id = self.state().next_id();
        let hub = Arc::clone(self);
        let task = tasks.spawn(async move {
            hub.serve(id, stream).await;
            hub.known(id);
            drop(place);
        });
        let mut state = self.state();
        state.strangers.push_back((id, task));
        if state.strangers.len() > STRANGERS_MAX
            && let Some((_, oldest)) = state.strangers.pop_front()
        {
            oldest.abort();
        }
    }

    /// A connection is none of a stranger's any more.
    pub(super) fn known(&self, id: SessionId) {
        self.state().strangers.retain(|(of, _)| *of != id);
    }

    /// The life of a connection that another machine has made.
    async fn serve(self: &Arc<Self>, id: SessionId, stream: Accepted) {
        let Ok(nonce) = nonce() else { return };
        let (mouth, mut ear) = line(self.limits().queue_frames_max);
        let mut steps = Vec::new();
        let (identity, settings) = (self.identity.clone(), self.settings.clone());
        let session = PeerSession::accept(identity, settings, nonce, self.now(), &mut steps);
        let talk = Talk::new(self, id, session, steps, Some(mouth));
        match stream {
            Accepted::Tcp(stream) => drop(talk.run(stream, &mut ear).await),
            Accepted::Unix(stream) => drop(talk.run(stream, &mut ear).await),
        }
    }

    /// Dials a machine, and dials it again, until it is gone or has been replaced.
    async fn keep(self: Arc<Self>, id: SessionId, wanted: PeerAddress, address: Address, mut ear: Ear) {
        let machine = wanted.machine;
        let Backoff { first_ns, max_ns, seed, .. } = self.backoff;
        let seed = seed
            .wrapping_add(u64::from(machine.index) << 32 | u64::from(self.identity.address.machine.index));
        let mut backoff = Backoff::new(first_ns, max_ns, seed);
        loop {
            let (reason, opened) = match self.dial(id, &wanted, &address, &mut ear).await {
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
        wanted: &PeerAddress,
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
        let session = PeerSession::dial(identity, settings, wanted, nonce()?, self.now());
        let talk = Talk::new(self, id, session, Vec::new(), None);
        Ok(match stream {
            Accepted::Tcp(stream) => talk.run(stream, ear).await,
            Accepted::Unix(stream) => talk.run(stream, ear).await,
        })
    }
}

#[cfg(test)]
mod tests {
    use splitcore_core::id::{Attempt, LegKey, RequestId};
    use splitcore_core::kv::{Arrangement, Dtype, KvLayout, Planes, Shard, TokenOrder, Values};
    use splitcore_core::leg::Peer;

    use super::*;
    use crate::auth::Key;

    #[test]
    fn of_two_sessions_of_a_machine_only_the_later_is_heard_and_of_one_that_is_closed_nothing() {
        let layout = KvLayout {
            layers: 1,
            values: Values::Latent { dim: 8 },
            dtype: Dtype::F32,
            block_tokens: 1,
            order: TokenOrder::Nhd,
            planes: Planes::Together,
            arrangement: Arrangement::LayerFirst,
            shard: Shard::WHOLE,
        };
        let machine = MachineId { index: 1, incarnation: 1 };
        let address =
            PeerAddress { machine, peer: String::new(), transfer: String::new(), key: Key::default() };
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&told);
        let tell = Box::new(move |event| into.lock().unwrap_or_else(PoisonError::into_inner).push(event));
        let hub = Hub::new(PeerIdentity { address, layout }, Settings::default(), Backoff::default(), tell);
        let open = |id| {
            let (mouth, ear) = line(1);
            hub.hear(id, PeerEvent::Open { machine, address: None }, &mut Some(mouth));
            ear
        };
        let say = |id, request| {
            let message = Peer::Landed { key: LegKey { request: RequestId(request), attempt: Attempt(0) } };
            hub.hear(id, PeerEvent::Message { from: machine, message, grant: None }, &mut None);
        };
        let _first = open(1);
        say(1, 10);
        let _second = open(2);
        say(1, 11);
        say(2, 12);
        hub.closed(1);
        say(2, 13);
        hub.closed(2);
        say(2, 14);
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = told.iter().filter_map(|event| match event {
            PeersEvent::Message { message: Peer::Landed { key }, .. } => Some(key.request.0),
            _ => None,
        });
        assert_eq!(requests.collect::<Vec<_>>(), [10, 12, 13]);
        assert_eq!(told.len(), 5, "and two openings");
    }
}
