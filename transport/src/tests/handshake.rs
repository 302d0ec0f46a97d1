//! Handshake messages from peers that are broken, slow or hostile, and what must agree.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;
use splitcore_core::kv::{Dtype, Shard, Values};
use splitcore_secret::Key;

use super::kit::{HERE, THERE, shape};
use crate::error::HandshakeError;
use crate::handshake::{
    Answer, Backend, Bounded, Endpoint, Hello, Incarnation, Offer, PROTOCOL, choose, receive, send,
};

const LONG: Duration = Duration::from_secs(20);
const ALL: [Backend; 4] = [Backend::CudaIpc, Backend::Shm, Backend::Nixl, Backend::Tcp];

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        backend: Backend::Shm,
        incarnation: THERE,
        expects: HERE,
        host: "here".to_owned(),
        model: "m".to_owned(),
        shape: shape(2, 4),
        checksums: true,
    }
}

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

/// What a receiver makes of these bytes, after which the peer closes.
fn hear(bytes: &[u8]) -> Result<Hello, HandshakeError> {
    let (mut ours, mut theirs) = pair();
    theirs.write_all(bytes).unwrap();
    drop(theirs);
    receive(&mut ours, LONG)
}

fn frame(message: &Hello) -> Vec<u8> {
    let (mut ours, mut theirs) = pair();
    send(&mut theirs, message, LONG).unwrap();
    drop(theirs);
    let mut bytes = Vec::new();
    ours.read_to_end(&mut bytes).unwrap();
    bytes
}

fn marked(length: u32, body: &[u8]) -> Vec<u8> {
    [b"splitkv\n".as_slice(), &length.to_le_bytes(), body].concat()
}

#[test]
fn what_is_sent_is_what_is_received() {
    assert_eq!(hear(&frame(&hello())), Ok(hello()));
    let (mut ours, mut theirs) = pair();
    let answer = Answer::Refused("no".to_owned());
    send(&mut theirs, &answer, LONG).unwrap();
    assert_eq!(receive::<Answer>(&mut ours, LONG), Ok(answer));
}

#[test]
fn a_message_that_is_cut_off_anywhere_is_no_message() {
    let whole = frame(&hello());
    for len in 0..whole.len() {
        assert!(matches!(hear(&whole[..len]), Err(HandshakeError::Io { .. })), "{len} bytes");
    }
}

#[test]
fn lengths_that_no_message_has_are_refused_unread() {
    for length in [u32::MAX, 1 << 31, 4 << 20, (64 << 10) + 1] {
        let refused = hear(&marked(length, b"{}")).unwrap_err();
        assert!(refused.to_string().contains(&length.to_string()), "{refused}");
        assert!(matches!(refused, HandshakeError::Malformed(_)));
    }
    // A length is no reason to wait for ever either: the peer has closed.
    assert!(matches!(hear(&marked(64 << 10, b"{}")), Err(HandshakeError::Io { .. })));
    assert!(matches!(hear(&marked(0, b"")), Err(HandshakeError::Malformed(_))));
}

