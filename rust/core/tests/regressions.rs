//! One test for each bug found in the core, named after what it broke.

mod kit;

use kit::*;
use splitcore_core::config::{ClusterConfig, Level, MachineConfig, PolicyKind};
use splitcore_core::event::{
    Arrival, Claim, ClusterAction, ClusterEvent, Held, Join, MachineAction, MachineEvent, Outcome, Put,
    Registration, Role,
};
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::leg::{Command, Compute, LegState, Notice, Outbound, Peer, Report, Work};
use splitcore_core::placement::{Mode, Reserve};

const PAIR: [Role; 2] = [Role::Prompt, Role::Token];

fn puts(actions: &[MachineAction]) -> usize {
    actions.iter().filter(|action| matches!(action, MachineAction::Put(_))).count()
}

#[test]
fn regression_a_grant_that_comes_before_its_leg_is_kept() {
    let mut bench = Bench::new(10);
    assert!(bench.grant(id(1), 7).is_empty());
    bench.compute(7, source(4));
    bench.send(7, id(1), Mode::Serialized);
    let actions = bench.pass(&[]);
    let put = |action: &MachineAction| matches!(action, MachineAction::Put(Put { to, tokens: 4, .. }) if *to == id(1));
    assert!(actions.iter().any(put), "{actions:?}");
}

#[test]
fn regression_an_early_grant_goes_with_the_abort_that_follows_it() {
    let mut bench = Bench::new(10);
    bench.grant(id(1), 7);
    let answer = (id(1), Peer::AbortAck { key: key(7) });
    assert_eq!(peers(&bench.peer(id(1), Peer::Abort { key: key(7) })), [answer]);
    bench.compute(7, source(4));
    bench.send(7, id(1), Mode::Serialized);
    assert_eq!(puts(&bench.pass(&[])), 0, "the abort has voided the grant");
}

#[test]
fn regression_an_abort_ack_is_sent_once_and_only_for_an_abort() {
    let mut bench = Bench::new(10);
    bench.compute(7, source(4));
    bench.send(7, id(1), Mode::Serialized);
    bench.grant(id(1), 7);
    bench.pass(&[]);
    // The Cluster gives both legs up; the destination asks for itself.
    let mut answers = peers(&bench.abort(7));
    answers.extend(peers(&bench.peer(id(1), Peer::Abort { key: key(7) })));
    answers.extend(peers(&bench.act(&MachineEvent::Fenced { key: key(7) })));
    assert_eq!(answers, [(id(1), Peer::AbortAck { key: key(7) })]);
}

#[test]
fn regression_an_abort_ack_left_over_frees_nothing_that_may_be_written() {
    let mut bench = Bench::new(10);
    bench.reserve(7, destination(4), id(1));
    bench.peer(id(1), Peer::AbortAck { key: key(7) });
    let actions = bench.abort(7);
    assert!(notices(&actions).is_empty() && bench.machine.pool().quarantined() == 5, "{actions:?}");
    bench.peer(id(1), Peer::AbortAck { key: key(7) });
    assert_eq!(bench.machine.pool().free(), 10);
}

#[test]
fn regression_a_reservation_from_a_lost_source_is_freed_at_once() {
    let mut bench = Bench::new(10);
    bench.act(&MachineEvent::PeerLost { machine: id(1) });
    assert!(peers(&bench.reserve(7, destination(4), id(1))).is_empty(), "nobody is there to be granted");
    bench.abort(7);
    assert_eq!((bench.machine.pool().free(), bench.machine.is_idle()), (10, true));
    // Its next incarnation is another machine.
    let back = MachineId { index: 1, incarnation: 2 };
    assert_eq!(peers(&bench.reserve(8, destination(4), back)).len(), 1);
}

#[test]
fn regression_a_name_that_waits_twice_for_a_grant_gets_one() {
    let config =
        MachineConfig { blocks: 20, block_tokens: 1, receives_max: Some(1), ..MachineConfig::default() };
    let mut bench = Bench::with(config);
    bench.reserve(1, destination(2), id(1));
    bench.reserve(2, destination(2), id(1));
    bench.abort(2);
    // The id comes again, while its first place in line is still there.
    bench.reserve(2, destination(2), id(1));
    let grants = |actions: &[MachineAction]| {
        peers(actions).iter().filter(|(_, message)| matches!(message, Peer::Grant { .. })).count()
    };
    assert_eq!(grants(&bench.landed(1)), 1);
    assert_eq!(grants(&bench.landed(2)), 0, "it has landed, so there is nothing to grant");
}

#[test]
fn regression_a_decode_that_joins_during_a_pass_has_not_sat_it_out() {
    let config =
        MachineConfig { blocks: 100, block_tokens: 1, batch_requests_max: 1, ..MachineConfig::default() };
    let mut bench = Bench::with(config);
    bench.compute(1, whole(4));
    bench.pass(&[]);
    bench.compute(2, whole(4));
    bench.pass(&[]);
    assert_eq!(bench.prefills(), [2]);
    // Request 1 waited for that prompt; request 2 became a decode with it and missed nothing.
    bench.pass(&[]);
    assert_eq!((bench.decodes(), bench.machine.counters().paused), (vec![1], 2));
    bench.pass(&[1]);
    assert_eq!((bench.decodes(), bench.machine.counters().paused), (vec![2], 2));
}

