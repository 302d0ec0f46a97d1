//! Whole runs whose times can be worked out by hand, and the two sums that hold for every request.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{TempFile, assert_near, run, with_machines};
use proptest::prelude::*;
use splitcore_core::machine::BatchPlan;
use splitcore_sim::cost::{CostKind, CostModel, Profile};
use splitcore_sim::machines::{Hardware, MachineKind, Model};
use splitcore_sim::{Observer, Options, Report, simulate_observed};

const KV_BYTES: u64 = 4_014_080;

fn prefill_ns(hardware: Hardware, prompt_tokens: u32) -> u64 {
    let (profile, machine) = (Profile::builtin(), MachineKind::whole(hardware));
    let cost = CostModel::new(CostKind::Measured, &profile, Model::Bloom176b, &machine).unwrap();
    cost.prefill_ns(prompt_tokens)
}

/// One machine, prompts that fill a pass, one token each: a queue with one server and a fixed time of service.
fn queue(name: &str, utilisation: f64, requests: usize, arrivals: &str) -> (u64, Report) {
    let service_ns = prefill_ns(Hardware::H100, 2048);
    let sizes = TempFile::trace(name, &[(0.0, 2048, 1)]);
    let report = run(&Options {
        trace: sizes.path(),
        arrivals: Some(arrivals.into()),
        rate: Some(utilisation / service_ns as f64 * 1e9),
        requests: Some(requests),
        seed: 7,
        ..with_machines(Unsplit("1xdgx-h100"))
    });
    (service_ns, report)
}

/// The waiting time follows from the one before: W' = max(0, W + D - gap).
#[test]
fn waits_are_the_lindley_recursion_to_the_nanosecond() {
    for (name, utilisation, arrivals) in [
        ("lindley-low", 0.3, "poisson"),
        ("lindley-high", 0.95, "poisson"),
        ("lindley-bursty", 0.7, "bursty"),
    ] {
        let (service_ns, report) = queue(name, utilisation, 5_000, arrivals);
        let (mut wait_ns, mut last_ns, mut waited) = (0, 0, 0);
        for (index, row) in report.rows.iter().enumerate() {
            let gap_ns = row.arrival_ns - last_ns;
            wait_ns = if index == 0 { 0 } else { (wait_ns + service_ns).saturating_sub(gap_ns) };
            last_ns = row.arrival_ns;
            waited += u32::from(wait_ns > 0);
            assert_eq!(row.ttft_ns, wait_ns + service_ns, "{name}, request {index}");
            assert_eq!(row.e2e_ns, row.ttft_ns);
        }
        assert!(waited > 1_000, "{name}: only {waited} waited");
    }
}

/// M/D/1: the mean time to the first token is D + rho D / (2 (1 - rho)).
#[test]
fn the_mean_is_that_of_a_queue_with_poisson_arrivals() {
    for utilisation in [0.5, 0.3] {
        let (service_ns, report) = queue("md1", utilisation, 100_000, "poisson");
        let service_s = service_ns as f64 / 1e9;
        let expected_s = service_s * (1.0 + utilisation / (2.0 * (1.0 - utilisation)));
        let mean_s = report.summary.ttft_s.mean;
        eprintln!("| M/D/1, utilisation {utilisation} | {mean_s:.6} s | {expected_s:.6} s |");
        assert_near("mean TTFT", mean_s, expected_s, 0.01);
        assert_near("utilisation", report.summary.machines[0].utilisation, utilisation, 0.01);
    }
}

/// A request as an observer sees it, in nanoseconds.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// When its `Compute` was delivered: it enters the prompt queue.
    computes: Vec<u64>,
    prefill: Option<(u64, u64)>,
    landed: Option<(u64, u64)>,
    /// The first pass it decodes in.
    first_decode: Option<(u64, u64)>,
    tokens: Vec<u64>,
    ends: u32,
}

/// All requests, and when passes started and ended on each machine.
#[derive(Debug, Default)]
struct Seeing {
    requests: Vec<Seen>,
    passes: Vec<Vec<(u64, u64)>>,
}

/// `Compute`, as it enters the digest.
const COMPUTE: u64 = 33;

