//! What a worker may speak of: the legs and requests that it was given, by commands or because it brought them along.
//!
//! Words cross on their way: a worker may speak of a leg that is being taken from it, until it has heard so. That is late
//! and no fault. To speak of what it was never given, or of a leg as what it is not, is one.
//!
//! What is over is forgotten once the worker has reported that it has heard all that was said of it, but for the last few.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use splitcore_core::event::{Held, Registration};
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey};
use splitcore_core::leg::{Command, Notice, Report, Work};

use crate::message::{Assigned, Tokens};

/// Keys that are over and remembered all the same: a transfer that was stopped may end later than its leg.
const PAST_MAX: usize = 1024;
/// KV tokens in a report, at most: more than any machine holds, and few enough to be added up.
const REPORT_TOKENS_MAX: u64 = 1 << 48;

/// A worker contradicts what it was given. It loses its session for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {}{what}", of(*.key))]
pub struct Violation {
    /// The message, as it is named on the wire.
    pub kind: &'static str,
    /// What it was about, if a leg or a request.
    pub key: Option<LegKey>,
    /// What is wrong with it.
    pub what: &'static str,
}

fn of(key: Option<LegKey>) -> String {
    key.map_or_else(String::new, |key| format!("request {} attempt {} ", key.request.0, key.attempt.0))
}

/// What was given under one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Part {
    /// The work of its leg; none where it was to keep the request, or to let go of something, and nothing else.
    work: Option<Work>,
    /// Whether the leg is there still, for all that is known.
    runs: bool,
    /// Whether it is to keep the request.
    asked: bool,
    /// Whether it keeps the request unasked: it has handed it over, or seen its end.
    record: bool,
    /// The command that gives the leg up.
    abort: Option<AssignmentSeq>,
    /// The last command about it.
    named: AssignmentSeq,
}

impl Part {
    fn is_over(&self) -> bool {
        !(self.runs || self.asked || self.record)
    }
}

/// What one machine may speak of.
#[derive(Debug, Clone, Default)]
pub struct Given {
    parts: BTreeMap<LegKey, Part>,
    /// Those that are over, by the last command about them.
    over: BTreeSet<(AssignmentSeq, LegKey)>,
    past: VecDeque<(LegKey, Option<Work>)>,
    /// The last command that it was sent.
    last: AssignmentSeq,
    blocks: u32,
}

impl Given {
    /// A machine of so many KV blocks.
    pub fn new(blocks: u32) -> Self {
        Self { blocks, ..Self::default() }
    }

    /// How many keys it may speak of.
    pub fn len(&self) -> usize {
        self.parts.len() + self.past.len()
    }

    /// Whether it may speak of nothing but itself.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a registration agrees with what the machine was given. One that knows this Cluster, of `epoch`, can hold
    /// nothing that it has not from it.
    ///
    /// # Errors
    /// What it contradicts.
    pub fn check_registration(&self, registration: &Registration, epoch: Epoch) -> Result<(), Violation> {
        let kind = "register";
        if registration.epoch != epoch {
            return self.check_numbers(kind, &registration.report);
        }
        self.check_report(kind, &registration.report)?;
        for claim in &registration.claims {
            let wrong = |what| Err(Violation { kind, key: Some(claim.key), what });
            if !self.knows(claim.key) {
                return wrong("is claimed and was never given to this worker");
            }
            if claim.held != Held::Kept && self.work(claim.key).is_none() {
                return wrong("is claimed as a leg and was only to be kept");
            }
        }
        Ok(())
    }

    /// The Cluster has taken a registration: what it claims is all that there is.
    pub fn register(&mut self, registration: &Registration) {
        let before = std::mem::take(&mut self.parts);
        for (&key, part) in &before {
            self.forget(key, part.work);
        }
        self.over.clear();
        for claim in &registration.claims {
            let part = self.parts.entry(claim.key).or_default();
            match claim.held {
                Held::Leg { .. } | Held::Closing => (part.work, part.runs) = (Some(claim.work), true),
                Held::Finished => (part.work, part.record) = (Some(claim.work), true),
                // It may have been a leg that was handed over, of which there is yet to hear.
                Held::Kept => {
                    part.asked = true;
                    part.work = part.work.or(before.get(&claim.key).and_then(|before| before.work));
                }
            }
        }
    }

