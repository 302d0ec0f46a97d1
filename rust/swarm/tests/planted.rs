//! The swarm can fail: each bug of `planted/list.rs`, planted in a copy of the core, is found within 200 seeds.
//!
//! `PLANTED=name,name` plants only those. `-- --nocapture` shows which seed found each, and what was said. `BLESS=1`
//! writes the table in `docs/failures.md` anew.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]
#![allow(clippy::print_stdout, reason = "a test that shows what was found")]

#[path = "planted/list.rs"]
mod list;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use list::{BUGS, Bug};

/// A planted bug must be found within so many seeds.
const SEEDS: u64 = 200;

/// Builds that run side by side, each with a copy of its own.
const COPIES: usize = 2;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A copy of the two crates, without anything from a registry.
struct Copy {
    root: PathBuf,
}

impl Copy {
    fn new(number: usize) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("planted-{number}"));
        let from = repository();
        let workspace = fs::read_to_string(from.join("Cargo.toml")).unwrap();
        // Quick to build, and with every assertion on. The copies are old code with something wrong in it: no lints.
        let workspace = format!(
            "[workspace]\nresolver = \"3\"\nmembers = [\"rust/core\", \"rust/swarm\"]\n\n\
             [workspace.package]\n{}\n\
             [workspace.dependencies]\nsplitcore-core = {{ path = \"rust/core\" }}\n\n\
             [workspace.lints.rust]\nwarnings = \"allow\"\nunexpected_cfgs = \"allow\"\n\n\
             [profile.dev]\nopt-level = 1\ndebug = false\ndebug-assertions = true\noverflow-checks = true\n",
            section(&workspace, "workspace.package"),
        );
        write(&root.join("Cargo.toml"), &workspace);
        for member in ["rust/core", "rust/swarm"] {
            let manifest = fs::read_to_string(from.join(member).join("Cargo.toml")).unwrap();
            let dependencies = section(&manifest, "dependencies");
            let own = dependencies.lines().filter(|line| line.starts_with("splitcore-"));
            let manifest = format!(
                "[package]\n{}\n[dependencies]\n{}\n\n[lints]\nworkspace = true\n",
                section(&manifest, "package"),
                own.collect::<Vec<_>>().join("\n"),
            );
            write(&root.join(member).join("Cargo.toml"), &manifest);
        }
        for sources in ["rust/core/src", "rust/swarm/src", "rust/swarm/examples"] {
            mirror(&from.join(sources), &root.join(sources));
        }
        Self { root }
    }

    fn cargo(&self) -> Output {
        let mut cargo = Command::new(env!("CARGO"));
        // Nothing of the build that this test belongs to.
        for (name, _) in std::env::vars().filter(|(name, _)| {
            name.starts_with("CARGO_PROFILE") || name.starts_with("CARGO_BUILD") || name.contains("RUSTFLAGS")
        }) {
            cargo.env_remove(name);
        }
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", self.target()).env("CARGO_INCREMENTAL", "1");
        cargo.args(["build", "--offline", "--quiet", "-p", "splitcore-swarm", "--example", "swarm"]);
        cargo.output().unwrap()
    }

    fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// What the swarm finds in the copy as it is: a seed, and what it said.
    fn find(&self) -> Result<Option<(u64, String)>, String> {
        let built = self.cargo();
        if !built.status.success() {
            return Err(format!("does not build:\n{}", String::from_utf8_lossy(&built.stderr)));
        }
        let mut swarm = Command::new(self.target().join("debug/examples/swarm"));
        let ran = swarm
            .args(["--first", "--from", "0", "--seeds", &SEEDS.to_string(), "--jobs", "2"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        match ran.status.code() {
            Some(0) => Ok(None),
            Some(1) => {
                let (_, failed) = said.rsplit_once("\nseed ").unwrap_or_else(|| panic!("{said}"));
                let (seed, what) = failed.split_once(": ").unwrap();
                Ok(Some((seed.parse().unwrap(), short(what))))
            }
            _ => Err(format!("ends with {}:\n{}", ran.status, String::from_utf8_lossy(&ran.stderr))),
        }
    }

    /// The same with one bug in it.
    fn find_planted(&self, bug: &Bug) -> Result<Option<(u64, String)>, String> {
        let path = self.root.join("rust/core/src").join(bug.file);
        let Ok(right) = fs::read_to_string(&path) else { return Err(format!("there is no {}", bug.file)) };
        let places = right.matches(bug.right).count();
        if places != 1 {
            return Err(format!("what it changes stands {places} times in {}, not once", bug.file));
        }
        write(&path, &right.replace(bug.right, bug.wrong));
        let found = self.find();
        write(&path, &right);
        found
    }
}

/// The lines under a header of a manifest.
fn section<'a>(manifest: &'a str, name: &str) -> &'a str {
    let (_, rest) = manifest.split_once(&format!("[{name}]\n")).unwrap_or_else(|| panic!("no [{name}]"));
    rest.split("\n[").next().unwrap()
}

/// Writes a file, unless it says that already: what has not changed is not built again.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Makes a folder like another.
fn mirror(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(to).unwrap() {
        let entry = entry.unwrap();
        if !from.join(entry.file_name()).exists() {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
    }
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() {
            mirror(&path, &to);
        } else {
            write(&to, &fs::read_to_string(path).unwrap());
        }
    }
}

