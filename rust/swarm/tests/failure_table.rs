//! `docs/failures.md` says what the code says: its tables are made from it. `BLESS=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use splitcore_core::config::{ClusterConfig, MachineConfig};
use splitcore_core::leg::LegState;
use splitcore_swarm::failures::{Cell, Failure, Handling, Part, cell, legal, name};

const TESTS: &str = "../rust/core/tests/failures";

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/failures.md")
}

fn duration(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        _ if ns.is_multiple_of(1_000_000_000) => format!("{} s", ns / 1_000_000_000),
        _ => format!("{} ms", ns as f64 / 1e6),
    }
}

/// Every wait that a clock ends, with its option and default.
fn waits() -> String {
    let (cluster, machine) =
        (ClusterConfig::default(), MachineConfig { blocks: 1, ..MachineConfig::default() });
    let limit = |ns: Option<u64>| ns.map_or_else(|| "none".to_owned(), duration);
    let rows = [
        (
            "a machine without a session",
            "Cluster `rejoin_limit_ns`",
            duration(cluster.rejoin_limit_ns),
            "it is lost; what it held is placed again",
        ),
        (
            "the streams of a machine without a session",
            "Cluster `hedge_after_ns`",
            limit(cluster.hedge_after_ns),
            "their next attempts begin elsewhere; the machine that is back in time goes on with those that it is ahead with",
        ),
        (
            "a restarted Cluster for its machines",
            "Cluster `grace_ns`",
            duration(cluster.grace_ns),
            "what has not registered is lost; placing begins",
        ),
        (
            "a machine for a Cluster",
            "Machine `orphan_limit_ns`",
            limit(machine.orphan_limit_ns),
            "it drops everything it holds",
        ),
        (
            "a transfer to end, from when it could",
            "Machine `transfer_limit_ns`",
            limit(machine.transfer_limit_ns),
            "it is stopped and has failed; if it does not stop, as long again: the leg is taken back (`Relief`)",
        ),
        (
            "a handoff to go on",
            "Cluster `park_limit_ns`",
            duration(cluster.park_limit_ns),
            "the request is taken back and placed as one leg; no fault",
        ),
        (
            "work for room on its machine, where nothing else runs",
            "Machine `park_limit_ns`",
            duration(machine.park_limit_ns),
            "the oldest leg is taken back (`Relief`); no fault",
        ),
        (
            "a second leg without a machine for room on one",
            "Cluster `retry_interval_ns`",
            duration(cluster.retry_interval_ns),
            "it is tried again, as with every report and every release; waiting for memory fails no request",
        ),
        (
            "a parked request for a machine that can hold it, where none is known",
            "Cluster `unplaceable_limit_ns`",
            duration(cluster.unplaceable_limit_ns),
            "it ends as unplaceable; whenever machines come or change it is tried again",
        ),
        (
            "a machine that was set aside for another try",
            "Cluster `aside_ns`",
            duration(cluster.aside_ns),
            "pairs are made with it again; one more failed transfer sets it aside again",
        ),
        (
            "a report for a further one",
            "Cluster `report_limit_ns`",
            duration(cluster.report_limit_ns),
            "what was booked on the machine counts again",
        ),
        (
            "a placement that nobody renews (embedders only)",
            "Cluster `lease_ns`",
            limit(cluster.lease_ns),
            "the request ends as expired",
        ),
    ];
    let mut text = "| who waits for what | option | default | then |\n| --- | --- | --- | --- |\n".to_owned();
    for (wait, option, default, then) in rows {
        let _ = writeln!(text, "| {wait} | {option} | {default} | {then} |");
    }
    text
}

/// Other thresholds that decide about failures.
fn limits() -> String {
    let (cluster, machine) =
        (ClusterConfig::default(), MachineConfig { blocks: 1, ..MachineConfig::default() });
    let quarantine = f64::from(machine.quarantine_limit_permille) / 10.0;
    format!(
        "| option | default | what it bounds |\n| --- | --- | --- |\n\
         | Cluster `attempts_max` | {} | faults of a request: with the last of them it ends as `attempts_max` |\n\
         | Cluster `transfer_failures_max` | {} | failed transfers in a row: with so many a machine is set aside |\n\
         | Cluster `requests_max` | {} | live requests |\n\
         | Machine `evictions_max` | {} | evictions of a request after which it is spared while others can give way |\n\
         | Machine `quarantine_limit_permille` | {quarantine} % | blocks in quarantine; with more it gets no new work |\n",
        cluster.attempts_max, cluster.transfer_failures_max, cluster.requests_max, machine.evictions_max,
    )
}

