//! The worker port with TLS: who gets in, who does not and is told why, and that nobody else notices.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod kit;

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use proptest::prelude::*;
use splitcore_core::leg::{Command, Notice};
use splitcore_wire::address::Address;
use splitcore_wire::link::{LinkEvent, WorkerLink};
use splitcore_wire::listen::{Listener, What};
use splitcore_wire::message::{Assigned, Tokens};
use splitcore_wire::session::{CloseReason, DaemonEvent, Limits, Settings, WorkerEvent};
use splitcore_wire::tls::{Tls, TlsError};

use crate::kit::certificates::Certificates;
use crate::kit::daemon::{Daemon, WAIT, link, lost, next};

const MS: u64 = 1_000_000;

fn secure(certificates: &Certificates, shows: &str, settings: Settings) -> Daemon {
    Daemon::bind(settings, |listener| listener.with_tls(certificates.server(shows)))
}

fn trusting(certificates: &Certificates, whom: &str, daemon: &Daemon) -> Tls {
    Tls::new(&certificates.file(whom), None, &daemon.address).unwrap()
}

fn within(handshake_limit_ns: u64) -> Settings {
    Settings { limits: Limits { handshake_limit_ns, ..Limits::default() }, ..kit::settings() }
}

/// Until the other side hangs up, be it gently or not.
fn hung_up(mut stream: TcpStream) {
    let ended = stream.read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
}

fn command(link: &WorkerLink) -> Box<Assigned> {
    match next(link) {
        LinkEvent::Session(WorkerEvent::Command { assigned, .. }) => assigned,
        event => panic!("{event:?}"),
    }
}

fn tokens(daemon: &mut Daemon) -> Tokens {
    match daemon.next() {
        What::Event(DaemonEvent::Tokens(tokens)) => tokens,
        what => panic!("{what:?}"),
    }
}

/// A command with a prompt of so many tokens, each of five bytes.
fn long(seq: u64, length: u32) -> Assigned {
    let mut assigned = kit::compute(seq, seq);
    assigned.descriptor = Some(kit::descriptor((0..length).map(|at| at + 70_000).collect()));
    if let Command::Compute { work, .. } = &mut assigned.command {
        work.prompt_tokens = length;
    }
    assigned
}

#[test]
fn a_worker_that_trusts_its_daemon_joins_and_frames_of_any_length_go_both_ways() {
    let certificates = Certificates::new();
    for (shows, trusted) in [("daemon", "authority"), ("own", "own")] {
        let mut daemon = secure(&certificates, shows, kit::settings());
        let link = link(&daemon.address, Some(trusting(&certificates, trusted, &daemon)), kit::settings());
        let handle = daemon.establish(&link);
        for (seq, length) in [(1, 3), (2, 20_000), (3, 700_000), (4, 1)] {
            let assigned = long(seq, length);
            let ids = assigned.descriptor.as_ref().unwrap().prompt.clone();
            handle.command(assigned.clone());
            assert_eq!(*command(&link), assigned);
            let said = Tokens { key: kit::key(seq), from: 0, ids };
            assert!(link.tokens(said.clone()));
            assert_eq!(tokens(&mut daemon), said);
        }
        link.sever();
        assert!(matches!(lost(&link), CloseReason::Io(_) | CloseReason::Closed(_)));
        assert!(matches!(daemon.closed(), CloseReason::Io(_)));
        let handle = daemon.establish(&link);
        handle.close("enough");
        assert_eq!(lost(&link), CloseReason::ClosedThere("enough".to_owned()));
        assert_eq!(daemon.closed(), CloseReason::Closed("enough".to_owned()));
        daemon.establish(&link);
        link.close("the worker has enough");
        assert_eq!(daemon.closed(), CloseReason::ClosedThere("the worker has enough".to_owned()));
    }
}

