//! The served models: their shapes, and what follows from these.

use std::fmt;

use super::{one_of, quoted};
use crate::SimError;

/// Half precision, for weights and KV entries alike.
const BYTES_PER_VALUE: u64 = 2;
/// Of the OPT models: entries of the vocabulary, and learned positions.
const OPT_VOCABULARY: u64 = 50_272;
const OPT_POSITIONS: u64 = 2_050;

/// Which figures for the memory of a model are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Weights {
    /// Parameters times two bytes; all other memory is KV.
    Measured,
    /// As configured in Splitwise's public simulator; all other memory is KV.
    Published,
    /// KV tokens as listed in DistServe's public simulator, which leaves room for activations too.
    DistServe,
}

/// A served model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Model {
    /// BLOOM-176B, multi-head attention.
    Bloom176b,
    /// Llama2-70B, grouped-query attention.
    Llama2_70b,
    /// OPT-13B, multi-head attention.
    Opt13b,
    /// OPT-66B, multi-head attention.
    Opt66b,
    /// OPT-175B, multi-head attention; nobody published its times.
    Opt175b,
}

impl Model {
    /// Every model, in catalogue order.
    pub const ALL: [Self; 5] = [Self::Bloom176b, Self::Llama2_70b, Self::Opt13b, Self::Opt66b, Self::Opt175b];

    /// Name on the command line, in profiles and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bloom176b => "bloom-176b",
            Self::Llama2_70b => "llama2-70b",
            Self::Opt13b => "opt-13b",
            Self::Opt66b => "opt-66b",
            Self::Opt175b => "opt-175b",
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
            .ok_or_else(|| SimError::config("model", one_of(&Self::ALL.map(Self::name)), quoted(text)))
    }

    /// Transformer layers.
    pub const fn layers(self) -> u32 {
        match self {
            Self::Bloom176b => 70,
            Self::Llama2_70b => 80,
            Self::Opt13b => 40,
            Self::Opt66b => 64,
            Self::Opt175b => 96,
        }
    }

    /// Attention heads, which a tensor-parallel size divides.
    pub const fn heads(self) -> u32 {
        match self {
            Self::Bloom176b => 112,
            Self::Llama2_70b => 64,
            Self::Opt13b => 40,
            Self::Opt66b => 72,
            Self::Opt175b => 96,
        }
    }

    /// Heads that keep keys and values.
    pub const fn kv_heads(self) -> u32 {
        match self {
            Self::Llama2_70b => 8,
            _ => self.heads(),
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
            (Self::Bloom176b, Weights::Published) => 329_000_000_000,
            (Self::Bloom176b, _) => 352_500_000_000,
            (Self::Llama2_70b, Weights::Published) => 135_000_000_000,
            (Self::Llama2_70b, _) => 138_000_000_000,
            (Self::Opt13b | Self::Opt66b | Self::Opt175b, _) => self.opt_parameters() * BYTES_PER_VALUE,
        }
    }

    /// Four attention matrices and two of the four times wider feed-forward part a layer, with their biases and two
    /// norms; tokens and positions; the last norm.
    const fn opt_parameters(self) -> u64 {
        let hidden = self.heads() as u64 * self.head_size() as u64;
        self.layers() as u64 * (12 * hidden * hidden + 13 * hidden)
            + (OPT_VOCABULARY + OPT_POSITIONS) * hidden
            + 2 * hidden
    }

    /// Tensor-parallel sizes in the shipped profile, the same on every hardware; none for the OPT models, whose times
    /// are DistServe's.
    pub const fn measured_tp(self) -> &'static [u32] {
        match self {
            Self::Bloom176b => &[8],
            Self::Llama2_70b => &[2, 4, 8],
            Self::Opt13b | Self::Opt66b | Self::Opt175b => &[],
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_sizes_follow_from_the_shapes() {
        assert_eq!(Model::Bloom176b.kv_bytes_per_token(), 4_014_080);
        assert_eq!(Model::Llama2_70b.kv_bytes_per_token(), 327_680);
        assert_eq!(Model::Opt13b.kv_bytes_per_token(), 819_200);
        assert_eq!(Model::Opt66b.kv_bytes_per_token(), 2_359_296);
        assert_eq!(Model::Opt175b.kv_bytes_per_token(), 4_718_592);
    }

    #[test]
    fn a_512_token_request_of_opt_66b_leaves_what_is_published() {
        let bytes = 512 * Model::Opt66b.kv_bytes_per_token();
        // Published as 1.13 GB, which are 1.125 times 2^30 bytes.
        assert_eq!(bytes, 1_207_959_552);
        assert_eq!(bytes * 1000 / (1 << 30), 1_125);
    }

    #[test]
    fn opt_weights_follow_from_the_shapes() {
        let weights = |model: Model| model.weight_bytes(Weights::Measured);
        assert_eq!(weights(Model::Opt13b), 25_706_946_560);
        assert_eq!(weights(Model::Opt66b) / 100_000_000, 1_314);
        assert_eq!(weights(Model::Opt175b) / 100_000_000, 3_492);
        for model in [Model::Opt13b, Model::Opt66b, Model::Opt175b] {
            assert_eq!(weights(model), model.weight_bytes(Weights::DistServe));
        }
    }

    #[test]
    fn models_by_name() {
        for model in Model::ALL {
            assert_eq!(Model::parse(model.name()).unwrap(), model);
        }
        let error = Model::parse("gpt").unwrap_err().to_string();
        let known = "bloom-176b, llama2-70b, opt-13b, opt-66b, opt-175b";
        assert_eq!(error, format!("model: expected one of {known}, got `gpt`"));
    }
}
