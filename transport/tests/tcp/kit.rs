//! Pools whose bytes tell where they are from, a receiver, and a sender.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use splitcore_core::id::RequestId;
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, KvRange, Planes, PoolShape, Shard, TokenOrder, Values,
};
use splitcore_transport::{
    Arrival, Backend, Completion, ConnectOptions, Grant, Incarnation, Landing, Link, ListenOptions, Pool,
    Receiver, TransferKey, connect,
};

/// Far more than anything here takes; whoever waits so long has hung.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) const SENDER: Incarnation = Incarnation(0x5e);
pub(crate) const RECEIVER: Incarnation = Incarnation(0x7e);

/// `blocks` blocks of `bytes` bytes in each of `layers` layers.
pub(crate) fn shape(layers: u16, blocks: u32, bytes: u32) -> PoolShape {
    let tokens = 16;
    let layout = KvLayout {
        layers,
        values: Values::Heads { heads: 1, head_dim: (bytes / tokens / 4) as u16 },
        dtype: Dtype::F16,
        block_tokens: tokens as u16,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    };
    assert_eq!(layout.layer_block_bytes(), bytes, "bytes that 64 divides");
    PoolShape { layout, blocks }
}

fn bytes_of(pool: &Pool) -> (*mut u8, usize) {
    (pool.host_base().unwrap().as_ptr(), pool.bytes() as usize)
}

/// What the byte at `place` of a filled pool is.
pub(crate) fn expected(place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn filled(shape: PoolShape) -> Arc<Pool> {
    let pool = Arc::new(Pool::shared(shape).unwrap());
    let (base, len) = bytes_of(&pool);
    for place in 0..len {
        // SAFETY: inside the pool, which nobody else has yet.
        unsafe { base.add(place).write(expected(place as u64)) };
    }
    pool
}

/// A copy of a block's bytes in a layer.
pub(crate) fn block_bytes(pool: &Pool, layer: u16, block: u32) -> Vec<u8> {
    let each = pool.shape().layout.layer_block_bytes();
    let start = pool.shape().locate(BlockId(block), u32::from(layer) * each).unwrap();
    let (base, _) = bytes_of(pool);
    // SAFETY: inside the pool; the test knows that nobody writes these bytes now.
    unsafe { std::slice::from_raw_parts(base.add(start as usize), each as usize) }.to_vec()
}

pub(crate) struct Pair {
    pub(crate) receiver: Receiver,
    pub(crate) to: Arc<Pool>,
    pub(crate) from: Arc<Pool>,
    pub(crate) link: Arc<dyn Link>,
}

pub(crate) fn listen(shape: PoolShape) -> Receiver {
    listen_with(shape, |_| {})
}

pub(crate) fn listen_with(shape: PoolShape, set: impl FnOnce(&mut ListenOptions)) -> Receiver {
    let mut options = ListenOptions::new("model");
    options.local = false;
    set(&mut options);
    Receiver::listen(Arc::new(Pool::shared(shape).unwrap()), RECEIVER, options).unwrap()
}

pub(crate) fn options() -> ConnectOptions {
    ConnectOptions { backend: Some(Backend::Tcp), within: LONG, ..ConnectOptions::new("model") }
}

pub(crate) fn pair(shape: PoolShape) -> Pair {
    pair_with(shape, &options())
}

pub(crate) fn pair_with(shape: PoolShape, options: &ConnectOptions) -> Pair {
    let receiver = listen(shape);
    let from = filled(shape);
    let link = connect(&from, SENDER, receiver.endpoint(), options).unwrap();
    Pair { to: receiver.landing().pool().clone(), receiver, from, link }
}

pub(crate) fn address(receiver: &Receiver) -> SocketAddr {
    receiver.endpoint().tcp.unwrap()
}

/// Opens `blocks` for the sender, whole layers of them.
pub(crate) fn open(landing: &Landing, request: u64, blocks: &[u32]) -> Grant {
    let each = u64::from(landing.pool().shape().layout.layer_block_bytes());
    let blocks: Vec<BlockId> = blocks.iter().copied().map(BlockId).collect();
    let bytes = each * blocks.len() as u64;
    landing.open(SENDER, RequestId(request), blocks, bytes).unwrap()
}

/// Whole blocks of a layer, from the same numbers in reverse order.
pub(crate) fn ranges(shape: &PoolShape, layer: u16, blocks: &[u32]) -> Vec<KvRange> {
    let bytes = shape.layout.layer_block_bytes();
    let offset = u32::from(layer) * bytes;
    let pairs = blocks.iter().zip(blocks.iter().rev());
    pairs
        .map(|(&to, &from)| KvRange {
            from: BlockId(from),
            from_offset: offset,
            to: BlockId(to),
            to_offset: offset,
            bytes,
        })
        .collect()
}

/// Puts and publishes every layer.
pub(crate) fn send_all(pair: &Pair, grant: &Grant, blocks: &[u32]) {
    let shape = *pair.from.shape();
    pair.link.begin(grant).unwrap();
    for layer in 0..shape.layout.layers {
        pair.link.put(grant.key, layer, &ranges(&shape, layer, blocks)).unwrap();
        pair.link.publish(grant.key, layer, 16).unwrap();
    }
}

/// Waits until `count` transfers have ended at the sender.
pub(crate) fn ended(link: &dyn Link, count: usize) -> Vec<Completion> {
    let mut ends = Vec::new();
    while ends.len() < count {
        assert!(link.wait(LONG), "{} of {count} transfers ended: {ends:?}", ends.len());
        link.poll(&mut ends);
    }
    assert_eq!(ends.len(), count, "{ends:?}");
    ends
}

/// Waits until the receiver tells something that `is` likes; everything it told by then.
pub(crate) fn told(landing: &Landing, is: impl Fn(&Arrival) -> bool) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    loop {
        landing.poll(&mut arrivals);
        if arrivals.iter().any(&is) {
            return arrivals;
        }
        assert!(landing.wait(LONG), "never told; only {arrivals:?}");
    }
}

pub(crate) fn wait_all(landing: &Landing, key: TransferKey) {
    for layer in 0..landing.board().layers() {
        landing.wait_layer(key, layer, LONG).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The blocks hold what [`ranges`] moves there.
pub(crate) fn assert_arrived(pair: &Pair, blocks: &[u32]) {
    for layer in 0..pair.from.shape().layout.layers {
        for (&to, &from) in blocks.iter().zip(blocks.iter().rev()) {
            let (there, here) = (block_bytes(&pair.to, layer, to), block_bytes(&pair.from, layer, from));
            assert!(there == here, "layer {layer}, block {to}");
        }
    }
}