#[test]
fn garbage_ends_the_connection_it_comes_on_and_no_other() {
    let certificates = Certificates::new();
    let mut daemon = secure(&certificates, "daemon", kit::settings());
    let link = link(&daemon.address, Some(trusting(&certificates, "authority", &daemon)), kit::settings());
    let handle = daemon.establish(&link);
    for garbage in [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], b"\x03\0\0\0abc", &[0xff; 4096]] {
        let mut stream = daemon.connect();
        stream.write_all(garbage).unwrap();
        hung_up(stream);
        assert_eq!(
            daemon.closed().to_string(),
            "connection lost: TLS: what comes from the other side is no TLS"
        );
    }
    // A record that begins well.
    let mut stream = daemon.connect();
    stream.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 9]).unwrap();
    hung_up(stream);
    assert!(daemon.closed().to_string().starts_with("connection lost: TLS: "));
    // Those who hang up before they have said anything, or all of it.
    for begun in [&b""[..], &[22, 3, 1, 2]] {
        let mut stream = daemon.connect();
        stream.write_all(begun).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        hung_up(stream);
        assert_eq!(daemon.closed(), CloseReason::Io("end of stream".to_owned()));
    }
    handle.command(kit::compute(1, 1));
    assert_eq!(*command(&link), kit::compute(1, 1));
    assert!(link.notice(Notice::Gone { key: kit::key(1) }));
    assert!(matches!(daemon.next(), What::Event(DaemonEvent::Notice(_))));
}

/// Whom a worker trusts, what it is told, and what its daemon is told.
type Case<'a> = (&'a dyn Fn(&Daemon) -> Tls, &'a str, &'a str);

#[test]
fn a_certificate_that_does_not_fit_is_one_clear_reason_and_the_worker_tries_on() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let elsewhere = |daemon: &Daemon| {
        Tls::new(&certificates.file("authority"), Some("elsewhere.test"), &daemon.address).unwrap()
    };
    let nobody = "TLS: the daemon's certificate is from nobody who is trusted";
    let name = "TLS: the daemon's certificate: certificate not valid for name \"elsewhere.test\"; certificate is only";
    let distrust = "TLS: the other side does not trust this certificate";
    // An authority of the same name as the right one, and a certificate that no authority has made.
    let cases: [Case<'_>; 3] = [
        (&|daemon| trusting(&others, "authority", daemon), nobody, "TLS: received fatal alert: DecryptError"),
        (&|daemon| trusting(&others, "own", daemon), nobody, distrust),
        (&elsewhere, name, distrust),
    ];
    for (trusts, here, there) in cases {
        let mut daemon = secure(&certificates, "daemon", kit::settings());
        let right = trusting(&certificates, "authority", &daemon);
        let right = link(&daemon.address, Some(right), kit::settings());
        let handle = daemon.establish(&right);
        let wrong = link(&daemon.address, Some(trusts(&daemon)), kit::settings());
        for _ in 0..3 {
            let told = lost(&wrong).to_string();
            assert!(told.starts_with(&format!("connection lost: {here}")), "{told}");
            assert_eq!(daemon.closed().to_string(), format!("connection lost: {there}"));
        }
        handle.command(kit::compute(1, 1));
        assert_eq!(*command(&right), kit::compute(1, 1));
    }
    let careless = secure(&certificates, "careless", kit::settings());
    let link = link(&careless.address, Some(trusting(&certificates, "careless", &careless)), kit::settings());
    let told = lost(&link).to_string();
    assert!(told.contains("TLS: the daemon's certificate is one of an authority (CA:TRUE)"), "{told}");
}

