//! What passes cost, as whole numbers: for predictions when requests are admitted. A machine brings its table along
//! when it joins; how long a pass then takes, only its engine says.

use std::fmt;
use std::sync::Arc;

/// One measured point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CostKnot {
    /// Tokens or requests, as the list says.
    pub at: u32,
    /// What a pass of that size takes.
    pub ns: u64,
}

/// Knots of one list at most. Each machine may bring a table of its own.
pub const KNOTS_MAX: usize = 256;

/// The content of a [`CostTable`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CostPoints {
    /// A pass over prompts, by their tokens together.
    pub prefill: Vec<CostKnot>,
    /// A decode pass without its context, by batch.
    pub decode: Vec<CostKnot>,
    /// What 1024 tokens of context add to a decode pass, all requests of the batch together.
    pub context_ns_per_1024_tokens: u64,
    /// Prompt tokens of one pass at most; a longer prompt runs alone.
    pub pass_tokens_max: u32,
}

/// The times of one machine: piecewise linear, the outermost segments going on beyond the knots, and never below
/// zero. A single knot is a constant. Cheap to copy: the points are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "CostPoints", into = "CostPoints"))]
pub struct CostTable(Arc<CostPoints>);

/// What is wrong with the points of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostError {
    /// A list has no knot.
    NoKnot {
        /// Which list.
        list: &'static str,
    },
    /// A list has more than [`KNOTS_MAX`].
    TooManyKnots {
        /// Which list.
        list: &'static str,
        /// How many it has.
        knots: usize,
    },
    /// A knot does not lie to the right of the one before.
    Unsorted {
        /// In which list.
        list: &'static str,
        /// The knot's place in it, from 0.
        index: usize,
    },
    /// A pass without tokens.
    EmptyPass,
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKnot { list } => write!(f, "{list} knots: expected at least one"),
            Self::TooManyKnots { list, knots } => {
                write!(f, "{list} knots: expected at most {KNOTS_MAX}, got {knots}")
            }
            Self::Unsorted { list, index } => {
                write!(f, "{list} knot {index}: expected it to the right of the knot before")
            }
            Self::EmptyPass => f.write_str("pass_tokens_max: expected at least 1, got 0"),
        }
    }
}

impl std::error::Error for CostError {}

impl CostTable {
    /// A table of these points.
    ///
    /// # Errors
    /// The first list that is empty, too long or not strictly increasing; a pass of no tokens.
    pub fn new(points: CostPoints) -> Result<Self, CostError> {
        for (list, knots) in [("prefill", &points.prefill), ("decode", &points.decode)] {
            if knots.is_empty() {
                return Err(CostError::NoKnot { list });
            }
            if knots.len() > KNOTS_MAX {
                return Err(CostError::TooManyKnots { list, knots: knots.len() });
            }
            if let Some(index) = knots.windows(2).position(|pair| pair[1].at <= pair[0].at) {
                return Err(CostError::Unsorted { list, index: index + 1 });
            }
        }
        if points.pass_tokens_max == 0 { Err(CostError::EmptyPass) } else { Ok(Self(Arc::new(points))) }
    }

    /// Its points.
    pub fn points(&self) -> &CostPoints {
        &self.0
    }

    /// One pass over prompts of so many tokens together.
    pub fn prefill_ns(&self, tokens: u64) -> u64 {
        line(&self.0.prefill, tokens)
    }

    /// One decode pass; `context_tokens` is the total of the batch.
    pub fn decode_ns(&self, batch: u32, context_tokens: u64) -> u64 {
        let context_ns = u128::from(context_tokens) * u128::from(self.0.context_ns_per_1024_tokens) / 1024;
        line(&self.0.decode, u64::from(batch)).saturating_add(u64::try_from(context_ns).unwrap_or(u64::MAX))
    }
}

impl TryFrom<CostPoints> for CostTable {
    type Error = CostError;

    fn try_from(points: CostPoints) -> Result<Self, CostError> {
        Self::new(points)
    }
}

impl From<CostTable> for CostPoints {
    fn from(table: CostTable) -> Self {
        Self::clone(&table.0)
    }
}

