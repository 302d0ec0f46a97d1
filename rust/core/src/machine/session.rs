//! A machine's sessions: with the Cluster, which may be replaced, and with other machines. What was on its way when a
//! session broke is lost; afterwards each side says again where it stands.
//!
//! A machine without a Cluster runs on and keeps silent. A new session begins with everything it holds
//! ([`Machine::claims`]); the Cluster answers with its epoch and with a command for each claim: `Confirm`, `Abort` or
//! `Release`. Commands of a Cluster with a lower epoch are refused, so there are never two that decide.

use super::Machine;
use super::legs::Leg;
use crate::error::Applied;
use crate::event::{Claim, Held, MachineAction};
use crate::id::{AssignmentSeq, Epoch, LegKey, MachineId, Order};
use crate::leg::{Compute, Inbound, Notice, Peer, Work};

/// A request without a leg here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Kept {
    order: Order,
    work: Work,
    why: WhyKept,
}

/// Why a request is kept without a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum WhyKept {
    /// The Cluster has asked for it.
    Asked,
    /// This machine has its KV now, and may die together with the Cluster.
    HandedOver(MachineId),
    /// It ended here, with so many output tokens of the attempt.
    Finished(u32),
}

impl Machine {
    /// Counts what comes from a Cluster that has been replaced. Returns whether it does.
    pub(super) fn is_stale(&mut self, epoch: Epoch) -> bool {
        let stale = epoch < self.epoch;
        self.counters.stale += u64::from(stale);
        stale
    }

