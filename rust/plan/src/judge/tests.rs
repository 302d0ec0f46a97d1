use proptest::prelude::*;
use splitcore_sim::report::SloReport;
use splitcore_sim::workload::TrafficClass;
use splitcore_sim::{Options, simulate};

use super::*;
use crate::slo::{Attainment, Limit};

fn options(prompt: &str, token: &str, rate: f64, requests: usize) -> Options {
    Options {
        prompt: Some(prompt.into()),
        token: Some(token.into()),
        rate: Some(rate),
        requests: Some(requests),
        ..Options::default()
    }
}

fn judged(options: &Options, slo: &SloSet, whole: bool) -> Verdict {
    judge(&Probe { options: options.clone(), slo: slo.clone(), whole }).unwrap()
}

fn class(name: &str, trace: Option<&str>, limits: Vec<Limit>, attainments: Vec<Attainment>) -> ClassSlo {
    let traffic = TrafficClass {
        name: name.into(),
        trace: trace.map(Into::into),
        share: 1.0,
        ..TrafficClass::default()
    };
    ClassSlo { traffic, limits, attainments }
}

fn set(classes: Vec<ClassSlo>) -> SloSet {
    SloSet { name: "ours".into(), classes }
}

fn limit(metric: Metric, percentile: f64, below: f64) -> Limit {
    Limit { metric, percentile, below }
}

#[test]
fn the_built_in_set_is_the_simulators_own() {
    let splitwise = SloSet::named("splitwise").unwrap();
    let base = options("2xdgx-h100", "1xdgx-h100", 4.0, 300);
    let unsplit = Options { prompt: None, token: None, unsplit: Some("3xdgx-a100".into()), ..base.clone() };
    let mut met = Vec::new();
    for options in [
        base.clone(),
        Options { costs: "splitwise-sim".into(), ..base.clone() },
        Options { rate: Some(25.0), ..base.clone() },
        Options { rate: Some(2.0), trace: "azure-code".into(), ..base.clone() },
        unsplit,
        Options { max_in_flight: Some(20), rate: Some(12.0), ..base.clone() },
        Options { faults: Some("kill=t0@20,repair=5".into()), ..base.clone() },
    ] {
        let slo: SloReport = simulate(&options, &mut |_, _| true).unwrap().summary.slo;
        let verdict = judged(&options, &splitwise, true);
        assert_eq!(verdict.met, slo.met, "{options:?}");
        assert!(!verdict.cut_short);
        let sets = [slo.slowdown.ttft, slo.slowdown.tbt, slo.slowdown.e2e];
        let expected = sets.map(|set| [set.p50, set.p90, set.p99]).concat();
        let found: Vec<Option<f64>> = verdict.findings.iter().map(|finding| finding.found).collect();
        let expected: Vec<_> =
            expected.into_iter().map(|value| Some(value).filter(|value| value.is_finite())).collect();
        assert_eq!(found, expected, "bit for bit");
        met.push(verdict.met);
    }
    assert!(met.contains(&true) && met.contains(&false), "{met:?}");
}

#[test]
fn attainment_and_seconds_are_the_simulators_own_too() {
    let options = options("1xdgx-h100", "1xdgx-h100", 6.0, 400);
    let summary = simulate(&options, &mut |_, _| true).unwrap().summary;
    let joint = Attainment {
        share: 0.5,
        limits: vec![(Metric::TtftSlowdown, 6.0), (Metric::TbtSlowdown, 5.0), (Metric::E2eSlowdown, 5.0)],
    };
    let limits = vec![
        limit(Metric::TtftS, 90.0, 1.0),
        limit(Metric::TpotS, 99.0, 1.0),
        limit(Metric::E2eS, 50.0, 1.0),
    ];
    let verdict = judged(&options, &set(vec![class("all", None, limits, vec![joint])]), true);
    let found: Vec<_> = verdict.findings.iter().map(|finding| finding.found.unwrap()).collect();
    let expected = [summary.ttft_s.p90, summary.tpot_s.p99, summary.e2e_s.p50, summary.slo.attainment];
    assert_eq!(found, expected);
    assert_eq!(verdict.findings[3].objective, "attainment 50 %");
    assert_eq!((verdict.requests, verdict.completed), (400, 400));
}

#[test]
fn limits_are_strict_and_shares_are_not() {
    let options = options("1xdgx-h100", "1xdgx-h100", 6.0, 200);
    let at = |below: f64| set(vec![class("all", None, vec![limit(Metric::TtftS, 75.0, below)], vec![])]);
    let found = judged(&options, &at(1e9), true).findings[0].found.unwrap();
    for whole in [true, false] {
        assert!(!judged(&options, &at(found), whole).met, "equal is not below");
        assert!(judged(&options, &at(found.next_up()), whole).met);
    }
    let share = |share: f64| {
        let limits = vec![(Metric::TtftS, found)];
        set(vec![class("all", None, vec![], vec![Attainment { share, limits }])])
    };
    let kept = judged(&options, &share(0.5), true).findings[0].found.unwrap();
    assert!((0.70..0.80).contains(&kept), "{kept}");
    for whole in [true, false] {
        assert!(judged(&options, &share(kept), whole).met, "equal is reached");
        assert!(!judged(&options, &share(kept.next_up()), whole).met);
    }
}

