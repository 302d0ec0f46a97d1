//! Makes a probe: runs it and holds it against its objectives.
//!
//! Metrics are the simulator's: over all submitted requests, one that did not finish is infinitely slow, percentiles are
//! linear between ranks, limits are strict. A request of one token has no time between tokens; a percentile over nothing
//! breaks no limit; a class without requests meets nothing.

mod watch;

use splitcore_sim::report::{Reference, RequestRow, TbtRule, between, slowdown};
use splitcore_sim::workload::TrafficClass;
use splitcore_sim::{Run, Scenario, SimError};

use crate::probe::{Finding, Probe, Verdict};
use crate::slo::{ClassSlo, Metric, SloSet};
use watch::Watch;

/// Simulates the probe and judges it. The same probe has the same verdict on every machine.
///
/// Unless the probe is [`Probe::whole`], the run ends as soon as an objective is lost for certain. Whether it is met does
/// not hang on that.
///
/// # Errors
/// Options that cannot be, or a stuck run.
pub fn judge(probe: &Probe) -> Result<Verdict, SimError> {
    let case = Case::new(probe)?;
    if probe.whole {
        return Ok(case.verdict(&case.scenario.run(())?, &[]));
    }
    let mut watch = Watch::new(&case);
    let run = case.scenario.run(&mut watch)?;
    Ok(case.verdict(&run, watch.lost()))
}

/// What a probe runs: its options with the traffic of its objectives.
pub(crate) fn scenario(probe: &Probe) -> Result<Scenario, SimError> {
    let slo = &probe.slo;
    slo.check()?;
    let mut options = probe.options.clone();
    if is_split(slo) {
        let traffic: Vec<_> = slo.classes.iter().map(|class| class.traffic.clone()).collect();
        if !options.classes.is_empty() && options.classes != traffic {
            let expected = format!("none beside those of the objectives `{}`", slo.name);
            return Err(SimError::config("classes", expected, "others"));
        }
        options.classes = traffic;
    }
    Scenario::new(&options)
}

/// Whether the objectives bring their own traffic.
fn is_split(slo: &SloSet) -> bool {
    let is_plain = |class: &ClassSlo| {
        let plain = TrafficClass {
            name: class.traffic.name.clone(),
            share: class.traffic.share,
            ..TrafficClass::default()
        };
        class.traffic == plain
    };
    slo.classes.len() > 1 || !slo.classes.iter().all(is_plain)
}

/// A scenario and what its requests are held against.
struct Case<'a> {
    scenario: Scenario,
    slo: &'a SloSet,
    rules: Vec<Rule>,
    /// The rules of each class: where they begin, and their end.
    classes: Vec<std::ops::Range<usize>>,
    tbt_rule: TbtRule,
    /// Whether classes are those of the scenario; else there is one.
    is_split: bool,
}

/// One objective, as far as single requests are concerned.
struct Rule {
    /// Strict limits on one request.
    limits: Vec<(Metric, f64)>,
    /// A request that ends without having finished misses it, whatever the limits.
    must_finish: bool,
    /// It is lost once this many requests are known to miss it.
    lost_from: usize,
}

impl<'a> Case<'a> {
    fn new(probe: &'a Probe) -> Result<Self, SimError> {
        let slo = &probe.slo;
        let is_split = is_split(slo);
        let scenario = scenario(probe)?;
        let mut case = Self {
            tbt_rule: scenario.tbt_rule(),
            scenario,
            slo,
            rules: Vec::new(),
            classes: Vec::new(),
            is_split,
        };
        for (at, class) in slo.classes.iter().enumerate() {
            let first = case.rules.len();
            case.add_rules(at, class);
            case.classes.push(first..case.rules.len());
        }
        Ok(case)
    }

    fn add_rules(&mut self, at: usize, class: &ClassSlo) {
        let (mut all, mut of_two) = (0, 0);
        for (id, request) in self.scenario.requests().iter().enumerate() {
            if self.class_of(id) == at {
                all += 1;
                of_two += usize::from(request.output_tokens > 1);
            }
        }
        for limit in &class.limits {
            let count = if limit.metric.is_between_tokens() { of_two } else { all };
            let lost_from = match (all, count) {
                (0, _) => 0,
                (_, 0) => usize::MAX,
                _ => count - rank(limit.percentile, count).0,
            };
            let limits = vec![(limit.metric, limit.below)];
            self.rules.push(Rule { limits, must_finish: false, lost_from });
        }
        for attainment in &class.attainments {
            let is_lost = |missed: usize| !reaches(all - missed, all, attainment.share);
            let lost_from = (0..=all).find(|&missed| is_lost(missed)).unwrap_or(usize::MAX);
            self.rules.push(Rule { limits: attainment.limits.clone(), must_finish: true, lost_from });
        }
    }

    /// Of the objectives.
    fn class_of(&self, request: usize) -> usize {
        if self.is_split { self.scenario.class_of(request) } else { 0 }
    }

