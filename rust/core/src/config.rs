//! Every threshold, named after what it limits. Defaults are the Splitwise paper's where it gives one.

use std::fmt;

use crate::id::Epoch;
use crate::placement::Reserve;

/// One second, for defaults.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Who carries out placements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Level {
    /// Our own [`crate::machine::Machine`]s: the Cluster sends commands and hears notices and reports.
    Managed,
    /// An embedder's engines: the Cluster only places, and hears facts by call.
    External,
}

/// When a machine leaves the mixed pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum MixedReturn {
    /// When no work of the opposite kind is left, bookings on their way included (the paper).
    Drained,
    /// When it has no work at all (the public simulator).
    Idle,
}

/// How a placement's transfer mode is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum TransferRule {
    /// Serialized where the bytes take less time than the fixed cost of layer-wise transfer.
    Auto,
    /// Always after prefill.
    Serialized,
    /// Always during prefill.
    LayerWise,
}

/// Where a split placement is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Cut {
    /// After the whole prompt: the prompt machine samples the first token (Splitwise).
    AtPrompt,
    /// Before the last prompt token: the token machine samples it (Microserving).
    BeforeLast,
}

/// Which of equally loaded machines is taken. Results should not hang on it; changing it shows whether they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Ties {
    /// The one that was taken longest ago, so that they are taken in turn.
    #[default]
    Turn,
    /// The first in pool order, as in the public simulator.
    First,
    /// The last in pool order.
    Last,
}

/// The policies, each one file in `cluster/policies`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum PolicyKind {
    /// Pairs over prompt, token and mixed pools (Splitwise, section IV-A).
    Splitwise,
    /// Unsplit: the least booked machine runs the whole request (the paper's baseline).
    Jsq,
    /// Fewest requests on each side.
    LeastRequests,
    /// In turn on each side.
    RoundRobin,
    /// The less loaded of two drawn machines on each side.
    PowerOfTwo,
}

impl PolicyKind {
    /// Every policy and its name.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Splitwise, "splitwise"),
        (Self::Jsq, "jsq"),
        (Self::LeastRequests, "least-requests"),
        (Self::RoundRobin, "round-robin"),
        (Self::PowerOfTwo, "power-of-two"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Splitwise => "splitwise",
            Self::Jsq => "jsq",
            Self::LeastRequests => "least-requests",
            Self::RoundRobin => "round-robin",
            Self::PowerOfTwo => "power-of-two",
        }
    }
}

/// What an arrival is held against, besides what can never fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Admission {
    /// The bounds alone.
    #[default]
    Bounds,
    /// Also the limits of its class, by what its pair of machines has to do now.
    Early,
    /// Also the limits of its class, by what its pair will have to do when its prompt is computed.
    Predicted,
}

