//! Cluster designs by name, those of the Splitwise paper and a user's own, and the paper's pool sizes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use splitcore_sim::SimError;

use crate::provision::{Design, Price};

/// A design that has a name of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// As `splitwise-hh`.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// Prompt machines.
    pub prompt: Option<String>,
    /// Token machines.
    pub token: Option<String>,
    /// Machines that serve whole requests.
    pub unsplit: Option<String>,
}

/// What the paper holds equal when it compares designs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Iso {
    /// Watts.
    IsoPower,
    /// $ an hour.
    IsoCost,
    /// Requests a second.
    IsoThroughput,
}

/// Pool sizes the paper's comparisons use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedPools {
    /// Prompt machines, or all of an unsplit cluster.
    pub prompt: u32,
    /// Token machines; 0 of an unsplit cluster.
    pub token: u32,
    /// The highest rate at which the public simulator keeps all nine objectives, on a grid of 10 a second; none where it
    /// was not measured.
    pub max_rps: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    design: Vec<Preset>,
    pools: Vec<Published>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    goal: Iso,
    trace: String,
    machines: BTreeMap<String, Vec<u32>>,
    #[serde(default)]
    max_rps: BTreeMap<String, f64>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    toml::from_str(include_str!("../data/designs.toml"))
        .unwrap_or_else(|error| panic!("designs.toml: {error}"))
});

/// All designs with a name, in the paper's order.
pub fn presets() -> &'static [Preset] {
    &CATALOGUE.design
}

/// The pool sizes of a design in one of the paper's comparisons; none where it publishes none.
pub fn published_pools(design: &str, goal: Iso, trace: &str) -> Option<PublishedPools> {
    let published = CATALOGUE.pools.iter().find(|pools| pools.goal == goal && pools.trace == trace)?;
    let machines = published.machines.get(design)?;
    Some(PublishedPools {
        prompt: machines.first().copied()?,
        token: machines.get(1).copied().unwrap_or(0),
        max_rps: published.max_rps.get(design).copied(),
    })
}

impl Design {
    /// A design of the paper. `prices` tells what a machine takes, none if it is not in the table.
    ///
    /// # Errors
    /// An unknown name; a machine without a price.
    pub fn named(name: &str, prices: impl Fn(&str) -> Option<Price>) -> Result<Self, SimError> {
        let Some(preset) = presets().iter().find(|preset| preset.name == name) else {
            let known: Vec<&str> = presets().iter().map(|preset| preset.name.as_str()).collect();
            return Err(SimError::config("designs", format!("one of {}", known.join(", ")), name));
        };
        let design = match (&preset.prompt, &preset.token, &preset.unsplit) {
            (Some(prompt), Some(token), _) => Self::split(prompt, token, prices),
            (.., Some(unsplit)) => Self::unsplit(unsplit, prices),
            _ => return Err(SimError::Internal { reason: format!("design {name} has no machines") }),
        };
        Ok(Self { name: name.into(), ..design? })
    }

    /// A split design of one's own, named after its machines: `dgx-h100+dgx-a100`.
    ///
    /// # Errors
    /// A machine without a price.
    pub fn split(
        prompt: &str,
        token: &str,
        prices: impl Fn(&str) -> Option<Price>,
    ) -> Result<Self, SimError> {
        Ok(Self {
            name: format!("{prompt}+{token}"),
            prompt: Some(prompt.into()),
            token: Some(token.into()),
            unsplit: None,
            prompt_price: price(prompt, &prices)?,
            token_price: price(token, &prices)?,
        })
    }

    /// A design of one's own whose machines serve whole requests, named after them.
    ///
    /// # Errors
    /// A machine without a price.
    pub fn unsplit(machine: &str, prices: impl Fn(&str) -> Option<Price>) -> Result<Self, SimError> {
        Ok(Self {
            name: machine.into(),
            prompt: None,
            token: None,
            unsplit: Some(machine.into()),
            prompt_price: price(machine, &prices)?,
            token_price: Price::default(),
        })
    }
}

