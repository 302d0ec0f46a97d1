//! How full the batches were over time, for plots.

use serde::Serialize;

/// Most buckets kept.
const BUCKETS_MAX: usize = 600;
/// Width of a bucket at the start of a run.
const FIRST_WIDTH_NS: u64 = 100_000_000;

/// Batch sizes of a pool integrated over time in at most 600 buckets, however long the run: when they are used up,
/// neighbours merge and the width doubles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    width_ns: u64,
    buckets: Vec<Bucket>,
}

/// Integrals over one bucket, in exact integers so that the order of passes does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket {
    decode_ns: u128,
    prompt_token_ns: u128,
}

/// A timeline as averages per machine, bucket by bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Start of each bucket in seconds.
    pub t_s: Vec<f64>,
    /// Mean number of decodes in the batch of a machine; an idle machine counts as 0.
    pub decodes: Vec<f64>,
    /// Mean number of prompt tokens in the batch of a machine.
    pub prompt_tokens: Vec<f64>,
}

impl Timeline {
    /// An empty timeline.
    pub fn new() -> Self {
        Self { width_ns: FIRST_WIDTH_NS, buckets: Vec::new() }
    }

    /// Enters a pass of one machine: its batch from `start_ns` to `end_ns`.
    pub fn add(&mut self, start_ns: u64, end_ns: u64, decodes: u32, prompt_tokens: u32) {
        self.each(start_ns, end_ns, |bucket, overlap_ns| {
            bucket.decode_ns += overlap_ns * u128::from(decodes);
            bucket.prompt_token_ns += overlap_ns * u128::from(prompt_tokens);
        });
    }

    /// Takes a part of a pass back that was entered before.
    pub fn take_back(&mut self, start_ns: u64, end_ns: u64, decodes: u32, prompt_tokens: u32) {
        self.each(start_ns, end_ns, |bucket, overlap_ns| {
            bucket.decode_ns -= overlap_ns * u128::from(decodes);
            bucket.prompt_token_ns -= overlap_ns * u128::from(prompt_tokens);
        });
    }

    /// Calls `enter` with every bucket between two times, and how much of it lies there.
    fn each(&mut self, start_ns: u64, end_ns: u64, enter: impl Fn(&mut Bucket, u128)) {
        if end_ns <= start_ns {
            return;
        }
        let last = self.reach(end_ns - 1);
        let first = (start_ns / self.width_ns) as usize;
        for index in first..=last {
            let from_ns = index as u64 * self.width_ns;
            let overlap_ns = end_ns.min(from_ns.saturating_add(self.width_ns)) - start_ns.max(from_ns);
            enter(&mut self.buckets[index], u128::from(overlap_ns));
        }
    }

    /// Makes the width what a run up to `end_ns` has, so that the timelines of its pools share their buckets.
    pub fn stretch(&mut self, end_ns: u64) {
        self.reach(end_ns.saturating_sub(1));
    }

    /// Width of a bucket now.
    pub fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Averages per machine up to `end_ns`, where the last bucket is cut; later buckets are left out.
    pub fn series(&self, end_ns: u64, machines: u32) -> Series {
        let count = (end_ns.div_ceil(self.width_ns) as usize).min(BUCKETS_MAX);
        let mut series = Series { t_s: Vec::new(), decodes: Vec::new(), prompt_tokens: Vec::new() };
        for index in 0..count {
            let from_ns = index as u64 * self.width_ns;
            let machine_ns = (end_ns - from_ns).min(self.width_ns) as f64 * f64::from(machines.max(1));
            let bucket = self.buckets.get(index).copied().unwrap_or_default();
            series.t_s.push(from_ns as f64 / 1e9);
            series.decodes.push(bucket.decode_ns as f64 / machine_ns);
            series.prompt_tokens.push(bucket.prompt_token_ns as f64 / machine_ns);
        }
        series
    }