#[test]
fn regression_a_leg_that_ended_while_sending_reports_no_second_end() {
    let mut bench = Bench::new(10);
    bench.grant(id(1), 7);
    // It waits behind another prompt, so that the grant and the mode are known when its pass begins.
    bench.compute(6, whole(2));
    bench.compute(7, source(4));
    bench.send(7, id(1), Mode::LayerWise);
    bench.pass(&[6]);
    assert_eq!(bench.machine.plan().puts.len(), 1);
    let ended = bench.pass(&[7]);
    assert!(matches!(notices(&ended)[..], [Notice::Finished { tokens: 1, .. }]), "{ended:?}");
    let fenced = bench.act(&MachineEvent::Fenced { key: key(7) });
    assert!(matches!(notices(&fenced)[..], [Notice::Report(Report { legs: 0, .. })]), "{fenced:?}");
}

#[test]
fn regression_a_held_leg_is_aborted_while_it_sends() {
    let mut bench = Bench::new(10);
    bench.compute(7, source(4));
    bench.send(7, id(1), Mode::Serialized);
    bench.grant(id(1), 7);
    assert_eq!(puts(&bench.pass(&[])), 1);
    let stopped = bench.abort(7);
    assert!(stopped.contains(&MachineAction::StopPut { key: key(7) }));
    let state = bench.machine.leg(key(7)).unwrap().0;
    let draining = LegState { compute: Compute::Done, outbound: Outbound::Draining, ..LegState::QUEUED };
    assert_eq!(state, draining);
}

#[test]
fn regression_landed_legs_pass_a_prompt_that_waits_for_their_blocks() {
    let mut bench = Bench::new(12);
    // The oldest decodes; a younger decode gives way to it and queues as a prompt.
    bench.compute(1, whole(2));
    bench.pass(&[]);
    bench.compute(2, whole(2));
    bench.pass(&[]);
    // Two legs that begin before the last prompt token take what is left.
    for request in [3, 4] {
        let work = splitcore_core::leg::Work { start: 1, ..whole(2) };
        bench.reserve(request, work, id(1));
    }
    for _ in 0..20 {
        if !bench.machine.is_running() {
            break;
        }
        bench.pass(&[]);
    }
    for request in [3, 4] {
        bench.landed(request);
    }
    let mut ended = 0;
    for _ in 0..40 {
        assert!(bench.machine.is_running(), "stuck: {:?}", bench.machine);
        let oldest = bench.decodes().first().copied();
        let ends = oldest.filter(|_| bench.machine.plan().context_tokens_max > 8);
        ended += usize::from(ends.is_some());
        bench.pass(&ends.into_iter().collect::<Vec<_>>());
        if bench.machine.is_idle() {
            break;
        }
    }
    assert!(ended > 0);
}

#[test]
fn regression_a_release_that_crosses_an_abort_closes_nothing() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    // The destination had refused before it heard of the abort (Reserve 1, Start 2, Abort 3).
    head.refused(1, key(1), 1);
    head.released(0, key(1), 3);
    let again = head.place(1, 10, 10);
    assert_eq!(again.attempt.0, 2, "the first attempt still has an answer to come");
    let late = head.cluster.counters().late;
    head.released(1, key(1), 3);
    assert_eq!(head.cluster.counters().late, late);
    assert_eq!(head.cluster.load(0).unwrap().legs, 1);
    // With the answers to both aborts in, the name is free for a first attempt.
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    head.released(0, key_at(1, 2), 6);
    head.released(1, key_at(1, 2), 6);
    assert_eq!(head.place(1, 10, 10).attempt.0, 1);
}

#[test]
fn regression_a_finish_that_crosses_an_abort_closes_nothing() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    head.place(1, 10, 10);
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    head.notice(0, Notice::Finished { key: key(1), tokens: 3 });
    assert_eq!(head.place(1, 10, 10).attempt.0, 2);
    head.released(0, key(1), 2);
    assert_eq!(head.cluster.load(0).unwrap().legs, 1);
}

#[test]
fn regression_a_transfer_failure_after_landing_costs_nothing() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(1, Notice::Landed { key: key(1) });
    head.notice(0, Notice::TransferFailed { key: key(1) });
    head.released(0, key(1), 2);
    head.notice(1, Notice::TransferFailed { key: key(1) });
    assert_eq!((head.cluster.counters().faults, head.cluster.counters().late), (0, 2));
}

#[test]
fn regression_an_unplaceable_parked_request_keeps_nobody_waiting() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &[], 0);
    head.join(id(0), Role::Mixed, 1000);
    head.place(1, 900, 50);
    head.place(2, 10, 10);
    head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!(head.cluster.parked_requests(), 2);
    let actions = head.join(id(1), Role::Mixed, 100);
    assert_eq!(placement(&actions).map(|placement| placement.request), Some(RequestId(2)));
    assert_eq!(head.cluster.parked_requests(), 1);
}

