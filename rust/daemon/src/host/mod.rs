//! One Cluster behind one lock: calls become events, actions become answers and kept events.

mod directory;
mod facts;
mod generate;
mod log;
mod managed;
mod views;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};

use splitcore_core::cluster::Cluster;
use splitcore_core::config::ClusterConfig;
use splitcore_core::error::{Applied, EventError, Rejection};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Outcome};
use splitcore_core::id::{Epoch, MachineId, RequestId};
use splitcore_core::placement::Placement;
use splitcore_core::time::Time;
use splitcore_record::Recorder;
use tokio::sync::{Notify, watch};

pub use directory::{Machine, MachineSpec};
pub use facts::{Fact, Recovered, ReportSpec};
pub use generate::{Ending, Generate, Output, Said};
pub use log::{Kind, Since};
pub use views::{Decision, DecisionView, Overview, PoolView, RowView, STATES, Totals};

use crate::clock::Clock;
use crate::options::{OptionError, Options};
pub use managed::{BlocksView, HandoffView, KvTotals, Stage, life};

use directory::Directory;
use log::Log;
use managed::Managed;

/// Decisions kept for the page.
const DECISIONS_KEPT: usize = 32;

/// Classes of requests that have limits at once.
pub const CLASSES_MAX: usize = 1024;

/// Every reason of the core, in the order of the counts.
pub const REJECTIONS: [Rejection; 9] = [
    Rejection::RequestsMax,
    Rejection::TooLarge,
    Rejection::NoMachine,
    Rejection::Overloaded,
    Rejection::PinUnavailable,
    Rejection::Recovering,
    Rejection::Headroom,
    Rejection::TtftSlo,
    Rejection::TbtSlo,
];

/// Why a call did nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The arrival is turned away.
    #[error("request {request} is rejected: {}", .reason.name())]
    Rejected {
        /// Whose.
        request: u64,
        /// Why.
        reason: Rejection,
    },
    /// The core refuses the event.
    #[error("{0}")]
    Event(#[from] EventError),
    /// No machine has this name.
    #[error("there is no machine '{0}'")]
    UnknownMachine(String),
    /// A machine of this name is here.
    #[error("{}", already_here(.name, .here.as_deref(), .again.as_deref()))]
    DuplicateMachine {
        /// Of both.
        name: String,
        /// Where the one is that is here.
        here: Option<String>,
        /// Where the other one is.
        again: Option<String>,
    },
    /// No live request has this id.
    #[error("there is no live request {0}")]
    UnknownRequest(u64),
    /// A live request has this name.
    #[error("a request '{0}' is live")]
    DuplicateName(String),
    /// It has restarted, and the worker that has the request may be yet to come.
    #[error("the service has restarted and hears from its machines first; '{0}' is not known yet")]
    Recovering(String),
    /// No request that is live or has ended lately has this name.
    #[error("there is no request '{0}'")]
    UnknownName(String),
    /// It places for others.
    #[error("this service has no workers of its own")]
    NoWorkers,
    /// It does not place for others.
    #[error("this service has workers of its own, and places for them alone")]
    OwnWorkers,
    /// An id occurs twice in one call.
    #[error("request {0} occurs twice in this call")]
    Twice(u64),
    /// `CLASSES_MAX` classes have limits.
    #[error("at most {CLASSES_MAX} classes have limits at once")]
    ClassesMax,
    /// `machines_max` are known.
    #[error("machines_max: at most {0} machines are known, lost ones included")]
    MachinesMax(usize),
    /// A bug stopped the books.
    #[error("the service has met a bug and stopped; its log says more")]
    Stopped,
}

/// What is said of a name that is taken: with both addresses, since one of the two is most likely a mistake.
fn already_here(name: &str, here: Option<&str>, again: Option<&str>) -> String {
    let at = |url: Option<&str>| url.map_or_else(|| "without a url".to_owned(), |url| format!("at {url}"));
    if here == again {
        return format!("machine '{name}' is already here, {}", at(here));
    }
    format!("machine '{name}' is already here, {}; the one that would join is {}", at(here), at(again))
}

