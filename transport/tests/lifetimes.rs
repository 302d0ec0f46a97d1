//! Transfers that are given up, peers that fall silent or leave, and what is open after all that.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;
use splitcore_core::kv::{BlockId, KvRange, TransferPlan};
use splitcore_transport::{
    Arrival, Backend, Completion, Grant, Incarnation, Link, PeerState, Pool, Receiver, TransferError,
};

use common::child::Child;
use common::jobs::{Job, Role, run};
use common::open::Open;
use common::{
    BOUND, Folder, all_blocks, connect_by, destination_shape, disown, disown_at_once, ends, fenced, fill,
    next, open, plan, receiver, scattered, send_layer, settle, small_shape, source_shape, until, untouched,
    untouched_since, verify,
};

#[test]
fn the_other_process_does_as_it_is_told() {
    run();
}

/// What is open is counted for the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads of a receiver that nobody has called: one for each of its sockets.
const ACCEPTING: usize = 2;

/// A sender and a receiver in this process, and blocks to move.
struct Pair {
    backend: Backend,
    pool: Arc<Pool>,
    receiver: Receiver,
    me: Incarnation,
    link: Arc<dyn Link>,
    from: Vec<BlockId>,
    to: Vec<BlockId>,
    plan: TransferPlan,
}

impl Pair {
    fn new(backend: Backend) -> Self {
        Self::of(backend, 1 << 20, 6)
    }

    fn of(backend: Backend, bytes: u64, blocks: usize) -> Self {
        let (source, destination) = (source_shape(bytes), destination_shape(bytes));
        let pool = Arc::new(Pool::shared(source).unwrap());
        let receiver = receiver(destination, 2);
        let me = Incarnation::random().unwrap();
        let link = connect_by(backend, &pool, me, receiver.endpoint());
        let mut state = 0xb10c;
        let from = scattered(&source, blocks, &mut state);
        let to = scattered(&destination, blocks, &mut state);
        fill(&pool, &from, 1);
        let plan = plan(&source, &from, &destination, &to);
        Self { backend, pool, receiver, me, link, from, to, plan }
    }

    fn open(&self, request: u64) -> Grant {
        open(&self.receiver, self.me, request, &self.to)
    }

    /// A transfer, step by step: one to begin, then two puts and the publication of each layer.
    fn step(&self, grant: &Grant, step: usize) -> Result<(), TransferError> {
        let Some(step) = step.checked_sub(1) else { return self.link.begin(grant) };
        let layer = (step / 3) as u16;
        let ranges: Vec<KvRange> = self.plan.layer(layer).collect();
        let (first, second) = ranges.split_at(ranges.len() / 2);
        match step % 3 {
            0 => self.link.put(grant.key, layer, first),
            1 => self.link.put(grant.key, layer, second),
            _ => self.link.publish(grant.key, layer, 16),
        }
    }

    fn steps(&self) -> usize {
        1 + 3 * usize::from(self.plan.layers())
    }

    fn completes(&self, request: u64) {
        let grant = self.open(request);
        for step in 0..self.steps() {
            self.step(&grant, step).unwrap();
        }
        for layer in 0..self.plan.layers() {
            self.receiver.landing().wait_layer(grant.key, layer, BOUND).unwrap();
            verify(self.receiver.landing().pool(), &self.to, layer, 1).unwrap();
        }
        assert_eq!(ends(&*self.link, &[grant.key]), [Completion::LocalDone(grant.key)]);
        self.receiver.landing().release(grant.key).unwrap();
        disown(self.receiver.landing().pool(), &self.to);
    }
}

/// Who gives a transfer up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Receiver,
    Sender,
}

fn given_up_after(pair: &Pair, steps: usize, who: Who) {
    let landing = pair.receiver.landing();
    let grant = pair.open(steps as u64);
    let key = grant.key;
    // A sender that sees the board is told at once; the frames of others are refused when they come.
    let is_told = pair.backend == Backend::Shm;
    for step in 0..steps {
        pair.step(&grant, step).unwrap();
    }
    match who {
        Who::Receiver => landing.stop(key).unwrap(),
        // One who has heard of it only here tells nobody.
        Who::Sender if steps == 0 && !is_told => landing.stop(key).unwrap(),
        Who::Sender => pair.link.stop(key),
    }
    let landed = settle(landing, std::slice::from_ref(&grant));
    assert!(!is_told || landed == (steps == pair.steps()), "{steps} steps, {who:?}");
    // Whoever is given the blocks now finds in them what it puts there.
    disown(landing.pool(), &pair.to);
    landing.release(key).unwrap();
    for step in steps..pair.steps() {
        let late = pair.step(&grant, step);
        assert!(late.is_err() || step == 0 || !is_told, "step {step} after {steps}, {who:?}: {late:?}");
    }
    if steps > 0 && is_told {
        let end = if landed { Completion::LocalDone(key) } else { Completion::Fenced(key) };
        assert_eq!(ends(&*pair.link, &[key]), [end]);
    } else {
        // It has one end, be it begun after it was over.
        pair.link.stop(key);
        assert_eq!(ends(&*pair.link, &[key]).len(), 1);
    }
    untouched(landing.pool(), &all_blocks(landing.pool().shape()));
    pair.completes(steps as u64);
}