#[test]
fn regression_a_refused_pinned_leg_waits_for_its_machine() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Prompt, Role::Token, Role::Token]);
    let pinned = Arrival { pin_token: Some(2), ..Arrival::new(1, 10, 10) };
    assert_eq!(reserved_at(&head.arrive(pinned)), [2]);
    assert!(reserved_at(&head.refused(2, key(1), 1)).is_empty(), "no other machine will do");
    assert_eq!(reserved_at(&head.tick_at(1_000_000_000)), [2]);
}

#[test]
fn regression_a_fault_after_the_last_token_ends_the_request() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &[Role::Mixed; 2], 15);
    head.place(1, 10, 5);
    head.notice(0, Notice::Progress { key: key(1), tokens: 5 });
    let actions = head.act(&ClusterEvent::Lose { machine: id(0) });
    let finished = ClusterAction::Ended { request: RequestId(1), outcome: Outcome::Finished };
    assert_eq!(actions.last(), Some(&finished), "there is nothing left to compute, and no room for it");
    assert_eq!(commands(&actions), [(1, Command::Release { key: key(1) })]);
}

#[test]
fn regression_a_handoff_that_does_not_go_on_is_taken_back_whole() {
    let config = ClusterConfig { park_limit_ns: 1000, ..ClusterConfig::default() };
    let mut head = Head::new(config, &PAIR);
    head.place(1, 10, 10);
    head.notice(1, Notice::Reserved { key: key(1) });
    // Its source says nothing; the destination's blocks may be what others wait for.
    assert!(commands(&head.tick_at(999)).is_empty());
    let actions = head.tick_at(1000);
    let aborts =
        commands(&actions).iter().filter(|(_, command)| matches!(command, Command::Abort { .. })).count();
    let again = placement(&actions).unwrap();
    assert_eq!((aborts, again.attempt.0, again.legs().count()), (2, 2, 1));
    assert_eq!((head.cluster.counters().relieved, head.cluster.counters().faults), (1, 0));
}

#[test]
fn regression_a_refusal_is_no_progress_of_a_handoff() {
    let config = ClusterConfig { park_limit_ns: 1000, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Mixed, Role::Mixed, Role::Prompt]);
    head.place(1, 10, 10);
    head.now_ns = 900;
    head.refused(0, key(1), 1);
    // A machine that does go on is waited for.
    head.now_ns = 950;
    head.place(2, 10, 10);
    head.notice(2, Notice::Progress { key: key(2), tokens: 1 });
    head.tick_at(1000);
    assert_eq!(head.cluster.counters().relieved, 0);
    head.tick_at(2000);
    assert_eq!(head.cluster.counters().relieved, 2);
}

#[test]
fn regression_two_full_machines_are_not_asked_in_turn() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Prompt, Role::Token, Role::Token]);
    head.place(1, 10, 10);
    assert_eq!(reserved_at(&head.refused(1, key(1), 1)), [2]);
    assert!(reserved_at(&head.refused(2, key(1), 1)).is_empty(), "both have refused: the leg waits");
    assert_eq!(reserved_at(&head.tick_at(1_000_000_000)).len(), 1);
}

#[test]
fn regression_a_refused_leg_goes_to_the_machine_with_room_among_unequal_ones() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &[Role::Prompt], 10_000);
    for (machine, kv_capacity_tokens) in [(1, 100), (2, 100), (3, 10_000)] {
        head.join(id(machine), Role::Token, kv_capacity_tokens);
    }
    for (machine, kv_tokens) in [(2, 96), (3, 200)] {
        head.notice(machine, Notice::Report(Report { kv_tokens, ..report(0) }));
    }
    head.place(1, 10, 10);
    // Machine 2 holds least of those that are left, and is over; machine 3 has room.
    assert_eq!(reserved_at(&head.refused(1, key(1), 1)), [3]);
}

#[test]
fn regression_a_draining_machine_is_drained_when_it_says_so() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.act(&ClusterEvent::Drain { machine: id(0) });
    // The first token was the last; the source's blocks are still being read.
    let busy = Report { legs: 1, ..report(2) };
    head.notice(0, Notice::Report(busy));
    let actions = head.notice(0, Notice::Finished { key: key(1), tokens: 1 });
    let drained = ClusterAction::Drained { machine: id(0) };
    assert!(!actions.contains(&drained));
    assert_eq!(head.released(0, key(1), 3), [drained]);
    assert!(head.notice(0, Notice::Report(report(2))).is_empty(), "told once");
}

#[test]
fn regression_a_parked_request_goes_where_its_policy_sees_no_machine() {
    let config = ClusterConfig { policy: PolicyKind::LeastRequests, ..ClusterConfig::default() };
    let mut head = Head::with_capacity(config, &[], 0);
    head.join(id(0), Role::Prompt, 1000);
    head.place(1, 500, 100);
    head.act(&ClusterEvent::Lose { machine: id(0) });
    head.join(id(1), Role::Token, 100);
    // Now there is a token pool, too small for it; it was accepted all the same.
    let actions = head.join(MachineId { index: 0, incarnation: 2 }, Role::Prompt, 1000);
    assert_eq!(pair(&placement(&actions).unwrap()), (0, 0));
}

