//! The built-in tables and the readers against the real traces.
//!
//! The traces are not part of the project: they are looked for in `$SPLITCORE_DATA`, then in `../shared/data` beside
//! the repository. Without them these tests say so and pass.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use std::path::PathBuf;

use common::data;
use splitcore_sim::workload::{
    Arrivals, Reading, Sampling, SizeTable, Source, TraceRequest, Workload, WorkloadSpec, read_trace,
};

const CONV: &str = "AzureLLMInferenceTrace_conv.csv";
const CODE: &str = "AzureLLMInferenceTrace_code.csv";

fn trace(name: &str) -> Option<Vec<TraceRequest>> {
    data(name).map(|path| read_trace(&path, &Reading::default()).unwrap().requests)
}

fn spec(source: Source, sampling: Sampling, seed: u64) -> WorkloadSpec {
    WorkloadSpec { source, sampling, seed, rate_rps: Some(70.0), ..Default::default() }
}

fn drawn(source: Source, sampling: Sampling, count: usize) -> Vec<TraceRequest> {
    let spec = WorkloadSpec { requests: Some(count), ..spec(source, sampling, 11) };
    spec.build().unwrap().requests
}

fn prompts(requests: &[TraceRequest]) -> Vec<f64> {
    requests.iter().map(|request| f64::from(request.prompt_tokens)).collect()
}

fn outputs(requests: &[TraceRequest]) -> Vec<f64> {
    requests.iter().map(|request| f64::from(request.output_tokens)).collect()
}

