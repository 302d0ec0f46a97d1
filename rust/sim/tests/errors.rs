//! What a run says when it cannot start, does not end or is stopped.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{TempFile, with_machines};
use splitcore_sim::{Options, SimError, simulate};

fn error(options: &Options) -> SimError {
    simulate(options, &mut |_, _| true).expect_err("the options are bad")
}

/// The option that a [`SimError::Config`] names.
#[track_caller]
fn named(options: &Options) -> &'static str {
    match error(options) {
        SimError::Config { option, .. } => option,
        other => panic!("{other}"),
    }
}

#[test]
fn every_bad_option_is_named() {
    let good = Options {
        rate: Some(1.0),
        duration_s: Some(10.0),
        ..with_machines(Split("1xdgx-h100", "1xdgx-a100"))
    };
    simulate(&good, &mut |_, _| true).unwrap();
    let text = String::from;
    let some = |name: &str| Some(name.to_string());
    let cases: Vec<(&str, Options)> = vec![
        ("model", Options { model: text("gpt"), ..good.clone() }),
        ("costs", Options { costs: text("guessed"), ..good.clone() }),
        ("prompt", Options { prompt: some("2xdgx-b200"), ..good.clone() }),
        ("prompt", Options { prompt: some("0xdgx-h100"), ..good.clone() }),
        ("prompt", Options { prompt: None, ..good.clone() }),
        ("token", Options { token: some("dgx-a100:tp5"), ..good.clone() }),
        ("token", Options { token: None, ..good.clone() }),
        ("mixed", Options { mixed: some(""), ..good.clone() }),
        ("prompt", Options { prompt: None, token: None, ..good.clone() }),
        ("unsplit", Options { unsplit: some("1xdgx-h100"), ..good.clone() }),
        ("unsplit", Options { unsplit: some("h100"), prompt: None, token: None, ..good.clone() }),
        ("model", Options { prompt: some("dgx-h100:tp4"), ..good.clone() }),
        ("rate", Options { rate: None, ..good.clone() }),
        ("rate", Options { rate: Some(0.0), ..good.clone() }),
        ("rate", Options { rate: Some(f64::NAN), ..good.clone() }),
        ("duration_s", Options { duration_s: Some(-1.0), ..good.clone() }),
        ("duration_s", Options { rate: Some(1e-6), ..good.clone() }),
        ("arrivals", Options { arrivals: some("sometimes"), ..good.clone() }),
        ("arrivals", Options { arrivals: some("trace"), ..good.clone() }),
        ("cv", Options { cv: 0.0, ..good.clone() }),
        ("sampling", Options { sampling: text("apart"), ..good.clone() }),
        ("policy", Options { policy: some("best"), ..good.clone() }),
        ("transfer", Options { transfer: text("parallel"), ..good.clone() }),
        ("link_bandwidth", Options { link_bandwidth: Some(0.0), ..good.clone() }),
        ("link_bandwidth", Options { link_bandwidth: Some(f64::INFINITY), ..good.clone() }),
        ("mixed_return", Options { mixed_return: text("never"), ..good.clone() }),
        ("reserve", Options { reserve: text("later"), ..good.clone() }),
        ("cut", Options { cut: text("anywhere"), ..good.clone() }),
        ("ties", Options { ties: text("random"), ..good.clone() }),
        ("message_delay_s", Options { message_delay_s: -1e-9, ..good.clone() }),
        ("message_delay_s", Options { message_delay_s: f64::NAN, ..good.clone() }),
        ("max_in_flight", Options { max_in_flight: Some(0), ..good.clone() }),
        ("requests", Options { requests: Some(0), ..good.clone() }),
    ];
    for (index, (option, options)) in cases.iter().enumerate() {
        assert_eq!(named(options), *option, "case {index}");
        let told = error(options).to_string();
        assert!(told.starts_with(&format!("{option}: expected ")) && told.contains(", got "), "{told}");
    }
}

#[test]
fn a_file_that_is_absent_or_no_trace_is_named() {
    let with = |trace: String| Options { trace, ..with_machines(Unsplit("1xdgx-h100")) };
    let absent = error(&with("/nowhere/trace.csv".into()));
    assert!(matches!(&absent, SimError::Io { file, .. } if file == "/nowhere/trace.csv"), "{absent}");
    let profile = Options {
        profile: Some("/nowhere/profile.toml".into()),
        rate: Some(1.0),
        ..with("azure-conv".into())
    };
    assert!(matches!(error(&profile), SimError::Io { .. }));
    let empty = TempFile::trace("zero", &[(0.0, 0, 1)]);
    assert!(matches!(error(&with(empty.path())), SimError::Input { line: 2, .. }));
}

/// More than a million events in which no request ends: a run that gives tokens is not stuck, however long it is.
#[test]
fn a_long_output_is_no_standstill() {
    let long = TempFile::trace("long", &[(0.0, 100, 1), (0.5, 100, 1_050_000)]);
    let options = Options { trace: long.path(), kv_limit: false, ..with_machines(Unsplit("1xdgx-h100")) };
    let report = simulate(&options, &mut |_, _| true).unwrap();
    assert_eq!(report.summary.requests.completed, 2);
    assert!(report.summary.events > 1_050_000);
}

/// A pass of many hours, while machines report every second, is a wait and no standstill.
#[test]
fn a_long_pass_is_no_standstill() {
    let one = TempFile::trace("slow", &[(0.0, 500_000_000, 2)]);
    let options = Options { trace: one.path(), kv_limit: false, ..with_machines(Unsplit("4xdgx-h100")) };
    let report = simulate(&options, &mut |_, _| true).unwrap();
    assert_eq!(report.summary.requests.completed, 1);
    assert!(report.summary.duration_s > 20_000.0, "{}", report.summary.duration_s);
}

#[test]
fn a_run_can_be_followed_and_stopped() {
    let options =
        Options { rate: Some(70.0), requests: Some(20_000), ..with_machines(Unsplit("40xdgx-h100")) };
    let mut calls = Vec::new();
    let stopped = simulate(&options, &mut |ended, total| {
        calls.push((ended, total));
        calls.len() < 2
    });
    assert_eq!(stopped.err(), Some(SimError::Interrupted));
    assert_eq!(calls.len(), 2, "and at once");
    assert!(calls.iter().all(|&(ended, total)| total == 20_000 && ended < total));
    assert!(calls[0].0 < calls[1].0);
}
