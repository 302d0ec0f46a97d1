//! What a run leaves behind.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;

use splitcore_core::cluster::Cluster;
use splitcore_core::event::{ClusterEvent, MachineEvent};
use splitcore_core::leg::LegState;
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;

use super::Node;
use crate::failures::Failure;

/// One line of a record: when, who, and what it wanted done.
pub type Line = (u64, Node, String);

/// The last events of a run, as text.
pub type Tail = Rc<RefCell<VecDeque<String>>>;

/// Sees what each of a world's state machines is told, just before it handles it.
pub trait Watch {
    /// An event for the Cluster of this number, and what it is so far.
    fn cluster(&mut self, number: usize, cluster: &Cluster, now: Time, event: &ClusterEvent);

    /// An event for a machine, and what it is so far.
    fn machine(&mut self, machine: &Machine, now: Time, event: &MachineEvent);
}

/// What a run has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Requests sent.
    pub sent: u64,
    /// Requests accepted.
    pub accepted: u64,
    /// Arrivals turned away, also for want of a Cluster.
    pub rejected: u64,
    /// Requests that ended as finished.
    pub finished: u64,
    /// Requests that their clients gave up.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Accepted requests that went with a Cluster: no machine that came back in time had heard of them.
    pub lost: u64,
    /// Of these, the ones that no machine had heard of at all.
    pub unheard: u64,
    /// Requests whose end the client knew, and that came to life again in the next Cluster.
    pub revived: u64,
    /// Output tokens given to clients.
    pub tokens: u64,
    /// Sessions between machines and Clusters.
    pub sessions: u64,
    /// Registrations taken in by a Cluster that started anew, in time.
    pub adopted: u64,
    /// Registrations of machines that had been given up.
    pub taken: u64,
    /// Registrations with a Cluster that had been replaced.
    pub stale_clusters: u64,
    /// Commands of a replaced Cluster that a machine refused.
    pub stale_commands: u64,
    /// Messages of earlier sessions, dropped by their number.
    pub late_copies: u64,
    /// Events that contradict, sent on purpose.
    pub contradictions: u64,
    /// Clusters that followed another.
    pub restarts: u64,
    /// Transfers started.
    pub transfers: u64,
    /// Decodes that lost their blocks.
    pub evicted: u64,
}

impl Counters {
    /// All of them, with their names.
    pub fn named(&self) -> [(&'static str, u64); 21] {
        [
            ("sent", self.sent),
            ("accepted", self.accepted),
            ("rejected", self.rejected),
            ("finished", self.finished),
            ("cancelled", self.cancelled),
            ("failed", self.failed),
            ("lost", self.lost),
            ("unheard", self.unheard),
            ("revived", self.revived),
            ("tokens", self.tokens),
            ("sessions", self.sessions),
            ("adopted", self.adopted),
            ("taken", self.taken),
            ("stale_clusters", self.stale_clusters),
            ("stale_commands", self.stale_commands),
            ("late_copies", self.late_copies),
            ("contradictions", self.contradictions),
            ("restarts", self.restarts),
            ("transfers", self.transfers),
            ("evicted", self.evicted),
            ("unfinished", self.accepted - self.finished - self.cancelled - self.failed - self.lost),
        ]
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.lost += other.lost;
        self.unheard += other.unheard;
        self.revived += other.revived;
        self.tokens += other.tokens;
        self.sessions += other.sessions;
        self.adopted += other.adopted;
        self.taken += other.taken;
        self.stale_clusters += other.stale_clusters;
        self.stale_commands += other.stale_commands;
        self.late_copies += other.late_copies;
        self.contradictions += other.contradictions;
        self.restarts += other.restarts;
        self.transfers += other.transfers;
        self.evicted += other.evicted;
    }
}

/// What a run leaves behind.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Events.
    pub events: u64,
    /// Faults that hit something.
    pub faults: u64,
    /// Stands for every action in its order.
    pub digest: u64,
    /// The rest that was counted.
    pub counters: Counters,
    /// In which states of a leg which failure came.
    pub hits: BTreeMap<(LegState, Failure), u64>,
    /// Every state that a leg was in.
    pub triples: BTreeSet<LegState>,
    /// Every action, if recorded.
    pub lines: Vec<Line>,
    /// Position in `lines` at which the engine first said that a request had ended.
    pub ended_at: BTreeMap<usize, usize>,
}

/// FNV-1a over the text of the actions: nothing of a platform is in it.
#[derive(Debug)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn value(&self) -> u64 {
        self.0
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}
