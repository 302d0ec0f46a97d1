//! Many transfers at once: whether the last ones are as fast as the first.

use std::process::Command;

use splitcore_core::kv::{BlockId, PoolShape};
use splitcore_transport::Backend;

use crate::setting::{Ask, BenchError, Pair, layout, now_ns};
use crate::{Plan, Queued};

const LAYERS: u16 = 2;
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn measure(
    plan: &Plan,
    backend: Backend,
    child: &dyn Fn() -> Command,
) -> Result<Queued, BenchError> {
    let shape = PoolShape { layout: layout(LAYERS, BLOCK_BYTES), blocks: 1 };
    let mut pair = Pair::new(shape, plan.queued, backend, child)?;
    let block = [BlockId(0)];
    let grants = pair.begin(plan.queued, &block)?;
    for grant in &grants {
        pair.link.begin(grant)?;
    }
    // Over shared memory whoever waits is woken by the caller's thread, which then measures the waking; so nobody waits.
    let awaits = Ask::Await { keys: grants.iter().map(|grant| grant.key).collect() };
    let queues = backend == Backend::Tcp;
    if queues {
        pair.peer.say(&awaits)?;
    }
    let ranges: Vec<_> = (0..LAYERS).map(|layer| pair.ranges(layer, &block, &block)).collect();
    let mut put = Vec::with_capacity(grants.len());
    for grant in &grants {
        for (layer, ranges) in (0..LAYERS).zip(&ranges) {
            pair.link.put(grant.key, layer, ranges)?;
            pair.link.publish(grant.key, layer, 1)?;
        }
        put.push(now_ns());
    }
    if !queues {
        pair.peer.say(&awaits)?;
    }
    pair.ends(grants.len())?;
    let seen = pair.peer.seen()?;
    // Where the caller's thread copies there is no queue but the caller: what counts is what a call takes.
    let times = if queues { seen } else { put };
    let tenth = (times.len() / 10).max(2);
    let rate = |times: &[u64]| times.len() as f64 / (times[times.len() - 1] - times[0]).max(1) as f64 * 1e9;
    Ok(Queued {
        transfers: plan.queued,
        first_per_second: rate(&times[..tenth]),
        last_per_second: rate(&times[times.len() - tenth..]),
    })
}