#[test]
fn classes_are_judged_apart() {
    let options = options("2xdgx-h100", "1xdgx-h100", 4.0, 300);
    let of = |name, trace, below| class(name, Some(trace), vec![limit(Metric::TtftS, 90.0, below)], vec![]);
    let both = set(vec![of("chat", "azure-conv", 1e6), of("code", "azure-code", 1e-6)]);
    let verdict = judged(&options, &both, true);
    let told: Vec<_> =
        verdict.findings.iter().map(|finding| (finding.class.as_str(), finding.met.unwrap())).collect();
    assert_eq!(told, [("chat", true), ("code", false)]);
    assert!(!verdict.met);
    let cut = judged(&options, &both, false);
    let told: Vec<_> = cut.findings.iter().map(|finding| (finding.found, finding.met)).collect();
    assert_eq!(told, [(None, None), (None, Some(false))]);
    assert!(cut.cut_short && cut.events < verdict.events / 2, "{} of {}", cut.events, verdict.events);

    // The run's own classes, judged as one.
    let traffic: Vec<_> = both.classes.iter().map(|class| class.traffic.clone()).collect();
    let mixed = Options { classes: traffic, ..options };
    let one = set(vec![class("all", None, vec![limit(Metric::TtftS, 90.0, 1e6)], vec![])]);
    assert!(judged(&mixed, &one, true).met);
    assert_eq!(judged(&mixed, &both, true), verdict);
    let others = Options { classes: vec![mixed.classes[0].clone()], ..mixed };
    let told = judge(&Probe { options: others, slo: both, whole: true }).unwrap_err().to_string();
    assert_eq!(told, "classes: expected none beside those of the objectives `ours`, got others");
}

#[test]
fn a_class_without_requests_meets_nothing() {
    let options = options("1xdgx-h100", "1xdgx-h100", 4.0, 1);
    let of = |name, trace| class(name, Some(trace), vec![limit(Metric::TtftS, 90.0, 1e6)], vec![]);
    let both = set(vec![of("chat", "azure-conv"), of("code", "azure-code")]);
    for whole in [true, false] {
        let verdict = judged(&options, &both, whole);
        assert!(!verdict.met && verdict.findings.iter().any(|each| each.met == Some(false)), "{verdict:?}");
    }
}

#[test]
fn sets_that_cannot_be_are_refused() {
    let told = |slo: SloSet| {
        let options = options("1xdgx-h100", "1xdgx-h100", 4.0, 10);
        judge(&Probe { options, slo, whole: true }).unwrap_err().to_string()
    };
    let good = || limit(Metric::TtftS, 90.0, 1.0);
    let all = |limits, attainments| set(vec![class("all", None, limits, attainments)]);
    assert_eq!(told(set(vec![])), "slo: expected at least one class, got none in `ours`");
    assert!(told(all(vec![], vec![])).starts_with("slo: expected at least one objective"));
    for percentile in [0.0, 100.0, f64::NAN, 1e-9] {
        assert!(told(all(vec![limit(Metric::E2eS, percentile, 1.0)], vec![])).contains("a percentile"));
    }
    for below in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        assert!(told(all(vec![limit(Metric::E2eS, 50.0, below)], vec![])).contains("a limit above 0"));
    }
    for share in [0.0, 1.1, f64::NAN] {
        let attainment = Attainment { share, limits: vec![(Metric::TtftS, 1.0)] };
        assert!(told(all(vec![good()], vec![attainment])).contains("a share above 0"));
    }
    let attainment = Attainment { share: 0.5, limits: vec![] };
    assert!(told(all(vec![good()], vec![attainment])).contains("at least one limit"));
    let twice = class("all", None, vec![good()], vec![]);
    assert_eq!(told(set(vec![twice.clone(), twice])), "slo: expected each class once, got `all` again");
}

#[test]
fn ranks_are_whole_where_they_should_be() {
    assert_eq!(rank(90.0, 11), (9, 0.0));
    assert_eq!(rank(99.9, 1001), (999, 0.0));
    assert_eq!(rank(99.9, 101), (99, 0.9));
    assert_eq!(percentile(&[1.0, 2.0, f64::INFINITY], 50.0), Some(2.0));
    assert_eq!(percentile(&[1.0, 2.0, f64::INFINITY], 50.5), Some(f64::INFINITY));
    assert_eq!(percentile(&[], 50.0), None);
    for percent in 1..100_u32 {
        for count in [1, 2, 3, 77, 100, 101, 8400] {
            let scaled = percent as usize * (count - 1);
            let whole = (scaled / 100, (scaled % 100) as f64 / 100.0);
            assert_eq!(rank(f64::from(percent), count), whole, "as the simulator has them");
        }
    }
}

