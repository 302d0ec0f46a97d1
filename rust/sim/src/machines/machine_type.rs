//! The catalogue of hardware: what is built in, and what a user adds.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::{one_of, quoted};
use crate::SimError;
use crate::cost::profile::Problem;

/// Memory of one GPU of the built-in hardware.
pub const GPU_MEMORY_BYTES: u64 = 80 << 30;
/// GPUs in one DGX.
pub const GPUS_PER_DGX: u32 = 8;
/// Longest name of a machine type.
const NAME_CHARS_MAX: usize = 64;
/// GPUs one host may have: the tensor-parallel sizes that fill a DGX's `NVLink` domain or a part of it.
const HOST_GPUS: [u32; 4] = [1, 2, 4, 8];

/// The built-in kinds of DGX, as a shorthand for their entries in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hardware {
    /// Eight A100-80GB.
    A100,
    /// Eight H100-80GB.
    H100,
    /// Eight H100-80GB with the power cap; its prompt times are a stand-in, 1.3 times those of the H100.
    H100Cap,
}

impl Hardware {
    /// Every kind, in catalogue order.
    pub const ALL: [Self; 3] = [Self::A100, Self::H100, Self::H100Cap];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::A100 => "dgx-a100",
            Self::H100 => "dgx-h100",
            Self::H100Cap => "dgx-h100-cap",
        }
    }

    /// Its entry in the catalogue.
    pub fn machine_type(self) -> Arc<MachineType> {
        static BUILT_IN: LazyLock<[Arc<MachineType>; 3]> = LazyLock::new(|| {
            // Bytes a second of all NICs together; what a layer-wise transfer leaves visible at any bandwidth.
            let entry = |hardware: Hardware, profile: &str, nic_bytes_per_s, fixed_cost_ns| {
                Arc::new(MachineType {
                    name: hardware.name().to_owned(),
                    like: None,
                    profile_name: profile.to_owned(),
                    gpus: GPUS_PER_DGX,
                    gpu_memory_bytes: GPU_MEMORY_BYTES,
                    nic_bytes_per_s,
                    fixed_cost_ns,
                    prefill_factor: 1.0,
                    decode_factor: 1.0,
                    cost_per_hour: None,
                    power_w: None,
                    rack_units: None,
                })
            };
            [
                entry(Hardware::A100, "a100-80gb", 200_000_000_000, 8_000_000),
                entry(Hardware::H100, "h100-80gb", 400_000_000_000, 5_000_000),
                entry(Hardware::H100Cap, "h100-80gb-pcap", 400_000_000_000, 5_000_000),
            ]
        });
        Arc::clone(&BUILT_IN[self as usize])
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Hardware> for Arc<MachineType> {
    fn from(hardware: Hardware) -> Self {
        hardware.machine_type()
    }
}

/// A kind of host that machines are cut from, as plain data: it can be sent to another process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineType {
    /// Name on the command line and in reports.
    pub name: String,
    /// The built-in one it was made from; none for those themselves.
    pub like: Option<String>,
    /// The name in profiles of the GPU that its times come from.
    pub profile_name: String,
    /// GPUs of one host.
    pub gpus: u32,
    /// Memory of one GPU.
    pub gpu_memory_bytes: u64,
    /// Bytes per second the NICs of a whole host move in each direction.
    pub nic_bytes_per_s: u64,
    /// What a layer-wise transfer leaves visible, at any bandwidth.
    pub fixed_cost_ns: u64,
    /// What the profile's prefill times are multiplied by.
    pub prefill_factor: f64,
    /// What the profile's decode times are multiplied by.
    pub decode_factor: f64,
    /// Money for one host and hour; instead of a price table's.
    pub cost_per_hour: Option<f64>,
    /// Provisioned watts of one host; instead of a price table's.
    pub power_w: Option<f64>,
    /// Height of one host; instead of a price table's.
    pub rack_units: Option<f64>,
}

impl MachineType {
    /// A user's type that is `like` a built-in one in everything but its name.
    pub fn named_like(name: &str, like: Hardware) -> Self {
        let base = MachineType::clone(&like.machine_type());
        Self { name: name.to_owned(), like: Some(base.name.clone()), ..base }
    }

    /// Names its times may stand under in a profile: the GPU's, or the built-in machine's.
    pub(crate) fn names_in_profiles(&self) -> [&str; 2] {
        [&self.profile_name, self.like.as_ref().unwrap_or(&self.name)]
    }

