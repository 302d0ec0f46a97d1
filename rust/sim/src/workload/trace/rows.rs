//! The rows of a trace as they are read, and the requests that they come to.

use std::collections::HashMap;

use super::super::{ARRIVAL_MAX_NS, TOKENS_MAX, TraceRequest};
use super::place::{Place, quoted};
use super::{InvalidRows, LaterTurns, Reading, TraceFile};
use crate::SimError;

/// When a row says its request arrives.
pub(super) enum Arrival<'a> {
    /// A time in a field, as text and in nanoseconds.
    At { field: &'a str, text: &'a str, ns: i128 },
    /// Nanoseconds after the turn before in the same session.
    After { session: String, delay_ns: i128 },
    /// It does not.
    Unknown,
}

/// The requests read so far.
pub(super) struct Rows<'a> {
    pub(super) file: &'a str,
    pub(super) reading: &'a Reading,
    /// Arrivals as the file has them, from the first; sorted at the end.
    requests: Vec<(i64, u32, u32)>,
    /// The file's time of the first row.
    first_ns: Option<i128>,
    has_times: Option<bool>,
    /// Of each session the arrival of its last turn. Looked up only.
    sessions: HashMap<String, i128>,
    skipped: u64,
    first_skipped: Option<String>,
    outputs_given: u64,
    later_turns: u64,
    notes: Vec<String>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(file: &'a str, reading: &'a Reading) -> Self {
        Self {
            file,
            reading,
            requests: Vec::new(),
            first_ns: None,
            has_times: None,
            sessions: HashMap::new(),
            skipped: 0,
            first_skipped: None,
            outputs_given: 0,
            later_turns: 0,
            notes: Vec::new(),
        }
    }

    pub(super) fn place(&self, line: u64) -> Place<'a> {
        Place { file: self.file, line }
    }

    /// Whether nothing has been read yet.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.skipped == 0
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Takes what came of a row: what is wrong with it is an error or leaves it out.
    pub(super) fn take(&mut self, row: Result<(), SimError>) -> Result<(), SimError> {
        match (row, self.reading.invalid_rows) {
            (Err(SimError::Input { line, field, expected, got, .. }), InvalidRows::Skip) => {
                self.skipped += 1;
                let told = || format!("line {line}: {field}: expected {expected}, got {got}");
                self.first_skipped.get_or_insert_with(told);
                Ok(())
            }
            (Err(SimError::Input { file, line, field, expected, got }), InvalidRows::Error) => {
                let expected = format!("{expected} (--invalid-rows skip leaves such rows out)");
                Err(SimError::Input { file, line, field, expected, got })
            }
            (other, _) => other,
        }
    }

    /// The length of an answer; where the row has none, what is to be taken instead.
    pub(super) fn output(&mut self, place: Place<'_>, field: &str, text: &str) -> Result<u32, SimError> {
        match self.reading.missing_output {
            Some(tokens) if text.is_empty() || text == "null" => {
                self.outputs_given += 1;
                Ok(tokens)
            }
            None if text.is_empty() => {
                let expected = format!(
                    "a whole number of tokens from 1 to {TOKENS_MAX}, or --missing-output to say how many"
                );
                Err(place.error(field, expected, "nothing"))
            }
            _ => place.tokens(field, text),
        }
    }

    /// Adds a request.
    pub(super) fn push(
        &mut self,
        place: Place<'_>,
        arrival: Arrival<'_>,
        prompt_tokens: u32,
        output_tokens: u32,
    ) -> Result<(), SimError> {
        let (has_time, field, text) = match &arrival {
            Arrival::At { field, text, .. } => (true, *field, *text),
            Arrival::After { .. } => (true, "delay", ""),
            Arrival::Unknown => (false, "timestamp", ""),
        };
        if self.has_times.is_some_and(|others| others != has_time) {
            let expected =
                if has_time { "no time, as in the first row" } else { "a time, as in the first row" };
            return Err(place.error(field, expected, quoted(text)));
        }
        let ns = match arrival {
            Arrival::At { ns, .. } => ns,
            Arrival::After { session, delay_ns } => self.later_turn(place, session, delay_ns)?,
            Arrival::Unknown => 0,
        };
        let first_ns = self.first_ns.unwrap_or(ns);
        let from_first = i64::try_from(ns.saturating_sub(first_ns)).ok();
        let from_first = from_first.filter(|ns| ns.unsigned_abs() <= ARRIVAL_MAX_NS / 2);
        let Some(from_first) = from_first else {
            return Err(place.error(field, "a time within 73 years of the first", quoted(text)));
        };
        self.first_ns = Some(first_ns);
        self.has_times = Some(has_time);
        self.requests.push((from_first, prompt_tokens, output_tokens));
        Ok(())
    }

    /// Enters that a turn of a session arrives now; the next may count from it.
    pub(super) fn turn(&mut self, session: String, ns: i128) {
        self.sessions.insert(session, ns);
    }

    fn later_turn(&mut self, place: Place<'_>, session: String, delay_ns: i128) -> Result<i128, SimError> {
        if self.reading.later_turns == LaterTurns::Error {
            let expected = "a time for every row; --later-turns after-arrival lets a turn arrive its delay after the turn \
                            before arrived";
            return Err(place.error("timestamp", expected, "a delay"));
        }
        let Some(&before) = self.sessions.get(&session) else {
            return Err(place.error("delay", "a turn before it in its session", quoted(&session)));
        };
        let ns = before.saturating_add(delay_ns);
        self.sessions.insert(session, ns);
        self.later_turns += 1;
        Ok(ns)
    }

    /// All of them, by arrival, the first at 0 or at its own time.
    pub(super) fn into_trace(mut self) -> Result<TraceFile, SimError> {
        if self.requests.is_empty() {
            let got = self.first_skipped.map_or_else(|| "none".into(), |first| format!("none ({first})"));
            return Err(Place { file: self.file, line: 1 }.error("file", "at least one request", got));
        }
        self.tell_skipped();
        self.sort();
        let first = self.requests.first().map_or(0, |request| request.0);
        let start_ns = if self.reading.own_times { self.own_start(first)? } else { 0 };
        let request = |(ns, prompt_tokens, output_tokens): (i64, u32, u32)| TraceRequest {
            arrival_ns: start_ns + ns.abs_diff(first),
            prompt_tokens,
            output_tokens,
        };
        Ok(TraceFile {
            requests: self.requests.into_iter().map(request).collect(),
            has_times: self.has_times == Some(true),
            notes: self.notes,
        })
    }

    /// The file's own time of the request that comes first.
    fn own_start(&self, from_first: i64) -> Result<u64, SimError> {
        let own_ns = self.first_ns.unwrap_or(0) + i128::from(from_first);
        u64::try_from(own_ns).ok().filter(|&ns| ns <= ARRIVAL_MAX_NS / 4).ok_or_else(|| {
            let expected = "times from 0 to 36 years, where the file's own are to be kept";
            Place { file: self.file, line: 1 }.error("timestamp", expected, quoted(&format!("{own_ns} ns")))
        })
    }

    fn tell_skipped(&mut self) {
        let Self { file, skipped, outputs_given, later_turns, .. } = *self;
        if let Some(first) = self.first_skipped.take() {
            let all = skipped + self.requests.len() as u64;
            self.notes.push(format!(
                "{file}: {skipped} of {all} rows are no requests and left out, the first in {first}"
            ));
        }
        if outputs_given > 0 {
            self.notes.push(format!(
                "{file}: {outputs_given} answers have the length that was given for all without one"
            ));
        }
        if later_turns > 0 {
            self.notes.push(format!(
                "{file}: {later_turns} later turns arrive their delay after the turn before arrived; that clients wait \
                 for answers is not simulated"
            ));
        }
    }

    fn sort(&mut self) {
        let (mut latest, mut back, mut most_back) = (i64::MIN, 0_u64, 0);
        for &(ns, ..) in &self.requests {
            if ns < latest {
                back += 1;
                most_back = most_back.max(latest.abs_diff(ns));
            }
            latest = latest.max(ns);
        }
        if back > 0 {
            self.requests.sort_by_key(|request| request.0);
            let (file, seconds) = (self.file, most_back as f64 / 1e9);
            self.notes.push(format!(
                "{file}: {back} rows are earlier than one before them, by {seconds} s at most; sorted"
            ));
        }
    }
}
