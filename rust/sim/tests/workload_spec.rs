//! What a spec makes, and what a wrong one is told.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

use std::fmt::Write as _;
use std::path::PathBuf;

use proptest::prelude::*;
use splitcore_sim::SimError;
use splitcore_sim::workload::{
    ARRIVAL_MAX_NS, Arrivals, REQUESTS_MAX, Sampling, Source, Workload, WorkloadSpec,
};

/// Five requests: first at 2 s, last at 10 s, two at one time.
const TRACE: [(f64, u32, u32); 5] = [(2.0, 10, 1), (3.0, 20, 2), (3.0, 30, 3), (7.5, 40, 4), (10.0, 50, 5)];

/// Writes rows of (seconds, prompt, output) under this name, which is to be used once.
fn file(name: &str, rows: &[(f64, u32, u32)]) -> Source {
    let mut content = "arrival_timestamp,batch_size,prompt_size,token_size\n".to_owned();
    for (seconds, prompt, output) in rows {
        writeln!(content, "{seconds},1,{prompt},{output}").unwrap();
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("spec-{name}.csv"));
    std::fs::write(&path, content).unwrap();
    Source::File(path)
}

fn built_in() -> WorkloadSpec {
    WorkloadSpec { rate_rps: Some(10.0), ..Default::default() }
}

fn arrivals_s(workload: &Workload) -> Vec<f64> {
    workload.requests.iter().map(|request| request.arrival_ns as f64 / 1e9).collect()
}

/// Asserts an error about this option whose whole message is this.
#[track_caller]
fn assert_config_error(spec: &WorkloadSpec, message: &str) {
    let error = spec.build().unwrap_err();
    assert!(matches!(error, SimError::Config { .. }), "{error}");
    assert_eq!(error.to_string(), message);
}

#[track_caller]
fn assert_near(got: f64, want: f64, relative: f64) {
    assert!((got / want - 1.0).abs() <= relative, "{got} is not within {relative} of {want}");
}

/// Mean gap, its coefficient of variation, and the dispersion (variance over mean) of arrivals per second.
fn gap_statistics(workload: &Workload) -> (f64, f64, f64) {
    let times = arrivals_s(workload);
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let moments = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / values.len() as f64)
    };
    let (mean, variance) = moments(&gaps);
    let mut counts = vec![0.0; times[times.len() - 1] as usize + 1];
    for seconds in &times {
        counts[*seconds as usize] += 1.0;
    }
    // The last second is not whole.
    counts.pop();
    let (count_mean, count_variance) = moments(&counts);
    (mean, variance.sqrt() / mean, count_variance / count_mean)
}

#[test]
fn defaults_are_those_of_the_command_line() {
    let spec = WorkloadSpec::default();
    assert_eq!((spec.cv, spec.sampling, spec.arrivals), (4.0, Sampling::Joint, None));
    assert_eq!((spec.rate_rps, spec.duration_s, spec.requests), (None, None, None));
    let named = WorkloadSpec { arrivals: Some(Arrivals::Poisson), duration_s: Some(300.0), ..built_in() };
    assert_eq!(built_in().build().unwrap(), named.build().unwrap());
}

#[test]
fn names_round_trip() {
    for name in ["azure-conv", "azure-code", "some/trace.csv"] {
        assert_eq!(Source::from(name).to_string(), name);
        assert_eq!(name.parse::<Source>().unwrap(), Source::from(name));
    }
    assert_eq!(Source::from("azure-conv.csv"), Source::File("azure-conv.csv".into()));
    for name in ["poisson", "bursty", "trace"] {
        assert_eq!(name.parse::<Arrivals>().unwrap().to_string(), name);
    }
    for name in ["joint", "independent"] {
        assert_eq!(name.parse::<Sampling>().unwrap().to_string(), name);
    }
}

#[test]
fn unknown_names_list_the_known_ones() {
    let error = "Poisson".parse::<Arrivals>().unwrap_err();
    assert_eq!(error.to_string(), "arrivals: expected poisson, bursty or trace, got \"Poisson\"");
    let error = "".parse::<Sampling>().unwrap_err();
    assert_eq!(error.to_string(), "sampling: expected joint or independent, got \"\"");
}

#[test]
fn a_workload_is_named_without_folders() {
    assert_eq!(built_in().build().unwrap().name, "azure-conv");
    let spec = WorkloadSpec { source: file("named", &TRACE), ..Default::default() };
    assert_eq!(spec.build().unwrap().name, "spec-named.csv");
}

#[test]
fn a_built_in_needs_a_rate() {
    let message = "rate: expected requests per second, to generate arrivals, got nothing";
    assert_config_error(&WorkloadSpec::default(), message);
}

