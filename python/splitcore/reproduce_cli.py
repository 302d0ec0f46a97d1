"""The command ``splitcore reproduce``."""

from pathlib import Path
from typing import Annotated

import typer

from splitcore import tables
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.reproduce import SYSTEMS, page
from splitcore.reproduce import reproduce as made_again
from splitcore.reproduce.results import command

__all__ = ["reproduce"]


def reproduce(
    system: Annotated[str, typer.Argument(metavar="|".join(SYSTEMS), help="Whose comparisons.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="The page whose section is replaced; by default it is printed."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Runs at a time; by default one for each processor.")
    ] = (None),
    cache: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps every judged run, to go on where it was interrupted.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short workloads, to see that everything runs: the numbers mean nothing.")
    ] = False,
) -> None:
    """Make a paper's comparisons again and write down which of them hold."""
    outputs = Outputs()
    outputs.appends("cache", cache)
    outputs.add("out", out, lambda path: path.write_text(page.merged(out or path, system, text), encoding="utf-8"))
    err = tables.console(stderr=True)
    begun: list[str] = []
    with Bar(f"reproducing {system}") as bar:

        def told(name: str, share: float, left_s: float) -> None:
            bar.update(round(1000 * share), 1000)
            if not err.is_terminal and (not begun or begun[-1] != name):
                begun.append(name)
                left = "" if share == 0 else f", about {left_s:.0f} s left"
                err.print(f"splitcore: {system}: {name}, {share:.0%} done{left}", soft_wrap=True)

        found = made_again(system, quick=quick, jobs=jobs, cache=None if cache is None else str(cache), progress=told)
    how = command(f"reproduce {system}", {"out": out, "quick": None})
    text = page.section(found, f"{how} --quick" if quick else how)
    outputs.write()
    if out is None:
        typer.echo(text)
