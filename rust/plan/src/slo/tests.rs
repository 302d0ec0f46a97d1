use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Result<SloSet, String> {
    let set = read::parse(text, "slo.toml", "slo.toml".into()).map_err(|error| error.to_string())?;
    assert_eq!(set.check(), Ok(()), "what is read can be judged");
    Ok(set)
}

fn refusal(text: &str) -> String {
    parsed(text).unwrap_err()
}

fn names(set: &SloSet) -> Vec<String> {
    let findings = set.classes.iter().flat_map(ClassSlo::findings);
    findings.map(|finding| format!("{} {} {}", finding.class, finding.objective, finding.limit)).collect()
}

#[test]
fn built_in_sets() {
    let splitwise = SloSet::parse("splitwise").unwrap();
    let expected = [
        "all ttft_slowdown p50 2",
        "all ttft_slowdown p90 3",
        "all ttft_slowdown p99 6",
        "all tbt_slowdown p50 1.25",
        "all tbt_slowdown p90 1.5",
        "all tbt_slowdown p99 5",
        "all e2e_slowdown p50 1.25",
        "all e2e_slowdown p90 1.5",
        "all e2e_slowdown p99 5",
    ];
    assert_eq!(names(&splitwise), expected);
    let summarise = SloSet::parse("distserve-summarise-66b-95").unwrap();
    assert_eq!(names(&summarise), ["all attainment 95 % 0.95"]);
    assert_eq!(summarise.classes[0].attainments[0].limits, [(Metric::TtftS, 15.0), (Metric::TpotS, 0.15)]);
    let all = SloSet::names();
    assert_eq!(all.len(), 16);
    for name in &all {
        let set = SloSet::named(name).unwrap();
        assert_eq!((&set.name, set.check()), (name, Ok(())));
    }
    for unknown in ["distserve-chat-13b-91", "distserve-chat-99", "distserve-", "splitwise-", "Splitwise", ""]
    {
        assert_eq!(SloSet::named(unknown), None);
        let told = SloSet::parse(unknown).unwrap_err().to_string();
        assert!(
            told.starts_with("slo: expected a file or one of splitwise, distserve-chat-13b-90, "),
            "{told}"
        );
        assert!(told.ends_with(&format!("distserve-summarise-66b-99, got `{unknown}`")), "{told}");
    }
}

#[test]
fn objectives_of_all_traffic() {
    let set = parsed(
        r#"
        tpot_s = { p99 = 1_0 }
        ttft_s = { p90 = 0.4, "p99.9" = 1 }
        e2e_slowdown = { p7.25 = 1e1 }
        [[attainment]]
        share = 0.07
        ttft_s = 0.4
        tpot_s = 0.1
        [[attainment]]
        e2e_s = 60
        share = 1
        "#,
    );
    let set = set.unwrap();
    assert_eq!(set.name, "slo.toml");
    let expected = [
        "all tpot_s p99 10",
        "all ttft_s p90 0.4",
        "all ttft_s p99.9 1",
        "all e2e_slowdown p7.25 10",
        "all attainment 7 % 0.07",
        "all attainment 100 % 1",
    ];
    assert_eq!(names(&set), expected, "as they stand in the file");
    let traffic = TrafficClass { name: "all".into(), trace: None, share: 1.0, ..TrafficClass::default() };
    assert_eq!(set.classes[0].traffic, traffic);
    assert_eq!(set.classes[0].attainments[0].limits, [(Metric::TtftS, 0.4), (Metric::TpotS, 0.1)]);
}

#[test]
fn objectives_of_classes() {
    let set = parsed(
        r#"
        [[class]]
        name = "chat"
        trace = "azure-conv"
        share = 7
        ttft_s = { p90 = 0.4 }
        [class.tbt_slowdown]
        p50 = 1.25
        [[class.attainment]]
        share = 0.9
        tpot_s = 0.1

        [[class]]
        name = "code"
        share = 3.0
        e2e_s = { p99 = 20 }
        "#,
    );
    let set = set.unwrap();
    let expected = [
        "chat ttft_s p90 0.4",
        "chat tbt_slowdown p50 1.25",
        "chat attainment 90 % 0.9",
        "code e2e_s p99 20",
    ];
    assert_eq!(names(&set), expected);
    let traffic: Vec<_> = set.classes.iter().map(|class| class.traffic.clone()).collect();
    let class = |name: &str, trace: Option<&str>, share| TrafficClass {
        name: name.into(),
        trace: trace.map(Into::into),
        share,
        ..TrafficClass::default()
    };
    assert_eq!(traffic, [class("chat", Some("azure-conv"), 7.0), class("code", None, 3.0)]);
}

