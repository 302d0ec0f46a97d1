//! The cheapest clusters against a search of every one.

use proptest::prelude::*;
use splitcore_plan::provision::{Cell, Goal, Limits, Price, ProvisionSpec};

use crate::kit::{self, Pools, design, price, spec};

/// Of every rate asked for here.
const RATE: f64 = 70.0;
/// Columns that a made-up edge is known for, beyond the largest grid.
const COLUMNS: usize = 12;

/// For each design the fewest token machines by prompt machines, never more with more of those; of an unsplit design
/// the first is its fewest machines.
type Edges = Vec<Vec<u32>>;

fn is_beyond(edges: &Edges, pools: Pools) -> bool {
    let edge = &edges[pools.design];
    if pools.design == 1 {
        return pools.prompt >= edge[0];
    }
    pools.prompt > 0 && pools.token >= edge[(pools.prompt as usize).min(edge.len()) - 1]
}

/// Whether a step in each pool at most crosses the edge.
fn is_at_edge(edges: &Edges, pools: Pools) -> bool {
    let own = is_beyond(edges, pools);
    let near = |size: u32| size.saturating_sub(1)..=size + 1;
    near(pools.prompt).any(|prompt| {
        let tokens = if pools.design == 1 { 0..=0 } else { near(pools.token) };
        tokens.into_iter().any(|token| is_beyond(edges, Pools { prompt, token, ..pools }) != own)
    })
}

fn edges() -> impl Strategy<Value = Edges> {
    let edge = prop::collection::vec(1_u32..=COLUMNS as u32, COLUMNS).prop_map(|mut edge| {
        edge.sort_unstable_by(|a, b| b.cmp(a));
        edge
    });
    prop::collection::vec(edge, 3)
}

fn some_price() -> impl Strategy<Value = Price> {
    [0_u8..5, 0_u8..5, 0_u8..5]
        .prop_map(|[cost, power, space]| price(cost.into(), power.into(), space.into()))
}

fn limit() -> impl Strategy<Value = Option<f64>> {
    prop::option::weighted(0.4, (1_u8..60).prop_map(f64::from))
}

fn some_spec() -> impl Strategy<Value = ProvisionSpec> {
    let designs = prop::sample::subsequence(vec![0_usize, 1, 2], 1..=3).prop_shuffle();
    let prices = prop::collection::vec((some_price(), some_price()), 3);
    let goal = prop::sample::select(vec![Goal::MinCost, Goal::MinPower, Goal::MinSpace]);
    let limits = [limit(), limit(), limit()];
    (designs, prices, goal, limits, 1_u32..=8, 1_u32..=2).prop_map(
        |(designs, prices, goal, limits, max, step)| {
            let designs =
                designs.into_iter().map(|index| design(index, prices[index].0, prices[index].1)).collect();
            let [cost_per_hour, power_w, rack_units] = limits;
            ProvisionSpec {
                limits: Limits { cost_per_hour, power_w, rack_units },
                machines_step: step.min(max),
                ..spec(goal, Some(RATE), designs, max)
            }
        },
    )
}

/// Holds somewhat more than the rate, or less: its capacity can be searched.
fn holds(cluster_holds: bool, rate: f64) -> bool {
    rate <= if cluster_holds { 1.3 * RATE } else { 0.6 * RATE }
}

/// Clusters that none of the others beats; of those that take the same, the first in the order of least cost.
fn frontier(spec: &ProvisionSpec, holding: &[Pools]) -> Vec<Pools> {
    let by_cost = ProvisionSpec { goal: Goal::MinCost, ..spec.clone() };
    let (mut left, mut frontier) = (holding.to_vec(), Vec::new());
    while let Some(next) = kit::best(&by_cost, left.iter().copied()) {
        frontier.push(next);
        let own = kit::totals(spec, next);
        left.retain(|other| kit::totals(spec, *other).iter().zip(own).any(|(others, own)| *others < own));
    }
    frontier
}

