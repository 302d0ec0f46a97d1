//! The shipped profile against the measurements it comes from; skipped where they are not at hand.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use splitcore_sim::cost::{Knot, MachineProfile, Profile, fit_file};

const SHIPPED: &str = include_str!("../profiles/dgx.toml");

/// `$SPLITCORE_DATA`, or `shared/data` beside the repository.
fn data_dir() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let dir = std::env::var_os("SPLITCORE_DATA").map_or_else(beside, PathBuf::from);
    dir.join("perf_model.csv").exists().then_some(dir)
}

/// The measurement directory, or a line that says why a test did nothing.
macro_rules! data_or_skip {
    () => {
        match data_dir() {
            Some(dir) => dir,
            None => {
                // Written past the test harness, which keeps what a test prints to itself when it passes.
                let told = "skipped: no perf_model.csv in $SPLITCORE_DATA or ../shared/data";
                let _ = writeln!(std::io::stderr(), "{told}");
                return;
            }
        }
    };
}

/// Where the comments at the top of the shipped profile end.
fn split_notice(text: &str) -> (&str, &str) {
    text.split_at(text.find("format = ").unwrap_or(text.len()))
}

#[test]
fn shipped_profile_is_what_fit_writes() {
    let csv = data_or_skip!().join("perf_model.csv");
    let (profile, _) = fit_file(csv.to_str().unwrap()).unwrap();
    let (notice, body) = split_notice(SHIPPED);
    if std::env::var_os("SPLITCORE_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/dgx.toml");
        std::fs::write(path, format!("{notice}{}", profile.to_toml())).unwrap();
        return;
    }
    assert_eq!(body, profile.to_toml(), "run again with SPLITCORE_BLESS=1 to rewrite it");
    assert_eq!(Profile::builtin(), profile, "and it reads back equal");
}

#[test]
fn shipped_profile_keeps_the_licence() {
    let licence = std::fs::read_to_string(data_or_skip!().join("perf_model.LICENSE.MIT")).unwrap();
    let commented: String =
        licence.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
    let (notice, _) = split_notice(SHIPPED);
    assert!(notice.contains(&commented), "{notice}");
}

/// Lists of the cross-check file that a profile holds, and how much rounding they went through.
const ROUNDED_MS: f64 = 1e-3 / 2.0 + 1e-9;

fn pairs(value: &Value) -> Vec<(u64, f64)> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_f64().unwrap()))
        .collect()
}

fn assert_same(key: &str, list: &str, ours: &[Knot], mut theirs: Vec<(u64, f64)>, dropped: Option<u64>) {
    theirs.retain(|&(x, _)| Some(x) != dropped);
    assert_eq!(ours.len(), theirs.len(), "{key} {list}");
    for (knot, (x, ms)) in ours.iter().zip(theirs) {
        assert_eq!(knot.x, x, "{key} {list}");
        assert!((knot.ms - ms).abs() <= ROUNDED_MS, "{key} {list} at {x}: {} against {ms}", knot.ms);
    }
}

#[test]
fn shipped_profile_agrees_with_the_independent_knots() {
    let text = std::fs::read_to_string(data_or_skip!().join("fitted_knots.json")).unwrap();
    let independent: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    let profile = Profile::builtin();
    assert_eq!(independent.len(), 12);
    assert_eq!(profile.machines().len(), 12);
    for machine in profile.machines() {
        let MachineProfile { model, hardware, tensor_parallel, .. } = machine;
        let key = format!("{model}|{hardware}|tp{tensor_parallel}");
        let lists = &independent[&key];
        let too_large = |x| (model == "llama2-70b" && *tensor_parallel == 2).then_some(x);
        for (name, ours, dropped) in [
            (
                "prompt_ms_vs_total_prompt_tokens(splitwise-sim form)",
                &machine.splitwise_sim_prompt_knots,
                too_large(32_768),
            ),
            ("token_ms_vs_prompt*batch(splitwise-sim form)", &machine.splitwise_sim_token_knots, None),
            ("prompt_ms_vs_prompt_tokens(batch1)", &machine.prompt_knots, None),
            (
                "prompt_ms_vs_total_tokens(512-token prompts batched)",
                &machine.batched_prompt_knots,
                too_large(32_768),
            ),
        ] {
            assert_same(&key, name, ours, pairs(&lists[name]), dropped);
        }
        let decode = &lists["token_2d"];
        assert_same(
            &key,
            "token_2d",
            &machine.decode_knots,
            pairs(&decode["batch_knots_ms_minus_ctx"]),
            too_large(64),
        );
        let slope = decode["ctx_coef_ms_per_ctx_token"].as_f64().unwrap();
        let relative = machine.context_ms_per_token / slope - 1.0;
        assert!(relative.abs() < 1e-12, "{key}: context slope off by {relative}");
    }
}

#[test]
fn fit_error_is_the_known_one() {
    let csv = data_or_skip!().join("perf_model.csv");
    let (_, report) = fit_file(csv.to_str().unwrap()).unwrap();
    let token: Vec<(String, f64)> = report
        .machines
        .iter()
        .filter(|fit| fit.hardware != "h100-80gb-pcap" && fit.tensor_parallel > 2)
        .map(|fit| {
            assert_eq!(fit.rows, 105);
            assert!(fit.dropped.is_empty() && !fit.context_set_to_zero);
            (format!("{} {} {}", fit.model, fit.hardware, fit.tensor_parallel), fit.error.token_mape_percent)
        })
        .collect();
    let expected = [
        ("bloom-176b a100-80gb 8", 0.76),
        ("bloom-176b h100-80gb 8", 0.96),
        ("llama2-70b a100-80gb 4", 1.75),
        ("llama2-70b a100-80gb 8", 1.06),
        ("llama2-70b h100-80gb 4", 1.24),
        ("llama2-70b h100-80gb 8", 1.77),
    ];
    assert_eq!(token.len(), expected.len());
    for ((machine, mape), (name, percent)) in token.iter().zip(expected) {
        assert_eq!(machine, name);
        assert!((mape - percent).abs() < 0.0051, "{machine}: {mape}");
    }
    let two = report.machines.iter().find(|fit| fit.tensor_parallel == 2).unwrap();
    let dropped: Vec<_> = two.dropped.iter().map(|knot| (knot.field, knot.x)).collect();
    assert_eq!(
        dropped,
        [
            ("batched_prompt_ms_by_tokens", 32_768),
            ("decode_ms_by_batch", 64),
            ("splitwise_sim_prompt_ms_by_tokens", 32_768),
        ]
    );
    assert!(report.total.token_mape_percent < 2.0 && report.total.prompt_mape_percent < 3.0, "{report}");
}
