"""Which cluster for which traffic: the highest rate of one, and the best of many, found by simulation."""

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict, Unpack, cast

from splitcore import _native
from splitcore.designs import PRESETS, design
from splitcore.engines import Engine, Progress
from splitcore.engines import engine as engine_named
from splitcore.errors import wrong
from splitcore.plan_schema import (
    GOALS,
    THRESHOLDS,
    Capacity,
    ClusterOptions,
    Goal,
    Plan,
    Probe,
    RunOptions,
    Verdict,
)

__all__ = ["DURATION_S", "Load", "capacity", "capacity_spec", "load_curve", "plan", "plan_spec", "run_options"]

DURATION_S = 120.0
"""Of the arrivals, where `plan` is not told."""

_CLUSTER = frozenset(ClusterOptions.__annotations__)
_RUN = frozenset(RunOptions.__annotations__)


class Load(TypedDict):
    """What a cluster makes of one rate."""

    rate: float
    verdicts: list[Verdict]
    """One for each seed."""


def run_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Turn keywords into the options of a run.

    Args:
        options: Of `splitcore.simulate`; None is a default.

    Returns:
        Plain data, with the machine types and classes that files named.

    Raises:
        InputError: If such a file is malformed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    thresholds = {name: given.pop(name) for name in THRESHOLDS if name in given}
    if thresholds:
        given["thresholds"] = thresholds
    classes = given.get("classes")
    if isinstance(classes, str | PathLike):
        given["classes"] = _native.traffic_classes(classes)
    machines = given.pop("machines", None)
    if machines is not None:
        given["machine_types"] = _native.machine_types(str(machines))
    return given


def _known(function: str, options: Mapping[str, object], names: frozenset[str]) -> None:
    for name in options:
        if name not in names:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def capacity_spec(
    *,
    slo: str = "splitwise",
    seeds: int = 5,
    resolution: float = 0.01,
    step: float | None = None,
    **run: Unpack[ClusterOptions],
) -> dict[str, Any]:
    """Make the specification of a search for the highest rate; arguments are those of `capacity`."""
    _known("capacity", run, _CLUSTER)
    return {
        "options": run_options(run),
        "slo": _native.slo_set(str(slo)),
        "seeds": seeds,
        "resolution": resolution,
        "step_rps": step,
    }


def capacity(
    *,
    slo: str = "splitwise",
    seeds: int = 5,
    resolution: float = 0.01,
    step: float | None = None,
    jobs: int | None = None,
    cache: str | None = None,
    engine: str = "local",
    progress: Progress | None = None,
    **run: Unpack[ClusterOptions],
) -> Capacity:
    """Find the highest rate at which a cluster keeps its service-level objectives.

    For each seed the rate is bracketed by doubling, then halved. The same arguments always give the same answer,
    whatever `jobs` and `engine` are.

    Args:
        slo: ``"splitwise"`` (nine percentiles of slowdowns), another built-in set, or the path of a TOML file.
        seeds: Workloads drawn: seeds ``seed``, ``seed + 1``, and on.
        resolution: Relative width at which the search ends.
        step: Only multiples of this rate are tried; then `resolution` counts for nothing.
        jobs: Runs made at a time; one for each processor by default.
        cache: A file that keeps every run's verdict, so that a search that was interrupted goes on where it was.
        engine: ``"local"``, or ``"ray"`` to spread the runs over a Ray cluster (``pip install 'splitcore[ray]'``).
            Files that other options name must then be readable on every node.
        progress: Called now and then with the runs made and those there will be, as far as can be told.
        **run: The keywords of `simulate` but for ``rate``.

    Returns:
        The rate with its interval over seeds, and what fails above it.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a file is bad; it names file, line and field.
    """
    spec = capacity_spec(slo=slo, seeds=seeds, resolution=resolution, step=step, **run)
    return cast("Capacity", engine_named(engine, jobs).search("capacity", spec, _cache(cache), progress))


def plan_spec(
    *,
    designs: Sequence[str] | None = None,
    goal: Goal = "min-cost",
    rate: float | None = None,
    cost_limit: float | None = None,
    power_limit: float | None = None,
    space_limit: float | None = None,
    machines_max: int = 40,
    machines_step: int = 1,
    whole_map: bool = False,
    prices: str = "table-i",
    slo: str = "splitwise",
    seeds: int = 3,
    resolution: float = 0.01,
    **run: Unpack[RunOptions],
) -> dict[str, Any]:
    """Make the specification of a search for the best cluster; arguments are those of `plan`."""
    _known("plan", run, _RUN)
    if goal not in GOALS:
        raise wrong("goal", ", ".join(GOALS), goal)
    for name, limit in (("cost_limit", cost_limit), ("power_limit", power_limit), ("space_limit", space_limit)):
        if limit is not None and (isinstance(limit, bool | str) or not 0 < limit < math.inf):
            raise wrong(name, "more than 0", limit)
    options = run_options({"duration_s": DURATION_S, **run})
    names = PRESETS if designs is None else designs
    return {
        "options": options,
        "slo": _native.slo_set(str(slo)),
        "designs": [design(name, prices, options.get("machine_types", [])) for name in names],
        "goal": goal,
        "limits": {"cost_per_hour": cost_limit, "power_w": power_limit, "rack_units": space_limit},
        "rate_rps": rate,
        "seeds": seeds,
        "machines_max": machines_max,
        "machines_step": machines_step,
        "resolution": resolution,
        "whole_map": whole_map,
    }


