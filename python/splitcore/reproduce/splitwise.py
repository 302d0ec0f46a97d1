"""The comparisons of the Splitwise paper."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from splitcore import _native
from splitcore.plan_schema import Candidate, Failing, Plan
from splitcore.reproduce.claims import GRID_STEP_RPS, SPLITWISE
from splitcore.reproduce.lab import MEASURED, PUBLISHED, Cluster, Costs, Effort, Lab
from splitcore.reproduce.results import Column, Made, Part, Row, Table, command, shown
from splitcore.reproduce.verdicts import Estimate, estimate, exactly

__all__ = ["FULL", "MODELS", "QUICK", "STEPS", "TITLE", "about"]

TITLE = "Splitwise (ISCA 2024)"
MODELS = ("published model", "measured model")

FULL = Effort(seeds=8, few_seeds=4, search_seeds=2, resolution=0.01, duration_s=120.0, step=1, requests=400)
QUICK = Effort(seeds=2, few_seeds=2, search_seeds=1, resolution=0.5, duration_s=6.0, step=10, requests=20, load=0.5)

_SPLIT = ("splitwise-aa", "splitwise-hh", "splitwise-ha", "splitwise-hhcap")
_DESIGNS = ("baseline-a100", "baseline-h100", *_SPLIT)
_SHORT = {
    "baseline-a100": "Baseline-A100",
    "baseline-h100": "Baseline-H100",
    "splitwise-aa": "AA",
    "splitwise-hh": "HH",
    "splitwise-ha": "HA",
    "splitwise-hhcap": "HHcap",
}
_CONV, _CODE = "azure-conv", "azure-code"
_TRACES = {_CONV: "conversation", _CODE: "coding"}
_PRICES = ("table-i", "table-v", "simulator")
_BASE = Cluster("baseline-h100", 40)
"""What the published comparisons hold power or cost equal to."""
_RATE_RPS = 70.0
"""Of comparisons at the same throughput, as in the scripts of the public simulator."""
_BOTH: tuple[Costs, Costs] = (PUBLISHED, MEASURED)


def about(lab: Lab) -> list[str]:
    """Say what one has to know to read the section."""
    effort = lab.effort
    plain = {name: f"{value:.12g}" if isinstance(value, float) else value for name, value in PUBLISHED.options.items()}
    costs = ", ".join(f"{name}={value}" for name, value in plain.items())
    return [
        "A cluster holds a rate if all nine objectives of the paper's Table VI do: TTFT, TBT and E2E at p50, p90 and "
        "p99, against the same request alone on an idle DGX-A100. Requests that do not finish are infinitely late. "
        "BLOOM-176B unless it says otherwise; arrivals are Poisson, prompt and output lengths drawn independently from "
        f"the Azure traces of November 2023, {effort.duration_s:g} s each; one seed is one workload, the same for all "
        "clusters, and at another rate the same requests closer together. Rates are bisected to "
        f"{effort.resolution:.2g} of themselves, except on the grid.",
        f"- **Published model**: `{costs}`, which is how the public simulator counts: a decode pass takes the same at "
        "any batch, and transfers never meet.\n"
        "- **Measured model**: splitcore's defaults: decode passes by batch and context as in the same measurements, "
        "layer-wise transfers where they are faster, links shared.",
        f"{lab.runs:,} runs. Ratios and differences are those of the same seed, so that what a workload does to both "
        "clusters is not in their intervals.",
    ]


def _published(comparison: Literal["iso-power", "iso-cost"], design: str, trace: str) -> Cluster:
    return Cluster(design, *_native.published_pools(design, comparison, trace)[:2])


def _reference(design: str, trace: str) -> float:
    """Tell the highest rate of the public simulator at the power of 40 DGX-H100."""
    rate = _native.published_pools(design, "iso-power", trace)[2]
    if rate is None:
        raise ValueError(f"no rate of {design} with {trace} is published")
    return rate


def _run(lab: Lab, costs: Costs, cluster: Cluster, trace: str, **more: Any) -> dict[str, Any]:
    return {**cluster.pools, **lab.traffic(trace), **costs.options, **more}


def _seeds(count: int) -> str:
    return f"0 to {count - 1}" if count > 1 else "0"


def _row(name: str, columns: Mapping[str, Column], commands: Sequence[str], seeds: str) -> Row:
    return Row(SPLITWISE[name], columns[PUBLISHED.name], columns[MEASURED.name], commands, seeds)


def _ratio(lab: Lab, pair: Sequence[Mapping[str, Any]], count: int | None = None) -> Estimate | None:
    """Compare the highest rates of two clusters with the same workloads; None if the second holds none."""
    rates, others = (lab.rates(run, seeds=count) for run in pair)
    if min(others) <= 0:
        return None
    return estimate([rate / other for rate, other in zip(rates, others, strict=True)])


def _column(parts: Sequence[tuple[str, Estimate | None]], why: str = "") -> Column:
    """Put numbers together; a missing one leaves the claim open."""
    known = [Part(label, found) for label, found in parts if found is not None]
    if len(known) < len(parts):
        missing = ", ".join(label or "it" for label, found in parts if found is None)
        return Column((), f"{why + '; ' if why else ''}no rate holds to compare with: {missing}")
    return Column(known, why)


def _capacity_command(lab: Lab, run: Mapping[str, Any], count: int | None = None, step: float | None = None) -> str:
    seeds = lab.effort.seeds if count is None else count
    ends: dict[str, Any] = {"resolution": lab.effort.resolution} if step is None else {"step": step}
    return command("capacity", {**run, "seeds": seeds, **ends})


def _failing(failing: Sequence[Failing]) -> str:
    return ", ".join(f"{each['objective']} ({each['seeds']})" for each in failing[:3]) or "-"


def _compare(
    lab: Lab, name: str, over: Cluster, under: Cluster, trace: str = _CONV, count: int | None = None, **more: Any
) -> Row:
    """Make the row of a claim about two clusters of given sizes."""
    columns, commands = {}, []
    for costs in _BOTH:
        runs = [_run(lab, costs, cluster, trace, **more) for cluster in (over, under)]
        columns[costs.name] = _column([("", _ratio(lab, runs, count))])
        commands += [_capacity_command(lab, run, count) for run in runs]
    return _row(name, columns, commands, _seeds(lab.effort.seeds if count is None else count))


def grid(lab: Lab) -> Made:
    """Hold the twelve cells of the grid against the public simulator's."""
    rows, steps, commands = [], [], []
    for trace, traffic in _TRACES.items():
        for design in _DESIGNS:
            cluster, reference = _published("iso-power", design, trace), _reference(design, trace)
            run = _run(lab, PUBLISHED, cluster, trace)
            found = lab.capacity(run, seeds=1, step=GRID_STEP_RPS)
            off = (found["max_rate"] - reference) / GRID_STEP_RPS
            steps.append(off)
            commands.append(_capacity_command(lab, run, 1, GRID_STEP_RPS))
            told = [f"{reference:g}", f"{found['max_rate']:g}", f"{off:+.0f}", _failing(found["failing"])]
            rows.append([_SHORT[design], traffic, cluster.sizes, *told])
    columns = {
        PUBLISHED.name: Column([Part("", exactly(max(steps, key=abs)))], "one workload, as theirs"),
        MEASURED.name: Column((), "the table is of the published model"),
    }
    head = ("design", "trace", "machines", "theirs", "ours", "steps off", "fails above in")
    table = Table("Highest rates on the grid", f"Requests/s, steps of {GRID_STEP_RPS:g}, seed 0.", head, rows)
    return [_row("iso-power-grid", columns, commands, "0")], [table]