    /// A command goes out.
    pub fn command(&mut self, assigned: &Assigned) {
        let (key, seq) = (assigned.key(), assigned.seq);
        let work = self.work(key);
        let part = self.parts.entry(key).or_insert(Part { work, ..Part::default() });
        self.over.remove(&(part.named, key));
        (part.named, self.last) = (seq, self.last.max(seq));
        match assigned.command {
            Command::Reserve { work, .. } | Command::Compute { work, .. } => {
                (part.work, part.runs, part.abort) = (Some(work), true, None);
            }
            Command::Keep { .. } => part.asked = true,
            Command::Abort { .. } => (part.runs, part.abort) = (true, Some(seq)),
            Command::Release { .. } => (part.asked, part.record) = (false, false),
            Command::Send { .. } | Command::Start { .. } | Command::Confirm { .. } => {}
        }
        self.settle(key);
    }

    /// Takes down what a notice says.
    ///
    /// # Errors
    /// The worker was not given what it speaks of, and nothing has changed.
    pub fn notice(&mut self, notice: &Notice) -> Result<(), Violation> {
        let kind = kind(notice);
        match *notice {
            Notice::Report(report) => self.check_report(kind, &report)?,
            Notice::Refused { key, report } => {
                self.check_leg(kind, key, Side::Second)?;
                self.check_report(kind, &report)?;
                self.ends(key, |part| part.runs = false);
            }
            Notice::Reserved { key } | Notice::Landed { key } => self.check_leg(kind, key, Side::Second)?,
            Notice::Sent { key } | Notice::TransferFailed { key } => {
                self.check_leg(kind, key, Side::First)?;
            }
            Notice::Evicted { key, .. } => self.check_leg(kind, key, Side::Last)?,
            Notice::PrefillDone { key, .. } | Notice::Relief { key } => {
                self.check_leg(kind, key, Side::Any)?;
            }
            Notice::Gone { key } => {
                self.check_leg(kind, key, Side::Any)?;
                self.ends(key, |part| part.runs = false);
            }
            Notice::Released { key, to, report } => {
                self.check_released(kind, key, to.is_some())?;
                self.check_report(kind, &report)?;
                let answers = |abort: Option<AssignmentSeq>| abort.is_some_and(|abort| abort <= report.seq);
                self.ends(key, |part| {
                    part.runs = part.abort.is_some() && !answers(part.abort);
                    part.record = to.is_some() && !answers(part.abort);
                });
            }
            Notice::Finished { key, tokens } => {
                let work = self.check_work(kind, key)?;
                // One that begins behind its end is in a pass all the same.
                if tokens > work.max_new_tokens.saturating_add(1) {
                    let what = "has ended with more tokens than it was to have";
                    return Err(Violation { kind, key: Some(key), what });
                }
                self.ends(key, |part| (part.runs, part.record) = (part.abort.is_some(), true));
            }
            Notice::Progress { key, .. } => {
                let what = "is counted by the daemon alone";
                return Err(Violation { kind, key: Some(key), what });
            }
        }
        if let Some(report) = notice_report(notice) {
            self.heard(report.seq);
        }
        Ok(())
    }

    /// Whether these output tokens are the worker's to give.
    ///
    /// # Errors
    /// They are not.
    pub fn tokens(&self, tokens: &Tokens) -> Result<(), Violation> {
        let (kind, key) = ("tokens", tokens.key);
        let work = self.check_work(kind, key)?;
        let most = if work.hands_over() { u32::from(work.samples_first()) } else { work.max_new_tokens };
        let most = u64::from(work.terms.resumed_tokens) + u64::from(most);
        if u64::from(tokens.from) + tokens.ids.len() as u64 > most {
            let what = "has more tokens than this worker was to make";
            return Err(Violation { kind, key: Some(key), what });
        }
        Ok(())
    }

    /// Whether anything was given under this key.
    fn knows(&self, key: LegKey) -> bool {
        self.parts.contains_key(&key) || self.past.iter().any(|(past, _)| *past == key)
    }

    /// The work of a leg; none where there was no leg, or nothing at all.
    fn work(&self, key: LegKey) -> Option<Work> {
        match self.parts.get(&key) {
            Some(part) => part.work,
            None => self.past.iter().rev().find(|(past, _)| *past == key)?.1,
        }
    }

