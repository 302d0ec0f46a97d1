"""Tables of runs, for people."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitcore.schema import OUTCOMES, PERCENTILES, Distribution, Slo, Summary

__all__ = ["comparison", "console", "fit_errors", "run"]

_LATENCIES = (
    ("TTFT", "arrival to first token"),
    ("TBT", "per request"),
    ("TPOT", "per request"),
    ("E2E", "arrival to last token"),
    ("gap", "between any two tokens"),
)


def console(*, stderr: bool = False) -> Console:
    """Make a console that prints text as it is: no markup, no guessed colours."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def run(summary: Summary) -> RenderableType:
    """Draw one run.

    Args:
        summary: Of its report.

    Returns:
        What `console` prints.
    """
    parts: list[RenderableType] = [
        Text(_header(summary), style="bold"),
        Text(_requests(summary)),
        _latencies(summary),
        _slos(summary),
        _pools(summary),
        Text("\n".join(_footer(summary))),
    ]
    return Group(*parts)


def comparison(runs: Mapping[str, Summary]) -> Table:
    """Draw runs side by side, one column each.

    Args:
        runs: Summaries by the heading of their column.

    Returns:
        What `console` prints.
    """
    summaries = list(runs.values())
    table = _table("", *runs)

    def row(label: str, cells: Iterable[str | Text], *, last: bool = False) -> None:
        table.add_row(label, *cells, end_section=last)

    row("machines", [" + ".join(f"{p['machines']} {p['name']}" for p in s["pools"]) for s in summaries])
    row("requests finished", [f"{s['requests']['finished']:,}" for s in summaries])
    row("not finished", [_unfinished(s) for s in summaries], last=True)
    for name, _ in _LATENCIES:
        row(f"{name} p50 / p90 / p99 [ms]", [" / ".join(_ms(s, _percentiles(_latency(s, name)))) for s in summaries])
    table.add_section()
    # The nine limits are the same for every run, so the first one names the rows.
    for index, slo in enumerate(summaries[0]["slos"]):
        label = f"{slo['metric'].upper()} p{slo['percentile']} slowdown < {slo['limit']:g}"
        row(label, [_slo(s["slos"][index]) for s in summaries])
    row("all nine SLOs", [_verdict(s["slos_met"]) for s in summaries])
    row("SLO attainment", [f"{s['attainment']:.1%}" for s in summaries], last=True)
    row("transfers", [_transfers(s) for s in summaries])
    row("look-ups out of range", [_outside(s) for s in summaries])
    row("digest", [s["digest"][:16] for s in summaries])
    row("speed", [_speed(s) for s in summaries])
    return table


def fit_errors(errors: Mapping[str, Mapping[str, float]]) -> Table:
    """Draw the errors of a profile fit.

    Args:
        errors: Shares by model and machine, then by phase.

    Returns:
        What `console` prints.
    """
    phases = list(dict.fromkeys(phase for row in errors.values() for phase in row))
    table = _table("mean absolute error", *phases)
    for name, row in errors.items():
        table.add_row(name, *(f"{row[phase]:.2%}" if phase in row else "-" for phase in phases))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _header(summary: Summary) -> str:
    config = summary["config"]
    names = ("model", "trace", "rate", "seed", "policy", "costs", "profile")
    told = {name: config.get(name) for name in names}
    rate = told["rate"]
    told["rate"] = "as recorded" if rate is None else f"{rate:g}/s"
    told["profile"] = told["profile"] or "built-in"
    return "   ".join(f"{name} {value}" for name, value in told.items())


def _requests(summary: Summary) -> str:
    counts = summary["requests"]
    ends = {"finished": counts["finished"], "rejected": counts["rejected"]}
    ends |= {"failed": counts["failed"], "unfinished": counts["unfinished"]}
    return f"{counts['submitted']:,} requests: " + ", ".join(f"{ends[name]:,} {name}" for name in OUTCOMES)


