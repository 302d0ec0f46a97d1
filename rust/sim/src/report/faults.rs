//! What faults cost a run.

use serde::Serialize;

use super::quantiles::finite;

/// What is added up about faults during a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// Machines that crashed.
    pub crashes: u64,
    /// Time of passes thrown away, and the share of passes that made lost work again.
    pub lost_work_ns: u64,
    /// KV tokens thrown away, or computed again.
    pub lost_tokens: u64,
    /// Times a request went on after the tokens that its client has.
    pub resumed: u64,
    /// Times a request began again from its prompt.
    pub restarted: u64,
    /// Requests given up after too many attempts.
    pub failed: u64,
    /// Interruptions that are over, and the time they took together.
    pub interruptions: u64,
    /// See `interruptions`.
    pub extra_ns: u64,
    /// Times the Cluster was killed and another took its place.
    pub cluster_restarts: u64,
    /// Live requests that a new Cluster took over.
    pub adopted: u64,
    /// Live requests that no machine had, submitted again.
    pub resubmitted: u64,
}

/// What faults cost a run, one way of recovery. A request that meets a fault is resumed, restarted or failed, so these
/// three add up to the faults that met a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RecoveryReport {
    /// Machines that crashed.
    pub crashes: u64,
    /// Machine seconds thrown away: passes cut short, up to the crash; and of every whole pass the share of its tokens
    /// (prompt tokens, and one for each decode) that had been computed before and were lost, or that belonged to a
    /// request given up during the pass.
    pub lost_work_s: f64,
    /// These tokens: KV tokens that had been computed and were computed again, or for nothing.
    pub lost_tokens: u64,
    /// Times a request went on elsewhere after the tokens that its client has.
    pub resumed: u64,
    /// Times a request began again from its prompt: its client has no token, or that is the way of recovery.
    pub restarted: u64,
    /// Requests given up after too many attempts.
    pub failed: u64,
    /// Share of submitted requests that keep all three limits on one request.
    #[serde(serialize_with = "finite")]
    pub attainment: f64,
    /// Mean seconds from a crash to the next token that is new to the client of a request it met; a further crash
    /// before that prolongs the wait. The loss of the Cluster meets every live request. Null without any.
    #[serde(serialize_with = "finite")]
    pub extra_time_s: f64,
    /// Times the Cluster's state was lost and rebuilt.
    pub cluster_restarts: u64,
    /// Live requests that a new Cluster took over from what machines registered: they are where they were. Others have
    /// ended meanwhile, as their machines ran on.
    pub adopted: u64,
    /// Live requests that no machine had registered, so that the gateway submitted them again. Each is also counted as
    /// resumed or restarted.
    pub resubmitted: u64,
}

/// A run's faults: the run itself, which resumes, and beside it the same run with restarts from scratch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FaultReport {
    /// Requests go on after the tokens that their clients have.
    #[serde(flatten)]
    pub resume: RecoveryReport,
    /// The same faults, with requests that begin again from their prompts.
    pub restart: RecoveryReport,
}

impl FaultTally {
    /// The tally as reported.
    pub fn report(&self, attainment: f64) -> RecoveryReport {
        RecoveryReport {
            crashes: self.crashes,
            lost_work_s: self.lost_work_ns as f64 / 1e9,
            lost_tokens: self.lost_tokens,
            resumed: self.resumed,
            restarted: self.restarted,
            failed: self.failed,
            attainment,
            extra_time_s: self.extra_ns as f64 / self.interruptions as f64 / 1e9,
            cluster_restarts: self.cluster_restarts,
            adopted: self.adopted,
            resubmitted: self.resubmitted,
        }
    }
}
