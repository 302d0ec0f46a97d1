//! Rows K: KV blocks, and what is reserved of them.

use crate::kit::*;
use crate::site::{Site, tokens};
use proptest::prelude::*;
use splitcore_core::config::{ClusterConfig, Level, MachineConfig, TransferRule};
use splitcore_core::error::Applied;
use splitcore_core::event::{
    Arrival, ClusterAction, ClusterEvent, MachineAction, MachineEvent, Outcome, Put, Role,
};
use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockPool, BlockTable};
use splitcore_core::leg::{Inbound, Notice, Peer, Report};
use splitcore_core::placement::{Mode, Reserve};
use std::collections::BTreeSet;

const SECOND_NS: u64 = 1_000_000_000;

/// A prompt machine and a token machine of so many blocks, and transfers that end when told.
fn handoff(transfer: TransferRule, token_blocks: u32) -> Site {
    let config = ClusterConfig { transfer, ..ClusterConfig::default() };
    let mut site = Site::new(config, &[(Role::Prompt, tokens(100)), (Role::Token, tokens(token_blocks))]);
    site.instant = false;
    site
}

/// Takes the smallest next step there is: a message, a pass that is due, a pass that ends, a transfer that lands.
/// Returns whether there was one.
fn step(site: &mut Site) -> bool {
    if site.deliver() || site.start_pass() {
        return true;
    }
    if let Some(machine) = (0..2).find(|&machine| site.machine(machine).is_running()) {
        site.end_pass(machine);
        return true;
    }
    let moving = site.transfers.iter().position(|transfer| !transfer.stopped);
    moving.is_some_and(|at| {
        site.land(at);
        true
    })
}

/// Request 1 is given up after so many steps, and a second wants all the memory it had. Bytes already on their way
/// go on for as many steps more. Returns whether the steps came to an end before the request did.
fn give_up_after(steps: usize, delay: usize, transfer: TransferRule) -> bool {
    let mut site = handoff(transfer, 12);
    site.submit(Arrival::new(0, 1, 1), 1);
    site.submit(Arrival::new(1, 4, 3), 3);
    for _ in 0..steps {
        if !step(&mut site) || site.cluster.attempt(RequestId(1)).is_none() {
            return false;
        }
    }
    site.cancel(1);
    site.submit(Arrival::new(2, 8, 3), 3);
    let mut waited = 0;
    // The site itself asserts after every event that no block of a transfer on its way has gone to anybody else.
    loop {
        let fenced = site.transfers.iter().position(|transfer| transfer.stopped);
        match fenced {
            Some(at) if waited >= delay => site.fence(at),
            Some(_) => {
                waited += 1;
                let _ = site.deliver() || site.start_pass();
            }
            None if !step(&mut site) => break,
            None => {}
        }
    }
    site.advance(SECOND_NS);
    while step(&mut site) {}
    site.advance(SECOND_NS);
    assert_eq!(site.ended.get(&1), Some(&Outcome::Cancelled));
    assert_eq!(site.ended.get(&2), Some(&Outcome::Finished), "{steps} steps, {delay} delay, {transfer:?}");
    site.assert_empty();
    true
}

#[test]
fn k1_no_block_is_handed_out_while_a_transfer_that_names_it_is_unfinished() {
    for transfer in [TransferRule::Serialized, TransferRule::LayerWise] {
        for delay in [0, 1, 3, 20] {
            let points = (0..200).take_while(|&steps| give_up_after(steps, delay, transfer)).count();
            assert!((15..200).contains(&points), "{points} points at which it was given up");
        }
    }
}

