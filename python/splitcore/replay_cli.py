"""The command ``splitcore replay``."""

import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from splitcore import _native, tables
from splitcore.options import option
from splitcore.outputs import STDOUT, Outputs, dump
from splitcore.progress import Bar
from splitcore.schema import Replayed, ReplayedLog

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
    if json_path != STDOUT:
        outputs.add("json", json_path, lambda path: path.write_text(f"{dump(found)}\n", encoding="utf-8"))
    with Bar("replaying", unit="segments") as bar:
        found = _native.replay(folder, progress=bar.update)
    outputs.write()
    if json_path == STDOUT:
        typer.echo(dump(found))
    else:
        tables.console().print(_drawn(found))
    if not found["agrees"]:
        raise typer.Exit(1)


def _drawn(found: Replayed) -> RenderableType:
    table = tables.ruled("log", "run", "of a", "begun", "segments", "events", "actions", "ends", "replays")
    for log in found["logs"]:
        begun = datetime.datetime.fromtimestamp(log["begun_s"], datetime.UTC)
        table.add_row(
            log["name"],
            str(log["run"]),
            log["what"] or "-",
            "-" if log["what"] is None else f"{begun:%Y-%m-%d %H:%M:%S}Z",
            f"{log['segments']:,}",
            f"{log['events']:,}" + (f" from {log['first_event']:,}" if log["first_event"] else ""),
            f"{log['actions']:,}",
            log["end"],
            "alike" if log["difference"] is None else "otherwise",
        )
    notes = [_early(log) for log in found["logs"] if log["ended_early"]]
    return Group(table, *notes, *(part for log in found["logs"] for part in _difference(log)))


def _early(log: ReplayedLog) -> Text:
    return Text(f"{log['name']} run {log['run']} ends early: {log['ended_early']}")


def _difference(log: ReplayedLog) -> list[Text]:
    difference = log["difference"]
    if difference is None:
        return []
    where = f"{log['name']} run {log['run']}, event {difference['event']:,} at {difference['now_ns']:,} ns: "
    if difference["part"] == "state":
        where = f"{log['name']} run {log['run']}, before event {difference['event']:,}: "
    lines = [f"{where}{difference['part']} differs ({difference['file']})"]
    lines += [f"  event     {difference['happened']}"] if difference["happened"] else []
    lines += [f"  recorded  {difference['recorded']}", f"  replayed  {difference['replayed']}"]
    return [Text(line) for line in lines]
