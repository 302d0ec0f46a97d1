//! Requests for output tokens: what a gateway asks, and what it hears until the end.

use std::sync::Arc;

use splitcore_core::event::{Arrival, ClusterEvent};
use splitcore_core::id::RequestId;
use splitcore_core::time::Time;
use splitcore_wire::message::Sampling;

use super::managed::Entry;
use super::{Ask, Failure, Fault, Host, State};

/// Tokens that are heard of at once, at most.
const TOKENS_MAX: usize = 64;

/// One choice of a client's request.
#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    /// What the client calls the request; choices of one request have one name.
    pub name: String,
    /// Which choice, from 0.
    pub choice: u32,
    /// How many choices the request has. They belong together: an answer has all of them.
    pub choices: u32,
    /// The client's prompt.
    pub prompt: Arc<[u32]>,
    /// Output tokens at most.
    pub max_new_tokens: u32,
    /// How to draw.
    pub sampling: Sampling,
    /// Texts that end the output. The host only keeps them, for who comes back.
    pub stop: Vec<String>,
    /// Tokens that end the output; the one that does is given as well.
    pub stop_ids: Vec<u32>,
    /// The gateway's own, given back to who comes back.
    pub note: String,
    /// Class of the service objective.
    pub class: u32,
    /// Higher goes first among those that wait.
    pub priority: i32,
}

impl Generate {
    fn arrival(&self, request: u64) -> Arrival {
        let (class, priority) = (self.class, self.priority);
        Arrival { class, priority, ..Arrival::new(request, self.prompt.len() as u32, self.max_new_tokens) }
    }
}

/// How a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// At a token of `stop_ids`, or at the cap.
    Finished,
    /// Given up, by its client or because none came back.
    Cancelled,
    /// It cannot go on.
    Failed(Failure),
}

impl Ending {
    /// The service has stopped meanwhile.
    fn stopped() -> Self {
        Self::Failed(Failure { reason: "stopped", fault: None })
    }
}

/// What is heard of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Output tokens, in order from 0, each once.
    Tokens {
        /// Place of the first.
        from: u32,
        /// The tokens.
        ids: Vec<u32>,
    },
    /// The last.
    Ended(Ending),
}

/// The output of one choice. Dropped before its end, it cancels the choice, unless another of the same choice lives.
pub struct Output {
    /// What was asked for.
    pub ask: Arc<Generate>,
    host: Arc<Host>,
    request: u64,
    /// Tokens that have been given by this output.
    given: usize,
}

impl Host {
    /// Begins all choices of a request, or none.
    ///
    /// # Errors
    /// Turned away, or the name is a live request's.
    pub fn generate(self: &Arc<Self>, asks: Vec<Generate>) -> Result<Vec<Output>, Fault> {
        let asks: Vec<Arc<Generate>> = asks.into_iter().map(Arc::new).collect();
        let requests = self.with(|state| state.generate(&asks))?;
        let output = |(ask, request)| self.output(ask, request);
        Ok(asks.into_iter().zip(requests).map(output).collect())
    }

    /// What was asked for by a request that is live or has ended lately, choice by choice. Nobody reads it for that.
    ///
    /// # Errors
    /// No request has this name, or not all of its choices are known, or not yet after a restart.
    pub fn look(&self, name: &str) -> Result<Vec<Arc<Generate>>, Fault> {
        self.with(|state| Ok(state.whole(name)?.into_iter().map(|(ask, _)| ask).collect()))
    }

    /// The choices of a request that is live or has ended lately: all of them, or none.
    ///
    /// # Errors
    /// As [`Host::look`].
    pub fn attach(self: &Arc<Self>, name: &str) -> Result<Vec<Output>, Fault> {
        let found = self.with(|state| {
            let found = state.whole(name)?;
            if let Some(managed) = &mut state.managed {
                for &(_, request) in &found {
                    managed.book.attach(request);
                }
            }
            Ok(found)
        })?;
        Ok(found.into_iter().map(|(ask, request)| self.output(ask, request)).collect())
    }

    fn output(self: &Arc<Self>, ask: Arc<Generate>, request: u64) -> Output {
        Output { ask, host: Arc::clone(self), request, given: 0 }
    }
}

impl State {
    /// All choices of a request, in order.
    fn whole(&mut self, name: &str) -> Result<Vec<(Arc<Generate>, u64)>, Fault> {
        self.begin()?;
        let is_recovering = self.core.is_recovering();
        let book = self.managed.as_ref().map(|managed| &managed.book);
        let (requests, is_whole) = book.map(|book| book.choices(name)).unwrap_or_default();
        if !is_whole {
            // As long as workers come back, one of them may have what is missing.
            return Err(match requests.len() {
                _ if is_recovering => Fault::Recovering(name.to_owned()),
                0 => Fault::UnknownName(name.to_owned()),
                _ => Fault::Incomplete(name.to_owned()),
            });
        }
        let ask = |request| Some((Arc::clone(&book?.get(request)?.ask), request));
        Ok(requests.into_iter().filter_map(ask).collect())
    }

