//! Names of things. Ids carry incarnation and attempt from the start, so that a late message can always be told from a live one.

use std::hash::{BuildHasherDefault, Hasher};

/// A request, named by the caller; unique among live requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct RequestId(pub u64);

/// One try at running a request. A request that is placed again after a fault gets the next attempt, and whatever
/// still arrives for the old one is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Attempt(pub u32);

/// Attempts that one Cluster may make of a request before its names could be those of the next Cluster.
const ATTEMPTS_PER_CLUSTER: u32 = 1000;

impl Attempt {
    /// The next one of the same Cluster.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The next one of a Cluster that has taken the request over. What it was told of may be long past: the machine that
    /// has the last attempt may not have registered.
    pub(crate) fn after_restart(self) -> Self {
        let restarts = self.0 / ATTEMPTS_PER_CLUSTER + 1;
        Self(restarts.saturating_mul(ATTEMPTS_PER_CLUSTER).saturating_add(1))
    }
}

/// The legs of one attempt: what handoff messages are about. A machine holds at most one leg of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LegKey {
    /// Whose leg.
    pub request: RequestId,
    /// Of which attempt.
    pub attempt: Attempt,
}

/// A machine: a dense index that names its place, and the incarnation now living there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MachineId {
    /// Place in the Cluster's table, from 0, without gaps.
    pub index: u32,
    /// Grows with every restart under the same index.
    pub incarnation: u32,
}

/// Arrival order of a request at the Cluster: the key of every first-come-first-served queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Order(pub u64);

/// Number of an assignment from the Cluster to one machine. A report says the last one it includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct AssignmentSeq(pub u64);

/// Which Cluster speaks: grows with every restart of it. A machine refuses commands of an older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Epoch(pub u32);

/// A map from ids with a fixed hasher, for look-ups only: it is never iterated (but to be sorted), so its order can leak nowhere.
#[allow(clippy::disallowed_types)]
pub(crate) type IdMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// An [`IdMap`] as a list in the order of its keys: the order of its hashes is nobody's business.
#[cfg(feature = "serde")]
pub(crate) mod id_map {
    use std::hash::Hash;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::IdMap;

    pub(crate) fn serialize<K, V, S>(map: &IdMap<K, V>, serializer: S) -> Result<S::Ok, S::Error>
    where
        K: Serialize + Ord,
        V: Serialize,
        S: Serializer,
    {
        let mut entries: Vec<(&K, &V)> = map.iter().collect();
        entries.sort_unstable_by_key(|&(key, _)| key);
        entries.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<IdMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Eq + Hash,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Mixes whole words by multiplication with an odd constant; ids are small integers, not hostile strings.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The table takes its bucket from the low bits, where a product is weakest.
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A draw that depends on its arguments alone: there is no generator state to advance, so a rejected event leaves
/// the next draw as it was. The finaliser of splitmix64 over the mixed words.
pub(crate) fn draw(seed: u64, order: Order, counter: u64) -> u64 {
    let mut word = seed
        .wrapping_add(order.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(counter.wrapping_mul(0xd1b5_4a32_d192_ed03));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
