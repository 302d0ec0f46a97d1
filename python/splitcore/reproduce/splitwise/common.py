"""What the comparisons of the Splitwise paper have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from splitcore import _native
from splitcore.plan_schema import Candidate, Failing
from splitcore.reproduce.claims.splitwise import SPLITWISE
from splitcore.reproduce.lab import MEASURED, PUBLISHED, Cluster, Costs, Lab
from splitcore.reproduce.results import Column, Part, Row, command
from splitcore.reproduce.verdicts import Estimate, estimate

__all__ = [
    "BASE",
    "BOTH",
    "CODE",
    "CONV",
    "DESIGNS",
    "PRICES",
    "RATE_RPS",
    "SHORT",
    "SPLIT",
    "TRACES",
    "capacity_command",
    "cluster_of",
    "column_of",
    "compare",
    "failing_told",
    "published",
    "ratio_of",
    "reference_rate",
    "row",
    "run_of",
    "seeds_told",
]

SPLIT = ("splitwise-aa", "splitwise-hh", "splitwise-ha", "splitwise-hhcap")
DESIGNS = ("baseline-a100", "baseline-h100", *SPLIT)
SHORT = {
    "baseline-a100": "Baseline-A100",
    "baseline-h100": "Baseline-H100",
    "splitwise-aa": "AA",
    "splitwise-hh": "HH",
    "splitwise-ha": "HA",
    "splitwise-hhcap": "HHcap",
}
CONV, CODE = "azure-conv", "azure-code"
TRACES = {CONV: "conversation", CODE: "coding"}
PRICES = ("table-i", "table-v", "simulator")
BASE = Cluster("baseline-h100", 40)
"""What the published comparisons hold power or cost equal to."""
RATE_RPS = 70.0
"""Of comparisons at the same throughput, as in the scripts of the public simulator."""
BOTH: tuple[Costs, Costs] = (PUBLISHED, MEASURED)


def published(comparison: Literal["iso-power", "iso-cost"], design: str, trace: str) -> Cluster:
    """Take the pool sizes of a design from the scripts of the public simulator."""
    return Cluster(design, *_native.published_pools(design, comparison, trace)[:2])


def reference_rate(design: str, trace: str) -> float:
    """Tell the highest rate of the public simulator at the power of 40 DGX-H100."""
    rate = _native.published_pools(design, "iso-power", trace)[2]
    if rate is None:
        raise ValueError(f"no rate of {design} with {trace} is published")
    return rate


def run_of(lab: Lab, costs: Costs, cluster: Cluster, trace: str, **more: Any) -> dict[str, Any]:
    """Write the options of a run down, but for its rate."""
    return {**cluster.pools, **lab.traffic(trace), **costs.options, **more}


def seeds_told(count: int) -> str:
    """Name the seeds of so many workloads."""
    return f"0 to {count - 1}" if count > 1 else "0"


def row(name: str, columns: Mapping[str, Column], commands: Sequence[str], seeds: str) -> Row:
    """Make a row of the page."""
    return Row(SPLITWISE[name], columns[PUBLISHED.name], columns[MEASURED.name], commands, seeds)


def ratio_of(lab: Lab, pair: Sequence[Mapping[str, Any]], count: int | None = None) -> Estimate | None:
    """Compare the highest rates of two clusters with the same workloads; None if the second holds none."""
    rates, others = (lab.rates(run, seeds=count) for run in pair)
    if min(others) <= 0:
        return None
    ratios = [rate / other for rate, other in zip(rates, others, strict=True)]
    return estimate(ratios).widened(lab.effort.resolution)


def column_of(parts: Sequence[tuple[str, Estimate | None]], why: str = "") -> Column:
    """Put numbers together; a missing one leaves the claim open."""
    known = [Part(label, found) for label, found in parts if found is not None]
    if len(known) < len(parts):
        missing = ", ".join(label or "it" for label, found in parts if found is None)
        return Column((), f"{why + '; ' if why else ''}no rate holds to compare with: {missing}")
    return Column(known, why)


def capacity_command(lab: Lab, run: Mapping[str, Any], count: int | None = None, step: float | None = None) -> str:
    """Write down how a highest rate is found again."""
    seeds = lab.effort.seeds if count is None else count
    ends: dict[str, Any] = {"resolution": lab.effort.resolution} if step is None else {"step": step}
    return command("capacity", {**run, "seeds": seeds, **ends})


def failing_told(failing: Sequence[Failing]) -> str:
    """Name what fails above a highest rate, and with how many seeds."""
    return ", ".join(f"{each['objective']} ({each['seeds']})" for each in failing[:3]) or "-"


def compare(
    lab: Lab, name: str, over: Cluster, under: Cluster, trace: str = CONV, count: int | None = None, **more: Any
) -> Row:
    """Make the row of a claim about two clusters of given sizes."""
    columns, commands = {}, []
    for costs in BOTH:
        runs = [run_of(lab, costs, cluster, trace, **more) for cluster in (over, under)]
        columns[costs.name] = column_of([("", ratio_of(lab, runs, count))])
        commands += [capacity_command(lab, run, count) for run in runs]
    return row(name, columns, commands, seeds_told(lab.effort.seeds if count is None else count))


def cluster_of(candidate: Candidate) -> Cluster:
    """Read what a search found."""
    return Cluster(candidate["design"], candidate["prompt"], candidate["token"])
