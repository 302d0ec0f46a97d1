//! Sessions: who may say what when, who is let in, and when silence is too long.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod kit;

use std::collections::BTreeMap;

use proptest::prelude::*;
use splitcore_core::event::{Claim, Held};
use splitcore_core::id::{AssignmentSeq, Epoch};
use splitcore_core::leg::{Command, Notice};
use splitcore_core::time::Time;
use splitcore_wire::auth::Secret;
use splitcore_wire::message::*;
use splitcore_wire::session::*;

type DaemonOut = Vec<Step<ToWorker, DaemonEvent>>;
type WorkerOut = Vec<Step<ToDaemon, WorkerEvent>>;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Time {
    Time::from_ns(ms * MS)
}

fn daemon(settings: Settings) -> DaemonSession {
    let mut out = Vec::new();
    let session = DaemonSession::new(settings, kit::CHALLENGE, at(0), &mut out);
    assert!(matches!(out[..], [Step::Send(ToWorker::Challenge(_))]));
    session
}

fn worker(settings: Settings) -> WorkerSession {
    WorkerSession::new(kit::identity(), settings, kit::NONCE, at(0))
}

fn closed<M, E>(out: &[Step<M, E>]) -> Option<&CloseReason> {
    out.iter().find_map(|step| if let Step::Close(reason) = step { Some(reason) } else { None })
}

/// A daemon's session after so many steps: of four it is established.
fn stage(steps: u8) -> DaemonSession {
    let (mut session, mut out) = (daemon(kit::settings()), Vec::new());
    for step in 0..steps {
        match step {
            0 => session.receive(at(1), ToDaemon::Hello(Box::new(kit::hello())), &mut out),
            1 => assert!(session.welcome(at(2), kit::MACHINE, &mut out)),
            2 => {
                let registration = kit::registration(kit::EPOCH, vec![]);
                session.receive(at(3), ToDaemon::Register(Box::new(registration)), &mut out);
            }
            _ => assert!(session.registered(&mut out)),
        }
    }
    assert_eq!(closed(&out), None);
    session
}

fn established() -> DaemonSession {
    stage(4)
}

/// A worker's session after so many steps: of four it is established.
fn worker_stage(steps: u8) -> WorkerSession {
    let (mut session, mut out) = (worker(kit::settings()), Vec::new());
    for step in 0..steps {
        match step {
            0 => session.receive(at(1), ToWorker::Challenge(kit::challenge()), &mut out),
            1 => session.receive(at(2), ToWorker::Welcome(kit::welcome()), &mut out),
            2 => {
                let registration = kit::registration(Epoch(2), vec![]);
                assert!(session.register(registration, BTreeMap::new(), &mut out));
            }
            _ => session.receive(at(3), ToWorker::Registered { epoch: kit::EPOCH }, &mut out),
        }
    }
    assert_eq!(closed(&out), None);
    session
}

fn established_worker() -> WorkerSession {
    let session = worker_stage(4);
    assert!(session.is_established());
    session
}

#[test]
fn frames_are_short_until_the_other_side_is_known() {
    let limits = Limits::default();
    let short = |steps| stage(steps).frame_bytes_max() == limits.handshake_bytes_max;
    assert_eq!([0, 1, 2, 3, 4].map(short), [true, true, false, false, false]);
    let short = |steps| worker_stage(steps).frame_bytes_max() == limits.handshake_bytes_max;
    assert_eq!([0, 1, 2, 3, 4].map(short), [true, true, false, false, false]);
    assert!(limits.handshake_bytes_max < limits.frame_bytes_max);
}

