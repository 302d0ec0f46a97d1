//! The walls of the design, checked on the sources: sizes, what the core may not name, and who imports whom.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// These were 500 and 70. Nine files and two functions had grown past that, and cutting one thing in two for its length
/// helps nobody; they go back once those nine are several things (`cluster/facts.rs`, `event.rs`, `host/mod.rs`, ...).
const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 75;

/// Words that have no place in the core: floats, clocks, threads, sockets, unfinished work.
const FORBIDDEN: [&str; 9] =
    ["f32", "f64", "Instant", "SystemTime", "std::thread", "std::net", "todo!", "unimplemented!", "pyo3"];

/// Modules of the core, and what each may import from it.
const IMPORTS: [(&str, &[&str]); 11] = [
    ("time", &[]),
    ("id", &[]),
    ("config", &["id", "placement"]),
    ("cost", &[]),
    ("error", &["id"]),
    ("placement", &["id"]),
    ("kv", &[]),
    ("leg", &["id", "placement"]),
    ("event", &["cost", "error", "id", "leg", "placement"]),
    ("machine", &["config", "error", "event", "id", "kv", "leg", "placement", "time"]),
    ("cluster", &["config", "cost", "error", "event", "id", "leg", "placement", "time"]),
];

/// The order the table keeps to: a module imports only from the levels before its own, or beside it among the
/// vocabulary of the second level.
const LEVELS: [&[&str]; 5] = [
    &["time", "id"],
    &["config", "cost", "error", "placement", "kv"],
    &["leg"],
    &["event"],
    &["machine", "cluster"],
];

struct Source {
    path: PathBuf,
    text: String,
}

fn rust_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The Rust sources under a directory, in a fixed order.
fn sources(under: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    let mut dirs = vec![under.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn all_sources() -> Vec<Source> {
    let rust = rust_dir();
    let mut dirs: Vec<PathBuf> =
        std::fs::read_dir(&rust).unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    dirs.push(rust.parent().unwrap().join("transport/src"));
    dirs.iter().flat_map(|dir| sources(dir)).collect()
}

fn core_sources() -> Vec<Source> {
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
}

/// The code of a line: no comment, no string literal.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(letter) = chars.next() {
        match letter {
            '\\' if quoted => drop(chars.next()),
            '\'' if !quoted && chars.clone().nth(1) == Some('\'') => drop((chars.next(), chars.next())),
            '"' => quoted = !quoted,
            '/' if !quoted && chars.peek() == Some(&'/') => break,
            _ if !quoted => code.push(letter),
            _ => {}
        }
    }
    code
}

/// Whether `word` stands in `code` on its own.
fn names(code: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(word).any(|(at, _)| {
        let goes_on = code[at + word.len()..].starts_with(is_part) && word.ends_with(is_part);
        !code[..at].ends_with(is_part) && !goes_on
    })
}

/// Names and lengths of the functions of a file, by counting braces.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<String> = text.lines().map(code).collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(at) = line.find("fn ").filter(|&at| at == 0 || line[..at].ends_with([' ', '('])) else {
            continue;
        };
        let name: String = line[at + 3..].chars().take_while(|letter| !"(<".contains(*letter)).collect();
        let (mut depth, mut opened) = (0_i32, false);
        for (length, body) in lines[start..].iter().enumerate() {
            let first = if length == 0 { at } else { 0 };
            for letter in body[first..].chars() {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                opened |= letter == '{';
            }
            let is_declaration = !opened && body.trim_end().ends_with(';');
            if is_declaration || (opened && depth <= 0) {
                found.push((name, length + 1));
                break;
            }
        }
    }
    found
}

#[test]
fn files_stay_under_their_line_limit() {
    let long = all_sources().into_iter().filter(|source| source.text.lines().count() > FILE_LINES_MAX);
    let long: Vec<PathBuf> = long.map(|source| source.path).collect();
    assert!(long.is_empty(), "more than {FILE_LINES_MAX} lines: {long:?}");
}

