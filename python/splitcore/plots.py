"""Figures of runs. matplotlib is imported when one is drawn, and needs no display."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from splitcore.units import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from splitcore import Report

__all__ = ["check", "figure", "save"]

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's palette: told apart with any colour vision, and in grey by the line styles of the pools.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = {"prompt": "--", "token": "-", "mixed": ":", "unsplit": "-"}
_LIMIT_COLOUR = "#555555"
_METRICS = (("ttft", "Time to first token"), ("tbt", "Time between tokens"), ("e2e", "End to end"))
# A curve of more points looks the same and makes vector files large.
_POINTS_MAX = 2000


def check(path: Path | None) -> None:
    """Find out before a run whether its plot can be drawn.

    Args:
        path: Where it goes; None needs nothing.

    Raises:
        OptionError: If the format is unknown or matplotlib is not installed.
    """
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise OptionError("plot", f"a file ending in {', '.join(FORMATS)}", str(path))
    if find_spec("matplotlib") is None:
        raise OptionError("plot", "matplotlib (pip install 'splitcore[plot]')", "no such package")


def save(runs: Mapping[str, Report], path: Path) -> None:
    """Draw runs and write the figure.

    Args:
        runs: Reports by their names in the legend.
        path: The file; its suffix is the format.
    """
    figure(runs).savefig(path, dpi=150)


def figure(runs: Mapping[str, Report]) -> Figure:
    """Draw the latencies, the slowdowns with the nine SLOs, and the batches of runs laid over each other.

    Args:
        runs: Reports by their names in the legend.

    Returns:
        A figure that belongs to no window.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    fig = Figure(figsize=(13, 10.5), layout="constrained")
    grid = fig.add_gridspec(3, 6)
    for column, (metric, title) in enumerate(_METRICS):
        columns = slice(2 * column, 2 * column + 2)
        latency, slowdown = fig.add_subplot(grid[0, columns]), fig.add_subplot(grid[1, columns])
        _latency(latency, runs, metric, title)
        _slowdown(slowdown, runs, metric, title)
    _batches(fig.add_subplot(grid[2, :3]), runs, "decodes", "Decodes in the batch")
    _batches(fig.add_subplot(grid[2, 3:]), runs, "prompt_tokens", "Prompt tokens in the batch")
    handles = [Line2D([], [], color=_colour(i), linewidth=2.5) for i in range(len(runs))]
    fig.legend(handles, list(runs), loc="outside upper center", ncols=len(runs), frameon=False, fontsize=12)
    return fig


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _cumulative(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Make a cumulative curve; requests that never finished keep it below 1, those without a value do not count."""
    values = np.sort(values[~np.isnan(values)])
    if values.size == 0:
        return values, values
    shares = np.arange(1, values.size + 1) / values.size
    picked = np.unique(np.linspace(0, values.size - 1, _POINTS_MAX).astype(np.int64))
    picked = picked[np.isfinite(values[picked])]
    return values[picked], shares[picked]


def _shares(ax: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set_xscale("log")
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.grid(which="major", color="#dddddd")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _plain_ticks(ax: Axes) -> None:
    """Write 0.1, 1, 10 at the decades and, on a short axis, the numbers between them."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = ax.get_xlim()
    short = high < 30 * low
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _latency(ax: Axes, runs: Mapping[str, Report], metric: str, title: str) -> None:
    scale, unit = (1000.0, "ms") if metric == "tbt" else (1.0, "s")
    for index, report in enumerate(runs.values()):
        ax.plot(*_cumulative(scale * report.requests[f"{metric}_s"]), color=_colour(index), linewidth=2)
    _shares(ax)
    _plain_ticks(ax)
    ax.set_title(f"{title} ({metric.upper()})")
    ax.set_xlabel(f"{metric.upper()} [{unit}]")
    ax.set_ylabel("share of requests")


def _slowdown(ax: Axes, runs: Mapping[str, Report], metric: str, title: str) -> None:
    """Draw the ratio to the idle reference; a curve meets an SLO when it crosses its height left of its line."""
    for index, report in enumerate(runs.values()):
        ax.plot(*_cumulative(report.requests[f"{metric}_slowdown"]), color=_colour(index), linewidth=2)
    summary = next(iter(runs.values())).summary
    for slo in summary["slos"]:
        if slo["metric"] != metric:
            continue
        share, limit = slo["percentile"] / 100, slo["limit"]
        ax.vlines(limit, 0, share, color=_LIMIT_COLOUR, linestyle="--", linewidth=1)
        ax.plot([limit], [share], marker=4, color=_LIMIT_COLOUR, markersize=9, linestyle="none")
        label = f"p{slo['percentile']} < {limit:g}"
        ax.annotate(
            label,
            (limit, share),
            xytext=(6, -4),
            textcoords="offset points",
            va="top",
            fontsize=9,
            color=_LIMIT_COLOUR,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )
    _shares(ax)
    # Room for the label of the rightmost limit.
    low, high = ax.get_xlim()
    ax.set_xlim(right=high * (high / low) ** 0.25)
    _plain_ticks(ax)
    ax.set_xlabel(f"{metric.upper()} slowdown against an idle DGX-A100 [ratio]")
    ax.set_ylabel("share of requests")
    ax.set_title(f"{title}: SLOs", fontsize=10)


def _batches(ax: Axes, runs: Mapping[str, Report], what: str, title: str) -> None:
    suffix = f"_{what}"
    for index, (name, report) in enumerate(runs.items()):
        time_s = report.timeline["t_s"]
        for key, values in report.timeline.items():
            pool = key.removesuffix(suffix)
            # A pool that never ran this kind of work would only be a line on the floor.
            if pool == key or not values.any():
                continue
            label = f"{name}: {pool}" if len(runs) > 1 else pool
            ax.plot(time_s, values, _STYLES.get(pool, "-."), color=_colour(index), linewidth=1.3, label=label)
    ax.set_title(f"{title} of a machine (mean of the pool)")
    ax.set_xlabel("time [s]")
    ax.set_ylabel(what.replace("_", " "))
    ax.margins(x=0)
    # Room for the legend above the lines.
    ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
    ax.grid(color="#dddddd")
    ax.spines[["top", "right"]].set_visible(False)
    if ax.lines:
        ax.legend(frameon=False, fontsize=9, loc="upper right")
