"""The commands ``splitcore capacity``, ``splitcore plan`` and ``splitcore parallelism``."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from splitcore import _native, cutting, plan_plots, plan_tables, planning, plots, tables
from splitcore.engines import Engine, Kind
from splitcore.engines import engine as engine_named
from splitcore.options import Machines, Pools, Rules, Thresholds, Workload, option, takes
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.units import bandwidth, power

__all__ = ["capacity", "parallelism", "plan"]

_search = partial(option, "Search")
_goal = partial(option, "Goal")
_output = partial(option, "Output")

_Slo = Annotated[str, _search("NAME|FILE.toml", "Objectives to keep.")]
_Seeds = Annotated[int, _search("N", "Workloads drawn, from --seed on.")]
_Resolution = Annotated[float, _search("SHARE", "Relative width at which the search for a rate ends.")]
_Jobs = Annotated[int | None, _search("N", "Runs at a time; by default one for each processor.")]
_Cache = Annotated[Path | None, _search("FILE", "Keeps every run, so that a search can go on where it was.")]
_Engine = Annotated[str, _search("NAME", "Where runs are made: local, or ray for a Ray cluster.")]
_Json = Annotated[Path | None, _output("FILE|-", "What was found; - prints nothing else.", "--json")]


def _reads(outputs: Outputs, run: dict[str, Any], slo: str, cache: Path | None) -> None:
    """Register what a search reads: the files of its runs, of its objectives and of their traffic, and its cache."""
    outputs.reads_run(run)
    if Path(slo).is_file():
        outputs.reads("--slo", slo)
        for each in _native.slo_set(slo)["classes"]:
            outputs.reads_run(each["traffic"])
    outputs.appends("cache", cache)


def _searched(engine: Engine, kind: Kind, spec: dict[str, Any], cache: Path | None, label: str) -> Any:
    """Drive a search behind a bar."""
    with Bar(label, unit="runs") as bar:
        return engine.search(kind, spec, None if cache is None else _native.Cache(cache), bar.update)


@takes(Pools, Machines, Workload, Rules, Thresholds, without=("rate",))
def capacity(
    run: dict[str, Any],
    *,
    slo: _Slo = "splitwise",
    seeds: _Seeds = 5,
    resolution: _Resolution = 0.01,
    step: Annotated[float | None, _search("PER_S", "Try only multiples of this rate.")] = None,
    jobs: _Jobs = None,
    cache: _Cache = None,
    engine: _Engine = "local",
    json_path: _Json = None,
    plot_path: Annotated[Path | None, _output("FILE.png", "Latency against load.", "--plot")] = None,
) -> None:
    """Find the highest rate at which a cluster keeps its objectives."""
    outputs = Outputs()
    plots.check(plot_path)
    _reads(outputs, run, slo, cache)
    outputs.json("json", json_path, lambda: found)
    outputs.add("plot", plot_path, lambda path: plan_plots.save(plan_plots.loads(curves, {"": found}), path))
    spec = planning.capacity_spec(slo=slo, seeds=seeds, resolution=resolution, step=step, **run)
    runs = engine_named(engine, jobs)
    found = _searched(runs, "capacity", spec, cache, "searching")
    if plot_path is not None:
        rates = plan_plots.rates_around(found["max_rate"] or found["seeds"][0]["failing_rate"])
        with Bar("runs for the plot", unit="runs") as bar:
            curves = {"": planning.load_curve(runs, spec, {}, rates, bar.update)}
    outputs.write()
    if not outputs.use_stdout:
        tables.console().print(plan_tables.capacity(found))


@takes(Machines, Workload, Rules, Thresholds, without=("rate",), defaults={"duration": planning.DURATION_S})
def plan(
    run: dict[str, Any],
    *,
    design: Annotated[
        list[str] | None,
        _goal("NAME|POOLS", "A preset, or prompt=NAME,token=NAME, or unsplit=NAME; may be repeated.", "--design"),
    ] = None,
    goal: Annotated[str, _goal("NAME", "min-cost, min-power, min-space or max-throughput.")] = "min-cost",
    rate: Annotated[float | None, _goal("PER_S", "Requests a second to hold.")] = None,
    cost_limit: Annotated[float | None, _goal("$/H", "On the whole cluster.")] = None,
    power_limit: Annotated[str | None, _goal("POWER", "As 250kW.")] = None,
    space_limit: Annotated[float | None, _goal("U", "Rack units.")] = None,
    machines_max: Annotated[int, _goal("N", "Largest pool tried.")] = 40,
    machines_step: Annotated[int, _goal("N", "Pool sizes are multiples of it.")] = 1,
    prices: Annotated[str, _goal("NAME", "Price table of the built-in machines.")] = "table-i",
    slo: _Slo = "splitwise",
    seeds: _Seeds = 3,
    resolution: _Resolution = 0.01,
    whole_map: Annotated[
        bool, _search("", "Judge every pair of pool sizes, also where others already tell.", "--whole-map")
    ] = False,
    jobs: _Jobs = None,
    cache: _Cache = None,
    engine: _Engine = "local",
    json_path: _Json = None,
    plot_dir: Annotated[Path | None, _output("DIR", "Map, latency against load, cost and power.", "--plot")] = None,
) -> None:
    """Find how many machines of which kind to take.

    Exit status 2 when none keeps the objectives within the limits; it is told what binds.
    """
    outputs = Outputs()
    plots.check_installed(plot_dir)
    _reads(outputs, run, slo, cache)
    outputs.json("json", json_path, lambda: found)
    outputs.add_folder("plot", plot_dir, lambda folder: plan_plots.save_all(found, spec, curves, folder))
    spec = planning.plan_spec(
        designs=design or None,
        goal=goal,  # type: ignore[arg-type]
        rate=rate,
        cost_limit=cost_limit,
        power_limit=power(power_limit),
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
    runs = engine_named(engine, jobs)
    found = _searched(runs, "provision", spec, cache, "planning")
    if plot_dir is not None:
        with Bar("runs for the plots", unit="runs") as bar:
            curves = plan_plots.curves(found, spec, runs, bar.update)
    outputs.write()
    if not outputs.use_stdout:
        tables.console().print(plan_tables.plan(found, rate))
    if found["best"] is None:
        err = tables.console(stderr=True)
        # What does not help by itself is worth a line only where nothing does.
        helping = [binding for binding in found["binding"] if binding["needed"] is not None]
        for binding in helping or found["binding"]:
            err.print(f"splitcore: infeasible: {' '.join(binding['text'].split())}", soft_wrap=True)
        raise typer.Exit(2)


def _infeasible(why: str) -> NoReturn:
    tables.console(stderr=True).print(f"splitcore: infeasible: {why}", soft_wrap=True)
    raise typer.Exit(2)


@takes(Machines, Workload, Rules, Thresholds, without=("rate",), defaults={"duration": planning.DURATION_S})
def parallelism(
    run: dict[str, Any],
    *,
    rate: Annotated[float, _goal("PER_S", "Requests a second to hold.")],
    slo: Annotated[str, _search("NAME|FILE.toml", "Objectives to keep, as distserve-chat-13b-90.")],
    machine: Annotated[str, _goal("MACHINE", "Of every node.")] = "dgx-a100",
    affinity: Annotated[str, _goal("NAME", "KV moves fast between nodes: high; within one only: low.")] = "high",
    nodes_max: Annotated[int, _goal("N", "Nodes one instance may span.")] = 1,
    gpus_per_node: Annotated[int, _goal("N", "GPUs in a node.")] = 8,
    node_bandwidth: Annotated[str | None, _goal("RATE", "Within a node, for low affinity; 600GB/s.")] = None,
    seeds: _Seeds = 3,
    resolution: _Resolution = 0.05,
    jobs: _Jobs = None,
    cache: _Cache = None,
    engine: _Engine = "local",
    json_path: _Json = None,
) -> None:
    """Find how to cut a model over GPUs for each phase (DistServe's placement).

    Exit status 2 when no way keeps the objectives, or all instances together do not; it is told what they miss.
    """
    outputs = Outputs()
    _reads(outputs, run, slo, cache)
    outputs.json("json", json_path, lambda: found)
    spec = cutting.parallelism_spec(
        rate=rate,
        slo=slo,
        machine=machine,
        affinity=affinity,  # type: ignore[arg-type]
        nodes_max=nodes_max,
        gpus_per_node=gpus_per_node,
        node_bandwidth=bandwidth(node_bandwidth) or cutting.NVLINK_BYTES_PER_S,
        seeds=seeds,
        resolution=resolution,
        **run,
    )
    found = _searched(engine_named(engine, jobs), "placement", spec, cache, "cutting")
    outputs.write()
    if not outputs.use_stdout:
        tables.console().print(plan_tables.parallelism(found, rate))
    if found["prefill"] is None:
        _infeasible("no way to cut keeps the objectives at any rate")
    if not found["holds"]:
        missed = plan_tables.missed([finding for finding in found["findings"] if finding["met"] is False])
        _infeasible(
            f"the instances together miss at {rate:g}/s: {missed or 'the objectives'}; each phase alone does, "
            f"so plan for a higher --rate, or find with splitcore capacity what they hold"
        )
