//! What to search for, and what of it cannot be.

use serde::{Deserialize, Serialize};
use splitcore_sim::{Options, SimError};

use crate::slo::SloSet;

/// Pool sizes tried in either direction at most: a larger pool needs a larger step.
pub(super) const STEPS_MAX: u32 = 400;

/// What one machine takes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// $ an hour.
    pub cost_per_hour: f64,
    /// Provisioned watts.
    pub power_w: f64,
    /// Rack units.
    pub rack_units: f64,
}

/// A kind of cluster whose pool sizes are to be found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// For reports, as `splitwise-hh`.
    pub name: String,
    /// Prompt machines, as `dgx-h100`. An unsplit design has `unsplit` and neither of the others.
    pub prompt: Option<String>,
    /// Token machines.
    pub token: Option<String>,
    /// Machines that serve whole requests.
    pub unsplit: Option<String>,
    /// What one prompt machine, or one unsplit machine, takes.
    pub prompt_price: Price,
    /// What one token machine takes; of no account without one.
    pub token_price: Price,
}

/// What is wanted most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Least $ an hour at the rate asked for.
    MinCost,
    /// Least watts.
    MinPower,
    /// Fewest rack units.
    MinSpace,
    /// Highest rate within the limits.
    MaxThroughput,
}

/// Limits on the whole cluster; none where absent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// $ an hour.
    pub cost_per_hour: Option<f64>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Rack units.
    pub rack_units: Option<f64>,
}

/// What to search for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvisionSpec {
    /// Traffic and rules; machines, `rate` and `seed` are the search's to set (`seed` is the first).
    pub options: Options,
    /// What must hold.
    pub slo: SloSet,
    /// At least one.
    pub designs: Vec<Design>,
    /// What is wanted most.
    pub goal: Goal,
    /// What it may take.
    pub limits: Limits,
    /// Requests a second to hold. Needed but for [`Goal::MaxThroughput`], where it is the least to reach.
    pub rate_rps: Option<f64>,
    /// Workloads drawn; a cluster holds a rate if it does with each.
    pub seeds: u32,
    /// Largest pool tried.
    pub machines_max: u32,
    /// Pool sizes tried are multiples of this.
    pub machines_step: u32,
    /// Of rates.
    pub resolution: f64,
    /// Whether to judge every pair of pool sizes of the grid instead of leaving out what larger and smaller ones
    /// already tell.
    pub whole_map: bool,
}

impl ProvisionSpec {
    /// Refuses what contradicts itself.
    pub(super) fn check(&self) -> Result<(), SimError> {
        self.check_numbers()?;
        self.check_goal()?;
        if self.designs.is_empty() {
            return Err(SimError::config("designs", "at least one design", "none"));
        }
        for (at, design) in self.designs.iter().enumerate() {
            design.check()?;
            if self.designs[..at].iter().any(|other| other.name == design.name) {
                return Err(SimError::config("designs", "each name once", format!("{} twice", design.name)));
            }
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), SimError> {
        if self.seeds == 0 {
            return Err(SimError::config("seeds", "at least 1", 0));
        }
        if self.machines_step == 0 {
            return Err(SimError::config("machines_step", "at least 1", 0));
        }
        if self.machines_max < self.machines_step {
            let expected = format!("at least machines_step, {}", self.machines_step);
            return Err(SimError::config("machines_max", expected, self.machines_max));
        }
        if self.machines_max / self.machines_step > STEPS_MAX {
            let expected = format!("at most {STEPS_MAX} steps of {}", self.machines_step);
            return Err(SimError::config("machines_max", expected, self.machines_max));
        }
        if !(self.resolution > 0.0 && self.resolution <= 1.0) {
            return Err(SimError::config("resolution", "above 0, up to 1", self.resolution));
        }
        let Limits { cost_per_hour, power_w, rack_units } = self.limits;
        for (name, limit) in
            [("cost_per_hour", cost_per_hour), ("power_w", power_w), ("rack_units", rack_units)]
        {
            if let Some(limit) = limit.filter(|limit| !(limit.is_finite() && *limit > 0.0)) {
                return Err(SimError::config("limits", format!("{name} above 0"), limit));
            }
        }
        Ok(())
    }

    fn check_goal(&self) -> Result<(), SimError> {
        let Options { prompt, token, mixed, unsplit, rate, .. } = &self.options;
        for (name, machines) in [("prompt", prompt), ("token", token), ("mixed", mixed), ("unsplit", unsplit)]
        {
            if let Some(machines) = machines {
                return Err(SimError::config(
                    name,
                    "none, as the machines are what is searched for",
                    machines,
                ));
            }
        }
        if let Some(rate) = rate {
            return Err(SimError::config("rate", "none beside the rate to hold", rate));
        }
        if let Some(rate) = self.rate_rps.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(SimError::config("rate", "requests per second above 0", rate));
        }
        match (self.goal, self.rate_rps) {
            (Goal::MaxThroughput, _) if self.limits == Limits::default() => Err(SimError::config(
                "limits",
                "a limit on cost, power or rack units for max-throughput",
                "none",
            )),
            (Goal::MinCost | Goal::MinPower | Goal::MinSpace, None) => {
                Err(SimError::config("rate", "the requests per second to hold at the least cost", "none"))
            }
            _ => Ok(()),
        }
    }
}

impl Design {
    pub(super) fn is_split(&self) -> bool {
        self.unsplit.is_none()
    }

    fn check(&self) -> Result<(), SimError> {
        let machines = match (&self.prompt, &self.token, &self.unsplit) {
            (Some(prompt), Some(token), None) => vec![prompt, token],
            (None, None, Some(unsplit)) => vec![unsplit],
            (prompt, token, unsplit) => {
                let given = [("prompt", prompt), ("token", token), ("unsplit", unsplit)];
                let given: Vec<&str> =
                    given.iter().filter(|(_, machine)| machine.is_some()).map(|(name, _)| *name).collect();
                let got = if given.is_empty() { "none".to_owned() } else { given.join(" and ") };
                let expected = format!("prompt and token machines, or unsplit ones, of {}", self.name);
                return Err(SimError::config("designs", expected, got));
            }
        };
        for machine in machines {
            let is_counted = machine
                .split_once('x')
                .is_some_and(|(count, _)| count.bytes().all(|byte| byte.is_ascii_digit()));
            if is_counted || machine.contains([',', '+']) {
                let expected = format!("one kind of machine without a count in {}", self.name);
                return Err(SimError::config("designs", expected, machine));
            }
        }
        for price in [self.prompt_price, self.token_price] {
            let Price { cost_per_hour, power_w, rack_units } = price;
            for value in [cost_per_hour, power_w, rack_units] {
                if !(value.is_finite() && value >= 0.0) {
                    let expected = format!("prices of {} that are not negative", self.name);
                    return Err(SimError::config("designs", expected, value));
                }
            }
        }
        Ok(())
    }
}
