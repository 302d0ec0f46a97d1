//! What is refused, and what fails: the status and the shape that clients act on.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use splitcore_daemon::Options;

use crate::common::events::{Called, Events, data};
use crate::common::{Answer, Service, options};
use crate::kit::{Kit, managed, pair, texts, told};

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
        ("messages", json!([]), "unknown_parameter"),
        ("stop", json!(vec!["a"; 257]), "invalid_value"),
        ("stop", json!(vec!["x".repeat(256); 65]), "invalid_value"),
        ("stop", json!("x".repeat(257)), "invalid_value"),
        ("stop", json!(5), "invalid_value"),
        ("stop_token_ids", json!([257]), "invalid_value"),
        ("seed", json!("x"), "invalid_value"),
        ("seed", json!(1.5), "invalid_value"),
        ("stream", json!("yes"), "invalid_value"),
        ("echo", json!(true), "unsupported_parameter"),
        ("logprobs", json!(1), "unsupported_parameter"),
        ("logprobs", json!(true), "unsupported_parameter"),
        ("min_tokens", json!(17), "invalid_value"),
        ("min_tokens", json!(-1), "invalid_value"),
        ("top_k", json!(5), "unsupported_parameter"),
        ("repetition_penalty", json!(1.1), "unsupported_parameter"),
        ("response_format", json!({"type": "json_object"}), "unsupported_parameter"),
        ("guided_json", json!({"type": "object"}), "unsupported_parameter"),
        ("structured_outputs", json!({"regex": "a+"}), "unsupported_parameter"),
        ("suffix", json!("x"), "unsupported_parameter"),
        ("frequency_penalty", json!(0.5), "unsupported_parameter"),
        ("logit_bias", json!({"5": 1}), "unsupported_parameter"),
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
    let neutral: Value = serde_json::from_str(
        r#"{
        "model": null, "n": null, "stop": null, "seed": null, "temperature": 0, "top_p": 1, "best_of": 1, "echo": false,
        "logprobs": null, "suffix": null, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "user": "me",
        "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "top_k": -1, "stream": false, "stream_options": null, "parallel_tool_calls": true,
        "min_tokens": 0, "min_p": 0.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "use_beam_search": false,
        "skip_special_tokens": true, "include_stop_str_in_output": false, "allowed_token_ids": null, "bad_words": [],
        "guided_json": null, "structured_outputs": null, "chat_template_kwargs": {}, "top_logprobs": 0, "prompt_logprobs": null,
        "add_generation_prompt": true, "continue_final_message": false, "prediction": null, "modalities": ["text"]
    }"#,
    )
    .unwrap();
    let mut body = neutral.clone();
    body["prompt"] = json!("ab\n");
    assert_eq!(texts(&kit.complete(&body))[0].0, "ab");
    let mut body = neutral;
    body.as_object_mut().unwrap().remove("best_of");
    body["messages"] = json!([{"role": "user", "content": "", "name": null, "tool_calls": null}]);
    assert_eq!(texts(&kit.chat(&body))[0].0, "<user>");
}

/// What an answer's header lists as passed over.
fn ignored(answer: &Answer) -> Option<&str> {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.header("x-splitcore-ignored")
}

#[test]
fn what_common_clients_send_is_taken_and_what_is_passed_over_is_listed() {
    let kit = Kit::start();
    let complete = |field: &str, value: Value| {
        let mut body = json!({"prompt": "ab\n"});
        body[field] = value;
        kit.complete(&body)
    };
    let taken = [
        ("max_completion_tokens", json!(5), None),
        ("stop", json!(""), None),
        ("stop", json!(["", "x", "y", "z", "w", "v"]), None),
        ("logprobs", json!(0), None),
        ("seed", json!(u64::MAX), None),
        ("seed", json!(-5), None),
        ("seed", serde_json::from_str("123456789012345678901234567890").unwrap(), None),
        ("chat_id", json!("c-1"), Some("chat_id")),
        ("extra_body", json!({}), None),
        ("reasoning_effort", json!("none"), Some("reasoning_effort")),
        ("colour", json!(null), None),
        ("logit_bias", json!({"5": 0}), None),
        ("stream_options", json!({"include_usage": true}), None),
        ("stream_options", json!({"later": 1}), Some("stream_options.later")),
        ("bad, name", json!(1), None),
    ];
    for (field, value, noted) in taken {
        let answer = complete(field, value.clone());
        assert_eq!((ignored(&answer), texts(&answer)[0].0.as_str()), (noted, "ab"), "{field}: {value}");
    }
    let both = kit.complete(&json!({"prompt": "#", "max_tokens": 3, "max_completion_tokens": 5}));
    assert_eq!(texts(&both)[0].0.len(), 3);
    let user = json!({"role": "user", "content": ["a", {"type": "input_text", "text": "b", "cache_control": {}}], "message_id": 5});
    let dumped = json!({"role": "assistant", "content": "c", "refusal": null, "annotations": [], "audio": null,
                        "function_call": null, "tool_calls": []});
    let silent = [
        json!({"role": "assistant", "content": null}),
        json!({"role": "assistant"}),
        json!({"role": "user", "content": null}),
    ];
    let mut messages = vec![user, dumped];
    messages.extend(silent);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let answer = kit.chat(&json!({"messages": messages, "tools": tools, "tool_choice": "none"}));
    assert_eq!((ignored(&answer), texts(&answer)[0].0.as_str()), (Some("messages.message_id"), "<user>a"));
    let prompt = "<user>a\nb\n<assistant>c\n<assistant>\n<assistant>\n<user>\n<assistant>";
    assert_eq!(answer.json()["usage"]["prompt_tokens"], prompt.len());
    let refused = kit.chat(&json!({"messages": messages, "tools": tools}));
    let message = refused.message();
    assert!(
        message.starts_with("tools: ") && message.contains("\"function\"") && message.contains("is taken"),
        "{message}"
    );
}

