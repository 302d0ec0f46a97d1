//! The listener and the link over real sockets: garbage, silence, slowness, strangers, and connecting again.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod kit;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use splitcore_core::id::Epoch;
use splitcore_core::leg::Notice;
use splitcore_wire::address::Address;
use splitcore_wire::auth::Secret;
use splitcore_wire::backoff::Backoff;
use splitcore_wire::codec::{Decoder, encode};
use splitcore_wire::link::LinkEvent;
use splitcore_wire::listen::{Listener, What};
use splitcore_wire::message::{Hello, Refusal, ToDaemon, ToWorker, Tokens};
use splitcore_wire::session::{CloseReason, DaemonEvent, Limits, Settings, WorkerEvent};

use crate::kit::daemon::{Daemon, lost, next};

const MS: u64 = 1_000_000;

/// All that a daemon says until it hangs up.
fn read_all(mut stream: TcpStream) -> Vec<ToWorker> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let (mut decoder, mut messages) = (Decoder::new(), Vec::new());
    decoder.push(&bytes);
    while let Some(message) = decoder.next(1 << 20).unwrap() {
        messages.push(message);
    }
    messages
}

#[test]
fn garbage_is_told_what_is_wrong_and_disturbs_nobody() {
    let mut daemon = Daemon::start(kit::settings());
    let link = daemon.link(kit::settings());
    let handle = daemon.establish(&link);
    for garbage in
        [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], b"\x03\0\0\0abc", b"\0\0\0\0", &[0xff; 4096]]
    {
        let mut stream = daemon.connect();
        stream.write_all(garbage).unwrap();
        let said = read_all(stream);
        let [ToWorker::Challenge(_), ToWorker::Close { reason }] = &said[..] else { panic!("{said:?}") };
        let closed = daemon.closed();
        assert!(matches!(closed, CloseReason::Frame(_)), "{closed}");
        assert_eq!(&closed.to_string(), reason);
    }
    // One who says nothing and hangs up.
    drop(daemon.connect());
    assert!(matches!(daemon.closed(), CloseReason::Io(_)));
    // A message before its time.
    let mut stream = daemon.connect();
    stream.write_all(&encode(&ToDaemon::Notice(Notice::Gone { key: kit::key(1) }), 4096).unwrap()).unwrap();
    assert!(matches!(read_all(stream)[1], ToWorker::Close { .. }));
    assert_eq!(daemon.closed().to_string(), "notice while a hello is to come");
    // All the while the worker's session is as it was.
    handle.command(kit::compute(1, 1));
    assert!(matches!(next(&link), LinkEvent::Session(WorkerEvent::Command { .. })));
    assert!(link.tokens(Tokens { key: kit::key(1), from: 0, ids: vec![1, 2] }));
    assert!(matches!(daemon.next(), What::Event(DaemonEvent::Tokens(_))));
}

#[test]
fn strangers_are_refused_on_both_sides() {
    let mut daemon = Daemon::start(kit::settings());
    let other = Settings { secret: Some(Secret::new(b"another")), ..kit::settings() };
    let link = daemon.link(other);
    let refused = Refusal::new("proof", "the same secret", "a proof by another");
    assert_eq!(lost(&link), CloseReason::RefusedThere(refused.clone()));
    assert_eq!(daemon.closed(), CloseReason::Refused(refused));
    drop(link);
    let mut open = Daemon::start(Settings { secret: None, ..kit::settings() });
    let link = open.link(kit::settings());
    assert!(matches!(lost(&link), CloseReason::Refused(refusal) if refusal.field == "secret"));
    assert!(matches!(open.closed(), CloseReason::ClosedThere(_)));
}

#[test]
fn one_who_begins_and_does_not_go_on_is_cut_off_by_name() {
    let limits = Limits { handshake_limit_ns: 60_000 * MS, frame_limit_ns: 50 * MS, ..Limits::default() };
    let mut daemon = Daemon::start(Settings { limits, ..kit::settings() });
    let mut stream = daemon.connect();
    stream.write_all(&[9, 0]).unwrap();
    let said = read_all(stream);
    let reason = "a frame took longer than frame_limit (50 ms)".to_owned();
    assert_eq!(said[1], ToWorker::Close { reason: reason.clone() });
    assert_eq!(daemon.closed().to_string(), reason);

    // A byte now and then is no progress.
    let mut stream = daemon.connect();
    stream.write_all(&200_u32.to_le_bytes()).unwrap();
    let drips = (0..200).take_while(|_| {
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(&[0x81]).is_ok()
    });
    assert!(drips.count() < 200);
    assert!(matches!(daemon.closed(), CloseReason::Stalled { .. }));

    let limits = Limits { handshake_limit_ns: 50 * MS, ..Limits::default() };
    let mut daemon = Daemon::start(Settings { limits, ..kit::settings() });
    let said = read_all(daemon.connect());
    let reason = "no end of the handshake within handshake_limit (50 ms)".to_owned();
    assert_eq!(said[1], ToWorker::Close { reason });
    assert!(matches!(daemon.closed(), CloseReason::Handshake { .. }));
}

