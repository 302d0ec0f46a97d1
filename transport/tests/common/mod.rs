//! What the tests of the backends share: pools with bytes of which each says where it belongs, and receivers.

#![allow(dead_code, reason = "every test takes what it needs")]

pub(crate) mod child;
pub(crate) mod jobs;
pub(crate) mod open;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use splitcore_core::id::RequestId;
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, Planes, PoolShape, Shard, TokenOrder, TransferPlan, Values,
    plan_transfer,
};
use splitcore_transport::{
    Arrival, Backend, Completion, ConnectOptions, Endpoint, Grant, Incarnation, Landing, Link, ListenOptions,
    Pool, Receiver, TransferKey, connect,
};

/// The model that both sides of a test serve.
pub(crate) const MODEL: &str = "a model of the tests";

/// The longest that anything may take: far more than it does, on a machine however busy.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// A layout of 4 layers whose blocks have 16 KiB in each.
pub(crate) fn layout(planes: Planes, arrangement: Arrangement) -> KvLayout {
    KvLayout {
        layers: 4,
        values: Values::Heads { heads: 4, head_dim: 64 },
        dtype: Dtype::F16,
        block_tokens: 16,
        order: TokenOrder::Nhd,
        planes,
        arrangement,
        shard: Shard::WHOLE,
    }
}

/// A pool of at least so many bytes.
pub(crate) fn shape(layout: KvLayout, bytes: u64) -> PoolShape {
    PoolShape { layout, blocks: bytes.div_ceil(u64::from(layout.block_bytes())) as u32 }
}

/// The source of most tests: K and V together, each layer by itself.
pub(crate) fn source_shape(bytes: u64) -> PoolShape {
    shape(layout(Planes::Together, Arrangement::LayerFirst), bytes)
}

/// Their destination: K and V apart.
pub(crate) fn destination_shape(bytes: u64) -> PoolShape {
    shape(layout(Planes::Apart, Arrangement::LayerFirst), bytes)
}

/// Small blocks, of 4 KiB in 2 layers.
pub(crate) fn small_shape(blocks: u32) -> PoolShape {
    let layout = layout(Planes::Together, Arrangement::LayerFirst);
    let values = Values::Heads { heads: 1, head_dim: 32 };
    PoolShape { layout: KvLayout { layers: 2, values, ..layout }, blocks }
}

/// The next of a row of numbers that look random (splitmix64).
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// A number of another one, that looks random.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Some blocks of a pool, in no order.
pub(crate) fn scattered(shape: &PoolShape, count: usize, state: &mut u64) -> Vec<BlockId> {
    let mut blocks: Vec<u32> = (0..shape.blocks).collect();
    assert!(count <= blocks.len(), "{count} blocks of {}", blocks.len());
    for at in 0..count {
        let other = at + (next(state) % (blocks.len() - at) as u64) as usize;
        blocks.swap(at, other);
    }
    blocks.truncate(count);
    blocks.into_iter().map(BlockId).collect()
}

/// The eight bytes at an offset of the `index`-th block of a transfer.
fn word(seed: u64, index: usize, offset: u32) -> u64 {
    mix(seed ^ mix((index as u64) << 32 | u64::from(offset)))
}

/// What a block holds that nothing was moved to.
fn canary(block: BlockId, offset: u32) -> u64 {
    mix(0xca7a_7117 ^ u64::from(block.0) << 32 ^ u64::from(offset))
}

/// Goes over the words of a layer of a block; `None`: of all layers.
fn words(pool: &Pool, block: BlockId, layer: Option<u16>, each: impl FnMut(*mut u64, u32)) {
    strided_words(pool, block, layer, 8, each);
}

fn strided_words(
    pool: &Pool,
    block: BlockId,
    layer: Option<u16>,
    stride: usize,
    mut each: impl FnMut(*mut u64, u32),
) {
    let shape = pool.shape();
    let bytes = shape.layout.layer_block_bytes();
    let (from, to) = layer.map_or((0, shape.layout.block_bytes()), |layer| {
        (u32::from(layer) * bytes, (u32::from(layer) + 1) * bytes)
    });
    let base = pool.host_base().expect("a pool in memory");
    let page = shape.layout.plane_block_bytes();
    for start in (from..to).step_by(page as usize) {
        let at = shape.locate(block, start).expect("a block of the pool");
        for within in (0..page).step_by(stride) {
            // SAFETY: pages lie in the pool and are multiples of eight bytes.
            each(unsafe { base.add(at as usize + within as usize) }.cast::<u64>().as_ptr(), start + within);
        }
    }
}

