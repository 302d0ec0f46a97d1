//! How soon a sleeping receiver sees a layer.

use std::process::Command;
use std::time::Duration;

use splitcore_core::kv::PoolShape;
use splitcore_transport::Backend;

use crate::setting::{Ask, BenchError, Pair, layout, now_ns, scattered};
use crate::{Notify, Plan};

/// Layers of one transfer: each is published once the receiver sleeps on it.
const LAYERS: u16 = 100;
const BLOCK_BYTES: u32 = 4096;

/// Long enough for a receiver that has just seen a layer to sleep again.
const PAUSE: Duration = Duration::from_micros(300);

pub(crate) fn measure(
    plan: &Plan,
    backend: Backend,
    child: &dyn Fn() -> Command,
) -> Result<Notify, BenchError> {
    let shape = PoolShape { layout: layout(LAYERS, BLOCK_BYTES), blocks: 1 };
    let mut pair = Pair::new(shape, 4, backend, child)?;
    let blocks = scattered(1, 1);
    let mut took = Vec::new();
    for round in 0..=plan.notifies.div_ceil(u32::from(LAYERS)) {
        let grant = pair.begin(1, &blocks)?.remove(0);
        pair.link.begin(&grant)?;
        pair.peer.say(&Ask::Watch { key: grant.key })?;
        let mut published = Vec::with_capacity(usize::from(LAYERS));
        for layer in 0..LAYERS {
            std::thread::sleep(PAUSE);
            pair.link.put(grant.key, layer, &pair.ranges(layer, &blocks, &blocks))?;
            published.push(now_ns());
            pair.link.publish(grant.key, layer, 1)?;
        }
        let seen = pair.peer.seen()?;
        pair.ends(1)?;
        if round > 0 {
            took.extend(seen.iter().zip(published).map(|(seen, published)| seen.saturating_sub(published)));
        }
    }
    took.sort_unstable();
    let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)];
    Ok(Notify { p50_ns: at(50), p99_ns: at(99) })
}
