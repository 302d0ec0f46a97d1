//! What goes wrong in a run, and when. Faults come by the count of events, so that they meet a world that is busy.

use splitcore_core::leg::{Compute, Inbound, LegState, Outbound};

use crate::rng::Rng;

/// One fault.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// After so many events.
    pub at_event: u64,
    /// What.
    pub kind: FaultKind,
    /// It waits until a leg is in this state, and then meets that leg.
    pub aim: Option<LegState>,
}

/// What goes wrong. Machines are named by their place; a fault that meets an empty one goes to the next.
#[derive(Debug, Clone, Copy)]
pub enum FaultKind {
    /// A machine dies. Its next incarnation starts after so long, or when the world heals.
    Crash {
        /// Which.
        machine: u64,
        /// When it is back.
        back_after_ns: Option<u64>,
    },
    /// A machine stands still: engine, messages and all.
    Pause {
        /// Which.
        machine: u64,
        /// How long.
        for_ns: u64,
    },
    /// The session between a machine and its Cluster breaks. The machine asks for another after so long, or when the
    /// world heals.
    SessionLoss {
        /// Which.
        machine: u64,
        /// When it asks again.
        back_after_ns: Option<u64>,
    },
    /// The session between two machines breaks, and a new one replaces it.
    PeerReset {
        /// One.
        machine: u64,
        /// The other.
        other: u64,
    },
    /// A machine is to take no more work. Once it is drained, it goes.
    Drain {
        /// Which.
        machine: u64,
        /// It goes so long after it is drained.
        leaves_after_ns: u64,
    },
    /// A running transfer fails.
    TransferFail,
    /// A running transfer stands still.
    TransferStall,
    /// A client gives up.
    Cancel,
    /// The Cluster dies; another starts after so long.
    Restart {
        /// When there is one again.
        gap_ns: u64,
    },
    /// A machine and the Cluster die at once. Another Cluster starts after so long, the machine when the world heals.
    Outage {
        /// Which.
        machine: u64,
        /// When there is a Cluster again.
        gap_ns: u64,
    },
    /// Another Cluster starts; this one goes on for a while.
    Replace {
        /// How long.
        overlap_ns: u64,
    },
}

impl FaultKind {
    /// Whether a Cluster follows another.
    pub fn is_restart(self) -> bool {
        matches!(self, Self::Restart { .. } | Self::Outage { .. } | Self::Replace { .. })
    }

    /// Whether a session between a machine and a Cluster can break by it.
    pub fn breaks_sessions(self) -> bool {
        let holds =
            matches!(self, Self::PeerReset { .. } | Self::TransferFail | Self::TransferStall | Self::Cancel);
        !holds
    }
}

/// The mix of a seed.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) list: Vec<Fault>,
    pub(crate) fails_permille: u64,
    pub(crate) stalls_permille: u64,
    pub(crate) slow_permille: u64,
    pub(crate) slow_stops_permille: u64,
}

impl Faults {
    /// Without a limit on transfers none may stand still.
    pub(crate) fn stand_still(&mut self, may: bool) {
        if !may {
            self.stalls_permille = 0;
            self.list.retain(|fault| !matches!(fault.kind, FaultKind::TransferStall));
        }
    }
}

/// Cluster restarts in one run, at most.
const RESTARTS_MAX: usize = 2;

/// States that a leg is in for moments only, so that chance alone hardly ever meets them, and how often each is sought.
const RARE: [(usize, (Compute, Inbound, Outbound)); 12] = [
    (8, (Compute::Prefilling, Inbound::None, Outbound::Draining)),
    (9, (Compute::Prefilling, Inbound::None, Outbound::Released)),
    (4, (Compute::Held, Inbound::None, Outbound::Draining)),
    (7, (Compute::Waiting, Inbound::Ready, Outbound::None)),
    (3, (Compute::Evicted, Inbound::Ready, Outbound::None)),
    (1, (Compute::Prefilling, Inbound::None, Outbound::Sending)),
    (1, (Compute::Prefilling, Inbound::Ready, Outbound::None)),
    (1, (Compute::Done, Inbound::None, Outbound::Draining)),
    (1, (Compute::Evicted, Inbound::None, Outbound::None)),
    (1, (Compute::Queued, Inbound::Ready, Outbound::None)),
    (1, (Compute::Waiting, Inbound::Receiving, Outbound::None)),
    (1, (Compute::Waiting, Inbound::Draining, Outbound::None)),
];