/// A placement with the machines that it names.
#[derive(Debug, Clone)]
pub struct Placed {
    /// What the core says.
    pub placement: Placement,
    /// Who prefills.
    pub prompt: Option<Arc<Machine>>,
    /// Who decodes, once that is known.
    pub token: Option<Arc<Machine>>,
    /// Who would have been next for the prompt.
    pub runner_up: Option<Arc<Machine>>,
    /// It is what it would be: nothing is booked.
    pub dry_run: bool,
}

/// What the lock guards.
pub(crate) struct State {
    core: Cluster,
    clock: Clock,
    machines: Directory,
    /// Live requests; `None` while one waits for a machine.
    live: HashMap<u64, Option<Placement>>,
    recent: VecDeque<Decision>,
    log: Log,
    totals: Totals,
    /// Classes with limits.
    classes: HashSet<u32>,
    next_id: u64,
    /// With workers of its own.
    managed: Option<Managed>,
    /// Every event and what came of it, if that is wanted.
    recorder: Option<Recorder<Cluster>>,
    /// When the ticker wakes up.
    armed: Time,
    /// Of the last event; kept for its allocation.
    actions: Vec<ClusterAction>,
}

/// The Cluster of a service, shared by its connections.
pub struct Host {
    state: Mutex<State>,
    /// The number of the next event, for those who wait.
    newest: watch::Sender<u64>,
    ticker: Notify,
    machines_max: usize,
    clock: Clock,
}

impl Host {
    /// A host without machines.
    ///
    /// # Errors
    /// The first option outside its range.
    pub fn new(options: &Options) -> Result<Self, OptionError> {
        let config: ClusterConfig = options.cluster()?;
        let core = Cluster::new(config)
            .map_err(|error| OptionError::new(error.option, error.expected, error.got))?;
        let clock = Clock::start();
        let keep = options.event_log_keep;
        let recorder = options.event_log.as_deref().map(|folder| record(folder, keep, &core)).transpose()?;
        let mut state = State {
            core,
            clock,
            machines: Directory::default(),
            live: HashMap::new(),
            recent: VecDeque::with_capacity(DECISIONS_KEPT),
            log: Log::new(options.events_max),
            totals: Totals::default(),
            classes: HashSet::new(),
            next_id: first_id(),
            managed: options
                .model
                .is_some()
                .then(|| Managed::new((options.reattach_s * 1e9) as u64, options.machines_max)),
            recorder,
            armed: Time::MAX,
            actions: Vec::new(),
        };
        // The grace time of a Cluster begins with the first thing that it hears.
        let _ = state.handle(clock.now(), &ClusterEvent::Tick);
        Ok(Self {
            state: Mutex::new(state),
            newest: watch::Sender::new(0),
            ticker: Notify::new(),
            machines_max: options.machines_max,
            clock,
        })
    }

    /// Runs `call` inside the lock, and wakes those whom it concerns.
    fn with<T>(&self, call: impl FnOnce(&mut State) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut state = self.state.lock().map_err(|_| Fault::Stopped)?;
        let before = state.log.next();
        let done = call(&mut state);
        state.settle(self.clock.now());
        let next = state.log.next();
        let due = state.next_deadline();
        let sooner = due < state.armed;
        if sooner {
            state.armed = due;
        }
        drop(state);
        if next != before {
            self.newest.send_replace(next);
        }
        if sooner {
            self.ticker.notify_one();
        }
        done
    }

    /// Applies ticks as they are due, for ever.
    pub async fn tick(&self) {
        loop {
            let due = self.with(|state| {
                state.begin()?;
                state.settle(self.clock.now());
                state.armed = state.next_deadline();
                Ok(state.armed)
            });
            let Ok(due) = due else { return };
            if due == Time::MAX {
                self.ticker.notified().await;
            } else {
                let until = tokio::time::Instant::from_std(self.clock.instant(due));
                // Woken early: another deadline came in between.
                let _ = tokio::time::timeout_at(until, self.ticker.notified()).await;
            }
        }
    }

