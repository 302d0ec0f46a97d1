//! Workers of the live service around a model of a few lines, whose tokens follow from the bytes in its KV pool; a Cluster
//! behind a real listener; KV by real transports. Every request gets each of its tokens once and in order, whatever
//! connection, worker or daemon goes meanwhile, and every block is free again.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod client;
mod fleet;
mod host;
mod model;

use std::time::{Duration, Instant};

use splitcore_core::config::{ClusterConfig, Cut};
use splitcore_core::event::{Outcome, Role};
use splitcore_core::id::Epoch;
use splitcore_transport::Backend;
use splitcore_wire::address::Address;
use splitcore_wire::listen::Listener;
use splitcore_worker::Stats;

use client::{Client, State};
use fleet::{BLOCKS, Fleet};
use host::{Ends, Host, Seen};

const ROLES: [Role; 4] = [Role::Prompt, Role::Prompt, Role::Token, Role::Token];
const LIMIT: Duration = Duration::from_secs(100);

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

#[derive(Debug, Clone, Copy)]
struct Setup {
    backend: Backend,
    requests: u64,
    prompt_max: u64,
    blocks: u32,
    config: ClusterConfig,
}

fn setup(backend: Backend, requests: u64) -> Setup {
    // Some go layer by layer, and others after their pass.
    let config = ClusterConfig { layer_wise_from_tokens: 150, ..ClusterConfig::default() };
    Setup { backend, requests, prompt_max: 400, blocks: BLOCKS, config }
}

fn run(setup: Setup, faults: &[(u64, Fault)]) -> (Seen, Vec<Stats>) {
    let Setup { backend, requests, prompt_max, blocks, config } = setup;
    let clients: Vec<Client> = (0..requests).map(|id| Client::new(id, prompt_max)).collect();
    let mut host = Host::new(clients, faults.to_vec(), config, blocks, Instant::now() + LIMIT);
    let (mut address, mut epoch) = (Address::Tcp("127.0.0.1:0".to_owned()), Epoch(1));
    let mut fleet: Option<Fleet> = None;
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(Listener::bind(&address)).unwrap();
        address = listener.address().clone();
        let fleet = fleet.get_or_insert_with(|| Fleet::start(&address, &ROLES, backend, blocks));
        let ends = runtime.block_on(host.serve(listener, epoch, fleet));
        // As a death would: tasks and connections go with the runtime, and nobody is told.
        drop(runtime);
        match ends {
            Ends::Restart => epoch = Epoch(epoch.0 + 1),
            Ends::Done => break,
        }
    }
    let stats = fleet.unwrap().end();
    let (clients, seen) = host.into_clients();
    for client in &clients {
        assert_eq!(client.state, State::Ended(Outcome::Finished), "request {}", client.id);
        assert_eq!(client.received, client.wanted, "request {}", client.id);
    }
    assert!(seen.handoffs >= 10, "{seen:?}");
    eprintln!("{seen:?}, {stats:?}");
    (seen, stats)
}

#[test]
fn requests_run_split_and_their_kv_goes_over_tcp() {
    let (seen, stats) = run(setup(Backend::Tcp, 100), &[]);
    assert_eq!((seen.sessions, seen.adopted, seen.faults), (4, 0, 0));
    assert!(stats.iter().map(|stats| stats.transfers).sum::<u64>() >= 10, "{stats:?}");
}

#[test]
fn requests_run_split_and_their_kv_goes_through_shared_memory() {
    let (seen, _) = run(setup(Backend::Shm, 100), &[]);
    assert_eq!((seen.sessions, seen.adopted, seen.faults), (4, 0, 0));
}

#[test]
fn the_last_prompt_token_can_be_computed_where_the_output_is() {
    let of = setup(Backend::Tcp, 60);
    let config = ClusterConfig { cut: Cut::BeforeLast, ..of.config };
    let (seen, _) = run(Setup { config, ..of }, &[]);
    assert_eq!(seen.faults, 0);
}

#[test]
fn requests_that_lose_their_blocks_are_computed_again() {
    // The prompts of many requests fit at once, and their outputs do not.
    let of = setup(Backend::Shm, 100);
    let config = ClusterConfig { kv_fill_max_permille: 1000, ..of.config };
    let (seen, _) = run(Setup { config, prompt_max: 20, blocks: 16, ..of }, &[]);
    assert!(seen.evicted > 0, "{seen:?}");
}

#[test]
fn connections_that_break_cost_no_request_and_no_token() {
    let faults =
        [(50, Fault::Sever(0)), (200, Fault::Sever(2)), (400, Fault::Sever(3)), (600, Fault::Sever(1))];
    let (seen, _) = run(setup(Backend::Shm, 100), &faults);
    assert_eq!((seen.adopted, seen.faults), (0, 0), "the machines ran on");
}

#[test]
fn a_daemon_that_starts_again_has_everything_from_its_workers() {
    let faults = [(150, Fault::Restart), (400, Fault::Sever(2)), (600, Fault::Restart)];
    let (seen, _) = run(setup(Backend::Tcp, 120), &faults);
    assert!(seen.adopted > 0, "{seen:?}");
}

#[test]
fn workers_die_and_the_daemon_too_and_every_request_ends_once() {
    let faults = [(100, Fault::Kill(3)), (300, Fault::Restart), (500, Fault::Kill(0)), (700, Fault::Restart)];
    let (seen, _) = run(setup(Backend::Tcp, 120), &faults);
    assert!(seen.adopted > 0 && seen.faults > 0, "{seen:?}");
}

#[test]
fn workers_that_share_memory_die_and_every_request_ends_once() {
    let faults = [(150, Fault::Kill(2)), (400, Fault::Kill(1)), (600, Fault::Kill(3))];
    let (seen, _) = run(setup(Backend::Shm, 120), &faults);
    assert!(seen.faults > 0, "{seen:?}");
}
