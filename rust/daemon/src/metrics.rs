//! What `/metrics` shows: base units, counters that end in `_total`, labels from short fixed lists.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hyper::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use splitcore_core::cluster::MachineState;
use splitcore_core::event::Role;

use crate::host::{KvTotals, Overview, REJECTIONS, STATES};
use crate::openai::metrics::Series;

type Share = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pool {
    pool: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolStat {
    pool: &'static str,
    stat: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Class {
    class: &'static str,
}

/// Everything that is counted or measured.
pub struct Metrics {
    registry: Registry,
    decision: Histogram,
    answers: [Counter; 3],
    connections: Gauge,
    refused_connections: Counter,
    live: Gauge,
    parked: Gauge,
    placements: Counter,
    retries: Counter,
    late: Counter,
    expired: Counter,
    moved: Counter,
    ended: Family<OutcomeLabel, Counter>,
    rejected: Family<Reason, Counter>,
    violations: Family<Kind, Counter>,
    machines: Family<StateLabel, Gauge>,
    pool_machines: Family<Pool, Gauge>,
    queue_tokens: Family<PoolStat, Share>,
    kv_usage: Family<PoolStat, Share>,
    kv_blocks: Family<StateLabel, Gauge>,
    transfers: Family<OutcomeLabel, Counter>,
    evictions: Counter,
    gateway: Series,
}

fn state_name(state: MachineState) -> &'static str {
    match state {
        MachineState::Up => "up",
        MachineState::Away => "away",
        MachineState::Quarantined => "quarantined",
        MachineState::Draining => "draining",
        MachineState::Lost => "lost",
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Prompt => "prompt",
        Role::Token => "token",
        Role::Mixed => "mixed",
    }
}

/// Sets a gauge to a count.
fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// A counter that the core keeps: it takes over its value.
fn follow(counter: &Counter, value: u64) {
    counter.inner().store(value, std::sync::atomic::Ordering::Relaxed);
}

impl Metrics {
    /// All at zero.
    pub(crate) fn new() -> Self {
        let answers: Family<Class, Counter> = Family::default();
        let class = |class| answers.get_or_create_owned(&Class { class });
        let metrics = Self {
            registry: Registry::with_prefix("splitcore"),
            // 1 us to 4 s.
            decision: Histogram::new(exponential_buckets(1e-6, 2.0, 23)),
            answers: [class("2xx"), class("4xx"), class("5xx")],
            connections: Gauge::default(),
            refused_connections: Counter::default(),
            live: Gauge::default(),
            parked: Gauge::default(),
            placements: Counter::default(),
            retries: Counter::default(),
            late: Counter::default(),
            expired: Counter::default(),
            moved: Counter::default(),
            ended: Family::default(),
            rejected: Family::default(),
            violations: Family::default(),
            machines: Family::default(),
            pool_machines: Family::default(),
            queue_tokens: Family::default(),
            kv_usage: Family::default(),
            kv_blocks: Family::default(),
            transfers: Family::default(),
            evictions: Counter::default(),
            gateway: Series::new(),
        };
        metrics.registered(answers)
    }

    fn registered(mut self, answers: Family<Class, Counter>) -> Self {
        let of = &mut self.registry;
        of.register_with_unit(
            "decision_duration",
            "From the receipt of a placement call to its answer",
            Unit::Seconds,
            self.decision.clone(),
        );
        of.register("http_responses", "Answers by class of status", answers);
        of.register("http_connections", "Open connections", self.connections.clone());
        of.register(
            "http_connections_refused",
            "Connections beyond connections_max",
            self.refused_connections.clone(),
        );
        of.register("placements_live", "Requests that are placed or wait", self.live.clone());
        of.register("placements_parked", "Accepted requests that wait", self.parked.clone());
        of.register("placements", "Placements made, further attempts included", self.placements.clone());
        of.register("faults", "Faults that cost a request its placement", self.retries.clone());
        of.register("late_facts", "Facts about what is over", self.late.clone());
        of.register("leases_expired", "Placements that nobody touched in time", self.expired.clone());
        of.register("pool_moves", "Machines that changed pools", self.moved.clone());
        of.register("placements_ended", "Requests by how they ended", self.ended.clone());
        of.register("placements_rejected", "Arrivals turned away, by reason", self.rejected.clone());
        of.register(
            "worker_violations",
            "Sessions of workers that ended because of what they said, by the message",
            self.violations.clone(),
        );
        of.register("machines", "Machines by state", self.machines.clone());
        of.register("pool_machines", "Machines that take work, by pool", self.pool_machines.clone());
        of.register("pool_queue_tokens", "Prompt tokens that wait on a machine", self.queue_tokens.clone());
        of.register("pool_kv_usage_ratio", "Share of a machine's KV tokens in use", self.kv_usage.clone());
        of.register(
            "kv_blocks",
            "KV blocks of the workers by state, as last reported",
            self.kv_blocks.clone(),
        );
        of.register(
            "transfers",
            "KV transfers between workers, by what they came to",
            self.transfers.clone(),
        );
        of.register(
            "evictions",
            "Requests that lost their blocks and were recomputed",
            self.evictions.clone(),
        );
        self.gateway.register(of);
        self
    }

    /// What is counted of requests that get tokens here.
    pub(crate) fn gateway(&self) -> &Series {
        &self.gateway
    }

    /// A placement call has been answered.
    pub(crate) fn decided(&self, took: Duration) {
        self.decision.observe(took.as_secs_f64());
    }

    /// Some call has been answered.
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = match status.as_u16() {
            500.. => 2,
            400.. => 1,
            _ => 0,
        };
        self.answers[class].inc();
    }

    pub(crate) fn connected(&self) {
        self.connections.inc();
    }

    pub(crate) fn disconnected(&self) {
        self.connections.dec();
    }

    pub(crate) fn refused(&self) {
        self.refused_connections.inc();
    }

    /// The text of a scrape.
    pub(crate) fn text(&self, now: &Overview) -> String {
        self.follow_all(now);
        let mut text = String::with_capacity(8192);
        if encode(&mut text, &self.registry).is_err() {
            tracing::error!("the metrics could not be written");
        }
        text
    }

    fn follow_kv(&self, now: &KvTotals) {
        let held = now.blocks.saturating_sub(now.free + now.quarantined);
        for (state, blocks) in [("free", now.free), ("held", held), ("quarantined", now.quarantined)] {
            set(&self.kv_blocks.get_or_create_owned(&StateLabel { state }), blocks as usize);
        }
        for (outcome, count) in [("landed", now.landed), ("failed", now.failed), ("refused", now.refused)] {
            follow(&self.transfers.get_or_create_owned(&OutcomeLabel { outcome }), count);
        }
        follow(&self.evictions, now.evicted);
    }

    fn follow_all(&self, now: &Overview) {
        if let Some(kv) = &now.kv {
            self.follow_kv(kv);
        }
        set(&self.live, now.live);
        set(&self.parked, now.parked);
        follow(&self.placements, now.counters.placed);
        follow(&self.retries, now.counters.faults);
        follow(&self.late, now.counters.late);
        follow(&self.expired, now.totals.expired);
        follow(&self.moved, now.totals.moved);
        let failed = now.counters.failed.saturating_sub(now.totals.expired);
        let ends = [
            ("finished", now.counters.finished),
            ("cancelled", now.counters.cancelled),
            ("failed", failed),
            ("expired", now.totals.expired),
        ];
        for (outcome, count) in ends {
            follow(&self.ended.get_or_create_owned(&OutcomeLabel { outcome }), count);
        }
        for (reason, count) in REJECTIONS.into_iter().zip(now.totals.rejected) {
            follow(&self.rejected.get_or_create_owned(&Reason { reason: reason.name() }), count);
        }
        for &(kind, count) in &now.violations {
            follow(&self.violations.get_or_create_owned(&Kind { kind }), count);
        }
        for (state, count) in STATES.into_iter().zip(now.states) {
            let label = StateLabel { state: state_name(state) };
            set(&self.machines.get_or_create_owned(&label), count);
        }
        for pool in &now.pools {
            let name = role_name(pool.pool);
            set(&self.pool_machines.get_or_create_owned(&Pool { pool: name }), pool.machines);
            for (family, spread) in [(&self.queue_tokens, pool.queue_tokens), (&self.kv_usage, pool.kv_usage)]
            {
                for (stat, value) in [("mean", spread.mean), ("max", spread.max), ("stddev", spread.std_dev)]
                {
                    family.get_or_create_owned(&PoolStat { pool: name, stat }).set(value);
                }
            }
        }
    }
}
