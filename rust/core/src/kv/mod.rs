//! KV blocks of one machine: which are free, how they are laid out, and how they become another machine's.

mod bounds;
pub mod layout;
mod plan;
mod pool;

pub use bounds::{BlockSet, RangeError};
pub use layout::{Arrangement, Dtype, KvLayout, LayoutError, Planes, PoolShape, Shard, TokenOrder, Values};
pub use plan::KvRange;
pub use pool::{BlockId, BlockPool, BlockTable, OutOfBlocks};
