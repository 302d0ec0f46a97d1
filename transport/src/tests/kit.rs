//! Small pools, and a link within the process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, KvRange, Planes, PoolShape, Shard, TokenOrder, Values,
};

use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::landing::{Landing, Writer};
use crate::ledger::{Copy, Ledger};
use crate::pool::Pool;
use crate::transfer::{Completion, Grant, Link, PeerState, TransferKey, Wake};
use crate::word::{Generation, LayerSeal};

/// The receiver's name, and the sender's.
pub(crate) const HERE: Incarnation = Incarnation(1);
pub(crate) const THERE: Incarnation = Incarnation(2);

/// Blocks of 2 layers or more with 32 bytes in each.
pub(crate) fn shape(layers: u16, blocks: u32) -> PoolShape {
    let layout = KvLayout {
        layers,
        values: Values::Heads { heads: 1, head_dim: 4 },
        dtype: Dtype::F16,
        block_tokens: 2,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    };
    PoolShape { layout, blocks }
}

pub(crate) fn pool(layers: u16, blocks: u32) -> Arc<Pool> {
    Arc::new(Pool::shared(shape(layers, blocks)).unwrap())
}

pub(crate) fn landing(layers: u16, blocks: u32, slots: u32) -> Landing {
    Landing::new(pool(layers, blocks), HERE, slots).unwrap()
}

pub(crate) fn blocks(numbers: impl IntoIterator<Item = u32>) -> Vec<BlockId> {
    numbers.into_iter().map(BlockId).collect()
}

pub(crate) fn key(request: u64, slot: u32, generation: u32) -> TransferKey {
    TransferKey { request: RequestId(request), slot, generation: Generation::new(generation).unwrap() }
}

pub(crate) fn seal(bytes: u64) -> LayerSeal {
    LayerSeal { tokens: 2, bytes, crc32c: None }
}

/// The bytes of a whole block in a layer.
pub(crate) fn whole(shape: &PoolShape, layer: u16, from: BlockId, to: BlockId) -> KvRange {
    let bytes = shape.layout.layer_block_bytes();
    let offset = u32::from(layer) * bytes;
    KvRange { from, from_offset: offset, to, to_offset: offset, bytes }
}

fn place(pool: &Pool, layer: u16, block: BlockId) -> (*mut u8, usize) {
    let size = pool.shape().layout.layer_block_bytes();
    let place = pool.shape().locate(block, u32::from(layer) * size).unwrap();
    (pool.host_base().unwrap().as_ptr().wrapping_add(place as usize), size as usize)
}

/// The bytes of a block in a layer.
pub(crate) fn bytes(pool: &Pool, layer: u16, block: BlockId) -> Vec<u8> {
    let (from, len) = place(pool, layer, block);
    // SAFETY: the place is in the pool. Who looks at a block while it is written is wrong anyway.
    unsafe { std::slice::from_raw_parts(from, len) }.to_vec()
}

/// Writes a block in a layer: to every place its byte.
pub(crate) fn fill(pool: &Pool, layer: u16, block: BlockId, byte: impl Fn(usize) -> u8) {
    let (to, len) = place(pool, layer, block);
    for at in 0..len {
        // SAFETY: the place is in the pool, and tests write only blocks that nobody else touches.
        unsafe { to.add(at).write(byte(at)) };
    }
}

/// A writer of which only its being there counts.
pub(crate) struct Stranger {
    pub(crate) writes_here: bool,
    pub(crate) stopped: Mutex<Vec<TransferKey>>,
}

impl Stranger {
    pub(crate) fn new(writes_here: bool) -> Arc<Self> {
        Arc::new(Self { writes_here, stopped: Mutex::default() })
    }
}

impl Writer for Stranger {
    fn writes_here(&self) -> bool {
        self.writes_here
    }

    fn stop(&self, key: TransferKey) {
        self.stopped.lock().unwrap().push(key);
    }

    fn close(&self) {}
}

/// A link that copies into a landing of the same process.
pub(crate) struct Local {
    ledger: Ledger,
    landing: Landing,
    me: Incarnation,
    /// One put or publication at a time, as their books and their bytes go together.
    calls: Mutex<()>,
    /// What the next puts come to instead.
    pub(crate) refusals: Mutex<VecDeque<TransferError>>,
}

struct Remote(Arc<Local>);

impl Writer for Remote {
    fn writes_here(&self) -> bool {
        true
    }

    fn stop(&self, key: TransferKey) {
        self.0.ledger.end(Completion::Fenced(key));
    }

    fn close(&self) {
        self.0.ledger.lose(|key| TransferError::PeerLost { key, peer: self.0.landing.owner() });
    }
}

impl Local {
    pub(crate) fn join(source: Arc<Pool>, landing: &Landing, me: Incarnation) -> Arc<Self> {
        let ledger = Ledger::new(source, *landing.pool().shape(), landing.owner());
        let link = Arc::new(Self {
            ledger,
            landing: landing.clone(),
            me,
            calls: Mutex::default(),
            refusals: Mutex::default(),
        });
        landing.joined(me, Arc::new(Remote(link.clone()))).unwrap();
        link
    }

    fn copy(
        &self,
        key: TransferKey,
        layer: u16,
        ranges: &[KvRange],
        copies: &[Copy],
    ) -> Result<(), TransferError> {
        let writing = self.landing.writing(self.me, key)?;
        for (range, copy) in ranges.iter().zip(copies) {
            let place = writing.admit(layer, range.to, range.to_offset, range.bytes)?;
            assert_eq!(place.start, copy.to, "both sides find the same place");
            let from = self.ledger.pool().host_base().unwrap().as_ptr();
            let to = self.landing.pool().host_base().unwrap().as_ptr();
            // SAFETY: both places were admitted by their pools, which are apart; the hold keeps others away.
            unsafe {
                from.add(copy.from as usize)
                    .copy_to_nonoverlapping(to.add(copy.to as usize), copy.bytes as usize);
            }
        }
        Ok(())
    }
}

impl Link for Local {
    fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        self.ledger.begin(grant)
    }

    fn put(&self, key: TransferKey, layer: u16, ranges: &[KvRange]) -> Result<(), TransferError> {
        let _one = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refusal) = self.refusals.lock().unwrap().pop_front() {
            return Err(refusal);
        }
        let copies = self.ledger.put(key, layer, ranges)?;
        self.copy(key, layer, ranges, &copies).inspect_err(|_| {
            self.ledger.end(Completion::Fenced(key));
        })
    }

    fn publish(&self, key: TransferKey, layer: u16, tokens: u32) -> Result<(), TransferError> {
        let _one = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let sealed = self.ledger.publish(key, layer)?;
        let seal = LayerSeal { tokens, bytes: sealed.bytes, crc32c: None };
        self.landing.publish(self.me, key, layer, seal).inspect_err(|_| {
            self.ledger.end(Completion::Fenced(key));
        })?;
        if sealed.last {
            self.ledger.end(Completion::LocalDone(key));
        }
        Ok(())
    }

    fn stop(&self, key: TransferKey) {
        let _one = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        self.ledger.end(Completion::Fenced(key));
    }

    fn poll(&self, ended: &mut Vec<Completion>) {
        self.ledger.poll(ended);
    }

    fn wait(&self, within: Duration) -> bool {
        self.ledger.wait(within)
    }

    fn on_end(&self, wake: Wake) {
        self.ledger.on_end(wake);
    }

    fn peer(&self) -> PeerState {
        self.ledger.peer()
    }

    fn remote(&self) -> &PoolShape {
        self.ledger.remote()
    }
}