#[test]
fn a_class_has_a_priority_and_limits_on_what_is_let_in() {
    let set =
        parsed("[[class]]\nname = \"a\"\nshare = 1\npriority = -2\nslo_ttft_s = 0.5\nttft_s = { p90 = 1 }\n");
    let traffic = set.unwrap().classes[0].traffic.clone();
    assert_eq!((traffic.priority, traffic.slo_ttft_s, traffic.slo_tbt_s), (-2, Some(0.5), None));
    for (key, told) in [("priority = 0.5", "class.priority"), ("slo_tbt_s = 0", "class.slo_tbt_s")] {
        let text = format!("[[class]]\nname = \"a\"\nshare = 1\n{key}\nttft_s = {{ p90 = 1 }}\n");
        let error = parsed(&text).unwrap_err();
        assert!(error.contains(&format!(":4: {told}: expected")), "{error}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let percentile = "p and a percentile above 0 and below 100, of at most 6 decimals, as p99 or \"p99.9\"";
    let cases = [
        ("", "1: attainment: expected at least one objective, got none".to_owned()),
        ("\nttft_s = 1\n", "2: ttft_s: expected limits on percentiles, as { p90 = 0.4 }, got 1".to_owned()),
        ("ttft_s = {}\n", "1: ttft_s: expected at least one limit, got none".to_owned()),
        ("ttft_s = { p90 = 0 }", "1: ttft_s.p90: expected a limit above 0, got 0".to_owned()),
        ("ttft_s = { p90 = -0.5 }", "1: ttft_s.p90: expected a limit above 0, got -0.5".to_owned()),
        ("ttft_s = { p90 = inf }", "1: ttft_s.p90: expected a limit above 0, got inf".to_owned()),
        ("ttft_s = { p90 = nan }", "1: ttft_s.p90: expected a limit above 0, got nan".to_owned()),
        ("ttft_s = { p90 = \"1\" }", "1: ttft_s.p90: expected a limit above 0, got \"1\"".to_owned()),
        ("ttft_s = { p90 = {} }", "1: ttft_s.p90: expected a limit above 0, got a table".to_owned()),
        ("ttft_s = { p90 = [1] }", "1: ttft_s.p90: expected a limit above 0, got a list".to_owned()),
        ("[ttft_s]\np90 = 1\np0 = 1", format!("3: ttft_s: expected {percentile}, got `p0`")),
        ("ttft_s = { p100 = 1 }", format!("1: ttft_s: expected {percentile}, got `p100`")),
        ("ttft_s = { 90 = 1 }", format!("1: ttft_s: expected {percentile}, got `90`")),
        ("ttft_s = { p1e1 = 1 }", format!("1: ttft_s: expected {percentile}, got `p1e1`")),
        ("ttft_s = { p9.1.2 = 1 }", "1: ttft_s.p9.1: expected a limit above 0, got a table".to_owned()),
        ("ttft_s = { p90.x = 1 }", format!("1: ttft_s: expected {percentile}, got `p90.x`")),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text), format!("slo.toml:{expected}"), "{text}");
    }
}

