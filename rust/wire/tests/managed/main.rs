//! One Cluster behind a real listener, workers in threads behind real sockets, each with a Machine and a toy engine: every
//! request ends once and gets each of its tokens once and in order, whatever connection, worker or daemon goes meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

#[path = "../kit/mod.rs"]
mod kit;

mod client;
mod host;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use splitcore_core::event::{Outcome, Role};
use splitcore_core::id::Epoch;
use splitcore_wire::address::Address;
use splitcore_wire::listen::Listener;

use client::{Client, State, token};
use host::{Ends, Host, Seen};
use worker::{Hub, ToyWorker, Word};

const ROLES: [Role; 4] = [Role::Prompt, Role::Prompt, Role::Token, Role::Token];
const LIMIT: Duration = Duration::from_secs(60);

/// What goes wrong, and when: after so many tokens in thousandths of all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// A worker's connection to the daemon breaks.
    Sever(u32),
    /// A worker dies, and another of its name comes.
    Kill(u32),
    /// The daemon dies, and another comes.
    Restart,
}

fn run(address: &Address, requests: u64, faults: &[(u64, Fault)]) -> Seen {
    let started = Instant::now();
    let clients: Vec<Client> = (0..requests).map(Client::new).collect();
    let mut host = Host::new(clients, faults.to_vec(), started + LIMIT);
    let hub = Arc::new(Hub::default());
    let (mut address, mut epoch, mut workers) = (address.clone(), Epoch(1), Vec::new());
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(Listener::bind(&address)).unwrap();
        address = listener.address().clone();
        if workers.is_empty() {
            for (index, role) in (0..).zip(ROLES) {
                workers.push(ToyWorker::start(&hub, &address, index, 1, role));
            }
        }
        let ends = runtime.block_on(host.serve(listener, epoch, &hub));
        // As a death would: tasks and connections go with the runtime, and nobody is told.
        drop(runtime);
        if let Address::Unix(path) = &address {
            std::fs::remove_file(path).unwrap();
        }
        match ends {
            Ends::Restart => epoch = Epoch(epoch.0 + 1),
            Ends::Done => break,
        }
    }
    for worker in workers {
        worker.join();
    }
    hub.join_later();
    let (clients, seen) = host.into_clients();
    check(&clients);
    assert!(seen.handoffs >= 10, "{seen:?}");
    assert!(seen.sessions > 4 + faults.len() as u64 / 2 || faults.is_empty(), "{seen:?}");
    seen
}

fn check(clients: &[Client]) {
    for client in clients {
        assert_eq!(client.state, State::Ended(Outcome::Finished), "request {}", client.id);
        let want: Vec<u32> = (0..client.output_tokens).map(|index| token(client.seed(), index)).collect();
        assert_eq!(client.received, want, "request {}", client.id);
    }
}

#[test]
fn requests_run_split_over_real_sockets() {
    let seen = run(&Address::Tcp("127.0.0.1:0".to_owned()), 60, &[]);
    assert_eq!((seen.sessions, seen.adopted, seen.faults), (4, 0, 0));
}

#[test]
fn connections_that_break_cost_no_request_and_no_token() {
    let faults =
        [(50, Fault::Sever(0)), (200, Fault::Sever(2)), (400, Fault::Sever(3)), (600, Fault::Sever(1))];
    let seen = run(&Address::Tcp("127.0.0.1:0".to_owned()), 100, &faults);
    assert_eq!((seen.adopted, seen.faults), (0, 0), "the machines ran on");
}

#[test]
fn a_daemon_that_starts_again_has_everything_from_its_workers() {
    let directory = std::env::temp_dir().join(format!("splitcore-wire-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let faults = [(150, Fault::Restart), (400, Fault::Sever(2)), (600, Fault::Restart)];
    let seen = run(&Address::Unix(directory.join("daemon")), 120, &faults);
    assert!(seen.adopted > 0, "{seen:?}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn workers_die_and_the_daemon_too_and_every_request_ends_once() {
    let faults = [(100, Fault::Kill(3)), (300, Fault::Restart), (500, Fault::Kill(0)), (700, Fault::Restart)];
    let seen = run(&Address::Tcp("127.0.0.1:0".to_owned()), 120, &faults);
    assert!(seen.adopted > 0 && seen.faults > 0, "{seen:?}");
}

#[test]
fn words_reach_the_worker_of_that_incarnation_only() {
    let hub = Hub::default();
    let machine = kit::MACHINE;
    let inbox = hub.enter(machine);
    assert!(hub.tell(machine, Word::Sever));
    assert!(matches!(inbox.try_recv(), Ok(Word::Sever)));
    assert!(!hub.tell(splitcore_core::id::MachineId { incarnation: 8, ..machine }, Word::Sever));
}
