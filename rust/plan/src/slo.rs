//! Service-level objectives as a user states them, for one or several classes of traffic.
//!
//! A file of objectives is TOML. Either all traffic has the same:
//!
//! ```toml
//! # Percentiles of ttft_s, tpot_s, e2e_s, ttft_slowdown, tbt_slowdown or e2e_slowdown that stay below a limit.
//! ttft_s = { p90 = 0.4, p99 = 1.0, "p99.9" = 4.0 }
//! e2e_slowdown = { p50 = 1.25 }
//!
//! # At least this share of the requests keeps all these limits at once.
//! [[attainment]]
//! share = 0.9
//! ttft_s = 0.4
//! tpot_s = 0.1
//! ```
//!
//! Or of classes of traffic, each with its part of the rate and objectives of its own:
//!
//! ```toml
//! [[class]]
//! name = "chat"
//! trace = "azure-conv"    # a built-in workload or a file; the run's trace unless said
//! share = 0.7             # in any unit
//! priority = 1            # 0 unless said; where accepted requests wait, the higher goes first
//! slo_ttft_s = 0.4        # what its arrivals are held against, where admission is; the run's unless said
//! slo_tbt_s = 0.1
//! ttft_s = { p90 = 0.4 }
//!
//! [[class.attainment]]
//! share = 0.99
//! tpot_s = 0.2
//! ```
//!
//! Limits are strict, shares are reached by equality.

mod read;

use std::path::Path;

use serde::{Deserialize, Serialize};
use splitcore_sim::SimError;
use splitcore_sim::report::{Percentiles, SloLimits};
use splitcore_sim::workload::TrafficClass;

use crate::probe::Finding;

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Seconds to the first token.
    TtftS,
    /// Seconds between tokens, averaged over a request: (E2E - TTFT) / (N - 1).
    TpotS,
    /// Seconds to the last token.
    E2eS,
    /// TTFT over that of the same request alone on the idle reference machine.
    TtftSlowdown,
    /// Mean time between tokens over that of the idle reference, by the cost model's rule.
    TbtSlowdown,
    /// E2E over that of the idle reference.
    E2eSlowdown,
}

impl Metric {
    /// All, with the names that files and findings have for them.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::TtftS, "ttft_s"),
        (Self::TpotS, "tpot_s"),
        (Self::E2eS, "e2e_s"),
        (Self::TtftSlowdown, "ttft_slowdown"),
        (Self::TbtSlowdown, "tbt_slowdown"),
        (Self::E2eSlowdown, "e2e_slowdown"),
    ];

    /// As in files.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|&&(metric, _)| metric == self).map_or("", |&(_, name)| name)
    }

    /// Whether a request of one token has none of it.
    pub fn is_between_tokens(self) -> bool {
        matches!(self, Self::TpotS | Self::TbtSlowdown)
    }
}

/// A percentile that must stay below a limit, over all submitted requests of a class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Of what.
    pub metric: Metric,
    /// Above 0, below 100.
    pub percentile: f64,
    /// Strict: equal misses it.
    pub below: f64,
}

/// A share of requests that must keep several limits at once. One that does not finish keeps none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attainment {
    /// Above 0, up to 1; reached by equality.
    pub share: f64,
    /// Strict limits on one request; a request of one token has no time between tokens to keep.
    pub limits: Vec<(Metric, f64)>,
}

/// The objectives of one class of traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassSlo {
    /// Its traffic.
    pub traffic: TrafficClass,
    /// Percentiles to keep.
    pub limits: Vec<Limit>,
    /// Joint attainments to reach.
    pub attainments: Vec<Attainment>,
}

/// A set of objectives: all must hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SloSet {
    /// For reports: its built-in name, or its file without the folder.
    pub name: String,
    /// At least one; one without a trace of its own is all the traffic there is.
    pub classes: Vec<ClassSlo>,
}

/// DistServe's applications with their limits on TTFT and TPOT in seconds.
const DISTSERVE: [(&str, f64, f64); 5] = [
    ("chat-13b", 0.25, 0.1),
    ("chat-66b", 0.4, 0.1),
    ("chat-175b", 4.0, 0.2),
    ("code-66b", 0.125, 0.2),
    ("summarise-66b", 15.0, 0.15),
];
/// Of requests that must keep both.
const DISTSERVE_PERCENTS: [u32; 3] = [90, 95, 99];

impl ClassSlo {
    /// What will be found of each objective, with nothing known yet.
    pub(crate) fn findings(&self) -> impl Iterator<Item = Finding> {
        let limits = self
            .limits
            .iter()
            .map(|limit| (format!("{} p{}", limit.metric.name(), limit.percentile), limit.below));
        let attainments = self.attainments.iter().map(|attainment| {
            // 0.07 * 100 is not 7.
            let percent = (attainment.share * 1e8).round() / 1e6;
            (format!("attainment {percent} %"), attainment.share)
        });
        limits.chain(attainments).map(|(objective, limit)| Finding {
            class: self.traffic.name.clone(),
            objective,
            limit,
            found: None,
            met: None,
        })
    }
}

