//! What the tests of whole runs share.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod clients;

use std::io::Write as _;
use std::path::PathBuf;

use splitcore_sim::{Options, Report, simulate};

/// The public simulator's link, 200 GiB/s for every machine.
pub const PUBLISHED_LINK: f64 = 214_748_364_800.0;

/// The path of a data file, if it is there.
///
/// The data are not part of the project: they are looked for in `$SPLITCORE_DATA`, then in `../shared/data` beside the
/// repository. Without them the tests that need them say so and pass.
pub fn data(name: &str) -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = std::env::var_os("SPLITCORE_DATA").map_or(beside, PathBuf::from).join(name);
    if !path.is_file() {
        // Written past the test harness, which keeps what a test prints to itself when it passes.
        let _ = writeln!(std::io::stderr(), "skipped: {} is absent (set SPLITCORE_DATA)", path.display());
        return None;
    }
    Some(path)
}

/// A file of this test alone, which goes away with it.
pub struct TempFile(PathBuf);

impl TempFile {
    pub fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("splitcore-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    /// A trace in the public simulator's format: (arrival in seconds, prompt, output).
    pub fn trace(name: &str, rows: &[(f64, u32, u32)]) -> Self {
        let header =
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size";
        let lines = rows
            .iter()
            .enumerate()
            .map(|(id, (arrival_s, prompt, output))| format!("{id},2,0,{arrival_s},1,{prompt},{output}"));
        let text = std::iter::once(header.to_string()).chain(lines).collect::<Vec<_>>().join("\n");
        Self::new(name, &text)
    }

    pub fn path(&self) -> String {
        self.0.to_str().unwrap().to_string()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Machines as a user writes them: `unsplit` alone, or prompt and token.
#[derive(Debug, Clone, Copy)]
pub enum Machines {
    Unsplit(&'static str),
    Split(&'static str, &'static str),
}

/// Options with these machines and everything else as it comes.
pub fn with_machines(machines: Machines) -> Options {
    match machines {
        Machines::Unsplit(all) => Options { unsplit: Some(all.into()), ..Options::default() },
        Machines::Split(prompt, token) => {
            Options { prompt: Some(prompt.into()), token: Some(token.into()), ..Options::default() }
        }
    }
}

/// Options under which the public simulator's results come out.
pub fn as_published(machines: Machines, trace: &str) -> Options {
    Options {
        trace: trace.into(),
        costs: "splitwise-sim".into(),
        transfer: "serialized".into(),
        link_bandwidth: Some(PUBLISHED_LINK),
        contention: false,
        own_times: true,
        ties: "first".into(),
        ..with_machines(machines)
    }
}

/// A run nobody stops.
pub fn run(options: &Options) -> Report {
    simulate(options, &mut |_, _| true).unwrap()
}

/// Relative deviation.
pub fn off(got: f64, want: f64) -> f64 {
    got / want - 1.0
}

#[track_caller]
pub fn assert_near(what: &str, got: f64, want: f64, relative: f64) {
    let off = off(got, want);
    assert!(off.abs() <= relative, "{what}: {got} is {:+.3} % off {want}", 100.0 * off);
}
