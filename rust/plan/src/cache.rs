//! Verdicts kept in a file, so that a search that was interrupted goes on and one that is widened reuses what is known.
//!
//! The file is lines of JSON, only ever appended to. The first names the format and the code that made the verdicts:
//! other code may judge otherwise, so its files are refused. Each further line is a probe, a digest of every file that it
//! names, and its verdict. A last line without an end was being written when its process was killed; it is forgotten.
//! Several processes may use one file at once. Each sees what was there when it began, and what it adds itself.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use splitcore_sim::SimError;
use splitcore_sim::report::Digest;
use splitcore_sim::workload::Source;

use crate::probe::{Probe, Verdict};

const FORMAT: &str = "splitcore-cache";
/// Raised whenever lines change.
const FORMAT_VERSION: u32 = 1;

/// Verdicts by probe.
pub struct Cache {
    /// As the user wrote it.
    path: String,
    kept: Mutex<Kept>,
}

struct Kept {
    file: File,
    verdicts: HashMap<Key, Verdict>,
    /// Of files that probes name, with length and time of change of what was read.
    digests: HashMap<String, ((u64, Option<SystemTime>), String)>,
}

/// A probe and the files that it names, as they stand in the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    probe: String,
    files: String,
}

/// A file that a probe names, and its digest; none if it cannot be read.
type FileDigest = (String, Option<String>);

/// The first line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    format: String,
    format_version: u32,
    /// Of the code.
    version: String,
    /// What it was built from, if known.
    commit: Option<String>,
}

/// Every other line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    probe: Probe,
    files: Vec<FileDigest>,
    verdict: Verdict,
}

impl Header {
    fn ours() -> Self {
        Self {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("SPLITCORE_COMMIT").filter(|commit| !commit.is_empty()).map(str::to_owned),
        }
    }

    fn code(&self) -> String {
        let commit = self.commit.as_deref().map_or(String::new(), |commit| format!(" ({commit})"));
        format!("splitcore {}{commit}", self.version)
    }
}

impl Cache {
    /// Opens or begins a file.
    ///
    /// # Errors
    /// A file that cannot be read or written, that is no cache, or whose verdicts are those of other code.
    pub fn open(path: &Path) -> Result<Self, SimError> {
        let name = path.display().to_string();
        let io = |error: std::io::Error| SimError::Io { file: name.clone(), reason: error.to_string() };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        let lock = Lock::of(&file);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let header = json(&Header::ours()) + "\n";
        let mut verdicts = HashMap::new();
        // A beginning without an end is a header that was being written.
        if header.as_bytes().starts_with(&bytes) && bytes.len() < header.len() {
            file.set_len(0).and_then(|()| file.write_all(header.as_bytes())).map_err(io)?;
        } else {
            let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            verdicts = read(&bytes[..end], &name)?;
            if end < bytes.len() {
                file.set_len(end as u64).map_err(io)?;
            }
        }
        drop(lock);
        let kept = Mutex::new(Kept { file, verdicts, digests: HashMap::new() });
        Ok(Self { path: name, kept })
    }

    /// The verdict of a probe judged before, on the same content of the files that it names.
    pub fn get(&self, probe: &Probe) -> Option<Verdict> {
        self.get_key(&self.key(probe))
    }

    /// Keeps a verdict; it is in the file when this returns.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn put(&self, probe: &Probe, verdict: &Verdict) -> Result<(), SimError> {
        self.put_key(self.key(probe), verdict)
    }

    pub(crate) fn key(&self, probe: &Probe) -> Key {
        let mut kept = self.kept();
        let files: Vec<FileDigest> = files(probe)
            .into_iter()
            .map(|path| {
                let digest = kept.digest(&path);
                (path, digest)
            })
            .collect();
        Key { probe: probe.key(), files: json(&files) }
    }

    pub(crate) fn get_key(&self, key: &Key) -> Option<Verdict> {
        self.kept().verdicts.get(key).cloned()
    }

    pub(crate) fn put_key(&self, key: Key, verdict: &Verdict) -> Result<(), SimError> {
        let Key { probe, files } = &key;
        let line = format!("{{\"probe\":{probe},\"files\":{files},\"verdict\":{}}}\n", json(verdict));
        let mut kept = self.kept();
        let written = append(&mut kept.file, line.as_bytes());
        written.map_err(|error| SimError::Io { file: self.path.clone(), reason: error.to_string() })?;
        kept.verdicts.insert(key, verdict.clone());
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No panic leaves it half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Read anew when the file has changed.
    fn digest(&mut self, path: &str) -> Option<String> {
        let facts = std::fs::metadata(path).ok()?;
        let stamp = (facts.len(), facts.modified().ok());
        if let Some((known, digest)) = self.digests.get(path)
            && *known == stamp
        {
            return Some(digest.clone());
        }
        let digest = digest(&std::fs::read(path).ok()?);
        self.digests.insert(path.to_owned(), (stamp, digest.clone()));
        Some(digest)
    }
}