    /// Which Cluster speaks.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn epoch(&self) -> Result<Epoch, Fault> {
        self.with(|state| Ok(state.core.epoch()))
    }

    /// Whether a bug has stopped it.
    pub fn is_stopped(&self) -> bool {
        self.state.is_poisoned()
    }

    /// Places one request; without an id it gets one.
    ///
    /// # Errors
    /// As the core says.
    pub fn place(&self, mut ask: Ask) -> Result<Placed, Fault> {
        self.with(|state| {
            let now = state.begin()?;
            state.place(now, &mut ask)
        })
    }

    /// Whether none of these ids is live or occurs twice.
    ///
    /// # Errors
    /// [`Fault::Twice`] or a live id.
    pub fn check_new(&self, asks: &[Ask]) -> Result<(), Fault> {
        let mut ids: Vec<u64> = asks.iter().filter_map(|ask| ask.request).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Fault::Twice(pair[0]));
        }
        self.with(|state| {
            let _ = state.begin()?;
            match ids.iter().find(|id| state.live.contains_key(id)) {
                Some(&id) => Err(EventError::DuplicateRequest(RequestId(id)).into()),
                None => Ok(()),
            }
        })
    }

    /// Places requests in order, all at one time. What each came to is in the list.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn place_each(&self, asks: Vec<Ask>) -> Result<Vec<Result<Placed, Fault>>, Fault> {
        self.with(|state| {
            let now = state.begin()?;
            Ok(asks.into_iter().map(|mut ask| state.place(now, &mut ask)).collect())
        })
    }

    /// Where a live request runs; `None` while it waits.
    ///
    /// # Errors
    /// [`Fault::UnknownRequest`].
    pub fn find(&self, request: u64) -> Result<(Option<Placed>, u32), Fault> {
        self.with(|state| {
            state.begin()?;
            let placement = *state.live.get(&request).ok_or(Fault::UnknownRequest(request))?;
            let delivered = state.core.delivered(RequestId(request)).unwrap_or(0);
            Ok((placement.map(|placement| state.named(placement)), delivered))
        })
    }

    /// At most `most` events from number `since` on.
    ///
    /// # Errors
    /// [`Fault::Stopped`].
    pub fn events(&self, since: u64, most: usize) -> Result<Since, Fault> {
        self.with(|state| {
            state.begin()?;
            Ok(state.log.since(since, most))
        })
    }

    /// Tells when events beyond a number are there.
    pub fn watch_events(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }
}

/// A request as it is asked for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Its id, if the caller gives one.
    pub request: Option<u64>,
    /// The rest; its id counts for nothing.
    pub arrival: Arrival,
    /// Name of the machine that must decode it.
    pub pin_token: Option<String>,
    /// Answer only, book nothing.
    pub dry_run: bool,
}

/// Begins the log of a Cluster.
fn record(folder: &Path, keep: Option<u32>, core: &Cluster) -> Result<Recorder<Cluster>, OptionError> {
    let options = splitcore_record::Options {
        keep,
        on_end: Box::new(|ended| tracing::error!(%ended, "the event log ends; the service goes on")),
        ..splitcore_record::Options::default()
    };
    Recorder::create(folder, "cluster", core, options)
        .map_err(|error| OptionError::new("event_log", "a folder that can be written", error))
}

/// Ids that the service gives start at the time of day, so that a new service does not give those of the last.
/// They stay below 2^53, which every JSON reader can hold.
fn first_id() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    (since.map_or(0, |since| since.as_secs()) & 0xffff_ffff) << 20
}

impl State {
    /// The time of a call, with the Tick before it if one is due.
    fn begin(&mut self) -> Result<Time, Fault> {
        let now = self.clock.now();
        if self.core.next_deadline().is_some_and(|due| due <= now) {
            let _ = self.handle(now, &ClusterEvent::Tick)?;
            self.keep(None);
        }
        Ok(now)
    }

    fn next_deadline(&self) -> Time {
        let closes_at = self.managed.as_ref().and_then(|managed| managed.book.next_deadline());
        self.core.next_deadline().into_iter().chain(closes_at).min().unwrap_or(Time::MAX)
    }