def iso_power(lab: Lab) -> Made:
    """Compare designs at the power of 40 DGX-H100, published pool sizes."""
    rows = []
    for trace, traffic in _TRACES.items():
        for design in _DESIGNS:
            cluster = _published("iso-power", design, trace)
            told = []
            for costs in _BOTH:
                run = _run(lab, costs, cluster, trace)
                found = lab.capacity(run)
                ratio = _ratio(lab, (run, _run(lab, costs, _BASE, trace)))
                told += [
                    shown(estimate([seed["max_rate"] for seed in found["seeds"]]), "requests/s"),
                    "-" if ratio is None or design == "baseline-h100" else shown(ratio, "ratio"),
                    _failing(found["failing"]),
                ]
            rows.append([_SHORT[design], traffic, cluster.sizes, *told])
    head = (
        "design", "trace", "machines",
        "published model", "over Baseline-H100", "fails above in (seeds)",
        "measured model", "over Baseline-H100", "fails above in (seeds)",
    )  # fmt: skip
    about = f"Requests/s at the published pool sizes, seeds {_seeds(lab.effort.seeds)}."
    table = Table("Highest rates at the same power", about, head, rows)

    def of(design: str) -> Cluster:
        return _published("iso-power", design, _CONV)

    pairs = (
        ("aa-iso-power", "splitwise-aa", "baseline-a100"),
        ("ha-iso-power-a100", "splitwise-ha", "baseline-a100"),
        ("ha-iso-power-h100", "splitwise-ha", "baseline-h100"),
        ("hh-beats-h100", "splitwise-hh", "baseline-h100"),
        ("hhcap-beats-h100", "splitwise-hhcap", "baseline-h100"),
    )
    return [_compare(lab, name, of(over), of(under)) for name, over, under in pairs], [table]


