//! Streams that no sender of ours sends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, PoolShape};
use splitcore_secret::hex::Hex;
use splitcore_transport::testing::frame::{Crc, Descriptor, HEAD, Head, Kind, Refusal};
use splitcore_transport::{
    Arrival, Generation, Grant, Incarnation, Key, LayerSeal, Receiver, Token, TransferError, TransferKey,
    boot_id, connect,
};

use super::handshake::{enter, hear, say};
use super::kit::*;

const BYTES: u32 = 4096;

/// A block, an offset in it, bytes.
type Range = (u32, u32, u32);

/// A stream of which nobody knows whose it is.
fn stranger(receiver: &Receiver) -> TcpStream {
    let stream = TcpStream::connect(address(receiver)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// A stream that has been let in as `writer`.
pub(crate) fn intruder(receiver: &Receiver, shape: &PoolShape, writer: Incarnation) -> TcpStream {
    let hello = serde_json::json!({
        "protocol": splitcore_transport::PROTOCOL, "backend": "tcp", "incarnation": writer,
        "expects": RECEIVER, "host": boot_id().unwrap(), "model": "model", "shape": shape,
        "checksums": true,
    });
    let mut stream = stranger(receiver);
    let answer = enter(&mut stream, receiver.endpoint(), &hello);
    assert!(answer.get("welcome").is_some(), "{answer}");
    stream
}

/// Shows the token of a grant.
fn show(stream: &mut TcpStream, grant: &Grant) {
    let mut frame = Vec::new();
    Head::encode_show(grant.key, &grant.token, &mut frame);
    stream.write_all(&frame).unwrap();
}

fn put(key: TransferKey, layer: u16, to: &[Range]) -> Vec<u8> {
    let descriptors: Vec<Descriptor> =
        to.iter().map(|&(block, offset, bytes)| Descriptor { block, offset, bytes }).collect();
    let mut frame = Vec::new();
    Head::encode_put(key, layer, &descriptors, &mut frame);
    let payload: u32 = to.iter().map(|range| range.2).sum();
    frame.extend((0..payload.min(1 << 20)).map(|at| at as u8 | 1));
    frame
}

fn publish(key: TransferKey, layer: u16, bytes: u64, crc32c: Option<u32>) -> Vec<u8> {
    let mut frame = Vec::new();
    let head = Head { layer, tokens: 3, bytes, crc32c, ..Head::new(Kind::Publish, Some(key)) };
    head.encode(&[], &mut frame);
    frame
}

/// The next answer and its text; `None` at the end of the stream.
fn answer(stream: &mut TcpStream) -> Option<(Head, String)> {
    let mut head = [0; HEAD];
    match stream.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            return None;
        }
        Err(error) => panic!("no answer: {error}"),
    }
    let decoded = Head::decode(&head).unwrap();
    let mut tail = vec![0; decoded.tail_len()];
    stream.read_exact(&mut tail).unwrap();
    Head::check(&head, &tail).unwrap();
    Some((decoded, String::from_utf8(tail).unwrap()))
}

/// The reason why the receiver closed the stream.
fn closed(stream: &mut TcpStream) -> String {
    let (head, text) = answer(stream).expect("closed without a word");
    assert_eq!(head.kind, Kind::Nack(Refusal::Protocol), "{head:?}");
    assert_eq!(answer(stream), None, "the stream goes on");
    text
}

fn crc_of(frame: &[u8], payload: u32) -> u32 {
    let mut crc = Crc::NEW;
    crc.update(&frame[frame.len() - payload as usize..]);
    crc.value()
}

struct World {
    receiver: Receiver,
    shape: PoolShape,
    grant: Grant,
}

/// Blocks 1 and 3 of four are open to the sender, each in two layers.
fn world() -> World {
    let shape = shape(2, 4, BYTES);
    let receiver = listen(shape);
    let grant = open(receiver.landing(), 1, &[1, 3]);
    World { receiver, shape, grant }
}

impl World {
    /// One that has the grant.
    fn intruder(&self) -> TcpStream {
        let mut stream = intruder(&self.receiver, &self.shape, SENDER);
        show(&mut stream, &self.grant);
        stream
    }

