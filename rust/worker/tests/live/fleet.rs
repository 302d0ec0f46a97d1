//! The workers, each with its engine in a thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use splitcore_core::config::MachineConfig;
use splitcore_core::event::Role;
use splitcore_core::kv::PoolShape;
use splitcore_transport::{Backend, Pool};
use splitcore_wire::address::Address;
use splitcore_wire::auth::Secret;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::session::Limits;
use splitcore_worker::mover::MoverOptions;
use splitcore_worker::{End, Log, ModelBounds, Stats, TransferListen, Worker, WorkerOptions};

use crate::model::{Model, VOCABULARY, layout};

pub(crate) const MODEL: &str = "toy";
pub(crate) const BLOCKS: u32 = 400;

pub(crate) fn secret() -> Secret {
    Secret::new(b"correct horse battery staple\n")
}

/// A worker and its engine.
pub(crate) struct Running {
    pub(crate) worker: Arc<Worker>,
    engine: JoinHandle<()>,
}

impl Running {
    /// Ends it. What it held is lost.
    pub(crate) fn end(self) -> (End, Stats) {
        let end = self.worker.stop();
        if let Err(panic) = self.engine.join() {
            std::panic::resume_unwind(panic);
        }
        (end, self.worker.stats())
    }
}

pub(crate) fn options(
    connect: &Address,
    index: u32,
    incarnation: u32,
    role: Role,
    backend: Backend,
) -> WorkerOptions {
    let mut mover = MoverOptions::new(MODEL);
    mover.connect.backend = Some(backend);
    WorkerOptions {
        connect: connect.clone(),
        tls: None,
        name: format!("worker-{index}"),
        role,
        model: MODEL.to_owned(),
        bounds: ModelBounds { context: 1000, vocabulary: VOCABULARY },
        secret: Some(secret()),
        peer_listen: None,
        transfer_listen: TransferListen::AsNeeded,
        mover,
        machine: MachineConfig {
            report_interval_ns: 20_000_000,
            orphan_limit_ns: None,
            park_limit_ns: 3600 * 1_000_000_000,
            ..MachineConfig::default()
        },
        limits: Limits::default(),
        backoff: Backoff::new(2_000_000, 50_000_000, u64::from(index)),
        incarnation,
        event_log: None,
        event_log_keep: None,
        log: Log::new(move |line| eprintln!("worker-{index}.{incarnation}: {line}")),
    }
}

pub(crate) fn start(options: WorkerOptions, blocks: u32) -> Running {
    let index = options.name.rsplit('-').next().unwrap().parse().unwrap();
    let pool = Arc::new(Pool::shared(PoolShape { layout: layout(index), blocks }).unwrap());
    let worker = Arc::new(Worker::start(options, pool.clone()).unwrap());
    let of = worker.clone();
    let run = move || {
        let model = Model::new(pool);
        while of.ended().is_none() {
            if let Some(pass) = of.next_pass(Duration::from_secs(1)) {
                let number = pass.number;
                of.pass_done(number, &model.run(pass));
            }
        }
    };
    let engine = std::thread::Builder::new().name(format!("engine-{index}")).spawn(run).unwrap();
    Running { worker, engine }
}

/// All workers of a test, by place.
pub(crate) struct Fleet {
    address: Address,
    roles: Vec<Role>,
    backend: Backend,
    blocks: u32,
    event_log: Option<PathBuf>,
    incarnations: Vec<u32>,
    running: Vec<Running>,
}

impl Fleet {
    pub(crate) fn start(
        address: &Address,
        roles: &[Role],
        backend: Backend,
        blocks: u32,
        event_log: Option<PathBuf>,
    ) -> Self {
        let each = (0..).zip(roles);
        let options = each.map(|(index, &role)| options(address, index, 1, role, backend));
        let running = options.map(|options| {
            let options = WorkerOptions { event_log: event_log.clone(), ..options };
            start(options, blocks)
        });
        let (running, roles, incarnations) = (running.collect(), roles.to_vec(), vec![1; roles.len()]);
        Self { address: address.clone(), roles, backend, blocks, event_log, incarnations, running }
    }

    /// A worker dies, and another of its name comes.
    pub(crate) fn kill(&mut self, index: u32) {
        let at = index as usize;
        self.incarnations[at] += 1;
        let next = options(&self.address, index, self.incarnations[at], self.roles[at], self.backend);
        let next = WorkerOptions { event_log: self.event_log.clone(), ..next };
        let (blocks, here) = (self.blocks, &mut self.running[at]);
        // Apart from the daemon, which lives in a runtime.
        let meddles = || drop(std::mem::replace(here, start(next, blocks)).end());
        std::thread::scope(|scope| scope.spawn(meddles).join().unwrap());
    }

    /// Ends all.
    pub(crate) fn end(self) -> Vec<Stats> {
        let ends = self.running.into_iter().map(Running::end);
        ends.map(|(end, stats)| {
            assert_eq!(end, End::Stopped);
            stats
        })
        .collect()
    }
}
