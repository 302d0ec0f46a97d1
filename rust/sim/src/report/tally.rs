//! What machines and transfers add up during a run.

use serde::Serialize;

use super::quantiles::{Percentiles, finite};

/// How a KV cache moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferKind {
    /// After the prefill, as a whole.
    Serialized,
    /// Layer by layer during the prefill.
    LayerWise,
}

/// All transfers of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TransferTally {
    bytes: u64,
    serialized: u64,
    layer_wise: u64,
    visible_ns: Vec<u64>,
}

impl TransferTally {
    /// Enters a transfer that has ended, and by how much it delayed the second token.
    pub fn record(&mut self, kind: TransferKind, bytes: u64, visible_ns: u64) {
        match kind {
            TransferKind::Serialized => self.serialized += 1,
            TransferKind::LayerWise => self.layer_wise += 1,
        }
        self.bytes += bytes;
        self.visible_ns.push(visible_ns);
    }

    /// The tally as reported.
    pub fn report(&self) -> TransferReport {
        let mut seconds: Vec<f64> =
            self.visible_ns.iter().map(|&visible_ns| visible_ns as f64 / 1e9).collect();
        let total_ns: u128 = self.visible_ns.iter().copied().map(u128::from).sum();
        let Percentiles { p50, p99, .. } = Percentiles::of(&mut seconds);
        let visible_s = VisibleTime {
            mean: total_ns as f64 / self.visible_ns.len() as f64 / 1e9,
            p50,
            p99,
            max: self.visible_ns.iter().max().map_or(f64::NAN, |&visible_ns| visible_ns as f64 / 1e9),
        };
        let (serialized, layer_wise) = (self.serialized, self.layer_wise);
        TransferReport {
            count: serialized + layer_wise,
            bytes: self.bytes,
            serialized,
            layer_wise,
            visible_s,
        }
    }
}

/// Transfers of a run as reported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TransferReport {
    /// Transfers that ended.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many moved after the prefill.
    pub serialized: u64,
    /// How many moved during the prefill.
    pub layer_wise: u64,
    /// Delay of the second token by the transfer.
    pub visible_s: VisibleTime,
}

/// Delays in seconds; null in JSON without transfers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VisibleTime {
    /// The mean.
    #[serde(serialize_with = "finite")]
    pub mean: f64,
    /// The median.
    #[serde(serialize_with = "finite")]
    pub p50: f64,
    /// The 99th percentile.
    #[serde(serialize_with = "finite")]
    pub p99: f64,
    /// The longest.
    #[serde(serialize_with = "finite")]
    pub max: f64,
}

/// What one machine did in a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineTally {
    /// Its name.
    pub name: String,
    /// Its home pool.
    pub role: String,
    /// Its hardware, if it is worth telling.
    pub hardware: Option<String>,
    /// Most KV tokens it had blocks for at once.
    pub peak_kv_tokens: u64,
    busy_ns: u64,
    passes: u64,
    prompt_tokens: u64,
    decode_tokens: u64,
    batch_decodes_max: u32,
}

impl MachineTally {
    /// A machine that has done nothing yet.
    pub fn new(name: impl Into<String>, role: impl Into<String>) -> Self {
        Self { name: name.into(), role: role.into(), ..Self::default() }
    }

    /// Enters a pass.
    pub fn record_pass(&mut self, lasted_ns: u64, prompt_tokens: u32, decodes: u32) {
        self.busy_ns += lasted_ns;
        self.passes += 1;
        self.prompt_tokens += u64::from(prompt_tokens);
        self.decode_tokens += u64::from(decodes);
        self.batch_decodes_max = self.batch_decodes_max.max(decodes);
    }

    /// Takes back what a pass that was entered will not do: its last `left_ns`, and its tokens.
    pub fn cut_pass(&mut self, left_ns: u64, prompt_tokens: u32, decodes: u32) {
        self.busy_ns -= left_ns;
        self.passes -= 1;
        self.prompt_tokens -= u64::from(prompt_tokens);
        self.decode_tokens -= u64::from(decodes);
    }

    /// Enters how many KV tokens it has blocks for now.
    pub fn record_kv(&mut self, tokens: u64) {
        self.peak_kv_tokens = self.peak_kv_tokens.max(tokens);
    }

    /// The tally as reported for a run of `duration_ns`.
    pub fn report(&self, duration_ns: u64) -> MachineReport {
        MachineReport {
            name: self.name.clone(),
            role: self.role.clone(),
            hardware: self.hardware.clone(),
            utilisation: self.busy_ns as f64 / duration_ns as f64,
            passes: self.passes,
            prompt_tokens: self.prompt_tokens,
            decode_tokens: self.decode_tokens,
            batch_decodes_mean: self.decode_tokens as f64 / self.passes as f64,
            batch_decodes_max: self.batch_decodes_max,
            batch_prompt_tokens_mean: self.prompt_tokens as f64 / self.passes as f64,
            peak_kv_tokens: self.peak_kv_tokens,
        }
    }
}

/// A machine's part in a run as reported.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    /// Its home pool.
    pub role: String,
    /// Its hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    /// Share of the run it spent in passes.
    #[serde(serialize_with = "finite")]
    pub utilisation: f64,
    /// Passes it ran.
    pub passes: u64,
    /// Prompt tokens it computed, recomputed ones included.
    pub prompt_tokens: u64,
    /// Tokens it decoded.
    pub decode_tokens: u64,
    /// Mean decodes in a pass, over all passes.
    #[serde(serialize_with = "finite")]
    pub batch_decodes_mean: f64,
    /// Most decodes in a pass.
    pub batch_decodes_max: u32,
    /// Mean prompt tokens in a pass, over all passes.
    #[serde(serialize_with = "finite")]
    pub batch_prompt_tokens_mean: f64,
    /// Most KV tokens it had blocks for at once, in whole blocks.
    pub peak_kv_tokens: u64,
}
