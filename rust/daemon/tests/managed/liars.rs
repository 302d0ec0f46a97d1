//! Workers that say what cannot be, beside an honest one: nobody but they pays for it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use splitcore_core::event::{Claim, Held, Role};
use splitcore_core::id::{AssignmentSeq, Attempt, LegKey, MachineId, Order, RequestId};
use splitcore_core::kv::Dtype;
use splitcore_core::leg::{Notice, Report, Terms, Work};
use splitcore_core::placement::Upto;
use splitcore_daemon::Options;
use splitcore_daemon::host::{Ending, Failure, Host, Output, Said};
use splitcore_wire::session::CloseReason;

use super::liar::{BLOCKS, Liar, identity, registration, report};
use super::{ask, expected, idle, model, ready, rest, served};
use crate::common::worker::Worker;

const TOKENS: u32 = 60;

/// A service whose requests run whole: the workers here hand nothing over.
fn options(workers: &str) -> Options {
    Options { split_from_tokens: 1000, ..super::options(workers) }
}

fn key(request: u64, attempt: u32) -> LegKey {
    LegKey { request: RequestId(request), attempt: Attempt(attempt) }
}

/// Requests that an honest worker runs, with some of their tokens out, and stands still.
struct Victims {
    worker: Worker,
    outputs: Vec<Output>,
    requests: Vec<u64>,
}

impl Victims {
    async fn begin(host: &std::sync::Arc<Host>, workers: &str, count: u64) -> Self {
        let worker = Worker::start(workers, "honest", "model", model);
        ready(host).await;
        let asks = (0..count).map(|at| ask(&format!("victim-{at}"), at, TOKENS));
        let mut outputs: Vec<Output> = asks.flat_map(|ask| host.generate(vec![ask]).unwrap()).collect();
        for output in &mut outputs {
            assert_eq!(output.acknowledged().await, Ok(()));
        }
        worker.hold.store(true, Ordering::Relaxed);
        let mut requests = decided(host);
        requests.sort_unstable();
        Self { worker, outputs, requests }
    }

    /// All of them get what they were to get, and the books are right.
    async fn go_on(self, host: &Host) {
        assert_eq!(host.check().unwrap(), None);
        self.worker.hold.store(false, Ordering::Relaxed);
        for (at, mut output) in (0..).zip(self.outputs) {
            assert_eq!(rest(&mut output).await, (expected(at, TOKENS), Ending::Finished));
        }
        idle(host).await;
    }
}

/// The requests of the last decisions, the newest first.
fn decided(host: &Host) -> Vec<u64> {
    let shown = serde_json::to_value(host.overview().unwrap().decisions).unwrap();
    shown.as_array().unwrap().iter().map(|decision| decision["request_id"].as_u64().unwrap()).collect()
}

fn violations(host: &Host) -> BTreeMap<&'static str, u64> {
    host.overview().unwrap().violations.into_iter().collect()
}

/// All that a worker can say of a leg.
fn notices(key: LegKey) -> Vec<(&'static str, Notice)> {
    let (report, to) = (report(), MachineId { index: 0, incarnation: 1 });
    vec![
        ("reserved", Notice::Reserved { key }),
        ("refused", Notice::Refused { key, report }),
        ("prefill_done", Notice::PrefillDone { key, sampled: true }),
        ("sent", Notice::Sent { key }),
        ("landed", Notice::Landed { key }),
        ("progress", Notice::Progress { key, tokens: 3 }),
        ("evicted", Notice::Evicted { key, tokens: 3 }),
        ("finished", Notice::Finished { key, tokens: 14 }),
        ("released", Notice::Released { key, to: None, report }),
        ("released", Notice::Released { key, to: Some(to), report }),
        ("transfer_failed", Notice::TransferFailed { key }),
        ("relief", Notice::Relief { key }),
        ("gone", Notice::Gone { key }),
    ]
}