def _searched(lab: Lab, costs: Costs, trace: str, designs: Sequence[str], **limits: Any) -> tuple[Plan, str]:
    """Search the fastest clusters within limits with workloads that nothing else is measured with."""
    spec: dict[str, Any] = {
        "designs": designs,
        "goal": "max-throughput",
        **limits,
        "machines_max": 90,
        "machines_step": lab.effort.step,
        "seeds": lab.effort.search_seeds,
        "seed": Effort.FIRST_SEARCH_SEED,
        "resolution": max(0.02, lab.effort.resolution),
        **lab.traffic(trace),
        **costs.options,
    }
    return lab.plan(**spec), command("plan", spec)


def _cluster(candidate: Candidate) -> Cluster:
    return Cluster(candidate["design"], candidate["prompt"], candidate["token"])


def best_splits(lab: Lab) -> Made:
    """Compare designs at the same power, each at the pool sizes that suit it best."""
    best: dict[tuple[str, str, str], Cluster] = {}
    rows, commands = [], {costs.name: [] for costs in _BOTH}  # type: ignore[var-annotated]
    power = _BASE.total("table-i")["power_w"]
    for trace, traffic in _TRACES.items():
        for costs in _BOTH:
            plan, how = _searched(lab, costs, trace, _SPLIT, power_limit=power)
            base = _run(lab, costs, _BASE, trace)
            if trace == _CONV:
                commands[costs.name].append(how)
            for design, candidate in zip(_SPLIT, plan["designs"], strict=True):
                if candidate is None:
                    rows.append([_SHORT[design], traffic, costs.name, "none holds any rate", "", "", ""])
                    continue
                cluster = best[costs.name, trace, design] = _cluster(candidate)
                run = _run(lab, costs, cluster, trace)
                found, ratio = lab.capacity(run), _ratio(lab, (run, base))
                rate = shown(estimate([seed["max_rate"] for seed in found["seeds"]]), "requests/s")
                told = ["-" if ratio is None else shown(ratio, "ratio"), _failing(found["failing"])]
                rows.append([_SHORT[design], traffic, costs.name, cluster.sizes, rate, *told])
    head = (
        "design",
        "trace",
        "model",
        "best split found",
        "highest rate",
        "over Baseline-H100",
        "fails above in (seeds)",
    )
    about = (
        f"Within {power / 1000:g} kW, which 40 DGX-H100 take by table-i. Found with seeds from "
        f"{Effort.FIRST_SEARCH_SEED} on, measured with seeds {_seeds(lab.effort.seeds)}: what is chosen is not judged "
        "by the luck that it was chosen by."
    )
    made = []
    for name, design, under in (
        ("aa-beats-a100-best", "splitwise-aa", "baseline-a100"),
        ("hh-beats-h100-best", "splitwise-hh", "baseline-h100"),
        ("hhcap-beats-h100-best", "splitwise-hhcap", "baseline-h100"),
    ):
        columns, how_to = {}, []
        for costs in _BOTH:
            split = best.get((costs.name, _CONV, design))
            if split is None:
                columns[costs.name] = Column((), "no split holds any rate")
                continue
            runs = [_run(lab, costs, each, _CONV) for each in (split, _published("iso-power", under, _CONV))]
            columns[costs.name] = _column([("", _ratio(lab, runs))], split.sizes)
            how_to += [*commands[costs.name], *(_capacity_command(lab, run) for run in runs)]
        made.append(_row(name, columns, how_to, _seeds(lab.effort.seeds)))
    return made, [Table("Best splits at the same power", about, head, rows)]