#[test]
fn what_contradicts_is_told_with_its_line() {
    let metrics = "ttft_s, tpot_s, e2e_s, ttft_slowdown, tbt_slowdown, e2e_slowdown";
    let class = "[[class]]\nname = \"a\"\nshare = 1\nttft_s.p90 = 1\n";
    let cases = [
        (
            "ttft_s = { p90 = 1, \"p90.0\" = 2 }",
            "1: ttft_s: expected each percentile once, got `p90.0` again".to_owned(),
        ),
        ("ttft = { p90 = 1 }", format!("1: ttft: expected one of {metrics}, attainment, got an unknown key")),
        ("attainment = 0.9", "1: attainment: expected tables, each under [[attainment]], got 0.9".to_owned()),
        (
            "[attainment]\nshare = 0.9",
            "1: attainment: expected tables, each under [[attainment]], got a table".to_owned(),
        ),
        (
            "[[attainment]]\nttft_s = 1",
            "1: attainment.share: expected a share above 0, up to 1, got none".to_owned(),
        ),
        ("\n[[attainment]]\nshare = 1", "2: attainment: expected at least one limit, got none".to_owned()),
        (
            "[[attainment]]\nshare = 90\nttft_s = 1",
            "2: attainment.share: expected a share above 0, up to 1, got 90".to_owned(),
        ),
        (
            "[[attainment]]\nshare = 0\nttft_s = 1",
            "2: attainment.share: expected a share above 0, up to 1, got 0".to_owned(),
        ),
        (
            "[[attainment]]\nshare = 1\nttft_s = { p90 = 1 }",
            "3: attainment.ttft_s: expected a limit above 0, got a table".to_owned(),
        ),
        (
            "[[attainment]]\nshare = 1\nttft = 1",
            format!("3: attainment.ttft: expected share or one of {metrics}, got an unknown key"),
        ),
        ("class = []", "1: class: expected at least one [[class]], got none".to_owned()),
        ("class = 1", "1: class: expected tables, each under [[class]], got 1".to_owned()),
        ("class = [1]", "1: class: expected a table, got 1".to_owned()),
        ("[[class]]\nshare = 1", "1: class.name: expected a value, got nothing".to_owned()),
        ("[[class]]\nname = \"a\"", "1: class.share: expected a value, got nothing".to_owned()),
        ("[[class]]\nname = \"\"\nshare = 1", "2: class.name: expected text, got \"\"".to_owned()),
        ("[[class]]\nname = 1\nshare = 1", "2: class.name: expected text, got 1".to_owned()),
        ("[[class]]\nname = \"a\"\nshare = 1\ntrace = 2", "4: class.trace: expected text, got 2".to_owned()),
        ("[[class]]\nname = \"a\"\nshare = 0", "3: class.share: expected a share above 0, got 0".to_owned()),
        (
            "[[class]]\nname = \"a\"\nshare = 1",
            "1: class.attainment: expected at least one objective, got none".to_owned(),
        ),
        (
            "[[class]]\nname = \"a\"\nshare = 1\nrate = 1",
            format!(
                "4: class.rate: expected one of name, trace, share, priority, slo_ttft_s, slo_tbt_s, {metrics}, attainment, got an unknown key"
            ),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text), format!("slo.toml:{expected}"), "{text}");
    }
    assert_eq!(refusal(&class.repeat(2)), "slo.toml:5: class.name: expected each class once, got `a` again");
    let beside = refusal(&format!("\ntpot_s.p90 = 1\n{class}"));
    assert_eq!(beside, "slo.toml:2: tpot_s: expected all objectives within the classes, got one beside them");
    for broken in ["x", "\n\nttft_s = {", "a = 1\na = 2", "ttft_s = { p99 = 1, p99.9 = 2 }"] {
        let told = refusal(broken);
        assert!(
            told.starts_with("slo.toml:") && told.contains(": toml: expected objectives, got "),
            "{told}"
        );
    }
}

#[test]
fn files_are_read_and_missed() {
    let path = std::env::temp_dir().join(format!("splitcore-slo-{}.toml", std::process::id()));
    std::fs::write(&path, "ttft_s = { p90 = 1 }").unwrap();
    let set = SloSet::parse(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(set.unwrap().name, path.file_name().unwrap().to_str().unwrap());
    assert!(matches!(SloSet::read(&path), Err(SimError::Io { .. })));
}

proptest! {
    /// Whatever is in a file, it is read or refused.
    #[test]
    fn no_text_is_too_odd(text in r#"(\[\[?(class|attainment|class.attainment)\]\]?\n|(ttft_s|share|name|p9)(.p90)? = ("a"|1|0.9|\{p50=1\}|\[\])\n){0,8}"#) {
        if let Err(told) = parsed(&text) {
            prop_assert!(told.starts_with("slo.toml:"), "{}", told);
        }
    }
}
