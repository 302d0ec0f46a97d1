"""What was published, with its source: data, no results of ours.

Ratios of rates are given 10 % either way, as the papers read rates off grids of about that width; other numbers what
is written beside them.
"""

from dataclasses import dataclass
from typing import Literal

from splitcore.reproduce.verdicts import Band

__all__ = ["Claim", "Unit", "ratio"]

Unit = Literal["steps", "ratio", "percent", "points", "ms", "tokens", "machines", "requests/s"]


@dataclass(frozen=True)
class Claim:
    """Something that a paper says."""

    name: str
    about: str
    """What is claimed, in a line."""
    source: str
    """Where it stands."""
    published: str
    """The value as it is printed."""
    band: Band
    """What ours is held against."""
    unit: Unit
    how: str
    """How ours is found."""


def ratio(value: float) -> Band:
    """Give a ratio of rates its band.

    Args:
        value: As published.

    Returns:
        10 % either way; a ratio of 1 claims nothing.
    """
    return Band.about(value, 0.1 * value, neutral=1.0)
