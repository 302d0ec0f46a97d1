//! Streams: the bytes, when they come, who leaves and who comes back.

use std::sync::atomic::Ordering;

use serde_json::json;
use splitcore_daemon::Options;

use crate::common::events::{Called, data, id};
use crate::kit::{Kit, managed, open, pair, texts, told};

const COMPLETE: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// All events as one text, with the time of day taken out.
fn bytes(events: &[String]) -> String {
    let text = events.concat();
    let mut parts = text.split("\"created\":");
    let mut shown = parts.next().unwrap().to_owned();
    for part in parts {
        shown.push_str("\"created\":0");
        shown.push_str(part.trim_start_matches(|char: char| char.is_ascii_digit()));
    }
    shown
}

#[test]
fn a_completion_streams_to_the_byte() {
    let kit = Kit::start();
    let body = json!({"prompt": "a\u{e9}b\n", "max_tokens": 20, "stream_options": {"include_usage": true}});
    let events = kit.stream(COMPLETE, "x-request-id: r1\r\n", &body);
    assert!(events.head().to_lowercase().contains("content-type: text/event-stream; charset=utf-8\r\n"));
    assert!(events.head().to_lowercase().contains("x-request-id: r1\r\n"));
    let chunk = |id: u32, text: &str, finish: &str| {
        format!(
            "id: {id}\ndata: {{\"id\":\"r1\",\"object\":\"text_completion\",\"created\":0,\"model\":\"org/tiny\",\
             \"choices\":[{{\"index\":0,\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":{finish}}}],\"usage\":null}}\n\n"
        )
    };
    // The second token is half a character: nothing to tell.
    let expected = [
        chunk(1, "a", "null"),
        chunk(3, "\u{e9}", "null"),
        chunk(4, "b", "null"),
        chunk(5, "", "\"stop\""),
        "data: {\"id\":\"r1\",\"object\":\"text_completion\",\"created\":0,\"model\":\"org/tiny\",\"choices\":[],\
         \"usage\":{\"prompt_tokens\":5,\"completion_tokens\":5,\"total_tokens\":10}}\n\n"
            .to_owned(),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(bytes(&events.rest()), expected.concat());
}

