//! Rows S: pairing, queueing and load accounting.

use crate::kit::*;
use crate::site::{Site, tokens};
use splitcore_core::config::{ClusterConfig, Level, MachineConfig, PolicyKind};
use splitcore_core::error::{Applied, EventError, Rejection};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, MachineEvent, Outcome, Role};
use splitcore_core::id::{MachineId, RequestId};
use splitcore_core::leg::{Compute, Notice, Report};
use splitcore_core::placement::{Mode, Reserve, Step};

const SECOND_NS: u64 = 1_000_000_000;
const PAIR: [Role; 2] = [Role::Prompt, Role::Token];

/// So many prompt machines and so many token machines.
fn pools(prompt: usize, token: usize) -> Vec<Role> {
    let mut roles = vec![Role::Prompt; prompt];
    roles.extend(vec![Role::Token; token]);
    roles
}

fn with(policy: PolicyKind) -> ClusterConfig {
    ClusterConfig { policy, ..ClusterConfig::default() }
}

fn external() -> ClusterConfig {
    ClusterConfig { level: Level::External, ..ClusterConfig::default() }
}

fn says(seq: u64, kv_tokens: u64) -> Notice {
    Notice::Report(Report { kv_tokens, ..report(seq) })
}

/// How often each machine is in the list.
fn counts(machines: &[u32], of: usize) -> Vec<usize> {
    (0..of as u32).map(|machine| machines.iter().filter(|&&at| at == machine).count()).collect()
}

fn rejected(head: &mut Head, arrival: Arrival) -> Option<Rejection> {
    match head.arrive(arrival)[..] {
        [ClusterAction::Rejected { reason, .. }] => Some(reason),
        _ => None,
    }
}

/// Nothing is booked anywhere.
fn assert_nothing_booked(head: &Head, path: &str) {
    for machine in 0..head.cluster.machines_len() {
        let load = head.cluster.load(machine).unwrap();
        let books = (load.booked, load.legs, load.kv_tokens, load.prompt_pending_tokens);
        assert_eq!(books, (0, 0, 0, 0), "{path}: machine {machine}");
    }
    assert_eq!(head.cluster.live_requests(), 0, "{path}");
}

#[test]
fn s2_a_stale_report_counts_with_everything_booked_since() {
    for policy in [PolicyKind::Splitwise, PolicyKind::LeastRequests, PolicyKind::PowerOfTwo] {
        let mut head = Head::with_capacity(with(policy), &pools(2, 2), 1_000_000);
        let (mut prompts, mut decodes) = (Vec::new(), Vec::new());
        for request in 0..8 {
            // The same report again and again: machine 3 has one token more, and nothing that was booked since.
            head.notice(2, says(0, 0));
            head.notice(3, says(0, 1));
            let placement = head.place(request, 100, 10);
            prompts.push(pair(&placement).0);
            decodes.push(pair(&placement).1 - 2);
        }
        for (side, chosen) in [("prompt", prompts), ("token", decodes)] {
            let split = counts(&chosen, 2);
            // Two draws can name the same machine, so power-of-two is even only on average.
            let even = policy == PolicyKind::PowerOfTwo || split == [4, 4];
            assert!(even && split.iter().all(|&count| count >= 2), "{policy:?}, {side}: {split:?}");
        }
    }
}

#[test]
fn s4_prompt_load_falls_with_the_prefill_and_not_with_the_stream() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &pools(24, 24), 100_000);
    for request in 0..24 {
        assert_eq!(pair(&head.place(request, 8000, 2000)).0, request as u32);
    }
    head.prefill_done(7, 7);
    assert_eq!(head.cluster.load(7).unwrap().prompt_pending_tokens, 0);
    assert_eq!(pair(&head.place(24, 8000, 2000)).0, 7, "the idle one, though its request still streams");
    for request in (0..24).filter(|&request| request != 7) {
        head.prefill_done(request as u32, request);
    }
    let pending = (0..24).map(|machine| head.cluster.load(machine).unwrap().prompt_pending_tokens);
    assert_eq!((pending.sum::<u64>(), head.cluster.live_requests()), (8000, 25));
}

