//! Every threshold of the schedulers that a run may set.

use serde::{Deserialize, Serialize};
use splitcore_core::config::{ClusterConfig, MachineConfig};

use crate::SimError;

/// What is left out is as the schedulers have it. Names are the Python keywords and, with dashes, the command line's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    /// A prompt machine with work is over when its load and the prompt exceed this.
    pub prompt_pending_tokens_max: Option<u64>,
    /// A token machine is over when it would hold more than this share of its KV tokens.
    pub kv_fill_max: Option<f64>,
    /// A machine stays in the mixed pool at least this long.
    pub mixed_hold_s: Option<f64>,
    /// Waiting this long outweighs one step of priority.
    pub priority_ageing_s: Option<f64>,
    /// Tries of one request at most; only faults count.
    pub attempts_max: Option<u32>,
    /// What waits is tried again at least this often.
    pub retry_interval_s: Option<f64>,
    /// What holds blocks without going on is taken back after this time.
    pub park_limit_s: Option<f64>,
    /// A machine whose session ended is lost after this time.
    pub rejoin_limit_s: Option<f64>,
    /// Prompt tokens and decodes in one pass.
    pub batch_tokens_max: Option<u32>,
    /// Requests in one pass.
    pub batch_requests_max: Option<u32>,
    /// Longer prompts are computed in chunks of so many tokens.
    pub prefill_chunk_tokens: Option<u32>,
    /// A decode that sat out this many passes goes before prompts.
    pub sit_out_max: Option<u32>,
    /// A request evicted this often is spared.
    pub evictions_max: Option<u32>,
    /// Tokens in a KV block.
    pub block_tokens: Option<u32>,
    /// KV blocks that only incoming handoffs may take.
    pub handoff_floor_blocks: Option<u32>,
    /// With more than this share of its blocks in quarantine a machine takes nothing new.
    pub quarantine_limit: Option<f64>,
    /// Time between reports of a machine.
    pub report_interval_s: Option<f64>,
    /// Transfers that a source runs at once.
    pub sends_max: Option<u32>,
    /// Transfers that a destination takes at once.
    pub receives_max: Option<u32>,
}

impl Thresholds {
    /// Sets those of the Cluster.
    pub(crate) fn set_cluster(&self, config: &mut ClusterConfig) -> Result<(), SimError> {
        set(&mut config.prompt_pending_tokens_max, self.prompt_pending_tokens_max);
        set(&mut config.kv_fill_max_permille, permille("kv_fill_max", self.kv_fill_max, 0.001)?);
        set(&mut config.mixed_hold_ns, nanoseconds("mixed_hold_s", self.mixed_hold_s, 0.0)?);
        set(
            &mut config.priority_ageing_ns,
            some(nanoseconds("priority_ageing_s", self.priority_ageing_s, 1e-9)?),
        );
        set(&mut config.attempts_max, at_least_one("attempts_max", self.attempts_max)?);
        set(&mut config.retry_interval_ns, nanoseconds("retry_interval_s", self.retry_interval_s, 1e-3)?);
        set(&mut config.park_limit_ns, nanoseconds("park_limit_s", self.park_limit_s, 1e-3)?);
        set(&mut config.rejoin_limit_ns, nanoseconds("rejoin_limit_s", self.rejoin_limit_s, 1e-3)?);
        Ok(())
    }

    /// Sets those of a machine.
    pub(crate) fn set_machine(&self, config: &mut MachineConfig) -> Result<(), SimError> {
        set(&mut config.batch_tokens_max, at_least_one("batch_tokens_max", self.batch_tokens_max)?);
        set(&mut config.batch_requests_max, at_least_one("batch_requests_max", self.batch_requests_max)?);
        let chunk = at_least_one("prefill_chunk_tokens", self.prefill_chunk_tokens)?;
        set(&mut config.prefill_chunk_tokens, some(chunk));
        set(&mut config.sit_out_max, at_least_one("sit_out_max", self.sit_out_max)?);
        set(&mut config.evictions_max, self.evictions_max);
        set(&mut config.block_tokens, at_least_one("block_tokens", self.block_tokens)?);
        set(&mut config.handoff_floor_blocks, some(self.handoff_floor_blocks));
        set(&mut config.quarantine_limit_permille, permille("quarantine_limit", self.quarantine_limit, 0.0)?);
        set(&mut config.report_interval_ns, nanoseconds("report_interval_s", self.report_interval_s, 1e-3)?);
        set(&mut config.park_limit_ns, nanoseconds("park_limit_s", self.park_limit_s, 1e-3)?);
        set(&mut config.sends_max, some(at_least_one("sends_max", self.sends_max)?));
        set(&mut config.receives_max, some(at_least_one("receives_max", self.receives_max)?));
        Ok(())
    }
}

fn set<T>(field: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *field = given;
    }
}

/// For a field that is itself optional.
#[allow(clippy::option_option, reason = "not given, or given to a field that may be none")]
fn some<T>(given: Option<T>) -> Option<Option<T>> {
    given.map(Some)
}

fn at_least_one(option: &'static str, given: Option<u32>) -> Result<Option<u32>, SimError> {
    if given == Some(0) { Err(SimError::config(option, "at least 1", 0)) } else { Ok(given) }
}

fn permille(option: &'static str, given: Option<f64>, least: f64) -> Result<Option<u32>, SimError> {
    let checked = |share: f64| {
        let is_share = (least..=1.0).contains(&share);
        let refuse = || SimError::config(option, format!("a share from {least} to 1"), share);
        is_share.then(|| (share * 1000.0).round() as u32).ok_or_else(refuse)
    };
    given.map(checked).transpose()
}

fn nanoseconds(option: &'static str, given: Option<f64>, least_s: f64) -> Result<Option<u64>, SimError> {
    let checked = |seconds: f64| {
        let is_time = (least_s..=1e6).contains(&seconds);
        let refuse = || SimError::config(option, format!("seconds from {least_s} to 1e6"), seconds);
        is_time.then(|| (seconds * 1e9).round() as u64).ok_or_else(refuse)
    };
    given.map(checked).transpose()
}
