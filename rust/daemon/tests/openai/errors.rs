//! What is refused, and what fails: the status and the shape that clients act on.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use splitcore_daemon::Options;

use crate::common::events::{Called, Events, data};
use crate::common::{Answer, Service, options};
use crate::kit::{Kit, managed, texts};

const COMPLETE: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn assert_refused(answer: &Answer, status: u16, code: &str, param: Option<&str>, about: &Value) {
    let error = &answer.json()["error"];
    let got = (answer.status, answer.code(), error["param"].as_str());
    assert_eq!(got, (status, code.to_owned(), param), "{about}: {error}");
}

#[test]
fn a_field_that_is_wrong_is_named() {
    let kit = Kit::start();
    let with = |field: &str, value: Value| {
        let mut body = json!({"prompt": "a\n"});
        body[field] = value;
        body
    };
    let long = "x".repeat(5000);
    let table = [
        ("temperature", json!(2.5), "invalid_value"),
        ("temperature", json!("hot"), "invalid_value"),
        ("top_p", json!(0), "invalid_value"),
        ("top_p", json!(1.1), "invalid_value"),
        ("n", json!(0), "invalid_value"),
        ("n", json!(129), "invalid_value"),
        ("n", json!(-1), "invalid_value"),
        ("best_of", json!(2), "unsupported_parameter"),
        ("max_tokens", json!(0), "invalid_value"),
        ("max_tokens", json!(512), "context_length_exceeded"),
        ("max_tokens", json!(1.5), "invalid_value"),
        ("max_completion_tokens", json!(5), "unknown_parameter"),
        ("messages", json!([]), "unknown_parameter"),
        ("stop", json!(""), "invalid_value"),
        ("stop", json!(["a", "b", "c", "d", "e"]), "invalid_value"),
        ("stop", json!("x".repeat(257)), "invalid_value"),
        ("stop", json!(5), "invalid_value"),
        ("stop_token_ids", json!([257]), "invalid_value"),
        ("seed", json!("x"), "invalid_value"),
        ("seed", json!(1.5), "invalid_value"),
        ("stream", json!("yes"), "invalid_value"),
        ("stream_options", json!({"include_usage": true}), "invalid_value"),
        ("echo", json!(true), "unsupported_parameter"),
        ("logprobs", json!(0), "unsupported_parameter"),
        ("suffix", json!("x"), "unsupported_parameter"),
        ("frequency_penalty", json!(0.5), "unsupported_parameter"),
        ("logit_bias", json!({"5": 1}), "unsupported_parameter"),
        ("colour", json!(null), "unknown_parameter"),
        ("prompt", json!([]), "invalid_value"),
        ("prompt", json!(""), "invalid_value"),
        ("prompt", json!([1, "a"]), "invalid_value"),
        ("prompt", json!([257]), "invalid_value"),
        ("prompt", json!([[]]), "invalid_value"),
        ("prompt", json!({"text": "a"}), "invalid_value"),
        ("prompt", json!(null), "invalid_value"),
        ("prompt", json!(long), "context_length_exceeded"),
        ("prompt", json!("x".repeat(512)), "context_length_exceeded"),
    ];
    for (field, value, code) in table {
        let body = with(field, value);
        let answer = kit.complete(&body);
        let param =
            if field == "prompt" && body["prompt"][0].is_array() { Some("prompt") } else { Some(field) };
        assert_refused(&answer, 400, code, param, &body);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert_refused(
        &kit.complete(&with("model", json!("other"))),
        404,
        "model_not_found",
        Some("model"),
        &json!("model"),
    );
    assert_eq!(kit.ends("error"), 0.0);
}

#[test]
fn what_changes_nothing_is_taken() {
    let kit = Kit::start();
    let neutral = json!({
        "model": null, "n": null, "stop": null, "seed": null, "temperature": 0, "top_p": 1, "best_of": 1, "echo": false,
        "logprobs": null, "suffix": null, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "user": "me",
        "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "top_k": -1, "stream": false, "stream_options": null, "parallel_tool_calls": true,
    });
    let mut body = neutral.clone();
    body["prompt"] = json!("ab\n");
    assert_eq!(texts(&kit.complete(&body))[0].0, "ab");
    let mut body = neutral;
    body.as_object_mut().unwrap().remove("best_of");
    body["messages"] = json!([{"role": "user", "content": "", "name": null, "tool_calls": null}]);
    assert_eq!(texts(&kit.chat(&body))[0].0, "<user>");
}

#[test]
fn a_conversation_that_is_wrong_is_named() {
    let kit = Kit::start();
    let user = json!({"role": "user", "content": "a"});
    let table = [
        (json!([]), Some("messages"), "invalid_value"),
        (json!([{"role": "tool", "content": "a"}]), Some("messages[0].role"), "invalid_value"),
        (json!([user, {"role": "user"}]), Some("messages[1]"), "invalid_value"),
        (json!([{"role": "user", "content": 5}]), Some("messages[0].content"), "invalid_value"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            Some("messages[0].content[0].type"),
            "invalid_value",
        ),
        (
            json!([{"role": "assistant", "content": "", "tool_calls": [{}]}]),
            Some("messages[0].tool_calls"),
            "unsupported_parameter",
        ),
        (
            json!([{"role": "assistant", "content": "no template takes this"}]),
            Some("messages"),
            "invalid_value",
        ),
        (json!([{"role": "user", "content": "x".repeat(600)}]), Some("messages"), "context_length_exceeded"),
    ];
    for (messages, param, code) in table {
        let body = json!({"messages": messages});
        assert_refused(&kit.chat(&body), 400, code, param, &body);
    }
    let body = json!({"messages": [user], "prompt": "a"});
    assert_refused(&kit.chat(&body), 400, "unknown_parameter", Some("prompt"), &body);
    let body = json!({"messages": [user], "tools": [{"type": "function"}]});
    assert_refused(&kit.chat(&body), 400, "unsupported_parameter", Some("tools"), &body);
    assert!(
        kit.chat(&json!({"messages": [{"role": "assistant", "content": ""}]}))
            .message()
            .contains("begin with a user")
    );
}

#[test]
fn what_is_no_request_is_told_as_elsewhere() {
    let kit = Kit::start();
    let mut client = kit.client();
    for path in [COMPLETE, CHAT] {
        assert_refused(&client.post_text(path, "{"), 400, "malformed_json", None, &json!(path));
        assert_refused(&client.post_text(path, "[]"), 400, "invalid_value", None, &json!(path));
        assert_refused(
            &client.call("POST", path, "", b"{}"),
            415,
            "content_type",
            Some("content-type"),
            &json!(path),
        );
        assert_eq!(client.get(path).status, 405);
    }
    let long = format!("content-type: application/json\r\nx-request-id: {}\r\n", "x".repeat(129));
    let answer = client.call("POST", COMPLETE, &long, b"{\"prompt\": \"a\"}");
    assert_refused(&answer, 400, "invalid_value", Some("x-request-id"), &json!("id"));
    assert_refused(&client.get("/v1/requests/none"), 404, "unknown_request", None, &json!("attach"));
    kit.stream(COMPLETE, "x-request-id: r\r\n", &json!({"prompt": "a\n"})).rest();
    for last in ["x", "1,2", "", "-1"] {
        let Called::Whole(answer) = kit.attach("r", Some(last)) else { panic!("a stream for {last}") };
        assert_refused(&answer, 400, "invalid_value", Some("last-event-id"), &json!(last));
    }
}

#[test]
fn a_service_without_a_model_says_so_and_one_with_a_model_places_for_nobody() {
    let service = Service::start(options());
    let mut client = service.client();
    for path in [COMPLETE, CHAT] {
        assert_refused(&client.post(path, &json!({"prompt": "a"})), 404, "no_model", None, &json!(path));
    }
    for path in ["/v1/models", "/v1/models/m", "/v1/requests/r"] {
        assert_refused(&client.get(path), 404, "no_model", None, &json!(path));
    }
    let kit = Kit::start();
    let mut client = kit.client();
    let placing = json!({"prompt_tokens": 1, "max_new_tokens": 1});
    assert_refused(&client.post("/v1/placements", &placing), 409, "own_workers", None, &placing);
    let reports = json!({"reports": []});
    assert_refused(&client.post("/v1/reports", &reports), 409, "own_workers", None, &reports);
    for path in ["/v1/placements/1", "/v1/machines/w"] {
        assert_refused(&client.delete(path), 409, "own_workers", None, &json!(path));
    }
}

#[test]
fn overload_keeps_its_status_and_says_when_to_come_back() {
    let kit = Kit::with(Options { requests_max: 2, recovery_headroom: Some(0.0), ..managed() });
    let worker = kit.worker.as_ref().unwrap();
    worker.hold.store(true, Ordering::Relaxed);
    let ask = |name: &str, n: u32| {
        let headers = format!("x-request-id: {name}\r\n");
        let body = json!({"prompt": "a\n", "n": n, "stream": true}).to_string();
        (headers, body)
    };
    // It waits for its first byte on a thread of its own.
    let (headers, body) = ask("first", 1);
    let client = kit.client();
    let first = std::thread::spawn(move || Events::call(client, "POST", COMPLETE, &headers, &body));
    kit.wait("it lives", |client| client.check() == 1);
    let call = |name: &str, n: u32| {
        let (headers, body) = ask(name, n);
        let Called::Whole(answer) = Events::call(kit.client(), "POST", COMPLETE, &headers, &body) else {
            panic!("it was accepted")
        };
        answer
    };
    let full = call("second", 2);
    assert_refused(&full, 429, "requests_max", None, &json!("full"));
    assert_eq!(
        (full.header("retry-after"), full.json()["error"]["type"].as_str()),
        (Some("1"), Some("rate_limit_error"))
    );
    assert_refused(&call("first", 1), 409, "duplicate_request", Some("x-request-id"), &json!("twice"));
    worker.hold.store(false, Ordering::Relaxed);
    let Called::Stream(events) = first.join().unwrap() else { panic!("no stream") };
    assert_eq!(events.rest().last().unwrap(), "data: [DONE]\n\n");
    let alone = Service::start(managed());
    let answer = alone.client().post(COMPLETE, &json!({"prompt": "a"}));
    assert_refused(&answer, 503, "no_machine", None, &json!("no worker"));
    assert!(answer.header("retry-after").is_some());
}

#[test]
fn from_the_signal_on_nothing_new_begins() {
    let mut kit = Kit::start();
    let events = kit.stream(COMPLETE, "x-request-id: drains\r\n", &json!({"prompt": "a|\n"}));
    kit.service.stop();
    kit.wait("it drains", |client| client.get("/readyz").status == 503);
    let answer = kit.complete(&json!({"prompt": "a"}));
    assert_refused(&answer, 503, "shutting_down", None, &json!("drains"));
    crate::kit::open("drains");
    assert_eq!(events.rest().last().unwrap(), "data: [DONE]\n\n");
    kit.service.join();
}

/// A worker that dies for good takes its requests with it.
fn fragile() -> Options {
    Options { attempts_max: 1, rejoin_limit_s: 0.05, ..managed() }
}

#[test]
fn a_failure_before_the_first_byte_is_a_status() {
    let mut kit = Kit::with(fragile());
    kit.worker.as_ref().unwrap().hold.store(true, Ordering::Relaxed);
    let call = |stream: bool| {
        let (client, body) = (kit.client(), json!({"prompt": "a\n", "stream": stream}).to_string());
        std::thread::spawn(move || Events::call(client, "POST", COMPLETE, "", &body))
    };
    let calls = [call(true), call(false)];
    kit.wait("both live", |client| client.check() == 2);
    drop(kit.worker.take());
    for call in calls {
        let Called::Whole(answer) = call.join().unwrap() else { panic!("a stream") };
        assert_refused(&answer, 502, "attempts_max", None, &json!("before"));
    }
    assert_eq!(kit.ends("error"), 2.0);
}

#[test]
fn a_failure_after_the_first_byte_is_an_event_and_a_finish_reason() {
    let mut kit = Kit::with(fragile());
    let body = json!({"messages": [{"role": "user", "content": "|abc"}], "n": 2});
    let mut events = kit.stream(CHAT, "x-request-id: f\r\n", &body);
    let mut all: Vec<String> = (0..4).map(|_| events.next().unwrap()).collect();
    kit.worker.as_ref().unwrap().hold.store(true, Ordering::Relaxed);
    crate::kit::open("f");
    drop(kit.worker.take());
    all.extend(events.rest());
    let shown: Vec<Value> = all.iter().filter_map(|event| data(event)).collect();
    let failed = shown.iter().filter(|data| data["choices"][0]["finish_reason"] == "error");
    let of: Vec<&Value> = failed.map(|data| &data["choices"][0]["index"]).collect();
    assert!(of.contains(&&json!(0)) && of.contains(&&json!(1)) && of.len() == 2, "{shown:?}");
    let error = &shown.last().unwrap()["error"];
    assert_eq!((&error["code"], &error["type"]), (&json!("attempts_max"), &json!("server_error")));
    assert_eq!(all.last().unwrap(), "data: [DONE]\n\n");
    assert_eq!(kit.ends("error"), 2.0);
}
