//! Workers in session with each other over real sockets: order, breaks, strangers, and who is gone.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod kit;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use splitcore_core::id::MachineId;
use splitcore_core::kv::Dtype;
use splitcore_core::leg::Peer;
use splitcore_wire::address::Address;
use splitcore_wire::auth::{Key, Party, Secret, prove};
use splitcore_wire::backoff::Backoff;
use splitcore_wire::codec::{decode, encode};
use splitcore_wire::message::*;
use splitcore_wire::peers::{Peers, PeersEvent, PeersOptions};
use splitcore_wire::session::{CloseReason, Limits, PeerIdentity, Settings};

const WAIT: Duration = Duration::from_secs(20);
const MS: u64 = 1_000_000;

/// A worker as far as others see it.
struct Worker {
    peers: Peers,
    address: PeerAddress,
    heard: Receiver<PeersEvent>,
}

fn bind(listen: Address, settings: Settings) -> (Peers, Address) {
    Peers::bind(PeersOptions { listen, settings, backoff: Backoff::new(MS, 20 * MS, 7) }).unwrap()
}

fn anywhere() -> Address {
    Address::Tcp("127.0.0.1:0".to_owned())
}

impl Worker {
    fn start(machine: MachineId, settings: Settings) -> Self {
        Self::at(anywhere(), machine, settings, kit::peer_identity(machine))
    }

    fn at(listen: Address, machine: MachineId, settings: Settings, identity: PeerIdentity) -> Self {
        let (peers, address) = bind(listen, settings);
        let address = PeerAddress { machine, peer: address.to_string(), ..identity.address };
        let (sender, heard) = channel();
        let identity = PeerIdentity { address: address.clone(), ..identity };
        peers.begin(identity, move |event| drop(sender.send(event)));
        Self { peers, address, heard }
    }

    fn next(&self) -> PeersEvent {
        self.heard.recv_timeout(WAIT).unwrap()
    }

    /// The next event that is not about a connection that could not be had.
    fn said(&self) -> PeersEvent {
        std::iter::repeat_with(|| self.next())
            .find(|event| !matches!(event, PeersEvent::Lost { .. }))
            .unwrap()
    }

    fn lost(&self) -> CloseReason {
        match self.next() {
            PeersEvent::Lost { reason, .. } => reason,
            event => panic!("{event:?}"),
        }
    }

    fn grant(&self, to: &PeerAddress, number: u32) {
        let message = Peer::Grant { key: kit::key(1), blocks: number };
        self.peers.say(to, message, Some(kit::grant()));
    }
}

fn opened(machine: MachineId) -> PeersEvent {
    PeersEvent::Open { machine, address: None }
}

fn opened_by(worker: &Worker) -> PeersEvent {
    PeersEvent::Open { machine: worker.address.machine, address: Some(worker.address.clone()) }
}

fn granted(event: &PeersEvent) -> u32 {
    match event {
        PeersEvent::Message { message: Peer::Grant { blocks, .. }, grant: Some(_), .. } => *blocks,
        event => panic!("{event:?}"),
    }
}

fn tokens(from: u32) -> Tokens {
    Tokens { key: kit::key(1), from, ids: vec![504, from] }
}

