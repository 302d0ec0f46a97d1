//! Sessions between workers, and who has which name and place.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod kit;

use proptest::prelude::*;
use splitcore_core::id::MachineId;
use splitcore_core::kv::{Dtype, KvLayout};
use splitcore_core::leg::Peer;
use splitcore_core::time::Time;
use splitcore_wire::auth::Secret;
use splitcore_wire::hex::Hex;
use splitcore_wire::message::*;
use splitcore_wire::roster::{ENTERING_MAX, Roster, Standing};
use splitcore_wire::session::*;

type PeerOut = Vec<Step<ToPeer, PeerEvent>>;

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

proptest! {
    #[test]
    fn a_peer_delivers_nothing_before_the_session_is_open(
        messages in proptest::collection::vec(kit::any_to_peer(), 1..40),
        dials in any::<bool>(),
    ) {
        let mut out: PeerOut = Vec::new();
        let mut session = if dials {
            let of = kit::peer_identity(kit::MACHINE);
            PeerSession::dial(of, kit::settings(), &kit::address(kit::SOURCE), kit::NONCE, at(0))
        } else {
            PeerSession::accept(kit::peer_identity(kit::SOURCE), kit::settings(), kit::CHALLENGE, at(0), &mut out)
        };
        let mut open = false;
        for message in messages {
            out.clear();
            let over = session.is_closed();
            session.receive(at(1), message, &mut out);
            prop_assert!(!over || out.is_empty());
            for step in &out {
                match step {
                    Step::Event(PeerEvent::Open { .. }) => open = true,
                    Step::Event(PeerEvent::Message { message, .. }) => {
                        prop_assert!(open);
                        prop_assert_eq!(dials, matches!(message, Peer::AbortAck { .. }));
                    }
                    Step::Event(PeerEvent::Tokens { .. }) => prop_assert!(open && dials),
                    _ => {}
                }
            }
        }
    }
}

fn tokens() -> Tokens {
    Tokens { key: kit::key(1), from: 0, ids: vec![504] }
}

/// Runs two peers against one another until neither has anything to say. Returns what each heard.
fn peers(source: Settings, wanted: &PeerAddress) -> (Vec<PeerEvent>, Vec<PeerEvent>) {
    let (mut to_destination, mut to_source): (PeerOut, PeerOut) = (Vec::new(), Vec::new());
    let identity = kit::peer_identity(kit::SOURCE);
    let mut source = PeerSession::accept(identity, source, kit::CHALLENGE, at(0), &mut to_destination);
    let identity = kit::peer_identity(kit::MACHINE);
    let mut destination = PeerSession::dial(identity, kit::settings(), wanted, kit::NONCE, at(0));
    let (mut at_source, mut at_destination) = (Vec::new(), Vec::new());
    while !to_destination.is_empty() || !to_source.is_empty() {
        for step in std::mem::take(&mut to_destination) {
            match step {
                Step::Send(message) => destination.receive(at(1), message, &mut to_source),
                Step::Event(event) => {
                    if let PeerEvent::Message { message: Peer::Abort { key }, .. } = event {
                        source.say(Peer::AbortAck { key }, None, &mut to_destination);
                        assert!(source.tokens(tokens(), &mut to_destination));
                    }
                    at_source.push(event);
                }
                Step::Close(_) => {}
            }
        }
        for step in std::mem::take(&mut to_source) {
            match step {
                Step::Send(message) => source.receive(at(1), message, &mut to_destination),
                Step::Event(event) => {
                    if matches!(event, PeerEvent::Open { .. }) {
                        let key = kit::key(1);
                        assert!(!destination.tokens(tokens(), &mut to_source), "it is not the source");
                        let grant = Peer::Grant { key, blocks: 3 };
                        destination.say(grant, Some(kit::grant()), &mut to_source);
                        destination.say(Peer::Abort { key }, None, &mut to_source);
                    }
                    at_destination.push(event);
                }
                Step::Close(_) => {}
            }
        }
    }
    (at_source, at_destination)
}

