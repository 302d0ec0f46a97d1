//! Hardware and model catalogue: what a machine name stands for, and what fits on it.

mod machine_type;
mod machine_types_toml;
mod model;
mod prices;

use std::fmt;
use std::sync::Arc;

use crate::SimError;
use crate::cost::distserve;
pub use machine_type::{Catalogue, GPU_MEMORY_BYTES, GPUS_PER_DGX, Hardware, MachineType};
pub use machine_types_toml::{machine_types_from_toml, read_machine_types};
pub use model::{Model, Weights};
pub use prices::{Price, PriceTable};

/// Machines one group may ask for; a typing error must not allocate the host's memory away.
pub const GROUP_MACHINES_MAX: u32 = 100_000;

/// Tensor-parallel sizes that somebody measured.
pub const TENSOR_PARALLEL: [u32; 5] = [1, 2, 3, 4, 8];

/// Pipeline stages of one machine.
pub const PIPELINE_STAGES_MAX: u32 = 16;

/// What is expected of a group.
const GROUP_FORM: &str = "COUNTxNAME[:tpN][:ppN] with NAME";

/// One schedulable machine: `tp` times `pp` GPUs of one host or of several, with their share of the NICs.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineKind {
    /// The host it is cut from.
    pub hardware: Arc<MachineType>,
    /// GPUs that share each layer.
    pub tp: u32,
    /// Pipeline stages, each with its part of the layers on `tp` GPUs.
    pub pp: u32,
}

impl MachineKind {
    /// `pp` stages of `tp` GPUs.
    pub fn new(hardware: impl Into<Arc<MachineType>>, tp: u32, pp: u32) -> Self {
        Self { hardware: hardware.into(), tp, pp }
    }

    /// A whole host in one stage.
    pub fn whole(hardware: impl Into<Arc<MachineType>>) -> Self {
        let hardware = hardware.into();
        let tp = hardware.gpus;
        Self { hardware, tp, pp: 1 }
    }

    /// GPUs it owns.
    pub fn gpus(&self) -> u32 {
        self.tp * self.pp
    }

    /// The part of a host that it is, above one for several.
    pub fn hosts(&self) -> f64 {
        f64::from(self.gpus()) / f64::from(self.hardware.gpus)
    }

    /// Bytes per second of its share of the NICs, in each direction.
    pub fn nic_bytes_per_s(&self) -> u64 {
        self.hardware.nic_bytes_per_s / u64::from(self.hardware.gpus) * u64::from(self.gpus())
    }

    /// GPU memory it owns.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.gpus()) * self.hardware.gpu_memory_bytes
    }
}

impl fmt::Display for MachineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hardware.name)?;
        if self.tp != self.hardware.gpus {
            write!(f, ":tp{}", self.tp)?;
        }
        if self.pp == 1 { Ok(()) } else { write!(f, ":pp{}", self.pp) }
    }
}

/// Some machines of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineGroup {
    /// How many.
    pub count: u32,
    /// Of which kind.
    pub kind: MachineKind,
}

impl fmt::Display for MachineGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.count, self.kind)
    }
}

/// Reads a list of groups such as `25xdgx-h100:tp4,dgx-a100`; `,` and `+` both separate.
///
/// # Errors
/// [`SimError::Config`] for `option` when a group is malformed, empty or names hardware that is not in the catalogue.
pub fn parse_groups(
    option: &'static str,
    text: &str,
    catalogue: &Catalogue,
) -> Result<Vec<MachineGroup>, SimError> {
    text.split([',', '+']).map(|group| parse_group(option, group.trim(), catalogue)).collect()
}

fn parse_group(option: &'static str, text: &str, catalogue: &Catalogue) -> Result<MachineGroup, SimError> {
    let (count, kind) = match text.split_once('x') {
        // `dgx` has an x of its own: only digits before it make a count.
        Some((digits, rest)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            (parse_count(option, digits, text)?, rest)
        }
        _ => (1, text),
    };
    Ok(MachineGroup { count, kind: parse_kind(option, kind, catalogue)? })
}

