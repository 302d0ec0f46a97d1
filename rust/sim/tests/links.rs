//! Flows on shared NICs: closed forms worked out by hand.

use splitcore_sim::links::{Contention, FlowId, Links, Nic};

const GB: u64 = 1_000_000_000;
const SECOND: u64 = 1_000_000_000;

fn nic(bytes_per_s: f64) -> Nic {
    Nic { send_bytes_per_s: bytes_per_s, receive_bytes_per_s: bytes_per_s }
}

/// Machines whose NICs carry 1 GB/s each way: a byte takes a nanosecond.
fn gigabyte_links(machines: usize) -> Links {
    Links::new(&vec![nic(1e9); machines], Contention::On)
}

/// Runs to the end; flows with their ends in order of completion.
fn drain(links: &mut Links) -> Vec<(FlowId, u64)> {
    let mut ends = Vec::new();
    while let Some(next_ns) = links.next_completion() {
        let mut done = Vec::new();
        links.complete_due(next_ns, &mut done);
        assert!(!done.is_empty(), "a completion was announced for {next_ns} ns");
        ends.extend(done.into_iter().map(|id| (id, next_ns)));
    }
    assert_eq!(links.active(), 0);
    ends
}

#[test]
fn a_lone_flow_ends_on_the_nanosecond() {
    for (bytes, bytes_per_s, lasts_ns) in [
        (6_021_120_000, 200e9, 30_105_600), // 1500 tokens of BLOOM-176B
        (1, 200e9, 1),                      // 5 ps, rounded up
        (401, 200e9, 3),                    // 2.005 ns
        (400, 200e9, 2),
        (10, 3e9, 4), // 3.33 ns
        (0, 200e9, 0),
    ] {
        let mut links = Links::new(&[nic(bytes_per_s), nic(bytes_per_s)], Contention::On);
        let id = links.start(17, 0, 1, bytes, None);
        assert_eq!(links.rate_bytes_per_s(id), Some(bytes_per_s));
        assert_eq!(drain(&mut links), [(id, 17 + lasts_ns)], "{bytes} bytes");
        assert_eq!(links.delivered_bytes(), u128::from(bytes));
    }
}

#[test]
fn a_layer_wise_flow_ends_with_its_prefill() {
    for prefill_ns in [1_u64, 7, 48_812_345, 119_621_983, 649_598_277, 1_234_567_891_011] {
        for tokens in [1_u64, 3, 128, 1500, 2048, 7437] {
            let bytes = tokens * 4_014_080;
            let mut links = Links::new(&[nic(1e20), nic(1e20)], Contention::On);
            let id = links.start(5, 0, 1, bytes, Some(bytes as f64 / (prefill_ns as f64 / 1e9)));
            assert_eq!(links.end_ns(id), Some(5 + prefill_ns), "{tokens} tokens in {prefill_ns} ns");
        }
    }
}

#[test]
fn two_from_one_machine_take_twice_as_long() {
    let mut links = gigabyte_links(3);
    let first = links.start(0, 0, 1, GB, None);
    let second = links.start(0, 0, 2, GB, None);
    assert_eq!(drain(&mut links), [(first, 2 * SECOND), (second, 2 * SECOND)]);
}

#[test]
fn two_into_one_machine_take_twice_as_long() {
    let mut links = gigabyte_links(3);
    let first = links.start(0, 0, 2, GB, None);
    let second = links.start(0, 1, 2, GB, None);
    assert_eq!(drain(&mut links), [(first, 2 * SECOND), (second, 2 * SECOND)]);
}

#[test]
fn sending_does_not_slow_receiving() {
    let mut links = gigabyte_links(3);
    let inbound = links.start(0, 0, 1, GB, None);
    let outbound = links.start(0, 1, 2, GB, None);
    let back = links.start(0, 1, 0, GB / 2, None); // shares the send side of 1 with `outbound` only
    assert_eq!(links.rate_bytes_per_s(inbound), Some(1e9));
    assert_eq!(links.rate_bytes_per_s(outbound), Some(0.5e9));
    assert_eq!(drain(&mut links), [(inbound, SECOND), (back, SECOND), (outbound, 3 * SECOND / 2)]);
}

#[test]
fn n_flows_get_an_nth_each() {
    for count in 1..=10_u32 {
        let mut links = gigabyte_links(11);
        let ids: Vec<_> = (0..count).map(|from| links.start(0, from, 10, GB, None)).collect();
        for &id in &ids {
            let rate = links.rate_bytes_per_s(id).unwrap();
            assert!((rate * f64::from(count) / 1e9 - 1.0).abs() < 1e-12, "{rate} for one of {count}");
        }
        let ends = drain(&mut links);
        assert_eq!(ends.iter().map(|end| end.0).collect::<Vec<_>>(), ids, "start order at equal ends");
        assert!(ends.iter().all(|&(_, end_ns)| end_ns.abs_diff(u64::from(count) * SECOND) <= 1), "{ends:?}");
    }
}

