//! High affinity: each phase on its own.

use splitcore_sim::Options;

use super::search::{Instances, Way, base, machines, replicas, tensor_sizes};
use super::{Parallelism, PlacementSpec, Tried};
use crate::capacity::CapacitySpec;
use crate::slo::{Metric, SloSet};

/// Every tensor-parallel size within a node and every number of stages within all nodes, once for each phase.
pub(super) fn ways(spec: &PlacementSpec) -> Vec<Way> {
    let cut = |tp: u32| {
        let stages_max = spec.nodes_max * spec.gpus_per_node / tp;
        (1..=stages_max).map(move |pp| Parallelism { tp, pp })
    };
    let cuts: Vec<Parallelism> = tensor_sizes(spec.gpus_per_node).flat_map(cut).collect();
    let prefills = cuts.iter().map(|&cut| Way {
        prefill: Some(cut),
        decode: None,
        spec: alone(
            spec,
            "prefill",
            Options { unsplit: Some(machines(1, &spec.machine, cut)), ..base(&spec.options) },
        ),
    });
    let decodes = cuts.iter().map(|&cut| Way {
        prefill: None,
        decode: Some(cut),
        spec: alone(
            spec,
            "decode",
            Options { unsplit: Some(machines(1, &spec.machine, cut)), ..base(&spec.options) },
        ),
    });
    prefills.chain(decodes).collect()
}

/// The best of each phase by goodput for each GPU; the first of equals, which has the fewest GPUs of its tensor size.
pub(super) fn choose(tried: &[Tried], rate_rps: f64) -> Option<Instances> {
    let best =
        |cut: fn(&Tried) -> Option<Parallelism>| {
            let of_phase = tried.iter().filter(|way| cut(way).is_some() && way.goodput_rps > 0.0);
            let best = of_phase.reduce(|best, way| {
                if way.goodput_rps_per_gpu > best.goodput_rps_per_gpu { way } else { best }
            })?;
            Some((cut(best)?, replicas(rate_rps, best.goodput_rps)))
        };
    let (prefill, prefill_count) = best(|way| way.prefill)?;
    let (decode, decode_count) = best(|way| way.decode)?;
    Some(Instances { prefill, prefill_count, decode, decode_count })
}

fn alone(spec: &PlacementSpec, phase: &str, options: Options) -> CapacitySpec {
    CapacitySpec {
        options: Options { only: Some(phase.into()), ..options },
        slo: of_phase(&spec.slo, phase == "prefill"),
        seeds: spec.seeds,
        resolution: spec.resolution,
        step_rps: None,
    }
}

/// What a phase alone can answer for. The end-to-end time is nobody's; all instances together are held to it.
pub(super) fn of_phase(slo: &SloSet, is_prefill: bool) -> SloSet {
    let is_its = |metric: Metric| match metric {
        Metric::TtftS | Metric::TtftSlowdown => is_prefill,
        Metric::TpotS | Metric::TbtSlowdown => !is_prefill,
        Metric::E2eS | Metric::E2eSlowdown => false,
    };
    let mut slo = slo.clone();
    for class in &mut slo.classes {
        class.limits.retain(|limit| is_its(limit.metric));
        for attainment in &mut class.attainments {
            attainment.limits.retain(|&(metric, _)| is_its(metric));
        }
        class.attainments.retain(|attainment| !attainment.limits.is_empty());
    }
    slo
}
