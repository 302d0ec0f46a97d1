//! Hardware and model catalogue: what a machine name stands for, and what fits on it.

use std::fmt;

use crate::SimError;

/// Memory of one GPU; all catalogued hardware carries 80 GiB parts.
pub const GPU_MEMORY_BYTES: u64 = 80 << 30;

/// GPUs in one DGX, and the default tensor-parallel size of a machine.
pub const GPUS_PER_DGX: u32 = 8;

/// Machines one group may ask for; a typing error must not allocate the host's memory away.
pub const GROUP_MACHINES_MAX: u32 = 100_000;

/// Half precision, for weights and KV entries alike.
const BYTES_PER_VALUE: u64 = 2;

/// A kind of DGX.
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

    /// Name of its GPU in profiles and measurement files.
    pub const fn profile_name(self) -> &'static str {
        match self {
            Self::A100 => "a100-80gb",
            Self::H100 => "h100-80gb",
            Self::H100Cap => "h100-80gb-pcap",
        }
    }

    /// Bytes per second the NICs of a whole DGX move in each direction.
    pub const fn nic_bytes_per_s(self) -> u64 {
        match self {
            Self::A100 => 200_000_000_000,
            Self::H100 | Self::H100Cap => 400_000_000_000,
        }
    }

    /// What a layer-wise transfer leaves visible, at any bandwidth.
    pub const fn fixed_cost_ns(self) -> u64 {
        match self {
            Self::A100 => 8_000_000,
            Self::H100 | Self::H100Cap => 5_000_000,
        }
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which figure for the size of the weights is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Weights {
    /// Parameters times two bytes.
    Measured,
    /// As configured in the public simulator.
    Published,
}

/// A served model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Model {
    /// BLOOM-176B, multi-head attention.
    Bloom176b,
    /// Llama2-70B, grouped-query attention.
    Llama2_70b,
}

impl Model {
    /// Every model, in catalogue order.
    pub const ALL: [Self; 2] = [Self::Bloom176b, Self::Llama2_70b];

    /// Name on the command line, in profiles and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bloom176b => "bloom-176b",
            Self::Llama2_70b => "llama2-70b",
        }
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// [`SimError::Config`] that lists the known names.
    pub fn parse(text: &str) -> Result<Self, SimError> {
        Self::ALL
            .into_iter()
            .find(|model| model.name() == text)
            .ok_or_else(|| SimError::config("model", one_of(Self::ALL.map(Self::name)), quoted(text)))
    }

    /// Transformer layers.
    pub const fn layers(self) -> u32 {
        match self {
            Self::Bloom176b => 70,
            Self::Llama2_70b => 80,
        }
    }

    /// Heads that keep keys and values.
    pub const fn kv_heads(self) -> u32 {
        match self {
            Self::Bloom176b => 112,
            Self::Llama2_70b => 8,
        }
    }

    /// Values per head.
    pub const fn head_size(self) -> u32 {
        128
    }

    /// Keys and values one token leaves in all layers together.
    pub const fn kv_bytes_per_token(self) -> u64 {
        2 * self.layers() as u64 * self.kv_heads() as u64 * self.head_size() as u64 * BYTES_PER_VALUE
    }

    /// Size of the weights.
    pub const fn weight_bytes(self, weights: Weights) -> u64 {
        match (self, weights) {
            (Self::Bloom176b, Weights::Measured) => 352_500_000_000,
            (Self::Bloom176b, Weights::Published) => 329_000_000_000,
            (Self::Llama2_70b, Weights::Measured) => 138_000_000_000,
            (Self::Llama2_70b, Weights::Published) => 135_000_000_000,
        }
    }

    /// Tensor-parallel sizes with a measurement, the same on every hardware.
    pub const fn measured_tp(self) -> &'static [u32] {
        match self {
            Self::Bloom176b => &[8],
            Self::Llama2_70b => &[2, 4, 8],
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Pipeline stages of a machine at most.
pub const PIPELINE_STAGES_MAX: u32 = 16;

/// One schedulable machine: `tp` GPUs a stage with their share of a DGX's NICs, and `pp` stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineKind {
    /// The DGX it is cut from.
    pub hardware: Hardware,
    /// GPUs of a stage: 1, 2, 4 or 8.
    pub tp: u32,
    /// Pipeline stages, each with an equal part of the layers.
    pub pp: u32,
}

