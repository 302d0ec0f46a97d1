//! Wrong bodies, heads and paths: the right status and shape, and nothing lost.

use crate::common::{Client, Service, machine, options};
use serde_json::json;
use splitcore_daemon::Options;

/// The status, the code and the message of a body sent to a path.
fn refused(client: &mut Client, path: &str, body: &str) -> (u16, String, String) {
    let answer = client.post_text(path, body);
    (answer.status, answer.code(), answer.message())
}

#[test]
fn a_wrong_body_is_told_by_field_what_was_got_and_what_expected() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let cases = [
        ("", "malformed_json", "no JSON"),
        ("{", "malformed_json", "no JSON"),
        ("not json", "malformed_json", "no JSON"),
        ("[]", "invalid_value", "expected an object, got a list"),
        ("7", "invalid_value", "expected an object, got a number"),
        ("{}", "invalid_value", "missing field `prompt_tokens`"),
        (
            r#"{"prompt_tokens": "many", "max_new_tokens": 1}"#,
            "invalid_value",
            "prompt_tokens: expected a whole number of 0 to 4294967295, got string \"many\"",
        ),
        (
            r#"{"prompt_tokens": -1, "max_new_tokens": 1}"#,
            "invalid_value",
            "prompt_tokens: expected a whole number of 0 to 4294967295, got -1",
        ),
        (
            r#"{"prompt_tokens": 1e300, "max_new_tokens": 1}"#,
            "invalid_value",
            "prompt_tokens: expected a whole number of 0 to 4294967295, got 1e+300",
        ),
        (
            r#"{"prompt_tokens": 99999999999999999999999, "max_new_tokens": 1}"#,
            "invalid_value",
            "prompt_tokens: ",
        ),
        (r#"{"prompt_tokens": 1.5, "max_new_tokens": 1}"#, "invalid_value", "prompt_tokens: "),
        (
            r#"{"prompt_tokens": 0, "max_new_tokens": 1}"#,
            "invalid_value",
            "prompt_tokens: expected at least 1, got 0",
        ),
        (
            r#"{"prompt_tokens": 1, "max_new_tokens": 0}"#,
            "invalid_value",
            "max_new_tokens: expected at least 1, got 0",
        ),
        (r#"{"prompt_tokens": 1, "max_new_tokens": 1, "request_id": "x"}"#, "invalid_value", "request_id: "),
        (
            r#"{"prompt_tokens": 1, "max_new_tokens": 1, "colour": 1}"#,
            "invalid_value",
            "unknown field `colour`",
        ),
    ];
    for (body, code, message) in cases {
        let (status, got, text) = refused(&mut client, "/v1/placements", body);
        assert_eq!((status, got.as_str()), (400, code), "{body}: {text}");
        assert!(text.contains(message), "{body}: {text}");
    }
    let role = r#"{"name": "m", "role": 1, "kv_blocks": 1}"#;
    let (status, code, text) = refused(&mut client, "/v1/machines", role);
    assert_eq!(
        (status, code.as_str(), text.as_str()),
        (400, "invalid_value", "role: expected another kind of value")
    );
    let pinned = r#"{"prompt_tokens": 1, "max_new_tokens": 1, "pin_token": "t9"}"#;
    let (status, code, _) = refused(&mut client, "/v1/placements", pinned);
    assert_eq!((status, code.as_str()), (404, "unknown_machine"));
    let nested = "[".repeat(100_000);
    assert_eq!(refused(&mut client, "/v1/machines", &nested).0, 400);
    let (status, _, text) =
        refused(&mut client, "/v1/placements/batch", r#"{"placements": [{"prompt_tokens": true}]}"#);
    assert!(status == 400 && text.starts_with("placements[0].prompt_tokens: "), "{text}");
    assert_eq!(client.check(), 0);
}

#[test]
fn what_can_never_fit_is_told_apart_from_what_may_fit_later() {
    let service = Service::with_machines(Options { requests_max: 1, ..options() }, 1, 1);
    let mut client = service.client();
    let (status, code, _) = refused(
        &mut client,
        "/v1/placements",
        r#"{"prompt_tokens": 4294967295, "max_new_tokens": 4294967295}"#,
    );
    assert_eq!((status, code.as_str()), (422, "too_large"));
    assert_eq!(client.place(1).status, 201);
    let full = client.place(2);
    assert_eq!(
        (full.status, full.code().as_str(), full.header("retry-after")),
        (429, "requests_max", Some("1"))
    );
    let none = Service::start(options()).client().place(1);
    assert_eq!(
        (none.status, none.code().as_str(), none.header("retry-after")),
        (503, "no_machine", Some("1"))
    );
    assert_eq!(client.check(), 1);
}

/// A table of costs with so many knots.
fn costs(prefill: u32, decode: u32) -> serde_json::Value {
    let knots = |count: u32| (0..count).map(|at| json!({"at": at + 1, "ns": at})).collect::<Vec<_>>();
    json!({
        "prefill": knots(prefill), "decode": knots(decode), "context_ns_per_1024_tokens": 0,
        "pass_tokens_max": 1,
    })
}

#[test]
fn wrong_machines_join_neither_alone_nor_in_a_list() {
    let service = Service::start(options());
    let mut client = service.client();
    let with = |field: &str, value: serde_json::Value| {
        let mut spec = machine("m", "prompt");
        spec[field] = value;
        spec
    };
    let wrong = [
        with("name", json!("")),
        with("name", json!("a\nb")),
        with("name", json!("n".repeat(257))),
        with("role", json!("chief")),
        with("kv_blocks", json!(0)),
        with("block_tokens", json!(0)),
        with("speed_weight", json!(0)),
        with("link_bytes_per_s", json!(0)),
        with("transfer_fixed_cost_s", json!(-1)),
        with(
            "costs",
            json!({"prefill": [], "decode": [], "context_ns_per_1024_tokens": 0, "pass_tokens_max": 1}),
        ),
        with("costs", {
            let mut costs = costs(1, 1);
            costs["colour"] = json!("red");
            costs
        }),
        with("costs", {
            let mut costs = costs(1, 1);
            costs["decode"][0]["colour"] = json!("red");
            costs
        }),
        with("costs", costs(65, 1)),
        with("costs", costs(1, 65)),
        with("url", json!("http://a\u{7}")),
        with("colour", json!("red")),
    ];
    for spec in wrong {
        let answer = client.post("/v1/machines", &json!([machine("good", "token"), spec]));
        assert_eq!(answer.status, 400, "{spec}");
        answer.code();
    }
    let twice = client.post("/v1/machines", &json!([machine("a", "token"), machine("a", "prompt")]));
    assert_eq!((twice.status, twice.code().as_str()), (409, "duplicate_machine"));
    let [mut here, mut again] = [machine("a", "token"), machine("a", "prompt")];
    (here["url"], again["url"]) = (json!("http://one"), json!("http://two"));
    let both = client.post("/v1/machines", &json!([here, again]));
    assert!(
        both.message().contains("http://one") && both.message().contains("http://two"),
        "{}",
        both.message()
    );
    assert_eq!(client.get("/v1/machines").json(), json!({"machines": []}));
    assert_eq!(client.post("/v1/machines", &with("costs", costs(64, 64))).status, 201);
    assert_eq!(client.post("/v1/machines", &here).status, 201);
    let both = client.post("/v1/machines", &again);
    assert_eq!((both.status, both.code().as_str()), (409, "duplicate_machine"));
    assert!(
        both.message().contains("http://one") && both.message().contains("http://two"),
        "{}",
        both.message()
    );
    assert_eq!(client.post("/v1/machines", &machine("a/b c", "token")).status, 201);
    assert_eq!(client.post("/v1/machines", &machine("a/b c", "token")).status, 409);
    assert_eq!(client.delete("/v1/machines/a%2Fb%20c").status, 200);
    assert_eq!(client.post("/v1/machines", &machine("a/b c", "token")).status, 201);
}

#[test]
fn unknown_things_are_not_found() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let unknown = [
        ("GET", "/v1/placements/5", 404, "unknown_request"),
        ("GET", "/v1/placements/five", 400, "invalid_value"),
        ("GET", "/v1/placements/%ff", 400, "invalid_value"),
        ("GET", "/v1/placements/99999999999999999999999", 400, "invalid_value"),
        ("DELETE", "/v1/placements/1?outcome=lost", 400, "invalid_value"),
        ("DELETE", "/v1/placements/1?reason=none", 400, "invalid_value"),
        ("GET", "/v1/events?wait_s=1e9", 400, "invalid_value"),
        ("GET", "/v1/events?wait_s=NaN", 400, "invalid_value"),
        ("GET", "/v1/events?since=-1", 400, "invalid_value"),
        ("DELETE", "/v1/machines/p9", 404, "unknown_machine"),
        ("POST", "/v1/machines/p9/drain", 404, "unknown_machine"),
        ("GET", "/v1/nothing", 404, "unknown_path"),
        ("PATCH", "/v1/placements", 405, "unknown_method"),
    ];
    for (method, path, status, code) in unknown {
        let answer = client.call(method, path, "", b"");
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{method} {path}");
    }
}

#[test]
fn only_json_is_read_and_only_so_much_of_it() {
    let service = Service::with_machines(Options { body_bytes_max: 1000, batch_max: 2, ..options() }, 1, 1);
    let mut client = service.client();
    let body = br#"{"prompt_tokens": 1, "max_new_tokens": 1}"#;
    for header in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"]
    {
        let answer = client.call("POST", "/v1/placements", header, body);
        assert_eq!((answer.status, answer.code().as_str()), (415, "content_type"));
    }
    let charset = "content-type: Application/JSON; charset=utf-8\r\n";
    assert_eq!(client.call("POST", "/v1/placements", charset, body).status, 201);
    let long = client.post_text("/v1/placements", &" ".repeat(1001));
    assert_eq!((long.status, long.code().as_str()), (413, "body_bytes_max"));
    // Without a length it is found out on the way.
    let mut chunked = service.client();
    let chunk = format!("400\r\n{}\r\n0\r\n\r\n", " ".repeat(0x400));
    let head = "POST /v1/placements HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    chunked.send(format!("{head}{chunk}").as_bytes()).unwrap();
    assert_eq!(chunked.answer().unwrap().code(), "body_bytes_max");
    let one = json!({"prompt_tokens": 1, "max_new_tokens": 1});
    let batch = service.client().post("/v1/placements/batch", &json!({"placements": [one, one, one]}));
    assert_eq!((batch.status, batch.code().as_str()), (413, "batch_max"));
    assert_eq!(service.client().check(), 1);
}

#[test]
fn a_body_in_pieces_is_one_body() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    client
        .send(b"POST /v1/placements HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    for piece in ["{\"prompt_", "tokens\": 1, \"max_new", "_tokens\": 1}"] {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).unwrap();
    }
    client.send(b"0\r\n\r\n").unwrap();
    assert_eq!(client.answer().unwrap().status, 201);
}