#[test]
fn staggered_arrivals_share_the_processor() {
    // A 1 GB at 0 s, B 1 GB at 0.5 s, C 0.25 GB at 1 s, all into machine 3.
    // 0..0.5 A alone: 0.5 left. 0.5..1 halves: A 0.25, B 0.75 left. 1..1.75 thirds: A and C through at 1.75,
    // B 0.5 left. Alone until 2.25 s.
    let mut links = gigabyte_links(4);
    let a = links.start(0, 0, 3, GB, None);
    assert_eq!(links.next_completion(), Some(SECOND));
    let b = links.start(SECOND / 2, 1, 3, GB, None);
    assert_eq!(links.next_completion(), Some(3 * SECOND / 2));
    let c = links.start(SECOND, 2, 3, GB / 4, None);
    let ends = drain(&mut links);
    assert_eq!(ends.iter().map(|end| end.0).collect::<Vec<_>>(), [a, c, b]);
    for ((_, end_ns), expected_ns) in ends.into_iter().zip([1_750_000_000, 1_750_000_000, 2_250_000_000]) {
        assert!(end_ns.abs_diff(expected_ns) <= 1, "{end_ns} for {expected_ns}");
    }
}

#[test]
fn ends_are_those_of_exact_fractions() {
    // The expected ends come from the same model in rational arithmetic, each end rounded up to whole ns.
    let capacities = [(5e8, 5e8), (5e8, 5e8), (5e8, 5e8), (1e9, 5e8), (1e9, 777_777_777.0)];
    let nics = capacities
        .map(|(send_bytes_per_s, receive_bytes_per_s)| Nic { send_bytes_per_s, receive_bytes_per_s });
    let flows = [
        (0, 3, 4, 2_519_046, 11_128_452),
        (0, 0, 4, 187_530, 482_221),
        (550_266, 2, 0, 1, 550_268),
        (660_708, 0, 4, 65_303, 828_631),
        (1_535_536, 0, 0, 1, 1_535_538),
        (1_672_694, 0, 4, 1_470_896, 11_128_454),
        (1_672_694, 0, 4, 1_470_896, 11_128_454),
        (1_672_694, 1, 4, 1_470_896, 11_128_454),
        (1_672_694, 0, 4, 1_470_896, 11_128_454),
    ];
    let mut links = Links::new(&nics, Contention::On);
    let (mut ids, mut found) = (Vec::new(), Vec::new());
    for (start_ns, from, to, bytes, _) in flows {
        let mut done = Vec::new();
        while let Some(next_ns) = links.next_completion().filter(|&next_ns| next_ns <= start_ns) {
            links.complete_due(next_ns, &mut done);
            found.extend(done.drain(..).map(|id| (id, next_ns)));
        }
        ids.push(links.start(start_ns, from, to, bytes, None));
    }
    found.extend(drain(&mut links));
    found.sort_by_key(|(id, _)| ids.iter().position(|other| other == id));
    let expected: Vec<_> = ids.iter().copied().zip(flows.map(|flow| flow.4)).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_capped_flow_leaves_the_rest() {
    let mut links = gigabyte_links(4);
    let capped = links.start(0, 0, 3, GB, Some(0.1e9));
    let one = links.start(0, 1, 3, GB, None);
    let two = links.start(0, 2, 3, GB, Some(5e9));
    assert_eq!(links.rate_bytes_per_s(capped), Some(0.1e9));
    assert_eq!(links.rate_bytes_per_s(one), Some(0.45e9));
    assert_eq!(links.rate_bytes_per_s(two), Some(0.45e9));
}

#[test]
fn caps_that_fit_do_not_couple() {
    let mut links = gigabyte_links(5);
    let ids: Vec<_> = (0..4).map(|from| links.start(0, from, 4, GB, Some(0.25e9))).collect();
    for &id in &ids {
        assert_eq!(links.rate_bytes_per_s(id), Some(0.25e9));
    }
    // A fifth pushes the sum over: now the fair share counts.
    let fifth = links.start(SECOND, 0, 4, GB, Some(0.25e9));
    for &id in &ids {
        assert_eq!(links.rate_bytes_per_s(id), Some(0.2e9));
    }
    assert!(links.cancel(2 * SECOND, fifth));
    for &id in &ids {
        assert_eq!(links.rate_bytes_per_s(id), Some(0.25e9));
        // 0.25 GB in the first second, 0.2 GB in the next, 0.55 GB at 0.25 GB/s.
        assert_eq!(links.end_ns(id), Some(4_200_000_000));
    }
}

#[test]
fn a_bottleneck_elsewhere_leaves_its_share_to_others() {
    // Machine 0 sends three flows, one to machine 1 that also receives from 2, 3, 4: there a quarter each.
    let mut links = gigabyte_links(7);
    let shared = links.start(0, 0, 1, GB, None);
    let others: Vec<_> = (2..5).map(|from| links.start(0, from, 1, GB, None)).collect();
    let wide = [links.start(0, 0, 5, GB, None), links.start(0, 0, 6, GB, None)];
    for id in others.into_iter().chain([shared]) {
        assert_eq!(links.rate_bytes_per_s(id), Some(0.25e9));
    }
    for id in wide {
        assert_eq!(links.rate_bytes_per_s(id), Some(0.375e9));
    }
}

#[test]
fn a_pair_runs_at_the_slower_nic() {
    // H100 to A100 and back: 200 GB/s; H100 to H100: 400 GB/s.
    let mut links = Links::new(&[nic(400e9), nic(200e9), nic(400e9)], Contention::On);
    assert_eq!(links.pair_bytes_per_s(0, 1), 200e9);
    assert_eq!(links.pair_bytes_per_s(1, 0), 200e9);
    assert_eq!(links.pair_bytes_per_s(0, 2), 400e9);
    let down = links.start(0, 0, 1, 200 * GB, None);
    let level = links.start(0, 0, 2, 200 * GB, None);
    assert_eq!(links.rate_bytes_per_s(down), Some(200e9));
    assert_eq!(links.rate_bytes_per_s(level), Some(200e9));
    assert_eq!(drain(&mut links), [(down, SECOND), (level, SECOND)]);
}

#[test]
fn a_stopped_flow_returns_its_share() {
    let mut links = gigabyte_links(3);
    let stays = links.start(0, 0, 2, GB, None);
    let stops = links.start(0, 1, 2, GB, None);
    assert_eq!(links.next_completion(), Some(2 * SECOND));
    assert!(links.cancel(SECOND, stops));
    assert!(!links.cancel(SECOND, stops), "stopped already");
    assert_eq!(links.rate_bytes_per_s(stops), None);
    // Half is through after a second, the rest takes half a second.
    assert_eq!(drain(&mut links), [(stays, 3 * SECOND / 2)]);
    assert_eq!(links.delivered_bytes(), u128::from(GB), "a stopped flow delivers nothing");
}

#[test]
fn without_contention_every_flow_runs_alone() {
    let mut links = Links::new(&[nic(1e9), nic(1e9), nic(0.5e9)], Contention::Off);
    let ids = [
        links.start(0, 0, 1, GB, None),
        links.start(0, 0, 1, GB, None),
        links.start(0, 0, 2, GB, None),
        links.start(0, 0, 1, GB, Some(0.1e9)),
    ];
    let expected: Vec<_> = ids.into_iter().zip([SECOND, SECOND, 2 * SECOND, 10 * SECOND]).collect();
    assert_eq!(drain(&mut links), expected);
    assert_eq!(links.delivered_bytes(), u128::from(4 * GB));
}

#[test]
fn an_id_is_not_taken_for_the_next_user_of_its_slot() {
    let mut links = gigabyte_links(2);
    let first = links.start(0, 0, 1, GB, None);
    assert!(links.cancel(0, first));
    let second = links.start(0, 0, 1, GB, None);
    assert_eq!(first.slot(), second.slot());
    assert_ne!(first, second);
    assert!(!links.cancel(0, first));
    assert_eq!(links.active(), 1);
}

#[test]
fn a_timer_is_asked_for_only_when_needed() {
    let mut links = gigabyte_links(3);
    let mut done = Vec::new();
    assert_eq!(links.arm(), None);
    links.start(0, 0, 2, GB, None);
    assert_eq!(links.arm(), Some(SECOND));
    assert_eq!(links.arm(), None, "the caller has it already");
    let short = links.start(0, 1, 2, GB / 4, None);
    assert_eq!(links.arm(), Some(SECOND / 2), "an earlier end");
    links.complete_due(SECOND / 2, &mut done);
    assert_eq!(done, [short]);
    assert_eq!(links.arm(), Some(5 * SECOND / 4));
    links.complete_due(SECOND, &mut done); // the first timer: stale
    assert_eq!(done.len(), 1);
    assert_eq!(links.arm(), None);
    links.complete_due(5 * SECOND / 4, &mut done);
    assert_eq!(done.len(), 2);
    assert_eq!(links.arm(), None);
}

#[test]
#[should_panic(expected = "links asked for 4 ns, but it is 5 ns already")]
fn time_does_not_run_backwards() {
    let mut links = gigabyte_links(2);
    links.start(5, 0, 1, 1, None);
    links.start(4, 0, 1, 1, None);
}

#[test]
#[should_panic(expected = "a NIC carries 0 bytes/s")]
fn a_nic_without_bandwidth_is_refused() {
    let _ = Links::new(&[nic(0.0)], Contention::On);
}