#[test]
fn a_worker_that_speaks_of_what_it_was_not_given_loses_its_session_and_the_victim_nothing() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let victims = Victims::begin(&host, &workers, 1).await;
        let victim = victims.requests[0];
        let mut ended = BTreeMap::<&str, u64>::new();
        // Of the victim's leg, of attempts that it will never have, and of a request that nobody has.
        for (request, attempt) in [(victim, 1), (victim, 2), (victim, 1001), (victim + 1000, 1), (1, 1)] {
            let key = key(request, attempt);
            for (kind, notice) in notices(key) {
                let liar = Liar::enter(&workers, &format!("liar-{kind}"), Role::Mixed).await;
                liar.notice(notice);
                let reason = liar.lost().await;
                let told = format!("{kind}: request {request} attempt {attempt} ");
                assert!(reason.contains(&told), "{reason}");
                *ended.entry(kind).or_default() += 1;
            }
            for from in [0, 1, 1000] {
                let liar = Liar::enter(&workers, "liar-tokens", Role::Mixed).await;
                liar.tokens(key, from, &[7777, 7777, 7777]);
                let reason = liar.lost().await;
                assert!(
                    reason.contains(&format!("tokens: request {request} attempt {attempt} ")),
                    "{reason}"
                );
                *ended.entry("tokens").or_default() += 1;
            }
        }
        assert_eq!(violations(&host), ended);
        victims.go_on(&host).await;
    });
}

#[test]
fn reports_that_cannot_be_end_the_session_of_their_worker() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let victims = Victims::begin(&host, &workers, 1).await;
        let wrong = [
            Report { free_blocks: BLOCKS + 1, ..report() },
            Report { free_blocks: u32::MAX, ..report() },
            Report { quarantined_blocks: u32::MAX, ..report() },
            Report { kv_tokens: u64::MAX, ..report() },
            Report { seq: AssignmentSeq(u64::MAX), ..report() },
        ];
        for (at, wrong) in (1..).zip(wrong) {
            let liar = Liar::enter(&workers, "liar", Role::Mixed).await;
            liar.notice(Notice::Report(wrong));
            let reason = liar.lost().await;
            assert!(reason.contains("report: "), "{reason}");
            assert_eq!(violations(&host)["report"], at);
        }
        victims.go_on(&host).await;
    });
}

#[test]
fn a_registration_that_contradicts_changes_nothing() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let victims = Victims::begin(&host, &workers, 1).await;
        let (victim, machines) = (victims.requests[0], host.rows(0, u32::MAX).unwrap().0.len());
        let work = Work {
            prompt_tokens: 5,
            start: 0,
            upto: Upto::End,
            max_new_tokens: TOKENS,
            terms: Terms::default(),
        };
        let claim = |held| Claim { key: key(victim, 1), order: Order(0), work, held };
        let mut foreign = victims.outputs[0].ask.prompt.to_vec();
        foreign.extend([7777; 10]);
        let described = splitcore_wire::message::Descriptor {
            name: "victim-0".to_owned(),
            prompt: foreign,
            sampling: victims.outputs[0].ask.sampling,
            stop: vec!["never".to_owned()],
            stop_ids: vec![100_000],
            note: String::new(),
        };
        let resumed =
            Work { prompt_tokens: 15, terms: Terms { resumed_tokens: 10, ..Terms::default() }, ..work };
        for ours in [false, true] {
            for held in [Held::Kept, Held::Finished, Held::Closing] {
                let mut liar = Liar::connect(&workers, identity("liar"));
                let machine = liar.welcomed().await.unwrap();
                let mut wrong = registration(machine, Role::Mixed);
                wrong.epoch = if ours { liar.epoch() } else { wrong.epoch };
                wrong.claims.push(Claim { work: resumed, ..claim(held) });
                liar.register(wrong, BTreeMap::from([(key(victim, 1), described.clone())]));
                let reason = liar.lost().await;
                assert!(
                    reason.contains(&format!("register: request {victim} attempt 1 is claimed")),
                    "{reason}"
                );
            }
        }
        let mut liar = Liar::connect(&workers, identity("liar"));
        let machine = liar.welcomed().await.unwrap();
        let mut wrong = registration(machine, Role::Mixed);
        wrong.join.kv_capacity_tokens = u64::MAX;
        liar.register(wrong, BTreeMap::new());
        assert!(liar.lost().await.contains("has a capacity of more KV tokens than its blocks"));
        assert_eq!(violations(&host), BTreeMap::from([("register", 7)]));
        assert_eq!(host.rows(0, u32::MAX).unwrap().0.len(), machines, "none of them has a place");
        victims.go_on(&host).await;
    });
}

