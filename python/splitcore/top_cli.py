"""The command ``splitcore top``."""

import contextlib
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from splitcore import tables
from splitcore._native import SplitcoreError
from splitcore.options import option
from splitcore.units import OptionError

__all__ = ["top"]

_show = partial(option, "What is shown")


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of a splitcore service.")] = "http://127.0.0.1:8090",
    *,
    once: Annotated[bool, _show("", "Print one frame and end.")] = False,
    interval: Annotated[float, _show("S", "Between two frames.")] = 1.0,
    machines: Annotated[int, _show("N", "Machines at most.")] = 32,
    decisions: Annotated[int, _show("N", "Decisions at most.")] = 10,
    secret_file: Annotated[Path | None, option("Service", "FILE", "Secret that every request bears.")] = None,
    timeout: Annotated[float, option("Service", "S", "For each answer.")] = 5.0,
) -> None:
    """Show what a service does: pools, machines and the reasons of the last decisions, until Ctrl-C."""
    if interval <= 0:
        raise OptionError("interval", "more than 0 seconds", str(interval))
    try:
        from splitcore.client import PlacementClient, UnreachableError
        from splitcore.top import frame
    except ImportError as error:
        raise SplitcoreError(str(error)) from None
    secret = None if secret_file is None else secret_file.read_text(encoding="utf-8").strip()
    shown, where = tables.console(), url.rstrip("/")
    with PlacementClient(where, secret=secret, timeout_s=timeout) as client:
        # The first answer is to come: what is wrong from the start is an error.
        drawn = frame(where, client.overview(), machines=machines, decisions=decisions)
        if once:
            shown.print(drawn)
            return
        with (
            contextlib.suppress(KeyboardInterrupt),
            Live(drawn, console=shown, auto_refresh=False, screen=True) as live,
        ):
            while True:
                time.sleep(interval)
                try:
                    drawn = frame(where, client.overview(), machines=machines, decisions=decisions)
                    live.update(drawn, refresh=True)
                except UnreachableError as error:
                    live.update(Group(Text(str(error), style="bold red"), drawn), refresh=True)
