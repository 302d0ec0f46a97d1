//! Rows S: pairing, queueing and load accounting.

use crate::kit::*;
use crate::site::{Site, tokens};
use splitcore_core::config::{ClusterConfig, Level, MachineConfig, PolicyKind, Ties};
use splitcore_core::error::{Applied, EventError, Rejection};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Outcome, Role};
use splitcore_core::id::{MachineId, RequestId};
use splitcore_core::leg::{Compute, Notice, Report};
use splitcore_core::placement::{Mode, Reserve, Step};

const SECOND_NS: u64 = 1_000_000_000;

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
        let mut head = Head::new(with(PolicyKind::Jsq), &[Role::Mixed; 8]);
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
                let notice = Notice::Released { key: key_at(request, 2), to: None, report: report(1000) };
                head.act(&ClusterEvent::Notice { from, notice });
            }
        }
        // It has the name of an old one, so that only the incarnation tells their messages apart.
        head.arrive(Arrival { pin_token: Some(7), ..Arrival::new(0, 10, 10) });
        assert_eq!(head.cluster.attempt(RequestId(0)).unwrap().0, 1);
        let one = books(&head);
        assert_eq!(one.0, 1);
        let late = head.cluster.counters().late;
        for request in 0..5 {
            for notice in [
                Notice::PrefillDone { key: key(request), sampled: true },
                Notice::Finished { key: key(request), tokens: 3 },
                Notice::Released { key: key(request), to: None, report: report(3) },
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
    let mut site = Site::new(ClusterConfig { attempts_max: 1, ..ClusterConfig::default() }, &machines);
    (site.checks, site.instant) = (false, false);
    let mut early = 0;
    for request in 0..requests {
        site.arrive(request, 20, 3);
        match request % 30 {
            // The transfer fails, which ends the request.
            3 => {
                site.round();
                site.fail(0);
                site.settle();
            }
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

#[test]
fn s8_a_hundred_thousand_requests_leave_nothing_behind() {
    let (early, late) = state_letters_over(100_020);
    // Counters have gained a digit or two, and nothing else has grown.
    assert!(late < early + 100, "{early} letters after 10,000 requests, {late} at the end");
}

/// 448 requests of one session, each over before the next.
fn paced(policy: PolicyKind, ties: Ties) -> Vec<usize> {
    let mut head = Head::new(ClusterConfig { ties, ..with(policy) }, &pools(2, 1));
    let mut chosen = Vec::new();
    for request in 0..448 {
        chosen.push(pair(&head.place(request, 100, 10)).0);
        head.act(&ClusterEvent::Cancel { request: RequestId(request) });
        for (machine, seq) in [(0, 3 * request + 3), (1, 3 * request + 3), (2, 3 * request + 3)] {
            head.released(machine, key(request), seq);
        }
    }
    counts(&chosen, 2)
}

#[test]
fn s10_paced_requests_starve_no_machine_where_turns_are_asked_for() {
    let turn = ClusterConfig::default().ties;
    assert_eq!(paced(PolicyKind::RoundRobin, turn), [224, 224]);
    let drawn = paced(PolicyKind::PowerOfTwo, turn);
    assert!(drawn.iter().all(|&count| count > 50), "{drawn:?}");
    assert_eq!(paced(PolicyKind::Splitwise, turn), [224, 224]);
    // Where a tie is to go to the first in pool order it does: nothing overlaps, so nobody waits.
    assert_eq!(paced(PolicyKind::Splitwise, Ties::First), [448, 0]);
    let mut head = Head::new(ClusterConfig::default(), &pools(2, 1));
    let chosen: Vec<u32> = (0..8).map(|request| pair(&head.place(request, 100, 10)).0).collect();
    assert_eq!(counts(&chosen, 2), [4, 4]);
}

#[test]
fn s11_half_a_pair_is_no_pair() {
    for (policy, name) in PolicyKind::ALL {
        // The only token machine drains: nothing is placed on a pair that has none.
        let mut head = Head::new(with(policy), &[Role::Prompt, Role::Token, Role::Prompt, Role::Token]);
        head.act(&ClusterEvent::Drain { machine: id(1) });
        for request in 0..6 {
            let (prompt, token) = pair(&head.place(request, 100, 10));
            assert!(prompt != 1 && token != 1, "{name}: {prompt}, {token}");
        }
        // A single prompt machine stays paired with token machines that are there.
        let mut head = Head::new(with(policy), &pools(1, 2));
        head.act(&ClusterEvent::Lose { machine: id(1) });
        for request in 0..4 {
            assert!(pair(&head.place(request, 100, 10)).1 != 1, "{name}");
        }
        head.join(MachineId { index: 1, incarnation: 2 }, Role::Token, 10_000);
        let placed = head.place(9, 100, 10);
        assert!(
            placed.legs().all(|leg| leg.machine.id().unwrap() != id(1)),
            "{name}: an incarnation that is over"
        );
        // Nobody at all: a reason, and no winner to look at.
        for machine in [id(0), MachineId { index: 1, incarnation: 2 }, id(2)] {
            head.act(&ClusterEvent::Drain { machine });
        }
        assert_eq!(rejected(&mut head, Arrival::new(10, 100, 10)), Some(Rejection::NoMachine), "{name}");
    }
}

#[test]
fn s11_a_machine_that_has_not_reported_counts_by_what_was_booked_on_it() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &pools(1, 3), 1_000_000);
    let place = |head: &mut Head, request| {
        let placement = head.place(request, 99, 10);
        head.prefill_done(0, request);
        pair(&placement).1
    };
    for machine in 1..4 {
        head.notice(machine, says(0, 2000));
    }
    head.join(id(4), Role::Token, 1_000_000);
    let chosen: Vec<u32> = (0..100).map(|request| place(&mut head, request)).collect();
    // It catches up, 20 requests of 100 tokens, and then it is one of four: it never says a word.
    assert_eq!(counts(&chosen[..20], 5), [0, 0, 0, 0, 20]);
    assert_eq!(counts(&chosen[20..], 5), [0, 20, 20, 20, 20]);
}

/// What becomes of request 1, whose pair is booked.
type Path = (&'static str, fn(&mut Head));

fn let_go(head: &mut Head, attempts: &[u32]) {
    for &attempt in attempts {
        for machine in 0..head.cluster.machines_len() {
            head.released(machine, key_at(1, attempt), 1000);
        }
    }
}

#[test]
fn s12_every_way_out_of_a_request_clears_the_books() {
    let paths: [Path; 7] = [
        ("success", |head| {
            head.prefill_done(0, 1);
            head.notice(2, Notice::Landed { key: key(1) });
            head.released(0, key(1), 2);
            head.notice(2, Notice::Finished { key: key(1), tokens: 3 });
        }),
        ("the first token is the last", |head| {
            head.notice(0, Notice::Finished { key: key(1), tokens: 1 });
            let_go(head, &[1]);
        }),
        ("cancel", |head| {
            head.act(&ClusterEvent::Cancel { request: RequestId(1) });
            let_go(head, &[1]);
        }),
        ("dispatch error at the prompt machine", |head| {
            head.act(&ClusterEvent::Lose { machine: id(0) });
            head.act(&ClusterEvent::Cancel { request: RequestId(1) });
            let_go(head, &[1, 2]);
        }),
        ("dispatch error at the token machine", |head| {
            head.act(&ClusterEvent::Lose { machine: id(2) });
            head.act(&ClusterEvent::Cancel { request: RequestId(1) });
            let_go(head, &[1, 2]);
        }),
        ("transfer error", |head| {
            head.prefill_done(0, 1);
            head.notice(0, Notice::TransferFailed { key: key(1) });
            head.act(&ClusterEvent::Cancel { request: RequestId(1) });
            let_go(head, &[1, 2]);
        }),
        ("handoff that does not go on", |head| {
            head.tick_at(30 * SECOND_NS);
            assert_eq!(head.cluster.counters().relieved, 1);
            head.act(&ClusterEvent::Cancel { request: RequestId(1) });
            let_go(head, &[1, 2]);
        }),
    ];
    for (name, path) in paths {
        let mut head = Head::new(ClusterConfig::default(), &pools(2, 2));
        head.place(1, 100, 10);
        let (prompt, token) = (head.cluster.load(0).unwrap(), head.cluster.load(2).unwrap());
        assert_eq!(
            (prompt.booked, prompt.kv_tokens, token.booked, token.kv_tokens),
            (100, 101, 1, 101),
            "{name}"
        );
        path(&mut head);
        for machine in 0..4 {
            let _ = head.handle(&ClusterEvent::Notice { from: id(machine), notice: says(1000, 0) });
        }
        assert_nothing_booked(&head, name);
    }
}

#[test]
fn s12_every_way_out_of_an_embedders_request_clears_the_books() {
    let paths: [Path; 5] = [
        ("success", |head| {
            for notice in [
                Notice::PrefillDone { key: key(1), sampled: true },
                Notice::Progress { key: key(1), tokens: 2 },
                Notice::Finished { key: key(1), tokens: 2 },
            ] {
                assert_eq!(head.fact(notice), Applied::Yes);
            }
        }),
        ("transfer error", |head| {
            assert_eq!(head.fact(Notice::TransferFailed { key: key(1) }), Applied::Yes);
            head.act(&ClusterEvent::Cancel { request: RequestId(1) });
        }),
        ("dispatch error", |head| {
            head.act(&ClusterEvent::Lose { machine: id(0) });
            head.act(&ClusterEvent::Cancel { request: RequestId(1) });
        }),
        ("timeout", |head| drop(head.tick_at(SECOND_NS))),
        ("cancel", |head| drop(head.act(&ClusterEvent::Cancel { request: RequestId(1) }))),
    ];
    for (name, path) in paths {
        let mut head = Head::new(ClusterConfig { lease_ns: Some(SECOND_NS), ..external() }, &pools(2, 2));
        // A bad payload books nothing, and leaves nothing.
        let empty = head.handle(&ClusterEvent::Arrive(Arrival::new(1, 0, 10)));
        assert_eq!(empty, (Err(EventError::EmptyRequest(RequestId(1))), vec![]));
        assert_eq!(rejected(&mut head, Arrival::new(1, 10, 10_000)), Some(Rejection::TooLarge));
        assert_nothing_booked(&head, name);
        head.place(1, 100, 10);
        assert_eq!(head.cluster.load(0).unwrap().booked, 100);
        path(&mut head);
        assert_nothing_booked(&head, name);
    }
}

#[test]
fn s14_new_work_goes_to_the_one_machine_that_is_not_over() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &pools(1, 4), 1000);
    for machine in 1..4 {
        head.notice(machine, says(0, 950));
    }
    let mut chosen = Vec::new();
    for request in 0..95 {
        let placement = head.place(request, 9, 10);
        head.prefill_done(0, request);
        assert_eq!(placement.why.token_step, Step::Own);
        chosen.push(pair(&placement).1);
    }
    assert_eq!(counts(&chosen, 5), [0, 0, 0, 0, 95], "all of them, up to 950 tokens");
    // Now all four are over, and only now is it sent elsewhere; it is not pushed over the last one's limit.
    let placement = head.place(95, 9, 10);
    assert_eq!((pair(&placement).1, placement.why.token_step), (0, Step::Opposite));
}

#[test]
fn s14_a_policy_without_a_limit_ends_at_the_machine_that_has_room() {
    for policy in [PolicyKind::RoundRobin, PolicyKind::PowerOfTwo, PolicyKind::LeastRequests] {
        let (roomy, full) = (tokens(10_000), tokens(40));
        let mut machines = vec![(Role::Prompt, roomy)];
        machines.extend([full, full, full, roomy].map(|config| (Role::Token, config)));
        let mut site = Site::new(with(policy), &machines);
        // Three full machines: each holds a request that does not end.
        for (request, pin) in [(1, 1), (2, 2), (3, 3)] {
            site.submit(Arrival { pin_token: Some(pin), ..Arrival::new(request, 38, 2) }, 2);
            site.settle();
        }
        site.round();
        assert!((1..4).all(|machine| site.machine(machine).pool().free() <= 1), "{policy:?}");
        for request in 10..16 {
            site.submit(Arrival::new(request, 20, 2), 2);
            while site.deliver() {}
            let last = site.cluster.load(4).unwrap().legs;
            assert_eq!(u64::from(last), request - 9, "{policy:?}: refused by the full, taken by the fourth");
        }
        assert!(site.cluster.counters().refused > 0, "{policy:?}: it does ask the full ones");
        site.finish();
        site.assert_empty();
    }
}

/// A prompt machine, and a token machine of 1000 blocks.
fn thousand_blocks(kv_fill_max_permille: u32) -> Site {
    let config = ClusterConfig { kv_fill_max_permille, ..ClusterConfig::default() };
    Site::new(config, &[(Role::Prompt, tokens(100_000)), (Role::Token, tokens(1000))])
}

/// Ten requests of 90 blocks that grow to 140. Returns how many the token machine gets.
fn ten_growing(site: &mut Site) -> usize {
    site.instant = false;
    for request in 0..10 {
        site.submit(Arrival::new(request, 89, 51), 51);
    }
    site.settle();
    let there = site.placed.iter().filter(|placement| pair(placement).1 == 1).count();
    // Nothing runs there yet: everything is reserved or on its way, and counts in full.
    let token = site.cluster.load(1).unwrap();
    assert_eq!((token.kv_tokens, site.machine(1).pool().held()), (90 * there as u64, 90 * there as u32));
    assert!(!site.machine(1).is_running());
    there
}

#[test]
fn s15_what_is_reserved_or_in_transfer_counts_as_what_runs() {
    // Ten fit now, and not when they have grown: the youngest give way one by one, and nothing freezes.
    let mut site = thousand_blocks(950);
    assert_eq!(ten_growing(&mut site), 10);
    site.submit(Arrival::new(10, 89, 51), 51);
    assert_eq!(pair(site.placed.last().unwrap()), (0, 0), "the eleventh would fit, were nothing on its way");
    site.instant = true;
    site.finish();
    site.assert_empty();
    assert!(site.ended.values().all(|&outcome| outcome == Outcome::Finished));
    // 1000 blocks hold 7 of 140; three give way, once each.
    assert_eq!(site.machine(1).counters().evicted, 3, "no storm");
}

#[test]
fn s15_room_for_growth_is_the_fill_limit() {
    // 7 x 90 of 1000 blocks: the eighth goes elsewhere, and 7 x 140 fit.
    let mut site = thousand_blocks(630);
    assert_eq!(ten_growing(&mut site), 7);
    site.instant = true;
    site.finish();
    site.assert_empty();
    assert_eq!((site.machine(1).counters().evicted, site.ended.len()), (0, 10));
}

/// A prompt of 32 tokens prefills in two halves of a pass each beside short ones; the token machine has 40 blocks.
/// Returns the decodes in each of its passes until the long prompt has been computed, and refusals.
fn beside_a_long_prompt(reserve: Reserve) -> (usize, u64) {
    let config = ClusterConfig { reserve, ..with(PolicyKind::LeastRequests) };
    let machines = [(Role::Prompt, tokens(1000)), (Role::Prompt, tokens(1000)), (Role::Token, tokens(40))];
    let mut site = Site::new(config, &machines);
    site.arrive(0, 32, 4);
    for request in 1..4 {
        site.arrive(request, 4, 8);
    }
    // The long prefill takes as long as these four rounds on the other machines.
    let mut decodes = 0;
    for _ in 0..4 {
        for machine in [1, 2] {
            if site.machine(machine).is_running() {
                site.end_pass(machine);
            }
        }
        site.settle();
        decodes += site.machine(2).plan().decodes.len();
    }
    site.finish();
    site.assert_empty();
    assert!((0..4).all(|request| site.ended[&request] == Outcome::Finished), "{reserve:?}");
    assert_eq!(site.cluster.counters().faults, 0);
    (decodes, site.cluster.counters().refused)
}

#[test]
fn s16_a_late_reservation_keeps_short_requests_going() {
    let (early, _) = beside_a_long_prompt(Reserve::AtArrival);
    let (late, refused) = beside_a_long_prompt(Reserve::AtSourceDone);
    assert!(late > early, "decodes in four passes: {late} late, {early} early");
    // And what finds no room when it is computed waits for it.
    assert!(refused > 0);
}

#[test]
fn s17_one_victim_makes_room_for_the_seven_others() {
    let mut bench = Bench::new(64);
    // The first occupies the engine until all eight are here.
    bench.compute(0, whole(1));
    for request in 1..9 {
        bench.compute(request, whole(7));
    }
    bench.pass(&[0]);
    bench.pass(&[]);
    assert_eq!(
        (bench.decodes().len(), bench.machine.pool().free()),
        (8, 0),
        "with the next token all want a block"
    );
    let actions = bench.pass(&[]);
    let victims: Vec<Notice> =
        notices(&actions).into_iter().filter(|notice| matches!(notice, Notice::Evicted { .. })).collect();
    assert_eq!(victims, [Notice::Evicted { key: key(8), tokens: 9 }], "the youngest, and nobody else");
    assert_eq!(bench.decodes(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(bench.machine.leg(key(8)).unwrap().0.compute, Compute::Evicted);
}

/// 32 requests at once on a token machine that decodes four; the transfers of some fail. Each round takes ten seconds.
fn burst_of_32(token: MachineConfig, failing: &[u64]) -> Site {
    let mut site =
        Site::new(ClusterConfig::default(), &[(Role::Prompt, tokens(10_000)), (Role::Token, token)]);
    site.instant = false;
    for request in 0..32 {
        site.submit(Arrival::new(request, 20, 8), 8);
    }
    site.settle();
    let mut failed = Vec::new();
    while site.cluster.live_requests() > 0 {
        site.round();
        // What is on its way takes a round.
        for _ in 0..site.transfers.len() {
            let Some(transfer) = site.transfers.first() else { break };
            let request = transfer.key.request.0;
            if transfer.stopped {
                site.fence(0);
            } else if failing.contains(&request) && !failed.contains(&request) {
                failed.push(request);
                site.fail(0);
                site.settle();
                // The receiver is free of it at once, not when a timer ends. There is no other, so its source decodes it.
                assert!(site.machine(0).leg(key_at(request, 2)).is_some(), "at its source");
            } else {
                site.land(0);
            }
            site.settle();
        }
        site.advance(10 * SECOND_NS);
        assert!(site.now_ns < 10_000 * SECOND_NS, "{site:?}");
    }
    site.advance(SECOND_NS);
    site.assert_empty();
    assert!(site.ended.len() == 32 && site.ended.values().all(|&outcome| outcome == Outcome::Finished));
    assert_eq!(site.cluster.counters().faults, failed.len() as u64);
    site
}

#[test]
fn s18_waiting_for_a_place_to_decode_is_no_failure() {
    // Four run in a pass; the others wait for minutes, longer than the limit on handoffs that do not go on.
    let window = MachineConfig { batch_requests_max: 4, receives_max: Some(4), ..tokens(10_000) };
    let site = burst_of_32(window, &[]);
    assert!(site.now_ns > 300 * SECOND_NS, "{} s", site.now_ns / SECOND_NS);
    assert_eq!(site.cluster.counters().relieved, 0, "queued is not dead");
    assert_eq!(burst_of_32(window, &[3, 9, 31]).cluster.counters().faults, 3);
    // Memory for four: the others wait without a destination, and are placed as one leg when they have waited long.
    let memory = tokens(4 * 28);
    burst_of_32(memory, &[]);
    burst_of_32(memory, &[3, 9, 31]);
}

#[test]
fn s20_a_side_that_no_machine_can_take_is_found_before_anything_is_booked() {
    for (policy, name) in PolicyKind::ALL {
        let mut head = Head::new(with(policy), &[]);
        for (machine, role, kv_capacity_tokens) in
            [(0, Role::Prompt, 10_000), (1, Role::Token, 100), (2, Role::Token, 100)]
        {
            head.join(id(machine), role, kv_capacity_tokens);
        }
        // No token machine can hold it. One leg on the prompt machine, or a reason; never half a pair.
        let actions = head.arrive(Arrival::new(1, 500, 100));
        match placement(&actions) {
            Some(placement) => {
                assert_eq!(pair(&placement), (0, 0), "{name}");
                head.act(&ClusterEvent::Cancel { request: RequestId(1) });
                head.released(0, key(1), 2);
            }
            None => assert!(matches!(actions[..], [ClusterAction::Rejected { .. }]), "{name}: {actions:?}"),
        }
        assert_nothing_booked(&head, name);
        let pinned = Arrival { pin_token: Some(1), ..Arrival::new(2, 500, 100) };
        assert_eq!(rejected(&mut head, pinned), Some(Rejection::TooLarge), "{name}");
        head.act(&ClusterEvent::Lose { machine: id(1) });
        let pinned = Arrival { pin_token: Some(1), ..Arrival::new(2, 10, 10) };
        assert_eq!(rejected(&mut head, pinned), Some(Rejection::PinUnavailable), "{name}");
        assert_nothing_booked(&head, name);
    }
}

#[test]
fn s21_a_pin_binds_the_token_side_and_an_unknown_one_is_named() {
    let mut head = Head::new(ClusterConfig::default(), &pools(2, 3));
    head.place(1, 100, 10);
    let actions = head.arrive(Arrival { pin_token: Some(3), ..Arrival::new(2, 100, 10) });
    let placement = placement(&actions).unwrap();
    assert_eq!(
        (pair(&placement), placement.why.token_step),
        ((1, 3), Step::Pinned),
        "the idle prompt machine"
    );
    let unknown = Arrival { pin_token: Some(9), ..Arrival::new(3, 100, 10) };
    let error = head.handle(&ClusterEvent::Arrive(unknown)).0.unwrap_err();
    assert_eq!(error.to_string(), "no live machine has index 9");
}

/// A prompt and two token machines: prompts alone for 60 seconds, then long outputs. Returns the moves of each machine:
/// the second, and the pool.
fn prompts_then_decodes(mixed_hold_ns: u64) -> Vec<Vec<(u64, Role)>> {
    let config = ClusterConfig { mixed_hold_ns, prompt_pending_tokens_max: 1000, ..ClusterConfig::default() };
    let homes = [Role::Prompt, Role::Token, Role::Token];
    let mut site = Site::new(config, &homes.map(|role| (role, tokens(100_000))));
    for second in 0..120 {
        let (prompts, prompt_tokens, output_tokens) = if second < 60 { (4, 900, 2) } else { (1, 10, 40) };
        for index in 0..prompts {
            let arrival = Arrival::new(second * 10 + index, prompt_tokens, output_tokens);
            site.submit(arrival, output_tokens);
        }
        site.settle();
        site.round();
        site.advance(SECOND_NS);
    }
    site.finish();
    site.assert_empty();
    assert!(site.ended.values().all(|&outcome| outcome == Outcome::Finished));
    assert_eq!(site.cluster.counters().faults, 0, "what ran on a machine that moved ran on");
    assert!((0..3).all(|at| site.cluster.load(at).unwrap().pool == homes[at as usize]), "all home");
    let of = |machine| move |&(at_ns, who, pool)| (who == machine).then_some((at_ns / SECOND_NS, pool));
    (0..3).map(|machine| site.moved.iter().filter_map(of(machine)).collect()).collect()
}

#[test]
fn s22_a_machine_is_borrowed_for_a_burst_and_goes_home_no_sooner_than_its_hold_down() {
    for hold_s in [0, 5, 20] {
        let moves = prompts_then_decodes(hold_s * SECOND_NS);
        assert!(moves.iter().any(|moves| !moves.is_empty()), "{hold_s} s: nobody is borrowed");
        for moves in &moves {
            assert!(moves.iter().all(|&(at, pool)| at < 60 || pool != Role::Mixed), "{hold_s} s: {moves:?}");
            let stays = moves.chunks(2).map(|pair| pair[1].0 - pair[0].0);
            assert!(stays.clone().all(|stay| stay >= hold_s), "{hold_s} s: {moves:?}");
            assert!(moves.len() as u64 <= 2 * (1 + 60 / hold_s.max(1)), "{hold_s} s: {moves:?}");
        }
    }
}

#[test]
fn m15_pools_grow_from_nothing_lose_machines_with_work_and_keep_draining() {
    let mut head = Head::new(ClusterConfig::default(), &[]);
    assert_eq!(rejected(&mut head, Arrival::new(0, 10, 10)), Some(Rejection::NoMachine));
    head.join(id(0), Role::Mixed, 10_000);
    for request in 1..7 {
        head.place(request, 100, 10);
    }
    // The only machine goes, with work: nothing is dropped, and what joins takes it over.
    head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!((head.cluster.parked_requests(), head.cluster.live_requests()), (6, 6));
    head.join(id(1), Role::Prompt, 10_000);
    assert_eq!(head.cluster.parked_requests(), 0, "one machine is enough to go on");
    head.join(id(2), Role::Token, 10_000);
    head.join(id(3), Role::Token, 10_000);
    assert_eq!(pair(&head.place(7, 100, 10)), (1, 2));
    assert_eq!(pair(&head.place(8, 100, 10)), (1, 3));
    // A drain outlasts whatever is said meanwhile, and ends with the last of the work.
    head.act(&ClusterEvent::Drain { machine: id(3) });
    for request in 9..13 {
        head.notice(3, says(2, 200));
        assert_ne!(pair(&head.place(request, 100, 10)).1, 3);
    }
    head.prefill_done(1, 8);
    head.notice(3, Notice::Landed { key: key(8) });
    head.released(1, key(8), 1000);
    assert_eq!(head.cluster.load(3).unwrap().state, splitcore_core::cluster::MachineState::Draining);
    let actions = head.notice(3, Notice::Finished { key: key(8), tokens: 10 });
    assert!(actions.contains(&ClusterAction::Drained { machine: id(3) }), "{actions:?}");
}
