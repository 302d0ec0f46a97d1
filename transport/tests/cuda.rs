//! Device memory on a real device, where there is one; else each test says why it is skipped. What two processes do
//! is checked by `benches/gpu/cuda_ipc_check.py`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use splitcore_core::kv::{Arrangement, Dtype, KvLayout, Planes, PoolShape, Shard, TokenOrder, Values};
use splitcore_transport::{
    ConnectOptions, DeviceView, Incarnation, ListenOptions, Pool, Receiver, connect, cuda_adopt,
    cuda_devices, cuda_pool,
};

/// Whether there is a device; if not, why is printed.
fn has_device() -> bool {
    let Err(why) = cuda_devices() else { return true };
    eprintln!("skipped: {why}");
    let text = why.to_string();
    assert!(text.starts_with("no CUDA driver: ") || text.starts_with("no CUDA device: "), "{text}");
    false
}

fn shape() -> PoolShape {
    let layout = KvLayout {
        layers: 2,
        values: Values::Heads { heads: 2, head_dim: 64 },
        dtype: Dtype::F16,
        block_tokens: 16,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    };
    PoolShape { layout, blocks: 8 }
}

fn all(pool: &Pool) -> Vec<u8> {
    let mut bytes = vec![0xff; pool.bytes() as usize];
    DeviceView::of(pool).unwrap().read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_new_pool_is_all_zero_and_holds_what_is_written() {
    if !has_device() {
        return;
    }
    let pool = cuda_pool(shape(), 0).unwrap();
    assert!(all(&pool).iter().all(|&byte| byte == 0));
    let view = DeviceView::of(&pool).unwrap();
    view.write(100, &[1, 2, 3]).unwrap();
    let stream = view.stream().unwrap();
    stream.copy(100, 4096, 3).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(all(&pool)[4095..4100], [0, 1, 2, 3, 0]);
    assert!(view.write(pool.bytes() - 1, &[1, 2]).is_err(), "past its end");
}

#[test]
fn a_pool_can_lie_within_memory_that_is_there() {
    if !has_device() {
        return;
    }
    let larger = PoolShape { blocks: 16, ..shape() };
    let there = Arc::new(cuda_pool(larger, 0).unwrap());
    let (base, len) = (DeviceView::of(&there).unwrap().pointer(), shape().bytes());
    // SAFETY: the pool that lies there has twice as many bytes, and is kept.
    let within = unsafe { cuda_adopt(shape(), 0, base + len, len, Box::new(there.clone())) }.unwrap();
    DeviceView::of(&within).unwrap().write(0, &[7]).unwrap();
    assert_eq!(all(&there)[len as usize], 7);
}

#[test]
fn a_receiver_in_the_same_process_is_refused_with_the_reason() {
    if !has_device() {
        return;
    }
    let [theirs, ours] = [0; 2].map(|ordinal| Arc::new(cuda_pool(shape(), ordinal).unwrap()));
    let receiver = Receiver::listen(theirs, Incarnation(1), ListenOptions::new("m")).unwrap();
    assert!(receiver.endpoint().device.as_ref().is_some_and(|name| name.starts_with("GPU-")));
    let refused = connect(&ours, Incarnation(2), receiver.endpoint(), &ConnectOptions::new("m"));
    let text = refused.map(drop).unwrap_err().to_string();
    assert!(text.contains("in the process that exported it"), "{text}");
}
