"""The comparisons of the DistServe paper."""

from collections.abc import Callable, Sequence

from splitcore.reproduce.lab import Effort, Lab
from splitcore.reproduce.results import Row, Table

__all__ = ["FULL", "QUICK", "STEPS", "TITLE", "about"]

FULL = Effort(seeds=5, few_seeds=3, search_seeds=2, resolution=0.01, duration_s=300.0, step=1, requests=400)
QUICK = Effort(seeds=2, few_seeds=2, search_seeds=1, resolution=0.5, duration_s=10.0, step=1, requests=20)
TITLE = "DistServe (OSDI 2024)"

Made = tuple[list[Row], list[Table]]


def about(lab: Lab) -> list[str]:
    """Say what one has to know to read the section."""
    return []


STEPS: Sequence[tuple[str, float, Callable[[Lab], Made]]] = ()
