//! Cost models against worked numbers and laws that hold for every pass.
#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;

use proptest::prelude::*;
use splitcore_sim::SimError;
use splitcore_sim::cost::{CostKind, CostModel, IdleReference, Pass, PassCost, Profile};
use splitcore_sim::machines::{Hardware, MachineKind, Model};

static BUILTIN: LazyLock<Profile> = LazyLock::new(Profile::builtin);

fn model(kind: CostKind, hardware: Hardware) -> CostModel {
    CostModel::new(kind, &BUILTIN, Model::Bloom176b, &MachineKind::whole(hardware)).unwrap()
}

/// Round figures, so that expected values can be worked out by hand.
const ROUND: &str = "
format = 'splitcore-profile'
version = 1
[[machine]]
model = 'bloom-176b'
hardware = 'a100-80gb'
tensor_parallel = 8
context_ms_per_token = 0.001
batched_prompt_tokens = 500
prompt_min_tokens = 100
prompt_max_tokens = 4000
context_max_tokens = 4000
batch_max_requests = 9
total_prompt_max_tokens = 4000
prompt_ms_by_tokens = [[100, 20], [500, 60], [1000, 100], [4000, 400]]
batched_prompt_ms_by_tokens = [[500, 60], [1000, 80.0], [4000, 200.0]]
decode_ms_by_batch = [[1, 10.0], [5, 12.0], [9, 20.0]]
splitwise_sim_prompt_ms_by_tokens = [[100, 21.0], [1000, 111.0]]
splitwise_sim_token_ms_by_tokens = [[100, 11.0], [1000, 20.0]]
";

fn round(kind: CostKind) -> CostModel {
    let profile = Profile::from_toml(ROUND, "round.toml").unwrap();
    CostModel::new(kind, &profile, Model::Bloom176b, &MachineKind::whole(Hardware::A100)).unwrap()
}

fn prompts(count: u32, each: u32) -> Pass {
    Pass {
        prompts: count,
        prompt_tokens: count * each,
        prompt_tokens_min: each,
        prompt_tokens_max: each,
        ..Pass::default()
    }
}

fn with_decodes(pass: Pass, count: u32, each: u32) -> Pass {
    Pass {
        decodes: count,
        context_tokens: u64::from(count) * u64::from(each),
        context_tokens_max: each,
        ..pass
    }
}

fn ms(cost: PassCost) -> f64 {
    cost.ns as f64 / 1e6
}

#[test]
fn measured_by_hand() {
    let cost = round(CostKind::Measured);
    let pass_ms = |pass| ms(cost.pass_ns(&pass));
    assert_eq!(pass_ms(prompts(1, 1000)), 100.0, "one prompt: its own line");
    assert_eq!(pass_ms(prompts(2, 500)), 80.0, "prompts of the measured size: weight 1");
    assert_eq!(pass_ms(prompts(2, 250)), 60.0, "no more than one such prompt together: the line of one");
    assert_eq!(pass_ms(prompts(10, 100)), 80.0, "more prompts than that: the weight stays 1");
    // Two prompts of 1000: w = (1 - 1/2) / (1 - 500/2000) = 2/3, between 200 and 120.
    assert!((pass_ms(prompts(2, 1000)) - (200.0 / 3.0 + 240.0 / 3.0)).abs() < 1e-6);
    assert_eq!(pass_ms(with_decodes(Pass::default(), 5, 400)), 14.0, "12 and 2000 tokens of context");
    assert_eq!(pass_ms(with_decodes(Pass::default(), 3, 1000)), 14.0, "between knots");
    assert_eq!(pass_ms(with_decodes(Pass::default(), 13, 0)), 28.0, "beyond, by the last segment");
    assert_eq!(cost.decode_ns(600, 0), 20_000_000 + 591 * 2_000_000, "beyond the table too");
    assert_eq!(pass_ms(with_decodes(prompts(1, 1000), 5, 400)), 104.0, "100 + 14 - 10");
    assert_eq!(pass_ms(with_decodes(prompts(1, 1000), 1, 0)), 100.0, "one decode without context is free");
    assert_eq!(cost.pass_ns(&Pass::default()), PassCost { ns: 1, stage_ns: 1, out_of_range: false });
}