#[test]
fn a_session_lives_by_its_heartbeat_while_the_worker_is_busy() {
    let limits = Limits { ping_interval_ns: 10 * MS, silence_limit_ns: 2_000 * MS, ..Limits::default() };
    let settings = Settings { limits, ..kit::settings() };
    let mut daemon = Daemon::start(settings.clone());
    let link = daemon.link(settings);
    let _handle = daemon.establish(&link);
    // The worker does nothing for longer than the limit; its thread answers.
    assert_eq!(link.recv(Duration::from_millis(2_500)), None);
    assert!(link.notice(Notice::Gone { key: kit::key(1) }));
    assert!(matches!(daemon.next(), What::Event(DaemonEvent::Notice(_))));
}

#[test]
fn a_worker_that_stops_answering_is_gone_after_silence_limit() {
    let limits = Limits { ping_interval_ns: 10 * MS, silence_limit_ns: 100 * MS, ..Limits::default() };
    let mut daemon = Daemon::start(Settings { secret: None, limits, ..kit::settings() });
    let mut stream = daemon.connect();
    stream.write_all(&encode(&ToDaemon::Hello(Box::new(kit::hello())), 4096).unwrap()).unwrap();
    daemon.hello().welcome(kit::MACHINE);
    let said = read_all(stream);
    assert!(said.contains(&ToWorker::Ping { number: 1 }), "{said:?}");
    assert_eq!(daemon.closed().to_string(), "nothing heard within silence_limit (100 ms)");
}

#[test]
fn one_who_does_not_read_is_cut_off_and_the_daemon_keeps_no_more_than_its_bound() {
    let limits = Limits { queue_frames_max: 64, ..Limits::default() };
    let mut daemon = Daemon::start(Settings { secret: None, limits, ..kit::settings() });
    let mut stream = daemon.connect();
    stream.write_all(&encode(&ToDaemon::Hello(Box::new(kit::hello())), 4096).unwrap()).unwrap();
    let handle = daemon.hello();
    handle.welcome(kit::MACHINE);
    // `Challenge` and `Welcome`: what follows is sent after them.
    for _ in 0..2 {
        let mut header = [0; 4];
        stream.read_exact(&mut header).unwrap();
        stream.read_exact(&mut vec![0; u32::from_le_bytes(header) as usize]).unwrap();
    }
    let register = ToDaemon::Register(Box::new(kit::registration(kit::EPOCH, vec![])));
    stream.write_all(&encode(&register, 4096).unwrap()).unwrap();
    assert!(matches!(daemon.next(), What::Event(DaemonEvent::Register { .. })));
    handle.registered();
    for seq in 1..100_000 {
        handle.command(kit::compute(seq, seq));
    }
    assert_eq!(daemon.closed().to_string(), "more than queue_frames_max (64) frames wait to be read");
}

#[test]
fn a_link_connects_again_and_says_the_newest_epoch_it_has_heard_of() {
    let mut daemon = Daemon::start(kit::settings());
    let link = daemon.link(kit::settings());
    daemon.establish(&link);
    link.sever();
    assert!(matches!(lost(&link), CloseReason::Io(_) | CloseReason::Closed(_)));
    assert!(matches!(daemon.closed(), CloseReason::Io(_)));
    assert!(!link.notice(Notice::Gone { key: kit::key(1) }), "there is no session to say it on");
    let What::Hello { hello, handle, .. } = daemon.next() else { panic!("no hello") };
    assert_eq!((hello.epoch, hello.index), (kit::EPOCH, Some(kit::MACHINE.index)));
    handle.close("enough");
    assert_eq!(lost(&link), CloseReason::ClosedThere("enough".to_owned()));
    assert_eq!(daemon.closed(), CloseReason::Closed("enough".to_owned()));
    drop(link);

    let older = Daemon::start(Settings { epoch: Epoch(1), ..kit::settings() });
    let link = older.link(kit::settings());
    assert!(matches!(lost(&link), CloseReason::RefusedThere(refusal) if refusal.field == "epoch"));
}

