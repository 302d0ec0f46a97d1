//! Another process: this test binary again, which does as its first line of input says.
//!
//! A child tells what it does in lines; a parent may have it killed after so many of them and a little while.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::BOUND;

/// Set in a child.
const CHILD: &str = "SPLITCORE_TEST_CHILD";

/// The test of each binary that is a child's, and nothing in a parent. The name is the same in all binaries.
const ENTRY: &str = "the_other_process_does_as_it_is_told";

/// What ends a child by force: so many lines, and so many turns of a loop after the last of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doom {
    pub(crate) lines: u64,
    pub(crate) turns: u64,
}

/// A child, seen from its parent.
pub(crate) struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    reading: Option<JoinHandle<()>>,
}

impl Child {
    /// Starts a child for a job.
    pub(crate) fn start(job: &Value, doom: Option<Doom>) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([ENTRY, "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&process);
        let mut input = process.stdin.take();
        // A child that is killed this early does not read it.
        let _ = input.as_mut().map(|input| writeln!(input, "{job}"));
        let output = BufReader::new(process.stdout.take().unwrap());
        let (told, lines) = mpsc::channel();
        let reading = std::thread::spawn(move || {
            let mut left = doom.map(|doom| doom.lines);
            let kill = || {
                for _ in 0..doom.map_or(0, |doom| doom.turns) {
                    std::hint::spin_loop();
                }
                // It may have ended by itself, but is not reaped before this thread is joined.
                let _ = kill_process(pid, Signal::KILL);
            };
            if left == Some(0) {
                kill();
            }
            // The harness says things of its own; the child's begin with a mark.
            for line in output.lines().map_while(Result::ok) {
                let Some((_, line)) = line.split_once('@') else { continue };
                let _ = told.send(line.to_owned());
                left = left.map(|left| left.saturating_sub(1));
                if left == Some(0) {
                    kill();
                }
            }
        });
        Self { process, input, lines, reading: Some(reading) }
    }

    /// The next line; `None` when there are no more.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(BOUND) {
            Ok(line) => {
                assert!(!line.starts_with("wrong"), "the child says: {line}");
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("waited {BOUND:?} for a line of the child"),
        }
    }

    /// The rest of the next line that begins with a word; `None` when there is none.
    pub(crate) fn hear(&self, word: &str) -> Option<String> {
        std::iter::from_fn(|| self.line())
            .find_map(|line| line.strip_prefix(word).map(|rest| rest.trim().to_owned()))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Stops it, and waits until it stands still.
    pub(crate) fn stand_still(&self) {
        self.signal(Signal::STOP);
        let path = format!("/proc/{}/stat", self.process.id());
        super::until("the child stands still", || {
            let stat = std::fs::read_to_string(&path).unwrap();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        });
    }

    /// Says a line to it.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Lets it end: no more input comes. What it said last, and how it ended.
    pub(crate) fn finish(&mut self) -> (Vec<String>, ExitStatus) {
        self.input = None;
        let lines = std::iter::from_fn(|| self.line()).collect();
        if let Some(reading) = self.reading.take() {
            reading.join().unwrap();
        }
        (lines, self.process.wait().unwrap())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // After a failed test too, nothing stays behind.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The job, in a child.
pub(crate) fn job() -> Option<Value> {
    std::env::var_os(CHILD)?;
    Some(serde_json::from_str(&said().expect("a job")).expect("a job in JSON"))
}

/// What the parent says next, in a child; `None` when it says no more.
pub(crate) fn said() -> Option<String> {
    let mut line = String::new();
    let count = std::io::stdin().lock().read_line(&mut line).ok()?;
    (count > 0).then(|| line.trim().to_owned())
}

/// Tells the parent.
pub(crate) fn tell(line: &str) {
    let mut output = std::io::stdout().lock();
    // Whoever does not listen any more has what it wanted.
    let _ = writeln!(output, "\n@{line}").and_then(|()| output.flush());
}

/// Tells the parent that it has failed, and ends the child.
pub(crate) fn wrong(what: &str) -> ! {
    tell(&format!("wrong: {what}"));
    std::process::exit(3)
}
