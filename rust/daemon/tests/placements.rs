//! Placements from their making to their end, over real sockets.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod common;

use common::{Service, machine, options};
use serde_json::{Value, json};
use splitcore_daemon::Options;

fn applied(answer: &common::Answer) -> bool {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()["applied"].as_bool().unwrap()
}

#[test]
fn a_placement_names_both_machines_and_says_why() {
    let service = Service::with_machines(options(), 2, 2);
    let mut client = service.client();
    let answer = client.place(7);
    assert_eq!(answer.status, 201);
    assert_eq!(
        answer.json(),
        json!({
            "request_id": 7,
            "attempt": 1,
            "prompt": {"name": "p0", "url": "http://p0.test:8000"},
            "token": {"name": "t0", "url": "http://t0.test:8000"},
            "transfer": "serialized",
            "lease_s": 60.0,
            "why": {"prompt_step": "own", "token_step": "own", "prompt_load": 0, "token_load": 0, "runner_up": "p1"},
        })
    );
    assert_eq!(client.check(), 1);
}

#[test]
fn a_request_goes_from_its_placement_to_its_end_and_leaves_nothing() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    client.place(1);
    assert!(applied(&client.call("POST", "/v1/placements/1/prefill_done", "", b"")));
    assert!(applied(&client.post("/v1/placements/1/progress", &json!({"tokens": 3}))));
    assert!(applied(&client.post("/v1/placements/1/renew", &json!({}))));
    let shown = client.get("/v1/placements/1").json();
    assert_eq!((&shown["state"], &shown["delivered"]), (&json!("placed"), &json!(3)));
    assert_eq!(shown["placement"]["prompt"]["name"], "p0");
    assert!(applied(&client.delete("/v1/placements/1")));
    assert_eq!(client.get("/v1/placements/1").status, 404);
    assert_eq!(client.check(), 0);
    for load in client.get("/v1/loads").json()["loads"].as_array().unwrap() {
        assert_eq!(
            (&load["legs"], &load["kv_tokens"], &load["prompt_pending_tokens"]),
            (&json!(0), &json!(0), &json!(0))
        );
    }
}

#[test]
fn live_requests_are_listed_some_at_a_time() {
    let service = Service::with_machines(options(), 2, 2);
    let mut client = service.client();
    let list = |client: &mut common::Client, query: &str| client.get(&format!("/v1/requests{query}"));
    assert_eq!(list(&mut client, "").json(), json!({"live": 0, "requests": [], "next": null}));
    let ids = [9, 2, 7, u64::MAX, 4];
    for id in ids {
        assert_eq!(client.place(id).status, 201);
    }
    client.post("/v1/placements/2/progress", &json!({"tokens": 3}));
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    let mut seen = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        let page = list(&mut client, &format!("?from={from}&most=2")).json();
        assert_eq!(page["live"], json!(ids.len()));
        let requests = page["requests"].as_array().unwrap();
        assert!(requests.len() <= 2);
        seen.extend(requests.iter().map(|each| each["request_id"].as_u64().unwrap()));
        next = page["next"].as_u64();
    }
    assert_eq!(seen, sorted);
    let first = list(&mut client, "?most=1").json()["requests"][0].clone();
    let expected = json!({
        "request_id": 2, "state": "placed", "attempt": 1, "prompt": first["prompt"], "token": first["token"],
        "transfer": "serialized", "output_tokens": 3,
    });
    assert_eq!(first, expected);
    assert!(first["prompt"].as_str().unwrap().starts_with('p'));
    for wrong in ["?most=0", "?most=1001", "?most=many", "?from=-1", "?colour=red"] {
        assert_eq!(list(&mut client, wrong).status, 400, "{wrong}");
    }
    client.delete("/v1/placements/2");
    assert_eq!(list(&mut client, "").json()["live"], json!(ids.len() - 1));
}

#[test]
fn what_comes_late_is_no_error_and_is_counted() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    client.place(1);
    assert!(applied(&client.delete("/v1/placements/1?outcome=cancelled")));
    assert!(!applied(&client.delete("/v1/placements/1")));
    assert!(!applied(&client.post("/v1/placements/1/progress", &json!({"tokens": 3}))));
    assert!(!applied(&client.post("/v1/placements/99/renew", &json!({}))));
    client.place(2);
    assert!(!applied(&client.post("/v1/placements/2/prefill_done", &json!({"attempt": 9}))));
    assert!(!applied(&client.delete("/v1/placements/2?outcome=cancelled&attempt=9")));
    let check = client.get("/v1/check").json();
    assert_eq!((&check["counters"]["late"], &check["counters"]["cancelled"]), (&json!(5), &json!(1)));
}