#[test]
fn a_place_beyond_machines_max_is_refused_before_anything_grows() {
    let service = Options { machines_max: 100, ..options("127.0.0.1:0") };
    served(service, async |host, workers| {
        for index in [100, 5_000_000, u32::MAX] {
            let mut liar = Liar::connect(
                &workers,
                splitcore_wire::session::Identity { index: Some(index), ..identity("liar") },
            );
            let Err(CloseReason::RefusedThere(refusal)) = liar.welcomed().await else { panic!("let in") };
            assert_eq!((refusal.field.as_str(), refusal.theirs), ("index", index.to_string()));
        }
        let last = splitcore_wire::session::Identity { index: Some(99), ..identity("last") };
        let mut liar = Liar::connect(&workers, last);
        let machine = liar.welcomed().await.unwrap();
        liar.register(registration(machine, Role::Mixed), BTreeMap::new());
        ready(&host).await;
        assert_eq!(host.rows(0, u32::MAX).unwrap().0.len(), 100);
    });
}

type Change = fn(&mut splitcore_core::kv::KvLayout);

#[test]
fn a_worker_whose_kv_fits_nobodys_is_refused_by_the_field() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let _worker = Worker::start(&workers, "honest", "model", model);
        ready(&host).await;
        let changes: [(&str, Change); 2] = [
            ("layout.dtype: expected f32, got bf16", |layout| layout.dtype = Dtype::Bf16),
            ("layout.layers: expected 2, got 3", |layout| layout.layers = 3),
        ];
        for (told, change) in changes {
            let mut other = identity("other");
            change(&mut other.layout);
            let Err(CloseReason::RefusedThere(refusal)) = Liar::connect(&workers, other).welcomed().await
            else {
                panic!("let in")
            };
            assert_eq!((refusal.to_string().as_str(), refusal.permanent), (told, true));
        }
        assert_eq!(host.rows(0, u32::MAX).unwrap().0.len(), 1);
    });
}

#[test]
fn a_worker_whose_model_takes_too_few_positions_is_refused() {
    served(options("127.0.0.1:0"), async |_, workers| {
        let few = splitcore_wire::session::Identity { context: Some(511), ..identity("few") };
        let Err(CloseReason::RefusedThere(refusal)) = Liar::connect(&workers, few).welcomed().await else {
            panic!("let in")
        };
        assert_eq!(refusal.to_string(), "context: expected at least 512, got 511");
        let enough = splitcore_wire::session::Identity { context: Some(512), ..identity("enough") };
        assert!(Liar::connect(&workers, enough).welcomed().await.is_ok());
    });
}

#[test]
fn an_output_that_its_worker_ends_early_is_a_failure_and_no_answer() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let liar = Liar::enter(&workers, "liar", Role::Mixed).await;
        ready(&host).await;
        for given in [0, 3_u32] {
            let mut outputs = host.generate(vec![ask(&format!("r{given}"), 1, 10)]).unwrap();
            let key = liar.leg().await.key();
            liar.tokens(key, 0, &vec![5; given as usize]);
            liar.notice(Notice::Finished { key, tokens: given });
            let (tokens, ending) = rest(&mut outputs[0]).await;
            assert_eq!(
                (tokens.len() as u32, ending),
                (given, Ending::Failed(Failure { reason: "ended_early", fault: None }))
            );
            drop(outputs);
            idle(&host).await;
        }
    });
}

#[test]
fn more_tokens_than_were_asked_for_end_the_session_and_reach_nobody() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let liar = Liar::enter(&workers, "liar", Role::Mixed).await;
        ready(&host).await;
        let mut outputs = host.generate(vec![ask("r", 1, 10)]).unwrap();
        let key = liar.leg().await.key();
        liar.tokens(key, 0, &[5; 11]);
        assert!(liar.lost().await.contains("has more tokens than this worker was to make"));
        let _worker = Worker::start(&workers, "honest", "model", model);
        // The liar does not come back, and is lost.
        host.lose("liar").unwrap();
        assert_eq!(rest(&mut outputs[0]).await, (expected(1, 10), Ending::Finished));
        drop(outputs);
        idle(&host).await;
    });
}