    /// Makes sure there is a bucket for `time_ns` and returns its index.
    fn reach(&mut self, time_ns: u64) -> usize {
        while time_ns / self.width_ns >= BUCKETS_MAX as u64 {
            self.halve();
        }
        let index = (time_ns / self.width_ns) as usize;
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Bucket::default());
        }
        index
    }

    /// Merges neighbours and doubles the width.
    fn halve(&mut self) {
        let merged = self.buckets.chunks(2).map(|pair| {
            pair.iter().fold(Bucket::default(), |sum, bucket| Bucket {
                decode_ns: sum.decode_ns + bucket.decode_ns,
                prompt_token_ns: sum.prompt_token_ns + bucket.prompt_token_ns,
            })
        });
        self.buckets = merged.collect();
        self.width_ns *= 2;
    }
}

/// The timelines of a run's pools, over the same buckets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timelines {
    /// Start of each bucket in seconds.
    pub t_s: Vec<f64>,
    /// Pools that have machines, by home role, and their batches.
    pub pools: Vec<(String, Series)>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pass_counts_by_its_share_of_each_bucket() {
        let mut timeline = Timeline::new();
        timeline.add(50 * MS, 225 * MS, 8, 1000); // half, all and a quarter of the first three
        timeline.add(200 * MS, 300 * MS, 4, 0);
        timeline.add(10 * MS, 10 * MS, 99, 99); // takes no time
        let series = timeline.series(300 * MS, 2);
        assert_eq!(series.t_s, [0.0, 0.1, 0.2]);
        assert_eq!(series.decodes, [2.0, 4.0, 3.0]);
        assert_eq!(series.prompt_tokens, [250.0, 500.0, 125.0]);
    }

    #[test]
    fn a_pass_cut_short_counts_up_to_there() {
        let (mut cut, mut short) = (Timeline::new(), Timeline::new());
        cut.add(50 * MS, 375 * MS, 8, 1000);
        cut.take_back(225 * MS, 375 * MS, 8, 1000);
        short.add(50 * MS, 225 * MS, 8, 1000);
        assert_eq!(cut.series(400 * MS, 1), short.series(400 * MS, 1));
    }

    #[test]
    fn the_last_bucket_is_cut_at_the_end() {
        let mut timeline = Timeline::new();
        timeline.add(100 * MS, 150 * MS, 6, 0);
        assert_eq!(timeline.series(150 * MS, 1).decodes, [0.0, 6.0]);
        assert_eq!(timeline.series(200 * MS, 1).decodes, [0.0, 3.0]);
        // Idle time after the last pass.
        assert_eq!(timeline.series(250 * MS, 1).decodes, [0.0, 3.0, 0.0]);
        assert!(timeline.series(0, 1).t_s.is_empty());
    }

    #[test]
    fn a_long_run_doubles_the_width() {
        let mut timeline = Timeline::new();
        timeline.add(0, 60_000 * MS, 3, 5);
        assert_eq!(timeline.width_ns(), 100 * MS);
        timeline.add(60_000 * MS, 60_001 * MS, 3, 5);
        assert_eq!(timeline.width_ns(), 200 * MS);
        let series = timeline.series(60_000 * MS, 1);
        assert_eq!(series.t_s.len(), 300);
        assert!(series.decodes.iter().all(|&mean| mean == 3.0));
        timeline.add(86_400_000 * MS, 86_400_100 * MS, 1, 1); // a day later
        assert_eq!(timeline.width_ns(), 204_800 * MS);
        assert_eq!(timeline.series(86_400_100 * MS, 1).t_s.len(), 422);
    }

    proptest! {
        /// Nothing is lost by merging: the integral is that of all passes.
        #[test]
        fn the_integral_is_kept(passes in prop::collection::vec((0_u64..2_000_000, 1_u64..90_000, 0_u32..600), 1..40)) {
            let mut timeline = Timeline::new();
            let mut expected = 0_u128;
            for &(start_ms, lasts_ms, decodes) in &passes {
                timeline.add(start_ms * MS, (start_ms + lasts_ms) * MS, decodes, 2 * decodes);
                expected += u128::from(lasts_ms * MS) * u128::from(decodes);
            }
            let sums = timeline.buckets.iter().fold((0, 0), |sum, b| (sum.0 + b.decode_ns, sum.1 + b.prompt_token_ns));
            prop_assert_eq!(sums, (expected, 2 * expected));
            prop_assert!(timeline.buckets.len() <= BUCKETS_MAX);
        }
    }
}
