"""Tables of runs, for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitcore.schema import (
    METRICS,
    OUTCOMES,
    PERCENTILES,
    ClassUse,
    Faults,
    MachineUse,
    Metric,
    Percentile,
    RequestCounts,
    Summary,
    SwarmSummary,
)

__all__ = [
    "comparison",
    "console",
    "ends",
    "fit_errors",
    "latencies",
    "printable",
    "ruled",
    "run",
    "swarm",
    "three_digits",
    "verdict",
]

# Heading, key in the summary, and the factor to the heading's unit.
_Latency = tuple[str, Literal["ttft_s", "tbt_s", "tpot_s", "gaps_s", "e2e_s"], float]
_GAP: _Latency = ("token gap [ms]", "gaps_s", 1000)
_LATENCIES: tuple[_Latency, ...] = (
    ("TTFT [ms]", "ttft_s", 1000),
    ("TBT [ms]", "tbt_s", 1000),
    ("TPOT [ms]", "tpot_s", 1000),
    _GAP,
    ("E2E [s]", "e2e_s", 1),
)
_Column = Literal[Percentile, "mean", "max"]
_COLUMNS: tuple[_Column, ...] = (*PERCENTILES, "mean", "max")
_MISSED_SHOWN = 12
_BATCHED: tuple[Literal["decode_tokens", "prompt_tokens"], ...] = ("decode_tokens", "prompt_tokens")


def console(*, stderr: bool = False) -> Console:
    """Make a console that prints text as it is: no markup, no guessed colours."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    r"""Make text of somebody else fit to be shown: on one line, and with no say over the terminal.

    Args:
        text: As it came.

    Returns:
        The same with what cannot be printed as escapes, a line end as ``\n``.
    """
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _classes(classes: Sequence[ClassUse]) -> Table:
    table = ruled("class", "priority", "submitted", "completed", "rejected", "TTFT p50", "TTFT p90", "within limits")
    for each in classes:
        counts, ttft, kept = each["requests"], each["ttft_s"], each["attainment"]
        first = (f"{counts[name]:,}" for name in ("submitted", "completed", "rejected"))
        times = ("inf" if ttft[name] is None else f"{ttft[name]:.3g} s" for name in ("p50", "p90"))
        table.add_row(each["name"], str(each["priority"]), *first, *times, "-" if kept is None else f"{kept:.1%}")
    return table


def notes(told: Iterable[str]) -> Iterable[RenderableType]:
    """Draw what a reader should know, a line each.

    Args:
        told: Of a report.

    Returns:
        What `console` prints.
    """
    return [Text(f"note: {note}") for note in told]


def run(summary: Summary) -> RenderableType:
    """Draw one run.

    Args:
        summary: Of its report.

    Returns:
        What `console` prints.
    """
    rate = summary["rate_rps"]
    told = {"model": summary["model"], "trace": summary["trace"], "seed": summary["seed"]}
    told |= {} if rate is None else {"rate": f"{rate:.3g}/s"}
    told |= {"policy": summary["policy"], "costs": summary["cost_model"], "transfer": summary["transfer_mode"]}
    slos = ruled("slowdown", *PERCENTILES)
    for metric in METRICS:
        slos.add_row(metric.upper(), *(_slo(summary, metric, percentile, limit=True) for percentile in PERCENTILES))
    facts = Table.grid(padding=(0, 2))
    facts.add_row("nine SLOs", verdict(summary["slo"]["met"]))
    for name, fact in _facts(summary).items():
        facts.add_row(name, fact)
    for name, fact in _admission(summary).items():
        facts.add_row(name, fact)
    return Group(
        Text("  ".join(f"{name} {value}" for name, value in told.items()), style="bold"),
        Text(f"{summary['requests']['submitted']:,} requests: {ends(summary['requests'])}"),
        latencies(summary),
        slos,
        _pools(summary["machines"]),
        *([_faults(summary["faults"])] if "faults" in summary else []),
        *([_classes(summary["classes"])] if "classes" in summary else []),
        facts,
        *notes(summary["notes"]),
    )


def comparison(runs: Mapping[str, Summary]) -> Table:
    """Draw runs side by side, one column each.

    Args:
        runs: Summaries by the heading of their column.

    Returns:
        What `console` prints.
    """
    summaries = list(runs.values())
    limits = summaries[0]["slo"]["limits"]
    table = ruled("", *runs)
    table.add_row("machines", *("\n".join(_by_pool(s["machines"])) for s in summaries))
    table.add_row("requests", *(ends(s["requests"]) for s in summaries), end_section=True)
    for latency in _LATENCIES:
        cells = (" / ".join(_times(s, latency, PERCENTILES)) for s in summaries)
        table.add_row(f"{latency[0]} p50 / p90 / p99", *cells)
    table.add_row("worst token gap [ms]", *(_times(s, _GAP, ("max",))[0] for s in summaries))
    table.add_section()
    for metric in METRICS:
        for percentile in PERCENTILES:
            label = f"{metric.upper()} slowdown {percentile} < {limits[metric][percentile]:g}"
            table.add_row(label, *(_slo(s, metric, percentile) for s in summaries))
    table.add_row("nine SLOs", *(verdict(s["slo"]["met"]) for s in summaries), end_section=True)
    facts = [_facts(s) for s in summaries]
    for name in facts[0]:
        table.add_row(name, *(each[name] for each in facts))
    return table


def fit_errors(errors: Mapping[str, Mapping[str, float]]) -> Table:
    """Draw the errors of a profile fit.

    Args:
        errors: Shares by model and machine, then by phase.

    Returns:
        What `console` prints.
    """
    phases = list(dict.fromkeys(phase for row in errors.values() for phase in row))
    table = ruled("MAPE (mean absolute percentage error)", *phases)
    for name, row in errors.items():
        table.add_row(name, *(f"{row[phase]:.2%}" for phase in phases))
    return table


def swarm(summary: SwarmSummary) -> RenderableType:
    """Draw what a swarm found; of seeds that failed, the first in full.

    Args:
        summary: Of `splitcore.swarm`.

    Returns:
        What `console` prints.
    """
    failed, wall_s = summary["failed"], summary["wall_s"] or 1e-9
    first = summary["from_seed"]
    commit = "" if summary["commit"] is None else f" ({summary['commit']})"
    version = f"splitcore {summary['version']}{commit}"
    facts = Table.grid(padding=(0, 2))
    facts.add_row("seeds", f"{summary['seeds']:,}, from {first} to {first + summary['seeds'] - 1}")
    facts.add_row("events", f"{summary['events']:,}, median of a seed {summary['events_median']:,}")
    facts.add_row("faults", f"median of a seed {summary['faults_median']:,}")
    facts.add_row("wall time", f"{wall_s:.2f} s with {summary['jobs']} jobs, {summary['seeds'] / wall_s:,.0f} seeds/s")
    facts.add_row("digest", summary["digest"])
    seeds = ", ".join(str(each["seed"]) for each in failed[:20]) + (", ..." if len(failed) > 20 else "")
    told = Text(f"{len(failed):,}: {seeds}", style="bold red") if failed else Text("none", style="green")
    facts.add_row("failing seeds", told)
    parts: list[RenderableType] = [Text(version, style="bold"), facts, *_cells(summary)]
    if failed:
        seed = failed[0]["seed"]
        parts += [
            Text(f"\nseed {seed} failed, {version}", style="bold red"),
            Text("last events:\n" + "\n".join(f"  {line}" for line in failed[0]["last_events"])),
            Text(failed[0]["what"], style="bold"),
            Text(f"again: splitcore swarm --from {seed} --seeds 1"),
        ]
    return Group(*parts)


def _cells(summary: SwarmSummary) -> Iterable[RenderableType]:
    """Draw how often legs met each failure: how many of its cells were hit, and the one hit least."""
    table = ruled("failure", "hits", "cells hit", "least hit cell")
    missed: list[str] = []
    for failure in dict.fromkeys(cell["failure"] for cell in summary["cells"]):
        cells = [cell for cell in summary["cells"] if cell["failure"] == failure]
        hit = [cell for cell in cells if cell["hits"]]
        missed += [f"{cell['state']} x {failure}" for cell in cells if not cell["hits"]]
        least = min(hit, key=lambda cell: cell["hits"], default=None)
        told = "-" if least is None else f"{least['state']}: {least['hits']:,}"
        table.add_row(failure, f"{sum(cell['hits'] for cell in hit):,}", f"{len(hit)} of {len(cells)}", told)
    yield table
    which = f": {'; '.join(missed)}" if len(missed) <= _MISSED_SHOWN else "; --json lists them"
    yield Text(f"{len(missed)} cells never hit" + which if missed else "every cell hit")


def ruled(*headings: str) -> Table:
    """Make a table with a line under its headings; numbers stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def latencies(summary: Mapping[str, Any]) -> Table:
    """Draw the latencies of a summary, those that it has.

    Args:
        summary: Of a simulation or of a load.

    Returns:
        Milliseconds or seconds, as their rows say.
    """
    table = ruled("latency", *_COLUMNS)
    for latency in _LATENCIES:
        if latency[1] in summary:
            table.add_row(latency[0], *_times(summary, latency, _COLUMNS))
    return table


