//! Two processes exchange scattered blocks, and one of them is killed at a random point, again and again: no torn
//! layer is seen, nobody waits for ever, each transfer has one end, a second try completes, and nothing is left open.
//!
//! `SPLITCORE_KILL_TRIALS` and `SPLITCORE_KILL_MIB` make it longer; the full run is 300 trials of 256 MiB:
//!
//! ```text
//! SPLITCORE_KILL_TRIALS=300 SPLITCORE_KILL_MIB=256 cargo test --release -p splitcore-transport --test kills
//! ```
//!
//! A failure names its seed; `SPLITCORE_KILL_SEED` plays that one trial again.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use splitcore_transport::{
    Backend, ConnectOptions, Grant, Incarnation, Landing, PeerState, Receiver, TransferError, connect,
};

use common::child::{Child, Doom};
use common::jobs::{Job, Role, run};
use common::open::Open;
use common::{
    BOUND, Folder, MODEL, all_blocks, destination_shape, disown, mix, next, open, receiver_in, settle, until,
    untouched, verify,
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

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let digits = text.strip_prefix("0x");
    let number = digits.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    Some(number.unwrap_or_else(|_| panic!("{name} is {text}, expected a number")))
}

/// Runs trials, each with a seed of its own. A trial says whether its exchange was cut in two.
fn trials(name: &str, mut trial: impl FnMut(u64, u64) -> bool) {
    let mib = number("SPLITCORE_KILL_MIB").unwrap_or(16);
    let seeds: Vec<u64> = match number("SPLITCORE_KILL_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SPLITCORE_KILL_TRIALS").unwrap_or(24)).map(|trial| mix(0x6b11 + trial)).collect(),
    };
    let mut midway = 0;
    for &seed in &seeds {
        let run = std::panic::AssertUnwindSafe(|| trial(seed, mib));
        match std::panic::catch_unwind(run) {
            Ok(cut) => midway += usize::from(cut),
            Err(panic) => {
                eprintln!("{name} failed; again: SPLITCORE_KILL_SEED={seed:#x} SPLITCORE_KILL_MIB={mib}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{name}: {} trials of {mib} MiB, {midway} of them cut midway", seeds.len());
    assert!(midway > 0 || seeds.len() < 20, "no kill came midway: nothing was tried");
}

/// A while of any length: none, or as a put, a layer or a transfer takes.
fn turns(state: &mut u64) -> u64 {
    let most = [0, 20_000, 300_000, 1_500_000][(next(state) % 4) as usize];
    next(state) % (most + 1)
}

/// Where a trial's child is killed: after any number of its lines, or a while later.
fn doom(seed: u64) -> Doom {
    let mut state = seed ^ 0xd00f;
    Doom { lines: next(&mut state) % 22, turns: turns(&mut state) }
}

fn job(role: Role, backend: Backend, seed: u64, mib: u64, folder: &Folder) -> Job {
    Job {
        role,
        backend,
        seed,
        mib,
        sender: Incarnation::random().unwrap(),
        folder: folder.path().to_owned(),
        to: None,
        grants: Vec::new(),
        doomed_put: None,
    }
}

/// A child sends to a receiver that stays, and may be killed.
/// Says whether some layers landed and others did not.
fn child_sends(receiver: &Receiver, mut job: Job, doom: Option<Doom>) -> bool {
    let landing = receiver.landing();
    let tables = job.tables(Role::Receiver);
    job.to = Some(receiver.endpoint().clone());
    job.grants =
        tables.iter().zip(0..).map(|(table, request)| open(receiver, job.sender, request, table)).collect();
    let mut child = Child::start(&serde_json::to_value(&job).unwrap(), doom);
    let dying = std::thread::scope(|scope| {
        let dying = doom.map(|_| scope.spawn(|| killed_sender(&mut child, &job, landing)));
        for (transfer, layer) in job.steps() {
            let key = job.grants[transfer].key;
            match landing.wait_layer(key, layer, BOUND) {
                Ok(_) => verify(landing.pool(), &tables[transfer], layer, job.payload(transfer)).unwrap(),
                Err(TransferError::PeerLost { .. } | TransferError::Stopped { .. }) if doom.is_some() => {}
                Err(error) => panic!("{error}"),
            }
        }
        dying.map(|dying| dying.join().unwrap())
    });
    let all_landed = settle(landing, &job.grants);
    if dying.is_none() {
        let (lines, status) = child.finish();
        assert!(status.success(), "{status}, {lines:?}");
        assert!(all_landed, "a transfer that nobody disturbed did not land");
    }
    // What is published stays whole, that of failed transfers too.
    let mut whole = 0;
    for (transfer, layer) in job.steps() {
        if landing.wait_layer(job.grants[transfer].key, layer, BOUND).is_ok() {
            verify(landing.pool(), &tables[transfer], layer, job.payload(transfer)).unwrap();
            whole += 1;
        }
    }
    for grant in &job.grants {
        disown(landing.pool(), &grant.blocks);
        landing.release(grant.key).unwrap();
        assert!(matches!(landing.landed(grant.key), Err(TransferError::Unknown { .. })));
    }
    assert_eq!(landing.in_use(), 0);
    untouched(landing.pool(), &all_blocks(landing.pool().shape()));
    (1..job.steps().len()).contains(&whole)
}

/// Waits for a doomed sender's end. One that never came ends nothing here by its death, so its transfers are stopped.
fn killed_sender(child: &mut Child, job: &Job, landing: &Landing) {
    child.finish();
    if landing.writer_state(job.sender) == PeerState::Absent {
        for grant in &job.grants {
            landing.stop(grant.key).unwrap();
        }
    }
}

fn senders_are_killed(backend: Backend) {
    let _alone = alone();
    let before = Open::once(0);
    let folder = Folder::new();
    let mib = number("SPLITCORE_KILL_MIB").unwrap_or(16);
    let receiver = receiver_in(destination_shape(mib << 20), 4, Some(folder.path().to_owned()));
    // A thread for each of its two sockets.
    let idle = Open::once(2);
    trials("a killed sender", |seed, mib| {
        let mut doomed = job(Role::Sender, backend, seed, mib, &folder);
        let mut state = seed ^ 0xdead;
        // Its puts are over before its lines are read, so that half of them end themselves, in the midst of those.
        if next(&mut state).is_multiple_of(2) {
            doomed.doomed_put = Some((1 + next(&mut state) % 60, turns(&mut state) % 20_000));
        }
        let doom = if doomed.doomed_put.is_some() { Doom { lines: 22, turns: 0 } } else { doom(seed) };
        let cut = child_sends(&receiver, doomed, Some(doom));
        child_sends(&receiver, job(Role::Sender, backend, mix(seed), mib, &folder), None);
        idle.is_again("after a trial");
        cut
    });
    drop(receiver);
    before.is_again("at the end");
}

/// This process sends to a child, which may be killed; says whether that was while it was sent to.
fn child_receives(job: &Job, doom: Option<Doom>) -> bool {
    let mut child = Child::start(&serde_json::to_value(job).unwrap(), doom);
    let pool = job.source();
    let sent = send_to(&child, job, &pool);
    let (lines, status) = child.finish();
    assert!(sent.is_some() || doom.is_some(), "the child was not killed, and said {lines:?}");
    match &sent {
        Some(Ok(())) | None => {}
        Some(Err(TransferError::PeerLost { .. } | TransferError::Io { .. })) if doom.is_some() => {}
        Some(Err(error)) => panic!("{error}"),
    }
    assert!(status.success() || doom.is_some(), "{status}, {lines:?}");
    sent.is_some() && !lines.iter().any(|line| line == "done") && !status.success()
}

/// Connects to the child and sends; `None` if it did not live to take it.
fn send_to(
    child: &Child,
    job: &Job,
    pool: &std::sync::Arc<splitcore_transport::Pool>,
) -> Option<Result<(), TransferError>> {
    let endpoint = serde_json::from_str(&child.hear("endpoint")?).unwrap();
    let options = ConnectOptions { backend: Some(job.backend), within: BOUND, ..ConnectOptions::new(MODEL) };
    let link = connect(pool, job.sender, &endpoint, &options).ok()?;
    let mut grants: Vec<Grant> = Vec::new();
    while grants.len() < 3 {
        grants.push(serde_json::from_str(&child.hear("grant")?).unwrap());
    }
    let sent = job.send(&*link, &grants, |_| {});
    if child.hear("done").is_none() {
        // It was killed: that is seen, and whoever would begin is told.
        until("the death of the receiver is seen", || link.peer() == PeerState::Lost);
        assert!(matches!(link.begin(&grants[0]), Err(TransferError::PeerLost { .. })));
    }
    Some(sent)
}

fn receivers_are_killed(backend: Backend) {
    let _alone = alone();
    let before = Open::once(0);
    let folder = Folder::new();
    trials("a killed receiver", |seed, mib| {
        let cut = child_receives(&job(Role::Receiver, backend, seed, mib, &folder), Some(doom(seed)));
        child_receives(&job(Role::Receiver, backend, mix(seed), mib, &folder), None);
        before.is_again("after a trial");
        cut
    });
}

#[test]
fn a_sender_over_shared_memory_may_be_killed_at_any_point() {
    senders_are_killed(Backend::Shm);
}

#[test]
fn a_receiver_over_shared_memory_may_be_killed_at_any_point() {
    receivers_are_killed(Backend::Shm);
}

#[test]
fn a_sender_over_tcp_may_be_killed_at_any_point() {
    senders_are_killed(Backend::Tcp);
}

#[test]
fn a_receiver_over_tcp_may_be_killed_at_any_point() {
    receivers_are_killed(Backend::Tcp);
}
