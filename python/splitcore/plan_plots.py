"""Figures of the planner. matplotlib is imported when one is drawn, and needs no display."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from splitcore.designs import pool_sizes
from splitcore.plan_schema import Candidate, Capacity, Cell, Design, Finding, Plan
from splitcore.planning import Load, load_curve
from splitcore.plots import COLOURS, LIMIT, frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from splitcore.engines import Engine, Progress

__all__ = ["bars", "curves", "feasibility", "loads", "rates_around", "save", "save_all"]

_FONTS: dict[Any, Any] = {"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.labelsize": 10.5}
# Shares of a highest rate at which latencies are drawn: close where they begin to climb.
_SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3)
# Blue holds and vermilion fails, as everywhere; what follows from others is pale.
_HOLDS, _HOLDS_PALE, _FAILS, _FAILS_PALE = COLOURS[0], "#a9cfe6", COLOURS[1], "#f6cfb0"
_UNKNOWN = "#ffffff"
_FRONTIER = "#000000"
_PANELS_A_ROW = 3
_METRICS = {
    "ttft_s": "TTFT [s]",
    "tpot_s": "TPOT [s]",
    "e2e_s": "E2E [s]",
    "ttft_slowdown": "TTFT slowdown",
    "tbt_slowdown": "TBT slowdown",
    "e2e_slowdown": "E2E slowdown",
    "attainment": "attainment",
}


def save(figure: Figure, path: Path) -> None:
    """Write a figure.

    Args:
        figure: It.
        path: The file; its suffix is the format.
    """
    figure.savefig(path, dpi=150)


def rates_around(rate: float | None) -> list[float]:
    """Choose rates up to and past a highest rate.

    Args:
        rate: The highest rate; None or 0 if none is known, for rates around 1.

    Returns:
        Rates in ascending order.
    """
    return [share * (rate or 1.0) for share in _SHARES]


def curves(
    found: Plan, spec: Mapping[str, Any], engine: Engine, progress: Progress | None = None
) -> dict[str, list[Load]]:
    """Find what the best cluster of each design makes of rates around the one that it is for.

    Args:
        found: Of `splitcore.plan`.
        spec: Of `plan_spec`.
        engine: Makes the runs.
        progress: Called now and then with the runs made and all of them.

    Returns:
        By design and size.
    """
    chosen = [
        (design, candidate, rate)
        for design, candidate, rate in zip(spec["designs"], found["designs"], _rates(found, spec), strict=True)
        if candidate is not None
    ]
    all_curves: dict[str, list[Load]] = {}
    for at, (design, candidate, rate) in enumerate(chosen):

        def tell(done: int, total: int, at: int = at) -> None:
            if progress is not None:
                progress(at * total + done, len(chosen) * total)

        machines = pool_sizes(design, candidate["prompt"], candidate["token"])
        all_curves[_label(candidate)] = load_curve(engine, spec, machines, rates_around(rate), tell)
    return all_curves


def _rates(found: Plan, spec: Mapping[str, Any]) -> list[float | None]:
    """List the rate that each design's best is for."""
    return found["design_rates"] or [spec["rate_rps"]] * len(found["designs"])


def _label(candidate: Candidate) -> str:
    return f"{candidate['design']} {_pools(candidate)}"


def _pools(candidate: Candidate) -> str:
    if candidate["token"]:
        return f"{candidate['prompt']}P + {candidate['token']}T"
    return f"x {candidate['prompt']}"


def save_all(found: Plan, spec: Mapping[str, Any], curves: Mapping[str, list[Load]], folder: Path) -> None:
    """Draw a plan: ``map.png``, ``load.png`` and ``price.png``, each where there is something to draw.

    Args:
        found: Of `splitcore.plan`.
        spec: Of `plan_spec`.
        curves: Of `curves`.
        folder: Where the files go.
    """
    if found["map"]:
        save(feasibility(found, spec), folder / "map.png")
    if curves:
        best = found["best"]
        capacities = {} if best is None else {_label(best["candidate"]): best["capacity"]}
        save(loads(curves, capacities, asked=spec["rate_rps"]), folder / "load.png")
    if any(found["designs"]):
        save(bars(found), folder / "price.png")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, hspace=0.05))