    /// Checks what a run relies on, in the units of the file format.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let problem = |field, expected: String, got: String| Problem { field, index: None, expected, got };
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = self.name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !begins || !self.name.chars().all(legal) || self.name.len() > NAME_CHARS_MAX {
            let expected = "a letter, then letters, digits, `-`, `_` or `.`, 64 characters at most";
            return Err(problem("name", expected.to_owned(), quoted(&self.name)));
        }
        let built_in = Hardware::ALL.map(Hardware::name);
        if built_in.contains(&self.name.as_str()) {
            return Err(problem("name", "a name that is not built in".to_owned(), quoted(&self.name)));
        }
        let like = self.like.as_deref().unwrap_or_default();
        if !built_in.contains(&like) {
            return Err(problem("like", one_of(&built_in), quoted(like)));
        }
        if self.profile_name.is_empty() {
            return Err(problem("profile", "a hardware name of the profile".to_owned(), quoted("")));
        }
        if !HOST_GPUS.contains(&self.gpus) {
            return Err(problem("gpus", one_of(&["1", "2", "4", "8"]), self.gpus.to_string()));
        }
        let price = |value: Option<f64>| value.unwrap_or(1.0);
        for (field, value, (least, most)) in [
            ("gpu_memory_gib", self.gpu_memory_bytes as f64 / (1_u64 << 30) as f64, (1.0, 4096.0)),
            ("nic_gb_per_s", self.nic_bytes_per_s as f64 / 1e9, (0.001, 1e6)),
            ("fixed_cost_ms", self.fixed_cost_ns as f64 / 1e6, (0.0, 1e4)),
            ("prefill_factor", self.prefill_factor, (0.001, 1000.0)),
            ("decode_factor", self.decode_factor, (0.001, 1000.0)),
            ("cost_per_hour", price(self.cost_per_hour), (1e-6, 1e6)),
            ("power_w", price(self.power_w), (1e-3, 1e7)),
            ("rack_units", price(self.rack_units), (1e-3, 1e4)),
        ] {
            if !(least..=most).contains(&value) {
                return Err(problem(field, format!("{least} to {most}"), value.to_string()));
            }
        }
        Ok(())
    }
}

/// All machine types a run knows: the built-in ones, then the user's.
#[derive(Debug, Clone)]
pub struct Catalogue(Vec<Arc<MachineType>>);

impl Catalogue {
    /// The built-in types and `own`.
    ///
    /// # Errors
    /// [`SimError::Config`] for `machine_types` when one is out of range, built in or there twice.
    pub fn new(own: &[MachineType]) -> Result<Self, SimError> {
        let mut all: Vec<_> = Hardware::ALL.map(Hardware::machine_type).into();
        for machine in own {
            let refused = |field: &str, expected: &str, got: String| {
                SimError::config("machine_types", format!("{expected} as {field} of {}", machine.name), got)
            };
            machine.check().map_err(|problem| refused(problem.field, &problem.expected, problem.got))?;
            if all.iter().any(|known| known.name == machine.name) {
                return Err(refused("name", "each name once", quoted(&machine.name)));
            }
            all.push(Arc::new(machine.clone()));
        }
        Ok(Self(all))
    }

    /// The type of that name.
    pub fn find(&self, name: &str) -> Option<&Arc<MachineType>> {
        self.0.iter().find(|machine| machine.name == name)
    }

    /// All names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|machine| machine.name.as_str()).collect()
    }
}

impl Default for Catalogue {
    fn default() -> Self {
        Self(Hardware::ALL.map(Hardware::machine_type).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_types_by_name() {
        let catalogue = Catalogue::default();
        assert_eq!(catalogue.names(), ["dgx-a100", "dgx-h100", "dgx-h100-cap"]);
        for hardware in Hardware::ALL {
            let found = catalogue.find(hardware.name()).unwrap();
            assert_eq!(*found, hardware.machine_type());
            assert_eq!(found.name, hardware.to_string());
        }
        assert!(catalogue.find("dgx-b200").is_none());
    }

    #[test]
    fn what_may_not_be_in_the_catalogue_is_named() {
        let good = MachineType::named_like("h200-box", Hardware::H100);
        assert_eq!(Catalogue::new(std::slice::from_ref(&good)).unwrap().names().last(), Some(&"h200-box"));
        let told = |change: fn(&mut MachineType)| {
            let mut bad = good.clone();
            change(&mut bad);
            Catalogue::new(&[bad]).unwrap_err().to_string()
        };
        for (text, why) in [
            (told(|it| it.name = "2xbox".into()), "a letter, then letters"),
            (told(|it| it.name = "box:tp2".into()), "a letter, then letters"),
            (told(|it| it.name = "x".repeat(65)), "64 characters at most"),
            (told(|it| it.name = "dgx-a100".into()), "a name that is not built in"),
            (told(|it| it.like = None), "one of dgx-a100, dgx-h100, dgx-h100-cap as like of h200-box"),
            (told(|it| it.profile_name.clear()), "a hardware name of the profile"),
            (told(|it| it.gpus = 3), "one of 1, 2, 4, 8"),
            (told(|it| it.gpu_memory_bytes = 0), "1 to 4096 as gpu_memory_gib"),
            (told(|it| it.nic_bytes_per_s = 0), "nic_gb_per_s"),
            (told(|it| it.fixed_cost_ns = u64::MAX), "fixed_cost_ms"),
            (told(|it| it.prefill_factor = 0.0), "prefill_factor"),
            (told(|it| it.decode_factor = f64::NAN), "decode_factor"),
            (told(|it| it.cost_per_hour = Some(-1.0)), "cost_per_hour"),
            (told(|it| it.power_w = Some(f64::INFINITY)), "power_w"),
            (told(|it| it.rack_units = Some(0.0)), "rack_units"),
        ] {
            assert!(text.starts_with("machine_types: expected ") && text.contains(why), "{text}");
        }
        let twice = Catalogue::new(&[good.clone(), good]).unwrap_err().to_string();
        assert!(twice.contains("each name once"), "{twice}");
    }
}
