//! Whole answers: shapes, choices, seeds, stops, counts.

use serde_json::{Value, json};

use crate::kit::{Kit, open, pair, texts};

fn without_created(mut body: Value) -> Value {
    let created = body["created"].take();
    assert!(created.as_u64().is_some_and(|seconds| seconds > 1_700_000_000), "{created}");
    body
}

#[test]
fn a_completion_has_the_shape_that_clients_read() {
    let kit = Kit::start();
    let answer = kit.complete(&json!({"model": "org/tiny", "prompt": "h\u{e9}llo\nx", "max_tokens": 20}));
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("cmpl-") && id.len() == 37, "{id}");
    assert_eq!(answer.header("x-request-id"), Some(id.as_str()));
    let expected = json!({
        "id": id, "object": "text_completion", "created": null, "model": "org/tiny",
        "choices": [{"index": 0, "text": "h\u{e9}llo", "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 8, "completion_tokens": 7, "total_tokens": 15},
    });
    assert_eq!(without_created(answer.json()), expected);
}

#[test]
fn a_chat_has_the_shape_that_clients_read_and_the_clients_own_id() {
    let kit = Kit::start();
    let body = json!({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                                   {"role": "user", "content": "c", "name": "me"}], "user": "u", "store": false});
    let answer = kit.client().call(
        "POST",
        "/v1/chat/completions",
        "content-type: application/json\r\nx-request-id: mine/1\r\n",
        body.to_string().as_bytes(),
    );
    let prompt = "<system>a\nb\n<user>c\n<assistant>";
    let expected = json!({
        "id": "mine/1", "object": "chat.completion", "created": null, "model": "org/tiny",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "<system>a", "refusal": null},
            "logprobs": null, "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": prompt.len(), "completion_tokens": 10, "total_tokens": prompt.len() + 10},
    });
    assert_eq!(without_created(answer.json()), expected);
    assert_eq!(answer.header("x-request-id"), Some("mine/1"));
    let again = kit.client().get("/v1/requests/mine%2F1");
    assert_eq!((again.status, again.body), (200, answer.body), "who comes back gets the same answer");
}

