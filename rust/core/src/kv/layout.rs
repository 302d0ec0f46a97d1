//! How the KV of a token lies in a block, and a block in the pool.
//!
//! A block has `block_bytes` bytes, numbered layer by layer, and within a layer K before V: offset
//! `layer * layer_block_bytes + plane * plane_block_bytes + rest`. The numbering is the same however the pool is
//! arranged, so a plan that names blocks and offsets says the same to both sides; only [`PoolShape::locate`] turns it
//! into a place in memory.

use std::fmt;
use std::ops::Range;

use super::BlockId;

/// Type of one KV element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// Brain float.
    Bf16,
    /// Eight bits, four of them exponent.
    F8e4m3,
    /// Eight bits, five of them exponent.
    F8e5m2,
    /// Eight-bit integer.
    I8,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8e4m3 | Self::F8e5m2 | Self::I8 => 1,
        }
    }

    /// Its name on the wire and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8e4m3 => "f8e4m3",
            Self::F8e5m2 => "f8e5m2",
            Self::I8 => "i8",
        }
    }
}

/// What a layer keeps of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Values {
    /// A key and a value for each KV head: multi-head, grouped-query and multi-query attention.
    Heads {
        /// KV heads of the whole model.
        heads: u16,
        /// Elements of one.
        head_dim: u16,
    },
    /// One vector for all heads: multi-head latent attention. Every rank has it whole.
    Latent {
        /// Elements of it.
        dim: u16,
    },
}

/// Which of tokens and heads varies slower within a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum TokenOrder {
    /// `[token][head][dim]`.
    Nhd,
    /// `[head][token][dim]`: the tokens of one head are contiguous.
    Hnd,
}

/// Where V lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Planes {
    /// In the same block, after K: `[block][K, V]`.
    Together,
    /// In a plane of its own: `[K, V][block]`.
    Apart,
}

/// Which of layers and blocks varies slower in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Arrangement {
    /// `[layer][block]`: what layer-wise engines have.
    LayerFirst,
    /// `[block][layer]`: all layers of a block are contiguous.
    BlockFirst,
}

/// One rank's share of a tensor-parallel machine. With more ranks than KV heads each head is on several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Shard {
    /// Which, from 0.
    pub rank: u16,
    /// Of how many.
    pub size: u16,
}

impl Shard {
    /// A machine of one rank.
    pub const WHOLE: Self = Self { rank: 0, size: 1 };
}

/// How one rank of a machine lays out KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvLayout {
    /// Layers of the model.
    pub layers: u16,
    /// What a layer keeps of a token.
    pub values: Values,
    /// Type of an element.
    pub dtype: Dtype,
    /// Tokens of a block.
    pub block_tokens: u16,
    /// Order within a block.
    pub order: TokenOrder,
    /// Where V lies.
    pub planes: Planes,
    /// Order of layers and blocks.
    pub arrangement: Arrangement,
    /// Which share of the heads.
    pub shard: Shard,
}

/// A layout that no pool can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutError {
    /// A field is zero.
    Zero(&'static str),
    /// The rank is not below the size.
    Rank(Shard),
    /// Neither divides the other: heads cannot be shared out evenly.
    Heads {
        /// KV heads.
        heads: u16,
        /// Ranks.
        size: u16,
    },
    /// A block has 4 GiB or more: offsets within it would not fit 32 bits.
    BlockTooLarge {
        /// Bytes it would have, at most [`u64::MAX`].
        bytes: u64,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(field) => write!(f, "{field} is 0, and must be at least 1"),
            Self::Rank(shard) => {
                write!(f, "tensor-parallel rank {} is not below the size {}", shard.rank, shard.size)
            }
            Self::Heads { heads, size } => {
                write!(
                    f,
                    "{heads} KV heads cannot be shared out over {size} ranks: neither divides the other"
                )
            }
            Self::BlockTooLarge { bytes } => {
                write!(f, "a block of {bytes} bytes; at most {} are possible", u32::MAX)
            }
        }
    }
}

impl std::error::Error for LayoutError {}