#[test]
fn k1_every_aborting_destination_gets_one_acknowledgement() {
    let mut bench = Bench::new(100);
    bench.compute(0, whole(1));
    for request in 1..9 {
        bench.compute(request, source(4));
        bench.send(request, id(request as u32), Mode::Serialized);
        bench.grant(id(request as u32), request);
    }
    bench.pass(&[0]);
    bench.pass(&[]);
    let mut answers = Vec::new();
    for request in 1..9 {
        answers.extend(peers(&bench.peer(id(request as u32), Peer::Abort { key: key(request) })));
    }
    assert!(answers.is_empty(), "all of them may still write");
    for request in (1..9).rev() {
        answers.extend(peers(&bench.act(&MachineEvent::Fenced { key: key(request) })));
    }
    let expected: Vec<_> =
        (1..9).rev().map(|request| (id(request as u32), Peer::AbortAck { key: key(request) })).collect();
    assert_eq!(answers, expected);
    assert_eq!(bench.machine.pool().held(), 8 * 4, "what it read from is kept for another destination");
}

#[test]
fn k2_blocks_of_an_aborted_load_come_back_when_the_prompt_machine_dies() {
    for stopped_first in [true, false] {
        let mut site = handoff(TransferRule::Serialized, 12);
        site.arrive(1, 4, 3);
        site.round();
        assert_eq!((site.transfers.len(), site.machine(1).pool().free()), (1, 7));
        site.cancel(1);
        if stopped_first {
            // The source has heard and is stopping when it dies; else it dies with the word on its way.
            site.settle();
            assert!(site.transfers[0].stopped);
        }
        site.kill(0);
        site.settle();
        assert_eq!(
            (site.machine(1).pool().quarantined(), site.machine(1).pool().free()),
            (5, 7),
            "who knows?"
        );
        site.lost(0);
        assert_eq!((site.machine(1).pool().quarantined(), site.machine(1).pool().free()), (0, 12));
        site.advance(SECOND_NS);
        let books = format!("{:?}", site.cluster);
        assert!(books.contains("closing: {}") && site.cluster.live_requests() == 0, "{books}");
    }
}

/// An embedder's pair with leases of a hundred, one request prefilled.
fn leased() -> Head {
    let config = ClusterConfig { level: Level::External, lease_ns: Some(100), ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Prompt, Role::Token]);
    head.place(1, 10, 10);
    assert_eq!(head.fact(Notice::PrefillDone { key: key(1), sampled: true }), Applied::Yes);
    head
}

fn kv(head: &Head) -> [u64; 2] {
    [0, 1].map(|machine| head.cluster.load(machine).unwrap().kv_tokens)
}

#[test]
fn k4_a_silent_caller_pins_blocks_for_one_lease_and_a_heard_one_for_as_long_as_it_waits() {
    let expired = [ClusterAction::Ended { request: RequestId(1), outcome: Outcome::Expired }];
    let mut silent = leased();
    assert!(silent.tick_at(99).is_empty() && kv(&silent) == [11, 11]);
    assert_eq!(silent.tick_at(100), expired);
    assert_eq!(kv(&silent), [0, 0]);
    // A long queue before decoding, with a word now and then.
    let mut heard = leased();
    for beat in 1..50 {
        heard.now_ns = beat * 90;
        heard.act(&ClusterEvent::Renew { request: RequestId(1) });
        assert!(heard.tick_at(beat * 90 + 89).is_empty() && kv(&heard) == [11, 11]);
    }
    assert_eq!(heard.tick_at(49 * 90 + 100), expired);
    // At the last instant either can be first: who is applied first wins.
    let renew = ClusterEvent::Renew { request: RequestId(1) };
    let mut first = leased();
    first.now_ns = 100;
    assert_eq!(first.handle(&renew).0, Ok(Applied::Yes));
    assert!(first.tick_at(100).is_empty() && kv(&first) == [11, 11]);
    let mut late = leased();
    assert_eq!(late.tick_at(100), expired);
    assert_eq!((late.handle(&renew).0, kv(&late)), (Ok(Applied::Late), [0, 0]));
}