def headlines(lab: Lab) -> Made:
    """Look for the clusters of abstract and conclusion."""
    made = []
    for name, cost_share, power_share in (("headline-cost", 0.8, None), ("headline-power", 1.0, 0.85)):
        columns, commands = {}, []
        for costs in _BOTH:
            parts: list[tuple[str, Estimate | None]] = []
            for prices in _PRICES[:2]:
                total = _BASE.total(prices)
                limits: dict[str, Any] = {"cost_limit": cost_share * total["cost_per_hour"], "prices": prices}
                if power_share is not None:
                    limits["power_limit"] = power_share * total["power_w"]
                plan, how = _searched(lab, costs, _CONV, _SPLIT, **limits)
                commands.append(how)
                if plan["best"] is None:
                    parts.append((f"{prices}: no cluster", None))
                    continue
                cluster = _cluster(plan["best"]["candidate"])
                runs = [_run(lab, costs, each, _CONV) for each in (cluster, _BASE)]
                parts.append((f"{prices} {_SHORT[cluster.design]} {cluster.sizes}", _ratio(lab, runs)))
                commands += [_capacity_command(lab, run) for run in runs]
            columns[costs.name] = _column(parts)
        made.append(_row(name, columns, commands, _seeds(lab.effort.seeds)))

    # AA against Baseline-A100 and HH against Baseline-H100 are the pairs that take the same of both.
    columns, commands = {}, []
    power = _BASE.total("table-i")["power_w"]
    for costs in _BOTH:
        parts = []
        plan, how = _searched(lab, costs, _CONV, _SPLIT, power_limit=power)
        commands.append(how)
        for design, under in (("splitwise-aa", "baseline-a100"), ("splitwise-hh", "baseline-h100")):
            candidate = plan["designs"][_SPLIT.index(design)]
            if candidate is None:
                parts.append((f"{_SHORT[design]}: no cluster", None))
                continue
            cluster, other = _cluster(candidate), _published("iso-power", under, _CONV)
            runs = [_run(lab, costs, each, _CONV) for each in (cluster, other)]
            parts.append((f"{_SHORT[design]} {cluster.sizes}", _ratio(lab, runs)))
        known = [part for part in parts if part[1] is not None]
        columns[costs.name] = _column([max(known, key=lambda part: part[1].mean)] if known else parts)  # type: ignore[union-attr]
    made.append(_row("headline-same", columns, commands, _seeds(lab.effort.seeds)))
    return made, []


def iso_cost(lab: Lab) -> Made:
    """Compare AA with Baseline-H100 at the same cost."""
    aa = _published("iso-cost", "splitwise-aa", _CONV)
    made = [_compare(lab, "aa-iso-cost", aa, _BASE)]
    totals = {prices: (aa.total(prices), _BASE.total(prices)) for prices in _PRICES}
    power = [Part(prices, exactly(over["power_w"] / under["power_w"] - 1)) for prices, (over, under) in totals.items()]
    hosts = Part("hosts", exactly((aa.prompt + aa.token) / (_BASE.prompt + _BASE.token)))
    over, under = totals["table-i"]
    units = shown(exactly(over["rack_units"] / under["rack_units"]), "ratio")
    for name, column in (
        ("aa-iso-cost-power", Column(power, "no simulation in it")),
        ("aa-iso-cost-space", Column([hosts], f"by rack units of the data sheets {units}")),
    ):
        made.append(_row(name, {PUBLISHED.name: column, MEASURED.name: column}, [], "-"))
    rows = [
        [prices, f"{over['cost_per_hour'] / under['cost_per_hour']:.3f}", f"{over['power_w'] / under['power_w']:.3f}"]
        for prices, (over, under) in totals.items()
    ]
    about = f"{_SHORT['splitwise-aa']} {aa.sizes} over Baseline-H100 {_BASE.sizes}, the published sizes of equal cost."
    return made, [Table("What the iso-cost pair takes", about, ("prices", "cost", "power"), rows)]


