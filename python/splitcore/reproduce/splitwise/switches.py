"""Clusters under other work than what they were sized for."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitcore.reproduce.lab import Cluster, Lab
from splitcore.reproduce.results import Column, Made, Part, Table, command, shown
from splitcore.reproduce.splitwise.common import (
    BASE,
    BOTH,
    CODE,
    CONV,
    DESIGNS,
    PRICES,
    SHORT,
    SPLIT,
    capacity_command,
    column_of,
    published,
    row,
    run_of,
    seeds_told,
)
from splitcore.reproduce.verdicts import Estimate, estimate

__all__ = ["batch", "model_switch", "workload_switch"]


def workload_switch(lab: Lab) -> Made:
    """Run conversation on clusters that were sized for coding."""
    made = []
    for name, designs in (
        ("workload-switch-0", ("splitwise-aa", "splitwise-hh")),
        ("workload-switch-7", ("splitwise-ha", "splitwise-hhcap")),
    ):
        columns, commands = {}, []
        for costs in BOTH:
            parts: list[tuple[str, Estimate | None]] = []
            for design in designs:
                runs = [run_of(lab, costs, published("iso-power", design, trace), CONV) for trace in (CODE, CONV)]
                commands += [capacity_command(lab, run) for run in runs]
                switched, own = (lab.rates(run) for run in runs)
                lost = None
                if min(own) > 0:
                    kept = [rate / other for rate, other in zip(switched, own, strict=True)]
                    found = estimate(kept).widened(lab.effort.resolution)
                    lost = Estimate(1 - found.mean, _rest(found.high), _rest(found.low), found.count)
                parts.append((SHORT[design], lost))
            columns[costs.name] = column_of(parts)
        made.append(row(name, columns, commands, seeds_told(lab.effort.seeds)))
    return made, []


def _rest(share: float | None) -> float | None:
    return None if share is None else 1 - share


def model_switch(lab: Lab) -> Made:
    """Run Llama-70B on clusters that were sized for BLOOM."""
    count, llama = lab.effort.few_seeds, {"model": "llama2-70b"}
    rate_columns, latency_columns, commands, rows = {}, {}, [], []
    for costs in BOTH:
        runs = {design: run_of(lab, costs, published("iso-power", design, CONV), CONV, **llama) for design in DESIGNS}
        commands += [capacity_command(lab, run, count) for run in runs.values()]
        rates = {design: lab.rates(run, seeds=count) for design, run in runs.items()}
        baseline = [max(pair) for pair in zip(rates["baseline-a100"], rates["baseline-h100"], strict=True)]
        parts = []
        for design in SPLIT:
            pairs = zip(rates[design], baseline, strict=True)
            ratio = estimate([rate / other for rate, other in pairs]) if min(baseline) > 0 else None
            parts.append((SHORT[design], ratio and ratio.widened(lab.effort.resolution)))
        rate_columns[costs.name] = column_of(parts)
        load = 0.9 * min(sum(rates[design]) / count for design in SPLIT)
        if load <= 0:
            latency_columns[costs.name] = Column((), "a split design holds no rate")
            continue
        slow = {design: _median_slowdowns(lab, run, load, count) for design, run in runs.items()}
        best = ("splitwise-hh", "splitwise-hhcap")
        ratios = [
            min(slow[design][seed] for design in DESIGNS if design not in best)
            / max(slow[design][seed] for design in best)
            for seed in range(count)
        ]
        latency_columns[costs.name] = Column([Part("", estimate(ratios))], f"at {load:.3g} requests/s")
        for design in DESIGNS:
            told = [shown(estimate(rates[design]), "requests/s"), shown(estimate(slow[design]), "ratio")]
            rows.append([SHORT[design], costs.name, *told, f"{load:.3g}"])
    made = [
        row("model-switch-rate", rate_columns, commands, seeds_told(count)),
        row("model-switch-latency", latency_columns, commands, seeds_told(count)),
    ]
    about = f"Conversation, the published pool sizes of equal power, seeds {seeds_told(count)}."
    head = ("design", "model", "highest rate", "median E2E slowdown", "at requests/s")
    return made, [Table("Llama-70B on clusters for BLOOM", about, head, rows)]


def _median_slowdowns(lab: Lab, run: Mapping[str, Any], rate: float, count: int) -> list[float]:
    found = []
    for verdict in lab.verdicts(run, rate, count):
        values = {finding["objective"]: finding["found"] for finding in verdict["findings"]}
        median = values["e2e_slowdown p50"]
        found.append(float("inf") if median is None else median)
    return found


def batch(lab: Lab) -> Made:
    """Give clusters more than they can do, without objectives."""
    clusters = [
        published("iso-power", design, CONV)
        for design in ("baseline-a100", "splitwise-aa", "baseline-h100", "splitwise-hh")
    ]
    equal, prices_columns, commands, rows = {}, {}, [], []
    count = lab.effort.few_seeds
    for costs in BOTH:
        ended: dict[str, list[float]] = {}
        for cluster in clusters:
            runs = [run_of(lab, costs, cluster, CONV, rate=400.0 * lab.effort.load, seed=seed) for seed in range(count)]
            commands.append(command("simulate", runs[0]))
            ended[cluster.design] = [_later_half(lab, report.requests) for report in lab.simulate(runs)]
            told = shown(estimate(ended[cluster.design]), "requests/s")
            mean = float(np.mean(ended[cluster.design]))
            per = [f"{mean / _cost(cluster, prices):.3f}" for prices in PRICES]
            rows.append([SHORT[cluster.design], costs.name, cluster.sizes, told, *per])

        def ratio(
            over: str, under: str, factor: float = 1.0, ended: Mapping[str, list[float]] = ended
        ) -> Estimate | None:
            pairs = list(zip(ended[over], ended[under], strict=True))
            return estimate([factor * rate / other for rate, other in pairs]) if min(ended[under]) > 0 else None

        equal[costs.name] = column_of(
            [
                ("A100", ratio("splitwise-aa", "baseline-a100")),
                ("H100", ratio("splitwise-hh", "baseline-h100")),
            ]
        )
        dear = {prices: _cost(BASE, prices) / _cost(clusters[0], prices) for prices in PRICES}
        prices_columns[costs.name] = column_of(
            [(prices, ratio("baseline-a100", "baseline-h100", factor)) for prices, factor in dear.items()]
        )
    head = (
        "design",
        "model",
        "machines",
        "ends a second",
        *(f"per cost of a DGX-A100, {prices}" for prices in PRICES),
    )
    about = (
        f"Conversation at {400.0 * lab.effort.load:g} requests/s, no objectives, seeds {seeds_told(count)}: requests "
        "that end a second in the later half of the arrivals. What one DGX-A100 costs by each table is the unit of "
        "cost, as the paper does not say which dollars it means."
    )
    made = [
        row("batch-equal", equal, commands, seeds_told(count)),
        row("batch-a100-over-h100", prices_columns, commands, seeds_told(count)),
    ]
    return made, [Table("Throughput without objectives", about, head, rows)]


def _cost(cluster: Cluster, prices: str) -> float:
    """Tell what a cluster costs, in DGX-A100."""
    return cluster.total(prices)["cost_per_hour"] / Cluster("baseline-a100", 1).total(prices)["cost_per_hour"]


def _later_half(lab: Lab, requests: NDArray[np.void]) -> float:
    ends = requests["arrival_s"] + requests["e2e_s"]
    half = lab.effort.duration_s / 2
    return float(np.count_nonzero((ends >= half) & (ends < 2 * half)) / half)