def ends(counts: RequestCounts) -> str:
    """Tell how requests ended.

    Args:
        counts: Of a summary.

    Returns:
        The outcomes that occurred.
    """
    return ", ".join(f"{counts[end]:,} {end}" for end in OUTCOMES if counts[end] or end == "completed")


def _admission(summary: Summary) -> dict[str, str]:
    """Tell who was turned away and who was served within the limits, if anyone was and there are any."""
    admission = summary["admission"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in admission["rejected"].items())
    facts = {f"turned away ({admission['rule']})": reasons} if reasons else {}
    kept = admission["attainment"]
    return facts | ({} if kept is None else {"requests within the limits": f"{kept:.1%}"})


def _times(summary: Mapping[str, Any], latency: _Latency, columns: Iterable[_Column]) -> list[str]:
    _, key, factor = latency
    values = (summary[key][column] for column in columns)
    return [_missing(summary) if value is None else three_digits(factor * value) for value in values]


def _missing(summary: Mapping[str, Any]) -> str:
    """Tell what None stands for: a request that never finished is infinitely late, otherwise nothing was measured."""
    return "-" if summary["requests"]["completed"] == summary["requests"]["submitted"] else "inf"


def three_digits(value: float) -> str:
    """Round to what a percentile of a few thousand requests is good for."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def _slo(summary: Summary, metric: Metric, percentile: Percentile, *, limit: bool = False) -> Text:
    value, bound = summary["slo"]["slowdown"][metric][percentile], summary["slo"]["limits"][metric][percentile]
    told = _missing(summary) if value is None else f"{value:.2f}"
    kept = told == "-" if value is None else value < bound
    sign = "<" if kept else ">="
    return Text.assemble(f"{told} {sign} {bound:g} " if limit else f"{told} ", verdict(kept))


def verdict(kept: bool) -> Text:
    """Say whether an objective is kept."""
    return Text("pass", style="green") if kept else Text("FAIL", style="bold red")


def _pools(machines: Iterable[MachineUse]) -> Table:
    table = ruled("pool", "busy min", "mean", "max", "decodes / batch", "prompt tokens / batch")
    for name, pool in _by_pool(machines).items():
        use = [machine["utilisation"] or 0.0 for machine in pool]
        passes = sum(machine["passes"] for machine in pool) or 1
        batch = (sum(machine[tokens] for machine in pool) / passes for tokens in _BATCHED)
        shares = (min(use), sum(use) / len(use), max(use))
        table.add_row(name, *(f"{share:.0%}" for share in shares), *(three_digits(mean) for mean in batch))
    return table


def _faults(faults: Faults) -> Table:
    """Draw what faults cost the run, and what they would have cost with restarts from scratch."""
    ways = (faults, faults["restart"])
    table = ruled(f"{faults['crashes']:,} crashes", "resume (this run)", "restart")
    if faults["cluster_restarts"]:
        table.add_row("cluster restarts", *(f"{way['cluster_restarts']:,}" for way in ways))
        table.add_row("requests adopted", *(f"{way['adopted']:,}" for way in ways))
        table.add_row("requests resubmitted", *(f"{way['resubmitted']:,}" for way in ways))
    table.add_row("requests resumed", *(f"{way['resumed']:,}" for way in ways))
    table.add_row("requests restarted", *(f"{way['restarted']:,}" for way in ways))
    table.add_row("requests failed", *(f"{way['failed']:,}" for way in ways))
    table.add_row("lost work [machine s]", *(three_digits(way["lost_work_s"]) for way in ways))
    table.add_row("lost KV tokens", *(f"{way['lost_tokens']:,}" for way in ways))
    waits = (way["extra_time_s"] for way in ways)
    table.add_row("crash to next new token, mean [s]", *("-" if s is None else three_digits(s) for s in waits))
    shares = (way["attainment"] for way in ways)
    table.add_row("requests within all p99 limits", *("-" if share is None else f"{share:.1%}" for share in shares))
    return table


def _by_pool(machines: Iterable[MachineUse]) -> dict[str, list[MachineUse]]:
    """Group machines by pool and hardware, under a name as ``"prompt: 25 dgx-h100"``."""
    groups: dict[tuple[str, str], list[MachineUse]] = {}
    for machine in machines:
        groups.setdefault((machine["role"], machine.get("hardware", "machines")), []).append(machine)
    return {f"{role}: {len(group)} {hardware}": group for (role, hardware), group in groups.items()}


def _facts(summary: Summary) -> dict[str, str]:
    transfer, attainment, wall_s = summary["transfer"], summary["slo"]["attainment"], summary["wall_s"] or 0.0
    visible = transfer["visible_s"]["mean"]
    facts = {
        "requests within all p99 limits": "-" if attainment is None else f"{attainment:.1%}",
        "KV transfers": f"{transfer['count']:,}",
        "  layer-wise": f"{transfer['layer_wise']:,}" if transfer["count"] else "-",
        "  moved": f"{transfer['bytes'] / 1e12:,.2f} TB" if transfer["count"] else "-",
        "  not hidden by prefill, mean": "-" if visible is None else f"{1000 * visible:.2f} ms",
        "moves to the mixed pool": f"{summary['pools']['to_mixed']:,}",
        "evictions": f"{summary['evictions']:,}",
        "cost look-ups out of range": f"{summary['out_of_range_lookups']:,}",
        "simulated": f"{summary['duration_s']:,.1f} s in {wall_s:.2f} s",
        "events": f"{summary['events']:,}",
        "digest": summary["digest"],
    }
    if wall_s > 0:
        facts["events"] += f", {summary['events'] / wall_s / 1e6:.2f} M/s"
    return facts