impl MachineKind {
    /// A whole DGX.
    pub const fn whole(hardware: Hardware) -> Self {
        Self { hardware, tp: GPUS_PER_DGX, pp: 1 }
    }

    /// GPUs it owns.
    pub const fn gpus(self) -> u32 {
        self.tp * self.pp
    }

    /// Bytes per second of its share of the NICs, in each direction.
    pub const fn nic_bytes_per_s(self) -> u64 {
        self.hardware.nic_bytes_per_s() / GPUS_PER_DGX as u64 * self.gpus() as u64
    }

    /// GPU memory it owns.
    pub const fn memory_bytes(self) -> u64 {
        self.gpus() as u64 * GPU_MEMORY_BYTES
    }
}

impl fmt::Display for MachineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.hardware)?;
        if self.tp != GPUS_PER_DGX {
            write!(f, ":tp{}", self.tp)?;
        }
        if self.pp != 1 {
            write!(f, ":pp{}", self.pp)?;
        }
        Ok(())
    }
}

/// Some machines of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
/// [`SimError::Config`] for `option` when a group is malformed, empty or names unknown hardware.
pub fn parse_groups(option: &'static str, text: &str) -> Result<Vec<MachineGroup>, SimError> {
    text.split([',', '+']).map(|group| parse_group(option, group.trim())).collect()
}

fn parse_group(option: &'static str, text: &str) -> Result<MachineGroup, SimError> {
    let (count, kind) = match text.split_once('x') {
        // `dgx` has an x of its own: only digits before it make a count.
        Some((digits, rest)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            (parse_count(option, digits, text)?, rest)
        }
        _ => (1, text),
    };
    Ok(MachineGroup { count, kind: parse_kind(option, kind)? })
}

fn parse_count(option: &'static str, digits: &str, text: &str) -> Result<u32, SimError> {
    digits.parse().ok().filter(|count| (1..=GROUP_MACHINES_MAX).contains(count)).ok_or_else(|| {
        SimError::config(option, format!("a count in 1..={GROUP_MACHINES_MAX} before the x"), quoted(text))
    })
}

/// Reads one kind such as `dgx-h100:tp4` or `dgx-h100:tp4:pp2`; eight GPUs and one stage unless said.
///
/// # Errors
/// [`SimError::Config`] for `option` when the name is unknown, the size is not 1, 2, 4 or 8, or there are more than
/// [`PIPELINE_STAGES_MAX`] stages.
pub fn parse_kind(option: &'static str, text: &str) -> Result<MachineKind, SimError> {
    let (rest, pp) = match text.rsplit_once(":pp") {
        None => (text, 1),
        Some((rest, stages)) => (rest, parse_pp(option, stages, text)?),
    };
    let (name, tp) = match rest.split_once(':') {
        None => (rest, GPUS_PER_DGX),
        Some((name, size)) => (name, parse_tp(option, size, text)?),
    };
    let hardware = Hardware::ALL.into_iter().find(|hardware| hardware.name() == name).ok_or_else(|| {
        let expected =
            format!("COUNTxNAME[:tpN][:ppN] with NAME {}", one_of(Hardware::ALL.map(Hardware::name)));
        SimError::config(option, expected, quoted(text))
    })?;
    Ok(MachineKind { hardware, tp, pp })
}

fn parse_pp(option: &'static str, stages: &str, text: &str) -> Result<u32, SimError> {
    stages.parse().ok().filter(|stages| (1..=PIPELINE_STAGES_MAX).contains(stages)).ok_or_else(|| {
        SimError::config(option, format!("pp1 to pp{PIPELINE_STAGES_MAX} after the last colon"), quoted(text))
    })
}

fn parse_tp(option: &'static str, size: &str, text: &str) -> Result<u32, SimError> {
    match size {
        "tp1" => Ok(1),
        "tp2" => Ok(2),
        "tp4" => Ok(4),
        "tp8" => Ok(8),
        _ => Err(SimError::config(option, "tp1, tp2, tp4 or tp8 after the colon", quoted(text))),
    }
}

