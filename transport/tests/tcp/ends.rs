//! How transfers and connections end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{BlockId, PoolShape};
use splitcore_transport::{
    Arrival, Backend, Completion, ConnectOptions, Endpoint, Generation, Grant, Incarnation, Key, Link,
    PeerState, Token, TransferError, TransferKey, boot_id, connect,
};

use super::handshake::let_in;
use super::kit::*;

/// Something that says welcome and then does what the test wants of it.
struct Decoy {
    link: Arc<dyn Link>,
    stream: TcpStream,
}

fn decoy(shape: PoolShape, options: &ConnectOptions) -> Decoy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Endpoint {
        incarnation: RECEIVER,
        host: boot_id().unwrap(),
        unix: None,
        tcp: Some(listener.local_addr().unwrap()),
        backends: vec![Backend::Tcp],
        device: None,
        nixl: None,
        key: Key::new([7; 32]),
    };
    let key = to.key;
    let welcome = serde_json::json!({"welcome": {
        "protocol": splitcore_transport::PROTOCOL, "incarnation": RECEIVER, "shape": shape, "slots": 1 << 20,
    }});
    let host = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let_in(&mut stream, key, &welcome);
        stream
    });
    let link = connect(&filled(shape), SENDER, &to, options).unwrap();
    Decoy { link, stream: host.join().unwrap() }
}

fn grant(slot: u32, blocks: &[u32], layer_bytes: u64) -> Grant {
    let key = TransferKey { request: RequestId(slot.into()), slot, generation: Generation::FIRST };
    let blocks = blocks.iter().copied().map(BlockId).collect();
    Grant { key, receiver: RECEIVER, blocks, layer_bytes, token: Token::default() }
}

#[test]
fn a_stop_at_the_sender_ends_fenced_and_the_receiver_learns_at_once() {
    let pair = pair(shape(2, 4, 4096));
    let landing = pair.receiver.landing();
    let granted = open(landing, 1, &[0, 2]);
    let key = granted.key;
    pair.link.begin(&granted).unwrap();
    pair.link.put(key, 0, &ranges(pair.from.shape(), 0, &[0, 2])).unwrap();
    pair.link.stop(key);
    assert_eq!(ended(&*pair.link, 1), [Completion::Fenced(key)]);
    assert!(matches!(landing.wait_layer(key, 0, LONG), Err(TransferError::Stopped { .. })));
    told(landing, |arrival| *arrival == Arrival::Fenced(key));
    assert_eq!(pair.link.put(key, 1, &[]), Err(TransferError::Unknown { key }));
    // The connection goes on.
    landing.release(key).unwrap();
    let again = open(landing, 2, &[1]);
    send_all(&pair, &again, &[1]);
    wait_all(landing, again.key);
}

#[test]
fn a_stop_at_the_receiver_ends_fenced_at_the_sender() {
    let pair = pair(shape(2, 4, 4096));
    let landing = pair.receiver.landing();
    let granted = open(landing, 1, &[0, 2]);
    pair.link.begin(&granted).unwrap();
    landing.stop(granted.key).unwrap();
    told(landing, |arrival| *arrival == Arrival::Fenced(granted.key));
    assert_eq!(ended(&*pair.link, 1), [Completion::Fenced(granted.key)]);
    landing.release(granted.key).unwrap();
    assert_eq!(pair.link.peer(), PeerState::Connected);
}

#[test]
fn a_transfer_that_was_stopped_before_its_sender_came_ends_at_its_first_frame() {
    let shape = shape(1, 4, 4096);
    let pair = pair(shape);
    let landing = pair.receiver.landing();
    let granted = open(landing, 1, &[0]);
    landing.stop(granted.key).unwrap();
    landing.release(granted.key).unwrap();
    pair.link.begin(&granted).unwrap();
    pair.link.put(granted.key, 0, &ranges(&shape, 0, &[0])).unwrap();
    let ends = ended(&*pair.link, 1);
    let key = granted.key;
    let unknown = Completion::Failed(key, TransferError::Unknown { key });
    // The stop may have been told first.
    assert!(ends == [unknown] || ends == [Completion::Fenced(key)], "{ends:?}");
}

