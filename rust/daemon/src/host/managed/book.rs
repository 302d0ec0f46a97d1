//! Requests by their tokens: what each client asked for, what it has been given, and until when it may come back.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::leg::{Notice, Work};
use splitcore_core::time::Time;
use splitcore_wire::message::Descriptor;
use tokio::sync::Notify;

use super::trace::Trace;
use crate::host::faults::Failure;
use crate::host::generate::{Ending, Generate};

/// What the host itself must know again after a restart; it travels as a descriptor's note.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    choice: u32,
    choices: u32,
    /// The id of the request's first choice: what has another one is of another request, though it has the same name.
    first: u64,
    max_new_tokens: u32,
    gateway: String,
}

/// One choice of one request.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is true of it or not, whatever the others are")]
pub(in crate::host) struct Entry {
    pub(in crate::host) ask: Arc<Generate>,
    /// The id of the first choice of its request.
    first: u64,
    /// All output tokens so far.
    pub(in crate::host) tokens: Vec<u32>,
    /// A machine has said that it has it.
    pub(in crate::host) acknowledged: bool,
    /// It began with an earlier service.
    pub(super) adopted: bool,
    /// How it ended, for the client: with its last token, whatever the Cluster has heard by then.
    pub(in crate::host) ending: Option<Ending>,
    /// Where its time went.
    pub(super) trace: Trace,
    /// Its client wants no more than so many tokens of it.
    enough: Option<u32>,
    /// Who gave tokens last.
    giver: Option<(MachineId, LegKey)>,
    /// Wakes those who wait for more.
    pub(in crate::host) news: Arc<Notify>,
    /// Those who read it.
    outputs: u32,
    /// The Cluster knows it.
    live: bool,
    /// The end that its machine tells, until the client has it.
    held_finish: Option<(MachineId, Notice)>,
    /// It was placed once more after its last token had come.
    runs_on: bool,
    /// When it is given up, or forgotten; with nobody to read it.
    closes_at: Option<Time>,
}

impl Entry {
    fn new(ask: Arc<Generate>, first: u64, now: Time) -> Self {
        Self {
            ask,
            first,
            trace: Trace::new(now),
            tokens: Vec::new(),
            acknowledged: false,
            adopted: false,
            ending: None,
            enough: None,
            giver: None,
            news: Arc::default(),
            outputs: 0,
            live: true,
            held_finish: None,
            runs_on: false,
            closes_at: None,
        }
    }

    /// How long it has been known.
    pub(in crate::host) fn age_ns(&self, now: Time) -> u64 {
        self.trace.age_ns(now)
    }

    /// Whether a description is of this request, whose client's prompt it says has so many tokens.
    pub(super) fn is_of(&self, descriptor: &Descriptor, prompt_tokens: usize) -> bool {
        let ask = &self.ask;
        let prompt = descriptor.prompt.get(..prompt_tokens);
        prompt == Some(&*ask.prompt)
            && descriptor.name == ask.name
            && descriptor.sampling == ask.sampling
            && descriptor.stop == ask.stop
            && descriptor.stop_ids == ask.stop_ids
    }

    /// What a machine must know to carry out this work. `None` where its tokens are not all here.
    pub(super) fn descriptor(&self, work: &Work) -> Option<Descriptor> {
        let ask = &self.ask;
        let resumed = self.tokens.get(..work.terms.resumed_tokens as usize)?;
        let note = Note {
            choice: ask.choice,
            choices: ask.choices,
            first: self.first,
            max_new_tokens: ask.max_new_tokens,
            gateway: ask.note.clone(),
        };
        Some(Descriptor {
            name: ask.name.clone(),
            prompt: [&ask.prompt, resumed].concat(),
            sampling: ask.sampling,
            stop: ask.stop.clone(),
            stop_ids: ask.stop_ids.clone(),
            note: serde_json::to_string(&note).ok()?,
        })
    }

    /// Output tokens from number `from` on, which is none beyond the next. Those that are here already must be the same.
    /// Returns whether they were.
    fn take(&mut self, from: u32, ids: &[u32]) -> bool {
        let mut same = true;
        for (index, &id) in (from as usize..).zip(ids) {
            match self.tokens.get(index) {
                Some(&known) => same &= known == id,
                None if self.ending.is_some() || index > self.tokens.len() => break,
                None => {
                    self.tokens.push(id);
                    let full = self.tokens.len() >= self.ask.max_new_tokens as usize;
                    let may_stop = index >= self.ask.sampling.min_tokens as usize;
                    if full || (may_stop && self.ask.stop_ids.contains(&id)) {
                        self.ending = Some(Ending::Finished);
                    }
                }
            }
        }
        same
    }
}

/// All of them.
#[derive(Debug)]
pub(in crate::host) struct Book {
    entries: HashMap<u64, Entry>,
    names: HashMap<String, Vec<u64>>,
    closing: BTreeSet<(Time, u64)>,
    reattach_ns: u64,
}