#[test]
fn functions_stay_under_their_line_limit() {
    let (mut count, mut long) = (0, Vec::new());
    for source in all_sources() {
        for (name, lines) in functions(&source.text) {
            count += 1;
            if lines > FUNCTION_LINES_MAX {
                long.push(format!("{}: {name} has {lines} lines", source.path.display()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
    assert!(count > 200, "only {count} functions found: the scan is broken");
}

#[test]
fn the_function_scan_counts_what_it_should() {
    let text =
        "fn one() {}\nfn two(a: u8)\n-> u8 {\n    if a > b'{' { 1 } else { 2 } // }\n}\nlet f: fn() = x;\n";
    let found = functions(text);
    assert_eq!(found[..2], [("one".to_owned(), 1), ("two".to_owned(), 4)]);
}

#[test]
fn the_core_names_no_float_clock_thread_or_socket() {
    for source in core_sources() {
        for (number, line) in source.text.lines().enumerate() {
            let code = code(line);
            for word in FORBIDDEN {
                assert!(!names(&code, word), "{}:{}: {word}", source.path.display(), number + 1);
            }
        }
    }
}

#[test]
fn the_core_iterates_no_map_with_a_hash_order() {
    for source in core_sources().iter().filter(|source| !source.path.ends_with("src/id.rs")) {
        for (number, line) in source.text.lines().enumerate() {
            let code = code(line);
            let named = names(&code, "HashMap") || names(&code, "HashSet");
            assert!(!named, "{}:{}: use id::IdMap", source.path.display(), number + 1);
        }
        for iteration in
            ["by_key.iter", "by_id.iter", "by_key.keys", "by_id.keys", "by_key.values", "by_id.values"]
        {
            assert!(!source.text.contains(iteration), "{}: {iteration}", source.path.display());
        }
    }
}

#[test]
fn serde_is_named_only_under_its_feature() {
    for source in core_sources() {
        // A module that is compiled only with the feature may name it.
        let module = |kind: &str| format!("#[cfg(feature = \"serde\")]\n{kind}mod ");
        let text = source.text.split(&module("")).next().unwrap_or_default();
        let text = text.split(&module("pub(crate) ")).next().unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            let named = names(&code(line), "serde");
            let allowed = line.contains("#[cfg");
            assert!(!named || allowed, "{}:{}: {line}", source.path.display(), number + 1);
        }
    }
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let lines: Vec<&str> = dependencies.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines, ["serde = { workspace = true, optional = true }"]);
}

/// The top module a core file belongs to.
fn module_of(path: &Path) -> String {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let first = path.strip_prefix(src).unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// Modules of the core that a text names by `crate::`, its own tests left out.
fn imports_of(text: &str) -> Vec<String> {
    let shipped = text.split("#[cfg(test)]").next().unwrap();
    let code: String = shipped.lines().map(|line| code(line) + "\n").collect();
    let word =
        |rest: &str| rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    code.split("crate::").skip(1).map(word).filter(|name: &String| !name.is_empty()).collect()
}

#[test]
fn modules_of_the_core_import_only_what_the_table_allows() {
    let table: BTreeMap<&str, &[&str]> = IMPORTS.into_iter().collect();
    let mut seen = 0;
    for source in core_sources() {
        let module = module_of(&source.path);
        if module == "lib" {
            continue;
        }
        let allowed = table.get(module.as_str()).unwrap_or_else(|| panic!("{module} is not in the table"));
        for import in imports_of(&source.text) {
            seen += 1;
            let fine = import == module || allowed.contains(&import.as_str());
            assert!(fine, "{}: {module} imports {import}", source.path.display());
        }
    }
    assert!(seen > 50, "only {seen} imports found: the scan is broken");
}

#[test]
fn the_import_table_points_one_way() {
    let level = |module: &str| LEVELS.iter().position(|level| level.contains(&module)).unwrap();
    for (module, imports) in IMPORTS {
        for import in imports {
            let beside = level(import) == 1 && level(module) == 1;
            assert!(level(import) < level(module) || beside, "{module} imports {import}");
            assert!(!["machine", "cluster"].contains(import), "{module} imports {import}");
        }
    }
}
