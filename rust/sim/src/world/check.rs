//! What holds in every run: the invariants after each event, and empty books at the end; and what to say of one that
//! does not end.

use splitcore_core::id::{LegKey, RequestId};

use super::{World, internal};
use crate::SimError;
use crate::observer::Observer;
use crate::report::Outcome;

impl<O: Observer> World<O> {
    /// At the end nothing is left on any book, and every block is free.
    pub(crate) fn check_drained(&self) -> Result<(), SimError> {
        let live = self.cluster.live_requests();
        if live > 0 {
            return Err(internal(&format!("{live} requests are left in the Cluster")));
        }
        for (index, machine) in self.machines.iter().enumerate() {
            let name = &self.tallies[index].name;
            let load = self.cluster.load(index as u32).map(|load| (load.booked, load.legs, load.kv_tokens));
            if load.is_none_or(|load| load != (0, 0, 0)) {
                return Err(internal(&format!("{name} is left with the bookings {load:?}")));
            }
            let (pool, report) = (machine.pool(), machine.report());
            if machine.kept() > 0 {
                return Err(internal(&format!("{name} still keeps {} requests", machine.kept())));
            }
            if !machine.is_idle() || pool.free() != pool.total() || report.kv_tokens != 0 {
                return Err(internal(&format!("{name} is left with {report:?} of {} blocks", pool.total())));
            }
        }
        Ok(())
    }

    /// The oldest request that has not ended, and what it waits for.
    pub(crate) fn stuck(&self) -> (u64, String) {
        let at = self.streams[..self.next_arrival]
            .iter()
            .position(|stream| stream.outcome == Outcome::Unfinished)
            .unwrap_or(0);
        let request = RequestId(at as u64);
        let state = match self.cluster.attempt(request) {
            None => "unknown to the Cluster".to_string(),
            Some(attempt) => {
                let key = LegKey { request, attempt };
                let legs = self.machines.iter().enumerate().filter_map(|(index, machine)| {
                    let (state, _) = machine.leg(key)?;
                    Some(format!("{} has {state:?}", self.tallies[index].name))
                });
                let legs: Vec<String> = legs.collect();
                if legs.is_empty() { "on no machine".to_string() } else { legs.join(", ") }
            }
        };
        (at as u64, state)
    }

    pub(super) fn check_all(&self) -> Result<(), SimError> {
        self.cluster.check().map_err(|fault| internal(&fault))?;
        self.machines.iter().try_for_each(|machine| machine.check().map_err(|fault| internal(&fault)))
    }
}
