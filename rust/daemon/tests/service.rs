//! The service around the placements: health, metrics, secret, TLS, the description, and the end.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod common;

use common::{Client, Service, machine, options};
use serde_json::{Value, json};
use splitcore_daemon::{Options, Server};

#[test]
fn it_is_ready_with_a_machine_for_each_phase_and_not_before() {
    let service = Service::start(options());
    let mut client = service.client();
    let ready = |client: &mut Client| client.get("/readyz").status;
    assert_eq!((client.get("/healthz").status, client.get("/health").status), (200, 200));
    assert_eq!(ready(&mut client), 503);
    client.post("/v1/machines", &machine("p0", "prompt"));
    assert_eq!(ready(&mut client), 503);
    client.post("/v1/machines", &machine("t0", "token"));
    assert_eq!(ready(&mut client), 200);
    client.call("POST", "/v1/machines/t0/drain", "", b"");
    assert_eq!(ready(&mut client), 503);
    client.post("/v1/machines", &machine("m0", "mixed"));
    assert_eq!(ready(&mut client), 200);
}

#[test]
fn from_the_signal_on_it_is_not_ready_and_ends_when_nothing_lives() {
    let mut service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    client.place(1);
    let address = service.address;
    let waiter =
        std::thread::spawn(move || Client::connect(address).get("/v1/events?since=0&wait_s=30").status);
    service.stop();
    let mut tries = 0..2000;
    while client.get("/readyz").status != 503 {
        assert!(tries.next().is_some(), "it stays ready");
    }
    assert_eq!(client.get("/readyz").json(), json!({"status": "shutting_down"}));
    let refused = client.place(2);
    assert_eq!((refused.status, refused.code().as_str()), (503, "shutting_down"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(waiter.join().unwrap(), 200, "who waits for events is let go");
    assert_eq!(client.delete("/v1/placements/1").json(), json!({"applied": true}));
    service.join();
}

#[test]
fn what_does_not_end_is_left_behind_after_drain_s() {
    let mut service = Service::with_machines(Options { drain_s: 0.1, ..options() }, 1, 1);
    service.client().place(1);
    service.stop();
    service.join();
}

#[test]
fn request_ids_come_back() {
    let service = Service::start(options());
    let answer = service.client().call("GET", "/healthz", "X-Request-ID: abc-1\r\n", b"");
    assert_eq!(answer.header("x-request-id"), Some("abc-1"));
    assert_eq!(service.client().get("/healthz").header("x-request-id"), None);
}

#[test]
fn without_the_secret_only_health_and_what_everybody_may_see_answer() {
    let file = std::env::temp_dir().join(format!("splitcore-secret-{}", std::process::id()));
    std::fs::write(&file, "s3cret\n").unwrap();
    let service = Service::start(Options { secret_file: Some(file.clone()), ..options() });
    std::fs::remove_file(file).unwrap();
    let mut client = service.client();
    for open in ["/healthz", "/health", "/", "/openapi.json"] {
        assert_eq!(client.get(open).status, 200, "{open}");
    }
    for token in [None, Some("wrong"), Some("s3cret2"), Some("")] {
        client.token = token.map(str::to_owned);
        for path in ["/v1/loads", "/metrics", "/v1/overview", "/nowhere"] {
            let answer = client.get(path);
            assert_eq!((answer.status, answer.code().as_str()), (401, "wrong_secret"), "{path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    client.token = Some("s3cret".to_owned());
    assert_eq!(client.get("/v1/loads").status, 200);
}

/// The value of a line of metrics.
fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn metrics_tell_the_spread_over_a_pool_and_why_arrivals_were_rejected() {
    let service = Service::with_machines(options(), 2, 2);
    let mut client = service.client();
    client.place(1);
    client.post("/v1/placements", &json!({"prompt_tokens": 99_999_999, "max_new_tokens": 1}));
    let answer = client.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = String::from_utf8(answer.body).unwrap();
    let is =
        |name: &str, expected: f64| assert!((metric(&text, name) - expected).abs() < 1e-9, "{name}\n{text}");
    is("splitcore_placements_total", 1.0);
    is("splitcore_placements_live", 1.0);
    is("splitcore_placements_parked", 0.0);
    is("splitcore_placements_rejected_total{reason=\"too_large\"}", 1.0);
    is("splitcore_placements_rejected_total{reason=\"no_machine\"}", 0.0);
    is("splitcore_pool_queue_tokens{pool=\"prompt\",stat=\"mean\"}", 50.0);
    is("splitcore_pool_queue_tokens{pool=\"prompt\",stat=\"max\"}", 100.0);
    is("splitcore_pool_queue_tokens{pool=\"prompt\",stat=\"stddev\"}", 50.0);
    is("splitcore_pool_machines{pool=\"token\"}", 2.0);
    is("splitcore_decision_duration_seconds_count", 2.0);
    assert!(metric(&text, "splitcore_decision_duration_seconds_sum") > 0.0);
    assert!(metric(&text, "splitcore_pool_kv_usage_ratio{pool=\"token\",stat=\"max\"}") > 0.0);
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn the_page_needs_nothing_from_elsewhere_and_shows_what_the_overview_has() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let page = client.get("/");
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    let text = String::from_utf8(page.body).unwrap();
    assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("innerHTML"));
    client.place(3);
    client.post("/v1/placements", &json!({"prompt_tokens": 99_999_999, "max_new_tokens": 1}));
    let overview = client.get("/v1/overview").json();
    assert_eq!(overview["decisions"][0]["rejected"], "too_large");
    assert_eq!(
        (&overview["decisions"][1]["prompt"], &overview["decisions"][1]["prompt_step"]),
        (&json!("p0"), &json!("own"))
    );
    assert_eq!(overview["machines"][0]["prompt_pending_tokens"], 100);
}

#[test]
fn an_overview_begins_with_what_is_the_matter_and_goes_by_pool_and_name() {
    let service = Service::start(options());
    let mut client = service.client();
    let machines = [
        ("m1", "mixed"),
        ("t2", "token"),
        ("p2", "prompt"),
        ("t1", "token"),
        ("p1", "prompt"),
        ("p0", "prompt"),
    ];
    let machines: Vec<Value> = machines.map(|(name, role)| machine(name, role)).into();
    assert_eq!(client.post("/v1/machines", &json!(machines)).status, 201);
    assert_eq!(client.call("POST", "/v1/machines/t2/drain", "", b"").status, 200);
    client.delete("/v1/machines/p0");
    let overview = client.get("/v1/overview").json();
    let names: Vec<&str> =
        overview["machines"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["t2", "p1", "p2", "t1", "m1"]);
    assert_eq!((&overview["machines_total"], &overview["epoch"]), (&json!(5), &json!(1)));
    let text = String::from_utf8(client.get("/metrics").body).unwrap();
    for (state, count) in [("up", 4), ("draining", 1), ("away", 0)] {
        assert!(text.contains(&format!("splitcore_machines{{state=\"{state}\"}} {count}\n")), "{text}");
    }
    let later = client.get("/v1/overview").json()["uptime_ms"].as_u64().unwrap();
    assert!(later >= overview["uptime_ms"].as_u64().unwrap());
}

/// Every method that a path is described with answers there, and no other does.
#[test]
fn the_description_says_what_answers() {
    let service = Service::start(options());
    let mut client = service.client();
    let described = client.get("/openapi.json").json();
    for (path, operations) in described["paths"].as_object().unwrap() {
        let real = path.replace("{id}", "1").replace("{name}", "m").replace("{class}", "1");
        for method in ["get", "post", "put", "delete", "patch"] {
            let answer = client.call(&method.to_uppercase(), &real, "", b"");
            let answers = answer.status != 405;
            assert_eq!(answers, operations.get(method).is_some(), "{method} {path}: {}", answer.status);
            if answers {
                let status = answer.status.to_string();
                let known = operations[method]["responses"].get(&status);
                assert!(known.is_some(), "{method} {path}: {status} is not described");
            }
        }
    }
    assert_refs(&described, &described);
}

/// Every `$ref` leads somewhere.
fn assert_refs(whole: &Value, part: &Value) {
    match part {
        Value::Object(fields) => {
            if let Some(to) = fields.get("$ref").and_then(Value::as_str) {
                assert!(whole.pointer(&to[1..]).is_some(), "{to}");
            }
            fields.values().for_each(|field| assert_refs(whole, field));
        }
        Value::Array(items) => items.iter().for_each(|item| assert_refs(whole, item)),
        _ => {}
    }
}

#[test]
fn an_address_or_a_file_that_is_not_there_is_named() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fails = |options: Options| {
        let bound = runtime.block_on(Server::bind(options));
        bound.err().expect("it does not start").to_string()
    };
    let taken = Service::start(options());
    let text = fails(Options { listen: taken.address.to_string(), ..options() });
    assert!(text.starts_with(&format!("listen: {}: ", taken.address)), "{text}");
    let text = fails(Options { secret_file: Some("/nowhere/secret".into()), ..options() });
    assert!(text.starts_with("secret_file: expected a file with a secret, got /nowhere/secret: "), "{text}");
    let nowhere = Some("/nowhere/pem".into());
    let text = fails(Options { tls_cert: nowhere.clone(), tls_key: nowhere, ..options() });
    assert!(text.starts_with("tls_cert: expected a certificate chain in PEM, got /nowhere/pem: "), "{text}");
}