    /// Applies one event; what it wants done is in `actions`.
    fn handle(&mut self, now: Time, event: &ClusterEvent) -> Result<Applied, EventError> {
        self.actions.clear();
        let result = self.core.handle(now, event, &mut self.actions);
        if let Some(recorder) = &mut self.recorder {
            recorder.record(now, event, &result, &self.actions, &self.core);
        }
        result
    }

    fn new_id(&mut self) -> u64 {
        while self.live.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    fn place(&mut self, now: Time, ask: &mut Ask) -> Result<Placed, Fault> {
        if let Some(name) = &ask.pin_token {
            ask.arrival.pin_token = Some(self.machine(name)?.index);
        }
        let request = match ask.request {
            Some(request) => request,
            None => self.new_id(),
        };
        ask.arrival.request = RequestId(request);
        if ask.dry_run {
            let answer = self.core.dry_run(&ask.arrival)?;
            return match answer {
                Ok(placement) => Ok(Placed { dry_run: true, ..self.named(placement) }),
                Err(reason) => Err(Fault::Rejected { request, reason }),
            };
        }
        let _ = self.handle(now, &ClusterEvent::Arrive(ask.arrival))?;
        let answer = self.actions.iter().find_map(|action| match *action {
            ClusterAction::Placed(placement) if placement.request.0 == request => Some(Ok(placement)),
            ClusterAction::Rejected { reason, .. } => Some(Err(reason)),
            _ => None,
        });
        self.keep(Some(request));
        match answer.unwrap_or(Err(Rejection::NoMachine)) {
            Ok(placement) => Ok(self.named(placement)),
            Err(reason) => Err(Fault::Rejected { request, reason }),
        }
    }

    /// Takes in what the last event wants done. `told` is the request whose placement its own call returns.
    fn keep(&mut self, told: Option<u64>) {
        for at in 0..self.actions.len() {
            match self.actions[at] {
                ClusterAction::Placed(placement) => {
                    self.live.insert(placement.request.0, Some(placement));
                    self.decided(&placement);
                    if let Some(managed) = &mut self.managed {
                        managed.placed(&placement, self.core.now());
                    }
                    if told != Some(placement.request.0) {
                        self.log.push(Kind::Placed(Box::new(self.named(placement))));
                    }
                }
                ClusterAction::Rejected { request, reason } => {
                    self.totals.reject(reason);
                    self.rejected(request.0, reason);
                }
                ClusterAction::Parked { request } => {
                    self.live.insert(request.0, None);
                    self.log.push(Kind::Parked { request: request.0 });
                }
                ClusterAction::Ended { request, outcome } => self.ended(request.0, outcome),
                ClusterAction::Moved { machine, pool } => {
                    self.totals.moved += 1;
                    if let Some(machine) = self.machines.at(machine.index) {
                        tracing::debug!(machine = machine.name, ?pool, "changed pools");
                    }
                }
                ClusterAction::Drained { machine } => self.drained(machine),
                ClusterAction::Command { to, seq, command } => {
                    self.follow(to, &command);
                    if let Some(managed) = &mut self.managed {
                        managed.command(to, seq, command);
                    }
                }
                ClusterAction::Registered { to, .. } => {
                    self.managed.iter().for_each(|managed| managed.registered(to));
                }
            }
        }
    }

    fn ended(&mut self, request: u64, outcome: Outcome) {
        let placement = self.live.remove(&request).flatten();
        self.ended_managed(request, placement, outcome, self.core.now());
        let kind = match outcome {
            // Whoever said so knows.
            Outcome::Finished | Outcome::Cancelled => return,
            Outcome::Expired => {
                self.totals.expired += 1;
                Kind::Expired { request }
            }
            Outcome::AttemptsMax => Kind::Failed { request, reason: "attempts_max" },
            Outcome::NotResumable => Kind::Failed { request, reason: "not_resumable" },
        };
        self.log.push(kind);
    }

    fn named(&self, placement: Placement) -> Placed {
        let at = |machine: MachineId| self.machines.at(machine.index).cloned();
        Placed {
            placement,
            prompt: placement.prompt().and_then(at),
            token: placement.token().and_then(at),
            runner_up: placement.why.runner_up.and_then(|(index, _)| self.machines.at(index).cloned()),
            dry_run: false,
        }
    }
}