/// Carries bytes between a worker and another, until it is cut.
struct Relay {
    address: String,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(address: &PeerAddress) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (to, kept) = (address.peer.clone(), Arc::clone(&streams));
        std::thread::spawn(move || {
            for here in listener.incoming().map_while(Result::ok) {
                let Ok(there) = TcpStream::connect(&to) else { continue };
                let mut kept = kept.lock().unwrap();
                for (mut from, mut to) in [(&here, &there), (&there, &here)]
                    .map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    kept.push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address: at, streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn two_workers_hand_over_to_each_other_in_two_sessions_each_in_order() {
    let here = Worker::start(kit::MACHINE, kit::settings());
    let there = Worker::start(kit::SOURCE, kit::settings());
    for number in 0..500 {
        here.grant(&there.address, number);
        there.grant(&here.address, 1000 + number);
    }
    let (mut at_there, mut at_here) = (Vec::new(), Vec::new());
    for (worker, of, heard) in [(&there, &here, &mut at_there), (&here, &there, &mut at_here)] {
        let mut opens = Vec::new();
        while heard.len() < 500 || opens.len() < 2 {
            match worker.next() {
                open @ PeersEvent::Open { .. } => opens.push(open),
                event => heard.push(granted(&event)),
            }
        }
        assert!(opens.contains(&opened(of.address.machine)) && opens.contains(&opened_by(of)), "{opens:?}");
    }
    assert!(at_there.into_iter().eq(0..500) && at_here.into_iter().eq(1000..1500));
    // What the source has to say goes by the session that the destination dialled.
    for from in 0..100 {
        there.peers.tokens(kit::MACHINE, tokens(from));
        there.peers.answer(kit::MACHINE, Peer::AbortAck { key: kit::key(u64::from(from)) });
    }
    for from in 0..100 {
        assert_eq!(here.next(), PeersEvent::Tokens { from: kit::SOURCE, tokens: tokens(from) });
        let message = Peer::AbortAck { key: kit::key(u64::from(from)) };
        assert_eq!(here.next(), PeersEvent::Message { from: kit::SOURCE, message, grant: None });
    }
}

#[test]
fn a_session_that_breaks_is_opened_again_by_the_destination_with_nothing_more_to_say() {
    let here = Worker::start(kit::MACHINE, kit::settings());
    let there = Worker::start(kit::SOURCE, kit::settings());
    let relay = Relay::to(&there.address);
    let to = PeerAddress { peer: relay.address.clone(), ..there.address.clone() };
    here.grant(&to, 0);
    for round in 0..5 {
        assert_eq!(here.next(), opened(kit::SOURCE));
        assert_eq!(there.next(), opened_by(&here));
        if round == 0 {
            assert_eq!(granted(&there.next()), 0);
        }
        relay.cut();
        assert!(matches!(here.lost(), CloseReason::Io(_) | CloseReason::ClosedThere(_)));
    }
}

#[test]
fn what_is_said_while_sessions_break_comes_in_order_and_at_most_once() {
    let here = Worker::start(kit::MACHINE, kit::settings());
    let there = Worker::start(kit::SOURCE, kit::settings());
    let relay = Relay::to(&there.address);
    let to = PeerAddress { peer: relay.address.clone(), ..there.address.clone() };
    let mut last = None;
    for number in 0..3000_u32 {
        here.grant(&to, number);
        if number % 500 == 250 {
            // So that it is cut in the midst of a session.
            while last.is_none_or(|last| last + 400 < number) {
                last = next_grant(&there, last);
            }
            relay.cut();
        }
    }
    // The session may have been cut behind this: what was lost with it is said again.
    let limit = Instant::now() + WAIT;
    let mut again = 3000;
    while last.is_none_or(|last| last < 3000) {
        assert!(Instant::now() < limit, "after {last:?}");
        here.grant(&to, again);
        again += 1;
        last = next_grant(&there, last);
    }
}

/// The next grant, which is later than the last, or none before a session is opened.
fn next_grant(worker: &Worker, last: Option<u32>) -> Option<u32> {
    match worker.next() {
        PeersEvent::Open { .. } => last,
        event => {
            let number = granted(&event);
            assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
            Some(number)
        }
    }
}

/// A path in a folder of its own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("splitcore-peers-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_said_to_one_who_is_not_there_yet_waits_for_it() {
    let folder = Folder::new("waits");
    let at = Address::Unix(folder.0.join("peer.sock"));
    let here = Worker::start(kit::MACHINE, kit::settings());
    let to = PeerAddress { peer: at.to_string(), ..kit::address(kit::SOURCE) };
    (0..10).for_each(|number| here.grant(&to, number));
    for _ in 0..3 {
        assert!(matches!(here.lost(), CloseReason::Io(_)));
    }
    let there = Worker::at(at, kit::SOURCE, kit::settings(), kit::peer_identity(kit::SOURCE));
    assert_eq!(there.next(), opened_by(&here));
    assert!((0..10).all(|number| granted(&there.next()) == number));
    assert_eq!(here.said(), opened(kit::SOURCE));
}

#[test]
fn nobody_is_let_in_before_the_worker_knows_which_machine_it_is() {
    let (peers, address) = bind(anywhere(), kit::settings());
    let here = Worker::start(kit::MACHINE, kit::settings());
    let to = PeerAddress { peer: address.to_string(), ..kit::address(kit::SOURCE) };
    here.grant(&to, 5);
    let (sender, heard) = channel();
    peers.begin(kit::peer_identity(kit::SOURCE), move |event| drop(sender.send(event)));
    peers.begin(kit::peer_identity(kit::MACHINE), |event| panic!("a second beginning: {event:?}"));
    assert_eq!(heard.recv_timeout(WAIT).unwrap(), opened_by(&here));
    assert_eq!(granted(&heard.recv_timeout(WAIT).unwrap()), 5);
    assert_eq!(here.said(), opened(kit::SOURCE));
}

#[test]
fn a_machine_that_was_replaced_is_told_of_and_not_dialled_any_more() {
    let folder = Folder::new("replaced");
    let at = || Address::Unix(folder.0.join("peer.sock"));
    let here = Worker::start(kit::MACHINE, kit::settings());
    let there = Worker::at(at(), kit::SOURCE, kit::settings(), kit::peer_identity(kit::SOURCE));
    here.grant(&there.address, 0);
    assert_eq!(here.next(), opened(kit::SOURCE));
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&here), 0));
    drop(there);
    assert_eq!(here.lost(), CloseReason::ClosedThere("the worker ends".to_owned()));
    std::fs::remove_file(folder.0.join("peer.sock")).unwrap();
    let later = MachineId { incarnation: kit::SOURCE.incarnation + 1, ..kit::SOURCE };
    let there = Worker::at(at(), later, kit::settings(), kit::peer_identity(later));
    assert_eq!(here.said(), PeersEvent::Replaced { machine: kit::SOURCE });
    here.grant(&there.address, 1);
    assert_eq!(here.next(), opened(later), "and nothing between");
    // Whoever looked for the one before has opened a session as well, and ended it at once.
    let grant = std::iter::repeat_with(|| next_grant(&there, None)).take(3).flatten().next();
    assert_eq!(grant, Some(1));
}