#[test]
fn splitwise_sim_by_hand() {
    let cost = round(CostKind::SplitwiseSim);
    let pass_ms = |pass| ms(cost.pass_ns(&pass));
    assert_eq!(pass_ms(prompts(2, 500)), 111.0);
    assert_eq!(pass_ms(prompts(1, 1000)), 111.0, "only the total counts");
    assert_eq!(pass_ms(with_decodes(Pass::default(), 50, 4000)), 10.5, "only the number counts");
    // 1.1 * f_p(1000 + 10)
    assert!((pass_ms(with_decodes(prompts(1, 1000), 10, 4000)) - 1.1 * 112.0).abs() < 1e-6);
    assert_eq!((cost.prefill_ns(100), cost.decode_ns(100, 7)), (21_000_000, 11_000_000));
}

#[test]
fn what_counts_as_outside() {
    let outside = |kind: CostKind, pass: Pass| model(kind, Hardware::H100).pass_ns(&pass).out_of_range;
    let decode = |count, each| with_decodes(Pass::default(), count, each);
    for (pass, measured, splitwise_sim) in [
        (prompts(1, 128), false, false),
        (prompts(1, 127), true, false),
        (prompts(1, 8_192), false, false),
        (prompts(1, 8_193), true, false),
        (prompts(4, 8_192), false, false),
        (Pass { prompt_tokens: 32_769, ..prompts(4, 8_192) }, false, true),
        (with_decodes(prompts(4, 8_192), 1, 8_192), false, true),
        (decode(64, 8_192), false, false),
        (decode(65, 10), true, false),
        (decode(1, 8_193), true, false),
        (Pass { prompt_tokens_min: 100, ..prompts(3, 600) }, true, false),
        (Pass::default(), false, false),
    ] {
        assert_eq!(outside(CostKind::Measured, pass), measured, "{pass:?}");
        assert_eq!(outside(CostKind::SplitwiseSim, pass), splitwise_sim, "{pass:?}");
    }
}

/// `seconds`, give or take `passes` roundings and the last printed digit.
fn assert_seconds(ns: u64, seconds: f64, passes: u64) {
    let apart = (ns as f64 / 1e9 - seconds).abs();
    assert!(apart <= passes as f64 * 0.5e-9 + 0.1e-9, "{ns} ns against {seconds} s");
}

#[test]
fn three_golden_requests() {
    let h100 = model(CostKind::SplitwiseSim, Hardware::H100);
    let a100 = model(CostKind::SplitwiseSim, Hardware::A100);
    for (prompt, output, ttft, e2e_h100, transfer, e2e_a100) in [
        (4096, 32, 0.649_598_277_0, 1.744_742_961_0, 0.076_562_5, 2.199_226_282_6),
        (2048, 8, 0.251_964_009_5, 0.499_254_744_6, 0.038_281_25, 0.622_872_954_3),
        (2048, 16, 0.251_964_009_5, 0.781_872_727_5, 0.038_281_25, 1.003_018_891_3),
    ] {
        assert_seconds(h100.prefill_ns(prompt), ttft, 1);
        let decodes = output - 1;
        assert_seconds(h100.prefill_ns(prompt) + decodes * h100.decode_ns(1, 0), e2e_h100, output);
        let split = h100.prefill_ns(prompt) + decodes * a100.decode_ns(1, 0);
        assert_seconds(split, e2e_a100 - transfer, output);
    }
}

