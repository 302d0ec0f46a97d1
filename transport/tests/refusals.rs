//! What does not fit is refused with the reason, touches nothing, and troubles nobody else.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
#[path = "common/handshake.rs"]
mod handshake;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, Dtype, KvRange, PoolShape};
use splitcore_transport::{
    Arrival, Backend, ConnectOptions, Endpoint, HandshakeError, Incarnation, Key, Landing, ListenOptions,
    PeerState, Pool, Receiver, TransferError, boot_id, connect,
};

use common::{
    BOUND, Folder, MODEL, all_blocks, connect_by, ends, fill, open, plan, receiver, send_layer, small_shape,
    until, untouched, verify,
};
use handshake::{enter, let_in};

const SHAPE: fn() -> PoolShape = || small_shape(16);

fn pool() -> Arc<Pool> {
    Arc::new(Pool::shared(SHAPE()).unwrap())
}

fn options(backend: Backend) -> ConnectOptions {
    ConnectOptions { backend: Some(backend), within: BOUND, ..ConnectOptions::new(MODEL) }
}

/// Whoever comes now is served, and what was nobody's has stayed so.
fn still_serves(receiver: &Receiver, backend: Backend) {
    let (pool, me, shape) = (pool(), Incarnation::random().unwrap(), SHAPE());
    untouched(receiver.landing().pool(), &all_blocks(&shape));
    let link = connect_by(backend, &pool, me, receiver.endpoint());
    let table = [BlockId(3), BlockId(1)];
    fill(&pool, &table, 9);
    let grant = open(receiver, me, 1, &table);
    let plan = plan(&shape, &table, &shape, &table);
    link.begin(&grant).unwrap();
    for layer in 0..plan.layers() {
        send_layer(&*link, grant.key, &plan, layer, 1).unwrap();
        receiver.landing().wait_layer(grant.key, layer, BOUND).unwrap();
        verify(receiver.landing().pool(), &table, layer, 9).unwrap();
    }
    receiver.landing().release(grant.key).unwrap();
}

fn ranges_are_checked(backend: Backend) {
    let receiver = receiver(SHAPE(), 2);
    let landing = receiver.landing();
    let (pool, me) = (pool(), Incarnation::random().unwrap());
    let link = connect_by(backend, &pool, me, receiver.endpoint());
    let table = [BlockId(3), BlockId(1)];
    let grant = open(&receiver, me, 1, &table);
    let key = grant.key;
    link.begin(&grant).unwrap();
    let good = KvRange { from: BlockId(0), from_offset: 0, to: BlockId(3), to_offset: 0, bytes: 64 };
    let half = SHAPE().layout.layer_block_bytes();
    let refused = |what: &str, ranges: &[KvRange]| {
        let error = link.put(key, 0, ranges).expect_err(what);
        assert!(error.to_string().contains(what), "{error}, expected: {what}");
    };
    refused("a range of 0 bytes", &[good, KvRange { bytes: 0, ..good }]);
    refused("block 2 was not granted", &[good, KvRange { to: BlockId(2), ..good }]);
    refused("lie outside the pool", &[good, KvRange { to: BlockId(16), ..good }]);
    refused("lie outside the pool", &[good, KvRange { to: BlockId(u32::MAX), to_offset: u32::MAX, ..good }]);
    refused("lie outside the source pool", &[good, KvRange { from: BlockId(16), ..good }]);
    refused("lie outside the source pool", &[good, KvRange { from_offset: u32::MAX, ..good }]);
    refused("block 4 was not granted", &[good, KvRange { to_offset: 64, bytes: half, ..good }]);
    refused("touches layer 1", &[good, KvRange { to_offset: half, ..good }]);
    refused("written twice", &[good, KvRange { to_offset: 32, ..good }]);
    let all = KvRange { bytes: half, ..good };
    refused("of 4096", &[all, KvRange { to: BlockId(1), ..all }, KvRange { from: BlockId(5), ..good }]);
    assert!(matches!(link.put(key, 2, &[good]), Err(TransferError::NoSuchLayer { layers: 2, .. })));
    assert!(matches!(link.publish(key, 0, 16), Err(TransferError::Incomplete { bytes: 0, .. })));
    let other = landing.open(me, RequestId(2), vec![BlockId(5)], 64).unwrap();
    assert!(matches!(link.put(other.key, 0, &[good]), Err(TransferError::Unknown { .. })), "never begun");
    let foreign = splitcore_transport::Grant { receiver: me, ..other.clone() };
    assert!(matches!(link.begin(&foreign), Err(TransferError::Unknown { .. })), "another's grant");
    link.stop(key);
    assert_eq!(ends(&*link, &[key]).len(), 1);
    common::fenced(landing, key);
    landing.release(key).unwrap();
    drop(link);
    landing.stop(other.key).unwrap();
    common::fenced(landing, other.key);
    landing.release(other.key).unwrap();
    still_serves(&receiver, backend);
}