#[test]
fn an_embedders_handoff_is_its_own_affair() {
    let config = ClusterConfig {
        level: Level::External,
        park_limit_ns: 1000,
        reserve: Reserve::AtArrival,
        ..ClusterConfig::default()
    };
    let mut head = Head::new(config, &PAIR);
    head.place(1, 10, 10);
    assert!(head.cluster.next_deadline().is_none() && head.tick_at(10_000).is_empty());
}

#[test]
fn regression_a_stray_landed_frees_nothing() {
    let mut bench = Bench::new(20);
    bench.compute(1, whole(4));
    bench.compute(2, source(4));
    bench.send(2, id(1), Mode::Serialized);
    // Neither sends yet, and the one is not meant for anybody.
    for request in [1, 2] {
        bench.peer(id(1), Peer::Landed { key: key(request) });
    }
    assert_eq!(bench.machine.counters().late, 2);
    bench.pass(&[]);
    bench.pass(&[]);
    bench.peer(id(2), Peer::Landed { key: key(2) });
    assert!(bench.machine.leg(key(2)).is_some(), "it was not sent to that machine");
}

#[test]
fn regression_a_handover_that_crosses_an_abort_keeps_the_name_taken() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.prefill_done(0, 1);
    head.notice(1, Notice::Landed { key: key(1) });
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    // The source had handed over before it heard of the abort (Compute 1, Send 2, Abort 3), and answers it as well.
    head.released(0, key(1), 2);
    head.released(1, key(1), 3);
    assert_eq!(head.place(1, 10, 10).attempt.0, 2);
    head.released(0, key(1), 3);
    assert_eq!(head.cluster.load(0).unwrap().legs, 1);
}

#[test]
fn regression_a_source_that_ends_while_sending_keeps_the_name_taken() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    let actions = head.notice(0, Notice::Finished { key: key(1), tokens: 1 });
    let aborted = commands(&actions);
    assert_eq!(aborted, [(0, Command::Abort { key: key(1) }), (1, Command::Abort { key: key(1) })]);
    head.released(1, key(1), 3);
    assert_eq!(head.clone().place(1, 10, 10).attempt.0, 2, "its blocks may still be read");
    head.released(0, key(1), 3);
    assert_eq!(head.place(1, 10, 10).attempt.0, 1);
}

#[test]
fn regression_a_send_that_is_overtaken_by_a_grant_changes_no_running_transfer() {
    let mut bench = Bench::new(10);
    bench.compute(7, source(4));
    // Machine 1 refused, machine 2 was asked, refused, and machine 1 has granted after all.
    bench.send(7, id(1), Mode::Serialized);
    bench.pass(&[]);
    assert_eq!(puts(&bench.grant(id(1), 7)), 1);
    assert!(bench.send(7, id(2), Mode::Serialized).is_empty());
    assert!(bench.send(7, id(1), Mode::Serialized).is_empty());
    bench.peer(id(1), Peer::Landed { key: key(7) });
    assert!(bench.machine.is_idle());
}

#[test]
fn regression_a_leg_that_runs_to_the_end_is_sent_nowhere() {
    let mut bench = Bench::new(10);
    bench.compute(7, whole(4));
    let command = Command::Send { key: key(7), to: id(1), mode: Mode::LayerWise };
    let seq = splitcore_core::id::AssignmentSeq(9);
    assert!(
        bench.handle(&MachineEvent::Command { epoch: splitcore_core::id::Epoch(1), seq, command }).0.is_err()
    );
}

/// An embedder's cluster of mixed machines.
fn external(machines: usize) -> Head {
    let config = ClusterConfig { level: Level::External, ..ClusterConfig::default() };
    Head::with_capacity(config, &vec![Role::Mixed; machines], 10_000)
}

#[test]
fn regression_tokens_told_of_while_a_request_is_parked_belong_to_its_next_prompt() {
    let mut head = external(1);
    head.place(1, 100, 50);
    head.act(&ClusterEvent::Lose { machine: id(0) });
    head.act(&ClusterEvent::Fact(Notice::Progress { key: key_at(1, 2), tokens: 7 }));
    head.join(id(1), Role::Mixed, 10_000);
    assert_eq!(head.cluster.load(1).unwrap().prompt_pending_tokens, 107);
}

#[test]
fn regression_more_tokens_than_positions_are_not_counted() {
    let mut head = external(2);
    head.place(1, 100, 50);
    for _ in 0..2 {
        head.act(&ClusterEvent::Fact(Notice::Progress { key: key(1), tokens: u32::MAX }));
    }
    assert_eq!(head.cluster.load(0).unwrap().kv_tokens, u64::from(u32::MAX));
    head.act(&ClusterEvent::Lose { machine: id(0) });
}

#[test]
fn regression_machines_that_die_together_cost_one_fault() {
    let config = ClusterConfig { attempts_max: 2, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Mixed; 5]);
    head.place(1, 10, 10);
    head.now_ns = 1;
    // Told of one by one, each takes with it what was just placed on it.
    for machine in 0..4 {
        let actions = head.act(&ClusterEvent::Lose { machine: id(machine) });
        assert!(!actions.iter().any(|action| matches!(action, ClusterAction::Ended { .. })), "{actions:?}");
    }
    assert_eq!(head.cluster.attempt(RequestId(1)).unwrap().0, 5);
}