/// Options of a [`crate::cluster::Cluster`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClusterConfig {
    /// Who carries out placements.
    pub level: Level,
    /// How machines are chosen.
    pub policy: PolicyKind,
    /// A prompt machine with work is over when its booked load and the prompt exceed this.
    pub prompt_pending_tokens_max: u64,
    /// A token machine is over when its KV tokens, the prompt and one exceed this share of its capacity, in
    /// thousandths.
    pub kv_fill_max_permille: u32,
    /// When a machine leaves the mixed pool.
    pub mixed_return: MixedReturn,
    /// A machine stays in the mixed pool at least this long.
    pub mixed_hold_ns: u64,
    /// When destinations reserve.
    pub reserve: Reserve,
    /// Where placements are cut.
    pub cut: Cut,
    /// How the transfer mode is chosen.
    pub transfer: TransferRule,
    /// KV bytes of one token on one machine; unknown sends `transfer` to `layer_wise_from_tokens`.
    pub kv_bytes_per_token: Option<u64>,
    /// With unknown bandwidth or KV size, `Auto` is layer-wise from this prompt length on.
    pub layer_wise_from_tokens: u32,
    /// Which of equally loaded machines is taken.
    #[cfg_attr(feature = "serde", serde(default = "first"))]
    pub ties: Ties,
    /// Live requests at most.
    pub requests_max: u32,
    /// What arrivals are held against.
    #[cfg_attr(feature = "serde", serde(default))]
    pub admission: Admission,
    /// Share of `requests_max`, and of the KV tokens of all machines that are up, in thousandths: arrivals leave it
    /// free for work that comes back after faults.
    #[cfg_attr(feature = "serde", serde(default))]
    pub recovery_headroom_permille: u32,
    /// Waiting this long outweighs one step of priority in the line of parked requests; `None`: nothing does.
    #[cfg_attr(feature = "serde", serde(default = "priority_ageing_ns"))]
    pub priority_ageing_ns: Option<u64>,
    /// A prompt of fewer tokens runs whole on the token machine that its policy chooses.
    #[cfg_attr(feature = "serde", serde(default))]
    pub split_from_tokens: u32,
    /// Tries of one request at most; only faults count.
    pub attempts_max: u32,
    /// A machine whose transfers have failed this often in a row is set aside.
    #[cfg_attr(feature = "serde", serde(default = "transfer_failures_max"))]
    pub transfer_failures_max: u32,
    /// For this long no pair is made with a machine that is set aside.
    #[cfg_attr(feature = "serde", serde(default = "aside_ns"))]
    pub aside_ns: u64,
    /// Unreserved legs are tried again at least this often.
    pub retry_interval_ns: u64,
    /// `Managed` only: a request that holds blocks on one machine and has waited this long for another is taken
    /// back and placed as one leg. It is looked for at this interval.
    pub park_limit_ns: u64,
    /// A parked request that no machine known can hold, those that may be back within `rejoin_limit_ns` included, ends
    /// when none has come for this long.
    #[cfg_attr(feature = "serde", serde(default = "unplaceable_limit_ns"))]
    pub unplaceable_limit_ns: u64,
    /// What a machine has reported is believed for this long without a further report; then our own books count again.
    #[cfg_attr(feature = "serde", serde(default = "report_limit_ns"))]
    pub report_limit_ns: u64,
    /// A machine whose session ended is lost when it is not back within this time.
    pub rejoin_limit_ns: u64,
    /// `Managed` only: after this long without a session, what a machine has begins its next attempt elsewhere, in case
    /// the machine is not back within `rejoin_limit_ns`. `None`: only when it is lost.
    #[cfg_attr(feature = "serde", serde(default))]
    pub hedge_after_ns: Option<u64>,
    /// Which Cluster of this service it is: one more than the last, so that machines refuse the last.
    pub epoch: Epoch,
    /// After a restart, the time from the first event on in which machines register what they hold. Nothing new is
    /// placed until it ends. 0: there is nothing to wait for.
    pub grace_ns: u64,
    /// `External` only: a placement that no call has touched for this long is expired.
    pub lease_ns: Option<u64>,
    /// Seed of every draw.
    pub seed: u64,
}

#[allow(clippy::unnecessary_wraps, reason = "the type of the option")]
fn priority_ageing_ns() -> Option<u64> {
    Some(10 * SECOND_NS)
}

/// What a configuration means that was written down before there was a choice.
#[cfg(feature = "serde")]
fn first() -> Ties {
    Ties::First
}

fn transfer_failures_max() -> u32 {
    3
}

fn aside_ns() -> u64 {
    30 * SECOND_NS
}

fn report_limit_ns() -> u64 {
    30 * SECOND_NS
}

fn unplaceable_limit_ns() -> u64 {
    60 * SECOND_NS
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            level: Level::Managed,
            policy: PolicyKind::Splitwise,
            prompt_pending_tokens_max: 8192,
            kv_fill_max_permille: 950,
            mixed_return: MixedReturn::Drained,
            mixed_hold_ns: 0,
            reserve: Reserve::AtArrival,
            cut: Cut::AtPrompt,
            transfer: TransferRule::Auto,
            kv_bytes_per_token: None,
            layer_wise_from_tokens: 512,
            ties: Ties::Turn,
            requests_max: 1_000_000,
            admission: Admission::Bounds,
            recovery_headroom_permille: 0,
            priority_ageing_ns: priority_ageing_ns(),
            split_from_tokens: 0,
            attempts_max: 4,
            transfer_failures_max: transfer_failures_max(),
            aside_ns: aside_ns(),
            retry_interval_ns: SECOND_NS,
            park_limit_ns: 30 * SECOND_NS,
            unplaceable_limit_ns: unplaceable_limit_ns(),
            report_limit_ns: report_limit_ns(),
            rejoin_limit_ns: 5 * SECOND_NS,
            hedge_after_ns: Some(SECOND_NS / 2),
            epoch: Epoch(1),
            grace_ns: 0,
            lease_ns: None,
            seed: 0,
        }
    }
}