/// KV tokens a machine holds beside the weights.
///
/// # Errors
/// [`SimError::Config`] naming model and machine when the weights do not fit, or when the catalogue
/// has no measurement of the model at this size.
pub fn kv_capacity_tokens(model: Model, kind: MachineKind, weights: Weights) -> Result<u64, SimError> {
    let weight_bytes = model.weight_bytes(weights);
    let Some(free_bytes) = kind.memory_bytes().checked_sub(weight_bytes) else {
        let expected = format!(
            "a machine that holds the {weight_bytes} bytes of {model} ({} GPUs or more)",
            weight_bytes.div_ceil(GPU_MEMORY_BYTES)
        );
        return Err(SimError::config(
            "model",
            expected,
            format!("{kind} with {} bytes", kind.memory_bytes()),
        ));
    };
    if !model.measured_tp().contains(&kind.tp) {
        return Err(no_measurement(model, kind, model.measured_tp().iter().map(|tp| format!("tp{tp}"))));
    }
    Ok(free_bytes / model.kv_bytes_per_token())
}

/// The error for a pairing nobody measured.
pub(crate) fn no_measurement(
    model: Model,
    kind: MachineKind,
    measured: impl IntoIterator<Item = String>,
) -> SimError {
    let known = measured.into_iter().collect::<Vec<_>>().join(", ");
    let expected = format!("a machine with a measurement of {model} (there is {known})");
    SimError::config("model", expected, format!("{model} on {}:tp{}", kind.hardware, kind.tp))
}

/// The first prompt length that goes layer-wise under `auto` between machines of one kind.
pub fn layer_wise_from_tokens(model: Model, kind: MachineKind, bandwidth_bytes_per_s: u64) -> u64 {
    layer_wise_from_tokens_at(model, kind.hardware.fixed_cost_ns(), bandwidth_bytes_per_s)
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

fn one_of<const N: usize>(names: [&str; N]) -> String {
    format!("one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(hardware: Hardware, tp: u32) -> MachineKind {
        MachineKind { hardware, tp, pp: 1 }
    }

    #[test]
    fn kv_sizes_follow_from_the_shapes() {
        assert_eq!(Model::Bloom176b.kv_bytes_per_token(), 4_014_080);
        assert_eq!(Model::Llama2_70b.kv_bytes_per_token(), 327_680);
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
                let of = |weights| kv_capacity_tokens(model, kind(hardware, tp), weights).unwrap();
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
            let error = kv_capacity_tokens(model, kind(Hardware::A100, tp), weights).unwrap_err();
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
                layer_wise_from_tokens(model, MachineKind::whole(hardware), hardware.nic_bytes_per_s())
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
    }

    #[test]
    fn groups() {
        let parsed = parse_groups("prompt", "25xdgx-h100:tp4, dgx-h100-cap+3xdgx-a100").unwrap();
        let expected = [
            MachineGroup { count: 25, kind: kind(Hardware::H100, 4) },
            MachineGroup { count: 1, kind: kind(Hardware::H100Cap, 8) },
            MachineGroup { count: 3, kind: kind(Hardware::A100, 8) },
        ];
        assert_eq!(parsed, expected);
        let staged = parse_groups("prompt", "2xdgx-h100:tp4:pp2+dgx-a100:pp16").unwrap();
        let of = |count, hardware, tp, pp| MachineGroup { count, kind: MachineKind { hardware, tp, pp } };
        assert_eq!(staged, [of(2, Hardware::H100, 4, 2), of(1, Hardware::A100, 8, 16)]);
        assert_eq!(
            staged[0].to_string() + "+" + &staged[1].to_string(),
            "2xdgx-h100:tp4:pp2+1xdgx-a100:pp16"
        );
        assert_eq!((staged[0].kind.memory_bytes(), staged[1].kind.gpus()), (8 * GPU_MEMORY_BYTES, 128));
        let written = parsed.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        assert_eq!(parse_groups("prompt", &written).unwrap(), expected, "what is printed can be read");
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
            ("dgx-h100:tp3", "tp1, tp2, tp4 or tp8"),
            ("dgx-h100:tp16", "tp1, tp2, tp4 or tp8"),
            ("dgx-h100:8", "tp1, tp2, tp4 or tp8"),
            ("dgx-h100:pp0", "pp1 to pp16"),
            ("dgx-h100:tp4:pp17", "pp1 to pp16"),
            ("dgx-h100:pp2:tp4", "pp1 to pp16"),
        ] {
            let error = parse_groups("token", text).unwrap_err();
            assert!(matches!(error, SimError::Config { option: "token", .. }), "{text}");
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn models_by_name() {
        assert_eq!(Model::parse("llama2-70b").unwrap(), Model::Llama2_70b);
        let error = Model::parse("gpt").unwrap_err().to_string();
        assert_eq!(error, "model: expected one of bloom-176b, llama2-70b, got `gpt`");
    }
}