#[test]
fn a_put_over_shm_that_may_not_be_writes_nothing() {
    ranges_are_checked(Backend::Shm);
}

fn what_must_agree(backend: Backend) {
    let receiver = receiver(SHAPE(), 2);
    let to = receiver.endpoint();
    let me = Incarnation::random().unwrap();
    let refused = |pool: &Arc<Pool>, to: &Endpoint, model: &str, field: &str| {
        let options = ConnectOptions { model: model.to_owned(), ..options(backend) };
        let error = connect(pool, me, to, &options).err().expect(field);
        let HandshakeError::Refused(why) = &error else { panic!("{error}, expected {field}") };
        assert!(why.starts_with(&format!("{field}: ")), "{why}, expected {field}");
    };
    refused(&pool(), to, "another model", "model");
    refused(&pool(), &Endpoint { incarnation: me, ..to.clone() }, MODEL, "incarnation");
    let shaped = |change: fn(&mut PoolShape)| {
        let mut shape = SHAPE();
        change(&mut shape);
        Arc::new(Pool::shared(shape).unwrap())
    };
    refused(&shaped(|shape| shape.layout.layers = 3), to, MODEL, "layers");
    refused(&shaped(|shape| shape.layout.dtype = Dtype::F32), to, MODEL, "dtype");
    let heads = |shape: &mut PoolShape| {
        shape.layout.values = splitcore_core::kv::Values::Heads { heads: 2, head_dim: 32 };
    };
    refused(&shaped(heads), to, MODEL, "heads");
    still_serves(&receiver, backend);
}

#[test]
fn a_sender_over_shm_that_does_not_fit_is_told_which_field() {
    what_must_agree(Backend::Shm);
}

#[test]
fn a_pool_that_nobody_can_map_is_not_offered_to_be_mapped() {
    let shape = SHAPE();
    let mut memory = vec![0_u64; shape.bytes() as usize / 8].into_boxed_slice();
    let base = std::ptr::NonNull::new(memory.as_mut_ptr().cast()).unwrap();
    // SAFETY: the box is as long as that, and the pool keeps it.
    let borrowed = unsafe { Pool::borrowed(shape, base, shape.bytes() as usize, Box::new(memory)) };
    let receiver = Receiver::listen(
        Arc::new(borrowed.unwrap()),
        Incarnation::random().unwrap(),
        ListenOptions::new(MODEL),
    )
    .unwrap();
    let me = Incarnation::random().unwrap();
    let error = connect(&pool(), me, receiver.endpoint(), &options(Backend::Shm)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "no transport for this pair: shm is asked for, but the receiver has it not"
    );
}

fn hello(receiver: &Receiver, me: Incarnation) -> Value {
    json!({
        "protocol": splitcore_transport::PROTOCOL, "backend": "shm", "incarnation": me,
        "expects": receiver.endpoint().incarnation, "host": boot_id().unwrap(), "model": MODEL,
        "shape": SHAPE(), "checksums": false,
    })
}