/// The value at `x`, rounded down.
fn line(knots: &[CostKnot], x: u64) -> u64 {
    let right = knots.partition_point(|knot| u64::from(knot.at) <= x);
    let right = right.clamp(1, (knots.len() - 1).max(1));
    let left = knots[right - 1];
    let Some(&next) = knots.get(right) else { return left.ns };
    let rise = i128::from(next.ns) - i128::from(left.ns);
    let run = i128::from(next.at) - i128::from(left.at);
    let ns = rise.saturating_mul(i128::from(x) - i128::from(left.at)).div_euclid(run);
    let ns = ns.saturating_add(i128::from(left.ns)).max(0);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

    use proptest::prelude::*;

    use super::*;

    fn knots(points: &[(u32, u64)]) -> Vec<CostKnot> {
        points.iter().map(|&(at, ns)| CostKnot { at, ns }).collect()
    }

    fn points() -> CostPoints {
        CostPoints {
            prefill: knots(&[(100, 1000), (200, 3000), (400, 4000)]),
            decode: knots(&[(1, 50), (11, 150)]),
            context_ns_per_1024_tokens: 512,
            pass_tokens_max: 400,
        }
    }

    #[test]
    fn worked_values() {
        let table = CostTable::new(points()).unwrap();
        let prefill = [0, 50, 100, 150, 201, 400, 402].map(|tokens| table.prefill_ns(tokens));
        assert_eq!(prefill, [0, 0, 1000, 2000, 3005, 4000, 4010]);
        assert_eq!([1, 6, 11, 21].map(|batch| table.decode_ns(batch, 0)), [50, 100, 150, 250]);
        assert_eq!([1, 2, 3, 4, 1024].map(|context| table.decode_ns(1, context)), [50, 51, 51, 52, 562]);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let refused = |change: fn(&mut CostPoints)| {
            let mut points = points();
            change(&mut points);
            CostTable::new(points).unwrap_err().to_string()
        };
        assert_eq!(refused(|points| points.prefill.clear()), "prefill knots: expected at least one");
        assert_eq!(refused(|points| points.decode.clear()), "decode knots: expected at least one");
        let many = |points: &mut CostPoints| {
            points.decode = (0..=KNOTS_MAX as u32).map(|at| CostKnot { at, ns: 1 }).collect();
        };
        assert_eq!(refused(many), "decode knots: expected at most 256, got 257");
        let unsorted = "prefill knot 2: expected it to the right of the knot before";
        assert_eq!(refused(|points| points.prefill[2].at = 200), unsorted);
        assert_eq!(
            refused(|points| points.pass_tokens_max = 0),
            "pass_tokens_max: expected at least 1, got 0"
        );
    }

    #[test]
    fn one_knot_is_a_constant_and_extremes_saturate() {
        let steep = CostPoints {
            prefill: knots(&[(0, 0), (1, u64::MAX)]),
            decode: knots(&[(5, 70)]),
            context_ns_per_1024_tokens: u64::MAX,
            pass_tokens_max: 1,
        };
        let table = CostTable::new(steep).unwrap();
        assert_eq!([0, 5, u32::MAX].map(|batch| table.decode_ns(batch, 0)), [70; 3]);
        assert_eq!([1, 2, u64::MAX].map(|tokens| table.prefill_ns(tokens)), [u64::MAX; 3]);
        assert_eq!(table.decode_ns(1, u64::MAX), u64::MAX);
        let falling = CostPoints { prefill: knots(&[(1, 10), (2, 0)]), ..points() };
        let table = CostTable::new(falling).unwrap();
        assert_eq!([0, 1, 2, 3, u64::MAX].map(|tokens| table.prefill_ns(tokens)), [20, 10, 0, 0, 0]);
    }

    proptest! {
        /// Knots come back, and between two of them the value lies between theirs.
        #[test]
        fn values_lie_between_their_knots(steps in prop::collection::vec((1_u32..1000, 0_u64..1 << 50), 1..9), x in 0_u64..9000) {
            let mut at = 0;
            let list: Vec<CostKnot> = steps.iter().map(|&(step, ns)| { at += step; CostKnot { at, ns } }).collect();
            let table = CostTable::new(CostPoints { prefill: list.clone(), ..points() }).unwrap();
            for knot in &list {
                prop_assert_eq!(table.prefill_ns(u64::from(knot.at)), knot.ns);
            }
            if let Some(pair) = list.windows(2).find(|pair| (u64::from(pair[0].at)..=u64::from(pair[1].at)).contains(&x)) {
                let (low, high) = (pair[0].ns.min(pair[1].ns), pair[0].ns.max(pair[1].ns));
                prop_assert!((low..=high).contains(&table.prefill_ns(x)));
            }
        }
    }
}
