"""Designs at the same power, and the headlines drawn from them."""

from collections.abc import Sequence
from typing import Any

from splitcore.plan_schema import Plan
from splitcore.reproduce.claims.splitwise import GRID_STEP_RPS
from splitcore.reproduce.lab import MEASURED, PUBLISHED, Cluster, Costs, Effort, Lab
from splitcore.reproduce.results import Column, Made, Part, Table, command, shown
from splitcore.reproduce.splitwise.common import (
    BASE,
    BOTH,
    CONV,
    DESIGNS,
    PRICES,
    SHORT,
    SPLIT,
    TRACES,
    capacity_command,
    cluster_of,
    column_of,
    compare,
    failing_told,
    published,
    ratio_of,
    reference_rate,
    row,
    run_of,
    seeds_told,
)
from splitcore.reproduce.verdicts import Estimate, estimate, exactly

__all__ = ["best_splits", "causes", "grid", "headlines", "iso_power", "searched"]


def grid(lab: Lab) -> Made:
    """Hold the twelve cells of the grid against the public simulator's."""
    rows, steps, commands = [], [], []
    for trace, traffic in TRACES.items():
        for design in DESIGNS:
            cluster, reference = published("iso-power", design, trace), reference_rate(design, trace)
            run = run_of(lab, PUBLISHED, cluster, trace)
            found = lab.capacity(run, seeds=1, step=GRID_STEP_RPS)
            off = (found["max_rate"] - reference) / GRID_STEP_RPS
            steps.append(off)
            commands.append(capacity_command(lab, run, 1, GRID_STEP_RPS))
            told = [f"{reference:g}", f"{found['max_rate']:g}", f"{off:+.0f}", failing_told(found["failing"])]
            rows.append([SHORT[design], traffic, cluster.sizes, *told])
    columns = {
        PUBLISHED.name: Column([Part("", exactly(max(steps, key=abs)))], "one workload, as theirs"),
        MEASURED.name: Column((), "the table is of the published model"),
    }
    head = ("design", "trace", "machines", "theirs", "ours", "steps off", "fails above in")
    table = Table("Highest rates on the grid", f"Requests/s, steps of {GRID_STEP_RPS:g}, seed 0.", head, rows)
    return [row("iso-power-grid", columns, commands, "0")], [table]


def iso_power(lab: Lab) -> Made:
    """Compare designs at the power of 40 DGX-H100, published pool sizes."""
    rows = []
    for trace, traffic in TRACES.items():
        for design in DESIGNS:
            cluster = published("iso-power", design, trace)
            told = []
            for costs in BOTH:
                run = run_of(lab, costs, cluster, trace)
                found = lab.capacity(run)
                ratio = ratio_of(lab, (run, run_of(lab, costs, BASE, trace)))
                told += [
                    shown(estimate([seed["max_rate"] for seed in found["seeds"]]), "requests/s"),
                    "-" if ratio is None or design == "baseline-h100" else shown(ratio, "ratio"),
                    failing_told(found["failing"]),
                ]
            rows.append([SHORT[design], traffic, cluster.sizes, *told])
    head = (
        "design", "trace", "machines",
        "published model", "over Baseline-H100", "fails above in (seeds)",
        "measured model", "over Baseline-H100", "fails above in (seeds)",
    )  # fmt: skip
    about = f"Requests/s at the published pool sizes, seeds {seeds_told(lab.effort.seeds)}."
    table = Table("Highest rates at the same power", about, head, rows)

    def of(design: str) -> Cluster:
        return published("iso-power", design, CONV)

    pairs = (
        ("aa-iso-power", "splitwise-aa", "baseline-a100"),
        ("ha-iso-power-a100", "splitwise-ha", "baseline-a100"),
        ("ha-iso-power-h100", "splitwise-ha", "baseline-h100"),
        ("hh-beats-h100", "splitwise-hh", "baseline-h100"),
        ("hhcap-beats-h100", "splitwise-hhcap", "baseline-h100"),
    )
    return [compare(lab, name, of(over), of(under)) for name, over, under in pairs], [table]


def causes(lab: Lab) -> Made:
    """Change costs and links one at a time, to see which of them moves the rates."""
    links = {name: value for name, value in PUBLISHED.options.items() if name != "costs"}
    ways = (
        PUBLISHED,
        Costs("published costs, our links", {"costs": PUBLISHED.options["costs"]}),
        Costs("measured costs, published links", links),
        MEASURED,
    )
    count, rows = lab.effort.few_seeds, []
    for design in DESIGNS:
        cluster = published("iso-power", design, CONV)
        runs = [run_of(lab, costs, cluster, CONV) for costs in ways]
        told = [shown(estimate(lab.rates(run, seeds=count)), "requests/s") for run in runs]
        rows.append([SHORT[design], cluster.sizes, *told])
    head = ("design", "machines", "published model", "its costs, our links", "our costs, its links", "measured model")
    about = f"Highest rates, conversation, published pool sizes, requests/s; seeds {seeds_told(count)}."
    return [], [Table("What moves the rates: pass times or links", about, head, rows)]