/// A machine of one role that begins a session with a Cluster.
fn registers(
    head: &mut Head,
    machine: MachineId,
    epoch: u32,
    report: Report,
    claims: Vec<Claim>,
) -> Vec<ClusterAction> {
    let join = Join {
        machine,
        role: Role::Token,
        kv_capacity_tokens: 10_000,
        speed_weight: 1,
        link: None,
        costs: None,
    };
    head.act(&ClusterEvent::Register(Registration { join, epoch: Epoch(epoch), report, claims }))
}

fn claim(key: LegKey, order: u64, work: Work, held: Held) -> Claim {
    Claim { key, order: Order(order), work, held }
}

/// A Cluster that follows another.
fn second_cluster(grace_ns: u64) -> Head {
    Head::new(ClusterConfig { epoch: Epoch(2), grace_ns, ..ClusterConfig::default() }, &[])
}

#[test]
fn regression_a_machine_that_registers_over_quarantine_is_in_no_pool() {
    let mut head = second_cluster(0);
    registers(&mut head, id(0), 1, Report { over_quarantine: true, ..report(4) }, Vec::new());
    assert!(head.handle(&ClusterEvent::Arrive(Arrival::new(1, 4, 4))).1.len() == 1);
    assert_eq!(head.cluster.live_requests(), 0);
}

#[test]
fn regression_what_another_cluster_has_numbered_makes_no_later_report_old() {
    let mut head = second_cluster(0);
    registers(&mut head, id(0), 1, Report { kv_tokens: 50, ..report(29) }, Vec::new());
    head.notice(0, Notice::Report(Report { kv_tokens: 7, ..report(1) }));
    assert_eq!(head.cluster.load(0).unwrap().kv_tokens, 7);
}

#[test]
fn regression_a_report_after_a_registration_is_news_even_if_it_reads_like_the_last() {
    let mut bench = Bench::new(10);
    bench.compute(7, whole(4));
    bench.abort(7);
    let told = bench.machine.report();
    assert!(notices(&bench.pass(&[])).len() == 1);
    let told = Report { legs: 0, kv_tokens: 0, running: false, free_blocks: 10, ..told };
    bench.act(&MachineEvent::ClusterLost);
    bench.act(&MachineEvent::Registered { epoch: Epoch(2) });
    for seq in 1..=told.seq.0 {
        let command = Command::Release { key: key(99) };
        bench.act(&MachineEvent::Command { epoch: Epoch(2), seq: AssignmentSeq(seq), command });
    }
    assert_eq!(bench.machine.report(), told, "word for word what the Cluster before has heard");
    bench.now_ns = 2_000_000_000;
    assert_eq!(notices(&bench.act(&MachineEvent::Tick)), [Notice::Report(told)]);
}

#[test]
fn regression_a_machine_is_home_when_quarantine_lets_it_back_into_a_pool() {
    let config = ClusterConfig { prompt_pending_tokens_max: 1, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Prompt, Role::Token]);
    head.place(1, 10, 10);
    // The prompt machine is over its limit: the token machine takes prompts, too.
    head.place(2, 10, 10);
    assert_eq!(head.cluster.load(1).unwrap().pool, Role::Mixed);
    head.notice(1, Notice::Report(Report { over_quarantine: true, ..report(9) }));
    head.act(&ClusterEvent::Cancel { request: RequestId(2) });
    head.released(1, key(2), 99);
    assert_eq!(head.cluster.load(1).unwrap().pool, Role::Token);
}

#[test]
fn regression_to_give_work_back_is_not_to_go_on() {
    let config = ClusterConfig { park_limit_ns: 100, ..ClusterConfig::default() };
    let mut head = Head::new(config, &PAIR);
    head.place(1, 10, 10);
    head.now_ns = 99;
    head.notice(0, Notice::Relief { key: key(50) });
    head.notice(0, Notice::Released { key: key(50), to: None, report: report(2) });
    let again = placement(&head.tick_at(100)).expect("a handoff that does not go on is taken back");
    assert_eq!((again.attempt.0, again.legs().count()), (2, 1));
}

#[test]
fn regression_an_end_told_by_a_machine_without_the_leg_ends_nothing() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Prompt, Role::Token, Role::Token]);
    let placed = head.place(1, 10, 10);
    let stranger = 3 - placed.token().unwrap().index;
    head.notice(stranger, Notice::Finished { key: key(1), tokens: 3 });
    assert_eq!(head.cluster.live_requests(), 1);
}

