//! `KvLayout`: how one rank lays out KV, as a value.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde::Serialize;
use splitcore_core::kv::{BlockId, KvLayout as Core, PoolShape, Shard, TokenOrder, Values};

use super::errors;
use crate::errors::{config, whole, word};

const WHOLE: &str = "1 to 2^16 - 1";
pub(super) const BLOCKS: &str = "1 to 2^32 - 1";

/// How one tensor-parallel rank of a machine lays out KV.
#[pyclass(frozen, eq, hash, module = "splitcore._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KvLayout(pub(super) Core);

fn count(value: &Bound<'_, PyAny>, option: &'static str) -> PyResult<u16> {
    whole(value, option, WHOLE)
}

fn values(
    py: Python<'_>,
    heads: Option<&Bound<'_, PyAny>>,
    head_dim: Option<&Bound<'_, PyAny>>,
    latent_dim: Option<&Bound<'_, PyAny>>,
) -> PyResult<Values> {
    match (heads, head_dim, latent_dim) {
        (Some(heads), Some(dim), None) => {
            Ok(Values::Heads { heads: count(heads, "heads")?, head_dim: count(dim, "head_dim")? })
        }
        (None, None, Some(dim)) => Ok(Values::Latent { dim: count(dim, "latent_dim")? }),
        _ => {
            let given = [("heads", heads), ("head_dim", head_dim), ("latent_dim", latent_dim)];
            let given: Vec<&str> =
                given.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| *name).collect();
            let got = if given.is_empty() { "none of them".to_owned() } else { given.join(" and ") };
            Err(config(py, "heads", "heads and head_dim, or latent_dim alone", got))
        }
    }
}

