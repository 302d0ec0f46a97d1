//! One seed's search for the rate between what holds and what does not.

/// Rates beyond this for each GPU are not tried. No machine computes the shortest prompts at such a rate: objectives that
/// hold there do not bind.
const RATE_MAX_PER_GPU: f64 = 256.0;
/// Of a cluster without GPUs to count.
const RATE_MAX_RPS: f64 = 1e6;

/// Which rates may be tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rates {
    /// Any; the search ends when the two ends differ by this share of the lower.
    Any { resolution: f64 },
    /// Multiples of this.
    Multiples { step_rps: f64 },
}

/// The highest rate known to hold and the lowest above it known not to. Assumes, as every bisection does, that what
/// fails at one rate fails at higher ones; where that is not so it finds one of the edges.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bracket {
    rates: Rates,
    start_rps: f64,
    /// The lowest rate worth trying.
    floor_rps: f64,
    /// The highest.
    ceiling_rps: f64,
    holds: Option<f64>,
    fails: Option<f64>,
}

impl Bracket {
    pub(super) fn new(rates: Rates, start_rps: f64, floor_rps: f64) -> Self {
        let Rates::Multiples { step_rps } = rates else {
            return Self { rates, start_rps, floor_rps, ceiling_rps: RATE_MAX_RPS, holds: None, fails: None };
        };
        let start_rps = (start_rps / step_rps).round().max(1.0) * step_rps;
        Self { rates, start_rps, floor_rps: step_rps, ceiling_rps: RATE_MAX_RPS, holds: None, fails: None }
    }

    /// For a cluster of so many GPUs. Where the search begins is tried in any case.
    pub(super) fn of_gpus(self, gpus: u64) -> Self {
        Self { ceiling_rps: RATE_MAX_PER_GPU * gpus as f64, ..self }
    }

    /// Whether all rates up to the highest that is tried hold.
    pub(super) fn is_without_end(&self) -> bool {
        self.next().is_none() && self.fails.is_none()
    }

    /// The rate found to hold; 0 if none was.
    pub(super) fn holds(&self) -> f64 {
        self.holds.unwrap_or(0.0)
    }

    /// The rate found to fail; none if not even the highest does.
    pub(super) fn fails(&self) -> Option<f64> {
        self.fails
    }

    /// The next rate to try; none when the search is over.
    pub(super) fn next(&self) -> Option<f64> {
        match (self.holds, self.fails) {
            (None, None) => Some(self.start_rps),
            (Some(holds), None) => Some(2.0 * holds).filter(|&rate| rate <= self.ceiling_rps),
            (None, Some(fails)) => self.below(fails),
            (Some(holds), Some(fails)) => self.between(holds, fails),
        }
    }

    /// Enters whether the rate that [`Bracket::next`] named holds.
    pub(super) fn tell(&mut self, rate: f64, met: bool) {
        *(if met { &mut self.holds } else { &mut self.fails }) = Some(rate);
    }

    /// Rates that will yet be tried, if all goes as it has so far.
    pub(super) fn left(&self) -> u64 {
        let mut ahead = self.clone();
        let mut count = 0;
        while let (Some(rate), true) = (ahead.next(), count < 64) {
            // A rate above all that held is guessed to fail after two doublings.
            ahead.tell(rate, ahead.fails.is_none() && rate < 4.0 * self.start_rps);
            count += 1;
        }
        count
    }

    fn below(&self, fails: f64) -> Option<f64> {
        if fails <= self.floor_rps {
            return None;
        }
        let half = match self.rates {
            Rates::Any { .. } => fails / 2.0,
            Rates::Multiples { step_rps } => (fails / step_rps / 2.0).floor() * step_rps,
        };
        Some(half.max(self.floor_rps))
    }

    fn between(&self, holds: f64, fails: f64) -> Option<f64> {
        match self.rates {
            Rates::Any { resolution } => {
                (fails > holds * (1.0 + resolution)).then_some(f64::midpoint(holds, fails))
            }
            Rates::Multiples { step_rps } => {
                let (low, high) = ((holds / step_rps).round(), (fails / step_rps).round());
                (high - low > 1.0).then(|| (f64::midpoint(low, high)).floor() * step_rps)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn search(mut bracket: Bracket, capacity: f64) -> (Bracket, u32) {
        let mut tries = 0;
        while let Some(rate) = bracket.next() {
            bracket.tell(rate, rate <= capacity);
            tries += 1;
            assert!(tries < 100, "{bracket:?}");
        }
        (bracket, tries)
    }

    proptest! {
        #[test]
        fn the_edge_is_found_to_the_resolution(capacity in 0.2_f64..2e4, start in 1_f64..1e3, resolution in 1e-4_f64..0.2) {
            let (found, _) = search(Bracket::new(Rates::Any { resolution }, start, 0.1), capacity);
            let fails = found.fails().unwrap();
            prop_assert!(found.holds() <= capacity && capacity < fails);
            prop_assert!(fails <= found.holds() * (1.0 + resolution));
        }

        #[test]
        fn on_a_grid_the_highest_multiple_is_found(capacity in 0_u32..3000, start in 1_f64..1e3, step in 1_u32..50) {
            let step = f64::from(step);
            let capacity = f64::from(capacity) + 0.5;
            let rates = Rates::Multiples { step_rps: step };
            let (found, _) = search(Bracket::new(rates, start, 0.1), capacity);
            prop_assert_eq!(found.holds(), (capacity / step).floor() * step);
            prop_assert_eq!(found.fails().unwrap(), found.holds() + step);
        }
    }

    #[test]
    fn nothing_holds_or_everything_does() {
        let any = Rates::Any { resolution: 0.01 };
        let (none, _) = search(Bracket::new(any, 16.0, 0.1), 0.0);
        assert_eq!((none.holds(), none.fails()), (0.0, Some(0.1)));
        let (all, _) = search(Bracket::new(any, 16.0, 0.1), f64::INFINITY);
        assert!(all.holds() > 5e5 && all.fails().is_none());
    }

    #[test]
    fn a_search_without_end_is_given_up_at_a_rate_for_each_gpu() {
        let any = Rates::Any { resolution: 0.01 };
        let (all, tries) = search(Bracket::new(any, 16.0, 0.1).of_gpus(8), f64::INFINITY);
        assert!(all.is_without_end() && all.fails().is_none());
        assert_eq!((all.holds(), tries), (2048.0, 8));
        let (edge, _) = search(Bracket::new(any, 16.0, 0.1).of_gpus(8), 20.0);
        assert!(!edge.is_without_end());
    }

    #[test]
    fn one_percent_takes_about_a_dozen_tries() {
        let (_, tries) = search(Bracket::new(Rates::Any { resolution: 0.01 }, 16.0, 0.1), 110.0);
        assert!(tries <= 12, "{tries}");
        let bracket = Bracket::new(Rates::Any { resolution: 0.01 }, 16.0, 0.1);
        assert!((8..16).contains(&bracket.left()), "{}", bracket.left());
    }
}