#[test]
fn two_sides_that_share_a_secret_come_to_a_session() {
    let (mut daemon, mut worker) = (daemon(kit::settings()), worker(kit::settings()));
    let (mut to_worker, mut to_daemon): (DaemonOut, WorkerOut) = (Vec::new(), Vec::new());
    to_worker.push(Step::Send(ToWorker::Challenge(kit::challenge())));
    let mut commands = 0;
    while !to_worker.is_empty() || !to_daemon.is_empty() {
        for step in std::mem::take(&mut to_worker) {
            match step {
                Step::Send(message) => worker.receive(at(1), message, &mut to_daemon),
                Step::Event(DaemonEvent::Hello(hello)) => {
                    assert_eq!(hello.name, "token-0");
                    assert!(daemon.welcome(at(1), kit::MACHINE, &mut to_worker));
                }
                Step::Event(DaemonEvent::Register { registration, descriptors }) => {
                    assert_eq!(registration.claims.len(), descriptors.len());
                    assert!(daemon.registered(&mut to_worker));
                    assert!(daemon.command(kit::compute(1, 1), &mut to_worker));
                }
                step => panic!("{step:?}"),
            }
        }
        for step in std::mem::take(&mut to_daemon) {
            match step {
                Step::Send(message) => daemon.receive(at(1), message, &mut to_worker),
                Step::Event(WorkerEvent::Welcome(welcome)) => {
                    assert_eq!((welcome.machine, welcome.epoch), (kit::MACHINE, kit::EPOCH));
                    let described = BTreeMap::from([(kit::key(9), kit::descriptor(vec![1, 2, 3, 4]))]);
                    let registration = kit::registration(Epoch(2), vec![kit::claim(9)]);
                    assert!(worker.register(registration, described, &mut to_daemon));
                }
                Step::Event(WorkerEvent::Registered { epoch }) => assert_eq!(epoch, kit::EPOCH),
                Step::Event(WorkerEvent::Command { epoch, .. }) => {
                    assert_eq!(epoch, kit::EPOCH);
                    commands += 1;
                }
                step => panic!("{step:?}"),
            }
        }
    }
    assert_eq!(commands, 1);
    assert!(daemon.is_established() && worker.is_established());
}

/// What a daemon answers to a `Hello` that is changed so.
fn refusal(settings: Settings, change: impl FnOnce(&mut Hello)) -> Refusal {
    let (mut session, mut out, mut hello) = (daemon(settings), Vec::new(), kit::hello());
    change(&mut hello);
    session.receive(at(1), ToDaemon::Hello(Box::new(hello)), &mut out);
    assert!(session.is_closed());
    match &out[..] {
        [Step::Send(ToWorker::Refused(told)), Step::Close(CloseReason::Refused(refusal))] => {
            assert_eq!(told, refusal);
            refusal.clone()
        }
        out => panic!("{out:?}"),
    }
}

#[test]
fn a_refusal_names_the_field_and_both_values() {
    let told = |refusal: &Refusal| refusal.to_string();
    let settings = || Settings { context: 4096, ..kit::settings() };
    assert_eq!(told(&refusal(settings(), |hello| hello.protocol = 3)), "protocol: expected 2, got 3");
    assert_eq!(refusal(kit::settings(), |hello| hello.layout.block_tokens = 0).field, "layout");
    let refused = refusal(settings(), |hello| hello.epoch = Epoch(4));
    assert_eq!((told(&refused).as_str(), refused.permanent), ("epoch: expected at most 3, got 4", false));
    let refused = refusal(settings(), |hello| hello.context = Some(512));
    assert_eq!(
        (told(&refused).as_str(), refused.permanent),
        ("context: expected at least 4096, got 512", true)
    );
    let model = || Settings { model: Some("llama".to_owned()), ..kit::settings() };
    let refused = refusal(model(), |_| {});
    assert_eq!(
        (told(&refused).as_str(), refused.permanent),
        ("model: expected llama, got smollm2-135m", true)
    );
    assert_eq!(told(&refusal(settings(), |hello| hello.proof = None)), "proof: expected a proof, got none");
    let other = || Settings { secret: Some(Secret::new(b"another")), ..kit::settings() };
    assert_eq!(refusal(other(), |_| {}).field, "proof");
    // The proof covers the name and the nonce.
    assert_eq!(refusal(settings(), |hello| hello.name = "token-1".to_owned()).field, "proof");
    assert_eq!(refusal(settings(), |hello| hello.nonce.0[3] ^= 1).field, "proof");
}