#[test]
fn a_destination_grants_and_aborts_and_its_source_answers() {
    let (at_source, at_destination) = peers(kit::settings(), &kit::address(kit::SOURCE));
    let opened = PeerEvent::Open { machine: kit::MACHINE, address: Some(kit::address(kit::MACHINE)) };
    assert_eq!(at_source[0], opened);
    assert!(matches!(&at_source[1], PeerEvent::Message { grant: Some(grant), .. } if *grant == kit::grant()));
    assert_eq!(at_source.len(), 3);
    let ack = Peer::AbortAck { key: kit::key(1) };
    assert_eq!(at_destination[1], PeerEvent::Message { from: kit::SOURCE, message: ack, grant: None });
    assert_eq!(at_destination[2], PeerEvent::Tokens { from: kit::SOURCE, tokens: tokens() });
}

#[test]
fn tokens_are_the_sources_to_give_and_only_once_the_session_is_open() {
    let mut out: PeerOut = Vec::new();
    let identity = kit::peer_identity(kit::SOURCE);
    let mut source = PeerSession::accept(identity, kit::settings(), kit::CHALLENGE, at(0), &mut out);
    assert!(!source.tokens(tokens(), &mut out), "nobody is there");
    source.receive(at(1), ToPeer::Prove(kit::peer_prove()), &mut out);
    source.receive(at(1), ToPeer::Hello(Box::new(kit::peer_hello())), &mut out);
    out.clear();
    source.receive(at(1), ToPeer::Tokens(tokens()), &mut out);
    let Some(Step::Close(reason)) = out.last() else { panic!("{out:?}") };
    assert_eq!(reason.to_string(), "tokens while it is the other side's");
    out.clear();
    assert!(!source.tokens(tokens(), &mut out) && out.is_empty(), "it is over");
}

#[test]
fn another_life_that_answers_shows_that_the_one_before_is_gone() {
    let before = MachineId { incarnation: 4, ..kit::SOURCE };
    let replaced = (vec![], vec![PeerEvent::Replaced { machine: before }]);
    assert_eq!(peers(kit::settings(), &kit::address(before)), replaced);
    // Whoever listens there now does not know what the one before knew, and no secret changes that.
    let another = Settings { secret: Some(Secret::new(b"another")), ..kit::settings() };
    assert_eq!(peers(another.clone(), &kit::address(before)), replaced);
    let nothing = (vec![], vec![]);
    assert_eq!(
        peers(another, &kit::address(kit::SOURCE)),
        nothing,
        "one that does not know the secret shows nothing"
    );
    // One that has the key, and is not the machine that was meant.
    let wrong = PeerAddress { machine: before, ..kit::address(kit::SOURCE) };
    assert_eq!(peers(kit::settings(), &wrong), nothing);
}

/// A session of a source, and what it has said to a stranger so far.
fn dialled() -> (PeerSession, PeerOut) {
    let mut out: PeerOut = Vec::new();
    let source = PeerSession::accept(
        kit::peer_identity(kit::SOURCE),
        kit::settings(),
        kit::CHALLENGE,
        at(0),
        &mut out,
    );
    (source, out)
}

#[test]
fn neither_side_says_anything_of_itself_before_the_other_has_shown_to_know_the_key() {
    let is_bare = |out: &PeerOut| {
        let said = format!("{out:?}");
        let about = ["incarnation", "layout", "7700", "7702", "smollm2", "kv.sock"];
        assert!(about.iter().all(|word| !said.contains(word)), "{said}");
    };
    let right = kit::peer_prove();
    let strange = [
        ToPeer::Prove(PeerProof { key: kit::door(kit::MACHINE).name(), ..right }),
        ToPeer::Prove(PeerProof { proof: Hex([0; 32]), ..right }),
        ToPeer::Prove(PeerProof { nonce: Hex([9; 16]), ..right }),
        ToPeer::Hello(Box::new(kit::peer_hello())),
        kit::peer_proved(),
        ToPeer::Ping { number: 1 },
    ];
    for message in strange {
        let (mut source, mut out) = dialled();
        assert_eq!(source.frame_bytes_max(), 1024);
        source.receive(at(1), message, &mut out);
        assert!(source.is_closed() && !source.is_proven());
        is_bare(&out);
    }
    let of = kit::peer_identity(kit::MACHINE);
    let mut destination =
        PeerSession::dial(of, kit::settings(), &kit::address(kit::SOURCE), kit::NONCE, at(0));
    let mut out: PeerOut = Vec::new();
    destination.receive(at(1), ToPeer::Challenge(kit::challenge()), &mut out);
    assert_eq!(out, [Step::Send(ToPeer::Prove(right))]);
    // What it has shown itself is no answer to it.
    destination.receive(at(1), ToPeer::Proved { proof: right.proof }, &mut out);
    assert!(destination.is_closed());
    is_bare(&out);
}

