//! How long a decode waits after its prefill: with each layer sent as it is computed, and with all sent afterwards.

use std::num::NonZeroU64;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use splitcore_core::kv::{BlockId, PoolShape};
use splitcore_transport::{Backend, Grant, Throttle, Wire};

use crate::setting::{Ask, BenchError, Pair, layout, now_ns, scattered};
use crate::{Exposed, Plan};

const LAYERS: u16 = 32;
const BLOCK_BYTES: u32 = 64 << 10;
/// 32 layers of 2 MiB: 512 tokens at 4 KiB a token and layer.
const BLOCKS: u32 = 32;
/// How much longer a layer is computed than its KV is on the throttled link.
const COMPUTE_SHARE: f64 = 1.5;

pub(crate) fn measure(
    plan: &Plan,
    backend: Backend,
    child: &dyn Fn() -> Command,
) -> Result<Exposed, BenchError> {
    let shape = PoolShape { layout: layout(LAYERS, BLOCK_BYTES), blocks: BLOCKS };
    let mut pair = Pair::new(shape, 4, backend, child)?;
    let bytes_per_second = NonZeroU64::new(plan.throttle_bits_per_second / 8).unwrap_or(NonZeroU64::MIN);
    let wire = Wire { bytes_per_second, latency: Duration::from_micros(10) };
    let throttled = Throttle::new(pair.link.clone(), pair.pool.clone(), pair.receiver, wire);
    pair.link = Arc::new(throttled.map_err(BenchError::System)?);
    let transfer = Duration::from_secs_f64(shape.bytes() as f64 / bytes_per_second.get() as f64);
    let layer = transfer.mul_f64(COMPUTE_SHARE) / u32::from(LAYERS);
    let (from, to) = (scattered(BLOCKS, 3), scattered(BLOCKS, 4));
    let mut best = [u64::MAX; 2];
    for _ in 0..=plan.repetitions {
        for (best, layer_wise) in best.iter_mut().zip([true, false]) {
            *best = (*best).min(prefill(&mut pair, &from, &to, layer, layer_wise)?);
        }
    }
    Ok(Exposed {
        prefill_ns: (layer * u32::from(LAYERS)).as_nanos() as u64,
        transfer_ns: transfer.as_nanos() as u64,
        layer_wise_ns: best[0],
        serialized_ns: best[1],
    })
}

/// From the end of the last layer's computation until the receiver has seen all; the computation sleeps, as a
/// processor that waits for its accelerator does.
fn prefill(
    pair: &mut Pair,
    from: &[BlockId],
    to: &[BlockId],
    each: Duration,
    layer_wise: bool,
) -> Result<u64, BenchError> {
    let grant = pair.begin(1, to)?.remove(0);
    pair.link.begin(&grant)?;
    pair.peer.say(&Ask::Await { keys: vec![grant.key] })?;
    let start = Instant::now();
    let mut computed = 0;
    for layer in 0..LAYERS {
        let done = start + each * u32::from(layer + 1);
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
        computed = now_ns();
        if layer_wise {
            send(pair, &grant, layer, from, to)?;
        }
    }
    if !layer_wise {
        for layer in 0..LAYERS {
            send(pair, &grant, layer, from, to)?;
        }
    }
    let seen = pair.peer.seen()?;
    pair.ends(1)?;
    Ok(seen[0].saturating_sub(computed))
}

fn send(pair: &Pair, grant: &Grant, layer: u16, from: &[BlockId], to: &[BlockId]) -> Result<(), BenchError> {
    let tokens = to.len() as u32 * u32::from(pair.shape.layout.block_tokens);
    pair.link.put(grant.key, layer, &pair.ranges(layer, from, to))?;
    pair.link.publish(grant.key, layer, tokens)?;
    Ok(())
}
