//! Recounts every invariant of the Cluster from scratch.

use std::fmt;

use super::machines::Booking;
use super::pools::{Pools, Side};
use super::requests::{COPIES, Loss};
use super::{Cluster, MachineState};
use crate::event::Role;

/// An invariant that does not hold: a bug in the Cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFault(pub String);

impl fmt::Display for ClusterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ClusterFault {}

/// `Err` unless `holds`.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), ClusterFault> {
    if holds { Ok(()) } else { Err(ClusterFault(message())) }
}

/// What a recount finds on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    booked: u64,
    kv_own: u64,
    unsent_kv: u64,
    prefill_legs: u32,
    decode_legs: u32,
    legs: u32,
    closing: u32,
}

impl Count {
    fn add(&mut self, booking: &Booking) {
        self.booked += u64::from(booking.prefill_tokens) + u64::from(booking.decodes);
        self.prefill_legs += u32::from(booking.prefills);
        self.decode_legs += u32::from(booking.decodes);
        self.legs += 1;
        self.add_kv(booking);
    }

    fn add_kv(&mut self, booking: &Booking) {
        self.kv_own += u64::from(booking.kv_tokens);
        self.unsent_kv += if booking.sent { 0 } else { u64::from(booking.kv_tokens) };
    }
}

impl Cluster {
    /// Recounts bookings, pools, indexes and queues, and compares with what is kept. O(machines + requests).
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), ClusterFault> {
        self.check_bookings()?;
        self.check_pools()?;
        self.check_copies()?;
        self.check_waiting()
    }

    fn check_bookings(&self) -> Result<(), ClusterFault> {
        let mut counts = vec![Count::default(); self.machines.len()];
        for (slot, request) in self.requests.iter() {
            let id = request.arrival.request.0;
            ensure(request.lost == Loss::None, || format!("request {id} was lost and not placed again"))?;
            let legs = request.legs.iter().flatten().count();
            ensure(request.parked == (legs == 0), || {
                format!("request {id}: parked {}, {legs} legs", request.parked)
            })?;
            let given = request.delivered >= request.arrival.max_new_tokens;
            ensure(!(request.parked && given && self.is_managed()), || {
                format!("request {id} waits, and its client has everything")
            })?;
            ensure(self.requests.find(request.arrival.request) == Some(slot), || {
                format!("request {id} not found")
            })?;
            for leg in request.legs.iter().flatten() {
                let Some(machine) = leg.machine else { continue };
                let entry = &self.machines[machine.index as usize];
                ensure(entry.id == machine && entry.state != MachineState::Lost, || {
                    format!("request {id} is on machine {} that is gone", machine.index)
                })?;
                counts[machine.index as usize].add(&leg.booking);
            }
        }
        for ((_, machine), closing) in &self.closing {
            counts[*machine as usize].closing += 1;
            counts[*machine as usize].add_kv(&closing.booking);
        }
        for (index, (entry, counted)) in self.machines.iter().zip(&counts).enumerate() {
            let kept = Count {
                booked: entry.booked,
                // Compared below, with what is reported.
                kv_own: counted.kv_own,
                unsent_kv: entry.unsent_kv(),
                prefill_legs: entry.prefill_legs,
                decode_legs: entry.decode_legs,
                legs: entry.legs,
                closing: entry.closing,
            };
            ensure(kept == *counted, || format!("machine {index}: kept {kept:?}, counted {counted:?}"))?;
            let (kept, counted) = (entry.kv_load, entry.kv_recount(counted.kv_own, counted.unsent_kv));
            ensure(entry.pooled == entry.takes_work(), || format!("machine {index}: in its pool or not?"))?;
            let due = entry.away_since.map(|since| (since.after(self.config.rejoin_limit_ns), index as u32));
            ensure(due.is_none_or(|due| self.away.contains(&due)), || {
                format!("machine {index} is away for ever")
            })?;
            ensure(kept == counted, || format!("machine {index}: KV tokens kept {kept}, counted {counted}"))?;
        }
        Ok(())
    }

    fn check_pools(&self) -> Result<(), ClusterFault> {
        let up = self.machines.iter().filter(|entry| entry.pooled);
        let kv = up.fold((0, 0), |kv, entry| {
            (kv.0 + u128::from(entry.kv_load), kv.1 + u128::from(entry.kv_capacity_tokens))
        });
        let kept = self.pools.kv_total();
        ensure(kept.is_none_or(|kept| kept == kv), || format!("KV tokens kept {kept:?}, counted {kv:?}"))?;
        for pool in [Role::Prompt, Role::Token, Role::Mixed] {
            let members = self.pools.members(pool);
            let belongs = |index: usize| {
                let entry = &self.machines[index];
                entry.takes_work() && entry.pooled && entry.pool == pool
            };
            let expected = (0..self.machines.len()).filter(|&index| belongs(index)).count();
            ensure(members.len() == expected && members.iter().all(|&at| belongs(at as usize)), || {
                format!("{pool:?} pool has {members:?}, {expected} belong there")
            })?;
            for side in [Side::Prompt, Side::Token] {
                self.check_index(&self.pools, pool, side)?;
            }
        }
        Ok(())
    }

    /// The index answers as a plain scan of the pool does.
    fn check_index(&self, pools: &Pools, pool: Role, side: Side) -> Result<(), ClusterFault> {
        let key = |&at: &u32| pools.key(self.config.policy, side, at, &self.machines[at as usize]);
        let scanned = pools.members(pool).iter().map(key).min();
        let index = pools.index(pool, side);
        ensure(index.least() == scanned && index.iter().count() == pools.members(pool).len(), || {
            format!("{pool:?} pool, {side:?} side: index says {:?}, scan {scanned:?}", index.least())
        })
    }

    /// Each request is known to two machines, or as many as there are.
    fn check_copies(&self) -> Result<(), ClusterFault> {
        if !self.is_managed() || self.is_recovering() {
            return Ok(());
        }
        for (slot, request) in self.requests.iter() {
            let covered = request.copies() == COPIES || self.free_keeper(slot).is_none();
            ensure(covered, || {
                format!("request {}: {} copies only", request.arrival.request.0, request.copies())
            })?;
        }
        Ok(())
    }

    fn check_waiting(&self) -> Result<(), ClusterFault> {
        let parked = self.requests.iter().filter(|(_, request)| request.parked).count();
        ensure(parked == self.parked.len(), || format!("{parked} parked, {} in line", self.parked.len()))?;
        let by_class: u32 = self.parked_by_class.values().sum();
        ensure(parked as u32 == by_class, || format!("{parked} parked, {by_class} by class"))?;
        for (slot, request) in self.requests.iter() {
            let in_line = self.parked.contains(&request.place(slot));
            ensure(in_line == request.parked, || {
                format!("request {}: in line {in_line}", request.arrival.request.0)
            })?;
            let waits = self.unreserved.contains(&request.place(slot));
            ensure(waits == request.is_unreserved(), || {
                format!("request {}: waits unreserved {waits}", request.arrival.request.0)
            })?;
        }
        let known = self.requests.iter().filter(|(_, request)| request.is_unreserved()).count();
        ensure(known == self.unreserved.len(), || "an ended request waits unreserved".into())
    }
}