#[test]
fn texts_of_a_hello_are_short_and_nothing_that_a_terminal_obeys() {
    type Change = fn(&mut Hello, String);
    let settings = || Settings { secret: None, ..kit::settings() };
    let fields: [(&str, usize, Change); 4] = [
        ("name", 256, |hello, text| hello.name = text),
        ("model", 256, |hello, text| hello.model = text),
        ("peer", 512, |hello, text| hello.peer = text),
        ("transfer", 4096, |hello, text| hello.transfer = text),
    ];
    for (field, most, change) in fields {
        let with = |text: &str| refusal(settings(), |hello| change(hello, text.to_owned()));
        for text in ["a\x1b[2J", "a\nb", "\u{9b}31m", "a\u{202e}b", &"x".repeat(most + 1)] {
            let refused = with(text);
            assert_eq!((refused.field.as_str(), refused.permanent), (field, true), "{text:?}");
            assert!(refused.to_string().chars().all(splitcore_wire::text::is_plain), "{refused}");
            assert!(refused.theirs.len() < 400);
        }
        let (mut session, mut out, mut hello) = (daemon(settings()), Vec::new(), kit::hello());
        change(&mut hello, "x".repeat(most));
        session.receive(at(1), ToDaemon::Hello(Box::new(hello)), &mut out);
        assert_eq!(closed(&out), None, "{field}");
    }
}

#[test]
fn a_worker_takes_no_daemon_that_does_not_know_the_secret() {
    let welcomed = |change: &dyn Fn(&mut Welcome)| {
        let (mut session, mut out, mut welcome) = (worker(kit::settings()), Vec::new(), kit::welcome());
        change(&mut welcome);
        session.receive(at(1), ToWorker::Challenge(kit::challenge()), &mut out);
        session.receive(at(2), ToWorker::Welcome(welcome), &mut out);
        closed(&out).map(ToString::to_string)
    };
    assert_eq!(welcomed(&|_| {}), None);
    let wrong = Some("refused: proof: expected the same secret, got a proof by another".to_owned());
    assert_eq!(welcomed(&|welcome| welcome.proof = None), wrong);
    assert_eq!(welcomed(&|welcome| welcome.proof = kit::hello().proof), wrong, "the worker's own, sent back");
    let (mut session, mut out) = (worker(kit::settings()), Vec::new());
    session.receive(at(1), ToWorker::Challenge(Challenge { secret: false, ..kit::challenge() }), &mut out);
    let reason = closed(&out).map(ToString::to_string);
    assert_eq!(reason, Some("refused: secret: expected a secret, got no secret".to_owned()));
}

#[test]
fn a_worker_takes_no_older_cluster_than_the_newest_it_has_heard_of() {
    let (mut session, mut out) = (worker(kit::settings()), Vec::new());
    session.receive(at(1), ToWorker::Challenge(kit::challenge()), &mut out);
    session.receive(at(2), ToWorker::Welcome(Welcome { epoch: Epoch(1), ..kit::welcome() }), &mut out);
    assert_eq!(closed(&out), Some(&CloseReason::StaleEpoch { ours: 2, theirs: 1 }));
}