def plan(
    *,
    designs: Sequence[str] | None = None,
    goal: Goal = "min-cost",
    rate: float | None = None,
    cost_limit: float | None = None,
    power_limit: float | None = None,
    space_limit: float | None = None,
    machines_max: int = 40,
    machines_step: int = 1,
    whole_map: bool = False,
    prices: str = "table-i",
    slo: str = "splitwise",
    seeds: int = 3,
    resolution: float = 0.01,
    jobs: int | None = None,
    cache: str | None = None,
    engine: str = "local",
    progress: Progress | None = None,
    **run: Unpack[RunOptions],
) -> Plan:
    """Find the best cluster: how many machines of which kind.

    A cluster holds a rate if it keeps its objectives with every seed. The same arguments always give the same answer,
    whatever `jobs` and `engine` are.

    Args:
        designs: Which clusters to size: presets of `splitcore.designs.PRESETS`, or designs of your own as
            ``"prompt=dgx-h100,token=my-box"`` or ``"unsplit=dgx-a100:tp4"``; all presets by default.
        goal: ``"min-cost"``, ``"min-power"``, ``"min-space"`` or ``"max-throughput"``.
        rate: Requests per second to hold. Needed but for ``"max-throughput"``, where it is the least to reach.
        cost_limit: On the whole cluster, in dollars per hour.
        power_limit: In watts, as provisioned.
        space_limit: In rack units.
        machines_max: Largest pool tried.
        machines_step: Pool sizes tried are multiples of this.
        whole_map: Whether to judge every pair of pool sizes, also where larger and smaller ones already tell.
        prices: A price table by name; machine types of your own have the prices in their file.
        slo: ``"splitwise"`` (nine percentiles of slowdowns), another built-in set, or the path of a TOML file.
        seeds: Workloads drawn: seeds ``seed``, ``seed + 1``, and on.
        resolution: Relative width at which the search for a highest rate ends.
        jobs: Runs made at a time; one for each processor by default.
        cache: A file that keeps every run's verdict, so that a search that was interrupted goes on where it was.
        engine: ``"local"``, or ``"ray"`` to spread the runs over a Ray cluster (``pip install 'splitcore[ray]'``).
            Files that other options name must then be readable on every node.
        progress: Called now and then with the runs made and those there will be, as far as can be told.
        **run: The keywords of `simulate` but for ``rate`` and the machines. Arrivals last 120 s by default.

    Returns:
        The cluster, what it has to spare, the frontier of alternatives; or why there is none, in ``binding``.

    Raises:
        ConfigError: If an option is out of range or contradicts another; it names the option.
        InputError: If a line of a file is bad; it names file, line and field.
    """
    spec = plan_spec(
        designs=designs,
        goal=goal,
        rate=rate,
        cost_limit=cost_limit,
        power_limit=power_limit,
        space_limit=space_limit,
        machines_max=machines_max,
        machines_step=machines_step,
        whole_map=whole_map,
        prices=prices,
        slo=slo,
        seeds=seeds,
        resolution=resolution,
        **run,
    )
    return cast("Plan", engine_named(engine, jobs).search("provision", spec, _cache(cache), progress))


def _cache(path: str | None) -> _native.Cache | None:
    return None if path is None else _native.Cache(path)


def load_curve(
    engine: Engine,
    spec: Mapping[str, Any],
    machines: Mapping[str, str],
    rates: Sequence[float],
    progress: Progress | None = None,
) -> list[Load]:
    """Find what a cluster makes of several rates, each run to its end.

    Args:
        engine: Makes the runs.
        spec: Of `capacity_spec` or `plan_spec`, for traffic, objectives and seeds.
        machines: The pools, as `splitcore.simulate` takes them; empty where `spec` has them.
        rates: In requests per second.
        progress: Called now and then with the runs made and all of them.

    Returns:
        One for each rate.
    """
    first, seeds = spec["options"].get("seed", 0), range(spec["seeds"])
    probes: list[Probe] = [
        {
            "options": {**spec["options"], **machines, "rate": rate, "seed": first + seed},
            "slo": spec["slo"],
            "whole": True,
        }
        for rate in rates
        for seed in seeds
    ]
    verdicts = engine.judge(probes, progress)
    size = len(seeds)
    return [{"rate": rate, "verdicts": verdicts[at * size : (at + 1) * size]} for at, rate in enumerate(rates)]