/// One request at a source: it is aborted as its pass ends, in either order; returns the ends it was told of.
fn finish_and_abort(bench: &mut Bench, request: u64, abort_first: bool, last_token: bool) -> usize {
    bench.compute(request, source(4));
    bench.send(request, id(1), Mode::Serialized);
    if request.is_multiple_of(2) {
        bench.grant(id(1), request);
    }
    let ended: &[u64] = if last_token { &[request] } else { &[] };
    let mut told = Vec::new();
    if abort_first {
        told.extend(notices(&bench.abort(request)));
        told.extend(notices(&bench.pass(ended)));
    } else {
        told.extend(notices(&bench.pass(ended)));
        told.extend(notices(&bench.abort(request)));
    }
    if bench.machine.leg(key(request)).is_some() {
        told.extend(notices(&bench.act(&MachineEvent::Fenced { key: key(request) })));
    }
    let end = |notice: &&Notice| matches!(notice, Notice::Released { .. });
    told.iter().filter(end).count()
}

#[test]
fn k5_an_abort_that_meets_the_end_of_the_prefill_frees_each_block_once() {
    let mut bench = Bench::new(8);
    for request in 0..100_000 {
        // Whatever comes first, the answer to the abort is one, and so is the end that it closes.
        let answers = finish_and_abort(&mut bench, request, request % 4 < 2, request % 8 < 4);
        assert_eq!((answers, bench.machine.pool().free()), (1, 8), "request {request}");
        assert!(bench.machine.is_idle());
        // A grant that nobody used goes with the abort of its destination.
        bench.peer(id(1), Peer::Abort { key: key(request) });
    }
}

