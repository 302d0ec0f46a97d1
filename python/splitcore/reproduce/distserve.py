"""The comparisons of the DistServe paper, and TaiChi's of split and whole serving."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitcore import _native, planning
from splitcore.reproduce import lengths
from splitcore.reproduce.claims.distserve import APPLICATIONS, ATTAINMENT, DISTSERVE, TAICHI, Application
from splitcore.reproduce.lab import Costs, Effort, Lab
from splitcore.reproduce.results import Column, Made, Part, Row, Table, command, shown
from splitcore.reproduce.verdicts import estimate

__all__ = ["FULL", "MODELS", "QUICK", "STEPS", "TITLE", "about"]

TITLE = "DistServe (OSDI 2024)"
MODELS = ("as released", "transfer and memory counted")
FULL = Effort(seeds=5, few_seeds=3, search_seeds=2, resolution=0.01, duration_s=300.0, step=1, requests=400)
QUICK = Effort(seeds=2, few_seeds=2, search_seeds=1, resolution=0.5, duration_s=20.0, step=1, requests=20)

_NVLINK = 300e9
"""Bytes a second and direction of an A100."""
_NETWORK = 25e9 / 8
"""Of the paper's network between nodes."""
_RELEASED = Costs("released", {"link_bandwidth": 1e15, "contention": False, "kv_limit": False})
_COUNTED = Costs("counted", {"link_bandwidth": _NVLINK})
_BOTH: tuple[Costs, Costs] = (_RELEASED, _COUNTED)
_SHARE = 0.9


def about(lab: Lab) -> list[str]:
    """Say what one has to know to read the section."""
    effort = lab.effort
    traces = "\n".join(f"- `{name}`: {told[0]}." for name, told in lengths.TRACES.items())
    return [
        "Times are those of the paper's own simulator for OPT on A100-80G (`costs=distserve`, and `distserve-vllm` for "
        "the vLLM that it compares with). A goodput is the highest rate for each GPU at which 90 % of requests keep "
        "both limits at once, as the paper defines it; the released search holds two percentiles apart. Arrivals are "
        f"Poisson, {effort.duration_s:g} s each, bisected to {effort.resolution:.2g}.",
        f"- **{MODELS[0].capitalize()}**: no transfer time and no bound on KV memory, as in the released simulator.\n"
        f"- **{MODELS[1].capitalize()}**: KV moves over NVLink ({_NVLINK / 1e9:g} GB/s each way) within a node, and "
        "memory is what the released coefficients leave.",
        "The data sets of the paper are not shipped; these lengths stand in for them, so absolute rates cannot be the "
        f"paper's. `python -m splitcore.reproduce.lengths NAME NAME.csv` writes them:\n\n{traces}",
        "OPT-175B has no published times, and summarisation no lengths here: there are no rows of them. Our vLLM "
        "batches prompts and decodes together, which the vLLM of that time did not.",
    ]


def _trace(lab: Lab, name: str) -> str:
    path = lab.folder / f"{name}.csv"
    if not path.exists():
        lengths.write(name, path)
    return str(path)


def _run(lab: Lab, application: Application, model: Costs, pools: Mapping[str, str], **more: Any) -> dict[str, Any]:
    return {
        **pools,
        "model": application.model,
        "trace": _trace(lab, application.lengths),
        "arrivals": "poisson",
        "duration_s": lab.effort.duration_s,
        "costs": "distserve",
        **model.options,
        **more,
    }


def _cut(count: int, cut: tuple[int, int]) -> str:
    tp, pp = cut
    return f"{count}xdgx-a100:tp{tp}" if pp == 1 else f"{count}xdgx-a100:tp{tp}:pp{pp}"


def _pair(application: Application) -> dict[str, str]:
    return {"prompt": _cut(1, application.prefill), "token": _cut(1, application.decode), "policy": "least-requests"}


def _vllm(application: Application) -> tuple[dict[str, str], dict[str, str]]:
    return {"unsplit": _cut(1, (application.baseline_tp, 1))}, {"costs": "distserve-vllm"}


def _told(run: Mapping[str, Any]) -> dict[str, Any]:
    """Name the trace as the page does, wherever it lies."""
    return {**run, "trace": Path(run["trace"]).name}