/// Puts what a transfer moves into its source's blocks.
pub(crate) fn fill(pool: &Pool, table: &[BlockId], seed: u64) {
    for (index, &block) in table.iter().enumerate() {
        // SAFETY: the words are the pool's, and nobody reads them yet.
        words(pool, block, None, |at, offset| unsafe { at.write(word(seed, index, offset)) });
    }
}

/// Checks a layer of a transfer, each byte.
pub(crate) fn verify(pool: &Pool, table: &[BlockId], layer: u16, seed: u64) -> Result<(), String> {
    let mut wrong = None;
    for (index, &block) in table.iter().enumerate() {
        words(pool, block, Some(layer), |at, offset| {
            // SAFETY: the words are the pool's; volatile, since another process writes them.
            let found = unsafe { at.read_volatile() };
            if found != word(seed, index, offset) && wrong.is_none() {
                wrong = Some(format!("block {index} ({}), offset {offset}: {found:016x}", block.0));
            }
        });
    }
    wrong.map_or(Ok(()), |wrong| Err(format!("layer {layer} of seed {seed:#x} is torn: {wrong}")))
}

/// Marks blocks as nobody's.
pub(crate) fn disown(pool: &Pool, blocks: &[BlockId]) {
    for &block in blocks {
        // SAFETY: the words are the pool's.
        words(pool, block, None, |at, offset| unsafe { at.write(canary(block, offset)) });
    }
}

/// Marks a few words of blocks, the last block first: quickly, to be overtaken by a copy that still runs.
pub(crate) fn disown_at_once(pool: &Pool, blocks: &[BlockId]) {
    for &block in blocks.iter().rev() {
        // SAFETY: the words are the pool's; volatile, since another thread may write them if something is wrong.
        strided_words(pool, block, None, 4096, |at, offset| unsafe {
            at.write_volatile(canary(block, offset));
        });
    }
}

/// Checks the words that [`disown_at_once`] marked.
pub(crate) fn untouched_since(pool: &Pool, blocks: &[BlockId]) {
    for &block in blocks {
        strided_words(pool, block, None, 4096, |at, offset| {
            // SAFETY: the words are the pool's; volatile, since another process may write them.
            let found = unsafe { at.read_volatile() };
            assert!(found == canary(block, offset), "block {} was written at {offset} after all", block.0);
        });
    }
}

/// Checks that nobody has written what is nobody's.
pub(crate) fn untouched(pool: &Pool, blocks: &[BlockId]) {
    for &block in blocks {
        words(pool, block, None, |at, offset| {
            // SAFETY: the words are the pool's; volatile, since another process may write them.
            let found = unsafe { at.read_volatile() };
            assert!(found == canary(block, offset), "block {} was written at {offset}", block.0);
        });
    }
}

/// Every block of a pool.
pub(crate) fn all_blocks(shape: &PoolShape) -> Vec<BlockId> {
    (0..shape.blocks).map(BlockId).collect()
}

/// The plan that moves whole blocks.
pub(crate) fn plan(
    from: &PoolShape,
    source: &[BlockId],
    to: &PoolShape,
    destination: &[BlockId],
) -> TransferPlan {
    let tokens = source.len() as u32 * u32::from(from.layout.block_tokens);
    plan_transfer(from, source, to, destination, 0..tokens).expect("a plan for two pools of one model")
}

/// Bytes of so many blocks in one layer.
pub(crate) fn layer_bytes(layout: &KvLayout, blocks: usize) -> u64 {
    blocks as u64 * u64::from(layout.layer_block_bytes())
}

/// A folder that goes when it is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let name = format!("kv-test-{}-{}", std::process::id(), Incarnation::random().unwrap());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A receiver with a pool that is nobody's so far.
pub(crate) fn receiver(shape: PoolShape, slots: u32) -> Receiver {
    receiver_in(shape, slots, None)
}

/// A receiver whose local socket lies in a folder.
pub(crate) fn receiver_in(shape: PoolShape, slots: u32, folder: Option<PathBuf>) -> Receiver {
    let pool = Arc::new(Pool::shared(shape).unwrap());
    disown(&pool, &all_blocks(&shape));
    let options = ListenOptions { slots, folder, ..ListenOptions::new(MODEL) };
    Receiver::listen(pool, Incarnation::random().unwrap(), options).unwrap()
}