#[test]
fn s5_a_machine_that_only_holds_kv_is_free_to_prefill_but_not_free_of_it() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &pools(2, 1), 100_000);
    head.place(1, 30_000, 10);
    head.place(2, 30_000, 10);
    head.prefill_done(1, 2);
    let (computes, holds) = (head.cluster.load(0).unwrap(), head.cluster.load(1).unwrap());
    assert_eq!((computes.prompt_pending_tokens, holds.prompt_pending_tokens), (30_000, 0));
    assert_eq!((computes.kv_tokens, holds.kv_tokens), (30_001, 30_001), "both hold memory");
    assert_eq!(pair(&head.place(3, 1000, 10)).0, 1);
    // The machine itself counts what it holds: the next prompt waits for blocks, and runs when they are free.
    let mut bench = Bench::new(50_000);
    bench.compute(2, source(30_000));
    bench.send(2, id(1), Mode::Serialized);
    bench.pass(&[]);
    bench.compute(3, source(30_000));
    assert!(!bench.machine.is_running(), "20,000 blocks are free");
    bench.grant(id(1), 2);
    bench.peer(id(1), splitcore_core::leg::Peer::Landed { key: key(2) });
    assert_eq!(bench.prefills(), [3]);
}

#[test]
fn s7_a_machine_that_comes_back_under_its_name_starts_from_zero() {
    for told_of_the_loss in [true, false] {
        let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed; 8]);
        // Five requests on machine 7, by name.
        for request in 0..5 {
            head.arrive(Arrival { pin_token: Some(7), ..Arrival::new(request, 10, 10) });
        }
        assert_eq!(head.cluster.load(7).unwrap().legs, 5);
        if told_of_the_loss {
            head.act(&ClusterEvent::Lose { machine: id(7) });
        }
        head.join(MachineId { index: 7, incarnation: 2 }, Role::Mixed, 10_000);
        let books = |head: &Head| {
            let load = head.cluster.load(7).unwrap();
            (load.legs, load.booked, load.kv_tokens)
        };
        // What the old one held is placed again, as second attempts; those go, and one new request comes.
        for request in 0..5 {
            assert_eq!(head.cluster.attempt(RequestId(request)).unwrap().0, 2);
            head.act(&ClusterEvent::Cancel { request: RequestId(request) });
            for machine in 0..8 {
                let from = MachineId { index: machine, incarnation: if machine == 7 { 2 } else { 1 } };
                let notice = Notice::Released { key: key_at(request, 2), report: report(1000) };
                head.act(&ClusterEvent::Notice { from, notice });
            }
        }
        head.arrive(Arrival { pin_token: Some(7), ..Arrival::new(9, 10, 10) });
        let one = books(&head);
        assert_eq!(one.0, 1);
        let late = head.cluster.counters().late;
        for request in 0..5 {
            for notice in [
                Notice::PrefillDone { key: key(request), sampled: true },
                Notice::Finished { key: key(request), tokens: 3 },
                Notice::Released { key: key(request), report: report(3) },
            ] {
                let old = ClusterEvent::Notice { from: id(7), notice };
                assert_eq!(head.handle(&old).0, Ok(Applied::Late), "the old incarnation is over");
            }
        }
        assert_eq!((books(&head), head.cluster.counters().late - late), (one, 15));
    }
}

/// Requests come and go, one in ten of them by a fault or a cancel; returns the size of the state on the way.
fn state_letters_over(requests: u64) -> (usize, usize) {
    let config = MachineConfig { sends_max: Some(2), receives_max: Some(2), ..tokens(400) };
    let machines = [(Role::Prompt, config), (Role::Token, config), (Role::Prompt, config)];
    let mut site = Site::new(ClusterConfig { attempts_max: 2, ..ClusterConfig::default() }, &machines);
    (site.checks, site.instant) = (false, false);
    let mut early = 0;
    for request in 0..requests {
        site.arrive(request, 20, 3);
        match request % 30 {
            // The transfer fails twice, which ends the request.
            3 => fail_transfers(&mut site),
            13 => site.cancel(request),
            // Given up while its bytes are on their way.
            23 => {
                site.round();
                assert_eq!(site.transfers.len(), 1);
                site.cancel(request);
            }
            _ => {}
        }
        site.instant = true;
        site.settle();
        while site.round() {}
        site.instant = false;
        assert_eq!(site.cluster.live_requests(), 0);
        if request % 1000 == 999 {
            site.advance(SECOND_NS);
            site.forget();
            early = if request == 9_999 { site.state_letters() } else { early };
        }
    }
    site.advance(SECOND_NS);
    site.assert_empty();
    let counters = site.cluster.counters();
    assert_eq!((counters.cancelled, counters.failed), (requests.div_ceil(30) * 2, requests.div_ceil(30)));
    assert_eq!(counters.finished + counters.cancelled + counters.failed, requests);
    (early, site.state_letters())
}

fn fail_transfers(site: &mut Site) {
    for _ in 0..2 {
        site.round();
        site.fail(0);
        site.settle();
    }
}

#[test]
fn s8_a_hundred_thousand_requests_leave_nothing_behind() {
    let (early, late) = state_letters_over(100_020);
    // Counters have gained a digit or two, and nothing else has grown.
    assert!(late < early + 100, "{early} letters after 10,000 requests, {late} at the end");
}
