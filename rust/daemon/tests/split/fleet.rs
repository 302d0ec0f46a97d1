//! Workers whose engines stop where a test wants, each in a thread.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use splitcore_core::config::MachineConfig;
use splitcore_core::event::Role;
use splitcore_core::kv::PoolShape;
use splitcore_transport::{Backend, Pool};
use splitcore_wire::backoff::Backoff;
use splitcore_wire::session::Limits;
use splitcore_worker::mover::MoverOptions;
use splitcore_worker::{Log, ModelBounds, Pass, Stats, TransferListen, Worker, WorkerOptions};

use crate::model::{Model, VOCABULARY, layout};

pub(crate) const MODEL: &str = "toy";
/// The longest that an engine stands still, so that a test that fails does end.
const STILL: Duration = Duration::from_secs(60);

/// Where an engine stands still: in passes with a prompt, or without, before it computes this layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) prompts: bool,
    pub(crate) layer: u16,
}

#[derive(Debug, Default)]
struct State {
    hold: Option<Hold>,
    /// It stands there.
    stands: bool,
}

/// Lets an engine on, or not.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn set(&self, hold: Option<Hold>) {
        self.state.lock().unwrap().hold = hold;
        self.changed.notify_all();
    }

    pub(crate) fn stands(&self) -> bool {
        self.state.lock().unwrap().stands
    }

    /// Of the engine.
    fn pass(&self, pass: &Pass, layer: u16) {
        let prompts = pass.spans.iter().any(|span| span.tokens.len() > 1);
        let here = Hold { prompts, layer };
        let mut state = self.state.lock().unwrap();
        state.stands = state.hold == Some(here);
        let (mut state, waited) =
            self.changed.wait_timeout_while(state, STILL, |state| state.hold == Some(here)).unwrap();
        assert!(!waited.timed_out(), "nobody lets the engine on");
        state.stands = false;
    }
}

/// A worker and its engine.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) worker: Arc<Worker>,
    pub(crate) gate: Arc<Gate>,
    engine: JoinHandle<()>,
}

/// As `splitcore worker` has them, but for the model and the times that only make a test longer.
pub(crate) fn options(connect: &str, name: &str, role: Role) -> WorkerOptions {
    let mut mover = MoverOptions::new(MODEL);
    mover.connect.backend = Some(Backend::Tcp);
    let told = name.to_owned();
    WorkerOptions {
        connect: connect.parse().unwrap(),
        tls: None,
        name: name.to_owned(),
        role,
        model: MODEL.to_owned(),
        bounds: ModelBounds { context: 1000, vocabulary: VOCABULARY },
        secret: None,
        peer_listen: None,
        transfer_listen: TransferListen::AsNeeded,
        mover,
        machine: MachineConfig { report_interval_ns: 20_000_000, ..MachineConfig::default() },
        limits: Limits::default(),
        backoff: Backoff::new(2_000_000, 50_000_000, 1),
        incarnation: 1,
        event_log: None,
        event_log_keep: None,
        log: Log::new(move |line| eprintln!("{told}: {line}")),
    }
}

impl Running {
    pub(crate) fn start(options: WorkerOptions, blocks: u32) -> Self {
        let name = options.name.clone();
        let index = u32::from(options.role == Role::Token) * 2 + u32::from(name.ends_with('1'));
        let pool = Arc::new(Pool::shared(PoolShape { layout: layout(index), blocks }).unwrap());
        let worker = Arc::new(Worker::start(options, pool.clone()).unwrap());
        let gate = Arc::<Gate>::default();
        let (of, through) = (worker.clone(), gate.clone());
        let run = move || {
            let model = Model::new(pool);
            while of.ended().is_none() {
                if let Some(pass) = of.next_pass(Duration::from_secs(1)) {
                    let number = pass.number;
                    of.pass_done(number, &model.run_telling(pass, |pass, layer| through.pass(pass, layer)));
                }
            }
        };
        let engine = std::thread::Builder::new().name(format!("engine-{name}")).spawn(run).unwrap();
        Self { name, worker, gate, engine }
    }

    /// Ends it. What it held is lost.
    pub(crate) fn end(self) -> Stats {
        self.worker.stop();
        self.gate.set(None);
        if let Err(panic) = self.engine.join() {
            std::panic::resume_unwind(panic);
        }
        self.worker.stats()
    }
}