#[test]
fn an_output_has_its_least_number_of_tokens() {
    let kit = Kit::start();
    let ask = |body: Value| (texts(&kit.complete(&body)), told(&kit.stream(COMPLETE, "", &body).rest(), 1));
    // The model says its end after two letters, over and over.
    let body = json!({"prompt": "ab\n", "min_tokens": 5, "max_tokens": 9});
    let (whole, streamed) = ask(body.clone());
    assert_eq!(kit.complete(&body).json()["usage"]["completion_tokens"], 6);
    assert_eq!((&whole, whole[0].1.as_str()), (&streamed, "stop"));
    let (whole, streamed) =
        ask(json!({"prompt": "one two one two\n", "stop": "two", "min_tokens": 8, "max_tokens": 30}));
    assert_eq!((whole, streamed), (vec![pair("one two one ", "stop")], vec![pair("one two one ", "stop")]));
    let (whole, _) = ask(json!({"prompt": "ab\n", "min_tokens": 4, "max_tokens": 4, "ignore_eos": false}));
    assert_eq!(whole[0].1, "length");
}

#[test]
fn usage_goes_with_every_event_where_that_is_asked_for() {
    let kit = Kit::start();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = kit.stream(COMPLETE, "", &json!({"prompt": "ab\n", "stream_options": options})).rest();
    let counts =
        events.iter().filter_map(|event| data(event)).map(|data| data["usage"]["completion_tokens"].as_u64());
    assert_eq!(counts.collect::<Vec<_>>(), [Some(1), Some(2), Some(3), Some(3)]);
}

#[test]
fn a_path_that_is_not_there_says_what_is() {
    let kit = Kit::start();
    for (path, says) in [
        ("/v1/responses", "/v1/chat/completions"),
        ("/v1/embeddings", "/v1/completions"),
        ("/v1/x", "/openapi.json"),
    ] {
        let answer = kit.client().post(path, &json!({}));
        assert_refused(&answer, 404, "unknown_path", None, &json!(path));
        assert!(answer.message().contains(says), "{}", answer.message());
    }
}

/// The body is long, and no part of it is.
#[test]
fn thousands_of_messages_without_text_keep_nobody_waiting() {
    let kit = Kit::with(Options { body_bytes_max: 8 << 20, ..managed() });
    let messages = vec![json!({"role": "user", "content": ""}); 100_000];
    let text = json!({"messages": messages}).to_string();
    let (mut client, mut other) = (kit.client(), kit.client());
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    client.send(head.as_bytes()).unwrap();
    client.send(text.as_bytes()).unwrap();
    // Others are answered meanwhile: the long one is not there when the first of these is.
    client.stream.set_nonblocking(true).unwrap();
    let mut meanwhile = 0;
    while client.stream.peek(&mut [0]).is_err() {
        assert_eq!(other.get("/healthz").status, 200);
        meanwhile += 1;
    }
    client.stream.set_nonblocking(false).unwrap();
    assert_refused(
        &client.answer().unwrap(),
        400,
        "context_length_exceeded",
        Some("messages"),
        &json!("long"),
    );
    assert!(meanwhile > 3, "{meanwhile} calls were answered meanwhile");
}

#[test]
fn a_conversation_that_is_wrong_is_named() {
    let kit = Kit::start();
    let user = json!({"role": "user", "content": "a"});
    let table = [
        (json!([]), Some("messages"), "invalid_value"),
        (json!([{"role": "tool", "content": "a"}]), Some("messages[0].role"), "invalid_value"),
        (json!([user, {"role": "user"}]), Some("messages[1].content"), "invalid_value"),
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
    for last in ["x", "1,2", "", "-1", "+1", "9999999999", "18", "01"] {
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
