//! The fastest clusters within limits against a search of every one.

use proptest::prelude::*;
use splitcore_plan::provision::{Goal, Limits, Price, ProvisionSpec};

use crate::kit::{self, Pools, design, price, spec};

/// What a prompt and a token machine of each design can do, in requests a second.
type Speeds = [(f64, f64); 3];

fn capacity(speeds: &Speeds, pools: Pools) -> f64 {
    let (prompt, token) = speeds[pools.design];
    let prompt = prompt * f64::from(pools.prompt);
    if pools.design == 1 { prompt } else { prompt.min(token * f64::from(pools.token)) }
}

fn some_price() -> impl Strategy<Value = Price> {
    [1_u8..5, 1_u8..5, 1_u8..5]
        .prop_map(|[cost, power, space]| price(cost.into(), power.into(), space.into()))
}

fn some_spec() -> impl Strategy<Value = ProvisionSpec> {
    let prices = prop::collection::vec((some_price(), some_price()), 3);
    let limits = (1_u8..60, prop::option::of(1_u8..60));
    (prices, limits, 1_u32..=8).prop_map(|(prices, (power, space), machines_max)| {
        let designs = (0..3).map(|index| design(index, prices[index].0, prices[index].1)).collect();
        let limits =
            Limits { power_w: Some(power.into()), rack_units: space.map(f64::from), ..Limits::default() };
        ProvisionSpec { limits, ..spec(Goal::MaxThroughput, None, designs, machines_max) }
    })
}

fn speeds() -> impl Strategy<Value = Speeds> {
    let speed = || (0.5_f64..40.0, 0.5_f64..40.0);
    [speed(), speed(), speed()]
}

/// Clusters within the limits that are so no more with a machine more.
fn outermost(all: &[Pools]) -> Vec<Pools> {
    let is_grown = |pools: &Pools, other: &Pools| {
        other != pools
            && other.design == pools.design
            && other.prompt >= pools.prompt
            && other.token >= pools.token
    };
    all.iter().copied().filter(|pools| !all.iter().any(|other| is_grown(pools, other))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(2), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_highest_rate_is_found_to_the_resolution(spec in some_spec(), speeds in speeds()) {
        let searched = kit::search(&spec, |pools, rate, _| rate <= capacity(&speeds, pools));
        let found = &searched.found;
        let all = kit::within(&spec);
        let mut highest: f64 = 0.0;
        for design in 0..3 {
            let own: Vec<Pools> = all.iter().copied().filter(|pools| pools.design == design).collect();
            let most = own.iter().map(|&pools| capacity(&speeds, pools)).max_by(f64::total_cmp);
            let rate = found.design_rates[design];
            prop_assert_eq!(rate.is_some(), most.is_some());
            let (Some(most), Some(rate)) = (most, rate) else { continue };
            prop_assert!(rate <= most && most < rate * 1.01 + 1e-9, "{} {}", rate, most);
            highest = highest.max(rate);
            let reaching = outermost(&own).into_iter().filter(|&pools| capacity(&speeds, pools) >= rate);
            prop_assert_eq!(found.designs[design].as_ref().map(kit::pools), kit::best(&spec, reaching));
        }
        let fastest = found.designs.iter().zip(&found.design_rates).filter(|(_, rate)| **rate == Some(highest));
        let best = kit::best(&spec, fastest.filter_map(|(candidate, _)| candidate.as_ref().map(kit::pools)));
        prop_assert_eq!(found.best.as_ref().map(|best| kit::pools(&best.candidate)), best);
        prop_assert!(found.map.is_empty() && found.frontier.is_empty());
        prop_assert_eq!(found.binding.is_empty(), best.is_some());
        if let Some(best) = &found.best {
            prop_assert!(best.capacity.max_rate >= highest / 1.011 && best.margin.is_none());
        }
    }

    #[test]
    fn a_rate_to_reach_is_reached_or_what_binds_is_told(
        spec in some_spec(), speeds in speeds(), rate in 5_f64..100.0,
    ) {
        let spec = ProvisionSpec { rate_rps: Some(rate), ..spec };
        let found = kit::search(&spec, |pools, rate, _| rate <= capacity(&speeds, pools)).found;
        let most = kit::within(&spec).into_iter().map(|pools| capacity(&speeds, pools)).max_by(f64::total_cmp);
        prop_assert_eq!(found.best.is_some(), most.is_some_and(|most| most >= rate));
        prop_assert_eq!(found.binding.is_empty(), found.best.is_some());
        for reached in found.design_rates.into_iter().flatten() {
            prop_assert!(reached >= rate);
        }
        if let Some(best) = found.best {
            prop_assert!((best.margin.unwrap() - (best.capacity.max_rate / rate - 1.0)).abs() < 1e-12);
        }
    }
}