def _goodputs(lab: Lab, run: Mapping[str, Any], slo: str) -> list[float]:
    found = lab.capacity(run, slo=slo)
    return [seed["max_rate"] / found["gpus"] for seed in found["seeds"]]


def _ratio(over: Sequence[float], under: Sequence[float], why: str, open_by: float = 0.0) -> Column:
    none = sum(one <= 0 or not np.isfinite(one) for one in under)
    if none or not np.isfinite(over).all():
        told = f"{why}, with {none} of {len(under)} seeds" if none else why
        means = float(np.mean(over)), float(np.mean(under))
        ratio = f"; the means stand {means[0] / means[1]:.3g} to 1" if means[1] > 0 and np.isfinite(means).all() else ""
        return Column((), told + ratio)
    ratios = [one / other for one, other in zip(over, under, strict=True)]
    return Column([Part("", estimate(ratios).widened(open_by))])


def _row(name: str, columns: Mapping[str, Column], commands: Sequence[str], seeds: int) -> Row:
    count = f"0 to {seeds - 1}"
    return Row(DISTSERVE[name], columns[_RELEASED.name], columns[_COUNTED.name], commands, count)


def placements(lab: Lab) -> Made:
    """Find how to cut the models, and hold the published cuts against it."""
    made, rows = [], []
    for name, application in APPLICATIONS.items():
        slo = f"distserve-{name}-90"
        columns, commands = {}, []
        for costs in _BOTH:
            spec = {
                "options": planning.run_options(_run(lab, application, costs, {}, seed=Effort.FIRST_SEARCH_SEED)),
                "slo": _native.slo_set(slo),
                "affinity": "low",
                "machine": "dgx-a100",
                "nodes_max": 1,
                "gpus_per_node": 8,
                "node_bandwidth_bytes_per_s": costs.options["link_bandwidth"],
                "rate_rps": 1.0,
                "seeds": lab.effort.search_seeds,
                "resolution": max(0.05, lab.effort.resolution),
            }
            found = lab.place(spec)
            if found["prefill"] is None:
                columns[costs.name] = Column((), "no way to cut keeps the objectives at any rate: the lengths differ")
                continue
            cuts = [(found[side]["tp"], found[side]["pp"]) for side in ("prefill", "decode")]
            pools = {"prompt": _cut(1, cuts[0]), "token": _cut(1, cuts[1]), "policy": "least-requests"}
            best, published = (_run(lab, application, costs, each) for each in (pools, _pair(application)))
            commands += [_capacity_command(lab, run, slo) for run in (best, published)]
            goodputs = [_goodputs(lab, run, slo) for run in (best, published)]
            text = f"found: prefill ({cuts[0][0]},{cuts[0][1]}), decode ({cuts[1][0]},{cuts[1][1]})"
            column = _ratio(goodputs[1], goodputs[0], "the best found holds no rate with the seeds it is measured with")
            columns[costs.name] = Column(column.parts, f"{text}; {column.why}" if column.why else text)
            rows += _ten_best(name, costs, found["tried"])
        made.append(_row(f"placement-{name}", columns, commands, lab.effort.seeds))
    head = (
        "application",
        "model",
        "prefill (tp, pp)",
        "decode (tp, pp)",
        "GPUs",
        "goodput for each GPU",
        "fails above in",
    )
    about = (
        f"The ten best pairs in one node of eight GPUs, mean of {lab.effort.search_seeds} workloads, requests/s; seeds "
        f"from {Effort.FIRST_SEARCH_SEED} on."
    )
    return made, [Table("Ways to cut", about, head, rows)]


