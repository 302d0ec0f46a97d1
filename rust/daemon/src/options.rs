//! Every option of the service: one name each, which the errors and the logs print.

use std::fmt::Display;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use splitcore_core::config::{
    Admission, ClusterConfig, Cut, Level, MixedReturn, PolicyKind, Ties, TransferRule,
};
use splitcore_core::id::Epoch;
use splitcore_core::placement::Reserve;
use splitcore_wire::address::Address;

use crate::host::life;
use crate::words::plain;

/// An option outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option}: expected {expected}, got {got}")]
pub struct OptionError {
    /// Which option.
    pub option: &'static str,
    /// What would have been accepted.
    pub expected: String,
    /// What was given.
    pub got: String,
}

impl OptionError {
    /// An error about one option.
    pub fn new(option: &'static str, expected: impl Into<String>, got: impl Display) -> Self {
        Self { option, expected: expected.into(), got: format!("{got}") }
    }
}

/// Options of the service.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Address to listen on; port 0 takes a free one.
    #[cfg_attr(feature = "cli", arg(long, default_value = "127.0.0.1:8090", value_name = "ADDR"))]
    pub listen: String,
    /// File with a shared secret: every request but those for health must bear it.
    #[cfg_attr(feature = "cli", arg(long, value_name = "FILE"))]
    pub secret_file: Option<PathBuf>,
    /// Folder for the event log: every event and what came of it, which `splitcore replay` runs once more.
    #[cfg_attr(feature = "cli", arg(long, value_name = "DIR"))]
    pub event_log: Option<PathBuf>,
    /// Segments of its event log, 64 MiB each, that are kept: the newest; by default all.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub event_log_keep: Option<u32>,
    /// Folder of a model: give tokens by workers of its own, instead of placing for the engines of others.
    #[cfg_attr(feature = "cli", arg(long, value_name = "DIR"))]
    pub model: Option<PathBuf>,
    /// What clients and workers call the model; else the name of its folder.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    pub model_name: Option<String>,
    /// Address that workers connect to, with a model: `host:port`, or `unix:/path`.
    #[cfg_attr(feature = "cli", arg(long, default_value = "127.0.0.1:8091", value_name = "ADDR"))]
    pub workers: String,
    /// Seconds after the start in which workers of an earlier service come back, and nothing new is placed.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 5.0, value_name = "S"))]
    pub grace_s: f64,
    /// Seconds in which clients may come back to a request.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 60.0, value_name = "S"))]
    pub reattach_s: f64,
    /// Seconds in which a worker may come back after its session broke, before it counts as lost.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 5.0, value_name = "S"))]
    pub rejoin_limit_s: f64,
    /// Seconds without a session after which a worker's requests go on elsewhere, should it not come back; 0: only when
    /// it counts as lost.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 0.5, value_name = "S"))]
    pub hedge_after_s: f64,
    /// Certificate chain in PEM: speak TLS, with clients and workers.
    #[cfg_attr(feature = "cli", arg(long, value_name = "FILE", requires = "tls_key"))]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate in PEM.
    #[cfg_attr(feature = "cli", arg(long, value_name = "FILE", requires = "tls_cert"))]
    pub tls_key: Option<PathBuf>,
    /// Seconds to go on after SIGTERM while placements live.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 30.0, value_name = "S"))]
    pub drain_s: f64,
    /// Seconds in which the head of the next request must have come, idle time included.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 60.0, value_name = "S"))]
    pub header_timeout_s: f64,
    /// Seconds in which the body must have come.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 10.0, value_name = "S"))]
    pub body_timeout_s: f64,
    /// Seconds in which the client must take an answer.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 10.0, value_name = "S"))]
    pub write_timeout_s: f64,
    /// Bytes of a body at most.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 4 << 20, value_name = "N"))]
    pub body_bytes_max: usize,
    /// Bytes of all bodies on their way at most; those of 16 KiB and less do not count.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 64 << 20, value_name = "N"))]
    pub bodies_bytes_max: usize,
    /// Connections at once at most.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 4096, value_name = "N"))]
    pub connections_max: usize,
    /// Items of one call for many at most.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 65_536, value_name = "N"))]
    pub batch_max: usize,
    /// Machines known at most, lost ones included.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 65_536, value_name = "N"))]
    pub machines_max: usize,
    /// Events kept for those who ask later.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 65_536, value_name = "N"))]
    pub events_max: usize,
    /// Seconds one call may wait for an event at most.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 60.0, value_name = "S"))]
    pub event_wait_max_s: f64,
    /// What is logged: error, warn, info, debug or trace.
    #[cfg_attr(feature = "cli", arg(long, default_value = "info", value_name = "NAME"))]
    pub log_level: String,
    /// How machines are chosen.
    #[cfg_attr(feature = "cli", arg(long, default_value = "splitwise", value_parser = word::<PolicyKind>))]
    pub policy: PolicyKind,
    /// Booked prompt tokens from which a prompt machine with work is full.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 8192, value_name = "N"))]
    pub prompt_pending_tokens_max: u64,
    /// Share of its KV tokens from which a token machine is full.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 0.95, value_name = "SHARE"))]
    pub kv_fill_max: f64,
    /// When a machine leaves the mixed pool: drained or idle.
    #[cfg_attr(feature = "cli", arg(long, default_value = "drained", value_parser = word::<MixedReturn>))]
    pub mixed_return: MixedReturn,
    /// Seconds a machine stays in the mixed pool at least.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 0.0, value_name = "S"))]
    pub mixed_hold_s: f64,
    /// When destinations reserve: at-arrival or at-source-done.
    #[cfg_attr(feature = "cli", arg(long, default_value = "at-arrival", value_parser = word::<Reserve>))]
    pub reserve: Reserve,
    /// Where placements are cut: at-prompt or before-last.
    #[cfg_attr(feature = "cli", arg(long, default_value = "at-prompt", value_parser = word::<Cut>))]
    pub cut: Cut,
    /// How the KV cache moves: auto, serialized or layer-wise.
    #[cfg_attr(feature = "cli", arg(long, default_value = "auto", value_parser = word::<TransferRule>))]
    pub transfer: TransferRule,
    /// KV bytes of one token on one machine, for `transfer` auto.
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    pub kv_bytes_per_token: Option<u64>,
    /// Shorter prompts run whole, where an unsplit one would.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 0, value_name = "N"))]
    pub split_from_tokens: u32,
    /// Which of equally loaded machines is taken: in turn, the first or the last (turn, first, last).
    #[cfg_attr(feature = "cli", arg(long, default_value = "first", value_parser = word::<Ties>))]
    pub ties: Ties,
    /// Live placements at most.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 1_000_000, value_name = "N"))]
    pub requests_max: u32,
    /// What arrivals are held against: bounds, early or predicted.
    #[cfg_attr(feature = "cli", arg(long, default_value = "bounds", value_parser = word::<Admission>))]
    pub admission: Admission,
    /// Share left free for work that comes back after faults; by default 0.02 with a model, else 0.
    #[cfg_attr(feature = "cli", arg(long, value_name = "SHARE"))]
    pub recovery_headroom: Option<f64>,
    /// Seconds of waiting that outweigh one step of priority; 0: nothing does.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 10.0, value_name = "S"))]
    pub priority_ageing_s: f64,
    /// Tries of one request at most.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 4, value_name = "N"))]
    pub attempts_max: u32,
    /// Failed transfers in a row after which no pair is made with a machine for a while.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 3, value_name = "N"))]
    pub transfer_failures_max: u32,
    /// Seconds until such a machine is tried again.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 30.0, value_name = "S"))]
    pub aside_s: f64,
    /// Seconds that a machine's report counts without a further one.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 30.0, value_name = "S"))]
    pub report_limit_s: f64,
    /// Seconds until a waiting request ends that no machine known could hold.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 60.0, value_name = "S"))]
    pub unplaceable_limit_s: f64,
    /// Seconds between tries to place what waits.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 1.0, value_name = "S"))]
    pub retry_interval_s: f64,
    /// Seconds that a request may wait in a handoff that does not go on before it is taken back, with a model.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 30.0, value_name = "S"))]
    pub handoff_limit_s: f64,
    /// Seconds without a word of a placement until it expires; 0: it never does.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 60.0, value_name = "S"))]
    pub lease_s: f64,
    /// Seed of every draw.
    #[cfg_attr(feature = "cli", arg(long, default_value_t = 0, value_name = "N"))]
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8090".to_owned(),
            secret_file: None,
            event_log: None,
            event_log_keep: None,
            model: None,
            model_name: None,
            workers: "127.0.0.1:8091".to_owned(),
            grace_s: 5.0,
            reattach_s: 60.0,
            rejoin_limit_s: 5.0,
            hedge_after_s: 0.5,
            tls_cert: None,
            tls_key: None,
            drain_s: 30.0,
            header_timeout_s: 60.0,
            body_timeout_s: 10.0,
            write_timeout_s: 10.0,
            body_bytes_max: 4 << 20,
            bodies_bytes_max: 64 << 20,
            connections_max: 4096,
            batch_max: 65_536,
            machines_max: 65_536,
            events_max: 65_536,
            event_wait_max_s: 60.0,
            log_level: "info".to_owned(),
            policy: PolicyKind::Splitwise,
            prompt_pending_tokens_max: 8192,
            kv_fill_max: 0.95,
            mixed_return: MixedReturn::Drained,
            mixed_hold_s: 0.0,
            reserve: Reserve::AtArrival,
            cut: Cut::AtPrompt,
            transfer: TransferRule::Auto,
            kv_bytes_per_token: None,
            split_from_tokens: 0,
            ties: Ties::First,
            requests_max: 1_000_000,
            admission: Admission::Bounds,
            recovery_headroom: None,
            priority_ageing_s: 10.0,
            attempts_max: 4,
            transfer_failures_max: 3,
            aside_s: 30.0,
            report_limit_s: 30.0,
            unplaceable_limit_s: 60.0,
            retry_interval_s: 1.0,
            handoff_limit_s: 30.0,
            lease_s: 60.0,
            seed: 0,
        }
    }
}