fn frame(body: &[u8]) -> Vec<u8> {
    let mut frame = b"splitkv\n".to_vec();
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

fn called(receiver: &Receiver) -> UnixStream {
    let stream = UnixStream::connect(receiver.endpoint().unix.as_ref().unwrap()).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream
}

/// Says something; gives what the other says until it closes.
fn say(receiver: &Receiver, bytes: &[u8]) -> String {
    let mut stream = called(receiver);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        // It had not read all when it closed.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn what_is_no_hello_is_refused_and_its_connection_closed() {
    let receiver = receiver(SHAPE(), 2);
    let me = Incarnation::random().unwrap();
    assert!(say(&receiver, &[0xa5; 100]).contains("another protocol's"));
    let mut hostile = b"splitkv\n".to_vec();
    hostile.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(say(&receiver, &hostile).contains("a message of 4294967295 bytes"));
    assert!(say(&receiver, &frame(b"{\"protocol\": ")).contains("not a handshake"));
    assert!(say(&receiver, &frame(&[0xff; 64])).contains("not a handshake"));
    let refused = |change: fn(&mut Value)| {
        let mut other = hello(&receiver, me);
        change(&mut other);
        let answer = enter(&mut called(&receiver), receiver.endpoint(), &other);
        answer["refused"].as_str().unwrap().to_owned()
    };
    assert!(refused(|hello| hello["protocol"] = json!(2)).contains("protocol: 1 here, 2 there"));
    assert!(
        refused(|hello| hello["shape"]["layout"]["block_tokens"] = json!(0)).contains("block_tokens is 0")
    );
    assert!(refused(|hello| hello["backend"] = json!("tcp")).contains("backend: "));
    assert!(refused(|hello| hello["host"] = json!("elsewhere")).contains("host: "));
    still_serves(&receiver, Backend::Shm);
}

/// Lets itself in by hand, and has everything mapped for all that the receiver knows.
fn welcomed(receiver: &Receiver, me: Incarnation) -> UnixStream {
    let mut stream = called(receiver);
    let answer = enter(&mut stream, receiver.endpoint(), &hello(receiver, me));
    assert!(answer.get("welcome").is_some(), "{answer}");
    // The byte that comes with the descriptors.
    stream.read_exact(&mut [0]).unwrap();
    stream
}

fn failed_but_not_fenced(landing: &Landing, key: splitcore_transport::TransferKey) {
    let mut arrivals = Vec::new();
    until("the transfer has failed", || {
        landing.poll(&mut arrivals);
        arrivals.iter().any(|arrival| matches!(arrival, Arrival::Failed(failed, _) if *failed == key)) || {
            landing.wait(BOUND);
            false
        }
    });
    assert!(!arrivals.contains(&Arrival::Fenced(key)), "{arrivals:?}");
    assert_eq!(landing.release(key), Err(TransferError::NotFenced { key }));
}

#[test]
fn a_sender_that_talks_nonsense_is_cut_off_and_its_blocks_are_kept_while_it_lives() {
    let receiver = receiver(SHAPE(), 8);
    let landing = receiver.landing();
    let mut short = b"kvc1\x07\0\0\0".to_vec();
    short.resize(24, 0);
    for nonsense in [vec![0xff_u8; 24], short, vec![0; 5000]] {
        let me = Incarnation::random().unwrap();
        let grant = open(&receiver, me, 1, &[BlockId(2)]);
        let mut stream = welcomed(&receiver, me);
        stream.write_all(&nonsense).unwrap();
        failed_but_not_fenced(landing, grant.key);
        let mut rest = Vec::new();
        let closed = stream.read_to_end(&mut rest);
        assert!(closed.is_ok() || closed.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock));
        assert_eq!(landing.writer_state(me), PeerState::Silent);
        let again = connect(&pool(), me, receiver.endpoint(), &options(Backend::Shm)).err().unwrap();
        assert!(again.to_string().contains("is awaited dead"), "{again}");
    }
    still_serves(&receiver, Backend::Shm);
}

