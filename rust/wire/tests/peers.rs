//! Sessions between workers, and who has which name and place.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

mod kit;

use proptest::prelude::*;
use splitcore_core::id::MachineId;
use splitcore_core::leg::Peer;
use splitcore_core::time::Time;
use splitcore_wire::auth::Secret;
use splitcore_wire::hex::Hex;
use splitcore_wire::message::*;
use splitcore_wire::roster::Roster;
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

#[test]
fn a_name_keeps_its_place_and_an_older_incarnation_does_not_get_it() {
    let mut roster = Roster::default();
    let hello =
        |name: &str, index, incarnation| Hello { name: name.to_owned(), index, incarnation, ..kit::hello() };
    let place = |roster: &mut Roster, hello: &Hello| roster.enter(hello).map(|id| id.index);
    assert_eq!(place(&mut roster, &hello("b", Some(1), 5)), Ok(1));
    assert_eq!(place(&mut roster, &hello("a", None, 5)), Ok(0));
    assert_eq!(place(&mut roster, &hello("c", None, 5)), Ok(2));
    assert_eq!(place(&mut roster, &hello("a", None, 6)), Ok(0));
    let refused = roster.enter(&hello("a", None, 5)).unwrap_err();
    assert_eq!(refused.to_string(), "incarnation: 6 here, 5 there");
    assert_eq!(roster.enter(&hello("d", Some(1), 5)).unwrap_err().to_string(), "name: b here, d there");
    assert_eq!(roster.enter(&hello("b", Some(3), 5)).unwrap_err().to_string(), "index: 1 here, 3 there");
    let current = roster.member(0).unwrap().address.machine;
    assert_eq!(roster.address(current).peer, kit::hello().peer);
    assert_eq!(roster.address(MachineId { incarnation: 5, ..current }).peer, "", "it is gone");
}
