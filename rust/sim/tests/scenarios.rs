//! Failures that users of other simulators reported, as tests; `docs/scenarios.md` says which is which.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

mod common;

use common::Machines::{Split, Unsplit};
use common::{TempFile, assert_near, run, with_machines};
use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, Ties};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Link, Role};
use splitcore_core::id::MachineId;
use splitcore_core::machine::BatchPlan;
use splitcore_core::time::Time;
use splitcore_sim::cost::{CostKind, CostModel, Pass, Profile};
use splitcore_sim::machines::{Hardware, MachineKind, Model};
use splitcore_sim::report::Outcome;
use splitcore_sim::{Observer, Options, simulate_observed};

const KV_BYTES: u64 = 4_014_080;
/// Of an H100 machine's network card.
const BYTES_PER_S: u64 = 400_000_000_000;

fn h100() -> CostModel {
    let machine = MachineKind::whole(Hardware::H100);
    CostModel::new(CostKind::Measured, &Profile::builtin(), Model::Bloom176b, &machine).unwrap()
}

fn transfer_ns(prompt_tokens: u64, bytes_per_s: u64) -> u64 {
    (u128::from(prompt_tokens * KV_BYTES) * 1_000_000_000 / u128::from(bytes_per_s)) as u64
}

/// Three requests on one pair. The second and third wait for the prompt machine, the third also for the pass that the
/// second is in when its KV arrives.
#[test]
fn m1_three_requests_by_hand() {
    let trace = TempFile::trace("m1", &[(0.0, 2000, 3), (0.0, 2000, 12), (0.05, 1000, 2)]);
    let report = run(&Options {
        trace: trace.path(),
        transfer: "serialized".into(),
        check: true,
        ..with_machines(Split("1xdgx-h100", "1xdgx-h100"))
    });
    let cost = h100();
    let (long_ns, short_ns) = (cost.prefill_ns(2000), cost.prefill_ns(1000));
    let (long_move_ns, short_move_ns) = (transfer_ns(2000, BYTES_PER_S), transfer_ns(1000, BYTES_PER_S));
    // The first: no queue anywhere.
    let first_ns = long_ns + long_move_ns + cost.decode_ns(1, 2001) + cost.decode_ns(1, 2002);
    assert!(first_ns < 2 * long_ns, "it is over before the second arrives at the token machine");
    // The third lands in the middle of a pass of the second, and runs from the next one on.
    let third_lands_ns = 2 * long_ns + short_ns + short_move_ns;
    let mut now_ns = 2 * long_ns + long_move_ns;
    let mut context_tokens = 2001;
    while now_ns < third_lands_ns {
        now_ns += cost.decode_ns(1, context_tokens);
        context_tokens += 1;
    }
    let token_queue_ns = now_ns - third_lands_ns;
    assert!(token_queue_ns > 0 && context_tokens < 2011, "it waits, and the second is still there");
    let together_ns = cost.decode_ns(2, context_tokens + 1001);
    let third_ns = third_lands_ns + token_queue_ns + together_ns - 50_000_000;
    now_ns += together_ns;
    let second_ns =
        now_ns + (context_tokens + 1..2012).map(|context| cost.decode_ns(1, context)).sum::<u64>();
    let times: Vec<_> = report.rows.iter().map(|row| (row.ttft_ns, row.e2e_ns)).collect();
    let expected =
        [(long_ns, first_ns), (2 * long_ns, second_ns), (2 * long_ns + short_ns - 50_000_000, third_ns)];
    assert_eq!(times, expected);
}

#[test]
fn m2_options_of_a_split_change_nothing_in_an_unsplit_run() {
    let plain = Options { rate: Some(15.0), requests: Some(300), ..with_machines(Unsplit("6xdgx-h100")) };
    let before = run(&plain);
    let other = Options {
        transfer: "layer-wise".into(),
        link_bandwidth: Some(1e6),
        contention: false,
        reserve: "at-source-done".into(),
        cut: "before-last".into(),
        mixed_return: "idle".into(),
        ..plain.clone()
    };
    let after = run(&other);
    assert_eq!((&before.rows, &before.summary.digest), (&after.rows, &after.summary.digest));
    // The split policy over one machine has nothing to split.
    let one = Options { rate: Some(2.0), requests: Some(100), ..with_machines(Unsplit("1xdgx-h100")) };
    let mixed = Options {
        unsplit: None,
        mixed: one.unsplit.clone(),
        policy: Some("splitwise".into()),
        ..one.clone()
    };
    assert_eq!(run(&one).rows, run(&mixed).rows);
}

