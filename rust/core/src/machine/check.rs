//! Recounts every invariant of a machine from scratch.

use std::fmt;

use super::batch::Decode;
use super::pipeline::{NO_PASS, mark};
use super::{Machine, Prefill, Queued};
use crate::leg::{Compute, Inbound};

/// An invariant that does not hold: a bug in the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFault(pub String);

impl fmt::Display for MachineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MachineFault {}

/// `Err` unless `holds`.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), MachineFault> {
    if holds { Ok(()) } else { Err(MachineFault(message())) }
}

impl Machine {
    /// Recounts blocks, tokens, places and queues, and compares with what is kept. O(blocks + legs).
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), MachineFault> {
        self.check_blocks()?;
        self.check_counts()?;
        self.check_queues()?;
        self.check_passes()
    }

    fn check_blocks(&self) -> Result<(), MachineFault> {
        let mut owned = vec![false; self.pool.fresh() as usize];
        let mut own = |block: crate::kv::BlockId| match owned.get_mut(block.0 as usize) {
            Some(taken) if !*taken => {
                *taken = true;
                Ok(())
            }
            _ => Err(MachineFault(format!("block {} has two owners or was never allocated", block.0))),
        };
        self.pool.freed().iter().try_for_each(|&block| own(block))?;
        let (mut held, mut quarantined) = (0, 0);
        for (_, leg) in self.legs.iter() {
            leg.table.blocks().iter().try_for_each(|&block| own(block))?;
            let count = if leg.state.inbound == Inbound::Draining { &mut quarantined } else { &mut held };
            *count += leg.table.len();
        }
        ensure(owned.iter().all(|&taken| taken), || "a used block is in no table and not free".into())?;
        let pool = &self.pool;
        ensure((held, quarantined) == (pool.held(), pool.quarantined()), || {
            format!(
                "{held} held, {quarantined} quarantined; the pool says {}, {}",
                pool.held(),
                pool.quarantined()
            )
        })?;
        let sum = pool.free() + pool.held() + pool.cached() + pool.quarantined();
        ensure(sum == pool.total(), || format!("{sum} blocks of {}", pool.total()))
    }

    fn check_counts(&self) -> Result<(), MachineFault> {
        let mut kv_tokens: u64 = self.decodes.iter().map(|decode| u64::from(decode.kv_tokens)).sum();
        let (mut granted, mut sending) = (0, 0);
        for (_, leg) in self.legs.iter() {
            ensure(leg.state.is_legal(), || format!("leg {:?} in {:?}", leg.key, leg.state))?;
            kv_tokens += u64::from(leg.kv_tokens);
            granted += u32::from(leg.granted);
            sending += u32::from(leg.sends);
        }
        let kept = (self.kv_tokens, self.granted, self.sending);
        ensure(kept == (kv_tokens, granted, sending), || {
            format!("tokens, grants, sends: kept {kept:?}, counted {:?}", (kv_tokens, granted, sending))
        })
    }

    fn check_queues(&self) -> Result<(), MachineFault> {
        ensure(self.queue.iter().is_sorted_by_key(Queued::place), || "prompts out of order".into())?;
        ensure(self.decodes.is_sorted_by_key(|decode| decode.order), || "decodes out of order".into())?;
        for queued in &self.queue {
            let compute = self.legs.get(queued.slot).compute();
            ensure(matches!(compute, Compute::Queued | Compute::Evicted), || {
                format!("a leg that is {compute:?} is queued")
            })?;
            let leg = self.legs.get(queued.slot);
            ensure(leg.recomputes == (compute == Compute::Evicted), || {
                format!("leg {:?} is {compute:?}; recomputes: {}", leg.key, leg.recomputes)
            })?;
            ensure(leg.chunked == 0 || self.wanted_blocks(queued.slot) == 0, || {
                format!("leg {:?} has computed {} tokens and lacks blocks", leg.key, leg.chunked)
            })?;
        }
        for decode in &self.decodes {
            let leg = self.legs.get(decode.slot);
            ensure(leg.compute() == Compute::Decoding && leg.order == decode.order, || {
                format!("leg {:?} is {:?} and in the decode list", leg.key, leg.compute())
            })?;
            ensure(decode.room_tokens == leg.table.len() * self.config.block_tokens, || {
                format!("leg {:?}: room {} for {} blocks", leg.key, decode.room_tokens, leg.table.len())
            })?;
        }
        let decoding = self.legs.iter().filter(|(_, leg)| leg.compute() == Compute::Decoding).count();
        let queued = self
            .legs
            .iter()
            .filter(|(_, leg)| matches!(leg.compute(), Compute::Queued | Compute::Evicted))
            .count();
        ensure((queued, decoding) == self.queue_lengths(), || {
            format!("{queued} queued, {decoding} decoding; lists have {:?}", self.queue_lengths())
        })?;
        let out = self.decodes.iter().filter(|decode| decode.sat_out > 0).count() as u32;
        ensure(out == self.sitting_out, || format!("{out} sit out, kept {}", self.sitting_out))
    }

    /// Every leg that computes is in one pass in flight, and the plan of each says who is in it.
    fn check_passes(&self) -> Result<(), MachineFault> {
        let (first, count) = (self.oldest_plan().pass, self.passes().count() as u64);
        ensure(count <= u64::from(self.config.pipeline_stages), || format!("{count} passes in flight"))?;
        ensure(self.passes().map(|plan| plan.pass).eq(first..first + count), || {
            format!("passes {:?} in flight", self.passes().map(|plan| plan.pass).collect::<Vec<_>>())
        })?;
        let prefilling = self.legs.iter().filter(|(_, leg)| leg.compute() == Compute::Prefilling).count();
        let planned: usize = self.passes().map(|plan| plan.prefills.len()).sum();
        ensure(planned == prefilling, || format!("{prefilling} prefill, plans have {planned}"))?;
        let mut marked = self.decodes.iter().filter(|decode| decode.runs != NO_PASS).count();
        for plan in self.passes() {
            let computes = |item: &Prefill| self.legs.get(item.slot).compute() == Compute::Prefilling;
            ensure(plan.prefills.iter().all(computes), || {
                format!("pass {} has prompts that left", plan.pass)
            })?;
            let runs = |decode: &&Decode| self.all_run || decode.runs == mark(plan.pass);
            let keys = self.decodes.iter().filter(runs).map(|decode| self.legs.get(decode.slot).key);
            ensure(keys.eq(plan.decodes.iter().copied()), || format!("decodes of pass {}", plan.pass))?;
            marked = marked.saturating_sub(plan.decodes.len());
        }
        ensure(marked == 0, || format!("{marked} decodes are marked for no pass in flight"))?;
        let ending = self.decodes.iter().any(|decode| decode.ends);
        ensure(ending == self.ending, || format!("some decode ends: {ending}, kept {}", self.ending))
    }
}