/// Reads a word as the core spells it.
///
/// # Errors
/// What would have been accepted.
pub fn word<T: DeserializeOwned>(given: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::from(given)).map_err(|error| plain(&error.to_string()))
}

/// Seconds as whole nanoseconds.
fn nanoseconds(option: &'static str, seconds: f64) -> Result<u64, OptionError> {
    let ns = (seconds * 1e9).round();
    if (0.0..1e18).contains(&ns) {
        Ok(ns as u64)
    } else {
        Err(OptionError::new(option, "0 to 1000000000 seconds", seconds))
    }
}

fn permille(option: &'static str, share: f64) -> Result<u32, OptionError> {
    if (0.0..=1.0).contains(&share) {
        Ok((share * 1000.0).round() as u32)
    } else {
        Err(OptionError::new(option, "0 to 1", share))
    }
}

impl Options {
    /// Reads them by name; those left out have their defaults.
    ///
    /// # Errors
    /// Which option is unknown or of a wrong type.
    pub fn read<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Self, String> {
        serde_path_to_error::deserialize(from).map_err(|error| match error.path().to_string() {
            path if path == "." => plain(&error.inner().to_string()),
            path => format!("{path}: {}", plain(&error.inner().to_string())),
        })
    }

    /// Checks what the core does not see.
    ///
    /// # Errors
    /// The first option outside its range.
    pub fn validate(&self) -> Result<(), OptionError> {
        let seconds = [
            ("header_timeout_s", self.header_timeout_s),
            ("body_timeout_s", self.body_timeout_s),
            ("write_timeout_s", self.write_timeout_s),
        ];
        for (option, given) in seconds {
            if nanoseconds(option, given)? == 0 {
                return Err(OptionError::new(option, "more than 0 seconds", given));
            }
        }
        nanoseconds("drain_s", self.drain_s)?;
        nanoseconds("event_wait_max_s", self.event_wait_max_s)?;
        nanoseconds("reattach_s", self.reattach_s)?;
        let workers: Result<Address, _> = self.workers.parse();
        workers.map_err(|_| OptionError::new("workers", "host:port or unix:/path", &self.workers))?;
        let counts = [
            ("body_bytes_max", self.body_bytes_max),
            ("connections_max", self.connections_max),
            ("batch_max", self.batch_max),
            ("machines_max", self.machines_max),
            ("events_max", self.events_max),
        ];
        if !(self.body_bytes_max..=u32::MAX as usize).contains(&self.bodies_bytes_max) {
            let expected = format!("body_bytes_max ({}) to {}", self.body_bytes_max, u32::MAX);
            return Err(OptionError::new("bodies_bytes_max", expected, self.bodies_bytes_max));
        }
        if let Some((option, count)) = counts.into_iter().find(|&(_, count)| count == 0) {
            return Err(OptionError::new(option, "at least 1", count));
        }
        if self.event_log_keep == Some(0) {
            return Err(OptionError::new("event_log_keep", "at least 1", 0));
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => Err(OptionError::new("tls_key", "the key of tls_cert", "nothing")),
            (None, Some(_)) => Err(OptionError::new("tls_cert", "the certificate of tls_key", "nothing")),
            _ => self.cluster().map(drop),
        }
    }