    fn assert_untouched(&self, but: &[(u16, u32)]) {
        for layer in 0..2 {
            for block in (0..4).filter(|&block| !but.contains(&(layer, block))) {
                let bytes = block_bytes(self.receiver.landing().pool(), layer, block);
                assert!(bytes.iter().all(|&byte| byte == 0), "layer {layer}, block {block} was written");
            }
        }
    }

    /// Another sender is served as ever.
    fn assert_serves(&self) {
        let from = filled(self.shape);
        let other = Incarnation(0x0dd);
        let landing = self.receiver.landing();
        let grant = landing.open(other, RequestId(9), vec![BlockId(0)], BYTES.into()).unwrap();
        let link = connect(&from, other, self.receiver.endpoint(), &options()).unwrap();
        link.begin(&grant).unwrap();
        link.put(grant.key, 0, &ranges(&self.shape, 0, &[0])).unwrap();
        link.publish(grant.key, 0, 1).unwrap();
        landing.wait_layer(grant.key, 0, LONG).unwrap();
    }
}

#[test]
fn a_frame_that_is_none_ends_the_stream_with_the_reason_and_touches_nothing() {
    let world = world();
    let key = world.grant.key;
    let spoilt = |at: usize| {
        let mut frame = put(key, 0, &[(1, 0, BYTES)]);
        frame[at] ^= 1;
        frame
    };
    let (good, wrong_crc) = (put(key, 0, &[(1, 0, BYTES)]), "a head with checksum");
    let mut nack = Vec::new();
    Head::new(Kind::Nack(Refusal::Stopped), Some(key)).encode(&[], &mut nack);
    let mut lies = Vec::new();
    let head = Head { count: 1, bytes: 77, ..Head::new(Kind::Put, Some(key)) };
    head.encode(&[1_u32.to_le_bytes(), [0; 4], 64_u32.to_le_bytes()].concat(), &mut lies);
    let cases = [
        (b"GET / HTTP/1.1\r\nHost: here\r\nAccept: everything\r\n\r\n".to_vec(), "a frame that begins with"),
        (spoilt(4), "a frame of kind"),
        (spoilt(7), wrong_crc),
        (spoilt(33), wrong_crc),
        (spoilt(HEAD + 5), wrong_crc),
        (vec![0xff; good.len()], "a frame that begins with ffffffff"),
        (lies, "a payload of 77 bytes whose descriptors come to 64"),
        (put(key, 0, &[(1, 0, 0)]), "a descriptor of 0 bytes"),
        (nack, "a frame that only a receiver sends"),
    ];
    for (bytes, reason) in cases {
        let mut stream = world.intruder();
        stream.write_all(&bytes).unwrap();
        let text = closed(&mut stream);
        assert!(text.contains(reason), "{text}, not {reason}");
    }
    world.assert_untouched(&[]);
    world.assert_serves();
}

#[test]
fn ranges_outside_the_grant_are_refused_before_a_byte_is_written() {
    let cases: [(u16, &[Range], &str); 8] = [
        (0, &[(0, 0, 64)], "block 0 was not granted"),
        (0, &[(1, 0, BYTES), (2, 0, 64)], "block 2 was not granted"),
        (0, &[(1, 64, BYTES)], "block 2 was not granted"),
        (0, &[(1, BYTES, 64)], "a range of layer 0 touches layer 1"),
        (0, &[(9, 0, 64)], "lie outside the pool"),
        (0, &[(3, u32::MAX, 64)], "lie outside the pool"),
        (1, &[(3, BYTES, u32::MAX)], "lie outside the pool"),
        (7, &[(1, 0, 64)], "layer 7 of a model of 2"),
    ];
    for (layer, to, reason) in cases {
        let world = world();
        let mut stream = world.intruder();
        stream.write_all(&put(world.grant.key, layer, to)).unwrap();
        let text = closed(&mut stream);
        assert!(text.contains(reason), "{text}, not {reason}");
        world.assert_untouched(&[]);
        let lost = |arrival: &Arrival| matches!(arrival, Arrival::Failed(_, TransferError::PeerLost { .. }));
        told(world.receiver.landing(), lost);
    }
}

