//! The options of a run as a user writes them; [`crate::simulate`] validates them all before anything starts.

use serde::{Deserialize, Serialize};

use crate::Thresholds;
use crate::machines::MachineType;
use crate::workload::TrafficClass;

/// Options of [`crate::simulate`]. Names are the Python keywords and, with dashes, the command line's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "options that users turn on and off one by one")]
pub struct Options {
    /// Machine types of the user's own, beside the built-in ones.
    pub machine_types: Vec<MachineType>,
    /// Prompt machines, as `25xdgx-h100`, `2xdgx-a100:tp2:pp2`.
    pub prompt: Option<String>,
    /// Token machines.
    pub token: Option<String>,
    /// Machines whose home is the mixed pool.
    pub mixed: Option<String>,
    /// Machines of an unsplit cluster; excludes the other three.
    pub unsplit: Option<String>,
    /// `prefill` or `decode`: one phase of an unsplit cluster alone. Of prefill, requests end with their first token; of
    /// decode, they arrive with their KV and first token where they are placed.
    pub only: Option<String>,
    /// `bloom-176b` or `llama2-70b`; under DistServe's costs `opt-13b` or `opt-66b`.
    pub model: String,
    /// `azure-conv`, `azure-code` or a file.
    pub trace: String,
    /// `error` or `skip`: what becomes of rows of a file that are no requests.
    pub invalid_rows: String,
    /// Tokens of the answers whose length a file does not say; such rows are no requests otherwise.
    pub missing_output: Option<u32>,
    /// `error` or `after-arrival`: turns of a session that have a delay after the turn before instead of a time.
    pub later_turns: String,
    /// The `tokenizer.json` of a model, which counts the tokens of a file of texts.
    pub tokenizer: Option<String>,
    /// Whether arrivals keep the times of their file, as in the published runs; otherwise the first is at 0. For comparisons
    /// with those alone, so neither Python nor the command line has it.
    #[serde(skip)]
    pub own_times: bool,
    /// Kinds of traffic that share the rate; empty for one kind.
    pub classes: Vec<TrafficClass>,
    /// Requests a second.
    pub rate: Option<f64>,
    /// Arrivals end after this many seconds.
    pub duration_s: Option<f64>,
    /// `poisson`, `bursty` or `trace`.
    pub arrivals: Option<String>,
    /// Coefficient of variation of bursty gaps.
    pub cv: f64,
    /// `joint` or `independent`.
    pub sampling: String,
    /// Of every draw.
    pub seed: u64,
    /// A policy's name; `splitwise`, or `jsq` for an unsplit cluster.
    pub policy: Option<String>,
    /// `measured`, `splitwise-sim`, or DistServe's: `distserve`, `distserve-overhead`, `distserve-vllm`.
    pub costs: String,
    /// A profile of the user's own measurements.
    pub profile: Option<String>,
    /// `auto`, `serialized` or `layer-wise`.
    pub transfer: String,
    /// Bytes a second of every network card, instead of the hardware's.
    pub link_bandwidth: Option<f64>,
    /// Whether transfers share the cards.
    pub contention: bool,
    /// `drained` or `idle`.
    pub mixed_return: String,
    /// `at-arrival` or `at-source-done`.
    pub reserve: String,
    /// `at-prompt` or `before-last`.
    pub cut: String,
    /// `turn`, `first` or `last`: which of equally loaded machines is taken. Results should not hang on it.
    pub ties: String,
    /// Of every message between Cluster and machines and between machines.
    pub message_delay_s: f64,
    /// Requests at most in the system; further arrivals are rejected.
    pub max_in_flight: Option<u32>,
    /// `bounds`, `early` or `predicted`: what arrivals are held against.
    pub admission: String,
    /// Limit on the time to the first token.
    pub slo_ttft_s: Option<f64>,
    /// Limit on the time between tokens.
    pub slo_tbt_s: Option<f64>,
    /// Share of slots and KV tokens that arrivals leave free, 0 to 0.999.
    pub recovery_headroom: f64,
    /// Prompts of fewer tokens are not split.
    pub split_from: u32,
    /// Thresholds of the schedulers.
    pub thresholds: Thresholds,
    /// Whether machines have only the KV memory they have.
    pub kv_limit: bool,
    /// Stop after this many arrivals.
    pub requests: Option<usize>,
    /// Faults, as `mtbf=600,repair=30,kill=t0@20` of machines or `kill=cluster@20,restart=1,grace=1` of the Cluster. The
    /// run is then made twice: requests that meet a fault resume, and restart from scratch.
    pub faults: Option<String>,
    /// Recount every invariant after every event (slow).
    pub check: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            machine_types: Vec::new(),
            prompt: None,
            token: None,
            mixed: None,
            unsplit: None,
            only: None,
            model: "bloom-176b".into(),
            trace: "azure-conv".into(),
            invalid_rows: "error".into(),
            missing_output: None,
            later_turns: "error".into(),
            tokenizer: None,
            own_times: false,
            classes: Vec::new(),
            rate: None,
            duration_s: None,
            arrivals: None,
            cv: 4.0,
            sampling: "joint".into(),
            seed: 0,
            policy: None,
            costs: "measured".into(),
            profile: None,
            transfer: "auto".into(),
            link_bandwidth: None,
            contention: true,
            mixed_return: "drained".into(),
            reserve: "at-arrival".into(),
            cut: "at-prompt".into(),
            ties: "first".into(),
            message_delay_s: 0.0,
            max_in_flight: None,
            admission: "bounds".into(),
            slo_ttft_s: None,
            slo_tbt_s: None,
            recovery_headroom: 0.0,
            split_from: 0,
            thresholds: Thresholds::default(),
            kv_limit: true,
            requests: None,
            faults: None,
            check: false,
        }
    }
}
