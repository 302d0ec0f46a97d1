//! Answers worked by hand, and specs that are refused.

use splitcore_plan::provision::{
    Binding, Design, Goal, Limits, Price, Provision, ProvisionSearch, ProvisionSpec,
};

use crate::kit::{self, Pools, design, price, spec};

const RATE: f64 = 70.0;

/// H100s for prompts, A100s for tokens.
fn split() -> Design {
    design(0, price(38.0, 7_000.0, 8.0), price(17.6, 4_000.0, 8.0))
}

fn cheapest() -> ProvisionSpec {
    spec(Goal::MinCost, Some(RATE), vec![split()], 8)
}

/// Five prompt machines and four token machines hold 80 a second, and 40 without one of them.
fn five_and_four(pools: Pools, rate: f64) -> bool {
    rate <= if pools.prompt >= 5 && pools.token >= 4 { 80.0 } else { 40.0 }
}

fn searched(spec: &ProvisionSpec) -> Provision {
    kit::search(spec, |pools, rate, _| five_and_four(pools, rate)).found
}

fn told(binding: &[Binding]) -> Vec<&str> {
    binding.iter().map(|binding| binding.text.as_str()).collect()
}

#[test]
fn the_best_comes_with_its_capacity_margin_and_what_is_left_without_a_machine() {
    let best = searched(&cheapest()).best.unwrap();
    assert_eq!((best.candidate.prompt, best.candidate.token), (5, 4));
    assert_eq!(best.candidate.total, price(5.0 * 38.0 + 4.0 * 17.6, 51_000.0, 72.0));
    assert!((79.2..=80.0).contains(&best.capacity.max_rate), "{}", best.capacity.max_rate);
    assert_eq!(best.margin, Some(best.capacity.max_rate / RATE - 1.0));
    let spare: Vec<(&str, bool)> =
        best.spare.iter().map(|spare| (spare.lost.as_str(), spare.holds)).collect();
    assert_eq!(spare, [("prompt", false), ("token", false)]);
    for spare in &best.spare {
        let missed: Vec<_> =
            spare.failing.iter().map(|finding| (&*finding.objective, finding.found)).collect();
        assert_eq!(missed, [("ttft_slowdown p90", Some(3.4))]);
    }
}