def _unfinished(summary: Summary) -> str:
    return f"{summary['requests']['submitted'] - summary['requests']['finished']:,}"


def _latency(summary: Summary, name: str) -> Distribution:
    return {
        "TTFT": summary["ttft_s"],
        "TBT": summary["tbt_s"],
        "TPOT": summary["tpot_s"],
        "E2E": summary["e2e_s"],
        "gap": summary["gap_s"],
    }[name]


def _percentiles(distribution: Distribution) -> Sequence[float | None]:
    return distribution["p50"], distribution["p90"], distribution["p99"]


def _latencies(summary: Summary) -> Table:
    table = _table("ms", *PERCENTILES, "mean", "max", "")
    table.columns[-1].justify = "left"
    rows = [(name, _latency(summary, name), note) for name, note in _LATENCIES]
    if any(_percentiles(summary["transfers"]["visible_s"])):
        rows.append(("transfer", summary["transfers"]["visible_s"], "not hidden by prefill"))
    for name, x, note in rows:
        table.add_row(name, *_ms(summary, (*_percentiles(x), x["mean"], x["max"])), note)
    return table


def _slos(summary: Summary) -> Table:
    table = _table("slowdown", *PERCENTILES)
    metrics = dict.fromkeys(slo["metric"] for slo in summary["slos"])
    for metric in metrics:
        cells = [_slo(slo, limit=True) for slo in summary["slos"] if slo["metric"] == metric]
        table.add_row(metric.upper(), *cells)
    table.caption = Text.assemble(
        "nine SLOs: ",
        _verdict(summary["slos_met"]),
        f"; {summary['attainment']:.1%} of requests within all limits",
        style="not italic",
    )
    table.caption_justify = "left"
    return table


def _slo(slo: Slo, *, limit: bool = False) -> Text:
    value = "inf" if slo["value"] is None else f"{slo['value']:.2f}"
    bound = f" < {slo['limit']:g} " if limit else " "
    return Text.assemble(value + (bound if slo["met"] else bound.replace("<", ">=")), _verdict(slo["met"]))


def _verdict(met: bool) -> Text:
    return Text("pass", style="green") if met else Text("FAIL", style="bold red")


def _pools(summary: Summary) -> Table:
    table = _table("pool", "machines", "utilisation min", "mean", "max", "moves to mixed")
    for pool in summary["pools"]:
        use = pool["utilisation"]
        shares = (f"{share:.0%}" for share in (use["min"], use["mean"], use["max"]))
        table.add_row(pool["name"], str(pool["machines"]), *shares, f"{pool['moves']:,}")
    return table


def _transfers(summary: Summary) -> str:
    x = summary["transfers"]
    total = x["serialized"] + x["layer_wise"]
    return f"{total:,} ({x['layer_wise']:,} layer-wise), {x['bytes'] / 1e12:,.2f} TB" if total else "none"


def _outside(summary: Summary) -> str:
    found = {kind: count for kind, count in summary["outside"].items() if count}
    return ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in found.items()) or "none"


def _speed(summary: Summary) -> str:
    speed = summary["speed"]
    return f"{speed['events_per_s'] / 1e6:.2f} M events/s"


def _footer(summary: Summary) -> Iterable[str]:
    speed = summary["speed"]
    yield f"transfers              {_transfers(summary)}"
    yield f"look-ups out of range  {_outside(summary)}"
    yield f"digest                 {summary['digest']}"
    yield f"speed                  {speed['events']:,} events in {speed['wall_s']:.2f} s, {_speed(summary)}"


def _ms(summary: Summary, values_s: Iterable[float | None]) -> Iterator[str]:
    """Three significant digits are what a percentile of a few thousand requests is good for."""
    all_finished = summary["requests"]["finished"] == summary["requests"]["submitted"]
    for value_s in values_s:
        if value_s is None:
            yield "-" if all_finished else "inf"
        else:
            yield f"{1000 * value_s:,.0f}" if value_s >= 0.1 else f"{1000 * value_s:.3g}"