#[test]
fn one_with_another_secret_or_layout_is_refused_and_disturbs_nobody() {
    let there = Worker::start(kit::SOURCE, kit::settings());
    let here = Worker::start(kit::MACHINE, kit::settings());
    here.grant(&there.address, 0);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&here), 0));
    let third = MachineId { index: 3, incarnation: 1 };
    let secret = Some(Secret::new(b"another"));
    let stranger = Worker::start(third, Settings { secret, ..kit::settings() });
    stranger.grant(&there.address, 1);
    let reason = stranger.lost();
    assert!(matches!(&reason, CloseReason::RefusedThere(refusal) if refusal.field == "proof"), "{reason}");
    let none = Worker::start(third, Settings { secret: None, ..kit::settings() });
    none.grant(&there.address, 1);
    let reason = none.lost();
    assert!(matches!(&reason, CloseReason::Refused(refusal) if refusal.field == "secret"), "{reason}");
    let mut identity = kit::peer_identity(third);
    identity.layout.dtype = Dtype::Bf16;
    let other = Worker::at(anywhere(), third, kit::settings(), identity);
    other.grant(&there.address, 1);
    let reason = other.lost();
    assert!(
        matches!(&reason, CloseReason::RefusedThere(refusal) if refusal.field == "layout.dtype"),
        "{reason}"
    );
    here.grant(&there.address, 2);
    assert_eq!(granted(&there.next()), 2, "of the others nothing was heard");
}

#[test]
fn garbage_ends_its_own_connection_alone() {
    let there = Worker::start(kit::SOURCE, kit::settings());
    let here = Worker::start(kit::MACHINE, kit::settings());
    here.grant(&there.address, 0);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&here), 0));
    let early =
        encode(&ToPeer::Peer { message: Peer::Landed { key: kit::key(1) }, grant: None }, 4096).unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x03\0\0\0abc", b"\0\0\0\0", &[0xff; 4096], &early] {
        let mut stream = TcpStream::connect(&there.address.peer).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.write_all(garbage).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert!(said.windows(5).any(|window| window == b"close"), "{said:?}");
    }
    // One that says nothing and stays is nobody's trouble either.
    let _silent = TcpStream::connect(&there.address.peer).unwrap();
    here.grant(&there.address, 1);
    assert_eq!(granted(&there.next()), 1);
}

#[test]
fn a_second_session_of_a_machine_takes_the_place_of_the_first() {
    let there = Worker::start(kit::SOURCE, kit::settings());
    let first = Worker::start(kit::MACHINE, kit::settings());
    first.grant(&there.address, 0);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&first), 0));
    let second = Worker::start(kit::MACHINE, kit::settings());
    second.grant(&there.address, 1);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&second), 1));
    let open = first.next();
    assert_eq!(open, opened(kit::SOURCE));
    let reason = first.lost();
    assert_eq!(reason.to_string(), "closed by the other side: the same machine has opened another session");
}

#[test]
fn one_who_is_gone_has_no_session_until_it_is_spoken_to_again() {
    let here = Worker::start(kit::MACHINE, kit::settings());
    let there = Worker::start(kit::SOURCE, kit::settings());
    here.grant(&there.address, 0);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&here), 0));
    assert_eq!(here.next(), opened(kit::SOURCE));
    here.peers.gone(kit::SOURCE);
    here.grant(&there.address, 1);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&here), 1));
    assert_eq!(here.next(), opened(kit::SOURCE), "of the session that was ended nothing is told");
    let nowhere = PeerAddress { peer: String::new(), ..kit::address(MachineId { index: 9, incarnation: 1 }) };
    here.grant(&nowhere, 2);
    assert_eq!(here.lost().to_string(), "address \"\": expected host:port or unix:/path");
}