#[test]
fn m5_what_is_given_wins_over_the_table() {
    struct Visible(Vec<u64>);
    impl Observer for Visible {
        fn landed(&mut self, _: u64, _: u32, _: u32, _: u64, visible_ns: u64) {
            self.0.push(visible_ns);
        }
    }
    let trace = TempFile::trace("m5", &[(0.0, 2000, 3)]);
    for (given, bytes_per_s) in
        [(None, BYTES_PER_S), (Some(1e9), 1_000_000_000), (Some(8e11), 800_000_000_000)]
    {
        let options = Options {
            trace: trace.path(),
            transfer: "serialized".into(),
            link_bandwidth: given,
            ..with_machines(Split("1xdgx-h100", "1xdgx-h100"))
        };
        let mut seen = Visible(Vec::new());
        simulate_observed(&options, &mut |_, _| true, &mut seen).unwrap();
        assert_eq!(seen.0, [transfer_ns(2000, bytes_per_s)], "{given:?}");
    }
}

#[test]
fn m9_what_lies_outside_the_profile_is_counted_and_the_run_says_what_it_used() {
    let outside = TempFile::trace("m9", &[(0.0, 100, 1), (1.0, 1000, 1), (2.0, 9000, 1)]);
    let options = Options { trace: outside.path(), ..with_machines(Unsplit("1xdgx-h100")) };
    let summary = run(&options).summary;
    // 128 to 8192 tokens were measured; the second lies between.
    assert_eq!(summary.out_of_range_lookups, 2);
    let told = [&summary.cost_model, &summary.model, &summary.policy, &summary.transfer_mode];
    assert_eq!(told, ["measured", "bloom-176b", "jsq", "auto"]);
}

/// Not a time, which would hang on the machine, but what the time goes into.
#[test]
fn m11_events_of_a_request_do_not_grow_with_the_machines() {
    let events_per_request = [10, 100, 1000].map(|machines: u32| {
        let (split, requests) = (machines / 2, 20 * machines as usize);
        let machines = format!("{split}xdgx-h100");
        let options = Options {
            prompt: Some(machines.clone()),
            token: Some(machines),
            rate: Some(1.2 * f64::from(split)),
            requests: Some(requests),
            ..Options::default()
        };
        run(&options).summary.events as f64 / requests as f64
    });
    for events in events_per_request {
        assert_near("events of a request", events, events_per_request[0], 0.1);
    }
}

/// At one instant nothing has been reported yet, so that a Cluster of one's own sees what the simulator's sees.
#[test]
fn m14_the_simulator_places_as_the_library_does() {
    let rows: Vec<_> = (0..60).map(|id: u32| (0.0, 100 + 731 * id % 3000, 5)).collect();
    let trace = TempFile::trace("m14", &rows);
    let report = run(&Options { trace: trace.path(), ..with_machines(Split("3xdgx-h100", "4xdgx-h100")) });
    // The simulator takes the first of equals unless told otherwise.
    let ties = Ties::First;
    let config = ClusterConfig { kv_bytes_per_token: Some(KV_BYTES), ties, ..ClusterConfig::default() };
    let mut cluster = Cluster::new(config).unwrap();
    let mut actions = Vec::new();
    for index in 0..7 {
        let role = if index < 3 { Role::Prompt } else { Role::Token };
        let join = Join {
            machine: MachineId { index, incarnation: 1 },
            role,
            kv_capacity_tokens: 83_380 / 16 * 16,
            speed_weight: 1,
            link: Some(Link { bytes_per_s: BYTES_PER_S, fixed_cost_ns: 5_000_000 }),
            costs: None,
        };
        let _ = cluster.handle(Time::ZERO, &ClusterEvent::Join(join), &mut actions).unwrap();
    }
    for (row, &(_, prompt, output)) in report.rows.iter().zip(&rows) {
        actions.clear();
        let arrival = Arrival::new(row.request_id, prompt, output);
        let _ = cluster.handle(Time::ZERO, &ClusterEvent::Arrive(arrival), &mut actions).unwrap();
        let Some(ClusterAction::Placed(placement)) = actions.last() else { panic!("{actions:?}") };
        let pair =
            [placement.prompt(), placement.token()].map(|machine| machine.unwrap().index.cast_signed());
        assert_eq!(
            (row.attempts, [row.prompt_machine, row.token_machine]),
            (1, pair),
            "request {}",
            row.request_id
        );
    }
}

