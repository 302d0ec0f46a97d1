//! The reading half: every log under a folder is applied once more, and what comes of it is compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use splitcore_core::cluster::Cluster;
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;

use crate::error::ReplayError;
use crate::folder;
use crate::format::{Answer, End, Head, Kind, Read};
use crate::segment::Segment;
use crate::{Recorded, What};

/// What came of a folder of logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// By name and run.
    pub logs: Vec<Log>,
}

impl Replayed {
    /// Whether nothing differs anywhere.
    pub fn agrees(&self) -> bool {
        self.logs.iter().all(|log| log.difference.is_none())
    }
}

/// How a log ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEnd {
    /// Its recorder was dropped.
    Closed,
    /// It just stops: the process was killed, or runs still.
    Open,
    /// The recorder gave up, and why.
    Early(String),
}

/// One run of one recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The name its recorder was given.
    pub name: String,
    /// Which of those under the name.
    pub run: u32,
    /// What was recorded; `None` where the log stops before it says so.
    pub what: Option<What>,
    /// The version that wrote it.
    pub version: String,
    /// When it was begun, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The number of the first event that is still there, from 0.
    pub first: u64,
    /// Files.
    pub segments: u64,
    /// Events that were replayed.
    pub events: u64,
    /// Actions that were compared.
    pub actions: u64,
    /// How it ends.
    pub end: LogEnd,
    /// What differs first, if anything does. What comes after is not looked at.
    pub difference: Option<Difference>,
}

/// Where a replay and its log part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The segment.
    pub path: PathBuf,
    /// The event's number in the run, from 0; at the start of a segment, that of its first.
    pub event: u64,
    /// When it happened.
    pub now: Time,
    /// What happened, as JSON; empty at the start of a segment.
    pub happened: String,
    /// What differs: `state`, `answer`, or `action 3`, counted from 0.
    pub part: String,
    /// What the log has; `nothing` where it has no such action.
    pub recorded: String,
    /// What came of it now.
    pub replayed: String,
}

/// Replays every log under a folder, or that of one recorder in its own.
///
/// # Errors
/// [`ReplayError`] with the first file that cannot be read or is not what was written.
pub fn replay(dir: &Path) -> Result<Replayed, ReplayError> {
    replay_told(dir, &|_, _| true).map(|(replayed, _)| replayed)
}

/// As [`replay`], and tells after each segment how many have been replayed, of how many, and goes on while that is
/// answered with true. Returns the logs that were followed to their ends, and whether that is all of them.
///
/// # Errors
/// As [`replay`].
pub fn replay_told(dir: &Path, tell: &dyn Fn(u64, u64) -> bool) -> Result<(Replayed, bool), ReplayError> {
    let names = folder::names(dir)?;
    let of: usize = names.values().flat_map(|runs| runs.values()).map(BTreeMap::len).sum();
    let (mut logs, mut done) = (Vec::new(), 0);
    for (name, runs) in names {
        for (run, segments) in runs {
            let mut told = || {
                done += 1;
                tell(done, of as u64)
            };
            match replay_run(&name, run, &segments, &mut told)? {
                Some(log) => logs.push(log),
                None => return Ok((Replayed { logs }, false)),
            }
        }
    }
    Ok((Replayed { logs }, true))
}

/// Follows one run; `None` where `told` said that it is enough.
fn replay_run(
    name: &str,
    run: u32,
    segments: &BTreeMap<u64, PathBuf>,
    told: &mut dyn FnMut() -> bool,
) -> Result<Option<Log>, ReplayError> {
    let first = segments.first_key_value().map_or(0, |(&first, _)| first);
    let mut log = Log {
        name: name.to_owned(),
        run,
        what: None,
        version: String::new(),
        unix_ms: 0,
        first,
        segments: 0,
        events: 0,
        actions: 0,
        end: LogEnd::Open,
        difference: None,
    };
    let Some(path) = segments.values().next() else { return Ok(Some(log)) };
    if let Some(head) = read_head(&mut Segment::read(path)?)? {
        (log.name, log.what) = (head.name, Some(head.what));
        (log.version, log.unix_ms) = (head.version, head.unix_ms);
    }
    match log.what {
        Some(What::Cluster) => Walk::<Cluster>::new(log).run(segments, told),
        Some(What::Machine) => Walk::<Machine>::new(log).run(segments, told),
        None => match segments.keys().nth(1) {
            Some(&later) => Err(gap(&segments[&later], first, later)),
            None => Ok(told().then_some(Log { segments: 1, ..log })),
        },
    }
}

fn read_head(segment: &mut Segment) -> Result<Option<Head>, ReplayError> {
    let path = segment.path().to_owned();
    segment.next()?.map(|frame| Segment::decode(&path, frame, Kind::Head)).transpose()
}

fn gap(path: &Path, expected: u64, got: u64) -> ReplayError {
    ReplayError::Gap { path: path.to_owned(), expected, got }
}