fn price(machine: &str, prices: &impl Fn(&str) -> Option<Price>) -> Result<Price, SimError> {
    prices(machine).ok_or_else(|| SimError::config("prices", format!("a price of {machine}"), "none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(machine: &str) -> Option<Price> {
        let price = |cost_per_hour, power_w| Some(Price { cost_per_hour, power_w, rack_units: 8.0 });
        match machine {
            "dgx-a100" => price(17.6, 1.0),
            "dgx-h100" => price(38.0, 1.75),
            "dgx-h100-cap" => price(38.0, 1.23),
            _ => None,
        }
    }

    #[test]
    fn presets_have_their_machines_and_prices() {
        assert_eq!(presets().len(), 6);
        for preset in presets() {
            let design = Design::named(&preset.name, prices).unwrap();
            assert_eq!(design.name, preset.name);
            assert_eq!(design.unsplit.is_some(), design.prompt.is_none() && design.token.is_none());
            assert!(!preset.about.is_empty());
        }
        let capped = Design::named("splitwise-hhcap", prices).unwrap();
        assert_eq!(
            (capped.prompt.as_deref(), capped.token.as_deref()),
            (Some("dgx-h100"), Some("dgx-h100-cap"))
        );
        assert_eq!((capped.prompt_price.power_w, capped.token_price.power_w), (1.75, 1.23));
        let own = Design::unsplit("dgx-h100", prices).unwrap();
        assert_eq!((own.name.as_str(), own.prompt_price.cost_per_hour), ("dgx-h100", 38.0));
    }

    #[test]
    fn the_published_pools_of_a_comparison_take_about_the_same() {
        for (goal, quantity, tolerance) in [
            (Iso::IsoPower, (|price: &Price| price.power_w) as fn(&Price) -> f64, 0.03),
            (Iso::IsoCost, |price: &Price| price.cost_per_hour, 0.04),
        ] {
            for trace in ["azure-conv", "azure-code"] {
                let reference = 40.0 * quantity(&prices("dgx-h100").unwrap());
                for preset in presets() {
                    let design = Design::named(&preset.name, prices).unwrap();
                    let pools = published_pools(&preset.name, goal, trace).unwrap();
                    assert_eq!(pools.token == 0, design.unsplit.is_some());
                    let (prompt, token) = (f64::from(pools.prompt), f64::from(pools.token));
                    let total =
                        prompt * quantity(&design.prompt_price) + token * quantity(&design.token_price);
                    let share = total / reference;
                    // Two capped machines more than the paper's budget buys at the price of uncapped ones.
                    let is_odd =
                        (goal, trace, &*preset.name) == (Iso::IsoCost, "azure-code", "splitwise-hhcap");
                    let expected = if is_odd { 1.05 } else { 1.0 };
                    assert!(
                        (share - expected).abs() < tolerance,
                        "{goal:?} {trace} {}: {share}",
                        preset.name
                    );
                    assert_eq!(pools.max_rps.is_some(), goal == Iso::IsoPower);
                }
            }
        }
        let pools = published_pools("splitwise-hh", Iso::IsoThroughput, "azure-code").unwrap();
        assert_eq!((pools.prompt, pools.token), (23, 10));
        assert_eq!(published_pools("splitwise-hh", Iso::IsoThroughput, "azure-conv"), None);
        assert_eq!(published_pools("splitwise-xx", Iso::IsoPower, "azure-conv"), None);
    }

    #[test]
    fn what_is_unknown_is_named() {
        let told = |design: Result<Design, SimError>| design.unwrap_err().to_string();
        let unknown = told(Design::named("splitwise-hx", prices));
        assert!(unknown.starts_with("designs: expected one of baseline-a100, "), "{unknown}");
        assert!(unknown.ends_with("splitwise-hhcap, got splitwise-hx"), "{unknown}");
        assert_eq!(
            told(Design::split("dgx-h100", "dgx-b200", prices)),
            "prices: expected a price of dgx-b200, got none"
        );
    }
}