#[test]
fn what_was_taken_from_a_worker_is_late_in_its_mouth_and_reaches_nobody() {
    served(options("127.0.0.1:0"), async |host, workers| {
        let liar = Liar::enter(&workers, "liar", Role::Mixed).await;
        ready(&host).await;
        let mut outputs = host.generate(vec![ask("r", 1, TOKENS)]).unwrap();
        let leg = liar.leg().await.key();
        let worker = Worker::start(&workers, "honest", "model", model);
        while host.rows(0, u32::MAX).unwrap().0.len() < 2 {
            tokio::task::yield_now().await;
        }
        // It gives the leg back, and goes on as if it had not.
        host.drain("liar").unwrap();
        liar.notice(Notice::Relief { key: leg });
        assert!(matches!(outputs[0].next().await, Said::Tokens { from: 0, .. }), "of the honest one");
        worker.hold.store(true, Ordering::Relaxed);
        for from in [0, 1, 2, 3, TOKENS - 3] {
            liar.tokens(leg, from, &[7777, 7777, 7777]);
        }
        for (kind, notice) in notices(leg) {
            let not_of_it = ["reserved", "refused", "landed", "sent", "transfer_failed", "progress"];
            if !not_of_it.contains(&kind) && !matches!(notice, Notice::Released { .. }) {
                liar.notice(notice);
            }
        }
        // Honest words can cross so: that this ends the session shows that they did not.
        liar.notice(Notice::Progress { key: leg, tokens: 1 });
        assert!(liar.lost().await.contains("progress: "));
        assert_eq!(violations(&host), BTreeMap::from([("progress", 1)]));
        worker.hold.store(false, Ordering::Relaxed);
        let mut output = host.attach("r").unwrap();
        assert_eq!(rest(&mut output[0]).await, (expected(1, TOKENS), Ending::Finished));
        drop((output, outputs));
        idle(&host).await;
    });
}

/// One thing that a liar says.
#[derive(Debug, Clone)]
enum Lie {
    Notice(usize, usize, u32),
    Tokens(usize, u32, u32, Vec<u32>),
    Report(Report),
}

fn lies() -> impl Strategy<Value = Vec<Lie>> {
    let number = prop_oneof![0..80_u32, Just(u32::MAX)];
    let lie = prop_oneof![
        3 => (0..4_usize, 0..13_usize, 1..4_u32).prop_map(|(whose, what, attempt)| Lie::Notice(whose, what, attempt)),
        3 => (0..4_usize, 1..4_u32, number.clone(), proptest::collection::vec(0..1000_u32, 0..80))
            .prop_map(|(whose, attempt, from, ids)| Lie::Tokens(whose, attempt, from, ids)),
        1 => (number.clone(), number.clone(), number).prop_map(|(seq, free_blocks, legs)| {
            Lie::Report(Report { seq: AssignmentSeq(seq.into()), free_blocks, legs, ..Report::default() })
        }),
    ];
    proptest::collection::vec(lie, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(20),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_liars_say_no_honest_request_is_touched(
        liars in proptest::collection::vec((lies(), 0..3_usize), 1..4),
    ) {
        let service = Options { rejoin_limit_s: 0.01, ..options("127.0.0.1:0") };
        served(service, async |host, workers| {
            let victims = Victims::begin(&host, &workers, 3).await;
            for (at, (lies, role)) in liars.iter().enumerate() {
                let role = [Role::Mixed, Role::Prompt, Role::Token][*role];
                let liar = Liar::enter(&workers, &format!("liar-{at}"), role).await;
                // One more request, which the liar may be given: to lie about, and be lost with it.
                let own = host.generate(vec![ask(&format!("own-{at}"), 9, 5)]).unwrap();
                let own_id = decided(&host)[0];
                for lie in lies {
                    let request = |whose: usize| victims.requests.get(whose).copied().unwrap_or(own_id);
                    match lie {
                        Lie::Notice(whose, what, attempt) => {
                            liar.notice(notices(key(request(*whose), *attempt))[*what].1);
                        }
                        Lie::Tokens(whose, attempt, from, ids) => {
                            liar.tokens(key(request(*whose), *attempt), *from, ids);
                        }
                        Lie::Report(report) => liar.notice(Notice::Report(*report)),
                    }
                }
                // What it has said is heard before this, which ends it if nothing has.
                liar.notice(Notice::Progress { key: key(own_id, 1), tokens: 1 });
                liar.lost().await;
                assert_eq!(host.check().unwrap(), None);
                drop(own);
            }
            victims.go_on(&host).await;
        });
    }
}
