//! What is told late of an attempt that is over: it changes nothing, and is counted.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::json;
use splitcore_core::event::{Join, Registration, Role};
use splitcore_core::id::{Epoch, LegKey};
use splitcore_core::leg::{Command, Notice, Report};
use splitcore_wire::auth::Key;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::link::{LinkEvent, LinkOptions, WorkerLink};
use splitcore_wire::message::Tokens;
use splitcore_wire::session::{Identity, Settings, WorkerEvent};
use splitcore_wire::tls::Tls;

use crate::common::events::{Called, Events};
use crate::common::worker::layout;
use crate::common::{LIMIT, Service};
use crate::fleet::MODEL;
use crate::kit::{managed, told};

/// A worker that says what a test wants.
pub(crate) struct Puppet(pub(crate) WorkerLink);

impl Puppet {
    fn start(service: &Service, name: &str) -> Self {
        let puppet = Self::connect(service, name, None);
        puppet.join();
        puppet
    }

    pub(crate) fn connect(service: &Service, name: &str, tls: Option<Tls>) -> Self {
        let identity = Identity {
            name: name.to_owned(),
            index: None,
            incarnation: 1,
            epoch: Epoch(0),
            model: MODEL.to_owned(),
            layout: layout(),
            blocks: 100,
            context: None,
            peer: String::new(),
            transfer: String::new(),
            key: Key::default(),
        };
        let options = LinkOptions {
            address: service.workers.as_ref().unwrap().parse().unwrap(),
            tls,
            identity,
            settings: Settings::default(),
            backoff: Backoff::new(5_000_000, 50_000_000, 1),
        };
        Self(WorkerLink::start(options).unwrap())
    }

    pub(crate) fn join(&self) {
        let WorkerEvent::Welcome(welcome) = self.hear() else { panic!("no welcome") };
        let join = Join {
            machine: welcome.machine,
            role: Role::Mixed,
            kv_capacity_tokens: 1600,
            speed_weight: 1,
            link: None,
            costs: None,
        };
        let report = Report { free_blocks: 100, ..Report::default() };
        let registration = Registration { join, epoch: Epoch(0), report, claims: Vec::new() };
        self.0.register(registration, BTreeMap::new());
        let WorkerEvent::Registered { .. } = self.hear() else { panic!("not registered") };
    }

    fn hear(&self) -> WorkerEvent {
        match self.0.recv(LIMIT).expect("a word of the service") {
            LinkEvent::Session(event) => event,
            LinkEvent::Lost { reason, .. } => panic!("{reason}"),
        }
    }

    /// It is told that its word of an end has been heard, and holds nothing any more.
    fn released(&self) {
        loop {
            let WorkerEvent::Command { assigned, .. } = self.hear() else { continue };
            if let Command::Release { .. } = assigned.command {
                let report = Report { seq: assigned.seq, free_blocks: 100, ..Report::default() };
                self.0.notice(Notice::Report(report));
                return;
            }
        }
    }

    /// The next request that it is to compute. What it is to give up on the way, it has let go.
    fn compute(&self) -> LegKey {
        loop {
            let WorkerEvent::Command { assigned, .. } = self.hear() else { continue };
            match assigned.command {
                Command::Compute { key, .. } => return key,
                Command::Abort { key, .. } => {
                    let report = Report { seq: assigned.seq, free_blocks: 100, ..Report::default() };
                    self.0.notice(Notice::Released { key, to: None, report });
                }
                _ => {}
            }
        }
    }
}

#[test]
fn whatever_comes_late_of_an_earlier_attempt_is_counted_and_changes_nothing() {
    let service = Service::start(managed());
    let puppet = Puppet::start(&service, "w");
    let mut client = service.client();
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 3, "stream": true}).to_string();
    let (of, headers) = (service.client(), "x-request-id: r\r\n");
    let call = std::thread::spawn(move || Events::call(of, "POST", "/v1/completions", headers, &body));
    let first = puppet.compute();
    // The machine gives it back: it finds no room.
    puppet.0.notice(Notice::Relief { key: first });
    let second = puppet.compute();
    assert_eq!((second.request, second.attempt.0), (first.request, first.attempt.0 + 1));
    let mut late = || client.get("/v1/overview").json()["counters"]["late"].as_u64().unwrap();
    let before = late();
    let words = [
        Notice::Reserved { key: first },
        Notice::PrefillDone { key: first, sampled: true },
        Notice::Sent { key: first },
        Notice::Landed { key: first },
        Notice::TransferFailed { key: first },
        Notice::Evicted { key: first, tokens: 0 },
        Notice::Relief { key: first },
        Notice::Finished { key: first, tokens: 3 },
    ];
    for notice in words {
        puppet.0.notice(notice);
    }
    // Beyond what the client has: these are not of the attempt that it follows.
    puppet.0.tokens(Tokens { key: first, from: 1, ids: vec![90, 91] });
    let begun = Instant::now();
    while late() < before + words.len() as u64 {
        assert!(begun.elapsed() < LIMIT, "{} are counted", late() - before);
    }
    assert!(!call.is_finished(), "no machine has said that it has the request");
    puppet.0.tokens(Tokens { key: second, from: 0, ids: vec![65] });
    puppet.0.notice(Notice::PrefillDone { key: second, sampled: true });
    puppet.0.tokens(Tokens { key: first, from: 0, ids: vec![65] });
    puppet.0.tokens(Tokens { key: second, from: 1, ids: vec![66] });
    puppet.0.tokens(Tokens { key: second, from: 2, ids: vec![67] });
    puppet.0.notice(Notice::Finished { key: second, tokens: 3 });
    puppet.released();
    let Called::Stream(events) = call.join().unwrap() else { panic!("no stream") };
    assert_eq!(told(&events.rest(), 1), [("ABC".to_owned(), "length".to_owned())]);
    let begun = Instant::now();
    let overview = loop {
        let overview = service.client().get("/v1/overview").json();
        if overview["machines"][0]["kv_tokens"] == 0 {
            break overview;
        }
        assert!(begun.elapsed() < LIMIT, "{overview:#}");
    };
    assert_eq!(overview["counters"]["late"], before + words.len() as u64, "{overview:#}");
    assert_eq!(
        (&overview["live"], &overview["counters"]["finished"]),
        (&json!(0), &json!(1)),
        "{overview:#}"
    );
}
