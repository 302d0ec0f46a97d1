"""Writes a section of the page of reproductions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from splitcore.reproduce.results import Column, Row, Section, Table, shown
from splitcore.reproduce.verdicts import RULE, Verdict

__all__ = ["merged", "section"]

_INTRO = f"""\
# Published results, again

What papers on phase-split serving report, found again with splitcore, and whether it holds. `splitcore reproduce`
writes this page; nothing between the marks below is written by hand.

## How verdicts are found

{RULE}
"""


def section(found: Section, how: str) -> str:
    """Write the section of a system.

    Args:
        found: Its claims and numbers.
        how: The command that made it.

    Returns:
        Markdown between two marks.
    """
    parts = [
        _begin(found.system),
        f"## {found.title}",
        f"Made by `{how}`.",
        *found.about,
        "### Verdicts",
        _tally(found),
        _claims(found),
        *(_numbers(table) for table in found.tables),
        "### How each number is found, and how to make it again",
        *(_rerun(row) for row in found.rows),
        _end(found.system),
    ]
    return "\n\n".join(parts) + "\n"


def merged(path: Path, system: str, text: str) -> str:
    """Put a section into a page.

    Args:
        path: The page; it need not be there.
        system: Whose section it is.
        text: Of `section`.

    Returns:
        The page, with everything else as it was.
    """
    page = path.read_text(encoding="utf-8") if path.exists() else _INTRO
    begin, end = page.find(_begin(system)), page.find(_end(system))
    if begin < 0 or end < begin:
        return f"{page.rstrip()}\n\n{text}"
    return page[:begin] + text.rstrip() + page[end + len(_end(system)) :]


def _begin(system: str) -> str:
    return f"<!-- begin: splitcore reproduce {system} -->"


def _end(system: str) -> str:
    return f"<!-- end: splitcore reproduce {system} -->"


def _tally(found: Section) -> str:
    lines = []
    for at, name in enumerate(found.models):
        counts = Counter((row.published, row.measured)[at].verdict(row.claim) for row in found.rows)
        told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
        lines.append(f"- {name}, {len(found.rows)} claims: {told}")
    return "\n".join(lines)


def _claims(found: Section) -> str:
    first, second = found.models
    head = ("claim", "source", "published", f"ours, {first}", "verdict", f"ours, {second}", "verdict")
    cells = []
    for row in found.rows:
        claim = row.claim
        told = []
        for column in (row.published, row.measured):
            told += [_column(row, column), f"**{column.verdict(claim).value}**"]
        cells.append([f"`{claim.name}`: {claim.about}", claim.source, claim.published, *told])
    return _table(head, cells)


def _column(row: Row, column: Column) -> str:
    parts = [f"{part.label}: {shown(part.found, row.claim.unit)}".removeprefix(": ") for part in column.parts]
    remarks = [column.why] if column.why else []
    if column.parts and column.verdict(row.claim) is Verdict.OPEN:
        remarks.append(f"{max(part.found.count for part in column.parts)} seeds do not tell")
    return "<br>".join([*parts, *(f"({remark})" for remark in remarks)])


def _numbers(table: Table) -> str:
    return f"### {table.title}\n\n{table.about}\n\n{_table(table.head, table.rows)}"


def _rerun(row: Row) -> str:
    seeds = "" if row.seeds == "-" else f" Seeds {row.seeds}."
    text = f"**`{row.claim.name}`**: {row.claim.how}.{seeds}"
    commands = list(dict.fromkeys(row.commands))
    return text if not commands else "\n".join([text, "", "```", *commands, "```"])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join([line(head), line("---" for _ in head), *(line(row) for row in rows)])