#[test]
fn commands_come_in_order_and_with_what_they_need() {
    let heard = |assigned: &[Assigned]| {
        let (mut session, mut out) = (established_worker(), Vec::new());
        for assigned in assigned {
            session.receive(at(4), ToWorker::Command(Box::new(assigned.clone())), &mut out);
        }
        let events = out.iter().filter(|step| matches!(step, Step::Event(_))).count();
        (events, closed(&out).map(ToString::to_string))
    };
    assert_eq!(heard(&[kit::compute(4, 1), kit::reserve(9)]), (2, None));
    let told = Some("command 4 after command 4".to_owned());
    assert_eq!(heard(&[kit::compute(4, 1), kit::compute(4, 2), kit::compute(5, 3)]), (1, told));
    let bare = Assigned { descriptor: None, ..kit::compute(1, 1) };
    let told = "command: it brings a request without a descriptor";
    assert_eq!(heard(&[bare]), (0, Some(told.to_owned())));
    let short = Assigned { descriptor: Some(kit::descriptor(vec![1])), ..kit::compute(1, 1) };
    let told = "request 1 attempt 1: a prompt of 1 tokens for work on 4";
    assert_eq!(heard(&[short]), (0, Some(told.to_owned())));
    let astray = Assigned { peer: Some(kit::address(kit::MACHINE)), ..kit::reserve(1) };
    let told = "command: the address is not that of the machine it names";
    assert_eq!(heard(&[astray]), (0, Some(told.to_owned())));
    let mut cold = kit::compute(1, 1);
    cold.descriptor.as_mut().unwrap().sampling.temperature = f64::NAN;
    assert_eq!(heard(&[cold]).0, 0);
}

#[test]
fn a_daemon_sends_no_command_out_of_order_and_none_without_a_session() {
    let (mut session, mut out) = (daemon(kit::settings()), Vec::new());
    assert!(!session.command(kit::compute(1, 1), &mut out));
    assert!(out.is_empty());
    let mut session = established();
    assert!(session.command(kit::compute(5, 1), &mut out));
    assert!(!session.command(kit::compute(5, 2), &mut out));
    assert_eq!(closed(&out), Some(&CloseReason::Sequence { last: 5, got: 5 }));
}