#[test]
fn more_bytes_than_the_layer_has_are_refused() {
    let world = world();
    let mut stream = world.intruder();
    let both = [(1, 0, BYTES), (3, 0, BYTES)];
    stream.write_all(&put(world.grant.key, 0, &both)).unwrap();
    stream.write_all(&put(world.grant.key, 0, &[(1, 0, 64)])).unwrap();
    let text = closed(&mut stream);
    assert!(text.contains("8256 bytes of 8192"), "{text}");
}

#[test]
fn frames_of_transfers_that_are_over_or_others_are_drained_and_told_and_the_stream_goes_on() {
    let world = world();
    let landing = world.receiver.landing();
    let key = world.grant.key;
    let foreign = landing.open(Incarnation(0xf0), RequestId(2), vec![BlockId(0)], BYTES.into()).unwrap().key;
    let stale = TransferKey { generation: Generation::new(7).unwrap(), ..key };
    let nowhere = TransferKey { slot: 1 << 30, ..key };
    let mut stream = world.intruder();
    for other in [foreign, stale, nowhere] {
        stream.write_all(&put(other, 0, &[(0, 0, BYTES)])).unwrap();
        let (head, _) = answer(&mut stream).unwrap();
        assert_eq!((head.kind, head.key), (Kind::Nack(Refusal::Unknown), Some(other)));
        stream.write_all(&publish(other, 0, BYTES.into(), Some(0))).unwrap();
        let (head, _) = answer(&mut stream).unwrap();
        assert_eq!((head.kind, head.key), (Kind::Nack(Refusal::Unknown), Some(other)));
    }
    let frame = put(key, 0, &[(3, 0, BYTES), (1, 0, BYTES)]);
    let crc = crc_of(&frame, 2 * BYTES);
    stream.write_all(&frame).unwrap();
    stream.write_all(&publish(key, 0, 2 * u64::from(BYTES), Some(crc))).unwrap();
    let seal = landing.wait_layer(key, 0, LONG).unwrap();
    assert_eq!(seal, LayerSeal { tokens: 3, bytes: 2 * u64::from(BYTES), crc32c: Some(crc) });
    world.assert_untouched(&[(0, 1), (0, 3)]);
}

#[test]
fn a_published_layer_is_never_written_again() {
    let world = world();
    let landing = world.receiver.landing();
    let key = world.grant.key;
    let frame = put(key, 0, &[(1, 0, BYTES), (3, 0, BYTES)]);
    let mut stream = world.intruder();
    // The other stream is in the middle of the same layer when the first publishes it.
    let mut second = world.intruder();
    second.write_all(&frame[..frame.len() - 64]).unwrap();
    stream.write_all(&frame).unwrap();
    stream.write_all(&publish(key, 0, 2 * u64::from(BYTES), Some(crc_of(&frame, 2 * BYTES)))).unwrap();
    landing.wait_layer(key, 0, LONG).unwrap();
    second.write_all(&[0xee; 64]).unwrap();
    let text = closed(&mut second);
    assert!(text.contains("published already"), "{text}");
    assert_eq!(block_bytes(landing.pool(), 0, 3), frame[frame.len() - BYTES as usize..]);
}

#[test]
fn a_wrong_checksum_fails_the_transfer_at_both_ends_and_the_stream_goes_on() {
    let world = world();
    let landing = world.receiver.landing();
    let key = world.grant.key;
    let mut stream = world.intruder();
    let frame = put(key, 0, &[(1, 0, BYTES), (3, 0, BYTES)]);
    stream.write_all(&frame).unwrap();
    stream.write_all(&publish(key, 0, 2 * u64::from(BYTES), Some(0x0bad))).unwrap();
    let found = crc_of(&frame, 2 * BYTES);
    let corrupt = TransferError::Corrupt { key, layer: 0, found, expected: 0x0bad };
    let arrivals = told(landing, |arrival| *arrival == Arrival::Fenced(key));
    assert_eq!(arrivals, [Arrival::Failed(key, corrupt.clone()), Arrival::Fenced(key)]);
    assert_eq!(landing.wait_layer(key, 0, LONG), Err(corrupt));
    let (head, _) = answer(&mut stream).unwrap();
    assert_eq!((head.kind, head.tokens, head.crc32c), (Kind::Nack(Refusal::Corrupt), found, Some(0x0bad)));
    landing.release(key).unwrap();
    let again = open(landing, 2, &[1]);
    show(&mut stream, &again);
    let frame = put(again.key, 0, &[(1, 0, BYTES)]);
    stream.write_all(&frame).unwrap();
    stream.write_all(&publish(again.key, 0, BYTES.into(), Some(crc_of(&frame, BYTES)))).unwrap();
    landing.wait_layer(again.key, 0, LONG).unwrap();
}

