//! Least loaded of n in O(1), with updates in O(log n): a tournament tree with four children a node.
//!
//! Its answer is the plain linear scan's, ties included: keys are compared whole, and a key ends in the machine's
//! rank in its pool and its index. Four 16-byte children fill one cache line, and 16,384 machines make seven levels.

/// Children of a node.
const FAN: usize = 4;

/// No machine.
const ABSENT: u128 = u128::MAX;

/// Bits of a key for the machine's index: more than there are machines.
const MACHINE_BITS: u32 = 24;

/// A rank fits in what the load and the index leave. After so many changes of rank the order of equal loads begins anew.
pub(crate) const RANK_MAX: u64 = (1 << (64 - MACHINE_BITS)) - 1;

/// What machines are compared by: load first, then rank in the pool. The index makes it unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    pub(crate) fn new(load: u64, rank: u64, machine: u32) -> Self {
        Self(u128::from(load) << 64 | u128::from((rank & RANK_MAX) << MACHINE_BITS | u64::from(machine)))
    }

    pub(crate) fn machine(self) -> u32 {
        self.0 as u32 & ((1 << MACHINE_BITS) - 1)
    }
}

/// The tree over one pool: leaves by machine index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct LoadIndex {
    /// From the leaves to the root, each padded to whole groups of `FAN`.
    levels: Vec<Vec<u128>>,
}

impl LoadIndex {
    /// Sets or removes a machine's key. O(log n); grows when the index is new.
    pub(crate) fn set(&mut self, machine: u32, key: Option<Key>) {
        let key = key.map_or(ABSENT, |key| key.0);
        let mut at = machine as usize;
        if self.levels.first().is_none_or(|leaves| at >= leaves.len()) {
            if key == ABSENT {
                return;
            }
            self.grow(at + 1);
        }
        if self.levels[0][at] == key {
            return;
        }
        self.levels[0][at] = key;
        for level in 1..self.levels.len() {
            at /= FAN;
            let winner = group_min(&self.levels[level - 1], at);
            if self.levels[level][at] == winner {
                return;
            }
            self.levels[level][at] = winner;
        }
    }

    /// The least key, if any machine is in. O(1).
    pub(crate) fn least(&self) -> Option<Key> {
        let root = self.levels.last()?;
        let key = group_min(root, 0);
        (key != ABSENT).then_some(Key(key))
    }

    /// The least key of all machines but one. O(log n).
    pub(crate) fn least_except(&self, machine: u32) -> Option<Key> {
        let mut at = machine as usize;
        let mut best = ABSENT;
        for level in &self.levels {
            let group = at / FAN * FAN;
            for (index, &key) in level[group..group + FAN].iter().enumerate() {
                if group + index != at {
                    best = best.min(key);
                }
            }
            at /= FAN;
        }
        (best != ABSENT).then_some(Key(best))
    }

    /// All keys, for scans and recounts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Key> {
        let leaves = self.levels.first().map_or(&[][..], Vec::as_slice);
        leaves.iter().filter(|&&key| key != ABSENT).map(|&key| Key(key))
    }

    fn grow(&mut self, machines: usize) {
        let mut leaves = self.levels.first().cloned().unwrap_or_default();
        leaves.resize(machines.next_power_of_two().next_multiple_of(FAN), ABSENT);
        self.levels = vec![leaves];
        while let Some(below) = self.levels.last().filter(|level| level.len() > FAN) {
            let mut level: Vec<u128> = (0..below.len() / FAN).map(|at| group_min(below, at)).collect();
            level.resize(level.len().next_multiple_of(FAN), ABSENT);
            self.levels.push(level);
        }
    }
}

fn group_min(level: &[u128], group: usize) -> u128 {
    level[group * FAN..(group + 1) * FAN].iter().copied().min().unwrap_or(ABSENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn least_and_runner_up_equal_the_linear_scan(
            changes in prop::collection::vec((0_u32..300, prop::option::weighted(0.8, (0_u64..50, 0_u64..8))), 1..200),
        ) {
            let mut index = LoadIndex::default();
            let mut plain = std::collections::BTreeMap::new();
            for (machine, change) in changes {
                let key = change.map(|(load, rank)| Key::new(load, rank, machine));
                index.set(machine, key);
                match key {
                    Some(key) => plain.insert(machine, key),
                    None => plain.remove(&machine),
                };
                let least = plain.values().copied().min();
                prop_assert_eq!(index.least(), least);
                if let Some(least) = least {
                    let rest = plain.values().copied().filter(|&key| key != least).min();
                    prop_assert_eq!(index.least_except(least.machine()), rest);
                }
                prop_assert_eq!(index.iter().count(), plain.len());
            }
        }
    }
}
