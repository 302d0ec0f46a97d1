//! The service is killed in the middle of answers, and another one takes its place: who comes back gets the rest.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::common::events::{Called, Events, id};
use crate::kit::{Kit, pair, texts, told};

const COMPLETE: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
/// Of the worker, before the service is killed: some choices have come to their stop by then, and others not.
const PASSES: u64 = 12;

/// A request of `n` choices: letters without end, or a chat's line over and over.
fn body(n: usize, chat: bool, stop: &Value, tokens: u32) -> (&'static str, Value) {
    let mut body = json!({"n": n, "seed": 11, "max_tokens": tokens, "stop": stop, "ignore_eos": true});
    if chat {
        body["messages"] = json!([{"role": "user", "content": "# some words"}]);
    } else {
        body["prompt"] = json!("#");
    }
    (if chat { CHAT } else { COMPLETE }, body)
}

fn post(kit: &Kit, path: &str, headers: &str, body: &Value) -> Called {
    Events::call(kit.client(), "POST", path, headers, &body.to_string())
}

/// Looks that are told of an error, or of nothing, and give nothing up.
fn look(kit: &Kit, name: &str) {
    for last in ["x", "12,7,9,3,1", "99999999", "0.1.", "-1"] {
        let Called::Whole(answer) = kit.come_back(name, Some(last)) else { panic!("a stream for {last}") };
        assert_eq!(
            (answer.status, answer.json()["error"]["param"].as_str()),
            (400, Some("last-event-id")),
            "{last}"
        );
    }
    let mut client = kit.client();
    client
        .send(
            format!("HEAD /v1/requests/{name} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    let mut head = String::new();
    std::io::Read::read_to_string(&mut client.stream, &mut head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

fn streams(kit: &mut Kit, name: &str, n: usize, chat: bool, stop: &Value) {
    let (path, body) = body(n, chat, stop, 150);
    kit.ready();
    let whole = texts(&kit.client().post(path, &body));
    let passes = kit.worker.as_ref().unwrap().passes.clone();
    let mut events = kit.stream(path, &format!("x-request-id: {name}\r\n"), &body);
    passes.store(PASSES, Ordering::Relaxed);
    let mut seen: Vec<String> = (0..n * 6).map_while(|_| events.next()).collect();
    kit.wait("it stands still", |_| passes.load(Ordering::Relaxed) == 0);
    kit.restart();
    look(kit, name);
    let last = seen.iter().rev().find_map(|event| id(event));
    let Called::Stream(rest) = kit.come_back(name, last) else { panic!("{name}: no stream") };
    passes.store(u64::MAX, Ordering::Relaxed);
    seen.extend(rest.rest());
    assert_eq!(told(&seen, n), whole, "{name}: the rest");
    let Called::Stream(all) = kit.come_back(name, None) else { panic!("{name}: no stream") };
    assert_eq!(told(&all.rest(), n), whole, "{name}: all of it");
    kit.idle();
}

fn is_whole(kit: &mut Kit, name: &str, n: usize, chat: bool, stop: &Value) {
    let (path, body) = body(n, chat, stop, 150);
    kit.ready();
    let whole = texts(&kit.client().post(path, &body));
    let passes = kit.worker.as_ref().unwrap().passes.clone();
    passes.store(PASSES, Ordering::Relaxed);
    let mut client = kit.client();
    let (headers, text) =
        (format!("x-request-id: {name}\r\ncontent-type: application/json\r\n"), body.to_string());
    let length = text.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{text}");
    client.send(head.as_bytes()).unwrap();
    kit.wait("it stands still", |_| passes.load(Ordering::Relaxed) == 0);
    kit.restart();
    look(kit, name);
    passes.store(u64::MAX, Ordering::Relaxed);
    let Called::Whole(answer) = kit.come_back(name, None) else { panic!("{name}: a stream") };
    assert_eq!(texts(&answer), whole, "{name}");
    kit.idle();
}

#[test]
fn streams_of_several_choices_go_on_with_the_next_service() {
    let mut kit = Kit::start();
    for (at, (n, chat, stop)) in [
        (1, false, Value::Null),
        (2, false, json!("q")),
        (3, true, Value::Null),
        (4, false, json!(["ab", "z"])),
        (128, false, Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        streams(&mut kit, &format!("stream-{at}"), n, chat, &stop);
    }
}

#[test]
fn whole_answers_of_several_choices_have_all_of_them_after_a_restart() {
    let mut kit = Kit::start();
    for (at, (n, chat, stop)) in
        [(1, true, Value::Null), (4, false, json!("q")), (3, false, Value::Null), (2, true, json!("words"))]
            .into_iter()
            .enumerate()
    {
        is_whole(&mut kit, &format!("whole-{at}"), n, chat, &stop);
    }
}

#[test]
fn who_leaves_after_a_restart_cancels_as_before_it() {
    let mut kit = Kit::start();
    let (path, body) = body(2, false, &Value::Null, 400);
    let mut events = kit.stream(path, "x-request-id: leaves\r\n", &body);
    let first = events.next().unwrap();
    kit.worker.as_ref().unwrap().hold.store(true, Ordering::Relaxed);
    kit.restart();
    let Called::Stream(rest) = kit.come_back("leaves", id(&first)) else { panic!("no stream") };
    rest.leave();
    kit.wait("it is given up", |client| client.get("/v1/overview").json()["counters"]["cancelled"] == 2);
    kit.worker.as_ref().unwrap().hold.store(false, Ordering::Relaxed);
    kit.idle();
    kit.ready();
    let Called::Whole(answer) = post(&kit, COMPLETE, "x-request-id: leaves\r\n", &json!({"prompt": "ab\n"}))
    else {
        panic!("a stream")
    };
    assert_eq!(texts(&answer), [pair("ab", "stop")]);
}