def _ten_best(name: str, costs: Costs, tried: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    best = sorted(tried, key=lambda way: -way["goodput_rps_per_gpu"])[:10]
    rows = []
    for way in best:
        prefill, decode = way["prefill"], way["decode"]
        gpus = prefill["tp"] * prefill["pp"] + decode["tp"] * decode["pp"]
        cuts = [f"({side['tp']},{side['pp']})" for side in (prefill, decode)]
        told = [str(gpus), f"{way['goodput_rps_per_gpu']:.3f}", ", ".join(way["failing"])]
        rows.append([name, costs.name, *cuts, *told])
    return rows


def _capacity_command(lab: Lab, run: Mapping[str, Any], slo: str) -> str:
    ends = {"slo": slo, "seeds": lab.effort.seeds, "resolution": lab.effort.resolution}
    return command("capacity", {**_told(run), **ends})


def gains(lab: Lab) -> Made:
    """Compare goodputs with vLLM's."""
    made, rows = [], []
    for name, application in APPLICATIONS.items():
        for percent in (90, 99):
            claim = f"gain-{name}" if percent == 90 else f"gain-99-{name}"
            slo = f"distserve-{name}-{percent}"
            columns, commands = {}, []
            for costs in _BOTH:
                pools, engine = _vllm(application)
                runs = (
                    _run(lab, application, costs, _pair(application)),
                    _run(lab, application, costs, pools, **engine),
                )
                commands += [_capacity_command(lab, run, slo) for run in runs]
                split, whole = (_goodputs(lab, run, slo) for run in runs)
                columns[costs.name] = _ratio(
                    split, whole, "vLLM holds no rate (the lengths differ)", lab.effort.resolution
                )
                told = [shown(estimate(each), "requests/s") for each in (split, whole)]
                rows.append([name, f"{percent} %", costs.name, *told])
            if claim in DISTSERVE:
                made.append(_row(claim, columns, commands, lab.effort.seeds))
    head = ("application", "of requests", "model", "DistServe, published placement", "vLLM")
    about = f"Requests/s for each GPU, seeds 0 to {lab.effort.seeds - 1}."
    return made, [Table("Goodput", about, head, rows)]


def tighter(lab: Lab) -> Made:
    """Find how much tighter the limits may be than vLLM's."""
    made, rows = [], []
    count = lab.effort.seeds
    for name, application in APPLICATIONS.items():
        columns, commands = {}, []
        for costs in _BOTH:
            pools, engine = _vllm(application)
            whole = _run(lab, application, costs, pools, **engine)
            split = _run(lab, application, costs, _pair(application))
            rate = sum(_goodputs(lab, whole, f"distserve-{name}-90")) / count
            if rate <= 0:
                columns[costs.name] = Column((), "vLLM holds no rate: the lengths differ")
                continue
            gpus = (application.baseline_tp, sum(tp * pp for tp, pp in (application.prefill, application.decode)))
            scales = []
            for run, size in zip((whole, split), gpus, strict=True):
                runs = [{**run, "rate": rate * size, "seed": seed} for seed in range(count)]
                commands.append(command("simulate", _told(runs[0])))
                scales.append([_scale(report.requests, application) for report in lab.simulate(runs)])
            columns[costs.name] = _ratio(scales[0], scales[1], "too many requests do not finish at that rate")
            told = [shown(estimate(each), "ratio") for each in reversed(scales)]
            rows.append([name, costs.name, f"{rate:.3g}", *told])
        made.append(_row(f"slo-{name}", columns, commands, count))
    head = ("application", "model", "requests/s for each GPU", "DistServe", "vLLM")
    about = f"Smallest factor of both limits that {_SHARE:.0%} of the requests keep, seeds 0 to {count - 1}."
    return made, [Table("How tight limits may be", about, head, rows)]


def _times(requests: NDArray[np.void]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """TTFT and TPOT of each request; infinite of those that did not finish, and no TPOT of a single token."""
    gaps = np.maximum(1, requests["output_tokens"].astype(np.float64) - 1)
    ttft = np.nan_to_num(requests["ttft_s"], nan=np.inf)
    tpot = np.nan_to_num((requests["e2e_s"] - requests["ttft_s"]) / gaps, nan=np.inf)
    return ttft, np.where(requests["output_tokens"] > 1, tpot, 0.0)


def _scale(requests: NDArray[np.void], application: Application) -> float:
    ttft, tpot = _times(requests)
    needed = np.maximum(ttft / application.ttft_s, tpot / application.tpot_s)
    return float(np.quantile(needed, _SHARE, method="inverted_cdf"))


def _attainment(requests: NDArray[np.void], ttft_s: float, tpot_s: float) -> float:
    """Tell the percentage of requests that keep both limits."""
    ttft, tpot = _times(requests)
    return 100.0 * float(np.mean((ttft < ttft_s) & (tpot < tpot_s)))


def attainments(lab: Lab) -> Made:
    """Make the shape of the table that shows how exact the authors' simulator is."""
    application = APPLICATIONS["chat-66b"]
    count = lab.effort.few_seeds
    pools, engine = _vllm(application)
    columns, commands, rows = {}, [], []
    found: dict[tuple[str, str, float], list[float]] = {}
    for costs in _BOTH:
        systems = {
            "vllm": _run(lab, application, costs, pools, **engine),
            "distserve-low": _run(lab, application, costs, _pair(application)),
        }
        for system, run in systems.items():
            for rate in ATTAINMENT[system]:
                runs = [{**run, "rate": rate, "seed": seed} for seed in range(count)]
                found[costs.name, system, rate] = [
                    _attainment(report.requests, application.ttft_s, application.tpot_s)
                    for report in lab.simulate(runs)
                ]
            commands.append(command("simulate", _told({**run, "rate": 1.0, "seed": 0})))
        gains = [
            float(
                np.mean(
                    [
                        found[costs.name, "distserve-low", rate][seed] - found[costs.name, "vllm", rate][seed]
                        for rate in ATTAINMENT["vllm"]
                    ]
                )
            )
            for seed in range(count)
        ]
        columns[costs.name] = Column([Part("", estimate(gains))])
    for system, cells in ATTAINMENT.items():
        for rate, (real, simulated) in cells.items():
            ours = [shown(estimate(found[costs.name, system, rate]), "requests/s") for costs in _BOTH]
            rows.append([system, f"{rate:g}", f"{real:g}", f"{simulated:g}", *ours])
    nothing = Column((), "neither the real system nor its lengths are here")
    made = [
        _row("attainment-gain", columns, commands, count),
        _row("simulator-error", {costs.name: nothing for costs in _BOTH}, [], count),
    ]
    head = ("system", "requests/s", "real", "their simulator", *(f"ours, {name}" for name in MODELS))
    about = (
        f"OPT-66B, percent of requests within {application.ttft_s:g} s and {application.tpot_s:g} s; the columns of "
        f"the paper are of {application.data}, ours of `{application.lengths}`, so they need not be equal. Seeds 0 to "
        f"{count - 1}."
    )
    return made, [Table("Attainment by rate", about, head, rows)]


def omissions(lab: Lab) -> Made:
    """Show what it changes that the released simulator moves KV in no time and has no end of memory."""
    application = APPLICATIONS["chat-66b"]
    slo, rows = "distserve-chat-66b-90", []
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("neither", {"link_bandwidth": 1e15, "contention": False, "kv_limit": False}),
        ("memory", {"link_bandwidth": 1e15, "contention": False}),
        ("transfer over NVLink", {"link_bandwidth": _NVLINK, "kv_limit": False}),
        ("both, NVLink", {"link_bandwidth": _NVLINK}),
        ("both, 25 Gbps between nodes", {"link_bandwidth": _NETWORK}),
    )
    for name, options in ways:
        run = _run(lab, application, Costs(name, options), _pair(application))
        found = lab.capacity(run, slo=slo)
        rates = [seed["max_rate"] / found["gpus"] for seed in found["seeds"]]
        failing = ", ".join(each["objective"] for each in found["failing"])
        rows.append([name, shown(estimate(rates), "requests/s"), failing])
    count = lab.effort.few_seeds
    columns: dict[str, Mapping[str, Column]] = {
        name: {_RELEASED.name: Column((), "takes no time there")} for name in ("transfer-share", "transfer-30-ms")
    }
    run = _run(lab, application, _COUNTED, _pair(application))
    runs = [{**run, "rate": 2.0, "seed": seed} for seed in range(count)]
    summaries = [report.summary for report in lab.simulate(runs)]
    shares = [_over(summary["transfer"]["visible_s"]["mean"], summary["e2e_s"]["mean"]) for summary in summaries]
    late = [1000.0 * (summary["transfer"]["visible_s"]["p99"] or 0.0) for summary in summaries]
    made = []
    for name, values in (("transfer-share", shares), ("transfer-30-ms", late)):
        both = {**columns[name], _COUNTED.name: Column([Part("", estimate(values))])}
        made.append(_row(name, both, [command("simulate", _told(runs[0]))], count))
    about = (
        f"Published placement of chat-66b, requests/s for each GPU at {_SHARE:.0%}, seeds 0 to {lab.effort.seeds - 1}: "
        "what is counted of transfer and memory."
    )
    head = ("counted", "goodput", "fails above in")
    return made, [Table("What the released simulator leaves out", about, head, rows)]


def _over(one: float | None, other: float | None) -> float:
    return (one or 0.0) / other if other else float("inf")


def taichi(lab: Lab) -> Made:
    """Compare whole and split serving under tight limits of either kind."""
    count = lab.effort.few_seeds
    options: dict[str, Any] = {
        "model": "llama2-70b",
        "trace": _trace(lab, "arxiv-like"),
        "arrivals": "poisson",
        "rate": 12.0,
        "duration_s": lab.effort.duration_s,
    }

    def attained(pools: Mapping[str, str], ttft_s: float, tpot_s: float) -> list[float]:
        reports = lab.simulate([{**pools, **options, "seed": seed} for seed in range(count)])
        return [_attainment(report.requests, ttft_s, tpot_s) for report in reports]

    machine = "dgx-a100:tp4"
    tight_ttft, tight_tpot = (TAICHI[name][:2] for name in ("taichi-tight-ttft", "taichi-tight-tpot"))
    sizes = range(16, 97, 8)
    idle = float(np.mean(attained({"unsplit": f"{sizes[-1]}x{machine}"}, *tight_ttft)))
    size = next(
        size for size in sizes if float(np.mean(attained({"unsplit": f"{size}x{machine}"}, *tight_ttft))) >= 0.95 * idle
    )
    whole_pools = {"unsplit": f"{size}x{machine}"}
    splits = [
        {"prompt": f"{prompt}x{machine}", "token": f"{size - prompt}x{machine}", "policy": "least-requests"}
        for prompt in range(size // 8, size, size // 8)
    ]
    chosen = max(splits, key=lambda pools: float(np.mean(attained(pools, *tight_tpot))))
    made, rows = [], []
    for name, (ttft_s, tpot_s, *published) in TAICHI.items():
        whole, split = (attained(pools, ttft_s, tpot_s) for pools in (whole_pools, chosen))
        best = max(splits, key=lambda pools: float(np.mean(attained(pools, ttft_s, tpot_s))))
        gain = estimate([one - other for one, other in zip(split, whole, strict=True)])
        columns = {_RELEASED.name: Column((), "Vidur's times are not here"), _COUNTED.name: Column([Part("", gain)])}
        commands = [command("simulate", _told({**pools, **options, "seed": 0})) for pools in (whole_pools, chosen)]
        made.append(_row(name, columns, commands, count))
        told = [shown(estimate(each), "requests/s") for each in (whole, split, attained(best, ttft_s, tpot_s))]
        limits = f"{ttft_s:g} s, {1000 * tpot_s:g} ms"
        rows.append([limits, *(f"{each:g}" for each in published), *told, _sizes(best)])
    head = (
        "TTFT, TPOT", "published, whole", "published, split", "ours, whole", f"ours, split {_sizes(chosen)}",
        "ours, the split best for these limits", "which",
    )  # fmt: skip
    about = (
        f"Percent of requests within both limits; {size} instances of Llama-2-70B on 4 A100: the fewest multiple of 8 "
        f"with which whole serving keeps 95 % of what {sizes[-1]} do within the tight TTFT. One split for all three "
        "limits, the best for the tight TPOT; measured times, lengths `arxiv-like`. Prompts of more than 2048 tokens "
        "run in passes of their own, where TaiChi's baseline cuts them into chunks."
    )
    return made, [Table("Whole or split, by which limit is tight", about, head, rows)]


def _sizes(pools: Mapping[str, str]) -> str:
    return f"{pools['prompt'].split('x')[0]}P + {pools['token'].split('x')[0]}T"


STEPS: Sequence[tuple[str, float, Callable[[Lab], Made]]] = (
    ("placements", 40, placements),
    ("goodput", 20, gains),
    ("tight limits", 5, tighter),
    ("attainment", 5, attainments),
    ("what is left out", 8, omissions),
    ("whole or split", 20, taichi),
)
"""Name, weight in the progress shown, and the work."""