    /// A metric of one request; none between the tokens of a request of one.
    fn value(&self, metric: Metric, row: &RequestRow, idle: Reference) -> Option<f64> {
        Some(match metric {
            Metric::TtftS => row.ttft_metric_ns() / 1e9,
            Metric::TpotS => row.tbt_metric_ns(TbtRule::MeanGap)? / 1e9,
            Metric::E2eS => row.e2e_metric_ns() / 1e9,
            Metric::TtftSlowdown => slowdown(row.ttft_metric_ns(), idle.ttft_ns),
            Metric::TbtSlowdown => slowdown(row.tbt_metric_ns(self.tbt_rule)?, idle.tbt_ns),
            Metric::E2eSlowdown => slowdown(row.e2e_metric_ns(), idle.e2e_ns),
        })
    }

    /// Whether a request has missed a rule, given times that are final or else will only grow.
    fn misses(&self, rule: &Rule, row: &RequestRow, idle: Reference) -> bool {
        let over = |&(metric, below)| self.value(metric, row, idle).is_some_and(|value| value >= below);
        rule.must_finish && !row.finished() || rule.limits.iter().any(over)
    }

    /// `lost` are the rules that were lost when the run ended, if it ended early.
    fn verdict(&self, run: &Run, lost: &[bool]) -> Verdict {
        let cut_short = run.rows.iter().any(|row| row.outcome == splitcore_sim::report::Outcome::Unfinished);
        let mut findings = Vec::with_capacity(self.rules.len());
        for (at, class) in self.slo.classes.iter().enumerate() {
            if cut_short {
                let lost = &lost[self.classes[at].clone()];
                findings.extend(
                    class
                        .findings()
                        .zip(lost)
                        .map(|(finding, &lost)| Finding { met: lost.then_some(false), ..finding }),
                );
            } else {
                self.judge_class(at, class, &run.rows, &mut findings);
            }
        }
        Verdict {
            met: findings.iter().all(|finding| finding.met == Some(true)),
            findings,
            requests: run.rows.len() as u64,
            completed: run.rows.iter().filter(|row| row.finished()).count() as u64,
            events: run.events,
            cut_short,
            out_of_range_lookups: run.out_of_range_lookups,
        }
    }

    /// Every value of a class, from the rows of a whole run.
    fn judge_class(&self, at: usize, class: &ClassSlo, rows: &[RequestRow], findings: &mut Vec<Finding>) {
        let of_class = rows.iter().enumerate().filter(|&(id, _)| self.class_of(id) == at);
        let idle = |row: &RequestRow| self.scenario.idle(row.prompt_tokens, row.output_tokens);
        let rows: Vec<_> = of_class.map(|(_, row)| (row, idle(row))).collect();
        let mut sorted: Vec<(Metric, Vec<f64>)> = Vec::new();
        let rules = &self.rules[self.classes[at].clone()];
        for (index, mut finding) in class.findings().enumerate() {
            if let Some(limit) = class.limits.get(index) {
                let known = sorted.iter().position(|&(metric, _)| metric == limit.metric);
                let known = known.unwrap_or_else(|| {
                    let values = rows.iter().filter_map(|(row, idle)| self.value(limit.metric, row, *idle));
                    let mut values: Vec<f64> = values.collect();
                    values.sort_unstable_by(f64::total_cmp);
                    sorted.push((limit.metric, values));
                    sorted.len() - 1
                });
                let found = percentile(&sorted[known].1, limit.percentile);
                finding.found = found.filter(|found| found.is_finite());
                finding.met = Some(!rows.is_empty() && found.is_none_or(|found| found < limit.below));
            } else {
                let kept = rows.iter().filter(|(row, idle)| !self.misses(&rules[index], row, *idle)).count();
                finding.found = (!rows.is_empty()).then(|| kept as f64 / rows.len() as f64);
                finding.met = Some(reaches(kept, rows.len(), finding.limit));
            }
            findings.push(finding);
        }
    }
}

/// Whether a share is reached; none is of nothing.
fn reaches(kept: usize, all: usize, share: f64) -> bool {
    all > 0 && kept as f64 / all as f64 >= share
}

/// Where a percentile of `count` values (at least one) lies: how many are below it, and the way to the next as a share.
///
/// In integers, percentiles to a millionth, so that a whole rank does not touch its neighbour.
fn rank(percentile: f64, count: usize) -> (usize, f64) {
    const PARTS: u128 = 100_000_000;
    let scaled = (percentile * 1e6).round() as u128 * (count as u128 - 1);
    ((scaled / PARTS) as usize, (scaled % PARTS) as f64 / PARTS as f64)
}

fn percentile(sorted: &[f64], percentile: f64) -> Option<f64> {
    if sorted.is_empty() {
        return None;
    }
    let (rank, share) = rank(percentile, sorted.len());
    let low = sorted[rank];
    Some(sorted.get(rank + 1).map_or(low, |&high| between(low, high, share)))
}

#[cfg(test)]
mod tests;
