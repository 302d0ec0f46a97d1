//! Many machines, that tell and are not asked.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::common::{Service, machine, options};

const MACHINES: usize = 4096;

#[test]
fn thousands_of_machines_report_what_has_changed_in_one_call_and_none_is_asked() {
    let service = Service::start(options());
    let mut client = service.client();
    let asked = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", asked.local_addr().unwrap());
    let machines: Vec<Value> = (0..MACHINES)
        .map(|at| {
            let mut of = machine(&format!("m{at}"), if at % 2 == 0 { "prompt" } else { "token" });
            of["url"] = json!(url);
            of
        })
        .collect();
    assert_eq!(client.post("/v1/machines", &json!(machines)).status, 201);
    let report = |at: usize, tokens: usize| json!({"machine": format!("m{at}"), "kv_tokens": tokens});
    let held = |client: &mut crate::common::Client| -> Vec<u64> {
        let loads = client.get("/v1/loads").json();
        let rows = loads["loads"].as_array().unwrap_or_else(|| panic!("{loads}")).clone();
        rows.iter().map(|row| row["kv_tokens"].as_u64().unwrap()).collect()
    };
    let all: Vec<Value> = (0..MACHINES).map(|at| report(at, at)).collect();
    assert_eq!(client.post("/v1/reports", &json!({"reports": all})).status, 200);
    assert!((0..).zip(held(&mut client)).all(|(at, tokens)| tokens == at));
    let changed = json!({"reports": [report(7, 100), report(4000, 0)]});
    assert_eq!(client.post("/v1/reports", &changed).status, 200);
    let expected = |at: u64| match at {
        7 => 100,
        4000 => 0,
        other => other,
    };
    assert!((0..).zip(held(&mut client)).all(|(at, tokens)| tokens == expected(at)));
    asked.set_nonblocking(true).unwrap();
    assert_eq!(asked.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "a machine was asked");
}
