//! Twice the load a cluster sustains: early rejection makes prompt and token machines swing in turn, prediction less
//! (`docs/overload.md`).
//!
//! `cargo test -p splitcore-sim --test overload -- --nocapture --test-threads 1` prints the tables.
#![allow(clippy::unwrap_used, reason = "a test's own options")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{data, run, with_machines};
use splitcore_core::config::PolicyKind;
use splitcore_core::machine::BatchPlan;
use splitcore_sim::report::{AdmissionLimits, RequestRow, Summary};
use splitcore_sim::{Observer, Options, Report, SimError, simulate, simulate_observed};

const LIMIT_TTFT_S: f64 = 2.0;
const LIMIT_TBT_S: f64 = 0.05;
/// Arrivals end here; what comes later is no overload.
const DURATION_S: f64 = 600.0;
/// The start, until the batches are full.
const WARM_UP_S: f64 = 100.0;
/// Loads are averaged over windows of this length.
const WINDOW_S: f64 = 5.0;

/// What a run says of its loads and of who was served.
struct Outcome {
    rejected: f64,
    /// Share served within the limits, and within limits 5 % wider.
    attainment: [f64; 2],
    /// Standard deviation over mean: prompt tokens on prompt machines, decodes on token machines.
    swing: [f64; 2],
    /// Of the two loads with each other.
    correlation: f64,
}

fn options(admission: &str, rate: f64, seed: u64) -> Options {
    Options {
        policy: Some("least-requests".into()),
        rate: Some(rate),
        duration_s: Some(DURATION_S),
        seed,
        admission: admission.into(),
        slo_ttft_s: Some(LIMIT_TTFT_S),
        slo_tbt_s: Some(LIMIT_TBT_S),
        ..with_machines(Split("3xdgx-h100", "4xdgx-h100"))
    }
}

fn outcome(name: &str, options: &Options) -> Outcome {
    let report = run(options);
    let [prompt, token] = windows(&report);
    let wider = |limit: Option<f64>| limit.map(|limit_s| (limit_s * 1.05e9) as u64);
    let wider = AdmissionLimits { ttft_ns: wider(options.slo_ttft_s), tbt_ns: wider(options.slo_tbt_s) };
    let kept = report.rows.iter().filter(|row| wider.are_kept_by(row)).count();
    let counts = report.summary.requests;
    let outcome = Outcome {
        rejected: counts.rejected as f64 / counts.submitted as f64,
        attainment: [report.summary.admission.attainment.unwrap(), kept as f64 / counts.submitted as f64],
        swing: [mean_and_deviation(&prompt), mean_and_deviation(&token)].map(|(mean, dev)| dev / mean),
        correlation: correlation(&prompt, &token),
    };
    let Outcome { rejected, attainment, swing, correlation } = &outcome;
    eprintln!(
        "| {name} | {} | {:.1} % | {:.1} % | {:.1} % | {:.2} | {:.3} | {correlation:.2} |",
        options.admission,
        100.0 * rejected,
        100.0 * attainment[0],
        100.0 * attainment[1],
        swing[0],
        swing[1],
    );
    outcome
}

/// Prompt tokens in the passes of the prompt machines and decodes in those of the token machines, window by window.
fn windows(report: &Report) -> [Vec<f64>; 2] {
    let t_s = &report.timeline.t_s;
    let from = t_s.iter().position(|&at| at >= WARM_UP_S).unwrap();
    let to = t_s.iter().position(|&at| at >= DURATION_S).unwrap_or(t_s.len());
    let buckets = (WINDOW_S / (t_s[1] - t_s[0])).round() as usize;
    let pools = &report.timeline.pools;
    [&pools[0].1.prompt_tokens, &pools[1].1.decodes].map(|load| {
        let chunks = load[from..to].chunks_exact(buckets.max(1));
        chunks.map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect()
    })
}

fn mean_and_deviation(load: &[f64]) -> (f64, f64) {
    let mean = load.iter().sum::<f64>() / load.len() as f64;
    let variance = load.iter().map(|at| (at - mean).powi(2)).sum::<f64>() / load.len() as f64;
    (mean, variance.sqrt())
}

fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let ((mean, deviation), (other_mean, other_deviation)) =
        (mean_and_deviation(one), mean_and_deviation(other));
    let products = one.iter().zip(other).map(|(one, other)| (one - mean) * (other - other_mean));
    products.sum::<f64>() / one.len() as f64 / deviation / other_deviation
}