/// Options of a [`crate::machine::Machine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MachineConfig {
    /// KV blocks it owns.
    pub blocks: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Prompt tokens and decodes in one pass; the first item always fits.
    pub batch_tokens_max: u32,
    /// Requests in one pass.
    pub batch_requests_max: u32,
    /// Prompt tokens of one pass at most: a longer prompt is computed in chunks, pass after pass, and decodes run beside
    /// each. `None`: a prompt is computed in one pass.
    #[cfg_attr(feature = "serde", serde(default))]
    pub prefill_chunk_tokens: Option<u32>,
    /// Stages of the engine's pipeline: as many passes may be in flight.
    #[cfg_attr(feature = "serde", serde(default = "one_stage"))]
    pub pipeline_stages: u32,
    /// A decode that sat out this many passes in a row goes before prompts.
    pub sit_out_max: u32,
    /// A decode evicted this often is spared unless all candidates are.
    pub evictions_max: u32,
    /// Time between reports.
    pub report_interval_ns: u64,
    /// Blocks that only incoming handoffs may take; `None`: as many as the largest handoff seen so far needs.
    pub handoff_floor_blocks: Option<u32>,
    /// With more than this share of its blocks in quarantine, in thousandths, it asks for no new work.
    pub quarantine_limit_permille: u32,
    /// A transfer that has not ended this long after it could is stopped, and has failed: more than the largest takes.
    /// `None`: no limit.
    pub transfer_limit_ns: Option<u64>,
    /// Work that has found no room for this long while nothing else ran is given back to the Cluster.
    pub park_limit_ns: u64,
    /// Without a Cluster for this long, it drops everything it holds. `None`: it waits for ever.
    pub orphan_limit_ns: Option<u64>,
    /// Transfers a source runs at once; further ones wait in order. `None`: no bound.
    pub sends_max: Option<u32>,
    /// Grants a destination has outstanding at once; further ones wait in order. `None`: no bound.
    pub receives_max: Option<u32>,
}

/// Pipeline stages of a machine at most.
pub const PIPELINE_STAGES_MAX: u32 = 64;

#[cfg(feature = "serde")]
fn one_stage() -> u32 {
    1
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            blocks: 1,
            block_tokens: 16,
            batch_tokens_max: 2048,
            batch_requests_max: 512,
            prefill_chunk_tokens: None,
            pipeline_stages: 1,
            sit_out_max: 4,
            evictions_max: 4,
            report_interval_ns: SECOND_NS,
            handoff_floor_blocks: None,
            quarantine_limit_permille: 100,
            transfer_limit_ns: Some(20 * SECOND_NS),
            park_limit_ns: 30 * SECOND_NS,
            orphan_limit_ns: Some(120 * SECOND_NS),
            sends_max: None,
            receives_max: None,
        }
    }
}

/// An option outside its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Which option.
    pub option: &'static str,
    /// What would have been accepted.
    pub expected: &'static str,
    /// What was given.
    pub got: u64,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.option, self.expected, self.got)
    }
}

impl std::error::Error for ConfigError {}

/// `Err` unless `holds`.
fn require(
    holds: bool,
    option: &'static str,
    expected: &'static str,
    got: impl Into<u64>,
) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { option, expected, got: got.into() }) }
}

