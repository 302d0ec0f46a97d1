//! A worker that says whatever a test wants.

use std::collections::BTreeMap;
use std::time::Duration;

use splitcore_core::event::{Claim, Join, Registration, Role};
use splitcore_core::id::{Epoch, LegKey, MachineId};
use splitcore_core::leg::{Notice, Report};
use splitcore_daemon::host::life;
use splitcore_wire::auth::Key;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::link::{LinkEvent, LinkOptions, WorkerLink};
use splitcore_wire::message::{Assigned, Descriptor, Tokens, Welcome};
use splitcore_wire::session::{CloseReason, Identity, Settings, WorkerEvent};

use crate::common::worker::layout;

pub(crate) const BLOCKS: u32 = 1000;

pub(crate) struct Liar {
    link: WorkerLink,
    welcome: Option<Welcome>,
}

pub(crate) fn identity(name: &str) -> Identity {
    Identity {
        name: name.to_owned(),
        index: None,
        incarnation: life().0,
        epoch: Epoch(0),
        model: "model".to_owned(),
        layout: layout(),
        blocks: BLOCKS,
        context: None,
        peer: String::new(),
        transfer: String::new(),
        key: Key::default(),
    }
}

pub(crate) fn report() -> Report {
    Report { free_blocks: BLOCKS, ..Report::default() }
}

impl Liar {
    pub(crate) fn connect(workers: &str, identity: Identity) -> Self {
        let options = LinkOptions {
            address: workers.parse().unwrap(),
            tls: None,
            identity,
            settings: Settings::default(),
            // It does not come again by itself.
            backoff: Backoff::new(3_600_000_000_000, 3_600_000_000_000, 1),
        };
        Self { link: WorkerLink::start(options).unwrap(), welcome: None }
    }

    /// One that has registered like any other.
    pub(crate) async fn enter(workers: &str, name: &str, role: Role) -> Self {
        let mut liar = Self::connect(workers, identity(name));
        let machine = liar.welcomed().await.unwrap();
        liar.register(registration(machine, role), BTreeMap::new());
        assert!(matches!(liar.next().await, LinkEvent::Session(WorkerEvent::Registered { .. })));
        liar
    }

    pub(crate) async fn next(&self) -> LinkEvent {
        loop {
            if let Some(event) = self.link.recv(Duration::ZERO) {
                return event;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Who it is, or why it is not let in.
    pub(crate) async fn welcomed(&mut self) -> Result<MachineId, CloseReason> {
        match self.next().await {
            LinkEvent::Session(WorkerEvent::Welcome(welcome)) => {
                self.welcome = Some(welcome);
                Ok(welcome.machine)
            }
            LinkEvent::Lost { reason, .. } => Err(reason),
            event @ LinkEvent::Session(_) => panic!("{event:?}"),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.welcome.unwrap().epoch
    }

    pub(crate) fn register(&self, registration: Registration, described: BTreeMap<LegKey, Descriptor>) {
        assert!(self.link.register(registration, described));
    }

    /// The next command that brings a leg.
    pub(crate) async fn leg(&self) -> Assigned {
        loop {
            match self.next().await {
                LinkEvent::Session(WorkerEvent::Command { assigned, .. }) => {
                    let is_leg = !matches!(assigned.command, splitcore_core::leg::Command::Keep { .. });
                    if assigned.work().is_some() && is_leg {
                        return *assigned;
                    }
                }
                LinkEvent::Session(_) => {}
                LinkEvent::Lost { reason, .. } => panic!("{reason}"),
            }
        }
    }

    pub(crate) fn notice(&self, notice: Notice) {
        self.link.notice(notice);
    }

    pub(crate) fn tokens(&self, key: LegKey, from: u32, ids: &[u32]) {
        self.link.tokens(Tokens { key, from, ids: ids.to_vec() });
    }

    /// Why its session is over.
    pub(crate) async fn lost(&self) -> String {
        loop {
            if let LinkEvent::Lost { reason, .. } = self.next().await {
                return reason.to_string();
            }
        }
    }
}

pub(crate) fn registration(machine: MachineId, role: Role) -> Registration {
    let join = Join { machine, role, kv_capacity_tokens: 16_000, speed_weight: 1, link: None, costs: None };
    Registration { join, epoch: Epoch(0), report: report(), claims: Vec::<Claim>::new() }
}
