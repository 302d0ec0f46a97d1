//! Where logs lie: names of folders and files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::ReplayError;

const EXTENSION: &str = ".log";

/// A recorder's name as that of a folder. Letters, digits, `_`, `-` and inner dots stay; every other byte becomes
/// `%` and two digits, so different names never share a folder.
pub(crate) fn escape(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    let mut escaped = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => escaped.push(char::from(byte)),
            b'.' if at > 0 => escaped.push('.'),
            _ => {
                let _ = write!(escaped, "%{byte:02x}");
            }
        }
    }
    escaped
}

/// The name of a folder as its recorder was given it; one that is none of ours stands for itself.
pub(crate) fn unescape(folder: &str) -> String {
    if folder == "%" {
        return String::new();
    }
    let mut bytes = Vec::with_capacity(folder.len());
    let mut rest = folder.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(coded) if byte == b'%' => {
                bytes.push(coded);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    let name = String::from_utf8(bytes).ok();
    name.filter(|name| escape(name) == folder).unwrap_or_else(|| folder.to_owned())
}

/// The name of a segment's file.
pub(crate) fn segment_name(run: u32, first: u64) -> String {
    format!("{run:04}-{first:020}{EXTENSION}")
}

/// Run and first event of a segment's file.
fn parse_name(name: &str) -> Option<(u32, u64)> {
    let (run, first) = name.strip_suffix(EXTENSION)?.split_once('-')?;
    let parsed = (run.parse().ok()?, first.parse().ok()?);
    (segment_name(parsed.0, parsed.1) == name).then_some(parsed)
}

/// The runs in a recorder's folder: the segments of each by their first events. Other files are none of ours.
pub(crate) type Runs = BTreeMap<u32, BTreeMap<u64, PathBuf>>;

/// Reads a recorder's folder.
pub(crate) fn runs(folder: &Path) -> Result<Runs, ReplayError> {
    let mut runs = Runs::new();
    for path in entries(folder)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.ends_with(EXTENSION) || path.is_dir() {
            continue;
        }
        let Some((run, first)) = parse_name(&name) else { return Err(ReplayError::Name { path }) };
        runs.entry(run).or_default().insert(first, path);
    }
    Ok(runs)
}

/// The recorders' folders under `dir`, by name; `dir` itself where it is one.
pub(crate) fn names(dir: &Path) -> Result<BTreeMap<String, Runs>, ReplayError> {
    let name_of =
        |path: &Path| path.file_name().map(|name| unescape(&name.to_string_lossy())).unwrap_or_default();
    let mut found = BTreeMap::new();
    let here = runs(dir)?;
    if !here.is_empty() {
        found.insert(name_of(dir), here);
        return Ok(found);
    }
    for path in entries(dir)?.into_iter().filter(|path| path.is_dir()) {
        let runs = runs(&path)?;
        if !runs.is_empty() {
            found.insert(name_of(&path), runs);
        }
    }
    if found.is_empty() { Err(ReplayError::NoLogs { path: dir.to_owned() }) } else { Ok(found) }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ReplayError> {
    let read =
        || -> io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
    read().map_err(|source| ReplayError::Read { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_folders_are_plain() {
        let escaped = ["cluster", "gpu-3.rack_1", "../x", "a/b", "", ".", "ü"].map(escape);
        assert_eq!(escaped, ["cluster", "gpu-3.rack_1", "%2e.%2fx", "a%2fb", "%", "%2e", "%c3%bc"]);
        assert_eq!(unescape("old%zz"), "old%zz");
        assert_eq!(unescape("%61"), "%61", "no recorder makes it, so it stands for itself");
    }

    #[test]
    fn names_of_files_are_those_that_recorders_give() {
        assert_eq!(parse_name(&segment_name(3, 70)), Some((3, 70)));
        assert_eq!(parse_name(&segment_name(u32::MAX, u64::MAX)), Some((u32::MAX, u64::MAX)));
        assert_eq!([parse_name("3-70.log"), parse_name("0001-x.log"), parse_name("0001.log")], [None; 3]);
    }

    proptest! {
        #[test]
        fn names_come_back_from_their_folders(name in any::<String>()) {
            let folder = escape(&name);
            prop_assert!(!folder.contains('/') && !folder.starts_with('.') && !folder.is_empty());
            prop_assert_eq!(unescape(&folder), name);
        }
    }
}