#[test]
fn a_proof_of_one_machine_lets_no_other_in() {
    let (mut source, mut out) = dialled();
    source.receive(at(1), ToPeer::Prove(kit::peer_prove()), &mut out);
    assert!(source.is_proven());
    let third = MachineId { index: 3, incarnation: 1 };
    let hello = PeerHello { address: kit::address(third), ..kit::peer_hello() };
    source.receive(at(1), ToPeer::Hello(Box::new(hello)), &mut out);
    let Some(Step::Close(CloseReason::Refused(refusal))) = out.last() else { panic!("{out:?}") };
    assert_eq!(refusal.field, "proof");
    assert!(!out.iter().any(|step| matches!(step, Step::Event(_))));
}

fn hello(name: &str, index: Option<u32>, incarnation: u32) -> Hello {
    Hello { name: name.to_owned(), index, incarnation, ..kit::hello() }
}

/// A roster that hears of one connection after the other, from one host, and of workers that all are away.
struct Door {
    roster: Roster,
    connections: u64,
}

impl Door {
    fn new(places: u32) -> Self {
        Self { roster: Roster::new(places), connections: 0 }
    }

    fn says(&mut self, hello: &Hello, standing: Standing) -> Result<u32, String> {
        self.connections += 1;
        let entered = self.roster.enter(self.connections, hello, "10.0.0.1:5", |_| standing);
        entered.map(|machine| machine.index).map_err(|refusal| refusal.to_string())
    }

    /// Lets a worker in that registers.
    fn enters(&mut self, hello: &Hello, standing: Standing) -> Result<u32, String> {
        let index = self.says(hello, standing)?;
        assert_eq!(self.roster.register(self.connections).unwrap().name, hello.name);
        Ok(index)
    }
}

#[test]
fn a_name_keeps_its_place_and_an_older_incarnation_does_not_get_it() {
    let mut door = Door::new(8);
    let away = Standing::Away;
    assert_eq!(door.enters(&hello("b", Some(1), 5), away), Ok(1));
    assert_eq!(door.enters(&hello("a", None, 5), away), Ok(0));
    assert_eq!(door.enters(&hello("c", None, 5), away), Ok(2));
    assert_eq!(door.enters(&hello("a", None, 6), away), Ok(0));
    let refused = |name, index, door: &mut Door| door.says(&hello(name, index, 5), away).unwrap_err();
    assert_eq!(refused("a", None, &mut door), "incarnation: expected at least 6, got 5");
    assert_eq!(refused("d", Some(1), &mut door), "name: expected b, got d");
    assert_eq!(refused("b", Some(3), &mut door), "index: expected 1, got 3");
    assert_eq!(refused("e", Some(8), &mut door), "index: expected below machines_max, which is 8, got 8");
    assert_eq!(refused("e", Some(u32::MAX), &mut door).split(',').count(), 3);
    let current = door.roster.member(0).unwrap().address.machine;
    assert_eq!(door.roster.address(current).peer, kit::hello().peer);
    let before = splitcore_core::id::MachineId { incarnation: 5, ..current };
    assert_eq!(door.roster.address(before).peer, "", "it is gone");
}

