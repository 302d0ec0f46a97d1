//! `docs/scenarios.md` against the tests: every id once, every test named there is there, and the other way round.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The ids, which are stable and not contiguous.
const IDS: [(char, &[u32]); 5] = [
    ('S', &[1, 2, 3, 4, 5, 7, 8, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]),
    ('K', &[1, 2, 4, 5, 7, 8, 10, 11, 13, 14]),
    ('T', &[1, 2, 3, 5, 6, 7, 8, 10, 12, 13, 14]),
    ('D', &[1, 2, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21, 22]),
    ('M', &[1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15, 16]),
];

/// Files whose every test is named after a row.
const FILES: [&str; 5] = [
    "rust/core/tests/scenarios/blocks.rs",
    "rust/core/tests/scenarios/layouts.rs",
    "rust/core/tests/scenarios/scheduler.rs",
    "rust/core/tests/scenarios/transfer.rs",
    "rust/sim/tests/scenarios.rs",
];

/// A row of the page.
#[derive(Debug)]
struct Row {
    section: String,
    /// Files from the root of the project, and functions.
    tests: Vec<(String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The tests a line names as `file::function`.
fn tests_of(line: &str) -> Vec<(String, String)> {
    let quoted = line.split('`').skip(1).step_by(2);
    let pairs = quoted.filter_map(|text| text.split_once("::"));
    let place = |file: &str| {
        if file.contains('/') { file.to_owned() } else { format!("rust/core/tests/scenarios/{file}") }
    };
    pairs.map(|(file, function)| (place(file), function.to_owned())).collect()
}

/// The rows of the page by id.
fn rows() -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    let mut section = String::new();
    for line in read("docs/scenarios.md").lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        }
        let Some(id) = line.strip_prefix("| ").and_then(|rest| rest.split(" |").next()) else { continue };
        if id.starts_with(|letter: char| letter.is_ascii_uppercase()) {
            let row = Row { section: section.clone(), tests: tests_of(line) };
            assert!(rows.insert(id.to_owned(), row).is_none(), "{id} stands there twice");
        }
    }
    rows
}

/// Names of the functions a file marks as tests.
fn tests_in(path: &str) -> Vec<String> {
    let text = read(path);
    let marked = text.split("#[test]").skip(1);
    let name = |after: &str| after.split("fn ").nth(1)?.split('(').next().map(str::to_owned);
    marked.filter_map(name).collect()
}

#[test]
fn every_scenario_stands_on_the_page_once() {
    let all =
        IDS.iter().flat_map(|(group, numbers)| numbers.iter().map(move |number| format!("{group}{number}")));
    let mut expected: Vec<String> = all.collect();
    expected.sort_unstable();
    let rows = rows();
    assert_eq!(rows.keys().cloned().collect::<Vec<_>>(), expected);
    let waived = rows.values().filter(|row| row.section == "Waived").count();
    assert!(waived <= 5, "{waived} are waived");
    for (id, row) in rows {
        let is_waived = row.section == "Waived";
        assert_eq!(row.tests.is_empty(), is_waived, "{id}: {row:?}");
        assert!(is_waived || row.section.starts_with(&id[..1]), "{id} stands under {}", row.section);
    }
}

#[test]
fn every_test_on_the_page_exists() {
    for (id, row) in rows() {
        for (file, function) in row.tests {
            let text = read(&file);
            let is_there = ["fn", "def"].iter().any(|word| text.contains(&format!("{word} {function}(")));
            assert!(is_there, "{id}: {file} has no {function}");
        }
    }
}

#[test]
fn every_scenario_test_is_on_the_page_under_its_id() {
    let rows = rows();
    for file in FILES {
        let tests = tests_in(file);
        assert!(tests.len() > 5, "only {} tests found in {file}: the scan is broken", tests.len());
        for test in tests {
            let id = test.split('_').next().unwrap_or_default().to_uppercase();
            let row = rows.get(&id).unwrap_or_else(|| panic!("{file}: {test} is named after no row"));
            assert!(row.tests.contains(&(file.to_owned(), test.clone())), "{id} does not name {test}");
        }
    }
}