fn parse_count(option: &'static str, digits: &str, text: &str) -> Result<u32, SimError> {
    digits.parse().ok().filter(|count| (1..=GROUP_MACHINES_MAX).contains(count)).ok_or_else(|| {
        SimError::config(option, format!("a count in 1..={GROUP_MACHINES_MAX} before the x"), quoted(text))
    })
}

/// Reads one kind such as `dgx-h100:tp4` or `dgx-a100:tp2:pp2`; all GPUs of a host in one stage unless said.
///
/// # Errors
/// [`SimError::Config`] for `option` when the name is unknown or a size is none that is possible.
pub fn parse_kind(option: &'static str, text: &str, catalogue: &Catalogue) -> Result<MachineKind, SimError> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let hardware = catalogue.find(name).ok_or_else(|| {
        let expected = format!("{GROUP_FORM} {}", one_of(&catalogue.names()));
        SimError::config(option, expected, quoted(text))
    })?;
    let mut kind = MachineKind::whole(Arc::clone(hardware));
    let (mut has_tp, mut has_pp) = (false, false);
    for part in parts {
        if let Some(size) = part.strip_prefix("pp").filter(|_| !has_pp) {
            let stages = size.parse().ok().filter(|stages| (1..=PIPELINE_STAGES_MAX).contains(stages));
            let expected = || format!("pp1 to pp{PIPELINE_STAGES_MAX} after the colon");
            kind.pp = stages.ok_or_else(|| SimError::config(option, expected(), quoted(text)))?;
            has_pp = true;
        } else {
            let size = part.strip_prefix("tp").filter(|_| !has_tp && !has_pp);
            kind.tp = size.and_then(|size| parse_tp(size, kind.hardware.gpus)).ok_or_else(|| {
                let expected = format!("{} after the colon", tensor_parallel_sizes(kind.hardware.gpus));
                SimError::config(option, expected, quoted(text))
            })?;
            has_tp = true;
        }
    }
    Ok(kind)
}

/// A tensor-parallel group does not leave its host.
fn parse_tp(size: &str, host_gpus: u32) -> Option<u32> {
    let possible = TENSOR_PARALLEL.into_iter().filter(|&tp| tp <= host_gpus);
    possible.into_iter().find(|tp| tp.to_string() == size)
}