def searched(lab: Lab, costs: Costs, trace: str, designs: Sequence[str], **limits: Any) -> tuple[Plan, str]:
    """Search the fastest clusters within limits with workloads that nothing else is measured with.

    Also returns the command.
    """
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


def best_splits(lab: Lab) -> Made:
    """Compare designs at the same power, each at the pool sizes that suit it best."""
    best: dict[tuple[str, str, str], Cluster] = {}
    rows, commands = [], {costs.name: [] for costs in BOTH}  # type: ignore[var-annotated]
    power = BASE.total("table-i")["power_w"]
    for trace, traffic in TRACES.items():
        for costs in BOTH:
            plan, how = searched(lab, costs, trace, SPLIT, power_limit=power)
            base = run_of(lab, costs, BASE, trace)
            if trace == CONV:
                commands[costs.name].append(how)
            for design, candidate in zip(SPLIT, plan["designs"], strict=True):
                if candidate is None:
                    rows.append([SHORT[design], traffic, costs.name, "none holds any rate", "", "", ""])
                    continue
                cluster = best[costs.name, trace, design] = cluster_of(candidate)
                run = run_of(lab, costs, cluster, trace)
                found, ratio = lab.capacity(run), ratio_of(lab, (run, base))
                rate = shown(estimate([seed["max_rate"] for seed in found["seeds"]]), "requests/s")
                told = ["-" if ratio is None else shown(ratio, "ratio"), failing_told(found["failing"])]
                rows.append([SHORT[design], traffic, costs.name, cluster.sizes, rate, *told])
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
        f"{Effort.FIRST_SEARCH_SEED} on, measured with seeds {seeds_told(lab.effort.seeds)}: what is chosen is not "
        "judged by the luck that it was chosen by."
    )
    made = []
    for name, design, under in (
        ("aa-beats-a100-best", "splitwise-aa", "baseline-a100"),
        ("hh-beats-h100-best", "splitwise-hh", "baseline-h100"),
        ("hhcap-beats-h100-best", "splitwise-hhcap", "baseline-h100"),
    ):
        columns, how_to = {}, []
        for costs in BOTH:
            split = best.get((costs.name, CONV, design))
            if split is None:
                columns[costs.name] = Column((), "no split holds any rate")
                continue
            runs = [run_of(lab, costs, each, CONV) for each in (split, published("iso-power", under, CONV))]
            columns[costs.name] = column_of([("", ratio_of(lab, runs))], split.sizes)
            how_to += [*commands[costs.name], *(capacity_command(lab, run) for run in runs)]
        made.append(row(name, columns, how_to, seeds_told(lab.effort.seeds)))
    return made, [Table("Best splits at the same power", about, head, rows)]


def headlines(lab: Lab) -> Made:
    """Look for the clusters of abstract and conclusion."""
    made = []
    for name, cost_share, power_share in (("headline-cost", 0.8, None), ("headline-power", 1.0, 0.85)):
        columns, commands = {}, []
        for costs in BOTH:
            parts: list[tuple[str, Estimate | None]] = []
            for prices in PRICES[:2]:
                total = BASE.total(prices)
                limits: dict[str, Any] = {"cost_limit": cost_share * total["cost_per_hour"], "prices": prices}
                if power_share is not None:
                    limits["power_limit"] = power_share * total["power_w"]
                plan, how = searched(lab, costs, CONV, SPLIT, **limits)
                commands.append(how)
                if plan["best"] is None:
                    parts.append((f"{prices}: no cluster", None))
                    continue
                cluster = cluster_of(plan["best"]["candidate"])
                runs = [run_of(lab, costs, each, CONV) for each in (cluster, BASE)]
                parts.append((f"{prices} {SHORT[cluster.design]} {cluster.sizes}", ratio_of(lab, runs)))
                commands += [capacity_command(lab, run) for run in runs]
            columns[costs.name] = column_of(parts)
        made.append(row(name, columns, commands, seeds_told(lab.effort.seeds)))

    # AA against Baseline-A100 and HH against Baseline-H100 are the pairs that take the same of both.
    columns, commands = {}, []
    power = BASE.total("table-i")["power_w"]
    for costs in BOTH:
        parts = []
        plan, how = searched(lab, costs, CONV, SPLIT, power_limit=power)
        commands.append(how)
        for design, under in (("splitwise-aa", "baseline-a100"), ("splitwise-hh", "baseline-h100")):
            candidate = plan["designs"][SPLIT.index(design)]
            if candidate is None:
                parts.append((f"{SHORT[design]}: no cluster", None))
                continue
            cluster, other = cluster_of(candidate), published("iso-power", under, CONV)
            runs = [run_of(lab, costs, each, CONV) for each in (cluster, other)]
            parts.append((f"{SHORT[design]} {cluster.sizes}", ratio_of(lab, runs)))
        known = [part for part in parts if part[1] is not None]
        columns[costs.name] = column_of([max(known, key=lambda part: part[1].mean)] if known else parts)  # type: ignore[union-attr]
    made.append(row("headline-same", columns, commands, seeds_told(lab.effort.seeds)))
    return made, []