def iso_throughput(lab: Lab) -> Made:
    """Find the cheapest clusters and those of least power at the same rate, seed by seed."""
    columns: dict[str, dict[str, Column]] = {"min-cost": {}, "min-power": {}}
    commands: dict[str, list[str]] = {"min-cost": [], "min-power": []}
    rows = []
    for goal, design in (("min-cost", "splitwise-aa"), ("min-power", "splitwise-hhcap")):
        for costs in _BOTH:
            pairs: list[tuple[Cluster, Cluster]] = []
            for seed in range(lab.effort.few_seeds):
                spec = _cheapest(lab, costs, _CONV, [design, "baseline-h100"], goal, seed)
                candidates = lab.plan(**spec)["designs"]
                commands[goal] += [command("plan", spec)] if seed == 0 else []
                if candidates[0] is None or candidates[1] is None:
                    continue
                pairs.append((_cluster(candidates[0]), _cluster(candidates[1])))
            missing = lab.effort.few_seeds - len(pairs)
            if missing:
                why = f"with {missing} of {lab.effort.few_seeds} seeds no cluster up to the largest tried holds"
                columns[goal][costs.name] = Column((), why)
                continue
            if goal == "min-cost":
                parts = [Part(prices, _saving(pairs, prices, "cost_per_hour")) for prices in _PRICES]
            else:
                parts = [Part("", _saving(pairs, "table-i", "power_w"))]
            columns[goal][costs.name] = Column(parts)
            told = [", ".join(each.sizes for each in side) for side in zip(*pairs, strict=True)]
            rows.append([goal, _SHORT[design], costs.name, *told])
    count = _seeds(lab.effort.few_seeds)
    made = [
        _row(name, columns[goal], commands[goal], count)
        for name, goal in (("iso-throughput-cost", "min-cost"), ("iso-throughput-power", "min-power"))
    ]
    about = f"At {_RATE_RPS:g} requests/s conversation, one search for each of seeds {count}."
    head = ("goal", "design", "model", "its machines", "Baseline-H100")
    return made, [Table("Clusters of the same throughput", about, head, rows)]


def _cheapest(lab: Lab, costs: Costs, trace: str, designs: Sequence[str], goal: str, seed: int) -> dict[str, Any]:
    return {
        "designs": designs,
        "goal": goal,
        "rate": _RATE_RPS,
        "machines_max": 120,
        "machines_step": lab.effort.step,
        "seeds": 1,
        "seed": seed,
        "resolution": max(0.05, lab.effort.resolution),
        **lab.traffic(trace),
        **costs.options,
    }


def _saving(
    pairs: Sequence[tuple[Cluster, Cluster]], prices: str, what: Literal["cost_per_hour", "power_w"]
) -> Estimate:
    return estimate([over.total(prices)[what] / under.total(prices)[what] - 1 for over, under in pairs])


def fig_12(lab: Lab) -> Made:
    """Find the cheapest HH for coding."""
    columns, commands, rows = {}, [], []
    design = "splitwise-hh"
    for costs in _BOTH:
        found: list[Cluster] = []
        for seed in range(lab.effort.few_seeds):
            spec = _cheapest(lab, costs, _CODE, [design], "min-cost", seed)
            (candidate,) = lab.plan(**spec)["designs"]
            commands += [command("plan", spec)] if seed == 0 else []
            found += [] if candidate is None else [_cluster(candidate)]
        run = _run(lab, costs, Cluster(design, 27, 3), _CODE)
        held = [verdict["met"] for verdict in lab.verdicts(run, _RATE_RPS, lab.effort.few_seeds)]
        why = f"27P + 3T holds with {sum(held)} of {len(held)} seeds"
        parts = [Part("", estimate([float(each.prompt + each.token) for each in found]))]
        all_found = len(found) == lab.effort.few_seeds
        columns[costs.name] = Column(parts, why) if all_found else Column((), f"some seeds: none holds; {why}")
        rows.append([costs.name, ", ".join(each.sizes for each in found), f"{sum(held)} of {len(held)}"])
    head = ("model", "cheapest, by seed", "seeds with which 27P + 3T holds")
    about = f"HH, coding, {_RATE_RPS:g} requests/s, one search for each of seeds {_seeds(lab.effort.few_seeds)}."
    made = [_row("fig-12", columns, commands, _seeds(lab.effort.few_seeds))]
    return made, [Table("Cheapest HH for coding", about, head, rows)]