/// A variant's name on the wire.
fn name(variant: impl Serialize) -> String {
    serde_json::to_value(variant).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A pool of so many blocks.
pub(super) fn shape(
    layout: &KvLayout,
    blocks: &Bound<'_, PyAny>,
    option: &'static str,
) -> PyResult<PoolShape> {
    let blocks: u32 = whole(blocks, option, BLOCKS)?;
    Ok(PoolShape { layout: layout.0, blocks })
}

#[pymethods]
impl KvLayout {
    #[new]
    #[pyo3(signature = (*, layers, heads = None, head_dim = None, block_tokens, dtype = "f32", latent_dim = None,
        order = "HND", planes = "together", arrangement = "layer_first", tp_rank = None, tp_size = None))]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        layers: &Bound<'_, PyAny>,
        heads: Option<&Bound<'_, PyAny>>,
        head_dim: Option<&Bound<'_, PyAny>>,
        block_tokens: &Bound<'_, PyAny>,
        dtype: &str,
        latent_dim: Option<&Bound<'_, PyAny>>,
        order: &str,
        planes: &str,
        arrangement: &str,
        tp_rank: Option<&Bound<'_, PyAny>>,
        tp_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let shard = Shard {
            rank: tp_rank.map_or(Ok(0), |rank| whole(rank, "tp_rank", "0 to 2^16 - 1"))?,
            size: tp_size.map_or(Ok(1), |size| count(size, "tp_size"))?,
        };
        let layout = Core {
            layers: count(layers, "layers")?,
            values: values(py, heads, head_dim, latent_dim)?,
            dtype: word(py, "dtype", dtype, "'f32', 'f16', 'bf16', 'f8e4m3', 'f8e5m2' or 'i8'")?,
            block_tokens: count(block_tokens, "block_tokens")?,
            order: match order {
                "HND" => TokenOrder::Hnd,
                "NHD" => TokenOrder::Nhd,
                _ => return Err(config(py, "order", "'HND' or 'NHD'", order)),
            },
            planes: word(py, "planes", planes, "'together' or 'apart'")?,
            arrangement: word(py, "arrangement", arrangement, "'layer_first' or 'block_first'")?,
            shard,
        };
        layout.check().map_err(|error| errors::layout(py, "", &error))?;
        Ok(Self(layout))
    }

    #[getter]
    fn layers(&self) -> u16 {
        self.0.layers
    }

    #[getter]
    fn heads(&self) -> Option<u16> {
        match self.0.values {
            Values::Heads { heads, .. } => Some(heads),
            Values::Latent { .. } => None,
        }
    }

    #[getter]
    fn head_dim(&self) -> Option<u16> {
        match self.0.values {
            Values::Heads { head_dim, .. } => Some(head_dim),
            Values::Latent { .. } => None,
        }
    }

    #[getter]
    fn latent_dim(&self) -> Option<u16> {
        match self.0.values {
            Values::Heads { .. } => None,
            Values::Latent { dim } => Some(dim),
        }
    }

    #[getter]
    fn block_tokens(&self) -> u16 {
        self.0.block_tokens
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype.name()
    }

    #[getter]
    fn dtype_bytes(&self) -> u32 {
        self.0.dtype.bytes()
    }

    #[getter]
    fn order(&self) -> &'static str {
        match self.0.order {
            TokenOrder::Hnd => "HND",
            TokenOrder::Nhd => "NHD",
        }
    }

    #[getter]
    fn planes(&self) -> String {
        name(self.0.planes)
    }

    #[getter]
    fn arrangement(&self) -> String {
        name(self.0.arrangement)
    }

    #[getter]
    fn tp_rank(&self) -> u16 {
        self.0.shard.rank
    }

    #[getter]
    fn tp_size(&self) -> u16 {
        self.0.shard.size
    }

    /// The heads of this rank: the first, and how many.
    #[getter]
    fn heads_here(&self) -> (u16, u16) {
        let heads = self.0.heads_here();
        (heads.start, heads.len() as u16)
    }

    #[getter]
    fn plane_count(&self) -> u32 {
        self.0.plane_count()
    }

    #[getter]
    fn row_bytes(&self) -> u32 {
        self.0.row_bytes()
    }

    #[getter]
    fn layer_block_bytes(&self) -> u32 {
        self.0.layer_block_bytes()
    }

    #[getter]
    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }

    fn blocks_for(&self, tokens: &Bound<'_, PyAny>) -> PyResult<u32> {
        Ok(self.0.blocks_for(whole(tokens, "tokens", "0 to 2^32 - 1")?))
    }

    fn __repr__(&self) -> String {
        let values = match self.0.values {
            Values::Heads { heads, head_dim } => format!("heads={heads}, head_dim={head_dim}"),
            Values::Latent { dim } => format!("latent_dim={dim}"),
        };
        format!(
            "KvLayout(layers={}, {values}, block_tokens={}, dtype='{}', order='{}', planes='{}', arrangement='{}', \
             tp_rank={}, tp_size={})",
            self.0.layers,
            self.0.block_tokens,
            self.0.dtype.name(),
            self.order(),
            self.planes(),
            self.arrangement(),
            self.0.shard.rank,
            self.0.shard.size,
        )
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let options = PyDict::new(py);
        options.set_item("layers", self.0.layers)?;
        match self.0.values {
            Values::Heads { heads, head_dim } => {
                options.set_item("heads", heads)?;
                options.set_item("head_dim", head_dim)?;
            }
            Values::Latent { dim } => options.set_item("latent_dim", dim)?,
        }
        options.set_item("block_tokens", self.0.block_tokens)?;
        options.set_item("dtype", self.dtype())?;
        options.set_item("order", self.order())?;
        options.set_item("planes", self.planes())?;
        options.set_item("arrangement", self.arrangement())?;
        options.set_item("tp_rank", self.0.shard.rank)?;
        options.set_item("tp_size", self.0.shard.size)?;
        Ok((PyTuple::empty(py), options))
    }
}

/// The pool as an array `[layer][block][K, V][head][token][element]`, head and token in the layout's order: how long
/// each axis is, and how many bytes lie from one to the next.
pub(super) fn axes(pool: &PoolShape) -> ([u64; 6], [u64; 6]) {
    let layout = &pool.layout;
    let (row, plane) = (u64::from(layout.row_bytes()), u64::from(layout.plane_block_bytes()));
    let (heads, tokens) = (layout.heads_here().len() as u64, u64::from(layout.block_tokens));
    let element = u64::from(layout.dtype.bytes());
    let step = |block: u32, offset: u32| pool.locate(BlockId(block), offset).unwrap_or(plane);
    let (middle, inner) = match layout.order {
        TokenOrder::Hnd => (heads, tokens),
        TokenOrder::Nhd => (tokens, heads),
    };
    let lengths = [
        u64::from(layout.layers),
        u64::from(pool.blocks),
        u64::from(layout.plane_count()),
        middle,
        inner,
        row / element,
    ];
    let strides = [
        step(0, layout.layer_block_bytes()),
        step(1, 0),
        step(0, layout.plane_block_bytes()),
        inner * row,
        row,
        element,
    ];
    (lengths, strides)
}
