//! The clusters that hold one rate and take least.
//!
//! First each design's edge is found, as if a larger cluster always held what a smaller one does. Simulated clusters
//! keep to that but for a band along the edge; so whatever would be better than the best found and lies in that band
//! is judged too, until nothing new turns up.

use super::answer::{Candidate, Cell};
use super::edge::Edge;
use super::judged::{Inquiry, Judged, Question};
use super::space::{Grid, Pools, Quantity, Space};
use super::spec::{Goal, Price};

/// Half the width of the band, in steps of both pools.
const BAND: u32 = 2;

/// How thorough a search is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// The edge alone.
    Edge,
    /// The edge, and its band where it matters.
    Band,
    /// Every cluster.
    All,
}

#[derive(Debug, Clone)]
pub(super) struct Cheapest {
    space: Space,
    goal: Goal,
    rate: f64,
    care: Care,
    /// By design.
    edges: Vec<Edge>,
}

impl Cheapest {
    pub(super) fn new(space: &Space, goal: Goal, rate: f64, care: Care, grids: Vec<Grid>) -> Self {
        Self { space: space.clone(), goal, rate, care, edges: grids.into_iter().map(Edge::new).collect() }
    }

    /// Each design's best.
    pub(super) fn bests(&self, judged: &Judged) -> Vec<Option<Pools>> {
        (0..self.edges.len()).map(|design| self.best(design, judged)).collect()
    }

    /// The best of all designs.
    pub(super) fn best_of_all(&self, judged: &Judged) -> Option<Pools> {
        self.space.best(self.goal, self.holding(judged))
    }

    /// Clusters that hold, such that none that does takes less of something and no more of anything; of those that
    /// take the same, one. By cost, then power, then rack units.
    pub(super) fn frontier(&self, judged: &Judged) -> Vec<Candidate> {
        let mut holding = self.holding(judged);
        holding
            .sort_by(|&a, &b| self.space.rank(Goal::MinCost, a).compare(&self.space.rank(Goal::MinCost, b)));
        let mut frontier: Vec<(Pools, Price)> = Vec::new();
        for pools in holding {
            let total = self.space.total(pools);
            let no_more = |other: &Price| {
                Quantity::ALL.into_iter().all(|quantity| quantity.of(other) <= quantity.of(&total))
            };
            if !frontier.iter().any(|(_, other)| no_more(other)) {
                frontier.push((pools, total));
            }
        }
        frontier.into_iter().map(|(pools, _)| self.space.candidate(pools)).collect()
    }

    /// Every cluster within the limits, once the search is over.
    pub(super) fn map(&self, judged: &Judged) -> Vec<Cell> {
        let cells = self.edges.iter().flat_map(|edge| {
            edge.grid().all().map(move |(column, row)| (edge.grid().pools(column, row), edge, column, row))
        });
        let cell = |(pools, edge, column, row): (Pools, &Edge, usize, u32)| {
            let own = judged.get(pools, self.rate);
            Cell {
                candidate: self.space.candidate(pools),
                judged: own,
                holds: own.unwrap_or_else(|| edge.is_known_to_hold(column, row)),
            }
        };
        cells.map(cell).collect()
    }

    /// Clusters within the limits judged to hold.
    fn holding(&self, judged: &Judged) -> Vec<Pools> {
        let holding = judged.at(self.rate).filter(|&(pools, holds)| holds && self.contains(pools));
        holding.map(|(pools, _)| pools).collect()
    }

    fn contains(&self, pools: Pools) -> bool {
        self.edges[pools.design].grid().contains(pools)
    }

    fn best(&self, design: usize, judged: &Judged) -> Option<Pools> {
        self.space.best(self.goal, self.holding(judged).into_iter().filter(|pools| pools.design == design))
    }

    /// Clusters in the band that would be better than their design's best. Beyond the limits anything may hold; where
    /// pools may grow no further, what lies beyond is as the last.
    fn doubtful(&self, design: usize, judged: &Judged) -> Vec<Pools> {
        let edge = &self.edges[design];
        let best = self.best(design, judged).map(|best| self.space.rank(self.goal, best));
        let is_doubtful = |&(column, row): &(usize, u32)| {
            let rank = self.space.rank(self.goal, edge.grid().pools(column, row));
            best.is_none_or(|best| rank.compare(&best).is_lt())
                && !edge.is_known_to_hold(column, row)
                && edge
                    .grid()
                    .grown(column, row, BAND)
                    .is_none_or(|(column, row)| edge.is_known_to_hold(column, row))
        };
        let doubtful = edge.grid().all().filter(is_doubtful);
        doubtful.map(|(column, row)| edge.grid().pools(column, row)).collect()
    }
}

impl Inquiry for Cheapest {
    fn next(&mut self, judged: &Judged) -> Vec<Question> {
        loop {
            for (pools, holds) in judged.at(self.rate) {
                self.edges[pools.design].tell(pools, holds);
            }
            if self.care == Care::All {
                let all = self
                    .edges
                    .iter()
                    .flat_map(|edge| edge.grid().all().map(|(column, row)| edge.grid().pools(column, row)));
                return judged.unknown(all, self.rate);
            }
            let wanted: Vec<Pools> = self.edges.iter_mut().flat_map(Edge::next).collect();
            let unknown = judged.unknown(wanted.iter().copied(), self.rate);
            if !unknown.is_empty() {
                return unknown;
            }
            if wanted.is_empty() {
                break;
            }
        }
        if self.care == Care::Edge {
            return Vec::new();
        }
        let doubtful = (0..self.edges.len()).flat_map(|design| self.doubtful(design, judged));
        judged.unknown(doubtful, self.rate)
    }

    fn left(&self) -> u64 {
        match self.care {
            // Whatever of it is judged already counts as done.
            Care::All => self.edges.iter().map(|edge| edge.grid().all().count() as u64).sum(),
            Care::Edge | Care::Band => self.edges.iter().map(Edge::left).sum(),
        }
    }
}