def workload_switch(lab: Lab) -> Made:
    """Run conversation on clusters that were sized for coding."""
    made = []
    for name, designs in (
        ("workload-switch-0", ("splitwise-aa", "splitwise-hh")),
        ("workload-switch-7", ("splitwise-ha", "splitwise-hhcap")),
    ):
        columns, commands = {}, []
        for costs in _BOTH:
            parts: list[tuple[str, Estimate | None]] = []
            for design in designs:
                runs = [_run(lab, costs, _published("iso-power", design, trace), _CONV) for trace in (_CODE, _CONV)]
                commands += [_capacity_command(lab, run) for run in runs]
                switched, own = (lab.rates(run) for run in runs)
                lost = None
                if min(own) > 0:
                    lost = estimate([1 - rate / other for rate, other in zip(switched, own, strict=True)])
                parts.append((_SHORT[design], lost))
            columns[costs.name] = _column(parts)
        made.append(_row(name, columns, commands, _seeds(lab.effort.seeds)))
    return made, []


def model_switch(lab: Lab) -> Made:
    """Run Llama-70B on clusters that were sized for BLOOM."""
    count, llama = lab.effort.few_seeds, {"model": "llama2-70b"}
    rate_columns, latency_columns, commands, rows = {}, {}, [], []
    for costs in _BOTH:
        runs = {design: _run(lab, costs, _published("iso-power", design, _CONV), _CONV, **llama) for design in _DESIGNS}
        commands += [_capacity_command(lab, run, count) for run in runs.values()]
        rates = {design: lab.rates(run, seeds=count) for design, run in runs.items()}
        baseline = [max(pair) for pair in zip(rates["baseline-a100"], rates["baseline-h100"], strict=True)]
        parts = []
        for design in _SPLIT:
            pairs = zip(rates[design], baseline, strict=True)
            ratio = estimate([rate / other for rate, other in pairs]) if min(baseline) > 0 else None
            parts.append((_SHORT[design], ratio))
        rate_columns[costs.name] = _column(parts)
        load = 0.9 * min(sum(rates[design]) / count for design in _SPLIT)
        if load <= 0:
            latency_columns[costs.name] = Column((), "a split design holds no rate")
            continue
        slow = {design: _median_slowdowns(lab, run, load, count) for design, run in runs.items()}
        best = ("splitwise-hh", "splitwise-hhcap")
        ratios = [
            min(slow[design][seed] for design in _DESIGNS if design not in best)
            / max(slow[design][seed] for design in best)
            for seed in range(count)
        ]
        latency_columns[costs.name] = Column([Part("", estimate(ratios))], f"at {load:.3g} requests/s")
        for design in _DESIGNS:
            told = [shown(estimate(rates[design]), "requests/s"), shown(estimate(slow[design]), "ratio")]
            rows.append([_SHORT[design], costs.name, *told, f"{load:.3g}"])
    made = [
        _row("model-switch-rate", rate_columns, commands, _seeds(count)),
        _row("model-switch-latency", latency_columns, commands, _seeds(count)),
    ]
    about = f"Conversation, the published pool sizes of equal power, seeds {_seeds(count)}."
    head = ("design", "model", "highest rate", "median E2E slowdown", "at requests/s")
    return made, [Table("Llama-70B on clusters for BLOOM", about, head, rows)]


def _median_slowdowns(lab: Lab, run: Mapping[str, Any], rate: float, count: int) -> list[float]:
    found = []
    for verdict in lab.verdicts(run, rate, count):
        values = {finding["objective"]: finding["found"] for finding in verdict["findings"]}
        median = values["e2e_slowdown p50"]
        found.append(float("inf") if median is None else median)
    return found


_Values = NDArray[np.float64]


