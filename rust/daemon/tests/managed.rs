//! A service with workers of its own: tokens reach who asked for them, each once and in order, whatever ends meanwhile.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod common;
#[path = "managed/fuzzed.rs"]
mod fuzzed;
#[path = "managed/liar.rs"]
mod liar;
#[path = "managed/liars.rs"]
mod liars;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::worker::Worker;
use splitcore_daemon::host::{Ending, Fault, Generate, Host, Output, Said};
use splitcore_daemon::{Options, Server};
use splitcore_wire::message::{Descriptor, Sampling};
use tokio::sync::oneshot;

const LIMIT: Duration = Duration::from_secs(20);

fn model(descriptor: &Descriptor, index: u32) -> u32 {
    (descriptor.sampling.seed as u32).wrapping_mul(31).wrapping_add(index) % 1000
}

fn expected(seed: u64, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|index| (seed as u32).wrapping_mul(31).wrapping_add(index) % 1000).collect()
}

fn ask(name: &str, seed: u64, max_new_tokens: u32) -> Generate {
    Generate {
        name: name.to_owned(),
        choice: 0,
        prompt: vec![1, 2, 3, 4, 5].into(),
        max_new_tokens,
        sampling: Sampling { temperature: 1.0, top_p: 1.0, seed },
        stop: vec!["never".to_owned()],
        stop_ids: vec![100_000],
        note: "note".to_owned(),
        class: 0,
        priority: 0,
    }
}

fn options(workers: &str) -> Options {
    Options {
        model: Some(common::bytes_model()),
        model_name: Some("model".to_owned()),
        workers: workers.to_owned(),
        grace_s: 0.0,
        ..common::options()
    }
}

/// Runs a service until `body` is done, then cuts it off as a death would, but for its sockets.
fn served<T>(options: Options, body: impl AsyncFnOnce(Arc<Host>, String) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::bind(options).await.unwrap();
        let host = Arc::clone(&server.app().host);
        let workers = server.workers().unwrap().to_string();
        let (cut, is_cut) = oneshot::channel::<()>();
        let serving = server.serve(std::future::pending(), async { drop(is_cut.await) });
        let body = async {
            let done = tokio::time::timeout(LIMIT, body(host, workers)).await.expect("done in time");
            drop(cut);
            done
        };
        tokio::select! {
            done = body => done,
            () = serving => panic!("the service ended by itself"),
        }
    })
}

async fn ready(host: &Host) {
    while !host.is_usable().unwrap() {
        tokio::task::yield_now().await;
    }
}

async fn rest(output: &mut Output) -> (Vec<u32>, Ending) {
    let mut all = Vec::new();
    loop {
        match output.next().await {
            Said::Tokens { from, ids } => {
                assert_eq!(from as usize, all.len());
                all.extend(ids);
            }
            Said::Ended(ending) => return (all, ending),
        }
    }
}

async fn idle(host: &Host) {
    while host.counters().unwrap().0 > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(host.check().unwrap(), None);
}

#[test]
fn tokens_come_in_order_and_then_the_end() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let _worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        let asks = (0..20).map(|at| vec![ask(&format!("r{at}"), at, 1 + at as u32)]);
        let mut outputs: Vec<Output> = asks.flat_map(|ask| host.generate(ask).unwrap()).collect();
        for (at, output) in (0..).zip(&mut outputs) {
            assert_eq!(output.acknowledged().await, Ok(()));
            assert_eq!(rest(output).await, (expected(at, 1 + at as u32), Ending::Finished));
        }
        drop(outputs);
        idle(&host).await;
        assert_eq!(host.counters().unwrap().2.finished, 20);
    });
}

#[test]
fn an_output_that_is_dropped_cancels_and_a_name_can_be_used_again() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        worker.hold.store(true, Ordering::Relaxed);
        let output = host.generate(vec![ask("r", 1, 500)]).unwrap();
        assert!(matches!(host.generate(vec![ask("r", 1, 500)]), Err(Fault::DuplicateName(_))));
        drop(output);
        idle(&host).await;
        assert_eq!(host.counters().unwrap().2.cancelled, 1);
        worker.hold.store(false, Ordering::Relaxed);
        let mut outputs = host.generate(vec![ask("r", 2, 3)]).unwrap();
        assert_eq!(rest(&mut outputs[0]).await, (expected(2, 3), Ending::Finished));
    });
}

#[test]
fn who_comes_back_hears_everything_again_and_two_readers_hear_the_same() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let _worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        let mut first = host.generate(vec![ask("r", 9, 50)]).unwrap();
        let mut second = host.attach("r").unwrap();
        drop(first.remove(0));
        assert_eq!(rest(&mut second[0]).await, (expected(9, 50), Ending::Finished));
        drop(second);
        let mut late = host.attach("r").unwrap();
        assert_eq!(rest(&mut late[0]).await, (expected(9, 50), Ending::Finished));
        assert!(matches!(host.attach("other"), Err(Fault::UnknownName(_))));
        // While somebody reads, the Cluster may wait for the end.
        drop(late);
        idle(&host).await;
    });
}

#[test]
fn a_name_that_is_used_again_before_its_end_was_taken_leaves_nothing_behind() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let _worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        let mut first = host.generate(vec![ask("r", 4, 5)]).unwrap();
        assert_eq!(rest(&mut first[0]).await, (expected(4, 5), Ending::Finished));
        let mut second = host.generate(vec![ask("r", 5, 6)]).unwrap();
        assert_eq!(rest(&mut second[0]).await, (expected(5, 6), Ending::Finished));
        drop((first, second));
        idle(&host).await;
    });
}

