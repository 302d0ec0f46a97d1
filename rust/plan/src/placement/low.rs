//! Low affinity: stages of both phases paired within nodes.

use splitcore_sim::Options;

use super::search::{Instances, Way, base, machines, replicas, tensor_sizes};
use super::{Parallelism, PlacementSpec, Tried};
use crate::capacity::CapacitySpec;

/// Every number of nodes that a pair spans, and all cuts of both instances that fit a node together.
pub(super) fn ways(spec: &PlacementSpec) -> Vec<Way> {
    let within: Vec<Parallelism> = tensor_sizes(spec.gpus_per_node)
        .flat_map(|tp| (1..=spec.gpus_per_node / tp).map(move |pp| Parallelism { tp, pp }))
        .collect();
    let mut ways = Vec::new();
    for nodes in 1..=spec.nodes_max {
        for &prefill in &within {
            for &decode in within.iter().filter(|decode| prefill.gpus() + decode.gpus() <= spec.gpus_per_node)
            {
                let over = |cut: Parallelism| Parallelism { pp: cut.pp * nodes, ..cut };
                let way = way(spec, over(prefill), over(decode));
                // Stages in nodes or across them cost the same here, so 2 x 1 and 1 x 2 are one way.
                if !ways.iter().any(|known: &Way| (known.prefill, known.decode) == (way.prefill, way.decode))
                {
                    ways.push(way);
                }
            }
        }
    }
    ways
}

/// The pair with the highest goodput for each GPU, replicated.
pub(super) fn choose(tried: &[Tried], rate_rps: f64) -> Option<Instances> {
    let able = tried.iter().filter(|way| way.goodput_rps > 0.0);
    let best =
        able.reduce(|best, way| if way.goodput_rps_per_gpu > best.goodput_rps_per_gpu { way } else { best })?;
    let count = replicas(rate_rps, best.goodput_rps);
    Some(Instances {
        prefill: best.prefill?,
        prefill_count: count,
        decode: best.decode?,
        decode_count: count,
    })
}

fn way(spec: &PlacementSpec, prefill: Parallelism, decode: Parallelism) -> Way {
    let options = Options {
        prompt: Some(machines(1, &spec.machine, prefill)),
        token: Some(machines(1, &spec.machine, decode)),
        link_bandwidth: Some(spec.node_bandwidth_bytes_per_s),
        ..base(&spec.options)
    };
    Way {
        prefill: Some(prefill),
        decode: Some(decode),
        spec: CapacitySpec {
            options,
            slo: spec.slo.clone(),
            seeds: spec.seeds,
            resolution: spec.resolution,
            step_rps: None,
        },
    }
}