#[test]
fn regression_a_leg_that_is_being_dropped_is_told_so_again_after_a_lost_session() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    head.act(&ClusterEvent::Disconnect { machine: id(1) });
    // Its answer, said before it hears of the new session, goes nowhere.
    let dropped = claim(key(1), 0, destination(10), Held::Closing);
    let actions = registers(&mut head, id(1), 1, report(3), vec![dropped]);
    assert_eq!(commands(&actions), [(1, Command::Abort { key: key(1) })]);
    let ClusterAction::Command { seq, .. } = actions[1] else { panic!("{actions:?}") };
    head.released(1, key(1), seq.0);
    assert_eq!(head.cluster.load(1).unwrap().legs, 0);
    assert_eq!(head.clone().place(1, 10, 10).attempt.0, 2, "the source has not answered");
}

#[test]
fn regression_the_end_of_an_earlier_request_of_the_same_name_is_not_confirmed() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    head.place(1, 10, 10);
    head.notice(0, Notice::Finished { key: key(1), tokens: 1 });
    head.place(1, 10, 10);
    // Neither the `Release` of the first nor the `Compute` of the second has arrived.
    head.act(&ClusterEvent::Disconnect { machine: id(0) });
    let ended = claim(key(1), 0, whole(10), Held::Finished);
    let told = commands(&registers(&mut head, id(0), 1, report(1), vec![ended]));
    assert_eq!(told[0], (0, Command::Release { key: key(1) }));
    assert!(matches!(told[1], (0, Command::Compute { order: Order(1), .. })), "{told:?}");
}

#[test]
fn regression_what_was_given_up_before_it_arrived_is_no_load() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    head.notice(0, Notice::Report(report(0)));
    head.place(1, 10, 10);
    head.act(&ClusterEvent::Disconnect { machine: id(0) });
    head.act(&ClusterEvent::Cancel { request: RequestId(1) });
    registers(&mut head, id(0), 1, report(0), Vec::new());
    assert_eq!(head.cluster.load(0).unwrap().kv_tokens, 0);
}

#[test]
fn regression_no_attempt_takes_a_name_that_the_cluster_before_gave() {
    let mut head = second_cluster(100);
    let here = Held::Leg { state: LegState::QUEUED, mode: None };
    registers(&mut head, id(0), 1, report(1), vec![claim(key(1), 0, whole(10), here)]);
    head.tick_at(100);
    // The Cluster before had lost sight of machine 0 and placed the request again.
    registers(&mut head, id(1), 1, report(1), vec![claim(key_at(1, 2), 0, whole(10), here)]);
    let actions = head.act(&ClusterEvent::Lose { machine: id(0) });
    assert_eq!(placement(&actions).unwrap().attempt.0, 1001);
}

#[test]
fn regression_no_attempt_takes_a_name_that_comes_with_a_registration() {
    let mut head = second_cluster(100);
    let here = Held::Leg { state: LegState::QUEUED, mode: None };
    registers(&mut head, id(0), 1, report(1), vec![claim(key(1), 0, whole(10), here)]);
    head.tick_at(100);
    let next = MachineId { index: 0, incarnation: 2 };
    let actions = registers(&mut head, next, 1, report(1), vec![claim(key_at(1, 2), 0, whole(10), here)]);
    assert_eq!(placement(&actions).unwrap().attempt.0, 1001);
}

#[test]
fn regression_an_adopted_attempt_has_the_prompt_that_its_machine_says() {
    let mut head = second_cluster(100);
    let queued = Held::Leg { state: LegState::QUEUED, mode: None };
    let mut parked = whole(17);
    parked.terms.resumed_tokens = 7;
    let leg = Work { max_new_tokens: parked.max_new_tokens + 7, ..source(10) };
    registers(&mut head, id(0), 1, report(1), vec![claim(key_at(1, 2), 0, parked, Held::Kept)]);
    registers(&mut head, id(1), 1, report(1), vec![claim(key_at(1, 2), 0, leg, queued)]);
    let asked = head.tick_at(100);
    let reserve = commands(&asked).into_iter().find_map(|(_, command)| match command {
        Command::Reserve { work, .. } => Some(work),
        _ => None,
    });
    assert_eq!(reserve.expect("a second leg").prompt_tokens, 10);
}

#[test]
fn regression_a_leg_that_is_gone_is_not_asked_for_again_where_it_may_still_be_dropped() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    let actions = head.notice(1, Notice::Gone { key: key(1) });
    let told = commands(&actions);
    assert!(matches!(told[..], [(1, Command::Abort { .. }), (1, Command::Keep { .. })]), "{told:?}");
    let actions = head.released(1, key(1), 99);
    assert_eq!(reserved_at(&actions), [1]);
}

#[test]
fn regression_a_live_leg_that_its_machine_has_begun_to_drop_is_closed_once() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 10);
    head.act(&ClusterEvent::Disconnect { machine: id(1) });
    let dropped = claim(key(1), 0, destination(10), Held::Closing);
    registers(&mut head, id(1), 1, report(2), vec![dropped]);
    let actions = head.released(1, key(1), 99);
    assert_eq!(reserved_at(&actions), [1]);
}

#[test]
fn regression_a_leg_that_ends_between_keep_and_abort_is_kept_once() {
    let mut bench = Bench::new(100);
    bench.compute(1, whole(4));
    bench.command(Command::Keep { key: key(1), order: Order(1), work: whole(4) });
    bench.pass(&[1]);
    bench.abort(1);
    assert_eq!(bench.machine.claims().len(), 1);
    bench.command(Command::Release { key: key(1) });
    assert_eq!(bench.machine.kept(), 0);
}

