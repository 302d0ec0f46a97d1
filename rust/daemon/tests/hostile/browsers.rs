//! What a page in an operator's browser can send, and what heads say that no client of ours does.

use crate::common::{Service, options};
use serde_json::json;
use splitcore_daemon::Options;

/// The status and the code of an answer to a head that is sent as it is, with `host: localhost` where it has none.
fn answered(service: &Service, head: &str) -> (u16, String) {
    let mut client = service.client();
    client.send(head.as_bytes()).unwrap();
    let answer = client.answer().unwrap();
    let code = if answer.status < 400 { String::new() } else { answer.code() };
    (answer.status, code)
}

fn post(path: &str, headers: &str) -> String {
    format!("POST {path} HTTP/1.1\r\n{headers}content-length: 0\r\n\r\n")
}

#[test]
fn a_page_of_another_origin_can_do_nothing() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    client.place(1);
    let origins = [
        "http://evil.example",
        "null",
        "https://localhost.evil.example",
        "http://localhost:1",
        "file://",
        "",
    ];
    for origin in origins {
        for path in ["/v1/machines/p0/drain", "/v1/placements/1/renew", "/v1/placements/1/prefill_done"] {
            let headers = format!("host: localhost\r\norigin: {origin}\r\n");
            assert_eq!(
                answered(&service, &post(path, &headers)),
                (403, "foreign_origin".into()),
                "{origin} {path}"
            );
        }
    }
    // Two of them: one is foreign.
    let both = "host: localhost\r\norigin: http://localhost\r\norigin: http://evil.example\r\n";
    assert_eq!(answered(&service, &post("/v1/machines/p0/drain", both)).0, 403);
    // What a form or a simple call may send brings no JSON.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        for path in ["/v1/placements", "/v1/machines/p0/drain", "/v1/placements/1/renew", "/v1/reports"] {
            let answer = client.call("POST", path, &format!("content-type: {kind}\r\n"), b"{}");
            assert_eq!((answer.status, answer.code().as_str()), (415, "content_type"), "{kind} {path}");
        }
    }
    let untyped = client.call("POST", "/v1/machines/p0/drain", "", b"{}");
    assert_eq!(untyped.status, 415);
    let states = client.get("/v1/machines").json();
    assert_eq!(states["machines"][0]["state"], "up");
    // The page of the service itself.
    let own = format!("host: {0}\r\norigin: http://{0}\r\n", service.address);
    assert_eq!(answered(&service, &post("/v1/placements/1/renew", &own)).0, 200);
}

#[test]
fn a_name_that_leads_here_from_elsewhere_is_refused() {
    let service = Service::with_machines(options(), 1, 1);
    let get = |target: &str, headers: &str| format!("GET {target} HTTP/1.1\r\n{headers}\r\n");
    let foreign = [
        get("/v1/overview", "host: evil.example\r\n"),
        get("/", "host: evil.example:8090\r\n"),
        get("/v1/overview", "host: 10.0.0.1\r\n"),
        get("/v1/overview", "host: \r\n"),
        get("http://evil.example/v1/overview", "host: localhost\r\n"),
        get("http://localhost/v1/overview", "host: evil.example\r\n"),
    ];
    for head in foreign {
        assert_eq!(answered(&service, &head), (421, "foreign_host".into()), "{head}");
    }
    let wrong = [get("/v1/overview", ""), get("/v1/overview", "host: localhost\r\nhost: localhost\r\n")];
    for head in wrong {
        assert_eq!(answered(&service, &head), (400, "invalid_value".into()), "{head}");
    }
    let own = [
        get("/healthz", "host: LOCALHOST:8090\r\n"),
        get("/healthz", "host: 127.0.0.1\r\n"),
        get("/healthz", "host: [::1]:8090\r\n"),
        get("http://localhost:1/healthz", "host: localhost:1\r\n"),
        "GET /healthz HTTP/1.0\r\n\r\n".to_owned(),
    ];
    for head in own {
        assert_eq!(answered(&service, &head).0, 200, "{head}");
    }
}

#[test]
fn who_bears_the_secret_comes_by_any_name_from_anywhere() {
    let file = std::env::temp_dir().join(format!("splitcore-browser-secret-{}", std::process::id()));
    std::fs::write(&file, "a secret of some length\n").unwrap();
    let service = Service::start(Options { secret_file: Some(file.clone()), ..options() });
    std::fs::remove_file(file).unwrap();
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let headers = "host: splitcore.example\r\norigin: https://chat.example\r\n";
        let head = format!(
            "GET /v1/loads HTTP/1.1\r\n{headers}authorization: {scheme} a secret of some length\r\n\r\n"
        );
        assert_eq!(answered(&service, &head).0, 200, "{scheme}");
    }
    let two = "GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n";
    assert_eq!(answered(&service, two).0, 400);
}

#[test]
fn what_is_expected_or_packed_otherwise_is_refused() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let body = br#"{"prompt_tokens": 1, "max_new_tokens": 1}"#;
    let json = "content-type: application/json\r\n";
    for coding in ["gzip", "br", "gzip, gzip", "identity, gzip"] {
        let headers = format!("{json}content-encoding: {coding}\r\n");
        let answer = client.call("POST", "/v1/placements", &headers, b"\x1f\x8b\x08\x00");
        assert_eq!((answer.status, answer.code().as_str()), (415, "content_encoding"), "{coding}");
    }
    let plain = format!("{json}content-encoding: identity\r\n");
    assert_eq!(client.call("POST", "/v1/placements", &plain, body).status, 201);
    for expected in ["200-ok", "", "100-continue, 200-ok"] {
        let answer =
            service.client().call("POST", "/v1/placements", &format!("{json}expect: {expected}\r\n"), body);
        assert_eq!((answer.status, answer.code().as_str()), (417, "expectation"), "{expected}");
    }
    assert_eq!(client.check(), 1);
}

#[test]
fn every_answer_says_that_its_type_is_meant_and_the_page_is_part_of_no_other() {
    let service = Service::start(options());
    let mut client = service.client();
    for path in ["/", "/openapi.json", "/healthz", "/v1/loads", "/nowhere", "/metrics"] {
        assert_eq!(client.get(path).header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let policy = client.get("/").header("content-security-policy").unwrap().to_owned();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    // No other origin is let in: a browser that asks first is told nothing that would allow it.
    let asked = client.call("OPTIONS", "/v1/placements", "access-control-request-method: POST\r\n", b"");
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (405, None));
    let long = format!("x-request-id: {}\r\n", "x".repeat(257));
    assert_eq!(client.call("GET", "/healthz", &long, b"").header("x-request-id"), None);
}

#[test]
fn so_many_classes_have_limits_and_no_more() {
    let service = Service::start(options());
    let mut client = service.client();
    let set = |client: &mut crate::common::Client, class: u32, body: serde_json::Value| {
        let path = format!("/v1/classes/{class}");
        client.call("PUT", &path, "content-type: application/json\r\n", body.to_string().as_bytes())
    };
    for class in 0..1024 {
        assert_eq!(set(&mut client, class, json!({"ttft_s": 1})).status, 200);
    }
    let beyond = set(&mut client, 5000, json!({"ttft_s": 1}));
    assert_eq!((beyond.status, beyond.code().as_str()), (429, "classes_max"));
    assert_eq!(set(&mut client, 7, json!({"ttft_s": 2})).status, 200, "a class that is known");
    assert_eq!(set(&mut client, 9, json!({})).status, 200);
    assert_eq!(set(&mut client, 5000, json!({"ttft_s": 1})).status, 200, "in the place of the one that went");
}