/// The paths that a probe names.
fn files(probe: &Probe) -> BTreeSet<String> {
    let options = &probe.options;
    let ours = options.classes.iter().filter_map(|class| class.trace.as_ref());
    let judged = probe.slo.classes.iter().filter_map(|class| class.traffic.trace.as_ref());
    let traces = std::iter::once(&options.trace).chain(ours).chain(judged);
    let traces = traces.filter(|trace| matches!(Source::from(trace.as_str()), Source::File(_)));
    traces.chain(&options.profile).chain(&options.tokenizer).cloned().collect()
}

fn digest(bytes: &[u8]) -> String {
    let mut digest = Digest::new();
    digest.fold(bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        digest.fold(u64::from_le_bytes(word));
    }
    digest.to_string()
}

fn json(value: &impl Serialize) -> String {
    // Strings, numbers and lists of them: nothing that could fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// One call for the whole line, after whatever other processes have written.
fn append(file: &mut File, line: &[u8]) -> std::io::Result<()> {
    let _lock = Lock::of(file);
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        cut(file)?;
    }
    file.write_all(line)
}

/// Takes away the line that another process was killed in.
#[cold]
fn cut(file: &mut File) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    file.set_len(bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1) as u64)
}

/// All lines of a file, each with its end.
fn read(bytes: &[u8], file: &str) -> Result<HashMap<Key, Verdict>, SimError> {
    let wrong = |line: usize, field: &str, expected: String, got: String| SimError::Input {
        file: file.to_owned(),
        line: line as u64 + 1,
        field: field.to_owned(),
        expected,
        got,
    };
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n').enumerate();
    let header = lines.next().and_then(|(_, line)| serde_json::from_slice::<Header>(line).ok());
    let Some(header) = header.filter(|header| header.format == FORMAT) else {
        let expected = format!("a `{FORMAT}` of verdicts; choose another file");
        return Err(wrong(0, "format", expected, "something else".to_owned()));
    };
    let ours = Header::ours();
    if header != ours {
        let expected = format!("verdicts of {}; choose another file or delete this one", ours.code());
        let got = format!("those of {}, format {}", header.code(), header.format_version);
        return Err(wrong(0, "version", expected, got));
    }
    let mut verdicts = HashMap::new();
    for (at, line) in lines {
        let Line { probe, files, verdict } =
            serde_json::from_slice(line.trim_ascii_end()).map_err(|error| {
                // Its own count of lines is that within this one.
                let told = error.to_string();
                let told = told.split(" at line ").next().unwrap_or_default();
                let got = format!("{told} at column {}", error.column());
                wrong(at, "line", "a probe and its verdict".to_owned(), got)
            })?;
        verdicts.insert(Key { probe: probe.key(), files: json(&files) }, verdict);
    }
    Ok(verdicts)
}

/// While it lives, no other process writes or cuts; where a file system has no locks, this is as good as it gets.
struct Lock {
    #[cfg(unix)]
    file: Option<File>,
}

impl Lock {
    #[cfg(unix)]
    fn of(file: &File) -> Self {
        let file = file.try_clone().ok();
        if let Some(file) = &file {
            let exclusive = rustix::fs::FlockOperation::LockExclusive;
            let _ = rustix::io::retry_on_intr(|| rustix::fs::flock(file, exclusive));
        }
        Self { file }
    }

    #[cfg(not(unix))]
    fn of(_: &File) -> Self {
        Self {}
    }
}

#[cfg(unix)]
impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests;