#[test]
fn a_connection_that_breaks_without_a_goodbye_fences_nothing() {
    let receiver = receiver(SHAPE(), 2);
    let me = Incarnation::random().unwrap();
    let grant = open(&receiver, me, 1, &[BlockId(2)]);
    drop(welcomed(&receiver, me));
    failed_but_not_fenced(receiver.landing(), grant.key);
    still_serves(&receiver, Backend::Shm);
}

#[test]
fn one_sender_has_one_connection() {
    let mut options = ListenOptions::new(MODEL);
    options.handshake_within = Duration::from_millis(1);
    let shared = Arc::new(Pool::shared(SHAPE()).unwrap());
    let receiver = Receiver::listen(shared, Incarnation::random().unwrap(), options).unwrap();
    let me = Incarnation::random().unwrap();
    let first = welcomed(&receiver, me);
    let second = connect(&pool(), me, receiver.endpoint(), &self::options(Backend::Shm)).err().unwrap();
    assert!(second.to_string().contains("is connected"), "{second}");
    assert_eq!(receiver.landing().writer_state(me), PeerState::Connected);
    drop(first);
}

/// A receiver that welcomes and then passes what it likes.
fn passing(descriptors: &[BorrowedFd<'_>]) -> HandshakeError {
    let folder = Folder::new();
    let path = folder.path().join("kv.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let incarnation = Incarnation::random().unwrap();
    let endpoint = Endpoint {
        incarnation,
        host: boot_id().unwrap(),
        unix: Some(path),
        tcp: None,
        backends: vec![Backend::Shm],
        device: None,
        nixl: None,
        key: Key::new([7; 32]),
    };
    let key = endpoint.key;
    let welcome = json!({"welcome": {
        "protocol": splitcore_transport::PROTOCOL, "incarnation": incarnation, "shape": SHAPE(), "slots": 1,
    }});
    std::thread::scope(|scope| {
        let answering = scope.spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let_in(&mut stream, key, &welcome);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
            let count = [IoSlice::new(&[2])];
            sendmsg(&stream, &count, &mut control, SendFlags::NOSIGNAL).unwrap();
            // The sender leaves as it should: with a goodbye.
            let mut goodbye = Vec::new();
            stream.read_to_end(&mut goodbye).unwrap();
            assert_eq!(goodbye.len(), 24);
        });
        let me = Incarnation::random().unwrap();
        let error = connect(&pool(), me, &endpoint, &options(Backend::Shm)).err().expect("a refusal");
        answering.join().unwrap();
        error
    })
}

#[test]
fn a_receiver_that_passes_the_wrong_memory_is_refused() {
    let sealed = splitcore_transport::Mapping::create("sealed", 1 << 20).unwrap();
    let open = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 1 << 20).unwrap();
    let short = splitcore_transport::Mapping::create("short", 4096).unwrap();
    let said = |descriptors: &[BorrowedFd<'_>]| passing(descriptors).to_string();
    assert_eq!(said(&[]), "not a handshake: 0 descriptors, expected 2");
    assert_eq!(said(&[sealed.fd()]), "not a handshake: 1 descriptors, expected 2");
    assert_eq!(said(&[sealed.fd(); 5]), "not a handshake: 5 descriptors, expected 2");
    assert!(said(&[open.as_fd(), sealed.fd()]).contains("not sealed"));
    assert!(said(&[short.fd(), sealed.fd()]).contains("4096 bytes of memory for a pool of 65536"));
    assert!(said(&[sealed.fd(), sealed.fd()]).contains("not the board of that peer"));
}

#[test]
fn a_put_over_tcp_that_may_not_be_writes_nothing() {
    ranges_are_checked(Backend::Tcp);
}

#[test]
fn a_sender_over_tcp_that_does_not_fit_is_told_which_field() {
    what_must_agree(Backend::Tcp);
}