/// One of the rare states.
fn rare(rng: &mut Rng) -> LegState {
    let sought: Vec<_> = RARE.iter().flat_map(|&(times, state)| std::iter::repeat_n(state, times)).collect();
    let (compute, inbound, outbound) = rng.pick(&sought);
    LegState { compute, inbound, outbound }
}

/// Kinds on and off, and how many of them.
pub(crate) fn random(rng: &mut Rng, events: u64, machines: u64) -> Faults {
    let mut kinds: Vec<u64> = (0..10).filter(|_| rng.chance(500)).collect();
    if kinds.is_empty() {
        kinds = (0..10).collect();
    }
    let (count, aimed_permille) = (rng.within(16, 70), rng.pick(&[0, 300, 600]));
    let mut restarts = 0;
    let mut list = Vec::new();
    for _ in 0..count {
        let aimed = rng.chance(aimed_permille);
        // Some kinds seldom meet a state that lasts for moments.
        let kind = if aimed && rng.chance(600) {
            rng.pick(&[0, 0, 1, 2, 2, 2, 3, 4, 7, 7, 7])
        } else {
            rng.pick(&kinds)
        };
        let kind = one(rng, kind, machines);
        restarts += usize::from(kind.is_restart());
        let kind = if kind.is_restart() && restarts > RESTARTS_MAX { FaultKind::Cancel } else { kind };
        let aim = aimed.then(|| rare(rng));
        // What stops a transfer has mostly given the request up as well, so these two meet it least.
        let stops = aim.filter(|state| state.outbound == Outbound::Draining && rng.chance(300));
        let kind = match stops.map(|state| state.compute) {
            Some(Compute::Prefilling) => FaultKind::Cancel,
            Some(Compute::Held) => FaultKind::TransferStall,
            _ => kind,
        };
        list.push(Fault { at_event: rng.below(events), kind, aim });
    }
    list.sort_by_key(|fault| fault.at_event);
    Faults {
        list,
        fails_permille: if kinds.contains(&5) { rng.pick(&[10, 100]) } else { 0 },
        stalls_permille: if kinds.contains(&6) { rng.pick(&[10, 50]) } else { 0 },
        slow_permille: rng.pick(&[0, 0, 50]),
        slow_stops_permille: rng.pick(&[0, 300]),
    }
}

fn one(rng: &mut Rng, kind: u64, machines: u64) -> FaultKind {
    let machine = rng.below(machines);
    let away = [Some(0), Some(1_000), Some(20_000), Some(100_000), None];
    match kind {
        0 => FaultKind::Crash { machine, back_after_ns: rng.pick(&away) },
        1 => FaultKind::Pause { machine, for_ns: rng.pick(&[500, 10_000, 50_000, 400_000]) },
        2 => FaultKind::SessionLoss { machine, back_after_ns: rng.pick(&away) },
        3 => FaultKind::PeerReset { machine, other: rng.below(machines) },
        4 => FaultKind::Drain { machine, leaves_after_ns: rng.pick(&[0, 10_000, 200_000]) },
        5 => FaultKind::TransferFail,
        6 => FaultKind::TransferStall,
        7 => FaultKind::Cancel,
        8 => {
            let gap_ns = rng.pick(&[0, 5_000, 50_000]);
            // Every other death of a Cluster takes a machine with it.
            let alone = machine.is_multiple_of(2);
            if alone { FaultKind::Restart { gap_ns } } else { FaultKind::Outage { machine, gap_ns } }
        }
        _ => FaultKind::Replace { overlap_ns: rng.pick(&[1_000, 20_000, 100_000]) },
    }
}
