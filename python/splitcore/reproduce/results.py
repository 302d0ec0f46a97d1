"""What experiments hand to the page."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splitcore.reproduce.claims import Claim, Unit
from splitcore.reproduce.verdicts import Estimate, Verdict, all_of, judge

__all__ = ["Column", "Made", "Part", "Row", "Section", "Table", "command", "shown"]


@dataclass(frozen=True)
class Part:
    """One number of a claim."""

    label: str
    """Empty where there is one only."""
    found: Estimate


@dataclass(frozen=True)
class Column:
    """What one cost model makes of a claim."""

    parts: Sequence[Part] = ()
    why: str = ""
    """Why there is no number, or what one has to know of it."""

    def verdict(self, claim: Claim) -> Verdict:
        """Hold it against the claim."""
        return all_of(judge(claim.band, part.found) for part in self.parts) if self.parts else Verdict.OPEN


@dataclass(frozen=True)
class Row:
    """A claim, and what came of it."""

    claim: Claim
    published: Column
    """Under the published cost and link model."""
    measured: Column
    commands: Sequence[str]
    """How the numbers are made again, one by one."""
    seeds: str
    """Which."""


@dataclass(frozen=True)
class Table:
    """Numbers behind the claims."""

    title: str
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Made = tuple[list[Row], list[Table]]
"""What an experiment makes."""


@dataclass(frozen=True)
class Section:
    """All of one system."""

    system: str
    title: str
    models: tuple[str, str]
    """What the published model and ours are called."""
    about: Sequence[str]
    """Paragraphs."""
    rows: Sequence[Row]
    tables: Sequence[Table]


_FORMS: Mapping[Unit, tuple[str, float, str]] = {
    "steps": ("{:+.0f}", 1.0, ""),
    "ratio": ("{:.3g}", 1.0, "x"),
    "percent": ("{:+.3g}", 100.0, " %"),
    "points": ("{:+.1f}", 1.0, " points"),
    "ms": ("{:.3g}", 1.0, " ms"),
    "tokens": ("{:.0f}", 1.0, " tokens"),
    "machines": ("{:.1f}", 1.0, ""),
    "requests/s": ("{:.4g}", 1.0, ""),
}


def shown(found: Estimate, unit: Unit) -> str:
    """Write an estimate down.

    Args:
        found: It.
        unit: Of the claim.

    Returns:
        As ``"1.2x [1.1, 1.3]"``; without brackets where no luck is in it.
    """
    form, factor, suffix = _FORMS[unit]

    def number(value: float) -> str:
        return form.format(value * factor) if math.isfinite(value) else str(value)

    told = f"{number(found.mean)}{suffix}"
    if found.low is None or found.high is None:
        return f"{told} (one seed)"
    return told if found.count == 0 else f"{told} [{number(found.low)}, {number(found.high)}]"


# Keywords whose option is spelled otherwise.
_SPELLED = {
    "cost_limit": "cost-limit",
    "designs": "design",
    "duration_s": "duration",
    "power_limit": "power-limit",
    "requests": "requests-limit",
}


def command(name: str, options: Mapping[str, Any]) -> str:
    """Write down how a number is made again.

    Args:
        name: A command of ``splitcore``.
        options: Keywords of the Python function.

    Returns:
        A line for a shell.
    """
    words = ["splitcore", *name.split()]
    for keyword, value in options.items():
        if value is None:
            continue
        option = f"--{_SPELLED.get(keyword, keyword.replace('_', '-'))}"
        values = value if isinstance(value, list | tuple) else [value]
        for each in values:
            words += [option, ("on" if each else "off") if isinstance(each, bool) else _plain(each)]
    return shlex.join(words)


def _plain(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