impl Book {
    pub(super) fn new(reattach_ns: u64) -> Self {
        Self { entries: HashMap::new(), names: HashMap::new(), closing: BTreeSet::new(), reattach_ns }
    }

    pub(in crate::host) fn get(&self, request: u64) -> Option<&Entry> {
        self.entries.get(&request)
    }

    /// All choices that have this name. After a restart those of an earlier request of the name may be among them.
    pub(in crate::host) fn named(&self, name: &str) -> &[u64] {
        self.names.get(name).map_or(&[], Vec::as_slice)
    }

    /// The choices of the last request of this name, in order, as far as they are known, and whether that is all.
    pub(in crate::host) fn choices(&self, name: &str) -> (Vec<u64>, bool) {
        let known = self.named(name).iter().filter_map(|id| Some((*id, self.entries.get(id)?)));
        let Some(last) = known.clone().map(|(_, entry)| entry.first).max() else {
            return (Vec::new(), false);
        };
        let mut of: Vec<(u32, u32, u64)> = known
            .filter(|(_, entry)| entry.first == last)
            .map(|(id, entry)| (entry.ask.choice, entry.ask.choices, id))
            .collect();
        of.sort_unstable();
        let each_once = (0..).zip(&of).all(|(at, (choice, _, _))| *choice == at);
        let is_whole = each_once && of.iter().all(|(_, choices, _)| *choices as usize == of.len());
        (of.into_iter().map(|(_, _, id)| id).collect(), is_whole)
    }

    /// Whether a request of this name still gives tokens.
    pub(in crate::host) fn is_live(&self, name: &str) -> bool {
        self.named(name).iter().any(|id| self.entries.get(id).is_some_and(|entry| entry.ending.is_none()))
    }

    /// Takes down what is about to arrive, read by somebody.
    pub(in crate::host) fn begin(&mut self, request: u64, first: u64, ask: Arc<Generate>, now: Time) {
        self.names.entry(ask.name.clone()).or_default().push(request);
        self.entries.insert(request, Entry { outputs: 1, ..Entry::new(ask, first, now) });
    }

    /// Takes down what a worker describes to a new daemon, for `prompt_tokens` of it the client's and `delivered` behind
    /// them what the client has. Returns whether it is the first to do so.
    pub(super) fn adopt(
        &mut self,
        request: u64,
        descriptor: &Descriptor,
        prompt_tokens: usize,
        delivered: u32,
        now: Time,
    ) -> bool {
        let (prompt, outputs) = descriptor.prompt.split_at(prompt_tokens.min(descriptor.prompt.len()));
        let is_new = !self.entries.contains_key(&request);
        if is_new {
            let given: Option<Note> = serde_json::from_str(&descriptor.note).ok();
            let given = given.unwrap_or(Note {
                choice: 0,
                choices: 1,
                first: request,
                max_new_tokens: u32::MAX,
                gateway: String::new(),
            });
            let ask = Generate {
                name: descriptor.name.clone(),
                choice: given.choice,
                choices: given.choices,
                prompt: prompt.into(),
                max_new_tokens: given.max_new_tokens,
                sampling: descriptor.sampling,
                stop: descriptor.stop.clone(),
                stop_ids: descriptor.stop_ids.clone(),
                note: given.gateway,
                class: 0,
                priority: 0,
            };
            self.names.entry(ask.name.clone()).or_default().push(request);
            let entry =
                Entry { acknowledged: true, adopted: true, ..Entry::new(Arc::new(ask), given.first, now) };
            self.entries.insert(request, entry);
            self.close_at(request, now.after(self.reattach_ns));
        }
        self.take(request, 0, &outputs[..outputs.len().min(delivered as usize)], now);
        is_new
    }