#[test]
fn a_built_in_has_no_trace_arrivals() {
    let spec = WorkloadSpec { arrivals: Some(Arrivals::Trace), ..built_in() };
    let expected = "poisson or bursty, as a built-in workload keeps no timestamps";
    assert_config_error(&spec, &format!("arrivals: expected {expected}, got trace"));
}

#[test]
fn a_rate_must_be_above_zero() {
    for (rate, got) in [(0.0, "0"), (-2.5, "-2.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let message = format!("rate: expected requests per second above 0 (1e-9 to 1e9), got {got}");
        for source in [Source::AzureCode, Source::from("not read")] {
            assert_config_error(&WorkloadSpec { source, rate_rps: Some(rate), ..built_in() }, &message);
        }
    }
}

#[test]
fn a_duration_must_be_above_zero() {
    for (duration, got) in [(0.0, "0"), (-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let spec = WorkloadSpec { duration_s: Some(duration), ..built_in() };
        assert_config_error(&spec, &format!("duration_s: expected seconds above 0, got {got}"));
    }
}

#[test]
fn a_cv_must_be_above_zero() {
    for (cv, got) in [(0.0, "0"), (-4.0, "-4"), (f64::NAN, "NaN"), (1001.0, "1001")] {
        let message = format!("cv: expected a number from 0.001 to 1000, got {got}");
        assert_config_error(&WorkloadSpec { cv, ..built_in() }, &message);
    }
}

#[test]
fn a_number_of_requests_must_be_in_range() {
    for count in [0, REQUESTS_MAX + 1] {
        let message = format!("requests: expected 1 to 100000000, got {count}");
        assert_config_error(&WorkloadSpec { requests: Some(count), ..built_in() }, &message);
    }
}

#[test]
fn too_many_requests_are_refused_before_they_are_made() {
    let spec = WorkloadSpec { rate_rps: Some(1e9), ..Default::default() };
    assert_config_error(&spec, "rate: expected at most 100000000 requests, got 300000000000");
}

#[test]
fn a_duration_without_arrivals_is_refused() {
    let spec = WorkloadSpec { duration_s: Some(1e-6), ..built_in() };
    assert_config_error(&spec, "duration_s: expected seconds that hold at least one arrival, got 0.000001");
}

#[test]
fn arrivals_too_far_in_the_future_are_refused() {
    let spec = WorkloadSpec { rate_rps: Some(1e-9), requests: Some(20), ..Default::default() };
    assert_config_error(&spec, "rate: expected arrivals within 146 years, got a later one");
}

#[test]
fn a_file_keeps_its_own_times_from_its_first_row() {
    let spec = WorkloadSpec { source: file("own", &TRACE), ..Default::default() };
    let workload = spec.build().unwrap();
    assert_eq!(arrivals_s(&workload), TRACE.map(|(seconds, ..)| seconds - TRACE[0].0));
    let sizes: Vec<_> = workload.requests.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect();
    assert_eq!(sizes, TRACE.map(|(_, prompt, output)| (prompt, output)));
    assert_eq!(WorkloadSpec { arrivals: Some(Arrivals::Trace), ..spec }.build().unwrap(), workload);
}

#[test]
fn a_rate_stretches_a_file() {
    // 4 gaps in 8 s are 0.5 per second; 0.25 doubles every time.
    let spec = WorkloadSpec { source: file("rate", &TRACE), rate_rps: Some(0.25), ..Default::default() };
    assert_eq!(arrivals_s(&spec.build().unwrap()), [0.0, 2.0, 2.0, 11.0, 16.0]);
}

#[test]
fn a_duration_cuts_after_the_rate() {
    let source = file("cut", &TRACE);
    let spec = WorkloadSpec { source, rate_rps: Some(0.25), duration_s: Some(11.0), ..Default::default() };
    // 11.0 itself is out.
    assert_eq!(arrivals_s(&spec.build().unwrap()), [0.0, 2.0, 2.0]);
    let spec = WorkloadSpec { requests: Some(2), ..spec };
    assert_eq!(arrivals_s(&spec.build().unwrap()), [0.0, 2.0]);
}

#[test]
fn a_file_of_one_time_has_no_rate() {
    let expected = "no rate for a trace whose requests all arrive at one time";
    for (name, rows) in [("one", vec![(1.0, 1, 1)]), ("same", vec![(1.0, 1, 1), (1.0, 2, 2)])] {
        let spec = WorkloadSpec { source: file(name, &rows), rate_rps: Some(2.0), ..Default::default() };
        assert_config_error(&spec, &format!("rate: expected {expected}, got 2"));
    }
}

#[test]
fn a_rate_that_stretches_a_file_too_far_is_refused() {
    let rows: Vec<_> = (0..100).map(|i| (f64::from(i), 1, 1)).collect();
    let spec = WorkloadSpec { source: file("wide", &rows), rate_rps: Some(1e-9), ..Default::default() };
    let expected = "a rate that spreads the trace over 1 ns to 146 years";
    assert_config_error(&spec, &format!("rate: expected {expected}, got 0.000000001"));
}

#[test]
fn generated_arrivals_for_a_file_need_a_rate() {
    // The missing rate is told before the file is opened.
    let source = Source::from("not there");
    let spec = WorkloadSpec { source, arrivals: Some(Arrivals::Bursty), ..Default::default() };
    assert_config_error(&spec, "rate: expected requests per second, to generate arrivals, got nothing");
}

#[test]
fn errors_of_a_file_pass_through() {
    let spec = WorkloadSpec { source: file("zero", &[(1.0, 0, 1)]), ..Default::default() };
    assert!(matches!(spec.build().unwrap_err(), SimError::Input { line: 2, .. }));
    let spec = WorkloadSpec { source: Source::from("not there"), ..Default::default() };
    assert!(matches!(spec.build().unwrap_err(), SimError::Io { .. }));
}

#[test]
fn joint_sizes_of_a_file_are_its_rows() {
    let source = file("joint", &TRACE);
    let spec = WorkloadSpec { source, arrivals: Some(Arrivals::Poisson), ..built_in() };
    let workload = spec.build().unwrap();
    let rows = TRACE.map(|(_, prompt, output)| (prompt, output));
    let mut seen = [0; 5];
    for request in &workload.requests {
        let row = (request.prompt_tokens, request.output_tokens);
        seen[rows.iter().position(|&known| known == row).unwrap()] += 1;
    }
    assert_near(workload.requests.len() as f64, 3000.0, 0.06);
    assert!(seen.iter().all(|&count| count > 500), "{seen:?}");
}

#[test]
fn independent_sizes_of_a_file_mix_its_rows() {
    let source = file("mixed", &TRACE);
    let sampling = Sampling::Independent;
    let spec = WorkloadSpec { source, arrivals: Some(Arrivals::Poisson), sampling, ..built_in() };
    let mut pairs = [[0; 5]; 5];
    for request in spec.build().unwrap().requests {
        pairs[request.prompt_tokens as usize / 10 - 1][request.output_tokens as usize - 1] += 1;
    }
    assert!(pairs.iter().flatten().all(|&count| count > 70), "{pairs:?}");
}

#[test]
fn one_seed_makes_one_workload() {
    for sampling in [Sampling::Joint, Sampling::Independent] {
        for arrivals in [Arrivals::Poisson, Arrivals::Bursty] {
            let spec = WorkloadSpec { arrivals: Some(arrivals), sampling, seed: 7, ..built_in() };
            let workload = spec.build().unwrap();
            assert_eq!(workload, spec.build().unwrap());
            assert_ne!(workload.requests, WorkloadSpec { seed: 8, ..spec }.build().unwrap().requests);
        }
    }
}

#[test]
fn sizes_do_not_depend_on_the_rate() {
    let sizes = |rate| {
        let spec = WorkloadSpec { rate_rps: Some(rate), requests: Some(500), ..Default::default() };
        let requests = spec.build().unwrap().requests;
        requests.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect::<Vec<_>>()
    };
    assert_eq!(sizes(1.0), sizes(70.0));
}

#[test]
fn a_number_of_requests_is_a_prefix() {
    let all = built_in().build().unwrap().requests;
    let some = WorkloadSpec { requests: Some(100), ..built_in() }.build().unwrap().requests;
    assert_eq!(some, all[..100]);
}

#[test]
fn a_number_of_requests_replaces_the_default_duration_but_not_a_given_one() {
    let spec = WorkloadSpec { requests: Some(5000), ..built_in() };
    assert_eq!(spec.build().unwrap().requests.len(), 5000);
    let spec = WorkloadSpec { duration_s: Some(300.0), ..spec };
    assert_eq!(spec.build().unwrap(), built_in().build().unwrap());
}

#[test]
fn arrivals_are_in_order_and_end_before_the_duration() {
    let spec = WorkloadSpec { arrivals: Some(Arrivals::Bursty), duration_s: Some(50.0), ..built_in() };
    let requests = spec.build().unwrap().requests;
    assert!(requests.is_sorted_by_key(|request| request.arrival_ns));
    assert!(requests[requests.len() - 1].arrival_ns < 50_000_000_000);
}

#[test]
fn poisson_arrivals_have_the_rate_and_no_memory() {
    let spec = WorkloadSpec { rate_rps: Some(70.0), duration_s: Some(3000.0), ..Default::default() };
    let (mean_s, cv, dispersion) = gap_statistics(&spec.build().unwrap());
    assert_near(mean_s, 1.0 / 70.0, 0.01);
    assert_near(cv, 1.0, 0.01);
    assert_near(dispersion, 1.0, 0.06);
}

#[test]
fn bursty_arrivals_have_the_rate_and_the_cv() {
    for cv in [0.25, 1.0, 2.0, 4.0] {
        let arrivals = Some(Arrivals::Bursty);
        let spec = WorkloadSpec { arrivals, cv, rate_rps: Some(70.0), requests: Some(400_000), ..built_in() };
        let (mean_s, gap_cv, dispersion) = gap_statistics(&spec.build().unwrap());
        assert_near(mean_s, 1.0 / 70.0, 0.02);
        assert_near(gap_cv, cv, 0.03);
        // Over many gaps the dispersion tends to cv^2; a second holds about 70.
        assert_near(dispersion, cv * cv, 0.15);
    }
}

/// Requests of both kinds. A change here changes every published digest.
#[test]
fn generated_workloads_stay_as_they_are() {
    let first = |source, arrivals, sampling| {
        let spec = WorkloadSpec { source, arrivals: Some(arrivals), sampling, seed: 1, ..built_in() };
        let requests = spec.build().unwrap().requests;
        [0, 9].map(|i| (requests[i].arrival_ns, requests[i].prompt_tokens, requests[i].output_tokens))
    };
    assert_eq!(
        first(Source::AzureConv, Arrivals::Poisson, Sampling::Joint),
        [(71_868_187, 170, 12), (1_537_725_769, 1048, 429)]
    );
    assert_eq!(
        first(Source::AzureCode, Arrivals::Bursty, Sampling::Independent),
        [(34_848, 56, 6), (522_383_877, 1711, 26)]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(5)))]

    #[test]
    fn a_stretched_file_has_exactly_the_rate(
        gaps_ms in prop::collection::vec(0..100_000_u32, 1..60),
        start_ms in 0..10_000_u32,
        rate in 0.001..1000.0_f64,
    ) {
        let mut rows = vec![(f64::from(start_ms) / 1e3, 1, 1)];
        let mut now_ms = start_ms;
        for gap_ms in gaps_ms {
            now_ms += gap_ms;
            rows.push((f64::from(now_ms) / 1e3, 1, 1));
        }
        prop_assume!(now_ms > start_ms);
        let spec = WorkloadSpec { source: file("stretched", &rows), ..Default::default() };
        let before = spec.build().unwrap().requests;
        let after = WorkloadSpec { rate_rps: Some(rate), ..spec }.build().unwrap().requests;

        let last = before.len() - 1;
        let span_ns = after[last].arrival_ns - after[0].arrival_ns;
        prop_assert_eq!(span_ns, (last as f64 * 1e9 / rate).round() as u64);
        let old_span_ns = before[last].arrival_ns - before[0].arrival_ns;
        for (old, new) in before.iter().zip(&after) {
            let exact = old.arrival_ns as f64 * span_ns as f64 / old_span_ns as f64;
            prop_assert!((new.arrival_ns as f64 - exact).abs() <= 2.0, "{} is not {exact}", new.arrival_ns);
        }
        prop_assert!(after.is_sorted_by_key(|request| request.arrival_ns));
    }

    #[test]
    fn any_spec_in_range_keeps_the_rules(
        code in any::<bool>(),
        bursty in any::<bool>(),
        joint in any::<bool>(),
        rate_rps in 0.5..500.0_f64,
        cv in 0.05..50.0_f64,
        seed in any::<u64>(),
        count in 1..300_usize,
    ) {
        let spec = WorkloadSpec {
            source: if code { Source::AzureCode } else { Source::AzureConv },
            rate_rps: Some(rate_rps),
            arrivals: Some(if bursty { Arrivals::Bursty } else { Arrivals::Poisson }),
            cv,
            sampling: if joint { Sampling::Joint } else { Sampling::Independent },
            seed,
            requests: Some(count),
            ..Default::default()
        };
        let requests = spec.build().unwrap().requests;
        prop_assert_eq!(requests.len(), count);
        prop_assert!(requests.is_sorted_by_key(|request| request.arrival_ns));
        prop_assert!(requests[count - 1].arrival_ns <= ARRIVAL_MAX_NS);
        let (prompt_max, output_max) = if code { (7437, 1899) } else { (14_050, 1000) };
        prop_assert!(requests.iter().all(|r| (1..=prompt_max).contains(&r.prompt_tokens)));
        prop_assert!(requests.iter().all(|r| (1..=output_max).contains(&r.output_tokens)));
    }
}