#[test]
fn a_message_that_the_peer_would_not_take_is_not_sent() {
    let (_ours, mut theirs) = pair();
    let huge = Hello { model: "m".repeat(64 << 10), ..hello() };
    assert!(matches!(send(&mut theirs, &huge, LONG), Err(HandshakeError::Malformed(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_is_told_from_messages(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(hear(&bytes).is_err());
        prop_assert!(hear(&marked(bytes.len() as u32, &bytes)).is_err());
    }

    #[test]
    fn a_flipped_byte_is_never_a_panic(at in 0..400_usize, with in 1..=255_u8) {
        let mut bytes = frame(&hello());
        let at = at % bytes.len();
        bytes[at] ^= with;
        // A longer length ends with the peer's; other bytes may still say something.
        if let Ok(found) = hear(&bytes) {
            let _ = found.check(HERE, "m", &shape(2, 4), &ALL, "here");
        }
    }
}

/// A peer that gives or takes a byte at a time, without end and each a little later.
struct Drip {
    at: usize,
    bounds: Mutex<Vec<Duration>>,
}

/// Time goes by, of which the caller has less with each byte.
fn take_time() {
    std::thread::sleep(Duration::from_micros(500));
}

impl Drip {
    fn new() -> Self {
        Self { at: 0, bounds: Mutex::default() }
    }

    fn bounds_fall(&self) -> bool {
        self.bounds.lock().unwrap().is_sorted_by(|one, next| one > next)
    }
}

impl Read for Drip {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        take_time();
        let bytes = marked(4 << 20, b"");
        into[0] = bytes.get(self.at).copied().unwrap_or(b' ');
        self.at += 1;
        Ok(1)
    }
}

impl Write for Drip {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        take_time();
        Ok(1)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Bounded for Drip {
    fn bound(&self, within: Option<Duration>) -> std::io::Result<()> {
        let within = within.ok_or(ErrorKind::InvalidInput)?;
        self.bounds.lock().unwrap().push(within);
        if within.is_zero() { Err(ErrorKind::InvalidInput.into()) } else { Ok(()) }
    }
}

#[test]
fn a_peer_that_sends_or_takes_byte_by_byte_has_no_more_time() {
    let within = Duration::from_millis(30);
    let mut drip = Drip::new();
    assert_eq!(receive::<Answer>(&mut drip, within), Err(HandshakeError::Timeout(within)));
    assert!(drip.bounds_fall());
    let mut drip = Drip::new();
    let long = Hello { model: "m".repeat(60 << 10), ..hello() };
    assert_eq!(send(&mut drip, &long, within), Err(HandshakeError::Timeout(within)));
    assert!(drip.bounds_fall());
}

#[test]
fn no_time_and_endless_time_are_times_too() {
    let (mut ours, mut theirs) = pair();
    let none = HandshakeError::Timeout(Duration::ZERO);
    assert_eq!(receive::<Hello>(&mut ours, Duration::ZERO), Err(none.clone()));
    assert_eq!(send(&mut theirs, &hello(), Duration::ZERO), Err(none));
    send(&mut theirs, &hello(), Duration::MAX).unwrap();
    assert_eq!(receive(&mut ours, Duration::MAX), Ok(hello()));
}

#[test]
fn a_peer_that_says_nothing_is_waited_for_as_long_as_was_said() {
    let (mut ours, _theirs) = pair();
    let within = Duration::from_millis(20);
    assert_eq!(receive::<Hello>(&mut ours, within), Err(HandshakeError::Timeout(within)));
}

#[test]
fn every_field_that_must_agree_is_named_when_it_does_not() {
    let with_layout = |change: fn(&mut splitcore_core::kv::KvLayout)| {
        let mut other = hello();
        change(&mut other.shape.layout);
        other
    };
    let cases = [
        ("protocol", Hello { protocol: PROTOCOL + 1, ..hello() }),
        ("incarnation", Hello { expects: THERE, ..hello() }),
        ("model", Hello { model: "other".to_owned(), ..hello() }),
        ("layers", with_layout(|layout| layout.layers = 3)),
        ("values", with_layout(|layout| layout.values = Values::Latent { dim: 4 })),
        ("head_dim", with_layout(|layout| layout.values = Values::Heads { heads: 1, head_dim: 8 })),
        ("dtype", with_layout(|layout| layout.dtype = Dtype::Bf16)),
        ("backend", Hello { backend: Backend::Nixl, ..hello() }),
        ("host", Hello { host: "there".to_owned(), ..hello() }),
    ];
    let check = |hello: &Hello| hello.check(HERE, "m", &shape(2, 9), &[Backend::Shm, Backend::Tcp], "here");
    assert_eq!(check(&hello()), Ok(()), "pools may differ in size");
    let remote = Hello { backend: Backend::Tcp, host: "there".to_owned(), ..hello() };
    assert_eq!(check(&remote), Ok(()), "a stream goes between hosts");
    for (name, hello) in cases {
        match check(&hello) {
            Err(HandshakeError::Mismatch { field, ours, theirs }) => {
                assert_eq!(field, name);
                assert_ne!(ours, theirs);
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let impossible = [
        with_layout(|layout| layout.layers = 0),
        with_layout(|layout| layout.shard = Shard { rank: 1, size: 1 }),
        with_layout(|layout| {
            // More bytes than 64 bits can count.
            *layout = splitcore_core::kv::KvLayout {
                layers: u16::MAX,
                values: Values::Heads { heads: u16::MAX, head_dim: u16::MAX },
                dtype: Dtype::F32,
                block_tokens: u16::MAX,
                ..*layout
            };
        }),
    ];
    for hello in impossible {
        assert!(matches!(check(&hello), Err(HandshakeError::Malformed(_))), "{:?}", hello.shape);
    }
}

fn subset(bits: u8) -> Vec<Backend> {
    ALL.into_iter()
        .enumerate()
        .filter(|(index, _)| bits >> index & 1 == 1)
        .map(|(_, backend)| backend)
        .collect()
}

#[test]
fn the_backend_is_the_first_that_both_have_and_that_reaches() {
    for bits in 0..1_u16 << 12 {
        let (ours, theirs, ways) = (subset(bits as u8 & 15), subset((bits >> 4) as u8 & 15), bits >> 8);
        let same_host = ways & 1 == 1;
        let to = Endpoint {
            incarnation: Incarnation(7),
            host: "here".to_owned(),
            unix: (ways & 2 != 0).then(|| "/run/kv.sock".into()),
            tcp: (ways & 4 != 0).then(|| ([127, 0, 0, 1], 9).into()),
            backends: theirs.clone(),
            device: None,
            nixl: (ways & 8 != 0).then(|| "agent".to_owned()),
            key: Key::default(),
        };
        let host = if same_host { "here" } else { "there" };
        let offer = Offer { host: host.to_owned(), backends: ours.clone() };
        let reaches = |backend: &Backend| match backend {
            Backend::CudaIpc | Backend::Shm => same_host && to.unix.is_some(),
            Backend::Nixl => to.nixl.is_some(),
            Backend::Tcp => to.tcp.is_some(),
        };
        let usable =
            |backend: &Backend| ours.contains(backend) && theirs.contains(backend) && reaches(backend);
        assert_eq!(choose(&offer, &to, None).ok(), ALL.into_iter().find(usable), "{offer:?} {to:?}");
        for forced in ALL {
            let chosen = choose(&offer, &to, Some(forced));
            assert_eq!(chosen.clone().ok(), usable(&forced).then_some(forced));
            if let Err(error) = chosen {
                assert!(error.to_string().contains(&forced.to_string()), "{error}");
            }
        }
    }
}