impl ClusterConfig {
    /// Checks every option.
    ///
    /// # Errors
    /// The first option outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fill = self.kv_fill_max_permille;
        require(
            self.prompt_pending_tokens_max > 0,
            "prompt_pending_tokens_max",
            "at least 1",
            self.prompt_pending_tokens_max,
        )?;
        require((1..=1000).contains(&fill), "kv_fill_max_permille", "1 to 1000", fill)?;
        require(self.requests_max > 0, "requests_max", "at least 1", self.requests_max)?;
        let headroom = self.recovery_headroom_permille;
        require(headroom < 1000, "recovery_headroom_permille", "0 to 999", headroom)?;
        require(self.priority_ageing_ns != Some(0), "priority_ageing_ns", "at least 1", 0_u64)?;
        require(self.attempts_max > 0, "attempts_max", "at least 1", self.attempts_max)?;
        let failures = self.transfer_failures_max;
        require(failures > 0, "transfer_failures_max", "at least 1", failures)?;
        require(self.aside_ns > 0, "aside_ns", "at least 1", self.aside_ns)?;
        require(self.retry_interval_ns > 0, "retry_interval_ns", "at least 1", self.retry_interval_ns)?;
        require(self.park_limit_ns > 0, "park_limit_ns", "at least 1", self.park_limit_ns)?;
        let unplaceable = self.unplaceable_limit_ns;
        require(unplaceable > 0, "unplaceable_limit_ns", "at least 1", unplaceable)?;
        require(self.report_limit_ns > 0, "report_limit_ns", "at least 1", self.report_limit_ns)?;
        require(self.rejoin_limit_ns > 0, "rejoin_limit_ns", "at least 1", self.rejoin_limit_ns)?;
        require(self.hedge_after_ns != Some(0), "hedge_after_ns", "at least 1", 0_u64)?;
        require(self.lease_ns != Some(0), "lease_ns", "at least 1", 0_u64)?;
        require(
            self.lease_ns.is_none() || self.level == Level::External,
            "lease_ns",
            "no lease at the managed level",
            self.lease_ns.unwrap_or(0),
        )
    }
}

impl MachineConfig {
    /// Checks every option.
    ///
    /// # Errors
    /// The first option outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        require(self.blocks > 0, "blocks", "at least 1", self.blocks)?;
        require(self.block_tokens > 0, "block_tokens", "at least 1", self.block_tokens)?;
        require(self.batch_tokens_max > 0, "batch_tokens_max", "at least 1", self.batch_tokens_max)?;
        require(self.batch_requests_max > 0, "batch_requests_max", "at least 1", self.batch_requests_max)?;
        let chunk = self.prefill_chunk_tokens.unwrap_or(1);
        let fits = (1..=self.batch_tokens_max).contains(&chunk);
        require(fits, "prefill_chunk_tokens", "1 to batch_tokens_max", chunk)?;
        let stages = (1..=PIPELINE_STAGES_MAX).contains(&self.pipeline_stages);
        require(stages, "pipeline_stages", "1 to 64", self.pipeline_stages)?;
        let sits = (1..=u32::from(u16::MAX)).contains(&self.sit_out_max);
        require(sits, "sit_out_max", "1 to 65535", self.sit_out_max)?;
        require(self.report_interval_ns > 0, "report_interval_ns", "at least 1", self.report_interval_ns)?;
        let quarantine = self.quarantine_limit_permille;
        require(quarantine <= 1000, "quarantine_limit_permille", "0 to 1000", quarantine)?;
        require(self.transfer_limit_ns != Some(0), "transfer_limit_ns", "at least 1", 0_u64)?;
        require(self.park_limit_ns > 0, "park_limit_ns", "at least 1", self.park_limit_ns)?;
        require(self.orphan_limit_ns != Some(0), "orphan_limit_ns", "at least 1", 0_u64)?;
        require(self.sends_max != Some(0), "sends_max", "at least 1", 0_u64)?;
        require(self.receives_max != Some(0), "receives_max", "at least 1", 0_u64)?;
        let floor = self.handoff_floor_blocks.unwrap_or(0);
        require(floor <= self.blocks, "handoff_floor_blocks", "at most the machine's blocks", floor)
    }

    /// KV tokens that fit.
    pub fn capacity_tokens(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_tokens)
    }
}
