//! What is recorded replays alike, whatever happened, and what does not is found.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod kit;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use kit::{Folder, Placements, record_world, segments_of};
use proptest::prelude::*;
use splitcore_core::cluster::Cluster;
use splitcore_core::error::Applied;
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent};
use splitcore_core::time::Time;
use splitcore_record::{LogEnd, Options, Recorder, What, replay, replay_told};

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(20), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_logs_of_any_world_replay_alike(seed in any::<u64>(), segment_bytes in 200_u64..100_000) {
        let folder = Folder::new();
        let told = record_world(folder.path(), seed, segment_bytes);
        let replayed = replay(folder.path()).unwrap();
        prop_assert!(replayed.agrees(), "{:?}", replayed.logs.iter().find(|log| log.difference.is_some()));
        prop_assert!(replayed.logs.iter().all(|log| log.end == LogEnd::Closed && log.run == 1));
        let logs = replayed.logs.iter().map(|log| (log.name.clone(), (log.events, log.actions)));
        prop_assert_eq!(logs.collect::<BTreeMap<_, _>>(), told);
    }
}

#[test]
fn a_segment_is_full_at_the_size_asked_for_and_the_next_begins() {
    let folder = Folder::new();
    Placements::new().record(folder.path(), "c", 100, segments_of(1));
    let log = &replay(folder.path()).unwrap().logs[0];
    // One event each, and the one that follows the last.
    assert_eq!((log.segments, log.events, log.what), (101, 100, Some(What::Cluster)));
    Placements::new().record(folder.path(), "c", 100, segments_of(1 << 20));
    let log = &replay(folder.path()).unwrap().logs[1];
    assert_eq!((log.run, log.segments, log.events), (2, 1, 100));
}

#[test]
fn a_restart_begins_a_log_beside_the_old_one() {
    let folder = Folder::new();
    let mut placements = Placements::new();
    for events in [5, 7, 0] {
        placements.record(folder.path(), "the cluster", events, Options::default());
    }
    Placements::new().record(folder.path(), "b", 3, Options::default());
    let logs = replay(folder.path()).unwrap().logs;
    let found: Vec<_> = logs.iter().map(|log| (log.name.as_str(), log.run, log.events)).collect();
    assert_eq!(found, [("b", 1, 3), ("the cluster", 1, 5), ("the cluster", 2, 7), ("the cluster", 3, 0)]);
}

#[test]
fn the_oldest_segments_go_where_only_so_many_are_kept() {
    let folder = Folder::new();
    Placements::new().record(folder.path(), "c", 30, Options { keep: Some(3), ..segments_of(1) });
    assert_eq!(folder.segments("c").len(), 3);
    let log = &replay(folder.path()).unwrap().logs[0];
    assert_eq!((log.first, log.segments, log.events), (28, 3, 2));
    assert!(log.difference.is_none());
}

#[test]
fn one_log_is_replayed_by_the_name_of_its_folder() {
    let folder = Folder::new();
    Placements::new().record(folder.path(), "a", 4, Options::default());
    Placements::new().record(folder.path(), "b", 6, Options::default());
    let logs = replay(&folder.path().join("b")).unwrap().logs;
    assert_eq!((logs.len(), logs[0].name.as_str(), logs[0].events), (1, "b", 6));
}

#[test]
fn whoever_waits_is_told_of_each_segment_and_may_end_it() {
    let folder = Folder::new();
    Placements::new().record(folder.path(), "a", 5, segments_of(1));
    Placements::new().record(folder.path(), "b", 3, segments_of(1));
    let told = RefCell::new(Vec::new());
    let tell = |done, of| {
        told.borrow_mut().push((done, of));
        done < 8
    };
    let (replayed, whole) = replay_told(folder.path(), &tell).unwrap();
    assert_eq!(told.into_inner(), (1..=8).map(|done| (done, 10)).collect::<Vec<_>>());
    assert!(!whole && replayed.logs.len() == 1);
}

#[test]
fn a_folder_without_logs_is_said_to_be_one() {
    let folder = Folder::new();
    let error = replay(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("expected folders with logs in them (<run>-<event>.log), found none"), "{error}");
    let missing = replay(&folder.path().join("missing")).unwrap_err().to_string();
    assert!(missing.contains("missing: "), "{missing}");
    std::fs::create_dir(folder.path().join("c")).unwrap();
    std::fs::write(folder.path().join("c/notes.txt"), "").unwrap();
    std::fs::write(folder.path().join("c/1.log"), "").unwrap();
    let named = replay(folder.path()).unwrap_err().to_string();
    assert!(named.ends_with("1.log: expected a name like 0001-00000000000000000000.log"), "{named}");
}