/// Found by the property below: all had ended, and only the events after the last end were missing. The limit is so little
/// below what the last request takes that only its end can tell.
#[test]
fn a_run_that_its_last_request_decides_is_whole() {
    let options = Options {
        seed: 9_939_071_114_507_529_587,
        costs: "splitwise-sim".into(),
        arrivals: Some("bursty".into()),
        ..options("1xdgx-h100", "2xdgx-a100", 1.0, 5)
    };
    // The last to end takes 20.79212 s.
    let all = Attainment { limits: vec![(Metric::E2eS, 20.7921)], share: 0.9 };
    let slo = set(vec![class("all", None, Vec::new(), vec![all])]);
    let (whole, cut) = (judged(&options, &slo, true), judged(&options, &slo, false));
    assert_eq!((whole.met, whole.cut_short), (false, false));
    assert_eq!(cut, whole);
}

fn any_metric() -> impl Strategy<Value = Metric> {
    prop::sample::select(Metric::ALL.map(|(metric, _)| metric).to_vec())
}

/// Around what small clusters find, so that about half of them are kept.
fn any_limit(metric: Metric) -> impl Strategy<Value = (Metric, f64)> {
    let typical = match metric {
        Metric::TtftS => 0.2,
        Metric::TpotS => 0.04,
        Metric::E2eS => 8.0,
        Metric::TtftSlowdown | Metric::TbtSlowdown | Metric::E2eSlowdown => 1.0,
    };
    (0.5..6.0_f64).prop_map(move |times| (metric, times * typical))
}

fn any_class() -> impl Strategy<Value = ClassSlo> {
    let percentile = prop_oneof![Just(50.0), Just(90.0), Just(99.0), Just(99.9), 1.0..99.0_f64];
    let percentile = percentile.prop_map(|percentile: f64| (percentile * 1e3).round() / 1e3);
    let one = (any_metric().prop_flat_map(any_limit), percentile)
        .prop_map(|((metric, below), percentile)| Limit { metric, percentile, below });
    let joint = (0.2..1.0_f64, prop::collection::vec(any_metric().prop_flat_map(any_limit), 1..4))
        .prop_map(|(share, limits)| Attainment { share, limits });
    (prop::collection::vec(one, 1..4), prop::collection::vec(joint, 0..2))
        .prop_map(|(limits, attainments)| class("all", None, limits, attainments))
}

fn any_slo() -> impl Strategy<Value = SloSet> {
    let two = (any_class(), any_class()).prop_map(|(mut chat, mut code)| {
        chat.traffic = TrafficClass {
            name: "chat".into(),
            trace: Some("azure-conv".into()),
            share: 3.0,
            ..TrafficClass::default()
        };
        code.traffic = TrafficClass {
            name: "code".into(),
            trace: Some("azure-code".into()),
            share: 1.0,
            ..TrafficClass::default()
        };
        set(vec![chat, code])
    });
    let splitwise = Just(()).prop_map(|()| SloSet::named("splitwise").unwrap());
    prop_oneof![3 => any_class().prop_map(|class| set(vec![class])), 1 => two, 1 => splitwise]
}

prop_compose! {
    fn any_options()(
        prompt in 1..4_u32,
        token in 1..4_u32,
        rate in 1.0..14.0_f64,
        requests in 1..160_usize,
        seed in any::<u64>(),
        measured in any::<bool>(),
        crowded in any::<bool>(),
        faults in prop::sample::select(vec![None, None, Some("mtbf=30,repair=3"), Some("kill=cluster@4")]),
        arrivals in prop::sample::select(vec!["poisson", "bursty"]),
    ) -> Options {
        Options {
            seed,
            costs: if measured { "measured" } else { "splitwise-sim" }.into(),
            max_in_flight: crowded.then_some(24),
            faults: faults.map(Into::into),
            arrivals: Some(arrivals.into()),
            ..options(&format!("{prompt}xdgx-h100"), &format!("{token}xdgx-a100"), rate, requests)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(2), ..ProptestConfig::default() })]

    /// A run that is cut short has missed what it says it has, and one that would miss nothing is not cut short.
    #[test]
    fn cutting_a_run_short_changes_no_verdict(options in any_options(), slo in any_slo()) {
        let whole = judged(&options, &slo, true);
        let cut = judged(&options, &slo, false);
        prop_assert!(!whole.cut_short);
        prop_assert_eq!(cut.met, whole.met);
        prop_assert_eq!(cut.findings.len(), whole.findings.len());
        if cut.cut_short {
            prop_assert!(cut.events <= whole.events);
            prop_assert!(cut.findings.iter().any(|finding| finding.met == Some(false)));
            for (early, late) in cut.findings.iter().zip(&whole.findings) {
                prop_assert_eq!(&early.objective, &late.objective);
                prop_assert!(early.met != Some(true) && early.found.is_none());
                prop_assert!(early.met.is_none() || late.met == Some(false), "{:?} but {:?}", early, late);
            }
        } else {
            prop_assert_eq!(&cut, &whole);
        }
    }
}