#[test]
fn a_layer_that_is_published_too_early_fails() {
    let world = world();
    let landing = world.receiver.landing();
    let key = world.grant.key;
    let mut stream = world.intruder();
    let frame = put(key, 0, &[(1, 0, BYTES)]);
    stream.write_all(&frame).unwrap();
    stream.write_all(&publish(key, 0, 2 * u64::from(BYTES), Some(crc_of(&frame, BYTES)))).unwrap();
    let (head, text) = answer(&mut stream).unwrap();
    assert_eq!(head.kind, Kind::Nack(Refusal::Denied));
    assert!(text.contains("4096 bytes of 8192"), "{text}");
    assert!(matches!(landing.wait_layer(key, 0, LONG), Err(TransferError::Incomplete { .. })));
}

#[test]
fn a_stop_in_the_middle_of_a_frame_fences_at_once_and_the_rest_is_for_nobody() {
    let world = world();
    let landing = world.receiver.landing();
    let key = world.grant.key;
    let mut stream = world.intruder();
    let frame = put(key, 0, &[(1, 0, BYTES), (3, 0, BYTES)]);
    stream.write_all(&frame[..frame.len() - BYTES as usize]).unwrap();
    // A second stream's answer shows nothing of the first's progress, so the bytes themselves are watched.
    let until = std::time::Instant::now() + LONG;
    while block_bytes(landing.pool(), 0, 1).last() == Some(&0) {
        assert!(std::time::Instant::now() < until, "the first block never came");
        std::thread::yield_now();
    }
    landing.stop(key).unwrap();
    told(landing, |arrival| *arrival == Arrival::Fenced(key));
    stream.write_all(&frame[frame.len() - BYTES as usize..]).unwrap();
    let (head, _) = answer(&mut stream).unwrap();
    assert_eq!((head.kind, head.key), (Kind::Nack(Refusal::Stopped), Some(key)));
    // What comes behind it is answered, so the frame's rest has been read by then, and block 3 has nothing of it.
    landing.release(key).unwrap();
    let behind = TransferKey { slot: 5, ..key };
    stream.write_all(&put(behind, 0, &[(1, 0, 64)])).unwrap();
    while answer(&mut stream).unwrap().0.key != Some(behind) {}
    world.assert_untouched(&[(0, 1)]);
}

#[test]
fn a_sender_that_falls_silent_in_the_middle_of_a_frame_is_closed() {
    let shape = shape(2, 4, BYTES);
    let limit = std::time::Duration::from_millis(50);
    let receiver = listen_with(shape, |options| options.stall_limit = limit);
    let grant = open(receiver.landing(), 1, &[1]);
    let mut stream = intruder(&receiver, &shape, SENDER);
    show(&mut stream, &grant);
    stream.write_all(&put(grant.key, 0, &[(1, 0, BYTES)])[..100]).unwrap();
    let text = closed(&mut stream);
    assert!(text.contains("stopped in the middle of a frame for 50ms"), "{text}");
    let lost = |arrival: &Arrival| matches!(arrival, Arrival::Failed(_, TransferError::PeerLost { .. }));
    told(receiver.landing(), lost);
}