impl Seeing {
    fn request(&mut self, id: u64) -> &mut Seen {
        let at = id as usize;
        if self.requests.len() <= at {
            self.requests.resize_with(at + 1, Seen::default);
        }
        &mut self.requests[at]
    }
}

impl Observer for Seeing {
    fn logged(&mut self, [now_ns, kind, id]: [u64; 3]) {
        if kind >> 32 == COMPUTE {
            self.request(id).computes.push(now_ns);
        }
    }

    fn pass_started(&mut self, now_ns: u64, machine: u32, end_ns: u64, plan: &BatchPlan) {
        let at = machine as usize;
        if self.passes.len() <= at {
            self.passes.resize(at + 1, Vec::new());
        }
        self.passes[at].push((now_ns, end_ns));
        for prefill in &plan.prefills {
            assert!(self.request(prefill.key.request.0).prefill.replace((now_ns, end_ns)).is_none());
        }
        for key in &plan.decodes {
            self.request(key.request.0).first_decode.get_or_insert((now_ns, end_ns));
        }
    }

    fn pass_ended(&mut self, now_ns: u64, _: u32, plan: &BatchPlan) {
        let sampled = plan.prefills.iter().filter(|prefill| prefill.samples).map(|prefill| prefill.key);
        for key in sampled.chain(plan.decodes.iter().copied()) {
            self.request(key.request.0).tokens.push(now_ns);
        }
    }

    fn landed(&mut self, now_ns: u64, _: u32, _: u32, request: u64, visible_ns: u64) {
        assert!(self.request(request).landed.replace((now_ns, visible_ns)).is_none(), "landed twice");
    }

    fn ended(&mut self, _: u64, request: u64, _: splitcore_sim::report::Outcome) {
        self.request(request).ends += 1;
    }
}

fn watch(options: &Options) -> (Report, Seeing) {
    let mut seeing = Seeing::default();
    let report = simulate_observed(options, &mut |_, _| true, &mut seeing).unwrap();
    (report, seeing)
}

/// Two prompts of equal length end at once on two machines and go to one: under contention each gets half of the
/// receiver's card, else all of it.
#[test]
fn two_transfers_to_one_machine_share_its_card() {
    let trace = TempFile::trace("pair", &[(0.0, 2000, 3), (0.0, 2000, 3)]);
    for (contention, bytes_per_s) in [(true, 100_000_000_000), (false, 200_000_000_000)] {
        let (_, seen) = watch(&Options {
            trace: trace.path(),
            transfer: "serialized".into(),
            contention,
            check: true,
            ..with_machines(Split("2xdgx-h100", "1xdgx-a100"))
        });
        let prefilled_ns = prefill_ns(Hardware::H100, 2000);
        // 8,028,160,000 bytes: 80,281,600 ns at half the rate, 40,140,800 at the full one.
        let visible_ns = (2000 * KV_BYTES) * 1_000_000_000 / bytes_per_s;
        assert_eq!(visible_ns, if contention { 80_281_600 } else { 40_140_800 });
        for request in &seen.requests {
            assert_eq!(request.prefill, Some((0, prefilled_ns)));
            assert_eq!(request.landed, Some((prefilled_ns + visible_ns, visible_ns)));
        }
    }
}

/// The second transfer starts 20 ms after the first: the first has sent half of its bytes and shares the rest.
#[test]
fn a_later_transfer_slows_the_one_under_way() {
    let trace = TempFile::trace("staggered", &[(0.0, 2000, 3), (0.020, 2000, 3)]);
    let (_, seen) = watch(&Options {
        trace: trace.path(),
        transfer: "serialized".into(),
        check: true,
        ..with_machines(Split("2xdgx-h100", "1xdgx-a100"))
    });
    let prefilled_ns = prefill_ns(Hardware::H100, 2000);
    // Alone each takes T = 40.1408 ms. The first: 20 ms alone, then the rest at half the rate: 20 + 2 (T - 20). The
    // second: it ends when the card has carried both, 2 T after the first started.
    let first_ns = 20_000_000 + 2 * (40_140_800 - 20_000_000);
    let second_ns = 2 * 40_140_800 - 20_000_000;
    assert_eq!(seen.requests[0].landed, Some((prefilled_ns + first_ns, first_ns)));
    assert_eq!(seen.requests[1].landed, Some((prefilled_ns + 20_000_000 + second_ns, second_ns)));
}

