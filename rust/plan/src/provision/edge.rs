//! The edge between the clusters of a design that hold a rate and those that do not.

use super::space::{Grid, Pools};

/// What is known of each column: up to which row clusters fail, and from which they hold. A larger cluster is taken to
/// hold what a smaller one does, so a verdict tells of other columns too.
#[derive(Debug, Clone)]
pub(super) struct Edge {
    grid: Grid,
    /// By column, the highest row known to fail; 0 if none is.
    fails: Vec<u32>,
    /// By column, the lowest row known to hold; one above the highest if none is.
    holds: Vec<u32>,
    /// Only columns this far apart are looked at, then those between: what they tell leaves less to ask.
    stride: usize,
}

impl Edge {
    pub(super) fn new(grid: Grid) -> Self {
        let columns = grid.heights().len();
        Self {
            fails: vec![0; columns],
            holds: grid.heights().iter().map(|height| height + 1).collect(),
            // A few columns at first, so that there is something to do at a time.
            stride: columns.div_ceil(4).next_power_of_two(),
            grid,
        }
    }

    pub(super) fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Enters a verdict on a cluster of this design.
    pub(super) fn tell(&mut self, pools: Pools, holds: bool) {
        let (column, row) = self.grid.place(pools);
        if holds {
            for known in self.holds.iter_mut().skip(column) {
                *known = row.min(*known);
            }
        } else {
            for (known, height) in self.fails.iter_mut().zip(self.grid.heights()).take(column + 1) {
                *known = row.min(*height).max(*known);
            }
        }
    }

    /// Whether a cluster is known to hold, or to be larger than one that does.
    pub(super) fn is_known_to_hold(&self, column: usize, row: u32) -> bool {
        self.holds[column] <= row
    }

    /// The next clusters to judge, at most one a column; none when the edge is found.
    pub(super) fn next(&mut self) -> Vec<Pools> {
        while self.stride > 0 {
            let on_stride =
                (1..=self.holds.len()).filter(|column| column % self.stride == 0).map(|after| after - 1);
            let open = on_stride.filter(|&column| self.gap(column) > 1);
            let next: Vec<Pools> = open.map(|column| self.grid.pools(column, self.middle(column))).collect();
            if !next.is_empty() {
                return next;
            }
            self.stride /= 2;
        }
        Vec::new()
    }

    /// About how many clusters will be judged yet.
    pub(super) fn left(&self) -> u64 {
        let halvings = |column: usize| u64::from(self.gap(column).max(1).ilog2());
        let left: u64 = (0..self.holds.len()).map(halvings).sum();
        // Columns tell of one another: a verdict settles about two.
        left.div_ceil(2)
    }

    fn gap(&self, column: usize) -> u32 {
        self.holds[column].saturating_sub(self.fails[column])
    }

    /// Half-way; but the largest first where nothing holds yet, as its failing rules out the whole column, and smaller
    /// prompt pools with it.
    fn middle(&self, column: usize) -> u32 {
        let height = self.grid.heights()[column];
        if self.holds[column] > height { height } else { self.fails[column].midpoint(self.holds[column]) }
    }
}