#[test]
fn m15_pools_of_one_machine_keep_to_their_limits() {
    let burst = TempFile::trace("m15", &[(0.0, 1000, 50); 20]);
    let options =
        Options { trace: burst.path(), max_in_flight: Some(5), ..with_machines(Unsplit("1xdgx-h100")) };
    let report = run(&options);
    let ends: Vec<_> = report.rows.iter().map(|row| row.outcome).collect();
    assert_eq!(ends[..5], [Outcome::Finished; 5]);
    assert_eq!(ends[5..], [Outcome::Rejected; 15]);
    // 5000 and 5000 tokens are more than 8192: the second prompt goes to the other machine though each pool has one.
    let prompts = TempFile::trace("m15-prompts", &[(0.0, 5000, 5), (0.0, 5000, 5)]);
    let report = run(&Options { trace: prompts.path(), ..with_machines(Split("1xdgx-h100", "1xdgx-h100")) });
    assert_eq!(report.rows.iter().map(|row| row.prompt_machine).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((report.summary.pools.to_mixed, report.summary.pools.to_home), (1, 1));
}

#[test]
fn m16_the_first_token_counts_whatever_it_is() {
    struct Tokens(Vec<Vec<u64>>);
    impl Observer for Tokens {
        fn pass_ended(&mut self, now_ns: u64, _: u32, plan: &BatchPlan) {
            let sampled = plan.prefills.iter().filter(|prefill| prefill.samples).map(|prefill| prefill.key);
            for key in sampled.chain(plan.decodes.iter().copied()) {
                self.0[key.request.0 as usize].push(now_ns);
            }
        }
    }
    let trace = TempFile::trace("m16", &[(0.0, 700, 1), (0.5, 700, 200)]);
    for machines in [Unsplit("1xdgx-h100"), Split("1xdgx-h100", "1xdgx-a100")] {
        let mut seen = Tokens(vec![Vec::new(); 2]);
        let options = Options { trace: trace.path(), ..with_machines(machines) };
        let report = simulate_observed(&options, &mut |_, _| true, &mut seen).unwrap();
        for (row, tokens) in report.rows.iter().zip(&seen.0) {
            assert_eq!(row.arrival_ns + row.ttft_ns, tokens[0]);
            assert_eq!(tokens.len(), row.output_tokens as usize);
        }
        assert_eq!(
            report.rows[0].ttft_ns, report.rows[0].e2e_ns,
            "a token that is the only one is the first"
        );
        let pass = Pass {
            prompts: 1,
            prompt_tokens: 700,
            prompt_tokens_min: 700,
            prompt_tokens_max: 700,
            ..Pass::default()
        };
        assert_eq!(report.rows[1].ttft_ns, h100().pass_ns(&pass).ns);
    }
}

/// The first request is over before the KV of the second has arrived; its blocks are set aside all the same.
#[test]
fn k13_a_transfer_holds_its_blocks_from_the_start_in_the_simulator_too() {
    let trace = TempFile::trace("k13", &[(0.0, 2000, 2), (0.0, 2000, 2)]);
    let report = run(&Options {
        trace: trace.path(),
        transfer: "serialized".into(),
        ..with_machines(Split("1xdgx-h100", "1xdgx-h100"))
    });
    let second_lands_ns = report.rows[1].ttft_ns + transfer_ns(2000, BYTES_PER_S);
    assert!(report.rows[0].e2e_ns < second_lands_ns);
    // 2001 tokens are 126 blocks of 16.
    assert_eq!(report.summary.machines[1].peak_kv_tokens, 2 * 126 * 16);
}
