//! The clusters that may be: pool sizes of each design within limits, what they take, and which is better.

use std::cmp::Ordering;

use splitcore_sim::Options;

use super::answer::Candidate;
use super::spec::{Design, Goal, Limits, Price, ProvisionSpec};

/// A limit counts as kept if it is missed by no more than sums of prices are rounded.
const ROUNDING: f64 = 1e-9;

/// A cluster: a design by index, and its pools. Ordered as a map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pools {
    pub(super) design: usize,
    /// Prompt machines, or all of an unsplit cluster.
    pub(super) prompt: u32,
    pub(super) token: u32,
}

/// What a cluster takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    Cost,
    Power,
    Space,
}

impl Quantity {
    pub(super) const ALL: [Self; 3] = [Self::Cost, Self::Power, Self::Space];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost_per_hour",
            Self::Power => "power_w",
            Self::Space => "rack_units",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Cost => "$ an hour",
            Self::Power => "W",
            Self::Space => "rack units",
        }
    }

    pub(super) fn of(self, price: &Price) -> f64 {
        match self {
            Self::Cost => price.cost_per_hour,
            Self::Power => price.power_w,
            Self::Space => price.rack_units,
        }
    }

    pub(super) fn limit(self, limits: &Limits) -> Option<f64> {
        match self {
            Self::Cost => limits.cost_per_hour,
            Self::Power => limits.power_w,
            Self::Space => limits.rack_units,
        }
    }

    /// The limits without the one on this.
    pub(super) fn lifted(self, limits: Limits) -> Limits {
        match self {
            Self::Cost => Limits { cost_per_hour: None, ..limits },
            Self::Power => Limits { power_w: None, ..limits },
            Self::Space => Limits { rack_units: None, ..limits },
        }
    }

    /// What counts first, second and third.
    fn order(goal: Goal) -> [Self; 3] {
        match goal {
            Goal::MinCost | Goal::MaxThroughput => [Self::Cost, Self::Power, Self::Space],
            Goal::MinPower => [Self::Power, Self::Cost, Self::Space],
            Goal::MinSpace => [Self::Space, Self::Cost, Self::Power],
        }
    }

    /// The goal that has least of this.
    pub(super) fn goal(self) -> Goal {
        match self {
            Self::Cost => Goal::MinCost,
            Self::Power => Goal::MinPower,
            Self::Space => Goal::MinSpace,
        }
    }
}

/// The place of a cluster among those that hold a rate: the lowest is best, and no two clusters share one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rank {
    totals: [f64; 3],
    machines: u32,
    design: usize,
    prompt: u32,
}

impl Rank {
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let totals = self.totals.iter().zip(&other.totals).map(|(own, others)| own.total_cmp(others));
        totals
            .fold(Ordering::Equal, Ordering::then)
            .then(self.machines.cmp(&other.machines))
            .then(self.design.cmp(&other.design))
            .then(self.prompt.cmp(&other.prompt))
    }
}

/// All designs, and the step between pool sizes.
#[derive(Debug, Clone)]
pub(super) struct Space {
    designs: Vec<Design>,
    step: u32,
}

impl Space {
    pub(super) fn new(spec: &ProvisionSpec) -> Self {
        Self { designs: spec.designs.clone(), step: spec.machines_step }
    }

    pub(super) fn step(&self) -> u32 {
        self.step
    }

    pub(super) fn total(&self, pools: Pools) -> Price {
        let Design { prompt_price, token_price, .. } = &self.designs[pools.design];
        let (prompt, token) = (f64::from(pools.prompt), f64::from(pools.token));
        let sum = |quantity: Quantity| quantity.of(prompt_price) * prompt + quantity.of(token_price) * token;
        Price {
            cost_per_hour: sum(Quantity::Cost),
            power_w: sum(Quantity::Power),
            rack_units: sum(Quantity::Space),
        }
    }

    pub(super) fn rank(&self, goal: Goal, pools: Pools) -> Rank {
        let total = self.total(pools);
        Rank {
            totals: Quantity::order(goal).map(|quantity| quantity.of(&total)),
            machines: pools.prompt + pools.token,
            design: pools.design,
            prompt: pools.prompt,
        }
    }

    /// The best of some clusters.
    pub(super) fn best(&self, goal: Goal, pools: impl IntoIterator<Item = Pools>) -> Option<Pools> {
        pools.into_iter().min_by(|&a, &b| self.rank(goal, a).compare(&self.rank(goal, b)))
    }

