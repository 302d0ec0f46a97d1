//! Logs that are cut short, changed, or miss a part.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use kit::{Folder, Placements, segments_of};
use splitcore_record::{LogEnd, Options, Recorder, ReplayError, replay};

/// A log of a few segments.
fn small(folder: &Folder) -> Vec<std::path::PathBuf> {
    Placements::new().record(folder.path(), "c", 11, segments_of(700));
    let segments = folder.segments("c");
    assert!(segments.len() > 2, "{segments:?}");
    segments
}

#[test]
fn a_log_cut_anywhere_in_its_last_segment_ends_there() {
    let folder = Folder::new();
    let segments = small(&folder);
    let last = segments.last().unwrap();
    let whole = fs::read(last).unwrap();
    let events = replay(folder.path()).unwrap().logs[0].events;
    let mut counts = Vec::new();
    for length in (0..whole.len()).rev() {
        fs::write(last, &whole[..length]).unwrap();
        let log = replay(folder.path()).unwrap_or_else(|error| panic!("{length}: {error}")).logs.remove(0);
        assert!(log.difference.is_none() && log.end == LogEnd::Open, "{length}: {log:?}");
        assert_eq!(log.segments, segments.len() as u64);
        counts.push(log.events);
    }
    assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
    let begun: u64 = last.file_stem().unwrap().to_str().unwrap()[5..].parse().unwrap();
    assert_eq!((counts[0], counts[counts.len() - 1]), (events, begun));
}

#[test]
fn a_log_cut_to_nothing_has_no_events() {
    let folder = Folder::new();
    Placements::new().record(folder.path(), "c", 2, Options::default());
    let path = folder.segments("c").remove(0);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let log = replay(folder.path()).unwrap_or_else(|error| panic!("{length}: {error}")).logs.remove(0);
        assert!(
            log.difference.is_none() && log.end == LogEnd::Open && log.segments == 1,
            "{length}: {log:?}"
        );
    }
}

#[test]
fn a_changed_bit_is_found_wherever_it_is() {
    let folder = Folder::new();
    for path in small(&folder) {
        let whole = fs::read(&path).unwrap();
        // Each byte of what frames it; of the state every seventh.
        for at in (0..whole.len()).filter(|at| at % 7 == 0 || !(300..whole.len() - 300).contains(at)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, bytes).unwrap();
            match replay(folder.path()) {
                Err(ReplayError::Damaged { path: named, offset, expected, got }) => {
                    assert_eq!(named, path);
                    assert!(offset as usize <= at, "changed at {at}, found at {offset}");
                    assert!(!expected.is_empty() && !got.is_empty());
                }
                other => panic!("{}: bit of byte {at}: {other:?}", path.display()),
            }
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(replay(folder.path()).unwrap().agrees());
}

#[test]
fn what_is_damaged_is_said_with_place_and_expectation() {
    let folder = Folder::new();
    let path = small(&folder).remove(0);
    let whole = fs::read(&path).unwrap();
    let said = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        replay(folder.path()).unwrap_err().to_string().replace(&path.display().to_string(), "FILE")
    };
    let mut version = whole.clone();
    version[8] = 9;
    assert_eq!(said(&version), "FILE at byte 8: expected the start of a log of version 1, got byte 09");
    let mut last = whole.clone();
    *last.last_mut().unwrap() ^= 1;
    let said = said(&last);
    assert!(said.contains(" bytes of record with CRC32C ") && said.contains(", got bytes with "), "{said}");
}

#[test]
fn a_segment_that_is_missing_or_cut_in_the_middle_leaves_a_gap() {
    for cut in [None, Some(0), Some(200), Some(1)] {
        let folder = Folder::new();
        let segments = small(&folder);
        match cut {
            None => fs::remove_file(&segments[1]).unwrap(),
            Some(keep) => {
                let bytes = fs::read(&segments[1]).unwrap();
                let keep = if keep == 1 { bytes.len() - 1 } else { keep };
                fs::write(&segments[1], &bytes[..keep]).unwrap();
            }
        }
        match replay(folder.path()) {
            Err(ReplayError::Gap { path, expected, got }) => {
                assert_eq!(path, segments[2]);
                assert!(expected < got);
            }
            other => panic!("{cut:?}: {other:?}"),
        }
    }
}

#[test]
fn a_segment_under_the_name_of_another_is_found() {
    let folder = Folder::new();
    let segments = small(&folder);
    fs::copy(&segments[0], &segments[1]).unwrap();
    let error = replay(folder.path()).unwrap_err().to_string();
    assert!(error.contains("expected cluster run 1 from event"), "{error}");
    assert!(error.ends_with("got cluster run 1 from event 0"), "{error}");
}

#[test]
fn what_is_no_file_is_not_read() {
    let folder = Folder::new();
    let path = small(&folder).remove(0);
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for endless in [Path::new("/dev/zero"), Path::new("/dev/stdin"), &pipe] {
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(endless, &path).unwrap();
        let said = replay(folder.path()).unwrap_err().to_string();
        assert_eq!(said, format!("{}: expected a file, got something else", path.display()));
    }
}

#[test]
fn logs_are_for_their_owner_only() {
    let folder = Folder::new();
    let inner = folder.path().join("a/b");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    Placements::new().record(&inner, "c", 11, segments_of(700));
    for made in [inner.parent().unwrap(), &inner, &inner.join("c")] {
        assert_eq!(mode(made), 0o700, "{}", made.display());
    }
    let segments: Vec<_> =
        fs::read_dir(inner.join("c")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(segments.len() > 2 && segments.iter().all(|path| mode(path) == 0o600), "{segments:?}");
}

/// Not a test of its own: what the next one kills.
#[test]
#[ignore = "runs until it is killed"]
#[allow(clippy::print_stdout, reason = "whoever kills it waits for this")]
fn child_that_records_until_it_is_killed() {
    let Some(dir) = std::env::var_os("RECORD_DIR") else { return };
    let mut placements = Placements::new();
    let options = Options { queue_bytes: 4096, ..segments_of(20_000) };
    let mut recorder = Recorder::create(dir.as_ref(), "c", &placements.cluster, options).unwrap();
    for number in 0_u64.. {
        let event = placements.next();
        placements.tell(Some(&mut recorder), &event);
        if number % 500 == 0 {
            println!("{number} events");
        }
    }
}

#[test]
fn the_log_of_a_killed_process_replays() {
    let folder = Folder::new();
    for run in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_records_until_it_is_killed", "--ignored", "--nocapture"])
            .env("RECORD_DIR", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.map_while(Result::ok).find(|line| line.contains(&format!("{} events", run * 1000)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(said.is_some(), "the child ended before it was killed");
        let logs = replay(folder.path()).unwrap().logs;
        let log = logs.last().unwrap();
        assert_eq!((logs.len(), log.run, &log.end), (run, run as u32, &LogEnd::Open));
        assert!(log.difference.is_none() && log.events > 0, "{log:?}");
    }
}
