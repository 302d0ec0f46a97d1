//! What children do: the sender's part of an exchange, or the receiver's.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use splitcore_core::kv::{BlockId, TransferPlan};
use splitcore_transport::{Backend, Endpoint, Grant, Incarnation, Link, Pool, TransferError};

use super::child::{job, said, tell, wrong};
use super::{
    BOUND, connect_by, destination_shape, ends, fill, next, open, plan, receiver_in, scattered, source_shape,
    unless_busy, verify,
};

/// An exchange of several transfers, all of whose choices come from one seed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) role: Role,
    pub(crate) backend: Backend,
    pub(crate) seed: u64,
    /// Of each pool.
    pub(crate) mib: u64,
    pub(crate) sender: Incarnation,
    /// Where sockets are made.
    pub(crate) folder: std::path::PathBuf,
    /// To whom, and by which leave: for a sender.
    pub(crate) to: Option<Endpoint>,
    pub(crate) grants: Vec<Grant>,
    /// After how many puts, and turns of a loop, a sender kills itself while it goes on.
    pub(crate) doomed_put: Option<(u64, u64)>,
}

/// Which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Sender,
    Receiver,
    /// A sender that puts and never publishes, and tries again when it is told to.
    Writer,
}

impl Job {
    /// Blocks of each transfer, at the source or the destination: scattered, no block twice.
    pub(crate) fn tables(&self, of: Role) -> Vec<Vec<BlockId>> {
        let mut state = self.seed ^ if of == Role::Sender { 1 } else { 2 };
        let shape = match of {
            Role::Sender | Role::Writer => source_shape(self.mib << 20),
            Role::Receiver => destination_shape(self.mib << 20),
        };
        // Both sides draw the same sizes: a quarter of the pool at most each, of three.
        let mut sizes = self.seed;
        let most = u64::from(source_shape(self.mib << 20).blocks / 4).max(1);
        let sizes: Vec<usize> = (0..3).map(|_| 1 + (next(&mut sizes) % most) as usize).collect();
        let all = scattered(&shape, sizes.iter().sum(), &mut state);
        let mut rest = &all[..];
        let mut tables = Vec::new();
        for size in sizes {
            let (table, others) = rest.split_at(size);
            tables.push(table.to_vec());
            rest = others;
        }
        tables
    }

    /// What the bytes of a transfer come from.
    pub(crate) fn payload(&self, transfer: usize) -> u64 {
        super::mix(self.seed ^ (transfer as u64) << 48)
    }

    /// Every layer of every transfer, in an order of the seed's; a transfer's layers come in any order.
    pub(crate) fn steps(&self) -> Vec<(usize, u16)> {
        let mut steps: Vec<(usize, u16)> =
            (0..3).flat_map(|transfer| (0..4).map(move |layer| (transfer, layer))).collect();
        let mut state = self.seed ^ 3;
        for at in (1..steps.len()).rev() {
            steps.swap(at, (next(&mut state) % (at as u64 + 1)) as usize);
        }
        steps
    }

    /// The sender's pool, with what is to be sent in it.
    pub(crate) fn source(&self) -> Arc<Pool> {
        let pool = Arc::new(Pool::shared(source_shape(self.mib << 20)).unwrap());
        self.fill(&pool);
        pool
    }

    /// Puts what is to be sent into a pool.
    pub(crate) fn fill(&self, pool: &Pool) {
        for (transfer, table) in self.tables(Role::Sender).iter().enumerate() {
            fill(pool, table, self.payload(transfer));
        }
    }