#[test]
fn a_receiver_that_goes_away_fails_what_is_open_and_what_comes() {
    let Pair { receiver, link, to: _to, from: _from } = pair(shape(2, 4, 4096));
    let first = open(receiver.landing(), 1, &[0]);
    let second = open(receiver.landing(), 2, &[1]);
    link.begin(&first).unwrap();
    link.begin(&second).unwrap();
    drop(receiver);
    let lost = |key| TransferError::PeerLost { key, peer: RECEIVER };
    let ends = [first.key, second.key].map(|key| Completion::Failed(key, lost(key)));
    assert_eq!(ended(&*link, 2), ends);
    assert_eq!(link.peer(), PeerState::Lost);
    assert_eq!(link.begin(&first), Err(lost(first.key)));
    assert_eq!(link.put(first.key, 0, &[]), Err(lost(first.key)));
    assert_eq!(link.publish(first.key, 0, 1), Err(lost(first.key)));
}

#[test]
fn a_connection_that_is_reset_fails_what_is_open() {
    let Decoy { link, stream } = decoy(shape(1, 4, 4096), &options());
    link.begin(&grant(0, &[0], 4096)).unwrap();
    // Bytes that nobody has read make the kernel reset instead of close.
    link.put(grant(0, &[0], 4096).key, 0, &ranges(&shape(1, 4, 4096), 0, &[0])).unwrap();
    let mut one = [0];
    stream.peek(&mut one).unwrap();
    drop(stream);
    assert!(matches!(ended(&*link, 1)[..], [Completion::Failed(_, TransferError::PeerLost { .. })]));
}

#[test]
fn a_receiver_that_lives_and_takes_nothing_is_stalled_for_every_transfer() {
    let shape = shape(1, 256, 64 << 10);
    let limit = Duration::from_millis(50);
    let decoy = decoy(shape, &ConnectOptions { stall_limit: limit, ..options() });
    let blocks: Vec<u32> = (0..256).collect();
    for slot in 0..3 {
        let granted = grant(slot, &blocks, shape.bytes());
        decoy.link.begin(&granted).unwrap();
        decoy.link.put(granted.key, 0, &ranges(&shape, 0, &blocks)).unwrap();
    }
    for (slot, end) in ended(&*decoy.link, 3).into_iter().enumerate() {
        let key = grant(slot as u32, &[], 0).key;
        let error = TransferError::Stalled { key, peer: RECEIVER, waited: limit };
        assert_eq!(end, Completion::Failed(key, error));
    }
    assert_eq!(decoy.link.peer(), PeerState::Lost);
}

#[test]
fn a_receiver_that_talks_nonsense_is_left() {
    let mut decoy = decoy(shape(1, 4, 4096), &options());
    decoy.link.begin(&grant(0, &[0], 4096)).unwrap();
    decoy.stream.write_all(&[7; 64]).unwrap();
    let ends = ended(&*decoy.link, 1);
    assert!(matches!(&ends[..], [Completion::Failed(_, TransferError::Protocol(_))]), "{ends:?}");
}

#[test]
fn a_full_queue_says_how_much_is_queued_and_takes_more_when_it_has_drained() {
    let shape = shape(1, 256, 64 << 10);
    let mut decoy = decoy(shape, &options());
    let blocks: Vec<u32> = (0..256).collect();
    let large = grant(0, &blocks, shape.bytes());
    decoy.link.begin(&large).unwrap();
    decoy.link.put(large.key, 0, &ranges(&shape, 0, &blocks)).unwrap();
    let small = grant(1, &[0, 1], 128 << 10);
    decoy.link.begin(&small).unwrap();
    let one = |at: u32| {
        let mut range = ranges(&shape, 0, &[0])[0];
        (range.to, range.to_offset, range.bytes) = (BlockId(at >> 16), at & 0xffff, 1);
        range
    };
    let mut refused = None;
    let mut count = 0;
    while refused.is_none() && count < 128 << 10 {
        refused = decoy.link.put(small.key, 0, &[one(count)]).err();
        count += 1;
    }
    assert_eq!(refused, Some(TransferError::Busy { queued: 65_536, limit: 65_536 }));
    let text = refused.map(|error| error.to_string());
    assert_eq!(text.as_deref(), Some("65536 puts are queued for this peer, at most 65536"));
    assert_eq!(
        decoy.link.publish(small.key, 0, 1),
        Err(TransferError::Busy { queued: 65_536, limit: 65_536 })
    );
    decoy.stream.set_read_timeout(Some(LONG)).unwrap();
    let mut taken = vec![0; 1 << 20];
    for _ in 0..17 {
        decoy.stream.read_exact(&mut taken).unwrap();
    }
    // What was refused was not booked.
    decoy.link.put(small.key, 0, &[one(count - 1)]).unwrap();
    // First, since the link would wait for it to read on.
    drop(decoy.stream);
}

