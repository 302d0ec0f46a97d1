//! One worker and a daemon that says what the test wants: in which order things are said, and how a worker ends.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

#[allow(dead_code, reason = "made for many workers")]
#[path = "live/fleet.rs"]
mod fleet;
#[allow(dead_code, reason = "as above")]
#[path = "live/model.rs"]
mod model;

use std::time::Duration;

use splitcore_core::event::Role;
use splitcore_core::id::{AssignmentSeq, Attempt, Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::leg::{Command, Notice, Terms, Work};
use splitcore_core::placement::Upto;
use splitcore_transport::Backend;
use splitcore_wire::address::Address;
use splitcore_wire::listen::{Handle, Heard, Listener, What};
use splitcore_wire::message::{Assigned, Descriptor, Refusal, Sampling};
use splitcore_wire::session::{DaemonEvent, Settings};
use splitcore_worker::{End, Worker, WorkerOptions};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;

use fleet::{Running, secret};
use model::{STOP, VOCABULARY, output};

const LIMIT: Duration = Duration::from_secs(30);
const KEY: LegKey = LegKey { request: RequestId(5), attempt: Attempt(1) };

struct Daemon {
    runtime: Runtime,
    heard: Receiver<Heard>,
    address: Address,
}

impl Daemon {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(Listener::bind(&Address::Tcp("127.0.0.1:0".to_owned()))).unwrap();
        let address = listener.address().clone();
        let (sender, heard) = tokio::sync::mpsc::channel(256);
        let settings = Settings { secret: Some(secret()), epoch: Epoch(1), ..Settings::default() };
        runtime.spawn(listener.serve(settings, sender));
        Self { runtime, heard, address }
    }

    fn options(&self) -> WorkerOptions {
        fleet::options(&self.address, 0, 1, Role::Mixed, Backend::Tcp)
    }

    fn hear(&mut self) -> What {
        let heard = async { tokio::time::timeout(LIMIT, self.heard.recv()).await };
        self.runtime.block_on(heard).unwrap().unwrap().what
    }

    fn hello(&mut self) -> Handle {
        loop {
            if let What::Hello { handle, .. } = self.hear() {
                return handle;
            }
        }
    }

    /// Lets a worker in, up to its registration.
    fn register(&mut self) -> Handle {
        let handle = self.hello();
        handle.welcome(MachineId { index: 0, incarnation: 1 });
        let What::Event(DaemonEvent::Register { .. }) = self.hear() else { panic!("no registration") };
        handle
    }

    /// What is said of a request, up to its end.
    fn said(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            match self.hear() {
                What::Event(DaemonEvent::Notice(Notice::Report(_))) => {}
                What::Event(DaemonEvent::Notice(notice @ Notice::Finished { .. })) => {
                    said.push(format!("{notice:?}"));
                    return said;
                }
                What::Event(DaemonEvent::Notice(notice)) => said.push(format!("{notice:?}")),
                What::Event(DaemonEvent::Tokens(tokens)) => {
                    said.push(format!("{} {:?}", tokens.from, tokens.ids));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn closed(&mut self) -> String {
        loop {
            if let What::Closed { reason } = self.hear() {
                return reason.to_string();
            }
        }
    }
}

fn compute(prompt: &[u32], max_new_tokens: u32) -> Assigned {
    let prompt_tokens = prompt.len() as u32;
    let work = Work { prompt_tokens, start: 0, upto: Upto::End, max_new_tokens, terms: Terms::default() };
    Assigned {
        seq: AssignmentSeq(1),
        command: Command::Compute { key: KEY, order: Order(0), work },
        descriptor: Some(Descriptor {
            name: "a".to_owned(),
            prompt: prompt.to_vec(),
            sampling: Sampling { temperature: 1.0, top_p: 1.0, seed: 3 },
            stop: Vec::new(),
            stop_ids: vec![STOP],
            note: String::new(),
        }),
        peer: None,
    }
}

/// A worker in session, with an engine.
fn at_work(daemon: &mut Daemon) -> (Running, Handle) {
    let running = fleet::start(daemon.options(), 20);
    let handle = daemon.register();
    handle.registered();
    (running, handle)
}

/// A worker that looks for its daemon, without an engine.
fn unheard(daemon: &Daemon) -> Worker {
    let layout = model::layout(0);
    let shape = splitcore_core::kv::PoolShape { layout, blocks: 20 };
    let pool = std::sync::Arc::new(splitcore_transport::Pool::shared(shape).unwrap());
    Worker::start(daemon.options(), pool).unwrap()
}

/// The same, in session.
fn idle(daemon: &mut Daemon) -> (Worker, Handle) {
    let worker = unheard(daemon);
    let handle = daemon.register();
    handle.registered();
    (worker, handle)
}

#[test]
fn tokens_are_given_before_what_is_said_of_their_pass() {
    let mut daemon = Daemon::start();
    let (running, handle) = at_work(&mut daemon);
    let prompt = [1, 2, 3];
    let wanted = output(3, &prompt, 3);
    assert_eq!(wanted.len(), 3, "the cap ends it");
    handle.command(compute(&prompt, 3));
    let [first, second, third] = wanted[..] else { unreachable!() };
    assert_eq!(
        daemon.said(),
        [
            format!("0 [{first}]"),
            format!("{:?}", Notice::PrefillDone { key: KEY, sampled: true }),
            format!("1 [{second}]"),
            format!("2 [{third}]"),
            format!("{:?}", Notice::Finished { key: KEY, tokens: 3 }),
        ]
    );
    assert_eq!(running.end().0, End::Stopped);
    assert_eq!(daemon.closed(), "closed by the other side: the worker ends");
}

#[test]
fn a_request_past_what_the_model_can_run_ends_without_a_token() {
    let mut daemon = Daemon::start();
    let (running, handle) = at_work(&mut daemon);
    handle.command(compute(&[1, VOCABULARY, 3], 3));
    assert_eq!(daemon.said().len(), 1);
    let next = LegKey { attempt: Attempt(2), ..KEY };
    let mut after = compute(&[1, 2, 3], 1);
    let Command::Compute { key, .. } = &mut after.command else { unreachable!() };
    (*key, after.seq) = (next, AssignmentSeq(2));
    handle.command(after);
    assert_eq!(daemon.said()[0], format!("0 {:?}", output(3, &[1, 2, 3], 1)), "others go on");
    running.end();
}

#[test]
fn an_engine_that_fails_ends_its_worker_and_the_daemon_hears_why() {
    let mut daemon = Daemon::start();
    let (worker, handle) = idle(&mut daemon);
    handle.command(compute(&[1, 2, 3], 3));
    assert!(worker.next_pass(LIMIT).is_some());
    let reason = "the engine fails pass 1: out of memory";
    assert_eq!(worker.fail(reason), End::Failed(reason.to_owned()));
    assert!(daemon.closed().ends_with(reason));
    assert_eq!(worker.next_pass(LIMIT).map(|pass| pass.number), None, "at once");
}

#[test]
fn an_engine_that_draws_no_token_where_one_is_wanted_ends_its_worker() {
    let mut daemon = Daemon::start();
    let (worker, handle) = idle(&mut daemon);
    handle.command(compute(&[1, 2, 3], 3));
    let pass = worker.next_pass(LIMIT).unwrap();
    assert_eq!((pass.spans[0].tokens.as_slice(), pass.spans[0].output), ([1, 2, 3].as_slice(), 0));
    worker.pass_done(pass.number, &[]);
    assert!(daemon.closed().ends_with("pass 1 has drawn no token for request 5"));
    assert!(matches!(worker.ended(), Some(End::Failed(_))) || matches!(worker.stop(), End::Failed(_)));
}

#[test]
fn a_worker_that_is_not_taken_back_may_begin_anew() {
    let mut daemon = Daemon::start();
    let (worker, handle) = idle(&mut daemon);
    handle.close("the connection breaks");
    for _ in 0..3 {
        daemon.register().close("this machine was lost");
    }
    assert_eq!(worker.next_pass(LIMIT).map(|pass| pass.number), None);
    let Some(End::GivenUp(reason)) = worker.ended() else { panic!("{:?}", worker.ended()) };
    assert!(reason.ends_with("this machine was lost"), "{reason}");
}

#[test]
fn a_worker_whose_place_or_name_another_has_ends() {
    for (field, may_begin_anew) in [("name", true), ("incarnation", false)] {
        let mut daemon = Daemon::start();
        let (worker, handle) = idle(&mut daemon);
        handle.close("the connection breaks");
        daemon.hello().refuse(Refusal::new(field, "this", "that"));
        assert_eq!(worker.next_pass(LIMIT).map(|pass| pass.number), None);
        assert_eq!(matches!(worker.ended(), Some(End::GivenUp(_))), may_begin_anew, "{:?}", worker.ended());
    }
}

#[test]
fn a_worker_that_is_refused_for_good_ends_with_the_reason_and_any_other_tries_again() {
    let mut daemon = Daemon::start();
    let worker = unheard(&daemon);
    daemon.hello().refuse(Refusal::new("machines_max", 2, "one worker more"));
    daemon.hello().refuse(Refusal::new("model", "this", "that"));
    assert_eq!(worker.next_pass(LIMIT).map(|pass| pass.number), None);
    let told = "refused by the other side: model: expected this, got that";
    assert_eq!(worker.ended(), Some(End::Refused(told.to_owned())));
    // One that was in session before waits for the daemon to be set up as it was.
    let (worker, handle) = idle(&mut daemon);
    handle.close("the daemon ends");
    daemon.hello().refuse(Refusal::new("model", "this", "that"));
    drop(daemon.hello());
    assert_eq!(worker.ended(), None);
}

#[test]
fn a_worker_stops_while_it_looks_for_its_daemon() {
    let mut daemon = Daemon::start();
    let options = daemon.options();
    daemon.heard.close();
    drop(daemon.runtime);
    let running = fleet::start(options, 20);
    assert_eq!(running.end().0, End::Stopped);
}
