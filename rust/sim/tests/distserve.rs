//! DistServe's latency model against its published values, and machines of a user's own.
#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod common;

use common::Machines::{Split, Unsplit};
use common::with_machines;
use proptest::prelude::*;
use splitcore_sim::cost::{CostKind, CostModel, IdleReference, Pass, Profile};
use splitcore_sim::machines::{
    GPU_MEMORY_BYTES, Hardware, MachineKind, MachineType, Model, Weights, kv_capacity_tokens,
};
use splitcore_sim::{Options, SimError, simulate};

fn cost(kind: CostKind, model: Model, tp: u32, pp: u32) -> CostModel {
    let machine = MachineKind::new(Hardware::A100, tp, pp);
    CostModel::new(kind, &Profile::builtin(), model, &machine).unwrap()
}

fn prompts(each: &[u32]) -> Pass {
    Pass {
        prompts: each.len() as u32,
        prompt_tokens: each.iter().sum(),
        prompt_tokens_squared: each.iter().map(|&tokens| u64::from(tokens).pow(2)).sum(),
        prompt_tokens_min: each.iter().copied().min().unwrap_or(0),
        prompt_tokens_max: each.iter().copied().max().unwrap_or(0),
        ..Pass::default()
    }
}

fn decodes(count: u32, each: u32) -> Pass {
    let context_tokens = u64::from(count) * u64::from(each);
    Pass { decodes: count, context_tokens, context_tokens_max: each, ..Pass::default() }
}