#[test]
fn what_is_left_open_is_sixteen_tokens_or_the_rest_of_the_context() {
    let kit = Kit::start();
    let letters = |answer| {
        let all = texts(&answer);
        (all[0].0.len(), all[0].1.clone())
    };
    assert_eq!(letters(kit.complete(&json!({"prompt": "#"}))), (16, "length".to_owned()));
    assert_eq!(letters(kit.complete(&json!({"prompt": "#".repeat(508)}))), (4, "length".to_owned()));
    let chat = |field: &str| {
        let mut body = json!({"messages": [{"role": "user", "content": "#"}], "ignore_eos": true});
        body[field] = json!(3);
        kit.chat(&body)
    };
    assert_eq!(texts(&chat("max_tokens")), [pair("<us", "length")]);
    assert_eq!(texts(&chat("max_completion_tokens")), [pair("<us", "length")]);
    let answer = kit.chat(&json!({"messages": [{"role": "user", "content": "#"}], "ignore_eos": true}));
    assert_eq!(answer.json()["usage"]["total_tokens"], 512);
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_seed_gives_the_same_choices_again_and_each_its_own() {
    let kit = Kit::start();
    let ask = |n: u32, seed: Value| {
        texts(&kit.complete(&json!({"prompt": "#", "n": n, "seed": seed, "max_tokens": 30})))
    };
    let (one, three) = (ask(1, json!(-7)), ask(3, json!(-7)));
    assert_eq!(three, ask(3, json!(-7)));
    assert_eq!(one[0], three[0], "the first of many is as one alone");
    assert!(three[0] != three[1] && three[1] != three[2] && three[0] != three[2]);
    assert_ne!(ask(1, Value::Null), ask(1, Value::Null));
}

#[test]
fn several_prompts_are_answered_in_order_each_as_if_alone() {
    let kit = Kit::start();
    let ask =
        |prompt: Value, n: u32| kit.complete(&json!({"prompt": prompt, "n": n, "seed": 5, "max_tokens": 9}));
    let answer = ask(json!(["ab\n", "#"]), 2);
    let all = texts(&answer);
    assert_eq!(all[..2], [pair("ab", "stop"), pair("ab", "stop")]);
    assert_eq!(all[2..], texts(&ask(json!("#"), 2)));
    // Three tokens of "ab" and its end twice, nine of the other twice; each prompt counts once.
    let usage = json!({"prompt_tokens": 4, "completion_tokens": 24, "total_tokens": 28});
    assert_eq!(answer.json()["usage"], usage);
    assert_eq!(texts(&ask(json!([97, 98, 10]), 1)), [pair("ab", "stop")]);
    assert_eq!(texts(&ask(json!([[97, 10], [98, 10]]), 1)), [pair("a", "stop"), pair("b", "stop")]);
}

#[test]
fn a_stop_text_ends_the_output_and_the_work() {
    let kit = Kit::start();
    let ask = |stop: Value| {
        let body = json!({"prompt": "one, two, three\n", "stop": stop, "max_tokens": 50});
        let (whole, told) = (texts(&kit.complete(&body)), kit.stream("/v1/completions", "", &body).rest());
        assert_eq!(crate::kit::told(&told, 1), whole, "{stop}");
        whole[0].clone()
    };
    assert_eq!(ask(json!(", t")), pair("one", "stop"));
    assert_eq!(ask(json!(["three", "two"])), pair("one, ", "stop"));
    assert_eq!(ask(json!(["never", ", ta"])), pair("one, two, three", "stop"));
    assert_eq!(ask(json!([])), pair("one, two, three", "stop"));
    assert_eq!(ask(Value::Null), pair("one, two, three", "stop"));
    let ids = kit.complete(&json!({"prompt": "one, two\n", "stop_token_ids": [44], "max_tokens": 50}));
    assert_eq!(texts(&ids), [pair("one", "stop")]);
    // What is behind the gate is not waited for.
    let gate = json!({"prompt": "stop here, |\n", "stop": "here", "max_tokens": 50});
    let events = kit.stream("/v1/completions", "x-request-id: early\r\n", &gate).rest();
    assert_eq!(crate::kit::told(&events, 1), [pair("stop ", "stop")]);
    open("early");
    kit.idle();
}

#[test]
fn models_are_listed() {
    let kit = Kit::start();
    let list = kit.client().get("/v1/models").json();
    let model = &list["data"][0];
    assert_eq!(
        (&list["object"], &model["id"], &model["object"]),
        (&json!("list"), &json!("org/tiny"), &json!("model"))
    );
    assert_eq!((&model["owned_by"], &model["max_model_len"]), (&json!("splitcore"), &json!(512)));
    assert_eq!(&kit.client().get("/v1/models/org/tiny").json(), model);
    assert_eq!(&kit.client().get("/v1/models/org%2Ftiny").json(), model);
    assert_eq!(kit.client().get("/v1/models/other").code(), "model_not_found");
}

#[test]
fn what_clients_see_is_measured() {
    let kit = Kit::start();
    kit.complete(&json!({"prompt": "ab\n"}));
    kit.complete(&json!({"prompt": "#", "n": 2, "max_tokens": 5}));
    let mut client = kit.client();
    let mut is = |name: &str, expected: f64| assert_eq!(Kit::metric(&mut client, name), expected, "{name}");
    is("splitcore_requests_total{finish_reason=\"stop\"}", 1.0);
    is("splitcore_requests_total{finish_reason=\"length\"}", 2.0);
    is("splitcore_requests_total{finish_reason=\"error\"}", 0.0);
    is("splitcore_prompt_tokens_total", 4.0);
    is("splitcore_output_tokens_total", 13.0);
    is("splitcore_requests_running", 0.0);
    is("splitcore_time_to_first_token_seconds_count", 3.0);
    is("splitcore_inter_token_latency_seconds_count", 10.0);
    is("splitcore_e2e_request_latency_seconds_count", 3.0);
    is("splitcore_decision_duration_seconds_count", 2.0);
}