/// The states that play a part.
fn parts() -> String {
    let mut text = "| part | KV | states |\n| --- | --- | --- |\n".to_owned();
    let parts = [
        (Part::Unsent, "being made, or here"),
        (Part::Sending, "here; copied on"),
        (Part::Stopping, "here; a copy is being given up"),
        (Part::Handed, "at the destination"),
        (Part::Closing, "of no use any more"),
        (Part::Whole, "here"),
        (Part::Awaiting, "at the source"),
        (Part::Landed, "here"),
        (Part::Quarantined, "of no use any more here"),
    ];
    for (part, kv) in parts {
        let of: Vec<String> = legal().filter(|&state| Part::of(state) == Some(part)).map(name).collect();
        let _ = writeln!(text, "| {} | {kv} | {} |", format!("{part:?}").to_lowercase(), of.join("; "));
    }
    text
}

/// One section for each failure; states with the same answer share a row.
fn table() -> String {
    let mut text = String::new();
    for failure in Failure::ALL {
        let mut rows: Vec<(Handling, Vec<LegState>)> = Vec::new();
        let mut never: Vec<(&str, Vec<LegState>)> = Vec::new();
        for state in legal() {
            match cell(state, failure) {
                Cell::Handled(row) => match rows.iter_mut().find(|(other, _)| *other == row) {
                    Some((_, states)) => states.push(state),
                    None => rows.push((row, vec![state])),
                },
                Cell::CannotBe(why) => match never.iter_mut().find(|(other, _)| *other == why) {
                    Some((_, states)) => states.push(state),
                    None => never.push((why, vec![state])),
                },
            }
        }
        let title = failure.name();
        let _ = writeln!(text, "### {}{}\n\n{}\n", title[..1].to_uppercase(), &title[1..], failure.about());
        text += "| leg | what is done | who frees what | the client sees | test |\n| --- | --- | --- | --- | --- |\n";
        for (row, states) in rows {
            let (file, function) = row.test.split_once("::").unwrap();
            let states: Vec<String> = states.into_iter().map(name).collect();
            let (states, link) = (states.join("; "), format!("[{function}]({TESTS}/{file}.rs)"));
            let _ = writeln!(text, "| {states} | {} | {} | {} | {link} |", row.action, row.frees, row.client);
        }
        for (why, states) in never {
            let states: Vec<String> = states.into_iter().map(name).collect();
            let _ = writeln!(text, "| {} | cannot be: {why} | | | |", states.join("; "));
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

/// The text with what stands between two marks replaced.
fn replaced(text: &str, mark: &str, with: &str) -> String {
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no mark {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no mark {end}"));
    format!("{before}{begin}\n{with}\n{end}{after}")
}

#[test]
fn the_document_says_what_the_code_says() {
    let path = document();
    let text = std::fs::read_to_string(&path).unwrap();
    let mut made = text.clone();
    for (mark, with) in [("parts", parts()), ("waits", waits()), ("limits", limits()), ("table", table())] {
        made = replaced(&made, mark, &with);
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    } else if made != text {
        let differs = made.lines().zip(text.lines()).find(|(made, text)| made != text);
        panic!("docs/failures.md is not what the code says; BLESS=1 writes it anew. First: {differs:?}");
    }
}

#[test]
fn every_legal_state_has_a_part_and_a_cell_for_every_failure() {
    let states: Vec<LegState> = legal().collect();
    assert_eq!(states.len(), 19);
    let can = |failure: Failure| {
        states.iter().filter(|&&state| matches!(cell(state, failure), Cell::Handled(_))).count()
    };
    let counts: Vec<usize> = Failure::ALL.into_iter().map(can).collect();
    assert_eq!(counts, [19, 17, 8, 8, 19, 19, 19, 17, 19, 19, 19]);
    let illegal = LegState { compute: splitcore_core::leg::Compute::Done, ..LegState::QUEUED };
    assert!(!illegal.is_legal());
    assert_eq!((Part::of(illegal), illegal.is_legal()), (None, false));
    assert!(matches!(cell(illegal, Failure::Cancel), Cell::CannotBe(_)));
}

#[test]
fn names_of_states_and_failures_are_distinct() {
    let states: std::collections::BTreeSet<String> = legal().map(name).collect();
    let failures: std::collections::BTreeSet<&str> = Failure::ALL.into_iter().map(Failure::name).collect();
    assert_eq!((states.len(), failures.len()), (19, Failure::ALL.len()));
}