#[test]
fn k5_a_cancel_that_meets_the_finish_ends_the_request_once() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    for request in 0..1000 {
        head.place(request, 10, 10);
        let cancel = ClusterEvent::Cancel { request: RequestId(request) };
        let finish =
            ClusterEvent::Notice { from: id(0), notice: Notice::Finished { key: key(request), tokens: 3 } };
        let (first, second, outcome) = if request % 2 == 0 {
            (cancel, finish, Outcome::Cancelled)
        } else {
            (finish, cancel, Outcome::Finished)
        };
        let ended = ClusterAction::Ended { request: RequestId(request), outcome };
        assert!(head.act(&first).contains(&ended));
        assert_eq!(head.handle(&second), (Ok(Applied::Late), vec![]));
        head.released(0, key(request), 1_000_000);
        assert_eq!(head.cluster.load(0).unwrap().kv_tokens, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Allocations, growth, failures that are rolled back, aborts and frees in any order.
    #[test]
    fn k7_owned_blocks_are_the_used_ones_after_any_sequence(
        total in 1_u32..40,
        steps in prop::collection::vec((0_usize..6, 0_u8..5, 0_u32..12), 1..200),
    ) {
        let mut pool = BlockPool::new(total);
        let mut tables: Vec<(BlockTable, bool)> = vec![(BlockTable::default(), false); 6];
        for (at, what, count) in steps {
            let (table, quarantined) = &mut tables[at];
            let before = (table.clone(), pool.clone());
            match (what, *quarantined) {
                (0..=2, false) => {
                    let fits = count <= pool.free();
                    prop_assert_eq!(pool.allocate(count, table).is_ok(), fits);
                    // A failed one leaves the table as it was: what the request had is still its own.
                    prop_assert!(fits || before == (table.clone(), pool.clone()));
                    prop_assert!(table.blocks().starts_with(before.0.blocks()));
                }
                (3, false) => {
                    pool.quarantine(table);
                    *quarantined = true;
                }
                (_, false) => pool.release(table),
                (_, true) => {
                    pool.release_quarantined(table);
                    *quarantined = false;
                }
            }
            let owned: Vec<_> = tables.iter().flat_map(|(table, _)| table.blocks()).collect();
            let used = pool.held() + pool.quarantined();
            prop_assert_eq!(owned.len() as u32, used);
            prop_assert_eq!(owned.iter().collect::<BTreeSet<_>>().len(), owned.len(), "no block has two owners");
            prop_assert_eq!(pool.free() + used + pool.cached(), total);
        }
    }
}

#[test]
fn k11_of_a_partial_last_block_only_the_valid_tokens_are_sent() {
    for (prompt_tokens, blocks) in [(1392, 87), (1393, 88), (1592, 100), (16, 1), (17, 2), (15, 1), (1, 1)] {
        let config = MachineConfig { blocks: 200, ..MachineConfig::default() };
        let mut bench = Bench::with(config);
        bench.compute(1, source(prompt_tokens));
        bench.send(1, id(1), Mode::Serialized);
        bench.grant(id(1), 1);
        let actions = bench.pass(&[]);
        let put = actions.iter().find_map(|action| match action {
            MachineAction::Put(Put { tokens, .. }) => Some(*tokens),
            _ => None,
        });
        assert_eq!((put, bench.machine.leg(key(1)).unwrap().1.len()), (Some(prompt_tokens), blocks));
        // The destination has room for one token more: its first own one.
        let mut bench = Bench::with(config);
        let granted = peers(&bench.reserve(1, destination(prompt_tokens), id(1)));
        let wanted = (prompt_tokens + 1).div_ceil(16);
        assert_eq!(granted, [(id(1), Peer::Grant { key: key(1), blocks: wanted })]);
    }
}

#[test]
fn k13_a_transfer_holds_its_blocks_from_the_start() {
    for (reserve, held_while_it_prefills) in [(Reserve::AtArrival, 5), (Reserve::AtSourceDone, 0)] {
        let config =
            ClusterConfig { reserve, transfer: TransferRule::Serialized, ..ClusterConfig::default() };
        let mut site = Site::new(config, &[(Role::Prompt, tokens(100)), (Role::Token, tokens(12))]);
        site.instant = false;
        site.arrive(1, 4, 3);
        assert_eq!(site.machine(1).pool().held(), held_while_it_prefills, "{reserve:?}");
        site.round();
        assert_eq!((site.transfers.len(), site.machine(1).pool().held()), (1, 5), "{reserve:?}");
        // Another finds the rest: 7 of 12.
        site.arrive(2, 7, 3);
        site.round();
        assert_eq!(site.cluster.load(1).unwrap().legs, 1, "8 do not fit beside the 5 on their way");
        site.instant = true;
        site.finish();
        site.assert_empty();
    }
}

#[test]
fn k14_a_load_on_its_way_is_counted_once_through_all_its_states() {
    let mut bench = Bench::new(100);
    let counts = |bench: &Bench| (bench.machine.report().kv_tokens, bench.machine.pool().held());
    bench.reserve(1, destination(9), id(1));
    assert_eq!(counts(&bench), (10, 10), "reserved: the prompt and one token");
    bench.act(&MachineEvent::LayersLanded { key: key(1), layers: 1, of: 2 });
    assert_eq!(bench.machine.leg(key(1)).unwrap().0.inbound, Inbound::Receiving);
    assert_eq!(counts(&bench), (10, 10), "on its way");
    bench.act(&MachineEvent::LayersLanded { key: key(1), layers: 2, of: 2 });
    assert!(bench.machine.is_running());
    assert_eq!(counts(&bench), (10, 10), "landed, in its first pass");
    bench.pass(&[]);
    assert_eq!(counts(&bench), (11, 11), "one token a pass, and no more ahead");
    // The Cluster books the same.
    let mut head = Head::new(ClusterConfig::default(), &[Role::Prompt, Role::Token]);
    head.place(1, 9, 10);
    assert_eq!(kv(&head), [10, 10]);
    head.notice(1, Notice::Reserved { key: key(1) });
    head.notice(1, Notice::Report(Report { kv_tokens: 10, ..report(2) }));
    head.notice(1, Notice::Landed { key: key(1) });
    assert_eq!(kv(&head), [10, 10]);
}