/// Records ten events, the fifth of them as `change` would have it.
fn changed(change: impl Fn(&mut Vec<ClusterAction>, &mut bool, &mut Cluster)) -> String {
    let folder = Folder::new();
    let mut placements = Placements::new();
    let mut recorder =
        Recorder::create(folder.path(), "c", &placements.cluster, segments_of(u64::MAX)).unwrap();
    for number in 0..10 {
        let event = ClusterEvent::Arrive(Arrival::new(number, 100, 20));
        placements.tell(None, &event);
        let (mut actions, mut late, mut after) =
            (placements.actions.clone(), false, placements.cluster.clone());
        if number == 5 {
            change(&mut actions, &mut late, &mut after);
        }
        let result = Ok(if late { Applied::Late } else { Applied::Yes });
        recorder.record(Time::from_ns(placements.now), &event, &result, &actions, &after);
    }
    drop(recorder);
    let log = replay(folder.path()).unwrap().logs.remove(0);
    let difference = log.difference.expect("the change is found");
    assert_eq!((log.events, difference.event, difference.now.as_ns()), (5, 5, 8000));
    assert!(difference.happened.starts_with(r#"{"type":"arrive","request":5,"#), "{}", difference.happened);
    let got = difference.replayed.chars().take(27).collect::<String>();
    format!("{}: {} / {got}", difference.part, difference.recorded)
}

#[test]
fn the_first_thing_that_differs_is_named() {
    assert_eq!(changed(|_, late, _| *late = true), "answer: late / applied");
    let placed = r#"/ {"type":"placed","request":"#;
    assert_eq!(changed(|actions, _, _| actions.clear()), format!("action 0: nothing {placed}"));
    let more = |actions: &mut Vec<ClusterAction>, _: &mut bool, _: &mut Cluster| {
        actions.push(ClusterAction::Parked { request: splitcore_core::id::RequestId(9) });
    };
    assert_eq!(changed(more), r#"action 1: {"type":"parked","request":9} / nothing"#);
}

#[test]
fn a_snapshot_that_is_not_what_came_before_it_is_found() {
    let folder = Folder::new();
    let mut placements = Placements::new();
    let mut recorder = Recorder::create(folder.path(), "c", &placements.cluster, segments_of(1)).unwrap();
    for number in 0..10 {
        let event = ClusterEvent::Arrive(Arrival::new(number, 100, 20));
        let before = placements.cluster.clone();
        placements.tell(None, &event);
        let after = if number == 6 { &before } else { &placements.cluster };
        let (now, actions) = (Time::from_ns(placements.now), &placements.actions);
        recorder.record(now, &event, &Ok(Applied::Yes), actions, after);
    }
    drop(recorder);
    let log = replay(folder.path()).unwrap().logs.remove(0);
    let difference = log.difference.expect("the change is found");
    assert_eq!((difference.part.as_str(), difference.event, log.events), ("state", 7, 7));
}

/// What the bindings' tests read, as they cannot record: one log that replays alike, and one of which an action has
/// been left out.
#[test]
fn the_logs_that_other_tests_read_are_those_of_this_version() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings-tests/replay");
    if std::env::var_os("SPLITCORE_BLESS").is_some() {
        let _ = std::fs::remove_dir_all(&dir);
        Placements::new().record(&dir.join("same"), "cluster", 6, segments_of(1000));
        let mut placements = Placements::new();
        let mut recorder =
            Recorder::create(&dir.join("other"), "m 1", &placements.cluster, Options::default()).unwrap();
        for number in 0..3 {
            let event = ClusterEvent::Arrive(Arrival::new(number, 100, 20));
            placements.tell(None, &event);
            let actions = if number == 2 { &[][..] } else { &placements.actions };
            let now = Time::from_ns(placements.now);
            recorder.record(now, &event, &Ok(Applied::Yes), actions, &placements.cluster);
        }
    }
    let hint = "run again with SPLITCORE_BLESS=1 to make them anew";
    let same = replay(&dir.join("same")).unwrap_or_else(|error| panic!("{error}: {hint}")).logs.remove(0);
    assert!(same.difference.is_none() && same.events == 6 && same.segments > 1, "{same:?}: {hint}");
    let other = replay(&dir.join("other")).unwrap_or_else(|error| panic!("{error}: {hint}")).logs.remove(0);
    let found = other.difference.map(|difference| (difference.event, difference.part, difference.recorded));
    assert_eq!(found, Some((2, "action 0".to_owned(), "nothing".to_owned())), "{hint}");
}