/// What becomes of a registration.
fn registered(epoch: Epoch, claims: &[u64], described: &[u64]) -> Result<usize, String> {
    let (mut session, mut out) = (daemon(kit::settings()), Vec::new());
    session.receive(at(1), ToDaemon::Hello(Box::new(kit::hello())), &mut out);
    session.welcome(at(1), kit::MACHINE, &mut out);
    for &request in described {
        let descriptor = Box::new(kit::descriptor(vec![1; 4]));
        session.receive(at(1), ToDaemon::Describe { key: kit::key(request), descriptor }, &mut out);
    }
    let claims = claims.iter().copied().map(kit::claim).collect();
    session.receive(at(1), ToDaemon::Register(Box::new(kit::registration(epoch, claims))), &mut out);
    match out.last() {
        Some(Step::Event(DaemonEvent::Register { descriptors, .. })) => Ok(descriptors.len()),
        Some(Step::Close(reason)) => Err(reason.to_string()),
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_new_cluster_is_told_what_each_claim_is_about() {
    assert_eq!(registered(Epoch(2), &[1, 2], &[1, 2]), Ok(2));
    assert_eq!(registered(kit::EPOCH, &[1, 2], &[]), Ok(0), "it knows them");
    let unknown = "request 2 attempt 1: not described, and this Cluster has not met it";
    assert_eq!(registered(Epoch(2), &[1, 2], &[1]), Err(unknown.to_owned()));
    let more = "request 3 attempt 1: described and not claimed";
    assert_eq!(registered(Epoch(2), &[1], &[1, 3]), Err(more.to_owned()));
    let twice = "request 1 attempt 1: described twice";
    assert_eq!(registered(Epoch(2), &[1], &[1, 1]), Err(twice.to_owned()));
}

#[test]
fn a_leg_and_the_record_of_it_that_goes_further_have_one_description() {
    let registered = |tokens: u32| {
        let (mut session, mut out) = (stage(2), Vec::new());
        let descriptor = Box::new(kit::descriptor(vec![1; tokens as usize]));
        session.receive(at(3), ToDaemon::Describe { key: kit::key(1), descriptor }, &mut out);
        let mut kept = Claim { held: Held::Kept, ..kit::claim(1) };
        kept.work.prompt_tokens += 2;
        let registration = kit::registration(Epoch(2), vec![kit::claim(1), kept]);
        session.receive(at(3), ToDaemon::Register(Box::new(registration)), &mut out);
        closed(&out).map(ToString::to_string)
    };
    assert_eq!(registered(6), None);
    let told = |tokens| Some(format!("request 1 attempt 1: a prompt of {tokens} tokens for work on 6"));
    assert_eq!((registered(5), registered(7)), (told(5), told(7)));
}

#[test]
fn silence_and_slowness_end_a_session_under_their_names() {
    let (mut session, mut out) = (daemon(kit::settings()), Vec::new());
    assert_eq!(session.next_deadline(), at(5000));
    session.tick(at(4999), &mut out);
    assert!(out.is_empty());
    session.tick(at(5000), &mut out);
    let reason = closed(&out).map(ToString::to_string);
    assert_eq!(reason, Some("no end of the handshake within handshake_limit (5000 ms)".to_owned()));

    let (mut session, mut out) = (established(), Vec::new());
    assert_eq!(session.next_deadline(), at(1002));
    session.tick(at(1002), &mut out);
    assert_eq!(out, [Step::Send(ToWorker::Ping { number: 1 })]);
    session.receive(at(1003), ToDaemon::Pong { number: 1 }, &mut out);
    session.tick(at(6002), &mut out);
    assert_eq!(closed(&out), None);
    session.tick(at(6003), &mut out);
    let reason = closed(&out).map(ToString::to_string);
    assert_eq!(reason, Some("nothing heard within silence_limit (5000 ms)".to_owned()));

    let (mut session, mut out) = (established_worker(), Vec::new());
    session.receive(at(1000), ToWorker::Ping { number: 1 }, &mut out);
    assert_eq!(out, [Step::Send(ToDaemon::Pong { number: 1 })]);
    assert_eq!(session.next_deadline(), at(6000));
    session.tick(at(6000), &mut out);
    assert!(matches!(closed(&out), Some(CloseReason::Silence { .. })));

    let (mut session, mut out) = (established(), Vec::new());
    session.receive(at(4), ToDaemon::Pong { number: 9 }, &mut out);
    assert_eq!(closed(&out), Some(&CloseReason::Pong { number: 9, last: 0 }));
}

proptest! {
    #[test]
    fn a_daemon_delivers_nothing_to_its_cluster_before_it_has_taken_the_registration(
        messages in proptest::collection::vec((kit::any_to_daemon(), 0..6_u8), 1..40),
        steps in 0..5_u8,
    ) {
        let (mut session, mut registered, mut now) = (stage(steps), steps == 4, 10);
        for (message, host) in messages {
            let mut out: DaemonOut = Vec::new();
            now += 1;
            let over = session.is_closed();
            session.receive(at(now), message, &mut out);
            prop_assert!(!over || out.is_empty(), "closed, it answers nothing");
            for step in &out {
                let core = matches!(step, Step::Event(DaemonEvent::Notice(_) | DaemonEvent::Tokens(_)));
                prop_assert!(!core || registered, "{:?}", step);
            }
            let closes = closed(&out).is_some();
            prop_assert_eq!(closes, !over && session.is_closed());
            match host {
                0 => drop(session.welcome(at(now), kit::MACHINE, &mut out)),
                1 => registered |= session.registered(&mut out),
                2 => session.tick(at(now + 1000), &mut out),
                _ => {}
            }
            prop_assert_eq!(session.is_established(), registered && !session.is_closed());
        }
    }

    #[test]
    fn a_worker_delivers_no_command_before_it_is_registered_and_each_in_order(
        messages in proptest::collection::vec((kit::any_to_worker(), 0..4_u8), 1..40),
        steps in 0..5_u8,
    ) {
        let (mut session, mut asked) = (worker_stage(steps), steps >= 3);
        let (mut registered, mut last, mut now) = (steps == 4, AssignmentSeq(0), 10);
        for (message, host) in messages {
            let mut out: WorkerOut = Vec::new();
            now += 1;
            let over = session.is_closed();
            session.receive(at(now), message, &mut out);
            prop_assert!(!over || out.is_empty());
            for step in &out {
                match step {
                    Step::Event(WorkerEvent::Command { epoch, assigned }) => {
                        prop_assert!(registered && assigned.seq > last);
                        prop_assert_eq!(*epoch, kit::EPOCH);
                        last = assigned.seq;
                    }
                    Step::Event(WorkerEvent::Registered { .. }) => {
                        prop_assert!(asked, "nobody is registered who has not asked");
                        registered = true;
                    }
                    _ => {}
                }
            }
            match host {
                0 => {
                    let registration = kit::registration(Epoch(2), vec![]);
                    asked |= session.register(registration, BTreeMap::new(), &mut out);
                }
                1 => {
                    let said = session.notice(Notice::Gone { key: kit::key(1) }, &mut out);
                    prop_assert_eq!(said, registered && !session.is_closed());
                }
                2 => session.tick(at(now + 100), &mut out),
                _ => {}
            }
        }
    }
}

#[test]
fn a_command_that_is_about_nothing_new_brings_nothing() {
    let command = Command::Start { key: kit::key(1) };
    let assigned = Assigned { command, ..kit::compute(1, 1) };
    let (mut session, mut out) = (established_worker(), Vec::new());
    session.receive(at(4), ToWorker::Command(Box::new(assigned)), &mut out);
    let reason = closed(&out).map(ToString::to_string);
    assert_eq!(reason, Some("command: a descriptor without a request".to_owned()));
}

mod given {
    use splitcore_core::event::{Claim, Held};
    use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId, Order};
    use splitcore_core::leg::{Command, Notice, Report, Work};
    use splitcore_core::placement::Upto;
    use splitcore_wire::given::Given;
    use splitcore_wire::message::{Assigned, Tokens};

    use crate::kit;

    const TO: MachineId = MachineId { index: 9, incarnation: 1 };

    fn assigned(seq: u64, command: Command) -> Assigned {
        Assigned { seq: AssignmentSeq(seq), command, descriptor: None, peer: None }
    }

    fn report(seq: u64) -> Report {
        Report { seq: AssignmentSeq(seq), ..Report::default() }
    }

    fn compute(seq: u64, request: u64, upto: Upto) -> Assigned {
        let work = Work { upto, max_new_tokens: 8, ..kit::work(4) };
        assigned(seq, Command::Compute { key: kit::key(request), order: Order(request), work })
    }

    fn tokens(given: &Given, key: LegKey, from: u32, count: usize) -> Result<(), String> {
        given.tokens(&Tokens { key, from, ids: vec![1; count] }).map_err(|violation| violation.to_string())
    }

    #[test]
    fn what_is_taken_back_may_be_spoken_of_until_that_is_answered_and_what_is_over_is_forgotten() {
        let mut given = Given::new(512);
        for request in 1..=5000_u64 {
            let (key, seq) = (kit::key(request), 3 * request);
            assert!(given.notice(&Notice::Relief { key }).is_err());
            given.command(&compute(seq, request, Upto::End));
            given.notice(&Notice::PrefillDone { key, sampled: true }).unwrap();
            given.command(&assigned(seq + 1, Command::Abort { key }));
            // Said before it has heard of that.
            given.notice(&Notice::Finished { key, tokens: 3 }).unwrap();
            given.notice(&Notice::Report(report(seq))).unwrap();
            assert_eq!(tokens(&given, key, 0, 3), Ok(()));
            given.notice(&Notice::Released { key, to: None, report: report(seq + 1) }).unwrap();
            assert!(given.len() <= 1030, "{}", given.len());
        }
        assert_eq!(
            tokens(&given, kit::key(1), 0, 3),
            Err("tokens: request 1 attempt 1 was never given to this worker".to_owned())
        );
    }

    #[test]
    fn an_end_is_remembered_until_its_release_has_been_heard() {
        let mut given = Given::new(512);
        let key = kit::key(1);
        given.command(&compute(1, 1, Upto::End));
        given.notice(&Notice::Finished { key, tokens: 8 }).unwrap();
        for seq in 2..3000 {
            given.command(&compute(seq, seq, Upto::End));
            given.notice(&Notice::Gone { key: kit::key(seq) }).unwrap();
            given.notice(&Notice::Report(report(seq))).unwrap();
        }
        assert_eq!(tokens(&given, key, 0, 8), Ok(()), "after a confirm all of it comes again");
        given.command(&assigned(3000, Command::Release { key }));
        assert_eq!(tokens(&given, key, 0, 8), Ok(()));
        given.notice(&Notice::Report(report(3000))).unwrap();
        assert!(given.len() <= 1024);
    }

    #[test]
    fn a_source_gives_the_first_token_and_speaks_of_no_landing() {
        let mut given = Given::new(512);
        let key = kit::key(1);
        given.command(&compute(1, 1, Upto::Position(4)));
        assert_eq!(tokens(&given, key, 0, 1), Ok(()));
        let more = "tokens: request 1 attempt 1 has more tokens than this worker was to make";
        assert_eq!(tokens(&given, key, 0, 2), Err(more.to_owned()));
        assert_eq!(tokens(&given, key, u32::MAX, 1), Err(more.to_owned()));
        for notice in [Notice::Landed { key }, Notice::Reserved { key }, Notice::Evicted { key, tokens: 5 }] {
            assert!(given.notice(&notice).is_err(), "{notice:?}");
        }
        given.notice(&Notice::Sent { key }).unwrap();
        for _ in 0..2 {
            given.notice(&Notice::Released { key, to: Some(TO), report: report(1) }).unwrap();
        }
        assert_eq!(given.len(), 1, "it keeps the request");
        given.command(&assigned(2, Command::Release { key }));
        given.notice(&Notice::Report(report(2))).unwrap();
        // A transfer that was stopped may end late.
        given.notice(&Notice::Sent { key }).unwrap();
    }

    #[test]
    fn one_that_is_to_keep_a_request_does_not_run_it() {
        let mut given = Given::new(512);
        let (key, work) = (kit::key(1), kit::work(4));
        given.command(&assigned(1, Command::Keep { key, order: Order(1), work }));
        let told = "tokens: request 1 attempt 1 was not given to this worker to run";
        assert_eq!(tokens(&given, key, 0, 1), Err(told.to_owned()));
        assert!(given.notice(&Notice::Finished { key, tokens: 1 }).is_err());
        assert!(given.notice(&Notice::Released { key, to: None, report: report(1) }).is_err());
    }

    #[test]
    fn a_registration_holds_what_was_given_and_what_it_brings_may_be_spoken_of() {
        let mut given = Given::new(512);
        given.command(&compute(1, 1, Upto::End));
        let claim = |request, held| Claim { held, ..kit::claim(request) };
        let known = kit::registration(kit::EPOCH, vec![claim(1, Held::Closing), claim(1, Held::Kept)]);
        assert_eq!(given.check_registration(&known, kit::EPOCH), Ok(()));
        let unknown = kit::registration(kit::EPOCH, vec![claim(1, Held::Closing), claim(2, Held::Finished)]);
        let refused = given.check_registration(&unknown, kit::EPOCH).unwrap_err();
        let told = "register: request 2 attempt 1 is claimed and was never given to this worker";
        assert_eq!(refused.to_string(), told);
        let mut ahead = kit::registration(kit::EPOCH, vec![]);
        ahead.report.seq = AssignmentSeq(2);
        assert!(given.check_registration(&ahead, kit::EPOCH).is_err());
        // Of an earlier Cluster nothing is known here.
        let earlier = kit::registration(Epoch(2), vec![claim(2, Held::Finished)]);
        assert_eq!(given.check_registration(&earlier, kit::EPOCH), Ok(()));
        given.register(&earlier);
        assert_eq!(tokens(&given, kit::key(2), 0, 1), Ok(()));
        given.command(&assigned(3, Command::Abort { key: kit::key(2) }));
        given.notice(&Notice::Released { key: kit::key(2), to: None, report: report(3) }).unwrap();
    }
}