#[test]
fn a_link_that_is_dropped_loses_nothing_that_was_handed_over() {
    let shape = shape(2, 64, 64 << 10);
    for connections in [1, 3] {
        let pair = pair_with(shape, &ConnectOptions { connections, ..options() });
        let landing = pair.receiver.landing().clone();
        let blocks: Vec<Vec<u32>> = (0..6).map(|part| (part * 10..part * 10 + 10).collect()).collect();
        let grants: Vec<Grant> = blocks.iter().map(|blocks| open(&landing, 1, blocks)).collect();
        for (grant, blocks) in grants.iter().zip(&blocks) {
            send_all(&pair, grant, blocks);
        }
        let unfinished = open(&landing, 2, &[63]);
        pair.link.begin(&unfinished).unwrap();
        ended(&*pair.link, 6);
        let Pair { link, to, from, receiver } = pair;
        drop(link);
        let key = unfinished.key;
        let lost = Arrival::Failed(key, TransferError::PeerLost { key, peer: SENDER });
        told(&landing, |arrival| *arrival == lost);
        for grant in &grants {
            wait_all(&landing, grant.key);
        }
        // The same life of the sender may come again.
        let link = connect(&from, SENDER, receiver.endpoint(), &options()).unwrap();
        let pair = Pair { receiver, to, from, link };
        for blocks in &blocks {
            assert_arrived(&pair, blocks);
        }
        let again = open(&landing, 3, &[62]);
        send_all(&pair, &again, &[62]);
        wait_all(&landing, again.key);
    }
}

#[test]
fn one_of_several_connections_that_breaks_ends_them_all() {
    let shape = shape(2, 8, 4096);
    let pair = pair_with(shape, &ConnectOptions { connections: 3, ..options() });
    let landing = pair.receiver.landing();
    let grants: Vec<Grant> = (0..6).map(|block| open(landing, 1, &[block])).collect();
    for grant in &grants {
        pair.link.begin(grant).unwrap();
    }
    let mut one_more = super::hostile::intruder(&pair.receiver, &shape, SENDER);
    one_more.write_all(&[0; 48]).unwrap();
    for end in ended(&*pair.link, 6) {
        assert!(matches!(end, Completion::Failed(_, TransferError::PeerLost { .. })), "{end:?}");
    }
    let last = |arrival: &Arrival| *arrival == Arrival::Fenced(grants[5].key);
    assert_eq!(told(landing, last).len(), 12);
}

#[test]
fn a_sender_that_closes_its_half_is_gone() {
    let shape = shape(1, 4, 4096);
    let receiver = listen(shape);
    let granted = open(receiver.landing(), 1, &[0]);
    let mut stream = super::hostile::intruder(&receiver, &shape, SENDER);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    told(receiver.landing(), |arrival| *arrival == Arrival::Fenced(granted.key));
    assert_eq!(receiver.landing().writer_state(SENDER), PeerState::Lost);
}

#[test]
fn a_sender_of_another_model_is_told_so() {
    let shape = shape(1, 4, 4096);
    let receiver = listen(shape);
    let other = ConnectOptions { model: "other".to_owned(), ..options() };
    let refused = connect(&filled(shape), Incarnation(5), receiver.endpoint(), &other).map(drop);
    let text = refused.unwrap_err().to_string();
    assert_eq!(text, "refused by the peer: model: model here, other there");
}