fn given_up_at_every_step(backend: Backend) {
    let _alone = alone();
    let pair = Pair::new(backend);
    for who in [Who::Receiver, Who::Sender] {
        for steps in 0..=pair.steps() {
            given_up_after(&pair, steps, who);
        }
    }
}

#[test]
fn a_transfer_over_shm_given_up_at_any_step_leaves_its_blocks_alone() {
    given_up_at_every_step(Backend::Shm);
}

/// The writer is in the midst of a long copy while the receiver gives up: nothing comes after the fence.
fn given_up_while_written(backend: Backend) {
    let _alone = alone();
    let pair = Pair::of(backend, 48 << 20, 512);
    let landing = pair.receiver.landing();
    let mut state = 0xface;
    let mut midway = 0;
    for request in 0..60 {
        let grant = pair.open(request);
        pair.link.begin(&grant).unwrap();
        let turns = next(&mut state) % 200_000;
        std::thread::scope(|scope| {
            let written = scope.spawn(|| {
                (0..pair.plan.layers())
                    .find_map(|layer| send_layer(&*pair.link, grant.key, &pair.plan, layer, 4096).err())
            });
            (0..turns).for_each(|_| std::hint::spin_loop());
            landing.stop(grant.key).unwrap();
            fenced(landing, grant.key);
            disown_at_once(landing.pool(), &pair.to);
            midway += usize::from(written.join().unwrap().is_some());
        });
        untouched_since(landing.pool(), &pair.to);
        assert_eq!(ends(&*pair.link, &[grant.key]).len(), 1);
        landing.release(grant.key).unwrap();
    }
    assert!(midway > 0 || backend != Backend::Shm, "no transfer was given up midway");
    pair.completes(0);
}

#[test]
fn no_byte_comes_over_shm_after_the_fence() {
    given_up_while_written(Backend::Shm);
}

/// A process that stands still may write when it goes on.
fn silent_writer(wake: Signal) {
    let _alone = alone();
    let folder = Folder::new();
    let receiver = receiver(destination_shape(8 << 20), 2);
    let landing = receiver.landing();
    let mut job = Job {
        role: Role::Writer,
        backend: Backend::Shm,
        seed: 5,
        mib: 8,
        sender: Incarnation::random().unwrap(),
        folder: folder.path().to_owned(),
        to: Some(receiver.endpoint().clone()),
        grants: Vec::new(),
        doomed_put: None,
    };
    let grant = open(&receiver, job.sender, 1, &job.tables(Role::Receiver)[0]);
    job.grants = vec![grant.clone()];
    let mut child = Child::start(&serde_json::to_value(&job).unwrap(), None);
    child.hear("put").expect("a put");
    child.stand_still();
    landing.stop(grant.key).unwrap();
    let mut arrivals = Vec::new();
    landing.poll(&mut arrivals);
    assert!(!arrivals.contains(&Arrival::Fenced(grant.key)));
    assert_eq!(landing.release(grant.key), Err(TransferError::NotFenced { key: grant.key }));
    // Others are served all the while.
    let other = Pair::new(Backend::Shm);
    other.completes(1);
    assert_eq!(landing.writer_state(job.sender), PeerState::Connected);
    assert_eq!(landing.release(grant.key), Err(TransferError::NotFenced { key: grant.key }));

    child.signal(wake);
    fenced(landing, grant.key);
    disown(landing.pool(), &grant.blocks);
    landing.release(grant.key).unwrap();
    if wake == Signal::CONT {
        child.hear("tried").expect("a child that goes on");
        child.say("again");
        let tried = child.hear("tried").expect("a second try");
        assert!(tried.starts_with("Err"), "{tried}");
    }
    let (_, status) = child.finish();
    assert_eq!(status.success(), wake == Signal::CONT, "{status}");
    until("its end is seen", || landing.writer_state(job.sender) == PeerState::Lost);
    untouched(landing.pool(), &all_blocks(landing.pool().shape()));
}

#[test]
fn blocks_of_a_silent_writer_are_kept_until_it_answers() {
    silent_writer(Signal::CONT);
}

#[test]
fn blocks_of_a_silent_writer_are_kept_until_it_is_dead() {
    silent_writer(Signal::KILL);
}