    fn check_work(&self, kind: &'static str, key: LegKey) -> Result<Work, Violation> {
        let wrong = |what| Violation { kind, key: Some(key), what };
        match self.work(key) {
            Some(work) => Ok(work),
            None if self.knows(key) => Err(wrong("was not given to this worker to run")),
            None => Err(wrong("was never given to this worker")),
        }
    }

    fn check_leg(&self, kind: &'static str, key: LegKey, side: Side) -> Result<(), Violation> {
        let work = self.check_work(kind, key)?;
        // Of a leg that is over or is being taken away all words are late.
        if self.parts.get(&key).is_none_or(|part| !part.runs || part.abort.is_some()) {
            return Ok(());
        }
        let (agrees, what) = match side {
            Side::First => (work.hands_over(), "hands over to nobody"),
            Side::Second => (work.start > 0, "takes over from nobody"),
            Side::Last => (!work.hands_over(), "does not decode on this worker"),
            Side::Any => (true, ""),
        };
        if agrees { Ok(()) } else { Err(Violation { kind, key: Some(key), what }) }
    }

    /// A leg that hands over is released to another machine; whatever was given up is released, also where nothing of it
    /// was there.
    fn check_released(&self, kind: &'static str, key: LegKey, to_another: bool) -> Result<(), Violation> {
        let gives_up = self.parts.get(&key).is_some_and(|part| part.abort.is_some());
        match (to_another, gives_up) {
            (false, true) => Ok(()),
            (true, _) => self.check_leg(kind, key, Side::First),
            (false, false) => self.check_leg(kind, key, Side::Any),
        }
    }

    fn check_report(&self, kind: &'static str, report: &Report) -> Result<(), Violation> {
        if report.seq > self.last {
            return Err(Violation { kind, key: None, what: "includes a command that was never sent" });
        }
        self.check_numbers(kind, report)
    }

    fn check_numbers(&self, kind: &'static str, report: &Report) -> Result<(), Violation> {
        let wrong = |what| Err(Violation { kind, key: None, what });
        let blocks = u64::from(report.free_blocks) + u64::from(report.quarantined_blocks);
        if blocks > u64::from(self.blocks) {
            return wrong("has more blocks free or quarantined than there are");
        }
        if report.kv_tokens > REPORT_TOKENS_MAX {
            return wrong("has more KV tokens than any machine holds");
        }
        Ok(())
    }

    fn ends(&mut self, key: LegKey, change: impl FnOnce(&mut Part)) {
        if let Some(part) = self.parts.get_mut(&key) {
            change(part);
            self.settle(key);
        }
    }

    fn settle(&mut self, key: LegKey) {
        let Some(part) = self.parts.get(&key) else { return };
        if part.is_over() {
            self.over.insert((part.named, key));
        } else {
            self.over.remove(&(part.named, key));
        }
    }

    /// The worker has heard the commands up to this one.
    fn heard(&mut self, seq: AssignmentSeq) {
        while let Some(&(named, key)) = self.over.first().filter(|(named, _)| *named <= seq) {
            self.over.remove(&(named, key));
            if let Some(part) = self.parts.remove(&key) {
                self.forget(key, part.work);
            }
        }
    }

    fn forget(&mut self, key: LegKey, work: Option<Work>) {
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back((key, work));
    }
}

/// Which legs a notice can be about.
#[derive(Debug, Clone, Copy)]
enum Side {
    First,
    Second,
    Last,
    Any,
}

fn notice_report(notice: &Notice) -> Option<&Report> {
    match notice {
        Notice::Report(report) | Notice::Refused { report, .. } | Notice::Released { report, .. } => {
            Some(report)
        }
        _ => None,
    }
}

/// A notice's name on the wire.
pub fn kind(notice: &Notice) -> &'static str {
    match notice {
        Notice::Reserved { .. } => "reserved",
        Notice::Refused { .. } => "refused",
        Notice::PrefillDone { .. } => "prefill_done",
        Notice::Sent { .. } => "sent",
        Notice::Landed { .. } => "landed",
        Notice::Progress { .. } => "progress",
        Notice::Evicted { .. } => "evicted",
        Notice::Finished { .. } => "finished",
        Notice::Released { .. } => "released",
        Notice::TransferFailed { .. } => "transfer_failed",
        Notice::Relief { .. } => "relief",
        Notice::Gone { .. } => "gone",
        Notice::Report(_) => "report",
    }
}