fn settled(cell: &Cell) -> (Pools, bool) {
    (kit::pools(&cell.candidate), cell.holds)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_search_finds_what_a_search_of_every_cluster_does(
        spec in some_spec(), first in edges(), second in edges(), seeds in 1_u32..=2, whole_map: bool,
    ) {
        let spec = ProvisionSpec { seeds, whole_map, ..spec };
        let cluster_holds = |pools: Pools| is_beyond(&first, pools) && (seeds == 1 || is_beyond(&second, pools));
        let by_seed = |pools: Pools, seed: u64| is_beyond(if seed == 7 { &first } else { &second }, pools);
        let searched = kit::search(&spec, |pools, rate, seed| holds(by_seed(pools, seed), rate));
        let found = &searched.found;

        let all = kit::within(&spec);
        let holding: Vec<Pools> = all.iter().copied().filter(|&pools| cluster_holds(pools)).collect();
        let best = kit::best(&spec, holding.iter().copied());
        prop_assert_eq!(found.best.as_ref().map(|best| kit::pools(&best.candidate)), best);
        prop_assert_eq!(found.binding.is_empty(), best.is_some());
        for (design, candidate) in spec.designs.iter().zip(&found.designs) {
            let own = kit::within(&ProvisionSpec { designs: vec![design.clone()], ..spec.clone() });
            let own = kit::best(&spec, own.into_iter().filter(|&pools| cluster_holds(pools)));
            prop_assert_eq!(candidate.as_ref().map(kit::pools), own);
        }
        let their_frontier: Vec<Pools> = found.frontier.iter().map(kit::pools).collect();
        prop_assert_eq!(their_frontier, frontier(&spec, &holding));

        let mut map: Vec<(Pools, bool)> = found.map.iter().map(settled).collect();
        map.sort_unstable();
        let mut expected: Vec<(Pools, bool)> = all.iter().map(|&pools| (pools, cluster_holds(pools))).collect();
        expected.sort_unstable();
        prop_assert_eq!(map, expected);
        for cell in &found.map {
            prop_assert!(cell.judged.is_none_or(|judged| judged == cell.holds));
            prop_assert!(!whole_map || cell.judged.is_some());
        }

        // A further seed is asked for only where those before were kept.
        for probe in searched.probes.iter().filter(|probe| probe.options.seed > 7 && !probe.whole) {
            let first_holds = holds(is_beyond(&first, kit::pools_of(probe)), probe.options.rate.unwrap());
            let is_chosen = best == Some(kit::pools_of(probe));
            prop_assert!(first_holds || is_chosen, "{:?}", probe.options);
        }
    }

    /// Where pools may grow no further nothing tells luck from the edge, so there luck does not turn.
    #[test]
    fn luck_along_the_edge_does_not_hide_the_best(
        spec in some_spec(), edges in edges(), machines_max in 8_u32..12,
        flips in prop::collection::vec(any::<bool>(), 3 * COLUMNS * COLUMNS),
    ) {
        let spec = ProvisionSpec { machines_max, machines_step: 1, ..spec };
        let last = machines_max - 2;
        let cluster_holds = |pools: Pools| {
            let is_inner = pools.prompt <= last && pools.token <= last;
            let at = (pools.design * COLUMNS + pools.prompt as usize) * COLUMNS + pools.token as usize;
            is_beyond(&edges, pools) != (is_inner && is_at_edge(&edges, pools) && flips[at])
        };
        let found = kit::search(&spec, |pools, rate, _| holds(cluster_holds(pools), rate)).found;
        let best = kit::best(&spec, kit::within(&spec).into_iter().filter(|&pools| cluster_holds(pools)));
        prop_assert_eq!(found.best.map(|best| kit::pools(&best.candidate)), best);
        for (design, candidate) in spec.designs.iter().zip(&found.designs) {
            let own = kit::within(&ProvisionSpec { designs: vec![design.clone()], ..spec.clone() });
            let own = kit::best(&spec, own.into_iter().filter(|&pools| cluster_holds(pools)));
            prop_assert_eq!(candidate.as_ref().map(kit::pools), own);
        }
    }

    /// One limit too many: it is named, with the least that would do.
    #[test]
    fn the_limit_that_binds_is_named(
        prices in prop::collection::vec((some_price(), some_price()), 3), edges in edges(), which in 0_usize..3,
    ) {
        let designs = (0..3).map(|index| design(index, prices[index].0, prices[index].1)).collect();
        let free = spec(Goal::MinCost, Some(RATE), designs, COLUMNS as u32);
        let quantity = |pools: Pools| kit::totals(&free, pools)[which];
        let all = kit::within(&free).into_iter().filter(|&pools| is_beyond(&edges, pools));
        let least = all.map(quantity).min_by(f64::total_cmp).unwrap();
        prop_assume!(least > 1.0);
        let limit = Some(least - 1.0);
        let limits = [
            Limits { cost_per_hour: limit, ..Limits::default() },
            Limits { power_w: limit, ..Limits::default() },
            Limits { rack_units: limit, ..Limits::default() },
        ][which];
        // Larger pools of cheaper machines do not help: there are none.
        let bound = ProvisionSpec { limits, ..free.clone() };
        let is_there = |pools: Pools| pools.prompt.max(pools.token) <= COLUMNS as u32;
        let searched =
            kit::search(&bound, |pools, rate, _| holds(is_there(pools) && is_beyond(&edges, pools), rate));
        prop_assert!(searched.found.best.is_none());
        let binding = &searched.found.binding;
        prop_assert_eq!(binding.len(), 2);
        prop_assert_eq!(&binding[0].constraint, ["cost_per_hour", "power_w", "rack_units"][which]);
        prop_assert_eq!((binding[0].limit, binding[0].needed), (least - 1.0, Some(least)));
        prop_assert_eq!((binding[1].constraint.as_str(), binding[1].needed), ("machines_max", None));
    }
}