#[test]
fn regression_a_grant_said_again_for_a_leg_that_is_gone_goes_with_what_landed() {
    let mut bench = Bench::new(10);
    // The session was new, so the destination granted again; meanwhile the leg was given up here.
    bench.grant(id(1), 7);
    bench.peer(id(1), Peer::Landed { key: key(7) });
    bench.compute(7, source(4));
    bench.send(7, id(1), Mode::Serialized);
    assert_eq!(puts(&bench.pass(&[])), 0, "nobody has set blocks aside for it");
}

#[test]
fn regression_a_record_is_not_given_away_for_a_keep_that_may_not_have_arrived() {
    let mut head = second_cluster(100);
    let here = Held::Leg { state: LegState::QUEUED, mode: None };
    registers(&mut head, id(0), 1, report(1), vec![claim(key(1), 0, whole(10), here)]);
    registers(&mut head, id(1), 1, report(1), Vec::new());
    let kept = commands(&head.act(&ClusterEvent::Lose { machine: id(0) }));
    assert!(matches!(kept[..], [(1, Command::Keep { .. })]), "{kept:?}");
    let ended = vec![claim(key(1), 0, whole(10), Held::Finished)];
    assert_eq!(commands(&registers(&mut head, id(2), 1, report(1), ended)), []);
}

#[test]
fn regression_an_early_grant_does_not_outlive_its_session() {
    let mut bench = Bench::new(10);
    bench.grant(id(1), 7);
    bench.act(&MachineEvent::PeerReset { machine: id(1) });
    bench.compute(7, source(4));
    bench.send(7, id(1), Mode::Serialized);
    assert_eq!(puts(&bench.pass(&[])), 0, "the granter has not said so again");
}

#[test]
fn regression_a_registration_for_an_absurd_place_is_an_error() {
    let mut head = second_cluster(0);
    let join = Join {
        machine: id(1 << 20),
        role: Role::Mixed,
        kv_capacity_tokens: 1,
        speed_weight: 1,
        link: None,
        costs: None,
    };
    let registration = Registration { join, epoch: Epoch(1), report: report(0), claims: Vec::new() };
    assert!(head.handle(&ClusterEvent::Register(registration)).0.is_err());
    assert_eq!(head.cluster.machines_len(), 0);
}

#[test]
fn regression_an_embedder_may_end_a_request_that_waits_for_a_machine() {
    let config = ClusterConfig { level: Level::External, ..ClusterConfig::default() };
    let mut head = Head::new(config, &[Role::Mixed]);
    head.place(1, 1, 1);
    head.act(&ClusterEvent::Lose { machine: id(0) });
    let ended = head.act(&ClusterEvent::Fact(Notice::Finished { key: key_at(1, 2), tokens: 1 }));
    let outcome = splitcore_core::event::Outcome::Finished;
    assert_eq!(ended, [ClusterAction::Ended { request: RequestId(1), outcome }]);
}

#[test]
fn regression_a_machine_that_is_back_keeps_what_waits_before_it_drops_its_legs() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Mixed]);
    head.place(1, 10, 10);
    head.act(&ClusterEvent::Disconnect { machine: id(0) });
    head.notice(0, Notice::Relief { key: key(1) });
    assert_eq!(head.cluster.parked_requests(), 1);
    let here = Held::Leg { state: LegState::QUEUED, mode: None };
    let told = commands(&registers(&mut head, id(0), 1, report(1), vec![claim(key(1), 0, whole(10), here)]));
    assert!(matches!(told[..2], [(0, Command::Keep { .. }), (0, Command::Abort { .. })]), "{told:?}");
}

#[test]
fn regression_what_has_its_last_token_is_placed_nowhere_when_its_machine_gives_it_back() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &[Role::Mixed, Role::Mixed], 11);
    let machine = head.place(1, 10, 1).prompt().unwrap();
    // Given by an attempt whose end was never told. One token more would not fit any machine.
    assert_eq!(head.fact(Notice::Progress { key: key(1), tokens: 1 }), splitcore_core::error::Applied::Yes);
    let told = head.notice(machine.index, Notice::Relief { key: key(1) });
    let outcome = splitcore_core::event::Outcome::Finished;
    assert_eq!(told.last(), Some(&ClusterAction::Ended { request: RequestId(1), outcome }));
    let told = commands(&told);
    assert!(matches!(told[..], [(_, Command::Abort { .. }), (_, Command::Release { .. })]), "{told:?}");
}

/// The end of a request whose client has everything.
fn finished() -> ClusterAction {
    ClusterAction::Ended { request: RequestId(1), outcome: Outcome::Finished }
}

