use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use splitcore_sim::Options;

use super::*;
use crate::drive::{Drive, drive_by};
use crate::probe::Finding;
use crate::search::{Progress, Search};
use crate::slo::SloSet;

/// A file of a test's own, taken away at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("splitcore-cache-{}-{count}", std::process::id())))
    }

    fn holding(content: &[u8]) -> Self {
        let scratch = Self::new();
        std::fs::write(&scratch.0, content).unwrap();
        scratch
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn probe(rate: f64) -> Probe {
    let options = Options { rate: Some(rate), ..Options::default() };
    Probe { options, slo: SloSet::named("distserve-chat-13b-90").unwrap(), whole: false }
}

fn verdict(found: f64) -> Verdict {
    let finding = |found| Finding {
        class: "all".into(),
        objective: "attainment 90 %".into(),
        limit: 0.9,
        found,
        met: found.map(|found| found >= 0.9),
    };
    Verdict {
        met: false,
        findings: vec![finding(Some(found)), finding(None)],
        requests: 10,
        completed: 9,
        events: u64::MAX,
        cut_short: true,
        out_of_range_lookups: 1,
    }
}

/// A cache of two verdicts, and the text of its file.
fn of_two(scratch: &Scratch) -> String {
    let cache = Cache::open(&scratch.0).unwrap();
    cache.put(&probe(1.0), &verdict(0.1)).unwrap();
    cache.put(&probe(2.0), &verdict(0.2)).unwrap();
    scratch.text()
}

fn refusal(content: &[u8]) -> String {
    let scratch = Scratch::holding(content);
    let error = Cache::open(&scratch.0).err().unwrap();
    assert_eq!(std::fs::read(&scratch.0).unwrap(), content, "nothing is changed");
    error.to_string().replace(&scratch.0.display().to_string(), "FILE")
}

/// Asks for so many probes at once.
struct Grid(u32, bool);

impl Search for Grid {
    fn ask(&mut self) -> Vec<Probe> {
        let count = if std::mem::replace(&mut self.1, true) { 0 } else { self.0 };
        (1..=count).map(|rate| probe(rate.into())).collect()
    }

    fn tell(&mut self, verdicts: &[Verdict]) {
        let expected: Vec<_> = (1..=self.0).map(|rate| verdict(f64::from(rate) / 3.0)).collect();
        assert_eq!(verdicts, expected);
    }

    fn progress(&self) -> Progress {
        Progress::default()
    }
}

/// Probes made, and how it ended.
fn driven(cache: &Cache, probes: u32, verdicts_max: u32) -> (u32, Result<(), SimError>) {
    let (made, told) = (AtomicU32::new(0), AtomicU32::new(0));
    let judge = |probe: &Probe| {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(verdict(probe.options.rate.unwrap() / 3.0))
    };
    let control = |_| told.fetch_add(1, Ordering::Relaxed) + 1 < verdicts_max;
    let drive = Drive { jobs: 2, cache: Some(cache), control: &control };
    let result = drive_by(&mut Grid(probes, false), &drive, &judge);
    (made.into_inner(), result)
}

#[test]
fn an_interrupted_search_makes_only_what_is_missing() {
    let scratch = Scratch::new();
    let (made, result) = driven(&Cache::open(&scratch.0).unwrap(), 12, 5);
    assert_eq!(result, Err(SimError::Interrupted));
    assert!((5..=6).contains(&made), "{made}: what was under way is finished");
    let cache = Cache::open(&scratch.0).unwrap();
    assert_eq!(driven(&cache, 12, u32::MAX), (12 - made, Ok(())));
    assert_eq!(driven(&cache, 14, u32::MAX), (2, Ok(())), "a wider search");
    assert_eq!(driven(&Cache::open(&scratch.0).unwrap(), 14, u32::MAX), (0, Ok(())));
    assert_eq!(scratch.text().lines().count(), 1 + 14);
}

#[test]
fn a_torn_line_is_forgotten() {
    let scratch = Scratch::new();
    let text = of_two(&scratch);
    let whole = text.trim_end().rfind('\n').unwrap() + 1;
    for end in [whole + 1, whole + 40, text.len() - 1] {
        std::fs::write(&scratch.0, &text[..end]).unwrap();
        let cache = Cache::open(&scratch.0).unwrap();
        assert_eq!(scratch.text(), text[..whole]);
        assert_eq!((cache.get(&probe(1.0)), cache.get(&probe(2.0))), (Some(verdict(0.1)), None));
        cache.put(&probe(2.0), &verdict(0.2)).unwrap();
        assert_eq!(scratch.text(), text);
    }
    // A header that was being written.
    for end in [0, 1, text.find('\n').unwrap()] {
        std::fs::write(&scratch.0, &text[..end]).unwrap();
        Cache::open(&scratch.0).unwrap();
        assert_eq!(scratch.text(), text[..=text.find('\n').unwrap()]);
    }
    // Another process is killed while this one goes on.
    let cache = Cache::open(&scratch.0).unwrap();
    std::fs::write(&scratch.0, &text[..whole + 40]).unwrap();
    cache.put(&probe(2.0), &verdict(0.2)).unwrap();
    assert_eq!(scratch.text(), text);
}

#[test]
fn any_other_broken_line_is_told() {
    let scratch = Scratch::new();
    let text = of_two(&scratch);
    let lines: Vec<&str> = text.lines().collect();
    let broken = [lines[0], &lines[1][..50], lines[2], ""].join("\n");
    assert!(
        refusal(broken.as_bytes()).starts_with("FILE:2: line: expected a probe and its verdict, got EOF")
    );
    let broken = [lines[0], lines[1], "", lines[2], ""].join("\n");
    assert!(refusal(broken.as_bytes()).starts_with("FILE:3: line:"));
    let broken = text.replace("\"whole\"", "\"wholly\"");
    assert!(refusal(broken.as_bytes()).starts_with("FILE:2: line:"));
}

#[test]
fn what_is_no_cache_or_of_other_code_is_refused() {
    let alien =
        "FILE:1: format: expected a `splitcore-cache` of verdicts; choose another file, got something else";
    for content in ["\n", "hello", "a,b\n1,2\n", "{}\n", "{\"format\":\"x\"}\n"] {
        assert_eq!(refusal(content.as_bytes()), alien);
    }
    assert_eq!(refusal(b"\xff\xfe\n"), alien);
    let scratch = Scratch::new();
    let text = of_two(&scratch);
    let ours = format!("splitcore {}", env!("CARGO_PKG_VERSION"));
    let told = refusal(text.replacen(env!("CARGO_PKG_VERSION"), "0.0.9", 1).as_bytes());
    assert!(told.starts_with(&format!("FILE:1: version: expected verdicts of {ours}")), "{told}");
    assert!(told.contains("choose another file or delete this one, got those of splitcore 0.0.9"), "{told}");
    let told = refusal(text.replacen("\"format_version\":1", "\"format_version\":2", 1).as_bytes());
    assert!(told.ends_with("format 2"), "{told}");
    let header = Header { commit: Some("abc".into()), ..Header::ours() };
    let told = refusal((json(&header) + "\n").as_bytes());
    assert!(told.contains("got those of splitcore") && told.contains("(abc)"), "{told}");
    let folder = std::env::temp_dir().join("splitcore-no-such-folder").join("cache");
    assert!(matches!(Cache::open(&folder), Err(SimError::Io { .. })));
}

#[test]
fn a_changed_file_is_another_probe() {
    let trace = Scratch::holding(b"0,10,10\n");
    let profile = Scratch::holding(b"p");
    let scratch = Scratch::new();
    let path = |scratch: &Scratch| Some(scratch.0.display().to_string());
    let mut of_options = probe(1.0);
    of_options.options.trace = path(&trace).unwrap();
    let mut of_class = probe(1.0);
    of_class.slo.classes[0].traffic.trace = path(&trace);
    let mut of_profile = probe(1.0);
    of_profile.options.profile = path(&profile);
    let cache = Cache::open(&scratch.0).unwrap();
    for probe in [&of_options, &of_class, &of_profile] {
        assert_eq!(cache.get(probe), None);
        cache.put(probe, &verdict(0.5)).unwrap();
        assert_eq!(cache.get(probe), Some(verdict(0.5)));
    }
    std::fs::write(&trace.0, "0,10,11\n0,1,1\n").unwrap();
    for cache in [cache, Cache::open(&scratch.0).unwrap()] {
        assert_eq!(cache.get(&of_options), None);
        assert_eq!(cache.get(&of_class), None);
        assert_eq!(cache.get(&of_profile), Some(verdict(0.5)));
    }
    std::fs::write(&trace.0, "0,10,10\n").unwrap();
    assert!(Cache::open(&scratch.0).unwrap().get(&of_class).is_some(), "it is the content that counts");
    drop(profile);
    assert_eq!(Cache::open(&scratch.0).unwrap().get(&of_profile), None);
}

#[test]
fn two_at_once_keep_each_others_lines() {
    let scratch = Scratch::new();
    let caches = [Cache::open(&scratch.0).unwrap(), Cache::open(&scratch.0).unwrap()];
    std::thread::scope(|scope| {
        for (at, cache) in caches.iter().enumerate() {
            scope.spawn(move || {
                for rate in 0..50 {
                    cache.put(&probe(f64::from(2 * rate + at as u32)), &verdict(0.5)).unwrap();
                }
            });
        }
    });
    let cache = Cache::open(&scratch.0).unwrap();
    assert!((0..100).all(|rate| cache.get(&probe(f64::from(rate))) == Some(verdict(0.5))));
    assert_eq!(scratch.text().lines().count(), 101);
}

#[test]
fn contents_differ_in_their_digests() {
    let contents: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"12345678", b"12345678\0", b"87654321", b"123456789"];
    let digests: std::collections::HashSet<String> = contents.into_iter().map(digest).collect();
    assert_eq!(digests.len(), contents.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..ProptestConfig::default() })]

    /// To the last bit, whatever the floats.
    #[test]
    fn what_is_read_is_what_was_kept(rates in prop::collection::vec(any::<f64>(), 1..20), found in any::<f64>()) {
        prop_assume!(found.is_finite() && rates.iter().all(|rate| rate.is_finite()));
        let scratch = Scratch::new();
        let cache = Cache::open(&scratch.0).unwrap();
        for &rate in &rates {
            cache.put(&probe(rate), &verdict(found)).unwrap();
        }
        let again = Cache::open(&scratch.0).unwrap();
        for &rate in &rates {
            prop_assert_eq!(again.get(&probe(rate)), Some(verdict(found)));
        }
    }
}