    pub(super) fn candidate(&self, pools: Pools) -> Candidate {
        Candidate {
            design: self.designs[pools.design].name.clone(),
            prompt: pools.prompt,
            token: pools.token,
            total: self.total(pools),
        }
    }

    /// A cluster in words, as `25 + 15 machines of splitwise-hh`.
    pub(super) fn told(&self, pools: Pools) -> String {
        let Design { name, .. } = &self.designs[pools.design];
        if self.designs[pools.design].is_split() {
            format!("{} + {} machines of {name}", pools.prompt, pools.token)
        } else {
            format!("{} machines of {name}", pools.prompt)
        }
    }

    /// The options with the machines of a cluster.
    pub(super) fn options(&self, base: &Options, pools: Pools) -> Options {
        let design = &self.designs[pools.design];
        let machines =
            |kind: &Option<String>, count: u32| kind.as_ref().map(|kind| format!("{count}x{kind}"));
        Options {
            prompt: machines(&design.prompt, pools.prompt),
            token: machines(&design.token, pools.token),
            unsplit: machines(&design.unsplit, pools.prompt),
            ..base.clone()
        }
    }

    /// Each design's clusters within limits.
    pub(super) fn grids(&self, limits: &Limits, machines_max: u32) -> Vec<Grid> {
        (0..self.designs.len()).map(|design| self.grid(design, limits, machines_max)).collect()
    }

    pub(super) fn grid(&self, design: usize, limits: &Limits, machines_max: u32) -> Grid {
        let is_split = self.designs[design].is_split();
        let rows = machines_max / self.step;
        let columns = if is_split { rows } else { 1 };
        let mut grid = Grid { design, is_split, step: self.step, columns, rows, heights: Vec::new() };
        // A larger prompt pool leaves no more for the token pool.
        let mut height = rows;
        for column in 0..columns as usize {
            while height > 0 && !is_within(&self.total(grid.pools(column, height)), limits) {
                height -= 1;
            }
            if height == 0 {
                break;
            }
            grid.heights.push(height);
        }
        grid
    }
}

fn is_within(total: &Price, limits: &Limits) -> bool {
    let kept = |quantity: Quantity| {
        quantity.limit(limits).is_none_or(|limit| quantity.of(total) <= limit * (1.0 + ROUNDING))
    };
    Quantity::ALL.into_iter().all(kept)
}

/// One design's clusters within limits: columns are prompt pools, from 0; rows are token pools, from 1. An unsplit
/// design has one column, and its rows are its machines.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    design: usize,
    is_split: bool,
    step: u32,
    /// As far as pools may grow.
    columns: u32,
    rows: u32,
    /// By column, the highest row within the limits; never more than in the column before.
    heights: Vec<u32>,
}

impl Grid {
    pub(super) fn pools(&self, column: usize, row: u32) -> Pools {
        if self.is_split {
            let prompt = (column as u32 + 1) * self.step;
            Pools { design: self.design, prompt, token: row * self.step }
        } else {
            Pools { design: self.design, prompt: row * self.step, token: 0 }
        }
    }

    /// Column and row of pools of this design; they need not be within the limits.
    pub(super) fn place(&self, pools: Pools) -> (usize, u32) {
        if self.is_split {
            ((pools.prompt / self.step) as usize - 1, pools.token / self.step)
        } else {
            (0, pools.prompt / self.step)
        }
    }

    pub(super) fn heights(&self) -> &[u32] {
        &self.heights
    }

    pub(super) fn contains(&self, pools: Pools) -> bool {
        let (column, row) = self.place(pools);
        pools.design == self.design && self.heights.get(column).is_some_and(|&height| row <= height)
    }

    /// All clusters, by prompt and token machines.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.heights
            .iter()
            .enumerate()
            .flat_map(|(column, &height)| (1..=height).map(move |row| (column, row)))
    }

    /// Clusters within the limits that cannot have a machine more in either pool.
    pub(super) fn outermost(&self) -> Vec<Pools> {
        let is_outer =
            |&column: &usize| self.heights.get(column + 1).is_none_or(|&next| next < self.heights[column]);
        let columns = (0..self.heights.len()).filter(is_outer);
        columns.map(|column| self.pools(column, self.heights[column])).collect()
    }

    /// What a cluster with `by` steps more in both pools would be: none if over the limits; pools grow no further than
    /// they may.
    pub(super) fn grown(&self, column: usize, row: u32, by: u32) -> Option<(usize, u32)> {
        let column = (column as u32 + by).min(self.columns - 1) as usize;
        let row = (row + by).min(self.rows);
        self.heights.get(column).is_some_and(|&height| row <= height).then_some((column, row))
    }
}