#[test]
fn a_large_body_is_placed_like_a_small_one() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let padded = format!("{{\"prompt_tokens\": 1,{} \"max_new_tokens\": 1}}", " ".repeat(1 << 20));
    assert_eq!(client.post_text("/v1/placements", &padded).status, 201);
}

#[test]
fn who_dawdles_is_cut_off_and_holds_up_nobody() {
    let slow = Options { header_timeout_s: 0.2, body_timeout_s: 0.2, ..options() };
    let service = Service::with_machines(slow, 1, 1);
    let mut heads: Vec<Client> = (0..20).map(|_| service.client()).collect();
    for client in &mut heads {
        client.send(b"POST /v1/placements HTTP/1.1\r\nhost: ").unwrap();
    }
    let mut body = service.client();
    let begun = b"POST /v1/placements HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    body.send(begun).unwrap();
    assert_eq!(service.client().place(1).status, 201);
    let late = body.answer().unwrap();
    assert_eq!((late.status, late.code().as_str()), (408, "body_timeout_s"));
    for client in &mut heads {
        assert!(client.answer().is_none(), "a head that never ends gets no answer");
    }
    assert_eq!(service.client().check(), 1);
}

#[test]
fn garbage_and_broken_connections_cost_nothing() {
    let service = Service::with_machines(options(), 1, 1);
    let garbage: [&[u8]; 6] = [
        b"\x00\x01\x02\xff\xfe\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/placements HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/placements HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        b"POST /v1/placements HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{\"pro",
    ];
    for bytes in garbage {
        let mut client = service.client();
        client.send(bytes).unwrap();
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = client.answer();
        assert!(answer.is_none_or(|answer| (400..=505).contains(&answer.status)), "{bytes:?}");
    }
    let mut long = service.client();
    let _ = long.send(format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(200_000)).as_bytes());
    assert!(long.answer().is_none_or(|answer| answer.status >= 400));
    let mut client = service.client();
    assert_eq!((client.check(), client.place(1).status), (0, 201));
}

#[test]
fn calls_sent_at_once_are_answered_in_order() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let call = |at: usize| {
        format!("GET /v1/placements/{at} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {at}\r\n\r\n")
    };
    let calls = (0..50).map(call).collect::<Vec<_>>().concat();
    client.send(calls.as_bytes()).unwrap();
    for at in 0..50 {
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.header("x-request-id")), (404, Some(at.to_string().as_str())));
    }
}

#[test]
fn beyond_the_bound_a_connection_is_told_so() {
    let service = Service::start(Options { connections_max: 2, ..options() });
    let mut first = service.client();
    let mut second = service.client();
    assert_eq!((first.get("/healthz").status, second.get("/healthz").status), (200, 200));
    let refused = service.client().get("/v1/loads");
    assert_eq!(
        (refused.status, refused.code().as_str(), refused.header("retry-after")),
        (503, "connections_max", Some("1"))
    );
    drop(first);
    assert_eq!(second.get("/healthz").status, 200);
}
