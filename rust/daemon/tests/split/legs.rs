//! One half of a request fails, in each of its phases.

use serde_json::json;
use splitcore_daemon::Options;

use crate::common::events::{data, id};
use crate::fleet::Hold;
use crate::kit::{Ask, Kit, fragile, told};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    BeforeReservation,
    Prefill,
    Transfer,
    Decode,
}

const PREFILL: Hold = Hold { prompts: true, layer: 0 };
/// One layer is on its way, and the next one does not come.
const TRANSFER: Hold = Hold { prompts: true, layer: 1 };
const DECODE: Hold = Hold { prompts: false, layer: 0 };

/// Before the last request has blocks for its output others have them all, and so have the prompt machines none that
/// they could lend. By tokens alone there is room for it at the token machine with the larger blocks.
fn asks(phase: Phase) -> Vec<Ask> {
    let (count, max_tokens) = if phase == Phase::BeforeReservation { (5, 6) } else { (1, 24) };
    (0..count).map(|at| Ask::new(&format!("r{at}"), at, max_tokens)).collect()
}

fn kit(phase: Phase) -> Kit {
    let tight = phase == Phase::BeforeReservation;
    let service = Options { kv_fill_max: if tight { 1.0 } else { 0.95 }, ..fragile() };
    Kit::with(service, if tight { (9, 8) } else { (200, 200) }, |options| options)
}

/// In a phase the machine of a role dies. The request that was there goes on with a pair without it, ends as it would
/// have, and nothing of it stays anywhere.
fn dies(phase: Phase, role: char) {
    let (mut kit, asks) = (kit(phase), asks(phase));
    kit.hold('p', Some(if phase == Phase::Transfer { TRANSFER } else { PREFILL }));
    let mut calls = Vec::new();
    for ask in &asks {
        calls.push(kit.call(&ask.name, &ask.body()));
        kit.wait("it is placed", |_| !kit.pairs(&ask.name).is_empty());
    }
    let last = &asks.last().unwrap().name;
    let first = kit.pairs(last).remove(0);
    let to = first.token.clone().unwrap();
    kit.wait("its machine computes", |_| kit.stands(&first.prompt));
    let mut begun = Vec::new();
    match phase {
        Phase::BeforeReservation => assert!(
            !calls[4].is_finished(),
            "no machine has it: {:?}",
            asks.iter().map(|ask| kit.pairs(&ask.name)).collect::<Vec<_>>()
        ),
        Phase::Decode => {
            kit.hold('t', Some(DECODE));
            kit.hold('p', None);
            let mut events = calls.remove(0).join().unwrap();
            begun.push(events.next().unwrap());
            kit.wait("it decodes", |_| kit.stands(&to));
            calls.push(std::thread::spawn(move || events));
        }
        Phase::Prefill | Phase::Transfer => {}
    }
    let dead = if role == 'p' { first.prompt.clone() } else { to };
    kit.kill(&dead);
    // A prompt machine that has handed over is not needed any more.
    let moves = phase != Phase::Decode || role == 't';
    if moves && phase != Phase::BeforeReservation {
        let elsewhere = |pair: (String, String)| pair.0 != dead && pair.1 != dead;
        kit.wait("its KV goes elsewhere", |_| kit.handoff(last).is_some_and(elsewhere));
    }
    kit.hold('p', None);
    kit.hold('t', None);
    for (ask, call) in asks.iter().zip(calls) {
        let mut events = std::mem::take(&mut begun);
        events.extend(call.join().unwrap().rest());
        assert_eq!(told(&events, 1), [(ask.text(), "length".to_owned())], "{}", ask.name);
    }
    kit.idle();
    let counters = kit.overview()["counters"].clone();
    assert_eq!((&counters["finished"], &counters["failed"]), (&json!(asks.len()), &json!(0)), "{counters}");
    assert_eq!(counters["faults"].as_u64() > Some(0), moves, "{counters}");
    let lost = |name: &str| kit.pairs(name).iter().skip(1).any(|pair| pair.prompt == dead);
    assert!(!asks.iter().any(|ask| lost(&ask.name)), "nothing new is placed there");
    kit.end();
}

#[test]
fn a_machine_that_dies_before_it_has_room_for_the_output_costs_no_request() {
    dies(Phase::BeforeReservation, 't');
}

#[test]
fn a_prompt_machine_that_dies_before_there_is_room_for_the_output_costs_no_request() {
    dies(Phase::BeforeReservation, 'p');
}

#[test]
fn a_prompt_machine_that_dies_in_its_pass_is_replaced() {
    dies(Phase::Prefill, 'p');
}

#[test]
fn a_token_machine_that_dies_while_the_prompt_is_computed_is_replaced() {
    dies(Phase::Prefill, 't');
}

#[test]
fn a_prompt_machine_that_dies_while_kv_moves_is_replaced() {
    dies(Phase::Transfer, 'p');
}

#[test]
fn a_token_machine_that_dies_while_kv_moves_is_replaced() {
    dies(Phase::Transfer, 't');
}

#[test]
fn a_token_machine_that_dies_while_it_decodes_is_replaced() {
    dies(Phase::Decode, 't');
}

#[test]
fn a_prompt_machine_that_dies_after_it_has_handed_over_is_not_missed() {
    dies(Phase::Decode, 'p');
}

#[test]
fn the_first_token_is_there_before_any_decode_is() {
    let kit = Kit::start(fragile());
    kit.hold('t', Some(DECODE));
    let ask = Ask::new("first", 3, 12);
    let mut events = kit.call("first", &ask.body()).join().unwrap();
    let first = events.next().unwrap();
    assert_eq!(id(&first), Some("1"));
    let token = kit.pairs("first").remove(0).token.unwrap();
    kit.wait("its decode stands still", |_| kit.stands(&token));
    kit.hold('t', None);
    let all: Vec<String> = std::iter::once(first).chain(events.rest()).collect();
    assert_eq!(told(&all, 1), [(ask.text(), "length".to_owned())]);
    kit.idle();
    kit.end();
}

#[test]
fn choices_that_move_in_mid_stream_are_what_they_would_have_been() {
    let mut kit = Kit::start(fragile());
    let ask = Ask::new("many", 5, 16);
    let mut body = ask.body();
    body["n"] = 3.into();
    let whole = told(&kit.call("alone", &body).join().unwrap().rest(), 3);
    kit.hold('t', Some(DECODE));
    let mut events = kit.call("many", &body).join().unwrap();
    let mut all = vec![events.next().unwrap()];
    let token = kit.pairs("many").remove(0).token.unwrap();
    kit.wait("it decodes", |_| kit.stands(&token));
    kit.kill(&token);
    kit.wait("it is placed anew", |_| kit.pairs("many").len() > 3);
    kit.hold('t', None);
    all.extend(events.rest());
    assert!(all.iter().filter_map(|event| data(event)).all(|data| data.get("error").is_none()));
    assert_eq!(told(&all, 3), whole);
    kit.idle();
    kit.end();
}