def loads(
    curves: Mapping[str, Sequence[Load]], capacities: Mapping[str, Capacity], *, asked: float | None = None
) -> Figure:
    """Draw what objectives limit against load, one panel for each objective.

    Args:
        curves: Loads by name; a line is the mean over seeds, its band reaches from the least to the most.
        capacities: Highest rates by name of the curve; each is a band as wide as its interval.
        asked: A rate to mark.

    Returns:
        A figure that belongs to no window.
    """
    from matplotlib import rc_context
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    objectives = next(iter(curves.values()))[0]["verdicts"][0]["findings"]
    highest = max(load["rate"] for loads in curves.values() for load in loads)
    columns = min(_PANELS_A_ROW, len(objectives))
    rows = -(-len(objectives) // columns)
    with rc_context(_FONTS):
        fig = _figure(4.7 * max(columns, 2), 0.8 + 3.2 * rows)
        axes = fig.subplots(rows, columns, squeeze=False)
        for at, objective in enumerate(objectives):
            ax = axes.flat[at]
            for index, loads in enumerate(curves.values()):
                _curve(ax, loads, at, COLOURS[index % len(COLOURS)])
            _limits(ax, objective, curves, at)
            for index, name in enumerate(curves):
                if name in capacities:
                    _band(ax, capacities[name], COLOURS[index % len(COLOURS)])
            if asked is not None:
                ax.axvline(asked, color=LIMIT, linestyle=":", linewidth=1.8)
            ax.set_xlim(0, 1.03 * highest)
            if at // columns == rows - 1 or at + columns >= len(objectives):
                ax.set_xlabel("requests a second")
        for ax in axes.flat[len(objectives) :]:
            ax.set_visible(False)
        handles: list[Any] = [
            Line2D([], [], color=COLOURS[index % len(COLOURS)], linewidth=3, label=name)
            for index, name in enumerate(curves)
            if name
        ]
        handles.append(Line2D([], [], color=LIMIT, linestyle="--", linewidth=2, label="limit"))
        if capacities:
            label = "highest rate, 95 % interval"
            handles.append(Patch(facecolor="#bbbbbb", alpha=0.6, label=label))
        if asked is not None:
            handles.append(Line2D([], [], color=LIMIT, linestyle=":", linewidth=2, label="rate asked for"))
        fig.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 4), frameon=False, fontsize=12)
        return fig


def _curve(ax: Axes, loads: Sequence[Load], at: int, colour: str) -> None:
    """Draw the mean over seeds; the curve ends where it is infinite with some seed."""
    rates = np.array([load["rate"] for load in loads])
    found = np.array([[_value(verdict["findings"][at]) for verdict in load["verdicts"]] for load in loads])
    told = np.isfinite(found).all(axis=1)
    ax.fill_between(
        rates[told], found[told].min(axis=1), found[told].max(axis=1), color=colour, alpha=0.18, linewidth=0
    )
    ax.plot(rates[told], found[told].mean(axis=1), color=colour, linewidth=2.2, marker="o", markersize=4)


def _value(finding: Finding) -> float:
    return np.inf if finding["found"] is None else finding["found"]


