"""Rows of results, and the table they are printed as."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Row:
    """One measurement. Medians; the aim, where there is one, is about `value`."""

    name: str
    value: float
    unit: str
    aim: float | None = None
    at_least: bool = False
    """Whether the aim is a lower bound."""
    wall: float | None = None
    """The same in wall time, where `value` is in processor time."""
    notes: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def margin(self) -> float | None:
        """How many times better than the aim; below 1 is a miss."""
        if self.aim is None:
            return None
        return self.value / self.aim if self.at_least else self.aim / self.value

    def cells(self) -> list[str]:
        margin = self.margin
        bound = "" if self.aim is None else f"{'>=' if self.at_least else '<='} {number(self.aim)}"
        wall = "" if self.wall is None else number(self.wall)
        verdict = "" if margin is None else f"{margin:.2f}{'' if margin >= 1 else ' MISS'}"
        return [self.name, number(self.value), wall, self.unit, bound, verdict, self.notes]

    def as_json(self) -> dict[str, Any]:
        fields = {key: value for key, value in vars(self).items() if value not in (None, "", {})}
        return fields | {"margin": self.margin}


@dataclass
class Skipped:
    """A measurement that could not be made here."""

    name: str
    reason: str

    def cells(self) -> list[str]:
        return [self.name, "-", "", "", "", "", f"skipped: {self.reason}"]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "skipped": self.reason}


HEADER = ["what", "measured", "wall", "unit", "aim", "margin", "notes"]
NUMBERS = {"measured", "wall", "margin"}


def show(rows: list[Row | Skipped]) -> None:
    """Print a table that can be pasted into a Markdown file."""
    if not rows:
        return
    table = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
    rule = ["-" * (width - 1) + (":" if title in NUMBERS else "-") for width, title in zip(widths, HEADER, strict=True)]
    table.insert(1, rule)
    print()
    for line in table:
        cells = zip(line, widths, HEADER, strict=True)
        print("|", " | ".join(c.rjust(w) if title in NUMBERS else c.ljust(w) for c, w, title in cells), "|")


def number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