#[test]
fn who_does_not_register_leaves_nothing_behind() {
    let mut door = Door::new(8);
    for at in 0..3 * ENTERING_MAX {
        assert_eq!(door.says(&hello(&format!("w{at}"), None, u32::MAX), Standing::Lost), Ok(0));
        door.roster.leave(door.connections);
    }
    assert_eq!(door.roster.member(0), None);
    assert_eq!(door.enters(&hello("w0", None, 1), Standing::Away), Ok(0));
    // An impostor of a later life that has not registered changes nothing for the one that has.
    assert_eq!(door.says(&hello("w0", None, u32::MAX), Standing::Away), Ok(0));
    assert_eq!(door.enters(&hello("w0", Some(0), 1), Standing::Away), Ok(0));
}

#[test]
fn places_are_set_aside_for_those_that_are_about_to_register_and_not_for_too_many() {
    let mut door = Door::new(1 << 20);
    for at in 0..ENTERING_MAX as u32 {
        assert_eq!(door.says(&hello(&format!("w{at}"), None, 5), Standing::Away), Ok(at));
    }
    let refused = door.says(&hello("one-more", None, 5), Standing::Away).unwrap_err();
    assert!(refused.starts_with("entering_max: expected 1024"), "{refused}");
    door.roster.leave(1);
    assert_eq!(door.says(&hello("one-more", None, 5), Standing::Away), Ok(0));
}

#[test]
fn a_lost_worker_bars_neither_its_name_nor_its_place_for_ever() {
    let mut door = Door::new(2);
    assert_eq!(door.enters(&hello("a", None, u32::MAX), Standing::Away), Ok(0));
    assert_eq!(door.enters(&hello("b", None, 5), Standing::Away), Ok(1));
    let refused = door.says(&hello("a", None, 6), Standing::Away).unwrap_err();
    assert!(refused.starts_with("incarnation: "), "{refused}");
    let full = door.says(&hello("c", None, 6), Standing::Away).unwrap_err();
    assert_eq!(full, "machines_max: expected 2, got one worker more");
    // All are lost: who comes later gets a place that a later life may have.
    assert_eq!(door.enters(&hello("a", None, 6), Standing::Lost), Ok(1));
    assert_eq!(door.enters(&hello("a", Some(1), 7), Standing::Away), Ok(1));
}

#[test]
fn of_two_workers_with_one_name_on_two_hosts_the_second_is_refused() {
    let mut door = Door::new(8);
    assert_eq!(door.enters(&hello("a", None, 5), Standing::Away), Ok(0));
    let second = |standing| {
        let entered = door.roster.clone().enter(99, &hello("a", None, 6), "10.0.0.2:7", |_| standing);
        entered.map_err(|refusal| (refusal.to_string(), refusal.permanent))
    };
    let told =
        "name: expected a name of its own, as 'a' is in session from 10.0.0.1:5, got 'a' from 10.0.0.2:7";
    assert_eq!(second(Standing::Here), Err((told.to_owned(), false)));
    assert!(second(Standing::Away).is_ok(), "it may have moved");
    let same_host = door.roster.clone().enter(99, &hello("a", None, 6), "10.0.0.1:9", |_| Standing::Here);
    assert!(same_host.is_ok(), "it was started again");
}

#[test]
fn kv_must_fit_that_of_the_workers_that_are_here() {
    let mut door = Door::new(8);
    assert_eq!(door.enters(&hello("a", None, 5), Standing::Away), Ok(0));
    let with = |change: &dyn Fn(&mut KvLayout)| {
        let mut hello = hello("b", None, 5);
        change(&mut hello.layout);
        hello
    };
    let dtype = with(&|layout| layout.dtype = Dtype::Bf16);
    assert_eq!(door.says(&dtype, Standing::Here), Err("layout.dtype: expected f32, got bf16".to_owned()));
    let layers = with(&|layout| layout.layers = 32);
    assert_eq!(door.says(&layers, Standing::Away), Err("layout.layers: expected 30, got 32".to_owned()));
    let blocks = with(&|layout| layout.block_tokens = 32);
    assert_eq!(door.says(&blocks, Standing::Here), Ok(1));
    // With nobody left it is for the next one to say.
    assert_eq!(door.enters(&dtype, Standing::Lost), Ok(1));
}
