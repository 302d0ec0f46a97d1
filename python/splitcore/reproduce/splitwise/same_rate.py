"""Designs at the same cost or the same throughput."""

from collections.abc import Sequence
from typing import Any, Literal

from splitcore.reproduce.lab import MEASURED, PUBLISHED, Cluster, Costs, Lab
from splitcore.reproduce.results import Column, Made, Part, Row, Table, command, shown
from splitcore.reproduce.splitwise.common import (
    BASE,
    BOTH,
    CODE,
    CONV,
    PRICES,
    RATE_RPS,
    SHORT,
    capacity_command,
    cluster_of,
    column_of,
    compare,
    published,
    ratio_of,
    row,
    run_of,
    seeds_told,
)
from splitcore.reproduce.splitwise.same_power import searched
from splitcore.reproduce.verdicts import Estimate, estimate, exactly

__all__ = ["fig_12", "iso_cost", "iso_throughput"]


def iso_cost(lab: Lab) -> Made:
    """Compare AA with Baseline-H100 at the same cost."""
    aa = published("iso-cost", "splitwise-aa", CONV)
    made = [compare(lab, "aa-iso-cost", aa, BASE), _best_at_the_cost(lab)]
    totals = {prices: (aa.total(prices), BASE.total(prices)) for prices in PRICES}
    power = [Part(prices, exactly(over["power_w"] / under["power_w"] - 1)) for prices, (over, under) in totals.items()]
    hosts = Part("hosts", exactly((aa.prompt + aa.token) / (BASE.prompt + BASE.token)))
    over, under = totals["table-i"]
    units = shown(exactly(over["rack_units"] / under["rack_units"]), "ratio")
    for name, column in (
        ("aa-iso-cost-power", Column(power, "no simulation in it")),
        ("aa-iso-cost-space", Column([hosts], f"by rack units of the data sheets {units}")),
    ):
        made.append(row(name, {PUBLISHED.name: column, MEASURED.name: column}, [], "-"))
    rows = [
        [prices, f"{over['cost_per_hour'] / under['cost_per_hour']:.3f}", f"{over['power_w'] / under['power_w']:.3f}"]
        for prices, (over, under) in totals.items()
    ]
    about = f"{SHORT['splitwise-aa']} {aa.sizes} over Baseline-H100 {BASE.sizes}, the published sizes of equal cost."
    return made, [Table("What the iso-cost pair takes", about, ("prices", "cost", "power"), rows)]


def _best_at_the_cost(lab: Lab) -> Row:
    """Find the split that suits AA best at the cost, to tell the split's part from the model's."""
    columns, commands = {}, []
    for costs in BOTH:
        limit = BASE.total("table-i")["cost_per_hour"]
        plan, how = searched(lab, costs, CONV, ["splitwise-aa"], cost_limit=limit)
        commands.append(how)
        (candidate,) = plan["designs"]
        if candidate is None:
            columns[costs.name] = Column((), "no split holds any rate")
            continue
        cluster = cluster_of(candidate)
        runs = [run_of(lab, costs, each, CONV) for each in (cluster, BASE)]
        commands += [capacity_command(lab, run) for run in runs]
        columns[costs.name] = column_of([("", ratio_of(lab, runs))], cluster.sizes)
    return row("aa-iso-cost-best", columns, commands, seeds_told(lab.effort.seeds))


def iso_throughput(lab: Lab) -> Made:
    """Find the cheapest clusters and those of least power at the same rate, seed by seed."""
    columns: dict[str, dict[str, Column]] = {"min-cost": {}, "min-power": {}}
    commands: dict[str, list[str]] = {"min-cost": [], "min-power": []}
    rows = []
    for goal, design in (("min-cost", "splitwise-aa"), ("min-power", "splitwise-hhcap")):
        for costs in BOTH:
            pairs: list[tuple[Cluster, Cluster]] = []
            for seed in range(lab.effort.few_seeds):
                spec = _cheapest(lab, costs, CONV, [design, "baseline-h100"], goal, seed)
                candidates = lab.plan(**spec)["designs"]
                commands[goal] += [command("plan", spec)] if seed == 0 else []
                if candidates[0] is None or candidates[1] is None:
                    continue
                pairs.append((cluster_of(candidates[0]), cluster_of(candidates[1])))
            missing = lab.effort.few_seeds - len(pairs)
            if missing:
                why = f"with {missing} of {lab.effort.few_seeds} seeds no cluster up to the largest tried holds"
                columns[goal][costs.name] = Column((), why)
                continue
            if goal == "min-cost":
                parts = [Part(prices, _saving(pairs, prices, "cost_per_hour")) for prices in PRICES]
            else:
                parts = [Part("", _saving(pairs, "table-i", "power_w"))]
            columns[goal][costs.name] = Column(parts)
            told = [", ".join(each.sizes for each in side) for side in zip(*pairs, strict=True)]
            rows.append([goal, SHORT[design], costs.name, *told])
    count = seeds_told(lab.effort.few_seeds)
    made = [
        row(name, columns[goal], commands[goal], count)
        for name, goal in (("iso-throughput-cost", "min-cost"), ("iso-throughput-power", "min-power"))
    ]
    about = f"At {RATE_RPS:g} requests/s conversation, one search for each of seeds {count}."
    head = ("goal", "design", "model", "its machines", "Baseline-H100")
    return made, [Table("Clusters of the same throughput", about, head, rows)]


def _cheapest(lab: Lab, costs: Costs, trace: str, designs: Sequence[str], goal: str, seed: int) -> dict[str, Any]:
    return {
        "designs": designs,
        "goal": goal,
        "rate": RATE_RPS,
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
    for costs in BOTH:
        found: list[Cluster] = []
        for seed in range(lab.effort.few_seeds):
            spec = _cheapest(lab, costs, CODE, [design], "min-cost", seed)
            (candidate,) = lab.plan(**spec)["designs"]
            commands += [command("plan", spec)] if seed == 0 else []
            found += [] if candidate is None else [cluster_of(candidate)]
        run = run_of(lab, costs, Cluster(design, 27, 3), CODE)
        held = [verdict["met"] for verdict in lab.verdicts(run, RATE_RPS, lab.effort.few_seeds)]
        why = f"27P + 3T holds with {sum(held)} of {len(held)} seeds"
        parts = [Part("", estimate([float(each.prompt + each.token) for each in found]))]
        all_found = len(found) == lab.effort.few_seeds
        columns[costs.name] = Column(parts, why) if all_found else Column((), f"some seeds: none holds; {why}")
        rows.append([costs.name, ", ".join(each.sizes for each in found), f"{sum(held)} of {len(held)}"])
    head = ("model", "cheapest, by seed", "seeds with which 27P + 3T holds")
    about = f"HH, coding, {RATE_RPS:g} requests/s, one search for each of seeds {seeds_told(lab.effort.few_seeds)}."
    made = [row("fig-12", columns, commands, seeds_told(lab.effort.few_seeds))]
    return made, [Table("Cheapest HH for coding", about, head, rows)]
