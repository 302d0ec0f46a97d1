//! The choices of one request as their tokens come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use super::metrics::Tally;
use super::text::{Finish, Model, Piece, Writer};
use crate::host::{Ending, Output, Said};

/// Tokens that are made into text before whoever else waits for this thread has a turn: an answer that is told again
/// has all of its tokens at once.
const STRETCH_MAX: usize = 64;

/// One choice.
struct Live {
    output: Option<Output>,
    writer: Writer,
    over: bool,
}

/// What is heard of one choice.
pub(super) enum Heard {
    /// A piece for each token, from number `from` on. An end without a token of its own is a piece as well.
    Pieces { choice: usize, from: u32, pieces: Vec<Piece> },
    /// It goes on no more.
    Failed { choice: usize, ending: Ending },
}

/// All choices of a request. Dropped before their end, they are cancelled.
pub(super) struct Choices {
    model: Arc<Model>,
    live: Vec<Live>,
    tally: Tally,
    /// Whose turn it is, so that no choice waits for another.
    turn: usize,
    /// Tokens since others were let on.
    at_a_stretch: usize,
}

impl Choices {
    pub(super) fn new(model: Arc<Model>, outputs: Vec<Output>, tally: Tally) -> Self {
        let live = outputs.into_iter().map(|output| {
            let ask = &output.ask;
            let tokens = (ask.sampling.min_tokens, ask.max_new_tokens);
            let writer = Writer::new(&model, &ask.prompt, tokens, &ask.stop, &ask.stop_ids);
            Live { output: Some(output), writer, over: false }
        });
        let live = live.collect();
        Self { model, live, tally, turn: 0, at_a_stretch: 0 }
    }

    /// How many.
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// Output tokens so far, of all.
    pub(super) fn taken(&self) -> u64 {
        self.live.iter().map(|live| u64::from(live.writer.taken())).sum()
    }

    /// Returns once machines have all of them.
    ///
    /// # Errors
    /// The first that has ended without one.
    pub(super) async fn acknowledged(&mut self) -> Result<(), Ending> {
        for at in 0..self.live.len() {
            let Some(output) = &mut self.live[at].output else { continue };
            if let Err(ending) = output.acknowledged().await {
                self.tally.failed(at);
                return Err(ending);
            }
        }
        Ok(())
    }

    /// What is heard next, of whichever choice. `None`: all are over.
    pub(super) async fn next(&mut self) -> Option<Heard> {
        if self.live.iter().all(|live| live.over) {
            return None;
        }
        if self.at_a_stretch >= STRETCH_MAX {
            self.at_a_stretch = 0;
            tokio::task::yield_now().await;
        }
        let (choice, said) = any(&mut self.live, self.turn).await;
        self.turn = choice + 1;
        let heard = self.hear(choice, said);
        self.at_a_stretch += if let Heard::Pieces { pieces, .. } = &heard { pieces.len() } else { 1 };
        Some(heard)
    }

    fn hear(&mut self, choice: usize, said: Said) -> Heard {
        let live = &mut self.live[choice];
        match said {
            Said::Tokens { from, ids } => {
                let mut pieces = Vec::with_capacity(ids.len());
                for id in ids {
                    pieces.push(live.writer.take(&self.model, id));
                    if live.writer.finish().is_some() {
                        break;
                    }
                }
                self.tally.tokens(choice, pieces.len());
                let finish = live.writer.finish();
                self.finished(choice, finish);
                Heard::Pieces { choice, from, pieces }
            }
            Said::Ended(Ending::Finished) => {
                let (from, piece) = (live.writer.taken(), live.writer.end(&self.model));
                self.finished(choice, piece.finish);
                Heard::Pieces { choice, from, pieces: vec![piece] }
            }
            Said::Ended(ending) => {
                live.over = true;
                self.tally.failed(choice);
                Heard::Failed { choice, ending }
            }
        }
    }

    fn finished(&mut self, choice: usize, finish: Option<Finish>) {
        let Some(finish) = finish else { return };
        let live = &mut self.live[choice];
        live.over = true;
        self.tally.finished(choice, finish);
        // It is kept, here and with its machine, until the whole answer has gone: who comes back to another daemon needs
        // all choices.
        if live.writer.runs_on()
            && let Some(output) = &live.output
        {
            output.enough(live.writer.taken());
        }
    }
}

/// What the first of them says that has something to say.
async fn any(live: &mut [Live], turn: usize) -> (usize, Said) {
    type Next<'a> = Pin<Box<dyn Future<Output = Said> + Send + 'a>>;
    let waiting = live.iter_mut().enumerate().filter(|(_, live)| !live.over);
    let mut waiting: Vec<(usize, Next<'_>)> = waiting
        .filter_map(|(at, live)| Some((at, Box::pin(live.output.as_mut()?.next()) as Next<'_>)))
        .collect();
    let first = waiting.iter().position(|(at, _)| *at >= turn).unwrap_or(0);
    waiting.rotate_left(first);
    std::future::poll_fn(|context| {
        for (at, next) in &mut waiting {
            if let Poll::Ready(said) = next.as_mut().poll(context) {
                return Poll::Ready((*at, said));
            }
        }
        Poll::Pending
    })
    .await
}
