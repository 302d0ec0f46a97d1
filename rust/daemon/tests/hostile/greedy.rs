//! Who sends and never reads, holds what others need, or asks for very much: what the service has resident stays within
//! what `docs/daemon.md` states, and others are answered.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Client, Service, machine, options};
use crate::process::Process;
use serde_json::json;
use splitcore_daemon::Options;

const JSON: &str = "content-type: application/json\r\n";

/// Sends a request again and again without reading, until so many bytes have gone or the service takes no more. In
/// between another client is answered, so that the service has always done all that it would do.
fn flood(from: &Process, request: &str, most: usize) -> usize {
    let mut greedy = from.client();
    let mut other = from.client();
    greedy.stream.set_nonblocking(true).unwrap();
    let bytes = request.repeat(8192 / request.len());
    let (mut sent, mut at, mut refused) = (0, 0, 0);
    while sent < most && refused < 50 {
        match greedy.stream.write(&bytes.as_bytes()[at..]) {
            Ok(some) => {
                (sent, at, refused) = (sent + some, (at + some) % bytes.len(), 0);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert_eq!(other.get("/healthz").status, 200);
    }
    sent
}

#[test]
fn who_asks_on_without_reading_has_one_answer_waiting() {
    let service = Process::start(&[]);
    // Of the description, which is long; of the head alone; of answers without a body of their own.
    for (request, most) in [
        ("GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n", 1 << 20),
        ("HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n", 16 << 20),
        ("DELETE /v1/placements/1 HTTP/1.1\r\nhost: localhost\r\n\r\n", 16 << 20),
    ] {
        flood(&service, request, most);
        let peak = service.peak_mib();
        assert!(peak < 128, "{request}: {peak} MiB");
    }
}

#[test]
fn an_answer_comes_however_much_follows_its_request() {
    let service = Service::with_machines(options(), 1, 1);
    let place = "POST /v1/placements HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 content-type: application/json\r\ncontent-length: 41\r\n\r\n\
                 {\"prompt_tokens\": 9, \"max_new_tokens\": 9}";
    let long_head = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n", "y".repeat(200_000));
    let cases = [
        (place.to_owned(), 201, "\r\n"),
        (place.to_owned(), 201, "GET / HTTP/1.1\r\n\r\n"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        ("NOT HTTP\r\n\r\n".to_owned(), 400, "more"),
        (long_head, 431, "more"),
    ];
    for (first, status, more) in cases {
        let mut client = service.client();
        client.send(first.as_bytes()).unwrap();
        client.send(more.repeat(1000).as_bytes()).unwrap();
        let answer = client.answer().unwrap_or_else(|| panic!("no answer to {first:.60}"));
        assert_eq!(answer.status, status, "{first:.60}");
    }
}

#[test]
fn health_is_told_where_there_is_no_room_for_more() {
    let service = Service::start(Options { connections_max: 4, ..options() });
    let mut within: Vec<Client> = (0..4).map(|_| service.client()).collect();
    assert!(within.iter_mut().all(|client| client.get("/healthz").status == 200));
    // All places are taken, and many beyond them, by who says nothing.
    let silent: Vec<Client> = (0..300).map(|_| service.client()).collect();
    for (path, status) in [("/healthz", 200), ("/health", 200), ("/readyz", 503)] {
        let answer = service.client().get(path);
        assert_eq!((answer.status, answer.json()["status"].is_string()), (status, true), "{path}");
    }
    let refused = service.client().get("/v1/loads");
    assert_eq!((refused.status, refused.code().as_str()), (503, "connections_max"));
    assert_eq!(within[0].get("/v1/loads").status, 200);
    drop(silent);
}

/// Writes what the service takes without waiting; it may also refuse the rest. In between another client is answered,
/// so that the service has done all that it would do.
fn push(client: &mut Client, other: &mut Client, mut bytes: &[u8]) {
    client.stream.set_nonblocking(true).unwrap();
    let mut refused = 0;
    while !bytes.is_empty() && refused < 5 {
        match client.stream.write(bytes) {
            Ok(some) => (bytes, refused) = (&bytes[some..], 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => refused += 1,
            Err(_) => break,
        }
        assert_eq!(other.get("/healthz").status, 200);
    }
    client.stream.set_nonblocking(false).unwrap();
}

#[test]
fn bodies_on_their_way_have_a_bound_together() {
    let service = Process::start(&["--body-timeout-s", "600"]);
    let mut other = service.client();
    let machines = json!([machine("p0", "prompt"), machine("t0", "token")]);
    assert_eq!(other.post("/v1/machines", &machines).status, 201);
    let padded = format!("{{\"prompt_tokens\": 1,{} \"max_new_tokens\": 1}}", " ".repeat(4_000_000));
    let (whole, length) = (padded.as_bytes(), padded.len());
    let head =
        format!("POST /v1/placements HTTP/1.1\r\nhost: localhost\r\n{JSON}content-length: {length}\r\n\r\n");
    let mut unfinished: Vec<Client> = (0..100).map(|_| service.client()).collect();
    for client in &mut unfinished {
        client.send(head.as_bytes()).unwrap();
        push(client, &mut other, &whole[..length - 1]);
    }
    let peak = service.peak_mib();
    assert!(peak < 192, "{peak} MiB");
    // Short bodies have room, and long ones have it again when those have gone.
    assert_eq!(other.place(1).status, 201);
    drop(unfinished);
    // The service hears of each that has gone in its own time.
    let again = (0..1000).map(|_| service.client().post_text("/v1/placements", &padded).status);
    assert_eq!({ again }.find(|&status| status != 503), Some(201));
}

#[test]
fn a_body_without_room_is_told_so() {
    let service = Service::with_machines(
        Options { body_bytes_max: 1 << 20, bodies_bytes_max: 1 << 20, body_timeout_s: 0.3, ..options() },
        1,
        1,
    );
    // An answer of some megabytes, of which nothing is taken, holds the room of its body.
    let one = json!({"prompt_tokens": 1, "max_new_tokens": 1, "dry_run": true});
    let batch = json!({"placements": vec![one; 16_000]}).to_string();
    let length = batch.len();
    let mut holder = service.client();
    let head = "POST /v1/placements/batch HTTP/1.1\r\nhost: localhost\r\n";
    holder.send(format!("{head}{JSON}content-length: {length}\r\n\r\n{batch}").as_bytes()).unwrap();
    let mut first = [0];
    holder.stream.peek(&mut first).unwrap();
    let long = format!("{{\"prompt_tokens\": 1,{} \"max_new_tokens\": 1}}", " ".repeat(900_000));
    let answer = service.client().post_text("/v1/placements", &long);
    assert_eq!((answer.status, answer.code().as_str()), (503, "bodies_bytes_max"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(service.client().place(1).status, 201);
    let results = holder.answer().unwrap().json()["results"].as_array().unwrap().len();
    assert_eq!(results, 16_000);
    assert_eq!(service.client().post_text("/v1/placements", &long).status, 201);
}

/// Machines with the longest names and addresses.
fn long_machines(count: usize) -> serde_json::Value {
    let long = |at: usize| {
        let mut spec = machine(&format!("{at:0256}"), if at.is_multiple_of(2) { "prompt" } else { "token" });
        spec["url"] = json!(format!("http://{at:02000}"));
        spec
    };
    json!((0..count).map(long).collect::<Vec<_>>())
}

#[test]
fn long_answers_come_in_pieces_as_they_are_taken() {
    let service = Process::start(&["--body-bytes-max", "8388608"]);
    let mut other = service.client();
    assert_eq!(other.post("/v1/machines", &long_machines(2000)).status, 201);
    let one = json!({"prompt_tokens": 1, "max_new_tokens": 1, "dry_run": true});
    let batch = |count: usize| json!({"placements": vec![&one; count]}).to_string();
    let many = batch(60_000);
    let calls = [
        format!(
            "POST /v1/placements/batch HTTP/1.1\r\nhost: localhost\r\n{JSON}content-length: {}\r\n\r\n{many}",
            many.len()
        ),
        "GET /v1/machines HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        "GET /v1/overview HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
    ];
    // Six of each, none of whose answers is read.
    let mut unread: Vec<Client> = (0..18).map(|_| service.client()).collect();
    for (at, client) in unread.iter_mut().enumerate() {
        client.send(calls[at % 3].as_bytes()).unwrap();
    }
    for client in &unread {
        client.stream.peek(&mut [0]).unwrap();
        assert_eq!(other.get("/healthz").status, 200);
    }
    let peak = service.peak_mib();
    assert!(peak < 192, "{peak} MiB");
    let machines = other.get("/v1/machines").json();
    let names: Vec<&str> =
        machines["machines"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(names.len() == 2000 && names.is_sorted(), "{}", names.len());
    let overview = other.get("/v1/overview").json();
    assert_eq!(
        (&overview["machines_total"], overview["machines"].as_array().unwrap().len()),
        (&json!(2000), 200)
    );
    let results = other.post_text("/v1/placements/batch", &batch(2000)).json();
    assert!(results["results"].as_array().unwrap().iter().all(|each| each["status"] == 200));
}

#[test]
fn others_have_their_turn_within_a_call_for_many() {
    let service = Service::with_machines(options(), 1, 1);
    let placed = 5000;
    let one = json!({"prompt_tokens": 1, "max_new_tokens": 1});
    let batch = json!({"placements": vec![one; placed]});
    let (seen, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = service.client();
            while !done.load(Ordering::Relaxed) {
                seen.fetch_or(!other.check().is_multiple_of(placed as u64), Ordering::Relaxed);
            }
        });
        let mut many = service.client();
        // Whether another call comes in between is chance, in each of them anew.
        for _ in 0..50 {
            if seen.load(Ordering::Relaxed) {
                break;
            }
            let results = many.post("/v1/placements/batch", &batch).json();
            assert!(results["results"].as_array().unwrap().iter().all(|each| each["status"] == 201));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(seen.into_inner(), "nobody was answered while a batch was placed");
}

#[test]
fn many_machines_join_while_others_have_their_turn() {
    let service = Service::start(options());
    let machines: Vec<_> = (0..5000).map(|at| machine(&format!("m{at:05}"), "mixed")).collect();
    let mut joins: Vec<Client> = (0..2).map(|_| service.client()).collect();
    // The same names twice at once: one list joins whole, the other not at all.
    let body = json!(machines).to_string();
    for client in &mut joins {
        let length = body.len();
        let head = "POST /v1/machines HTTP/1.1\r\nhost: localhost\r\n";
        client.send(format!("{head}{JSON}content-length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
    }
    let mut statuses: Vec<u16> = joins.iter_mut().map(|client| client.answer().unwrap().status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    assert_eq!(service.client().get("/v1/loads").json()["loads"].as_array().unwrap().len(), 5000);
}

#[test]
fn events_come_in_answers_of_a_bounded_length() {
    let service = Service::start(options());
    let mut client = service.client();
    assert_eq!(client.post("/v1/machines", &long_machines(4)).status, 201);
    for id in 0..200 {
        assert_eq!(client.place(id).status, 201);
    }
    for at in [0, 2] {
        assert_eq!(client.delete(&format!("/v1/machines/{at:0256}")).status, 200);
    }
    let (mut next, mut told) = (0, Vec::new());
    loop {
        let answer = client.get(&format!("/v1/events?since={next}"));
        assert!(answer.body.len() < 80 << 10, "{}", answer.body.len());
        let body = answer.json();
        let events = body["events"].as_array().unwrap();
        if events.is_empty() {
            break;
        }
        told.extend(events.iter().map(|event| event["seq"].as_u64().unwrap()));
        next = body["next"].as_u64().unwrap();
    }
    assert!(told.len() > 100 && told.iter().zip(0..).all(|(&seq, at)| seq == at), "{told:?}");
}