#[test]
fn pools_in_steps_may_have_a_machine_to_spare() {
    let best = searched(&ProvisionSpec { machines_step: 2, ..cheapest() }).best.unwrap();
    assert_eq!((best.candidate.prompt, best.candidate.token), (6, 4));
    assert_eq!(best.spare.iter().map(|spare| spare.holds).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_pool_of_one_has_none_to_lose() {
    let found = kit::search(&cheapest(), |pools, rate, _| rate <= 71.0 || pools.prompt > 1).found;
    let spare = found.best.unwrap().spare;
    assert!(spare.iter().all(|spare| !spare.holds && spare.failing.is_empty()), "{spare:?}");
    let whole = spec(Goal::MinCost, Some(RATE), vec![design(1, price(1.0, 1.0, 1.0), Price::default())], 8);
    let found = kit::search(&whole, |pools, rate, _| rate <= 30.0 * f64::from(pools.prompt)).found;
    let best = found.best.unwrap();
    assert_eq!((best.candidate.prompt, best.candidate.token), (3, 0));
    assert_eq!((best.spare.len(), best.spare[0].lost.as_str(), best.spare[0].holds), (1, "unsplit", false));
}

#[test]
fn what_takes_the_same_is_settled_by_machines_then_design_then_prompt_machines() {
    let (one, two) = (price(1.0, 1.0, 1.0), price(2.0, 2.0, 2.0));
    let best = |designs: Vec<Design>| {
        let spec = spec(Goal::MinCost, Some(RATE), designs, 8);
        let enough = |pools: Pools| {
            if pools.design == 1 { pools.prompt >= 3 } else { pools.prompt + pools.token >= 6 }
        };
        let found =
            kit::search(&spec, |pools, rate, _| rate <= if enough(pools) { 80.0 } else { 40.0 }).found;
        kit::pools(&found.best.unwrap().candidate)
    };
    let (split, whole, capped) = (design(0, one, one), design(1, two, Price::default()), design(2, one, one));
    let pools = |design: usize, prompt: u32, token: u32| Pools { design, prompt, token };
    assert_eq!(best(vec![split.clone(), whole]), pools(1, 3, 0));
    assert_eq!(best(vec![split.clone(), capped.clone()]), pools(0, 1, 5));
    assert_eq!(best(vec![capped, split]), pools(2, 1, 5));
}

#[test]
fn a_limit_that_binds_says_by_how_much() {
    let limits = Limits { power_w: Some(42_500.0), ..Limits::default() };
    let found = searched(&ProvisionSpec { limits, ..cheapest() });
    assert!(found.best.is_none() && found.frontier.is_empty() && found.designs == [None]);
    assert_eq!(
        told(&found.binding),
        [
            "power_w: the least that holds 70 a second, 5 + 4 machines of split, takes 51,000 W, 1.20 times the \
             42,500 W allowed",
            "machines_max: lifting this limit alone does not help",
        ]
    );
    assert_eq!((found.binding[0].limit, found.binding[0].needed), (42_500.0, Some(51_000.0)));
}

#[test]
fn limits_that_bind_together_are_told_together() {
    let limits = Limits { power_w: Some(42_500.0), cost_per_hour: Some(200.0), rack_units: Some(100.0) };
    let found = searched(&ProvisionSpec { limits, ..cheapest() });
    let together = "lifting this limit alone does not help; without any limit the cheapest cluster that holds 70 a second, \
         5 + 4 machines of split,";
    assert_eq!(
        told(&found.binding),
        [
            &*format!(
                "cost_per_hour: {together} takes 260.4 $ an hour, 1.30 times the 200 $ an hour allowed"
            ),
            &*format!("power_w: {together} takes 51,000 W, 1.20 times the 42,500 W allowed"),
            &*format!("rack_units: {together} takes 72 rack units, within the 100 rack units allowed"),
            &*format!("machines_max: {together} has pools of up to 5 machines, within the 8 allowed"),
        ]
    );
    assert!(found.binding.iter().all(|binding| binding.needed.is_none()));
}

#[test]
fn pools_that_are_too_small_say_how_large_they_would_have_to_be() {
    let found = searched(&ProvisionSpec { machines_max: 3, ..cheapest() });
    assert_eq!(
        told(&found.binding),
        ["machines_max: to hold 70 a second takes pools of up to 5 machines, 1.67 times the 3 allowed"]
    );
    assert_eq!(found.binding[0].needed, Some(5.0));
}

#[test]
fn objectives_that_no_cluster_keeps_are_named() {
    for limits in [Limits::default(), Limits { power_w: Some(20_000.0), ..Limits::default() }] {
        let never = ProvisionSpec { rate_rps: Some(100.0), limits, ..cheapest() };
        let found = searched(&never);
        assert_eq!(
            told(&found.binding),
            [
                "slo: ttft_slowdown p90 of all is 3.4 where below 3 is asked, at 100 a second with 32 + 32 machines of \
              split"
            ]
        );
        assert_eq!((found.binding[0].limit, found.binding[0].needed), (3.0, Some(3.4)));
    }
    let options = splitcore_sim::Options { seed: 8, ..cheapest().options };
    let found = searched(&ProvisionSpec { rate_rps: Some(100.0), options, ..cheapest() });
    assert_eq!(
        told(&found.binding),
        [
            "slo: attainment of all is 0.8 where at least 0.9 is asked, at 100 a second with 32 + 32 machines of split"
        ]
    );
}

#[test]
fn no_cluster_within_the_limits_is_no_run_wasted_on_them() {
    let limits = Limits { rack_units: Some(15.0), ..Limits::default() };
    let found = searched(&ProvisionSpec { limits, ..cheapest() });
    assert!(found.map.is_empty());
    assert_eq!(
        found.binding[0].text,
        "rack_units: the least that holds 70 a second, 5 + 4 machines of split, takes 72 rack units, 4.80 times the \
         15 rack units allowed"
    );
}

#[test]
fn what_contradicts_itself_is_refused() {
    let refused = |spec: ProvisionSpec| match ProvisionSearch::new(&spec) {
        Ok(_) => panic!("taken: {spec:?}"),
        Err(error) => error.to_string(),
    };
    let of = |design: Design| ProvisionSpec { designs: vec![design], ..cheapest() };
    let limits = |limits: Limits| ProvisionSpec { limits, ..cheapest() };
    let options = |options: splitcore_sim::Options| ProvisionSpec { options, ..cheapest() };
    let base = || cheapest().options;
    let cases = vec![
        (
            ProvisionSpec { rate_rps: None, ..cheapest() },
            "rate: expected the requests per second to hold at the least cost, got none",
        ),
        (
            ProvisionSpec { rate_rps: Some(0.0), ..cheapest() },
            "rate: expected requests per second above 0, got 0",
        ),
        (
            ProvisionSpec { goal: Goal::MaxThroughput, ..cheapest() },
            "limits: expected a limit on cost, power or rack units for max-throughput, got none",
        ),
        (
            limits(Limits { power_w: Some(-1.0), ..Limits::default() }),
            "limits: expected power_w above 0, got -1",
        ),
        (ProvisionSpec { seeds: 0, ..cheapest() }, "seeds: expected at least 1, got 0"),
        (
            ProvisionSpec { designs: Vec::new(), ..cheapest() },
            "designs: expected at least one design, got none",
        ),
        (
            ProvisionSpec { designs: vec![split(), split()], ..cheapest() },
            "designs: expected each name once, got split twice",
        ),
        (
            of(Design { unsplit: Some("dgx-h100".into()), ..split() }),
            "designs: expected prompt and token machines, or unsplit ones, of split, got prompt and token and unsplit",
        ),
        (
            of(Design { prompt: None, token: None, ..split() }),
            "designs: expected prompt and token machines, or unsplit ones, of split, got none",
        ),
        (
            of(Design { token: None, ..split() }),
            "designs: expected prompt and token machines, or unsplit ones, of split, got prompt",
        ),
        (
            of(Design { token: Some("2xdgx-a100".into()), ..split() }),
            "designs: expected one kind of machine without a count in split, got 2xdgx-a100",
        ),
        (
            of(Design { prompt_price: price(f64::NAN, 0.0, 0.0), ..split() }),
            "designs: expected prices of split that are not negative, got NaN",
        ),
        (
            ProvisionSpec { machines_max: 0, ..cheapest() },
            "machines_max: expected at least machines_step, 1, got 0",
        ),
        (ProvisionSpec { machines_step: 0, ..cheapest() }, "machines_step: expected at least 1, got 0"),
        (
            ProvisionSpec { machines_step: 9, ..cheapest() },
            "machines_max: expected at least machines_step, 9, got 8",
        ),
        (
            ProvisionSpec { machines_max: 4_000, ..cheapest() },
            "machines_max: expected at most 400 steps of 1, got 4000",
        ),
        (ProvisionSpec { resolution: 0.0, ..cheapest() }, "resolution: expected above 0, up to 1, got 0"),
        (
            options(splitcore_sim::Options { token: Some("dgx-a100".into()), ..base() }),
            "token: expected none, as the machines are what is searched for, got dgx-a100",
        ),
        (
            options(splitcore_sim::Options { rate: Some(3.0), ..base() }),
            "rate: expected none beside the rate to hold, got 3",
        ),
    ];
    for (spec, text) in cases {
        assert_eq!(refused(spec), text);
    }
}