#[test]
fn one_side_with_tls_and_one_without_do_not_meet() {
    let certificates = Certificates::new();
    let plain = Daemon::start(kit::settings());
    let eager = link(&plain.address, Some(trusting(&certificates, "authority", &plain)), kit::settings());
    let told = "connection lost: TLS: what comes from the other side is no TLS";
    assert_eq!(lost(&eager).to_string(), told);
    let mut daemon = secure(&certificates, "daemon", within(50 * MS));
    let open = link(&daemon.address, None, within(50 * MS));
    // Each waits for the other to begin; whose time is up first is not said.
    assert!(matches!(lost(&open), CloseReason::Handshake { .. } | CloseReason::Io(_)));
    assert!(matches!(daemon.closed(), CloseReason::Handshake { .. } | CloseReason::Io(_)));
}

#[test]
fn a_handshake_that_stands_still_is_cut_and_holds_a_place_until_then() {
    let certificates = Certificates::new();
    let mut daemon = secure(&certificates, "daemon", within(50 * MS));
    for begun in [&b""[..], &[22, 3, 1, 2, 0, 1, 0]] {
        let mut stream = daemon.connect();
        stream.write_all(begun).unwrap();
        hung_up(stream);
        assert_eq!(daemon.closed(), CloseReason::Handshake { limit_ns: 50 * MS });
    }

    let limits = Limits { connections_max: 1, ..Limits::default() };
    let mut daemon = secure(&certificates, "daemon", Settings { limits, ..kit::settings() });
    let first = daemon.connect();
    hung_up(daemon.connect());
    drop(first);
    assert_eq!(daemon.closed(), CloseReason::Io("end of stream".to_owned()));
    let link = link(&daemon.address, Some(trusting(&certificates, "authority", &daemon)), kit::settings());
    daemon.hello();
    drop(link);
}

/// Takes one connection and says nothing on it.
fn mute() -> (Address, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    (address, std::thread::spawn(move || listener.accept().unwrap().0))
}

#[test]
fn a_worker_does_not_wait_for_a_daemon_that_is_mute_and_can_be_ended_meanwhile() {
    let certificates = Certificates::new();
    let ca = certificates.file("authority");
    let (address, _taken) = mute();
    let waits = link(&address, Some(Tls::new(&ca, None, &address).unwrap()), within(50 * MS));
    assert_eq!(lost(&waits), CloseReason::Handshake { limit_ns: 50 * MS });
    drop(waits);

    let (address, taken) = mute();
    let waits = link(&address, Some(Tls::new(&ca, None, &address).unwrap()), within(3_600_000 * MS));
    let mut taken = taken.join().unwrap();
    taken.set_read_timeout(Some(WAIT)).unwrap();
    taken.read_exact(&mut [0; 5]).unwrap();
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        drop(waits);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(WAIT).expect("a link ends when it is dropped");
}

#[test]
fn whom_to_trust_must_be_a_file_of_certificates_and_a_name_that_one_can_have() {
    let certificates = Certificates::new();
    let at: Address = "127.0.0.1:1".parse().unwrap();
    let wrong = |file, name, at: &Address| Tls::new(file, name, at).unwrap_err();
    let ca = certificates.file("authority");
    let missing = certificates.file("missing");
    assert!(matches!(wrong(&missing, None, &at), TlsError::File { .. }));
    assert!(wrong(&missing, None, &at).to_string().contains("missing.pem: "));
    let key = certificates.key("authority");
    let told = wrong(&key, None, &at).to_string();
    assert!(told.ends_with("authority.key: no certificate in it"), "{told}");
    let broken = certificates.file("broken");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    assert!(matches!(wrong(&broken, None, &at), TlsError::Certificate { number: 1, .. }));
    assert_eq!(
        wrong(&ca, Some("not a name"), &at).to_string(),
        "not a name: neither a host's name nor its address"
    );
    let unix = "unix:/run/splitcore".parse().unwrap();
    assert_eq!(wrong(&ca, None, &unix).to_string(), "unix:/run/splitcore: TLS is for host:port");
    for host in ["[::1]:7600", "localhost:7600", "10.0.0.1:7600"] {
        Tls::new(&ca, None, &host.parse().unwrap()).unwrap();
    }
}