/// The most this cluster sustains is about 11 a second: nearly all are served within the limits, whatever the rule.
#[test]
fn without_overload_the_rules_hardly_differ() {
    let at_11 = ["bounds", "early", "predicted"]
        .map(|admission| outcome("built-in conversation, 11/s, seed 0", &options(admission, 11.0, 0)));
    for run in &at_11 {
        assert!(run.attainment[1] > 0.98 && run.rejected < 0.015, "{}", run.attainment[1]);
    }
}

#[test]
fn early_rejection_swings_at_twice_the_load_and_prediction_less() {
    for seed in 0..3 {
        let [early, predicted] = ["early", "predicted"].map(|admission| {
            outcome(&format!("built-in conversation, 22/s, seed {seed}"), &options(admission, 22.0, seed))
        });
        // Prompt machines are busy when token machines are not, and the other way round.
        assert!(early.correlation < -0.5, "seed {seed}: {}", early.correlation);
        assert!(predicted.correlation > early.correlation + 0.2, "seed {seed}: {}", predicted.correlation);
        assert!(predicted.swing[0] < 0.8 * early.swing[0], "seed {seed}: {:?}", predicted.swing);
        // And that is of use: more are taken, and more of all are served within 5 % of the limits.
        assert!(predicted.rejected < early.rejected, "seed {seed}: {}", predicted.rejected);
        assert!(predicted.attainment[1] > early.attainment[1], "seed {seed}: {:?}", predicted.attainment);
    }
}

/// Without admission by limits the same load is served to nobody in time.
#[test]
fn without_admission_nobody_is_served_in_time() {
    let bounds = outcome("built-in conversation, 22/s, seed 0", &options("bounds", 22.0, 0));
    assert!(bounds.rejected == 0.0 && bounds.attainment[1] < 0.05, "{}", bounds.attainment[1]);
}

#[test]
fn the_public_traces_at_twice_the_load() {
    let Some(conversation) = data("AzureLLMInferenceTrace_conv.csv") else { return };
    let trace = conversation.to_str().unwrap().to_string();
    let azure = ["early", "predicted"].map(|admission| {
        let options = Options { trace: trace.clone(), ..options(admission, 22.0, 0) };
        outcome("Azure conversation 2023, 22/s", &options)
    });
    assert!(azure[1].correlation > azure[0].correlation && azure[1].swing[0] < azure[0].swing[0]);
    let Some(mooncake) = data("mooncake_conversation_trace.jsonl") else { return };
    let trace = mooncake.to_str().unwrap().to_string();
    // No gain here, as the page says; both serve what the bounds alone do not.
    let mooncake = ["bounds", "early", "predicted"].map(|admission| {
        let machines = with_machines(Split("8xdgx-h100", "2xdgx-h100"));
        let options = Options {
            model: "llama2-70b".into(),
            trace: trace.clone(),
            prompt: machines.prompt,
            token: machines.token,
            slo_ttft_s: Some(10.0),
            ..options(admission, 1.0, 0)
        };
        outcome("Mooncake conversation, 1/s, Llama2-70B on 8 + 2", &options)
    });
    assert!(mooncake[1..].iter().all(|run| run.attainment[0] > 2.0 * mooncake[0].attainment[0]));
}

fn summary(change: impl FnOnce(&mut Options)) -> Summary {
    let mut options = Options { duration_s: Some(20.0), ..options("bounds", 22.0, 0) };
    change(&mut options);
    run(&options).summary
}

#[test]
fn the_summary_says_who_was_turned_away_and_why() {
    let early = summary(|options| options.admission = "early".into());
    let rejected: u64 = early.admission.rejected.values().sum();
    assert_eq!((early.admission.rule.as_str(), rejected), ("early", early.requests.rejected));
    assert!(early.admission.rejected.keys().all(|reason| ["ttft_slo", "tbt_slo"].contains(reason)));
    assert_eq!((early.admission.slo_ttft_s, early.admission.slo_tbt_s), (Some(2.0), Some(0.05)));
    let bounds = summary(|options| {
        (options.slo_ttft_s, options.slo_tbt_s) = (None, None);
        options.recovery_headroom = 0.9;
    });
    assert_eq!(bounds.admission.attainment, None);
    assert_eq!(bounds.admission.rejected.keys().copied().collect::<Vec<_>>(), ["headroom"]);
}