def _limits(ax: Axes, objective: Finding, curves: Mapping[str, Sequence[Load]], at: int) -> None:
    """Draw the limit, and choose an axis on which both it and the curves can be read."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    limit = objective["limit"]
    ax.axhline(limit, color=LIMIT, linestyle="--", linewidth=2)
    metric, _, rest = objective["objective"].partition(" ")
    of_class = "" if objective["class"] in ("", "all") else f"{objective['class']}: "
    ax.set_title(f"{of_class}{_METRICS.get(metric, metric)} {rest}".rstrip() + f" (limit {limit:g})")
    if metric == "attainment":
        ax.set_ylim(0, 1.05)
        ax.set_ylabel("share of requests")
    else:
        values = [
            _value(verdict["findings"][at])
            for loads in curves.values()
            for load in loads
            for verdict in load["verdicts"]
        ]
        known = [value for value in values if 0 < value < np.inf]
        low, high = min([*known, limit]), max([*known, limit])
        ax.set_yscale("log")
        # Far past the limit there is nothing to learn but that it is far.
        ax.set_ylim(low / 1.15, min(high * 1.15, limit * 20))
        narrow, subs = high < 8 * low, (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
        ax.yaxis.set_major_locator(MaxNLocator(5) if narrow else LogLocator(subs=subs))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.set_ylabel("ratio to an idle DGX-A100" if metric.endswith("slowdown") else _METRICS.get(metric, metric))
    frame(ax)


def _band(ax: Axes, found: Capacity, colour: str) -> None:
    rate, ci = found["max_rate"], found["ci"]
    if ci is not None:
        ax.axvspan(ci["low"], ci["high"], color=colour, alpha=0.15, linewidth=0)
    ax.axvline(rate, color=colour, linewidth=1.6)


def feasibility(found: Plan, spec: Mapping[str, Any]) -> Figure:
    """Draw which clusters hold the rate, one panel for each design.

    Args:
        found: Of `splitcore.plan`, with a map.
        spec: Of `plan_spec`.

    Returns:
        A figure that belongs to no window.
    """
    from matplotlib import rc_context
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = [design for design in spec["designs"] if any(_is_of(cell["candidate"], design) for cell in found["map"])]
    split = [design for design in drawn if design["unsplit"] is None]
    unsplit = [design for design in drawn if design["unsplit"] is not None]
    columns = {1: 1, 2: 2, 4: 2}.get(len(split), _PANELS_A_ROW) if split else 1
    rows = -(-len(split) // columns)
    # Room for the legend's row, for the maps, and for a strip of each unsplit design.
    heights = [4.6] * rows + [1.25] * len(unsplit)
    with rc_context(_FONTS):
        fig = _figure(max(5.4 * columns, 7.0), 1.2 + sum(heights))
        grid = fig.add_gridspec(len(heights), columns, height_ratios=heights)
        for at, design in enumerate(split):
            _map(fig.add_subplot(grid[at // columns, at % columns]), found, design, spec["machines_step"])
        for at, design in enumerate(unsplit):
            _strip(fig.add_subplot(grid[rows + at, :]), found, design, spec["machines_step"])
        handles: list[Any] = [
            Patch(facecolor=_HOLDS, label="holds"),
            Patch(facecolor=_HOLDS_PALE, label="holds, as a smaller one does"),
            Patch(facecolor=_FAILS, label="fails"),
            Patch(facecolor=_FAILS_PALE, label="fails, as a larger one does"),
            Line2D([], [], color=_FRONTIER, marker="s", fillstyle="none", linestyle="", label="frontier"),
            _star([], []),
        ]
        fig.legend(handles=handles, loc="outside upper center", ncols=min(columns + 1, 3), frameon=False, fontsize=12)
        return fig


def _star(x: Sequence[float], y: Sequence[float], **more: Any) -> Any:
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {
        "marker": "*",
        "markersize": 17,
        "markerfacecolor": COLOURS[4],
        "markeredgecolor": _FRONTIER,
    }
    return Line2D(x, y, linestyle="", label="best", zorder=5, **style, **more)


def _is_of(candidate: Candidate, design: Design) -> bool:
    return candidate["design"] == design["name"]


def _shade(cell: Cell) -> str:
    if cell["judged"] is None:
        return _HOLDS_PALE if cell["holds"] else _FAILS_PALE
    return _HOLDS if cell["holds"] else _FAILS


def _map(ax: Axes, found: Plan, design: Design, step: int) -> None:
    """Draw the pairs of pool sizes of a split design."""
    from matplotlib.ticker import MaxNLocator

    cells = [cell for cell in found["map"] if _is_of(cell["candidate"], design)]
    _cells(ax, cells, step, lambda candidate: candidate["token"])
    best = _marks(ax, found, design, step, lambda candidate: candidate["token"])
    ax.set_title(design["name"] + (f"\n{best}" if best else ""))
    ax.set_xlabel(f"prompt machines ({design['prompt']})")
    ax.set_ylabel(f"token machines ({design['token']})")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)


def _strip(ax: Axes, found: Plan, design: Design, step: int) -> None:
    """Draw the sizes of an unsplit design."""
    from matplotlib.ticker import MaxNLocator

    cells = [cell for cell in found["map"] if _is_of(cell["candidate"], design)]
    _cells(ax, cells, step, lambda _: 0)
    best = _marks(ax, found, design, step, lambda _: 0)
    ax.set_title(design["name"] + (f" {best}" if best else ""))
    ax.set_xlabel(f"machines ({design['unsplit']})")
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right", "left"]].set_visible(False)


def _cells(ax: Axes, cells: Sequence[Cell], step: int, row: Callable[[Candidate], int]) -> None:
    from matplotlib.colors import to_rgb

    columns = sorted({cell["candidate"]["prompt"] for cell in cells})
    rows = sorted({row(cell["candidate"]) for cell in cells})
    width, height = (columns[-1] - columns[0]) // step + 1, (rows[-1] - rows[0]) // step + 1
    shades = np.full((height, width, 3), to_rgb(_UNKNOWN))
    for cell in cells:
        x = (cell["candidate"]["prompt"] - columns[0]) // step
        y = (row(cell["candidate"]) - rows[0]) // step
        shades[y, x] = to_rgb(_shade(cell))
    half = step / 2
    extent = (columns[0] - half, columns[-1] + half, rows[0] - half, rows[-1] + half)
    ax.imshow(shades, origin="lower", extent=extent, aspect="auto", interpolation="nearest")


def _marks(ax: Axes, found: Plan, design: Design, step: int, row: Callable[[Candidate], int]) -> str:
    """Mark the frontier and the best cluster, if they are of this design; tell what the design's best is."""
    from matplotlib.patches import Rectangle

    for candidate in found["frontier"]:
        if _is_of(candidate, design):
            corner = (candidate["prompt"] - step / 2, row(candidate) - step / 2)
            ax.add_patch(Rectangle(corner, step, step, fill=False, edgecolor=_FRONTIER, linewidth=1.8, zorder=4))
    best = found["best"]
    if best is not None and _is_of(best["candidate"], design):
        ax.add_line(_star([best["candidate"]["prompt"]], [row(best["candidate"])]))
    own = next((each for each in found["designs"] if each is not None and _is_of(each, design)), None)
    if own is None:
        return ""
    total = own["total"]
    return f"{_pools(own)}, {total['cost_per_hour']:,.0f} $/h, {total['power_w'] / 1000:,.0f} kW"


