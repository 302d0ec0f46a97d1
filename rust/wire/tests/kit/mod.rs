//! Messages to test with.
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod certificates;
pub(crate) mod daemon;

use proptest::prelude::*;
use splitcore_core::event::{Claim, Held, Join, Registration, Role};
use splitcore_core::id::{AssignmentSeq, Attempt, Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::kv::{Arrangement, Dtype, KvLayout, Planes, Shard, TokenOrder, Values};
use splitcore_core::leg::{Command, LegState, Notice, Peer, Report, Terms, Work};
use splitcore_core::placement::{Mode, Upto};
use splitcore_wire::auth::{Key, Party, Secret, prove};
use splitcore_wire::hex::{Hex, Nonce, Proof};
use splitcore_wire::message::*;
use splitcore_wire::session::{Identity, Limits, PeerIdentity, Settings};

pub(crate) const CHALLENGE: Nonce = Hex([0x11; 16]);
pub(crate) const NONCE: Nonce = Hex([0x22; 16]);
pub(crate) const MACHINE: MachineId = MachineId { index: 2, incarnation: 7 };
pub(crate) const SOURCE: MachineId = MachineId { index: 0, incarnation: 5 };
pub(crate) const EPOCH: Epoch = Epoch(3);

pub(crate) fn secret() -> Secret {
    Secret::new(b"correct horse battery staple\n")
}

/// What whoever dials a machine must show to know.
pub(crate) fn door(machine: MachineId) -> Key {
    Key::new([(machine.index as u8).wrapping_add(machine.incarnation as u8); 32])
}

pub(crate) fn key(request: u64) -> LegKey {
    LegKey { request: RequestId(request), attempt: Attempt(1) }
}

pub(crate) fn layout() -> KvLayout {
    KvLayout {
        layers: 30,
        values: Values::Heads { heads: 3, head_dim: 64 },
        dtype: Dtype::F32,
        block_tokens: 16,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    }
}

pub(crate) fn work(prompt_tokens: u32) -> Work {
    Work { prompt_tokens, start: 0, upto: Upto::End, max_new_tokens: 16, terms: Terms::default() }
}

pub(crate) fn descriptor(prompt: Vec<u32>) -> Descriptor {
    Descriptor {
        name: "chat-8f3a".to_owned(),
        prompt,
        sampling: Sampling { temperature: 0.75, top_p: 1.0, min_tokens: 3, seed: 42 },
        stop: vec!["\n\n".to_owned()],
        stop_ids: vec![2],
        note: String::new(),
    }
}

pub(crate) fn address(machine: MachineId) -> PeerAddress {
    PeerAddress {
        machine,
        peer: format!("127.0.0.1:{}", 7700 + machine.index),
        transfer: "{\"shm\":\"/tmp/kv.sock\"}".to_owned(),
        key: door(machine),
    }
}

pub(crate) fn hello() -> Hello {
    let proof = prove(&secret(), Party::Worker, &CHALLENGE, &NONCE, "token-0");
    Hello {
        protocol: PROTOCOL,
        name: "token-0".to_owned(),
        index: Some(MACHINE.index),
        incarnation: MACHINE.incarnation,
        epoch: Epoch(2),
        model: "smollm2-135m".to_owned(),
        layout: layout(),
        blocks: 512,
        context: Some(8192),
        peer: address(MACHINE).peer,
        transfer: address(MACHINE).transfer,
        key: door(MACHINE),
        nonce: NONCE,
        proof: Some(proof),
    }
}

pub(crate) fn identity() -> Identity {
    let Hello {
        name, index, incarnation, epoch, model, layout, blocks, context, peer, transfer, key, ..
    } = hello();
    Identity { name, index, incarnation, epoch, model, layout, blocks, context, peer, transfer, key }
}

pub(crate) fn peer_identity(machine: MachineId) -> PeerIdentity {
    PeerIdentity { address: address(machine), layout: layout() }
}

pub(crate) fn settings() -> Settings {
    Settings { secret: Some(secret()), epoch: EPOCH, limits: Limits::default(), ..Settings::default() }
}

pub(crate) fn welcome() -> Welcome {
    let proof = prove(&secret(), Party::Daemon, &CHALLENGE, &NONCE, "token-0");
    let limits = Limits::default();
    Welcome {
        protocol: PROTOCOL,
        machine: MACHINE,
        epoch: EPOCH,
        ping_interval_ns: limits.ping_interval_ns,
        silence_limit_ns: limits.silence_limit_ns,
        frame_bytes_max: limits.frame_bytes_max,
        proof: Some(proof),
    }
}

pub(crate) fn join(machine: MachineId) -> Join {
    Join { machine, role: Role::Token, kv_capacity_tokens: 8192, speed_weight: 1, link: None, costs: None }
}

pub(crate) fn registration(epoch: Epoch, claims: Vec<Claim>) -> Registration {
    Registration { join: join(MACHINE), epoch, report: Report::default(), claims }
}

pub(crate) fn claim(request: u64) -> Claim {
    let held = Held::Leg { state: LegState::QUEUED, mode: None };
    Claim { key: key(request), order: Order(request), work: work(4), held }
}

pub(crate) fn challenge() -> Challenge {
    Challenge { protocol: PROTOCOL, nonce: CHALLENGE, secret: true }
}

pub(crate) fn compute(seq: u64, request: u64) -> Assigned {
    Assigned {
        seq: AssignmentSeq(seq),
        command: Command::Compute { key: key(request), order: Order(request), work: work(4) },
        descriptor: Some(descriptor(vec![1, 345, 49_151, 7])),
        peer: None,
    }
}

pub(crate) fn reserve(seq: u64) -> Assigned {
    let work = Work { start: 4, ..work(4) };
    let command = Command::Reserve { key: key(9), order: Order(9), work, source: SOURCE, start: true };
    Assigned { command, peer: Some(address(SOURCE)), ..compute(seq, 9) }
}

fn peer_proof(party: Party, name: &str) -> Proof {
    prove(&door(SOURCE).with(Some(&secret())), party, &CHALLENGE, &NONCE, name)
}

pub(crate) fn peer_prove() -> PeerProof {
    PeerProof { key: door(SOURCE).name(), nonce: NONCE, proof: peer_proof(Party::Destination, "") }
}

pub(crate) fn peer_proved() -> ToPeer {
    ToPeer::Proved { proof: peer_proof(Party::Source, "") }
}

pub(crate) fn peer_hello() -> PeerHello {
    let proof = peer_proof(Party::Destination, "2.7 to 0.5");
    PeerHello { protocol: PROTOCOL, address: address(MACHINE), layout: layout(), proof }
}

pub(crate) fn peer_welcome() -> PeerWelcome {
    PeerWelcome {
        protocol: PROTOCOL,
        machine: SOURCE,
        ping_interval_ns: 1_000_000_000,
        silence_limit_ns: 5_000_000_000,
        proof: peer_proof(Party::Source, "0.5 to 2.7"),
    }
}

pub(crate) fn grant() -> GrantBody {
    GrantBody { blocks: vec![4, 5, 19], transfer: "{\"slot\":3}".to_owned() }
}

pub(crate) fn daemon_examples() -> Vec<ToDaemon> {
    let report =
        Report { seq: AssignmentSeq(17), kv_tokens: 640, free_blocks: 472, legs: 3, ..Report::default() };
    vec![
        ToDaemon::Hello(Box::new(hello())),
        ToDaemon::Describe { key: key(9), descriptor: Box::new(descriptor(vec![1, 345, 49_151, 7])) },
        ToDaemon::Register(Box::new(registration(Epoch(2), vec![claim(9)]))),
        ToDaemon::Notice(Notice::PrefillDone { key: key(9), sampled: true }),
        ToDaemon::Notice(Notice::Released { key: key(9), to: Some(SOURCE), report }),
        ToDaemon::Notice(Notice::Report(report)),
        ToDaemon::Tokens(Tokens { key: key(9), from: 0, ids: vec![504, 253, 28] }),
        ToDaemon::Leave {},
        ToDaemon::Pong { number: 1 },
        ToDaemon::Close { reason: "the worker ends".to_owned() },
    ]
}

pub(crate) fn worker_examples() -> Vec<ToWorker> {
    let send = Command::Send { key: key(9), to: MACHINE, mode: Mode::LayerWise };
    let send =
        Assigned { seq: AssignmentSeq(20), command: send, descriptor: None, peer: Some(address(MACHINE)) };
    let command = Command::Confirm { key: key(9), delivered: 3 };
    let confirm = Assigned { seq: AssignmentSeq(21), command, descriptor: None, peer: None };
    vec![
        ToWorker::Challenge(challenge()),
        ToWorker::Welcome(welcome()),
        ToWorker::Refused(Refusal::new("layout.layers", 30, 32)),
        ToWorker::Registered { epoch: EPOCH },
        ToWorker::Command(Box::new(compute(18, 9))),
        ToWorker::Command(Box::new(reserve(19))),
        ToWorker::Command(Box::new(send)),
        ToWorker::Command(Box::new(confirm)),
        ToWorker::Enough { key: key(9), tokens: 12 },
        ToWorker::Ping { number: 1 },
        ToWorker::Close { reason: "the daemon ends".to_owned() },
    ]
}

pub(crate) fn peer_examples() -> Vec<ToPeer> {
    vec![
        ToPeer::Challenge(challenge()),
        ToPeer::Prove(peer_prove()),
        peer_proved(),
        ToPeer::Hello(Box::new(peer_hello())),
        ToPeer::Welcome(peer_welcome()),
        ToPeer::Refused(Refusal::new("layout.dtype", "f32", "bf16")),
        ToPeer::Peer { message: Peer::Grant { key: key(9), blocks: 3 }, grant: Some(grant()) },
        ToPeer::Peer { message: Peer::Landed { key: key(9) }, grant: None },
        ToPeer::Tokens(Tokens { key: key(9), from: 0, ids: vec![504] }),
        ToPeer::Ping { number: 1 },
        ToPeer::Pong { number: 1 },
        ToPeer::Close { reason: "the worker ends".to_owned() },
    ]
}

fn any_key() -> impl Strategy<Value = LegKey> {
    (any::<u64>(), any::<u32>())
        .prop_map(|(request, attempt)| LegKey { request: RequestId(request), attempt: Attempt(attempt) })
}

fn any_machine() -> impl Strategy<Value = MachineId> {
    (any::<u32>(), any::<u32>()).prop_map(|(index, incarnation)| MachineId { index, incarnation })
}

fn any_work() -> impl Strategy<Value = Work> {
    let numbers = (any::<u32>(), any::<u32>(), any::<i32>(), any::<i64>());
    let terms = (numbers, any::<bool>(), any::<Option<u32>>()).prop_map(
        |((resumed_tokens, class, priority, line), resumable, pin_token)| Terms {
            resumed_tokens,
            class,
            priority,
            line,
            resumable,
            pin_token,
        },
    );
    (any::<u32>(), any::<u32>(), any::<Option<u32>>(), any::<u32>(), terms).prop_map(
        |(prompt_tokens, start, upto, max_new_tokens, terms)| Work {
            prompt_tokens,
            start,
            upto: upto.map_or(Upto::End, Upto::Position),
            max_new_tokens,
            terms,
        },
    )
}

fn any_report() -> impl Strategy<Value = Report> {
    (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>(), any::<u32>()).prop_map(
        |(seq, kv_tokens, free_blocks, legs, flag, quarantined_blocks)| Report {
            seq: AssignmentSeq(seq),
            kv_tokens,
            free_blocks,
            legs,
            running: flag,
            quarantined_blocks,
            over_quarantine: !flag,
        },
    )
}

fn any_descriptor() -> impl Strategy<Value = Descriptor> {
    let sampling = (0.0..100.0, 0.001..1.0, any::<u64>()).prop_map(|(temperature, top_p, seed)| Sampling {
        temperature,
        top_p,
        min_tokens: seed as u32,
        seed,
    });
    let (name, stop) = (".{0,20}", proptest::collection::vec(".{0,8}", 0..3));
    let ids = || proptest::collection::vec(any::<u32>(), 0..50);
    (name, ids(), sampling, stop, ids(), ".{0,9}").prop_map(
        |(name, prompt, sampling, stop, stop_ids, note)| Descriptor {
            name,
            prompt,
            sampling,
            stop,
            stop_ids,
            note,
        },
    )
}

fn any_notice() -> impl Strategy<Value = Notice> {
    (0..13, any_key(), any_report(), any::<u32>(), any::<bool>(), proptest::option::of(any_machine()))
        .prop_map(|(kind, key, report, tokens, sampled, to)| match kind {
            0 => Notice::Reserved { key },
            1 => Notice::Refused { key, report },
            2 => Notice::PrefillDone { key, sampled },
            3 => Notice::Sent { key },
            4 => Notice::Landed { key },
            5 => Notice::Progress { key, tokens },
            6 => Notice::Evicted { key, tokens },
            7 => Notice::Finished { key, tokens },
            8 => Notice::Released { key, to, report },
            9 => Notice::TransferFailed { key },
            10 => Notice::Relief { key },
            11 => Notice::Gone { key },
            _ => Notice::Report(report),
        })
}

fn any_tokens() -> impl Strategy<Value = Tokens> {
    let tokens = (any_key(), any::<u32>(), proptest::collection::vec(any::<u32>(), 0..40));
    tokens.prop_map(|(key, from, ids)| Tokens { key, from, ids })
}

pub(crate) fn any_to_daemon() -> impl Strategy<Value = ToDaemon> {
    prop_oneof![
        any_notice().prop_map(ToDaemon::Notice),
        any_tokens().prop_map(ToDaemon::Tokens),
        (any_key(), any_descriptor())
            .prop_map(|(key, of)| ToDaemon::Describe { key, descriptor: Box::new(of) }),
        any::<u64>().prop_map(|number| ToDaemon::Pong { number }),
        proptest::sample::select(daemon_examples()),
    ]
}

pub(crate) fn any_to_worker() -> impl Strategy<Value = ToWorker> {
    let command = (0..8, any_key(), any::<u64>(), any_work(), any_machine(), any::<bool>()).prop_map(
        |(kind, key, order, work, other, flag)| match kind {
            0 => Command::Reserve { key, order: Order(order), work, source: other, start: flag },
            1 => Command::Compute { key, order: Order(order), work },
            2 => {
                Command::Send { key, to: other, mode: if flag { Mode::LayerWise } else { Mode::Serialized } }
            }
            3 => Command::Start { key },
            4 => Command::Abort { key },
            5 => Command::Keep { key, order: Order(order), work },
            6 => Command::Release { key },
            _ => Command::Confirm { key, delivered: work.start },
        },
    );
    let assigned = (any::<u64>(), command, proptest::option::of(any_descriptor()), any_machine()).prop_map(
        |(seq, command, descriptor, of)| {
            let assigned = Assigned { seq: AssignmentSeq(seq), command, descriptor, peer: Some(address(of)) };
            ToWorker::Command(Box::new(assigned))
        },
    );
    prop_oneof![assigned, proptest::sample::select(worker_examples())]
}

pub(crate) fn any_to_peer() -> impl Strategy<Value = ToPeer> {
    let grant = (any_key(), any::<u32>(), proptest::collection::vec(any::<u32>(), 0..40)).prop_map(
        |(key, blocks, table)| ToPeer::Peer {
            message: Peer::Grant { key, blocks },
            grant: Some(GrantBody { blocks: table, transfer: String::new() }),
        },
    );
    let ack = any_key().prop_map(|key| ToPeer::Peer { message: Peer::AbortAck { key }, grant: None });
    let tokens = any_tokens().prop_map(ToPeer::Tokens);
    prop_oneof![grant, ack, tokens, proptest::sample::select(peer_examples())]
}