fn mute_peer_is_nobodys_trouble(backend: Backend) {
    let _alone = alone();
    let pair = Pair::new(backend);
    let endpoint = pair.receiver.endpoint();
    let local = UnixStream::connect(endpoint.unix.as_ref().unwrap()).unwrap();
    let remote = TcpStream::connect(endpoint.tcp.unwrap()).unwrap();
    let mut halfway = UnixStream::connect(endpoint.unix.as_ref().unwrap()).unwrap();
    halfway.write_all(b"splitkv\n\xff").unwrap();
    let me = Incarnation::random().unwrap();
    let link = connect_by(backend, &pair.pool, me, endpoint);
    let grant = open(&pair.receiver, me, 1, &pair.to);
    link.begin(&grant).unwrap();
    for layer in 0..pair.plan.layers() {
        send_layer(&*link, grant.key, &pair.plan, layer, 1).unwrap();
        pair.receiver.landing().wait_layer(grant.key, layer, BOUND).unwrap();
    }
    pair.receiver.landing().release(grant.key).unwrap();
    drop((local, remote, halfway));
}

#[test]
fn a_peer_that_says_nothing_holds_up_no_other_over_shm() {
    mute_peer_is_nobodys_trouble(Backend::Shm);
}

fn nothing_is_left_open(backend: Backend) {
    let _alone = alone();
    let before = Open::once(0);
    let shape = small_shape(64);
    let pool = Arc::new(Pool::shared(shape).unwrap());
    let receiver = receiver(shape, 4);
    let landing = receiver.landing();
    let idle = Open::once(ACCEPTING);
    let me = Incarnation::random().unwrap();
    let table: Vec<_> = all_blocks(&shape).into_iter().take(8).collect();
    let plan = plan(&shape, &table, &shape, &table);
    for round in 0..50 {
        // The same life of the same process comes again and again.
        let link = connect_by(backend, &pool, me, receiver.endpoint());
        for request in 0..100 {
            let grant = open(&receiver, me, request, &table);
            link.begin(&grant).unwrap();
            for layer in 0..plan.layers() {
                send_layer(&*link, grant.key, &plan, layer, 4).unwrap();
                landing.wait_layer(grant.key, layer, BOUND).unwrap();
            }
            landing.release(grant.key).unwrap();
            assert_eq!(ends(&*link, &[grant.key]), [Completion::LocalDone(grant.key)]);
        }
        if round % 2 == 0 {
            // It leaves in the midst of one.
            let grant = open(&receiver, me, 7, &table);
            link.begin(&grant).unwrap();
            drop(link);
            fenced(landing, grant.key);
            landing.release(grant.key).unwrap();
            idle.is_again("after a connection");
        }
    }
    idle.is_again("after the last connection");
    drop((receiver, pool));
    before.is_again("at the end");
}

#[test]
fn five_thousand_transfers_over_fifty_connections_of_shm_leave_nothing_open() {
    nothing_is_left_open(Backend::Shm);
}

/// The sender learns that the receiver has closed; nothing stays behind on either side.
fn receiver_closes(backend: Backend) {
    let _alone = alone();
    let before = Open::once(0);
    let Pair { backend: _, pool, receiver, me, link, from, to, plan } = Pair::new(backend);
    let grant = open(&receiver, me, 1, &to);
    link.begin(&grant).unwrap();
    drop(receiver);
    let ended = ends(&*link, &[grant.key]);
    assert!(matches!(ended[0], Completion::Failed(_, TransferError::PeerLost { .. })), "{ended:?}");
    let ranges: Vec<_> = plan.layer(0).collect();
    assert!(matches!(link.put(grant.key, 0, &ranges), Err(TransferError::PeerLost { .. })));
    assert!(matches!(link.begin(&grant), Err(TransferError::PeerLost { .. })));
    assert_eq!(link.peer(), PeerState::Lost);
    drop((link, pool, from));
    before.is_again("at the end");
}

#[test]
fn a_receiver_that_closes_is_seen_over_shm() {
    receiver_closes(Backend::Shm);
}

#[test]
fn a_transfer_over_tcp_given_up_at_any_step_leaves_its_blocks_alone() {
    given_up_at_every_step(Backend::Tcp);
}

#[test]
fn no_byte_comes_over_tcp_after_the_fence() {
    given_up_while_written(Backend::Tcp);
}

#[test]
fn a_peer_that_says_nothing_holds_up_no_other_over_tcp() {
    mute_peer_is_nobodys_trouble(Backend::Tcp);
}

#[test]
fn five_thousand_transfers_over_fifty_connections_of_tcp_leave_nothing_open() {
    nothing_is_left_open(Backend::Tcp);
}

#[test]
fn a_receiver_that_closes_is_seen_over_tcp() {
    receiver_closes(Backend::Tcp);
}
