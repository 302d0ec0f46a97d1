//! Why nothing holds: what each limit would have to be, the others kept.

use super::answer::Binding;
use super::cheapest::{Care, Cheapest};
use super::judged::{Inquiry, Judged, Question};
use super::space::{Pools, Quantity, Space};
use super::spec::{Goal, Limits, ProvisionSpec};
use crate::probe::{Finding, Verdict};

/// Pools are tried up to this many times the largest allowed.
const GROWTHS: [u32; 2] = [2, 4];

/// One design's smallest limit on its pools, in steps.
#[derive(Debug, Clone)]
struct Growth {
    design: usize,
    fails: u32,
    holds: Option<u32>,
}

/// How large pools would have to be allowed to become.
#[derive(Debug, Clone)]
struct Larger {
    space: Space,
    limits: Limits,
    rate: f64,
    /// Tried in this order until one holds.
    steps: Vec<u32>,
    growths: Vec<Growth>,
}

impl Larger {
    /// `fails` steps are known to be too few.
    fn new(space: &Space, limits: Limits, rate: f64, designs: usize, fails: u32, steps: Vec<u32>) -> Self {
        let growths = (0..designs).map(|design| Growth { design, fails, holds: None }).collect();
        Self { space: space.clone(), limits, rate, steps, growths }
    }

    fn outermost(&self, design: usize, steps: u32) -> Vec<Pools> {
        self.space.grid(design, &self.limits, steps * self.space.step()).outermost()
    }

    /// The fewest steps with which any design holds.
    fn least(&self) -> Option<u32> {
        self.growths.iter().filter_map(|growth| growth.holds).min()
    }
}

impl Inquiry for Larger {
    fn next(&mut self, judged: &Judged) -> Vec<Question> {
        let mut unknown = Vec::new();
        for at in 0..self.growths.len() {
            while let Some(steps) = self.growths[at].steps(&self.steps) {
                let outermost = self.outermost(self.growths[at].design, steps);
                let its = judged.unknown(outermost.iter().copied(), self.rate);
                if !its.is_empty() {
                    unknown.extend(its);
                    break;
                }
                if outermost.iter().any(|&pools| judged.get(pools, self.rate) == Some(true)) {
                    self.growths[at].holds = Some(steps);
                } else {
                    self.growths[at].fails = steps;
                }
            }
        }
        unknown
    }

    fn left(&self) -> u64 {
        self.growths.iter().filter(|growth| growth.steps(&self.steps).is_some()).count() as u64
    }
}

impl Growth {
    /// The next to try; none when it is known, or nothing helps.
    fn steps(&self, all: &[u32]) -> Option<u32> {
        match self.holds {
            None => all.iter().copied().find(|&steps| steps > self.fails),
            Some(holds) => (holds - self.fails > 1).then(|| self.fails.midpoint(holds)),
        }
    }
}

/// The search for what binds.
#[derive(Debug, Clone)]
pub(super) struct WhyNot {
    space: Space,
    goal: Goal,
    rate: f64,
    limits: Limits,
    machines_max: u32,
    designs: usize,
    /// Each limit lifted, and what holds then with the least of it.
    lifted: Vec<(Quantity, f64, Cheapest)>,
    larger: Larger,
    /// All lifted, if no single one helps.
    unlimited: Option<Larger>,
    cheapest: Option<Cheapest>,
}