/// Layer-wise, and alone: the bytes are across with the prefill, and the fixed cost of the slower card shows.
#[test]
fn a_layer_wise_transfer_shows_its_fixed_cost() {
    let trace = TempFile::trace("layer-wise", &[(0.0, 2000, 3)]);
    for (token, visible_ns) in [("1xdgx-a100", 8_000_000), ("1xdgx-h100", 5_000_000)] {
        let (_, seen) = watch(&Options {
            trace: trace.path(),
            transfer: "layer-wise".into(),
            ..with_machines(Split("1xdgx-h100", token))
        });
        let landed_ns = prefill_ns(Hardware::H100, 2000) + visible_ns;
        assert_eq!(seen.requests[0].landed, Some((landed_ns, visible_ns)));
    }
}

/// When a machine that gets work at `ready_ns` begins its next pass: at once if it is idle, else after the one that
/// runs.
fn next_pass_ns(passes: &[(u64, u64)], ready_ns: u64) -> u64 {
    let running = passes.iter().find(|&&(start, end)| start < ready_ns && ready_ns <= end);
    running.map_or(ready_ns, |&(_, end)| end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(6)))]

    /// TTFT = message delay + prompt queue + prefill; gap to token 2 = visible transfer + token queue + one pass.
    #[test]
    fn both_sums_hold_for_every_request(
        rows in prop::collection::vec((0_u32..400, 1_u32..3000, 1_u32..40), 1..40),
        transfer in prop::sample::select(vec!["auto", "serialized", "layer-wise"]),
        contention: bool,
        delay_us in prop::sample::select(vec![0_u64, 50, 3_000]),
        costs in prop::sample::select(vec!["measured", "splitwise-sim"]),
    ) {
        let mut at_s = 0.0;
        let rows: Vec<_> = rows.into_iter().map(|(gap_ms, prompt, output)| {
            at_s += f64::from(gap_ms) / 1e3;
            (at_s, prompt, output)
        }).collect();
        let trace = TempFile::trace("sums", &rows);
        let delay_ns = delay_us * 1_000;
        let (report, seen) = watch(&Options {
            trace: trace.path(),
            transfer: transfer.into(),
            contention,
            costs: costs.into(),
            message_delay_s: delay_ns as f64 / 1e9,
            check: true,
            ..with_machines(Split("3xdgx-h100", "2xdgx-a100"))
        });
        for (row, request) in report.rows.iter().zip(&seen.requests) {
            let id = row.request_id;
            prop_assert_eq!(request.ends, 1, "request {}", id);
            prop_assert_eq!(request.tokens.len(), row.output_tokens as usize);
            prop_assert_eq!(&request.computes, &[row.arrival_ns + delay_ns]);
            let (start_ns, end_ns) = request.prefill.unwrap();
            let queue_ns = start_ns - request.computes[0];
            prop_assert_eq!(row.ttft_ns, delay_ns + queue_ns + (end_ns - start_ns), "request {}", id);
            prop_assert_eq!(request.tokens[0], end_ns);
            prop_assert_eq!(row.e2e_ns, request.tokens.last().unwrap() - row.arrival_ns);
            if row.output_tokens == 1 || row.prompt_machine == row.token_machine {
                continue;
            }
            let gap_ns = request.tokens[1] - request.tokens[0];
            let (landed_ns, visible_ns) = request.landed.unwrap();
            prop_assert_eq!(landed_ns, end_ns + visible_ns);
            let (decode_start_ns, decode_end_ns) = request.first_decode.unwrap();
            let pass_ns = decode_end_ns - decode_start_ns;
            let queue_ns = decode_start_ns - landed_ns;
            prop_assert_eq!(gap_ns, visible_ns + queue_ns + pass_ns, "request {}", id);
            // Nothing here fills a pass, so the token queue is no longer than the pass that runs.
            let passes = &seen.passes[row.token_machine as usize];
            prop_assert_eq!(decode_start_ns, next_pass_ns(passes, landed_ns), "request {}", id);
            let longest = request.tokens.windows(2).map(|pair| pair[1] - pair[0]).max();
            prop_assert_eq!(Some(row.tbt_max_ns), longest);
        }
    }
}