impl KvLayout {
    /// Whether a pool can have it. Every other method takes this for granted.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), LayoutError> {
        let (heads, dim) = self.heads_and_dim();
        let fields = [
            ("layers", self.layers),
            ("heads", heads),
            ("head_dim", dim),
            ("block_tokens", self.block_tokens),
            ("tensor-parallel size", self.shard.size),
        ];
        if let Some((field, _)) = fields.into_iter().find(|&(_, value)| value == 0) {
            return Err(LayoutError::Zero(field));
        }
        let size = self.shard.size;
        if self.shard.rank >= size {
            return Err(LayoutError::Rank(self.shard));
        }
        if matches!(self.values, Values::Heads { .. })
            && !heads.is_multiple_of(size)
            && !size.is_multiple_of(heads)
        {
            return Err(LayoutError::Heads { heads, size });
        }
        let plane = u64::from(self.heads_here().len() as u32)
            * u64::from(self.block_tokens)
            * u64::from(self.row_bytes());
        // A plane stays below 2^50 bytes, all planes of all layers need not stay below 2^64.
        let bytes = plane.saturating_mul(u64::from(self.plane_count()) * u64::from(self.layers));
        if bytes > u64::from(u32::MAX) {
            return Err(LayoutError::BlockTooLarge { bytes });
        }
        Ok(())
    }

    /// Heads and elements of one; the one vector of latent attention counts as a head.
    pub(super) fn heads_and_dim(&self) -> (u16, u16) {
        match self.values {
            Values::Heads { heads, head_dim } => (heads, head_dim),
            Values::Latent { dim } => (1, dim),
        }
    }

    /// The model's KV heads that lie on this rank; the one vector of latent attention counts as a head.
    pub fn heads_here(&self) -> Range<u16> {
        let (heads, _) = self.heads_and_dim();
        let Shard { rank, size } = self.shard;
        if heads >= size {
            let each = heads / size;
            rank * each..(rank + 1) * each
        } else {
            let head = (u32::from(rank) * u32::from(heads) / u32::from(size)) as u16;
            head..head + 1
        }
    }

    /// Bytes of one head of one token, K or V.
    pub fn row_bytes(&self) -> u32 {
        u32::from(self.heads_and_dim().1) * self.dtype.bytes()
    }

    /// 2 where K and V are kept, 1 for latent attention.
    pub fn plane_count(&self) -> u32 {
        match self.values {
            Values::Heads { .. } => 2,
            Values::Latent { .. } => 1,
        }
    }

    /// Bytes of a block in one layer, K or V.
    pub fn plane_block_bytes(&self) -> u32 {
        self.heads_here().len() as u32 * u32::from(self.block_tokens) * self.row_bytes()
    }

    /// Bytes of a block in one layer, K and V.
    pub fn layer_block_bytes(&self) -> u32 {
        self.plane_block_bytes() * self.plane_count()
    }

    /// Bytes of a block in all layers.
    pub fn block_bytes(&self) -> u32 {
        self.layer_block_bytes() * u32::from(self.layers)
    }

    /// Blocks that `tokens` tokens take.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(u32::from(self.block_tokens))
    }
}

/// A pool of so many blocks, all of one layout. Its methods take [`KvLayout::check`] for granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolShape {
    /// How blocks are laid out.
    pub layout: KvLayout,
    /// How many there are.
    pub blocks: u32,
}

impl PoolShape {
    /// Bytes of the pool.
    pub fn bytes(&self) -> u64 {
        self.geometry().bytes
    }

    /// Where the byte `offset` of `block` lies in the pool, or `None` outside it. O(1).
    pub fn locate(&self, block: BlockId, offset: u32) -> Option<u64> {
        self.geometry().locate(block, offset)
    }

    /// The block and the offset in it of a byte of the pool, or `None` past its end: the inverse of
    /// [`PoolShape::locate`]. O(1).
    pub fn block_at(&self, place: u64) -> Option<(BlockId, u32)> {
        self.geometry().block_at(place)
    }
}