def transfers(lab: Lab) -> Made:
    """Measure what handing the KV over costs a request alone."""
    shares: dict[tuple[str, str, str], list[Estimate]] = {}
    crossover, rows, commands = {}, [], []
    for costs in _BOTH:
        modes = ("serialized",) if costs is PUBLISHED else ("serialized", "layer-wise")
        for machine in ("dgx-a100", "dgx-h100"):
            extras: dict[str, tuple[_Values, _Values]] = {}
            for mode in modes:
                runs = _two_machines(lab, costs, machine, mode)
                commands += [command("simulate", run) for run in runs[:2]]
                alike = [_against_one(*pair) for pair in _pairs(lab.simulate(runs))]
                found = [estimate([values[at] for values, _, _ in alike]) for at in range(4)]
                shares[costs.name, machine, mode] = found
                extras[mode] = (alike[0][1], alike[0][2])
                rows.append([machine, costs.name, mode, *(shown(each, "percent") for each in found)])
            if "layer-wise" in extras:
                prompts, extra = extras["serialized"]
                slope = float(prompts @ extra / (prompts @ prompts))
                crossover[costs.name, machine] = float(np.mean(extras["layer-wise"][1])) / slope
    made = []
    for name, mode, at in (
        ("transfer-share", "serialized", 0),
        ("e2e-layer-wise", "layer-wise", 1),
        ("e2e-serialized", "serialized", 2),
        ("second-layer-wise", "layer-wise", 3),
        ("second-serialized", "serialized", 3),
    ):
        columns = {}
        for costs in _BOTH:
            machines = (("A100", "dgx-a100"), ("H100", "dgx-h100"))
            known = [(label, shares.get((costs.name, machine, mode))) for label, machine in machines]
            parts = [Part(label, found[at]) for label, found in known if found is not None]
            columns[costs.name] = Column(parts, "" if parts else "the public simulator knows no layer-wise transfer")
        made.append(_row(name, columns, commands, _seeds(lab.effort.few_seeds)))
    nothing = Column((), "the public simulator knows no layer-wise transfer")
    made.append(
        _row(
            "crossover",
            {
                PUBLISHED.name: nothing,
                MEASURED.name: Column(
                    [Part("", exactly(crossover[MEASURED.name, "dgx-h100"]))],
                    "of the fixed 5 ms, which goes in, and the link",
                ),
            },
            commands,
            "0",
        )
    )
    given = Column((), "it goes into our model as printed: no evidence")
    made.append(_row("visible", {PUBLISHED.name: nothing, MEASURED.name: given}, [], "-"))
    head = (
        "machines", "model", "transfer", "of prompt time", "of E2E", "of E2E, longest tenth of prompts", "second token",
    )  # fmt: skip
    about = (
        f"{lab.effort.requests} coding requests each of seeds {_seeds(lab.effort.few_seeds)}, one after another: what "
        "a prompt and a token machine add to one machine that serves whole requests."
    )
    return made, [Table("What the transfer costs a request alone", about, head, rows)]


def _two_machines(lab: Lab, costs: Costs, machine: str, mode: str) -> list[dict[str, Any]]:
    """For each seed a run on two machines and one of the same requests on one."""
    alone = {"trace": _CODE, "sampling": "independent", "rate": 0.01, "requests": lab.effort.requests}
    rules = {**costs.options, "transfer": mode}
    runs: list[dict[str, Any]] = []
    for seed in range(lab.effort.few_seeds):
        split = {"prompt": f"1x{machine}", "token": f"1x{machine}"}
        for pools in (split, {"unsplit": f"1x{machine}"}):
            runs.append({**pools, **alone, "duration_s": 1000.0 * lab.effort.requests, **rules, "seed": seed})
    return runs


def _pairs(reports: Sequence[Any]) -> list[tuple[NDArray[np.void], NDArray[np.void]]]:
    return [(reports[at].requests, reports[at + 1].requests) for at in range(0, len(reports), 2)]