    /// Somebody reads it.
    pub(in crate::host) fn attach(&mut self, request: u64) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        entry.outputs += 1;
        if let Some(at) = entry.closes_at.take() {
            self.closing.remove(&(at, request));
        }
    }

    /// One reader less. Without any it closes: what runs at once, since nobody wants it; what is over later, for who
    /// comes back.
    pub(in crate::host) fn detach(&mut self, request: u64, now: Time) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        entry.outputs = entry.outputs.saturating_sub(1);
        if entry.outputs == 0 {
            let at = if entry.live { now } else { now.after(self.reattach_ns) };
            self.close_at(request, at);
        }
    }

    fn close_at(&mut self, request: u64, at: Time) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        if let Some(before) = entry.closes_at.replace(at) {
            self.closing.remove(&(before, request));
        }
        self.closing.insert((at, request));
    }

    /// When the next one closes.
    pub(in crate::host) fn next_deadline(&self) -> Option<Time> {
        self.closing.first().map(|&(at, _)| at)
    }

    /// The next request that the Cluster need not go on with. What is over is forgotten on the way.
    pub(super) fn next_close(&mut self, now: Time) -> Option<u64> {
        while let Some(&(at, request)) = self.closing.first() {
            if at > now {
                return None;
            }
            self.closing.pop_first();
            let Some(entry) = self.entries.get_mut(&request) else { continue };
            entry.closes_at = None;
            if !entry.live {
                self.forget(request);
            } else if entry.ending.is_none() || entry.held_finish.is_some() || entry.runs_on {
                return Some(request);
            }
            // Its client has all of it, and its machine is about to say so.
        }
        None
    }

    /// As if it had never been.
    pub(in crate::host) fn forget(&mut self, request: u64) {
        let Some(entry) = self.entries.remove(&request) else { return };
        if let Some(at) = entry.closes_at {
            self.closing.remove(&(at, request));
        }
        if let Some(ids) = self.names.get_mut(&entry.ask.name) {
            ids.retain(|&id| id != request);
            if ids.is_empty() {
                self.names.remove(&entry.ask.name);
            }
        }
    }

    pub(super) fn acknowledge(&mut self, request: u64, now: Time) {
        if let Some(entry) = self.entries.get_mut(&request).filter(|entry| !entry.acknowledged) {
            entry.acknowledged = true;
            entry.trace.acknowledged(now);
            entry.news.notify_waiters();
        }
    }

    /// Where the time of a request goes.
    pub(super) fn trace(&mut self, request: u64) -> Option<&mut Trace> {
        self.entries.get_mut(&request).map(|entry| &mut entry.trace)
    }

    pub(super) fn take(&mut self, request: u64, from: u32, ids: &[u32], now: Time) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        let before = (entry.tokens.len(), entry.ending.is_some());
        if !entry.take(from, ids) {
            // The client keeps what it has been given.
            tracing::error!(request, from, "a token came again as another");
        }
        if (entry.tokens.len(), entry.ending.is_some()) != before {
            entry.acknowledged = true;
            entry.trace.tokens(entry.tokens.len(), now);
            entry.news.notify_waiters();
        }
    }

    /// A machine has given tokens, `tokens` of them by now. Returns how many are enough, where those are more.
    pub(super) fn given_by(&mut self, from: MachineId, key: LegKey, tokens: u32) -> Option<u32> {
        let entry = self.entries.get_mut(&key.request.0)?;
        entry.giver = Some((from, key));
        entry.enough.filter(|&enough| enough < tokens)
    }

    /// An output has come to a text that ends it. Returns who makes more of it for nothing.
    pub(in crate::host) fn enough(&mut self, request: u64, tokens: u32) -> Option<(MachineId, LegKey)> {
        let entry = self.entries.get_mut(&request)?;
        entry.ending.get_or_insert(Ending::Finished);
        entry.enough = Some(tokens);
        // Until its machine says that it is over, whoever closes it gives it up.
        entry.runs_on = true;
        entry.giver.filter(|_| entry.live && entry.held_finish.is_none())
    }

    /// Its machine says that it has ended. Where the tokens do not, the machine could not go on, and it is no answer.
    /// Returns whether that is so.
    pub(super) fn finish(&mut self, request: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&request).filter(|entry| entry.ending.is_none()) else {
            return false;
        };
        // The Cluster before this one may have told the machine that a text ends it, which is found again by its reader.
        let by_text = entry.adopted && !entry.ask.stop.is_empty();
        entry.ending = Some(if by_text {
            Ending::Finished
        } else {
            Ending::Failed(Failure { reason: "ended_early", fault: None })
        });
        entry.news.notify_waiters();
        !by_text
    }

    /// Keeps the word of an end from the Cluster while somebody reads, or may come back to. Returns whether it is kept.
    pub(super) fn hold_finish(&mut self, request: u64, from: MachineId, notice: Notice) -> bool {
        let Some(entry) = self.entries.get_mut(&request) else { return false };
        if entry.outputs == 0 && entry.closes_at.is_none() {
            return false;
        }
        entry.ending.get_or_insert(Ending::Finished);
        entry.held_finish = Some((from, notice));
        entry.news.notify_waiters();
        true
    }

    /// The end that was kept from the Cluster.
    pub(super) fn released_finish(&mut self, request: u64) -> Option<(MachineId, Notice)> {
        self.entries.get_mut(&request)?.held_finish.take()
    }

    /// It is over in the Cluster, and kept for a while for who comes back.
    pub(super) fn ended(&mut self, request: u64, ending: Ending, now: Time) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        entry.live = false;
        entry.held_finish = None;
        entry.ending.get_or_insert(ending);
        entry.news.notify_waiters();
        if entry.outputs == 0 {
            self.close_at(request, now.after(self.reattach_ns));
        }
    }

    /// It has machines, again perhaps: those that had it before are lost. Where its client has all of it, that is for
    /// nothing.
    pub(in crate::host) fn placed(&mut self, request: u64, now: Time) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        if entry.ending.is_some() && entry.live {
            entry.held_finish = None;
            entry.runs_on = true;
            self.close_at(request, now);
        }
    }
}