    /// Another Cluster numbers its assignments anew.
    pub(super) fn follow(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.last_seq = AssignmentSeq(0);
        }
    }

    pub(super) fn cluster_lost(&mut self) -> Applied {
        if self.orphaned_at.is_none() {
            self.orphaned_at = Some(self.now);
        }
        Applied::Yes
    }

    pub(super) fn registered(&mut self, epoch: Epoch, actions: &mut Vec<MachineAction>) -> Applied {
        if self.is_stale(epoch) {
            return self.late();
        }
        self.follow(epoch);
        self.orphaned_at = None;
        // The last ones went nowhere, and what it registered with may be old by now.
        let report = self.riding_report();
        actions.push(MachineAction::Notify { notice: Notice::Report(report) });
        Applied::Yes
    }

    /// Drops what would be said to a Cluster that is not there; `Confirm` has it said again.
    pub(super) fn mute(first: usize, actions: &mut Vec<MachineAction>) {
        let said = actions.split_off(first);
        actions.extend(said.into_iter().filter(|action| !matches!(action, MachineAction::Notify { .. })));
    }

    /// Everything it holds, by key: with it a Cluster that knows nothing can go on. O(legs).
    pub fn claims(&self) -> Vec<Claim> {
        let legs = self.legs.iter().map(|(_, leg)| leg).filter(|leg| !leg.ended);
        let legs = legs.map(|leg| Claim { key: leg.key, order: leg.order, work: leg.work, held: held(leg) });
        let kept = self.kept.iter().map(|(&key, &Kept { order, work, why })| {
            let held = if let WhyKept::Finished(_) = why { Held::Finished } else { Held::Kept };
            Claim { key, order, work, held }
        });
        let mut claims: Vec<Claim> = legs.chain(kept).collect();
        claims.sort_by_key(|claim| claim.key);
        claims
    }

    /// The newest Cluster it has spoken to.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn keep(&mut self, key: LegKey, order: Order, work: Work) -> Applied {
        self.kept.insert(key, Kept { order, work, why: WhyKept::Asked });
        Applied::Yes
    }

    /// A leg's KV is on another machine: what was asked stays here until the Cluster has seen its end. Where the Cluster
    /// has asked for it already, it is about to give the leg up, and the record is to outlive that.
    pub(super) fn keep_handed_over(&mut self, key: LegKey, order: Order, work: Work, to: MachineId) {
        let handed_over = Kept { order, work, why: WhyKept::HandedOver(to) };
        let _ = self.kept.entry(key).or_insert(handed_over);
    }

    /// A request has ended here: until the Cluster says that it knows. One to be kept is about to be given up, and its
    /// end comes too late.
    pub(super) fn keep_finished(&mut self, key: LegKey, order: Order, work: Work, tokens: u32) {
        let ended = Kept { order, work, why: WhyKept::Finished(tokens) };
        let _ = self.kept.entry(key).or_insert(ended);
    }

    pub(super) fn release_kept(&mut self, key: LegKey) -> Applied {
        if self.kept.remove(&key).is_some() { Applied::Yes } else { self.late() }
    }

    /// Forgets what became of a leg that the Cluster does not want any more; what it has asked to keep stays.
    pub(super) fn forget_outcome(&mut self, key: LegKey) {
        if self.kept.get(&key).is_some_and(|kept| kept.why != WhyKept::Asked) {
            self.kept.remove(&key);
        }
    }

    /// Says again where a leg stands, for all that the Cluster may have missed.
    pub(super) fn confirm(
        &mut self,
        key: LegKey,
        delivered: u32,
        actions: &mut Vec<MachineAction>,
    ) -> Applied {
        match self.kept.get(&key).map(|kept| kept.why) {
            Some(WhyKept::Finished(tokens)) => {
                actions.push(MachineAction::Resend { key, delivered });
                actions.push(MachineAction::Notify { notice: Notice::Finished { key, tokens } });
                return Applied::Yes;
            }
            Some(WhyKept::HandedOver(to)) => {
                let notice = Notice::Released { key, to: Some(to), report: self.riding_report() };
                actions.push(MachineAction::Notify { notice });
                return Applied::Yes;
            }
            Some(WhyKept::Asked) | None => {}
        }
        let leg =
            self.legs.find(key).map(|slot| self.legs.get(slot)).filter(|leg| !leg.aborted && !leg.ended);
        let Some(leg) = leg else {
            actions.push(MachineAction::Notify { notice: Notice::Gone { key } });
            return self.late();
        };
        actions.push(MachineAction::Resend { key, delivered });
        announce(leg, actions);
        Applied::Yes
    }

    /// The session with another machine began anew: whatever we told it last may be lost.
    pub(super) fn peer_reset(&mut self, machine: MachineId, actions: &mut Vec<MachineAction>) -> Applied {
        // What it granted it grants again, unless that is over; the word of that may be lost.
        self.early_grants.retain(|_, granter| *granter != machine);
        for (_, leg) in self.legs.iter().filter(|(_, leg)| leg.source == Some(machine) && !leg.fenced) {
            let key = leg.key;
            let message = match leg.state.inbound {
                Inbound::Draining => Peer::Abort { key },
                Inbound::Ready => Peer::Landed { key },
                Inbound::Reserved | Inbound::Receiving if leg.granted => {
                    Peer::Grant { key, blocks: leg.table.len() }
                }
                _ => continue,
            };
            actions.push(MachineAction::Peer { to: machine, message });
        }
        Applied::Yes
    }
}

fn held(leg: &Leg) -> Held {
    if leg.aborted {
        return Held::Closing;
    }
    Held::Leg { state: leg.state, mode: leg.to.map(|(_, mode)| mode) }
}

/// The notices that a leg's state implies. The Cluster takes each as often as it comes.
fn announce(leg: &Leg, actions: &mut Vec<MachineAction>) {
    let key = leg.key;
    let mut say = |notice| actions.push(MachineAction::Notify { notice });
    match leg.state.inbound {
        Inbound::Reserved | Inbound::Receiving => say(Notice::Reserved { key }),
        Inbound::Ready => say(Notice::Landed { key }),
        Inbound::None | Inbound::Reserving | Inbound::Draining => {}
    }
    match leg.compute() {
        Compute::Held | Compute::Decoding => {
            say(Notice::PrefillDone { key, sampled: leg.work.samples_first() });
        }
        Compute::Evicted => say(Notice::Evicted { key, tokens: leg.kv_tokens }),
        Compute::Waiting | Compute::Queued | Compute::Prefilling | Compute::Done => {}
    }
    // Where another destination is named the Cluster has heard.
    if leg.failed && leg.next.is_none() {
        say(Notice::TransferFailed { key });
    }
}