def _against_one(
    split: NDArray[np.void], whole: NDArray[np.void]
) -> tuple[tuple[float, float, float, float], _Values, _Values]:
    """Tell what two machines add: as shares of prompt time, E2E, E2E of long prompts and a token; prompts; seconds."""
    extra: _Values = split["e2e_s"] - whole["e2e_s"]
    prompts: _Values = whole["prompt_tokens"].astype(np.float64)
    is_long = prompts >= np.quantile(prompts, 0.9)
    shares = (
        float(np.mean(extra / whole["ttft_s"])),
        float(np.mean(extra / whole["e2e_s"])),
        float(np.mean((extra / whole["e2e_s"])[is_long])),
        float(np.nanmean(extra / whole["tbt_mean_s"])),
    )
    return shares, prompts, extra


def batch(lab: Lab) -> Made:
    """Give clusters more than they can do, without objectives."""
    clusters = [
        _published("iso-power", design, _CONV)
        for design in ("baseline-a100", "splitwise-aa", "baseline-h100", "splitwise-hh")
    ]
    equal, prices_columns, commands, rows = {}, {}, [], []
    count = lab.effort.few_seeds
    for costs in _BOTH:
        ended: dict[str, list[float]] = {}
        for cluster in clusters:
            runs = [_run(lab, costs, cluster, _CONV, rate=400.0 * lab.effort.load, seed=seed) for seed in range(count)]
            commands.append(command("simulate", runs[0]))
            ended[cluster.design] = [_later_half(lab, report.requests) for report in lab.simulate(runs)]
            told = shown(estimate(ended[cluster.design]), "requests/s")
            mean = float(np.mean(ended[cluster.design]))
            per = [f"{mean / _cost(cluster, prices):.3f}" for prices in _PRICES]
            rows.append([_SHORT[cluster.design], costs.name, cluster.sizes, told, *per])

        def ratio(
            over: str, under: str, factor: float = 1.0, ended: Mapping[str, list[float]] = ended
        ) -> Estimate | None:
            pairs = list(zip(ended[over], ended[under], strict=True))
            return estimate([factor * rate / other for rate, other in pairs]) if min(ended[under]) > 0 else None

        equal[costs.name] = _column(
            [
                ("A100", ratio("splitwise-aa", "baseline-a100")),
                ("H100", ratio("splitwise-hh", "baseline-h100")),
            ]
        )
        dear = {prices: _cost(_BASE, prices) / _cost(clusters[0], prices) for prices in _PRICES}
        prices_columns[costs.name] = _column(
            [(prices, ratio("baseline-a100", "baseline-h100", factor)) for prices, factor in dear.items()]
        )
    head = (
        "design",
        "model",
        "machines",
        "ends a second",
        *(f"per cost of a DGX-A100, {prices}" for prices in _PRICES),
    )
    about = (
        f"Conversation at {400.0 * lab.effort.load:g} requests/s, no objectives, seeds {_seeds(count)}: requests that "
        "end a second in the later half of the arrivals. What one DGX-A100 costs by each table is the unit of cost, as "
        "the paper does not say which dollars it means."
    )
    made = [
        _row("batch-equal", equal, commands, _seeds(count)),
        _row("batch-a100-over-h100", prices_columns, commands, _seeds(count)),
    ]
    return made, [Table("Throughput without objectives", about, head, rows)]


def _cost(cluster: Cluster, prices: str) -> float:
    """Tell what a cluster costs, in DGX-A100."""
    return cluster.total(prices)["cost_per_hour"] / Cluster("baseline-a100", 1).total(prices)["cost_per_hour"]


def _later_half(lab: Lab, requests: NDArray[np.void]) -> float:
    ends = requests["arrival_s"] + requests["e2e_s"]
    half = lab.effort.duration_s / 2
    return float(np.count_nonzero((ends >= half) & (ends < 2 * half)) / half)


STEPS: Sequence[tuple[str, float, Callable[[Lab], Made]]] = (
    ("grid", 1, grid),
    ("same power", 20, iso_power),
    ("best splits", 30, best_splits),
    ("headlines", 30, headlines),
    ("same cost", 2, iso_cost),
    ("same throughput", 30, iso_throughput),
    ("Fig. 12", 8, fig_12),
    ("workload switch", 8, workload_switch),
    ("model switch", 20, model_switch),
    ("transfers", 1, transfers),
    ("batch jobs", 4, batch),
)
"""Name, weight in the progress shown, and the work."""
