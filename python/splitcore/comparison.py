"""Two clusters of equal power under one workload, side by side: ``python -m splitcore.comparison [FILE.png]``."""

import sys
from pathlib import Path
from typing import TypedDict

from splitcore import Report, plots, simulate, tables
from splitcore.progress import Bar

__all__ = ["main"]


class Machines(TypedDict, total=False):
    """The pools of a cluster, as `splitcore.simulate` takes them."""

    unsplit: str
    prompt: str
    token: str


CLUSTERS: dict[str, Machines] = {
    "Baseline-H100 x40": {"unsplit": "40xdgx-h100"},
    "Splitwise-HA 25P/26T": {"prompt": "25xdgx-h100", "token": "26xdgx-a100"},
}
RATE_PER_S = 30.0
DURATION_S = 300.0


def main(path: Path, duration_s: float = DURATION_S) -> None:
    """Simulate, print one table and draw one figure.

    Args:
        path: Where the figure goes; its folder is made.
        duration_s: Of the arrivals.
    """
    out = tables.console()
    plots.check(path)
    reports: dict[str, Report] = {}
    for name, machines in CLUSTERS.items():
        with Bar(name) as bar:
            reports[name] = simulate(
                **machines,
                trace="azure-conv",
                rate=RATE_PER_S,
                duration_s=duration_s,
                progress=bar.update,
            )
    out.print(f"Azure conversation lengths, {RATE_PER_S:g} requests/s for {duration_s:g} s, BLOOM-176B\n")
    out.print(tables.comparison({name: report.summary for name, report in reports.items()}))
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.save(reports, path)
    out.print(f"plot: {path}", soft_wrap=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/comparison.png"))