    fn generate(&mut self, asks: &[Arc<Generate>]) -> Result<Vec<u64>, Fault> {
        let now = self.begin()?;
        if let Some(ask) = asks.first() {
            self.free_name(now, &ask.name)?;
        }
        self.check_together(asks)?;
        let mut requests = Vec::with_capacity(asks.len());
        for ask in asks {
            match self.begin_choice(now, ask, requests.first().copied()) {
                Ok(request) => requests.push(request),
                Err(fault) => {
                    for request in requests {
                        self.withdraw(now, request)?;
                    }
                    return Err(fault);
                }
            }
        }
        Ok(requests)
    }

    /// All choices find room, or none is begun: nothing is placed that its client would never have.
    fn check_together(&mut self, asks: &[Arc<Generate>]) -> Result<(), Fault> {
        if asks.len() < 2 {
            return Ok(());
        }
        let arrivals: Vec<Arrival> = asks.iter().map(|ask| ask.arrival(self.next_id)).collect();
        self.core.check_together(&arrivals).map_err(|reason| {
            let request = self.next_id;
            self.totals.reject(reason);
            self.rejected(request, reason);
            Fault::Rejected { request, reason }
        })
    }

    /// `first` is the request of the first choice, once that has begun.
    fn begin_choice(&mut self, now: Time, ask: &Arc<Generate>, first: Option<u64>) -> Result<u64, Fault> {
        let request = self.new_id();
        let book = &mut self.managed.as_mut().ok_or(Fault::NoWorkers)?.book;
        book.begin(request, first.unwrap_or(request), Arc::clone(ask), now);
        let mut placing =
            Ask { request: Some(request), arrival: ask.arrival(request), pin_token: None, dry_run: false };
        let placed = self.place(now, &mut placing);
        if let (Err(_), Some(managed)) = (&placed, &mut self.managed) {
            managed.book.forget(request);
        }
        placed.map(|_| request)
    }

    /// A name can be used again when all that had it is complete, whether or not the Cluster has heard so; and when
    /// nobody will ever be answered, since choices of it are lost.
    fn free_name(&mut self, now: Time, name: &str) -> Result<(), Fault> {
        let is_recovering = self.core.is_recovering();
        let book = &self.managed.as_ref().ok_or(Fault::NoWorkers)?.book;
        if book.is_live(name) && book.choices(name).1 {
            return Err(Fault::DuplicateName(name.to_owned()));
        }
        if book.is_live(name) && is_recovering {
            // It may turn out to be whole yet.
            return Err(Fault::Recovering(name.to_owned()));
        }
        for request in book.named(name).to_vec() {
            self.close(now, request);
            if let Some(managed) = &mut self.managed {
                managed.book.forget(request);
            }
        }
        Ok(())
    }

    /// A choice whose fellows have been turned away.
    fn withdraw(&mut self, now: Time, request: u64) -> Result<(), Fault> {
        let _ = self.handle(now, &ClusterEvent::Cancel { request: RequestId(request) })?;
        self.keep(None);
        if let Some(managed) = &mut self.managed {
            managed.book.forget(request);
        }
        Ok(())
    }
}

impl Output {
    /// Returns once a machine has the request.
    ///
    /// # Errors
    /// It has ended before.
    pub async fn acknowledged(&mut self) -> Result<(), Ending> {
        self.wait(|entry| match &entry.ending {
            _ if entry.acknowledged => Some(Ok(())),
            Some(Ending::Finished) => Some(Ok(())),
            Some(ending) => Some(Err(ending.clone())),
            None => None,
        })
        .await
        .unwrap_or(Err(Ending::stopped()))
    }

    /// No more than the first `tokens` are wanted. Its machine ends it there, and keeps it like any other that has ended.
    pub fn enough(&self, tokens: u32) {
        let request = self.request;
        let _ = self.host.with(|state| {
            if let Some(managed) = &mut state.managed
                && let Some((machine, key)) = managed.book.enough(request, tokens)
            {
                managed.enough(machine, key, tokens);
            }
            Ok(())
        });
    }

    /// What comes next. After the end it is the end again.
    pub async fn next(&mut self) -> Said {
        let given = self.given;
        let said = self
            .wait(|entry| {
                let new = &entry.tokens[given.min(entry.tokens.len())..];
                if !new.is_empty() {
                    let ids = new[..new.len().min(TOKENS_MAX)].to_vec();
                    return Some(Said::Tokens { from: given as u32, ids });
                }
                entry.ending.clone().map(Said::Ended)
            })
            .await
            .unwrap_or(Said::Ended(Ending::stopped()));
        if let Said::Tokens { ids, .. } = &said {
            self.given += ids.len();
        }
        said
    }

    /// Waits until there is something to be found. `None`: the host has stopped.
    async fn wait<T>(&self, find: impl Fn(&Entry) -> Option<T>) -> Option<T> {
        loop {
            let looked = self.host.with(|state| {
                let entry = state.managed.as_ref().and_then(|managed| managed.book.get(self.request));
                let entry = entry.ok_or(Fault::Stopped)?;
                Ok(match find(entry) {
                    Some(found) => Ok(found),
                    // Made inside the lock: whatever comes from here on wakes it.
                    None => Err(Arc::clone(&entry.news).notified_owned()),
                })
            });
            match looked.ok()? {
                Ok(found) => return Some(found),
                Err(news) => news.await,
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let request = self.request;
        let _ = self.host.with(|state| {
            let now = state.begin()?;
            if let Some(managed) = &mut state.managed {
                managed.book.detach(request, now);
            }
            Ok(())
        });
    }
}
