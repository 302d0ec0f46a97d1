//! What the engine must know of each leg, and the core need not: token ids, how they are drawn, and which of them the
//! daemon has yet to hear.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use splitcore_core::id::LegKey;
use splitcore_core::leg::{Command, Work};
use splitcore_wire::message::{Descriptor, Tokens};

use crate::options::ModelBounds;

/// Contexts of legs that are gone which are kept before they are looked for.
const SLACK: usize = 64;

/// What is known of one leg.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Context {
    /// As the daemon gave it last.
    descriptor: Descriptor,
    /// The client's prompt, and all output tokens so far.
    tokens: Vec<u32>,
    /// Positions whose KV comes from another machine.
    start: u32,
    /// How many of the tokens are the client's prompt.
    prompt: u32,
    /// Output tokens that earlier attempts made.
    resumed: u32,
    /// Output tokens at most, those of earlier attempts among them.
    cap: u32,
    /// Its source draws its first token, without which it cannot decode.
    follows: bool,
    /// In a new session the daemon has yet to say from which token on it needs them.
    muted: bool,
}

impl Context {
    fn new(descriptor: Descriptor, work: &Work) -> Self {
        let resumed = work.terms.resumed_tokens.min(work.prompt_tokens);
        Self {
            tokens: descriptor.prompt.clone(),
            descriptor,
            start: work.start,
            prompt: work.prompt_tokens - resumed,
            resumed,
            cap: resumed.saturating_add(work.max_new_tokens),
            follows: work.start >= work.prompt_tokens,
            muted: false,
        }
    }

    /// Output tokens that it has.
    pub(crate) fn has(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt
    }

    /// Prompt and output tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Positions whose KV comes from another machine.
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// Output tokens that earlier attempts made.
    pub(crate) fn resumed(&self) -> u32 {
        self.resumed
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn outputs(&self, from: u32) -> &[u32] {
        self.tokens.get((self.prompt + from) as usize..).unwrap_or_default()
    }

    /// Whether nothing more is to be drawn. An attempt that goes on elsewhere may begin so: the word of the end was lost
    /// and the tokens were not.
    pub(crate) fn is_over(&self, bounds: ModelBounds) -> bool {
        let stops = |token: &u32| self.descriptor.stop_ids.contains(token);
        self.has() >= self.cap
            || self.outputs(0).last().is_some_and(stops)
            || self.tokens.len() as u64 > u64::from(bounds.context)
    }

    /// The tokens at these positions, if an engine can run them.
    pub(crate) fn span(&self, range: Range<usize>, bounds: ModelBounds) -> Option<&[u32]> {
        let fits = range.end as u64 <= u64::from(bounds.context);
        let tokens = self.tokens.get(range).filter(|_| fits)?;
        tokens.iter().all(|&token| token < bounds.vocabulary).then_some(tokens)
    }

    /// Whether a token that its source draws is not here yet.
    pub(crate) fn lacks_first(&self) -> bool {
        self.follows && self.has() == self.resumed
    }

    /// The engine has drawn a token. One that is behind the end is nobody's.
    pub(crate) fn draw(&mut self, token: u32, bounds: ModelBounds) {
        if !self.is_over(bounds) {
            self.tokens.push(token);
        }
    }

    /// Its source has drawn these. Tokens that are here are the same ones.
    pub(crate) fn follow(&mut self, tokens: &Tokens) {
        let Some(known) = self.has().checked_sub(tokens.from) else { return };
        if self.follows {
            self.tokens.extend(tokens.ids.iter().skip(known as usize));
        }
    }

    /// What this attempt has drawn.
    pub(crate) fn drawn(&self, key: LegKey) -> Option<Tokens> {
        self.from(key, self.resumed)
    }

    fn from(&self, key: LegKey, from: u32) -> Option<Tokens> {
        let ids = self.outputs(from);
        (!ids.is_empty()).then(|| Tokens { key, from, ids: ids.to_vec() })
    }

    /// What the daemon is to be given now that it has tokens from `first` on. In a new session, before the daemon has said
    /// what it lacks, that is all that this attempt has made.
    pub(crate) fn news(&mut self, key: LegKey, first: u32, in_session: bool) -> Option<Tokens> {
        let first = if self.muted { self.resumed } else { first };
        self.muted &= !in_session;
        if in_session { self.from(key, first) } else { None }
    }

    /// The daemon has said what it lacks.
    pub(crate) fn resend(&mut self, key: LegKey, delivered: u32) -> Option<Tokens> {
        self.muted = false;
        self.from(key, delivered)
    }
}

/// All that are known.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    known: BTreeMap<LegKey, Context>,
}

impl Contexts {
    pub(crate) fn get(&self, key: LegKey) -> Option<&Context> {
        self.known.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: LegKey) -> Option<&mut Context> {
        self.known.get_mut(&key)
    }

    /// A command brings a request. Where its leg `is_here` already, that one goes on with the tokens it has.
    pub(crate) fn learn(&mut self, command: &Command, descriptor: Descriptor, is_here: bool) {
        let (Command::Reserve { key, work, .. }
        | Command::Compute { key, work, .. }
        | Command::Keep { key, work, .. }) = command
        else {
            return;
        };
        match self.known.get_mut(key) {
            // What is kept goes further than the leg did, which goes on until it is aborted.
            Some(known) if matches!(command, Command::Keep { .. }) => known.descriptor = descriptor,
            Some(_) if is_here => {}
            _ => drop(self.known.insert(*key, Context::new(descriptor, work))),
        }
    }

    /// The session is over: what is drawn meanwhile the daemon lacks.
    pub(crate) fn mute(&mut self) {
        self.known.values_mut().for_each(|context| context.muted = true);
    }

    /// Forgets legs that are gone, once there may be many: `held` is how many are not, `keys` says which.
    pub(crate) fn sweep(&mut self, held: usize, keys: impl FnOnce() -> BTreeSet<LegKey>) {
        if self.known.len() > 2 * held + SLACK {
            let keys = keys();
            self.known.retain(|key, _| keys.contains(key));
        }
    }
}