/// As printed: milliseconds with three digits.
fn printed(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

#[test]
fn published_spot_values() {
    let rows = [
        (Model::Opt13b, 1, ["73.149", "257.692", "20.294", "42.943", "65.428"]),
        (Model::Opt66b, 4, ["110.114", "375.297", "31.055", "49.620", "69.967"]),
    ];
    for (model, tp, values) in rows {
        let cost = cost(CostKind::DistServe, model, tp, 1);
        let passes =
            [prompts(&[512]), prompts(&[2048]), decodes(1, 512), decodes(64, 512), decodes(128, 512)];
        assert_eq!(passes.map(|pass| printed(cost.pass_ns(&pass).ns)), values, "{model}");
        assert_eq!(cost.prefill_ns(512), cost.pass_ns(&passes[0]).ns);
        assert_eq!(cost.decode_ns(64, 64 * 512), cost.pass_ns(&passes[3]).ns);
    }
}

#[test]
fn batches_of_prompts_count_their_squares() {
    let cost = cost(CostKind::DistServe, Model::Opt13b, 1, 1);
    // 18.1025 + 0.101912 * 800 + 7.12226e-6 * (500 * 500 + 300 * 300) + 1
    assert_eq!(printed(cost.pass_ns(&prompts(&[500, 300])).ns), "103.054");
    assert!(cost.pass_ns(&prompts(&[800])).ns > cost.pass_ns(&prompts(&[500, 300])).ns);
}

#[test]
fn decode_jumps_at_95_requests_as_published() {
    let cost = cost(CostKind::DistServe, Model::Opt13b, 1, 1);
    // 19.9347 + 94 * 0.0385070 and 7.16619 + 95 * 0.158311: one more request makes the pass shorter.
    assert_eq!([94, 95].map(|batch| printed(cost.decode_ns(batch, 0))), ["23.554", "22.206"]);
}

#[test]
fn a_mixed_pass_reads_the_weights_once() {
    let cost = cost(CostKind::DistServe, Model::Opt66b, 4, 1);
    let both = Pass { prompts: 1, decodes: 10, context_tokens: 5120, ..prompts(&[512]) };
    let apart = cost.prefill_ns(512) + cost.decode_ns(10, 5120);
    assert!(cost.pass_ns(&both).ns.abs_diff(apart - cost.decode_ns(1, 0)) <= 2);
}

#[test]
fn stages_share_a_pass() {
    let [one, two] = [1, 2].map(|pp| cost(CostKind::DistServe, Model::Opt66b, 4, pp));
    for pass in [decodes(1, 512), decodes(128, 512)] {
        let (one, two) = (one.pass_ns(&pass), two.pass_ns(&pass));
        assert_eq!(one.ns, one.stage_ns);
        assert_eq!(two.ns, 2 * two.stage_ns);
        assert!(two.ns.abs_diff(one.ns) <= 1);
    }
    // Each stage of a prefill takes half, and what starts it twice.
    let (one, two) = (one.pass_ns(&prompts(&[512])), two.pass_ns(&prompts(&[512])));
    assert!(two.stage_ns.abs_diff((one.ns - 1_000_000) / 2 + 2_000_000) <= 1);
    assert_eq!(two.ns, 2 * two.stage_ns);
}

#[test]
fn what_the_first_stage_takes_beyond_is_an_option() {
    for (pp, pass) in [(1, prompts(&[512])), (2, prompts(&[512])), (2, decodes(8, 512))] {
        let tokens = u64::from(pass.prompt_tokens) + pass.context_tokens;
        let [without, with] = [CostKind::DistServe, CostKind::DistServeOverhead]
            .map(|kind| cost(kind, Model::Opt13b, 2, pp).pass_ns(&pass));
        let overhead_ns = 2_000_000 + 100 * tokens;
        assert_eq!((with.ns, with.stage_ns), (without.ns + overhead_ns, without.stage_ns + overhead_ns));
    }
}

#[test]
fn the_baseline_has_its_own_coefficients() {
    let vllm = |model, tp| cost(CostKind::DistServeVllm, model, tp, 1);
    // 22.0522 + 0.140509 * 512 + 8.07658e-6 * 512^2 + 1, and 39.5818 + 6.94572e-4 * 512 + 0.135809
    assert_eq!(printed(vllm(Model::Opt13b, 1).prefill_ns(512)), "97.110");
    assert_eq!(printed(vllm(Model::Opt66b, 4).decode_ns(1, 512)), "40.073");
}

#[test]
fn what_has_no_times_says_what_has() {
    let told = |kind, model, hardware: Hardware, tp| {
        let machine = MachineKind::new(hardware, tp, 1);
        let error = CostModel::new(kind, &Profile::builtin(), model, &machine).unwrap_err();
        assert!(matches!(error, SimError::Config { option: "model", .. }));
        error.to_string()
    };
    for (text, why) in [
        (
            told(CostKind::DistServe, Model::Bloom176b, Hardware::A100, 8),
            "opt-13b or opt-66b under these costs",
        ),
        (told(CostKind::DistServe, Model::Opt175b, Hardware::A100, 8), "of which no times are published"),
        (told(CostKind::DistServe, Model::Opt13b, Hardware::H100, 1), "a machine of a100-80gb GPUs"),
        (
            told(CostKind::DistServe, Model::Opt13b, Hardware::A100, 8),
            "there is a100-80gb:tp1, a100-80gb:tp2",
        ),
        (told(CostKind::DistServeVllm, Model::Opt13b, Hardware::A100, 2), "there is a100-80gb:tp1)"),
        (told(CostKind::Measured, Model::Opt13b, Hardware::A100, 1), "costs `distserve`"),
    ] {
        assert!(text.contains(why), "{text}");
    }
    let error = IdleReference::new(CostKind::DistServe, &Profile::builtin(), Model::Opt175b).unwrap_err();
    assert!(error.to_string().contains("no times are published"), "{error}");
}

#[test]
fn slowdowns_are_against_the_largest_size_of_the_table() {
    for (model, tp) in [(Model::Opt13b, 4), (Model::Opt66b, 8)] {
        for kind in [CostKind::DistServe, CostKind::DistServeOverhead] {
            let reference = IdleReference::new(kind, &Profile::builtin(), model).unwrap();
            let cost = cost(kind, model, tp, 1);
            assert_eq!(reference.ttft_ns(700), cost.prefill_ns(700));
            assert_eq!(reference.tbt_ns(700, 200), cost.decode_ns(1, 800));
            let sum = cost.prefill_ns(700) + 199 * cost.decode_ns(1, 800);
            assert!(reference.e2e_ns(700, 200).abs_diff(sum) <= 200);
        }
    }
}

#[test]
fn the_clusters_table_is_cut_from_the_formulas() {
    for kind in [CostKind::DistServe, CostKind::DistServeOverhead, CostKind::DistServeVllm] {
        let cost = cost(kind, Model::Opt66b, 4, 1);
        let table = cost.table(2048).unwrap();
        for prompt in [1, 256, 512, 1024, 2048, 4096, 65_536] {
            assert_eq!(table.prefill_ns(u64::from(prompt)), cost.prefill_ns(prompt));
        }
        for prompt in [300, 700, 1500, 3000] {
            let (told, true_ns) = (table.prefill_ns(u64::from(prompt)), cost.prefill_ns(prompt));
            assert!(told >= true_ns && told - true_ns < true_ns / 50, "{prompt}: {told} for {true_ns}");
        }
        for batch in [1, 2, 50, 94, 95, 96, 300, 512] {
            assert!(table.decode_ns(batch, 0).abs_diff(cost.decode_ns(batch, 0)) <= 4, "{batch}");
            assert!(table.decode_ns(batch, 100_000) + 100 >= cost.decode_ns(batch, 100_000), "{batch}");
        }
    }
}

fn opt(machines: common::Machines) -> Options {
    Options {
        model: "opt-13b".into(),
        costs: "distserve".into(),
        rate: Some(2.0),
        requests: Some(100),
        check: true,
        ..with_machines(machines)
    }
}

#[test]
fn a_run_needs_no_profile() {
    let report = simulate(&opt(Split("2xdgx-a100:tp2", "dgx-a100:tp1")), &mut |_, _| true).unwrap();
    assert_eq!(report.summary.requests.completed, 100);
    assert_eq!(report.summary.cost_model, "distserve");
    assert_eq!(report.summary.model, "opt-13b");
    let refused = Options { model: "opt-66b".into(), ..opt(Unsplit("dgx-a100:tp1")) };
    assert!(matches!(simulate(&refused, &mut |_, _| true), Err(SimError::Config { option: "model", .. })));
}

#[test]
fn a_users_machine_runs_by_its_own_figures() {
    let own = MachineType {
        gpu_memory_bytes: 2 * GPU_MEMORY_BYTES,
        prefill_factor: 0.5,
        decode_factor: 0.25,
        ..MachineType::named_like("fast", Hardware::H100)
    };
    let machine = MachineKind::whole(own.clone());
    let base = MachineKind::whole(Hardware::H100);
    let room = |kind| kv_capacity_tokens(Model::Bloom176b, kind, Weights::Measured).unwrap();
    assert_eq!(room(&machine) - room(&base), base.memory_bytes() / Model::Bloom176b.kv_bytes_per_token());
    for kind in CostKind::PROFILED {
        let of = |machine| CostModel::new(kind, &Profile::builtin(), Model::Bloom176b, machine).unwrap();
        let (fast, plain) = (of(&machine), of(&base));
        assert!(fast.prefill_ns(2000).abs_diff(plain.prefill_ns(2000) / 2) <= 1);
        assert!(fast.decode_ns(20, 20_000).abs_diff(plain.decode_ns(20, 20_000) / 4) <= 1);
        assert!(fast.decode_ns(600, 20_000).abs_diff(plain.decode_ns(600, 20_000) / 4) <= 1);
        let (told, plainly) = (fast.table(2048).unwrap(), plain.table(2048).unwrap());
        assert!(told.prefill_ns(2000).abs_diff(plainly.prefill_ns(2000) / 2) <= 1);
        assert!(told.decode_ns(20, 20_000).abs_diff(plainly.decode_ns(20, 20_000) / 4) <= 20);
    }
    let run = |machines, machine_types| {
        let options = Options {
            rate: Some(2.0),
            requests: Some(50),
            machine_types,
            ..with_machines(Unsplit(machines))
        };
        simulate(&options, &mut |_, _| true).unwrap().summary.duration_s
    };
    assert!(run("fast", vec![own]) < run("dgx-h100", Vec::new()));
}

#[test]
fn own_types_travel_with_the_options() {
    let own = MachineType::named_like("own", Hardware::A100);
    let options = Options { machine_types: vec![own.clone()], ..opt(Unsplit("own:tp4:pp2")) };
    let sent = serde_json::to_string(&options).unwrap();
    let received: Options = serde_json::from_str(&sent).unwrap();
    assert_eq!(received, options);
    let report = simulate(&received, &mut |_, _| true).unwrap();
    assert_eq!(report.summary.requests.completed, 100);
    let refused = Options { machine_types: vec![own.clone(), own], ..options };
    let error = simulate(&refused, &mut |_, _| true).unwrap_err().to_string();
    assert!(error.starts_with("machine_types: expected each name once"), "{error}");
}

proptest! {
    /// More work never takes less, but at the published jump; stages never take longer than the whole.
    #[test]
    fn passes_grow(
        tp in prop::sample::select(vec![2_u32, 3, 4, 8]),
        pp in 1_u32..=4,
        tokens in prop::collection::vec(1_u32..3000, 1..6),
        batch in 1_u32..600,
        context in 1_u32..3000,
    ) {
        let cost = cost(CostKind::DistServe, Model::Opt66b, tp, pp);
        let (prefill, decode) = (prompts(&tokens), decodes(batch, context));
        let both = Pass { decodes: batch, context_tokens: decode.context_tokens, ..prefill };
        let [prefilled, decoded, mixed] = [prefill, decode, both].map(|pass| cost.pass_ns(&pass));
        prop_assert!(mixed.ns >= prefilled.ns);
        prop_assert!(cost.pass_ns(&decodes(batch, context + 1)).ns > decoded.ns);
        if batch != 94 {
            prop_assert!(cost.pass_ns(&decodes(batch + 1, context)).ns > decoded.ns);
        }
        let mut longer = tokens.clone();
        longer[0] += 1;
        prop_assert!(cost.pass_ns(&prompts(&longer)).ns > prefilled.ns);
        for pass in [prefilled, decoded, mixed] {
            prop_assert_eq!(pass.ns, pass.stage_ns * u64::from(pp));
        }
    }
}