#[test]
fn a_chat_streams_to_the_byte() {
    let kit = Kit::start();
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
    let events = kit.stream(CHAT, "x-request-id: r2\r\n", &body).rest();
    let chunk = |id: u32, delta: &str, finish: &str| {
        format!(
            "id: {id}\ndata: {{\"id\":\"r2\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"org/tiny\",\
             \"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let expected = [
        chunk(0, "{\"role\":\"assistant\",\"content\":\"\"}", "null"),
        chunk(1, "{\"content\":\"<\"}", "null"),
        chunk(2, "{\"content\":\"u\"}", "\"length\""),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(bytes(&events), expected.concat());
}

#[test]
fn a_stream_says_what_a_whole_answer_says() {
    let kit = Kit::start();
    let body = json!({"prompt": ["h\u{e9}llo w\u{f6}rld\n", "#"], "n": 2, "seed": 1, "max_tokens": 12, "stop": ["rld", "zz"]});
    assert_eq!(told(&kit.stream(COMPLETE, "", &body).rest(), 4), texts(&kit.complete(&body)));
}

#[test]
fn the_first_token_leaves_while_the_rest_is_still_to_come() {
    let kit = Kit::start();
    let body = json!({"prompt": "a|b\n", "max_tokens": 20});
    let mut events = kit.stream(COMPLETE, "x-request-id: early\r\n", &body);
    assert_eq!(data(&events.next().unwrap()).unwrap()["choices"][0]["text"], "a");
    assert_eq!(data(&events.next().unwrap()).unwrap()["choices"][0]["text"], "|");
    // What is behind the gate can only come now.
    open("early");
    assert_eq!(told(&events.rest(), 1), [pair("b", "stop")]);
}

#[test]
fn who_leaves_cancels_streaming_or_not() {
    let kit = Kit::start();
    let body = json!({"prompt": "a|b\n", "max_tokens": 20});
    let mut events = kit.stream(COMPLETE, "x-request-id: leaves\r\n", &body);
    events.next().unwrap();
    events.leave();
    kit.wait("it is cancelled", |_| kit.ends("cancelled") == 1.0);
    open("leaves");
    kit.idle();
    kit.worker.as_ref().unwrap().hold.store(true, Ordering::Relaxed);
    let mut client = kit.client();
    let text = body.to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ";
    client.send(format!("{head}{}\r\n\r\n{text}", text.len()).as_bytes()).unwrap();
    kit.wait("it is accepted", |client| Kit::metric(client, "splitcore_requests_running") == 1.0);
    drop(client);
    kit.wait("it is cancelled", |_| kit.ends("cancelled") == 2.0);
    kit.worker.as_ref().unwrap().hold.store(false, Ordering::Relaxed);
    kit.idle();
}

#[test]
fn nothing_is_answered_before_a_machine_has_the_request() {
    let kit = Kit::start();
    let worker = kit.worker.as_ref().unwrap();
    worker.hold.store(true, Ordering::Relaxed);
    let body = json!({"prompt": "ab\n", "n": 2, "stream": true}).to_string();
    let mut client = kit.client();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ";
    client.send(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    kit.wait("it is accepted", |client| Kit::metric(client, "splitcore_requests_running") == 1.0);
    client.stream.set_nonblocking(true).unwrap();
    let none = client.stream.peek(&mut [0]).expect_err("no byte yet");
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
    client.stream.set_nonblocking(false).unwrap();
    worker.hold.store(false, Ordering::Relaxed);
    let mut first = [0; 12];
    std::io::Read::read_exact(&mut client.stream, &mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
}

/// For every event that has an id, whoever has it gets what is behind it, and nothing else.
fn assert_resumes(kit: &Kit, name: &str, all: &[String]) {
    for (at, event) in all.iter().enumerate() {
        let Some(last) = id(event) else { continue };
        let Called::Stream(events) = kit.attach(name, Some(last)) else { panic!("{last}: no stream") };
        assert_eq!(events.rest(), all[at + 1..], "behind {last}");
    }
    let Called::Stream(events) = kit.attach(name, None) else { panic!("no stream") };
    assert_eq!(events.rest(), *all, "from the start");
}

#[test]
fn who_comes_back_gets_exactly_the_rest() {
    let kit = Kit::start();
    let body = json!({"prompt": "on\u{20ac}, two\n", "max_tokens": 30, "stop": ["never", "tw, "], "stream_options": {"include_usage": true}});
    assert_resumes(&kit, "plain", &kit.stream(COMPLETE, "x-request-id: plain\r\n", &body).rest());
    let body = json!({"prompt": "one, two\n", "max_tokens": 30, "stop": ["wo"]});
    assert_resumes(&kit, "stop", &kit.stream(COMPLETE, "x-request-id: stop\r\n", &body).rest());
    let body = json!({"messages": [{"role": "user", "content": "h\u{e9}"}]});
    assert_resumes(&kit, "chat", &kit.stream(CHAT, "x-request-id: chat\r\n", &body).rest());
}

#[test]
fn who_comes_back_to_several_choices_gets_the_rest_of_each() {
    let kit = Kit::start();
    let body = json!({"messages": [{"role": "user", "content": "some words"}], "n": 3, "max_tokens": 9});
    let all = kit.stream(CHAT, "x-request-id: many\r\n", &body).rest();
    let whole = told(&all, 3);
    for (at, event) in all.iter().enumerate() {
        let Some(last) = id(event) else { continue };
        let Called::Stream(events) = kit.attach("many", Some(last)) else { panic!("{last}: no stream") };
        let (before, rest) = (told(&all[..=at], 3), told(&events.rest(), 3));
        let joined =
            before.iter().zip(&rest).map(|(one, other)| (one.0.clone() + &other.0, one.1.clone() + &other.1));
        assert_eq!(joined.collect::<Vec<_>>(), whole, "behind {last}");
    }
}

#[test]
fn who_comes_back_while_it_runs_goes_on_with_it() {
    let kit = Kit::start();
    let body = json!({"prompt": "ab|cd\n", "max_tokens": 20});
    let mut first = kit.stream(COMPLETE, "x-request-id: live\r\n", &body);
    let mut seen: Vec<String> = (0..3).map(|_| first.next().unwrap()).collect();
    let Called::Stream(second) = kit.attach("live", id(&seen[0])) else { panic!("no stream") };
    first.leave();
    open("live");
    let rest = second.rest();
    seen.truncate(1);
    seen.extend(rest);
    assert_eq!(told(&seen, 1), [pair("ab|cd", "stop")]);
    assert_eq!(seen.last().unwrap(), "data: [DONE]\n\n");
    kit.idle();
}

#[test]
fn who_does_not_read_is_cut_off() {
    let kit = Kit::with(Options { write_timeout_s: 0.2, ..managed() });
    let body = json!({"prompt": "#", "n": 128, "max_tokens": 500});
    let events = kit.stream(COMPLETE, "", &body);
    kit.wait("it is cut off", |_| kit.ends("cancelled") > 0.0);
    drop(events);
    kit.idle();
}

#[test]
fn ids_of_events_are_short_however_many_choices_there_are() {
    let kit = Kit::start();
    let body = json!({"prompt": "#", "n": 128, "max_tokens": 20, "seed": 3});
    let events = kit.stream(COMPLETE, "x-request-id: wide\r\n", &body).rest();
    // However far apart the choices are, with at most 20 tokens five bits are enough for each, six of which are a letter.
    let most = Some("20.5.".len() + (128 * 5_usize).div_ceil(6));
    let longest = events.iter().filter_map(|event| id(event)).map(str::len).max();
    assert!(longest <= most, "{longest:?} letters");
    let Called::Stream(again) = kit.attach("wide", None) else { panic!("no stream") };
    let again = again.rest();
    let longest = again.iter().filter_map(|event| id(event)).map(str::len).max();
    assert!(longest <= most, "{longest:?} letters when it is told again");
    assert_eq!(told(&again, 128), told(&events, 128));
}

#[test]
fn an_answer_that_is_told_again_lets_others_on() {
    let kit = Kit::start();
    let body = json!({"prompt": "#", "n": 128, "max_tokens": 300, "seed": 3});
    let all = kit.stream(COMPLETE, "x-request-id: big\r\n", &body).rest();
    let (mut client, mut other) = (kit.client(), kit.client());
    client.send(b"GET /v1/requests/big HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut client.stream, &mut bytes).unwrap();
        bytes.len()
    });
    let mut meanwhile = 0;
    while !reader.is_finished() {
        assert_eq!(other.get("/healthz").status, 200);
        meanwhile += 1;
    }
    assert!(reader.join().unwrap() > all.len() * 100);
    assert!(meanwhile > 20, "{meanwhile} calls were answered meanwhile");
}