#[test]
fn limits_alone_change_nothing_but_the_report() {
    let without = summary(|options| (options.slo_ttft_s, options.slo_tbt_s) = (None, None));
    assert_eq!(summary(|_| ()).digest, without.digest);
}

#[test]
fn short_prompts_are_not_split() {
    let mut options = Options { duration_s: Some(20.0), split_from: 1000, ..options("bounds", 5.0, 0) };
    options.policy = None;
    let report = run(&options);
    for row in &report.rows {
        assert_eq!(row.prompt_machine == row.token_machine, row.prompt_tokens < 1000, "{row:?}");
    }
}

#[test]
fn wrong_options_are_told() {
    type Change = fn(&mut Options);
    let wrong: [(Change, &str); 6] = [
        (
            |options| options.admission = "late".into(),
            "admission: expected bounds, early, predicted, got `late`",
        ),
        (
            |options| (options.slo_ttft_s, options.slo_tbt_s) = (None, None),
            "admission: expected slo_ttft_s or slo_tbt_s beside it, got `early` alone",
        ),
        (|options| options.slo_ttft_s = Some(0.0), "slo_ttft_s: expected seconds from 1e-9 to 1e9, got 0"),
        (
            |options| options.slo_tbt_s = Some(f64::NAN),
            "slo_tbt_s: expected seconds from 1e-9 to 1e9, got NaN",
        ),
        (|options| options.recovery_headroom = 1.0, "recovery_headroom: expected 0 to 0.999, got 1"),
        (|options| options.recovery_headroom = -0.1, "recovery_headroom: expected 0 to 0.999, got -0.1"),
    ];
    for (change, text) in wrong {
        let mut options = options("early", 1.0, 0);
        change(&mut options);
        let error: SimError = simulate(&options, &mut |_, _| true).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    let edge =
        Options { recovery_headroom: 0.999, requests: Some(1), ..with_machines(Unsplit("1xdgx-h100")) };
    assert!(simulate(&Options { rate: Some(1.0), ..edge }, &mut |_, _| true).is_ok());
}

/// When any machine computes.
#[derive(Default)]
struct Passes(Vec<(u64, u64)>);

impl Observer for Passes {
    fn pass_started(&mut self, now_ns: u64, _machine: u32, end_ns: u64, _plan: &BatchPlan) {
        self.0.push((now_ns, end_ns));
    }
}

impl Passes {
    /// The longest time in which no machine computes although a request is there.
    fn longest_standstill_ns(mut self, report: &Report) -> u64 {
        self.0.sort_unstable();
        let mut busy_until = u64::MAX;
        let mut longest = 0;
        for (start, end) in self.0 {
            let is_there = |row: &RequestRow| {
                row.arrival_ns <= busy_until && (!row.finished() || row.arrival_ns + row.e2e_ns > busy_until)
            };
            if start > busy_until && report.rows.iter().any(is_there) {
                longest = longest.max(start - busy_until);
            }
            busy_until = if busy_until == u64::MAX { end } else { busy_until.max(end) };
        }
        longest
    }
}

/// More than one prompt machine can do for four token machines that fill up: what waits holds what others wait for.
#[test]
fn no_policy_stands_still_while_work_waits() {
    let cluster = |prompt, token, rate, duration_s| Options {
        rate: Some(rate),
        duration_s: Some(duration_s),
        ..with_machines(Split(prompt, token))
    };
    for (_, policy) in PolicyKind::ALL {
        for options in [
            cluster("1xdgx-h100", "4xdgx-h100", 14.0, 200.0),
            cluster("2xdgx-h100", "2xdgx-h100", 20.0, 60.0),
            Options { reserve: "at-source-done".into(), ..cluster("2xdgx-h100", "2xdgx-h100", 20.0, 60.0) },
        ] {
            let options = Options { policy: Some(policy.into()), ..options };
            let mut passes = Passes::default();
            let report = simulate_observed(&options, &mut |_, _| true, &mut passes).unwrap();
            let name = format!("{policy}, {:?} and {:?}", options.prompt, options.token);
            let idle_s = passes.longest_standstill_ns(&report) as f64 / 1e9;
            // Machines report once a second, and whatever waits for room hears of it then at the latest.
            assert!(idle_s < 1.5, "{name}: {idle_s} s");
            let again = report.rows.iter().filter(|row| row.attempts > 1).count();
            assert_eq!(again, 0, "{name}: requests that were taken back");
        }
    }
}