#[test]
fn knots_come_back_in_whole_nanoseconds() {
    let profile = Profile::builtin();
    for (model, tps) in [(Model::Bloom176b, &[8][..]), (Model::Llama2_70b, &[2, 4, 8])] {
        for (hardware, &tp) in Hardware::ALL.into_iter().flat_map(|hw| tps.iter().map(move |tp| (hw, tp))) {
            let kind = MachineKind::new(hardware, tp, 1);
            let times = profile.find(model, &kind).unwrap();
            let ns = |ms: f64| (ms * 1e6 + 0.5) as u64;
            let measured = CostModel::new(CostKind::Measured, &profile, model, &kind).unwrap();
            for knot in &times.prompt_knots {
                assert_eq!(measured.prefill_ns(knot.x as u32), ns(knot.ms));
            }
            for knot in &times.decode_knots {
                assert_eq!(measured.decode_ns(knot.x as u32, 0), ns(knot.ms));
                let with_context = knot.ms + times.context_ms_per_token * 576.0 * knot.x as f64;
                let apart = measured.decode_ns(knot.x as u32, 576 * knot.x).abs_diff(ns(with_context));
                assert!(apart <= 1, "{model} {kind} batch {}", knot.x);
            }
            for knot in times.batched_prompt_knots.iter().skip(1) {
                let count = (knot.x / 512) as u32;
                assert_eq!(measured.pass_ns(&prompts(count, 512)).ns, ns(knot.ms), "{model} {kind} {count}");
            }
            let splitwise_sim = CostModel::new(CostKind::SplitwiseSim, &profile, model, &kind).unwrap();
            for knot in &times.splitwise_sim_prompt_knots {
                assert_eq!(splitwise_sim.prefill_ns(knot.x as u32), ns(knot.ms));
            }
        }
    }
}

#[test]
fn bloom_at_the_published_figures() {
    // Decode of 512-token prompts with 128 tokens of output, and prompts alone, in ms to a tenth.
    let tenth = |ns: u64| (ns as f64 / 1e5).round() / 10.0;
    for (hardware, by_batch, prompt_2048) in [
        (Hardware::A100, [48.8, 50.0, 51.0, 53.0, 57.3, 65.4, 96.6], 540.4),
        (Hardware::H100, [36.1, 36.9, 38.1, 38.1, 40.6, 45.8, 63.8], 253.1),
    ] {
        let cost = model(CostKind::Measured, hardware);
        for (expected, power) in by_batch.into_iter().zip(0..) {
            let batch = 1 << power;
            assert_eq!(tenth(cost.decode_ns(batch, u64::from(batch) * 576)), expected, "{hardware} {batch}");
        }
        assert_eq!(tenth(cost.prefill_ns(2048)), prompt_2048);
    }
}

#[test]
fn times_grow_with_work() {
    for kind in CostKind::PROFILED {
        for hardware in Hardware::ALL {
            let cost = model(kind, hardware);
            for tokens in (128..40_000).step_by(61) {
                assert!(
                    cost.prefill_ns(tokens) <= cost.prefill_ns(tokens + 61),
                    "{kind} {hardware} {tokens}"
                );
            }
            for batch in 1..700 {
                // Without their context, eight requests on an H100 measured faster than four.
                let full = |batch: u32| cost.decode_ns(batch, u64::from(batch) * 1_000);
                assert!(full(batch) <= full(batch + 1), "{kind} {hardware} {batch}");
                assert!(cost.decode_ns(batch, 1_000) <= cost.decode_ns(batch, 100_000));
            }
        }
    }
}

#[test]
fn idle_reference() {
    let profile = Profile::from_toml(ROUND, "round.toml").unwrap();
    let measured = IdleReference::new(CostKind::Measured, &profile, Model::Bloom176b).unwrap();
    assert_eq!(measured.ttft_ns(1000), 100_000_000);
    assert_eq!(measured.tbt_ns(1000, 201), 11_100_500, "half a token of context counts");
    assert_eq!(measured.e2e_ns(1000, 201), 100_000_000 + 200 * 11_100_500);
    assert_eq!((measured.e2e_ns(1000, 1), measured.e2e_ns(1000, 0)), (100_000_000, 100_000_000));
    let splitwise_sim = IdleReference::new(CostKind::SplitwiseSim, &profile, Model::Bloom176b).unwrap();
    assert_eq!(splitwise_sim.ttft_ns(1000), 111_000_000);
    assert_eq!(splitwise_sim.tbt_ns(1000, 201), 20_000_000, "keyed by the prompt size");
    assert_eq!(splitwise_sim.e2e_ns(1000, 11), 311_000_000);
}

