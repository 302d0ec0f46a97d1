//! The clusters within limits that hold the highest rate.
//!
//! Only clusters that cannot have a machine more count. All of a design are judged at one rate; if any holds it, those
//! that do not are out, and the rate goes up.

use super::judged::{Inquiry, Judged, Question};
use super::space::{Pools, Space};
use super::spec::Goal;

/// Where the search begins, as that of one cluster's capacity does: so they try the same rates.
const START_RPS: f64 = 16.0;
/// Rates beyond this are not tried: no workload has so many arrivals.
const RATE_MAX_RPS: f64 = 1e6;

/// Which rates may be tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) start_rps: f64,
    /// The lowest worth trying.
    pub(super) floor_rps: f64,
    pub(super) resolution: f64,
}

impl Rates {
    /// From the least rate to reach, or else the fewest arrivals that say anything.
    pub(super) fn new(least_rps: Option<f64>, floor_rps: f64, resolution: f64) -> Self {
        Self {
            start_rps: least_rps.unwrap_or(START_RPS.max(floor_rps)),
            floor_rps: least_rps.unwrap_or(floor_rps),
            resolution,
        }
    }
}

/// One design's search.
#[derive(Debug, Clone)]
struct Climb {
    /// Those that hold the highest rate found to hold.
    pools: Vec<Pools>,
    holds: Option<f64>,
    fails: Option<f64>,
}

impl Climb {
    /// The rate to try; none when the search is over.
    fn rate(&self, rates: &Rates) -> Option<f64> {
        if self.pools.is_empty() {
            return None;
        }
        match (self.holds, self.fails) {
            (None, None) => Some(rates.start_rps),
            (Some(holds), None) => Some(2.0 * holds).filter(|&rate| rate <= RATE_MAX_RPS),
            (None, Some(fails)) if fails <= rates.floor_rps => None,
            (None, Some(fails)) => Some((fails / 2.0).max(rates.floor_rps)),
            (Some(holds), Some(fails)) => {
                (fails > holds * (1.0 + rates.resolution)).then_some(f64::midpoint(holds, fails))
            }
        }
    }

    fn tell(&mut self, rate: f64, judged: &Judged) {
        let holds = |pools: &Pools| judged.get(*pools, rate) == Some(true);
        if self.pools.iter().any(holds) {
            self.pools.retain(holds);
            self.holds = Some(rate);
        } else {
            self.fails = Some(rate);
        }
    }

    fn left(&self, rates: &Rates) -> u64 {
        let rates_left = match (self.holds, self.fails) {
            (Some(holds), Some(fails)) => ((fails / holds - 1.0) / rates.resolution).max(1.0).log2().ceil(),
            _ => 2.0 + (1.0 / rates.resolution).log2().ceil(),
        };
        // Few stay in play for long.
        let in_play = if self.rate(rates).is_some() { self.pools.len().div_ceil(4).max(1) } else { 0 };
        in_play as u64 * rates_left as u64
    }
}

#[derive(Debug, Clone)]
pub(super) struct Fastest {
    space: Space,
    rates: Rates,
    /// By design.
    climbs: Vec<Climb>,
}

impl Fastest {
    /// `outermost` are each design's clusters that cannot have a machine more.
    pub(super) fn new(space: &Space, rates: Rates, outermost: Vec<Vec<Pools>>) -> Self {
        let climbs = outermost.into_iter().map(|pools| Climb { pools, holds: None, fails: None });
        Self { space: space.clone(), rates, climbs: climbs.collect() }
    }

    /// Each design's best and its rate.
    pub(super) fn bests(&self) -> Vec<Option<(Pools, f64)>> {
        let best = |climb: &Climb| {
            let best = self.space.best(Goal::MaxThroughput, climb.pools.iter().copied())?;
            climb.holds.map(|rate| (best, rate))
        };
        self.climbs.iter().map(best).collect()
    }

    /// The best of all designs: the highest rate, then the least cost.
    pub(super) fn best_of_all(&self) -> Option<(Pools, f64)> {
        let bests: Vec<(Pools, f64)> = self.bests().into_iter().flatten().collect();
        let highest = bests.iter().map(|&(_, rate)| rate).max_by(f64::total_cmp)?;
        let fastest = bests.iter().filter(|&&(_, rate)| rate == highest).map(|&(pools, _)| pools);
        self.space.best(Goal::MaxThroughput, fastest).map(|best| (best, highest))
    }

    /// The lowest rate that was tried: what none holds if there is no best.
    pub(super) fn lowest_tried(&self) -> f64 {
        let tried = self.climbs.iter().filter_map(|climb| climb.fails);
        tried.min_by(f64::total_cmp).unwrap_or(self.rates.start_rps)
    }
}

impl Inquiry for Fastest {
    fn next(&mut self, judged: &Judged) -> Vec<Question> {
        let mut unknown = Vec::new();
        for climb in &mut self.climbs {
            while let Some(rate) = climb.rate(&self.rates) {
                let its = judged.unknown(climb.pools.iter().copied(), rate);
                if !its.is_empty() {
                    unknown.extend(its);
                    break;
                }
                climb.tell(rate, judged);
            }
        }
        unknown
    }

    fn left(&self) -> u64 {
        self.climbs.iter().map(|climb| climb.left(&self.rates)).sum()
    }
}