#[test]
fn a_sender_that_is_slow_in_the_middle_of_a_frame_is_not_closed() {
    let shape = shape(2, 4, BYTES);
    let limit = std::time::Duration::from_millis(500);
    let receiver = listen_with(shape, |options| options.stall_limit = limit);
    let landing = receiver.landing();
    let grant = open(landing, 1, &[1]);
    let mut stream = intruder(&receiver, &shape, SENDER);
    show(&mut stream, &grant);
    let frame = put(grant.key, 0, &[(1, 0, BYTES)]);
    let payload = frame.len() - BYTES as usize;
    stream.write_all(&frame[..payload]).unwrap();
    // Far fewer than the receiver would get up for; each is read before the next is sent.
    for (at, &byte) in frame[payload..].iter().enumerate().take(2) {
        stream.write_all(&[byte]).unwrap();
        let until = std::time::Instant::now() + LONG;
        while block_bytes(landing.pool(), 0, 1)[at] != byte {
            assert!(std::time::Instant::now() < until, "byte {at} was not read");
            std::thread::yield_now();
        }
    }
    stream.write_all(&frame[payload + 2..]).unwrap();
    stream.write_all(&publish(grant.key, 0, BYTES.into(), Some(crc_of(&frame, BYTES)))).unwrap();
    landing.wait_layer(grant.key, 0, LONG).unwrap();
}

#[test]
fn what_a_closed_stream_began_is_not_finished_by_a_new_one() {
    let world = world();
    let landing = world.receiver.landing();
    let key = world.grant.key;
    let frame = put(key, 0, &[(1, 0, BYTES), (3, 0, BYTES)]);
    let mut first = world.intruder();
    first.write_all(&frame[..200]).unwrap();
    drop(first);
    told(landing, |arrival| *arrival == Arrival::Fenced(key));
    let mut second = world.intruder();
    second.write_all(&frame).unwrap();
    let (head, _) = answer(&mut second).unwrap();
    assert_eq!((head.kind, head.key), (Kind::Nack(Refusal::Stopped), Some(key)));
}

#[test]
fn a_stranger_learns_nothing_and_does_not_come_in_the_writers_name() {
    let world = world();
    let landing = world.receiver.landing();
    let link = connect(&filled(world.shape), SENDER, world.receiver.endpoint(), &options()).unwrap();
    link.begin(&world.grant).unwrap();
    link.put(world.grant.key, 0, &ranges(&world.shape, 0, &[1, 3])).unwrap();
    let guess = Key::random().unwrap();
    let endpoint = world.receiver.endpoint();
    let others = |verdict: &str| {
        let about = [RECEIVER.to_string(), RECEIVER.0.to_string(), "model".to_owned(), "layers".to_owned()];
        assert!(about.iter().all(|word| !verdict.contains(word)), "{verdict}");
    };
    // The life of the receiver is right, and the key is not; then neither is.
    for expects in [RECEIVER, SENDER] {
        let mut stream = stranger(&world.receiver);
        let (_, verdict) = super::handshake::show(&mut stream, expects, guess);
        let wanted = if expects == RECEIVER { "a proof that does not match" } else { "another" };
        assert!(verdict.to_string().contains(wanted), "{verdict}");
        others(&verdict.to_string());
        assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0, "nothing more is said");
    }
    // Another's proof, played again on a connection of one's own.
    let mut stream = stranger(&world.receiver);
    hear(&mut stream);
    let shown = serde_json::json!({"expects": RECEIVER, "nonce": Hex([0x22; 16]), "proof": Hex([0x33; 32])});
    say(&mut stream, &shown);
    assert!(hear(&mut stream).get("refused").is_some());
    // One that knows the key and says that it is another than it has shown to be.
    let mut stream = stranger(&world.receiver);
    let (_, verdict) = super::handshake::show(&mut stream, RECEIVER, endpoint.key);
    assert!(verdict.get("proved").is_some(), "{verdict}");
    let hello = serde_json::json!({
        "protocol": splitcore_transport::PROTOCOL, "backend": "tcp", "incarnation": SENDER,
        "expects": RECEIVER, "host": boot_id().unwrap(), "model": "model", "shape": world.shape,
        "checksums": true,
    });
    say(&mut stream, &serde_json::json!({"hello": hello, "proof": Hex([0x33; 32])}));
    assert!(hear(&mut stream).get("refused").is_some());
    // All of them have hung up, and the transfer of the honest one goes on.
    link.publish(world.grant.key, 0, 3).unwrap();
    landing.wait_layer(world.grant.key, 0, LONG).unwrap();
    assert_eq!(landing.writer_state(SENDER), splitcore_transport::PeerState::Connected);
}

