//! Several passes in flight: an engine whose layers lie on stages in a row starts a pass as soon as its first stage is
//! free, and ends passes in the order it started them.
//!
//! A leg that is in a pass in flight is in no other. So that every stage has something to do, a pass takes only its
//! share of the decodes.

use std::collections::VecDeque;

use super::{BatchPlan, Machine};
use crate::config::PIPELINE_STAGES_MAX;
use crate::error::{Applied, EventError};

/// The [`mark`] of a leg that is in no pass.
pub(super) const NO_PASS: u8 = 0;

/// What a pass is known by among those in flight.
pub(super) fn mark(pass: u64) -> u8 {
    (pass % u64::from(PIPELINE_STAGES_MAX)) as u8 + 1
}

/// What is in flight: the plans of all passes but the newest, which is [`Machine::plan`].
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Pipeline {
    /// Oldest first.
    #[cfg_attr(feature = "serde", serde(with = "super::plan::whole::all"))]
    older: VecDeque<BatchPlan>,
    /// Plans to write anew: room, and no state.
    #[cfg_attr(feature = "serde", serde(skip))]
    spare: Vec<BatchPlan>,
    /// Passes in flight, the newest among them.
    in_flight: u32,
    /// The newest is still in the first stage.
    is_entered: bool,
    /// The next Tick starts a pass.
    pub(super) is_due: bool,
}

impl Machine {
    /// Whether a pass is running.
    pub fn is_running(&self) -> bool {
        self.pipeline.in_flight > 0
    }

    /// Whether a pass may start.
    pub(super) fn may_start(&self) -> bool {
        self.pipeline.in_flight < self.config.pipeline_stages && !self.pipeline.is_entered
    }

    /// The passes in flight, oldest first: they end in this order.
    pub fn passes(&self) -> impl Iterator<Item = &BatchPlan> {
        self.pipeline.older.iter().chain(self.is_running().then_some(&self.plan))
    }

    /// The pass that ends next: the oldest in flight, or the last one that ran.
    pub fn oldest_plan(&self) -> &BatchPlan {
        self.pipeline.older.front().unwrap_or(&self.plan)
    }

    pub(super) fn stage_free(&mut self, pass: u64) -> Result<Applied, EventError> {
        if !self.passes().any(|plan| plan.pass == pass) {
            return Err(EventError::NotRunning { pass });
        }
        // Where another has started meanwhile, it was said before.
        if pass != self.plan.pass || !std::mem::take(&mut self.pipeline.is_entered) {
            return Ok(self.late());
        }
        Ok(Applied::Yes)
    }

    /// The mark of the pass being built.
    pub(super) fn next_mark(&self) -> u8 {
        mark(self.plan.pass + 1)
    }

    /// Decodes that the next pass may take at most.
    pub(super) fn decodes_share(&self) -> u32 {
        (self.decodes.len() as u32).div_ceil(self.config.pipeline_stages)
    }

    /// Makes room for one more plan beside those in flight.
    pub(super) fn set_plan_aside(&mut self) {
        if self.is_running() {
            let mut next = self.pipeline.spare.pop().unwrap_or_default();
            (next.pass, next.decodes_version) = (self.plan.pass, self.plan.decodes_version);
            self.pipeline.older.push_back(std::mem::replace(&mut self.plan, next));
        }
    }

    /// There was nothing for one more pass.
    pub(super) fn take_plan_back(&mut self) {
        if let Some(newest) = self.pipeline.older.pop_back() {
            self.pipeline.spare.push(std::mem::replace(&mut self.plan, newest));
        }
    }

    /// The pass that was built starts.
    pub(super) fn enter(&mut self) {
        self.plan.pass += 1;
        self.pipeline.in_flight += 1;
        self.pipeline.is_entered = true;
    }

    /// The oldest pass ends. With the last one the first stage is free, whether or not the engine has said so.
    pub(super) fn leave(&mut self) {
        self.pipeline.in_flight -= 1;
        self.pipeline.is_entered &= self.is_running();
    }

    /// Its plan is read no more.
    pub(super) fn forget_oldest(&mut self) {
        self.pipeline.spare.extend(self.pipeline.older.pop_front());
    }
}