#[test]
fn regression_a_request_that_waits_ends_with_its_last_token() {
    let mut head = Head::with_capacity(ClusterConfig::default(), &[Role::Mixed, Role::Mixed], 12);
    let machine = head.place(1, 10, 2).prompt().unwrap();
    head.act(&ClusterEvent::Drain { machine: id(1 - machine.index) });
    head.act(&ClusterEvent::Lose { machine });
    assert_eq!(head.cluster.parked_requests(), 1);
    // They were on their way when their machine was lost.
    let told = head.act(&ClusterEvent::Fact(Notice::Progress { key: key_at(1, 2), tokens: 1 }));
    assert_eq!(told, [], "one is to come");
    let told = head.act(&ClusterEvent::Fact(Notice::Progress { key: key_at(1, 2), tokens: 1 }));
    assert_eq!(told.last(), Some(&finished()));
    assert_eq!(head.cluster.counters().finished, 1);
}

#[test]
fn regression_what_has_its_last_token_is_placed_nowhere_when_its_kv_went_elsewhere() {
    let mut head = Head::new(ClusterConfig::default(), &[Role::Prompt, Role::Token, Role::Token]);
    let (source, known) = pair(&head.place(1, 10, 2));
    head.act(&ClusterEvent::Fact(Notice::Progress { key: key(1), tokens: 2 }));
    let to = Some(id(3 - known));
    let told = head.notice(source, Notice::Released { key: key(1), to, report: report(99) });
    let (abort, release) = (Command::Abort { key: key(1) }, Command::Release { key: key(1) });
    assert_eq!(commands(&told), [(known, abort), (source, release)]);
    assert_eq!(told.last(), Some(&finished()));
}

#[test]
fn regression_what_has_its_last_token_is_placed_nowhere_when_its_command_never_arrived() {
    let mut head = Head::new(ClusterConfig::default(), &PAIR);
    head.place(1, 10, 2);
    head.act(&ClusterEvent::Fact(Notice::Progress { key: key(1), tokens: 2 }));
    head.act(&ClusterEvent::Disconnect { machine: id(0) });
    head.act(&ClusterEvent::Disconnect { machine: id(1) });
    // The source knew the leg and has it no more; the destination has never heard of it.
    assert_eq!(placement(&registers(&mut head, id(0), 1, report(99), Vec::new())), None);
    let told = registers(&mut head, id(1), 1, report(0), Vec::new());
    assert_eq!(placement(&told), None);
    assert!(told.contains(&finished()), "{told:?}");
}

#[test]
fn regression_what_has_its_last_token_is_not_taken_over_to_wait() {
    let mut head = second_cluster(100);
    let here = Held::Leg { state: LegState::QUEUED, mode: None };
    let work = Work { max_new_tokens: 1, ..whole(10) };
    registers(&mut head, id(0), 1, report(1), vec![claim(key(1), 0, work, here)]);
    head.act(&ClusterEvent::Fact(Notice::Progress { key: key(1), tokens: 1 }));
    // The Cluster before had taken it from machine 0, which has not heard of that.
    let kept = vec![claim(key_at(1, 2), 0, work, Held::Kept)];
    let told = registers(&mut head, id(1), 1, report(1), kept);
    let expected = [(0, Command::Abort { key: key(1) }), (1, Command::Release { key: key_at(1, 2) })];
    assert_eq!(commands(&told), expected);
    assert_eq!(told.last(), Some(&finished()));
}

#[test]
fn regression_of_two_prompts_with_one_place_in_line_the_first_here_starts_first() {
    let mut bench = Bench::new(100);
    bench.compute(1, whole(4));
    // Two Clusters that lived at once have both given it.
    for request in [8, 7, 9] {
        bench.command(Command::Compute { key: key(request), order: Order(5), work: whole(4) });
    }
    bench.pass(&[1]);
    assert_eq!(bench.prefills(), [8, 7, 9]);
}

#[test]
fn regression_of_two_decodes_with_one_place_in_line_the_last_here_gives_way() {
    let mut bench = Bench::new(12);
    for request in [8, 7] {
        bench.command(Command::Compute { key: key(request), order: Order(5), work: whole(4) });
        bench.pass(&[]);
    }
    while bench.machine.counters().evicted == 0 {
        bench.pass(&[]);
    }
    assert_eq!(bench.machine.leg(key(7)).unwrap().0.compute, Compute::Evicted);
    assert_eq!(bench.decodes(), [8]);
}

/// Whoever brings workers of its own hears of a new placement with its lease, which is a whole one.
#[test]
fn regression_a_placement_after_a_fault_has_a_whole_lease() {
    let config = ClusterConfig { level: Level::External, lease_ns: Some(100), ..ClusterConfig::default() };
    let lost = |head: &mut Head| head.act(&ClusterEvent::Lose { machine: id(1) });
    let failed = |head: &mut Head| head.act(&ClusterEvent::Fact(Notice::TransferFailed { key: key(1) }));
    for fault in [lost as fn(&mut Head) -> Vec<ClusterAction>, failed] {
        let mut head = Head::new(config, &[Role::Prompt, Role::Token, Role::Token]);
        head.place(1, 10, 10);
        head.now_ns = 60;
        assert_eq!(placement(&fault(&mut head)).map(|placed| placed.attempt.0), Some(2));
        head.tick_at(159);
        assert_eq!(head.cluster.live_requests(), 1);
        head.tick_at(160);
        assert_eq!(head.cluster.live_requests(), 0);
    }
}