/// The first words of what the swarm said, without the place in its sources.
fn short(what: &str) -> String {
    let said = what.split_once(":\n").map_or(what, |(_, said)| said);
    let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    said.chars().take(150).collect()
}

/// The bugs to plant now, and whether that is all of them.
fn chosen() -> (Vec<&'static Bug>, bool) {
    let Ok(names) = std::env::var("PLANTED") else { return (BUGS.iter().collect(), true) };
    let named =
        |name| BUGS.iter().find(|bug| bug.name == name).unwrap_or_else(|| panic!("PLANTED: no {name}"));
    (names.split(',').map(named).collect(), false)
}

type Found = (&'static str, Result<Option<(u64, String)>, String>);

/// Plants bugs until none is left.
fn plant(copy: &Copy, left: &Mutex<Vec<&'static Bug>>, found: &Mutex<Vec<Found>>) {
    loop {
        let Some(bug) = left.lock().unwrap().pop() else { return };
        let result = copy.find_planted(bug);
        match &result {
            Ok(Some((seed, said))) => println!("{}: seed {seed}: {said}", bug.name),
            Ok(None) => println!("{}: NOT FOUND ({})", bug.name, bug.what),
            Err(error) => println!("{}: {error}", bug.name),
        }
        found.lock().unwrap().push((bug.name, result));
    }
}

#[test]
fn every_planted_bug_is_found() {
    let (mut bugs, all) = chosen();
    bugs.reverse();
    let (left, found) = (Mutex::new(bugs), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for number in 0..COPIES {
            let (left, found) = (&left, &found);
            scope.spawn(move || {
                let copy = Copy::new(number);
                if number == 0 {
                    assert_eq!(copy.find(), Ok(None), "nothing is planted");
                }
                plant(&copy, left, found);
            });
        }
    });
    let found = found.into_inner().unwrap();
    let mut failed: Vec<String> = Vec::new();
    for (name, result) in &found {
        match result {
            Ok(Some(_)) => {}
            Ok(None) => failed.push(format!("{name}: not found within {SEEDS} seeds")),
            Err(error) => failed.push(format!("{name}: an error of the list: {error}")),
        }
    }
    assert!(failed.is_empty(), "{} planted bugs:\n{}", failed.len(), failed.join("\n"));
    if all && std::env::var_os("BLESS").is_some() {
        bless(&found);
    }
}

const MARKS: [&str; 2] = ["<!-- planted -->\n", "<!-- /planted -->"];

fn document() -> (PathBuf, String) {
    let path = repository().join("docs/failures.md");
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

fn between_marks(text: &str) -> (&str, &str, &str) {
    let (before, rest) = text.split_once(MARKS[0]).unwrap();
    let (table, after) = rest.split_once(MARKS[1]).unwrap();
    (before, table, after)
}

fn bless(found: &[Found]) {
    let (path, text) = document();
    let (before, _, after) = between_marks(&text);
    let mut table = "| bug | what is wrong | found after |\n| --- | --- | --- |\n".to_owned();
    for bug in BUGS {
        let at = found.iter().find_map(|(name, result)| match result {
            Ok(Some((seed, _))) if *name == bug.name => Some(seed + 1),
            _ => None,
        });
        let seeds = at.unwrap();
        let many = if seeds == 1 { "" } else { "s" };
        let _ = writeln!(table, "| {} | {} | {seeds} seed{many} |", bug.name, bug.what);
    }
    fs::write(&path, format!("{before}{}\n{table}\n{}{after}", MARKS[0], MARKS[1])).unwrap();
}

/// Which seed finds a bug changes with every change of a world; that it lies within the bound that the page and the test
/// above state does not.
#[test]
fn the_document_lists_every_planted_bug_within_the_bound() {
    if std::env::var_os("BLESS").is_some() {
        return;
    }
    let (_, text) = document();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(
        words.join(" ").contains(&format!("within {SEEDS} one must fail")),
        "the page states another bound"
    );
    let rows = between_marks(&text).1.lines().filter(|line| line.starts_with("| ")).skip(2);
    let rows: Vec<(&str, &str)> = rows.map(|row| row.rsplit_once(" | ").unwrap()).collect();
    let listed: Vec<String> = BUGS.iter().map(|bug| format!("| {} | {}", bug.name, bug.what)).collect();
    let named: Vec<&str> = rows.iter().map(|(bug, _)| *bug).collect();
    assert_eq!(named, listed, "BLESS=1 writes docs/failures.md anew");
    for (bug, found) in rows {
        let seeds: u64 = found.split(' ').next().and_then(|number| number.parse().ok()).unwrap();
        assert!(seeds <= SEEDS, "{bug}: the page says {found}");
    }
}

#[test]
fn planted_bugs_have_distinct_names_and_change_something() {
    let names: std::collections::BTreeSet<&str> = BUGS.iter().map(|bug| bug.name).collect();
    assert_eq!(names.len(), BUGS.len());
    assert!(BUGS.iter().all(|bug| bug.right != bug.wrong && !bug.right.is_empty()));
}