#[test]
fn an_unmeasured_pairing_names_both() {
    let kind = MachineKind::new(Hardware::H100, 4, 1);
    let error = CostModel::new(CostKind::Measured, &Profile::builtin(), Model::Bloom176b, &kind).unwrap_err();
    assert!(matches!(error, SimError::Config { option: "model", .. }));
    let text = error.to_string();
    assert!(text.contains("bloom-176b on dgx-h100:tp4"), "{text}");
    assert!(text.contains("a100-80gb:tp8, h100-80gb:tp8, h100-80gb-pcap:tp8"), "{text}");
}

fn any_pass() -> impl Strategy<Value = Pass> {
    let prompts = (0u32..600, 1u32..40_000, 1u32..40_000);
    let decodes = (0u32..2_000, 1u32..200_000);
    (prompts, decodes).prop_map(|((count, a, b), (decodes, each))| {
        let each_prompt = u32::midpoint(a, b);
        let prompts = if count == 0 { Pass::default() } else { prompts_between(count, each_prompt, a, b) };
        if decodes == 0 { prompts } else { with_decodes(prompts, decodes, each) }
    })
}

fn prompts_between(count: u32, each: u32, a: u32, b: u32) -> Pass {
    Pass { prompt_tokens_min: a.min(b), prompt_tokens_max: a.max(b), ..prompts(count, each) }
}

fn any_machine() -> impl Strategy<Value = (Model, MachineKind)> {
    let pairs = Model::ALL.into_iter().flat_map(|model| {
        Hardware::ALL.into_iter().flat_map(move |hardware| {
            model.measured_tp().iter().map(move |&tp| (model, MachineKind::new(hardware, tp, 1)))
        })
    });
    prop::sample::select(pairs.collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.saturating_mul(2)))]

    #[test]
    fn every_pass_takes_time_and_always_the_same(
        (which, machine) in any_machine(),
        kind in prop::sample::select(CostKind::PROFILED.to_vec()),
        pass in any_pass(),
    ) {
        let new = || CostModel::new(kind, &BUILTIN, which, &machine).unwrap();
        let (cost, again) = (new(), new().clone());
        let got = cost.pass_ns(&pass);
        prop_assert!(got.ns >= 1);
        // A year: nothing ran away to infinity.
        prop_assert!(got.ns < 365 * 24 * 3_600 * 1_000_000_000);
        prop_assert_eq!(got, again.pass_ns(&pass));
    }

    #[test]
    fn inside_the_checked_sizes_no_time_needs_clamping(
        (which, machine) in any_machine(),
        kind in prop::sample::select(CostKind::PROFILED.to_vec()),
        prompt in 1u32..=40_000,
        batch in 1u32..=512,
    ) {
        let cost = CostModel::new(kind, &BUILTIN, which, &machine).unwrap();
        prop_assert!(cost.prefill_ns(prompt) > 1_000_000);
        prop_assert!(cost.decode_ns(batch, 0) > 1_000_000);
        prop_assert!(cost.pass_ns(&with_decodes(prompts(1, prompt), batch, 1)).ns > 1_000_000);
    }

    #[test]
    fn shortcuts_equal_the_pass(
        (which, machine) in any_machine(),
        kind in prop::sample::select(CostKind::PROFILED.to_vec()),
        prompt in 1u32..=100_000,
        (batch, each) in (1u32..=1_000, 1u32..=10_000),
    ) {
        let cost = CostModel::new(kind, &BUILTIN, which, &machine).unwrap();
        prop_assert_eq!(cost.pass_ns(&prompts(1, prompt)).ns, cost.prefill_ns(prompt));
        let decode = with_decodes(Pass::default(), batch, each);
        prop_assert_eq!(cost.pass_ns(&decode).ns, cost.decode_ns(batch, decode.context_tokens));
    }

    #[test]
    fn a_batch_of_prompts_costs_between_its_two_lines(count in 2u32..40, each in 13u32..4_000) {
        let cost = round(CostKind::Measured);
        let few = cost.prefill_ns(count * each);
        let got = cost.pass_ns(&prompts(count, each)).ns;
        let total = count * each;
        let batched = cost.pass_ns(&Pass { prompts: total, ..prompts(1, total) }).ns;
        prop_assert!(got <= few.max(batched) && got >= few.min(batched), "{} {} {}", few, got, batched);
    }
}