#[test]
fn the_service_gives_ids_that_no_live_request_has() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let body = json!({"prompt_tokens": 10, "max_new_tokens": 10});
    let first = client.post("/v1/placements", &body).json()["request_id"].as_u64().unwrap();
    assert!(first < 1 << 53);
    assert_eq!(client.place(first + 1).status, 201);
    assert_eq!(client.post("/v1/placements", &body).json()["request_id"], first + 2);
    assert_eq!(client.check(), 3);
}

#[test]
fn a_live_id_is_refused() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    client.place(1);
    let again = client.place(1);
    assert_eq!((again.status, again.code().as_str()), (409, "duplicate_request"));
    assert_eq!(client.check(), 1);
}

#[test]
fn a_dry_run_books_nothing() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let body = json!({"prompt_tokens": 10, "max_new_tokens": 10, "dry_run": true});
    let answer = client.post("/v1/placements", &body);
    assert_eq!((answer.status, answer.json()["prompt"]["name"].as_str()), (200, Some("p0")));
    assert_eq!(client.check(), 0);
}

#[test]
fn a_batch_says_of_each_what_it_came_to() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    let one = |id: u64, prompt: u64| json!({"request_id": id, "prompt_tokens": prompt, "max_new_tokens": 10});
    let batch = json!({"placements": [one(1, 100), one(2, 100_000), one(3, 100)]});
    let answer = client.post("/v1/placements/batch", &batch);
    let results = answer.json()["results"].clone();
    let statuses: Vec<_> = (0..3).map(|at| results[at]["status"].as_u64().unwrap()).collect();
    assert_eq!((answer.status, statuses), (200, vec![201, 422, 201]));
    assert_eq!(results[1]["error"]["code"], "too_large");
    let twice = client.post("/v1/placements/batch", &json!({"placements": [one(8, 1), one(8, 1)]}));
    assert_eq!(twice.status, 409);
    let live = client.post("/v1/placements/batch", &json!({"placements": [one(9, 1), one(3, 1)]}));
    assert_eq!(live.status, 409);
    assert_eq!(client.check(), 2);
}

#[test]
fn a_lost_machine_s_requests_are_placed_again_and_the_events_say_so() {
    let service = Service::with_machines(options(), 2, 1);
    let mut client = service.client();
    assert_eq!(client.place(1).json()["prompt"]["name"], "p0");
    let lost = client.delete("/v1/machines/p0");
    assert_eq!(lost.json(), json!({"placed": [1], "parked": [], "failed": []}));
    let events = client.events(0);
    let placed = events.iter().find(|event| event["type"] == "placed").expect("placed");
    assert_eq!(placed["placement"]["prompt"]["name"], "p1");
    assert_eq!(placed["placement"]["attempt"], 2);
    assert!(!applied(&client.post("/v1/placements/1/prefill_done", &json!({"attempt": 1}))));
    assert!(applied(&client.post("/v1/placements/1/prefill_done", &json!({"attempt": 2}))));
    assert_eq!(client.check(), 1);
}

#[test]
fn a_request_without_a_machine_waits_and_its_placement_is_an_event() {
    let service = Service::with_machines(options(), 1, 1);
    let mut client = service.client();
    client.place(1);
    client.delete("/v1/machines/t0");
    let lost = client.delete("/v1/machines/p0").json();
    assert_eq!(lost["parked"], json!([1]));
    assert_eq!(client.get("/v1/placements/1").json()["state"], "parked");
    let overloaded = client.place(2);
    assert_eq!((overloaded.status, overloaded.code().as_str()), (429, "overloaded"));
    assert!(overloaded.header("retry-after").is_some());
    let since = client.get("/v1/events").json()["next"].as_u64().unwrap();
    let address = service.address;
    let waiter = std::thread::spawn(move || common::Client::connect(address).events(since));
    let back = json!([machine("p0", "prompt"), machine("t0", "token")]);
    assert_eq!(client.post("/v1/machines", &back).status, 201);
    let events = waiter.join().unwrap();
    assert_eq!((&events[0]["type"], &events[0]["placement"]["request_id"]), (&json!("placed"), &json!(1)));
    assert_eq!(client.check(), 1);
}

#[test]
fn a_lease_that_nobody_renews_expires_without_a_call() {
    let service = Service::with_machines(Options { lease_s: 0.05, ..options() }, 1, 1);
    let mut client = service.client();
    client.place(1);
    let events = client.events(0);
    assert_eq!((&events[0]["type"], &events[0]["request_id"]), (&json!("expired"), &json!(1)));
    assert_eq!(client.check(), 0);
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    assert!(metrics.contains("\nsplitcore_leases_expired_total 1\n"), "{metrics}");
}

