//! KV blocks of one machine: which are free, how they are laid out, and how they become another machine's.

mod bounds;
mod cut;
mod geometry;
pub mod layout;
mod mismatch;
mod plan;
mod pool;
mod ranks;
mod runs;

pub use bounds::{BlockSet, RangeError};
pub use layout::{Arrangement, Dtype, KvLayout, LayoutError, Planes, PoolShape, Shard, TokenOrder, Values};
pub use mismatch::Mismatch;
pub use plan::{PlanError, Side, TransferPlan, plan_transfer};
pub use pool::{BlockId, BlockPool, BlockTable, OutOfBlocks};
pub use ranks::senders;
pub use runs::{KvRange, RANGE_BYTES_MAX};
