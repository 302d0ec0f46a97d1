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
        let may_stop = self.has() > self.descriptor.sampling.min_tokens;
        let stops = |token: &u32| may_stop && self.descriptor.stop_ids.contains(token);
        self.has() >= self.cap
            || self.outputs(0).last().is_some_and(stops)
            || self.tokens.len() as u64 > u64::from(bounds.context)
    }

    /// Tokens that may not be drawn next: those that would end the output too early.
    pub(crate) fn forbidden(&self) -> &[u32] {
        if self.has() < self.descriptor.sampling.min_tokens { &self.descriptor.stop_ids } else { &[] }
    }

    /// Its client wants no more than so many output tokens.
    pub(crate) fn enough(&mut self, tokens: u32) {
        self.cap = self.cap.min(tokens);
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

#[cfg(test)]
mod tests {
    use splitcore_core::id::{Attempt, Order, RequestId};
    use splitcore_core::leg::Terms;
    use splitcore_core::placement::Upto;
    use splitcore_wire::message::Sampling;

    use super::*;

    const KEY: LegKey = LegKey { request: RequestId(3), attempt: Attempt(2) };
    const ANY: ModelBounds = ModelBounds { context: 100, vocabulary: 1000 };

    fn descriptor(prompt: &[u32]) -> Descriptor {
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, min_tokens: 0, seed: 0 };
        let (name, note) = (String::new(), String::new());
        Descriptor { name, prompt: prompt.to_vec(), sampling, stop: Vec::new(), stop_ids: vec![9], note }
    }

    fn work(prompt_tokens: u32, resumed_tokens: u32, max_new_tokens: u32) -> Work {
        let terms = Terms { resumed_tokens, ..Terms::default() };
        Work { prompt_tokens, start: 0, upto: Upto::End, max_new_tokens, terms }
    }

    /// A prompt of two tokens, and one output token of an earlier attempt.
    fn resumed() -> Context {
        Context::new(descriptor(&[1, 2, 3]), &work(3, 1, 2))
    }

    #[allow(clippy::unnecessary_wraps, reason = "as it is told")]
    fn tokens(from: u32, ids: &[u32]) -> Option<Tokens> {
        Some(Tokens { key: KEY, from, ids: ids.to_vec() })
    }

    #[test]
    fn tokens_that_end_an_output_are_not_drawn_before_its_least_number() {
        let mut context = Context::new(descriptor(&[1, 2, 3]), &work(3, 1, 50));
        context.descriptor.sampling.min_tokens = 1 + context.has();
        assert_eq!(context.forbidden(), [9]);
        context.draw(9, ANY);
        assert!(!context.is_over(ANY), "too early");
        assert_eq!(context.forbidden(), [0_u32; 0]);
    }

    #[test]
    fn an_output_that_is_long_enough_is_over() {
        let mut context = Context::new(descriptor(&[1, 2, 3]), &work(3, 1, 50));
        context.enough(2);
        assert!(!context.is_over(ANY));
        context.draw(4, ANY);
        assert!(context.is_over(ANY));
    }

    #[test]
    fn the_cap_counts_the_tokens_of_earlier_attempts() {
        let mut context = resumed();
        assert_eq!((context.has(), context.is_over(ANY)), (1, false));
        context.draw(4, ANY);
        assert!(!context.is_over(ANY));
        context.draw(5, ANY);
        assert!(context.is_over(ANY));
        context.draw(6, ANY);
        assert_eq!(context.drawn(KEY), tokens(1, &[4, 5]), "none is behind the end");
    }

    #[test]
    fn a_token_that_ends_is_given_and_none_behind_it() {
        let mut context = resumed();
        context.draw(9, ANY);
        assert!(context.is_over(ANY));
        assert_eq!(context.drawn(KEY), tokens(1, &[9]));
    }

    #[test]
    fn an_attempt_that_begins_behind_the_end_draws_nothing() {
        let mut context = Context::new(descriptor(&[1, 2, 9]), &work(3, 1, 5));
        assert!(context.is_over(ANY));
        context.draw(4, ANY);
        assert_eq!(context.drawn(KEY), None);
    }

    #[test]
    fn a_prompt_may_have_the_token_that_ends() {
        assert!(!Context::new(descriptor(&[1, 9]), &work(2, 0, 5)).is_over(ANY));
    }

    #[test]
    fn the_end_of_the_context_ends_a_request() {
        let bounds = ModelBounds { context: 4, vocabulary: 1000 };
        let mut context = Context::new(descriptor(&[1, 2, 3]), &work(3, 0, 50));
        context.draw(4, bounds);
        assert!(!context.is_over(bounds), "its fourth position can be computed");
        assert!(context.span(3..4, bounds).is_some());
        context.draw(5, bounds);
        assert!(context.is_over(bounds));
        assert_eq!(context.span(4..5, bounds), None);
        assert_eq!(context.span(2..4, ModelBounds { vocabulary: 4, ..ANY }), None);
    }

    #[test]
    fn in_a_new_session_all_that_this_attempt_made_comes_first() {
        let mut contexts = Contexts::default();
        let command = Command::Compute { key: KEY, order: Order(0), work: work(3, 1, 9) };
        contexts.learn(&command, descriptor(&[1, 2, 3]), false);
        let first = contexts.get_mut(KEY).unwrap();
        first.draw(4, ANY);
        assert_eq!(first.news(KEY, 1, true), tokens(1, &[4]));
        contexts.mute();
        let context = contexts.get_mut(KEY).unwrap();
        context.draw(5, ANY);
        assert_eq!(context.news(KEY, 2, false), None, "there is no session");
        context.draw(6, ANY);
        assert_eq!(context.news(KEY, 3, true), tokens(1, &[4, 5, 6]));
        context.draw(7, ANY);
        assert_eq!(context.news(KEY, 4, true), tokens(4, &[7]));
        assert_eq!(context.resend(KEY, 0), tokens(0, &[3, 4, 5, 6, 7]), "those of earlier attempts too");
        assert_eq!(context.resend(KEY, 5), None);
    }

    #[test]
    fn a_destination_lacks_the_token_of_its_source_until_it_comes() {
        let mut context = Context::new(descriptor(&[1, 2]), &Work { start: 2, ..work(2, 0, 5) });
        assert!(context.lacks_first());
        let first = Tokens { key: KEY, from: 0, ids: vec![8] };
        context.follow(&first);
        context.follow(&first);
        assert_eq!((context.lacks_first(), context.drawn(KEY)), (false, tokens(0, &[8])));
        context.follow(&Tokens { key: KEY, from: 5, ids: vec![8] });
        assert_eq!(context.has(), 1, "those between are missing");
    }

    #[test]
    fn a_leg_goes_on_with_its_tokens_when_its_request_is_to_be_kept() {
        let mut contexts = Contexts::default();
        let compute = Command::Compute { key: KEY, order: Order(0), work: work(2, 0, 9) };
        contexts.learn(&compute, descriptor(&[1, 2]), false);
        contexts.get_mut(KEY).unwrap().draw(4, ANY);
        contexts.learn(&compute, descriptor(&[1, 2]), true);
        let keep = Command::Keep { key: KEY, order: Order(0), work: work(3, 1, 8) };
        contexts.learn(&keep, descriptor(&[1, 2, 4]), true);
        let context = contexts.get(KEY).unwrap();
        assert_eq!((context.has(), context.descriptor().prompt.len()), (1, 3));
    }

    #[test]
    fn contexts_of_legs_that_are_gone_are_forgotten() {
        let mut contexts = Contexts::default();
        let key = |request| LegKey { request: RequestId(request), ..KEY };
        for request in 0..200 {
            let command = Command::Compute { key: key(request), order: Order(0), work: work(2, 0, 9) };
            contexts.learn(&command, descriptor(&[1, 2]), false);
            contexts.sweep(1, || BTreeSet::from([key(request)]));
            assert!(contexts.known.len() <= SLACK + 2);
            assert!(contexts.get(key(request)).is_some());
        }
    }
}
