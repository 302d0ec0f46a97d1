//! KV blocks of one machine.

mod pool;

pub use pool::{BlockId, BlockPool, BlockTable, OutOfBlocks};