    /// What clients and workers call the model, if there is one.
    pub fn model_name(&self) -> Option<String> {
        let folder = || self.model.as_ref().and_then(|model| model.file_name());
        self.model_name.clone().or_else(|| folder().map(|name| name.to_string_lossy().into_owned()))
    }

    /// The core's options.
    ///
    /// # Errors
    /// The first option outside its range.
    pub fn cluster(&self) -> Result<ClusterConfig, OptionError> {
        let nonzero = |ns: u64| (ns > 0).then_some(ns);
        let managed = self.model.is_some();
        let headroom = self.recovery_headroom.unwrap_or(if managed { 0.02 } else { 0.0 });
        let lease_ns = nonzero(nanoseconds("lease_s", self.lease_s)?).filter(|_| !managed);
        let grace_ns = nanoseconds("grace_s", self.grace_s)?;
        let config = ClusterConfig {
            level: if managed { Level::Managed } else { Level::External },
            epoch: if managed { life() } else { Epoch(1) },
            grace_ns: if managed { grace_ns } else { 0 },
            rejoin_limit_ns: nanoseconds("rejoin_limit_s", self.rejoin_limit_s)?,
            hedge_after_ns: nonzero(nanoseconds("hedge_after_s", self.hedge_after_s)?),
            policy: self.policy,
            prompt_pending_tokens_max: self.prompt_pending_tokens_max,
            kv_fill_max_permille: permille("kv_fill_max", self.kv_fill_max)?,
            mixed_return: self.mixed_return,
            mixed_hold_ns: nanoseconds("mixed_hold_s", self.mixed_hold_s)?,
            reserve: self.reserve,
            cut: self.cut,
            transfer: self.transfer,
            kv_bytes_per_token: self.kv_bytes_per_token,
            split_from_tokens: self.split_from_tokens,
            ties: self.ties,
            requests_max: self.requests_max,
            admission: self.admission,
            recovery_headroom_permille: permille("recovery_headroom", headroom)?,
            priority_ageing_ns: nonzero(nanoseconds("priority_ageing_s", self.priority_ageing_s)?),
            attempts_max: self.attempts_max,
            transfer_failures_max: self.transfer_failures_max,
            aside_ns: nanoseconds("aside_s", self.aside_s)?,
            report_limit_ns: nanoseconds("report_limit_s", self.report_limit_s)?,
            unplaceable_limit_ns: nanoseconds("unplaceable_limit_s", self.unplaceable_limit_s)?,
            retry_interval_ns: nanoseconds("retry_interval_s", self.retry_interval_s)?,
            park_limit_ns: nanoseconds("handoff_limit_s", self.handoff_limit_s)?,
            lease_ns,
            seed: self.seed,
            ..ClusterConfig::default()
        };
        let core = |error: splitcore_core::config::ConfigError| {
            let option = match error.option {
                "kv_fill_max_permille" => "kv_fill_max",
                "recovery_headroom_permille" => "recovery_headroom",
                "aside_ns" => "aside_s",
                "report_limit_ns" => "report_limit_s",
                "unplaceable_limit_ns" => "unplaceable_limit_s",
                "retry_interval_ns" => "retry_interval_s",
                "park_limit_ns" => "handoff_limit_s",
                "rejoin_limit_ns" => "rejoin_limit_s",
                "grace_ns" => "grace_s",
                other => other,
            };
            OptionError::new(option, error.expected, error.got)
        };
        config.validate().map_err(core)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, String> {
        Options::read(&mut serde_json::Deserializer::from_str(text))
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let options = read("{\"policy\": \"jsq\", \"drain_s\": 2}").expect("options");
        assert_eq!(options, Options { policy: PolicyKind::Jsq, drain_s: 2.0, ..Options::default() });
        assert_eq!(options.validate(), Ok(()));
    }

    #[test]
    fn an_error_names_its_option() {
        let policies = "splitwise, jsq, least-requests, round-robin, power-of-two";
        let fifo = read("{\"policy\": \"fifo\"}");
        assert_eq!(fifo, Err(format!("policy: expected one of {policies}, got 'fifo'")));
        let many = read("{\"attempts_max\": \"many\"}");
        assert!(many.is_err_and(|error| {
            error.starts_with("attempts_max: expected a whole number of 0 to 4294967295")
        }));
        assert!(read("{\"speed\": 1}").is_err_and(|error| error.contains("unknown field `speed`")));
        let named = |options: Options| options.validate().expect_err("out of range").option;
        assert_eq!(named(Options { kv_fill_max: 1.5, ..Options::default() }), "kv_fill_max");
        assert_eq!(named(Options { retry_interval_s: 0.0, ..Options::default() }), "retry_interval_s");
        assert_eq!(named(Options { handoff_limit_s: 0.0, ..Options::default() }), "handoff_limit_s");
        assert_eq!(named(Options { event_log_keep: Some(0), ..Options::default() }), "event_log_keep");
        assert_eq!(named(Options { body_timeout_s: 0.0, ..Options::default() }), "body_timeout_s");
        assert_eq!(named(Options { lease_s: f64::NAN, ..Options::default() }), "lease_s");
        assert_eq!(named(Options { bodies_bytes_max: 4 << 10, ..Options::default() }), "bodies_bytes_max");
        assert_eq!(named(Options { connections_max: 0, ..Options::default() }), "connections_max");
        assert_eq!(named(Options { tls_key: Some("key".into()), ..Options::default() }), "tls_cert");
    }

    #[cfg(feature = "cli")]
    #[test]
    fn the_command_line_has_the_same_defaults() {
        use clap::{Args, FromArgMatches};
        let command = Options::augment_args(clap::Command::new("test"));
        let matches = command.get_matches_from(["test"]);
        assert_eq!(Options::from_arg_matches(&matches).expect("options"), Options::default());
    }
}
