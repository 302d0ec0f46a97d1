"""Figures of runs. matplotlib is imported when one is drawn, and needs no display."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from splitcore.schema import METRICS, PERCENTILES, Metric
from splitcore.units import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from splitcore import Report

__all__ = ["check", "figure", "save"]

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's palette: told apart with any colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = {"prompt": "--", "token": "-", "mixed": "-"}
_LIMIT, _GRID, _INK = "#444444", "#e3e3e3", "#222222"
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_SHARE_MAX = 0.9995
_TITLES: dict[Metric, str] = {"ttft": "Time to first token", "tbt": "Time between tokens", "e2e": "End to end"}
# Column of the requests, unit and units per second.
_TIMES: dict[Metric, tuple[str, str, float]] = {
    "ttft": ("ttft_s", "ms", 1000.0),
    "tbt": ("tbt_mean_s", "ms", 1000.0),
    "e2e": ("e2e_s", "s", 1.0),
}
_BATCHES = {"decodes": "Decodes in a batch", "prompt_tokens": "Prompt tokens in a batch"}
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
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with rc_context({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "text.color": _INK}):
        fig = Figure(figsize=(14, 11), layout="constrained")
        fig.get_layout_engine().set(hspace=0.06, wspace=0.03)  # type: ignore[union-attr]
        grid = fig.add_gridspec(3, 6)
        for column, metric in enumerate(METRICS):
            columns = slice(2 * column, 2 * column + 2)
            _latency(fig.add_subplot(grid[0, columns]), runs, metric)
            _slowdown(fig.add_subplot(grid[1, columns]), runs, metric)
        for column, what in enumerate(_BATCHES):
            _batches(fig.add_subplot(grid[2, 3 * column : 3 * column + 3]), runs, what)
        handles = [Line2D([], [], color=_colour(index), linewidth=3) for index in range(len(runs))]
        fig.legend(handles, list(runs), loc="outside upper center", ncols=len(runs), frameon=False, fontsize=13)
        return fig


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _quantiles(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Make a curve of values over shares; it ends where requests never finished, those without a value do not count."""
    values = np.sort(values[~np.isnan(values)])
    shares = np.linspace(0, 1, values.size)
    # Even steps of the axis, not of the share: most points belong to the tail.
    wanted = np.searchsorted(shares, 1 - 10 ** -np.linspace(0, -np.log10(1 - _SHARE_MAX), _POINTS_MAX))
    picked = np.unique(wanted[wanted < values.size])
    picked = picked[np.isfinite(values[picked])]
    return shares[picked], values[picked]


def _frame(ax: Axes) -> None:
    ax.grid(color=_GRID)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _percentile_axes(ax: Axes) -> None:
    """Give each nine of the percentile the same width, and write 0.5, 1, 2, 5, 10 on the log axis."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    ax.set_xscale("function", functions=(lambda x: -np.log10(1 - np.minimum(x, 0.999999)), lambda y: 1 - 10.0**-y))
    ax.set_xlim(0, _SHARE_MAX)
    ax.set_xticks([0, 0.5, 0.9, 0.99, 0.999], ["min", "p50", "p90", "p99", "p99.9"])
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 200 * low else (1.0,)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.set_xlabel("percentile of requests")
    _frame(ax)


def _latency(ax: Axes, runs: Mapping[str, Report], metric: Metric) -> None:
    column, unit, factor = _TIMES[metric]
    for index, report in enumerate(runs.values()):
        ax.plot(*_quantiles(factor * report.requests[column]), color=_colour(index), linewidth=2.2)
    _percentile_axes(ax)
    ax.set_title(_TITLES[metric])
    ax.set_ylabel(f"{metric.upper()} [{unit}]")


def _slowdown(ax: Axes, runs: Mapping[str, Report], metric: Metric) -> None:
    """Draw the ratio to the idle reference; a run keeps an SLO when its curve passes below the limit's bar."""
    for index, report in enumerate(runs.values()):
        ax.plot(*_quantiles(report.requests[f"{metric}_slowdown"]), color=_colour(index), linewidth=2.2)
    limits = next(iter(runs.values())).summary["slo"]["limits"][metric]
    for percentile in PERCENTILES:
        share, limit = _SHARES[percentile], limits[percentile]
        width = 0.16
        ends = [1 - (1 - share) * 10**side for side in (width, -width)]
        ax.plot(ends, [limit, limit], color=_LIMIT, linewidth=2.5, solid_capstyle="butt")
        ax.annotate(
            f"< {limit:g}",
            (share, limit),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            color=_LIMIT,
        )
    ax.set_ylim(top=1.25 * max(ax.get_ylim()[1], limits["p99"]))
    _percentile_axes(ax)
    ax.set_title(f"{metric.upper()} slowdown and its SLOs")
    ax.set_ylabel("ratio to an idle DGX-A100")


def _batches(ax: Axes, runs: Mapping[str, Report], what: str) -> None:
    for index, (name, report) in enumerate(runs.items()):
        time_s = report.timeline["t_s"]
        for key, values in report.timeline.items():
            pool = key.removesuffix(f"_{what}")
            # A pool that never ran this kind of work would only be a line on the floor.
            if pool != key and values.any():
                label = f"{name}, {pool} machines"
                ax.plot(time_s, values, _STYLES[pool], color=_colour(index), linewidth=1.4, label=label)
    ax.set_title(f"{_BATCHES[what]}, mean of a pool's machines")
    ax.set_xlabel("time [s]")
    ax.set_ylabel(what.replace("_", " "))
    ax.margins(x=0)
    # Room for the legend above the lines.
    ax.set_ylim(0, 1.35 * ax.get_ylim()[1])
    _frame(ax)
    if ax.lines:
        ax.legend(frameon=False, fontsize=10, loc="upper right")