/// How far one log has been followed.
struct Walk<M> {
    log: Log,
    state: Option<M>,
    /// The next event's number.
    next: u64,
    ended: bool,
}

impl<M: Recorded> Walk<M> {
    fn new(log: Log) -> Self {
        Self { next: log.first, log, state: None, ended: false }
    }

    fn run(
        mut self,
        segments: &BTreeMap<u64, PathBuf>,
        told: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Log>, ReplayError> {
        for (&first, path) in segments {
            // What was torn off the segment before is missing as well.
            if first != self.next || self.ended {
                return Err(gap(path, self.next, first));
            }
            self.log.segments += 1;
            let mut segment = Segment::read(path)?;
            if self.begin(&mut segment, first)? {
                self.follow(&mut segment)?;
            }
            // Those after a difference count as done.
            let rest = if self.log.difference.is_some() { segments.range(first..).count() } else { 1 };
            if !(0..rest).all(|_| told()) {
                return Ok(None);
            }
            if rest > 1 {
                break;
            }
        }
        Ok(Some(self.log))
    }

    /// Head and snapshot; false where the segment stops before its first event, or where the states differ.
    fn begin(&mut self, segment: &mut Segment, first: u64) -> Result<bool, ReplayError> {
        let path = segment.path().to_owned();
        let Some(head) = read_head(segment)? else { return Ok(false) };
        if (head.what, head.run, head.first) != (M::WHAT, self.log.run, first) {
            let says = |what: What, run, first| format!("{} run {run} from event {first}", what.name());
            let expected = says(M::WHAT, self.log.run, first);
            return Err(segment.damaged(0, expected, says(head.what, head.run, head.first)));
        }
        let Some(frame) = segment.next()? else { return Ok(false) };
        let snapshot: M = Segment::decode(&path, frame, Kind::Snapshot)?;
        if let Some(state) = self.state.replace(snapshot) {
            // As values they cannot be compared; their bytes are in one order.
            let (recorded, replayed) = (bytes(self.state.as_ref()), bytes(Some(&state)));
            if recorded != replayed {
                let at = recorded.iter().zip(&replayed).take_while(|(a, b)| a == b).count();
                let text = |bytes: &[u8]| format!("{} bytes, another from byte {at} on", bytes.len());
                self.differ(&path, Time::ZERO, "", "state", (text(&recorded), text(&replayed)));
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn follow(&mut self, segment: &mut Segment) -> Result<(), ReplayError> {
        let path = segment.path().to_owned();
        while let Some(frame) = segment.next()? {
            if frame.kind == Kind::End {
                let end: End = Segment::decode(&path, frame, Kind::End)?;
                self.log.end = end.early.map_or(LogEnd::Closed, LogEnd::Early);
                self.ended = true;
                let (offset, rest) = (frame.offset, segment.rest());
                if rest > 0 {
                    let expected = "nothing after the end of the log".to_owned();
                    return Err(segment.damaged(offset, expected, format!("{rest} bytes")));
                }
                return Ok(());
            }
            let record: Read<M::Event, M::Action> = Segment::decode(&path, frame, Kind::Record)?;
            self.apply(&path, &record);
            if self.log.difference.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn apply(&mut self, path: &Path, record: &Read<M::Event, M::Action>) {
        let Some(state) = &mut self.state else { return };
        let mut actions = Vec::new();
        let answer = Answer::new(&state.apply(record.now, &record.event, &mut actions));
        let differ = if answer != record.answer {
            let texts = (record.answer.text().to_owned(), answer.text().to_owned());
            Some(("answer".to_owned(), texts))
        } else if actions != record.actions {
            let same = actions.iter().zip(&record.actions).take_while(|(a, b)| a == b).count();
            Some((format!("action {same}"), (text(record.actions.get(same)), text(actions.get(same)))))
        } else {
            None
        };
        if let Some((part, texts)) = differ {
            self.differ(path, record.now, &text(Some(&record.event)), &part, texts);
            return;
        }
        self.next += 1;
        self.log.events += 1;
        self.log.actions += actions.len() as u64;
    }

    fn differ(&mut self, path: &Path, now: Time, happened: &str, part: &str, texts: (String, String)) {
        let (recorded, replayed) = texts;
        self.log.difference = Some(Difference {
            path: path.to_owned(),
            event: self.next,
            now,
            happened: happened.to_owned(),
            part: part.to_owned(),
            recorded,
            replayed,
        });
    }
}

/// JSON, which people can read.
fn text<T: Serialize>(value: Option<&T>) -> String {
    value.map_or_else(
        || "nothing".to_owned(),
        |value| serde_json::to_string(value).unwrap_or_else(|error| error.to_string()),
    )
}

fn bytes<M: Recorded>(state: Option<&M>) -> Vec<u8> {
    state.and_then(|state| rmp_serde::to_vec_named(state).ok()).unwrap_or_default()
}