#[test]
fn waits_between_tries_grow_to_their_limit_and_differ_between_workers() {
    let waits = |seed| {
        let mut backoff = Backoff::new(100, 1000, seed);
        (0..60).map(|_| backoff.next_ns()).collect::<Vec<_>>()
    };
    for (at, wait) in waits(7).into_iter().enumerate() {
        let longest = 1000.min(100_u64 << at.min(20));
        assert!((longest / 2..=longest).contains(&wait), "wait {at}: {wait}");
    }
    assert_ne!(waits(7), waits(8));
    let mut backoff = Backoff::new(100, 1000, 7);
    let first = backoff.next_ns();
    let _ = backoff.next_ns();
    backoff.reset();
    assert_eq!((backoff.next_ns(), backoff.tries()), (first, 1));
    assert_eq!(Backoff::new(0, 0, 1).next_ns(), 0);
}

#[test]
fn an_address_is_a_host_and_a_port_or_a_path() {
    let parse = |text: &str| text.parse::<Address>();
    assert_eq!(parse("unix:/run/splitcore").unwrap(), Address::Unix("/run/splitcore".into()));
    assert_eq!(parse("[::1]:7600").unwrap().to_string(), "[::1]:7600");
    for text in ["", "unix:", "localhost", ":7600", "localhost:port", "localhost:70000"] {
        let told = parse(text).unwrap_err().to_string();
        assert_eq!(told, format!("address \"{text}\": expected host:port or unix:/path"));
    }
}

/// A connection that has been welcomed: from here on its frames may be as long as a registration's.
fn let_in(daemon: &mut Daemon, name: &str) -> TcpStream {
    let hello = Hello { name: name.to_owned(), ..kit::hello() };
    let mut stream = daemon.connect();
    stream.write_all(&encode(&ToDaemon::Hello(Box::new(hello)), 4096).unwrap()).unwrap();
    daemon.hello().welcome(kit::MACHINE);
    let (mut decoder, mut byte) = (Decoder::new(), [0]);
    loop {
        stream.read_exact(&mut byte).unwrap();
        decoder.push(&byte);
        if let Some(ToWorker::Welcome(_)) = decoder.next(1 << 20).unwrap() {
            return stream;
        }
    }
}

#[test]
fn what_has_come_of_frames_and_registrations_is_bounded_over_all_connections() {
    const BOUND: u64 = 4 << 20;
    let limits = Limits { held_bytes_max: BOUND, ..Limits::default() };
    let mut daemon = Daemon::start(Settings { secret: None, limits, ..kit::settings() });
    let describe = |request, tokens: usize| {
        let descriptor = Box::new(kit::descriptor(vec![1; tokens]));
        encode(&ToDaemon::Describe { key: kit::key(request), descriptor }, 16 << 20).unwrap()
    };
    // Half of what all of them may have together, of a token a byte each: four times as much in memory.
    let mut first = let_in(&mut daemon, "first");
    first.write_all(&describe(1, (BOUND / 8) as usize)).unwrap();
    // The rest of a frame that does not come.
    let mut unfinished = let_in(&mut daemon, "unfinished");
    unfinished.write_all(&(1_u32 << 20).to_le_bytes()).unwrap();
    unfinished.write_all(&vec![0; 1 << 19]).unwrap();
    let mut more = let_in(&mut daemon, "more");
    more.write_all(&describe(1, (BOUND / 8) as usize)).unwrap();
    let closed = daemon.closed();
    assert_eq!(closed, CloseReason::Held { limit: BOUND });
    assert!(closed.to_string().contains("held_bytes_max (4194304)"), "{closed}");
    drop(unfinished);
    assert!(matches!(daemon.closed(), CloseReason::Io(_)));
    // What is over holds nothing: there is room again.
    let mut again = let_in(&mut daemon, "again");
    again.write_all(&describe(1, (BOUND / 16) as usize)).unwrap();
    let register = ToDaemon::Register(Box::new(kit::registration(Epoch(2), vec![])));
    again.write_all(&encode(&register, 4096).unwrap()).unwrap();
    let closed = daemon.closed().to_string();
    assert!(closed.ends_with("described and not claimed"), "{closed}");
}

#[test]
fn a_socket_that_nobody_answers_at_is_replaced_and_nothing_else() {
    let folder = std::env::temp_dir().join(format!("splitcore-replaced-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, left, link) = (folder.join("file"), folder.join("left"), folder.join("link"));
    std::fs::write(&file, "precious").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bind = |path: &std::path::Path| runtime.block_on(Listener::bind(&Address::Unix(path.to_owned())));
    for path in [&file, &link, &folder] {
        let error = bind(path).unwrap_err().to_string();
        assert_eq!(error, "a file that is no socket is there", "{path:?}");
    }
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "precious");
    let here = bind(&left).unwrap();
    assert!(bind(&left).is_err(), "somebody answers there");
    drop(here);
    std::fs::remove_dir_all(&folder).unwrap();
}