#[test]
fn frames_about_a_transfer_whose_token_was_not_shown_are_as_those_of_one_that_is_not_there() {
    let world = world();
    let landing = world.receiver.landing();
    let key = world.grant.key;
    // It has been let in, by the name of the writer, and has guessed request, slot and generation.
    let mut stream = intruder(&world.receiver, &world.shape, SENDER);
    let second = open(landing, 2, &[2]);
    let wrong = [
        Grant { token: Token::random().unwrap(), ..world.grant.clone() },
        Grant { token: second.token, ..world.grant.clone() },
        Grant { token: world.grant.token, ..second.clone() },
    ];
    for grant in &wrong {
        show(&mut stream, grant);
        let (head, text) = answer(&mut stream).unwrap();
        assert_eq!((head.kind, head.key, &*text), (Kind::Nack(Refusal::Unknown), Some(grant.key), ""));
    }
    let frame = put(key, 0, &[(1, 0, BYTES), (3, 0, BYTES)]);
    let mut drop = Vec::new();
    Head::new(Kind::Drop, Some(key)).encode(&[], &mut drop);
    let sealed = publish(key, 0, 2 * u64::from(BYTES), Some(crc_of(&frame, 2 * BYTES)));
    for bytes in [&frame, &sealed, &drop] {
        stream.write_all(bytes).unwrap();
        let (head, _) = answer(&mut stream).unwrap();
        assert_eq!((head.kind, head.key), (Kind::Nack(Refusal::Unknown), Some(key)));
    }
    assert_eq!(landing.landed(key), Ok(0));
    world.assert_untouched(&[]);
    // Shown on one stream, a token says nothing for another; and the stream goes on.
    let mut honest = world.intruder();
    stream.write_all(&frame).unwrap();
    assert_eq!(answer(&mut stream).unwrap().0.kind, Kind::Nack(Refusal::Unknown));
    honest.write_all(&[frame.clone(), sealed].concat()).unwrap();
    landing.wait_layer(key, 0, LONG).unwrap();
}

#[test]
fn strangers_are_bounded_in_count_and_bytes_and_keep_nobody_out() {
    let world = world();
    // Nothing that a stranger says is long, whatever is in it.
    let nested = format!("[{}]", "[],".repeat(200_000) + "[]");
    for length in [1025, nested.len() as u32, 4 << 20, u32::MAX] {
        let mut stream = stranger(&world.receiver);
        hear(&mut stream);
        let mut bytes = b"splitkv\n".to_vec();
        bytes.extend_from_slice(&length.to_le_bytes());
        stream.write_all(&bytes).unwrap();
        let refused = hear(&mut stream).to_string();
        assert!(refused.contains("at most 1024 are taken"), "{refused}");
    }
    // More of them than there is room for, all silent: the oldest make room, and who may come in does.
    let silent: Vec<TcpStream> = (0..200).map(|_| stranger(&world.receiver)).collect();
    world.assert_serves();
    for mut stream in &silent[..200 - 64] {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 200, "{} bytes for a stranger", said.len());
    }
}

#[test]
fn the_folder_of_the_local_socket_tells_nothing_of_the_life_in_it() {
    let shape = shape(1, 1, BYTES);
    let receiver = listen_with(shape, |options| options.local = true);
    let path = receiver.endpoint().unix.clone().unwrap().display().to_string();
    assert!(!path.contains(&RECEIVER.to_string()) && !path.contains(&RECEIVER.0.to_string()), "{path}");
}

#[test]
fn a_block_that_is_granted_twice_is_named() {
    let world = world();
    let twice =
        world.receiver.landing().open(SENDER, RequestId(7), vec![BlockId(2), BlockId(0), BlockId(2)], 64);
    let error = twice.unwrap_err().to_string();
    assert!(error.ends_with("block 2 is granted twice; each block of a request is there once"), "{error}");
    assert_eq!(world.receiver.landing().in_use(), 1, "its slot is free again");
}
