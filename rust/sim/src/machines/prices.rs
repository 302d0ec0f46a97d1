//! What hosts cost, by the published tables, which conflict.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{MachineKind, MachineType, one_of, quoted};
use crate::SimError;

/// What one host costs, or the share of one that a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Money an hour.
    pub cost_per_hour: f64,
    /// Provisioned watts.
    pub power_w: f64,
    /// Space.
    pub rack_units: f64,
}

/// A table of prices by name.
#[derive(Debug, Clone, Copy)]
pub struct PriceTable(&'static Table);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    table: Vec<Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    about: String,
    cost_base_per_hour: f64,
    power_base_w: f64,
    price: BTreeMap<String, Multiples>,
}

/// Multiples of the table's bases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Multiples {
    cost: f64,
    power: f64,
    rack_units: f64,
}

static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    let document: Document = toml::from_str(include_str!("../../data/prices.toml"))
        .expect("the shipped prices are valid: a test loads them");
    document.table
});

impl PriceTable {
    /// Every name.
    pub fn names() -> Vec<&'static str> {
        TABLES.iter().map(|table| table.name.as_str()).collect()
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`SimError::Config`] for `prices` that lists the names.
    pub fn named(name: &str) -> Result<Self, SimError> {
        let found = TABLES.iter().find(|table| table.name == name).map(Self);
        found.ok_or_else(|| SimError::config("prices", one_of(&Self::names()), quoted(name)))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// Where it is from, and what its figures are multiples of.
    pub fn about(&self) -> &'static str {
        &self.0.about
    }

    /// The price of one host of built-in hardware.
    pub fn of(&self, hardware: &str) -> Option<Price> {
        self.0.price.get(hardware).map(|multiples| Price {
            cost_per_hour: multiples.cost * self.0.cost_base_per_hour,
            power_w: multiples.power * self.0.power_base_w,
            rack_units: multiples.rack_units,
        })
    }

    /// The price of one host: what its type says, else what the table says of it or of what it is like.
    pub fn of_type(&self, machine: &MachineType) -> Option<Price> {
        let listed = self.of(machine.like.as_ref().unwrap_or(&machine.name));
        let either = |own: Option<f64>, of: fn(&Price) -> f64| own.or_else(|| listed.as_ref().map(of));
        Some(Price {
            cost_per_hour: either(machine.cost_per_hour, |price| price.cost_per_hour)?,
            power_w: either(machine.power_w, |price| price.power_w)?,
            rack_units: either(machine.rack_units, |price| price.rack_units)?,
        })
    }

    /// The price of one machine: its GPUs' share of a host's, or several hosts'.
    pub fn of_kind(&self, kind: &MachineKind) -> Option<Price> {
        let host = self.of_type(&kind.hardware)?;
        let hosts = kind.hosts();
        Some(Price {
            cost_per_hour: host.cost_per_hour * hosts,
            power_w: host.power_w * hosts,
            rack_units: host.rack_units * hosts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::Hardware;

    fn ratios(name: &str) -> [(f64, f64); 2] {
        let table = PriceTable::named(name).unwrap();
        let a100 = table.of("dgx-a100").unwrap();
        ["dgx-h100", "dgx-h100-cap"].map(|name| {
            let price = table.of(name).unwrap();
            (price.cost_per_hour / a100.cost_per_hour, price.power_w / a100.power_w)
        })
    }

    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-9, "{got} is not {expected}");
    }

    #[test]
    fn the_published_ratios() {
        for (name, costs, powers) in [
            ("table-i", [38.0 / 17.6, 38.0 / 17.6], [1.75, 1.225]),
            ("table-v", [2.35, 2.35], [1.75, 1.23]),
            ("simulator", [4.76 / 2.21, 4.76 / 2.21], [44.0 / 24.8, 30.8 / 24.8]),
            ("simulator-tdp", [4.76 / 2.21, 4.76 / 2.21], [10.2 / 6.5, 7.14 / 6.5]),
        ] {
            for (at, (cost, power)) in ratios(name).into_iter().enumerate() {
                close(cost, costs[at]);
                close(power, powers[at]);
            }
        }
    }

    #[test]
    fn units_are_dollars_an_hour_and_watts() {
        let of = |name: &str| PriceTable::named(name).unwrap().of("dgx-a100").unwrap();
        let costs = PriceTable::names().into_iter().map(|name| (of(name).cost_per_hour, of(name).power_w));
        let expected = [(17.6, 6500.0), (17.6, 6500.0), (17.68, 6200.0), (17.68, 6500.0)];
        assert_eq!(costs.collect::<Vec<_>>(), expected);
        assert!(PriceTable::named("table-i").unwrap().of("dgx-b200").is_none());
        for name in PriceTable::names() {
            let table = PriceTable::named(name).unwrap();
            assert!(table.name() == name && table.about().starts_with("Splitwise"));
            assert_eq!(Hardware::ALL.map(|hardware| table.of(hardware.name()).is_some()), [true; 3]);
        }
    }

    #[test]
    fn the_simulators_count_of_machines_of_equal_power_is_exact() {
        let table = PriceTable::named("simulator").unwrap();
        let power = |name| table.of(name).unwrap().power_w;
        // Its sweeps take int(44 * (40 - h) // 24.8) machines, and // 30.8 of capped ones.
        for (h100, a100, capped) in [(5_u32, 62, 50), (9, 55, 44), (25, 26, 21), (35, 8, 7)] {
            let left_w = power("dgx-h100") * f64::from(40 - h100);
            assert_eq!(
                ((left_w / power("dgx-a100")) as u32, (left_w / power("dgx-h100-cap")) as u32),
                (a100, capped)
            );
        }
    }

    #[test]
    fn a_type_brings_its_own_price_and_takes_the_rest_from_what_it_is_like() {
        let table = PriceTable::named("table-i").unwrap();
        let mut own = MachineType::named_like("own", Hardware::H100);
        assert_eq!(table.of_type(&own), table.of("dgx-h100"));
        own.cost_per_hour = Some(20.0);
        let price = table.of_type(&own).unwrap();
        assert_eq!((price.cost_per_hour, price.power_w, price.rack_units), (20.0, 11_375.0, 8.0));
        let quarter = table.of_kind(&MachineKind::new(own, 2, 1)).unwrap();
        assert_eq!((quarter.cost_per_hour, quarter.rack_units), (5.0, 2.0));
        let two_hosts = table.of_kind(&MachineKind::new(Hardware::A100, 8, 2)).unwrap();
        assert_eq!((two_hosts.cost_per_hour, two_hosts.power_w), (35.2, 13_000.0));
    }

    #[test]
    fn an_unknown_table_lists_what_there_is() {
        let error = PriceTable::named("table-ii").unwrap_err().to_string();
        assert_eq!(
            error,
            "prices: expected one of table-i, table-v, simulator, simulator-tdp, got `table-ii`"
        );
    }
}