    /// Sends everything that was granted, until it is sent or fails; `told` hears of each step. The ends of all
    /// transfers are seen, one for each.
    pub(crate) fn send(
        &self,
        link: &dyn Link,
        grants: &[Grant],
        mut told: impl FnMut(&str),
    ) -> Result<(), TransferError> {
        let (from, to) = (self.tables(Role::Sender), self.tables(Role::Receiver));
        let plans: Vec<TransferPlan> = from
            .iter()
            .zip(&to)
            .map(|(from, to)| plan(&source_shape(self.mib << 20), from, link.remote(), to))
            .collect();
        let mut begun = Vec::new();
        let mut outcome = Ok(());
        for grant in grants {
            outcome = outcome.and_then(|()| link.begin(grant));
            if outcome.is_ok() {
                begun.push(grant.key);
                told("begun");
            }
        }
        let mut state = self.seed ^ 4;
        for (transfer, layer) in self.steps() {
            let at_once = 1 + (next(&mut state) % 40) as usize;
            let key = grants[transfer].key;
            let ranges: Vec<_> = plans[transfer].layer(layer).collect();
            for some in ranges.chunks(at_once) {
                outcome = outcome.and_then(|()| unless_busy(link, || link.put(key, layer, some)));
                told("put");
            }
            outcome = outcome.and_then(|()| unless_busy(link, || link.publish(key, layer, 16)));
            if outcome.is_ok() {
                told("published");
            }
        }
        let ended = ends(link, &begun);
        told(&format!("ended {}", ended.len()));
        outcome
    }
}

/// The entry of every binary with children: does the job in a child, and nothing in a parent.
pub(crate) fn run() {
    let Some(job) = job() else { return };
    let job: Job = serde_json::from_value(job).expect("a job of an exchange");
    match job.role {
        Role::Sender => send(&job),
        Role::Receiver => receive(&job),
        Role::Writer => write(&job),
    }
}

fn send(job: &Job) {
    tell("started");
    let pool = job.source();
    tell("filled");
    let to = job.to.as_ref().expect("an endpoint");
    let link = connect_by(job.backend, &pool, job.sender, to);
    tell("connected");
    let mut puts = 0;
    let told = |what: &str| {
        if what != "put" {
            return tell(what);
        }
        puts += 1;
        if let Some((_, turns)) = job.doomed_put.filter(|&(doomed, _)| doomed == puts) {
            std::thread::spawn(move || die(turns));
        }
    };
    if let Err(error) = job.send(&*link, &job.grants, told) {
        wrong(&error.to_string());
    }
    tell("done");
    while said().is_some() {}
}

fn die(turns: u64) {
    (0..turns).for_each(|_| std::hint::spin_loop());
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

fn write(job: &Job) {
    let pool = job.source();
    let to = job.to.as_ref().expect("an endpoint");
    let link = connect_by(job.backend, &pool, job.sender, to);
    let grant = &job.grants[0];
    let from = &job.tables(Role::Sender)[0];
    let plan = plan(pool.shape(), from, link.remote(), &grant.blocks);
    link.begin(grant).unwrap();
    let puts = || {
        let mut ranges =
            (0..plan.layers()).flat_map(|layer| plan.layer(layer).map(move |range| (layer, range)));
        ranges.try_for_each(|(layer, range)| {
            let put = link.put(grant.key, layer, &[range]);
            tell("put");
            put
        })
    };
    tell(&format!("tried {:?}", puts()));
    while said().is_some() {
        tell(&format!("tried {:?}", puts()));
    }
}

fn receive(job: &Job) {
    tell("started");
    let receiver = receiver_in(destination_shape(job.mib << 20), 4, Some(job.folder.clone()));
    let endpoint = serde_json::to_string(receiver.endpoint()).unwrap();
    tell(&format!("endpoint {endpoint}"));
    let (landing, tables) = (receiver.landing(), job.tables(Role::Receiver));
    let mut keys = Vec::new();
    for (transfer, table) in tables.iter().enumerate() {
        let grant = open(&receiver, job.sender, transfer as u64, table);
        tell(&format!("grant {}", serde_json::to_string(&grant).unwrap()));
        keys.push(grant.key);
    }
    for (transfer, layer) in job.steps() {
        match landing.wait_layer(keys[transfer], layer, BOUND) {
            Ok(_) => {
                if let Err(torn) = verify(landing.pool(), &tables[transfer], layer, job.payload(transfer)) {
                    wrong(&torn);
                }
                tell("layer");
            }
            Err(error) => wrong(&error.to_string()),
        }
    }
    for key in keys {
        landing.release(key).unwrap();
    }
    tell("done");
    while said().is_some() {}
}
