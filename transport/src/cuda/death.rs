//! A sender that dies between its word and its copies, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use splitcore_core::id::RequestId;
use splitcore_core::kv::BlockId;

use super::fake::{Asked, Hardware};
use super::memory::{cuda_devices, cuda_pool, memory_of, pool_on};
use super::tests::{LAYERS, LONG, arrivals_until, device, range, receiver_on, shape};
use crate::connect::{ConnectOptions, connect};
use crate::error::TransferError;
use crate::handshake::{Endpoint, Incarnation};
use crate::landing::Arrival;
use crate::transfer::Grant;

const SENDER: Incarnation = Incarnation(0x5eed);
const ENDPOINT: &str = "SPLITCORE_TEST_ENDPOINT";
const GRANT: &str = "SPLITCORE_TEST_GRANT";

fn given<T: serde::de::DeserializeOwned>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| serde_json::from_str(&text).unwrap())
}

/// The sender, where the test below has started it: it publishes every layer, its copies never run, and it waits to
/// be killed.
#[test]
fn a_sender_that_waits_to_be_killed() {
    let (Some(to), Some(grant)) = (given::<Endpoint>(ENDPOINT), given::<Grant>(GRANT)) else { return };
    let hardware = Arc::new(Hardware::default());
    hardware.make_up(2 << 20);
    let pool = Arc::new(pool_on(device(&hardware, 2), shape()).unwrap());
    let link = connect(&pool, SENDER, &to, &ConnectOptions::new("m")).unwrap();
    hardware.freeze();
    link.begin(&grant).unwrap();
    for layer in 0..LAYERS {
        link.put(grant.key, layer, &[range(0, 0, layer)]).unwrap();
        link.publish(grant.key, layer, 4).unwrap();
    }
    let mut out = std::io::stdout();
    writeln!(out, "\npublished").unwrap();
    out.flush().unwrap();
    // Until it is killed, or its parent is gone.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    std::process::exit(1);
}

#[test]
fn layers_of_a_sender_that_dies_before_its_copies_run_are_not_trusted_and_memory_is_freed() {
    let hardware = Arc::new(Hardware::default());
    let pool = Arc::new(pool_on(device(&hardware, 1), shape()).unwrap());
    let receiver = receiver_on(&pool);
    let landing = receiver.landing();
    let bytes = u64::from(shape().layout.layer_block_bytes());
    let grant = landing.open(SENDER, RequestId(1), vec![BlockId(0)], bytes).unwrap();
    let key = grant.key;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cuda::death::a_sender_that_waits_to_be_killed", "--nocapture"])
        .env(ENDPOINT, serde_json::to_string(receiver.endpoint()).unwrap())
        .env(GRANT, serde_json::to_string(&grant).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let published = said.into_iter().any(|line| line == "published");
    assert!(published, "the sender has failed, see its errors above");
    assert!(landing.wait_layer(key, LAYERS - 1, LONG).is_ok(), "its word is there");
    assert!(matches!(landing.settled(key, Duration::ZERO), Err(TransferError::Timeout { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(landing.settled(key, LONG), Err(TransferError::PeerLost { key, peer: SENDER }));
    let seen = arrivals_until(&receiver, &Arrival::Fenced(key));
    assert!(seen.contains(&Arrival::Failed(key, TransferError::PeerLost { key, peer: SENDER })), "{seen:?}");
    landing.release(key).unwrap();
    let base = memory_of(&pool).unwrap().pointer();
    drop((receiver, pool));
    assert!(hardware.is_asked(Asked::Freed { base }), "it has died, so nothing is open there");
    hardware.kept_the_rules();
}

#[test]
fn without_a_driver_or_a_device_a_pool_is_refused_with_the_reason() {
    if let Ok(count) = cuda_devices() {
        let text = cuda_pool(shape(), count).map(drop).unwrap_err().to_string();
        assert_eq!(text, format!("no CUDA device {count}: the driver sees {count}"));
        return;
    }
    let text = cuda_pool(shape(), 0).map(drop).unwrap_err().to_string();
    let known = ["no CUDA driver: ", "no CUDA device: "];
    assert!(known.iter().any(|start| text.starts_with(start)), "{text}");
}