fn hear(stream: &mut TcpStream) -> Option<ToPeer> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let mut body = vec![0; u32::from_le_bytes(header) as usize];
    stream.read_exact(&mut body).ok()?;
    decode(&body).ok()
}

/// Says it, as one that hears what is answered.
fn tell(stream: &mut TcpStream, message: &ToPeer) {
    let _ = stream.write_all(&encode(message, 1 << 20).unwrap());
}

/// A source by hand, which lets the next one in and says nothing more.
fn silent_source(limits: Limits) -> (PeerAddress, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address =
        PeerAddress { peer: listener.local_addr().unwrap().to_string(), ..kit::address(kit::SOURCE) };
    let Limits { ping_interval_ns, silence_limit_ns, .. } = limits;
    let of = listener.try_clone().unwrap();
    let secret = address.key.with(None);
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        for mut stream in of.incoming().map_while(Result::ok) {
            tell(&mut stream, &ToPeer::Challenge(Challenge { secret: false, ..kit::challenge() }));
            let Some(ToPeer::Prove(shown)) = hear(&mut stream) else { continue };
            let proof = |name| prove(&secret, Party::Source, &kit::CHALLENGE, &shown.nonce, name);
            tell(&mut stream, &ToPeer::Proved { proof: proof("") });
            let Some(ToPeer::Hello(_)) = hear(&mut stream) else { continue };
            let proof = proof("0.5 to 2.7");
            let welcome = PeerWelcome { ping_interval_ns, silence_limit_ns, proof, ..kit::peer_welcome() };
            tell(&mut stream, &ToPeer::Welcome(welcome));
            streams.push(stream);
        }
    });
    (address, listener)
}

#[test]
fn strangers_learn_nothing_and_keep_nobody_out() {
    let there = Worker::start(kit::SOURCE, kit::settings());
    let here = Worker::start(kit::MACHINE, kit::settings());
    here.grant(&there.address, 0);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&here), 0));
    // The honest machine's name, its address and all that is public of it, without the key; as any other machine, too.
    for machine in [kit::MACHINE, kit::SOURCE, MachineId { index: 9, incarnation: 9 }] {
        let mut stream = TcpStream::connect(&there.address.peer).unwrap();
        let Some(ToPeer::Challenge(challenge)) = hear(&mut stream) else { panic!("no challenge") };
        let guess = Key::random().unwrap();
        let proof = prove(&guess.with(None), Party::Destination, &challenge.nonce, &kit::NONCE, "");
        let (key, nonce) = (there.address.key.name(), kit::NONCE);
        tell(&mut stream, &ToPeer::Prove(PeerProof { key, nonce, proof }));
        let address = kit::address(machine);
        tell(&mut stream, &ToPeer::Hello(Box::new(PeerHello { address, ..kit::peer_hello() })));
        let Some(ToPeer::Refused(refusal)) = hear(&mut stream) else { panic!("let in") };
        assert_eq!(refusal, Refusal::new("proof", "the same secret", "a proof by another"));
    }
    // More of them than there is room for, all silent: the oldest are let go, and one who may come in does.
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| {
            let stream = TcpStream::connect(&there.address.peer).unwrap();
            stream.set_read_timeout(Some(WAIT)).unwrap();
            stream
        })
        .collect();
    let third = Worker::start(MachineId { index: 3, incarnation: 1 }, kit::settings());
    third.grant(&there.address, 1);
    assert_eq!((there.next(), granted(&there.next())), (opened_by(&third), 1));
    for mut stream in &silent[..200 - 64] {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 200, "{} bytes for a stranger", said.len());
    }
    here.grant(&there.address, 2);
    assert_eq!(granted(&there.next()), 2, "who is in stays in");
}

#[test]
fn a_source_that_falls_silent_or_does_not_read_is_dialled_again() {
    let limits = Limits { ping_interval_ns: 10 * MS, silence_limit_ns: 100 * MS, ..Limits::default() };
    let (source, _listener) = silent_source(limits);
    let here = Worker::start(kit::MACHINE, Settings { secret: None, ..kit::settings() });
    here.grant(&source, 0);
    for _ in 0..2 {
        assert_eq!(here.next(), opened(kit::SOURCE));
        assert_eq!(here.lost().to_string(), "nothing heard within silence_limit (100 ms)");
    }
    let limits = Limits { queue_frames_max: 64, ..Limits::default() };
    let (source, _listener) = silent_source(limits);
    let here = Worker::start(kit::MACHINE, Settings { secret: None, limits, ..kit::settings() });
    here.grant(&source, 0);
    assert_eq!(here.next(), opened(kit::SOURCE));
    (0..100_000).for_each(|number| here.grant(&source, number));
    assert_eq!(here.lost().to_string(), "more than queue_frames_max (64) frames wait to be read");
    assert_eq!(here.next(), opened(kit::SOURCE));
}