fn gaps_s(requests: &[TraceRequest]) -> Vec<f64> {
    requests.windows(2).map(|pair| (pair[1].arrival_ns - pair[0].arrival_ns) as f64 / 1e9).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Largest distance between two distribution functions (Kolmogorov and Smirnov).
fn ks(left: &[f64], right: &[f64]) -> f64 {
    let (mut left, mut right) = (left.to_vec(), right.to_vec());
    left.sort_by(f64::total_cmp);
    right.sort_by(f64::total_cmp);
    let share =
        |sorted: &[f64], value: f64| sorted.partition_point(|&v| v <= value) as f64 / sorted.len() as f64;
    let distance = |&value: &f64| (share(&left, value) - share(&right, value)).abs();
    left.iter().chain(&right).map(distance).fold(0.0, f64::max)
}

/// Mean output of each twentieth by prompt.
fn output_by_prompt(requests: &[TraceRequest]) -> Vec<f64> {
    let mut sorted = requests.to_vec();
    sorted.sort_by_key(|request| request.prompt_tokens);
    let edge = |bin: usize| bin * sorted.len() / 20;
    (0..20).map(|bin| mean(&outputs(&sorted[edge(bin)..edge(bin + 1)]))).collect()
}

/// Evenly spaced draws of a table: its distribution without the noise of a generator.
fn evenly(draw: impl Fn(f64) -> u32) -> Vec<f64> {
    const COUNT: u32 = 100_000;
    (0..COUNT).map(|i| f64::from(draw((f64::from(i) + 0.5) / f64::from(COUNT)))).collect()
}

fn table(name: &str) -> SizeTable {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data").join(name);
    SizeTable::parse(name, &std::fs::read_to_string(path).unwrap()).unwrap()
}

#[track_caller]
fn assert_near(got: f64, want: f64, relative: f64) {
    assert!((got / want - 1.0).abs() <= relative, "{got} is not within {relative} of {want}");
}

#[test]
fn committed_tables_are_those_of_the_traces() {
    for (name, file) in [("azure-conv.txt", CONV), ("azure-code.txt", CODE)] {
        let Some(trace) = trace(file) else { return };
        let rows: Vec<_> = trace.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect();
        assert!(SizeTable::from_rows(&rows).unwrap() == table(name), "{name}: run the make_tables example");
    }
}

#[test]
fn table_marginals_keep_mean_and_distribution() {
    for (name, file) in [("azure-conv.txt", CONV), ("azure-code.txt", CODE)] {
        let Some(trace) = trace(file) else { return };
        let table = table(name);
        let drawn_prompts = evenly(|u| table.prompt_tokens(u));
        let drawn_outputs = evenly(|u| table.output_tokens(u));
        for (drawn, real) in [(drawn_prompts, prompts(&trace)), (drawn_outputs, outputs(&trace))] {
            assert_near(mean(&drawn), mean(&real), 0.0044);
            assert!(ks(&drawn, &real) <= 0.007, "{name}: {}", ks(&drawn, &real));
        }
    }
}

#[test]
fn table_outputs_by_prompt_keep_mean_and_distribution() {
    for (name, file) in [("azure-conv.txt", CONV), ("azure-code.txt", CODE)] {
        let Some(trace) = trace(file) else { return };
        let table = table(name);
        let mut all = Vec::new();
        for (bin, real) in (0..20).zip(output_by_prompt(&trace)) {
            let prompt_u = (f64::from(bin) + 0.5) / 20.0;
            let drawn = evenly(|u| table.output_tokens_given(prompt_u, u));
            assert_near(mean(&drawn), real, 0.004);
            all.extend(drawn.into_iter().step_by(10));
        }
        assert_near(mean(&all), mean(&outputs(&trace)), 0.001);
        assert!(ks(&all, &outputs(&trace)) <= 0.003, "{name}: {}", ks(&all, &outputs(&trace)));
    }
}

/// Without the traces: the published means by prompt twentieth.
#[test]
fn conversation_output_depends_on_the_prompt_as_published() {
    let published =
        [135, 168, 93, 76, 96, 104, 107, 105, 252, 400, 408, 416, 415, 410, 392, 268, 135, 94, 76, 72];
    let got = output_by_prompt(&drawn(Source::AzureConv, Sampling::Joint, 400_000));
    for (got, want) in got.into_iter().zip(published) {
        assert_near(got, f64::from(want), 0.025);
    }
    let apart = output_by_prompt(&drawn(Source::AzureConv, Sampling::Independent, 400_000));
    assert!(apart.iter().all(|mean| (205.0..217.0).contains(mean)), "{apart:?}");
}

#[test]
fn drawn_sizes_keep_the_distribution_of_the_traces() {
    for (source, file) in [(Source::AzureConv, CONV), (Source::AzureCode, CODE)] {
        let Some(trace) = trace(file) else { return };
        for sampling in [Sampling::Joint, Sampling::Independent] {
            let drawn = drawn(source.clone(), sampling, 200_000);
            assert!(ks(&prompts(&drawn), &prompts(&trace)) <= 0.01);
            assert!(ks(&outputs(&drawn), &outputs(&trace)) <= 0.01);
            assert_near(mean(&prompts(&drawn)), mean(&prompts(&trace)), 0.01);
            assert_near(mean(&outputs(&drawn)), mean(&outputs(&trace)), 0.015);
        }
    }
}

#[test]
fn azure_files_parse_whole() {
    for (file, rows, span_s) in [(CODE, 8_819, 3435.9), (CONV, 19_366, 3501.7)] {
        let Some(trace) = trace(file) else { return };
        assert_eq!((trace.len(), trace[0].arrival_ns), (rows, 0));
        let span_ns = trace[rows - 1].arrival_ns;
        assert!((span_ns as f64 / 1e9 - span_s).abs() < 0.05, "{span_ns}");
        // The dates have seven decimals.
        assert!(trace.iter().all(|request| request.arrival_ns % 100 == 0));
    }
}

#[test]
fn public_simulator_files_parse_whole() {
    for (file, rows) in [
        ("rr_conv_10_60s.csv", 595),
        ("rr_code_10_60s.csv", 595),
        ("rr_conv_70_300s.csv", 21_100),
        ("test_trace.csv", 3),
    ] {
        let Some(trace) = trace(file) else { return };
        assert_eq!((trace.len(), trace[0].arrival_ns), (rows, 0), "{file}");
    }
}

#[test]
fn mooncake_files_parse_whole() {
    let files = ["mooncake_conversation_trace.jsonl", "mooncake_synthetic_trace.jsonl"];
    let [Some(conversation), Some(synthetic)] = files.map(trace) else { return };
    assert_eq!((conversation.len(), synthetic.len()), (12_031, 3_993));
    let equal = conversation.windows(2).filter(|pair| pair[0].arrival_ns == pair[1].arrival_ns).count();
    assert_eq!(equal, 10_851);
    let single = conversation.iter().chain(&synthetic).filter(|request| request.output_tokens == 1).count();
    assert_eq!(single, 76);
}

#[test]
fn a_real_file_stretches_to_a_rate() {
    let Some(path) = data(CONV) else { return };
    let spec = spec(Source::File(path), Sampling::Joint, 0);
    let requests = spec.build().unwrap().requests;
    let span_ns = requests[requests.len() - 1].arrival_ns - requests[0].arrival_ns;
    assert_eq!(span_ns, (19_365.0 * 1e9 / 70.0_f64).round() as u64);
}

/// The public traces need not be drawn again: the files are read, and our own draws agree with them.
#[test]
fn independent_poisson_draws_agree_with_the_public_simulator_trace() {
    let Some(published) = trace("rr_conv_70_300s.csv") else { return };
    let Workload { requests, .. } = spec(Source::AzureConv, Sampling::Independent, 3).build().unwrap();
    assert_near(requests.len() as f64, published.len() as f64, 0.02);
    // Two samples of 21,000 differ by 0.016 at most in 99 of 100 cases, and the table adds its 0.007.
    assert!(ks(&prompts(&requests), &prompts(&published)) < 0.023);
    assert!(ks(&outputs(&requests), &outputs(&published)) < 0.023);
    assert!(ks(&gaps_s(&requests), &gaps_s(&published)) < 0.016);
}

#[test]
fn generated_arrivals_may_take_the_rows_of_a_real_file() {
    let (Some(path), Some(trace)) = (data(CODE), trace(CODE)) else { return };
    let file = spec(Source::File(path), Sampling::Joint, 5);
    let spec = WorkloadSpec { arrivals: Some(Arrivals::Poisson), requests: Some(100_000), ..file };
    let requests = spec.build().unwrap().requests;
    assert!(ks(&outputs(&requests), &outputs(&trace)) <= 0.01);
    assert_near(mean(&outputs(&requests)), mean(&outputs(&trace)), 0.015);
}