#[test]
fn a_socket_of_the_file_system_never_speaks_tls() {
    let certificates = Certificates::new();
    let path = certificates.file("workers");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(Listener::bind(&Address::Unix(path))).unwrap();
    assert!(!listener.with_tls(certificates.server("daemon")).is_tls());
    let at = Address::Tcp("127.0.0.1:0".to_owned());
    let listener = runtime.block_on(Listener::bind(&at)).unwrap();
    assert!(listener.with_tls(certificates.server("daemon")).is_tls());
}

/// Stands between the two sides and hands on what it reads in pieces of these sizes, again and again.
fn between(daemon: &Daemon, sizes: &[usize]) -> (Address, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let (there, sizes) = (daemon.connect(), sizes.to_vec());
    let run = move || {
        let here = listener.accept().unwrap().0;
        let ways = [(here.try_clone().unwrap(), there.try_clone().unwrap()), (there, here)];
        let pass = |(mut from, mut to): (TcpStream, TcpStream)| {
            let sizes = sizes.clone();
            std::thread::spawn(move || {
                to.set_nodelay(true).unwrap();
                let mut bytes = [0; 512];
                for size in sizes.into_iter().cycle() {
                    match from.read(&mut bytes[..size]) {
                        Ok(read) if read > 0 && to.write_all(&bytes[..read]).is_ok() => {}
                        _ => break,
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            })
        };
        ways.map(pass).into_iter().for_each(|way| way.join().unwrap());
    };
    (address, std::thread::spawn(run))
}

#[test]
fn long_frames_reach_one_who_reads_slowly_to_their_last_byte() {
    let certificates = Certificates::new();
    let hour = 3_600_000 * MS;
    let limits = Limits { ping_interval_ns: hour, silence_limit_ns: 2 * hour, ..Limits::default() };
    let mut daemon = secure(&certificates, "daemon", Settings { limits, ..kit::settings() });
    // No ping pushes on what is left behind, and the socket is full most of the time.
    let (address, proxy) = between(&daemon, &[512]);
    let tls = Tls::new(&certificates.file("authority"), None, &address).unwrap();
    let link = link(&address, Some(tls), kit::settings());
    let handle = daemon.establish(&link);
    for seq in 1..4 {
        handle.command(long(seq, 2_400_000));
        assert_eq!(*command(&link), long(seq, 2_400_000));
    }
    drop(link);
    proxy.join().unwrap();
}

#[test]
fn however_the_bytes_are_cut_the_messages_are_the_same() {
    let certificates = Certificates::new();
    let daemon = RefCell::new(secure(&certificates, "daemon", kit::settings()));
    let cases = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(10))
    };
    let sizes = proptest::collection::vec(prop_oneof![1..8_usize, 1..512_usize], 1..20);
    let lengths = proptest::collection::vec(0..3000_u32, 1..6);
    proptest!(cases, |(sizes in sizes, lengths in lengths)| {
        let daemon = &mut *daemon.borrow_mut();
        let (address, proxy) = between(daemon, &sizes);
        let tls = Tls::new(&certificates.file("authority"), None, &address).unwrap();
        let link = link(&address, Some(tls), kit::settings());
        let handle = daemon.establish(&link);
        for (seq, length) in (1..).zip(&lengths) {
            handle.command(kit::compute(seq, seq));
            assert!(link.tokens(Tokens { key: kit::key(seq), from: 0, ids: (0..*length).collect() }));
        }
        for (seq, length) in (1..).zip(&lengths) {
            assert_eq!(*command(&link), kit::compute(seq, seq));
            let said = Tokens { key: kit::key(seq), from: 0, ids: (0..*length).collect() };
            assert_eq!(tokens(daemon), said);
        }
        drop(link);
        proxy.join().unwrap();
        assert_eq!(daemon.closed(), CloseReason::ClosedThere("the worker ends".to_owned()));
    });
}