impl WhyNot {
    pub(super) fn new(space: &Space, spec: &ProvisionSpec, rate: f64) -> Self {
        let (limits, machines_max, designs) = (spec.limits, spec.machines_max, spec.designs.len());
        let lifted = Quantity::ALL.into_iter().filter_map(|quantity| {
            let limit = quantity.limit(&limits)?;
            let grids = space.grids(&quantity.lifted(limits), machines_max);
            Some((quantity, limit, Cheapest::new(space, quantity.goal(), rate, Care::Edge, grids)))
        });
        let steps = machines_max / space.step();
        let growths = GROWTHS.map(|times| times * steps).to_vec();
        Self {
            lifted: lifted.collect(),
            larger: Larger::new(space, limits, rate, designs, steps, growths),
            unlimited: None,
            cheapest: None,
            space: space.clone(),
            goal: spec.goal,
            rate,
            limits,
            machines_max,
            designs,
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// The largest clusters tried, one of each design, if not even they hold: then it is the objectives.
    pub(super) fn hopeless(&self, judged: &Judged) -> Option<Vec<Pools>> {
        let is_limited = self.limits != Limits::default();
        let largest = if is_limited { self.unlimited.as_ref()? } else { &self.larger };
        let nothing = largest.least().is_none() && !self.helps(judged);
        let steps = *largest.steps.last()?;
        let all = (0..self.designs).flat_map(|design| largest.outermost(design, steps));
        nothing.then(|| all.collect())
    }

    /// Whether lifting a single limit helps.
    fn helps(&self, judged: &Judged) -> bool {
        self.larger.least().is_some()
            || self.lifted.iter().any(|(_, _, cheapest)| cheapest.best_of_all(judged).is_some())
    }

    /// What was found, of objectives apart.
    pub(super) fn bindings(&self, judged: &Judged) -> Vec<Binding> {
        let together = self.cheapest.as_ref().and_then(|cheapest| cheapest.best_of_all(judged));
        let lifted = self.lifted.iter().map(|(quantity, limit, cheapest)| {
            let best = cheapest.best_of_all(judged);
            self.binding_of_quantity(*quantity, *limit, best, together)
        });
        lifted.chain([self.binding_of_machines(together)]).collect()
    }

    fn binding_of_quantity(
        &self,
        quantity: Quantity,
        limit: f64,
        best: Option<Pools>,
        together: Option<Pools>,
    ) -> Binding {
        let (name, unit) = (quantity.name(), quantity.unit());
        let takes = |pools: Pools| quantity.of(&self.space.total(pools));
        let told = |pools: Pools| {
            format!("{} {unit}, {}", number(takes(pools)), compared(takes(pools), limit, unit))
        };
        let text = match (best, together) {
            (Some(best), _) => {
                let (rate, cluster) = (number(self.rate), self.space.told(best));
                format!("{name}: the least that holds {rate} a second, {cluster}, takes {}", told(best))
            }
            (None, Some(pools)) => format!("{}; {} takes {}", alone(name), self.together(pools), told(pools)),
            (None, None) => alone(name),
        };
        Binding { constraint: name.into(), limit, needed: best.map(takes), text }
    }

    fn binding_of_machines(&self, together: Option<Pools>) -> Binding {
        let name = "machines_max";
        let limit = f64::from(self.machines_max);
        let machines = |steps: u32| f64::from(steps * self.space.step());
        let needed = self.larger.least().map(machines);
        let largest = |pools: Pools| f64::from(pools.prompt.max(pools.token));
        let told = |needed: f64| format!("{} machines, {}", number(needed), compared(needed, limit, ""));
        let text = match (needed, together) {
            (Some(needed), _) => {
                format!(
                    "{name}: to hold {} a second takes pools of up to {}",
                    number(self.rate),
                    told(needed)
                )
            }
            (None, Some(pools)) => {
                format!(
                    "{}; {} has pools of up to {}",
                    alone(name),
                    self.together(pools),
                    told(largest(pools))
                )
            }
            (None, None) => alone(name),
        };
        Binding { constraint: name.into(), limit, needed, text }
    }

    fn together(&self, pools: Pools) -> String {
        let what = match self.goal {
            Goal::MinCost | Goal::MaxThroughput => "cheapest cluster",
            Goal::MinPower => "cluster of least power",
            Goal::MinSpace => "smallest cluster",
        };
        format!(
            "without any limit the {what} that holds {} a second, {},",
            number(self.rate),
            self.space.told(pools)
        )
    }

    /// The objectives that the largest cluster misses, of the design that comes closest; `verdicts` are those of each of
    /// `largest`, seed by seed.
    pub(super) fn objectives(&self, largest: &[Pools], verdicts: &[&[Verdict]]) -> Vec<Binding> {
        let missed = largest.iter().zip(verdicts).filter_map(|(pools, verdicts)| {
            let missed = missed(verdicts);
            let worst = missed.iter().map(excess).max_by(f64::total_cmp)?;
            Some((*pools, missed, worst))
        });
        let Some((pools, mut findings, _)) = missed.min_by(|a, b| a.2.total_cmp(&b.2)) else {
            return Vec::new();
        };
        findings.sort_by(|a, b| excess(b).total_cmp(&excess(a)));
        let binding = |finding: Finding| Binding {
            constraint: "slo".into(),
            limit: finding.limit,
            needed: finding.found,
            text: format!(
                "slo: {} at {} a second with {}",
                told(&finding),
                number(self.rate),
                self.space.told(pools)
            ),
        };
        findings.into_iter().map(binding).collect()
    }
}

impl Inquiry for WhyNot {
    fn next(&mut self, judged: &Judged) -> Vec<Question> {
        let lifted = self.lifted.iter_mut().flat_map(|(_, _, cheapest)| cheapest.next(judged));
        let mut unknown: Vec<Question> = lifted.chain(self.larger.next(judged)).collect();
        if unknown.is_empty() && self.limits != Limits::default() && !self.helps(judged) {
            let steps = self.machines_max / self.space.step();
            let unlimited = self.unlimited.get_or_insert_with(|| {
                let growths = [1].into_iter().chain(GROWTHS).map(|times| times * steps).collect();
                Larger::new(&self.space, Limits::default(), self.rate, self.designs, 0, growths)
            });
            unknown = unlimited.next(judged);
            if unknown.is_empty() && unlimited.least().is_some() {
                let grid = |growth: &Growth| {
                    let steps = growth.holds.map_or(0, |holds| holds.max(steps));
                    self.space.grid(growth.design, &Limits::default(), steps * self.space.step())
                };
                let cheapest = self.cheapest.get_or_insert_with(|| {
                    let grids = unlimited.growths.iter().map(grid).collect();
                    Cheapest::new(&self.space, self.goal, self.rate, Care::Edge, grids)
                });
                unknown = cheapest.next(judged);
            }
        }
        // Several may ask the same.
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    fn left(&self) -> u64 {
        let lifted: u64 = self.lifted.iter().map(|(_, _, cheapest)| cheapest.left()).sum();
        let later = self.unlimited.as_ref().map_or(0, Larger::left);
        lifted + self.larger.left() + later + self.cheapest.as_ref().map_or(0, Cheapest::left)
    }
}

/// What the first seed that misses anything misses.
pub(super) fn missed(verdicts: &[Verdict]) -> Vec<Finding> {
    let failing = verdicts.iter().find(|verdict| !verdict.met);
    let findings =
        failing.map(|verdict| verdict.findings.iter().filter(|finding| finding.met == Some(false)));
    findings.into_iter().flatten().cloned().collect()
}

fn is_share(finding: &Finding) -> bool {
    finding.objective.starts_with("attainment")
}

/// How far off an objective is: 1 at its limit, more beyond.
fn excess(finding: &Finding) -> f64 {
    let found = finding.found.unwrap_or(if is_share(finding) { 0.0 } else { f64::INFINITY });
    if is_share(finding) { finding.limit / found } else { found / finding.limit }
}

fn told(finding: &Finding) -> String {
    let Finding { class, objective, limit, found, .. } = finding;
    let found = found.map_or_else(|| "without end".to_owned(), number);
    let asked = if is_share(finding) { "at least" } else { "below" };
    format!("{objective} of {class} is {found} where {asked} {} is asked,", number(*limit))
}

fn alone(name: &str) -> String {
    format!("{name}: lifting this limit alone does not help")
}

fn compared(needed: f64, limit: f64, unit: &str) -> String {
    let space = if unit.is_empty() { "" } else { " " };
    let allowed = format!("the {}{space}{unit} allowed", number(limit));
    let times = needed / limit;
    match times {
        ..1.0 => format!("within {allowed}"),
        ..1.01 => format!("{times:.4} times {allowed}"),
        _ => format!("{times:.2} times {allowed}"),
    }
}

/// A number for people: at most two decimals, thousands apart; of small ones three digits.
fn number(value: f64) -> String {
    if value > 0.0 && value < 0.1 {
        // Each power of ten below one is a zero after the point.
        let zeros = (0..300).take_while(|&power| value * 10_f64.powi(power) < 0.1).count();
        return format!("{value:.*}", zeros + 3).trim_end_matches('0').to_owned();
    }
    let text = format!("{value:.2}");
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let decimals = decimals.trim_end_matches('0');
    let mut apart = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            apart.push(',');
        }
        apart.push(digit);
    }
    if decimals.is_empty() { apart } else { format!("{apart}.{decimals}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_have_three_digits() {
        let cases = [(0.071_062_783, "0.0711"), (0.05, "0.05"), (0.001_234_5, "0.00123"), (0.0, "0")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn numbers_are_for_people() {
        let cases = [
            (312_000.0, "312,000"),
            (70.0, "70"),
            (1_234.5, "1,234.5"),
            (0.033, "0.033"),
            (999.999, "1,000"),
            (3.4, "3.4"),
            (100.0, "100"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(compared(312_000.0, 245_000.0, "W"), "1.27 times the 245,000 W allowed");
        assert_eq!(compared(1001.0, 1000.0, "W"), "1.0010 times the 1,000 W allowed");
        assert_eq!(compared(26.0, 40.0, ""), "within the 40 allowed");
    }
}