fn tensor_parallel_sizes(host_gpus: u32) -> String {
    let names: Vec<String> =
        TENSOR_PARALLEL.iter().filter(|&&tp| tp <= host_gpus).map(|tp| format!("tp{tp}")).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// KV tokens a machine holds beside the weights.
///
/// # Errors
/// [`SimError::Config`] naming model and machine when the weights do not fit, or when the catalogue
/// has no measurement of the model at this size.
pub fn kv_capacity_tokens(model: Model, kind: &MachineKind, weights: Weights) -> Result<u64, SimError> {
    if weights == Weights::DistServe {
        return distserve::kv_capacity_tokens(model, kind);
    }
    let weight_bytes = model.weight_bytes(weights);
    let Some(free_bytes) = kind.memory_bytes().checked_sub(weight_bytes) else {
        let expected = format!(
            "a machine that holds the {weight_bytes} bytes of {model} ({} GPUs or more)",
            weight_bytes.div_ceil(kind.hardware.gpu_memory_bytes)
        );
        return Err(SimError::config(
            "model",
            expected,
            format!("{kind} with {} bytes", kind.memory_bytes()),
        ));
    };
    // Of a model without a shipped measurement a profile of the user's own decides.
    let measured_tp = model.measured_tp();
    if !measured_tp.is_empty() && !measured_tp.contains(&kind.tp) {
        return Err(no_measurement(model, kind, measured_tp.iter().map(|tp| format!("tp{tp}"))));
    }
    Ok(free_bytes / model.kv_bytes_per_token())
}

/// The error for a pairing nobody measured.
pub(crate) fn no_measurement(
    model: Model,
    kind: &MachineKind,
    measured: impl IntoIterator<Item = String>,
) -> SimError {
    let known = measured.into_iter().collect::<Vec<_>>().join(", ");
    let expected = if known.is_empty() {
        format!("a profile with a measurement of {model}, or for OPT models costs `distserve`")
    } else {
        format!("a machine with a measurement of {model} (there is {known})")
    };
    SimError::config("model", expected, format!("{model} on {}:tp{}", kind.hardware.name, kind.tp))
}

/// The first prompt length that goes layer-wise under `auto` between machines of one kind.
pub fn layer_wise_from_tokens(model: Model, kind: &MachineKind, bandwidth_bytes_per_s: u64) -> u64 {
    layer_wise_from_tokens_at(model, kind.hardware.fixed_cost_ns, bandwidth_bytes_per_s)
}

/// The same for any pair: the smallest prompt whose serialized transfer takes at least the fixed cost.
///
/// Without bandwidth everything is layer-wise. Exact in integers, so that no prompt sits on the wrong side.
pub fn layer_wise_from_tokens_at(model: Model, fixed_cost_ns: u64, bandwidth_bytes_per_s: u64) -> u64 {
    let moved = u128::from(fixed_cost_ns) * u128::from(bandwidth_bytes_per_s);
    let per_token = u128::from(model.kv_bytes_per_token()) * 1_000_000_000;
    u64::try_from(moved.div_ceil(per_token)).unwrap_or(u64::MAX)
}

fn quoted(text: &str) -> String {
    format!("`{text}`")
}

fn one_of(names: &[&str]) -> String {
    format!("one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(hardware: Hardware, tp: u32) -> MachineKind {
        MachineKind::new(hardware, tp, 1)
    }

    #[test]
    fn kv_capacities() {
        let cases = [
            (Model::Bloom176b, 8, 83_380, 89_234),
            (Model::Llama2_70b, 8, 1_676_009, 1_685_164),
            (Model::Llama2_70b, 4, 627_433, 636_588),
            (Model::Llama2_70b, 2, 103_145, 112_300),
        ];
        for (model, tp, measured, published) in cases {
            for hardware in Hardware::ALL {
                let of = |weights| kv_capacity_tokens(model, &kind(hardware, tp), weights).unwrap();
                assert_eq!((of(Weights::Measured), of(Weights::Published)), (measured, published));
            }
        }
    }

    #[test]
    fn what_does_not_fit_or_was_not_measured_names_both() {
        for (model, tp, weights, why) in [
            (Model::Bloom176b, 4, Weights::Measured, "352500000000 bytes"),
            (Model::Bloom176b, 4, Weights::Published, "there is tp8"),
            (Model::Llama2_70b, 1, Weights::Measured, "2 GPUs or more"),
        ] {
            let error = kv_capacity_tokens(model, &kind(Hardware::A100, tp), weights).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, SimError::Config { option: "model", .. }), "{text}");
            assert!(text.contains(model.name()) && text.contains(&format!("dgx-a100:tp{tp}")), "{text}");
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn first_layer_wise_prompt() {
        for (model, a100, h100) in [(Model::Bloom176b, 399, 499), (Model::Llama2_70b, 4_883, 6_104)] {
            let at = |hardware: Hardware| {
                layer_wise_from_tokens(
                    model,
                    &MachineKind::whole(hardware),
                    hardware.machine_type().nic_bytes_per_s,
                )
            };
            assert_eq!((at(Hardware::A100), at(Hardware::H100)), (a100, h100));
            assert_eq!(at(Hardware::H100Cap), h100);
        }
        assert_eq!(
            layer_wise_from_tokens_at(Model::Bloom176b, 1_000_000_000, 4_014_080),
            1,
            "equal is not below"
        );
        assert_eq!(layer_wise_from_tokens_at(Model::Bloom176b, 1_000_000_000, 4_014_081), 2);
        assert_eq!(layer_wise_from_tokens_at(Model::Bloom176b, u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn nic_share_follows_the_gpus() {
        assert_eq!(kind(Hardware::H100, 8).nic_bytes_per_s(), 400_000_000_000);
        assert_eq!(kind(Hardware::H100Cap, 4).nic_bytes_per_s(), 200_000_000_000);
        assert_eq!(kind(Hardware::A100, 2).nic_bytes_per_s(), 50_000_000_000);
        let two_hosts = MachineKind::new(Hardware::A100, 4, 4);
        assert_eq!(two_hosts.nic_bytes_per_s(), 400_000_000_000);
        assert_eq!((two_hosts.gpus(), two_hosts.memory_bytes()), (16, 16 * GPU_MEMORY_BYTES));
        assert_eq!(two_hosts.hosts(), 2.0);
    }

    #[test]
    fn groups() {
        let parsed = groups_of("25xdgx-h100:tp4, dgx-h100-cap+3xdgx-a100:tp2:pp16,dgx-a100:pp2").unwrap();
        let expected = [
            MachineGroup { count: 25, kind: kind(Hardware::H100, 4) },
            MachineGroup { count: 1, kind: kind(Hardware::H100Cap, 8) },
            MachineGroup { count: 3, kind: MachineKind::new(Hardware::A100, 2, 16) },
            MachineGroup { count: 1, kind: MachineKind::new(Hardware::A100, 8, 2) },
        ];
        assert_eq!(parsed, expected);
        let written = parsed.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        assert_eq!(groups_of(&written).unwrap(), expected, "what is printed can be read");
    }

    #[test]
    fn bad_groups_say_what_was_expected() {
        for (text, expected) in [
            ("0xdgx-h100", "a count in 1..="),
            ("100001xdgx-h100", "a count in 1..="),
            ("99999999999xdgx-h100", "a count in 1..="),
            ("2xdgx-b200", "dgx-a100, dgx-h100, dgx-h100-cap"),
            ("xdgx-h100", "dgx-a100, dgx-h100, dgx-h100-cap"),
            ("-1xdgx-h100", "dgx-a100, dgx-h100, dgx-h100-cap"),
            ("", "dgx-a100, dgx-h100, dgx-h100-cap"),
            ("dgx-h100,", "dgx-a100, dgx-h100, dgx-h100-cap"),
            ("dgx-h100:tp5", "tp1, tp2, tp3, tp4 or tp8"),
            ("dgx-h100:tp16", "tp1, tp2, tp3, tp4 or tp8"),
            ("dgx-h100:tp08", "tp1, tp2, tp3, tp4 or tp8"),
            ("dgx-h100:8", "tp1, tp2, tp3, tp4 or tp8"),
            ("dgx-h100:", "tp1, tp2, tp3, tp4 or tp8"),
            ("dgx-h100:tp2:tp2", "tp1, tp2, tp3, tp4 or tp8"),
            ("dgx-h100:pp2:tp2", "tp1, tp2, tp3, tp4 or tp8"),
            ("dgx-h100:tp2:pp0", "pp1 to pp16"),
            ("dgx-h100:tp2:pp17", "pp1 to pp16"),
            ("dgx-h100:tp2:pp", "pp1 to pp16"),
            ("dgx-h100:pp2:pp2", "tp1, tp2, tp3, tp4 or tp8"),
        ] {
            let error = parse_groups("token", text, &Catalogue::default()).unwrap_err();
            assert!(matches!(error, SimError::Config { option: "token", .. }), "{text}");
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_users_type_is_a_name_like_any_other() {
        let half = MachineType { gpus: 4, ..MachineType::named_like("half", Hardware::A100) };
        let catalogue = Catalogue::new(std::slice::from_ref(&half)).unwrap();
        let parsed = parse_groups("mixed", "2xhalf,half:tp2:pp2", &catalogue).unwrap();
        let half = Arc::new(half);
        let expected = [
            MachineGroup { count: 2, kind: MachineKind::new(Arc::clone(&half), 4, 1) },
            MachineGroup { count: 1, kind: MachineKind::new(Arc::clone(&half), 2, 2) },
        ];
        assert_eq!(parsed, expected);
        assert_eq!(parsed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2xhalf", "1xhalf:tp2:pp2"]);
        assert_eq!(parsed[1].kind.nic_bytes_per_s(), 200_000_000_000, "all of the host's");
        let told = |text| parse_groups("mixed", text, &catalogue).unwrap_err().to_string();
        assert!(told("half:tp8").contains("tp1, tp2, tp3 or tp4"), "a group stays within its host");
        assert!(told("third").contains("dgx-h100-cap, half"));
    }

    fn groups_of(text: &str) -> Result<Vec<MachineGroup>, SimError> {
        parse_groups("prompt", text, &Catalogue::default())
    }
}
