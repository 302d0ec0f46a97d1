//! What is known of clusters and rates, and who wants to know more.

use std::collections::BTreeMap;

use super::space::Pools;

/// Does this cluster hold this rate?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    /// Bits of a float above 0, which are ordered as the floats are.
    rate: u64,
    pub(super) pools: Pools,
}

impl Question {
    pub(super) fn new(pools: Pools, rate: f64) -> Self {
        Self { rate: rate.to_bits(), pools }
    }

    pub(super) fn rate(&self) -> f64 {
        f64::from_bits(self.rate)
    }
}

/// Answers: a cluster holds a rate if it does with every seed.
#[derive(Debug, Clone, Default)]
pub(super) struct Judged {
    answers: BTreeMap<Question, bool>,
}

impl Judged {
    pub(super) fn insert(&mut self, question: Question, holds: bool) {
        self.answers.insert(question, holds);
    }

    pub(super) fn get(&self, pools: Pools, rate: f64) -> Option<bool> {
        self.answers.get(&Question::new(pools, rate)).copied()
    }

    /// Every cluster judged at a rate, in order.
    pub(super) fn at(&self, rate: f64) -> impl Iterator<Item = (Pools, bool)> + '_ {
        let least = Pools { design: 0, prompt: 0, token: 0 };
        self.answers
            .range(Question::new(least, rate)..)
            .take_while(move |(question, _)| question.rate == rate.to_bits())
            .map(|(question, &holds)| (question.pools, holds))
    }

    /// Those of some clusters that are not judged at a rate.
    pub(super) fn unknown(&self, pools: impl IntoIterator<Item = Pools>, rate: f64) -> Vec<Question> {
        let questions = pools.into_iter().map(|pools| Question::new(pools, rate));
        questions.filter(|question| !self.answers.contains_key(question)).collect()
    }
}

/// A part of a search that lives on answers alone.
pub(super) trait Inquiry {
    /// What has to be answered for it to go on, none of it answered yet; nothing when it is over.
    fn next(&mut self, judged: &Judged) -> Vec<Question>;

    /// About how many questions there will be yet.
    fn left(&self) -> u64;
}
