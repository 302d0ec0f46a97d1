//! Frames: what is written is read, what is not a frame is refused, and the published examples are what is written.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod kit;

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use splitcore_wire::codec::{Decoder, FrameError, HEADER_BYTES, encode};
use splitcore_wire::message::{Named, ToDaemon, ToPeer, ToWorker};

const LIMIT: u32 = 1 << 20;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// To whom, what as JSON, and what as a frame.
struct Example {
    to: &'static str,
    message: String,
    line: String,
}

fn example<M: Serialize + Named>(to: &'static str, message: &M) -> Example {
    let frame = hex(&encode(message, LIMIT).unwrap());
    let (name, message) = (message.name(), serde_json::to_string(message).unwrap());
    let line = format!(r#"{{"to": "{to}", "name": "{name}", "message": {message}, "frame": "{frame}"}}"#);
    Example { to, message, line }
}

fn examples() -> Vec<Example> {
    let daemon = kit::daemon_examples();
    let worker = kit::worker_examples();
    let peer = kit::peer_examples();
    let daemon = daemon.iter().map(|message| example("daemon", message));
    let worker = worker.iter().map(|message| example("worker", message));
    daemon.chain(worker).chain(peer.iter().map(|message| example("peer", message))).collect()
}

/// The examples as the page shows them.
fn shown(examples: &[Example]) -> String {
    let mut text = String::new();
    for Example { to, message, .. } in examples {
        let _ = write!(text, "To the {to}:\n\n```json\n{message}\n```\n\n");
    }
    text
}

fn in_docs(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

#[test]
fn the_published_examples_are_what_is_written() {
    let examples = examples();
    let lines: Vec<&str> = examples.iter().map(|example| &*example.line).collect();
    let corpus = format!("[\n{}\n]\n", lines.join(",\n"));
    let (begin, end) = ("<!-- examples -->\n\n", "<!-- end of examples -->");
    let (frames, page) = (in_docs("protocol/frames.json"), in_docs("protocol.md"));
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    let before = text.split_once(begin).map_or("", |(before, _)| before);
    let after = text.split_once(end).map_or("", |(_, after)| after);
    let wanted = format!("{before}{begin}{}{end}{after}", shown(&examples));
    if std::env::var_os("SPLITCORE_BLESS").is_some() {
        std::fs::write(&frames, &corpus).unwrap();
        std::fs::write(&page, &wanted).unwrap();
    }
    let hint = "if the change is meant, run again with SPLITCORE_BLESS=1";
    assert_eq!(std::fs::read_to_string(frames).unwrap(), corpus, "docs/protocol/frames.json: {hint}");
    assert_eq!(std::fs::read_to_string(page).unwrap(), wanted, "docs/protocol.md: {hint}");
}

#[test]
fn an_example_reads_the_same_from_its_frame_and_from_its_json() {
    fn check<M: DeserializeOwned + PartialEq + std::fmt::Debug>(example: &Value, frame: &[u8]) {
        let mut decoder = Decoder::new();
        decoder.push(frame);
        let message: M = decoder.next(LIMIT).unwrap().unwrap();
        assert_eq!(message, serde_json::from_value::<M>(example["message"].clone()).unwrap());
    }
    let text = std::fs::read_to_string(in_docs("protocol/frames.json")).unwrap();
    let corpus: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(corpus.len() > 20);
    for example in &corpus {
        let digits = example["frame"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let frame: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        match example["to"].as_str().unwrap() {
            "daemon" => check::<ToDaemon>(example, &frame),
            "worker" => check::<ToWorker>(example, &frame),
            _ => check::<ToPeer>(example, &frame),
        }
    }
}

/// Feeds frames in pieces and takes what comes out.
fn through<M: Serialize + DeserializeOwned>(messages: &[M], pieces: &[usize]) -> Vec<M> {
    let stream: Vec<u8> = messages.iter().flat_map(|message| encode(message, LIMIT).unwrap()).collect();
    let (mut decoder, mut out, mut rest) = (Decoder::new(), Vec::new(), &stream[..]);
    let mut sizes = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let piece = sizes.next().unwrap_or(1).clamp(1, rest.len());
        decoder.push(&rest[..piece]);
        rest = &rest[piece..];
        while let Some(message) = decoder.next(LIMIT).unwrap() {
            out.push(message);
        }
    }
    assert!(!decoder.is_within_frame());
    out
}

proptest! {
    #[test]
    fn messages_come_through_in_any_pieces(
        to_daemon in proptest::collection::vec(kit::any_to_daemon(), 1..8),
        to_worker in proptest::collection::vec(kit::any_to_worker(), 1..8),
        to_peer in proptest::collection::vec(kit::any_to_peer(), 1..8),
        pieces in proptest::collection::vec(1_usize..200, 1..8),
    ) {
        prop_assert_eq!(&through(&to_daemon, &pieces), &to_daemon);
        prop_assert_eq!(&through(&to_worker, &pieces), &to_worker);
        prop_assert_eq!(&through(&to_peer, &pieces), &to_peer);
    }

    #[test]
    fn a_frame_with_changed_bytes_is_read_or_refused_and_never_more(
        message in kit::any_to_worker(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut frame = encode(&message, LIMIT).unwrap();
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame.truncate(cut.index(frame.len()) + 1);
        let mut decoder = Decoder::new();
        decoder.push(&frame);
        if let Ok(Some(message)) = decoder.next::<ToWorker>(LIMIT) {
            // Whatever it is, it is written again without loss.
            let again = encode(&message, LIMIT).unwrap();
            let mut decoder = Decoder::new();
            decoder.push(&again);
            let read = decoder.next::<ToWorker>(LIMIT).unwrap().map(|read| format!("{read:?}"));
            prop_assert_eq!(read, Some(format!("{message:?}")));
        }
    }

    #[test]
    fn noise_is_refused_or_waited_for(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut decoder = Decoder::new();
        decoder.push(&noise);
        while let Ok(Some(_)) = decoder.next::<ToDaemon>(LIMIT) {}
    }
}

fn refused(bytes: &[u8], limit: u32) -> FrameError {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    decoder.next::<ToDaemon>(limit).unwrap_err()
}

#[test]
fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
    let error = refused(&[0, 0, 0, 0x40], 4096);
    assert_eq!(error, FrameError::TooLong { bytes: 0x4000_0000, limit: 4096 });
    assert_eq!(error.to_string(), "a frame of 1073741824 bytes; frame_bytes_max is 4096");
    // "GET / HTTP/1.1" is a length, too.
    assert!(matches!(refused(b"GET / HTTP/1.1\r\n", 1 << 24), FrameError::TooLong { .. }));
    assert!(matches!(encode(&kit::daemon_examples()[0], 10), Err(FrameError::TooLong { limit: 10, .. })));
}

#[test]
fn a_frame_at_the_limit_is_taken_and_one_byte_more_is_not() {
    let frame = encode(&ToDaemon::Pong { number: 5 }, LIMIT).unwrap();
    let bytes = (frame.len() - HEADER_BYTES) as u32;
    let mut decoder = Decoder::new();
    decoder.push(&frame);
    assert!(decoder.next::<ToDaemon>(bytes).unwrap().is_some());
    assert!(matches!(refused(&frame, bytes - 1), FrameError::TooLong { .. }));
}

#[test]
fn what_is_no_message_is_refused_with_its_reason() {
    assert_eq!(refused(&[0, 0, 0, 0], LIMIT), FrameError::Empty);
    let mut frame = encode(&ToDaemon::Pong { number: 5 }, LIMIT).unwrap();
    frame.push(0xc0);
    frame[0] += 1;
    assert_eq!(refused(&frame, LIMIT), FrameError::Trailing { bytes: 1 });
    // {"shout": {}}
    let unknown = refused(b"\x08\0\0\0\x81\xa5shout\x80", LIMIT).to_string();
    assert!(unknown.contains("unknown variant `shout`"), "{unknown}");
    // An array within an array, a thousand deep; and one that claims four billion elements.
    let mut deep = vec![0x91; 1000];
    deep.splice(0..0, 1000_u32.to_le_bytes());
    assert!(matches!(refused(&deep, LIMIT), FrameError::Malformed(_)));
    // A field that nobody reads, too: {"pong": {"number": 5, "later": [[[...]]]}}
    let mut nested = b"\0\0\0\0\x81\xa4pong\x82\xa6number\x05\xa5later".to_vec();
    nested.extend([0x91; 40]);
    nested.push(1);
    nested[0] = (nested.len() - HEADER_BYTES) as u8;
    let told = refused(&nested, LIMIT).to_string();
    assert!(told.contains("depth limit"), "{told}");
    let mut many =
        b"\0\0\0\0\x81\xa6tokens\x83\xa3key\x82\xa7request\x01\xa7attempt\x01\xa4from\x00\xa3ids".to_vec();
    many.extend([0xdd, 0xff, 0xff, 0xff, 0xff, 1]);
    let length = (many.len() - HEADER_BYTES) as u32;
    many[..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    assert!(matches!(refused(&many, LIMIT), FrameError::Malformed(_)));
}

#[test]
fn fields_that_a_later_version_adds_are_passed_over() {
    // {"pong": {"number": 5, "later": [1, 2]}}
    let mut body = b"\x81\xa4pong\x82\xa6number\x05\xa5later\x92\x01\x02".to_vec();
    let length = body.len() as u32;
    body.splice(0..0, length.to_le_bytes());
    let mut decoder = Decoder::new();
    decoder.push(&body);
    assert_eq!(decoder.next::<ToDaemon>(LIMIT).unwrap(), Some(ToDaemon::Pong { number: 5 }));
}
