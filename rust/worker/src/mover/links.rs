//! Connections to other machines' receivers: made, closed and doubted off the threads of driver and engine.

use std::sync::Arc;

use splitcore_transport::{HandshakeError, Incarnation, Link, connect, is_dead};
use splitcore_wire::message::PeerAddress;

use super::books::{Books, LinkState, Shared};
use super::outgoing::Outgoing;
use super::{MoverEvent, endpoint_of};

/// Runs something on a thread that nobody waits for: it must not hold `Shared` while it waits. Without a thread it is
/// not run, and false.
fn apart(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).is_ok()
}

impl Shared {
    /// Makes a connection to a machine, unless there is one.
    pub(super) fn connect(self: &Arc<Self>, books: &mut Books, to: Incarnation) {
        let over = books.over;
        let Some(other) = books.peers.get_mut(&to) else { return };
        if over || other.lost || !matches!(other.state, LinkState::None) {
            return;
        }
        let (pool, me, options) = (Arc::clone(&self.pool), self.me, self.options.connect.clone());
        let (endpoint, landing, shared) =
            (other.endpoint.clone(), self.landing.clone(), Arc::downgrade(self));
        let made = move || {
            let made = connect(&pool, me, &endpoint, &options);
            if let Ok(link) = &made {
                link.on_end(Arc::new(move || landing.wake()));
            }
            if let Some(shared) = shared.upgrade() {
                shared.connected(to, made);
            }
        };
        if apart("kv-connect", made) {
            other.state = LinkState::Connecting(Vec::new());
        }
    }

    fn connected(self: &Arc<Self>, to: Incarnation, made: Result<Arc<dyn Link>, HandshakeError>) {
        let mut books = self.books();
        let over = books.over;
        let Some(other) = books.peers.get_mut(&to).filter(|_| !over) else { return };
        let LinkState::Connecting(waiting) = std::mem::replace(&mut other.state, LinkState::None) else {
            return;
        };
        match made {
            Ok(link) => {
                other.state = LinkState::Up(link);
                for outgoing in waiting {
                    self.queue.push(outgoing);
                }
                // Whatever has become of it before it could wake anybody.
                self.landing.wake();
            }
            Err(error) => {
                for outgoing in waiting {
                    self.give_up(&mut books, &outgoing, format!("no connection: {error}"));
                }
                self.doubt(&mut books, to, None);
            }
        }
    }

    /// A machine has given no answer, or has broken a connection: finds out whether its process is dead. A link to it
    /// is closed before.
    pub(super) fn doubt(self: &Arc<Self>, books: &mut Books, of: Incarnation, link: Option<Arc<dyn Link>>) {
        let over = books.over;
        let Some(other) = books.peers.get_mut(&of) else { return };
        if over || other.lost || other.doubts > 0 {
            other.doubts += 1;
            if let Some(link) = link {
                apart("kv-close", move || drop(link));
            }
            return;
        }
        let (endpoint, within, shared) =
            (other.endpoint.clone(), self.options.probe_limit, Arc::downgrade(self));
        other.doubts = u32::from(apart("kv-probe", move || {
            drop(link);
            let dead = is_dead(&endpoint, within);
            if let Some(shared) = shared.upgrade() {
                shared.probed(of, dead);
            }
        }));
    }

    /// The driver doubts a machine.
    pub(super) fn doubted(self: &Arc<Self>, machine: &PeerAddress) {
        // Who has said nowhere where it is cannot be looked for.
        let Ok(endpoint) = endpoint_of(machine) else { return };
        let mut books = self.books();
        books.other(machine.machine, &endpoint);
        self.doubt(&mut books, endpoint.incarnation, None);
    }

    fn probed(self: &Arc<Self>, of: Incarnation, dead: bool) {
        let mut books = self.books();
        let Some(other) = books.peers.get_mut(&of) else { return };
        let doubts = std::mem::take(&mut other.doubts);
        if !dead {
            // What has happened meanwhile may be its death.
            if doubts > 1 {
                self.doubt(&mut books, of, None);
            }
            return;
        }
        if std::mem::replace(&mut other.lost, true) {
            return;
        }
        let machine = other.machine;
        // What connects to it fails by itself.
        self.tell(&books, MoverEvent::PeerLost { machine });
    }

    /// Closes a connection on which a stopped transfer does not end. What was under way on it ends when nothing reads
    /// here any more.
    pub(super) fn shut(self: &Arc<Self>, books: &mut Books, to: Incarnation) {
        let Some(other) = books.peers.get_mut(&to) else { return };
        if !matches!(other.state, LinkState::Up(_)) {
            return;
        }
        let LinkState::Up(link) = std::mem::replace(&mut other.state, LinkState::Closing(Vec::new())) else {
            return;
        };
        let on_it = books.running.values().filter(|entry| entry.outgoing.grant.receiver == to);
        let on_it: Vec<Arc<Outgoing>> = on_it.map(|entry| Arc::clone(&entry.outgoing)).collect();
        let (shared, fallback) = (Arc::downgrade(self), Arc::clone(&link));
        let closed = apart("kv-close", move || {
            for outgoing in &on_it {
                outgoing.cut();
            }
            let Some(shared) = shared.upgrade() else { return };
            shared.books().running.values_mut().for_each(|entry| entry.let_go(&link));
            drop(link);
            shared.closed(to);
        });
        if !closed && let Some(other) = books.peers.get_mut(&to) {
            // Another time.
            other.state = LinkState::Up(fallback);
        }
    }

    fn closed(self: &Arc<Self>, to: Incarnation) {
        let mut books = self.books();
        for outcome in books.outcomes.closed(to) {
            self.finish(&mut books, outcome);
        }
        let Some(other) = books.peers.get_mut(&to) else { return };
        let LinkState::Closing(waiting) = std::mem::replace(&mut other.state, LinkState::None) else {
            return;
        };
        self.connect(&mut books, to);
        match books.peers.get_mut(&to).map(|other| &mut other.state) {
            Some(LinkState::Connecting(then)) => *then = waiting,
            _ => waiting.iter().for_each(|outgoing| {
                self.give_up(&mut books, outgoing, "no connection".to_owned());
            }),
        }
    }
}