/// Connects by one backend.
pub(crate) fn connect_by(
    backend: Backend,
    pool: &Arc<Pool>,
    me: Incarnation,
    to: &Endpoint,
) -> Arc<dyn Link> {
    let options = ConnectOptions { backend: Some(backend), within: BOUND, ..ConnectOptions::new(MODEL) };
    connect(pool, me, to, &options).unwrap_or_else(|error| panic!("{backend}: {error}"))
}

/// Puts and publishes a layer of a plan, in pieces of so many ranges.
pub(crate) fn send_layer(
    link: &dyn Link,
    key: TransferKey,
    plan: &TransferPlan,
    layer: u16,
    ranges_per_put: usize,
) -> Result<(), splitcore_transport::TransferError> {
    let ranges: Vec<_> = plan.layer(layer).collect();
    for some in ranges.chunks(ranges_per_put) {
        unless_busy(link, || link.put(key, layer, some))?;
    }
    unless_busy(link, || link.publish(key, layer, 16))
}

/// Calls again while the queue of the peer is full.
pub(crate) fn unless_busy<T>(
    link: &dyn Link,
    mut call: impl FnMut() -> Result<T, splitcore_transport::TransferError>,
) -> Result<T, splitcore_transport::TransferError> {
    let until = Instant::now() + BOUND;
    loop {
        match call() {
            Err(splitcore_transport::TransferError::Busy { .. }) if Instant::now() < until => {
                link.wait(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// The one end of each of these transfers; fails if one has none, or two.
pub(crate) fn ends(link: &dyn Link, keys: &[TransferKey]) -> Vec<Completion> {
    let mut ended = Vec::new();
    let until = Instant::now() + BOUND;
    loop {
        link.poll(&mut ended);
        if ended.len() >= keys.len() {
            break;
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "waited {BOUND:?} for the end of {keys:?}, had {ended:?}");
        link.wait(left);
    }
    for key in keys {
        assert_eq!(ended.iter().filter(|end| end.key() == *key).count(), 1, "ends of {key}: {ended:?}");
    }
    assert_eq!(ended.len(), keys.len(), "{ended:?}");
    ended
}

/// Opens a transfer of some blocks.
pub(crate) fn open(receiver: &Receiver, writer: Incarnation, request: u64, blocks: &[BlockId]) -> Grant {
    let landing = receiver.landing();
    let bytes = layer_bytes(&landing.pool().shape().layout, blocks.len());
    landing.open(writer, RequestId(request), blocks.to_vec(), bytes).unwrap()
}

/// Waits until every transfer has landed or is fenced; says whether all have landed.
pub(crate) fn settle(landing: &Landing, grants: &[Grant]) -> bool {
    let mut arrivals = Vec::new();
    let landed = |grant: &Grant| landing.landed(grant.key) == Ok(landing.pool().shape().layout.layers);
    until("every transfer has landed or is fenced", || {
        landing.poll(&mut arrivals);
        let fenced = |grant: &Grant| arrivals.contains(&Arrival::Fenced(grant.key));
        let settled = grants.iter().all(|grant| landed(grant) || fenced(grant));
        if !settled {
            landing.wait(BOUND);
        }
        settled
    });
    for grant in grants {
        let fences = arrivals.iter().filter(|arrival| **arrival == Arrival::Fenced(grant.key)).count();
        assert!(fences <= 1, "{} was fenced {fences} times", grant.key);
    }
    grants.iter().all(landed)
}

/// Waits until a transfer is fenced; fails if it is fenced twice.
pub(crate) fn fenced(landing: &Landing, key: TransferKey) {
    let mut arrivals = Vec::new();
    until("a transfer is fenced", || {
        landing.poll(&mut arrivals);
        arrivals.contains(&Arrival::Fenced(key)) || {
            landing.wait(BOUND);
            false
        }
    });
    let fences = arrivals.iter().filter(|arrival| **arrival == Arrival::Fenced(key)).count();
    assert_eq!(fences, 1, "{key}: {arrivals:?}");
}

/// Waits until something that is asked again and again is so. Where nothing wakes who waits, it gives way.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + BOUND;
    while !so() {
        assert!(Instant::now() < until, "waited {BOUND:?} until {what}");
        std::thread::yield_now();
    }
}