def bars(found: Plan) -> Figure:
    """Draw what the best cluster of each design takes, and its rate where that was the goal.

    Args:
        found: Of `splitcore.plan`.

    Returns:
        A figure that belongs to no window.
    """
    from matplotlib import rc_context

    chosen = [(at, candidate) for at, candidate in enumerate(found["designs"]) if candidate is not None]
    names = [f"{candidate['design']}\n{_pools(candidate)}" for _, candidate in chosen]
    totals = [candidate["total"] for _, candidate in chosen]
    panels: dict[str, list[float]] = {
        "Cost [$/h]": [total["cost_per_hour"] for total in totals],
        "Provisioned power [kW]": [total["power_w"] / 1000 for total in totals],
        "Space [rack units]": [total["rack_units"] for total in totals],
    }
    if found["design_rates"]:
        panels["Highest rate [requests/s]"] = [found["design_rates"][at] or 0.0 for at, _ in chosen]
    best = None if found["best"] is None else found["best"]["candidate"]
    colours = [COLOURS[0] if candidate == best else _HOLDS_PALE for _, candidate in chosen]
    with rc_context(_FONTS):
        fig = _figure(1.6 + 3.6 * len(panels), 1.2 + 0.62 * len(chosen))
        axes = fig.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for ax, (title, values) in zip(axes, panels.items(), strict=True):
            drawn = ax.barh(names, values, color=colours, height=0.68)
            ax.bar_label(
                drawn, labels=[f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in values], padding=4
            )
            ax.set_title(title)
            ax.set_xlim(0, 1.22 * max(*values, 1e-9))
            frame(ax)
            ax.grid(axis="y", visible=False)
        axes[0].invert_yaxis()
        return fig
