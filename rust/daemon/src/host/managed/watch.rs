//! What people look at beside the books: blocks as machines last reported them, and the last handoffs.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use splitcore_core::id::{MachineId, RequestId};
use splitcore_core::leg::{Notice, Report};
use splitcore_core::placement::{Mode, Placement};
use splitcore_core::time::Time;

/// Handoffs kept for the page.
const HANDOFFS_KEPT: usize = 32;

/// The KV blocks of a machine by its last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BlocksView {
    /// All it has.
    pub total: u32,
    /// Nobody's.
    pub free: u32,
    /// Of aborted legs that somebody may still write.
    pub quarantined: u32,
}

/// How far a handoff is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The prompt is queued or being computed; layer by layer its KV may be moving.
    Prefill,
    /// The prompt is computed, its KV is not all there.
    Transfer,
    /// All of it is there.
    Landed,
    /// It was given up or has failed; the request goes on elsewhere.
    Failed,
}

/// The KV of one request on its way.
#[derive(Debug, Clone)]
pub(in crate::host) struct Handoff {
    request: RequestId,
    /// What the client calls it.
    name: Option<String>,
    from: MachineId,
    to: MachineId,
    mode: Option<Mode>,
    prompt_tokens: u32,
    stage: Stage,
    placed_at: Time,
    prefilled_at: Option<Time>,
    landed_at: Option<Time>,
}

/// A handoff as the page shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HandoffView {
    /// Whose KV.
    pub request_id: u64,
    /// What the client calls the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// From which machine.
    pub from: String,
    /// To which.
    pub to: String,
    /// How.
    pub transfer: Option<Mode>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How far it is.
    pub stage: Stage,
    /// From the placement to the end of the prompt, as the service heard of it.
    pub prefill_ms: Option<f64>,
    /// What the transfer took beyond that.
    pub exposed_ms: Option<f64>,
}

/// KV of all machines together, as they tell it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvTotals {
    /// Blocks.
    pub blocks: u64,
    /// Of these, nobody's.
    pub free: u64,
    /// Of these, those of aborted legs that somebody may still write.
    pub quarantined: u64,
    /// Transfers of which all has come.
    pub landed: u64,
    /// Transfers that broke or stood still too long.
    pub failed: u64,
    /// Destinations that had no room.
    pub refused: u64,
    /// Requests that lost their blocks to others, and were recomputed.
    pub evicted: u64,
}

/// Reports and handoffs.
#[derive(Debug, Default)]
pub(in crate::host) struct Watch {
    /// Its blocks are counted when they are asked for.
    totals: KvTotals,
    blocks: HashMap<u32, BlocksView>,
    handoffs: VecDeque<Handoff>,
}

impl Watch {
    /// A machine is here, with so many blocks.
    pub(super) fn machine(&mut self, index: u32, total: u32) {
        self.blocks.insert(index, BlocksView { total, free: total, quarantined: 0 });
    }

    /// It says what it holds.
    pub(super) fn report(&mut self, index: u32, report: &Report) {
        if let Some(blocks) = self.blocks.get_mut(&index) {
            blocks.free = report.free_blocks;
            blocks.quarantined = report.quarantined_blocks;
        }
    }

    pub(in crate::host) fn blocks(&self, index: u32) -> Option<BlocksView> {
        self.blocks.get(&index).copied()
    }

    /// A request has machines.
    pub(in crate::host) fn placed(
        &mut self,
        placement: &Placement,
        name: Option<String>,
        prompt_tokens: u32,
        now: Time,
    ) {
        self.end(placement.request, Stage::Failed);
        let (Some(from), Some(to)) = (placement.prompt(), placement.token()) else { return };
        if from == to {
            return;
        }
        if self.handoffs.len() == HANDOFFS_KEPT {
            self.handoffs.pop_front();
        }
        self.handoffs.push_back(Handoff {
            request: placement.request,
            name,
            from,
            to,
            mode: placement.transfer(),
            prompt_tokens,
            stage: Stage::Prefill,
            placed_at: now,
            prefilled_at: None,
            landed_at: None,
        });
    }

    /// Of a request that is placed anew, or over: what is still on its way is so for nothing.
    pub(in crate::host) fn end(&mut self, request: RequestId, stage: Stage) {
        if let Some(handoff) = self.find(request).filter(|handoff| handoff.stage != Stage::Landed) {
            handoff.stage = stage;
        }
    }

    fn find(&mut self, request: RequestId) -> Option<&mut Handoff> {
        self.handoffs.iter_mut().rev().find(|handoff| handoff.request == request)
    }

    /// What all machines have, and have told so far.
    pub(in crate::host) fn totals(&self) -> KvTotals {
        self.blocks.values().fold(self.totals, |sum, each| KvTotals {
            blocks: sum.blocks + u64::from(each.total),
            free: sum.free + u64::from(each.free),
            quarantined: sum.quarantined + u64::from(each.quarantined),
            ..sum
        })
    }

    /// A machine has said something.
    pub(super) fn notice(&mut self, from: MachineId, notice: &Notice, now: Time) {
        match notice {
            Notice::Landed { .. } => self.totals.landed += 1,
            Notice::TransferFailed { .. } => self.totals.failed += 1,
            Notice::Refused { .. } => self.totals.refused += 1,
            Notice::Evicted { .. } => self.totals.evicted += 1,
            _ => {}
        }
        match notice {
            Notice::Report(report) | Notice::Released { report, .. } | Notice::Refused { report, .. } => {
                self.report(from.index, report);
            }
            Notice::PrefillDone { key, .. } => {
                if let Some(handoff) = self.find(key.request).filter(|handoff| handoff.from == from) {
                    handoff.prefilled_at.get_or_insert(now);
                    if handoff.stage == Stage::Prefill {
                        handoff.stage = Stage::Transfer;
                    }
                }
            }
            Notice::Landed { key } => {
                if let Some(handoff) = self.find(key.request).filter(|handoff| handoff.to == from) {
                    handoff.landed_at.get_or_insert(now);
                    handoff.stage = Stage::Landed;
                }
            }
            _ => {}
        }
    }

    /// The last handoffs, newest first.
    pub(in crate::host) fn shown(&self, name: impl Fn(u32) -> String) -> Vec<HandoffView> {
        let ms = |from: Time, to: Time| to.since(from) as f64 / 1e6;
        let view = |handoff: &Handoff| {
            let Handoff { placed_at, prefilled_at, landed_at, .. } = *handoff;
            HandoffView {
                request_id: handoff.request.0,
                name: handoff.name.clone(),
                from: name(handoff.from.index),
                to: name(handoff.to.index),
                transfer: handoff.mode,
                prompt_tokens: handoff.prompt_tokens,
                stage: handoff.stage,
                prefill_ms: prefilled_at.map(|at| ms(placed_at, at)),
                exposed_ms: prefilled_at.zip(landed_at).map(|(from, to)| ms(from, to)),
            }
        };
        self.handoffs.iter().rev().map(view).collect()
    }
}
