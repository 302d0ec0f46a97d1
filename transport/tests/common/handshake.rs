//! The handshake by hand, of either side.

use std::io::{Read, Write};

use serde_json::{Value, json};
use splitcore_secret::hex::{Hex, Nonce, Proof};
use splitcore_secret::{Key, Party, Secret, prove};
use splitcore_transport::{Endpoint, Incarnation};

const NONCE: Nonce = Hex([0x22; 16]);

/// A message on the wire.
pub(crate) fn message(json: &Value) -> Vec<u8> {
    let body = serde_json::to_vec(json).unwrap();
    let mut bytes = b"splitkv\n".to_vec();
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

pub(crate) fn say(stream: &mut impl Write, json: &Value) {
    stream.write_all(&message(json)).unwrap();
}

pub(crate) fn hear(stream: &mut impl Read) -> Value {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; u32::from_le_bytes(head[8..].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn proof(secret: &Secret, party: Party, challenge: &Nonce, nonce: &Nonce, name: &str) -> Proof {
    prove(secret, party, challenge, nonce, name)
}

fn nonce_of(message: &Value) -> Nonce {
    Nonce::parse(message["nonce"].as_str().unwrap()).unwrap()
}

/// Shows to know a key to whoever listens there. What it says to that.
pub(crate) fn show<S: Read + Write>(stream: &mut S, expects: Incarnation, key: Key) -> (Nonce, Value) {
    let challenge = nonce_of(&hear(stream));
    let shown = proof(&key.with(None), Party::Sender, &challenge, &NONCE, "");
    say(stream, &json!({"expects": expects, "nonce": NONCE, "proof": shown}));
    (challenge, hear(stream))
}

/// Comes in as a sender with this hello. The receiver's answer.
pub(crate) fn enter<S: Read + Write>(stream: &mut S, to: &Endpoint, hello: &Value) -> Value {
    let (challenge, verdict) = show(stream, to.incarnation, to.key);
    assert!(verdict.get("proved").is_some(), "{verdict}");
    let number = |field: &str| Incarnation(hello[field].as_u64().unwrap());
    let names = format!("{} to {}", number("incarnation"), number("expects"));
    let proof = proof(&to.key.with(None), Party::Sender, &challenge, &NONCE, &names);
    say(stream, &json!({"hello": hello, "proof": proof}));
    hear(stream)
}

/// Lets a sender in as a receiver with this key.
pub(crate) fn let_in<S: Read + Write>(stream: &mut S, key: Key, welcome: &Value) {
    say(stream, &json!({"nonce": NONCE}));
    let shown = hear(stream);
    let proved = proof(&key.with(None), Party::Receiver, &NONCE, &nonce_of(&shown), "");
    say(stream, &json!({"proved": proved}));
    hear(stream);
    say(stream, welcome);
}