/// Whether a cluster holds the rate.
type Holds = fn(Pools) -> bool;

/// What two pools in a row do: each has its own capacity, and a little is lost to the other.
fn in_a_row(pools: Pools) -> bool {
    let (prompt, token) = (f64::from(pools.prompt), f64::from(pools.token));
    1.0 / (8.0 * prompt) + 1.0 / (14.0 * token) < 1.0 / RATE
}

#[test]
fn a_large_grid_takes_few_runs() {
    let h100 = price(38.0, 7.0, 8.0);
    let a100 = price(17.0, 4.0, 8.0);
    let edges: [(&str, usize, Holds); 4] = [
        ("in a row", 80, in_a_row),
        ("corner", 45, |pools| pools.prompt >= 18 && pools.token >= 9),
        ("sum", 160, |pools| pools.prompt + pools.token >= 33),
        ("nothing", 5, |_| false),
    ];
    for (name, most, edge) in edges {
        for (prompt, token) in [(h100, h100), (h100, a100)] {
            let spec = spec(Goal::MinCost, Some(RATE), vec![design(0, prompt, token)], 30);
            let at_most_30 = |pools: Pools| pools.prompt.max(pools.token) <= 30;
            let searched = kit::search(&spec, |pools, rate, _| holds(at_most_30(pools) && edge(pools), rate));
            let judged = searched.found.map.iter().filter(|cell| cell.judged.is_some()).count();
            assert!(judged <= most, "{name}: {judged}");
            let best = kit::best(&spec, kit::within(&spec).into_iter().filter(|&pools| edge(pools)));
            assert_eq!(searched.found.best.as_ref().map(|best| kit::pools(&best.candidate)), best);
            assert!(searched.rounds < 40, "{name}: {} rounds", searched.rounds);
        }
    }
}

#[test]
fn an_unsplit_design_is_halved() {
    let spec =
        spec(Goal::MinPower, Some(RATE), vec![design(1, price(38.0, 7.0, 8.0), Price::default())], 100);
    let searched = kit::search(&spec, |pools, rate, _| holds(pools.prompt >= 41, rate));
    assert_eq!(
        kit::pools(&searched.found.best.unwrap().candidate),
        Pools { design: 1, prompt: 41, token: 0 }
    );
    let judged = searched.found.map.iter().filter(|cell| cell.judged.is_some()).count();
    assert!(judged <= 10, "{judged}");
    assert_eq!(searched.found.map.len(), 100);
}