impl SloSet {
    /// The built-in sets: `splitwise`, the nine limits on slowdowns of the Splitwise paper, and
    /// `distserve-APP-PERCENT`, the share of requests that keep DistServe's limits on TTFT and TPOT at once.
    pub fn names() -> Vec<String> {
        let distserve = DISTSERVE.iter().flat_map(|(app, ..)| {
            DISTSERVE_PERCENTS.iter().map(move |percent| format!("distserve-{app}-{percent}"))
        });
        std::iter::once("splitwise".to_owned()).chain(distserve).collect()
    }

    /// A built-in set.
    pub fn named(name: &str) -> Option<Self> {
        if name == "splitwise" {
            let SloLimits { ttft, tbt, e2e, .. } = SloLimits::default();
            let sets = [(Metric::TtftSlowdown, ttft), (Metric::TbtSlowdown, tbt), (Metric::E2eSlowdown, e2e)];
            let limits = sets.into_iter().flat_map(|(metric, Percentiles { p50, p90, p99 })| {
                [(50.0, p50), (90.0, p90), (99.0, p99)].map(|(percentile, below)| Limit {
                    metric,
                    percentile,
                    below,
                })
            });
            return Some(Self::of_all_traffic(name, limits.collect(), Vec::new()));
        }
        let (app, percent) = name.strip_prefix("distserve-")?.rsplit_once('-')?;
        let &(_, ttft_s, tpot_s) = DISTSERVE.iter().find(|&&(known, ..)| known == app)?;
        let percent = DISTSERVE_PERCENTS.into_iter().find(|known| known.to_string() == percent)?;
        let limits = vec![(Metric::TtftS, ttft_s), (Metric::TpotS, tpot_s)];
        let attainment = Attainment { share: f64::from(percent) / 100.0, limits };
        Some(Self::of_all_traffic(name, Vec::new(), vec![attainment]))
    }

    /// The set of a file, in the format of this module.
    ///
    /// # Errors
    /// A file that cannot be read, or holds something else.
    pub fn read(path: &Path) -> Result<Self, SimError> {
        read::read(path)
    }

    /// A built-in set by its name, or else the set of a file.
    ///
    /// # Errors
    /// As [`SloSet::read`]; neither a name nor a file.
    pub fn parse(name_or_path: &str) -> Result<Self, SimError> {
        if let Some(set) = Self::named(name_or_path) {
            return Ok(set);
        }
        let path = Path::new(name_or_path);
        if path.exists() {
            return Self::read(path);
        }
        let expected = format!("a file or one of {}", Self::names().join(", "));
        Err(SimError::config("slo", expected, format!("`{name_or_path}`")))
    }

    /// One class, called `all`.
    fn of_all_traffic(name: &str, limits: Vec<Limit>, attainments: Vec<Attainment>) -> Self {
        let traffic = TrafficClass { name: "all".into(), trace: None, share: 1.0, ..TrafficClass::default() };
        Self { name: name.into(), classes: vec![ClassSlo { traffic, limits, attainments }] }
    }

    /// What a file is checked for as it is read, for sets that come from elsewhere.
    pub(crate) fn check(&self) -> Result<(), SimError> {
        let wrong = |expected: &str, got: String| Err(SimError::config("slo", expected, got));
        if self.classes.is_empty() {
            return wrong("at least one class", format!("none in `{}`", self.name));
        }
        for (at, class) in self.classes.iter().enumerate() {
            let name = &class.traffic.name;
            if self.classes[..at].iter().any(|earlier| earlier.traffic.name == *name) {
                return wrong("each class once", format!("`{name}` again"));
            }
            if class.limits.is_empty() && class.attainments.is_empty() {
                return wrong("at least one objective for each class", format!("none for `{name}`"));
            }
            if let Some(limit) = class.limits.iter().find(|limit| !is_percentile(limit.percentile)) {
                return wrong(PERCENTILE, format!("{} for `{name}`", limit.percentile));
            }
            if let Some(each) = class.attainments.iter().find(|each| !is_share(each.share)) {
                return wrong(SHARE, format!("{} for `{name}`", each.share));
            }
            if class.attainments.iter().any(|each| each.limits.is_empty()) {
                return wrong("at least one limit for each attainment", format!("none for `{name}`"));
            }
            let joint = class.attainments.iter().flat_map(|each| &each.limits).map(|&(_, below)| below);
            let mut all = class.limits.iter().map(|limit| limit.below).chain(joint);
            if let Some(limit) = all.find(|&limit| !is_limit(limit)) {
                return wrong(LIMIT, format!("{limit} for `{name}`"));
            }
        }
        Ok(())
    }
}

const PERCENTILE: &str = "a percentile above 0 and below 100, of at most 6 decimals";
const SHARE: &str = "a share above 0, up to 1";
const LIMIT: &str = "a limit above 0";

/// Ranks are worked out from millionths of a percent.
fn is_percentile(percentile: f64) -> bool {
    percentile > 0.0 && percentile < 100.0 && (percentile * 1e6).round() / 1e6 == percentile
}

fn is_share(share: f64) -> bool {
    share > 0.0 && share <= 1.0
}

fn is_limit(limit: f64) -> bool {
    limit > 0.0 && limit.is_finite()
}

#[cfg(test)]
mod tests;
