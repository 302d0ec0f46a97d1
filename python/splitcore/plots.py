"""Figures of runs. matplotlib is imported when one is drawn, and needs no display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from splitcore.schema import METRICS, PERCENTILES, Metric
from splitcore.units import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from splitcore import Report

__all__ = ["COLOURS", "LIMIT", "check", "check_installed", "figure", "frame", "save"]

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's palette: told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = {"prompt": "--", "token": "-", "mixed": "-"}
LIMIT = "#444444"
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_SHARE_MAX = 0.9995
# Half the width of the bar that marks a limit.
_BAR_NINES = 0.2
_POINTS = 1000
_TITLES: dict[Metric, str] = {"ttft": "Time to first token", "tbt": "Time between tokens", "e2e": "End to end"}
# Column of the requests, unit and units per second.
_TIMES: dict[Metric, tuple[str, str, float]] = {
    "ttft": ("ttft_s", "ms", 1000.0),
    "tbt": ("tbt_mean_s", "ms", 1000.0),
    "e2e": ("e2e_s", "s", 1.0),
}
_BATCHES = {"decodes": "Decodes in a batch", "prompt_tokens": "Prompt tokens in a batch"}


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
    check_installed(path)


def check_installed(path: Path | None) -> None:
    """Find out before a run whether plots can be drawn.

    Args:
        path: Where they go; None needs nothing.

    Raises:
        OptionError: If matplotlib is not installed.
    """
    if path is not None and find_spec("matplotlib") is None:
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
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    with rc_context({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.labelsize": 10.5}):
        fig = Figure(figsize=(14, 11), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, hspace=0.05))
        grid = fig.add_gridspec(3, 6)
        for column, metric in enumerate(METRICS):
            columns = slice(2 * column, 2 * column + 2)
            _latency(fig.add_subplot(grid[0, columns]), runs, metric)
            _slowdown(fig.add_subplot(grid[1, columns]), runs, metric)
        for column, what in enumerate(_BATCHES):
            _batches(fig.add_subplot(grid[2, 3 * column : 3 * column + 3]), runs, what)
        handles = [Line2D([], [], color=_colour(index), linewidth=3) for index in range(len(runs))]
        fig.legend(handles, list(runs), loc="outside upper center", ncols=len(runs), frameon=False, fontsize=14)
        return fig


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def frame(ax: Axes) -> None:
    """Give a panel the grid and borders that all panels have."""
    ax.grid(color="#e3e3e3")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _latency(ax: Axes, runs: Mapping[str, Report], metric: Metric) -> None:
    column, unit, factor = _TIMES[metric]
    _percentiles(ax, [factor * report.requests[column] for report in runs.values()])
    ax.set_title(f"{_TITLES[metric]} ({metric.upper()})")
    ax.set_ylabel(f"{metric.upper()} [{unit}]")


def _slowdown(ax: Axes, runs: Mapping[str, Report], metric: Metric) -> None:
    """Draw the ratio to the idle reference; a run keeps an SLO when its curve passes below the grey bar."""
    limits = next(iter(runs.values())).summary["slo"]["limits"][metric]
    _percentiles(ax, [report.requests[f"{metric}_slowdown"] for report in runs.values()])
    low, high = ax.get_ylim()
    top = 1.6 * max(high, limits["p99"])
    for percentile in PERCENTILES:
        share, limit = _SHARES[percentile], limits[percentile]
        sides = [_share(_nines(share) - _BAR_NINES), _share(_nines(share) + _BAR_NINES)]
        ax.fill_between(sides, limit, top, color="#bbbbbb", alpha=0.35, linewidth=0)
        ax.plot(sides, [limit, limit], color=LIMIT, linewidth=2.5, solid_capstyle="butt")
        ax.annotate(
            f"{limit:g}",
            (share, limit),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=10.5,
            color=LIMIT,
        )
    ax.set_ylim(min(low, limits["p50"] / 2), top)
    ax.set_title(f"{metric.upper()} slowdown (grey: SLO limits)")
    ax.set_ylabel("ratio to an idle DGX-A100")


def _percentiles(ax: Axes, runs: Sequence[NDArray[np.float64]]) -> None:
    """Draw values over their percentiles on an axis that gives each further nine the same width.

    A curve ends where requests never finished; requests without a value do not count.
    """
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    # The scale goes first: without a finite value there is nothing that it could be found from.
    ax.set_yscale("log")
    shares = _share(np.linspace(0, _nines(_SHARE_MAX), _POINTS))
    for index, values in enumerate(runs):
        told = values[~np.isnan(values)]
        if told.size:
            with np.errstate(invalid="ignore"):
                heights = np.quantile(told, shares)
            finite = np.isfinite(heights)
            ax.plot(shares[finite], heights[finite], color=_colour(index), linewidth=2.2)
    ax.set_xscale("function", functions=(_nines, _share))
    ax.set_xlim(0, _SHARE_MAX)
    ax.set_xticks([0.5, 0.9, 0.99, 0.999], ["p50", "p90", "p99", "p99.9"])
    ax.set_xlabel("percentile of requests")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    frame(ax)


def _nines(share: Any) -> Any:
    return -np.log10(1 - np.minimum(share, 1 - 1e-9))


def _share(nines: Any) -> Any:
    return 1 - 10.0**-nines


def _batches(ax: Axes, runs: Mapping[str, Report], what: str) -> None:
    """Draw each pool's mean pale, as short bursts make it jump, and a moving mean over it."""
    window_s = 0.0
    for index, (name, report) in enumerate(runs.items()):
        time_s = report.timeline["t_s"]
        window = max(1, time_s.size // 40)
        window_s = max(window_s, time_s[window - 1] - time_s[0])
        for key, values in report.timeline.items():
            pool = key.removesuffix(f"_{what}")
            # A pool that never ran this kind of work would only be a line on the floor.
            if pool == key or not values.any():
                continue
            sums = np.convolve(values, np.ones(window), mode="same")
            smooth = sums / np.convolve(np.ones_like(values), np.ones(window), mode="same")
            ax.plot(time_s, values, color=_colour(index), linewidth=0.8, alpha=0.3)
            label = f"{name}: {pool} machines"
            ax.plot(time_s, smooth, _STYLES[pool], color=_colour(index), linewidth=2.2, label=label)
    ax.set_title(f"{_BATCHES[what]} (bold: mean over {window_s:.0f} s)")
    ax.set_xlabel("time [s]")
    ax.set_ylabel(f"{what.replace('_', ' ')} per machine")
    ax.margins(x=0)
    # Room for the legend above the lines.
    ax.set_ylim(0, 1.35 * ax.get_ylim()[1])
    frame(ax)
    if ax.lines:
        ax.legend(frameon=False, fontsize=10.5, loc="upper right")
