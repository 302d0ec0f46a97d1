//! A daemon that does what a test wants, and links to it.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;

use splitcore_wire::address::Address;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::link::{LinkEvent, LinkOptions, WorkerLink};
use splitcore_wire::listen::{Handle, Heard, Listener, What};
use splitcore_wire::session::{CloseReason, DaemonEvent, Settings, WorkerEvent};
use splitcore_wire::tls::Tls;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};

/// Longest wait of any test for anything.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A daemon that hears, and lets a test answer.
pub(crate) struct Daemon {
    runtime: Runtime,
    pub(crate) address: Address,
    heard: Receiver<Heard>,
}

impl Daemon {
    pub(crate) fn start(settings: Settings) -> Self {
        Self::bind(settings, |listener| listener)
    }

    /// With a listener that is as a test wants it.
    pub(crate) fn bind(settings: Settings, with: impl FnOnce(Listener) -> Listener) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let at = Address::Tcp("127.0.0.1:0".to_owned());
        let listener = with(runtime.block_on(Listener::bind(&at)).unwrap());
        let address = listener.address().clone();
        let (sender, heard) = channel(64);
        runtime.spawn(listener.serve(settings, sender));
        Self { runtime, address, heard }
    }

    pub(crate) fn next(&mut self) -> What {
        let heard = &mut self.heard;
        let heard = self.runtime.block_on(async { tokio::time::timeout(WAIT, heard.recv()).await });
        heard.unwrap().unwrap().what
    }

    pub(crate) fn closed(&mut self) -> CloseReason {
        match self.next() {
            What::Closed { reason } => reason,
            what => panic!("{what:?}"),
        }
    }

    pub(crate) fn hello(&mut self) -> Handle {
        match self.next() {
            What::Hello { handle, .. } => handle,
            what => panic!("{what:?}"),
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address.to_string()).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    }

    pub(crate) fn link(&self, settings: Settings) -> WorkerLink {
        link(&self.address, None, settings)
    }

    /// Lets a worker in, up to the registration.
    pub(crate) fn establish(&mut self, link: &WorkerLink) -> Handle {
        let handle = self.hello();
        handle.welcome(super::MACHINE);
        let LinkEvent::Session(WorkerEvent::Welcome(welcome)) = next(link) else { panic!("no welcome") };
        assert!(link.register(super::registration(welcome.epoch, vec![]), BTreeMap::new()));
        assert!(matches!(self.next(), What::Event(DaemonEvent::Register { .. })));
        handle.registered();
        assert_eq!(next(link), LinkEvent::Session(WorkerEvent::Registered { epoch: super::EPOCH }));
        handle
    }
}

/// A link to whoever is there.
pub(crate) fn link(address: &Address, tls: Option<Tls>, settings: Settings) -> WorkerLink {
    let backoff = Backoff::new(1_000_000, 20_000_000, 1);
    let (address, identity) = (address.clone(), super::identity());
    WorkerLink::start(LinkOptions { address, tls, identity, settings, backoff }).unwrap()
}

pub(crate) fn next(link: &WorkerLink) -> LinkEvent {
    link.recv(WAIT).unwrap()
}

pub(crate) fn lost(link: &WorkerLink) -> CloseReason {
    match next(link) {
        LinkEvent::Lost { reason, .. } => reason,
        event @ LinkEvent::Session(_) => panic!("{event:?}"),
    }
}
