"""The command ``splitcore replay``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from splitcore import _native, tables
from splitcore.options import option
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.schema import Replayed

__all__ = ["replay"]


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="With the logs of a service, or those under one name.")],
    *,
    json_path: Annotated[
        Path | None, option("Output", "FILE|-", "All that was found; - prints nothing else.", "--json")
    ] = None,
) -> None:
    """Give the events of recorded logs to the schedulers once more, and expect the same actions.

    Exits with 1 if a log comes to something else than what was recorded.
    """
    outputs = Outputs()
    # Its segments, and whatever else lies beside them.
    for segment in folder.rglob("*") if folder.is_dir() else ():
        outputs.reads("DIR", segment)
    outputs.json("json", json_path, lambda: found)
    with Bar("replaying", unit="segments") as bar:
        found = _native.replay(folder, progress=bar.update)
    outputs.write()
    if not outputs.use_stdout:
        shown = tables.console()
        shown.print(_table(found))
        for line in _notes(found):
            # A line is for one to copy.
            shown.print(line, soft_wrap=True)
    if not found["agrees"]:
        raise typer.Exit(1)


def _table(found: Replayed) -> RenderableType:
    table = tables.ruled("log", "run", "of a", "segments", "events", "actions", "ends", "replays")
    for log in found["logs"]:
        table.add_row(
            log["name"],
            str(log["run"]),
            log["what"] or "-",
            f"{log['segments']:,}",
            f"{log['events']:,}",
            f"{log['actions']:,}",
            log["end"],
            "alike" if log["difference"] is None else "otherwise",
        )
    return table


def _notes(found: Replayed) -> Iterator[str]:
    for log in found["logs"]:
        name, difference = f"{log['name']} run {log['run']}", log["difference"]
        if log["first_event"]:
            yield f"{name} begins with event {log['first_event']:,}: what was before is not kept"
        if log["ended_early"]:
            yield f"{name} ends early: {log['ended_early']}"
        if difference is None:
            continue
        before = "before " if difference["part"] == "state" else ""
        at = "" if before else f" at {difference['now_ns']:,} ns"
        yield f"{name}, {before}event {difference['event']:,}{at}: {difference['part']} differs ({difference['file']})"
        yield from [f"  event     {difference['happened']}"] if difference["happened"] else []
        yield f"  recorded  {difference['recorded']}"
        yield f"  replayed  {difference['replayed']}"