#[test]
fn all_choices_of_a_request_run_or_none() {
    served(Options { requests_max: 3, ..options("127.0.0.1:0") }, async |host, workers| {
        let worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        worker.hold.store(true, Ordering::Relaxed);
        let choices = |n: u32| (0..n).map(|choice| Generate { choice, ..ask("r", 7, 5) }).collect();
        assert!(matches!(host.generate(choices(4)), Err(Fault::Rejected { .. })));
        idle(&host).await;
        let mut outputs = host.generate(choices(2)).unwrap();
        worker.hold.store(false, Ordering::Relaxed);
        for output in &mut outputs {
            assert_eq!(rest(output).await, (expected(7, 5), Ending::Finished));
        }
    });
}

#[test]
fn a_daemon_that_starts_again_goes_on_with_what_its_worker_has() {
    let directory = std::env::temp_dir().join(format!("splitcore-managed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let at = format!("unix:{}", directory.join("workers").display());
    let log = directory.join("log");
    let logged = |options| Options { event_log: Some(log.clone()), ..options };
    let worker = served(logged(options(&at)), async |host, workers| {
        let worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        let mut outputs = host.generate(vec![ask("r", 3, 400)]).unwrap();
        assert_eq!(outputs[0].acknowledged().await, Ok(()));
        assert!(matches!(outputs[0].next().await, Said::Tokens { from: 0, .. }));
        worker.hold.store(true, Ordering::Relaxed);
        // A death drops nothing in order.
        std::mem::forget(outputs);
        worker
    });
    // The next life is a later tenth of a second.
    let before = splitcore_daemon::host::life();
    while splitcore_daemon::host::life() == before {
        std::thread::yield_now();
    }
    served(logged(Options { grace_s: 1.0, ..options(&at) }), async |host, _| {
        let mut outputs = loop {
            if let Ok(outputs) = host.attach("r") {
                break outputs;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(outputs[0].ask.prompt[..], [1, 2, 3, 4, 5]);
        assert_eq!((outputs[0].ask.max_new_tokens, outputs[0].ask.note.as_str()), (400, "note"));
        worker.hold.store(false, Ordering::Relaxed);
        assert_eq!(outputs[0].acknowledged().await, Ok(()));
        assert_eq!(rest(&mut outputs[0]).await, (expected(3, 400), Ending::Finished));
        drop(outputs);
        idle(&host).await;
        assert_eq!(host.counters().unwrap().2.adopted, 1);
    });
    drop(worker);
    let replayed = splitcore_record::replay(&log).unwrap();
    assert_eq!(replayed.logs.len(), 2, "one of each life");
    assert!(replayed.agrees(), "{replayed:?}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_grace_time_ends_although_nobody_comes() {
    served(Options { grace_s: 0.2, ..options("127.0.0.1:0") }, async |host, workers| {
        assert!(matches!(host.attach("r"), Err(Fault::Recovering(_))));
        let _worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        assert!(matches!(host.attach("r"), Err(Fault::UnknownName(_))));
    });
}

#[test]
fn a_client_that_does_not_come_back_counts_as_cancelled() {
    let directory = std::env::temp_dir().join(format!("splitcore-gone-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let at = format!("unix:{}", directory.join("workers").display());
    let worker = served(options(&at), async |host, workers| {
        let worker = Worker::start(&workers, "w", "model", model);
        ready(&host).await;
        let mut outputs = host.generate(vec![ask("r", 3, 400)]).unwrap();
        assert_eq!(outputs[0].acknowledged().await, Ok(()));
        worker.hold.store(true, Ordering::Relaxed);
        std::mem::forget(outputs);
        worker
    });
    let before = splitcore_daemon::host::life();
    while splitcore_daemon::host::life() == before {
        std::thread::yield_now();
    }
    served(Options { grace_s: 1.0, reattach_s: 0.0, ..options(&at) }, async |host, _| {
        while host.counters().unwrap().2.cancelled == 0 {
            tokio::task::yield_now().await;
        }
        worker.hold.store(false, Ordering::Relaxed);
        idle(&host).await;
    });
    drop(worker);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_worker_that_leaves_hands_its_streams_over_and_is_gone_without_a_wait() {
    // No limit that is waited for ends within the test.
    let options = Options { rejoin_limit_s: 1000.0, hedge_after_s: 0.0, ..options("127.0.0.1:0") };
    served(options, async |host, workers| {
        let first = Worker::start(&workers, "a", "model", model);
        ready(&host).await;
        let mut output = host.generate(vec![ask("r", 7, 4000)]).unwrap().remove(0);
        let Said::Tokens { ids, .. } = output.next().await else { panic!("it ends before it begins") };
        first.hold.store(true, Ordering::Relaxed);
        let _second = Worker::start(&workers, "b", "model", model);
        while host.overview().unwrap().machines.len() < 2 {
            tokio::task::yield_now().await;
        }
        first.leave();
        let mut all = ids;
        loop {
            match output.next().await {
                Said::Tokens { from, ids } => {
                    assert_eq!(from as usize, all.len());
                    all.extend(ids);
                }
                Said::Ended(ending) => break assert_eq!(ending, Ending::Finished),
            }
        }
        assert_eq!(all, expected(7, 4000));
        first.hold.store(false, Ordering::Relaxed);
        while !first.has_left() {
            tokio::task::yield_now().await;
        }
        drop(output);
        idle(&host).await;
        assert_eq!(host.counters().unwrap().2.faults, 0);
    });
}
