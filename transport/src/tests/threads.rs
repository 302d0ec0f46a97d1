//! One landing under many threads: nothing waits for ever, no slot is lost, and a fence is the last word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

use splitcore_core::id::RequestId;

use super::kit::{Stranger, THERE, blocks, landing, seal};
use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::landing::{Arrival, Landing, Writer};
use crate::transfer::TransferKey;

const LAYERS: u16 = 4;
const SLOTS: u32 = 6;
const TRANSFERS: u64 = 20_000;
const LONG: Duration = Duration::from_secs(60);

/// A writer of another process, so to speak: it acknowledges from a thread of its own.
struct Remote {
    acknowledge: Mutex<Sender<TransferKey>>,
}

impl Writer for Remote {
    fn writes_here(&self) -> bool {
        false
    }

    fn stop(&self, key: TransferKey) {
        // Nobody listens any more once the test is through.
        let _ = self.acknowledge.lock().unwrap().send(key);
    }

    fn close(&self) {}
}

const REMOTE: Incarnation = Incarnation(3);

/// Publishes every layer of what comes, unless it is stopped.
fn publisher<'s>(scope: &'s Scope<'s, '_>, landing: &Landing, me: Incarnation) -> Sender<TransferKey> {
    let (send, keys) = channel::<TransferKey>();
    let landing = landing.clone();
    scope.spawn(move || {
        for key in keys {
            for layer in 0..LAYERS {
                let hold = landing.writing(me, key);
                let done = hold.and_then(|hold| {
                    hold.admit(layer, splitcore_core::kv::BlockId(0), u32::from(layer) * 32, 32)?;
                    hold.publish(layer, seal(32))
                });
                match done {
                    Ok(()) => {}
                    Err(TransferError::Stopped { .. } | TransferError::Unknown { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    send
}

/// Does something to every key that comes, in a thread of its own.
fn worker<'s>(
    scope: &'s Scope<'s, '_>,
    keys: Receiver<TransferKey>,
    mut each: impl FnMut(TransferKey) + Send + 's,
) {
    scope.spawn(move || keys.into_iter().for_each(&mut each));
}

/// Opens transfers, sends their keys round, and releases what has landed or is fenced.
struct Driver {
    landing: Landing,
    told: BTreeMap<(u32, u32), (u16, bool, bool)>,
    released: u64,
}

impl Driver {
    fn poll(&mut self) {
        let mut arrivals = Vec::new();
        self.landing.poll(&mut arrivals);
        for arrival in arrivals {
            let (Arrival::Layers { key, .. } | Arrival::Failed(key, _) | Arrival::Fenced(key)) = arrival;
            let told = self.told.entry((key.slot, key.generation.get())).or_default();
            let may_go = match arrival {
                Arrival::Layers { layers, .. } => {
                    assert!(layers > told.0 && !told.2, "{key}: {layers} layers after {told:?}");
                    told.0 = layers;
                    layers == LAYERS
                }
                Arrival::Failed(..) => {
                    assert!(!told.1 && !told.2, "{key}: fails after {told:?}");
                    told.1 = true;
                    false
                }
                Arrival::Fenced(_) => {
                    assert!(!told.2, "{key}: fenced twice");
                    told.2 = true;
                    true
                }
            };
            // One that was stopped when it had landed is told of twice, and released once.
            if may_go && self.landing.release(key).is_ok() {
                self.released += 1;
            }
        }
    }

    fn open(&mut self, number: u64, until: Instant) -> TransferKey {
        let writer = if number.is_multiple_of(2) { THERE } else { REMOTE };
        loop {
            match self.landing.open(writer, RequestId(number), blocks([0]), 32) {
                Ok(grant) => return grant.key,
                Err(TransferError::NoSlot { .. }) => {
                    assert!(Instant::now() < until, "no slot comes free: a lock or a slot is stuck");
                    self.landing.wait(Duration::from_millis(50));
                    self.poll();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn stir(landing: &Landing, done: &AtomicBool, stopped: &AtomicU64) {
    let (send, acknowledged) = channel::<TransferKey>();
    std::thread::scope(|scope| {
        let local = publisher(scope, landing, THERE);
        let remote = publisher(scope, landing, REMOTE);
        worker(scope, acknowledged, |key| landing.fenced(REMOTE, key));
        let (stop, stops) = channel();
        worker(scope, stops, |key: TransferKey| match key.request.0 % 3 {
            0 => {
                stopped.fetch_add(u64::from(landing.stop(key).is_ok()), Ordering::Relaxed);
            }
            1 => landing.fail(key, TransferError::Protocol("made up".to_owned())),
            _ => {}
        });
        let (wait, waits) = channel();
        worker(scope, waits, |key| {
            let end = landing.wait_layer(key, LAYERS - 1, LONG);
            assert!(!matches!(end, Err(TransferError::Timeout { .. })), "{end:?}");
        });
        let join = || {
            let writer = Remote { acknowledge: Mutex::new(send.clone()) };
            landing.joined(REMOTE, Arc::new(writer)).unwrap();
        };
        landing.joined(THERE, Stranger::new(true)).unwrap();
        join();
        let mut driver = Driver { landing: landing.clone(), told: BTreeMap::new(), released: 0 };
        let until = Instant::now() + LONG;
        for number in 0..TRANSFERS {
            let key = driver.open(number, until);
            let writer = if number.is_multiple_of(2) { &local } else { &remote };
            stop.send(key).unwrap();
            writer.send(key).unwrap();
            wait.send(key).unwrap();
            if number % 50 == 49 {
                landing.left(REMOTE, false);
                landing.left(REMOTE, true);
                join();
            }
            driver.poll();
        }
        drop((local, remote, stop, wait));
        while landing.in_use() > 0 {
            assert!(Instant::now() < until, "{} slots are stuck", landing.in_use());
            landing.wait(Duration::from_millis(50));
            driver.poll();
        }
        assert_eq!(driver.released, TRANSFERS);
        landing.left(REMOTE, true);
        drop(send);
        done.store(true, Ordering::Release);
    });
}

#[test]
fn threads_that_publish_wait_stop_leave_and_poll_at_once_come_to_an_end() {
    let landing = landing(LAYERS, 2, SLOTS);
    let (done, stopped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (over, ended) = channel();
    let stirring = {
        let (landing, done, stopped) = (landing.clone(), done.clone(), stopped.clone());
        std::thread::spawn(move || {
            stir(&landing, &done, &stopped);
            let _ = over.send(());
        })
    };
    let in_time = ended.recv_timeout(LONG * 2);
    // Threads that wait for each other cannot be joined.
    assert!(in_time.is_ok() || stirring.is_finished(), "deadlock");
    stirring.join().unwrap();
    assert!(done.load(Ordering::Acquire));
    assert!(stopped.load(Ordering::Relaxed) > 0);
    assert_eq!(landing.in_use(), 0);
}

#[test]
fn no_layer_is_told_of_after_the_fence_of_its_transfer() {
    // Many slots, so that a poll takes long enough for a whole transfer to pass by it.
    let landing = landing(2, 2, 1 << 17);
    let (writing, transfers) = (landing.clone(), 20_000);
    let writer = std::thread::spawn(move || {
        for number in 0..transfers {
            let key = writing.open(THERE, RequestId(number), blocks([0]), 32).unwrap().key;
            writing.publish(THERE, key, 0, seal(32)).unwrap();
            writing.stop(key).unwrap();
        }
    });
    let (mut fenced, mut arrivals) = (BTreeSet::new(), Vec::new());
    let until = Instant::now() + LONG;
    while fenced.len() < transfers as usize {
        assert!(Instant::now() < until, "{} of {transfers} are fenced", fenced.len());
        landing.poll(&mut arrivals);
        for arrival in arrivals.drain(..) {
            match arrival {
                Arrival::Layers { key, .. } => {
                    assert!(!fenced.contains(&key.slot), "{key}: a layer after its fence");
                }
                Arrival::Fenced(key) => {
                    fenced.insert(key.slot);
                }
                Arrival::Failed(key, error) => panic!("{key}: {error}"),
            }
        }
    }
    writer.join().unwrap();
}