#[test]
fn a_machine_that_drains_gets_no_more_and_tells_when_it_is_empty() {
    let service = Service::with_machines(options(), 2, 1);
    let mut client = service.client();
    client.place(1);
    assert_eq!(client.call("POST", "/v1/machines/p0/drain", "", b"").status, 200);
    for id in 2..6 {
        assert_eq!(client.place(id).json()["prompt"]["name"], "p1");
    }
    assert!(applied(&client.delete("/v1/placements/1")));
    let events = client.events(0);
    assert_eq!((&events[0]["type"], &events[0]["machine"]), (&json!("drained"), &json!("p0")));
    let undrained = client.call("POST", "/v1/machines/p0/undrain", "", b"");
    assert_eq!((undrained.status, &undrained.json()["draining"]), (200, &json!(false)));
    assert_eq!(client.place(9).json()["prompt"]["name"], "p0");
    assert_eq!(client.call("POST", "/v1/machines/p9/undrain", "", b"").status, 404);
}

#[test]
fn reports_correct_the_books_and_never_forget_a_booking() {
    let service = Service::with_machines(options(), 1, 2);
    let mut client = service.client();
    client.place(1);
    let kv = |client: &mut common::Client, at: usize| {
        client.get("/v1/loads").json()["loads"][at]["kv_tokens"].as_u64().unwrap()
    };
    let own = kv(&mut client, 1);
    assert!(own > 0);
    let report =
        |tokens: u64| json!({"reports": [{"machine": "t0", "kv_tokens": tokens}, {"machine": "nobody"}]});
    let answer = client.post("/v1/reports", &report(own + 5000));
    assert_eq!(answer.json(), json!({"applied": 1, "unknown": ["nobody"]}));
    assert_eq!(kv(&mut client, 1), own + 5000);
    client.post("/v1/reports", &report(own + 5000));
    assert_eq!(kv(&mut client, 1), own + 5000);
    client.post("/v1/reports", &report(0));
    assert_eq!(kv(&mut client, 1), own);
    client.post("/v1/reports", &json!({"reports": [{"machine": "t0", "accepts": false}]}));
    assert_eq!(client.place(2).json()["token"]["name"], "t1");
    client.post("/v1/reports", &report(0));
    client.delete("/v1/placements/1");
    assert_eq!(kv(&mut client, 1), 0);
    client.check();
}

#[test]
fn a_class_with_limits_turns_away_what_would_miss_them() {
    let service =
        Service::start(Options { admission: splitcore_core::config::Admission::Early, ..options() });
    let mut client = service.client();
    let costs = json!({
        "prefill": [{"at": 1, "ns": 1_000_000_000}], "decode": [{"at": 1, "ns": 1_000_000}],
        "context_ns_per_1024_tokens": 0, "pass_tokens_max": 2048,
    });
    let with_costs = |name: &str, role: &str| {
        let mut spec = machine(name, role);
        spec["costs"] = costs.clone();
        spec
    };
    client.post("/v1/machines", &json!([with_costs("p0", "prompt"), with_costs("t0", "token")]));
    let set = |client: &mut common::Client, body: &str| {
        client.call("PUT", "/v1/classes/0", "content-type: application/json\r\n", body.as_bytes()).status
    };
    assert_eq!(set(&mut client, "{\"ttft_s\": 0.5}"), 200);
    let rejected = client.place(1);
    assert_eq!((rejected.status, rejected.code().as_str()), (429, "ttft_slo"));
    assert_eq!(set(&mut client, "{}"), 200);
    assert_eq!(client.place(1).status, 201);
    assert_eq!(set(&mut client, "{\"ttft_s\": 0}"), 400);
}

#[test]
fn sixty_four_connections_leave_the_counters_at_zero() {
    let service = Service::with_machines(options(), 4, 4);
    let address = service.address;
    let threads: Vec<_> = (0..64_u64)
        .map(|at| {
            std::thread::spawn(move || {
                let mut client = common::Client::connect(address);
                for turn in 0..20 {
                    let id = at * 1000 + turn;
                    assert_eq!(client.place(id).status, 201);
                    assert!(applied(&client.post(&format!("/v1/placements/{id}/prefill_done"), &json!({}))));
                    let outcome = if turn % 3 == 0 { "cancelled" } else { "finished" };
                    assert!(applied(&client.delete(&format!("/v1/placements/{id}?outcome={outcome}"))));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let mut client = service.client();
    assert_eq!(client.check(), 0);
    let check = client.get("/v1/check").json();
    let counted = |name: &str| check["counters"][name].as_u64().unwrap();
    assert_eq!((counted("placed"), counted("finished"), counted("cancelled")), (1280, 832, 448));
    for load in client.get("/v1/loads").json()["loads"].as_array().unwrap() {
        assert_eq!((&load["legs"], &load["kv_tokens"]), (&Value::from(0), &Value::from(0)));
    }
}
