"""How to cut a model over GPUs for each phase: DistServe's placement algorithms."""

from typing import Any, Literal, TypedDict, Unpack, cast

from splitcore import _native
from splitcore.engines import Progress
from splitcore.engines import engine as engine_named
from splitcore.errors import wrong
from splitcore.plan_schema import Finding, RunOptions
from splitcore.planning import DURATION_S, run_options

__all__ = ["AFFINITIES", "NVLINK_BYTES_PER_S", "Cut", "Cuts", "Tried", "parallelism", "parallelism_spec"]

Affinity = Literal["high", "low"]
AFFINITIES = ("high", "low")

NVLINK_BYTES_PER_S = 600e9
"""Between the GPUs of a node, unless said: that of an A100."""


class Cut(TypedDict):
    """How an instance is cut."""

    tp: int
    """GPUs that share each layer."""
    pp: int
    """Pipeline stages."""


class Tried(TypedDict):
    """What one way to cut came to."""

    prefill: Cut | None
    """None where only decode was simulated."""
    decode: Cut | None
    """None where only prefill was simulated."""
    goodput_rps: float
    """The highest rate that keeps the objectives, mean over seeds."""
    goodput_rps_per_gpu: float
    failing: list[str]
    """What fails just above, most seeds first."""


class Cuts(TypedDict):
    """The best way to cut, replicated to a rate."""

    prefill: Cut | None
    """None if no way keeps the objectives at any rate."""
    prefill_instances: int
    decode: Cut | None
    decode_instances: int
    gpus: int
    """Of all instances."""
    holds: bool
    """Whether all instances together keep all objectives at the rate, with every seed. The algorithms do not ask."""
    findings: list[Finding]
    """What came of each objective there, seed after seed."""
    tried: list[Tried]
    """Every way to cut that was simulated."""
    ruled_out: list[str]
    """Ways that the model or its measurements rule out, and why."""
    probes: int
    """Runs made or taken from the cache."""


def parallelism_spec(
    *,
    rate: float,
    slo: str,
    machine: str = "dgx-a100",
    affinity: Affinity = "high",
    nodes_max: int = 1,
    gpus_per_node: int = 8,
    node_bandwidth: float = NVLINK_BYTES_PER_S,
    seeds: int = 3,
    resolution: float = 0.05,
    **run: Unpack[RunOptions],
) -> dict[str, Any]:
    """Make the specification of a search for parallelism; arguments are those of `parallelism`."""
    unknown = run.keys() - RunOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"parallelism() got an unexpected keyword argument {min(unknown)!r}")
    if affinity not in AFFINITIES:
        raise wrong("affinity", " or ".join(AFFINITIES), affinity)
    return {
        "options": run_options({"duration_s": DURATION_S, **run}),
        "slo": _native.slo_set(str(slo)),
        "affinity": affinity,
        "machine": machine,
        "nodes_max": nodes_max,
        "gpus_per_node": gpus_per_node,
        "node_bandwidth_bytes_per_s": node_bandwidth,
        "rate_rps": rate,
        "seeds": seeds,
        "resolution": resolution,
    }


def parallelism(
    *,
    rate: float,
    slo: str,
    machine: str = "dgx-a100",
    affinity: Affinity = "high",
    nodes_max: int = 1,
    gpus_per_node: int = 8,
    node_bandwidth: float = NVLINK_BYTES_PER_S,
    seeds: int = 3,
    resolution: float = 0.05,
    jobs: int | None = None,
    cache: str | None = None,
    engine: str = "local",
    progress: Progress | None = None,
    **run: Unpack[RunOptions],
) -> Cuts:
    """Find how to cut a model over GPUs for each phase, and how many instances a rate takes.

    DistServe's two algorithms (OSDI'24, section 4). With high affinity each phase is simulated alone for every tensor-
    and pipeline-parallel size, and the size with the highest goodput for each GPU wins. With low affinity a prefill and
    a decode instance share their nodes stage by stage, so that the KV never leaves a node; pairs are simulated
    together. Then instances are replicated to the rate, and all together are simulated once more.

    Args:
        rate: Requests per second to hold.
        slo: A built-in set such as ``"distserve-chat-13b-90"``, or the path of a TOML file. For high affinity it limits
            both the time to the first token and the time between tokens.
        machine: Of every node.
        affinity: ``"high"`` where KV moves fast between nodes, ``"low"`` where it does so within a node only.
        nodes_max: Nodes one instance may span.
        gpus_per_node: GPUs in a node.
        node_bandwidth: Within a node, in bytes per second; of low affinity.
        seeds: Workloads drawn.
        resolution: Relative width at which the search for each goodput ends.
        jobs: As of `splitcore.plan`.
        cache: As of `splitcore.plan`.
        engine: As of `splitcore.plan`.
        progress: As of `splitcore.plan`.
        **run: The keywords of `splitcore.simulate` but for ``rate`` and the machines. Arrivals last 120 s by default.

    Returns:
        The cuts, the instances, and what every way to cut came to.

    Raises:
        ConfigError: If an option is out of range, or the model fits in no way; it names the option.
        InputError: If a line of a file is bad; it names file, line and field.
    """
    spec = parallelism_spec(
        rate=rate,
        slo=slo,
        machine=machine,
        affinity=affinity,
        nodes_max=nodes_max,
        gpus_per_node=gpus_per_node,
        node_bandwidth=node_bandwidth,
        seeds=seeds,
        resolution=resolution,
        **run,
    )
    kept = None if cache is None else _native.Cache(cache)
    return cast("Cuts", engine_named(engine, jobs).search("placement", spec, kept, progress))
