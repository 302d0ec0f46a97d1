//! Bytes a second of a whole transfer in scattered blocks, beside the plainest means of moving them.

use std::process::Command;

use splitcore_core::kv::PoolShape;
use splitcore_transport::Backend;

use crate::ceiling;
use crate::setting::{Ask, BenchError, Pair, layout, now_ns, scattered};
use crate::{Bandwidth, Plan};

const LAYERS: u16 = 32;

/// Measured and ceiling take turns, so that other load hits both.
pub(crate) fn measure(
    plan: &Plan,
    backend: Backend,
    block_bytes: u32,
    child: &dyn Fn() -> Command,
) -> Result<Bandwidth, BenchError> {
    let blocks = (plan.transfer_bytes / u64::from(LAYERS) / u64::from(block_bytes)).max(1) as u32;
    let shape = PoolShape { layout: layout(LAYERS, block_bytes), blocks };
    let mut pair = Pair::new(shape, 4, backend, child)?;
    let mut plain = ceiling::Ceiling::new(backend, shape)?;
    let (mut best, mut best_plain) = (0.0_f64, 0.0_f64);
    // The first of each touches every page and does not count.
    for round in 0..=plan.repetitions {
        let (from, to) =
            (scattered(blocks, u128::from(round) * 2 + 1), scattered(blocks, u128::from(round) * 2 + 2));
        let measured = transfer(&mut pair, &from, &to)?;
        let at_best = plain.copy(&from, &to)?;
        if round > 0 {
            best = best.max(shape.bytes() as f64 / measured as f64 * 1e9);
            best_plain = best_plain.max(shape.bytes() as f64 / at_best as f64 * 1e9);
        }
    }
    Ok(Bandwidth { block_bytes, bytes_per_second: best, ceiling_bytes_per_second: best_plain })
}

fn transfer(
    pair: &mut Pair,
    from: &[splitcore_core::kv::BlockId],
    to: &[splitcore_core::kv::BlockId],
) -> Result<u64, BenchError> {
    let grants = pair.begin(1, to)?;
    let grant = &grants[0];
    let tokens = to.len() as u32 * u32::from(pair.shape.layout.block_tokens);
    let ranges: Vec<_> = (0..LAYERS).map(|layer| pair.ranges(layer, from, to)).collect();
    pair.link.begin(grant)?;
    pair.peer.say(&Ask::Await { keys: vec![grant.key] })?;
    let start = now_ns();
    for (layer, ranges) in (0..LAYERS).zip(&ranges) {
        pair.link.put(grant.key, layer, ranges)?;
        pair.link.publish(grant.key, layer, tokens)?;
    }
    let seen = pair.peer.seen()?;
    pair.ends(1)?;
    Ok(seen[0].saturating_sub(start).max(1))
}
